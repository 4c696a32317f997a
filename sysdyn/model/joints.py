"""Joint types: motion subspaces, joint transforms and configuration manifolds. RBDA chapter 4.

A joint connects its parent-side frame, which X_tree places in the parent body, to the body frame. A new joint type is a
subclass of `Joint` with an entry in `JOINTS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, ModelError
from sysdyn.model.constants import clean, read_only
from sysdyn.model.se3 import (
    conjugate,
    dtype_of,
    left_jacobian,
    left_jacobian_inverse,
    quaternion_log,
    quaternion_rates,
    quaternion_step,
    quaternion_to_E,
    random_quaternion,
    rot_axis,
    rotate,
    sinc,
    vector,
)
from sysdyn.program.arrays import finite_array
from sysdyn.program.graph import cos, sin
from sysdyn.program.reproducible import dot, norm

Z_AXIS = (0.0, 0.0, 1.0)  # Default axis.


def unit_axis(axis: ArrayLike) -> tuple[float, float, float]:
    """`axis` (3,) normalised and cleaned. Raises ModelError if it is zero, not finite or of another shape."""
    a = finite_array("a joint axis", axis, (3,), ModelError)
    largest = float(np.max(np.abs(a)))
    if largest == 0.0:
        raise ModelError("a joint axis is zero: give its direction, for example (0, 0, 1)")
    # unit vectors are returned unchanged, so normalising is idempotent
    if not 0.5 < largest <= 1.0 or abs(float(dot(a, a)) - 1.0) > 4 * np.finfo(float).eps:
        a = a / largest / norm(a / largest)
    return tuple((clean(a) + 0.0).tolist())


def _scalars(x: ArrayLike) -> np.ndarray:
    """Convert x to an array: dtype object if it contains expressions, else float."""
    array = np.asarray(x)
    return array if array.dtype == object else array.astype(float, copy=False)


def _constant(q: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Constant matrix A with the dtype of q. In object arrays, the entries are Python floats."""
    return A.astype(object) if q.dtype == object and A.dtype != object else A


def _columns(columns: ArrayLike) -> np.ndarray:
    """Read-only matrix (6, n) from its columns."""
    return read_only(np.array(columns, dtype=float).reshape(-1, 6).T.copy())


