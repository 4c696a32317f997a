"""SE(3): rotations, Plücker transforms, poses, unit quaternions, and the exponential map with its logarithm.

All functions accept floats and `Expr` unless a docstring says "floats". Spatial vectors have the angular part first, in
SI units. `E` (3, 3) transforms coordinates from the parent frame to the child frame; `r` (3,) is the child origin in
parent coordinates. X = [E 0; −E r× E] transforms motion vectors from parent to child, and X^T transforms forces from
child to parent. The pose of the same frame is T = [R p; 0 1] (4, 4) with R = E^T, p = r. Twists are V = [ω; v]. Unit
quaternions p = (x, y, z, w) represent the attitude R = E^T of the child in the parent.

RBDA chapter 2; Lynch & Park, Modern Robotics, chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput
from sysdyn.model.constants import UNIT_ERROR
from sysdyn.program.arrays import finite_array
from sysdyn.program.autodiff import to_graph
from sysdyn.program.graph import SHARING, Graph, copysign, cos, sin, sqrt
from sysdyn.program.program import Program
from sysdyn.program.reproducible import matmul, norm

# ---- arrays of floats or expressions ---------------------------------------------------------------------------------


def dtype_of(*values):
    """Common dtype: object if a value is or contains an Expr or a batch, else float."""
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


def _dtype_of_scalar(x):
    """dtype of an array that contains the scalar x: object if x is an Expr or a batch, else float."""
    return float if isinstance(x, (float, int, np.floating)) else object


def vector(entries: list, dtype) -> np.ndarray:
    """Array (len(entries),). An entry that is an array (a batch) remains one entry."""
    if dtype is float:
        return np.array(entries, dtype=float)
    A = np.empty(len(entries), dtype=object)
    for k, x in enumerate(entries):
        A[k] = x
    return A


# ---- cross products --------------------------------------------------------------------------------------------------


def skew(v: np.ndarray) -> np.ndarray:
    """Skew-symmetric matrix v× (3, 3), with (v×) w = v × w."""
    zero = 0.0
    return vector([zero, -v[2], v[1], v[2], zero, -v[0], -v[1], v[0], zero], dtype_of(v)).reshape(3, 3)


def unskew(M: np.ndarray) -> np.ndarray:
    """Vector v (3,) of the skew-symmetric matrix v×."""
    return np.array([M[2, 1], M[0, 2], M[1, 0]], dtype=M.dtype)


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cross product a × b (3,). For object arrays, np.cross would multiply by zeros."""
    return vector([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], dtype_of(a, b))


def crm(v: np.ndarray) -> np.ndarray:
    """Spatial cross product matrix v× (6, 6) for motion vectors. RBDA eq. (2.31)."""
    M = np.full((6, 6), 0.0, dtype=dtype_of(v))
    M[:3, :3] = M[3:, 3:] = skew(v[:3])
    M[3:, :3] = skew(v[3:])
    return M


def cross_motion(v: np.ndarray, m: np.ndarray) -> np.ndarray:
    """v × m (6,) of motion vectors."""
    return np.concatenate([cross(v[:3], m[:3]), cross(v[:3], m[3:]) + cross(v[3:], m[:3])])


def cross_force(v: np.ndarray, f: np.ndarray) -> np.ndarray:
    """v ×* f (6,) of a motion vector and a force vector."""
    return np.concatenate([cross(v[:3], f[:3]) + cross(v[3:], f[3:]), cross(v[:3], f[3:])])


# ---- rotations -------------------------------------------------------------------------------------------------------


def rotx(angle) -> np.ndarray:
    """E (3, 3) of a rotation of the frame about x: [1 0 0; 0 c s; 0 −s c]."""
    c, s = cos(angle), sin(angle)
    return vector([1.0, 0.0, 0.0, 0.0, c, s, 0.0, -s, c], _dtype_of_scalar(c)).reshape(3, 3)


def roty(angle) -> np.ndarray:
    """E (3, 3) of a rotation of the frame about y."""
    c, s = cos(angle), sin(angle)
    return vector([c, 0.0, -s, 0.0, 1.0, 0.0, s, 0.0, c], _dtype_of_scalar(c)).reshape(3, 3)


def rotz(angle) -> np.ndarray:
    """E (3, 3) of a rotation of the frame about z."""
    c, s = cos(angle), sin(angle)
    return vector([c, s, 0.0, -s, c, 0.0, 0.0, 0.0, 1.0], _dtype_of_scalar(c)).reshape(3, 3)


