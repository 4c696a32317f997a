"""Constant changes of frames, from robots in canonical frames to the frames of the model and back.

`X` (6, 6) is a Plücker transform of floats; spatial vectors are sequences of six floats or Expr, angular part first,
and come back as lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.model.constants import clean
from sysdyn.model.se3 import rotation, translation
from sysdyn.recursions.links import Scalar, Vector, cross, plus


def parts(X: np.ndarray) -> tuple[list[Vector], list[Vector], Vector]:
    """(E, E^T, r) of a constant transform; r cleaned."""
    E = rotation(X)
    return E.tolist(), E.T.tolist(), clean(translation(X)).tolist()


def dot(a: Sequence, b: Sequence) -> Scalar:
    """a · b with every product, also those with 0."""
    total: Scalar = 0.0
    for x, y in zip(a, b, strict=True):
        total = total + x * y
    return total


def wrench_to(X: np.ndarray, w: Vector) -> Vector:
    """X⁻ᵀ w: the wrench w in the child frame of X."""
    E, _, r = parts(X)
    n = [x - y for x, y in zip(w[:3], cross(r, w[3:]), strict=True)]
    return [dot(row, n) for row in E] + [dot(row, w[3:]) for row in E]


def wrench_back(X: np.ndarray, w: Vector) -> Vector:
    """X^T w: the wrench w in the parent frame of X."""
    _, E, r = parts(X)
    f = [dot(row, w[3:]) for row in E]
    return plus([dot(row, w[:3]) for row in E], cross(r, f)) + f


def motion_back(X: np.ndarray, s: Vector) -> Vector:
    """X⁻¹ s: the motion s in the parent frame of X."""
    _, E, r = parts(X)
    w = [dot(row, s[:3]) for row in E]
    return w + [x - y for x, y in zip([dot(row, s[3:]) for row in E], cross(w, r), strict=True)]
