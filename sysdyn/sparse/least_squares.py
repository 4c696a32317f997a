"""Elimination order of sparse least squares with exact equations: exact pivots, then orthogonal columns.

An exact row is eliminated by an entry that is the same at every state, such as the ±1 of the equations of motion, or by
a rotation of exact rows if the norm of their entries is the same at every state, as in a rotation matrix. The other
exact rows are eliminated by rotations of columns: the pivot is the norm of the rest of an exact row and vanishes only
if exact rows depend on each other (Golub and Van Loan 2013, section 6.2: the null-space method). A column without an
entry in exact rows is eliminated by a rotation of all noisy rows with an entry in it. Rows of very different weights
keep their digits if the heaviest comes first and a column is eliminated while its entries are not small compared with
the rest of their rows (Powell and Reid 1969; Cox and Higham 1998). This is decided at sampled states.

Noisy rows with the same columns, or left by eliminated columns, are rotated to a triangle before other rows are
merged with them if they are more than their columns, so that empty rows drop out (Liu 1986).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.active_submatrix import SampledActiveSubmatrix, greedy
from sysdyn.sparse.lu import Across, Early, Pivots
from sysdyn.sparse.sampled import SampledMatrix

# Least norm of a column of noisy rows to be rotated early, as a share of each other entry of these rows (chosen).
LEAST_ROTATED = 1e-2
# Least norm of a column of exact rows to be rotated, as a share of each other entry of these rows (chosen).
LEAST_EXACT = 0.1
# Least pivot of an exact row at every state, as a share of the norm of its column in exact rows (chosen).
LEAST_EXACT_PIVOT = 0.1
# Relative difference between random states below which a value is the same at all: an analytic function is constant if
# it is so at random places, but for rounding (chosen).
UNVARIED = 1e-9
# An entry below this share of the terms it was subtracted from counts as zero: 900 rounding units (chosen).
CANCELLED_TERMS = 2e-13
# Norm of a column at a state below which it counts as zero there, as a share of its norm at other states (chosen).
VANISHING_COLUMN = 1e-10

# Ranks of options, after 0: columns that are better eliminated later, and exact rows whose columns are rotated, which
# fill most.
LATE, LAST = 1, 2

Row = dict[int, np.ndarray]  # The entries of a row by their columns, arrays (states,) each.
Option = tuple[int, float, int, int]  # Rank, operations (about), row of a scalar pivot or −1, column.


class Order(NamedTuple):
    """An order of least squares: pivots, early rotations, rotations of columns, approximate operation count."""

    pivots: Pivots
    early: Early
    across: Across
    operations: float


def least_squares(
    rows: Sequence[Row], exact: Sequence[bool], first: Iterable[tuple[int, int]], fronts: Sequence[Sequence[int]],
    most: float = math.inf,
) -> Order:  # fmt: skip
    """The order of E d + e = 0, |W d + w| least, from entries at sampled states.

    exact[i]: True if row i belongs to E, False for W. first: (row, column) of the pivots of E to begin with. fronts:
    columns in parts, eliminated one part after the other; a column without a row of its own yet waits for the next
    part. most: limit of operations. Units of entries: natural ones of columns and of the rows of E; rows of W are
    divided by their standard deviations. Raises NoSafeOrdering if columns are dependent at every sampled state, or if
    the operations exceed `most`.
    """
    search = _Search(rows, exact, fronts, most)
    with np.errstate(all="ignore"):  # at single states columns may be dependent
        for alike in search.alike():
            search.merge(alike)
        for i, j in first:
            search.eliminate(i, j)
        waiting: set[int] = set()
        for front in fronts:
            waiting = search.work(waiting | search.left.intersection(front))
            search.merge(search.changed)
            search.changed = set()
    if waiting:
        raise NoSafeOrdering(f"{len(waiting)} unknowns are determined by no equation that is left")
    pivots = Pivots(search.row_perm, search.col_perm, search.joined)
    return Order(pivots, search.early, search.across, search.operations)


class _Search(SampledActiveSubmatrix):
    """The entries that are left while columns are eliminated."""

    def __init__(self, rows: Sequence[Row], exact: Sequence[bool], fronts: Sequence[Sequence[int]], most: float):
        self.front = {j: k for k, front in enumerate(fronts) for j in front}
        super().__init__(rows, len(self.front), CANCELLED_TERMS)
        self.exact = {i for i, x in enumerate(exact) if x}
        self.left = set(self.front)
        self.row_perm: list[int] = []
        self.col_perm: list[int] = []
        self.joined: dict[int, tuple[int, ...]] = {}
        self.early: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.across: dict[int, tuple[int, ...]] = {}
        self.operations, self.most = 0.0, most
        self._sizes: dict[int, np.ndarray] = {}  # of rows that did not change since, see `_largest`
        self.changed: set[int] = set()  # rows, since it was emptied

    def work(self, front: set[int]) -> set[int]:
        """Eliminate these columns, the cheapest first; returns the columns that no row determines."""
        greedy(front, lambda j: self._option(j, front), self._take_option)
        return front

    def _take_option(self, option: Option) -> tuple[set[int], set[int]]:
        bad, _, i, j = option
        if self.operations > self.most:
            raise NoSafeOrdering("given up: more expensive than what is known")
        columns = self.rows[i] if bad == LAST else (j,)
        touched = set().union(*(self.columns[c] for c in columns))
        stale = {c for k in touched for c in self.rows[k]}
        if bad == LAST:
            self._rotate_columns_of(i, j)
        self.eliminate(self._rotate_rows_of(j) if i < 0 else i, j)
        return {j}, stale.union(*(self.rows[k] for k in touched))

    def alike(self) -> list[list[int]]:
        """Rows with entries in the same columns."""
        found: dict[frozenset[int], list[int]] = {}
        for i, row in enumerate(self.rows):
            found.setdefault(frozenset(row), []).append(i)
        return [*found.values()]

    def merge(self, rows: Iterable[int]) -> None:
        """Rotate the noisy ones of these rows to a triangle if they are more than their columns.

        Columns that are eliminated first come first. A column stays if it is small compared with the rest of its rows
        at some state.
        """
        rows = {i for i in set(rows).difference(self.exact, self.row_perm) if self.rows[i]}
        columns = set().union(*(self.rows[i] for i in rows))
        if len(rows) <= len(columns):
            return
        while columns:
            members = {j: sorted(self.columns[j] & rows) for j in columns}
            j = min(columns, key=lambda j: (self.front[j], self._cost(members[j]), j))
            columns.discard(j)
            if len(members[j]) > 1:
                norm = self._norm(members[j], j)
                if (norm <= VANISHING_COLUMN * np.fmax.reduce(norm)).any() or self._share(
                    members[j], norm
                ) < LEAST_ROTATED:
                    continue
                members[j] = self._rotate_heaviest(members[j], j, always=True)
                self.early.setdefault(len(self.row_perm), []).append((j, tuple(members[j])))
            rows.difference_update(members[j][:1])

    def _option(self, j: int, front: set[int]) -> Option | None:
        """The cheapest way to eliminate column j; exact rows go first, but wait if they hold columns of others."""
        holders = self.columns[j]
        rotated = sorted(holders & self.exact or holders)
        if not rotated:
            return None
        if rotated[0] in self.exact:
            return self._exact_option(rotated, j) or self._across_option(rotated, j, front)
        norm = self._norm(rotated, j)
        # not where columns before were dependent, and it is NaN
        regular = norm > VANISHING_COLUMN * np.fmax.reduce(norm)
        if not regular.any():
            return None
        share = self._share(rotated, np.where(regular, norm, math.nan)) if len(rotated) > 1 else 1.0
        if not share >= LEAST_ROTATED:
            return LATE, -share, -1, j
        return 0, self._cost(rotated), -1, j

    def _exact_option(self, exact: Sequence[int], j: int) -> Option | None:
        """A pivot of column j in these exact rows that is the same at every state: an entry, their norm, or None."""
        entries = np.array([self.rows[i][j] for i in exact])
        norm = np.sqrt((entries * entries).sum(axis=0))
        regular = norm > 0.0  # not where columns before were dependent, and it is NaN
        if not regular.any():
            return None
        entries, norm, others = entries[:, regular], norm[regular], len(self.columns[j]) - 1
        stays = (np.abs(entries) >= LEAST_EXACT_PIVOT * norm).all(axis=1) & _same(entries)
        found = [(2.0 * (len(self.rows[i]) - 1) * others, i) for i, x in zip(exact, stays, strict=True) if x]
        if found:
            return 0, *min(found), j
        share = float(np.min(norm / np.max([self._largest(i) for i in exact], axis=0)[regular]))
        if len(exact) == 1 or not _same(norm[None])[0] or not share >= LEAST_EXACT:
            return None
        width = len(set().union(*(self.rows[i] for i in exact)))
        return 0, self._cost(exact) + 2.0 * width * (others + 1 - len(exact)), -1, j

    def _across_option(self, exact: Sequence[int], j: int, front: set[int]) -> Option | None:
        """The cheapest rotation of the columns of an exact row with entries in the front alone; None without one."""
        found = [(self._cost_across(i), i) for i in exact if front.issuperset(self.rows[i])]
        return (LAST, *min(found), j) if found else None

    def _cost_across(self, i: int) -> float:
        """Operations of a rotation of the columns of row i."""
        row = self.rows[i]
        return (4.0 * len(row) + 1.0) * len(set().union(*(self.columns[j] for j in row)))

    def _cost(self, rows: Sequence[int]) -> float:
        """Operations of a rotation of these rows."""
        return (4.0 * len(rows) + 1.0) * len(set().union(*(self.rows[i] for i in rows))) if len(rows) > 1 else 0.0

    def _norm(self, rows: Sequence[int], j: int) -> np.ndarray:
        """Norm (states,) of the entries of column j in these rows."""
        x = np.array([self.rows[i][j] for i in rows])
        return np.sqrt((x * x).sum(axis=0))

    def _share(self, rows: Sequence[int], norm: np.ndarray) -> float:
        """The norm of a column over the greatest entry of these rows, least over the states."""
        return float(np.fmin.reduce(norm / np.max([self._largest(i) for i in rows], axis=0)))

    def _largest(self, i: int) -> np.ndarray:
        """Size (states,) of the greatest entry of row i."""
        if i not in self._sizes:
            self._sizes[i] = np.abs([*self.rows[i].values()]).max(axis=0)
        return self._sizes[i]

    def _rotate_rows_of(self, j: int) -> int:
        """Rotate the (exact, if any) rows with an entry in column j; returns the one row that keeps an entry."""
        rows = sorted(self.columns[j] & self.exact or self.columns[j])
        if len(rows) > 1:
            rows = self._rotate_heaviest(rows, j)
            self.joined[len(self.row_perm)] = tuple(rows[1:])
        return rows[0]

    def _rotate_columns_of(self, i: int, j: int) -> None:
        """Rotate the columns of row i, so that its only entry is in column j."""
        columns = (j, *sorted(set(self.rows[i]) - {j}))
        self._note(set().union(*(self.columns[c] for c in columns)))
        self.operations += self._cost_across(i)
        if self.rotate_columns(i, columns):
            self.across[len(self.row_perm)] = columns[1:]

    def _rotate_heaviest(self, rotated: Sequence[int], j: int, always: bool = False) -> list[int]:
        """Rotate these rows, so that only the heaviest keeps column j; returns them, the heaviest first."""
        rows = self.rows
        weight = {i: np.fmax.reduce([np.fmax.reduce(np.abs(x)) for x in rows[i].values()]) for i in rotated}
        rotated = sorted(rotated, key=lambda i: -weight[i])
        self._note(rotated)
        self.operations += (4.0 * len(rotated) + 1.0) * (len(set().union(*(rows[i] for i in rotated))) - 1)
        self.rotate_rows(rotated, j, always)
        return rotated

    def eliminate(self, i: int, j: int) -> None:
        """Eliminate column j by row i."""
        pivot, row, column = self.pivot(i, j)
        self.operations += 2.0 * len(row) * len(column)
        self._note(column)
        self.rank_one_update({k: x / pivot for k, x in column.items()}, row)
        self.left.discard(j)
        self.row_perm.append(i)
        self.col_perm.append(j)

    def _note(self, changed: Collection[int]) -> None:
        """Note that these rows change."""
        self.changed.update(changed)
        for i in changed:
            self._sizes.pop(i, None)


def _same(values: np.ndarray) -> np.ndarray:
    """(k,) bool: True for values (k, states) that are the same at every state, and not zero."""
    low, high = values.min(axis=1), values.max(axis=1)
    size = np.maximum(np.abs(low), np.abs(high))
    return np.asarray((high - low <= UNVARIED * size) & (size > 0.0))


def orthogonal(a: SampledMatrix) -> Pivots:
    """The order of a square matrix in which every column is rotated: backward stable if the matrix is regular."""
    rows: list[Row] = [{} for _ in range(a.n)]
    row_scale, column_scale = a.scaling
    for e, (i, j) in enumerate(zip(a.row.tolist(), a.col.tolist(), strict=True)):
        rows[i][j] = a.values[:, e] * (row_scale[i] * column_scale[j])
    return least_squares(rows, [False] * a.n, (), [range(a.n)], 2.0 * a.budget).pivots  # two operations a product
