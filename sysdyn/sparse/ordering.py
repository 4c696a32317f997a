"""Elimination orders: functions from a sampled matrix to row and column permutations.

A `Sampled` matrix is the worst-case pattern with the values of its entries at several states. An entry can be a
static pivot only if it stays away from zero at all of them, so every order here chooses its rows with that in view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse import umfpack
from sysdyn.sparse.condition import equilibration

Permutations = tuple[list[int], list[int]]
Order = Callable[["Sampled"], Permutations]

# State-dependent entries are scaled by one of these in what UMFPACK sees, so that it prefers constant pivots. On a
# humanoid 1e-3 still lets a cosine be one; 1e-6 does not, for 10 % more fill-in.
STEER = (1e-3, 1e-6)
LEAST_VARIATION = (0.1, 0.01)  # a pivot's least over its greatest absolute value over the samples
LEAST_RATIO = 1e-2  # a pivot over each other entry of its column, at each sample
CROSSING = 1e-6  # what a pivot that takes both signs is worth: it passes through zero between the samples
MOST_PRODUCTS = 2e6  # products of entries that a search may compute
LOOKING = 0.02  # what it costs to look at an entry, in products
CANDIDATES = 24  # pivots whose exact cost is compared at each step of `markowitz`


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
    gives up. equilibrate: judge pivots of rows and columns brought to one scale. least_variation: what a safe pivot
    keeps of its greatest value at every state, and least_ratio: of each other entry of its column. tree: of a
    symmetric matrix that has one.
    """

    n: int
    row: np.ndarray
    col: np.ndarray
    values: np.ndarray
    fixed: np.ndarray
    rhs: np.ndarray
    budget: float = MOST_PRODUCTS
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


def natural(a: Sampled) -> Permutations:
    """Columns as they come, rows by safe pivoting: LU with row pivoting only."""
    return choose_pivots(a, range(a.n))


def colamd(a: Sampled) -> Permutations:
    """COLAMD column order (Davis et al. 2004, through SuperLU), rows by safe pivoting."""
    try:
        lu = scipy.sparse.linalg.splu(a.generic(STEER[0]), permc_spec="COLAMD", diag_pivot_thresh=0.0)
    except RuntimeError as error:  # exactly singular, whatever the state
        raise NoSafeOrdering(f"SuperLU: {error}") from error
    return choose_pivots(a, np.argsort(lu.perm_c).tolist())


def unscaled(order: Order) -> Order:
    """The order that judges pivots by the values as they are: sometimes the luckier start of a greedy search."""
    return lambda a: order(replace(a, equilibrate=False))


def backwards(order: Order) -> Order:
    """The order of the matrix with rows and columns counted from the end: ties are broken the other way."""

    def backward(a: Sampled) -> Permutations:
        last = a.n - 1
        rows, columns = order(replace(a, row=last - a.row, col=last - a.col, rhs=a.rhs[::-1]))
        return [last - i for i in rows], [last - j for j in columns]

    return backward


def _judged(order: Order) -> Iterator[Order]:
    """The order with each way to judge what a safe pivot is."""
    for least in LEAST_VARIATION:
        varying = partial(_varying, order, least)
        yield from (unscaled(varying), varying)


def _varying(order: Order, least: float, a: Sampled) -> Permutations:
    return order(replace(a, least_variation=least))


def markowitz(a: Sampled) -> Permutations:
    """Greedy: at each step the safe pivot whose elimination costs the fewest operations. After Markowitz (1957)."""
    return choose_pivots(a, None)


def _umfpack_generic(steer: float) -> Order:
    return lambda a: umfpack.permutations(a.generic(steer))


def _umfpack_true(steer: float) -> Order:
    """The values at a state: an entry that cancels for every state is seen to do so."""
    return lambda a: umfpack.permutations(a.at_sample(0, steer))


def _umfpack_shuffled(seed: int) -> Order:
    """Rows and columns handed over in random order: UMFPACK breaks ties by number."""

    def order(a: Sampled) -> Permutations:
        rng = np.random.default_rng(seed)
        r, c = rng.permutation(a.n), rng.permutation(a.n)
        P, Q = umfpack.permutations(a.generic(STEER[1])[r][:, c])
        return [int(r[i]) for i in P], [int(c[j]) for j in Q]

    return order


def _umfpack_columns(order: Order) -> Order:
    """UMFPACK's column order with rows by safe pivoting."""
    return lambda a: choose_pivots(a, order(a)[1])


