"""The committed results: rows counted again with this code, and verdicts that follow from the files.

A row that differs is stale: run `sysdyn reproduce` with the name of its experiment, and commit what it writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from nori.harness import FOLDER, load_experiment, read_csv, write_csv
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.measurements.variables import LAYOUTS
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.elimination import Elimination, solve_scope
from sysdyn.offline.sampling import order_samples, sample_matrix, sample_states
from sysdyn.sparse import umfpack

RESULTS = FOLDER / "results"
NAMES = (
    "costs", "fig1", "fig2", "numerics", "orderings", "property1", "property2", "property3", "segments",
)  # fmt: skip
COSTS, FIG1, FIG2, NUMERICS, ORDERINGS, PROPERTY1, PROPERTY2, PROPERTY3, SEGMENTS = (
    load_experiment(FOLDER / f"{name}.py") for name in NAMES
)
Row = Mapping[str, Any]

pytestmark = pytest.mark.skipif(not umfpack.available(), reason="scikit-umfpack is not installed")


def text(row: Row, keys: Iterable[str]) -> dict[str, str]:
    return {key: str(row[key]) for key in keys}


def assert_current(file: str, again: Iterable[Row], same: Iterable[str], by: Iterable[str]) -> None:
    """Each row has its like, with equal `by`, in the file, and the two are equal in the columns `same`."""
    stored = {tuple(text(row, by).values()): row for row in read_csv(RESULTS / f"{file}.csv")}
    for row in again:
        key = text(row, by)
        assert tuple(key.values()) in stored, f"{file}.csv has no row {key}"
        found = text(stored[tuple(key.values())], same)
        assert found == text(row, same), f"{file}.csv is stale at {key}: run `sysdyn reproduce {file.split('_')[0]}`"


# ---- rows, counted again ---------------------------------------------------------------------------------------------

COUNTS = ("mul", "add", "div")
OF_FIGURE = ("bodies", "counter", "algorithm", "outputs", "shared", "state")


def fig1_rows() -> Iterable[Row]:
    for n in (7, 30):
        yield from FIG1.published(n, 0)
        yield from FIG1.exact(n, 0, FIG1.PERMUTED)
        yield from FIG1.matrix_form(n)
        yield from FIG1.textbook(n)
    yield from FIG1.exact(7, 0, FIG1.ROWS)
    yield from FIG1.orthogonal(7)
    yield from FIG1.compiled(7, [FIG1.QDD])


def fig2_rows() -> Iterable[Row]:
    for n in (8, 12, 20):
        yield from FIG2.published(n, 0)
        yield from FIG2.exact(n, 0)
        yield from FIG2.exact_torn(n)
        yield from FIG2.orthogonal(n)
    yield from FIG2.compiled(8)


def ordered_rows() -> Iterable[Row]:
    """Orders of the file that need no search."""
    for robot, n, b, orders in (("tree 6, b = 1", 6, 1, ("aba", "crba")), ("tree 30, b = 1", 30, 1, ("aba",))):
        system = sd.assemble(sd.forward_dynamics(sd.auto_tree(n, b, 1.5, 0.9)))
        for order in orders:
            choice = Elimination(system, *RECURSIVE[order](system)).choice("", QUANTITIES)
            yield ordered("forward", robot, order, system, choice)
    for n in (8, 20):
        system = sd.assemble(load_cells(n))
        permutations = ORDERINGS.paper_permutations(order_samples(system, ORDERINGS.ORDER_STATES))
        choice = Elimination(system, *permutations).choice("", QUANTITIES)
        yield ordered("load cells", f"chain {n}", "paper", system, choice)


def ordered(kind: str, robot: str, order: str, system, choice) -> Row:
    count = choice.end_to_end
    return {
        "kind": kind, "robot": robot, "order": order, "mul": count.mul, "add": count.add, "div": count.div + count.sqrt,
        "end_to_end": count.total, "solve": solve_scope(system, choice, QUANTITIES).total, "fill_in": choice.fill_in,
    }  # fmt: skip


def numerics_rows() -> Iterable[Row]:
    """P and Q of the first state."""
    for name, problem in (
        ("forward, 6 bodies", sd.forward_dynamics(sd.auto_tree(6, 1, 1.5, 0.9))),
        ("load cells, 8 bodies", load_cells(8)),
    ):
        system = sd.assemble(problem)
        states = sample_states(problem, 2 * NUMERICS.ONE_STATES)
        sampled = sample_matrix(system, {x: values[::2] for x, values in states.items()})
        choice = Elimination(system, *NUMERICS.pivots(problem, sampled, NUMERICS.PAPER)).choice("", QUANTITIES)
        yield {"problem": name, "state": 0, "fill_in": choice.fill_in, "end_to_end": choice.end_to_end.total}


def eliminations() -> Iterable[Row]:
    """The order of the ABA at random states; what it costs does not depend on them."""
    for n in (6, 30):
        system = sd.assemble(sd.forward_dynamics(sd.auto_tree(n, 1, 1.5, 0.9)))
        choice = Elimination(system, *RECURSIVE["aba"](system)).choice("", QUANTITIES)
        for at in NUMERICS.KINDS:
            yield {
                "problem": f"forward, {n} bodies", "order": "aba", "at": at, "fill_in": choice.fill_in,
                "end_to_end": choice.end_to_end.total, "pivots": n - 1, "zero_pivot": 0, "singular": 0,
            }  # fmt: skip


def triangles() -> Iterable[Row]:
    for n in (7, 30):
        for name, tree in PROPERTY1.TREES.items():
            for layout in LAYOUTS:
                yield PROPERTY1.triangle(name, tree(n), n, layout)


def articulated() -> Iterable[Row]:
    for n in (7, 30):
        for name, tree in PROPERTY2.TREES.items():
            yield PROPERTY2.compare(name, tree(n), n, "paper")


def stated() -> Iterable[Row]:
    for n in (4, 8):
        for name, problem in FIG2.problems_of(n).items():
            found = sd.diagnose(problem)
            yield {
                "bodies": n, "problem": name, "equations": found.equations, "unknowns": found.unknowns,
                "rank": found.rank,
            }  # fmt: skip


def paper_tree() -> Iterable[Row]:
    name = "the paper's tree"
    return PROPERTY1.orders(name, PROPERTY1.TREES[name](400), (7, 30))


CURRENT: dict[str, tuple[Callable[[], Iterable[Row]], tuple[str, ...], tuple[str, ...]]] = {
    "costs": (
        lambda: [*COSTS.costs_of(7), *COSTS.costs_of(30)], (*COUNTS, "book_mul", "book_add"), ("bodies", "algorithm"),
    ),
    "costs_parts": (COSTS.parts_of, ("times", *COUNTS, "axial_mul", "axial_add"), ("algorithm", "part")),
    "fig1": (fig1_rows, (*COUNTS, "sqrt"), OF_FIGURE),
    "fig2": (fig2_rows, (*COUNTS, "sqrt"), OF_FIGURE),
    "fig2_problems": (stated, ("equations", "unknowns", "rank"), ("bodies", "problem")),
    "fig2_states": (lambda: FIG2.judged(4, FIG2.JUDGED_STATES), ("count", "failed"), ("bodies", "algorithm", "states")),
    "numerics": (
        eliminations, ("fill_in", "end_to_end", "pivots", "zero_pivot", "singular"), ("problem", "order", "at"),
    ),
    "numerics_one": (numerics_rows, ("fill_in", "end_to_end"), ("problem", "state")),
    "orderings": (ordered_rows, (*COUNTS, "end_to_end", "solve", "fill_in"), ("kind", "robot", "order")),
    "property1": (
        triangles, ("unknowns", "entries", "above_diagonal", "pivots_not_1"), ("tree", "bodies", "layout"),
    ),
    "property1_umfpack": (
        paper_tree, ("unknowns", "entries", "fill_at_a_state", "fill_of_the_pattern", "pivots_not_alone"),
        ("tree", "bodies"),
    ),
    "property1_matrix": (
        lambda: PROPERTY1.matrix(sd.auto_tree(PROPERTY1.SHOWN, *PROPERTY1.PAPERS_TREE)),
        ("permuted_row", "permuted_column", "kind"), ("row", "column"),
    ),
    "property2": (articulated, ("unknowns", "above_as_printed"), ("tree", "bodies", "layout")),
    "property2_matrix": (
        lambda: PROPERTY2.matrix(sd.auto_tree(PROPERTY2.SHOWN, 1.5, 1.5, 0.9)), (), ("matrix", "row", "column"),
    ),
    "property3_biped": (
        PROPERTY3.diagnoses, ("missing", "equations", "well_posed", "undetermined_contacts"), ("problem", "posture"),
    ),
    "segments": (
        lambda: SEGMENTS.patterns("the paper's tree"), ("segment", "of_column", "predicted", "seen"),
        ("robot", "operator", "row", "column"),
    ),
}  # fmt: skip


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("file", CURRENT)
def test_rows_are_what_is_counted_today(file):
    again, same, by = CURRENT[file]
    assert_current(file, again(), same, by)


def test_ranks_of_poses_are_what_is_counted_today():
    stored = read_csv(RESULTS / "property3_poses.csv")
    for kind in PROPERTY3.POSES:
        again = [row for row in PROPERTY3.poses(10) if row["pose"] == kind]
        assert len(again) == 10
        for new, old in zip(again, [row for row in stored if row["pose"] == kind][:10], strict=True):
            assert (new["rank_cells"], new["rank_slippery"]) == (old["rank_cells"], old["rank_slippery"])
            assert new["angle"] == pytest.approx(old["angle"], rel=1e-9, abs=1e-12)


def test_load_cells_of_the_benchmark_are_those_of_the_figure():
    figure = {
        row["bodies"]: sum(row[x] for x in (*COUNTS, "sqrt"))
        for row in read_csv(RESULTS / "fig2.csv")
        if (row["algorithm"], row["counter"]) == (FIG2.FOUND, FIG2.END_TO_END)
    }
    cells = read_csv(RESULTS / "load_cells.csv")
    measured = {row["bodies"]: row["operations"] for row in cells}
    assert {8, 12, 20} <= measured.keys() and {n: figure[n] for n in measured if n in figure} == measured


@pytest.mark.parametrize("name", NAMES)
def test_findings_and_figures_are_those_of_the_files(name):
    """The page has what the committed files say today; each figure is there for screens and for print."""
    module = globals()[name.upper()]
    assert module.findings(RESULTS) in (RESULTS / "findings.md").read_text(encoding="utf-8")
    assert (RESULTS / f"{name}.png").stat().st_size > 10_000
    assert (RESULTS / f"{name}.pdf").read_bytes().startswith(b"%PDF")


# ---- verdicts --------------------------------------------------------------------------------------------------------


def changed(tmp_path: Path, file: str, change: Callable[[dict], object]) -> Path:
    """The results, with `change` applied to each row of a file."""
    for path in RESULTS.glob("*.csv"):
        shutil.copy(path, tmp_path)
    rows = read_csv(RESULTS / f"{file}.csv")
    for row in rows:
        change(row)
    write_csv(tmp_path / f"{file}.csv", rows)
    return tmp_path


def times(factor: float, *columns: str, **where: Any) -> Callable[[dict], None]:
    """Multiplies columns of the rows with these values."""

    def change(row: dict) -> None:
        if all(row[key] == value for key, value in where.items()):
            for column in columns:
                row[column] = type(row[column])(factor * row[column])

    return change


def put(**values: Any) -> Callable[[dict], None]:
    return lambda row: row.update(values)


AMOUNTS = (*COUNTS, "sqrt")
# experiment: file, change, a verdict before it, and the one after it
VERDICTS = [
    (FIG1, "fig1", times(3, *AMOUNTS, algorithm=FIG1.PERMUTED, counter=FIG1.PUBLISHED),
     "an artefact of that counter", "does not hold by its own counter"),
    (FIG1, "fig1", times(3, *AMOUNTS, algorithm=FIG1.FORMULA), "an artefact of that counter",
     "holds by exact counts, too"),
    (FIG1, "fig1", times(10, *AMOUNTS, algorithm=FIG1.QDD), "fewer operations than it for every n",
     "fewer operations than it for no n"),
    (FIG1, "fig1", times(1 / 30, *AMOUNTS, algorithm=FIG1.ROWS), "permutations save operations for every n",
     "permutations save operations for no n"),
    (FIG2, "fig2", times(3, *AMOUNTS, algorithm=FIG2.PERMUTED), "The claim holds for every n",
     "The claim does not hold for any n"),
    (FIG2, "fig2_states", put(failed=1), f"{FIG2.FOUND}. Not at every one: {FIG2.PERMUTED}",
     "An answer at every regular state: none."),
    (FIG2, "fig2_problems", put(rank=0), "equations more than unknowns, solvable", "rank short by 90"),
    (COSTS, "costs", times(3, "mul", algorithm="ltdl"), "**LTDL** equals", "**LTDL** differs"),
    (COSTS, "costs", times(3, "mul", "add", "div", algorithm="aba"), "for n = 2 … 3 as counted here",
     "for every n as counted here"),
    (NUMERICS, "numerics", put(zero_pivot=0, crossing=0), "do not serve all others", "one state serve all others"),
    (NUMERICS, "numerics", put(zero_pivot=0, crossing=0), "some of them meet zero pivots",
     "none of them meets a zero pivot"),
    (ORDERINGS, "orderings", lambda row: row.update(fill_in=row["end_to_end"]), "Fill-in is not cost",
     "least fill-in is the cheapest in all"),
    (PROPERTY1, "property1", put(above_diagonal=3), "Property 1 holds", "something is left above the diagonal"),
    (PROPERTY1, "property1_umfpack", put(fill_at_a_state=5), "no fill-in at any size", "its order fills in"),
    (PROPERTY1, "property1_umfpack", put(pivots_not_alone=5), "Nor is it luck", "a pivot is alone neither"),
    (PROPERTY2, "property2", put(above_diagonal=1.0), "Property 2 holds", "Property 2 does not hold"),
    (PROPERTY2, "property2", put(qdd_error_as_printed=0.0), "b has to be multiplied", "b need not be multiplied"),
    (PROPERTY3, "property3_poses", put(rank_cells=6), "ill-posed for every relative pose",
     "ill-posed for some relative poses"),
    (PROPERTY3, "property3_poses", put(rank_slippery=2), "holds while the soles are not parallel",
     "does not depend on parallel soles"),
    (SEGMENTS, "segments", put(predicted=0), "no block is seen", "blocks more are seen"),
]  # fmt: skip


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("module", "file", "change", "before", "after"), VERDICTS)
def test_a_verdict_changes_with_the_data(module, file, change, before, after, tmp_path):
    assert before in module.findings(RESULTS)
    found = module.findings(changed(tmp_path, file, change))
    assert before not in found and after in found
