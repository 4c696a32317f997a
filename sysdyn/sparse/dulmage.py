"""Block triangular form of a sparse rectangular matrix, by its pattern alone.

Dulmage and Mendelsohn (1958). With P and Q from a maximum matching of rows and columns,

            ⎡ A11 A12 A13 ⎤   A11: more columns than rows; every column is unmatched in some maximum matching
    P A Q = ⎢  0  A22 A23 ⎥   A22: square with a full diagonal, itself block upper triangular with irreducible blocks
            ⎣  0   0  A33 ⎦   A33: more rows than columns; every row is unmatched in some maximum matching

The three parts and the irreducible blocks do not depend on the matching. Only the order of independent blocks is
arbitrary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used


class DiagonalBlock(NamedTuple):
    """Row and column indices of a diagonal block; in a square block, rows[k] is matched to columns[k]."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class DulmageMendelsohn:
    """The block triangular form of a matrix (m, n).

    under   the under-determined part A11, empty in a matrix of full structural column rank
    square  the irreducible blocks of A22: block k has entries in the columns of blocks k, k + 1, … only
    over    the over-determined part A33, empty in a matrix of full structural row rank
    """

    shape: tuple[int, int]
    under: DiagonalBlock
    square: tuple[DiagonalBlock, ...]
    over: DiagonalBlock

    @property
    def missing(self) -> int:
        """Number of unmatched columns: n − structural rank."""
        return len(self.under.columns) - len(self.under.rows)

    @property
    def excess(self) -> int:
        """Number of unmatched rows: m − structural rank."""
        return len(self.over.rows) - len(self.over.columns)

    @property
    def rank(self) -> int:
        """Structural rank: the greatest rank over all values of the entries."""
        return self.shape[1] - self.missing

    @cached_property
    def row_perm(self) -> tuple[int, ...]:
        """Rows in the order of the block triangular form."""
        return tuple(r for block in (self.under, *self.square, self.over) for r in block.rows)

    @cached_property
    def col_perm(self) -> tuple[int, ...]:
        """Columns in the order of the block triangular form."""
        return tuple(c for block in (self.under, *self.square, self.over) for c in block.columns)

    def __repr__(self) -> str:
        under, over = (f"{len(b.rows)}×{len(b.columns)}" for b in (self.under, self.over))
        largest = max((len(b.rows) for b in self.square), default=0)
        square = f"{len(self.square)} square blocks, the largest of {largest}"
        return f"DulmageMendelsohn({self.shape[0]}×{self.shape[1]}: under {under}, {square}, over {over})"


def dulmage_mendelsohn(pattern: scipy.sparse.spmatrix) -> DulmageMendelsohn:
    """The block triangular form of a matrix (m, n). Stored entries are the pattern, also zeros.

    Alternating paths from unmatched columns and rows reach A11 and A33. The blocks of A22 are the strongly connected
    components of its directed graph. Pothen and Fan (1990).
    """
    by_row = scipy.sparse.csr_matrix(pattern)
    by_column = by_row.tocsc()
    m, n = by_row.shape
    row_of = maximum_matching(by_column)
    column_of = np.full(m, -1)
    column_of[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)

    columns, rows = _reached(np.flatnonzero(row_of < 0), by_column, column_of)
    under = DiagonalBlock(rows, columns)
    over = DiagonalBlock(*_reached(np.flatnonzero(column_of < 0), by_row, row_of))
    inner = np.setdiff1d(np.arange(n), [*under.columns, *over.columns])
    return DulmageMendelsohn((m, n), under, _irreducible(by_row, inner, row_of[inner]), over)


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


def _irreducible(by_row, columns: np.ndarray, rows: np.ndarray) -> tuple[DiagonalBlock, ...]:
    """Diagonal blocks, in upper triangular order, of the square part whose pairs are (rows[k], columns[k])."""
    if len(columns) == 0:
        return ()
    graph = by_row[rows][:, columns].tocoo()  # pair i → pair j: row i has an entry in column j
    graph = scipy.sparse.coo_matrix((np.ones(graph.nnz), (graph.row, graph.col)), graph.shape)  # stored zeros count
    count, component = scipy.sparse.csgraph.connected_components(graph, directed=True, connection="strong")
    before: dict[int, set[int]] = {k: set() for k in range(count)}
    for i, j in zip(component[graph.row].tolist(), component[graph.col].tolist(), strict=True):
        if i != j:
            before[j].add(i)
    members: list[list[int]] = [[] for _ in range(count)]
    for pair, k in enumerate(component.tolist()):
        members[k].append(pair)
    order = TopologicalSorter(before).static_order()
    return tuple(DiagonalBlock(tuple(rows[members[k]].tolist()), tuple(columns[members[k]].tolist())) for k in order)
