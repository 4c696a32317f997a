"""Figure 1: the cost of forward dynamics of a chain, by the counter of the paper's script and exactly.

The paper's curves are LU with rows pivoted, LU in UMFPACK's order, the matrix form of Property 2, and the formula of
the ABA. To them come the textbook algorithms, orders with orthogonal columns, and what `sysdyn.compile` makes by
default of the problem: of q̈ alone, as the ABA, and of every unknown, as the LU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from nori import curves
from nori.counters import (
    RBDA,
    matrix_aba_cost,
    right_hand_side,
    row_pivoting,
    solution_cost,
    umfpack_pivots,
)
from nori.curves import (
    COUNTERS,
    END_TO_END,
    EQUAL,
    NOTHING,
    PUBLISHED,
    REWRITTEN,
    SOLVE,
    between,
    curve,
    row,
)
from nori.harness import main, read_csv, write_csv
from nori.matrix_aba import matrix_aba, transformations

import sysdyn as sd
from sysdyn.app import matrix_plot as drawing
from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.equations.assembly import Assembly, with_entry_inputs
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import BlockSystem
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.elimination import Elimination, solve_scope
from sysdyn.offline.sampling import order_samples
from sysdyn.program.graph import Graph, is_zero
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner
from sysdyn.sparse import tearing, umfpack
from sysdyn.sparse.lu import eliminate

TITLE = "Figure 1: the cost of forward dynamics of a serial chain"
CLAIM = (
    "solving D d + b = 0 by an LU factorisation with optimised permutations takes fewer floating-point operations than "
    "the articulated-body algorithm, its formula (RBDA p. 202) as well as its matrix form (Property 2). "
    "Sections V-C and V-D, Figure 1, abstract."
)

# Chains of these lengths are counted.
BODIES, QUICK_BODIES = range(2, 31), (2, 6)
# Chains of these lengths are timed.
TIMED, QUICK_TIMED = (2, 4, 6, 10, 15, 20, 30), (2,)
# So many random states have permutations of their own, as published.
STATES, QUICK_STATES = 5, 2
# Orthogonal orders are chosen at this many states.
ORDER_STATES = 64
# LU with row pivoting is compiled for chains up to this length: its programs grow with the cube.
ROWS_COMPILED = 10
# Each time is of this many repetitions, which take at least SLICE seconds each.
REPETITIONS, SLICE = 25, 4e-4
# A graph shares so where equal results count once, as in a compiled program, and where every result counts.
SHARING = {EQUAL: "algebraic", NOTHING: "none"}

# The files call algorithms and implementations by these names; the counter of Figure 2 was another one.
OTHER = "published, of Figure 2"
ROWS, PERMUTED, MATRIX, FORMULA = "LU, rows pivoted", "LU, permuted", "matrix ABA", "ABA, formula"
ABA, CRBA, RNEA = "ABA", "CRBA + LTDL", "RNEA (inverse dynamics)"
TORN = "torn, orthogonal border"
EVERY, QDD = "compile, every unknown", "compile, q̈"
# Each curve has the unknowns that it finds, a colour, a line and a marker.
STYLE = {
    ROWS: ("all", "#6E6E6E", "-", "s"), PERMUTED: ("all", "#D55E00", "-", "o"), MATRIX: ("all", "#009E73", "--", "^"),
    FORMULA: ("qdd", "#000000", "--", ""), ABA: ("qdd", "#0072B2", "-", "v"), CRBA: ("qdd", "#CC79A7", "-.", "D"),
    RNEA: ("tau", "#E69F00", ":", "x"), TORN: ("all", "#8C564B", "-.", "<"),
    EVERY: ("all", "#56B4E9", "-", "*"), QDD: ("qdd", "#1B2A6B", "-", "P"),
}  # fmt: skip
# Results have these symbols.
SYMBOLS = {"all": "all", "qdd": "q̈", "tau": "τ"}
# Panels leave these margins, as fractions of the figure.
SPACE = {"left": 0.07, "right": 0.99, "top": 0.96, "wspace": 0.2, "hspace": 0.16}
SCIPY, MACHINE_CODE = "SciPy and NumPy", "compiled"


# ---- computing -------------------------------------------------------------------------------------------------------


def compute(folder: Path, quick: bool = False, bodies: Sequence[int] | None = None) -> None:
    """fig1.csv: operations; fig1_time.csv: times of one state."""
    states = QUICK_STATES if quick else STATES
    gc.disable()  # it would walk millions of entries of graphs that all stay alive
    try:
        rows = [row for n in bodies or (QUICK_BODIES if quick else BODIES) for row in _operations(n, states)]
        times = [row for n in bodies or (QUICK_TIMED if quick else TIMED) for row in _times(n)]
    finally:
        gc.enable()
    write_csv(folder / "fig1.csv", rows)
    write_csv(folder / "fig1_time.csv", times)


def _model(n: int) -> sd.Model:
    return sd.auto_tree(n, 1, 1.5, 0.9)


def state(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(q, q̇) of the experiment: q = 10 rand, q̇ = rand."""
    rng = np.random.default_rng((n, k))
    return 10.0 * rng.random(n), rng.random(n)


