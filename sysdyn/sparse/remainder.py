"""A matrix that is being eliminated, over any scalar: pivots taken out, rows turned, and the greedy choice of pivots.

Gauss: `take` a row and a column with their pivot, and `update` the others by the product of their rests. Givens and
Householder: `turn` some rows first, so that of these only one holds the column. LU, least squares, quasi-definite
matrices and L^T D L are eliminated so, over expressions and floats; their orders are searched over arrays of samples.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from sysdyn.program.graph import Scalar, is_zero
from sysdyn.sparse.turns import Turn, turn

Entry = TypeVar("Entry", bound=Scalar)
Option = TypeVar("Option", bound=tuple)


class Remainder(Generic[Entry]):
    """The part of a matrix that is left to eliminate.

    rows: {column: entry} of each row, without its pivot once it is taken. columns: the rows left that hold each column.
    """

    def __init__(self, rows: Iterable[Mapping[int, Entry]], n: int):
        self.rows: list[dict[int, Entry]] = [dict(row) for row in rows]
        self.columns: list[set[int]] = [set() for _ in range(n)]
        for i, row in enumerate(self.rows):
            for j in row:
                self.columns[j].add(i)

    def take(self, i: int, j: int) -> tuple[Any, dict[int, Entry], dict[int, Entry]]:
        """Take out (pivot (i, j), the rest of row i {column: entry}, the rest of column j {row: entry}).

        The pivot is 0.0 if there is no such entry; neither dict is in the order of its keys.
        """
        row = self.rows[i]
        for c in row:
            self.columns[c].discard(i)
        below, self.columns[j] = self.columns[j], set()
        return row.pop(j, 0.0), row, {k: self.rows[k].pop(j) for k in below}

    def drop(self, i: int, j: int) -> None:
        """Drop the entry of row i in column j."""
        del self.rows[i][j]
        self.columns[j].discard(i)

    def update(self, column: Mapping[int, Entry], row: Mapping[int, Entry]) -> None:
        """Subtract the product of {row: entry} and {column: entry}, in their order."""
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
                    self.drop(i, j)
                else:
                    target[j] = new

    def turn(self, rows: Sequence[int], j: int, always: bool = False) -> Turn | None:
        """Turn the first row and the others that hold column j, so that only the first does; see `turn`.

        Returns the turn, or None if there is nothing to turn.
        """
        first, *others = rows
        turned = [first, *(i for i in others if i in self.columns[j])]
        if len(turned) == 1:
            return None
        r: Any  # an entry, too
        found, r = turn(turned, [self.rows[i].pop(j, 0.0) for i in turned], always)
        self.columns[j].difference_update(turned)
        self._turn_columns(found, sorted(set().union(*(self.rows[i] for i in turned))))
        self.rows[first][j] = r
        self.columns[j].add(first)
        return found

    def turn_across(self, i: int, columns: Sequence[int]) -> Turn | None:
        """Turn these columns of every row, so that of them row i holds only the first; unknowns are turned with them.

        Returns the turn T, A ← A T^T, or None if there is nothing to turn.
        """
        row = self.rows[i]
        first, *others = columns
        turned = [first, *(j for j in others if j in row)]
        if len(turned) == 1:
            return None
        r: Any  # an entry, too
        found, r = turn(turned, [row.get(j, 0.0) for j in turned])
        for k in sorted(set().union(*(self.columns[j] for j in turned)) - {i}):
            y: dict[int, Any] = {j: self.rows[k][j] for j in turned if j in self.rows[k]}
            held = [*y]
            found.apply(y)
            for j in held:
                if j not in y:
                    self.drop(k, j)
            for j, x in y.items():
                self.rows[k][j] = x
                self.columns[j].add(k)
        for j in turned[1:]:
            self.drop(i, j)
        row[first] = r
        self.columns[first].add(i)
        return found

    def _turn_columns(self, found: Turn, columns: Sequence[int]) -> None:
        for j in columns:
            y: dict[int, Any] = {i: self.rows[i][j] for i in found.rows if j in self.rows[i]}
            held = [*y]
            found.apply(y)
            for i in held:
                if i not in y:
                    self.drop(i, j)
            for i, x in y.items():
                self.rows[i][j] = x
                self.columns[j].add(i)


class Samples(Remainder[np.ndarray]):
    """The remainder at several states at once: entries are arrays (states,), replaced and never changed in place.

    cancelled: an entry that an update takes down to this share of itself, at every state, is dropped.
    """

    def __init__(self, rows: Iterable[Mapping[int, np.ndarray]], n: int, cancelled: float):
        super().__init__(rows, n)
        self._cancelled = cancelled
        self._zero = np.zeros(max((len(x) for row in self.rows for x in row.values()), default=1))

    def update(self, column: Mapping[int, np.ndarray], row: Mapping[int, np.ndarray]) -> None:
        if row:
            columns, u = [*row], np.array([*row.values()])
            zero = -self._zero  # −0 − x is −x, with its sign if it is zero, too
            for i, l in column.items():
                old = self.entries(i, columns, zero)
                new = old - l * u
                none = np.abs(new[:, 0]) <= self._cancelled * np.abs(old[:, 0])
                if none.any():  # at the first state
                    none = (np.abs(new) <= self._cancelled * np.abs(old)).all(axis=1)
                    none &= [j in self.rows[i] for j in columns]
                self.put(i, columns, new, none)

    def entries(self, i: int, columns: Sequence[int], zero: np.ndarray | None = None) -> np.ndarray:
        """Entries (columns, states) of row i."""
        row, zero = self.rows[i], self._zero if zero is None else zero
        return np.array([row.get(j, zero) for j in columns])

    def put(self, i: int, columns: Sequence[int], values: np.ndarray, none: np.ndarray) -> None:
        """Set entries (columns, states) of row i; drop the ones marked in `none` (columns,)."""
        row = self.rows[i]
        for j, x, gone in zip(columns, values, none.tolist(), strict=True):
            if not gone:
                row[j] = x
                self.columns[j].add(i)
            elif j in row:
                self.drop(i, j)


def greedy(
    front: set[int], option: Callable[[int], Option | None],
    take: Callable[[Option], tuple[Iterable[int], Iterable[int]]],
) -> None:  # fmt: skip
    """Take the least option that the members of the front have, one after the other, until none has one.

    option(k): the least option of member k, or None. take(option): (members that are done with and leave the front,
    members whose options may have changed).
    """
    options: dict[int, Option] = {}
    heap: list[tuple[Option, int]] = []  # The options, and outdated ones.
    stale = front
    while True:
        for k in stale & front:
            options.pop(k, None)
            if (found := option(k)) is not None:
                options[k] = found
                heapq.heappush(heap, (found, k))
        while heap and options.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        if not heap:
            return
        done, changed = take(heapq.heappop(heap)[0])
        front.difference_update(done)
        for k in done:
            options.pop(k, None)
        stale = set(changed)
