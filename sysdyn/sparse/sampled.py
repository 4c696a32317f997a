"""Matrices sampled at several states, and their elimination with measures of the next pivot: safety and cost."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.active_submatrix import SampledActiveSubmatrix
from sysdyn.sparse.condition import equilibration
from sysdyn.sparse.lu import Pivots

Order = Callable[["Sampled"], Pivots]  # A way to find an elimination order.

# Least absolute value of a safe pivot over the samples, as a share of its greatest: strict, and for look-ahead, which
# saves more with a wider choice (by trial).
LEAST_VARIATION, TOLERANT_VARIATION = 0.1, 0.01
LEAST_RATIO = (
    1e-2  # Least safe pivot at every sample, as a share of each other entry of its column (threshold pivoting).
)
# Least safety of an entry that is taken before rows are rotated; the check sees the whole order later (by trial).
NEARLY_SAFE = 1e-3
# Factor of the safety of a pivot with both signs, which passes through zero between the samples: never nearly safe.
CROSSING = 1e-6
MOST_PRODUCTS = 2e6  # Most products of entries that a search may compute (CPU time).
LOOKING = 0.02  # Price of a look at an entry, in products (CPU time).
# Entries that fall to this share of their size at every sample are dropped: 450 rounding units.
CANCELLED = 1e-13


class Pivot(NamedTuple):
    """Row and column of a pivot, and the rows that are turned with its row first."""

    row: int
    column: int
    joined: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tree:
    """Structure of a symmetric quasi-definite matrix [H A^T; A −G], H and G positive semidefinite, over a tree.

    group[i]: node of the tree that index i belongs to, −1: none; entries join indices of one path of the tree, except
    for indices of group −1. parent[node] < node. positive[i]: index i is one of H. pairs: (row, column) of entries ±1
    of A from the leaves on, by which H is reduced to few unknowns.
    """

    group: tuple[int, ...]
    parent: tuple[int, ...]
    positive: tuple[bool, ...]
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Sampled:
    """Worst-case pattern: entry e is at (row[e], col[e]) with values[k, e] at state k; fixed[e]: a constant.

    rhs[i]: the right-hand side of row i is not identically zero. budget: products of entries after which a search
    gives up. equilibrate: judge pivots of rows and
    columns brought to one scale. least_variation: least safe pivot at every state as a share of its greatest value, and
    least_ratio: as a share of each other entry of its column. tree: of a symmetric matrix that has one.
    """

    n: int  # columns; there are as many rows as `rhs` has entries
    row: np.ndarray
    col: np.ndarray
    values: np.ndarray
    fixed: np.ndarray
    rhs: np.ndarray
    budget: float = MOST_PRODUCTS
    equilibrate: bool = True
    least_variation: float = LEAST_VARIATION
    least_ratio: float = LEAST_RATIO
    tree: Tree | None = None

    def weighted(self, weight: float) -> scipy.sparse.csc_matrix:
        """The equilibrated values at the first state, with the entries that depend on the state times `weight`."""
        rows, columns = self.scaling
        values = self.values[0] * rows[self.row] * columns[self.col] * np.where(self.fixed, 1.0, weight)
        values = np.where(values == 0.0, 1e-30, values)  # an entry that is zero at this state belongs to the pattern
        return scipy.sparse.csc_matrix((values, (self.row, self.col)), shape=(len(self.rhs), self.n))

    def with_values(self, values: np.ndarray) -> Sampled:
        """The same pattern with more states, (K, entries)."""
        return replace(self, values=np.concatenate([self.values, values]))

    @cached_property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column factors that bring all entries near 1: the size of a small entry differs from body to body."""
        if not self.equilibrate:
            return np.ones(len(self.rhs)), np.ones(self.n)
        rows, columns = equilibration(self.row, self.col, np.abs(self.values).max(axis=0), (len(self.rhs), self.n))
        if self.tree:
            rows = columns = np.sqrt(rows * columns)  # the same for both, as symmetry needs
        return rows, columns


