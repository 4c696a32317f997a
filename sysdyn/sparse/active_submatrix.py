"""The active submatrix of an elimination over any scalar: pivots, rotations of rows and columns, the greedy choice.

Gaussian elimination takes out a `pivot` with its row and column, and subtracts their outer product from the rest
(`rank_one_update`). Orthogonal elimination first rotates some rows, so that only one of them has an entry in the
column. LU, least squares, quasi-definite matrices and L^T D L use both, over expressions and floats; ordering searches
use them over arrays of sampled values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from sysdyn.program.graph import Scalar, is_zero
from sysdyn.sparse.rotations import OrthogonalTransform, annihilate

Entry = TypeVar("Entry", bound=Scalar)
Option = TypeVar("Option", bound=tuple)
Place = Callable[[int, int], tuple[int, int]]  # (number of a rotated line, number of a line across) -> (row, column)


class ActiveSubmatrix(Generic[Entry]):
    """The rows and columns of a matrix that are not eliminated yet.

    rows[i]: {column: entry} of row i; after its pivot, row i of U without the pivot. columns[j]: the active rows with
    an entry in column j.
    """

    def __init__(self, rows: Iterable[Mapping[int, Entry]], n: int):
        self.rows: list[dict[int, Entry]] = [dict(row) for row in rows]
        self.columns: list[set[int]] = [set() for _ in range(n)]
        for i, row in enumerate(self.rows):
            for j in row:
                self.columns[j].add(i)

    def pivot(self, i: int, j: int) -> tuple[Any, dict[int, Entry], dict[int, Entry]]:
        """Remove row i and column j. Returns (entry (i, j) or 0.0, {column: entry} of the row, {row: entry}).

        Neither dict has the pivot, and their keys are not sorted.
        """
        row = self.rows[i]
        for c in row:
            self.columns[c].discard(i)
        below, self.columns[j] = self.columns[j], set()
        return row.pop(j, 0.0), row, {k: self.rows[k].pop(j) for k in below}

    def remove(self, i: int, j: int) -> None:
        """Remove entry (i, j)."""
        del self.rows[i][j]
        self.columns[j].discard(i)

    def rank_one_update(self, column: Mapping[int, Entry], row: Mapping[int, Entry]) -> None:
        """Subtract the outer product of {row: entry} and {column: entry}, in their order."""
        for i, l in column.items():
            target = self.rows[i]
            for j, u in row.items():
                old = target.get(j)
                if old is None:
                    target[j] = -(l * u)
                    self.columns[j].add(i)
                    continue
                new = old - l * u
                if is_zero(new):
                    self.remove(i, j)
                else:
                    target[j] = new

    def rotate_rows(self, rows: Sequence[int], j: int, nonzero_norm: bool = False) -> OrthogonalTransform | None:
        """Rotate the first row with those others that have an entry in column j, so that the first keeps it alone.

        Returns the transform T, A ← T A, or None if no other row has an entry. nonzero_norm: see `annihilate`.
        """
        first, *others = rows
        rows = [first, *(i for i in others if i in self.columns[j])]
        return self._rotate(rows, j, self.rows, lambda i, j: (i, j), nonzero_norm)

    def rotate_columns(self, i: int, columns: Sequence[int]) -> OrthogonalTransform | None:
        """Rotate the first column with those others that have an entry in row i, so that the first keeps it alone.

        Returns the transform T, A ← A T^T, for which the unknowns become T x; or None if no other column has an entry.
        """
        first, *others = columns
        columns = [first, *(j for j in others if j in self.rows[i])]
        return self._rotate(columns, i, self.columns, lambda j, i: (i, j))

    def _rotate(
        self, lines: Sequence[int], k: int, crossed: Sequence[Iterable[int]], place: Place, nonzero_norm: bool = False
    ) -> OrthogonalTransform | None:
        """Rotate rows (columns) by their entries in column (row) k. crossed[line]: columns (rows) of its entries."""
        if len(lines) == 1:
            return None
        values: Any = [self.rows[i].get(j, 0.0) for i, j in (place(line, k) for line in lines)]
        transform, norm = annihilate(lines, values, nonzero_norm)
        self._transform(transform, sorted(set().union(*(crossed[line] for line in lines)) - {k}), place)
        for i, j in (place(line, k) for line in lines):
            if j in self.rows[i]:
                self.remove(i, j)
        self._put(*place(lines[0], k), norm)
        return transform

    def _transform(self, transform: OrthogonalTransform, across: Sequence[int], place: Place) -> None:
        """Apply a transform of rows (columns) to each column (row) in `across`."""
        for k in across:
            places = [(line, *place(line, k)) for line in transform.rows]
            values: dict[int, Any] = {line: self.rows[i][j] for line, i, j in places if j in self.rows[i]}
            transform.apply(values)
            for line, i, j in places:
                if line in values:
                    self._put(i, j, values[line])
                elif j in self.rows[i]:
                    self.remove(i, j)

    def _put(self, i: int, j: int, value: Any) -> None:
        self.rows[i][j] = value
        self.columns[j].add(i)


class SampledActiveSubmatrix(ActiveSubmatrix[np.ndarray]):
    """The active submatrix at several states at once: entries are arrays (states,), never changed in place.

    cancelled: an update removes an entry if it reduces it to this share of its size at every state.
    """

    def __init__(self, rows: Iterable[Mapping[int, np.ndarray]], n: int, cancelled: float):
        super().__init__(rows, n)
        self._cancelled = cancelled
        self._zero = np.zeros(max((len(x) for row in self.rows for x in row.values()), default=1))

    def rank_one_update(self, column: Mapping[int, np.ndarray], row: Mapping[int, np.ndarray]) -> None:
        if row:
            columns, u = [*row], np.array([*row.values()])
            zero = -self._zero  # −0 − x is −x, also the sign of a zero x
            for i, l in column.items():
                old = np.array([self.rows[i].get(j, zero) for j in columns])
                new = old - l * u
                gone = np.abs(new[:, 0]) <= self._cancelled * np.abs(old[:, 0])
                if gone.any():  # at the first state
                    gone = (np.abs(new) <= self._cancelled * np.abs(old)).all(axis=1)
                    gone &= [j in self.rows[i] for j in columns]
                self._put_all([(i, j) for j in columns], new, gone)

    def _transform(self, transform: OrthogonalTransform, across: Sequence[int], place: Place) -> None:
        """The same for all of `across` at once."""
        if across:
            places = {line: [place(line, k) for k in across] for line in transform.rows}
            values: dict[int, Any] = {
                line: np.array([self.rows[i].get(j, self._zero) for i, j in pairs]) for line, pairs in places.items()
            }
            transform.apply(values)
            for line, pairs in places.items():
                x = values.get(line, np.zeros((len(across), 1)))
                self._put_all(pairs, x, ~x.any(axis=1))

    def _put_all(self, places: Sequence[tuple[int, int]], values: np.ndarray, gone: np.ndarray) -> None:
        """Set entries (k, states) at k places; remove those for which `gone` (k,) is True."""
        for (i, j), x, is_gone in zip(places, values, gone.tolist(), strict=True):
            if not is_gone:
                self._put(i, j, x)
            elif j in self.rows[i]:
                self.remove(i, j)


def greedy(
    front: set[int], option: Callable[[int], Option | None],
    take: Callable[[Option], tuple[Iterable[int], Iterable[int]]],
) -> None:  # fmt: skip
    """Greedy loop: take the least option of all members of the front until no member has one.

    option(k): the least option of member k, or None. take(option): (members that leave the front, members whose
    options may have changed).
    """
    options: dict[int, Option] = {}
    heap: list[tuple[Option, int]] = []  # also outdated options
    stale = front
    while True:
        for k in stale & front:
            options.pop(k, None)
            if (least := option(k)) is not None:
                options[k] = least
                heapq.heappush(heap, (least, k))
        while heap and options.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        if not heap:
            return
        done, changed = take(heapq.heappop(heap)[0])
        front.difference_update(done)
        for k in done:
            options.pop(k, None)
        stale = set(changed)
