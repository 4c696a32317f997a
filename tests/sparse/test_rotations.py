"""Orthogonal columns: rows rotated together, in elimination, substitution and least squares."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from counting import Counted, all_nodes, counted
from hypothesis import given
from hypothesis import strategies as st

from sysdyn.errors import SingularState
from sysdyn.program.graph import Graph
from sysdyn.sparse.lu import Factors, eliminate, solve, solve_transposed
from sysdyn.sparse.rotations import Reflection, Rotation, annihilate


class Random:
    """A sparse system A x + b = 0 (m, n) of full column rank, and an order with some columns orthogonal."""

    def __init__(self, m: int, n: int, seed: int):
        rng = np.random.default_rng(seed)
        self.A = rng.standard_normal((m, n)) * (rng.random((m, n)) < 0.4)
        places = rng.permutation(m)[:n]
        self.A[places, np.arange(n)] += rng.choice([-1.0, 1.0], n) * 2.0
        self.b = rng.standard_normal(m)
        self.rows, self.columns = [int(i) for i in places], list(range(n))
        after = [[int(i) for i in range(m) if i not in self.rows[: k + 1]] for k in range(n)]
        whole = rng.random(n) < 0.7 if m == n and seed % 2 else np.ones(n, dtype=bool)
        self.rotated_with = {k: rows for k, rows in enumerate(after) if rows and whole[k]}

    def eliminated(self) -> Factors:
        entries = [{j: float(x) for j, x in enumerate(row) if x != 0.0} for row in self.A]
        return eliminate(entries, self.b.tolist(), self.rows, self.columns, rotated_with=self.rotated_with)

    def least_squares(self) -> list[float]:
        """Without any rounding."""
        A, b = ([[Fraction(x) for x in row] for row in values.tolist()] for values in (self.A, self.b[:, None]))
        columns = range(len(self.columns))
        normal = [
            [sum(row[i] * row[j] for row in A) for j in columns]
            + [-sum(row[i] * value for row, (value,) in zip(A, b, strict=True))]
            for i in columns
        ]
        for k in columns:  # positive definite: no pivoting is needed
            normal[k] = [x / normal[k][k] for x in normal[k]]
            for i in set(columns) - {k}:
                normal[i] = [x - normal[i][k] * y for x, y in zip(normal[i], normal[k], strict=True)]
        return [float(row[-1]) for row in normal]


systems = st.builds(
    lambda n, more, seed: Random(n + more, n, seed),
    st.integers(1, 9),
    st.sampled_from([0, 0, 3]),
    st.integers(0, 10**6),
)


@given(systems)
def test_the_solution_is_that_of_least_squares_without_rounding(system):
    condition = np.linalg.cond(system.A)
    if condition > 1e6:
        return
    factors = system.eliminated()
    exact = np.array(system.least_squares())
    limit = 1e-14 * condition**2 * (1.0 + np.abs(exact).max())
    np.testing.assert_allclose(factors.solution, exact, rtol=0.0, atol=limit)
    np.testing.assert_allclose(solve(factors, system.b.tolist()), exact, rtol=0.0, atol=limit)
    left = sum(x * x for x in factors.residual_rows.values())
    assert left == pytest.approx(np.sum((system.A @ exact + system.b) ** 2), abs=1e-10)
    if len(system.A) == len(exact):
        y = solve_transposed(factors, system.b.tolist())
        np.testing.assert_allclose(system.A.T @ y, system.b, atol=1e-12 * condition * np.abs(y).max())


@pytest.mark.parametrize("column", [[0.0, 3.0], [3.0, 0.0], [0.0, -3.0, 4.0], [0.0, 0.0, 5.0, 0.0], [-1.0, 2.0, 2.0]])
def test_any_entry_of_the_column_may_vanish(column):
    rows = [7, 2, 5, 1][: len(column)]
    turned, r = annihilate(rows, column)
    assert isinstance(turned, Rotation if len(column) == 2 else Reflection)
    assert abs(r) == pytest.approx(np.linalg.norm(column))
    y = dict(zip(rows, column, strict=True))
    turned.apply(y)
    np.testing.assert_allclose([y.get(i, 0.0) for i in rows], [r, *[0.0] * (len(column) - 1)], atol=1e-15)
    turned.apply_transposed(y)
    np.testing.assert_allclose([y.get(i, 0.0) for i in rows], column, atol=1e-15)


def test_a_zero_column_is_singular():
    with pytest.raises(SingularState, match="zero in all of its rows"):
        annihilate([0, 1], [0.0, 0.0])


def test_rows_without_an_entry_in_the_column_are_not_rotated():
    rows = [{0: 2.0, 1: 1.0}, {1: 1.0, 2: 3.0}, {0: 1.0, 2: 1.0}]
    factors = eliminate(rows, [1.0, 1.0, 1.0], [0, 2, 1], [0, 1, 2], rotated_with={0: [1, 2], 2: []})
    assert {k: x.rows for k, x in factors.rotations.items()} == {0: (0, 2)}
    A = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0], [1.0, 0.0, 1.0]])
    np.testing.assert_allclose(A @ factors.solution, -np.ones(3), atol=1e-14)


@given(systems)
def test_counts_are_those_of_an_instrumented_run(system):
    entries = [{j: x for j, x in enumerate(row.tolist()) if x != 0.0} for row in system.A]
    graph, start = Graph("none"), len(Counted.log)
    names = [{j: graph.input(f"{i} {j}") for j in row} for i, row in enumerate(entries)]
    right = [graph.input(f"b {i}") for i in range(len(entries))]
    eliminate(names, right, system.rows, system.columns, system.rotated_with)
    numbers = [{j: Counted(x) for j, x in row.items()} for row in entries]
    b = [Counted(x) for x in system.b.tolist()]
    found = eliminate(numbers, b, system.rows, system.columns, system.rotated_with)
    executed = counted(Counted.log[start:])
    assert executed == all_nodes(graph)
    assert executed.sqrt == len(found.rotations)
