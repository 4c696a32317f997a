"""Elimination order of symmetric quasi-definite matrices over a tree: node by node from the leaves, in pairs.

[H A^T; A −G] with H and G positive semidefinite keeps this form when an index, or one of each kind, is eliminated
(Vanderbei 1995). Two kinds of pivot are safe at every state: a diagonal entry that stays on its side of zero, and a
pair (i of G, j of H) with an entry A_ij that does, because its determinant −(A_ij² + G_ii H_jj) is never smaller.
What has no safe pivot in its node is delayed to the parent's, as in multifrontal methods (Duff and Reid 1983).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse.ordering import Order, Permutations, Sampled, _Elimination

LEAST_DIAGONAL = 1e-6  # a diagonal pivot over the greatest entry of its column, at each sample
MOST_GROWTH = 10.0
RANK = 2
LAST_DIAGONAL = 1e-13  # likewise, where nothing else is left


def quasidefinite(a: Sampled, pairs_first: bool = True) -> Permutations:
    """Permutations (P, P Q) whose pivots are diagonal or come in pairs (i, j), (j, i).

    pairs_first: take diagonal pivots only where a node has no pair left, which divides by fewer variances; otherwise
    whichever costs less. Raises NoSafeOrdering where the matrix is not of this kind or no safe pivot is left.
    """
    if a.tree is None:
        raise NoSafeOrdering("'symmetric' is an order of symmetric systems, which noisy measurements make")
    search = _Search(a)
    parent, nodes = a.tree.parent, len(a.tree.parent)
    fronts: list[set[int]] = [set() for _ in range(nodes + 1)]
    for i, group in enumerate(a.tree.group):
        fronts[group].add(i)  # the last one is that of group −1
    for node in reversed(range(nodes)):
        left = search.work_through(fronts[node], pairs_first)
        fronts[parent[node]] |= left
    left = search.work_through(fronts[nodes], pairs_first)
    if left and (left := search.work_through(left, pairs_first, last=True)):
        raise NoSafeOrdering(f"{len(left)} unknowns have no pivot that keeps away from zero")
    return search.rows, search.columns


class _Search:
    """The pivots chosen so far, and what is left of the sampled values."""

    def __init__(self, a: Sampled):
        self.state = _Elimination(a)
        self.positive = a.tree.positive
        self.rows: list[int] = []
        self.columns: list[int] = []

    def work_through(self, front: set[int], pairs_first: bool, last: bool = False) -> set[int]:
        """Eliminate what has a safe pivot in the front, cheapest first; returns the rest."""
        front = set(front)
        while front:
            options = self._pairs(front)
            if not (pairs_first and options):
                options += self._diagonals(front, LAST_DIAGONAL if last else LEAST_DIAGONAL)
            if not options:
                break
            *_, i, j = min(options)
            for row, column in [(i, j)] if i == j else [(i, j), (j, i)]:
                self.state.eliminate(row, column)
                self.rows.append(row)
                self.columns.append(column)
            front -= {i, j}
        return front

    def _pairs(self, front: set[int]) -> list[tuple[int, int, int, int]]:
        """(rank, cost, i, j) of each safe pair."""
        found = []
        for i in front:
            if self.positive[i]:
                continue
            row = self.state.rows[i]
            for j in row:
                if j in front and self.positive[j] and self.state.safe(i, j):
                    growth = self._growth(i, j)
                    if growth <= MOST_GROWTH:
                        rank = 0 if i not in row else 1 if growth == 0.0 else 2
                        found.append((rank, self._cost(i, j), i, j))
        return found

    def _growth(self, i: int, j: int) -> float:
        """Greatest G_ii H_jj / A_ij²: what the first half of the pair adds and the second takes away again."""
        g, h = self.state.rows[i].get(i), self.state.rows[j].get(j)
        if g is None or h is None or len(self.state.rows[i]) == 2:  # i in terms of j alone: a substitution
            return 0.0
        return float(np.max(np.abs(g * h) / self.state.rows[i][j] ** 2))

    def _diagonals(self, front: set[int], least: float) -> list[tuple[int, int, int, int]]:
        """(rank, cost, i, i) of each diagonal entry that stays on its side."""
        found = []
        for i in front:
            row = self.state.rows[i]
            entry = row.get(i)
            if entry is None or not (entry if self.positive[i] else -entry).min() > 0.0:
                continue
            largest = np.max([np.abs(x) for x in row.values()], axis=0)
            if (np.abs(entry) >= least * largest).all():
                n = len(row) - 1
                found.append((RANK, n * (n + 3) // 2, i, i))
        return found

    def _cost(self, i: int, j: int) -> int:
        """Products that the pair takes where symmetric ones are computed once."""
        first, second = (set(self.state.rows[k]) - {i, j} for k in (i, j))
        n, m = len(first), len(second)
        cost = n * m
        if i in self.state.rows[i]:
            cost += m * (m + 3) // 2
        if j in self.state.rows[j]:
            cost += n * (n + 3) // 2
        return cost if j in self.state.unit[i] else cost + n + m


SYMMETRIC: tuple[Order, ...] = tuple(partial(quasidefinite, pairs_first=first) for first in (True, False))