class SampledElimination(SampledActiveSubmatrix):
    """The remainder of the sampled values, with measures of the next pivot."""

    def __init__(self, a: Sampled):
        row_scale, col_scale = a.scaling
        entries = np.ascontiguousarray((a.values * row_scale[a.row] * col_scale[a.col]).T)
        is_unit = a.fixed & (np.abs(a.values[0]) == 1.0)
        rows: list[dict[int, np.ndarray]] = [{} for _ in a.rhs]
        self.unit: list[set[int]] = [set() for _ in a.rhs]  # columns of row i where the entry is ±1
        for i, j, x, unit in zip(a.row.tolist(), a.col.tolist(), entries, is_unit.tolist(), strict=True):
            rows[i][j] = x
            if unit:
                self.unit[i].add(j)
        super().__init__(rows, a.n, CANCELLED)
        self.rhs = [bool(x) for x in a.rhs]
        self.budget = a.budget
        self.trying = False  # while looking ahead
        self.least_variation, self.least_ratio = a.least_variation, a.least_ratio
        self.waiting: set[int] = set()  # columns found without a safe entry, and not changed since

    def safety(self, i: int, j: int) -> float:
        """Safety of a pivot, at least 1 if it stays away from zero, on one side, and counts in its column."""
        if j in self.unit[i]:
            return math.inf
        entry = self.rows[i][j]
        p = np.abs(entry)
        largest = p.max()
        if not largest > 0.0:
            return 0.0
        value = float(p.min() / largest) / self.least_variation
        if entry.min() < 0.0 < entry.max():
            value *= CROSSING
        for k in self.columns[j]:
            if value < 1.0:
                break
            if k != i:
                column = np.abs(self.rows[k][j])
                value = min(value, float((p / np.where(column > 0.0, column, p)).min()) / self.least_ratio)
        return value

    def safe(self, i: int, j: int) -> bool:
        return self.safety(i, j) >= 1.0

    def safest(self, columns: Iterable[int]) -> Pivot | None:
        """The entry of greatest safety; None if that is below NEARLY_SAFE."""
        value, i, j = max(((self.safety(i, j), i, j) for j in columns for i in self.columns[j]), default=(0.0, -1, -1))
        return Pivot(i, j) if value >= NEARLY_SAFE else None

    def turned(self, columns: Iterable[int]) -> Pivot:
        """A pivot of the column that is cheapest to turn in all its rows, which are turned.

        Its norm vanishes only if the whole matrix is singular. Raises NoSafeOrdering if a column is empty.
        """
        left = list(columns)
        for j in left:
            if not self.columns[j]:
                raise NoSafeOrdering(f"column {j} is left without an entry")
        j = min(left, key=lambda j: (self.cost_of_turn(j), j))
        first, *others = self.holders(j)
        if others:
            self.orthogonal((first, *others), j)
        return Pivot(first, j, tuple(others))

    def cost(self, i: int, j: int) -> tuple[int, int]:
        """(operations, new entries) of taking (i, j) as the next pivot, its part of the substitutions included."""
        row, below = self.rows[i], self.columns[j]
        unit_pivot = j in self.unit[i]
        n_row, n_col = len(row) - 1, len(below) - 1
        self._spend(LOOKING * n_row * n_col)
        has_rhs = int(self.rhs[i])
        scale_row = n_row < n_col
        units_row = len(self.unit[i]) - unit_pivot
        unit_rows = sum(j in self.unit[k] for k in below if k != i)
        scaling = 0
        if not unit_pivot:
            scaling = min(n_row, n_col) + 2 * has_rhs
            if scale_row:
                units_row = 0
            else:
                unit_rows = 0
        multiplications = (n_row - units_row) * (n_col - unit_rows) + (n_col - unit_rows) * has_rhs + n_row - units_row
        additions, fill = n_row, 0
        for k in below:
            if k != i:
                target = self.rows[k]
                shared = sum(c in target for c in row) - 1
                additions += shared + (has_rhs and bool(self.rhs[k]))
                fill += n_row - shared
        return multiplications + additions + scaling, fill

    def _spend(self, products: float) -> None:
        self.budget -= 0.0 if self.trying else products
        if self.budget < 0.0:
            raise NoSafeOrdering("given up: more expensive than what is known, or than a search may be")

    def holders(self, j: int) -> list[int]:
        """The rows that hold column j, the one with the largest entries first."""
        sizes = {i: float(np.mean(np.abs(self.rows[i][j]))) for i in self.columns[j]}
        return sorted(sizes, key=lambda i: (-sizes[i], i))

    def cost_of_turn(self, j: int) -> int:
        """Operations of turning all rows that hold column j."""
        rows = self.columns[j]
        k = len(rows)
        held = Counter(c for i in rows for c in self.rows[i] if c != j)
        each = [*held.values(), *([right] if (right := sum(self.rhs[i] for i in rows)) else [])]
        if k == 2:
            return 7 + sum(2 if count == 1 else 6 for count in each)
        return 3 * k + 3 + sum(2 * count + k - 1 for count in each)

    def orthogonal(self, rows: Sequence[int], j: int) -> None:
        """Turn these rows so that of them only the first holds column j. Not for trials."""
        self._spend(len(rows) * sum(len(self.rows[i]) for i in rows))
        nowhere = ~np.any([self.rows[i][j] for i in rows], axis=0)  # states at which the matrix is singular
        first = rows[0]
        self.rows[first][j] = np.where(nowhere, 1.0, self.rows[first][j])
        turned, rhs = set().union(*(self.rows[i] for i in rows)), any(self.rhs[i] for i in rows)
        self.rotate_rows(rows, j)
        for c in turned - {j}:
            y = {i: self.rows[i][c] for i in rows if c in self.rows[i]}
            least = CANCELLED * np.sqrt(sum(x * x for x in y.values()))
            for i, x in y.items():
                if np.all(np.abs(x) <= least):
                    self.remove(i, c)
        for i in rows:
            self.unit[i] -= turned
            self.rhs[i] = rhs
        self.waiting.clear()

    def eliminate(self, i: int, j: int) -> None:
        """Take (i, j) as the next pivot."""
        self._spend((len(self.rows[i]) - 1) * (len(self.columns[j]) - 1))
        if self.trying:  # copies change
            for k in self.columns[j]:
                self.rows[k], self.unit[k] = dict(self.rows[k]), set(self.unit[k])
            for c in self.rows[i]:
                self.columns[c] = set(self.columns[c])
        pivot, row, column = self.pivot(i, j)
        if column:
            self.waiting.difference_update(row)
        unit = [c for c in row if c in self.unit[i]] if j in self.unit[i] else []
        filled = {k: [c for c in unit if c not in self.rows[k]] for k in column if j in self.unit[k]}
        self.rank_one_update({k: x / pivot for k, x in column.items()}, row)
        for k in column:
            self.unit[k].difference_update(row, (j,))
            self.unit[k].update(filled.get(k, ()))
            self.rhs[k] |= self.rhs[i]

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Context that undoes the eliminations within, whatever ends it. They spend nothing of the budget."""
        before = self.rows, self.columns, self.unit, self.rhs, self.waiting
        self.rows, self.columns, self.unit, self.rhs = [*self.rows], [*self.columns], [*self.unit], [*self.rhs]
        self.waiting, self.trying = set(self.waiting), True
        try:
            yield
        finally:
            self.rows, self.columns, self.unit, self.rhs, self.waiting = before
            self.trying = False
