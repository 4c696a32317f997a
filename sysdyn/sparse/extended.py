"""Numbers of as many digits as the `decimal` context has, for states at which double precision has too few.

A scalar that `sysdyn.sparse.lu` and `sysdyn.sparse.selected_inverse` can be run over.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np


class Extended:
    """Numbers at N states: an array (N,) of Decimal."""

    __slots__ = ("x",)

    def __init__(self, x: np.ndarray):
        self.x = x

    @staticmethod
    def of(x: np.ndarray) -> Extended:
        """The doubles (N,), exactly."""
        return Extended(np.array([Decimal(v) for v in x.tolist()], dtype=object))

    def rounded(self) -> np.ndarray:
        """The nearest doubles (N,)."""
        return self.x.astype(float)

    def __neg__(self) -> Extended:
        return Extended(-self.x)

    def __add__(self, other: Extended | float) -> Extended:
        return Extended(self.x + _digits(other))

    __radd__ = __add__

    def __sub__(self, other: Extended | float) -> Extended:
        return Extended(self.x - _digits(other))

    def __rsub__(self, other: float) -> Extended:
        return Extended(_digits(other) - self.x)

    def __mul__(self, other: Extended | float) -> Extended:
        return Extended(self.x * _digits(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Extended | float) -> Extended:
        return Extended(self.x / _digits(other))

    def __rtruediv__(self, other: float) -> Extended:
        return Extended(_digits(other) / self.x)


def _digits(x: Extended | float) -> np.ndarray | Decimal:
    return x.x if isinstance(x, Extended) else Decimal(x)
