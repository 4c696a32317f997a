"""Removal of rounding errors from model constants: exact zeros, ones, right angles and equal numbers.

A product with an exact 0 or ±1 costs nothing, and equal constants are shared. Cleaned models have shorter programs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# Largest rounding error of a constant relative to its scale: some thousand operations in double precision.
ROUNDING = 1e-12
# Largest rounding error [rad] of a multiple of π/2 in a file; 1.57079632679 has an error of 5e-12.
ANGLE_ROUNDING = 1e-11
# Largest error of a unit norm, or of R^T R − 1 of a rotation, for numbers with seven digits.
UNIT_ERROR = 1e-6


def clean(x: ArrayLike, scale: float = 1.0) -> np.ndarray:
    """Copy of x (floats). Entries within ROUNDING·scale of 0 become 0, entries within ROUNDING of ±1 become ±1."""
    x = np.array(x, dtype=float)
    x[np.abs(x) <= ROUNDING * scale] = 0.0
    units = np.abs(np.abs(x) - 1.0) <= ROUNDING
    if units.any():
        x[units] = np.copysign(1.0, x[units])
    return x


def read_only(A: ArrayLike) -> np.ndarray:
    """Read-only float copy of A."""
    A = np.array(A, dtype=float)
    A.setflags(write=False)
    return A


def exact_right_angles(x: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """Round sines and cosines to integers if all those along `axes` are within ANGLE_ROUNDING; else clean them."""
    rounded = np.round(x) + 0.0
    near = np.abs(x - rounded).max(axis=axes, keepdims=True) <= ANGLE_ROUNDING
    return np.where(near, rounded, clean(x))


def unify(*arrays: np.ndarray) -> list[np.ndarray]:
    """Copies of float arrays in which absolute values that differ by less than ROUNDING are made equal.

    A cluster of absolute values becomes 1 if it contains 1, else its most frequent value (the smallest if several tie).
    """
    if not arrays:
        return []
    flat = np.concatenate([[1.0], *(x.ravel() for x in arrays)])
    sizes, place, count = np.unique(np.abs(flat), return_inverse=True, return_counts=True)
    count[place[0]] = flat.size
    starts = np.concatenate([[True], sizes[1:] > sizes[:-1] * (1.0 + ROUNDING)])
    group = np.cumsum(starts)
    representative = sizes[np.lexsort((sizes, -count, group))[starts]]
    unified = np.copysign(representative[group - 1][place], flat)[1:]
    parts = np.split(unified, np.cumsum([x.size for x in arrays])[:-1])
    return [part.reshape(x.shape) for part, x in zip(parts, arrays, strict=True)]
