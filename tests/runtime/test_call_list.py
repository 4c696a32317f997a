"""Lists of calls that are repeated time step by time step: each routine against NumPy, and the order of steps."""

from __future__ import annotations

import numpy as np
import pytest

from sysdyn.runtime.call_list import CallList, StridedArray

STEPS = 3


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 11, 14])
def test_sparse_products_transposes_and_indexed_copies(k):
    rng = np.random.default_rng(k)
    A, x = rng.standard_normal((2, STEPS, k, k))
    A *= rng.random((k, k)) < 0.6
    places = np.argwhere(A.any(axis=0))[::-1]
    rows = k + 3
    wide = rng.standard_normal((STEPS, rows, k))
    y, turned, mirrored = np.full((STEPS, k, k), np.nan), np.empty((STEPS, k, rows)), x.copy()
    z, packed, added = x.copy(), A[:, places[:, 0], places[:, 1]].copy(), x.copy()
    calls = CallList()
    calls.spmm(k, k, places, StridedArray(packed), StridedArray(x), StridedArray(y))
    calls.spmm(k, k, places[:, ::-1], StridedArray(packed), StridedArray(x), StridedArray(z), add=True)
    calls.call("transpose", rows, k, StridedArray(wide), StridedArray(turned))
    calls.call("symmetrise", k, StridedArray(mirrored))
    calls.call("scatter_add", len(places), (places @ [k, 1]).astype(np.intc), StridedArray(packed), StridedArray(added))
    flushed, taken = wide.copy(), np.empty((STEPS, len(places)))
    flushed[:, 0, 0] = np.nan
    calls.call("gather", len(places), (places @ [k, 1]).astype(np.intc), StridedArray(x), StridedArray(taken))
    calls.call("flush_subnormals", rows * k, 0.7, StridedArray(flushed))
    calls.run(range(STEPS))
    np.testing.assert_array_equal(flushed[:, 1:], np.where(np.abs(wide) < 0.7, 0.0, wide)[:, 1:])
    assert np.isnan(flushed[:, 0, 0]).all()
    np.testing.assert_allclose(y, A @ x, rtol=0, atol=1e-14 * k)
    np.testing.assert_allclose(z, x + A.swapaxes(1, 2) @ x, rtol=0, atol=1e-14 * k)
    np.testing.assert_array_equal(turned, wide.swapaxes(1, 2))
    np.testing.assert_array_equal(added, x + A)
    np.testing.assert_array_equal(taken, x[:, places[:, 0], places[:, 1]])
    np.testing.assert_array_equal(mirrored, np.tril(x) + np.tril(x, -1).swapaxes(1, 2))


@pytest.mark.parametrize("k, m", [(1, 3), (2, 1), (5, 7), (8, 8), (23, 6), (41, 12), (70, 3)])
def test_triangular_solves_and_updates_of_covariances(k, m):
    """L⁻¹ x and P − x^T y, in tiles of all widths."""
    rng = np.random.default_rng(k)
    L = np.tril(rng.standard_normal((STEPS, m, m))) + 3.0 * np.eye(m)
    x, y, P = (rng.standard_normal((STEPS, *shape)) for shape in ((m, k), (m, k), (k, k)))
    by_columns, found, left = np.ascontiguousarray(L.swapaxes(1, 2)), x.copy(), P.copy()
    calls = CallList()
    calls.call("syrk_sub", k, m, StridedArray(x), StridedArray(y), StridedArray(left))
    calls.call("trsm", k, m, StridedArray(by_columns), StridedArray(found))
    calls.run(range(STEPS))
    np.testing.assert_allclose(found, np.linalg.solve(L, x), rtol=0, atol=1e-13)
    np.testing.assert_allclose(np.tril(left), np.tril(P - x.swapaxes(1, 2) @ y), rtol=0, atol=1e-13)


def test_steps_run_forwards_and_backwards():
    """x[t] += x[t − 1], then x[t] += x[t + 1]; no step changes nothing."""
    x, forwards, back = np.arange(5.0)[:, None].copy(), CallList(), CallList()
    forwards.call("daxpy", 1, 1.0, StridedArray(x, 1), 1, StridedArray(x), 1)
    forwards.run(range(1, 5))
    np.testing.assert_array_equal(x[:, 0], np.cumsum(np.arange(5.0)))
    y = x.copy()
    back.call("daxpy", 1, 1.0, StridedArray(x, -1), 1, StridedArray(x), 1)
    back.run(range(3, -1, -1))
    np.testing.assert_array_equal(x[:, 0], np.cumsum(y[::-1, 0])[::-1])
    kept = x.copy()
    back.run(range(0))
    np.testing.assert_array_equal(x, kept)


def test_lapack_reports_the_pivot_of_each_step():
    """Cholesky factors of all steps, and the number of the first pivot that is not positive."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((STEPS, 4, 4))
    A = root @ root.swapaxes(1, 2) + np.eye(4)
    A[1, 2, 2] = -1.0
    L, wrong = A.copy(), np.zeros((STEPS, 2), dtype=np.intc)
    calls = CallList()
    calls.call("dpotrf", "U", 4, StridedArray(L), 4, StridedArray(wrong, offset=1))  # by columns, upper
    calls.run(range(STEPS))
    np.testing.assert_array_equal(wrong, [[0, 0], [0, 3], [0, 0]])
    for t in (0, 2):
        np.testing.assert_allclose(np.tril(L[t]), np.linalg.cholesky(A[t]), rtol=1e-13)


def test_arrays_that_fortran_cannot_read_are_refused():
    with pytest.raises(TypeError, match="dpotrf.*int64"):
        CallList().call("dpotrf", "U", 1, np.eye(1), 1, np.zeros(1, dtype=np.int64))
