"""LU of sparse matrices by SuperLU, kept from matrices that it cannot take, and of many with one pattern."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.errors import SysdynError
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
    return _factors(matrix, **options) if np.isfinite(matrix.data).all() and _has_pivots(matrix) else None


class Pattern:
    """Square matrices with entries at the same places, whose columns are ordered once for all.

    row, col (nnz): the places, each once; n: number of columns. Ordering takes as long as a factorization.
    """

    def __init__(self, row: np.ndarray, col: np.ndarray, n: int):
        self._row, self._col, self._n = row, col, n
        self._first = self._columns(np.arange(n))
        self._ordered: _Columns | None = None  # once a matrix was factored
        self._matched: dict[bytes, bool] = {}  # by the entries that are zero
        self._pivots = np.empty(0, dtype=np.int64)  # entries in rows and columns of their own, of the last matrix

    def factors(self, values: np.ndarray) -> Factored | None:
        """`factors` of the matrix with values (nnz,), and to the last bit the same; None as there."""
        if not np.isfinite(values).all() or not self._has_pivots(values):
            return None
        if self._ordered is not None:
            lu = _factors(self._ordered.matrix(values), permc_spec="NATURAL")
            return None if lu is None else Factored(lu, self._ordered.number, self._ordered.place)
        lu = _factors(self._first.matrix(values))
        if lu is None:
            return None
        self._ordered = self._columns(lu.perm_c)
        return Factored(lu)

    def _columns(self, number: np.ndarray) -> _Columns:
        """The places with rows and columns that have new numbers.

        Rows stay in their old order within a column: SuperLU adds in that order, and takes the first of equal pivots,
        unless one is on the diagonal; so rows are numbered as columns.
        """
        order = np.lexsort((self._row, number[self._col]))
        starts = np.concatenate([[0], np.cumsum(np.bincount(number[self._col], minlength=self._n))])
        rows = number[self._row[order]].astype(np.int32)
        return _Columns(number, np.argsort(number), order, rows, starts.astype(np.int32))

    def _has_pivots(self, values: np.ndarray) -> bool:
        """True if each column can have a pivot in a row of its own, entries that are zero left out."""
        zero = values == 0.0
        key = zero.tobytes()
        if key not in self._matched:
            if len(self._matched) >= PATTERNS:
                self._matched.clear()
            kept = ~zero[self._pivots]
            begin = np.full(self._n, -1)
            begin[self._col[self._pivots[kept]]] = self._row[self._pivots[kept]]
            self._matched[key] = kept.all() and len(kept) == self._n
            if not self._matched[key]:
                row_of = maximum_matching(_nonzero(self._first.matrix(values)), begin)
                column = np.flatnonzero(row_of >= 0)
                self._pivots, self._matched[key] = self._entries(row_of[column], column), len(column) == self._n
        return self._matched[key]

    def _entries(self, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Numbers of the entries at these places."""
        order = np.lexsort((self._row, self._col))
        places = self._col[order].astype(np.int64) * self._n + self._row[order]
        return order[np.searchsorted(places, col * self._n + row)]


class _Columns(NamedTuple):
    """Places as in CSC: number of each row and column, `place` its inverse, order and rows of entries, starts."""

    number: np.ndarray
    place: np.ndarray
    order: np.ndarray
    rows: np.ndarray
    starts: np.ndarray

    def matrix(self, values: np.ndarray) -> scipy.sparse.csc_matrix:
        n = len(self.number)
        matrix = scipy.sparse.csc_matrix((values[self.order], self.rows, self.starts), shape=(n, n))
        matrix.has_canonical_format = True  # no entry stands twice, and the order of rows is meant
        return matrix


class Factored:
    """SuperLU's factors of a matrix in which row i and column i have number[i], and place[number[i]] = i."""

    def __init__(self, lu: Any, number: np.ndarray | None = None, place: np.ndarray | None = None):
        self._lu, self._number, self._place = lu, number, place

    def solve(self, x: np.ndarray, trans: str = "N") -> np.ndarray:
        """A⁻¹ x, or A^-T x for trans="T"; x (n,) or several columns (n, k)."""
        if self._number is None:
            return self._lu.solve(x, trans)
        return self._lu.solve(x[self._place], trans)[self._number]


def _factors(matrix: scipy.sparse.csc_matrix, **options: Any) -> scipy.sparse.linalg.SuperLU | None:
    _check_interpreter()
    try:
        return scipy.sparse.linalg.splu(matrix, **options)
    except RuntimeError:
        return None


@cache
def _check_interpreter() -> None:
    """Raise SysdynError in a sub-interpreter: SuperLU's memory waits there for the lock of the main one, for ever."""
    own, main = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_Main
    own.restype = main.restype = ctypes.c_void_p
    if own() != main():
        raise SysdynError(
            "SciPy's SuperLU, which every compilation needs, would wait for ever in a sub-interpreter of Python: run "
            "sysdyn in the main one (mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
        )


def _has_pivots(matrix: scipy.sparse.csc_matrix) -> bool:
    """True if each column can have a pivot in a row of its own, entries that are zero left out."""
    matrix = _nonzero(matrix)
    return _matched(*(x.astype(np.int32).tobytes() for x in (matrix.indptr, matrix.indices)), matrix.shape)


def _nonzero(matrix: scipy.sparse.csc_matrix) -> scipy.sparse.csc_matrix:
    """The matrix without entries that are zero."""
    if matrix.data.all():
        return matrix
    matrix = matrix.copy()
    matrix.eliminate_zeros()
    return matrix


@lru_cache(maxsize=PATTERNS)
def _matched(starts: bytes, rows: bytes, shape: tuple[int, int]) -> bool:
    """True if each column can have a pivot in a row of its own. starts, rows: of the CSC pattern, as int32.

    `scipy.sparse.csgraph.structural_rank` is faster on small patterns, and needs minutes for long chains on load cells.
    """
    indptr, indices = (np.frombuffer(x, dtype=np.int32) for x in (starts, rows))
    ones = np.ones(len(indices))
    return bool((maximum_matching(scipy.sparse.csc_matrix((ones, indices, indptr), shape=shape)) >= 0).all())
