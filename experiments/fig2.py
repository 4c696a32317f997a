"""Figure 2: the cost of inverse dynamics with load cells at both ends of a chain.

The paper's curves are LU with rows pivoted, and LU in UMFPACK's order at the same state, of the problem that its script
solves. To them come tearing (`nori.orders.torn`: pivots ±1 but for a block of five, in which columns are
orthogonal where no pivot is safe), orders with orthogonal columns, and what `sysdyn.compile` takes by default. A second
picture has the orders that hold at every regular state, for chains of up to 100 bodies.

The text has another problem than the script (eqs. (20), (24)): the chain floats on two feet, all q̈ are known, and so is
that nothing but the feet holds the base. Both stand in `nori.problems`, are diagnosed and solved here.
"""

import numpy as np
import scipy.sparse.linalg
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from nori import curves
from nori.counters import right_hand_side, row_pivoting, solution_cost, umfpack_pivots
from nori.curves import COUNTERS, END_TO_END, EQUAL, NOTHING, PUBLISHED, SOLVE, between, curve, row
from nori.harness import main, read_csv, write_csv
from nori.orders import torn
from nori.problems import LOAD_CELLS, SLIPPERY_FLOOR, feet, floating_chain, load_cells

import sysdyn as sd
from sysdyn.app.matrix_plot import save_pictures
from sysdyn.codegen import interpreter
from sysdyn.equations.backward_error import residual_at
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.elimination import Elimination, solve_scope
from sysdyn.offline.sampling import is_singular, order_samples, sample_states
from sysdyn.reference import newton_euler
from sysdyn.sparse import tearing, umfpack
from sysdyn.sparse.markowitz import markowitz
from sysdyn.sparse.sampled import SampledMatrix

TITLE = "Figure 2: the cost of inverse dynamics with load cells at both ends of a chain"
CLAIM = (
    "a problem that no classical algorithm solves, a chain of N_B bodies on load cells, takes fewer operations by LU "
    "with the permutations of UMFPACK than without them (section VI, Figure 2, N_B = 8 … 20)."
)
# Chains of these lengths are counted.
BODIES, QUICK_BODIES = range(4, 21), (4, 6)
# Chains of these lengths are compiled, and ordered by orders with orthogonal columns.
COMPILED_BODIES, QUICK_COMPILED = (*BODIES, 30, 50, 70, 100), (4,)
# The orders of chains of these lengths are tried at many states.
JUDGED = (4, 8, 12, 16, 20)
# The problems of script and text are diagnosed, and solved, for chains of these lengths.
STATED = (4, 8)
# The problems are solved at this many motions.
SOLVED = 50
# So many random states have permutations of their own, as published.
STATES, QUICK_STATES = 5, 2
# A fixed order is tried at this many states.
JUDGED_STATES, QUICK_JUDGED_STATES = 1000, 100
# The order of the torn block is chosen at this many states.
BLOCK_STATES = 64
# An answer with a greater backward error is none.
FAILED = 1e-9
# The paper's plot spans chains of these lengths.
PAPER = (8, 20)

# The files call methods by these names.
ROWS, PERMUTED, TORN, FOUND = "LU, rows pivoted", "LU, permuted", "LU, torn", "compile"
CERTIFIED = "torn, orthogonal border"
# The problems of script and text have these names.
SCRIPT, CELLS, FLOOR = "script", "text, load cells (19b)", "text, slippery floor (24b)"
# Each method has a colour, a marker and a line.
STYLES = {
    ROWS: {"colour": "#6E6E6E", "marker": "s", "linestyle": "-"},
    PERMUTED: {"colour": "#D55E00", "marker": "o", "linestyle": "-"},
    TORN: {"colour": "#0072B2", "marker": "v", "linestyle": "--"},
    CERTIFIED: {"colour": "#009E73", "marker": "^", "linestyle": "-"},
    FOUND: {"colour": "#000000", "marker": "*", "linestyle": ""},
}


