"""Matrices sampled at several states, and their elimination with what is needed to judge the next pivot."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.condition import equilibration

Permutations = tuple[list[int], list[int]]  # The rows and the columns of the pivots, in order.
Order = Callable[["Sampled"], Permutations]  # A way to find an elimination order.
Pivot = tuple[int, int] | None  # (row, column) of a pivot, or None if there is none.
Option = tuple[int, int, int, int]  # A possible pivot, the cheapest first: operations, new entries, row, column.

# State-dependent entries are scaled by one of these in what UMFPACK sees, so that it prefers constant pivots. On a
# humanoid 1e-3 still lets a cosine be one; 1e-6 does not, for 10 % more fill-in.
STEER = (1e-3, 1e-6)
# The least absolute value of a pivot over the samples is at least this fraction of its greatest: strict, and tolerant.
LEAST_VARIATION = (0.1, 0.01)
LEAST_RATIO = 1e-2  # A pivot is at least this fraction of each other entry of its column at every sample.
# A pivot that takes both signs passes through zero between the samples: it counts as this fraction of itself.
CROSSING = 1e-6
MOST_PRODUCTS = 2e6  # The number of products of entries that a search may compute.
LOOKING = 0.02  # The price of a look at an entry, in products.
LOOK_AHEAD = (6, 1)  # The starts that look ahead try this number of pivots, and this number of steps after each.
TRIALS = 20.0  # A search may spend this many times its budget of products on looking ahead.


@dataclass(frozen=True)
class Tree:
    """What a symmetric quasi-definite matrix is made of: [H A^T; A −G] with H and G positive semidefinite.

    group[i]: node of a tree that index i belongs to, −1: none; entries join indices of one path of the tree, but for
    those of group −1. parent[node] < node. positive[i]: index i is one of H.
    """

    group: tuple[int, ...]
    parent: tuple[int, ...]
    positive: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Sampled:
    """Square worst-case pattern: entry e is at (row[e], col[e]) with values[k, e] at state k; fixed[e]: a constant.

    rhs[i]: the right-hand side of row i is not identically zero. budget: products of entries after which a search
    gives up. going: asked now and then; a search gives up where it says no. equilibrate: judge pivots of rows and
    columns brought to one scale. least_variation: what a safe pivot keeps of its greatest value at every state, and
    least_ratio: of each other entry of its column. tree: of a symmetric matrix that has one.
    """

    n: int
    row: np.ndarray
    col: np.ndarray
    values: np.ndarray
    fixed: np.ndarray
    rhs: np.ndarray
    budget: float = MOST_PRODUCTS
    going: Callable[[], bool] | None = None
    equilibrate: bool = True
    least_variation: float = LEAST_VARIATION[0]
    least_ratio: float = LEAST_RATIO
    tree: Tree | None = None

    def generic(self, steer: float) -> scipy.sparse.csc_matrix:
        """Constants as they are and generic values, times `steer`, for all else; rows and columns equilibrated."""
        rows, columns = self.scaling
        values = self.values[0] * rows[self.row] * columns[self.col]
        moving = ~self.fixed
        values[moving] = np.random.default_rng(0).uniform(0.5, 1.0, moving.sum()) * steer
        return self._matrix(values)

    def at_sample(self, k: int, steer: float) -> scipy.sparse.csc_matrix:
        """The values at state k, equilibrated, with the entries that depend on the state times `steer`."""
        rows, columns = self.scaling
        return self._matrix(self.values[k] * rows[self.row] * columns[self.col] * np.where(self.fixed, 1.0, steer))

    def with_values(self, values: np.ndarray) -> Sampled:
        """The same pattern with more states, (K, entries)."""
        return replace(self, values=np.concatenate([self.values, values]))

    def _matrix(self, values: np.ndarray) -> scipy.sparse.csc_matrix:
        # an entry that happens to be zero at this state still belongs to the pattern
        values = np.where(values == 0.0, 1e-30, values)
        return scipy.sparse.csc_matrix((values, (self.row, self.col)), shape=(self.n, self.n))

    @cached_property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column factors that bring all entries near 1: what a small entry is differs from body to body."""
        if not self.equilibrate:
            return np.ones(self.n), np.ones(self.n)
        rows, columns = equilibration(self.row, self.col, np.abs(self.values).max(axis=0), (self.n, self.n))
        if self.tree:
            rows = columns = np.sqrt(rows * columns)  # the same for both, as symmetry needs
        return rows, columns


class _Before(NamedTuple):
    """What an elimination replaces: rows with their units and right-hand sides, columns, and what was waiting."""

    rows: dict[int, tuple[dict[int, np.ndarray], set[int], bool]]
    columns: dict[int, set[int]]
    waiting: set[int]


