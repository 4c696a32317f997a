"""Which elimination order needs the fewest operations, for which problem, and which orders are safe."""

import gc
import importlib
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import scipy.sparse
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from nori.counters import umfpack_pivots
from nori.harness import FOLDER, main, read_csv, write_csv
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.app.matrix_plot import save_pictures
from sysdyn.app.robots import load_robot
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import BackendUnavailable, NoSafeOrdering, ProblemError, SingularState
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.check import SampledStates
from sysdyn.offline.elimination import Elimination, solve_scope
from sysdyn.offline.report import Choice, StabilityReport
from sysdyn.offline.sampling import order_samples, sample_matrix
from sysdyn.sparse import umfpack
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import choose_rows
from sysdyn.sparse.orderings import ORDERINGS, STEER
from sysdyn.sparse.sampled import SampledMatrix

TITLE = "Which order wins where: cost and fill-in of elimination orders"
CLAIM = (
    "UMFPACK's P and Q are the means to few operations (problem 2, remark 4, section VI). No other order is compared, "
    "and whether a fixed order holds at every q is not asked."
)
# Counts and picture are in these files.
DATA, FIGURE = "orderings.csv", "orderings"
# Searches look at this many states.
ORDER_STATES = 48
# An order is judged at this many states; at half of them every joint is at a multiple of π/2.
STATES, QUICK_STATES = 512, 128
# An order is given up where it costs this many times the cheapest one known for the problem.
LIMIT = 4.0
# A start is given up where it costs this many times the cheapest start of its order.
CAP = 2.0
# At most this many starts of an order are judged, from the cheapest on, until one is safe.
JUDGED = 2
# An order that was counted has these figures.
NUMBERS = (
    "end_to_end",
    "mul",
    "add",
    "div",
    "solve",
    "fill_in",
    "crossing",
    "least_pivot",
    "backward_error",
)
# An order ends in one of these states.
GIVEN_UP, IMPOSSIBLE, UNSAFE, CROSSING, SAFE = "given up", "impossible", "unsafe", "crossing", "safe"
# Orders by METIS carry this remark where they cannot be had.
NO_METIS = "UMFPACK is missing, or was built without METIS"
# Each kind of problem has a heading.
HEADINGS = {
    "inverse": "inverse dynamics", "forward": "forward dynamics",
    "hybrid": "hybrid dynamics (torque known at every other joint)", "load cells": "load cells (Fig. 2)",
}  # fmt: skip
KINDS = tuple(HEADINGS)
# Six bodies have this many unknowns; problems up to this size count as small.
SMALL = 120
# Cells are shaded by the logarithm of their cost over the cheapest.
NORM = LogNorm(1.0, LIMIT, clip=True)
SHADES = LinearSegmentedColormap.from_list("shades", colormaps["Blues"](np.linspace(0.04, 0.95, 64)))
# An order that is not safe has these lines across its cell.
HATCH = "///"
# Each panel has this many columns.
COLUMNS = 13

Start = Callable[[SampledMatrix], Pivots]


# ---- orders --------------------------------------------------------------------------------------------------------


def _metis(columns_only: bool, a: SampledMatrix) -> Pivots:
    """UMFPACK with METIS for its columns; its own rows, or rows by safe pivoting."""
    rows, columns = umfpack_permutations(a.weighted(STEER), "METIS")[0]
    return choose_rows(a, columns) if columns_only else Pivots(rows, columns)


def umfpack_permutations(matrix: scipy.sparse.spmatrix, method: str) -> tuple[Pivots, bool]:
    """((row_perm, col_perm) as `sysdyn.sparse.umfpack.permutations` with another method for the columns, whether
    UMFPACK did use it).

    A library that was built without CHOLMOD takes AMD and COLAMD instead. Raises BackendUnavailable.
    """
    if not umfpack.available():
        raise BackendUnavailable(umfpack.remedy("not found"))
    module = importlib.import_module("scikits.umfpack")
    context = module.UmfpackContext("di")
    wanted = getattr(module, f"UMFPACK_ORDERING_{method}")
    for name, value in (
        ("PRL", 0), ("SCALE", module.UMFPACK_SCALE_NONE), ("PIVOT_TOLERANCE", 1.0), ("ORDERING", wanted),
    ):  # fmt: skip
        context.control[getattr(module, f"UMFPACK_{name}")] = value
    A = scipy.sparse.csc_matrix(matrix)
    A.sort_indices()
    _, _, P, Q, _, _ = context.lu(A)
    return (P.tolist(), Q.tolist()), context.info[module.UMFPACK_ORDERING_USED] == wanted


