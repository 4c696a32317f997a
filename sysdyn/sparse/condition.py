"""Scaling and condition numbers of sparse matrices: the relative distance to singularity, independent of units.

Scaling has two steps: `equilibration` brings entries near 1, then `balance` gives rows and columns similar norms.
Bauer's condition number is the minimum of Skeel's over all column scalings. Skeel's is estimated by Higham's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.program.reproducible import exp, log
from sysdyn.sparse.superlu import factors

# Equilibration stops at this relative sum of squares of the gradient or of the residual: six digits, more than scaling
# needs.
EQUILIBRATED = 1e-12
# Iterations of Sinkhorn and Knopp, and of the power method for Bauer's scaling: both converge sooner in practice.
BALANCING_STEPS, POWER_STEPS = 100, 30
# Steps of Ruiz scaling: each halves the logarithms of the greatest entries.
SCALINGS = 8
# Columns of the inverse that an estimate of its norm may compute, as in LAPACK.
ESTIMATES = 5
# Rows up to which the whole inverse is computed: 72 MB.
MAX_DENSE = 3000
# Least scaling factor of a column relative to the greatest: keeps quotients far from overflow.
LEAST_FACTOR = 1e-30


def equilibration(
    row: np.ndarray, col: np.ndarray, size: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns that bring the sizes of all entries near 1; zeros do not count.

    row, col, size (nnz): places and absolute values. Minimises the squared logarithms of the scaled entries; Curtis and
    Reid (1972). Scaling by the greatest entry of each row would not suffice: in a tapering chain of bodies, entries
    differ by 30 orders of magnitude although every row has a 1.
    """
    m, n = shape
    e = np.flatnonzero(size > 0.0)
    row, col, residual = row[e], col[e], -log(size[e])
    logs, before = np.zeros(m + n), 0.0
    tolerance = EQUILIBRATED * float(np.sum(residual * residual))
    direction = np.zeros(m + n)
    for _ in range(2 * (m + n)):  # conjugate gradients on the normal equations: this many steps are exact
        gradient = np.concatenate([np.bincount(row, residual, m), np.bincount(col, residual, n)])
        slope, remaining = float(np.sum(gradient * gradient)), float(np.sum(residual * residual))
        if remaining <= tolerance or slope <= EQUILIBRATED * 2 * len(e) * remaining:
            break
        direction = gradient + (slope / before if before else 0.0) * direction
        change = direction[:m][row] + direction[m:][col]
        step = slope / float(np.sum(change * change))
        logs, residual, before = logs + step * direction, residual - step * change, slope
    logs = np.clip(logs, -300.0, 300.0)
    return exp(logs[:m]), exp(logs[m:])


def balance(sizes: scipy.sparse.spmatrix | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns after which the squares of each sum up to its number of nonzero entries.

    sizes (m, n): absolute values. Such factors exist for every pattern, also a structurally singular one. Used after
    `equilibration`, which weights the least entry like the greatest: a robot with massless links has a condition number
    of 1e22 after the first step and of 1e6 after the second. Sinkhorn and Knopp (1967).
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
    """a / b; 1 if b is 0."""
    return np.where(b > 0.0, a / np.where(b > 0.0, b, 1.0), 1.0)


def skeel_condition(matrix: scipy.sparse.spmatrix) -> float:
    """‖ |A⁻¹| |A| ‖∞ (estimated from below) of a square matrix A; inf if it is exactly singular.

    It bounds the greatest change of an unknown, relative to the largest unknown, per relative change of the entries. It
    does not depend on row scaling. A relative change of entries below 1/κ cannot make A singular. Skeel (1979), Bauer
    (1963).
    """
    matrix = scipy.sparse.csr_matrix(matrix)
    in_row = np.diff(matrix.indptr)
    if not in_row.all():
        return math.inf
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(np.abs(matrix.data), matrix.indptr[:-1])
        entries = matrix.data / np.repeat(sums, in_row)  # a copy: the caller's matrix is not changed
        lu = None
        if sums.all():
            lu = factors(scipy.sparse.csr_matrix((entries, matrix.indices, matrix.indptr), shape=matrix.shape))
        norm = inverse_norm(lu.solve, len(sums), of="T") if lu else math.inf
    return norm if math.isfinite(norm) else math.inf


def bauer_condition(matrix: scipy.sparse.spmatrix) -> tuple[float, np.ndarray, np.ndarray]:
    """(κ, rows (n,), columns (n,)): Skeel's condition number, minimised over column scalings, and the scaling.

    κ = ρ(|A⁻¹| |A|) does not depend on the units of rows and columns. It is 1 for diagonal and triangular matrices. A
    relative change of entries below 1/κ cannot make A singular. The Perron vector of |A⁻¹| |A| scales the columns; rows
    are scaled to absolute sums of 1. All factors are 1 if A is singular or has more than `MAX_DENSE` rows; in the
    latter case κ is an estimate in the given units. Bauer (1963).
    """
    matrix, n = scipy.sparse.csr_matrix(matrix), matrix.shape[0]
    one, lu = np.ones(n), factors(matrix)
    if lu is None or n > MAX_DENSE:
        return (math.inf if lu is None else skeel_condition(matrix)), one, one
    least, x, columns, size = math.inf, one, one, np.abs(matrix)
    with np.errstate(all="ignore"):
        inverse = np.abs(lu.solve(np.eye(n)))
        for _ in range(POWER_STEPS):
            y = inverse @ (size @ x)
            bound = float((y / x).max())
            if not math.isfinite(bound):
                return least, one, one
            if bound < least:
                least, columns = bound, x
            x = np.maximum(y / y.max(), LEAST_FACTOR)
        sums = size @ columns
    return least, 1.0 / np.where(sums > 0.0, sums, 1.0), columns


def rank_condition(matrix: np.ndarray) -> float:
    """Ratio of the extreme singular values of a scaled dense matrix (m, n); inf without full rank, 1 if empty.

    Ruiz scaling (2001) brings the greatest entries of rows and columns near 1. `balance` would raise small entries: two
    columns that differ in one small entry would be a hundred times closer to each other.
    """
    if not matrix.size:
        return 1.0
    A = matrix
    for _ in range(SCALINGS):
        for axis in (1, 0):
            size = np.abs(A).max(axis=axis, keepdims=True)
            A = A / np.sqrt(np.where(size > 0.0, size, 1.0))
    values = np.linalg.svd(A, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] else math.inf


def inverse_norm(solve: Callable[[np.ndarray, str], np.ndarray], n: int, of: str = "N") -> float:
    """‖A⁻¹‖₁, or ‖A^-T‖₁ = ‖A⁻¹‖∞ for of="T", estimated from below. solve(x, "N") = A⁻¹ x, solve(x, "T") = A^-T x.

    Higham (2002), algorithm 15.4, as in LAPACK.
    """
    back = "T" if of == "N" else "N"
    x = np.full(n, 1.0 / n)
    greatest = 0.0
    for _ in range(ESTIMATES):
        y = solve(x, of)
        size = float(np.abs(y).sum())
        if size <= greatest:
            break
        greatest = size
        z = solve(np.copysign(1.0, y), back)
        j = int(np.argmax(np.abs(z)))
        if abs(z[j]) <= z @ x:
            break
        x = np.zeros(n)
        x[j] = 1.0
    slope = np.linspace(1.0, 2.0, n)  # signs alternate, in case of cancellation in all solves above
    slope[1::2] *= -1.0
    y = np.abs(solve(slope, of)).sum() * 2.0 / (3.0 * n)
    return math.inf if not math.isfinite(y) or not math.isfinite(greatest) else max(greatest, float(y))
