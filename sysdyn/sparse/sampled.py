"""Matrices sampled at several states, and their elimination with the quality and cost of each candidate pivot."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.active_submatrix import SampledActiveSubmatrix
from sysdyn.sparse.condition import equilibration
from sysdyn.sparse.lu import Pivots

PivotSearch = Callable[["SampledMatrix"], Pivots]  # An ordering algorithm.

# Least absolute value of a safe pivot over the samples as a share of its greatest (by trial).
MIN_VARIATION = 0.1
# Least safe pivot at every sample as a share of each other entry of its column (usual for threshold pivoting).
MIN_COLUMN_RATIO = 1e-2
# Least quality of a pivot that is preferred to rotating rows; the complete order is checked later (by trial).
MIN_QUALITY = 1e-3
# Budget of a search in products of entries, and the cost of visiting an entry in products (CPU time).
MAX_PRODUCTS, LOOKUP_COST = 2e6, 0.02
# Entries that fall to this share of their size at every sample are dropped (450 rounding units).
CANCELLATION = 1e-13


class Pivot(NamedTuple):
    """Row and column of a pivot, and the rows that are rotated with its row before elimination."""

    row: int
    column: int
    rotated_with: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tree:
    """Structure of a symmetric quasi-definite matrix [H A^T; A −G], H and G positive semidefinite, over a tree.

    group[i]: tree node of index i, −1 for none. An entry (i, j) requires that the nodes of i and j are on one path to
    the root, or that one of them is −1. parent[node] < node. positive[i]: index i belongs to H. pairs: (row, column) of
    entries ±1 of A, from the leaves; eliminating them leaves few unknowns in H.
    """

    group: tuple[int, ...]
    parent: tuple[int, ...]
    positive: tuple[bool, ...]
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class SampledMatrix:
    """Worst-case pattern: entry e is at (row[e], col[e]) with values[k, e] at state k; fixed[e]: a constant.

    rhs[i]: the right-hand side of row i is not identically zero. budget: products of entries after which a search
    stops. units: scaling of rows and columns; None: equilibration. min_column_ratio: least safe pivot at every state as
    a share of each other entry of its column. tree: structure of a symmetric matrix, or None.
    """

    n: int  # columns; there are as many rows as `rhs` has entries
    row: np.ndarray
    col: np.ndarray
    values: np.ndarray
    fixed: np.ndarray
    rhs: np.ndarray
    budget: float = MAX_PRODUCTS
    units: tuple[np.ndarray, np.ndarray] | None = None
    min_column_ratio: float = MIN_COLUMN_RATIO
    tree: Tree | None = None

    def weighted(self, weight: float) -> scipy.sparse.csc_matrix:
        """The equilibrated matrix at the first state, with state-dependent entries multiplied by `weight`."""
        rows, columns = self.scaling
        values = self.values[0] * rows[self.row] * columns[self.col] * np.where(self.fixed, 1.0, weight)
        values = np.where(values == 0.0, 1e-30, values)  # an entry that is zero at this state belongs to the pattern
        return scipy.sparse.csc_matrix((values, (self.row, self.col)), shape=(len(self.rhs), self.n))

    @property
    def unit_entries(self) -> np.ndarray:
        """(entries,) bool: True for constants ±1."""
        return np.asarray(self.fixed & (np.abs(self.values[0]) == 1.0))

    def with_values(self, values: np.ndarray) -> SampledMatrix:
        """The same pattern with more states, (K, entries)."""
        return replace(self, values=np.concatenate([self.values, values]))

    @cached_property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column factors that bring all entries near 1, because the sizes of entries vary between bodies."""
        if self.units:
            return self.units
        rows, columns = equilibration(self.row, self.col, np.abs(self.values).max(axis=0), (len(self.rhs), self.n))
        if self.tree:
            rows = columns = np.sqrt(rows * columns)  # the same for both, as symmetry needs
        return rows, columns