def compute(folder, quick, bodies=None):
    chosen, states = bodies, QUICK_STATES if quick else STATES
    bodies = chosen or (QUICK_BODIES if quick else BODIES)
    rows = [row for n in bodies for k in range(states) for row in (*published(n, k), *exact(n, k))]
    rows += [row for n in bodies for row in exact_torn(n)]
    for n in chosen or (QUICK_COMPILED if quick else COMPILED_BODIES):
        rows += [*compiled(n), *orthogonal(n)]
    write_csv(folder / "fig2.csv", rows)
    many = QUICK_JUDGED_STATES if quick else JUDGED_STATES
    write_csv(folder / "fig2_states.csv", [row for n in chosen or JUDGED if n in bodies for row in judged(n, many)])
    write_csv(folder / "fig2_problems.csv", [row for n in chosen or STATED if n in bodies for row in stated(n)])


def state(n, k):
    """(q, q̇) of the published experiments."""
    rng = np.random.default_rng((n, k))
    return 10.0 * rng.random(n), rng.random(n)


def published(n, k):
    """By the counter of the script, at state k."""
    system = sd.assemble(load_cells(n), "net_force")
    q, qd = state(n, k)
    A, b = system.D(q), right_hand_side(system, q, qd)
    orders = {ROWS: (row_pivoting(A), None), TORN: torn_order(system)[:2]}
    if umfpack.available():
        orders[PERMUTED] = umfpack_pivots(A)
    for name in STYLES:
        if name in orders:
            yield row(n, PUBLISHED, name, "all", NOTHING, solution_cost(A, b, *orders[name], figure=2), k)


def exact(n, k, names=(ROWS, PERMUTED)):
    """LU with the pivots of state k."""
    system = sd.assemble(load_cells(n), "net_force")
    A = system.D(state(n, k)[0])
    for name in names:
        if name == PERMUTED and not umfpack.available():
            continue
        order = umfpack_pivots(A) if name == PERMUTED else (row_pivoting(A), list(range(A.shape[0])))
        yield from eliminated(n, name, system, order, k)


def exact_torn(n):
    system = sd.assemble(load_cells(n))
    yield from eliminated(n, TORN, system, torn_order(system))


def eliminated(n, name, system, order, state=""):
    """Both exact counts of every unknown in this order."""
    choice = Elimination(system, *order).choice("", QUANTITIES)
    note = f"{len(choice.rotated_with)} orthogonal columns" if choice.rotated_with else ""
    yield row(n, SOLVE, name, "all", EQUAL, solve_scope(system, choice, QUANTITIES), state, note)
    yield row(n, END_TO_END, name, "all", EQUAL, choice.end_to_end, state, note)


def torn_order(system):
    """Tearing, with the block that is left ordered by its values at many states."""
    (rows, columns), (rows_left, columns_left) = torn(system)
    sampled = order_samples(system, BLOCK_STATES)
    blocks = []
    for values in sampled.values:
        A = system.matrix(values)
        border = A[rows][:, columns_left].toarray()
        carried = scipy.sparse.linalg.spsolve_triangular(A[rows][:, columns], border)
        blocks.append((A[rows_left][:, columns_left].toarray() - A[rows_left][:, columns] @ carried).ravel())
    m = len(rows_left)
    row, col = (index.ravel() for index in np.indices((m, m)))
    values = np.array(blocks)
    there = np.abs(values).max(axis=0) > 1e-12 * np.abs(values).max()
    block = SampledMatrix(
        m, row[there], col[there], values[:, there], np.zeros(there.sum(), dtype=bool), np.ones(m, dtype=bool)
    )
    order = markowitz(block)
    rotated_with = {len(rows) + k: tuple(rows_left[i] for i in others) for k, others in order.rotated_with.items()}
    return rows + [rows_left[i] for i in order.rows], columns + [columns_left[j] for j in order.columns], rotated_with


def compiled(n):
    """What `compile` takes by default."""
    choice = sd.compile(load_cells(n)).choice
    note = f"{choice.ordering}, {len(choice.rotated_with)} orthogonal columns"
    if choice.solve is not None:
        yield row(n, SOLVE, FOUND, "all", EQUAL, choice.solve, note=note)
    yield row(n, END_TO_END, FOUND, "all", EQUAL, choice.end_to_end, note=note)


def orthogonal(n):
    """Tearing with an orthogonal border, in the paper's system."""
    system = sd.assemble(load_cells(n))
    order = tearing.tearing_order(order_samples(system, BLOCK_STATES), certified=True)
    yield from eliminated(n, CERTIFIED, system, order)