@cache
def metis_available() -> bool:
    """UMFPACK is there and was built with METIS."""
    full = np.random.default_rng(0).uniform(1.0, 2.0, (40, 40)) * (np.random.default_rng(1).random((40, 40)) < 0.2)
    return umfpack.available() and umfpack_permutations(scipy.sparse.csc_matrix(full + np.eye(40)), "METIS")[1]


def paper_permutations(a: SampledMatrix) -> Pivots:
    """UMFPACK's P and Q for the matrix at one random state, as the paper takes them."""
    return umfpack_pivots(scipy.sparse.csc_matrix((a.values[0], (a.row, a.col)), shape=(a.n, a.n)))


# An order that is searched has a label, starts, and a mark whether these look at the sampled states.
SEARCHED: dict[str, tuple[str, tuple[Start, ...], bool]] = {
    "paper": ("UMFPACK at one state (paper)", (paper_permutations,), False),
    "umfpack": ("UMFPACK's P and Q (steered)", ORDERINGS["umfpack"][:1], False),
    "umfpack columns": ("UMFPACK's Q (safe rows)", ORDERINGS["umfpack"][1:], True),
    "metis": ("METIS: P and Q (steered)", (partial(_metis, False),), False),
    "metis columns": ("METIS: Q (safe rows)", (partial(_metis, True),), True),
    "markowitz": ("Markowitz (safe pivots)", ORDERINGS["markowitz"], True),
    "tearing": ("tearing, orthogonal border", ORDERINGS["tearing"], True),
}
# Pictures and tables call the orders so.
LABELS = {"rnea": "RNEA", "aba": "ABA", "crba": "CRBA + LTDL", **{name: x[0] for name, x in SEARCHED.items()}}
# The orders are shown in this sequence.
SHOWN = ("rnea", "crba", "aba", *SEARCHED)


def starts_of(order: str, system: BlockSystem, quick: bool) -> tuple[tuple[Start, ...], bool]:
    """(starts of an order, whether they look at the sampled states)."""
    if order in RECURSIVE:
        return (lambda a: RECURSIVE[order](system),), False
    _, starts, heeding = SEARCHED[order]
    return starts[:1] if quick else starts, heeding


# ---- problems ------------------------------------------------------------------------------------------------------


def problems(quick: bool) -> Iterator[tuple[str, str, Callable[[], Problem]]]:
    """(kind, robot, problem)."""
    robots: dict[str, Callable[[], sd.Model]] = {}
    for n in () if quick else (6, 14):
        robots[f"chain {n}"] = partial(sd.chain, n)
    for n, factors in ((3, (1,)),) if quick else ((6, (1, 1.5, 2, 4)), (14, (1, 1.5)), (30, (1, 2, 4))):
        for branching in factors:
            robots[f"tree {n}, b = {branching}"] = partial(sd.auto_tree, n, branching, 1.5, 0.9)
    for base in () if quick else ("fixed", "floating"):
        robots[f"iCub {base}"] = partial(load_robot, "icub", base)
    for kind, make in (("inverse", sd.inverse_dynamics), ("forward", sd.forward_dynamics), ("hybrid", _hybrid)):
        for robot, model in robots.items():
            try:
                loaded = model()
            except BackendUnavailable:  # icub-models is an extra
                continue
            yield kind, robot, partial(make, loaded)
    for n in (6,) if quick else (8, 14, 20):
        yield "load cells", f"chain {n}", partial(load_cells, n)


def _hybrid(model: sd.Model) -> Problem:
    """Torques known at every other joint, accelerations at the rest."""
    return sd.hybrid_dynamics(model, model.joint_names[::2])


# ---- search --------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What came of an order: its cheapest safe start, or the best that there is."""

    status: str = IMPOSSIBLE
    why: str = ""
    choice: Choice | None = None
    report: StabilityReport | None = None

    @property
    def rank(self) -> tuple[bool, bool, int]:
        return self.status == SAFE, self.report.acceptable, -self.choice.end_to_end.total


