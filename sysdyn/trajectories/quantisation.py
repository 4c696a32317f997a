"""Quantisation of readings: the step of their values, below which no noise of theirs can be."""

from __future__ import annotations

import math

import numpy as np
from scipy.ndimage import median_filter

# Gaps between successive values that are compared with each other (chosen).
GAPS = 100
# Readings by value from which on few gaps, or gaps of one size, are a grid, too: steady motion has these (chosen).
REPEATED = 2
# Rounding of values in files (float32) and of calculations, relative to the greatest of them.
ROUNDING, SMALLEST = 2.0 * float(np.finfo(np.float32).eps), 1e-12
# Rounding of a multiple of a step, in units of it, up to which the multiple is one, and least number of these (chosen).
TELLING, CLEAR = 0.2, 6


def quantisation_noise(y: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Standard deviations (m,) of the rounding of readings y (N, m) that are `on`: step / √12, 0 without a grid.

    Steps may differ from value to value, as those of a fixed number of digits.
    """
    return np.array([_rounding(x[k]) for x, k in zip(y.T, on.T, strict=True)])


def unchanged(y: np.ndarray, on: np.ndarray) -> np.ndarray:
    """(m,) bool: readings y (N, m) that are `on` are one value throughout."""
    return np.array([k.any() and np.ptp(x[k]) == 0.0 for x, k in zip(y.T, on.T, strict=True)])


def _rounding(y: np.ndarray) -> float:
    values = np.unique(y)
    greatest = float(np.abs(values).max(initial=0.0))
    gaps = np.diff(values)
    gaps, repeated = gaps[gaps > SMALLEST * greatest], len(y) >= REPEATED * len(values)
    if not len(gaps) or (len(gaps) < GAPS and not repeated):
        return 0.0
    parts = np.array_split(gaps, max(len(gaps) // GAPS, 1))
    # of five parts that follow each other, as a few gaps may be multiples of a step by chance
    steps = median_filter([_step(x, ROUNDING * greatest, repeated) for x in parts], 5, mode="nearest")
    found = steps[steps > 0.0]
    return math.sqrt(float(np.mean(np.square(found))) / 12.0) if 2 * len(found) > len(steps) else 0.0


def _step(gaps: np.ndarray, rounding: float, repeated: bool) -> float:
    """Greatest divisor of the gaps but for rounding, as far as they tell this, else 0."""
    # steady motion has gaps of two sizes, whose difference is the step
    apart = np.diff(np.sort(gaps))
    step = float(min(gaps.min(), apart[apart > 2.0 * rounding].min(initial=np.inf)))
    times = np.round(gaps / step)
    error = rounding * (1.0 + times)
    clear = error < TELLING * step
    on_grid = clear.sum() >= min(CLEAR, len(gaps)) and (np.abs(gaps - times * step) <= error)[clear].all()
    return step if on_grid and (repeated or times.max() > 1.0) else 0.0
