"""The active submatrix of an elimination over any scalar: pivots and rotations of rows.

Gaussian elimination removes a `pivot` with its row and column, and subtracts their outer product from the remaining
rows (`rank_one_update`). Orthogonal elimination first rotates some rows, so that only one of them has an entry in the
column. Eliminations use both over expressions and floats, ordering searches over arrays of sampled values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from sysdyn.program.graph import Scalar, is_zero
from sysdyn.sparse.rotations import OrthogonalTransform, annihilate

Entry = TypeVar("Entry", bound=Scalar)


class ActiveSubmatrix(Generic[Entry]):
    """The rows and columns of a matrix that are not eliminated yet.

    rows[i]: {column: entry} of an active row; of an eliminated one, row i of U without the pivot. columns[j]: the
    active rows with an entry in column j.
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
        """Subtract the outer product of `column` {row: entry} and `row` {column: entry}, in the order of their keys."""
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

    def rotate_rows(self, rows: Sequence[int], j: int) -> OrthogonalTransform | None:
        """Rotate rows so that only the first has an entry in column j.

        Returns the transform T of A ← T A, or None if no other row has an entry.
        """
        first, *others = rows
        rows = [first, *(i for i in others if i in self.columns[j])]
        if len(rows) == 1:
            return None
        values: Any = [self.rows[i].get(j, 0.0) for i in rows]
        transform, norm = annihilate(rows, values)
        self._transform(transform, sorted(set().union(*(self.rows[i] for i in rows)) - {j}))
        for i in rows:
            if j in self.rows[i]:
                self.remove(i, j)
        self._put(first, j, norm)
        return transform

    def _transform(self, transform: OrthogonalTransform, columns: Sequence[int]) -> None:
        """Apply a transform of rows to each of these columns."""
        for j in columns:
            values: dict[int, Any] = {i: self.rows[i][j] for i in transform.rows if j in self.rows[i]}
            transform.apply(values)
            for i in transform.rows:
                if i in values:
                    self._put(i, j, values[i])
                elif j in self.rows[i]:
                    self.remove(i, j)

    def _put(self, i: int, j: int, value: Any) -> None:
        self.rows[i][j] = value
        self.columns[j].add(i)


class SampledActiveSubmatrix(ActiveSubmatrix[np.ndarray]):
    """The active submatrix at several states at once: entries are arrays (states,), never changed in place.

    cancelled: an update drops an entry that it reduces to this share of its size at every state.
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

    def _transform(self, transform: OrthogonalTransform, columns: Sequence[int]) -> None:
        """Apply a transform of rows to all these columns at once."""
        if columns:
            values: dict[int, Any] = {
                i: np.array([self.rows[i].get(j, self._zero) for j in columns]) for i in transform.rows
            }
            transform.apply(values)
            for i in transform.rows:
                x = values.get(i, np.zeros((len(columns), 1)))
                self._put_all([(i, j) for j in columns], x, ~x.any(axis=1))

    def _put_all(self, places: Sequence[tuple[int, int]], values: np.ndarray, gone: np.ndarray) -> None:
        """Set entries (k, states) at k places; remove those for which `gone` (k,) is True."""
        for (i, j), x, is_gone in zip(places, values, gone.tolist(), strict=True):
            if not is_gone:
                self._put(i, j, x)
            elif j in self.rows[i]:
                self.remove(i, j)
