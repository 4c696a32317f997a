"""Spatial vectors and Plücker transforms (RBDA ch. 2), and poses with their logarithm; generic over float and Expr.

Angular part first, body coordinates, SI units. `E` is the 3×3 coordinate transform from the parent frame to the child
frame and `r` the position of the child origin in parent coordinates, so X = [E 0; −E r× E] moves motion vectors from
parent to child and X^T moves forces from child to parent.
"""

from __future__ import annotations

import math

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.expr import cos, sin

POSE_ERROR = 1e-6  # |R^T R − 1| up to which a matrix is taken for a rotation written with few digits


def skew(v: np.ndarray) -> np.ndarray:
    """v× (3, 3) with v× w = v × w."""
    zero = 0.0
    return _array([zero, -v[2], v[1], v[2], zero, -v[0], -v[1], v[0], zero], _dtype(v)).reshape(3, 3)


def crm(v: np.ndarray) -> np.ndarray:
    """v× (6, 6) on motion vectors. RBDA eq. (2.31)."""
    M = np.full((6, 6), 0.0, dtype=_dtype(v))
    M[:3, :3] = M[3:, 3:] = skew(v[:3])
    M[3:, :3] = skew(v[3:])
    return M


def crf(v: np.ndarray) -> np.ndarray:
    """v×* = −(v×)^T (6, 6) on force vectors. RBDA eq. (2.32)."""
    return -crm(v).T


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a × b (3,), also for object arrays (np.cross multiplies before it knows what is zero)."""
    return _array([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], _dtype(a, b))


def cross_motion(v: np.ndarray, m: np.ndarray) -> np.ndarray:
    """v × m (6,) for motion vectors."""
    return np.concatenate([cross(v[:3], m[:3]), cross(v[:3], m[3:]) + cross(v[3:], m[:3])])


def cross_force(v: np.ndarray, f: np.ndarray) -> np.ndarray:
    """v ×* f (6,): a motion vector on a force vector."""
    return np.concatenate([cross(v[:3], f[:3]) + cross(v[3:], f[3:]), cross(v[:3], f[3:])])


def X_motion(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Plücker transform (6, 6) of motion vectors from parent to child: [E 0; −E r× E]. RBDA eq. (2.24)."""
    X = np.full((6, 6), 0.0, dtype=_dtype(E, r))
    X[:3, :3] = X[3:, 3:] = E
    X[3:, :3] = -(E @ skew(r))
    return X


def rotation(X: np.ndarray) -> np.ndarray:
    """E (3, 3) of a Plücker transform."""
    return X[:3, :3]


def translation(X: np.ndarray) -> np.ndarray:
    """r (3,) of a Plücker transform of floats: the child origin in parent coordinates."""
    rx = -X[:3, :3].T @ X[3:, :3]
    return np.array([rx[2, 1] - rx[1, 2], rx[0, 2] - rx[2, 0], rx[1, 0] - rx[0, 1]]) / 2


def X_inverse(X: np.ndarray) -> np.ndarray:
    """X⁻¹ = [E^T 0; (−E r×)^T E^T] (6, 6) without any operation."""
    Y = X.copy()
    Y[:3, :3] = Y[3:, 3:] = X[:3, :3].T
    Y[3:, :3] = X[3:, :3].T
    return Y


def rotx(angle) -> np.ndarray:
    """E (3, 3) of a rotation of the frame about x: [1 0 0; 0 c s; 0 −s c]."""
    c, s = cos(angle), sin(angle)
    return _array([1.0, 0.0, 0.0, 0.0, c, s, 0.0, -s, c], _scalar_dtype(c)).reshape(3, 3)


def roty(angle) -> np.ndarray:
    c, s = cos(angle), sin(angle)
    return _array([c, 0.0, -s, 0.0, 1.0, 0.0, s, 0.0, c], _scalar_dtype(c)).reshape(3, 3)


def rotz(angle) -> np.ndarray:
    c, s = cos(angle), sin(angle)
    return _array([c, s, 0.0, -s, c, 0.0, 0.0, 0.0, 1.0], _scalar_dtype(c)).reshape(3, 3)


def rot_axis(axis: np.ndarray, angle) -> np.ndarray:
    """E (3, 3) of a rotation of the frame by `angle` about the unit vector `axis` (floats).

    E = c (1 − a a^T) + a a^T − s a×, with the constant matrices folded, so that axes along x, y, z cost nothing.
    """
    c, s = cos(angle), sin(angle)
    aa = np.outer(axis, axis)
    E = np.empty((3, 3), dtype=_scalar_dtype(c))
    across, rest = skew(np.asarray(axis, dtype=float)), np.eye(3) - aa
    for i in range(3):
        for j in range(3):
            E[i, j] = c * float(rest[i, j]) + float(aa[i, j]) - s * float(across[i, j])
    return E