def search(
    system: BlockSystem, sampled: SampledMatrix, order: str, limit: float, states: SampledStates, quick: bool
) -> Found:
    """The cheapest safe start of an order; those that look at states are made again with the ones at which they fail.

    limit: operations at which it is given up. states: at which it is checked.
    """
    starts, heeding = starts_of(order, system, quick)
    best = Found()
    for _ in range(2 if heeding else 1):
        kept, error = _eliminated(system, sampled, starts, limit)
        if best.choice is None and error is not None:
            best.why = str(error)
            if isinstance(error, NoSafeOrdering | SingularState):
                best.status = GIVEN_UP if best.why.startswith(GIVEN_UP) else UNSAFE
        failing, again = [], []
        for start, choice, elimination in kept:
            report, _, worst = elimination.check(states)
            safe = report.acceptable and not report.often_falls_back
            found = Found(UNSAFE if not safe else CROSSING if report.sign_changes else SAFE, "", choice, report)
            if best.choice is None or found.rank > best.rank:
                best = found
            if found.status == SAFE:
                return best
            failing.append(sample_matrix(system, worst).values)
            again.append(start)
        if not failing:
            break
        sampled, starts = sampled.with_values(np.concatenate(failing)), again
    return best


def _eliminated(
    system: BlockSystem, sampled: SampledMatrix, starts: Sequence[Start], limit: float
) -> tuple[list[tuple[Start, Choice, Elimination]], Exception | None]:
    """(the cheapest JUDGED starts, the last reason why one failed)."""
    costs: list[int] = []
    kept: list[tuple[Start, Choice, Elimination]] = []
    reason, seen = None, []
    for start in starts:
        cap = min([limit, *(CAP * cost for cost in costs)])
        try:
            pivots = start(replace(sampled, budget=cap))
            if pivots in seen:
                continue
            seen.append(pivots)
            elimination = Elimination(system, *pivots, cap=cap)
        except (BackendUnavailable, NoSafeOrdering, ProblemError, SingularState) as error:
            reason = error
            continue
        choice = elimination.choice("", QUANTITIES)
        costs.append(choice.end_to_end.total)
        kept = sorted([*kept, (start, choice, elimination)], key=lambda x: x[1].end_to_end.total)[:JUDGED]
        if choice.triangular:  # no other start can do better
            break
    return kept, reason


# ---- results -------------------------------------------------------------------------------------------------------


def compute(folder: Path, quick: bool) -> None:
    """orderings.csv: one row for each problem and order."""
    rows = share(0, 1, quick) if quick else side_by_side(quick)
    write_csv(folder / DATA, rows)


def side_by_side(quick: bool) -> list[dict[str, object]]:
    """Rows of all problems, from two processes that take every second one."""
    with tempfile.TemporaryDirectory() as parts:
        paths = [Path(parts) / f"{k}.csv" for k in range(2)]
        arguments = [[str(k), str(path), "quick" if quick else ""] for k, path in enumerate(paths)]
        running = [subprocess.Popen([sys.executable, "-c", SHARE, str(FOLDER), *x]) for x in arguments]
        if any([process.wait() for process in running]):
            raise RuntimeError("a process that computes a share of the orders failed, see above")
        rows = [row for path in paths for row in read_csv(path)]
    return sorted(rows, key=lambda row: row["number"])


SHARE = """
import sys
from pathlib import Path
folder, first, path, quick = sys.argv[1:]
sys.path.append(folder)
import orderings
orderings.write_csv(Path(path), orderings.share(int(first), 2, bool(quick)))
"""


def share(first: int, step: int, quick: bool) -> list[dict[str, object]]:
    """Rows of the problems number first, first + step, …"""
    rows: list[dict[str, object]] = []
    for number, (kind, robot, make) in enumerate(problems(quick)):
        if number % step == first:
            gc.disable()  # it would walk millions of entries of graphs that all stay alive
            try:
                rows += [{"number": number, **row} for row in rows_of(kind, robot, make(), quick)]
            finally:
                gc.enable()
    return rows


