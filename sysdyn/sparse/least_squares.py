"""Elimination order of sparse least squares with exact equations: exact pivots, then orthogonal columns.

Exact rows are eliminated by scalar pivots, where they have one that is safe, and otherwise turned. A column that no
exact row holds any more is eliminated by a turn of all noisy rows that do. Rows of very different weights keep their
digits where the heaviest comes first and a column is taken while its entries are not small beside the rest of their
rows (Powell and Reid 1969; Cox and Higham 1998). This is decided at sampled states.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import Sampled
from sysdyn.sparse.turns import turn

# A column of noisy rows is turned early where its norm is at least this fraction of each other entry of these rows.
LEAST_SHARE = 1e-2
# A column of exact rows is turned early where its norm is at least this fraction of each other entry of these rows.
LEAST_EXACT = 0.1
# An entry of an exact row is a pivot where it is at least this fraction of its column in exact rows, at every state.
LEAST_PIVOT = 0.1
# Entries below this share of what they are the difference of count as zero.
CANCELLED = 1e-13
# A column counts as zero at a state where it is below this share of what it is at others.
VANISHING = 1e-10

# Columns that are better eliminated later, and those that cannot be.
LATE, NEVER = 1, 2

Row = dict[int, Any]  # The entries of a row by their columns, arrays (states,) each.
Option = tuple[int, float, int, int]  # How bad, about what it costs, row of a scalar pivot or −1, column.


def least_squares(
    rows: Sequence[Row], exact: Sequence[bool], first: Iterable[tuple[int, int]], fronts: Sequence[Sequence[int]],
    most: float = math.inf,
) -> tuple[Pivots, float]:  # fmt: skip
    """(the order of E d + e = 0, |W d + w| least, from the entries at sampled states; about the operations it takes).

    exact[i]: row i is one of E. first: (row, column) of pivots of E that are taken first. fronts: the columns, in parts
    that are eliminated one after the other. most: operations. Entries are in natural units of the columns and of the
    rows of E, and in units of their standard deviations of the rows of W. Raises NoSafeOrdering where columns are
    dependent at every sampled state, or it takes more operations.
    """
    search = _Search(rows, exact, sum(len(front) for front in fronts), most)
    with np.errstate(all="ignore"):  # at single states columns may be dependent
        for i, j in first:
            search.take(i, j)
        for front in fronts:
            search.work(search.left.intersection(front))
    return Pivots(search.row_perm, search.col_perm, search.joined), search.operations


class _Search:
    """What is left of the entries while columns are eliminated."""

    def __init__(self, rows: Sequence[Row], exact: Sequence[bool], columns: int, most: float):
        self.rows = [dict(row) for row in rows]
        self.exact = {i for i, x in enumerate(exact) if x}
        self.holders: list[set[int]] = [set() for _ in range(columns)]
        for i, row in enumerate(self.rows):
            for j in row:
                self.holders[j].add(i)
        self.left = set(range(columns))
        self.row_perm: list[int] = []
        self.col_perm: list[int] = []
        self.joined: dict[int, tuple[int, ...]] = {}
        self.operations, self.most = 0.0, most
        self._sizes: dict[int, np.ndarray] = {}  # of rows that did not change since, see `_largest`

    def work(self, front: set[int]) -> None:
        """Eliminate these columns, the cheapest first."""
        heap: list[Option] = []  # The options, and outdated ones.
        options: dict[int, Option] = {}
        stale = set(front)
        while front:
            for j in stale & front:
                options[j] = self._option(j)
                heapq.heappush(heap, options[j])
            while options.get(heap[0][-1]) != heap[0]:
                heapq.heappop(heap)
            bad, _, i, j = heapq.heappop(heap)
            if bad == NEVER:
                raise NoSafeOrdering(f"{len(self.left)} unknowns are determined by no equation that is left")
            if self.operations > self.most:
                raise NoSafeOrdering("given up: more expensive than what is known")
            del options[j]
            front.discard(j)
            touched = set(self.holders[j])
            stale = {c for k in touched for c in self.rows[k]}
            self.take(self._turn(j) if i < 0 else i, j)
            stale = stale.union(*(self.rows[k] for k in touched))

    def _option(self, j: int) -> Option:
        """The cheapest way to eliminate column j; exact rows go first."""
        holders = self.holders[j]
        turned = sorted(holders & self.exact or holders)
        rest = len(holders) - len(turned)
        if not turned:
            return NEVER, 0.0, -1, j
        size = np.abs([self.rows[i][j] for i in turned])
        norm = np.sqrt((size * size).sum(axis=0))
        regular = norm > VANISHING * np.fmax.reduce(norm)  # not where columns before were dependent, and it is NaN
        if not regular.any():
            return NEVER, 0.0, -1, j
        if turned[0] in self.exact:
            stays = (size >= LEAST_PIVOT * norm)[:, regular].all(axis=1)
            found = [(2.0 * (len(self.rows[i]) - 1) * (len(holders) - 1), i)
                     for i, x in zip(turned, stays, strict=True) if x]  # fmt: skip
            if found:
                return 0, *min(found), j
        width = len(set().union(*(self.rows[i] for i in turned)))
        cost = (4.0 * len(turned) + 1.0) * width * (len(turned) > 1) + 2.0 * width * rest
        largest = np.max([self._largest(i) for i in turned], axis=0)
        share = float(np.fmin.reduce((norm / largest)[regular])) if len(turned) > 1 else 1.0
        early = share >= (LEAST_EXACT if turned[0] in self.exact else LEAST_SHARE)
        return (0, cost, -1, j) if early else (LATE, -share, -1, j)

    def _largest(self, i: int) -> np.ndarray:
        """(states,): the size of the greatest entry of row i."""
        if i not in self._sizes:
            self._sizes[i] = np.abs([*self.rows[i].values()]).max(axis=0)
        return self._sizes[i]

    def _turn(self, j: int) -> int:
        """Turn the rows that hold column j, the exact ones if there are some; returns the one that keeps it."""
        rows = self.rows
        turned = sorted(self.holders[j] & self.exact or self.holders[j])
        if len(turned) > 1:
            weight = {i: np.fmax.reduce([np.fmax.reduce(np.abs(x)) for x in rows[i].values()]) for i in turned}
            turned.sort(key=lambda i: -weight[i])
            for i in turned:
                self._sizes.pop(i, None)
            found, r = turn(turned, [rows[i].pop(j) for i in turned])
            columns = set().union(*(rows[i] for i in turned))
            self.operations += (4.0 * len(turned) + 1.0) * len(columns)
            for c in columns:
                y = {i: rows[i].pop(c) for i in turned if c in rows[i]}
                found.apply(y)
                for i, x in y.items():
                    rows[i][c] = x
                self.holders[c].difference_update(turned)
                self.holders[c].update(y)
            rows[turned[0]][j] = r
            self.holders[j].difference_update(turned[1:])
            self.joined[len(self.row_perm)] = tuple(turned[1:])
        return turned[0]

    def take(self, i: int, j: int) -> None:
        """Eliminate column j by row i."""
        row = self.rows[i]
        for c in row:
            self.holders[c].discard(i)
        pivot = row.pop(j)
        self.operations += 2.0 * len(row) * len(self.holders[j])
        for k in self.holders[j]:
            target = self.rows[k]
            self._sizes.pop(k, None)
            factor = target.pop(j) / pivot
            for c, x in row.items():
                old, change = target.get(c), factor * x
                new = -change if old is None else old - change
                if old is not None and (np.abs(new) <= CANCELLED * (np.abs(old) + np.abs(change))).all():
                    del target[c]
                    self.holders[c].discard(k)
                    continue
                target[c] = new
                self.holders[c].add(k)
        self.holders[j] = set()
        self.left.discard(j)
        self.row_perm.append(i)
        self.col_perm.append(j)


def orthogonal(a: Sampled) -> Pivots:
    """The order of a square matrix in which every column is turned: backward stable wherever the matrix is regular."""
    rows: list[Row] = [{} for _ in range(a.n)]
    row_scale, column_scale = a.scaling
    for e, (i, j) in enumerate(zip(a.row.tolist(), a.col.tolist(), strict=True)):
        rows[i][j] = a.values[:, e] * (row_scale[i] * column_scale[j])
    return least_squares(rows, [False] * a.n, (), [range(a.n)], 2.0 * a.budget)[0]  # two operations a product
