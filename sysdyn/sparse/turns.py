"""Orthogonal transformations of a few rows that leave one of them a column's only entry, over any scalar.

Two rows are rotated (Givens 1958), more are reflected (Householder 1958). Either is defined unless the column is zero,
whichever of its entries vanish, and backward stable (Higham 2002, chapter 19).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.errors import SingularState
from sysdyn.program.graph import Scalar, copysign, is_zero, sqrt

Column = MutableMapping[int, Scalar]  # {row: entry}; rows without an entry are zero.

# Number added to the size of an entry that may be zero together with all others of a column; its square does not
# underflow.
TINY = 1e-150


class Turn(ABC):
    """An orthogonal transformation T of the entries of some rows, the first of which keeps the column."""

    rows: tuple[int, ...]

    @abstractmethod
    def apply(self, y: Column) -> None:
        """y ← T y, in all of the rows if y has an entry in one of them."""

    @abstractmethod
    def apply_transposed(self, y: Column) -> None:
        """y ← T^T y = T⁻¹ y."""

    @abstractmethod
    def mapped(self, of: Callable[[Scalar], Scalar]) -> Turn:
        """The turn with of(x) for each of its numbers x."""


@dataclass(frozen=True)
class Rotation(Turn):
    """T = [c s; −s c] of two rows."""

    rows: tuple[int, int]
    c: Scalar
    s: Scalar

    def apply(self, y: Column) -> None:
        self._turn(y, self.s)

    def apply_transposed(self, y: Column) -> None:
        self._turn(y, -self.s)

    def mapped(self, of: Callable[[Scalar], Scalar]) -> Turn:
        return Rotation(self.rows, of(self.c), of(self.s))

    def _turn(self, y: Column, s: Scalar) -> None:
        p, i = self.rows
        first, second = y.get(p, 0.0), y.get(i, 0.0)
        _put(y, p, _sum(self.c, first, s, second))
        _put(y, i, _sum(self.c, second, -s, first))


@dataclass(frozen=True)
class Reflection(Turn):
    """T = 1 − τ v v^T, with v = 1 in the first row."""

    rows: tuple[int, ...]
    v: tuple[Scalar, ...]  # in the rows but the first
    tau: Scalar

    def apply(self, y: Column) -> None:
        p, *others = self.rows
        total = y.get(p, 0.0)
        for i, v in zip(others, self.v, strict=True):
            if not _nothing(y.get(i, 0.0)):
                total = v * y[i] if _nothing(total) else total + v * y[i]
        if _nothing(total):
            return
        w = self.tau * total
        _put(y, p, y.get(p, 0.0) - w)
        for i, v in zip(others, self.v, strict=True):
            _put(y, i, y.get(i, 0.0) - v * w)

    apply_transposed = apply

    def mapped(self, of: Callable[[Scalar], Scalar]) -> Turn:
        return Reflection(self.rows, tuple(map(of, self.v)), of(self.tau))


def turn(rows: Sequence[int], column: Sequence[Scalar], always: bool = False) -> tuple[Turn, Scalar]:
    """(T, r): T turns the column (entries in the rows) into r in the first of at least two rows and 0 in the others.

    |r| is the norm of the column: r itself of two rows; of more it has the sign that loses no digits. always: T is
    orthogonal even if the column is zero. Raises SingularState if it is zero at every state.
    """
    if always:
        column = [column[0] + copysign(TINY, column[0]), *column[1:]]
    size = sqrt(_sum_of_squares(column))
    if _nothing(size):
        raise SingularState("a column is zero in all of its rows")
    if len(rows) == 2:
        inverse = 1.0 / size
        p, i = rows
        return Rotation((p, i), column[0] * inverse, column[1] * inverse), size
    r = -copysign(size, column[0])
    first = column[0] - r
    inverse = 1.0 / first
    return Reflection(tuple(rows), tuple(x * inverse for x in column[1:]), -(first / r)), r


def _sum_of_squares(x: Sequence[Scalar]) -> Scalar:
    terms = [value * value for value in x if not _nothing(value)]
    return sum(terms[1:], terms[0]) if terms else 0.0


def _sum(a: Scalar, x: Scalar, b: Scalar, y: Scalar) -> Scalar:
    """a x + b y."""
    if _nothing(x):
        return 0.0 if _nothing(y) else b * y
    return a * x if _nothing(y) else a * x + b * y


def _put(y: Column, i: int, value: Scalar) -> None:
    if _nothing(value):
        y.pop(i, None)
    else:
        y[i] = value


def _nothing(x: Scalar) -> bool:
    """True if x is zero, at every state if it is an array of them."""
    return not x.any() if isinstance(x, np.ndarray) else is_zero(x)
