"""UMFPACK's fill-reducing permutations through scikit-umfpack (optional, because UMFPACK is GPL)."""

from __future__ import annotations

import warnings

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.errors import BackendUnavailable

# Commands that install UMFPACK on Debian; newer meson does not build scikit-umfpack on SuiteSparse 5.12.
COMMANDS = (
    "apt install libsuitesparse-dev gcc libc6-dev python3-dev",
    "pip install 'meson<1.10' meson-python ninja swig",
    "pip install --no-build-isolation scikit-umfpack==0.4.2",
)


def remedy(reason: object) -> str:
    """Message with installation advice for users without UMFPACK."""
    return (
        f"UMFPACK is not available ({reason}). On Debian it comes by {'; '.join(COMMANDS)}; or run ./run setup in the "
        "source tree; or choose another ordering, such as 'markowitz' or 'auto'."
    )


def available() -> bool:
    """True if scikit-umfpack can be imported and finds its library."""
    try:
        _module()
    except BackendUnavailable:
        return False
    return True


def _module():
    try:
        import scikits.umfpack as module

        module.UmfpackContext("di")
    except Exception as error:  # the wrapper raises ImportError, AttributeError or OSError, by the missing part
        raise BackendUnavailable(remedy(error)) from error
    return module


def permutations(matrix: scipy.sparse.spmatrix, tolerance: float = 1.0) -> tuple[list[int], list[int]]:
    """(row_perm, col_perm) of P A Q = L U for these values, scaling off.

    tolerance: a pivot is at least this fraction of the largest entry of its column; 1 is partial pivoting. UMFPACK
    chooses rows by value, so the values have to represent all states. Raises BackendUnavailable.
    """
    module = _module()
    context = module.UmfpackContext("di")
    context.control[module.UMFPACK_PRL] = 0
    context.control[module.UMFPACK_SCALE] = module.UMFPACK_SCALE_NONE
    context.control[module.UMFPACK_PIVOT_TOLERANCE] = tolerance
    A = scipy.sparse.csc_matrix(matrix)
    A.sort_indices()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a singular matrix has an order, too; elimination detects its zero pivot
        _, _, P, Q, _, _ = context.lu(A)
    return [int(i) for i in P], [int(j) for j in Q]
