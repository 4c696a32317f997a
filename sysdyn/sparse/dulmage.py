"""Coarse Dulmage-Mendelsohn decomposition of a sparse rectangular matrix, by its pattern alone.

With P and Q from a maximum matching of rows and columns,

            ⎡ A11 A12 A13 ⎤   A11: more columns than rows; every column is unmatched in some maximum matching
    P A Q = ⎢  0  A22 A23 ⎥   A22: square with a full diagonal
            ⎣  0   0  A33 ⎦   A33: more rows than columns; every row is unmatched in some maximum matching

The three parts do not depend on the matching. Dulmage and Mendelsohn (1958).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used


class DiagonalBlock(NamedTuple):
    """Row and column indices of a diagonal block."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


class DulmageMendelsohn(NamedTuple):
    """The under-determined part A11, empty for full structural column rank, and the over-determined part A33."""

    under: DiagonalBlock
    over: DiagonalBlock

    @property
    def missing(self) -> int:
        """Number of unmatched columns: n − structural rank."""
        return len(self.under.columns) - len(self.under.rows)

    @property
    def excess(self) -> int:
        """Number of unmatched rows: m − structural rank."""
        return len(self.over.rows) - len(self.over.columns)


def dulmage_mendelsohn(pattern: scipy.sparse.spmatrix) -> DulmageMendelsohn:
    """The decomposition of a matrix (m, n). Stored entries are the pattern, also zeros.

    Alternating paths from unmatched columns and rows reach A11 and A33. Pothen and Fan (1990).
    """
    by_row = scipy.sparse.csr_matrix(pattern)
    by_column = by_row.tocsc()
    row_of = maximum_matching(by_column)
    column_of = np.full(by_row.shape[0], -1)
    column_of[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)
    columns, rows = _reached(np.flatnonzero(row_of < 0), by_column, column_of)
    over = DiagonalBlock(*_reached(np.flatnonzero(column_of < 0), by_row, row_of))
    return DulmageMendelsohn(DiagonalBlock(rows, columns), over)


def maximum_matching(pattern: scipy.sparse.spmatrix) -> np.ndarray:
    """Maximum matching: the row matched to each column (n,), −1 for none.

    Each phase is a depth-first search with lookahead for augmenting paths that share no row, until a phase finds none.
    Pothen and Fan (1990), section 3.
    """
    by_column = scipy.sparse.csc_matrix(pattern)
    m, n = by_column.shape
    starts, indices = by_column.indptr.tolist(), by_column.indices.tolist()
    rows = [indices[starts[c] : starts[c + 1]] for c in range(n)]
    row_of, column_of = [-1] * n, [-1] * m
    ahead = [iter(r) for r in rows]  # rows that have been matched stay matched
    for c in np.argsort(np.diff(by_column.indptr), kind="stable").tolist():  # columns with few choices first
        if (row := next((r for r in rows[c] if column_of[r] < 0), -1)) >= 0:
            row_of[c], column_of[row] = row, c

    def augment(start: int, visited: list[bool]) -> bool:
        path, choices = [start], [iter(rows[start])]
        while path:
            row = next((r for r in ahead[path[-1]] if column_of[r] < 0), -1)
            if row >= 0:
                visited[row] = True
                for c in reversed(path):
                    row_of[c], column_of[row], row = row, c, row_of[c]
                return True
            row = next((r for r in choices[-1] if not visited[r]), -1)
            if row < 0:
                path.pop()
                choices.pop()
                continue
            visited[row] = True
            path.append(column_of[row])
            choices.append(iter(rows[path[-1]]))
        return False

    progress = True
    while progress:
        visited = [False] * m
        progress = any([augment(c, visited) for c in range(n) if row_of[c] < 0])
    return np.array(row_of, dtype=int)


def _reached(start: np.ndarray, adjacency, matched: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Vertices reached by alternating paths from `start`: (on the same side, on the other side).

    adjacency: CSR or CSC whose major axis is the side of `start`. matched: partner of each vertex of the other side.
    """
    stack = start.tolist()
    same_side, other_side = set(stack), set()
    while stack:
        v = stack.pop()
        for w in adjacency.indices[adjacency.indptr[v] : adjacency.indptr[v + 1]].tolist():
            if w not in other_side:
                other_side.add(w)
                partner = int(matched[w])  # exists because no path augments a maximum matching
                if partner not in same_side:
                    same_side.add(partner)
                    stack.append(partner)
    return tuple(sorted(same_side)), tuple(sorted(other_side))
