"""Null spaces of a large sparse matrix of the greatest rank that its pattern allows."""

from __future__ import annotations

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.sparse.condition import condition
from sysdyn.sparse.dulmage import maximum_matching
from sysdyn.sparse.superlu import factors


def structural_null_spaces(A: scipy.sparse.spmatrix, limit: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Bases (n, k) of ker A and (m, l) of ker Aᵀ, not orthogonal; None if the rank may be less than the structural one.

    A maximum matching gives a square part B that is as large as the rank can be, A = [B C; E F] but for order. If B is
    regular, its condition number below `limit`, ker A = [−B⁻¹ C; 1] and ker Aᵀ = [−B⁻ᵀ Eᵀ; 1]. Entries near 1 are
    assumed.
    """
    A = scipy.sparse.csr_matrix(A)
    m, n = A.shape
    row_of = maximum_matching(A)
    columns = np.flatnonzero(row_of >= 0)
    rows = row_of[columns]
    other_rows, other_columns = np.setdiff1d(np.arange(m), rows), np.flatnonzero(row_of < 0)
    right, left = np.zeros((n, len(other_columns))), np.zeros((m, len(other_rows)))
    right[other_columns], left[other_rows] = np.eye(len(other_columns)), np.eye(len(other_rows))
    if len(rows) == 0:
        return right, left
    B = A[rows][:, columns].tocsc()
    lu = factors(B)
    if lu is None or not condition(B) < limit:
        return None
    if len(other_columns):
        right[columns] = -lu.solve(A[rows][:, other_columns].toarray())
    if len(other_rows):
        left[rows] = -lu.solve(np.ascontiguousarray(A[other_rows][:, columns].toarray().T), "T")
    return right, left
