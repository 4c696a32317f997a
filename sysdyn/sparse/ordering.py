"""Elimination orders: functions from a sampled matrix to row and column permutations.

A `Sampled` matrix is the worst-case pattern with the values of its entries at several states. An entry can be a
static pivot only if it stays away from zero at all of them, so every order here chooses its rows with that in view.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse import umfpack
from sysdyn.sparse.condition import equilibration

Permutations = tuple[list[int], list[int]]
Order = Callable[["Sampled"], Permutations]
Pivot = tuple[int, int] | None
Option = tuple[int, int, int, int]  # operations, new entries, row, column

# State-dependent entries are scaled by one of these in what UMFPACK sees, so that it prefers constant pivots. On a
# humanoid 1e-3 still lets a cosine be one; 1e-6 does not, for 10 % more fill-in.
STEER = (1e-3, 1e-6)
LEAST_VARIATION = (0.1, 0.01)  # a pivot's least over its greatest absolute value over the samples
LEAST_RATIO = 1e-2  # a pivot over each other entry of its column, at each sample
CROSSING = 1e-6  # what a pivot that takes both signs is worth: it passes through zero between the samples
MOST_PRODUCTS = 2e6  # products of entries that a search may compute
LOOKING = 0.02  # what it costs to look at an entry, in products
CANDIDATES = 24  # pivots whose exact cost is compared at each step of `markowitz`
LOOK_AHEAD = (6, 1)  # of the starts that look ahead: pivots that are tried, and steps after each
LOOKS = ((1, 0), (3, 1), LOOK_AHEAD, (12, 3))  # of a window whose pivots are chosen anew
TRIALS = 20.0  # products spent on looking ahead, over those of the budget


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


def renumbered(order: Order, number: Callable[[int], np.ndarray]) -> Order:
    """The order of the matrix with its rows and columns numbered by permutations number(n): ties fall otherwise."""

    def other(a: Sampled) -> Permutations:
        r = number(a.n)
        c = r if a.tree else number(a.n)
        rows, columns = order(_numbered(a, r, c))
        return np.argsort(r)[rows].tolist(), np.argsort(c)[columns].tolist()

    return other


def _numbered(a: Sampled, r: np.ndarray, c: np.ndarray) -> Sampled:
    """The matrix in which row i is number r[i] and column j number c[j]; c is r where it has a tree."""
    old, tree = np.argsort(r), a.tree
    if tree:
        group, positive = (tuple(np.array(x)[old].tolist()) for x in (tree.group, tree.positive))
        tree = replace(tree, group=group, positive=positive)
    return replace(a, row=r[a.row], col=c[a.col], rhs=a.rhs[old], tree=tree)


def backwards(order: Order) -> Order:
    """The order of the matrix with rows and columns counted from the end."""
    return renumbered(order, lambda n: np.arange(n)[::-1])


def restarts(starts: Sequence[Order], seed: int) -> Iterator[Order]:
    """The starts again and again, with rows and columns numbered at random; restart k is drawn by (seed, k)."""
    for k in itertools.count():
        rng = np.random.default_rng((seed, k))
        yield renumbered(starts[k % len(starts)], rng.permutation)


def reordered(a: Sampled, order: Permutations, window: slice, rng: np.random.Generator) -> Permutations:
    """The order with the pivots of a window chosen anew from its own rows and columns, by Markowitz with look-ahead.

    What is left for the pivots after it is the same, so that they stay as safe as they were. Ties are broken at random.
    """
    r, c = rng.permutation(a.n), rng.permutation(a.n)
    width, depth = LOOKS[rng.integers(len(LOOKS))]
    state = _Elimination(_numbered(a, r, c))
    rows, columns = r[order[0]], c[order[1]]
    for i, j in zip(rows[: window.start].tolist(), columns[: window.start].tolist(), strict=True):
        state.eliminate(i, j)
    state.barred = set(range(a.n)).difference(rows[window].tolist())
    rows[window], columns[window] = _pivots(
        state, columns[window].tolist(), lambda state, left: _foreseen(state, left, width, depth)
    )
    return np.argsort(r)[rows].tolist(), np.argsort(c)[columns].tolist()


def _judged(order: Order) -> Iterator[Order]:
    """The order with each way to judge what a safe pivot is."""
    for least in LEAST_VARIATION:
        varying = partial(_varying, order, least)
        yield from (unscaled(varying), varying)


def _varying(order: Order, least: float, a: Sampled) -> Permutations:
    return order(replace(a, least_variation=least))


def markowitz(a: Sampled, width: int = 1, depth: int = 0) -> Permutations:
    """Greedy: at each step the safe pivot whose elimination costs the fewest operations. After Markowitz (1957).

    With look-ahead: each of the `width` cheapest is tried, and the one taken that costs least together with the
    `depth` greedy steps after it.
    """
    return _pivots(_Elimination(a), range(a.n), lambda state, left: _foreseen(state, left, width, depth))


# With the wider choice of pivots, which was the better one on nearly all robots that were measured.
_foresight = partial(_varying, partial(markowitz, width=LOOK_AHEAD[0], depth=LOOK_AHEAD[1]), LEAST_VARIATION[-1])
FORESIGHT: tuple[Order, ...] = (unscaled(backwards(_foresight)), unscaled(_foresight), _foresight)


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
    "markowitz": (*_judged(backwards(markowitz)), *_judged(markowitz), *FORESIGHT),
    "umfpack": (unscaled(_COLUMNS[0]), _COLUMNS[0], *(unscaled(order) for order in _COLUMNS[1:]), *_COLUMNS[1:6]),
}
# Starts that take UMFPACK's rows, too (Nori, Remark 4), with values that steer its pivots. They do not look at the
# sampled states: more of them change nothing.
PLAIN: dict[str, tuple[Order, ...]] = {
    "umfpack": (*_UMFPACK, unscaled(_UMFPACK[1]), *(unscaled(order) for order in _SHUFFLED[:2])),
}


class _Before(NamedTuple):
    """What an elimination replaces: rows with their units and right-hand sides, columns, and what was waiting."""

    rows: dict[int, tuple[dict[int, np.ndarray], set[int], bool]]
    columns: dict[int, set[int]]
    waiting: set[int]


class _Elimination:
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


def choose_pivots(a: Sampled, columns: Iterable[int]) -> Permutations:
    """Static pivots: the columns in the given order, each with its cheapest safe row.

    A column without a safe entry waits until elimination has given it one; where no column has one, the safest entry
    is taken. Raises NoSafeOrdering where even that vanishes at some sampled state.
    """
    return _pivots(_Elimination(a), columns, _first)


def _pivots(
    state: _Elimination, columns: Iterable[int], choose: Callable[[_Elimination, list[int]], Pivot]
) -> Permutations:
    """Elimination with the pivots that are chosen from the columns left; the safest entry where none is."""
    row_perm: list[int] = []
    col_perm: list[int] = []
    left = list(columns)
    while left:
        i, j = choose(state, left) or state.safest(left)
        state.eliminate(i, j)
        row_perm.append(i)
        col_perm.append(j)
        left.remove(j)
    return row_perm, col_perm


def _first(state: _Elimination, left: list[int]) -> Pivot:
    """The cheapest safe pivot, ±1 before others, of the first column that has one."""
    for j in left:
        if j in state.waiting:
            continue
        for i in sorted(state.columns[j], key=lambda i: (j not in state.unit[i], *state.cost(i, j), i)):
            if state.safe(i, j):
                return i, j
        state.waiting.add(j)
    return None


def _foreseen(state: _Elimination, left: list[int], width: int, depth: int) -> Pivot:
    """Of the `width` cheapest safe pivots the one that costs least with the greedy steps after it."""
    options = _cheapest(state, left)[:width]
    if not options:
        return None
    best, least = options[0], math.inf
    for option in options if len(options) > 1 else ():
        if state.trials < 0.0:
            break
        total = _outlook(state, left, option, depth, least)
        if total < least:
            best, least = option, total
    return best[2:]


def _outlook(state: _Elimination, left: list[int], option: Option, depth: int, limit: float) -> float:
    """Operations of a pivot and of the greedy steps after it; infinite where they come to a dead end."""
    total, _, i, j = option
    with state.trial():
        while True:
            state.eliminate(i, j)
            left = [c for c in left if c != j]
            if not (depth and left and total < limit):
                return total
            options = _cheapest(state, left)
            if not options:
                return math.inf
            operations, _, i, j = options[0]
            total += operations
            depth -= 1


def _cheapest(state: _Elimination, left: list[int]) -> list[Option]:
    """Safe pivots among those with the least Markowitz product, the one of least exact cost first."""
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
            return [(*state.cost(i, j), i, j)]
    for start in range(0, len(options), CANDIDATES):
        safe = [(*state.cost(i, j), i, j) for _, i, j in options[start : start + CANDIDATES] if state.safe(i, j)]
        if safe:
            return sorted(safe)
    anywhere = ((i, j) for j in by_count for i in sorted(state.columns[j]) if state.safe(i, j))
    return [(*state.cost(i, j), i, j) for i, j in itertools.islice(anywhere, 1)]