class SampledElimination(SampledActiveSubmatrix):
    """The active submatrix of sampled values, with the quality and cost of each candidate pivot.

    unit_columns[i]: columns in which row i has an entry ±1. deferred_columns: columns that had no safe pivot when they
    were last searched; a column is searched again after an update changes it. exact: rows of exact equations, which
    are eliminated before noisy ones; None: no distinction.
    """

    def __init__(self, a: SampledMatrix, exact: Set[int] | None = None):
        row_scale, col_scale = a.scaling
        entries = np.ascontiguousarray((a.values * row_scale[a.row] * col_scale[a.col]).T)
        is_unit = a.unit_entries
        rows: list[dict[int, np.ndarray]] = [{} for _ in a.rhs]
        self.unit_columns: list[set[int]] = [set() for _ in a.rhs]
        for i, j, x, unit in zip(a.row.tolist(), a.col.tolist(), entries, is_unit.tolist(), strict=True):
            rows[i][j] = x
            if unit:
                self.unit_columns[i].add(j)
        super().__init__(rows, a.n, CANCELLATION)
        self.rhs = [bool(x) for x in a.rhs]
        self.budget = a.budget
        self.in_trial = False  # while looking ahead
        self.min_column_ratio = a.min_column_ratio
        self.deferred_columns: set[int] = set()
        self.exact = exact

    def eligible_rows(self, j: int) -> Set[int]:
        """Candidates for the pivot row of column j: exact rows with an entry, or all rows if no exact row has one."""
        rows = self.columns[j]
        return rows if self.exact is None else rows & self.exact or rows

    def pivot_quality(self, i: int, j: int) -> float:
        """Stability of the pivot (i, j) as a number: ≥ 1 is safe, 0 if the sign changes.

        At least 1 if the sign is constant over the samples, the size varies little, and the entry is never small
        compared with the others of its column.
        """
        if j in self.unit_columns[i]:
            return math.inf
        entry = self.rows[i][j]
        p = np.abs(entry)
        largest = p.max()
        if not largest > 0.0 or entry.min() < 0.0 < entry.max():
            return 0.0
        value = float(p.min() / largest) / MIN_VARIATION
        for k in self.eligible_rows(j):
            if value < 1.0:
                break
            if k != i:
                column = np.abs(self.rows[k][j])
                value = min(value, float((p / np.where(column > 0.0, column, p)).min()) / self.min_column_ratio)
        return value

    def norm_quality(self, j: int) -> float:
        """Quality, as in `pivot_quality`, of a pivot that is the norm of the eligible rows of column j.

        The ratio of the least to the greatest norm over the samples, divided by MIN_VARIATION.
        """
        norm = np.linalg.norm([self.rows[i][j] for i in self.eligible_rows(j)], axis=0)
        return float(norm.min() / norm.max()) / MIN_VARIATION

    def is_safe(self, i: int, j: int) -> bool:
        return self.pivot_quality(i, j) >= 1.0

    def best_pivot(self, columns: Iterable[int]) -> Pivot | None:
        """The entry of greatest quality; None if its quality is below MIN_QUALITY."""
        entries = ((self.pivot_quality(i, j), i, j) for j in columns for i in self.eligible_rows(j))
        value, i, j = max(entries, default=(0.0, -1, -1))
        return Pivot(i, j) if value >= MIN_QUALITY else None

    def orthogonal_pivot(self, columns: Iterable[int]) -> Pivot:
        """Orthogonalise the cheapest column: all its eligible rows are rotated, and its norm becomes the pivot.

        The norm vanishes only if the matrix is singular. Raises NoSafeOrdering if a column is empty.
        """
        columns = list(columns)
        for j in columns:
            if not self.columns[j]:
                raise NoSafeOrdering(f"column {j} is left without an entry")
        j = min(columns, key=lambda j: (self.rotation_cost(j), j))
        first, *others = rows = self.rows_of_column(j)
        singular = ~np.any([self.rows[i][j] for i in rows], axis=0)  # at these states
        self.rows[first][j] = np.where(singular, 1.0, self.rows[first][j])
        if others:
            self.rotate_column(rows, j)
        return Pivot(first, j, tuple(others))

    def cost(self, i: int, j: int) -> tuple[int, int]:
        """(operations, fill-in) of eliminating with pivot (i, j), including forward and back substitution."""
        row, below = self.rows[i], self.columns[j]
        unit_pivot = j in self.unit_columns[i]
        n_row, n_col = len(row) - 1, len(below) - 1
        self._spend(LOOKUP_COST * n_row * n_col)
        has_rhs = int(self.rhs[i])
        scale_row = n_row < n_col
        units_row = len(self.unit_columns[i]) - unit_pivot
        unit_rows = sum(j in self.unit_columns[k] for k in below if k != i)
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
        self.budget -= 0.0 if self.in_trial else products
        if self.budget < 0.0:
            raise NoSafeOrdering("given up: more expensive than another order, or than a search may be")

    def rows_of_column(self, j: int) -> list[int]:
        """The eligible rows of column j, sorted by decreasing mean size of their entries."""
        sizes = {i: float(np.mean(np.abs(self.rows[i][j]))) for i in self.eligible_rows(j)}
        return sorted(sizes, key=lambda i: (-sizes[i], i))

    def rotation_cost(self, j: int) -> int:
        """Operations of the rotation of all eligible rows of column j."""
        rows = self.eligible_rows(j)
        k = len(rows)
        counts = Counter(c for i in rows for c in self.rows[i] if c != j)
        each = [*counts.values(), *([right] if (right := sum(self.rhs[i] for i in rows)) else [])]
        if k == 2:
            return 7 + sum(2 if count == 1 else 6 for count in each)
        return 3 * k + 3 + sum(2 * count + k - 1 for count in each)

    def rotate_column(self, rows: Sequence[int], j: int) -> None:
        """Rotate these rows so that only the first one has an entry in column j. Not allowed in `trial`."""
        self._spend(len(rows) * sum(len(self.rows[i]) for i in rows))
        columns, rhs = set().union(*(self.rows[i] for i in rows)), any(self.rhs[i] for i in rows)
        self.rotate_rows(rows, j)
        for c in columns - {j}:
            y = {i: self.rows[i][c] for i in rows if c in self.rows[i]}
            least = CANCELLATION * np.sqrt(sum(x * x for x in y.values()))
            for i, x in y.items():
                if np.all(np.abs(x) <= least):
                    self.remove(i, c)
        for i in rows:
            self.unit_columns[i] -= columns
            self.rhs[i] = rhs
        self.deferred_columns.clear()

    def eliminate(self, i: int, j: int) -> None:
        """Eliminate column j with the pivot (i, j)."""
        self._spend((len(self.rows[i]) - 1) * (len(self.columns[j]) - 1))
        if self.in_trial:  # copies change
            for k in self.columns[j]:
                self.rows[k], self.unit_columns[k] = dict(self.rows[k]), set(self.unit_columns[k])
            for c in self.rows[i]:
                self.columns[c] = set(self.columns[c])
        pivot, row, column = self.pivot(i, j)
        if column:
            self.deferred_columns.difference_update(row)
        unit = [c for c in row if c in self.unit_columns[i]] if j in self.unit_columns[i] else []
        filled = {k: [c for c in unit if c not in self.rows[k]] for k in column if j in self.unit_columns[k]}
        self.rank_one_update({k: x / pivot for k, x in column.items()}, row)
        for k in column:
            self.unit_columns[k].difference_update(row, (j,))
            self.unit_columns[k].update(filled.get(k, ()))
            self.rhs[k] |= self.rhs[i]

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Context manager that undoes its eliminations at the end and does not charge them to the budget."""
        before = self.rows, self.columns, self.unit_columns, self.rhs, self.deferred_columns
        self.rows, self.columns, self.unit_columns = [*self.rows], [*self.columns], [*self.unit_columns]
        self.rhs, self.deferred_columns, self.in_trial = [*self.rhs], set(self.deferred_columns), True
        try:
            yield
        finally:
            self.rows, self.columns, self.unit_columns, self.rhs, self.deferred_columns = before
            self.in_trial = False