def _operations(n: int, states: int) -> Iterator[dict]:
    """All counts of a chain of n bodies."""
    for k in range(states):
        yield from published(n, k)
        yield from exact(n, k, ROWS)
        if umfpack.available():
            yield from exact(n, k, PERMUTED)
        gc.collect()
    for counter in COUNTERS:
        yield row(n, counter, FORMULA, "qdd", NOTHING, RBDA["aba"](n))
    yield from matrix_form(n)
    yield from textbook(n)
    yield from orthogonal(n)
    yield from compiled(n)


def published(n: int, k: int) -> Iterator[dict]:
    """By the counter of the script, at state k."""
    system = sd.assemble(sd.forward_dynamics(_model(n)), "net_force")
    q, qd = state(n, k)
    A, b = system.D(q), right_hand_side(system, q, qd)
    orders = {ROWS: (row_pivoting(A),)} | ({PERMUTED: umfpack_pivots(A)} if umfpack.available() else {})
    for name, order in orders.items():
        yield row(n, PUBLISHED, name, "all", NOTHING, solution_cost(A, b, *order), k)
        yield row(n, OTHER, name, "all", NOTHING, solution_cost(A, b, *order, figure=2), k)
    yield row(n, PUBLISHED, MATRIX, "all", NOTHING, matrix_aba_cost(system, q, b), k)


def exact(n: int, k: int, name: str, counters: Iterable[str] = (SOLVE, END_TO_END)) -> Iterator[dict]:
    """LU with the pivots of state k: of every unknown, and in the permuted order of q̈ alone and with nothing shared."""
    system = sd.assemble(sd.forward_dynamics(_model(n)), "net_force")
    A = system.D(state(n, k)[0])
    order = umfpack_pivots(A) if name == PERMUTED else (row_pivoting(A), range(A.shape[0]))
    for counter in counters:
        for outputs, flops in _eliminated(system, *order, counter).items():
            if outputs == "all" or name == PERMUTED:
                yield row(n, counter, name, outputs, EQUAL, flops, k)
    if name == PERMUTED and SOLVE in counters:
        yield row(n, SOLVE, name, "all", NOTHING, _eliminated(system, *order, SOLVE, shared=NOTHING)["all"], k)


def matrix_form(n: int) -> Iterator[dict]:
    """W^L D W^R d' + W^L b = 0 with every product carried out."""
    system = sd.assemble(sd.forward_dynamics(_model(n)), "net_force")
    for counter in (SOLVE, END_TO_END):
        assembly = _assembly(system, counter)
        yield row(n, counter, MATRIX, "all", EQUAL, assembly.graph.count(matrix_solution(system, assembly)))


