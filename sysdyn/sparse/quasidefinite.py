"""Elimination orders of symmetric quasi-definite matrices: of the whole matrix, or node by node of a tree.

[H A^T; A −G] with H and G positive semidefinite keeps this form when an index, or a pair (i of G, j of H), is
eliminated (Vanderbei 1995). Two kinds of pivot are safe at every state and cause no cancellation: a diagonal entry of
constant sign, and a pair with G_ii = 0 and an entry A_ij of constant sign (an exact equation that gives one unknown in
terms of others). If G_ii > 0 is large, a pair costs digits of variances, but not of the solution. In an order node by
node, an index without a safe pivot is delayed to the parent node, as in multifrontal methods (Duff and Reid 1983).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import MIN_COLUMN_RATIO, PivotSearch, SampledElimination, SampledMatrix, Tree

# Least diagonal pivot at every sample as a share of the greatest entry of its column (450 rounding units).
LEAST_DIAGONAL = 1e-13
# Least entry of a pair at every sample as a share of each other entry of its column, in one of the starts (by trial).
LEAST_OF_PAIRS = 0.6

# Cost of a fill-in entry relative to an existing entry: fill-in decides, existing entries break ties (chosen).
FILL = 100

RankedBlock = tuple[int, int, int, int]  # A possible pivot, the least first: rank, cost, row, column.


def quasidefinite(
    a: SampledMatrix,
    by_node: bool = True,
    pairs_first: bool = True,
    noisy_pairs: bool = False,
    least_of_pairs: float = MIN_COLUMN_RATIO,
) -> Pivots:
    """An order whose pivots are diagonal entries (i, i) or pairs (i, j), (j, i).

    by_node: eliminate node by node from the leaves; if False, the cheapest pivot of the whole matrix at each step.
    pairs_first: diagonal pivots only after the last pair; if False, whichever is cheaper. noisy_pairs: allow pairs of
    an unknown and a noisy equation. least_of_pairs: least entry of a pair as a share of the others in its column; small
    entries such as lever arms lose digits and make many diagonal pivots unsafe. Raises NoSafeOrdering if the matrix is
    not quasi-definite or no safe pivot remains.
    """
    tree = _tree_of(a)
    search = _SymmetricElimination(replace(a, min_column_ratio=least_of_pairs), tree, pairs_first, noisy_pairs)
    return search.finish(search.work_from_the_leaves(tree) if by_node else range(a.n))


def reduced(a: SampledMatrix) -> Pivots:
    """The pairs `Tree.pairs`, then diagonal pivots of the remaining matrix by least fill-in.

    The pairs eliminate the equations of motion like a recursion; a small dense problem remains. Raises NoSafeOrdering
    if the matrix is not quasi-definite or no safe pivot remains.
    """
    tree = _tree_of(a)
    search = _LeastFill(a, tree)
    for pair in tree.pairs:
        search.take(*pair)
    return search.finish(set(range(a.n)).difference(*tree.pairs))


def _tree_of(a: SampledMatrix) -> Tree:
    if a.tree is None:
        raise NoSafeOrdering("'symmetric' is an order of symmetric systems, which noisy measurements make")
    return a.tree


class _SymmetricElimination:
    """Greedy search: the pivots chosen so far, and the active submatrix."""

    def __init__(self, a: SampledMatrix, tree: Tree, pairs_first: bool, noisy_pairs: bool):
        self.state, self.noisy_pairs = SampledElimination(a), noisy_pairs
        self.positive = tree.positive
        self.diagonal_rank = int(pairs_first)
        self.rows: list[int] = []
        self.columns: list[int] = []
        self._safe: dict[int, dict[int, bool]] = {}  # of column j, by row, until the column changes

    def work_from_the_leaves(self, tree: Tree) -> set[int]:
        """Eliminate indices with a safe pivot, node by node from the leaves; return the remaining indices."""
        fronts: list[set[int]] = [set() for _ in range(len(tree.parent) + 1)]  # the last one is that of group −1
        for i, group in enumerate(tree.group):
            fronts[group].add(i)
        for node in reversed(range(len(tree.parent))):
            fronts[tree.parent[node]] |= self.work_through(fronts[node])
        return fronts[-1]

    def work_through(self, front: Iterable[int]) -> set[int]:
        """Eliminate indices of the front with a safe pivot, cheapest first; return the remaining indices."""
        front = set(front)
        small: set[int] = set()  # indices whose diagonal entry is too small
        options: dict[int, RankedBlock] = {}
        heap: list[tuple[RankedBlock, int]] = []  # also outdated options
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
            if i == j and self._is_small(i):
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

    def finish(self, front: Iterable[int]) -> Pivots:
        """Eliminate these indices and return the order. Raises NoSafeOrdering if some have no safe pivot."""
        if deferred := self.work_through(front):
            raise NoSafeOrdering(f"{len(deferred)} unknowns have no pivot that keeps away from zero")
        return Pivots(self.rows, self.columns)

    def take(self, i: int, j: int) -> None:
        """Eliminate with the diagonal pivot (i, i), or with the pair (i, j), (j, i)."""
        for k in (i, j):
            for c in self.state.rows[k]:
                self._safe.pop(c, None)
        for row, column in [(i, j)] if i == j else [(i, j), (j, i)]:
            self.state.eliminate(row, column)
            self.rows.append(row)
            self.columns.append(column)

    def _pairs(self, i: int, front: set[int]) -> list[RankedBlock]:
        """Pairs (i, j) of equation i and an unknown j of the front whose entry is a safe pivot, ranked; [] if none."""
        row = self.state.rows[i]
        if self.positive[i] or (i in row and not self.noisy_pairs):
            return []
        columns = (j for j in row if j in front and self.positive[j] and self._is_safe(i, j))
        return [(0, self._cost(i, j), i, j) for j in columns]

    def _is_safe(self, i: int, j: int) -> bool:
        by_row = self._safe.setdefault(j, {})
        if i not in by_row:
            by_row[i] = self.state.is_safe(i, j)
        return by_row[i]

    def _diagonal(self, i: int) -> list[RankedBlock]:
        """The diagonal pivot (i, i), ranked, if it has the right sign at every state; else []."""
        entry = self.state.rows[i].get(i)
        if entry is None or not (entry if self.positive[i] else -entry).min() > 0.0:
            return []
        return [(self.diagonal_rank, self._diagonal_cost(i), i, i)]

    def _is_small(self, i: int) -> bool:
        """True if the diagonal entry is below LEAST_DIAGONAL of its row at some state."""
        row = self.state.rows[i]
        largest = np.max([np.abs(x) for x in row.values()], axis=0)
        return bool((np.abs(row[i]) < LEAST_DIAGONAL * largest).any())

    def _diagonal_cost(self, i: int) -> int:
        n = len(self.state.rows[i]) - 1
        return n * (n + 3) // 2

    def _cost(self, i: int, j: int) -> int:
        """Multiplications to eliminate the pair (i, j); symmetric products are computed once."""
        n, m = (len(set(self.state.rows[k]) - {i, j}) for k in (i, j))
        cost = n * m
        if j in self.state.rows[j]:
            cost += n * (n + 3) // 2
        return cost if j in self.state.unit_columns[i] else cost + n + m


class _LeastFill(_SymmetricElimination):
    """Diagonal pivots by least fill-in."""

    def __init__(self, a: SampledMatrix, tree: Tree):
        super().__init__(a, tree, pairs_first=True, noisy_pairs=False)
        self._columns: dict[int, int] = {}  # of rows, as bits

    def take(self, i: int, j: int) -> None:
        for k in (i, j):
            for c in self.state.rows[k]:
                self._columns.pop(c, None)
        super().take(i, j)

    def _pairs(self, i: int, front: set[int]) -> list[RankedBlock]:
        return []

    def _diagonal_cost(self, i: int) -> int:
        row = self._bits(i) & ~(1 << i)
        columns = [self._bits(j) for j in self.state.rows[i] if j != i]
        return FILL * sum((row & ~bits).bit_count() for bits in columns) + len(columns)

    def _bits(self, i: int) -> int:
        if i not in self._columns:
            self._columns[i] = sum(1 << c for c in self.state.rows[i])
        return self._columns[i]


# Starts of the order "symmetric".
SYMMETRIC: tuple[PivotSearch, ...] = (
    partial(quasidefinite, pairs_first=False, noisy_pairs=True),
    reduced,
    quasidefinite,
    partial(quasidefinite, by_node=False, least_of_pairs=LEAST_OF_PAIRS),
    partial(quasidefinite, by_node=False),
    partial(quasidefinite, by_node=False, pairs_first=False),
)
# Symmetric orders that are tried if none of SYMMETRIC is safe.
LAST_RESORT: tuple[PivotSearch, ...] = (
    partial(quasidefinite, noisy_pairs=True),
    partial(quasidefinite, noisy_pairs=True, by_node=False),
)
