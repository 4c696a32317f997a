"""Selected entries of inverses beside dense inverses: any order, rotated rows, symmetric matrices, few entries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sysdyn.sparse.lu import eliminate
from sysdyn.sparse.selected_inverse import SelectedInverse

N = 10


def sparse_matrix(rng: np.random.Generator, symmetric: bool) -> np.ndarray:
    A = rng.standard_normal((N, N)) * (rng.random((N, N)) < 0.3)
    A = A + A.T if symmetric else A
    return A + np.diag(rng.uniform(2.0, 4.0, N) * rng.choice((-1.0, 1.0), N))


def selected_inverse(A: np.ndarray, row_perm, col_perm, rotated_with=None, symmetric: bool = False) -> SelectedInverse:
    rows = [{j: float(x) for j, x in enumerate(row) if x != 0.0} for row in A]
    return SelectedInverse(eliminate(rows, [0.0] * N, row_perm, col_perm, rotated_with or {}), symmetric)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("symmetric", [False, True])
def test_every_entry_is_that_of_the_dense_inverse(seed, symmetric):
    rng = np.random.default_rng(seed)
    A, order = sparse_matrix(rng, symmetric), rng.permutation(N).tolist()
    places = list(itertools.product(range(N), repeat=2))
    entries = selected_inverse(A, order, order, symmetric=symmetric).select(places)
    inverse = np.linalg.inv(A)
    assert set(entries) == set(places)
    np.testing.assert_allclose([entries[x] for x in places], inverse.ravel(), atol=1e-9 * np.abs(inverse).max())


@pytest.mark.parametrize("seed", range(8))
def test_rows_may_be_rotated(seed):
    """Two rows are rotated before the third pivot, and one of these again before the fifth."""
    rng = np.random.default_rng(seed)
    A, order = sparse_matrix(rng, symmetric=True) + 0.5, rng.permutation(N).tolist()
    rotated_with = {2: [order[5], order[7]], 4: [order[5]]}
    places = list(itertools.product(range(N), repeat=2))
    entries = selected_inverse(A, order, order, rotated_with, symmetric=True).select(places)
    inverse = np.linalg.inv(A)
    np.testing.assert_allclose([entries[x] for x in places], inverse.ravel(), atol=1e-9 * np.abs(inverse).max())


def test_an_entry_needs_few_others():
    """Of a tridiagonal matrix the last diagonal entry needs no other one, the first one two of each later step."""
    A = np.diag(np.full(N, 4.0)) + np.diag(np.ones(N - 1), 1) + np.diag(np.ones(N - 1), -1)
    inverse = np.linalg.inv(A)
    for place, most in (((N - 1, N - 1), 1), ((0, 0), 3 * N)):
        steps: list[int] = []
        entries = selected_inverse(A, range(N), range(N), symmetric=True).select([place], steps.append)
        assert [*entries] == [place] and entries[place] == pytest.approx(inverse[place], rel=1e-12)
        assert len(steps) <= most


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-6])
def test_the_error_scale_shows_cancellation(share):
    """A scalar with a weak prior and a good sensor: its variance is the difference of large terms, or of none."""
    A = np.eye(N)
    A[:2, :2] = [[share, 1.0], [1.0, -1.0]]
    for order, expected in (([0, 1], share), ([1, 0], 1.0)):
        order += range(2, N)
        inverse = selected_inverse(A, order, order, symmetric=True)
        variance = inverse.select([(0, 0)])[0, 0]
        assert variance == pytest.approx(1.0 / (1.0 + share), rel=1e-15 / share)
        assert 0.1 * expected <= variance / inverse.error_scale((0, 0)) <= expected