def quaternion_to_E(p: np.ndarray) -> np.ndarray:
    """E (3, 3) from parent to child of the unit quaternion p = (x, y, z, w) that turns the child into its attitude."""
    x, y, z, w = p
    x2, y2, z2 = x + x, y + y, z + z
    xx, yy, zz = x * x2, y * y2, z * z2
    xy, xz, yz, wx, wy, wz = x * y2, x * z2, y * z2, w * x2, w * y2, w * z2
    return _array(
        [
            1.0 - (yy + zz), xy + wz, xz - wy,
            xy - wz, 1.0 - (xx + zz), yz + wx,
            xz + wy, yz - wx, 1.0 - (xx + yy),
        ],
        _scalar_dtype(xx),
    ).reshape(3, 3)  # fmt: skip


def inertia(mass, com: np.ndarray, I_com: np.ndarray) -> np.ndarray:
    """Spatial inertia (6, 6) at the frame origin: [I_C + m c× c×^T, m c×; m c×^T, m 1]. RBDA eq. (2.63)."""
    C = skew(np.asarray(com))
    I = np.full((6, 6), 0.0, dtype=_dtype(C, np.asarray(I_com)))
    I[:3, :3] = I_com + mass * (C @ C.T)
    I[:3, 3:] = mass * C
    I[3:, :3] = mass * C.T
    I[3:, 3:] = mass * np.eye(3)
    return I


def transform_inertia(I: np.ndarray, X: np.ndarray) -> np.ndarray:
    """X^T I X: an inertia given in the child frame of X, expressed in the parent frame."""
    return X.T @ I @ X


# ---- poses: homogeneous matrices, their exponential and logarithm --------------------------------------------------
#
# T = [R p; 0 1] (4, 4) places a frame: R = E^T, p = r. Twists V = [ω; v]. Lynch & Park, Modern Robotics, ch. 3.


def pose(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """T (4, 4) of the frame with the coordinate transform E (3, 3) and the origin r (3,)."""
    T = np.full((4, 4), 0.0, dtype=_dtype(E, r))
    T[:3, :3], T[:3, 3], T[3, 3] = E.T, r, 1.0
    return T


def pose_inverse(T: np.ndarray) -> np.ndarray:
    """T⁻¹ = [R^T −R^T p; 0 1] (4, 4)."""
    R, p = T[:3, :3], T[:3, 3]
    return pose(R, -(R.T @ p))


def adjoint(T: np.ndarray) -> np.ndarray:
    """Ad_T = [R 0; p×R R] (6, 6): twists in coordinates of the frame at T to the coordinates that T is given in.

    The inverse of X_motion(R^T, p).
    """
    R, p = T[:3, :3], T[:3, 3]
    A = np.full((6, 6), 0.0, dtype=_dtype(T))
    A[:3, :3] = A[3:, 3:] = R
    A[3:, :3] = skew(p) @ R
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


def checked_pose(name: str, T) -> np.ndarray:
    """T (4, 4) as floats, its rotation made orthonormal.

    Raises InvalidInput for a wrong shape, numbers that are not finite, a last row other than (0, 0, 0, 1), and a
    rotation that is none by more than 1e-6, saying by how much.
    """
    try:
        T = np.array(T, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be a (4, 4) array of numbers, the homogeneous matrix of a pose") from None
    if T.shape != (4, 4):
        raise InvalidInput(f"{name} has shape {T.shape}; expected the homogeneous matrix [R p; 0 1] (4, 4) of a pose")
    if not np.all(np.isfinite(T)):
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(T))[0])
        raise InvalidInput(f"{name}{list(where)} is {T[where]}; every entry has to be finite")
    if T[3].tolist() != [0.0, 0.0, 0.0, 1.0]:
        raise InvalidInput(f"the last row of {name} is {T[3].tolist()}, not [0, 0, 0, 1]: is it transposed?")
    R = T[:3, :3]
    error = float(np.abs(R.T @ R - np.eye(3)).max())
    if error > POSE_ERROR:
        raise InvalidInput(
            f"the rotation of {name} is none: R^T R differs from 1 by {error:.3g} (up to {POSE_ERROR:g} is corrected). "
            "Take the nearest rotation U V^T, from U, s, Vt = numpy.linalg.svd(R), and look where the error comes from"
        )
    if error > 1e-15:
        U, _, Vt = np.linalg.svd(R)
        T[:3, :3] = U @ Vt
    if np.linalg.det(R) < 0.0:
        raise InvalidInput(f"the rotation of {name} has determinant −1: it is a reflection, one axis points backwards")
    return T


def _dtype(*values):
    """object if any value is an Expr or holds one (or a batch), else float."""
    for v in values:
        if isinstance(v, np.ndarray):
            if v.dtype == object or v.ndim == 0:
                return object
        elif not isinstance(v, (float, int, np.floating)):
            return object
    return float


def _scalar_dtype(x):
    """dtype of an array with the scalar x as an entry: object if x is an Expr or a batch."""
    return float if isinstance(x, (float, int, np.floating)) else object


def _array(entries: list, dtype) -> np.ndarray:
    """(len(entries),) array; an entry that is itself an array (a batch) stays one entry."""
    if dtype is float:
        return np.array(entries, dtype=float)
    A = np.empty(len(entries), dtype=object)
    for k, x in enumerate(entries):
        A[k] = x
    return A