@dataclass(frozen=True)
class Joint(ABC):
    """Base class of joint types. Its functions of q and v suit joints with q ∈ R^n; other types override them.

    `transform`, `attitude` and `rates` accept q (nq,) of floats, or an object array of Expr, floats and batches. They
    never branch on values, and their results have the dtype of q. `integrate` and `difference` accept floats with
    leading batch axes, or expressions (nq,).

    Attributes
    ----------
    nq, nv : int
        Numbers of position and velocity variables.
    kind : str
        Name of the joint type in files.
    S : (6, nv) array
        Constant motion subspace in body coordinates. The joint velocity is S v.
    angles : tuple of int
        Indices of q that enter `transform` only through sin and cos.
    quaternion : slice or None
        Slice of the unit quaternion (x, y, z, w) in q.
    """

    nq: ClassVar[int] = 1
    nv: ClassVar[int] = 1
    kind: ClassVar[str]
    angles: ClassVar[tuple[int, ...]] = ()
    quaternion: ClassVar[slice | None] = None

    @property
    @abstractmethod
    def S(self) -> np.ndarray: ...

    @abstractmethod
    def transform(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(E (3, 3), r (3,) [m]) of the joint transform X_J = [E 0; −E r× E], r in the parent-side frame."""

    def attitude(self, q: np.ndarray) -> np.ndarray:
        """Unit quaternion (x, y, z, w) of E^T, smooth in q (nq,). A full turn of an angle changes its sign.

        S is constant, so a joint without a quaternion rotates about at most one axis.
        """
        if self.quaternion is not None:
            return q[self.quaternion]
        rotating = np.flatnonzero(self.S[:3].any(axis=0))
        if not rotating.size:
            return _constant(q, np.array([0.0, 0.0, 0.0, 1.0]))
        (k,) = rotating.tolist()
        w = self.S[:3, k]
        size = float(norm(w))
        half = 0.5 * size * q[k]
        return vector([*(a * sin(half) for a in (w / size).tolist()), cos(half)], dtype_of(q))

    def neutral(self) -> np.ndarray:
        """Neutral position q (nq,), with E = 1 and r = 0."""
        return np.zeros(self.nq)

    def integrate(self, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """q ⊕ v (…, nq): exact position after unit time at the constant body velocity v (…, nv)."""
        return _scalars(q) + _scalars(v)

    def rates(self, q: np.ndarray) -> np.ndarray:
        """N(q) (nq, nv) in dq/dt = N(q) v: the derivative of `integrate` with respect to v at v = 0."""
        return _constant(q, np.eye(self.nq))

    def difference(self, q0: np.ndarray, q1: np.ndarray) -> np.ndarray:
        """v (…, nv) with q0 ⊕ v = q1. For quaternions: the shortest rotation, with q1 up to its sign."""
        return _scalars(q1) - _scalars(q0)

    def random(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> np.ndarray:
        """Random q (*batch, nq): angles uniform in ±π, lengths in ±1 m, attitudes over SO(3)."""
        high = np.array([math.pi if k in self.angles else 1.0 for k in range(self.nq)])
        return rng.uniform(-high, high, (*batch, self.nq))


@dataclass(frozen=True)
class AxisJoint(Joint):
    """Base class of joints with an axis, a vector in the parent-side frame. The axis is normalised."""

    axis: tuple[float, float, float] = Z_AXIS

    def __post_init__(self):
        object.__setattr__(self, "axis", unit_axis(self.axis))


class Revolute(AxisJoint):
    """Rotation by q [rad] about `axis`. q is not wrapped; continuous joints are also of this type."""

    kind: ClassVar[str] = "revolute"
    angles: ClassVar[tuple[int, ...]] = (0,)

    @cached_property
    def S(self) -> np.ndarray:
        return _columns([(*self.axis, 0.0, 0.0, 0.0)])

    def transform(self, q):
        return _constant(q, rot_axis(self.axis, q[0])), _constant(q, np.zeros(3))


class Prismatic(AxisJoint):
    """Translation by q [m] along `axis`."""

    kind: ClassVar[str] = "prismatic"

    @cached_property
    def S(self) -> np.ndarray:
        return _columns([(0.0, 0.0, 0.0, *self.axis)])

    def transform(self, q):
        return _constant(q, np.eye(3)), vector([a * q[0] for a in self.axis], dtype_of(q))


@dataclass(frozen=True)
class Helical(AxisJoint):
    """Screw motion: rotation by q [rad] about `axis` and translation by pitch·q along it, pitch in m/rad."""

    pitch: float = 0.1
    kind: ClassVar[str] = "helical"
    angles: ClassVar[tuple[int, ...]] = ()  # q also enters the translation

    def __post_init__(self):
        super().__post_init__()
        if not math.isfinite(self.pitch):
            raise ModelError(f"the pitch of a helical joint must be finite [m/rad], got {self.pitch}")
        object.__setattr__(self, "pitch", float(self.pitch))

    @cached_property
    def S(self) -> np.ndarray:
        return _columns([(*self.axis, *(self.pitch * a for a in self.axis))])

    def transform(self, q):
        advance = self.pitch * q[0]
        return _constant(q, rot_axis(self.axis, q[0])), vector([a * advance for a in self.axis], dtype_of(q))

    def random(self, rng, batch=()):
        return rng.uniform(-math.pi, math.pi, (*batch, 1))


class Cylindrical(AxisJoint):
    """Independent rotation q[0] [rad] about and translation q[1] [m] along `axis`; v = (q̇[0], q̇[1])."""

    nq: ClassVar[int] = 2
    nv: ClassVar[int] = 2
    kind: ClassVar[str] = "cylindrical"
    angles: ClassVar[tuple[int, ...]] = (0,)

    @cached_property
    def S(self) -> np.ndarray:
        return _columns([(*self.axis, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, *self.axis)])

    def transform(self, q):
        return _constant(q, rot_axis(self.axis, q[0])), vector([a * q[1] for a in self.axis], dtype_of(q))


@dataclass(frozen=True)
class Planar(Joint):
    """Planar motion: q = (x [m], y [m], θ [rad]), v = (vx, vy, ω) in body coordinates.

    x and y are coordinates in the parent-side frame, along two axes of the plane that form a right-handed frame with
    the unit vector `normal`. The x axis of the plane is the projection of a coordinate axis, the cyclic successor of
    the coordinate axis nearest to the normal. Normal z gives the axes x, y; normal x gives y, z; normal y gives z, x.
    """

    normal: tuple[float, float, float] = Z_AXIS
    nq: ClassVar[int] = 3
    nv: ClassVar[int] = 3
    kind: ClassVar[str] = "planar"
    angles: ClassVar[tuple[int, ...]] = (2,)

    def __post_init__(self):
        object.__setattr__(self, "normal", unit_axis(self.normal))

    @cached_property
    def plane(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """x and y axes of the plane, unit vectors in the parent-side frame."""
        n = np.array(self.normal)
        e = np.eye(3)[(int(np.argmax(np.abs(n))) + 1) % 3]
        x = unit_axis(e - dot(e, n) * n)
        return x, unit_axis(np.cross(n, x))

    @cached_property
    def S(self) -> np.ndarray:
        x, y = self.plane
        return _columns([(0.0, 0.0, 0.0, *x), (0.0, 0.0, 0.0, *y), (*self.normal, 0.0, 0.0, 0.0)])

    def transform(self, q):
        x, y = self.plane
        r = [a * q[0] + b * q[1] for a, b in zip(x, y, strict=True)]
        return _constant(q, rot_axis(self.normal, q[2])), vector(r, dtype_of(q))

    def rates(self, q):
        N = _constant(q, np.eye(3))
        c, s = cos(q[2]), sin(q[2])
        N[0, 0], N[0, 1], N[1, 0], N[1, 1] = c, -s, s, c
        return N

    def integrate(self, q, v):
        """q exp(v) on SE(2): p + Rot(θ) [s −k; k s] (vx, vy) and θ + ω, with s = sin ω/ω, k = (1 − cos ω)/ω."""
        q, v = _scalars(q), _scalars(v)
        w, angle = (x if x.ndim else x[()] for x in (v[..., 2], q[..., 2]))  # scalar expressions instead of 0-d arrays
        s, k, _ = _arc(w)
        dx, dy = s * v[..., 0] - k * v[..., 1], k * v[..., 0] + s * v[..., 1]
        c0, s0 = cos(angle), sin(angle)
        return np.stack([q[..., 0] + c0 * dx - s0 * dy, q[..., 1] + s0 * dx + c0 * dy, q[..., 2] + w], axis=-1)

    def difference(self, q0, q1):
        """log(q0⁻¹ q1) on SE(2) with ω = θ1 − θ0, not wrapped.

        Raises InvalidInput if v does not exist: the angles differ by full turns but the positions differ.
        """
        q0, q1 = _scalars(q0), _scalars(q1)
        d = q1 - q0
        w, angle = (x if x.ndim else x[()] for x in (d[..., 2], q0[..., 2]))
        c0, s0 = cos(angle), sin(angle)
        dx, dy = c0 * d[..., 0] + s0 * d[..., 1], c0 * d[..., 1] - s0 * d[..., 0]
        s, k, square = _arc(w)
        if q0.dtype != object and q1.dtype != object:
            full_turns = square < 1e-18
            if np.any(full_turns & ((dx != 0.0) | (dy != 0.0))):
                raise InvalidInput(
                    "no constant planar velocity connects two positions whose angles differ by whole turns; bring "
                    "the angles within 2π of each other first"
                )
            square = np.where(full_turns, 1.0, square)
        return np.stack([(s * dx + k * dy) / square, (s * dy - k * dx) / square, w], axis=-1)


def _arc(w: Any) -> tuple[Any, Any, Any]:
    """s = sin ω/ω, k = (1 − cos ω)/ω and s² + k² = sin²(ω/2)/(ω/2)²."""
    half = sinc(w / 2)
    return sinc(w), w / 2 * half**2, half**2


class Spherical(Joint):
    """Ball joint: q is the unit quaternion (x, y, z, w) of the attitude, v = ω [rad/s] in body coordinates."""

    nq: ClassVar[int] = 4
    nv: ClassVar[int] = 3
    kind: ClassVar[str] = "spherical"
    quaternion: ClassVar[slice | None] = slice(0, 4)

    @cached_property
    def S(self) -> np.ndarray:
        return _columns(np.eye(6)[:3])

    def transform(self, q):
        return _constant(q, quaternion_to_E(q)), _constant(q, np.zeros(3))

    def neutral(self):
        return np.array([0.0, 0.0, 0.0, 1.0])

    def rates(self, q):
        return quaternion_rates(q)

    def integrate(self, q, v):
        return quaternion_step(_scalars(q), _scalars(v))

    def difference(self, q0, q1):
        return quaternion_log(_scalars(q0), _scalars(q1))[0]

    def random(self, rng, batch=()):
        return random_quaternion(rng, batch)


class Free(Joint):
    """Free joint: q = [p; quaternion (x, y, z, w)], p [m] in the parent-side frame; v = [ω; v] in the body; S = 1."""

    nq: ClassVar[int] = 7
    nv: ClassVar[int] = 6
    kind: ClassVar[str] = "free"
    quaternion: ClassVar[slice | None] = slice(3, 7)

    @cached_property
    def S(self) -> np.ndarray:
        return _columns(np.eye(6))

    def transform(self, q):
        return _constant(q, quaternion_to_E(q[3:])), vector(list(q[:3]), dtype_of(q))

    def neutral(self):
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])

    def rates(self, q):
        N = _constant(q, np.zeros((7, 6)))
        N[:3, 3:], N[3:, :3] = quaternion_to_E(q[3:]).T, quaternion_rates(q[3:])
        return N

    def integrate(self, q, v):
        """q exp(v) on SE(3): p ⊕ = R V(ω) v."""
        q, v = _scalars(q), _scalars(v)
        w, d = v[..., :3], left_jacobian(v[..., :3], v[..., 3:])
        return np.concatenate([q[..., :3] + rotate(q[..., 3:], d), quaternion_step(q[..., 3:], w)], axis=-1)

    def difference(self, q0, q1):
        """log(q0⁻¹ q1) on SE(3), |ω| ≤ π."""
        q0, q1 = _scalars(q0), _scalars(q1)
        w, rest = quaternion_log(q0[..., 3:], q1[..., 3:])
        d = rotate(conjugate(q0[..., 3:]), q1[..., :3] - q0[..., :3])
        return np.concatenate([w, left_jacobian_inverse(w, rest, d)], axis=-1)

    def random(self, rng, batch=()):
        return np.concatenate([rng.uniform(-1.0, 1.0, (*batch, 3)), random_quaternion(rng, batch)], axis=-1)


class Fixed(Joint):
    """Fixed joint without degrees of freedom. It makes the wrench across the joint an unknown of the problem."""

    nq: ClassVar[int] = 0
    nv: ClassVar[int] = 0
    kind: ClassVar[str] = "fixed"

    @cached_property
    def S(self) -> np.ndarray:
        return _columns([])

    def transform(self, q):
        return _constant(q, np.eye(3)), _constant(q, np.zeros(3))


# {name in files: joint type}
JOINTS: dict[str, type[Joint]] = {
    cls.kind: cls for cls in (Revolute, Prismatic, Helical, Cylindrical, Planar, Spherical, Free, Fixed)
}
