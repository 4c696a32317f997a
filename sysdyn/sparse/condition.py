"""Condition numbers of sparse matrices: their distance to singular ones, whatever the units of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.program.reproducible import exp, log
from sysdyn.sparse.superlu import Pattern, factors

# Steps in which rows and columns are balanced (chosen).
BALANCING_STEPS = 100
# Share of the greatest possible sum of squares at which equilibration ends, of the gradient or of the logarithms left:
# six digits, more than factors that bring entries near 1 need (chosen).
EQUILIBRATED = 1e-12
# Steps in which the greatest entries of rows and columns are brought near 1 (chosen).
SCALINGS = 8
# Most columns of an inverse that an estimate of its norm computes, as in LAPACK.
ESTIMATES = 5
# Steps in which the best units of unknowns are found, and most rows of a matrix whose whole inverse is computed for
# them: 72 MB (chosen).
STEPS, MOST_ROWS = 30, 3000
# Least unit of an unknown beside the greatest one, in the given units: their quotients stay far from overflow (chosen).
LEAST_UNIT = 1e-30


def equilibration(
    row: np.ndarray, col: np.ndarray, size: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns that bring the sizes of all entries near 1; zeros do not count.

    row, col, size (nnz): places and absolute values. Least squares of the logarithms of scaled entries, Curtis and Reid
    (1972). Scaling by the greatest entry of each row would not do: in a chain of bodies that taper off entries differ
    by 30 orders of magnitude though every row has a 1.
    """
    m, n = shape
    e = np.flatnonzero(size > 0.0)
    row, col, left = row[e], col[e], -log(size[e])  # the rest of the logarithms
    logs, before = np.zeros(m + n), 0.0
    enough = EQUILIBRATED * float(np.sum(left * left))
    direction = np.zeros(m + n)
    for _ in range(2 * (m + n)):  # conjugate gradients on the normal equations: this many steps are exact
        gradient = np.concatenate([np.bincount(row, left, m), np.bincount(col, left, n)])
        size_now, rest = float(np.sum(gradient * gradient)), float(np.sum(left * left))
        if rest <= enough or size_now <= EQUILIBRATED * 2 * len(e) * rest:
            break
        direction = gradient + (size_now / before if before else 0.0) * direction
        change = direction[:m][row] + direction[m:][col]
        step = size_now / float(np.sum(change * change))
        logs, left, before = logs + step * direction, left - step * change, size_now
    logs = np.clip(logs, -300.0, 300.0)
    return exp(logs[:m]), exp(logs[m:])


def balance(sizes: scipy.sparse.spmatrix | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns after which the squares of each sum up to the number of its entries that are not 0.

    sizes (m, n): absolute values. Such factors exist for every pattern, that of a structurally singular matrix, too.
    The second step after `equilibration`, in which the least entry weighs as much as the greatest: links without
    inertia have a condition number of 1e22 after the first step, 1e6 after the second. Sinkhorn and Knopp (1967).
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


def condition(matrix: scipy.sparse.spmatrix) -> float:
    """Condition number κ₁ (estimated) of a square matrix; inf if it is exactly singular."""
    lu = factors(matrix)
    if lu is None:
        return math.inf
    with np.errstate(all="ignore"):
        norm = inverse_norm(lu.solve, matrix.shape[0]) * float(np.abs(matrix).sum(axis=0).max())
    return norm if math.isfinite(norm) else math.inf


def skeel_condition(matrix: scipy.sparse.spmatrix, pattern: Pattern | None = None) -> float:
    """max |A⁻¹| |A| (1, …, 1) (estimated) of a square matrix A; inf if it is exactly singular.

    pattern: places of the entries in the order of CSR, if many matrices have the same.

    Greatest change of an unknown, relative to the largest one, over the relative change of entries that causes it,
    whatever the units of rows; no relative change below its inverse makes A singular. Skeel (1979), Bauer (1963).
    """
    matrix = matrix.tocsr()
    in_row = np.diff(matrix.indptr)
    if not in_row.all():
        return math.inf
    with np.errstate(all="ignore"):
        rows = np.add.reduceat(np.abs(matrix.data), matrix.indptr[:-1])
        entries = matrix.data / np.repeat(rows, in_row)  # a copy: the caller's matrix is not changed
        lu: Any = None
        if rows.all() and pattern is not None:
            lu = pattern.factors(entries)
        elif rows.all():
            lu = factors(scipy.sparse.csr_matrix((entries, matrix.indices, matrix.indptr), shape=matrix.shape))
        norm = inverse_norm(lu.solve, len(rows), of="T") if lu else math.inf
    return norm if math.isfinite(norm) else math.inf


def least_condition(matrix: scipy.sparse.spmatrix) -> tuple[float, np.ndarray, np.ndarray]:
    """(κ, rows (n,), columns (n,)): `skeel_condition` with the scaling of columns that makes it least, not estimated.

    κ = ρ(|A⁻¹| |A|), attained by scaling with the Perron vector, does not depend on the units of rows and columns: it
    is 1 for diagonal and triangular matrices, and no relative change of entries below 1/κ makes A singular. rows,
    columns: factors of that scaling, after which the sizes in each row sum up to 1; all 1 if A is singular, or for more
    than `MOST_ROWS` rows, where κ is that of the matrix as it is. Bauer (1963).
    """
    matrix, n = matrix.tocsr(), matrix.shape[0]
    one, lu = np.ones(n), factors(matrix)
    if lu is None or n > MOST_ROWS:
        return (math.inf if lu is None else skeel_condition(matrix)), one, one
    least, x, columns, size = math.inf, one, one, np.abs(matrix)
    with np.errstate(all="ignore"):
        inverse = np.abs(lu.solve(np.eye(n)))
        for _ in range(STEPS):
            y = inverse @ (size @ x)
            found = float((y / x).max())
            if not math.isfinite(found):
                return least, one, one
            if found < least:
                least, columns = found, x
            x = np.maximum(y / y.max(), LEAST_UNIT)
        sums = size @ columns
    return least, 1.0 / np.where(sums > 0.0, sums, 1.0), columns


def rank_condition(matrix: np.ndarray) -> float:
    """Greatest over least singular value of a dense matrix (m, n), its rows and columns scaled; inf without full rank.

    Scaled so that greatest entries are near 1; 1 for no rows. Ruiz (2001).
    """
    if not matrix.size:
        return 1.0
    A = matrix
    for _ in range(SCALINGS):
        for axis in (1, 0):
            size = np.abs(A).max(axis=axis, keepdims=True, initial=0.0)
            A = A / np.sqrt(np.where(size > 0.0, size, 1.0))
    values = np.linalg.svd(A, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1:].all() else math.inf


def inverse_norm(solve: Callable[[np.ndarray, str], np.ndarray], n: int, of: str = "N") -> float:
    """|A⁻¹|₁, or |A^-T|₁ = |A⁻¹|∞ for of="T", estimated from below. solve(x, "N") = A⁻¹ x, solve(x, "T") = A^-T x.

    Higham (2002), algorithm 15.4, as LAPACK has it.
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
    slope = np.linspace(1.0, 2.0, n)  # of alternating signs, against cancellation in all of the above
    slope[1::2] *= -1.0
    y = np.abs(solve(slope, of)).sum() * 2.0 / (3.0 * n)
    return math.inf if not math.isfinite(y) or not math.isfinite(greatest) else max(greatest, float(y))