_UMFPACK = (*(_umfpack_generic(steer) for steer in STEER), *(_umfpack_true(steer) for steer in (STEER[1], 1.0)))
_SHUFFLED = tuple(_umfpack_shuffled(seed) for seed in range(4))
_COLUMNS = tuple(_umfpack_columns(order) for order in (*_UMFPACK, *_SHUFFLED))

# name → starts, of which the cheapest safe one is used.
ORDERINGS: dict[str, tuple[Order, ...]] = {
    "natural": tuple(_judged(natural)),
    "colamd": tuple(_judged(colamd)),
    "markowitz": (*_judged(backwards(markowitz)), *_judged(markowitz)),
    "umfpack": (unscaled(_COLUMNS[0]), _COLUMNS[0], *(unscaled(order) for order in _COLUMNS[1:]), *_COLUMNS[1:6]),
}
# Starts that take UMFPACK's rows, too (Nori, Remark 4), with values that steer its pivots. They do not look at the
# sampled states: more of them change nothing.
PLAIN: dict[str, tuple[Order, ...]] = {
    "umfpack": (*_UMFPACK, unscaled(_UMFPACK[1]), *(unscaled(order) for order in _SHUFFLED[:2])),
}


class _Elimination:
    """Right-looking elimination of the sampled values, with what is needed to judge the next pivot."""

    def __init__(self, a: Sampled):
        self.rows: list[dict[int, np.ndarray]] = [{} for _ in range(a.n)]
        self.columns: list[set[int]] = [set() for _ in range(a.n)]
        self.unit: list[set[int]] = [set() for _ in range(a.n)]  # columns of row i where the entry is ±1
        self.rhs = a.rhs.copy()
        self.budget = a.budget
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
        self.budget -= products
        if self.budget < 0:
            raise NoSafeOrdering("given up: more expensive than what is known, or than a search may be")

    def eliminate(self, i: int, j: int) -> None:
        row = self.rows[i]
        self._spend((len(row) - 1) * (len(self.columns[j]) - 1))
        pivot = row.pop(j)
        unit_pivot = j in self.unit[i]
        for c in row:
            self.columns[c].discard(i)
        self.columns[j].discard(i)
        if self.columns[j]:
            self.waiting.difference_update(row)
        units_row = {c for c in row if c in self.unit[i]}
        for k in self.columns[j]:
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


def choose_pivots(a: Sampled, columns: Sequence[int] | None) -> Permutations:
    """Static pivots: the columns in the given order, each with its cheapest safe row; or the cheapest safe pivot
    anywhere.

    A column without a safe entry waits until elimination has given it one; where no column has one, the safest entry
    is taken. Raises NoSafeOrdering where even that vanishes at some sampled state.
    """
    state = _Elimination(a)
    row_perm: list[int] = []
    col_perm: list[int] = []
    left = list(range(a.n)) if columns is None else list(columns)
    while left:
        pick = _cheapest(state, left) if columns is None else _first(state, left)
        i, j = pick or state.safest(left)
        state.eliminate(i, j)
        row_perm.append(i)
        col_perm.append(j)
        left.remove(j)
    return row_perm, col_perm


def _first(state: _Elimination, left: list[int]) -> tuple[int, int] | None:
    """The cheapest safe pivot, ±1 before others, of the first column that has one."""
    for j in left:
        if j in state.waiting:
            continue
        for i in sorted(state.columns[j], key=lambda i: (j not in state.unit[i], *state.cost(i, j), i)):
            if state.safe(i, j):
                return i, j
        state.waiting.add(j)
    return None


def _cheapest(state: _Elimination, left: list[int]) -> tuple[int, int] | None:
    """The safe pivot of least exact cost among those with the least Markowitz product."""
    by_count = sorted(left, key=lambda j: len(state.columns[j]))
    options: list[tuple[int, int, int]] = []
    limit = None
    for j in by_count:
        n_col = len(state.columns[j]) - 1
        if limit is not None and n_col * n_col > limit:
            break
        options.extend(((len(state.rows[i]) - 1) * n_col, i, j) for i in state.columns[j])
        if len(options) >= CANDIDATES:
            options.sort()
            limit = options[CANDIDATES - 1][0]
    options.sort()
    for product, i, j in options:  # alone in its row or column: nothing is updated
        if product > 0:
            break
        if state.safe(i, j):
            return i, j
    for start in range(0, len(options), CANDIDATES):
        safe = [(*state.cost(i, j), i, j) for _, i, j in options[start : start + CANDIDATES] if state.safe(i, j)]
        if safe:
            return min(safe)[2:]
    return next(((i, j) for j in by_count for i in state.columns[j] if state.safe(i, j)), None)
