"""Fixed elimination orders at very many states: P and Q of one state, orders chosen to be safe, and pivoting.

Growth is max_k (max_i |l_ik|) (max_j |u_kj|) / max |D|, with rows and columns of D equilibrated: what bounds the
backward error of an elimination without pivoting (Higham, Accuracy and Stability of Numerical Algorithms, theorem 9.3).
"""

import gc
import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from nori.counters import umfpack_pivots
from nori.harness import main, read_csv, write_csv
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.app.matrix_plot import save_pictures
from sysdyn.app.robots import load_robot
from sysdyn.codegen import interpreter
from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import AccuracyWarning, BackendUnavailable
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.check import ZERO
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.pivoted_lu import reference
from sysdyn.offline.sampling import is_singular, sample_matrix, sample_states, stacked
from sysdyn.program.graph import is_constant
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner
from sysdyn.sparse import umfpack
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import SampledMatrix

TITLE = "A fixed order at every state: zero pivots, growth, backward error"
CLAIM = (
    "P and Q are found once, off-line, and serve the factorisation at every q (remark 4, section VI). Pivots that "
    "vanish at some q are not mentioned."
)
# A problem is looked at in this many states; at half of them every joint stands at a multiple of π/2.
STATES, QUICK_STATES = 100_000, 2_000
# States are solved in chunks of this many.
CHUNK = 1_000
# This many states are solved with pivoting, too.
PIVOTED = 1_000
# P and Q are taken at this many generic states.
ONE_STATES, QUICK_ONE_STATES = 10, 3
# A state counts as singular where |det D| is below this fraction of its median.
SINGULAR = 1e-9
# A straight path has this many states.
PATH = 801
# The figures along a path are in this file.
PATH_DATA = "numerics_path.csv"
# Backward errors are drawn within these bounds.
RANGE = (1e-17, 1e3)
# States are of two kinds.
KINDS = ("random", "right angles")
# Every second state of a chunk of `sample_states` is random; at the others the joints are at right angles.
RANDOM = np.arange(CHUNK) % 2 == 0
# The orders of one state, the safe ones, and pivoting have these names in the files.
PAPER, SAFE, PIVOTING = "paper", ("umfpack", "aba", "tearing"), "pivoted"
# Orders for forward dynamics of trees.
OF_TREES = ("umfpack", "aba")
# Pictures and tables call them so.
NAMES = {
    PAPER: "P, Q of one state (paper)", "umfpack": "UMFPACK (safe)", "aba": "order of the ABA",
    "tearing": "tearing, orthogonal border",
    PIVOTING: "pivoting at each state",
}  # fmt: skip
# Each order has a colour and a line.
STYLES = {
    PAPER: {"color": "#D55E00", "linestyle": "-"}, "umfpack": {"color": "#0072B2", "linestyle": "--"},
    "aba": {"color": "#000000", "linestyle": "-."},
    "tearing": {"color": "#CC79A7", "linestyle": (0, (8, 2))},
    PIVOTING: {"color": "#666666", "linestyle": ":"},
}  # fmt: skip


def problems(quick: bool) -> Iterator[tuple[str, Callable[[], Problem], tuple[str, ...]]]:
    """(name, problem, safe orders)."""
    for n in (4,) if quick else (6, 10, 30):
        orders = (*OF_TREES, "tearing")
        yield f"forward, {n} bodies", lambda n=n: sd.forward_dynamics(sd.auto_tree(n, 1, 1.5, 0.9)), orders
    if not quick:
        yield "forward, iCub", lambda: sd.forward_dynamics(load_robot("icub")), OF_TREES
    yield "load cells, 8 bodies", partial(load_cells, 8), ("tearing",)


