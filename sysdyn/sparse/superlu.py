"""LU of sparse matrices by SuperLU, kept from matrices that it cannot take."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # which loads scipy.sparse where it is first used


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
    if scipy.sparse.csgraph.structural_rank(pattern) < matrix.shape[1]:
        return None
    try:
        return scipy.sparse.linalg.splu(matrix, **options)
    except RuntimeError:
        return None
