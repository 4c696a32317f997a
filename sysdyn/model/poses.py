"""Poses T = [R p; 0 1] as homogeneous matrices, their logarithms and interpolation.

Murray, Li and Sastry (1994), chapter 2."""

from __future__ import annotations

import math

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model.spatial import dtype_of, skew
from sysdyn.program.arrays import float_array
from sysdyn.program.reproducible import matmul

POSE_ERROR = 1e-6  # Largest |R^T R − 1| of a rotation that was written with few digits (chosen).


# ---- poses: homogeneous matrices, their exponential and logarithm --------------------------------------------------
#
# T = [R p; 0 1] (4, 4) places a frame: R = E^T, p = r. Twists V = [ω; v]. Lynch & Park, Modern Robotics, ch. 3.


def pose(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """T (4, 4) of the frame with the coordinate transform E (3, 3) and the origin r (3,)."""
    T = np.full((4, 4), 0.0, dtype=dtype_of(E, r))
    T[:3, :3], T[:3, 3], T[3, 3] = E.T, r, 1.0
    return T


def pose_inverse(T: np.ndarray) -> np.ndarray:
    """T⁻¹ = [R^T −R^T p; 0 1] (4, 4)."""
    R, p = T[:3, :3], T[:3, 3]
    return pose(R, -matmul(R.T, p))


def adjoint(T: np.ndarray) -> np.ndarray:
    """Ad_T = [R 0; p×R R] (6, 6): twists in coordinates of the frame at T to the coordinates that T is given in.

    The inverse of X_motion(R^T, p).
    """
    R, p = T[:3, :3], T[:3, 3]
    A = np.full((6, 6), 0.0, dtype=dtype_of(T))
    A[:3, :3] = A[3:, 3:] = R
    A[3:, :3] = matmul(skew(p), R)
    return A


def se3_exp(V: np.ndarray) -> np.ndarray:
    """T = exp([V]) (4, 4), the pose after the constant twist V = [ω; v] (6,) acted for unit time. Floats.

    R = 1 + s ω× + b ω×², p = s v + b ω × v + (1 − s) n n^T v, with θ = |ω|, n = ω/θ, s = sin θ/θ,
    b = (1 − cos θ)/θ² = 2 (sin(θ/2)/θ)²: no difference that cancels, at any angle.
    Lynch & Park eqs. (3.51), (3.88).
    """
    x, y, z, u, v, w = np.asarray(V, dtype=float).tolist()
    angle = math.hypot(x, y, z)
    if angle == 0.0:
        return np.array([[1.0, 0.0, 0.0, u], [0.0, 1.0, 0.0, v], [0.0, 0.0, 1.0, w], [0.0, 0.0, 0.0, 1.0]])
    s, b = math.sin(angle) / angle, 2.0 * (math.sin(angle / 2) / angle) ** 2
    k = (1.0 - s) * (x / angle * u + y / angle * v + z / angle * w) / angle
    return np.array(
        [
            [1.0 - b * (y * y + z * z), b * x * y - s * z, b * x * z + s * y, s * u + b * (y * w - z * v) + k * x],
            [b * x * y + s * z, 1.0 - b * (x * x + z * z), b * y * z - s * x, s * v + b * (z * u - x * w) + k * y],
            [b * x * z - s * y, b * y * z + s * x, 1.0 - b * (x * x + y * y), s * w + b * (x * v - y * u) + k * z],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )


def se3_log(T: np.ndarray) -> np.ndarray:
    """V = [ω; v] (6,) with exp([V]) = T (4, 4) and |ω| ≤ π; of the two at π, the one whose largest ω_i is > 0. Floats.

    ω = 2 h n, v = a p − ω × p/2 + (1 − a) n n^T p with a = h cot h; h = atan2(|u|, w) and n are the half angle and
    the axis of the quaternion (u, w) of R, found from its largest entry: no difference that cancels, at any angle.
    Lynch & Park eqs. (3.53) … (3.61), (3.91), (3.92); Shepperd (1978).
    """
    (a, b, c, px), (d, e, f, py), (g, h, i, pz) = T.tolist()[:3]
    trace = a + e + i
    # (x, y, z, w): the quaternion times four times its largest entry
    if trace >= a and trace >= e and trace >= i:
        x, y, z, w = h - f, c - g, d - b, 1.0 + trace
    elif a >= e and a >= i:
        x, y, z, w = 1.0 + a - e - i, b + d, c + g, h - f
    elif e >= i:
        x, y, z, w = b + d, 1.0 + e - a - i, f + h, c - g
    else:
        x, y, z, w = c + g, f + h, 1.0 + i - a - e, d - b
    if w < 0.0:
        x, y, z, w = -x, -y, -z, -w
    sine = math.hypot(x, y, z)
    if sine == 0.0:
        return np.array([0.0, 0.0, 0.0, px, py, pz])
    half = math.atan2(sine, w)
    x, y, z, cot = x / sine, y / sine, z / sine, half * w / sine
    k = (1.0 - cot) * (x * px + y * py + z * pz)
    return np.array(
        [
            2.0 * half * x,
            2.0 * half * y,
            2.0 * half * z,
            cot * px - half * (y * pz - z * py) + k * x,
            cot * py - half * (z * px - x * pz) + k * y,
            cot * pz - half * (x * py - y * px) + k * z,
        ]
    )


def interpolate(T0: np.ndarray, T1: np.ndarray, s: float) -> np.ndarray:
    """T0 exp(s log(T0⁻¹ T1)) (4, 4): the pose at s of the screw motion from T0 (s = 0) to T1 (s = 1)."""
    return T0 @ se3_exp(s * se3_log(pose_inverse(T0) @ T1))


def rotation_error(T: np.ndarray) -> float:
    """Greatest entry of |R^T R − 1| for T = [R p; 0 1] (4, 4): the distance of R from a rotation."""
    R = T[:3, :3]
    return float(np.abs(matmul(R.T, R) - np.eye(3)).max())


def checked_pose(name: str, T, tolerance: float = POSE_ERROR, option: str = "") -> np.ndarray:
    """T (4, 4) as floats, its rotation R replaced by the nearest one.

    Raises InvalidInput for a wrong shape, numbers that are not finite, a last row other than (0, 0, 0, 1), and if
    |R^T R − 1| is beyond the tolerance, saying by how much, and by which option it may be.
    """
    try:
        T = np.array(float_array(name, T))
    except InvalidInput:
        raise InvalidInput(f"{name} must be a (4, 4) array of numbers, the homogeneous matrix of a pose") from None
    if T.shape != (4, 4):
        raise InvalidInput(f"{name} has shape {T.shape}; expected the homogeneous matrix [R p; 0 1] (4, 4) of a pose")
    if not np.all(np.isfinite(T)):
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(T))[0])
        raise InvalidInput(f"{name}{list(where)} is {T[where]}; every entry has to be finite")
    if T[3].tolist() != [0.0, 0.0, 0.0, 1.0]:
        raise InvalidInput(f"the last row of {name} is {T[3].tolist()}, not [0, 0, 0, 1]: is it transposed?")
    R = T[:3, :3]
    error = rotation_error(T)
    if error > tolerance:
        allowed = f"up to {tolerance:g} is corrected{f', or to {option}' if option else ''}"
        raise InvalidInput(
            f"the rotation of {name} is none: R^T R differs from 1 by {error:.3g} ({allowed}). Take the nearest "
            "rotation U V^T, from U, s, Vt = numpy.linalg.svd(R), and look where the error comes from"
        )
    while error > 1e-15:  # Newton's steps to the orthogonal factor, which square the error. Higham (1986)
        R = T[:3, :3] = R - matmul(R, matmul(R.T, R) - np.eye(3)) / 2
        before, error = error, rotation_error(T)
        if error > before / 2:
            break
    if np.linalg.det(R) < 0.0:
        raise InvalidInput(f"the rotation of {name} has determinant −1: it is a reflection, one axis points backwards")
    return T