def rot_axis(axis: np.ndarray, angle) -> np.ndarray:
    """E (3, 3) of a rotation of the frame by `angle` about the unit vector `axis` (floats).

    E = c (1 − a a^T) + a a^T − s a×. The constant matrices are folded; axes x, y and z need no multiplication.
    """
    c, s = cos(angle), sin(angle)
    aa = np.outer(axis, axis)
    E = np.empty((3, 3), dtype=_dtype_of_scalar(c))
    across, rest = skew(np.asarray(axis, dtype=float)), np.eye(3) - aa
    for i in range(3):
        for j in range(3):
            E[i, j] = c * float(rest[i, j]) + float(aa[i, j]) - s * float(across[i, j])
    return E


def quaternion_to_E(p: np.ndarray) -> np.ndarray:
    """Rotation E (3, 3) of the unit quaternion p (4,)."""
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
        _dtype_of_scalar(xx),
    ).reshape(3, 3)  # fmt: skip


# ---- Plücker transforms ----------------------------------------------------------------------------------------------


def X_motion(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Plücker transform (6, 6) of motion vectors from parent to child: [E 0; −E r× E]. RBDA eq. (2.24)."""
    X = np.full((6, 6), 0.0, dtype=dtype_of(E, r))
    X[:3, :3] = X[3:, 3:] = E
    X[3:, :3] = -matmul(E, skew(r))
    return X


def X_motions(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """`X_motion` (n, 6, 6) of rotations (n, 3, 3) and translations (n, 3), floats."""
    X = np.zeros((len(E), 6, 6))
    X[:, :3, :3] = X[:, 3:, 3:] = E
    X[:, 3:, :3] = np.cross(r[:, None, :], E)  # the rows of −E r×
    return X


def rotation(X: np.ndarray) -> np.ndarray:
    """Rotation part E (3, 3) of a Plücker transform."""
    return X[:3, :3]


def translation(X: np.ndarray) -> np.ndarray:
    """Translations r (…, 3) of Plücker transforms X (…, 6, 6), floats: the child origin in parent coordinates."""
    rx = -matmul(X[..., :3, :3].swapaxes(-1, -2), X[..., 3:, :3])
    entries = rx[..., 2, 1] - rx[..., 1, 2], rx[..., 0, 2] - rx[..., 2, 0], rx[..., 1, 0] - rx[..., 0, 1]
    return np.stack(entries, axis=-1) / 2


def X_inverse(X: np.ndarray) -> np.ndarray:
    """X⁻¹ = [E^T 0; (−E r×)^T E^T] (6, 6), without arithmetic operations."""
    Y = X.copy()
    Y[:3, :3] = Y[3:, 3:] = X[:3, :3].T
    Y[3:, :3] = X[3:, :3].T
    return Y


# ---- poses -----------------------------------------------------------------------------------------------------------


def pose(E: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Pose T = [E^T r; 0 1] (4, 4)."""
    T = np.full((4, 4), 0.0, dtype=dtype_of(E, r))
    T[:3, :3], T[:3, 3], T[3, 3] = E.T, r, 1.0
    return T


def pose_inverse(T: np.ndarray) -> np.ndarray:
    """T⁻¹ = [R^T −R^T p; 0 1] (4, 4)."""
    R, p = T[:3, :3], T[:3, 3]
    return pose(R, -matmul(R.T, p))


def adjoint(T: np.ndarray) -> np.ndarray:
    """Ad_T = [R 0; p×R R] = X_motion(R^T, p)⁻¹ (6, 6): twists from the child frame of T to its parent frame."""
    R, p = T[:3, :3], T[:3, 3]
    A = np.full((6, 6), 0.0, dtype=dtype_of(T))
    A[:3, :3] = A[3:, 3:] = R
    A[3:, :3] = matmul(skew(p), R)
    return A


def rotation_error(T: np.ndarray) -> float:
    """Largest entry of |R^T R − 1| for a pose T = [R p; 0 1] (4, 4) of floats."""
    R = T[:3, :3]
    return float(np.abs(matmul(R.T, R) - np.eye(3)).max())


def checked_pose(name: str, T: ArrayLike, tolerance: float = UNIT_ERROR, option: str = "") -> np.ndarray:
    """Check a pose and replace its rotation by the nearest orthogonal matrix.

    Parameters
    ----------
    name : str
        Name of the pose in messages.
    T : (4, 4) array_like
        Homogeneous matrix [R p; 0 1].
    tolerance : float
        Largest accepted entry of |R^T R − 1|.
    option : str
        Name of the option that sets the tolerance, for messages.

    Raises
    ------
    InvalidInput
        For a wrong shape, an entry that is not finite, a last row other than (0, 0, 0, 1), an error beyond the
        tolerance, or a reflection.

    References
    ----------
    Higham (1986), Newton iteration for the polar decomposition.
    """
    T = np.array(finite_array(name, T, (4, 4)))
    if T[3].tolist() != [0.0, 0.0, 0.0, 1.0]:
        raise InvalidInput(f"the last row of {name} is {T[3].tolist()}, not [0, 0, 0, 1]: is it transposed?")
    R = T[:3, :3]
    error = rotation_error(T)
    if error > tolerance:
        allowed = f"up to {tolerance:g} is corrected{f', or to {option}' if option else ''}"
        raise InvalidInput(
            f"the rotation of {name} is not orthogonal: R^T R differs from 1 by {error:.3g} ({allowed}). Take the "
            "nearest rotation U V^T, from U, s, Vt = numpy.linalg.svd(R), and look where the error comes from"
        )
    while error > 1e-15:
        R = T[:3, :3] = R - matmul(R, matmul(R.T, R) - np.eye(3)) / 2
        before, error = error, rotation_error(T)
        if error > before / 2:
            break
    if np.linalg.det(R) < 0.0:
        raise InvalidInput(f"the rotation of {name} has determinant −1: it is a reflection, one axis points backwards")
    return T


# ---- unit quaternions ------------------------------------------------------------------------------------------------


def quaternion_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quaternion product a ⊗ b (…, 4)."""
    u, w, v, s = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    return np.concatenate([w * v + s * u + np.cross(u, v), w * s - (u * v).sum(axis=-1, keepdims=True)], axis=-1)


def conjugate(p: np.ndarray) -> np.ndarray:
    """Conjugate p⁻¹ (…, 4) of a unit quaternion p."""
    return p * np.array([-1.0, -1.0, -1.0, 1.0])


def rotate(p: np.ndarray, x: np.ndarray) -> np.ndarray:
    """R x (…, 3): rotate x from body to parent coordinates by the unit quaternion p (…, 4)."""
    u = p[..., :3]
    t = 2 * np.cross(u, x)
    return x + p[..., 3:] * t + np.cross(u, t)


def quaternion_rates(p: np.ndarray) -> np.ndarray:
    """N (4, 3) in dp/dt = N ω, with ω (3,) in body coordinates. Column k is ½ p ⊗ (e_k, 0)."""
    x, y, z, w = 0.5 * p
    N = np.empty((4, 3), dtype=p.dtype)
    for k, row in enumerate(((w, -z, y), (z, w, -x), (-y, x, w), (-x, -y, -z))):
        for j, value in enumerate(row):
            N[k, j] = value
    return N


def random_quaternion(rng: np.random.Generator, batch: tuple[int, ...]) -> np.ndarray:
    """Random unit quaternions (*batch, 4), uniform over SO(3)."""
    p = rng.standard_normal((*batch, 4))
    return p / norm(p)[..., None]


def normalise_quaternions(q: np.ndarray, slices: Iterable[slice]) -> np.ndarray:
    """Copy of q, (…, nq) floats or (nq,) Expr, with normalised quaternions q[…, slice] for each of `slices`."""
    result = q.copy()
    for part in slices:
        p = q[..., part]
        result[..., part] = p / (sqrt(p @ p) if q.dtype == object else norm(p)[..., None])
    return result


def with_normalised_quaternions(program: Program, slices: Iterable[slice]) -> Program:
    """Program that first normalises the quaternions of its input group "q"."""
    slices = tuple(slices)
    if not slices or "q" not in program.inputs:
        return program
    graph = Graph(SHARING)
    q = normalise_quaternions(graph.inputs("q", program.inputs.sizes["q"]), slices)
    symbolic = to_graph(program, graph, {"q": list(q)})
    return symbolic.to_program({}, symbolic.outputs, program.ranges, simplified=False)  # keeps the rounding errors


def normalise_quaternion(name: str, q: np.ndarray, first: int) -> np.ndarray:
    """Copy of q (…, n) with the quaternion q[…, first : first + 4] normalised. Raises InvalidInput if it is zero."""
    q, place = np.array(q), slice(first, first + 4)
    norms = np.linalg.norm(q[..., place], axis=-1, keepdims=True)
    if np.any(norms == 0.0):
        raise InvalidInput(f"the quaternion {name}[{place.start}:{place.stop}] is zero and gives no attitude")
    q[..., place] /= norms
    return q


# ---- exponential map and logarithm -----------------------------------------------------------------------------------

# Halvings of the angle before the series in `smooth_trig`: 10 rad is reduced to 0.32 rad.
HALVINGS = 5
# Halvings of the half angle before the series in `so3_log_coefficients`: π/2 is reduced to 0.1 rad.
LOG_HALVINGS = 4
# Ratios of successive terms in the series of arcsin √t/√t, from the eighth to the second term.
ARCSINE = tuple((2 * k - 1) ** 2 / (2 * k * (2 * k + 1)) for k in range(7, 0, -1))
# Angle [rad] below which (θ − sin θ)/θ³ of floats is computed by its series to avoid cancellation.
SMALL_ANGLE = 0.3


def smooth_trig(square: Any) -> tuple[Any, Any, Any, Any]:
    """sin θ/θ, cos θ, (θ − sin θ)/θ³ and (1 − cos θ)/θ² as functions of θ², without branches or roots.

    All derivatives exist at θ = 0. The results have 15 digits up to 10 rad. The series are evaluated at θ/32; then the
    angle is doubled by sin 2x = 2 sin x cos x, cos 2x = 1 − 2 sin² x and
    2x − sin 2x = 2 (x − sin x) + 2 sin x (1 − cos x).
    """
    t = square * 4.0**-HALVINGS
    s = _series(t, 6, 20, 42, 72, 110)
    c = _series(t, 2, 12, 30, 56, 90, 132)
    b = 0.5 * _series(t, 12, 30, 56, 90, 132)  # (1 − cos x)/x²
    e = _series(t, 20, 42, 72, 110, 156) * (1 / 6)
    for _ in range(HALVINGS):
        s, c, b, e, t = s * c, 1.0 - 2.0 * t * s * s, 0.5 * s * s, 0.25 * (e + s * b), 4.0 * t
    return s, c, e, b


def _series(t: Any, *divisors: float) -> Any:
    """1 − t/a (1 − t/b (1 − …)) for divisors a, b and so on."""
    total: Any = 1.0
    for divisor in reversed(divisors):
        total = 1.0 - t * (1.0 / divisor) * total
    return total


def sinc(x: Any) -> Any:
    """sin x/x for floats, arrays of floats or Expr."""
    if not isinstance(x, (float, np.ndarray)):
        return smooth_trig(x * x)[0]
    nonzero = np.where(x == 0.0, 1.0, x)
    return np.where(x == 0.0, 1.0, sin(nonzero) / nonzero)


def so3_exp_coefficients(w: np.ndarray) -> tuple[Any, Any, Any]:
    """sin(θ/2)/(θ/2), cos(θ/2) and (θ − sin θ)/θ³ for a rotation vector w with θ = |w|.

    For floats w (…, 3), the results are (…, 1) and accurate at any angle. For expressions w (3,) they are scalars, see
    `smooth_trig`.
    """
    if w.dtype == object:
        half, cosine, third, rest = smooth_trig(0.25 * (w @ w))
        return half, cosine, 0.25 * (third + half * rest)  # at the doubled angle
    angle = norm(w)[..., None]
    large = np.where(angle < SMALL_ANGLE, 1.0, angle)
    third = np.where(angle < SMALL_ANGLE, _series(angle * angle, 20, 42, 72, 110) / 6, (large - sin(large)) / large**3)
    return sinc(angle / 2), cos(angle / 2), third


def so3_log_coefficients(cosine: Any, sine_squared: Any) -> tuple[Any, Any]:
    """x/sin x and (1 − x cot x)/(4 x²) as functions of cos x ≥ 0 and sin² x, without branches.

    All derivatives exist at x = 0. x is halved by cos(x/2) = √((1 + cos x)/2), then the series are evaluated, then
    x cot x = (x/2) (cot(x/2) − tan(x/2)) reverses the halvings.
    """
    cosines, t = [], sine_squared
    for _ in range(LOG_HALVINGS):
        t = t / (2.0 + 2.0 * cosine)
        cosine = sqrt(0.5 + 0.5 * cosine)
        cosines.append(cosine)
    ratio = 0.0 * t + 1.0
    for factor in ARCSINE:
        ratio = 1.0 + t * factor * ratio
    t = t * ratio * ratio  # x²
    rest = 1 / 3 + t * (1 / 45 + t * (2 / 945 + t * (1 / 4725 + t * (2 / 93555 + t * (1382 / 638512875)))))
    for cosine in reversed(cosines):
        rest = 0.25 * (rest + 1.0 / (ratio * cosine))
        ratio = ratio / cosine
    return ratio, 0.25 * rest


def quaternion_step(p: np.ndarray, w: np.ndarray) -> np.ndarray:
    """p ⊗ exp(w/2) (…, 4), normalised: the attitude after a rotation by the vector w (…, 3) in body coordinates."""
    half, cosine, _ = so3_exp_coefficients(w)
    if p.dtype == object or w.dtype == object:
        turn = np.array([*(0.5 * half * w), cosine], dtype=object)
    else:
        turn = np.concatenate([0.5 * half * w, cosine], axis=-1)
    return normalise_quaternions(quaternion_product(p, turn), [slice(0, 4)])


def quaternion_log(p0: np.ndarray, p1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ω, D): rotation vector ω (…, 3), |ω| ≤ π, p0 ⊗ exp(ω/2) = ±p1; D (…, 1) as in `left_jacobian_inverse`."""
    d = normalise_quaternions(quaternion_product(conjugate(p0), p1), [slice(0, 4)])
    d = d * (np.array([copysign(1.0, d[3])]) if d.dtype == object else np.copysign(1.0, d[..., 3:]))
    ratio, rest = so3_log_coefficients(d[..., 3:], (d[..., :3] ** 2).sum(axis=-1, keepdims=True))
    return 2.0 * ratio * d[..., :3], rest


def left_jacobian(w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """V(ω) v (…, 3) with V = 1 + B ω× + C ω×², B = (1 − cos θ)/θ², C = (θ − sin θ)/θ³, θ = |ω|."""
    half, _, third = so3_exp_coefficients(w)
    wv = np.cross(w, v)
    return v + 0.5 * half**2 * wv + third * np.cross(w, wv)


def left_jacobian_inverse(w: np.ndarray, rest: np.ndarray, p: np.ndarray) -> np.ndarray:
    """V⁻¹(ω) p (…, 3) with V⁻¹ = 1 − ω×/2 + D ω×². The argument `rest` is D = (1 − θ/2 cot θ/2)/θ²."""
    wp = np.cross(w, p)
    return p - 0.5 * wp + rest * np.cross(w, wp)


def se3_exp(V: np.ndarray) -> np.ndarray:
    """T = exp([V]) (4, 4): pose after unit time at the constant twist V = [ω; v] (6,). Floats.

    Accurate to a few ulp at any angle. Lynch & Park eqs. (3.51), (3.88).
    """
    w, v = np.array(V[:3], dtype=float), np.array(V[3:], dtype=float)
    return pose(quaternion_to_E(quaternion_step(np.array([0.0, 0.0, 0.0, 1.0]), w)), left_jacobian(w, v))


def se3_log(T: np.ndarray) -> np.ndarray:
    """V = [ω; v] (6,) with exp([V]) = T (4, 4) and |ω| ≤ π. Floats.

    If |ω| = π, two solutions exist; the one with a positive largest component ω_i is returned. Accurate to a few ulp at
    any angle. Scalar arithmetic is used since iterations spend most of their time here. Lynch & Park eqs. (3.53) …
    (3.61), (3.91), (3.92); quaternion from its largest entry, Shepperd (1978).
    """
    (a, b, c, p), (d, e, f, q), (g, h, i, r) = T.tolist()[:3]
    trace = a + e + i
    # (x, y, z, w): the quaternion, scaled by four times its largest entry
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
        return np.array([0.0, 0.0, 0.0, p, q, r])
    half = math.atan2(sine, w)
    rest = (1.0 - half * w / sine) / (4.0 * half * half) if half > 1e-8 else 1 / 12
    k = 2.0 * half / sine
    x, y, z = k * x, k * y, k * z
    a, b, c = y * r - z * q, z * p - x * r, x * q - y * p  # ω × p
    v = (
        p - 0.5 * a + rest * (y * c - z * b),
        q - 0.5 * b + rest * (z * a - x * c),
        r - 0.5 * c + rest * (x * b - y * a),
    )
    return np.array([x, y, z, *v])


def point_acceleration_term(qd: np.ndarray, first: Iterable[int]) -> np.ndarray:
    """ω × v (…, nv) in the linear parts of free joints. first: index of each joint velocity [ω; v] in q̇.

    The acceleration of the body origin is v̇ + ω × v in body axes.
    """
    extra = np.zeros_like(qd)
    for k in first:
        extra[..., k + 3 : k + 6] = np.cross(qd[..., k : k + 3], qd[..., k + 3 : k + 6])
    return extra