def textbook(n: int) -> Iterator[dict]:
    """The recursive algorithms; in the scope without X, which they do not take, the orders that they amount to."""
    model = _model(n)
    for name, order, problem, algorithm in (
        (ABA, "aba", sd.forward_dynamics, sd.aba), (CRBA, "crba", sd.forward_dynamics, sd.forward_dynamics_crba),
        (RNEA, "rnea", sd.inverse_dynamics, sd.rnea),
    ):  # fmt: skip
        wanted, plain = STYLE[name][0], sd.assemble(problem(model))
        flops = _eliminated(plain, *RECURSIVE[order](plain), SOLVE, wanted)[wanted]
        yield row(n, SOLVE, name, wanted, EQUAL, flops, note=f"order {order} of D")
        traced = sd.count_flops(algorithm, model, SHARING[EQUAL])
        yield row(n, END_TO_END, name, wanted, EQUAL, traced, note="traced")


def orthogonal(n: int) -> Iterator[dict]:
    """Tearing with an orthogonal border."""
    system = sd.assemble(sd.forward_dynamics(_model(n)))
    order = tearing.tearing_order(order_samples(system, ORDER_STATES), certified=True)
    choice = Elimination(system, *order).choice("", QUANTITIES)
    note = f"{len(choice.rotated_with)} orthogonal columns"
    yield row(n, SOLVE, TORN, "all", EQUAL, solve_scope(system, choice, QUANTITIES), note=note)
    yield row(n, END_TO_END, TORN, "all", EQUAL, choice.end_to_end, note=note)


def compiled(n: int, names: Iterable[str] = (EVERY, QDD)) -> Iterator[dict]:
    """What `compile` makes of the problem by default."""
    for name in names:
        outputs = STYLE[name][0]
        choice = sd.compile(sd.forward_dynamics(_model(n)), outputs=outputs).choice
        shared = REWRITTEN if "rewriting" in choice.passes else EQUAL
        yield row(n, END_TO_END, name, outputs, shared, choice.end_to_end, note=choice.ordering)


def _assembly(system: BlockSystem, counter: str, shared: str = EQUAL) -> Assembly:
    graph = Graph(SHARING[shared])
    return system.build(graph) if counter == END_TO_END else with_entry_inputs(system.assembly, graph)


def _eliminated(
    system: BlockSystem, row_perm, col_perm, counter: str, wanted: str = "qdd", shared: str = EQUAL
) -> dict[str, Flops]:
    """Operations of the LU with these permutations and of both substitutions: for all unknowns, for those wanted."""
    assembly = _assembly(system, counter, shared)
    factors = eliminate(assembly.rows, assembly.b, row_perm, col_perm)
    d = factors.solution
    few = [x for x, block in zip(d, system.col_blocks, strict=True) if block[0] == wanted]
    return {"all": assembly.graph.count(d), wanted: assembly.graph.count(few)}


# ---- W^L D W^R d' + W^L b = 0 as a program ---------------------------------------------------------------------------

Rows = list[dict[int, object]]


def matrix_solution(system: BlockSystem, assembly: Assembly) -> list:
    """d (unknowns,) by the matrices of Property 2, every product carried out, over the scalars of the assembly."""
    right, left = transformations(system.model, _transforms(system, assembly.rows))
    if system.layout.name == "net_force":
        right |= {(("fB", i), ("a", i)): I for i, I in enumerate(system.model.inertias)}
    W1, *others = (_matrix(blocks, system.row_blocks) for blocks in left)
    W_L, W_R = W1, _matrix(right, system.col_blocks)
    for W in others:
        W_L = _product(W, W_L)
    triangle = _product(_product(W_L, assembly.rows), W_R)
    b = [sum((x * assembly.b[k] for k, x in row.items()), start=0.0) for row in W_L]
    order = matrix_aba(system, system.model.neutral())
    place = {c: k for k, c in enumerate(order.col_perm)}
    moved: dict[int, object] = {}
    for r, c in zip(order.row_perm, order.col_perm, strict=True):
        row = triangle[r]
        known = [j for j in row if place[j] < place[c]]  # what is right of the diagonal is zero but for rounding
        moved[c] = -sum((row[j] * moved[j] for j in known), start=b[r]) / row[c]
    return [sum((x * moved[k] for k, x in row.items()), start=0.0) for row in W_R]


