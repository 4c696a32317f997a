"""Selected entries of the inverse of a matrix from its LU factors.

With the unit lower factor L and the upper factor U of P A Q = L U, the entries of Z = (P A Q)⁻¹ satisfy

    i ≤ j:  Z[i, j] = ([i = j] − Σ_{k>i} U[i, k] Z[k, j]) / U[i, i]
    i > j:  Z[i, j] = − Σ_{k>j} Z[i, k] L[k, j]

Each entry depends only on entries of later pivots. Takahashi, Fagan and Chin (1973); Erisman and Tinney (1975).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sysdyn.program.graph import Scalar, copysign
from sysdyn.sparse.lu import Factors, divide_by
from sysdyn.sparse.rotations import OrthogonalTransform

Place = tuple[int, int]  # (column of A, row of A) of an entry of the inverse.
# Formulas of an entry at step k: through the rotation before pivot k, the diagonal, by row k of U, by column k of L.
# They are evaluated in the reverse order.
ROTATION, DIAGONAL, ROW_OF_U, COLUMN_OF_L = range(4)


class _Rotation(NamedTuple):
    """An orthogonal transform of rows; the rotated rows get new numbers (`after`)."""

    transform: OrthogonalTransform
    before: tuple[int, ...]
    after: tuple[int, ...]


class SelectedInverse:
    """Entries of the inverse of a square matrix A, cached.

    symmetric: A is symmetric; without rotations only half of the entries are computed.
    """

    def __init__(self, factors: Factors, symmetric: bool = False):
        self._factors, self._symmetric = factors, symmetric and not factors.rotations
        self._step_of_column = {c: k for k, c in enumerate(factors.col_perm)}
        self._step_of_row: dict[int, int] = {}  # the pivot of a row, or the rotation after which it has a new number
        self._rotations: dict[int, _Rotation] = {}
        self._lower: list[dict[int, Scalar]] = []
        self._values: dict[Place, Scalar] = {}
        self._sizes: dict[Place, Scalar] = {}
        number, total = {r: r for r in factors.row_perm}, len(factors.row_perm)
        for k, r in enumerate(factors.row_perm):
            if transform := factors.rotations.get(k):
                before = tuple(number[i] for i in transform.rows)
                after = tuple(range(total, total := total + len(before)))
                number |= zip(transform.rows, after, strict=True)
                for i in before:
                    self._step_of_row[i], self._rotations[i] = k, _Rotation(transform, before, after)
            self._step_of_row[number[r]] = k
            self._lower.append({number[i]: l for i, l in factors.lower[k].items()})

    def select(self, places: Iterable[Place], begin: Callable[[int], None] = lambda _: None) -> dict[Place, Scalar]:
        """{place: entry of the inverse} at these places. begin(k) is called before the entries of step k."""
        wanted = set(places)
        levels = self._closure({self._stored(*x) for x in wanted})
        for step, kind in sorted(levels, reverse=True):
            begin(step)
            evaluate = self._rotate if kind == ROTATION else self._substitute
            evaluate(step, kind, sorted(levels[step, kind].difference(self._values)))
        return {x: self._values[self._stored(*x)] for x in wanted}

    def error_scale(self, place: Place) -> Scalar:
        """Scale of the rounding error of a selected entry: the sum of absolute terms, one level of recursion deep."""
        place = self._stored(*place)
        return sum((abs_of(c) * self._size(y) for c, y in self._coefficients(place)), self._size(place))

    def _size(self, place: Place) -> Scalar:
        """Sum of the absolute terms of an entry's formula."""
        if place not in self._sizes:
            step, kind = self._level(*place)
            size = abs_of(divide_by(self._factors.pivots[step], 2)(1.0)) if kind == DIAGONAL else 0.0
            self._sizes[place] = sum((abs_of(c * self._values[y]) for c, y in self._coefficients(place)), size)
        return self._sizes[place]

    def _coefficients(self, place: Place) -> list[tuple[Scalar, Place]]:
        """`_terms` with coefficients divided by the pivot."""
        step, kind = self._level(*place)
        divide = (lambda x: x) if self._is_divided(step, kind) else divide_by(self._factors.pivots[step], 2)
        return [(divide(x), y) for x, y in self._terms(step, kind, *place)]

    def _is_divided(self, step: int, kind: int) -> bool:
        """True if the stored entries of L or U in the formula are already divided by the pivot."""
        return kind == ROTATION or self._factors.row_is_scaled[step] is not (kind == COLUMN_OF_L)

    def _level(self, c: int, r: int) -> tuple[int, int]:
        """(step, formula) of entry (c, r)."""
        column, row = self._step_of_column[c], self._step_of_row[r]
        if r in self._rotations:
            return (row, ROTATION) if row <= column else (column, ROW_OF_U)
        if column == row:
            return column, DIAGONAL
        return (column, ROW_OF_U) if column < row else (row, COLUMN_OF_L)

    def _stored(self, c: int, r: int) -> Place:
        """The place whose value is computed for entry (c, r): if A is symmetric, (r, c) if its step is later."""
        return (r, c) if self._symmetric and c != r and self._level(r, c) > self._level(c, r) else (c, r)

    def _terms(self, step: int, kind: int, c: int, r: int) -> list[tuple[Scalar, Place]]:
        """[(coefficient, place)] of the sum in an entry's formula."""
        if kind == ROTATION:
            return [(1.0, self._stored(c, i)) for i in self._rotations[r].after]
        if kind == COLUMN_OF_L:
            return [(l, self._stored(c, i)) for i, l in self._lower[step].items()]
        return [(u, self._stored(j, r)) for j, u in self._factors.upper[step].items()]

    def _closure(self, places: set[Place]) -> dict[tuple[int, int], set[Place]]:
        """{(step, formula): places} of these entries and of all entries on which they depend."""
        levels: dict[tuple[int, int], set[Place]] = {}
        queue: list[tuple[int, int]] = []

        def add(place: Place) -> None:
            level = self._level(*place)
            if level not in levels:
                levels[level] = set()
                heapq.heappush(queue, level)
            levels[level].add(place)

        for place in places:
            add(place)
        while queue:
            level = heapq.heappop(queue)
            for place in levels[level]:
                for _, other in self._terms(*level, *place):
                    add(other)
        return levels

    def _substitute(self, step: int, kind: int, places: Sequence[Place]) -> None:
        """Compute entries by the formula of one row of U or one column of L."""
        values, divided = self._values, self._is_divided(step, kind)
        divide = divide_by(self._factors.pivots[step], len(places) + 1)
        divide_terms = not divided and bool(places) and len(self._terms(step, kind, *places[0])) < len(places)
        for place in places:
            total: Scalar = 0.0
            for x, other in self._terms(step, kind, *place):
                total = total - (divide(x) if divide_terms else x) * values[other]
            if not (divided or divide_terms):
                total = divide(total)
            values[place] = total + divide(1.0) if kind == DIAGONAL else total

    def _rotate(self, step: int, kind: int, places: Sequence[Place]) -> None:
        """Compute the entries before a rotation of rows from those after it."""
        for c, r in places:
            if (c, r) not in self._values:
                transform, before, after = self._rotations[r]
                row = {i: self._values[c, j] for i, j in zip(transform.rows, after, strict=True)}
                transform.apply_transposed(row)
                self._values |= {(c, j): row.get(i, 0.0) for i, j in zip(transform.rows, before, strict=True)}


def abs_of(x: Scalar) -> Scalar:
    """|x|, which does not count as an operation."""
    return abs(x) if isinstance(x, float) else copysign(x, 1.0)
