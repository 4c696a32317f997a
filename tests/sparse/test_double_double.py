"""Residuals and refinement of twice the precision, beside fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from sysdyn.sparse.double_double import DoubleDouble, DoubleDoubleResiduals, iterative_refinement


def dense(n: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, col) of all entries of a square matrix."""
    return np.repeat(np.arange(n), n), np.tile(np.arange(n), n)


@pytest.mark.parametrize("seed", range(5))
def test_residuals_keep_digits_that_cancel(seed):
    rng = np.random.default_rng(seed)
    m, n, k = 7, 5, 3
    row, col = (x.ravel() for x in np.nonzero(rng.random((m, n)) < 0.7))
    entries = DoubleDouble(rng.standard_normal(len(row)), 1e-17 * rng.standard_normal(len(row)))
    x = DoubleDouble(rng.standard_normal((n, k)), 1e-17 * rng.standard_normal((n, k)))
    sums = [[Fraction(0)] * k for _ in range(m)]
    for i, j, high, low in zip(row.tolist(), col.tolist(), *entries, strict=True):
        for c in range(k):
            sums[i][c] += (Fraction(high) + Fraction(low)) * (Fraction(x.high[j, c]) + Fraction(x.low[j, c]))
    b = DoubleDouble.of(-np.array([[float(y) for y in part] for part in sums]))  # which leaves what rounding takes
    found = DoubleDoubleResiduals(row, col, entries)(x, b)
    expected = np.array([[float(y + Fraction(z)) for y, z in zip(*part, strict=True)]
                         for part in zip(sums, b.high.tolist(), strict=True)])  # fmt: skip
    assert np.abs(expected).max() > 0.0
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-30)


@pytest.mark.parametrize("n", (3, 6, 8))
def test_refined_solutions_are_rounded_exact_ones(n):
    """Of Hilbert's matrices of condition numbers up to 1e10, in whole numbers; a plain solve loses the digits."""
    scale = float(np.lcm.reduce(np.arange(1, 2 * n)))
    A = np.array([[round(scale / (i + j + 1)) for j in range(n)] for i in range(n)], dtype=float)
    x = np.arange(1.0, n + 1.0)
    b = -(A @ x)  # sums of whole numbers below 2^53
    inverse = np.linalg.inv(A)
    found = iterative_refinement(
        lambda r: inverse @ r, *dense(n), DoubleDouble.of(A.ravel()), DoubleDouble.of(b[:, None]), np.ones(n)
    )
    assert found is not None and (found[:, 0] == x).all()
    assert np.abs(np.linalg.solve(A, -b) - x).max() > 0.0


def test_refinement_that_does_not_converge_has_no_solution():
    A = np.array([[1.0, 2.0], [2.0, 5.0]])
    found = iterative_refinement(
        lambda r: -np.linalg.inv(A) @ r,
        *dense(2),
        DoubleDouble.of(A.ravel()),
        DoubleDouble.of(np.ones((2, 1))),
        np.ones(2),
    )
    assert found is None