def _transforms(system: BlockSystem, rows: Rows) -> list[np.ndarray]:
    """X (nb) of (6, 6), read from the rows c(a_i); that of a root, which is only in b, is left zero."""
    X = [np.full((6, 6), 0.0, dtype=object) for _ in range(system.model.nb)]
    equations = [r for r, block in enumerate(system.row_blocks) if block[0] == "a"]
    for i, parent in enumerate(system.model.parent):
        if parent >= 0:
            columns = {c: k for k, c in enumerate(system.layout.columns("a", parent))}
            for k, r in enumerate(equations[6 * i : 6 * i + 6]):
                for c, x in rows[r].items():
                    if c in columns:
                        X[i][k, columns[c]] = x
    return X


def _matrix(blocks: dict, labels: tuple) -> Rows:
    """Rows of the identity with the given blocks; `labels` has the block of each row and column."""
    places: dict[tuple[str, int], list[int]] = {}
    for k, label in enumerate(labels):
        places.setdefault(label, []).append(k)
    rows: Rows = [{k: 1.0} for k in range(len(labels))]
    for (above, beside), block in blocks.items():
        for r, values in zip(places[above], block, strict=True):
            for c, x in zip(places[beside], values, strict=True):
                rows[r][c] = x
    return [{c: x for c, x in row.items() if not is_zero(x)} for row in rows]


def _product(A: Rows, B: Rows) -> Rows:
    out: Rows = []
    for terms in A:
        entries: dict[int, object] = {}
        for k, x in terms.items():
            for c, y in B[k].items():
                entries[c] = entries[c] + x * y if c in entries else x * y
        out.append({c: x for c, x in entries.items() if not is_zero(x)})
    return out


# ---- time ------------------------------------------------------------------------------------------------------------


def _times(n: int) -> Iterable[dict]:
    """Processor time of one state by each means, and its ratio to that of `_unit` in the same repetition."""
    model = _model(n)
    system = sd.assemble(sd.forward_dynamics(model), "net_force")
    q, qd = state(n, 0)
    tau = np.random.default_rng(n).standard_normal(n)
    yield from _measured(n, SCIPY, _scipy_calls(system, q, qd, tau))
    yield from _measured(n, MACHINE_CODE, compiled_calls(system, q, qd, tau))


def _measured(n: int, means: str, calls: dict[str, tuple[str, Callable]]) -> Iterable[dict]:
    number = {}
    for name, (_, call) in calls.items():
        call()
        number[name] = 1
        while (seconds := _seconds(call, number[name])) < SLICE:
            number[name] = max(2 * number[name], int(number[name] * 1.2 * SLICE / max(seconds, 1e-7)))
    runs = [{name: _seconds(call, number[name]) / number[name] for name, (_, call) in calls.items()}
            for _ in range(REPETITIONS)]  # fmt: skip
    unit = _unit(calls)
    for name, (outputs, _) in calls.items():
        ratios = [run[name] / run[unit] for run in runs]
        yield {
            "bodies": n, "means": means, "algorithm": name, "outputs": outputs,
            "microseconds": f"{1e6 * median(run[name] for run in runs):.3f}", "ratio": f"{median(ratios):.4f}",
            "lower_quartile": f"{np.quantile(ratios, 0.25):.4f}", "upper_quartile": f"{np.quantile(ratios, 0.75):.4f}",
        }  # fmt: skip


def _unit(algorithms: Container[str]) -> str:
    """The algorithm whose time is 1: permuted LU, or the ABA if there is no UMFPACK."""
    return PERMUTED if PERMUTED in algorithms else ABA


def _seconds(call: Callable[[], object], number: int) -> float:
    began = time.process_time()
    for _ in range(number):
        call()
    return time.process_time() - began


