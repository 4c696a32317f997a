"""LU factorisation of sparse square matrices by SuperLU, safe for structurally singular ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.sparse.dulmage import maximum_matching


def factors(matrix: scipy.sparse.spmatrix, **options: Any) -> scipy.sparse.linalg.SuperLU | None:
    """LU with partial pivoting of a square matrix; None if it is exactly singular or not finite.

    options: of `scipy.sparse.linalg.splu`. The structural rank of the nonzero entries is checked first: if it is less
    than the number of columns, SuperLU passes wrong sizes to BLAS, which ends the process or prints "On entry to DTRSV
    parameter number 6 had an illegal value".
    """
    matrix = scipy.sparse.csc_matrix(matrix)
    if not np.isfinite(matrix.data).all():
        return None
    pattern = matrix
    if not matrix.data.all():
        pattern = matrix.copy()
        pattern.eliminate_zeros()
    if not _has_full_rank(
        *(x.astype(np.int32, copy=False).tobytes() for x in (pattern.indptr, pattern.indices)), matrix.shape
    ):
        return None
    try:
        return scipy.sparse.linalg.splu(matrix, **options)
    except RuntimeError:
        return None


@lru_cache(maxsize=256)  # the sampled states of a problem share a few patterns
def _has_full_rank(indptr: bytes, indices: bytes, shape: tuple[int, int]) -> bool:
    """True if the pattern (CSC, 32-bit indices) has full structural column rank.

    `scipy.sparse.csgraph.structural_rank` would take minutes for long chains on load cells.
    """
    starts, rows = (np.frombuffer(x, dtype=np.int32) for x in (indptr, indices))
    pattern = scipy.sparse.csc_matrix((np.ones(len(rows)), rows, starts), shape=shape)
    return bool((maximum_matching(pattern) >= 0).all())