class SampledElimination:
    """Right-looking elimination of the sampled values, with what is needed to judge the next pivot."""

    def __init__(self, a: Sampled):
        self.rows: list[dict[int, np.ndarray]] = [{} for _ in range(a.n)]
        self.columns: list[set[int]] = [set() for _ in range(a.n)]
        self.unit: list[set[int]] = [set() for _ in range(a.n)]  # columns of row i where the entry is ±1
        self.rhs = a.rhs.copy()
        self.budget, self.trials, self.going = a.budget, TRIALS * a.budget, a.going
        self.tried: list[_Before] | None = None  # while looking ahead
        self.barred: set[int] = set()  # rows that give no pivot
        self.least_variation, self.least_ratio = a.least_variation, a.least_ratio
        self.waiting: set[int] = set()  # columns found without a safe entry, and not changed since
        row_scale, col_scale = a.scaling
        columns = np.ascontiguousarray((a.values * row_scale[a.row] * col_scale[a.col]).T)
        is_unit = a.fixed & (np.abs(a.values[0]) == 1.0)
        for e, (i, j) in enumerate(zip(a.row.tolist(), a.col.tolist(), strict=True)):
            self.rows[i][j] = columns[e]
            self.columns[j].add(i)
            if is_unit[e]:
                self.unit[i].add(j)

    def safety(self, i: int, j: int) -> float:
        """At least 1 where the entry stays away from zero, on one side, and is not negligible in its column."""
        if i in self.barred:
            return 0.0
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
                value = min(value, float(np.min(p / np.where(column > 0.0, column, p))) / self.least_ratio)
        return value

    def safe(self, i: int, j: int) -> bool:
        return self.safety(i, j) >= 1.0

    def safest(self, columns: Iterable[int]) -> tuple[int, int]:
        """The entry that is farthest from vanishing. Raises NoSafeOrdering where all of them vanish at some sample."""
        value, i, j = max(((self.safety(i, j), i, j) for j in columns for i in self.columns[j]), default=(0.0, -1, -1))
        if value == 0.0:
            raise NoSafeOrdering("every entry left vanishes at some sampled state")
        return i, j

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
        if self.tried is not None:
            self.trials -= products
            return
        self.budget -= products
        if self.budget < 0 or (self.going and not self.going()):
            raise NoSafeOrdering("given up: more expensive than what is known, or than a search may be")

    def eliminate(self, i: int, j: int) -> None:
        """Take (i, j) as the next pivot."""
        self._spend((len(self.rows[i]) - 1) * (len(self.columns[j]) - 1))
        if self.tried is not None:
            self.tried.append(self._set_aside(i, j))
        row, below = self.rows[i], self.columns[j]
        pivot = row.pop(j)
        unit_pivot = j in self.unit[i]
        for c in row:
            self.columns[c].discard(i)
        below.discard(i)
        if below:
            self.waiting.difference_update(row)
        units_row = {c for c in row if c in self.unit[i]}
        for k in below:
            target, unit = self.rows[k], self.unit[k]
            factor = target.pop(j) / pivot
            unit_factor = unit_pivot and j in unit
            unit.discard(j)
            for c, u in row.items():
                old = target.get(c)
                if old is None:
                    target[c] = -factor * u
                    self.columns[c].add(k)
                    if unit_factor and c in units_row:
                        unit.add(c)
                    continue
                new = old - factor * u
                unit.discard(c)
                scale = np.abs(old) + np.abs(new)
                if np.all(np.abs(new) <= 1e-13 * scale):  # cancelled at every sample: not an entry
                    del target[c]
                    self.columns[c].discard(k)
                else:
                    target[c] = new
            if self.rhs[i]:
                self.rhs[k] = True
        self.columns[j] = set()

    def _set_aside(self, i: int, j: int) -> _Before:
        """What eliminating (i, j) changes; it will change copies. Entries are replaced, never changed in place."""
        below, row = self.columns[j], self.rows[i]
        before = _Before(
            {k: (self.rows[k], self.unit[k], self.rhs[k]) for k in below},
            {c: self.columns[c] for c in row},
            self.waiting,
        )
        for k in below:
            self.rows[k], self.unit[k] = dict(self.rows[k]), set(self.unit[k])
        for c in row:
            self.columns[c] = set(self.columns[c])
        self.waiting = set(self.waiting)
        return before

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Eliminations within are undone at its end, whatever ends it. They spend `trials`, not the budget."""
        self.tried = []
        try:
            yield
        finally:
            for before in reversed(self.tried):
                for k, (row, unit, rhs) in before.rows.items():
                    self.rows[k], self.unit[k], self.rhs[k] = row, unit, rhs
                for c, column in before.columns.items():
                    self.columns[c] = column
                self.waiting = before.waiting
            self.tried = None
