"""Orders of least squares with exact equations, of small matrices of samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.markowitz import least_squares, orthogonal
from sysdyn.sparse.sampled import SampledMatrix

STATES, N = 3, 7


def square(seed: int) -> SampledMatrix:
    """A sparse matrix (N, N) at some states, each entry another one there, with all of its diagonal."""
    rng = np.random.default_rng(seed)
    row, col = np.nonzero((rng.random((N, N)) < 0.3) | np.eye(N, dtype=bool))
    values, fixed = rng.standard_normal((STATES, len(row))), np.zeros(len(row), dtype=bool)
    return SampledMatrix(N, row.astype(np.int32), col.astype(np.int32), values, fixed, np.ones(N, dtype=bool))


def test_the_pivot_of_exact_rows_is_no_small_entry_of_its_column():
    """Though its row has no other entry, so that dividing by it would cost least."""
    row, col = np.array([0, 1, 1, 2, 2]), np.array([0, 0, 1, 0, 1])
    values = np.tile([1e-3, 1.0, 2.0, 0.5, 3.0], (STATES, 1))
    units = np.ones(3), np.ones(2)
    a = SampledMatrix(2, row, col, values, np.ones(5, dtype=bool), np.ones(3, dtype=bool), units=units)
    assert least_squares(a, {0, 1}).rows[0] == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rotated_columns_does_not_depend_on_units(seed):
    a, rng = square(seed), np.random.default_rng(seed)
    rows, columns = 2.0 ** rng.integers(-20, 20, (2, N))
    assert orthogonal(replace(a, values=a.values * rows[a.row] * columns[a.col])) == orthogonal(a)


def test_a_search_gives_up_beyond_its_budget():
    a = square(0)
    assert sorted(orthogonal(a).columns) == list(range(N))
    with pytest.raises(NoSafeOrdering):
        orthogonal(replace(a, budget=10.0))
