"""Cleaning of constants: rounding errors that hide zeros, ones, right angles and equal numbers are removed.

A product with an exact 0 or ±1 costs nothing and equal constants are shared, so programs of cleaned models are shorter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# Largest rounding error of a constant, relative to its scale: some thousand operations in double precision.
ROUNDING = 1e-12
# Largest rounding error [rad] of a multiple of π/2 in a file: 1.57079632679 is off by 5e-12.
ANGLE_ROUNDING = 1e-11
# Largest error of the norm of a unit vector, or of R^T R − 1 of a rotation, that was written with seven digits.
UNIT_ERROR = 1e-6


def clean(x: ArrayLike, scale: float = 1.0) -> np.ndarray:
    """A copy of x (floats): entries within ROUNDING·scale of 0 are 0, entries within ROUNDING of ±1 are ±1."""
    x = np.array(x, dtype=float)
    x[np.abs(x) <= ROUNDING * scale] = 0.0
    for unit in (1.0, -1.0):
        x[np.abs(x - unit) <= ROUNDING] = unit
    return x


def read_only(A: ArrayLike) -> np.ndarray:
    """A read-only copy of A as floats."""
    A = np.array(A, dtype=float)
    A.setflags(write=False)
    return A


def exact_right_angles(E: np.ndarray) -> np.ndarray:
    """The signed permutation of axes within ANGLE_ROUNDING of the rotation E (3, 3); E cleaned if there is none."""
    permutation = np.round(E) + 0.0
    return permutation if np.max(np.abs(E - permutation)) <= ANGLE_ROUNDING else clean(E)


def unify(*arrays: np.ndarray) -> list[np.ndarray]:
    """Copies of arrays of floats in which sizes within ROUNDING of each other, or of 1, are exactly the same.

    Each group of equal sizes becomes 1 if 1 is in it, else its most frequent entry, of several the least.
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
