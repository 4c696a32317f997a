"""Sparse LU with fixed permutations: values, factors, fill-in and counts."""

from __future__ import annotations

import numpy as np
import pytest
from counting import Counted, all_nodes, counted, live
from hypothesis import given
from hypothesis import strategies as st

from sysdyn.codegen import interpreter
from sysdyn.errors import SingularState
from sysdyn.program.autodiff import derivative, evaluate
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.sparse.lu import Factors, eliminate, refine

CONSTANTS = (1.0, -1.0, 2.5, -0.4)  # beside generic entries; each folds in its own way


class Planted:
    """A random sparse system A x + b = 0 with permutations along which every pivot is there, and its solution.

    The permuted matrix has a dominant diagonal, so that elimination without pivoting is stable. `constant` of the
    entries are constants of the program; `rhs` of the right-hand side entries are not zero. Generic otherwise.
    """

    def __init__(self, n: int, seed: int, density: float = 0.25, constant: float = 0.4, triangular: bool = False):
        rng = np.random.default_rng(seed)
        self.n, self.row_perm, self.col_perm = n, rng.permutation(n).tolist(), rng.permutation(n).tolist()
        pattern = rng.random((n, n)) < density
        if triangular:
            pattern = np.tril(pattern)
        np.fill_diagonal(pattern, True)
        fixed = rng.random((n, n)) < constant
        values = np.where(fixed, rng.choice(CONSTANTS, (n, n)), rng.uniform(0.5, 1.5, (n, n))) * pattern
        k = np.arange(n)
        values[k, k] = np.where(rng.random(n) < constant, 1.0, rng.uniform(3.0, 5.0, n) * density * n + 3.0)
        fixed[k, k] = values[k, k] == 1.0
        if not triangular:  # weaken what stands beside a unit pivot, keeping the pattern
            unit = np.flatnonzero(values[k, k] == 1.0)
            values[unit] *= np.where(np.eye(n, dtype=bool)[unit], 1.0, 0.05)
        self.A = np.empty((n, n))
        self.fixed = np.empty((n, n), dtype=bool)
        self.A[np.ix_(self.row_perm, self.col_perm)] = values
        self.fixed[np.ix_(self.row_perm, self.col_perm)] = fixed
        self.x = rng.uniform(-1.0, 1.0, n)
        self.b = -self.A @ self.x
        if triangular:  # a right-hand side with zeros
            self.b = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0.5, 1.0, n))
            self.x = np.linalg.solve(self.A, -self.b)

    def rows(self, entry=lambda i, j, value: value) -> list[dict[int, object]]:
        return [
            {j: float(row[j]) if self.fixed[i, j] else entry(i, j, float(row[j])) for j in np.flatnonzero(row).tolist()}
            for i, row in enumerate(self.A)
        ]

    def right(self, entry=lambda i, value: value) -> list:
        return [entry(i, float(v)) if v else 0.0 for i, v in enumerate(self.b)]

    def eliminate(self) -> Factors:
        return eliminate(self.rows(), self.right(), self.row_perm, self.col_perm)

    def symbolic(self, graph: Graph) -> Factors:
        """Every entry that is no constant, and every right-hand side entry, is an input."""
        rows = self.rows(lambda i, j, value: graph.input(f"A[{i},{j}]"))
        right = self.right(lambda i, value: graph.input(f"b[{i}]"))
        return eliminate(rows, right, self.row_perm, self.col_perm)

    def inputs(self) -> dict[str, float]:
        n = range(self.n)
        return {f"A[{i},{j}]": self.A[i, j] for i in n for j in n} | {f"b[{i}]": self.b[i] for i in n}


_sizes = (st.integers(1, 18), st.integers(0, 10**6), st.sampled_from([0.05, 0.15, 0.3, 0.8]))
systems = st.builds(Planted, *_sizes, st.sampled_from([0.0, 0.4, 1.0]), st.booleans())
generic_systems = st.builds(Planted, *_sizes, st.just(0.0), st.booleans())  # nothing cancels


def reconstructed(factors: Factors) -> np.ndarray:
    """L D U in pivot order, from what `Factors` says is scaled by the pivot and what is not."""
    n = len(factors.pivots)
    row_at = {r: k for k, r in enumerate(factors.row_perm)}
    col_at = {c: k for k, c in enumerate(factors.col_perm)}
    L, U = np.eye(n), np.eye(n)
    for k, pivot in enumerate(factors.pivots):
        for i, l in factors.lower[k].items():
            L[row_at[i], k] = l / pivot if factors.row_is_scaled[k] else l
        for j, u in factors.upper[k].items():
            U[k, col_at[j]] = u if factors.row_is_scaled[k] else u / pivot
    return L @ np.diag(factors.pivots) @ U


def fill_reference(pattern: np.ndarray) -> set[tuple[int, int]]:
    """Positions (in pivot order) that elimination makes nonzero. By the definition, on sets of booleans."""
    pattern = pattern.copy()
    before = pattern.copy()
    for k in range(len(pattern)):
        below = np.flatnonzero(pattern[k + 1 :, k]) + k + 1
        pattern[below] |= pattern[k] & (np.arange(len(pattern)) > k)
    return set(zip(*np.nonzero(pattern & ~before), strict=True))