def _scipy_calls(system: BlockSystem, q: np.ndarray, qd: np.ndarray, tau: np.ndarray) -> dict:
    """As published: D, W^L, W^R and b are there, b is not permuted. The ABA begins at q, q̇."""
    A, b = system.D(q).tocsc(), system.b(q, qd, tau=tau)
    matrices = matrix_aba(system, q)
    W1, W2, W3, W4 = matrices.left
    D, W_R = A.tocsr(), matrices.right
    lower = scipy.sparse.tril(matrices.triangle(D), format="csr")

    def lu(matrix: scipy.sparse.spmatrix) -> Callable:
        options = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.0}
        return lambda: scipy.sparse.linalg.splu(matrix, **options).solve(b)

    def products() -> np.ndarray:
        _ = W4 @ W3 @ W2 @ W1 @ D @ W_R
        return scipy.sparse.linalg.spsolve_triangular(lower, b)

    orders = {ROWS: A[row_pivoting(A)]}
    if umfpack.available():
        row_perm, col_perm = umfpack_pivots(A)
        orders[PERMUTED] = A[row_perm][:, col_perm]
    return {
        **{name: ("all", lu(ordered)) for name, ordered in orders.items()},
        MATRIX: ("all", products),
        ABA: ("qdd", lambda: sd.aba(system.model, q, qd, tau)),
        CRBA: ("qdd", lambda: sd.forward_dynamics_crba(system.model, q, qd, tau)),
    }


def compiled_calls(system: BlockSystem, q: np.ndarray, qd: np.ndarray, tau: np.ndarray) -> dict:
    """From q, q̇ on, all as machine code."""
    model, A = system.model, system.D(q)
    assembly = system.build(Graph(SHARING[EQUAL]))
    programs = {MATRIX: Program.from_graph(assembly.graph, assembly.inputs, [("d", matrix_solution(system, assembly))])}
    if umfpack.available():
        programs[PERMUTED] = Elimination(system, *umfpack_pivots(A)).program(QUANTITIES)
    if model.nb <= ROWS_COMPILED:
        programs[ROWS] = Elimination(system, row_pivoting(A), range(A.shape[0])).program(QUANTITIES)
    values = {"q": q, "qd": qd, "tau": tau, "fx": np.zeros(6 * model.nb)}
    calls = {name: ("all", _step(program, values)) for name, program in programs.items()}
    sizes = {"q": (model.nq,), "qd": (model.nv,), "tau": (model.nv,)}
    for name, algorithm in ((ABA, sd.aba), (CRBA, sd.forward_dynamics_crba)):
        calls[name] = ("qdd", sd.compile_function(partial(algorithm, model), sizes).bind(q, qd, tau))
    for name, outputs in ((EVERY, "all"), (QDD, "qdd")):
        calls[name] = (outputs, sd.compile(system.problem, outputs=outputs).bind(q, qd, tau))
    return calls


def _step(program: Program, values: dict[str, np.ndarray]) -> Callable[[], None]:
    inputs = {name: values[name] for name in program.inputs}
    results = {name: np.zeros((1, size)) for name, size in program.outputs.sizes.items()}
    return Runner(MachineCode(program)).bind(inputs, results, np.zeros(1, dtype=np.int64), results, single=True)


# ---- showing ---------------------------------------------------------------------------------------------------------


