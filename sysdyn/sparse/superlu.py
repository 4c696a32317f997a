"""LU of sparse matrices by SuperLU, kept from matrices that it cannot take."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.sparse.dulmage import maximum_matching

# Patterns of which it is kept whether they have a pivot in each column; states of a problem share few (chosen).
PATTERNS = 256


def factors(matrix: scipy.sparse.spmatrix, **options: Any) -> scipy.sparse.linalg.SuperLU | None:
    """LU with partial pivoting of a square matrix; None if it is exactly singular, or not finite.

    options: as of `scipy.sparse.linalg.splu`. Without a pivot in each column SuperLU hands BLAS sizes that do not fit:
    BLAS prints "On entry to DTRSV parameter number 6 had an illegal value", or the process ends. So the structural rank
    is checked first, entries that are zero left out.
    """
    matrix = matrix.tocsc()
    if not np.isfinite(matrix.data).all():
        return None
    pattern = matrix
    if not matrix.data.all():
        pattern = matrix.copy()
        pattern.eliminate_zeros()
    places = pattern.indptr, pattern.indices
    if not _matched(*(x.astype(np.int32).tobytes() for x in places), pattern.shape):
        return None
    try:
        return scipy.sparse.linalg.splu(matrix, **options)
    except RuntimeError:
        return None


@lru_cache(maxsize=PATTERNS)
def _matched(starts: bytes, rows: bytes, shape: tuple[int, int]) -> bool:
    """True if each column can have a pivot in a row of its own. starts, rows: of the CSC pattern, as int32.

    `scipy.sparse.csgraph.structural_rank` is faster on small patterns, and needs minutes for long chains on load cells.
    """
    indptr, indices = (np.frombuffer(x, dtype=np.int32) for x in (starts, rows))
    ones = np.ones(len(indices))
    return bool((maximum_matching(scipy.sparse.csc_matrix((ones, indices, indptr), shape=shape)) >= 0).all())