def rows_of(kind: str, robot: str, problem: Problem, quick: bool) -> list[dict[str, object]]:
    """A row for each order of one problem."""
    system = sd.assemble(problem)
    sampled, states = order_samples(system, ORDER_STATES), SampledStates.of(system, QUICK_STATES if quick else STATES)
    rows, least = [], math.inf
    for order in (*RECURSIVE, *SEARCHED):
        if order.startswith("metis") and not metis_available():
            found = Found(IMPOSSIBLE, NO_METIS)
        else:
            found = search(system, sampled, order, LIMIT * least, states, quick)
        row = {"kind": kind, "robot": robot, "unknowns": sampled.n, "entries": system.nnz, "order": order,
               "status": found.status, "why": found.why.partition("\n")[0]}  # fmt: skip
        numbers: dict[str, object] = dict.fromkeys(NUMBERS, "")
        if found.choice is not None:
            count, report = found.choice.end_to_end, found.report
            least = min(least, count.total)
            values = (
                count.total, count.mul, count.add, count.div + count.sqrt,
                solve_scope(system, found.choice, QUANTITIES).total,
                found.choice.fill_in, report.sign_changes, f"{report.least_pivot:.2g}", f"{report.backward_error:.2g}",
            )  # fmt: skip
            numbers = dict(zip(NUMBERS, values, strict=True))
        rows.append(row | numbers)
    return rows


def _table(folder: Path) -> dict[tuple[str, str], dict[str, dict]]:
    """{(kind, robot): {order: row}}, with `ratio` to the cheapest safe order, or to the cheapest where none is safe."""
    table: dict[tuple[str, str], dict[str, dict]] = {}
    for row in read_csv(folder / DATA):
        table.setdefault((row["kind"], row["robot"]), {})[row["order"]] = row
    for rows in table.values():
        counted = [row for row in rows.values() if row["end_to_end"] != ""]
        safe = [row for row in counted if row["status"] == SAFE]
        for scope in ("end_to_end", "solve"):
            least = min(row[scope] for row in safe or counted)
            for row in counted:
                row[f"ratio of {scope}"] = row[scope] / least
    return table


# ---- figure --------------------------------------------------------------------------------------------------------


def plot(folder: Path) -> None:
    table = _table(folder)
    figure = Figure(figsize=(15.5, 11.2))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, left=0.135, right=0.985, top=0.965, bottom=0.1, wspace=0.05, hspace=0.42)
    for number, kind in enumerate(KINDS):
        ax = figure.add_subplot(grid[divmod(number, 2)])
        columns = {robot: rows for (k, robot), rows in table.items() if k == kind}
        _heat_map(ax, columns, labels=number % 2 == 0)
        ax.set_title(HEADINGS[kind], fontsize=11, loc="left")
    legend = figure.axes[-1]
    handles = [
        Patch(facecolor="white", edgecolor="black", linewidth=1.8, label="cheapest safe order (1)"),
        Patch(facecolor=SHADES(NORM(1.5)), edgecolor="#9C9C9C", hatch=HATCH, hatch_linewidth=0.6, linewidth=0.0,
              label="not safe: a pivot vanishes at some state"),
        Patch(facecolor="white", edgecolor="#D0D0D0", hatch="xxx", hatch_linewidth=0.6, linewidth=0.0,
              label="not defined here"),
        Patch(facecolor=SHADES(1.0), edgecolor="none", label=f"given up: more than {LIMIT:g} times the cheapest"),
    ]  # fmt: skip
    legend.legend(handles=handles, loc="upper right", fontsize=10, frameon=False)
    bar = legend.inset_axes((0.56, 0.45, 0.38, 0.05))
    scale = figure.colorbar(ScalarMappable(NORM, SHADES), cax=bar, orientation="horizontal")
    scale.set_ticks([1, 1.5, 2, 3, LIMIT], labels=["1", "1.5", "2", "3", f"≥ {LIMIT:g}"])
    scale.minorticks_off()
    scale.set_label("operations, relative to the cheapest safe order\n(exact count, from q, q̇ on)", fontsize=10)
    save_pictures(figure, folder / FIGURE)


def _heat_map(ax: Axes, columns: dict[str, dict[str, dict]], labels: bool) -> None:
    """One row an order, one column a robot; each cell shows its ratio."""
    ax.set(xlim=(0, COLUMNS), ylim=(len(SHOWN), 0))
    ax.set_xticks(
        [k + 0.5 for k in range(len(columns))], list(columns), rotation=50, ha="right", rotation_mode="anchor"
    )
    ax.set_yticks([k + 0.5 for k in range(len(SHOWN))], [LABELS[x] for x in SHOWN] if labels else [])
    ax.tick_params(length=0, labelsize=9.5)
    for spine in ax.spines.values():
        spine.set_visible(False)
    for x, rows in enumerate(columns.values()):
        for y, order in enumerate(SHOWN):
            _cell(ax, x, y, rows[order])


