"""What is left of a matrix while it is eliminated, over floats, expressions and samples, beside dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Graph
from sysdyn.sparse.active_submatrix import ActiveSubmatrix, SampledActiveSubmatrix

STATES = 3


def rows_of(A: np.ndarray) -> list[dict[int, np.ndarray]]:
    """Rows of A (m, n) or (states, m, n) without the entries that are 0 at every state."""
    A = np.moveaxis(A, 0, -1) if A.ndim == 3 else A
    return [{j: x if x.ndim else float(x) for j, x in enumerate(row) if x.any()} for row in A]


def dense(rows, shape: tuple[int, ...]) -> np.ndarray:
    A = np.zeros(shape)
    for i, row in enumerate(rows):
        for j, x in row.items():
            A[..., i, j] = x
    return A


@st.composite
def matrices(draw) -> np.ndarray:
    """(states, m, n), sparse, with large entries on the diagonal."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n = draw(st.integers(2, 7)), draw(st.integers(2, 7))
    A = rng.standard_normal((STATES, m, n)) * (rng.random((m, n)) < 0.4)
    A[:, np.arange(min(m, n)), np.arange(min(m, n))] += 4.0
    return A


def eliminated(A: np.ndarray, k: int) -> np.ndarray:
    """A without row and column k, by Gauss."""
    A = A - A[..., :, k, None] * A[..., None, k, :] / A[..., k, k, None, None]
    A[..., k, :] = A[..., :, k] = 0.0
    return A


def take(left: ActiveSubmatrix, k: int) -> None:
    pivot, row, column = left.pivot(k, k)
    left.rank_one_update({i: x / pivot for i, x in column.items()}, row)
    left.rows[k].clear()


def check(left: ActiveSubmatrix, expected: np.ndarray) -> None:
    np.testing.assert_allclose(dense(left.rows, expected.shape), expected, atol=1e-12)
    assert [{i for i, row in enumerate(left.rows) if j in row} for j in range(expected.shape[-1])] == left.columns


@given(matrices())
def test_pivots_leave_the_schur_complement(A):
    samples, floats = (
        SampledActiveSubmatrix(rows_of(A), A.shape[2], cancelled=1e-13),
        ActiveSubmatrix(rows_of(A[0]), A.shape[2]),
    )
    for k in range(min(A.shape[1:])):
        A = eliminated(A, k)
        take(samples, k)
        take(floats, k)
        check(samples, A)
        check(floats, A[0])


@given(matrices())
def test_rotations_preserve_inner_products_and_leave_one_entry_of_the_column(A):
    rows = [i for i in range(A.shape[1]) if A[0, i, 0]]
    for left, before in (
        (SampledActiveSubmatrix(rows_of(A), A.shape[2], cancelled=1e-13), A),
        (ActiveSubmatrix(rows_of(A[0]), A.shape[2]), A[0]),
    ):
        found = left.rotate_rows(range(A.shape[1]), 0)
        after = dense(left.rows, before.shape)
        check(left, after)
        assert (found is None) == (len(rows) == 1) and set(left.columns[0]) == {0}
        products = (np.swapaxes(x, -1, -2) @ x for x in (after, before))
        np.testing.assert_allclose(*products, atol=1e-11)


def test_entries_that_a_rotation_cancels_are_removed():
    """Rows change places: where the first one had nothing, the second one is left with nothing."""
    by_rows = ActiveSubmatrix([{1: 5.0}, {0: 2.0, 2: 7.0}], 3)
    by_rows.rotate_rows([0, 1], 0)
    check(by_rows, np.array([[2.0, 0.0, 7.0], [0.0, -5.0, 0.0]]))


@given(matrices())
def test_expressions_are_what_floats_are(A):
    graph = Graph("algebraic")
    x = graph.inputs("x", A[0].size).reshape(A[0].shape)
    left, floats = (
        ActiveSubmatrix([{j: x[i, j] for j in row} for i, row in enumerate(rows_of(A[0]))], A.shape[2]),
        ActiveSubmatrix(rows_of(A[0]), A.shape[2]),
    )
    values = {f"x[{k}]": value for k, value in enumerate(A[0].flat)}
    for k in range(min(A.shape[1:])):
        entries = [(i, j, entry) for i, row in enumerate(left.rows) for j, entry in row.items()]
        assert entries
        found = evaluate(np.array([*(entry for *_, entry in entries), None], dtype=object)[:-1], values)
        for (i, j, _), value in zip(entries, found, strict=True):
            assert value == pytest.approx(floats.rows[i].get(j, 0.0), rel=1e-9, abs=1e-12)
        take(left, k)
        take(floats, k)


def test_entries_that_cancel_are_none():
    """At every state, but for rounding of its size there; not those that do at some."""
    x = np.array([1.0, 2.0, 3e6])
    left = SampledActiveSubmatrix([{0: x, 1: x, 2: x}, {0: x, 1: x * (1.0 + 1e-15), 2: np.ones(3)}], 3, cancelled=1e-13)
    take(left, 0)
    assert set(left.rows[1]) == {2} and left.columns == [set(), set(), {1}]


def test_entries_that_appear_stay_even_if_they_are_zero():
    """With the sign that the elimination of numbers gives them: a pattern holds at other states, too."""
    x, none = np.array([1.0, 2.0]), np.zeros(2)
    left, numbers = (
        SampledActiveSubmatrix([{0: x, 1: none}, {0: x}], 2, cancelled=1e-13),
        ActiveSubmatrix([{0: 1.0, 1: 0.0}, {0: 1.0}], 2),
    )
    take(left, 0)
    take(numbers, 0)
    assert left.rows[1][1].tolist() == [0.0, 0.0] and numbers.rows[1] == {1: 0.0} and left.columns[1] == {1}
    assert np.signbit(left.rows[1][1]).all() and np.signbit(numbers.rows[1][1])


@pytest.mark.parametrize("states", [1, 3])
def test_entries_that_cancel_at_the_first_state_alone_stay(states):
    """Beside one that does not cancel there; one that cancels at every state is dropped, alone or among others."""
    one, k = np.ones(states), np.arange(states, dtype=float)
    left = SampledActiveSubmatrix(
        [{0: one, 1: one, 2: one, 3: one}, {0: one, 1: one + k, 2: 3.0 * one, 3: one}], 4, 1e-12
    )
    pivot, row, column = left.pivot(0, 0)
    left.rank_one_update({i: x / pivot for i, x in column.items()}, row)
    found = left.rows[1]
    assert set(found) == ({2} if states == 1 else {1, 2})
    np.testing.assert_array_equal(found[2], 2.0 * one)
    if states > 1:
        np.testing.assert_array_equal(found[1], k)
    assert left.columns[3] & {1} == set()
