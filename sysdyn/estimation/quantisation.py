"""Quantisation step of readings, a lower bound of their noise."""

from __future__ import annotations

import math

import numpy as np
from scipy.ndimage import median_filter

# Number of gaps between sorted values that give one estimate of the step (chosen).
GAPS = 100
# Readings per distinct value from which few gaps, or gaps of one size, count as a grid, as in steady motion (chosen).
REPEATED = 2
# Rounding of values in files (float32) and of calculations, relative to the greatest of them.
ROUNDING, SMALLEST = 2.0 * float(np.finfo(np.float32).eps), 1e-12
# A gap is a clear multiple if its rounding error is below this share of the step; least number of these (chosen).
CLEAR_ERROR, LEAST_CLEAR = 0.2, 6


def quantisation_noise(y: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Standard deviations (m,) of the rounding of readings y (N, m) that are `on`: step / √12, 0 without a grid.

    Steps may depend on the value, as with a fixed number of significant digits.
    """
    return np.array([_rounding(x[k]) for x, k in zip(y.T, on.T, strict=True)])


def unchanged(y: np.ndarray, on: np.ndarray) -> np.ndarray:
    """(m,) bool: components whose readings y (N, m), where `on`, have a single value."""
    return np.array([k.any() and np.ptp(x[k]) == 0.0 for x, k in zip(y.T, on.T, strict=True)])


def _rounding(y: np.ndarray) -> float:
    values = np.unique(y)
    greatest = float(np.abs(values).max(initial=0.0))
    gaps = np.diff(values)
    gaps, repeated = gaps[gaps > SMALLEST * greatest], len(y) >= REPEATED * len(values)
    if not len(gaps) or (len(gaps) < GAPS and not repeated):
        return 0.0
    parts = np.array_split(gaps, max(len(gaps) // GAPS, 1))
    # median of five neighbouring parts: a few gaps may be multiples of a step by chance
    steps = median_filter([_step(x, ROUNDING * greatest, repeated) for x in parts], 5, mode="nearest")
    found = steps[steps > 0.0]
    return math.sqrt(float(np.mean(np.square(found))) / 12.0) if 2 * len(found) > len(steps) else 0.0


def _step(gaps: np.ndarray, rounding: float, repeated: bool) -> float:
    """Greatest common divisor of the gaps up to rounding, 0 if they do not determine it."""
    # steady motion has gaps of two sizes, whose difference is the step
    apart = np.diff(np.sort(gaps))
    step = float(min(gaps.min(), apart[apart > 2.0 * rounding].min(initial=np.inf)))
    times = np.round(gaps / step)
    error = rounding * (1.0 + times)
    clear = error < CLEAR_ERROR * step
    on_grid = clear.sum() >= min(LEAST_CLEAR, len(gaps)) and (np.abs(gaps - times * step) <= error)[clear].all()
    return step if on_grid and (repeated or times.max() > 1.0) else 0.0