def plot(folder: Path) -> None:
    """fig1: operations by counter and kind; fig1_time: time relative to permuted LU."""
    rows = read_csv(folder / "fig1.csv")
    kinds = {"add": "additions", "mul": "multiplications, divisions, roots", "total": "sum"}
    figure = Figure(figsize=(12.5, 12.0))
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 3, sharex=True, sharey="col", gridspec_kw=SPACE | {"bottom": 0.15})
    for line, counter in zip(axes, COUNTERS, strict=True):
        for ax, (kind, title) in zip(line, kinds.items(), strict=True):
            for name, (outputs, colour, dashes, marker) in STYLE.items():
                shared = shared_words(counter, name)
                drawn = curve(rows, kind, counter=counter, algorithm=name, outputs=outputs, shared=shared)
                curves.draw(ax, drawn, colour, linestyle=dashes, marker=marker, markersize=4.5, label=_label(name),
                            markevery=max(1, len(drawn) // 7))  # fmt: skip
            ax.set_title(f"{counter}{' counter' if counter == PUBLISHED else ''}: {title}", fontsize=11)
    n = sorted({row["bodies"] for row in rows})
    for ax, kind in zip(axes[0], kinds, strict=True):
        steep = [curve(rows, kind, counter=END_TO_END, algorithm=name) for name in (PERMUTED, CRBA, TORN, EVERY)]
        ax.set_ylim(0.0, 1.1 * max(x.greatest for found in steep for x in found.values()))
    for ax in axes.flat:
        ax.set_xlim(n[0], n[-1])
    for ax in axes[:, 0]:
        ax.set_ylabel("operations for one state")
    for ax in axes[-1]:
        ax.set_xlabel("bodies of the chain $N_B$")
    states = len({row["state"] for row in rows if row["state"] != ""})
    _legend(figure, axes, 0.045)
    others = "the published counter and the formula of the ABA share"
    caption = curves.CAPTION.format(states=states, besides=" (compile, q̈: and rewrite terms)", others=others)
    figure.text(0.5, 0.012, caption, ha="center", fontsize=9)
    drawing.save_pictures(figure, folder / "fig1", dpi=110)

    times = read_csv(folder / "fig1_time.csv")
    figure = Figure(figsize=(11.0, 5.6))
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, gridspec_kw=SPACE | {"bottom": 0.22})
    for ax, means in zip(axes, (SCIPY, MACHINE_CODE), strict=True):
        for name, (_, colour, dashes, marker) in STYLE.items():
            chosen = _select(times, means=means, algorithm=name)
            n = [row["bodies"] for row in chosen]
            if n:
                ax.plot(n, [row["ratio"] for row in chosen], dashes, color=colour, marker=marker, markersize=4.5,
                        linewidth=1.4, label=_label(name))  # fmt: skip
            spread = [[row[x] for row in chosen] for x in ("lower_quartile", "upper_quartile")]
            ax.vlines(n, *spread, color=colour, linewidth=3.0, alpha=0.5)
        ax.set(title=means, xlabel="bodies of the chain $N_B$", yscale="log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    unit = {PERMUTED: "permuted LU", ABA: "the ABA"}[_unit({row["algorithm"] for row in times})]
    axes[0].set_ylabel(f"processor time of one state over that of {unit}\n(median, quartiles)")
    _legend(figure, axes, 0.0)
    drawing.save_pictures(figure, folder / "fig1_time", dpi=110)


def shared_words(counter: str, name: str) -> str:
    """What a curve of the figure shares."""
    return NOTHING if counter == PUBLISHED or name == FORMULA else REWRITTEN if name == QDD else EQUAL


def _label(name: str) -> str:
    return name if name in (RNEA, EVERY, QDD) else f"{name}: {SYMBOLS[STYLE[name][0]]}"


def _legend(figure: Figure, axes: np.ndarray, bottom: float) -> None:
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    ordered = [label for label in map(_label, STYLE) if label in handles]
    for ax in axes.flat:
        ax.grid(True, linewidth=0.3, color="#C8C8C8")
    figure.legend([handles[label] for label in ordered], ordered, loc="lower center", ncols=4, frameon=False,
                  fontsize=9, handlelength=3.0, bbox_to_anchor=(0.5, bottom))  # fmt: skip


def _select(rows: list[dict], **values) -> list[dict]:
    """Rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


# ---- findings --------------------------------------------------------------------------------------------------------


def findings(folder: Path) -> str:
    """The headline by each counter, what else the curves say, and a table."""
    rows, times = read_csv(folder / "fig1.csv"), read_csv(folder / "fig1_time.csv")
    known = sorted({row["bodies"] for row in rows})
    last = known[-1]

    def get(counter: str, name: str, amount: str = "total", **where: str) -> curves.Curve:
        chosen = {"outputs": STYLE[name][0], "shared": shared_words(counter, name)} | where
        return curve(rows, amount, counter=counter, algorithm=name, **chosen)

    def of_six(counter: str, a: str, b: str, **where: str) -> str:
        """Ratios of medians from 6 bodies on."""
        first, second = get(counter, a, **where), get(counter, b)
        return between(curves.ratios({n: x for n, x in first.items() if n >= 6}, second))

    def fewer(counter: str, a: str, b: str, amount: str = "total", **where: str) -> list[int]:
        return curves.fewer(get(counter, a, amount, **where), get(counter, b, amount))

    def words(found: list[int]) -> str:
        return curves.sizes(found, known)

    ending = [_table(rows, [n for n in (6, 15, 30) if n in known] or [last]), _time(times)]
    if not get(PUBLISHED, PERMUTED):
        return "\n\n".join([curves.LEFT_OUT, *ending])
    shown_at = 6 if 6 in known else last
    headline = {counter: fewer(counter, PERMUTED, FORMULA) for counter in COUNTERS}
    amounts = {name: [round(get(PUBLISHED, name, x)[shown_at].median) for x in ("mul", "add")]
               for name in (PERMUTED, FORMULA, MATRIX)}  # fmt: skip
    other = get(OTHER, PERMUTED, shared=NOTHING)
    seen = get(PUBLISHED, ROWS)[last].median / get(SOLVE, ROWS)[last].median
    unshared = between(curves.ratios(get(SOLVE, PERMUTED, shared=NOTHING), get(SOLVE, PERMUTED)))
    pivoted, matrix = fewer(END_TO_END, PERMUTED, ROWS), fewer(END_TO_END, MATRIX, PERMUTED)
    shown = fewer(PUBLISHED, PERMUTED, MATRIX)
    columns = [x["note"].split()[0] for x in _select(rows, bodies=last, counter=END_TO_END, algorithm=TORN)]
    text = [
        f"By the published counter the headline, permuted LU below the ABA's formula, "
        f"{curves.holds(headline[PUBLISHED], known)}, in multiplications alone "
        f"{words(fewer(PUBLISHED, PERMUTED, FORMULA, 'mul'))}, in additions alone "
        f"{words(fewer(PUBLISHED, PERMUTED, FORMULA, 'add'))} (each at every state looked at). At {shown_at} bodies "
        f"permuted LU counts {amounts[PERMUTED][0]} multiplications and {amounts[PERMUTED][1]} additions, the formula "
        f"{amounts[FORMULA][0]} and {amounts[FORMULA][1]}, the matrix form {amounts[MATRIX][0]} and "
        f"{amounts[MATRIX][1]}. By the counter of the script of Figure 2, which does not correct for factors ±1, it "
        f"{curves.holds(curves.fewer(other, get(PUBLISHED, FORMULA)), known)}.",
        f"**{_verdict(headline, last)}** Executed, it {curves.holds(headline[SOLVE], known)} with X, v, c, ν given, "
        f"and {curves.holds(headline[END_TO_END], known)} from q, q̇ on, which is what the formula counts. "
        f"For 6 bodies and more permuted LU takes {of_six(SOLVE, PERMUTED, FORMULA)} and "
        f"{of_six(END_TO_END, PERMUTED, FORMULA)} times "
        f"the formula (for q̈ alone, as the ABA, {of_six(END_TO_END, PERMUTED, FORMULA, outputs='qdd', shared=EQUAL)}). "
        f"The formula is for any placements, while this chain has many zeros, above all at its base. The published "
        f"counter takes of each rank-one update only the diagonal, in all {seen:.0%} of the operations of LU without "
        f"column permutations at {last} bodies; its correction for factors ±1 subtracts four for nearly every product "
        f"instead; and the LU begins where X and the velocities are known, the formula at q and q̇. Of the matrix form "
        f"it leaves out every multiplication in an inner product of several terms, and the articulated inertias inside "
        f"W^L and W^R.",
        f"Which counts share equal results: the exact ones do (a result that occurs twice, as in symmetric blocks, is "
        f"computed once), that of q̈ by `compile` after terms were rewritten besides; the published counter and the "
        f"formula do not. With nothing shared permuted LU takes {unshared} times its exact count in the solve scope.",
        f"Column permutations save operations {words(pivoted)}: LU with row pivoting alone takes "
        f"{of_six(END_TO_END, ROWS, PERMUTED)} times those of permuted LU. The matrix form, above permuted LU "
        f"{words(shown)} by the published counter, takes {of_six(END_TO_END, MATRIX, PERMUTED)} times in truth, and "
        f"less {words(matrix)}.",
        f"What `compile` makes of the problem by default takes, for q̈, {of_six(END_TO_END, QDD, FORMULA)} times the "
        f"ABA's formula for 6 bodies and more, and fewer operations than it {words(fewer(END_TO_END, QDD, FORMULA))}; "
        f"for every unknown {of_six(END_TO_END, EVERY, PERMUTED)} times permuted LU, fewer than it "
        f"{words(fewer(END_TO_END, EVERY, PERMUTED))}. With an orthogonal border, tearing takes "
        f"{of_six(END_TO_END, TORN, PERMUTED)} times permuted LU (at {last} bodies {columns[0]} columns are "
        f"orthogonal). Our ABA, traced on "
        f"this chain, takes {of_six(END_TO_END, ABA, FORMULA)} times its formula (see the experiment `costs` for why). "
        "The cheapest for q̈ here is "
        + ", ".join(f"{name} {words(found)}" for name, found in _cheapest(rows, known).items())
        + ".",
        *ending,
    ]  # fmt: skip
    return "\n\n".join(text)


def _verdict(headline: dict[str, list[int]], last: int) -> str:
    """What the exact counts leave of the headline, from 6 bodies on, or at the last size if it is smaller."""
    large = {counter: {n for n in found if n >= min(6, last)} for counter, found in headline.items()}
    if not large[PUBLISHED]:
        return "The headline does not hold by its own counter."
    if not large[SOLVE] and not large[END_TO_END]:
        return "The headline is an artefact of that counter."
    if large[PUBLISHED] <= large[SOLVE] & large[END_TO_END]:
        return "The headline holds by exact counts, too."
    return "What remains of the headline depends on scope and size."


def _table(rows: list[dict], known: list[int]) -> str:
    """Totals by algorithm, medians over the states, with their range."""
    head = ["operations", "finds", "shared", *(f"{counter}, n = {n}" for n in known for counter in COUNTERS)]
    lines = [" | ".join(head), " | ".join("---" if k < 3 else "---:" for k in range(len(head)))]
    for name in STYLE:
        for outputs in SYMBOLS:
            cells = [curve(rows, counter=c, algorithm=name, outputs=outputs, shared=shared_words(c, name)).get(n)
                     for n in known for c in COUNTERS]  # fmt: skip
            if any(cells):
                lines.append(" | ".join([name, SYMBOLS[outputs], shared_words(END_TO_END, name), *map(_shown, cells)]))
    return "\n".join(f"| {line} |" for line in lines) + "\n\nThe published counts share nothing."


def _shown(amount: curves.Spread | None) -> str:
    if amount is None:
        return ""
    spread = "" if amount.least == amount.greatest else f" ({amount.least:,} … {amount.greatest:,})"
    return f"{amount.median:,.0f}{spread}"


def _time(times: list[dict]) -> str:
    """Ratios to permuted LU at the largest size that all means have."""
    parts, unit = [], _unit({row["algorithm"] for row in times})
    for means in (SCIPY, MACHINE_CODE):
        n = max(row["bodies"] for row in times)
        chosen = [row for row in _select(times, means=means, bodies=n) if row["algorithm"] != unit]
        parts.append(f"{means}: " + ", ".join(f"{row['algorithm']} {row['ratio']:.2f}" for row in chosen))
    return (
        f"Processor time of one state at {n} bodies, that of {'permuted LU' if unit == PERMUTED else unit} by the same "
        "means = 1 (medians). "
        f"{'; '.join(parts)}. "
        "SciPy is given D, b, W^L and W^R, as the paper's code was; its times are those of calls and of sparse formats "
        "more than of arithmetic, like the published ones. The compiled programs begin at q, q̇, τ."
    )


def _cheapest(rows: list[dict], known: list[int]) -> dict[str, list[int]]:
    """{algorithm: sizes at which no other that finds q̈ takes fewer operations, end to end}."""
    found: dict[str, list[int]] = {}
    finding = [name for name in STYLE if name not in (RNEA, FORMULA)]
    totals = {name: curve(rows, counter=END_TO_END, algorithm=name, outputs=STYLE[name][0]) for name in finding}
    for n in known:
        best = min((name for name in finding if n in totals[name]), key=lambda name: totals[name][n].median)
        found.setdefault(best, []).append(n)
    return found


if __name__ == "__main__":
    main(__file__)
