"""Givens rotations and Householder reflections that zero a column in all but the first of some rows, over any scalar.

Two rows are rotated (Givens 1958), more rows are reflected (Householder 1958). Both are backward stable (Higham 2002,
chapter 19), and undefined only if the whole column is zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.errors import SingularState
from sysdyn.program.graph import Scalar, copysign, is_zero, sqrt

SparseColumn = MutableMapping[int, Scalar]  # {row: entry}; rows without an entry are zero


class OrthogonalTransform(ABC):
    """An orthogonal matrix T that acts on some rows and zeroes a column in all but the first of them."""

    rows: tuple[int, ...]

    @abstractmethod
    def apply(self, y: SparseColumn) -> None:
        """y ← T y in place. Entries that become zero are removed."""

    @abstractmethod
    def apply_transposed(self, y: SparseColumn) -> None:
        """y ← T^T y = T⁻¹ y in place."""


@dataclass(frozen=True)
class Rotation(OrthogonalTransform):
    """T = [c s; −s c] of two rows."""

    rows: tuple[int, int]
    c: Scalar
    s: Scalar

    def apply(self, y: SparseColumn) -> None:
        self._rotate(y, self.s)

    def apply_transposed(self, y: SparseColumn) -> None:
        self._rotate(y, -self.s)

    def _rotate(self, y: SparseColumn, s: Scalar) -> None:
        p, i = self.rows
        first, second = y.get(p, 0.0), y.get(i, 0.0)
        _put(y, p, _sum(self.c, first, s, second))
        _put(y, i, _sum(self.c, second, -s, first))


@dataclass(frozen=True)
class Reflection(OrthogonalTransform):
    """T = 1 − τ v v^T, where v is 1 in the first row."""

    rows: tuple[int, ...]
    v: tuple[Scalar, ...]  # in all rows except the first
    tau: Scalar

    def apply(self, y: SparseColumn) -> None:
        p, *others = self.rows
        total = y.get(p, 0.0)
        for i, v in zip(others, self.v, strict=True):
            if not _vanishes(y.get(i, 0.0)):
                total = v * y[i] if _vanishes(total) else total + v * y[i]
        if _vanishes(total):
            return
        w = self.tau * total
        _put(y, p, y.get(p, 0.0) - w)
        for i, v in zip(others, self.v, strict=True):
            _put(y, i, y.get(i, 0.0) - v * w)

    apply_transposed = apply


def annihilate(rows: Sequence[int], column: Sequence[Scalar]) -> tuple[OrthogonalTransform, Scalar]:
    """(T, r): T maps the entries `column` of at least two rows to r in the first and 0 in the others.

    |r| is the norm of the column; r ≥ 0 for two rows, for more rows it has the sign that avoids cancellation.
    Raises SingularState if the column is zero.
    """
    size = sqrt(_sum_of_squares(column))
    if _vanishes(size):
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
    terms = [value * value for value in x if not _vanishes(value)]
    return sum(terms[1:], terms[0]) if terms else 0.0


def _sum(a: Scalar, x: Scalar, b: Scalar, y: Scalar) -> Scalar:
    """a x + b y."""
    if _vanishes(x):
        return 0.0 if _vanishes(y) else b * y
    return a * x if _vanishes(y) else a * x + b * y


def _put(y: SparseColumn, i: int, value: Scalar) -> None:
    if _vanishes(value):
        y.pop(i, None)
    else:
        y[i] = value


def _vanishes(x: Scalar) -> bool:
    """True if x is zero; if x is an array of samples, zero at all of them."""
    return not x.any() if isinstance(x, np.ndarray) else is_zero(x)
