"""Scaling and condition numbers of sparse matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from sysdyn.sparse.condition import balance, condition, equilibration


@pytest.mark.parametrize("shape", [(9, 9), (12, 7), (7, 12)])
def test_balanced_rows_and_columns(shape):
    """For any pattern, also structurally singular ones, and whatever the units are."""
    rng = np.random.default_rng(sum(shape))
    sizes = rng.uniform(0.1, 1.0, shape) * (rng.random(shape) < 0.5)
    sizes[:4, 2:] = 0.0  # four rows of two columns
    rows, columns = (10.0 ** rng.uniform(-3, 3, n) for n in shape)
    for given in (sizes, scipy.sparse.csr_matrix(rows[:, None] * sizes * columns)):
        R, C = balance(given)
        balanced = scipy.sparse.diags(R) @ scipy.sparse.csr_matrix(given) @ scipy.sparse.diags(C)
        squares = balanced.power(2).toarray()
        np.testing.assert_allclose(squares.sum(axis=0), (sizes > 0.0).sum(axis=0), rtol=1e-9)
        np.testing.assert_allclose(squares.sum(axis=1), (sizes > 0.0).sum(axis=1), rtol=1e-4)


def test_rounding_errors_do_not_lead():
    """Entries of 1e-30 among those of a regular matrix: equilibrated they make it near singular, balanced not."""
    rng = np.random.default_rng(1)
    A = rng.standard_normal((20, 20)) * np.where(rng.random((20, 20)) < 0.3, 1.0, 1e-30) + 3.0 * np.eye(20)
    row, col = np.nonzero(A)
    R, C = equilibration(row, col, np.abs(A[row, col]), A.shape)
    B = R[:, None] * A * C
    r, c = balance(np.abs(B))
    after = condition(scipy.sparse.csr_matrix(r[:, None] * B * c))
    assert after < 1e-3 * condition(scipy.sparse.csr_matrix(B)) and after < 1e3