def _cell(ax: Axes, x: int, y: int, row: dict) -> None:
    place = {"xy": (x + 0.03, y + 0.03), "width": 0.94, "height": 0.94}
    ratio = row.get("ratio of end_to_end")
    if ratio is None and row["status"] != GIVEN_UP:
        ax.add_patch(
            Rectangle(**place, facecolor="white", edgecolor="#D0D0D0", hatch="xxx", hatch_linewidth=0.6, linewidth=0.0)
        )
        return
    shade = SHADES(NORM(min(ratio or LIMIT, LIMIT)))
    dark = 0.3 * shade[0] + 0.6 * shade[1] + 0.1 * shade[2] < 0.5
    ink = "white" if dark else "black"
    text = f">{LIMIT:g}" if ratio is None else f"{ratio:.2f}" if ratio < 1.995 else f"{ratio:.1f}"
    hatch = None if row["status"] in (SAFE, GIVEN_UP) else HATCH
    between = [0.6 * x + 0.4 * y for x, y in zip(shade[:3], to_rgb(ink), strict=True)]
    lines = {"edgecolor": between, "hatch_linewidth": 0.6} if hatch else {"edgecolor": "none"}
    ax.add_patch(Rectangle(**place, facecolor=shade, hatch=hatch, linewidth=0.0, **lines))
    best = ratio == 1.0 and row["status"] == SAFE
    if best:
        ax.add_patch(Rectangle(**place, fill=False, edgecolor="black", linewidth=1.8))
        text = "1"
    patch = {"facecolor": shade, "edgecolor": "none", "pad": 0.8} if hatch else None
    ax.text(x + 0.5, y + 0.52, text, ha="center", va="center", color=ink, fontsize=8.5, bbox=patch,
            fontweight="bold" if best else "normal")  # fmt: skip


Rows = dict[str, dict]  # of one problem, by order


def findings(folder: Path) -> str:
    table = _table(folder)
    lines = ["| order | " + " | ".join(HEADINGS[kind] for kind in KINDS) + " |", "|---|" + "---|" * len(KINDS)]
    for order in SHOWN:
        cells = [_summary([rows[order] for (k, _), rows in table.items() if k == kind]) for kind in KINDS]
        lines.append(f"| {LABELS[order]} | " + " | ".join(cells) + " |")
    inverse = [rows for (kind, _), rows in table.items() if kind == "inverse"]
    recursive = {key: rows for key, rows in table.items() if key[0] in ("forward", "hybrid")}
    load = [rows for (kind, _), rows in table.items() if kind == "load cells"]
    others = [*recursive.values(), *load]
    statements = (
        _inverse(inverse), _recursive(list(recursive.values())), _one_state(others), _load_cells(load),
        _fill(recursive), _metis_or_colamd(others), _scopes(table),
    )  # fmt: skip
    head = f"{len(SHOWN)} orders in {len(table)} problems, by exact counts."
    return "\n\n".join([head, "\n".join(f"* {text}" for text in statements), "\n".join(lines), NOTE])


# This text stands below the table.
NOTE = (
    "Each cell: operations from q, q̇ on relative to the cheapest safe order, median (greatest), and for how many "
    "robots the order was found to be safe; - where it is not defined. Counts are of everything that is unknown (a, f, "
    "τ, fx, q̈), in the layout of 20 scalars a body, with equal and symmetric results computed once. Steered: UMFPACK "
    "sees entries that depend on the state scaled down, and so prefers constant pivots. Safe rows, pivots: by their "
    f"values at sampled states. Beyond {LIMIT:g} times the cheapest an order is given up"
    " and counts as not safe."
)


def _summary(rows: Sequence[dict]) -> str:
    defined = [row for row in rows if row["status"] != IMPOSSIBLE]
    ratios = [row.get("ratio of end_to_end", math.inf) for row in defined]
    if not ratios:
        return "-"
    shown = [f"{x:.2f}" if math.isfinite(x) else f"> {LIMIT:g}" for x in (np.median(ratios), max(ratios))]
    return f"{shown[0]} ({shown[1]}), safe {sum(row['status'] == SAFE for row in defined)} of {len(rows)}"


def _winners(rows: Rows, scope: str = "end_to_end") -> list[str]:
    return [x for x in SHOWN if rows[x]["status"] == SAFE and rows[x].get(f"ratio of {scope}") == 1.0]