def pivots(problem: Problem, sampled: SampledMatrix, order: str, k: int = 0) -> Pivots:
    """The order; k: of which state the paper's P and Q are taken."""
    if order == PAPER:
        places = (sampled.row, sampled.col)
        return Pivots(*umfpack_pivots(scipy.sparse.csc_matrix((sampled.values[k], places), shape=(sampled.n,) * 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)  # errors of each order are what is measured here
        return sd.compile(problem, order, level="fast", backend="python").choice.pivots


# ---- kernels -------------------------------------------------------------------------------------------------------


class Kernel:
    """A program of named groups of expressions, in machine code, on batches of states."""

    def __init__(self, graph, inputs, groups):
        self.program = Program.from_graph(graph, inputs, groups)
        self.executable = Runner(MachineCode(self.program, level=0))

    def __call__(self, states: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        n = len(states["q"])
        rows = {name: np.ascontiguousarray(states[name]) for name in self.program.inputs}
        out = {name: np.empty((n, size)) for name, size in self.program.outputs.sizes.items()}
        self.executable.run(rows, out, np.empty(n, dtype=np.int64))
        return out


class Matrix:
    """D and b at many states."""

    def __init__(self, system: BlockSystem):
        self.system = system
        row, self.col = system.coordinates
        entries = [system.assembly.rows[i][j] for i, j in zip(row.tolist(), self.col.tolist(), strict=True)]
        self.starts = np.searchsorted(row, np.arange(system.shape[0]))  # entries lie row by row
        self.kernel = Kernel(system.assembly.graph, system.assembly.inputs, [("D", entries), ("b", system.assembly.b)])

    def backward_error(self, D: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
        """|D d + b| / (|D| |d| + |b|) (N,), ∞-norms, as `Residual.normwise`; inf where d is not finite."""
        with np.errstate(all="ignore"):
            residual = np.add.reduceat(D * d[:, self.col], self.starts, axis=1) + b
            norm = np.add.reduceat(np.abs(D), self.starts, axis=1).max(axis=1)
            error = np.abs(residual).max(axis=1) / (norm * np.abs(d).max(axis=1) + np.abs(b).max(axis=1))
        return np.where(np.isfinite(error), error, math.inf)

    def pivoted(self, states: Mapping[str, np.ndarray], D: np.ndarray, b: np.ndarray) -> np.ndarray:
        """d (N, unknowns) by UMFPACK with its own scaling and pivots, no refinement; by SuperLU where it is missing."""
        if not umfpack.available():
            return reference(self.system, states).plain[:, self.system.columns]
        module = importlib.import_module("scikits.umfpack")
        d = np.empty_like(b)
        for k in range(len(b)):
            context = module.UmfpackContext("di")
            context.control[module.UMFPACK_PRL] = context.control[module.UMFPACK_IRSTEP] = 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a condition number above 1e12
                d[k] = context.linsolve(module.UMFPACK_A, self.system.matrix(D[k]).tocsc(), -b[k])
        return d


class Seen:
    """What is seen of those pivots of an order that depend on the state, given their values (N, m) at random states.

    A pivot counts as zero below ZERO of its median there: rounding decides its sign.
    """

    def __init__(self, values: np.ndarray):
        self.typical = np.nanmedian(np.abs(values), axis=0)
        self.least = np.full(values.shape[1], math.inf)  # of |pivot| over its median
        self.signs = np.zeros((2, values.shape[1]), dtype=bool)

    def see(self, values: np.ndarray) -> np.ndarray:
        """(N,) bool: a pivot is zero at the state, or what comes of one."""
        size = np.where(np.isnan(values), 0.0, np.abs(values)) / self.typical
        clear = size > ZERO
        self.least = np.minimum(self.least, size.min(axis=0, initial=math.inf))
        self.signs |= [(clear & (values < 0.0)).any(axis=0), (clear & (values > 0.0)).any(axis=0)]
        return ~clear.all(axis=1)

    @property
    def crossing(self) -> int:
        """How many take both signs: they pass through zero in between."""
        return int(self.signs.all(axis=0).sum())


class Order:
    """A fixed order in machine code: its unknowns and pivots at many states, with what is seen of them."""

    def __init__(self, name: str, problem: Problem, matrix: Matrix, sampled: SampledMatrix):
        elimination = Elimination(matrix.system, *pivots(problem, sampled, name))
        f = elimination.factors
        self.name, self.choice = name, elimination.choice(name, QUANTITIES)
        rows, columns = sampled.scaling
        factors: tuple[list, list] = ([], [])  # (entry of L or U, its factor in equilibrated terms)
        self.starts: tuple[list, list] = ([], [])
        for k, (r, c) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            pivot, one = (f.pivots[k], rows[r] * columns[c]), (1.0, 1.0)
            below, right = (columns[c], 1.0 / columns[c]) if f.row_is_scaled[k] else (1.0 / rows[r], rows[r])
            lower = [(x, rows[i] * below) for i, x in f.lower[k].items()]
            upper = [(x, columns[j] * right) for j, x in f.upper[k].items()]
            sides = ([pivot, *lower], [one, *upper]) if f.row_is_scaled[k] else ([one, *lower], [pivot, *upper])
            for part, start, side in zip(factors, self.starts, sides, strict=True):
                start.append(len(part))
                part += side
        self.weights = tuple(np.array([w for _, w in part]) for part in factors)
        groups = [("d", f.solution), ("pivots", varying_pivots(elimination))]
        groups += [(name, [x for x, _ in part]) for name, part in zip("LU", factors, strict=True)]
        self.kernel = Kernel(elimination.graph, elimination.assembly.inputs, groups)
        self.begun = self.kernel(sample_states(problem, CHUNK, seed=1))["pivots"][RANDOM]
        self.pivots = Seen(self.begun)
        self.seen: list[np.ndarray] = []  # (3, N): backward error, growth, a pivot is zero

    def growth(self, out: Mapping[str, np.ndarray], largest: np.ndarray) -> np.ndarray:
        """(N,) over the largest entries of D (N,); inf where an entry is not finite."""
        with np.errstate(all="ignore"):
            sizes = [np.maximum.reduceat(np.abs(out[x]) * w, start, axis=1)
                     for x, w, start in zip("LU", self.weights, self.starts, strict=True)]  # fmt: skip
            growth = (sizes[0] * sizes[1]).max(axis=1) / largest
        return np.where(np.isfinite(growth), growth, math.inf)


def varying_pivots(elimination: Elimination) -> list:
    return [p for p in elimination.factors.pivots if not is_constant(p)]


# ---- computing -----------------------------------------------------------------------------------------------------


def compute(folder: Path, quick: bool) -> None:
    """numerics.csv: what was seen of each order; numerics_error.csv: shares of states by error; numerics_one.csv: P and
    Q of several states; numerics_path.csv: backward error along a path."""
    count, one_states = (QUICK_STATES, QUICK_ONE_STATES) if quick else (STATES, ONE_STATES)
    rows, shares, ones, path = [], [], [], []
    for name, make, safe in problems(quick):
        try:
            problem = make()
        except BackendUnavailable:  # icub-models is an extra
            continue
        gc.disable()  # it would walk the entries of graphs that all stay alive
        try:
            matrix = Matrix(sd.assemble(problem))
            generic = sample_states(problem, 2 * ONE_STATES)
            sampled = sample_matrix(matrix.system, {x: values[::2] for x, values in generic.items()})  # random states
            names = (*safe, PAPER) if umfpack.available() else tuple(x for x in safe if x != "umfpack")
            orders = [Order(x, problem, matrix, sampled) for x in names]
            part, curves = _observed(name, problem, matrix, sampled, orders, count)
            rows, shares = rows + part, shares + curves
            if PAPER in names:
                ones += _one_states(name, problem, matrix.system, sampled, one_states)
                path = path or _along_path(name, problem, matrix, orders)
        finally:
            gc.enable()
    for file, table in (("", rows), ("_error", shares), ("_one", ones), ("_path", path)):
        (folder / f"numerics{file}.csv").unlink(missing_ok=True)  # of a run with other libraries
        if table:
            write_csv(folder / f"numerics{file}.csv", table)


def _observed(
    name: str, problem: Problem, matrix: Matrix, sampled: SampledMatrix, orders: list[Order], count: int
) -> tuple[list[dict], list[dict]]:
    """(rows of numerics.csv, rows of numerics_error.csv) of one problem; the first order tells singular states."""
    row, col = matrix.system.coordinates
    scaling = sampled.scaling[0][row] * sampled.scaling[1][col]
    may_be_singular = all(order.name != "aba" for order in orders)  # forward dynamics never is
    typical = np.log(np.abs(orders[0].begun)).sum(axis=1).mean()
    determinant: set[bool] = set()
    regular, pivoted, failing = [], [], []
    for start in range(0, count, CHUNK):
        states = sample_states(problem, CHUNK, seed=1000 + start)
        assembled = matrix.kernel(states)
        D, b = assembled["D"], assembled["b"]
        good = np.ones(CHUNK, dtype=bool)
        for order in orders:
            out = order.kernel(states)
            values, zero = out["pivots"], np.zeros(CHUNK, dtype=bool)
            if order is orders[0]:
                if may_be_singular:
                    good = is_regular(matrix.system, states, values, typical)
                determinant |= set(((values[good] < 0.0).sum(axis=1) % 2).tolist())
            zero[good] = order.pivots.see(values[good])
            if order is orders[0] and zero.any():
                failing.append({x: array[zero] for x, array in states.items()})
            growth = order.growth(out, (np.abs(D) * scaling).max(axis=1))
            order.seen.append(np.array([matrix.backward_error(D, b, out["d"]), growth, zero]))
        regular.append(good)
        if start < PIVOTED:
            error = np.full(CHUNK, math.nan)
            part = {x: array[good] for x, array in states.items()}
            error[good] = matrix.backward_error(D[good], b[good], matrix.pivoted(part, D[good], b[good]))
            pivoted.append(error)
    good = np.concatenate(regular)
    random = np.tile(RANDOM, len(regular))
    chosen = {kind: good & (random == (kind == KINDS[0])) for kind in KINDS}
    rows, shares = [], []
    for order in orders:
        error, growth, zero = np.concatenate(order.seen, axis=1)
        guarded = guarded_solver(problem, order.name, failing if order is orders[0] else [])
        for kind, states in chosen.items():
            rows.append(_about(name, order.name, kind, error[states]) | {
                "singular": int((~good & (random == random[states][0])).sum()), "zero_pivot": int(zero[states].sum()),
                "growth": f"{growth[states].max():.3g}", "growth_median": f"{np.median(growth[states]):.3g}",
                "least_pivot": f"{order.pivots.least.min():.3g}", "crossing": order.pivots.crossing,
                "pivots": len(order.pivots.least), "determinant_crosses": int(len(determinant) > 1),
                "fill_in": order.choice.fill_in, "end_to_end": order.choice.end_to_end.total, **guarded,
            })  # fmt: skip
            shares += _shares(name, order.name, kind, error[states])
    error = np.concatenate(pivoted)
    for kind, states in chosen.items():
        rows.append(dict.fromkeys(rows[0], "") | _about(name, PIVOTING, kind, error[states[: len(error)]]))
        shares += _shares(name, PIVOTING, kind, error[states[: len(error)]])
    return rows, shares


def guarded_solver(problem: Problem, order: str, failing: list[dict[str, np.ndarray]]) -> dict[str, object]:
    """What the compiled solver makes of states at which a pivot of its order is zero: it solves them by pivoting."""
    if not failing:
        return {"guarded": 0, "guarded_solved": 0, "guarded_error": ""}
    states = stacked(failing)
    known = {x: states[x].reshape(len(states["q"]), -1, *([6] if x in ("fx", "f", "a") else [])) for x in states}
    solution = sd.compile(problem, order, level="fast", on_singular="nan")(**known)
    error = solution.backward_error()[solution.ok]
    return {"guarded": len(solution.ok), "guarded_solved": len(error), "guarded_error": f"{error.max(initial=0.0):.2e}"}


def is_regular(system: BlockSystem, states: Mapping[str, np.ndarray], pivots: np.ndarray, typical: float) -> np.ndarray:
    """(N,) bool: D is regular, by its determinant over a typical one; by its condition where pivots do not tell it.

    typical: logarithm of the determinant but for a constant.
    """
    with np.errstate(all="ignore"):
        logs = np.log(np.abs(pivots)).sum(axis=1)
    regular = logs - typical > math.log(SINGULAR)
    unknown = np.isnan(logs)
    if unknown.any():
        regular[unknown] = ~is_singular(system, {name: x[unknown] for name, x in states.items()})
    return regular


def _about(name: str, order: str, kind: str, error: np.ndarray) -> dict[str, object]:
    return {
        "problem": name, "order": order, "at": kind, "states": len(error), "unsolved": int(np.isinf(error).sum()),
        "error_median": f"{np.quantile(error, 0.5, method='lower'):.2e}", "error": f"{error.max():.2e}",
    }  # fmt: skip


def _shares(name: str, order: str, kind: str, error: np.ndarray) -> list[dict[str, object]]:
    """Share of states whose backward error is at least as large."""
    descending, about = np.sort(error)[::-1], {"problem": name, "order": order, "at": kind}
    ranks = np.unique(np.geomspace(1, len(error), 60).astype(int))
    return [about | {"share": f"{k / len(error):.3e}", "error": f"{descending[k - 1]:.3e}"} for k in ranks]


def _one_states(name: str, problem: Problem, system: BlockSystem, sampled: SampledMatrix, count: int) -> list[dict]:
    """P and Q of several random states, judged at others."""
    rows, states = [], sample_states(problem, CHUNK, seed=1)
    for k in range(count):
        elimination = Elimination(system, *pivots(problem, sampled, PAPER, k))
        choice = elimination.choice(PAPER, QUANTITIES)
        groups = [("pivots", varying_pivots(elimination))]
        program = Program.from_graph(elimination.graph, elimination.assembly.inputs, groups)
        values = interpreter.run_groups(program, states)["pivots"]
        seen = Seen(values[RANDOM])
        zero = seen.see(values)
        rows.append({
            "problem": name, "state": k, "crossing": seen.crossing, "pivots": values.shape[1],
            "zero_pivot": int(zero[~RANDOM].sum()), "of": int((~RANDOM).sum()),
            "fill_in": choice.fill_in, "end_to_end": choice.end_to_end.total,
        })  # fmt: skip
    return rows


def _along_path(name: str, problem: Problem, matrix: Matrix, orders: list[Order]) -> list[dict]:
    """Backward error from one random state to another, the joints in proportion, with the zeros of pivots found."""
    ends = {name: x[:4:2] for name, x in sample_states(problem, 4, seed=1).items()}

    def states(t: np.ndarray) -> dict[str, np.ndarray]:
        fixed = {name: np.tile(x[0], (len(t), 1)) for name, x in ends.items()}
        return fixed | {"q": ends["q"][0] + t[:, None] * (ends["q"][1] - ends["q"][0])}

    rows = []
    for order in orders:
        t = np.linspace(0.0, 1.0, PATH)
        pivots = order.kernel(states(t))["pivots"]
        at, which = np.nonzero(pivots[:-1] * pivots[1:] < 0.0)
        low, high = t[at], t[at + 1]
        sign = np.sign(pivots[at, which])
        for _ in range(60):
            middle = (low + high) / 2
            if len(middle):
                same = order.kernel(states(middle))["pivots"][np.arange(len(middle)), which] * sign > 0.0
                low, high = np.where(same, middle, low), np.where(same, high, middle)
        zero = np.isin(np.arange(len(t) + len(low)), np.arange(len(t), len(t) + len(low)))
        t = np.concatenate([t, low])
        assembled = matrix.kernel(states(t))
        error = matrix.backward_error(assembled["D"], assembled["b"], order.kernel(states(t))["d"])
        rows += [
            {
                "problem": name,
                "order": order.name,
                "t": f"{t[k]:.17g}",
                "pivot_is_zero": int(zero[k]),
                "error": f"{error[k]:.3e}",
            }
            for k in np.argsort(t)
        ]
    return rows


# ---- figure --------------------------------------------------------------------------------------------------------


def plot(folder: Path) -> None:
    shares = read_csv(folder / "numerics_error.csv")
    names = list(dict.fromkeys(row["problem"] for row in shares))
    figure = Figure(figsize=(13.5, 4.3 * -(-(len(names) + 1) // 3) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(-(-(len(names) + 1) // 3), 3, squeeze=False).flat)
    for ax, name in zip(panels, names, strict=False):
        _shares_above(ax, [row for row in shares if row["problem"] == name])
        ax.set_title(name, fontsize=11)
    rest = panels[len(names) :]
    _path(rest[0], folder)
    for ax in rest[1:]:
        ax.set_axis_off()
    orders = [x for x in STYLES if any(row["order"] == x for row in shares)]
    handles = [Line2D([], [], **STYLES[x], linewidth=1.8, label=NAMES[x]) for x in orders]
    handles += [
        Line2D([], [], color="#444444", linewidth=0.9, label="random states"),
        Line2D(
            [], [], color="#444444", linewidth=0.9, marker="o", markersize=4.5, label="every joint at a multiple of π/2"
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    save_pictures(figure, folder / "numerics")


def _shares_above(ax: Axes, rows: list[dict]) -> None:
    """Share of states whose backward error is at least x."""
    for order, style in STYLES.items():
        for kind in KINDS:
            part = [row for row in rows if row["order"] == order and row["at"] == kind]
            if not part:
                continue
            x = [min(max(row["error"], RANGE[0]), RANGE[1]) for row in part]
            marks = {"marker": "o", "markersize": 3.5, "markevery": 6} if kind == KINDS[1] else {}
            ax.plot(x, [row["share"] for row in part], linewidth=1.4, **style, **marks)
    least = min(row["share"] for row in rows)
    ax.set(xscale="log", yscale="log", xlim=(RANGE[0] / 3, 3 * RANGE[1]), ylim=(least / 2, 2.0),
           xlabel="backward error", ylabel="share of states with at least that")  # fmt: skip
    ax.set_xticks([1e-16, 1e-12, 1e-8, 1e-4, 1.0, RANGE[1]], [*(f"$10^{{{k}}}$" for k in (-16, -12, -8, -4)), "1", "∞"])
    ax.minorticks_off()
    ax.grid(color="#DDDDDD", linewidth=0.5)


def _path(ax: Axes, folder: Path) -> None:
    """Backward error along the path, zeros of pivots marked."""
    if not (folder / PATH_DATA).exists():
        ax.set_axis_off()
        return
    rows = read_csv(folder / PATH_DATA)
    for order in STYLES:
        part = [row for row in rows if row["order"] == order]
        if part:
            ax.plot([row["t"] for row in part], [row["error"] for row in part], linewidth=1.0, **STYLES[order])
    zero = [row for row in rows if row["pivot_is_zero"]]
    ax.plot([row["t"] for row in zero], [row["error"] for row in zero], linestyle="", marker="x", color="black",
            markersize=5, label="a pivot passes through zero")  # fmt: skip
    ax.set(yscale="log", ylim=(1e-18, 3e3), xlabel="part of a straight path between two random states",
           ylabel="backward error")  # fmt: skip
    ax.set_title(f"{rows[0]['problem']}: along a path", fontsize=11)
    ax.legend(loc="upper left", fontsize=9, frameon=False)
    ax.grid(color="#DDDDDD", linewidth=0.5)


# ---- findings ------------------------------------------------------------------------------------------------------


def findings(folder: Path) -> str:
    rows = read_csv(folder / "numerics.csv")
    pairs = list(zip(rows[::2], rows[1::2], strict=True))  # at random states, at right angles
    paper = [pair for pair in pairs if pair[0]["order"] == PAPER]
    safe = [pair for pair in pairs if pair[0]["order"] in SAFE]
    firm = [row for pair in safe if not pair[0]["determinant_crosses"] for row in pair]
    statements = []
    if paper:
        statements += [_paper(folder, paper), _price(folder, safe)]
    if firm:
        pivoted = [row["error"] for row in rows if row["order"] == PIVOTING]
        statements.append(
            "Forward dynamics in orders chosen to be safe: a zero pivot at "
            f"{sum(row['zero_pivot'] for row in firm)} of {sum(row['states'] for row in firm):,} states, "
            f"{sum(row['crossing'] for row in firm[::2])} pivots that pass through zero, none below "
            f"{min(row['least_pivot'] for row in firm):.2g} of its median, growth up to "
            f"{max(row['growth'] for row in firm):.3g}, backward error up to {max(row['error'] for row in firm):.1e} "
            f"(pivoting at each state: {max(pivoted):.1e})."
        )
    crossing = [pair for pair in safe if pair[0]["determinant_crosses"]]
    for name in dict.fromkeys(random["problem"] for random, _ in crossing):
        statements.append(_singular([pair for pair in crossing if pair[0]["problem"] == name]))
    table = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for random, right in pairs:
        errors = [f"{x['error']:.1e}" for x in (random, right)]
        cells = [random["problem"], NAMES[random["order"]], *["-"] * 5, *errors, "-"]
        if random["order"] != PIVOTING:
            zeros = [f"{100 * x['zero_pivot'] / x['states']:.3g} %" for x in (random, right)]
            crossing = f"{random['crossing']} of {random['pivots']}"
            cells[2:7] = [f"{random['end_to_end']:,}", f"{random['fill_in']:,}", crossing, *zeros]
            cells[-1] = f"{random['growth']:.1e}"
        table.append("| " + " | ".join(cells) + " |")
    return "\n\n".join(
        [
            _head(paper, firm, [row for row in rows if row["order"] == PIVOTING]),
            "\n".join(f"* {x}" for x in statements),
            "\n".join(table),
            NOTE,
        ]
    )


# The table of findings has these columns.
COLUMNS = (
    "problem", "order", "operations", "fill-in", "pivots that pass through zero", "a zero pivot: random states",
    "right angles", "greatest backward error: random states", "right angles", "growth, random states",
)  # fmt: skip
# This text stands below the table.
NOTE = (
    f"A pivot is zero below {ZERO:g} of its median. Operations from q, q̇ on, everything unknown computed. Growth: "
    "max_k (max_i |l_ik|)(max_j |u_kj|) over the greatest entry of D, rows and columns equilibrated. States at which D "
    "is singular do not count."
)


def _head(paper: list[tuple[dict, dict]], firm: list[dict], pivoted: list[dict]) -> str:
    """Whether orders of one state, and safe ones, serve at all states."""
    parts = []
    if paper:
        fails = any(row["zero_pivot"] or row["crossing"] for pair in paper for row in pair)
        parts.append(f"Permutations of one state {'do not serve' if fails else 'serve'} all others")
    if firm:
        zero = any(row["zero_pivot"] or row["crossing"] for row in firm)
        worst, best = (max(row["error"] for row in part) for part in (firm, pivoted))
        safe = "some of them meet zero pivots" if zero else "none of them meets a zero pivot"
        parts.append(
            f"of the orders chosen to be safe for forward dynamics {safe}, and their backward errors are at most "
            f"{worst / best:.0f} times the greatest of pivoting at each state"
        )
    return "; ".join(parts) + "."


def _paper(folder: Path, pairs: list[tuple[dict, dict]]) -> str:
    random, right = zip(*pairs, strict=True)
    ones = read_csv(folder / "numerics_one.csv")
    path = [row for row in read_csv(folder / PATH_DATA) if row["order"] == PAPER]
    points = {round(row["t"], 9) for row in path if row["pivot_is_zero"]}
    there, elsewhere = ([row["error"] for row in path if row["pivot_is_zero"] == x] for x in (1, 0))
    share = min(row["zero_pivot"] / row["states"] for row in right)
    where = "every state" if share == 1.0 else f"{100 * share:.3g} % of the states or more"
    return (
        "P and Q of one random state, as in the paper: with every joint at a multiple of π/2 a pivot is zero at "
        f"{where}, and the "
        f"backward error at half of them is {min(row['error_median'] for row in right):.1g} or more. One is zero at "
        f"{sum(row['zero_pivot'] for row in random)} of {sum(row['states'] for row in random):,} random states, but "
        f"{min(row['crossing'] for row in random)} to {max(row['crossing'] for row in random)} pivots a problem take "
        f"both signs and so vanish in between: growth up to {max(row['growth'] for row in random):.1e}, backward error "
        f"up to {max(row['error'] for row in random):.1e}. Of {len(ones)} P, Q of as many states "
        f"{sum(row['zero_pivot'] > 0 for row in ones)} meet zero pivots at right angles, and "
        f"{sum(row['crossing'] > 0 for row in ones)} have pivots that pass through zero. On a straight path "
        f"between two random states pivots vanish at {len(points)} points, with a backward error of up to "
        f"{max(there, default=0.0):.1e} there, {max(elsewhere):.1e} at the others looked at."
    )


def _price(folder: Path, safe: list[tuple[dict, dict]]) -> str:
    """What safety costs, against the median of P and Q of several states."""
    ones, parts = read_csv(folder / "numerics_one.csv"), []
    for row, _ in safe:
        change = []
        for count in ("end_to_end", "fill_in"):
            median = np.median([one[count] for one in ones if one["problem"] == row["problem"]])
            change.append(f"{100 * (row[count] / median - 1):+.0f} %")
        parts.append(f"{' and '.join(change)} ({row['problem']}, {NAMES[row['order']]})")
    return f"The price of safety in operations and in fill-in, against P and Q of one state: {', '.join(parts)}."


def _singular(pairs: list[tuple[dict, dict]]) -> str:
    """A problem whose determinant takes both signs, in its orders."""
    random, right = pairs[0]
    orders = []
    for one, other in pairs:
        text = f"{NAMES[one['order']]}: {one['zero_pivot']} random and {other['zero_pivot']} other regular states"
        if one["guarded"]:
            text += (
                f", of which the compiled solver solves {one['guarded_solved']} of {one['guarded']} by pivoting, with "
                f"a backward error of at most {one['guarded_error']:.1e}"
            )
        orders.append(text)
    return (
        f"{random['problem'].capitalize()}: the determinant takes both signs, so that in every order some pivot passes "
        f"through zero, and {right['singular']:,} of {right['states'] + right['singular']:,} states at right angles "
        f"are singular. A pivot is zero in {'; in '.join(orders)}."
    )


if __name__ == "__main__":
    main(__file__)
