"""Spatial vectors and Plücker transforms (RBDA ch. 2), and poses with their logarithm; generic over float and Expr.

Angular part first, body coordinates, SI units. `E` is the 3×3 coordinate transform from the parent frame to the child
frame and `r` the position of the child origin in parent coordinates, so X = [E 0; −E r× E] moves motion vectors from
parent to child and X^T moves forces from child to parent.
"""

from __future__ import annotations

import numpy as np

from sysdyn.program.graph import cos, sin
from sysdyn.program.reproducible import matmul

OFFSET_ROUNDING = 1e-15  # Rounding of entries of E r×, as a fraction of |r|: a few times the rounding unit.


def skew(v: np.ndarray) -> np.ndarray:
    """v× (3, 3) with v× w = v × w."""
    zero = 0.0
    return vector([zero, -v[2], v[1], v[2], zero, -v[0], -v[1], v[0], zero], dtype_of(v)).reshape(3, 3)


def unskew(M: np.ndarray) -> np.ndarray:
    """v (3,) of v×."""
    return np.array([M[2, 1], M[0, 2], M[1, 0]], dtype=M.dtype)


def crm(v: np.ndarray) -> np.ndarray:
    """v× (6, 6) on motion vectors. RBDA eq. (2.31)."""
    M = np.full((6, 6), 0.0, dtype=dtype_of(v))
    M[:3, :3] = M[3:, 3:] = skew(v[:3])
    M[3:, :3] = skew(v[3:])
    return M


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a × b (3,), also for object arrays (np.cross multiplies before it knows the zeros)."""
    return vector([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], dtype_of(a, b))


def cross_motion(v: np.ndarray, m: np.ndarray) -> np.ndarray:
    """v × m (6,) for motion vectors."""
    return np.concatenate([cross(v[:3], m[:3]), cross(v[:3], m[3:]) + cross(v[3:], m[:3])])


def cross_force(v: np.ndarray, f: np.ndarray) -> np.ndarray:
    """v ×* f (6,): a motion vector on a force vector."""
    return np.concatenate([cross(v[:3], f[:3]) + cross(v[3:], f[3:]), cross(v[:3], f[3:])])


def X_motion(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Plücker transform (6, 6) of motion vectors from parent to child: [E 0; −E r× E]. RBDA eq. (2.24)."""
    X = np.full((6, 6), 0.0, dtype=dtype_of(E, r))
    X[:3, :3] = X[3:, 3:] = E
    moved = -matmul(E, skew(r))
    if X.dtype != object:  # sums that cancel are zero, whatever rounding leaves of them
        moved[np.abs(moved) <= OFFSET_ROUNDING * np.abs(r).max()] = 0.0
    X[3:, :3] = moved
    return X


def rotation(X: np.ndarray) -> np.ndarray:
    """E (3, 3) of a Plücker transform."""
    return X[:3, :3]


def translation(X: np.ndarray) -> np.ndarray:
    """r (3,) of a Plücker transform of floats: the child origin in parent coordinates."""
    rx = -matmul(X[:3, :3].T, X[3:, :3])
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
    return vector([1.0, 0.0, 0.0, 0.0, c, s, 0.0, -s, c], _scalar_dtype(c)).reshape(3, 3)


def roty(angle) -> np.ndarray:
    c, s = cos(angle), sin(angle)
    return vector([c, 0.0, -s, 0.0, 1.0, 0.0, s, 0.0, c], _scalar_dtype(c)).reshape(3, 3)


def rotz(angle) -> np.ndarray:
    c, s = cos(angle), sin(angle)
    return vector([c, s, 0.0, -s, c, 0.0, 0.0, 0.0, 1.0], _scalar_dtype(c)).reshape(3, 3)


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
    return vector(
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
    I = np.full((6, 6), 0.0, dtype=dtype_of(C, np.asarray(I_com)))
    I[:3, :3] = I_com + mass * matmul(C, C.T)
    I[:3, 3:] = mass * C
    I[3:, :3] = mass * C.T
    I[3:, 3:] = mass * np.eye(3)
    return I


def transform_inertia(I: np.ndarray, X: np.ndarray) -> np.ndarray:
    """X^T I X: an inertia given in the child frame of X, expressed in the parent frame."""
    return matmul(X.T, I, X)


def dtype_of(*values):
    """object if any value is an Expr or holds one (or a batch), else float."""
    for v in values:
        if isinstance(v, np.ndarray):
            if v.dtype == object or v.ndim == 0:
                return object
        elif isinstance(v, (list, tuple)):
            if dtype_of(*v) is object:
                return object
        elif not isinstance(v, (float, int, np.floating)):
            return object
    return float


def _scalar_dtype(x):
    """dtype of an array with the scalar x as an entry: object if x is an Expr or a batch."""
    return float if isinstance(x, (float, int, np.floating)) else object


def vector(entries: list, dtype) -> np.ndarray:
    """(len(entries),) array; an entry that is itself an array (a batch) stays one entry."""
    if dtype is float:
        return np.array(entries, dtype=float)
    A = np.empty(len(entries), dtype=object)
    for k, x in enumerate(entries):
        A[k] = x
    return A