def _ratios(problems: Sequence[Rows], order: str, other: str) -> list[float]:
    """Operations of an order over those of another one, in the problems in which both are known."""
    pairs = [(rows[order]["end_to_end"], rows[other]["end_to_end"]) for rows in problems]
    return [x / y for x, y in pairs if "" not in (x, y)]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "an unknown number of"


def _inverse(problems: Sequence[Rows]) -> str:
    triangular = [LABELS[x] for x in SHOWN if all(rows[x]["fill_in"] == 0 for rows in problems)]
    return f"Inverse dynamics: no fill-in in any of {len(problems)} problems by {', '.join(triangular)}."


def _recursive(problems: Sequence[Rows]) -> str:
    wins = Counter(LABELS[x] for rows in problems for x in _winners(rows))
    text = f"Forward and hybrid dynamics, {len(problems)} problems: the cheapest safe order is "
    text += ", ".join(f"{name} in {count}" for name, count in wins.most_common()) + ". "
    for name, large in (("up to", False), ("more than", True)):
        part = [rows for rows in problems if (rows["aba"]["unknowns"] > SMALL) == large]
        if part:
            aba = sum("aba" in _winners(rows) for rows in part)
            text += f"With {name} {SMALL} unknowns (six bodies) the order of the ABA wins {aba} of {len(part)}. "
    return text + f"UMFPACK's steered P and Q cost {_range(_ratios(problems, 'umfpack', 'aba'))} times as much as it."


def _one_state(problems: Sequence[Rows]) -> str:
    paper = [rows["paper"] for rows in problems if rows["paper"]["end_to_end"] != ""]
    unsafe, cheaper = (r["status"] != SAFE for r in paper), (r["ratio of end_to_end"] < 1.0 for r in paper)
    return (
        f"P and Q taken at one state, as in the paper, are not safe in {sum(unsafe)} of {len(paper)} problems other "
        f"than inverse dynamics; they cost less than every safe order in {sum(cheaper)}."
    )


def _load_cells(problems: Sequence[Rows]) -> str:
    found = [LABELS[x] for rows in problems for x in _winners(rows)]
    one_state = _ratios(problems, "umfpack", "paper")
    names = f" (the cheapest: {', '.join(dict.fromkeys(found))})" if found else ""
    return (
        f"Load cells: a safe order was found for {len(found)} of {len(problems)} sizes{names}. Steered P and Q "
        f"cost {_range(one_state)} times as much as those of one state, which are safe for "
        f"{sum(rows['paper']['status'] == SAFE for rows in problems)} of the sizes."
    )


def _fill(problems: dict[tuple[str, str], Rows]) -> str:
    """How far fill-in, which the paper minimises, tells the cost."""
    least = {
        key: min((row for row in rows.values() if row["status"] == SAFE), key=lambda row: row["fill_in"])
        for key, rows in problems.items()
    }
    other = {key: row for key, row in least.items() if row["ratio of end_to_end"] > 1.0}
    if not other:
        return f"The safe order with the least fill-in is the cheapest in all {len(least)} of them."
    text = f"Fill-in is not cost: the safe order with the least is not the cheapest in {len(other)} of {len(least)}"
    worst = max(other, key=lambda key: other[key]["ratio of end_to_end"])
    ratio = other[worst]["ratio of end_to_end"]
    return f"{text} of them, and up to {ratio:.2f} times as dear ({LABELS[other[worst]['order']]}, {' '.join(worst)})."


def _metis_or_colamd(problems: Sequence[Rows]) -> str:
    if all(rows["metis"]["why"] == NO_METIS for rows in problems):
        return f"METIS was not tried: {NO_METIS}."
    ratios = _ratios(problems, "metis", "umfpack")
    return (
        f"METIS instead of COLAMD inside UMFPACK (steered P and Q; not inverse dynamics) costs {np.median(ratios):.2f} "
        f"times as much in the median, {_range(ratios)}."
    )


def _scopes(table: dict[tuple[str, str], Rows]) -> str:
    differ = sum(_winners(rows) != _winners(rows, "solve") for rows in table.values())
    return (
        f"With X, v, c, ν given (the paper's scope) instead of q, q̇ another order wins in {differ} of {len(table)} "
        "problems."
    )


if __name__ == "__main__":
    main(__file__)
