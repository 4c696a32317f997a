"""Double-double arrays, residuals and iterative refinement, for solutions near singular matrices.

A double-double number is the sum of two floats, high + low, |low| ≤ ulp(high)/2. Dekker (1971); Ogita, Rump and Oishi
(2005). `sysdyn.codegen.double_double` evaluates whole programs in this arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Splits a float into two parts of 26 bits, whose products are exact. Dekker (1971).
_SPLITTER = 2.0**27 + 1.0
# Each step reduces the error a hundredfold at a condition number of 1e12, by less beyond.
MAX_STEPS = 24
# Corrections relative to the greatest unknown. Refinement goes on to STOP, so that small unknowns are accurate, too. It
# has converged below CONVERGED (half a rounding unit).
STOP, CONVERGED = 1e-21, 1e-16


class DoubleDouble(NamedTuple):
    """Numbers high + low; two arrays of one shape."""

    high: np.ndarray
    low: np.ndarray

    @staticmethod
    def of(x: np.ndarray) -> DoubleDouble:
        """Convert floats; low is zero."""
        return DoubleDouble(x, np.zeros_like(x))

    def plus(self, step: np.ndarray) -> DoubleDouble:
        """Add an array of floats; the double-double sum. Knuth (1969)."""
        high = self.high + step
        part = high - self.high
        low = (self.high - (high - part)) + (step - part) + self.low
        total = high + low
        return DoubleDouble(total, (high - total) + low)


def _split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


class DoubleDoubleResiduals:
    """Residuals A x + b in double-double arithmetic, rounded to floats. row, col, entries: (nnz) of A."""

    def __init__(self, row: np.ndarray, col: np.ndarray, entries: DoubleDouble):
        order = np.argsort(row, kind="stable")
        row, col, high, low = row[order], col[order], entries.high[order][:, None], entries.low[order][:, None]
        place = np.arange(len(row)) - np.searchsorted(row, row)  # of each entry in its row
        self._parts = []  # (rows, columns, entries, high parts in two) of the first entries of rows, the second ones, …
        for k in range(int(place.max(initial=-1)) + 1):
            at = np.flatnonzero(place == k)
            self._parts.append((row[at], col[at], high[at], low[at], *_split(high[at])))

    def __call__(self, x: DoubleDouble, b: DoubleDouble) -> np.ndarray:
        """A x + b (m, k) for x (n, k), b (m, k)."""
        total, low_parts = b.high.copy(), b.low.copy()
        with np.errstate(all="ignore"):
            halves = _split(x.high)
            for i, j, high, low, first, second in self._parts:
                xj, x_first, x_second = x.high[j], halves[0][j], halves[1][j]
                p = high * xj  # p + e is the exact product
                e = ((first * x_first - p) + first * x_second + second * x_first) + second * x_second
                old = total[i]
                new = old + p
                part = new - old
                total[i] = new
                low_parts[i] += ((old - (new - part)) + (p - part)) + (e + (high * x.low[j] + low * xj))
        return total + low_parts


def iterative_refinement(
    solve: Callable[[np.ndarray], np.ndarray], row: np.ndarray, col: np.ndarray, entries: DoubleDouble, b: DoubleDouble,
    units: np.ndarray,
) -> np.ndarray | None:  # fmt: skip
    """Solution x (n, k) of A x + b = 0 to nearly the last bit; None if refinement does not converge.

    solve: r (n, k) → approximately A⁻¹ r. row, col, entries: (nnz) of A. b (n, k). units (n,): scale of each unknown,
    for the comparison of corrections. Each step multiplies the error by the rounding unit times the condition number of
    A. Higham (2002), section 12.1.
    """
    with np.errstate(all="ignore"):
        x = DoubleDouble.of(-solve(b.high))
    residuals, size = DoubleDoubleResiduals(row, col, entries), math.inf
    for _ in range(MAX_STEPS):
        with np.errstate(all="ignore"):
            step = solve(residuals(x, b))
            x = x.plus(-step)
            greatest = np.abs(x.high / units[:, None]).max(axis=0, initial=0.0)
            sizes = np.abs(step / units[:, None]).max(axis=0, initial=0.0) / np.where(greatest > 0.0, greatest, 1.0)
        size = float(sizes.max(initial=0.0))
        if not STOP < size < math.inf:
            break
    return x.high if size <= CONVERGED else None
