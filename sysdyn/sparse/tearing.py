"""Tearing: chains of constant pivots with a border.

Tearing takes some unknowns for known, so that all others follow one from the other by pivots ±1; these unknowns are the
columns of a border, and the equations that nothing followed from its rows. Kron, Diakoptics (1963); Duff, Erisman and
Reid (2017), section 9.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import cheapest, choose_pivots
from sysdyn.sparse.sampled import Pivot, Sampled, SampledElimination


def torn(a: Sampled, tried: int = 1000, certified: bool = False) -> Pivots:
    """Pivots ±1 of unknowns that follow from each other, then the border.

    tried: most columns that are tried at each step. certified: all columns of the border are orthogonal, so that a
    pivot vanishes only if the matrix is singular, whatever the states; otherwise only the columns without an entry that
    stays away from zero at the sampled states.
    """
    chain = _Chain(a, tried)
    border = chain.tear()
    choose = SampledElimination.turned if certified else cheapest
    return choose_pivots(SampledElimination(a), border, choose, chain.found)


class _Chain:
    """Unknowns that follow from known ones by entries ±1, one after the other.

    unknown[i]: columns of row i that are not known. found: the pivots, in order.
    """

    def __init__(self, a: Sampled, tried: int):
        self.tried = tried
        unit = a.fixed & (np.abs(a.values[0]) == 1.0)
        self.unknown: list[set[int]] = [set() for _ in a.rhs]
        self.holders: list[list[int]] = [[] for _ in range(a.n)]
        self.unit: set[tuple[int, int]] = set()
        for i, j, constant in zip(a.row.tolist(), a.col.tolist(), unit.tolist(), strict=True):
            self.unknown[i].add(j)
            self.holders[j].append(i)
            if constant:
                self.unit.add((i, j))
        self.left = set(range(a.n))
        self.found: list[Pivot] = []

    def tear(self) -> list[int]:
        """The columns that are taken for known, one at a time: the one from which most others follow."""
        self._take(self._following(range(len(self.unknown)), {}))
        border: list[int] = []
        while self.left:
            best: tuple[int, int, list[Pivot]] | None = None
            for j in self._candidates():
                follow = self._following((), {}, j)
                if best is None or len(follow) > best[0]:
                    best = len(follow), j, follow
            assert best is not None
            _, j, follow = best
            border.append(j)
            self.left.discard(j)
            for i in self.holders[j]:
                self.unknown[i].discard(j)
            self._take(follow)
        return border

    def _candidates(self) -> list[int]:
        """Columns of the rows with the fewest unknowns, among them an entry ±1."""
        rows = [i for i, columns in enumerate(self.unknown) if len(columns) > 1]
        rows.sort(key=lambda i: (len(self.unknown[i]), i))
        found: dict[int, None] = {}
        for i in rows:
            columns = sorted(self.unknown[i])
            if any((i, j) in self.unit for j in columns):
                found.update(dict.fromkeys(columns))
            if len(found) >= self.tried:
                break
        return list(found) or sorted(self.left)[: self.tried]

    def _following(self, rows: Iterable[int], less: dict[int, set[int]], known: int | None = None) -> list[Pivot]:
        """The pivots that follow from these rows, or from one more known column. less: unknowns left of rows."""
        queue = list(rows)
        if known is not None:
            for i in self.holders[known]:
                less[i] = self.unknown[i] - {known}
                queue.append(i)
        follow: list[Pivot] = []
        while queue:
            i = queue.pop()
            columns = less.get(i, self.unknown[i])
            if len(columns) != 1:
                continue
            (j,) = columns
            if (i, j) not in self.unit:
                continue
            follow.append(Pivot(i, j))
            for k in self.holders[j]:
                less[k] = less.get(k, self.unknown[k]) - {j}
                queue.append(k)
        return follow

    def _take(self, follow: list[Pivot]) -> None:
        for pivot in follow:
            for i in self.holders[pivot.column]:
                self.unknown[i].discard(pivot.column)
            self.left.discard(pivot.column)
        self.found += follow