# ---- values and factors --------------------------------------------------------------------------------------------


@given(systems)
def test_solution_is_the_planted_one(system):
    solution = system.eliminate().solution
    np.testing.assert_allclose(solution, np.linalg.solve(system.A, -system.b), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(solution, system.x, rtol=1e-8, atol=1e-9)


@given(systems)
def test_factors_are_those_of_the_permuted_matrix(system):
    factors = system.eliminate()
    PAQ = system.A[np.ix_(system.row_perm, system.col_perm)]
    np.testing.assert_allclose(reconstructed(factors), PAQ, rtol=1e-10, atol=1e-10 * np.abs(PAQ).max())
    for k in range(system.n):  # strictly triangular
        assert set(factors.lower[k]) <= set(system.row_perm[k + 1 :])
        assert set(factors.upper[k]) <= set(system.col_perm[k + 1 :])
    assert len(factors.row_is_scaled) == len(factors.pivots) == system.n


@given(generic_systems)
def test_fill_in_is_that_of_symbolic_elimination(system):
    row_at, col_at = np.argsort(system.row_perm), np.argsort(system.col_perm)
    expected = fill_reference(system.A[np.ix_(system.row_perm, system.col_perm)] != 0.0)
    for factors in (system.eliminate(), system.symbolic(Graph("structural"))):
        assert factors.fill_in == len(factors.fill) == len(expected)
        assert {(row_at[i], col_at[j]) for i, j in factors.fill} == expected


@given(systems)
def test_expressions_give_what_floats_give(system):
    expected = system.eliminate()
    for sharing in ("none", "structural", "algebraic"):
        factors = system.symbolic(Graph(sharing))
        found = np.array(evaluate(factors.solution, system.inputs()), dtype=float)
        np.testing.assert_allclose(found, expected.solution, rtol=1e-8, atol=1e-9)
        pivots = np.array(evaluate(factors.pivots, system.inputs()), dtype=float)
        np.testing.assert_allclose(pivots, expected.pivots, rtol=1e-8)
        assert factors.triangular == expected.triangular


def test_arguments_are_not_changed():
    system = Planted(8, seed=1)
    rows, b = system.rows(), system.right()
    copies = [dict(row) for row in rows], list(b)
    eliminate(rows, b, system.row_perm, system.col_perm)
    assert (rows, b) == copies


# ---- structure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems_are_one_substitution(seed, upper):
    system = Planted(12, seed, triangular=True)
    if upper:
        system.A, system.fixed = system.A.T.copy(), system.fixed.T.copy()
        system.row_perm, system.col_perm = system.col_perm, system.row_perm
    factors = system.eliminate()
    assert factors.triangular and factors.fill_in == 0
    assert not Planted(12, seed).eliminate().triangular


def test_fill_that_cancels_is_no_entry():
    """(x + y)(x − y) − (x² − y²) = 0: with algebraic sharing the pattern of U loses it, and what depends on it."""
    graph = Graph("algebraic")
    x, y = graph.input("x"), graph.input("y")
    rows = [{0: 1.0, 1: x + y}, {0: x - y, 1: x * x - y * y, 2: 1.0}, {1: 1.0, 2: x}]
    factors = eliminate(rows, [1.0, 1.0, 1.0], [0, 1, 2], [0, 2, 1])
    assert factors.fill == []
    assert factors.upper[1] == {}
    # the same where the fill-in would be new is a zero pivot
    with pytest.raises(SingularState, match="pivot 1"):
        eliminate(rows, [1.0, 1.0, 1.0], [0, 1, 2], [0, 1, 2])


def test_the_shorter_of_row_and_column_is_divided():
    """One entry in the row and three below the pivot, or the other way round."""
    names = "abcd"
    for row, column in ((1, 3), (3, 1)):
        graph = Graph("none")
        p = graph.input("p")
        rows = [{0: p, **{j: graph.input(names[j]) for j in range(1, row + 1)}}]
        rows += [{i: 1.0, **({0: graph.input(f"l{i}")} if i <= column else {})} for i in range(1, 4)]
        factors = eliminate(rows, [graph.input("b"), 0.0, 0.0, 0.0], range(4), range(4))
        assert factors.row_is_scaled[0] == (row < column)
        values = factors.upper[0] if row < column else factors.lower[0]
        assert len(values) == 1 and all(graph.count([x]) == Flops(mul=1, div=1) for x in values.values())
        others = factors.lower[0] if row < column else factors.upper[0]
        assert len(others) == 3 and graph.count(others.values()) == Flops()


def test_no_equations():
    factors = eliminate([], [], [], [])
    assert factors.solution == [] and factors.triangular and factors.fill_in == 0


@pytest.mark.parametrize("scalar", ["float", "Expr"])
def test_zero_pivots_name_their_place(scalar):
    graph = Graph("algebraic")

    def entry(value: float):
        return value if scalar == "float" else graph.input("unit") * value

    structural = [{0: entry(1.0), 1: entry(2.0)}, {0: entry(3.0)}, {2: entry(1.0)}]
    with pytest.raises(SingularState, match=r"pivot 0 \(row 1, column 1\) is zero") as error:
        eliminate(structural, [0.0] * 3, [1, 0, 2], [1, 0, 2])
    assert error.value.equation == "0"
    exact = [{0: entry(1.0), 1: entry(2.0)}, {0: entry(2.0), 1: entry(4.0)}]
    with pytest.raises(SingularState, match=r"pivot 1 \(row 1, column 1\) is zero") as error:
        eliminate(exact, [entry(1.0), 0.0], [0, 1], [0, 1])
    assert error.value.equation == "1"


# ---- counts --------------------------------------------------------------------------------------------------------


@given(systems)
def test_counts_are_those_of_an_instrumented_run(system):
    """Nothing shared: all operations executed are all nodes, and those that x depends on are what is counted."""
    graph = Graph("none")
    factors = system.symbolic(graph)
    Counted.log.clear()
    result = eliminate(
        system.rows(lambda i, j, value: Counted(value)),
        system.right(lambda i, value: Counted(value)),
        system.row_perm,
        system.col_perm,
    )
    executed = counted(Counted.log)
    assert executed == all_nodes(graph)
    assert counted(live(result.solution)) == graph.count(factors.solution)
    some = range(0, system.n, 3)
    assert counted(live(result.solution[k] for k in some)) == graph.count(factors.solution[k] for k in some)
    plain = [x.value if isinstance(x, Counted) else x for x in result.solution]
    np.testing.assert_allclose(plain, system.x, rtol=1e-8, atol=1e-9)


def test_each_pivot_is_divided_by_once():
    """Dense, all inputs: n reciprocals, and the multiplications of one LU with one right-hand side."""
    n = 7
    system = Planted(n, seed=2, density=1.0, constant=0.0)
    count = system.symbolic(Graph("none"))
    graph = next(x for x in count.solution if type(x) is Expr).graph
    flops = graph.count(count.solution)
    updates = sum(k * k for k in range(n))  # products of elimination
    substitutions = n * (n - 1)  # forward and back
    scalings = n * (n - 1) // 2 + n
    assert flops.div == n
    assert flops.add == updates + substitutions
    # the last pivot divides once, without a reciprocal
    assert flops.mul == updates + substitutions + scalings - 1


# ---- refinement ----------------------------------------------------------------------------------------------------


def badly_ordered(n: int = 12) -> tuple[list[dict], list[float], list[int]]:
    """A regular system whose first pivots, in the order as it is, are 1e-5 of their columns."""
    rng = np.random.default_rng(5)
    A = rng.uniform(0.5, 1.0, (n, n)) + np.diag(np.full(n, 3.0))
    A[[0, 3], [0, 3]] = 1e-5
    return [dict(enumerate(row)) for row in A.tolist()], rng.uniform(-1.0, 1.0, n).tolist(), list(range(n))


def residual(rows, b, x) -> float:
    return max(abs(rest + sum(a * x[j] for j, a in row.items())) for row, rest in zip(rows, b, strict=True))


def test_one_step_of_refinement_gives_back_the_digits():
    rows, b, order = badly_ordered()
    factors = eliminate(rows, b, order, order)
    x = refine(rows, b, factors)
    assert residual(rows, b, factors.solution) > 1e-13 and residual(rows, b, x) < 5e-15
    A = np.array([[row[j] for j in order] for row in rows])
    np.testing.assert_allclose(x, np.linalg.solve(A, -np.array(b)), rtol=1e-13)


@pytest.mark.parametrize("sharing", ["structural", "algebraic"])
def test_refinement_of_expressions_is_not_folded_away(sharing):
    """In exact arithmetic the residual is 0 and the step, too; a graph that knows this would leave both out."""
    rows, b, order = badly_ordered()
    graph = Graph(sharing)
    symbols = [{j: graph.input(f"A[{i},{j}]") for j in row} for i, row in enumerate(rows)]
    inputs = {f"A[{i},{j}]": x for i, row in enumerate(rows) for j, x in row.items()}
    factors = eliminate(symbols, b, order, order)
    plain, refined = factors.solution, refine(symbols, b, factors, graph.decouple)
    assert graph.count(refined).total > graph.count(plain).total + 2 * len(inputs)
    values = evaluate(refined, inputs)
    assert residual(rows, b, values.tolist()) < 5e-15
    program = Program.from_graph(graph, [("A", [x for row in symbols for x in row.values()])], [("x", refined)])
    assert program.flops == graph.count(refined)
    np.testing.assert_array_equal(interpreter.run(program, list(inputs.values())), values)
    step = 1e-6
    rate = evaluate(derivative(refined, {"A[1,1]": 1.0}), inputs)
    ahead, behind = (evaluate(refined, {**inputs, "A[1,1]": inputs["A[1,1]"] + x}) for x in (step, -step))
    np.testing.assert_allclose(rate, (ahead - behind) / (2.0 * step), rtol=1e-5, atol=1e-6)