def judged(n, count):
    """At how many regular states each order, fixed, gives an answer: random ones, and joints at multiples of π/2."""
    problem = load_cells(n)
    net, plain = sd.assemble(problem, "net_force"), sd.assemble(problem)
    states = sample_states(problem, count, seed=2)
    regular = ~is_singular(plain, states)
    states = {name: x[regular] for name, x in states.items()}
    quarter = np.flatnonzero(regular) % 2 == 1  # as `sample_states` has them
    sampled = order_samples(plain, BLOCK_STATES)
    orders = {PERMUTED: (net, umfpack_pivots(net.D(state(n, 0)[0])))} if umfpack.available() else {}
    orders |= {
        TORN: (plain, torn_order(plain)),
        CERTIFIED: (plain, tearing.tearing_order(sampled, certified=True)),
    }  # fmt: skip
    programs = {name: Elimination(system, *order).program(QUANTITIES) for name, (system, order) in orders.items()}
    programs[FOUND] = sd.compile(problem).program
    for name, program in programs.items():
        with np.errstate(all="ignore"):
            found = interpreter.run_groups(program, states)
            d = np.zeros((len(quarter), plain.layout.n))
            for quantity in QUANTITIES:
                d[:, plain.layout.quantity_columns(quantity)] = found[quantity]
            error = residual_at(plain, states, d).normwise
        error = np.where(np.isfinite(error), error, np.inf)
        for kind, chosen in (("random", ~quarter), ("multiples of π/2", quarter)):
            yield {
                "bodies": n, "algorithm": name, "states": kind, "count": int(chosen.sum()),
                "failed": int(np.sum(error[chosen] > FAILED)), "median_error": f"{np.median(error[chosen]):.1e}",
                "error": f"{error[chosen].max():.1e}",
            }  # fmt: skip


def problems_of(n):
    """The problem of the script, and those of the text."""
    return {
        SCRIPT: load_cells(n), CELLS: feet(floating_chain(n), LOAD_CELLS),
        FLOOR: feet(floating_chain(n), SLIPPERY_FLOOR),
    }  # fmt: skip


def stated(n):
    """The problem of the script beside those of the text: whether they have a solution, and what the solver answers."""
    for name, problem in problems_of(n).items():
        found = sd.diagnose(problem)
        yield {
            "bodies": n, "problem": name, "equations": found.equations, "unknowns": found.unknowns, "rank": found.rank,
            "error": "" if found.rank < found.unknowns else f"{answered(problem):.1e}",
        }  # fmt: skip


def answered(problem):
    """Greatest relative error of τ over random motions that no force at the base is needed for."""
    model = problem.model
    q, qd, qdd = model.random_state(seed=1, batch=SOLVED)
    fx = np.random.default_rng(1).uniform(-5.0, 5.0, (SOLVED, model.nb, 6))
    if model.base == "floating":
        base = slice(0, 6)
        for k in range(SOLVED):
            held = sd.rnea(model, q[k], qd[k], qdd[k], fx[k])[base]
            qdd[k, base] -= np.linalg.solve(sd.crba(model, q[k])[base, base], held)
    motion = newton_euler(model, q, qd, qdd, fx)
    tau = np.array(motion.tau)
    if model.base == "floating":
        tau[:, base] = 0.0
    values = {"qdd": qdd, "fx": fx, "f": motion.f, "tau": tau}
    solution = sd.compile(problem, level="fast")(q, qd, **{x: values[x] for x in problem.known_quantities})
    size = np.abs(motion.tau).max(axis=1, keepdims=True)
    return float((np.abs(solution.tau - motion.tau) / size).max())


