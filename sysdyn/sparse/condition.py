"""How near a sparse matrix is to a singular one, whatever the units of its rows and columns."""

from __future__ import annotations

import math

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

# Rows and columns are balanced in so many steps.
BALANCING_STEPS = 100


def equilibration(
    row: np.ndarray, col: np.ndarray, size: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns that bring the sizes of all entries near 1; zeros do not count.

    row, col, size (nnz): places and absolute values. Least squares of the logarithms,
    Curtis and Reid (1972). Bodies that taper off differ by 30 orders of magnitude, which scaling by greatest entries
    leaves as they are because every row has a 1.
    """
    m, n = shape
    e = np.flatnonzero(size > 0.0)
    places = (np.tile(np.arange(len(e)), 2), np.concatenate([row[e], m + col[e]]))
    incidence = scipy.sparse.csr_matrix((np.ones(2 * len(e)), places), shape=(len(e), m + n))
    found = scipy.sparse.linalg.lsqr(incidence, -np.log(size[e]), atol=1e-6, btol=1e-6, iter_lim=2 * (m + n))
    logs = np.clip(found[0], -300.0, 300.0)
    return np.exp(logs[:m]), np.exp(logs[m:])


def balance(sizes: scipy.sparse.spmatrix | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns after which the squares of each sum up to the number of its entries that are not 0.

    sizes (m, n): absolute values. With such sums there are factors for every pattern, also for that of a structurally
    singular matrix. It makes use of what `equilibration` has done for tapered chains, which alone takes the least entry
    for as important as the greatest: links without inertia leave a condition number of 1e22 where this leaves 1e6.
    Sinkhorn and Knopp (1967).
    """
    squares = scipy.sparse.csr_matrix(sizes).power(2)
    squares.eliminate_zeros()
    transposed = squares.T.tocsr()
    in_row, in_column, C = np.diff(squares.indptr), np.diff(transposed.indptr), np.ones(squares.shape[1])
    R = np.ones(squares.shape[0])
    for _ in range(BALANCING_STEPS):
        R = _quotient(in_row, squares @ C)
        C = _quotient(in_column, transposed @ R)
    return np.sqrt(R), np.sqrt(C)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 1 where b is 0."""
    return np.where(b > 0.0, a / np.where(b > 0.0, b, 1.0), 1.0)


def condition(matrix: scipy.sparse.spmatrix) -> float:
    """Condition number (1-norm, estimated) of a square matrix; inf where it is exactly singular.

    Higham and Tisseur (2000), through SuperLU with partial pivoting.
    """
    matrix = matrix.tocsc()
    try:
        lu = scipy.sparse.linalg.splu(matrix)
    except RuntimeError:  # exactly singular
        return math.inf
    with np.errstate(all="ignore"):
        inverse = scipy.sparse.linalg.LinearOperator(
            matrix.shape, lu.solve, lambda x: lu.solve(x, "T"), lu.solve, float, lambda x: lu.solve(x, "T")
        )
        norm = float(scipy.sparse.linalg.onenormest(inverse) * np.abs(matrix).sum(axis=0).max())
    return norm if math.isfinite(norm) else math.inf
