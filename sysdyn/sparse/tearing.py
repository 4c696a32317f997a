"""Tearing: constant pivots with a dense border.

A few torn unknowns are treated as known, so that all others follow one by one by pivots ±1. The torn unknowns are the
columns of the border, and the equations without a pivot are its rows. Kron, Diakoptics (1963); Duff, Erisman and Reid
(2017), section 9.
"""

from __future__ import annotations

from collections.abc import Iterable

from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import cheapest_pivot, choose_pivots
from sysdyn.sparse.sampled import Pivot, SampledElimination, SampledMatrix


def tearing_order(a: SampledMatrix, tried: int = 1000, certified: bool = False) -> Pivots:
    """Pivots ±1, then the border.

    tried: greatest number of columns that are compared to tear the next one. certified: orthogonalise all border
    columns, so that a pivot vanishes only at states where the matrix is singular; if False, only border columns without
    a safe pivot at the sampled states.
    """
    chain = _Chain(a, tried)
    border = chain.tear()
    choose = SampledElimination.orthogonal_pivot if certified else cheapest_pivot
    return choose_pivots(SampledElimination(a), border, choose, chain.pivots)


class _Chain:
    """Sequence of pivots ±1, each of which gives one unknown from those before.

    unknowns[i]: columns of row i that are not known yet. pivots: in the order in which they determine unknowns.
    """

    def __init__(self, a: SampledMatrix, tried: int):
        self.tried = tried
        self.unknowns: list[set[int]] = [set() for _ in a.rhs]
        self.rows_of_column: list[list[int]] = [[] for _ in range(a.n)]
        self.units: set[tuple[int, int]] = set()
        for i, j, unit in zip(a.row.tolist(), a.col.tolist(), a.unit_entries.tolist(), strict=True):
            self.unknowns[i].add(j)
            self.rows_of_column[j].append(i)
            if unit:
                self.units.add((i, j))
        self.columns = set(range(a.n))  # that are not known yet
        self.pivots: list[Pivot] = []

    def tear(self) -> list[int]:
        """Tear columns until all unknowns are known; return the torn columns.

        Each step tears the column from which the most other unknowns follow.
        """
        self._add(self._implied_pivots(range(len(self.unknowns)), {}))
        border: list[int] = []
        while self.columns:
            implied = {j: self._implied_pivots((), {}, j) for j in self._candidates()}
            j = max(implied, key=lambda j: len(implied[j]))
            border.append(j)
            self._make_known(j)
            self._add(implied[j])
        return border

    def _candidates(self) -> list[int]:
        """Columns of the rows with the fewest unknowns and at least one entry ±1."""
        rows = [i for i, columns in enumerate(self.unknowns) if len(columns) > 1]
        rows.sort(key=lambda i: (len(self.unknowns[i]), i))
        candidates: dict[int, None] = {}
        for i in rows:
            columns = sorted(self.unknowns[i])
            if any((i, j) in self.units for j in columns):
                candidates.update(dict.fromkeys(columns))
            if len(candidates) >= self.tried:
                break
        return list(candidates) or sorted(self.columns)[: self.tried]

    def _implied_pivots(
        self, rows: Iterable[int], unknowns: dict[int, set[int]], known: int | None = None
    ) -> list[Pivot]:
        """Pivots implied by these rows, or by one more `known` column. unknowns: {row: remaining unknowns}, updated."""
        queue = list(rows)
        if known is not None:
            for i in self.rows_of_column[known]:
                unknowns[i] = self.unknowns[i] - {known}
                queue.append(i)
        pivots: list[Pivot] = []
        while queue:
            i = queue.pop()
            columns = unknowns.get(i, self.unknowns[i])
            if len(columns) != 1:
                continue
            (j,) = columns
            if (i, j) not in self.units:
                continue
            pivots.append(Pivot(i, j))
            for k in self.rows_of_column[j]:
                unknowns[k] = unknowns.get(k, self.unknowns[k]) - {j}
                queue.append(k)
        return pivots

    def _add(self, pivots: list[Pivot]) -> None:
        self.pivots += pivots
        for pivot in pivots:
            self._make_known(pivot.column)

    def _make_known(self, j: int) -> None:
        self.columns.discard(j)
        for i in self.rows_of_column[j]:
            self.unknowns[i].discard(j)