def plot(folder):
    rows = read_csv(folder / "fig2.csv")
    bodies = sorted({r["bodies"] for r in rows if r["algorithm"] == ROWS})
    figure = Figure(figsize=(12.5, 7.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    kinds = {"mul": "multiplications, divisions, roots", "add": "additions"}
    for line, (kind, label) in zip(axes, kinds.items(), strict=True):
        line[0].set_ylabel(f"{label} for one state")
        for ax, counter in zip(line, COUNTERS, strict=True):
            ax.axvspan(*PAPER, color="#F2F2F2", zorder=0, label="sizes in the paper's figure")
            for name, style in STYLES.items():
                drawn = curve(rows, kind, counter=counter, algorithm=name)
                drawn = {n: x for n, x in drawn.items() if n <= bodies[-1]}
                curves.draw(ax, drawn, **style, markersize=4.5, label=name)
            ax.set(yscale="log", xticks=range(4, 21, 2))
            ax.grid(color="#DDDDDD", linewidth=0.5)
    for ax, counter in zip(axes[0], COUNTERS, strict=True):
        ax.set_title(f"{counter} count" if counter == PUBLISHED else counter)
    for ax in axes[-1]:
        ax.set_xlabel("bodies of the chain $N_B$")
    handles, labels = axes[0, 2].get_legend_handles_labels()
    states = len({r["state"] for r in rows if r["state"] != ""})
    caption = curves.CAPTION.format(states=states, besides="", others="the published counter shares")
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, title_fontsize=9,
                  title=caption)  # fmt: skip
    save_pictures(figure, folder / "fig2")
    plot_orders(rows, folder)


def plot_orders(rows, folder):
    """Operations a body of the orders with orthogonal columns, beside those that pivot."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    for name, style in STYLES.items():
        drawn = curve(rows, counter=END_TO_END, algorithm=name)
        curves.draw(ax, drawn, **style, scale={n: n for n in drawn}, markersize=4.5, label=name)
    ax.set(xscale="log", yscale="log", xlabel="bodies of the chain $N_B$",
           ylabel="operations a body, exact, end to end")  # fmt: skip
    ax.set_xticks([4, 6, 8, 12, 20, 30, 50, 100], [4, 6, 8, 12, 20, 30, 50, 100])
    ax.set_yticks([250, 500, 1000, 2000], [250, 500, 1000, 2000])
    ax.minorticks_off()
    ax.grid(color="#DDDDDD", linewidth=0.5)
    ax.legend(frameon=False, fontsize="small")
    save_pictures(figure, folder / "fig2_orders")


def findings(folder):
    rows, tried = read_csv(folder / "fig2.csv"), read_csv(folder / "fig2_states.csv")
    found = {(counter, name): curve(rows, counter=counter, algorithm=name) for counter in COUNTERS for name in STYLES}
    bodies = list(found[PUBLISHED, ROWS])
    most = bodies[-1]

    def ratios(counter, name, than):
        return between(curves.ratios(found[counter, name], found[counter, than]))

    def words(sizes):
        return curves.sizes(sizes, bodies)

    ending = _judged(tried) + _orthogonal(found) + "\n\n" + _stated(read_csv(folder / "fig2_problems.csv"))
    if not found[PUBLISHED, PERMUTED]:
        return f"{curves.LEFT_OUT}\n\n{_counts(found, bodies)}\n\n{ending}"
    fewer = {counter: curves.fewer(found[counter, PERMUTED], found[counter, ROWS]) for counter in COUNTERS}
    shown, executed = (curves.ratios(found[counter, PERMUTED], found[counter, ROWS]) for counter in (PUBLISHED, SOLVE))
    pivoted = curves.ratios(found[SOLVE, ROWS], found[PUBLISHED, ROWS])
    more = [n for n, x, y in zip(bodies, shown, executed, strict=True) if y < x]
    torn_wins = curves.fewer(found[SOLVE, TORN], found[SOLVE, PERMUTED])
    return (
        f"The claim {curves.holds(fewer[PUBLISHED], bodies)} by the published counter, {words(fewer[SOLVE])} by exact "
        f"counts with X, v, c, ν given, {words(fewer[END_TO_END])} from q, q̇ on (each at every state looked at): for "
        f"{bodies[0]} to {most} bodies UMFPACK's order takes {between(shown)} of the operations without it as "
        f"published, {between(executed)} exactly, by medians over the states. Exactly, the order saves more than "
        f"the paper shows {words(more)}. The published counter takes products with ±1 for multiplications, and of each "
        f"update only the diagonal: LU with rows pivoted takes {between(pivoted)} times the published figure in truth. "
        "Exact counts compute equal results once, the published ones share nothing.\n\n"
        + _counts(found, bodies)
        + "\n\n"
        f"Tearing, which takes the ±1 of the Newton-Euler equations as pivots all along the chain and leaves a block "
        f"of five, takes {ratios(SOLVE, TORN, PERMUTED)} of the operations of UMFPACK's order, fewer than any of it "
        f"{words(torn_wins)}. What `compile` takes by default is {ratios(END_TO_END, FOUND, PERMUTED)} of UMFPACK's "
        f"order from q, q̇ on, fewer {words(curves.fewer(found[END_TO_END, FOUND], found[END_TO_END, PERMUTED]))}.\n\n"
        + ending
    )


def _judged(tried):
    """At how many states each fixed order has no answer."""
    text = "At how many regular states no pivoting is needed is another matter (no answer / states):\n\n"
    kinds = list(dict.fromkeys(r["states"] for r in tried))
    table = ["| order | " + " | ".join([*kinds, "greatest error of the others"]) + " |", "|---|" + "---|" * 3]
    safe, unsafe = [], []
    for name in dict.fromkeys(r["algorithm"] for r in tried):
        parts = [[r for r in tried if (r["algorithm"], r["states"]) == (name, kind)] for kind in kinds]
        failed = [sum(r["failed"] for r in part) for part in parts]
        (unsafe if any(failed) else safe).append(name)
        counts = [f"{x:,} / {sum(r['count'] for r in part):,}" for x, part in zip(failed, parts, strict=True)]
        error = max((r["error"] for part in parts for r in part if not r["failed"]), default=float("nan"))
        table.append(f"| {name} | " + " | ".join(counts) + f" | {error:.0e} |")
    text += "\n".join(table) + f"\n\nAn answer at every regular state: {', '.join(safe) or 'none'}. "
    return text + f"Not at every one: {', '.join(unsafe) or 'none'}.\n\n"


def _orthogonal(found):
    """Counts of tearing, with an orthogonal border or not, and of what `compile` takes."""
    names, most = (TORN, CERTIFIED, FOUND), list(found[PUBLISHED, ROWS])[-1]
    lines = ["| bodies, exact, end to end | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for n in found[END_TO_END, FOUND]:
        if n % 4 == 0 or n >= most:
            cells = [found[END_TO_END, name].get(n) for name in names]
            lines.append(f"| {n} | " + " | ".join(f"{x.median:,.0f}" if x else "–" for x in cells) + " |")
    return "\n".join(lines)


def _counts(found, bodies):
    """Medians over the states, and their range."""
    names = [name for name in STYLES if name != CERTIFIED]
    lines = ["| bodies | counter | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for n in [n for n in bodies if n % 4 == 0 or n == bodies[-1]]:
        for counter in COUNTERS:
            cells = []
            for name in names:
                x = found[counter, name].get(n)
                spread = f" ({x.least:,} … {x.greatest:,})" if x and x.least < x.greatest else ""
                cells.append(f"{x.median:,.0f}{spread}" if x else "–")
            lines.append(f"| {n} | {counter} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _stated(rows):
    """The problems of script and text."""
    lines = ["| bodies | problem | equations | unknowns | rank | τ of the solver |", "|---|---|---|---|---|---|"]
    for r in rows:
        error = f"to {r['error']:.0e}" if r["error"] != "" else "–"
        lines.append(f"| {r['bodies']} | {r['problem']} | {r['equations']} | {r['unknowns']} | {r['rank']} | {error} |")
    verdicts = []
    for name in (SCRIPT, CELLS, FLOOR):
        part = [r for r in rows if r["problem"] == name]
        extra = {r["equations"] - r["unknowns"] for r in part}
        missing = {r["unknowns"] - r["rank"] for r in part}
        said = "solvable" if missing == {0} else f"rank short by {' or '.join(map(str, sorted(missing)))}"
        surplus = {0: "square"}.get(max(extra), f"{max(extra)} equations more than unknowns")
        verdicts.append(f"{name}: {surplus}, {said}")
    return (
        "The script of the figure does not solve the problem of the text. In the text the robot floats on its two feet "
        "and all q̈ are known; in the script its base is fixed, the first foot is the wrench f_1 through joint 1, and "
        f"the four outermost q̈ are unknown. {'; '.join(verdicts)}.\n\n" + "\n".join(lines)
    )


if __name__ == "__main__":
    main(__file__)
