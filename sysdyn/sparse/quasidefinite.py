"""Elimination order of symmetric quasi-definite matrices over a tree: from everywhere, or node by node from the leaves.

[H A^T; A −G] with H and G positive semidefinite keeps this form when an index, or a pair of each kind, is eliminated
(Vanderbei 1995). Two kinds of pivot are safe at every state and add nothing that is taken away again later: a diagonal
entry that stays on its side of zero, and a pair (i of G, j of H) with an entry A_ij that does and G_ii = 0: an exact
equation that gives one unknown in terms of others. With G_ii > 0 a pair costs digits of variances, not of the solution,
if G_ii is large. Node by node, an index without a safe pivot in its node is delayed to the parent's, as in multifrontal
methods (Duff and Reid 1983).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import MIN_COLUMN_RATIO, Order, SampledElimination, SampledMatrix, Tree

# Least diagonal pivot at every sample as a share of the greatest entry of its column: tolerant, and strict (chosen).
LEAST_DIAGONAL = (1e-13, 1e-6)
# Least entry of a pair at every sample as a share of each other entry of its column: tolerant, and strict (chosen).
LEAST_OF_PAIRS = (0.6, 0.9)

# Message of NoSafeOrdering for a matrix without a tree.
NOT_SYMMETRIC = "'symmetric' is an order of symmetric systems, which noisy measurements make"
# Cost of a new entry in entries that are there already: fill-in decides, and the others break ties (chosen).
FILL = 100

Option = tuple[int, int, int, int]  # A possible pivot, the least first: rank, cost, row, column.


def quasidefinite(
    a: SampledMatrix,
    least: float = LEAST_DIAGONAL[0],
    by_node: bool = True,
    pairs_first: bool = True,
    noisy_pairs: bool = False,
    least_of_pairs: float = MIN_COLUMN_RATIO,
) -> Pivots:
    """The order (P, P Q) whose pivots are diagonal or come in pairs (i, j), (j, i).

    least: least diagonal pivot as a share of its column. by_node: node by node from the leaves; if False, at each step
    the cheapest pivot of the whole matrix. pairs_first: diagonal pivots only after the last pair; if False, whichever
    costs less. noisy_pairs: pairs of an unknown and a noisy equation, too. least_of_pairs: least entry of a pair as a
    share of the others in its column; with small ones, such as lever arms, digits are lost and many diagonal pivots
    become unsafe. Raises NoSafeOrdering if the matrix is not of this kind or no safe pivot is left.
    """
    if a.tree is None:
        raise NoSafeOrdering(NOT_SYMMETRIC)
    search = _Search(replace(a, min_column_ratio=least_of_pairs), a.tree, pairs_first, noisy_pairs)
    left = search.work_from_the_leaves(a.tree, least) if by_node else set(range(a.n))
    for threshold in (least, LEAST_DIAGONAL[0]):
        left = search.work_through(left, threshold)
    if left:
        raise NoSafeOrdering(f"{len(left)} unknowns have no pivot that keeps away from zero")
    return Pivots(search.rows, search.columns)


def reduced(a: SampledMatrix) -> Pivots:
    """The pairs of the tree, then diagonal pivots of the matrix they leave, by least fill-in.

    As a recursion eliminates the equations of motion, with a small dense problem at its end. Raises NoSafeOrdering if
    the matrix is not of this kind or no safe pivot is left.
    """
    if a.tree is None:
        raise NoSafeOrdering(NOT_SYMMETRIC)
    search, left = _Reduced(a, a.tree), set(range(a.n))
    for pair in a.tree.pairs:
        search.take(*pair)
        left -= set(pair)
    if left := search.work_through(left, LEAST_DIAGONAL[0]):
        raise NoSafeOrdering(f"{len(left)} unknowns have no pivot that keeps away from zero")
    return Pivots(search.rows, search.columns)


class _Search:
    """The pivots chosen so far, and the sampled values that are left."""

    def __init__(self, a: SampledMatrix, tree: Tree, pairs_first: bool, noisy_pairs: bool):
        self.state, self.noisy_pairs = SampledElimination(a), noisy_pairs
        self.positive = tree.positive
        self.diagonal_rank = int(pairs_first)
        self.rows: list[int] = []
        self.columns: list[int] = []
        self._safe: dict[int, dict[int, bool]] = {}  # of column j, by row, until the column changes

    def work_from_the_leaves(self, tree: Tree, least: float) -> set[int]:
        """Eliminate the indices with a safe pivot, node by node; returns the rest."""
        fronts: list[set[int]] = [set() for _ in range(len(tree.parent) + 1)]  # the last one is that of group −1
        for i, group in enumerate(tree.group):
            fronts[group].add(i)
        for node in reversed(range(len(tree.parent))):
            fronts[tree.parent[node]] |= self.work_through(fronts[node], least)
        return fronts[-1]

    def work_through(self, front: Iterable[int], least: float) -> set[int]:
        """Eliminate the indices with a safe pivot in the front, cheapest first; returns the rest."""
        front = set(front)
        small: set[int] = set()  # indices whose diagonal entry is too small
        options: dict[int, Option] = {}
        heap: list[tuple[Option, int]] = []  # also outdated options
        changed = front
        while True:
            for i in changed & front:
                options.pop(i, None)
                diagonal = self._diagonal(i) if i not in small else []
                if (option := min([*self._pairs(i, front), *diagonal], default=None)) is not None:
                    options[i] = option
                    heapq.heappush(heap, (option, i))
            while heap and options.get(heap[0][1]) != heap[0][0]:
                heapq.heappop(heap)
            if not heap:
                return front
            *_, i, j = heapq.heappop(heap)[0]
            if i == j and self._is_small(i, least):
                small.add(i)
                changed = {i}
                continue
            neighbours = (set(self.state.rows[i]) | set(self.state.rows[j])) - {i, j}
            self.take(i, j)
            front -= {i, j}
            options.pop(i, None)
            options.pop(j, None)
            small -= neighbours
            changed = neighbours.union(*(self.state.rows[k] for k in neighbours))

    def take(self, i: int, j: int) -> None:
        """Eliminate a diagonal entry or a pair."""
        for k in (i, j):
            for c in self.state.rows[k]:
                self._safe.pop(c, None)
        for row, column in [(i, j)] if i == j else [(i, j), (j, i)]:
            self.state.eliminate(row, column)
            self.rows.append(row)
            self.columns.append(column)

    def _pairs(self, i: int, front: set[int]) -> list[Option]:
        """Safe pairs of equation i."""
        row = self.state.rows[i]
        if self.positive[i] or (i in row and not self.noisy_pairs):
            return []
        near = (j for j in row if j in front and self.positive[j] and self._is_safe(i, j))
        return [(0, self._cost(i, j), i, j) for j in near]

    def _is_safe(self, i: int, j: int) -> bool:
        known = self._safe.setdefault(j, {})
        if i not in known:
            known[i] = self.state.is_safe(i, j)
        return known[i]

    def _diagonal(self, i: int) -> list[Option]:
        """The diagonal entry, if it stays on its side of zero."""
        entry = self.state.rows[i].get(i)
        if entry is None or not (entry if self.positive[i] else -entry).min() > 0.0:
            return []
        return [(self.diagonal_rank, self._diagonal_cost(i), i, i)]

    def _is_small(self, i: int, least: float) -> bool:
        """True if the diagonal entry is below this share of its row at some state."""
        row = self.state.rows[i]
        largest = np.max([np.abs(x) for x in row.values()], axis=0)
        return bool((np.abs(row[i]) < least * largest).any())

    def _diagonal_cost(self, i: int) -> int:
        n = len(self.state.rows[i]) - 1
        return n * (n + 3) // 2

    def _cost(self, i: int, j: int) -> int:
        """Products that the pair takes, symmetric ones computed once."""
        n, m = (len(set(self.state.rows[k]) - {i, j}) for k in (i, j))
        cost = n * m
        if j in self.state.rows[j]:
            cost += n * (n + 3) // 2
        return cost if j in self.state.unit_columns[i] else cost + n + m


class _Reduced(_Search):
    """Search by fill-in, without pairs other than the tree's."""

    def __init__(self, a: SampledMatrix, tree: Tree):
        super().__init__(a, tree, pairs_first=True, noisy_pairs=False)
        self._columns: dict[int, int] = {}  # of rows, as bits

    def take(self, i: int, j: int) -> None:
        for k in (i, j):
            for c in self.state.rows[k]:
                self._columns.pop(c, None)
        super().take(i, j)

    def _pairs(self, i: int, front: set[int]) -> list[Option]:
        return []

    def _diagonal_cost(self, i: int) -> int:
        near = self._bits(i) & ~(1 << i)
        columns = [self._bits(j) for j in self.state.rows[i] if j != i]
        return FILL * sum((near & ~bits).bit_count() for bits in columns) + len(columns)

    def _bits(self, i: int) -> int:
        if i not in self._columns:
            self._columns[i] = sum(1 << c for c in self.state.rows[i])
        return self._columns[i]


# Starts of the order "symmetric".
SYMMETRIC: tuple[Order, ...] = (
    partial(quasidefinite, pairs_first=False, noisy_pairs=True),
    reduced,
    quasidefinite,
    *(partial(quasidefinite, by_node=False, least_of_pairs=least) for least in LEAST_OF_PAIRS),
    partial(quasidefinite, by_node=False),
    partial(quasidefinite, by_node=False, pairs_first=False),
)
# Symmetric orders that are tried if none of SYMMETRIC is safe.
LAST_RESORT: tuple[Order, ...] = (
    partial(quasidefinite, least=LEAST_DIAGONAL[1]),
    partial(quasidefinite, noisy_pairs=True),
    partial(quasidefinite, noisy_pairs=True, by_node=False),
)
