"""The robot model: an immutable tree of bodies and joints."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, ModelError, PlausibilityWarning, UnknownName, check_among, few, warn
from sysdyn.files import html
from sysdyn.files.html import TextTable
from sysdyn.model.closures import (
    Closure,
    CoupledJoint,
    Coupling,
    check_closures,
    closure_from_dict,
    coupled_joints,
    coupling_matrix,
    friction_torque,
    impose,
)
from sysdyn.model.constants import UNIT_ERROR, clean, read_only
from sysdyn.model.frames import DeclaredSensor, Frame, Origin
from sysdyn.model.joints import JOINTS, Joint
from sysdyn.model.se3 import translation
from sysdyn.model.validate import (
    check_base,
    check_count,
    check_position_limits,
    check_tree,
    checked_frames,
    checked_inertias,
    checked_parents,
    checked_placements,
    implausibility,
)
from sysdyn.program.arrays import batch_axes, broadcast_shapes, finite_array, float_array, to_plain
from sysdyn.program.groups import slices

GRAVITY = (0.0, 0.0, -9.81)  # Default gravity in base coordinates [m/s²].
# Names of the fields (nv,) with joint limits.
_LIMITS = ("lower", "upper", "velocity_limit", "effort_limit")
# {field (nv,) that must be ≥ 0: reason}
_NONNEGATIVE = {
    "armature": "rotor inertias are ≥ 0", "damping": "it takes energy and is ≥ 0", "friction": "it is ≥ 0",
}  # fmt: skip
# Velocity [rad/s, m/s] at which smoothed Coulomb friction reaches 1/√2 of its full value: chosen.
COULOMB_VELOCITY = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """An articulated robot: an immutable, validated tree of bodies and joints.

    Bodies are numbered 0 … nb−1; joint i moves body i. Arrays are read-only copies; `replace` returns a changed model.
    All quantities are in SI units. Spatial vectors have the angular part first, in body coordinates.

    Parameters
    ----------
    name : str
        Name of the robot.
    body_names, joint_names : (nb,) sequences of str
        Unique names.
    joints : (nb,) sequence of Joint
        The joint between body parent[i] and body i.
    parent : (nb,) sequence of int
        parent[i] < i; −1 is the base.
    X_tree : (nb, 6, 6) array_like
        Constant motion transforms from the parent body to the parent-side frame of each joint. Entries within 1e-12 of
        0 and ±1 are rounded to them.
    inertias : (nb, 6, 6) array_like, kg m², kg m and kg
        Spatial inertias at the body origins in body coordinates.
    gravity : (3,) array_like, m/s²
        Gravity in base coordinates.
    armature : (nv,) array_like, kg m² or kg, optional
        Reflected rotor inertia of each degree of freedom. Default 0.
    frames : mapping of str to Frame, optional
        Named frames. Each body gets a frame with its name.
    base : {"fixed", "floating"}
        In a model with a floating base, joint 0 is `Free` and carries all bodies.
    sensors : sequence of DeclaredSensor, optional
        Sensors of the robot file.
    lower, upper, velocity_limit, effort_limit : (nv,) array_like, optional
        Limits of q, q̇ and τ; ±inf for no limit. lower and upper apply to joints with one degree of freedom only.
    damping, friction : (nv,) array_like, N m s/rad or N s/m, and N m or N, optional
        Damping and Coulomb friction, ≥ 0. Only `passive_torque` and `MotorTorque(…, passive=True)` use them.
    closures : sequence of Coupling or Loop, optional
        Joint couplings and kinematic loops. Problems impose them; algorithms for trees (RNEA, ABA …) ignore them.
    source : Origin, optional
        The robot file, needed for its shapes; None for a changed or stored model.
    strict : bool or None
        Treatment of physically inconsistent inertias. True: ModelError, False: PlausibilityWarning, None: no check.

    Raises
    ------
    ModelError
        For an invalid field. The message names the body, joint or frame.
    """

    name: str
    body_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    joints: tuple[Joint, ...]
    parent: tuple[int, ...]
    X_tree: np.ndarray
    inertias: np.ndarray
    gravity: np.ndarray = GRAVITY  # type: ignore[assignment]
    armature: np.ndarray = None  # type: ignore[assignment]
    frames: Mapping[str, Frame] = None  # type: ignore[assignment]
    base: str = "fixed"
    sensors: tuple[DeclaredSensor, ...] = ()
    lower: np.ndarray = None  # type: ignore[assignment]
    upper: np.ndarray = None  # type: ignore[assignment]
    velocity_limit: np.ndarray = None  # type: ignore[assignment]
    effort_limit: np.ndarray = None  # type: ignore[assignment]
    damping: np.ndarray = None  # type: ignore[assignment]
    friction: np.ndarray = None  # type: ignore[assignment]
    closures: tuple[Closure, ...] = ()
    source: Origin | None = field(default=None, compare=False)
    strict: InitVar[bool | None] = False

    def __post_init__(self, strict: bool | None):
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        check_count(len(self.parent))
        for name in ("body_names", "joint_names", "joints", "sensors", "closures"):
            put(name, tuple(getattr(self, name)))
        put("parent", checked_parents(self.parent))
        check_tree(self)
        check_base(self)
        nb, nv = self.nb, self.nv
        X_tree = finite_array("X_tree", self.X_tree, (nb, 6, 6), ModelError)
        placements = checked_placements(X_tree, [f"X_tree of body {x!r}" for x in self.body_names])
        put("X_tree", read_only(placements))
        inertias = finite_array("inertias", self.inertias, (nb, 6, 6), ModelError)
        put("inertias", read_only(checked_inertias(inertias, self.body_names)))
        put("gravity", read_only(finite_array("gravity", self.gravity, (3,), ModelError)))
        for name, reason in _NONNEGATIVE.items():
            value = getattr(self, name)
            value = finite_array(name, np.zeros(nv) if value is None else value, (nv,), ModelError)
            if np.any(value < 0.0):
                raise ModelError(f"the {name} of {self.dof_names[int(np.argmin(value))]!r} is {value.min()}; {reason}")
            put(name, read_only(value))
        for name in _LIMITS:
            value = getattr(self, name)
            if value is None:
                value = np.full(nv, -math.inf if name == "lower" else math.inf)
            put(name, read_only(finite_array(name, value, (nv,), ModelError, infinite=True)))
        check_position_limits(self)
        put("frames", MappingProxyType(checked_frames(self)))
        check_closures(self)
        _ = self.couplings
        if strict is not None:
            self._check_plausible(strict)

    # ---- sizes and names -----------------------------------------------------------------------------------------

    @property
    def nb(self) -> int:
        """Number of moving bodies."""
        return len(self.parent)

    @cached_property
    def nq(self) -> int:
        """Number of position variables."""
        return sum(joint.nq for joint in self.joints)

    @cached_property
    def nv(self) -> int:
        """Number of velocity variables (degrees of freedom)."""
        return sum(joint.nv for joint in self.joints)

    @cached_property
    def _q_slices(self) -> list[slice]:
        return slices(joint.nq for joint in self.joints)

    @cached_property
    def _v_slices(self) -> list[slice]:
        return slices(joint.nv for joint in self.joints)

    def q_slice(self, i: int) -> slice:
        """Slice of joint i in q."""
        return self._q_slices[i]

    def v_slice(self, i: int) -> slice:
        """Slice of joint i in q̇, q̈ and τ."""
        return self._v_slices[i]

    @cached_property
    def dof_names(self) -> tuple[str, ...]:
        """Names of the degrees of freedom (nv,): the joint name, with [k] if the joint has several."""
        names: list[str] = []
        for name, joint in zip(self.joint_names, self.joints, strict=True):
            names += [name] if joint.nv == 1 else [f"{name}[{k}]" for k in range(joint.nv)]
        return tuple(names)

    @cached_property
    def _body_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.body_names)}

    @cached_property
    def _joint_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.joint_names)}

    def body_index(self, name: str) -> int:
        """Index of the body called `name`. Raises UnknownName."""
        if name not in self._body_index:
            raise UnknownName("body", name, self.body_names, self.lumped(name))
        return self._body_index[name]

    def joint_index(self, name: str) -> int:
        """Index of the joint called `name`. Raises UnknownName."""
        if name not in self._joint_index:
            raise UnknownName("joint", name, self.joint_names, self.lumped(name))
        return self._joint_index[name]

    def frame(self, name: str) -> Frame:
        """The frame called `name`. Raises UnknownName."""
        check_among("frame", name, self.frames)
        return self.frames[name]

    def lumped(self, name: str) -> str:
        """Message text on how to keep a joint, if `name` is a lumped fixed joint or its child link; else ""."""
        for f in self.frames.values():
            if f.joint and name in (f.name, f.joint):
                body = f"body {self.body_names[f.body]!r}" if f.body >= 0 else "the base"
                what = f"It is a fixed joint, lumped with link {f.name!r} into {body}"
                if name == f.name:
                    what = f"It is a link that fixed joint {f.joint!r} lumps into {body}, and a frame of it"
                return f"{what}: load the robot with fixed_joints=[{f.joint!r}] to keep it."
        return ""

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children μ(i) of each body i, (nb,) tuples of indices."""
        mu: list[list[int]] = [[] for _ in self.parent]
        for i, p in enumerate(self.parent):
            if p >= 0:
                mu[p].append(i)
        return tuple(map(tuple, mu))

    @cached_property
    def r_tree(self) -> np.ndarray:
        """Origins (nb, 3) [m] of the parent-side joint frames in the parent bodies, cleaned of rounding errors."""
        return read_only(clean([translation(X) for X in self.X_tree])).reshape(-1, 3)

    @cached_property
    def a0(self) -> np.ndarray:
        """Proper spatial acceleration (6,) of the base, [0, −gravity]; it replaces gravity forces."""
        return read_only(np.concatenate([np.zeros(3), 0.0 - self.gravity]))

    @cached_property
    def mass(self) -> float:
        """Total mass of the moving bodies [kg]."""
        return float(self.inertias[:, 5, 5].sum())

    # ---- states --------------------------------------------------------------------------------------------------

    def neutral(self) -> np.ndarray:
        """Neutral position q (nq,): every joint transform is the identity."""
        return np.concatenate([joint.neutral() for joint in self.joints] or [np.zeros(0)])

    def random_state(
        self, seed: int = 0, batch: int | None = None, scale: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A random state: uniform angles, lengths, attitudes, velocities and accelerations.

        Parameters
        ----------
        seed : int
            The same seed gives the same state.
        batch : int, optional
            Number of states.
        scale : float
            q̇ and q̈ are uniform in ±scale.

        Returns
        -------
        q, qd, qdd : (nq,), (nv,), (nv,) arrays, or with a leading axis of length `batch`
            q has angles in ±π and lengths in ±1 m; joint limits are ignored. Followers satisfy their couplings.
        """
        rng = np.random.default_rng(seed)
        shape = () if batch is None else (batch,)
        q = np.concatenate([joint.random(rng, shape) for joint in self.joints] or [np.zeros((*shape, 0))], axis=-1)
        qd, qdd = rng.uniform(-scale, scale, (*shape, self.nv)), rng.uniform(-scale, scale, (*shape, self.nv))
        return impose(self.couplings, q, qd, qdd)

    @cached_property
    def couplings(self) -> tuple[CoupledJoint, ...]:
        """Couplings with indices in q and q̇, sorted so that leaders precede followers."""
        return coupled_joints(self)

    @cached_property
    def followers(self) -> tuple[str, ...]:
        """Names of the coupled joints, whose position is a function of their leader."""
        return tuple(c.joint for c in self.closures if isinstance(c, Coupling))

    def imposed(
        self, q: ArrayLike, qd: ArrayLike | None = None, qdd: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of q (…, nq), q̇ and q̈ (…, nv) in which followers satisfy their couplings.

        If q̇ or q̈ is None, it is zero.
        """
        zero = np.zeros(self.nv)
        rates = [(name, zero if x is None else x, self.nv) for name, x in (("qd", qd), ("qdd", qdd))]
        return impose(self.couplings, *self._broadcast(("q", q, self.nq), *rates))

    def coupling_matrix(self, q: ArrayLike) -> np.ndarray:
        """Coupling matrix G (nv, n) at q (nq,), with a column for each independent degree of freedom.

        q̇ = G q̇_independent, τ_independent = G^T τ, and G^T H G is the joint-space inertia of the coupled robot.
        """
        return coupling_matrix(self.couplings, self.nv, _to_floats("q", q, self.nq))

    def passive_torque(self, qd: ArrayLike, slip: float = COULOMB_VELOCITY) -> np.ndarray:
        """Passive torque −(damping·q̇ + friction·q̇/√(q̇² + slip²)) (…, nv) at q̇ (…, nv). Add it to motor torques."""
        return 0.0 - friction_torque(self.damping, self.friction, _to_floats("qd", qd, self.nv), slip)

    def integrate(self, q: ArrayLike, v: ArrayLike, dt: float = 1.0) -> np.ndarray:
        """q ⊕ v dt (…, nq): exact for a velocity v (…, nv) that is constant in body coordinates during dt [s]."""
        q, v = self._broadcast(("q", q, self.nq), ("v", v, self.nv))
        result, v = np.empty(q.shape), v * dt
        for joint, iq, iv in zip(self.joints, self._q_slices, self._v_slices, strict=True):
            result[..., iq] = joint.integrate(q[..., iq], v[..., iv])
        return result

    def difference(self, q0: ArrayLike, q1: ArrayLike) -> np.ndarray:
        """v (…, nv) with q0 ⊕ v = q1. Quaternions: shortest rotation, with q1 up to its sign."""
        q0, q1 = self._broadcast(("q0", q0, self.nq), ("q1", q1, self.nq))
        result = np.empty((*q0.shape[:-1], self.nv))
        for joint, iq, iv in zip(self.joints, self._q_slices, self._v_slices, strict=True):
            result[..., iv] = joint.difference(q0[..., iq], q1[..., iq])
        return result

    def normalise(self, q: ArrayLike) -> np.ndarray:
        """q (…, nq) with normalised quaternions; the same array if nothing changes.

        Raises InvalidInput for a wrong shape, and for a quaternion whose norm is NaN or differs from 1 by more than
        1e-6. The message has the joint, the norm and the index of the state in a batch.
        """
        q = _to_floats("q", q, self.nq)
        result = q
        for name, part in self.quaternions:
            norm = np.linalg.norm(q[..., part], axis=-1)
            error = np.abs(norm - 1.0)
            wrong = ~(error <= UNIT_ERROR)
            if np.any(wrong):
                index = np.unravel_index(int(np.argmax(wrong)), norm.shape)
                state = f" of state {index[0] if len(index) == 1 else tuple(map(int, index))}" if index else ""
                raise InvalidInput(
                    f"the quaternion of joint {name!r}{state} has norm {float(norm[index]):.9g}, not 1 within 1e-6; "
                    "divide it by its norm (order x, y, z, w)"
                )
            inexact = error > 4 * np.finfo(float).eps
            if np.any(inexact):
                result = q.copy() if result is q else result
                result[..., part] /= np.where(inexact, norm, 1.0)[..., None]  # independent of the other states
        return result

    @cached_property
    def quaternions(self) -> tuple[tuple[str, slice], ...]:
        """(joint name, slice of q) of each quaternion."""
        return tuple(
            (name, slice(part.start + joint.quaternion.start, part.start + joint.quaternion.stop))
            for name, joint, part in zip(self.joint_names, self.joints, self._q_slices, strict=True)
            if joint.quaternion is not None
        )

    def _broadcast(self, *named: tuple[str, ArrayLike, int]) -> list[np.ndarray]:
        """Convert (name, array, n) to float arrays (…, n) with common leading axes."""
        arrays = {x[0]: _to_floats(*x) for x in named}
        lead = broadcast_shapes({name: x.shape[:-1] for name, x in arrays.items()})
        return [np.broadcast_to(x, (*lead, x.shape[-1])) for x in arrays.values()]

    # ---- copies and files ----------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Model:
        """A validated copy with changed fields. Raises UnknownName for an unknown field."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        for name in changes:
            if name not in known and name != "strict":
                raise UnknownName("field of Model", name, known)
        for name in ("damping", "friction"):
            if not known[name].any():
                changes.setdefault(name, None)  # default zero, with the new number of degrees of freedom
        if "inertias" not in changes:
            changes.setdefault("strict", None)  # this model has already warned
        return Model(**{**known, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Convert the model to lists, strings and exact floats, as for JSON. Infinite limits become None."""
        data = {f.name: to_plain(getattr(self, f.name)) for f in fields(self) if f.compare}
        return data | {
            "joints": [_joint_to_dict(joint) for joint in self.joints],
            "frames": [_field_values(f) for f in self.frames.values()],
            "sensors": [_field_values(s) for s in self.sensors],
            "closures": [_field_values(c) for c in self.closures],
            **{name: [x if math.isfinite(x) else None for x in getattr(self, name).tolist()] for name in _LIMITS},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """Restore a model from `to_dict`. Raises ModelError for missing or unknown fields."""
        names = {f.name for f in fields(cls) if f.compare}
        if set(data) != names:
            missing, extra = sorted(names - set(data)), sorted(set(data) - names)
            raise ModelError(f"not the data of a Model: missing fields {missing}, unknown fields {extra}")
        values = dict(data)
        values["joints"] = tuple(_joint_from_dict(joint) for joint in data["joints"])
        values["frames"] = {f["name"]: Frame(**f) for f in data["frames"]}
        values["sensors"] = tuple(DeclaredSensor(**s) for s in data["sensors"])
        values["closures"] = tuple(closure_from_dict(c) for c in data["closures"])
        for name in _LIMITS:
            none = -math.inf if name == "lower" else math.inf
            values[name] = [none if x is None else x for x in data[name]]
        return cls(**values, strict=None)

    def __reduce__(self):
        return Model.from_dict, (self.to_dict(),)

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of the fields in the equations of motion, without names, frames and limits."""
        arrays = ("X_tree", "inertias", "gravity", "armature")
        data = {name: (getattr(self, name) + 0.0).tolist() for name in arrays}  # −0.0 is 0.0
        data |= {"joints": [_joint_to_dict(joint) for joint in self.joints], "parent": self.parent}
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def table(self) -> TextTable:
        """Table of the bodies with joints, parents, masses and position limits."""
        rows = []
        for i, (name, joint, p) in enumerate(zip(self.body_names, self.joints, self.parent, strict=True)):
            part, limits = self.v_slice(i), ""
            if joint.nv == 1 and np.isfinite([*self.lower[part], *self.upper[part]]).all():
                limits = f"{self.lower[part][0]:.3g} … {self.upper[part][0]:.3g}"
            parent = self.body_names[p] if p >= 0 else "(base)"
            mass = f"{self.inertias[i, 5, 5]:.4g}"
            rows.append((str(i), name, self.joint_names[i], joint.kind, parent, mass, limits))
        columns = ("", "body", "joint", "type", "parent", "mass (kg)", "limits")
        return TextTable(f"{self.nb} bodies", columns, rows, left=5)

    def _repr_html_(self) -> str:
        return html.fragment(html.text(repr(self)), html.table(self.table()))

    def __repr__(self) -> str:
        kinds = Counter(joint.kind for joint in self.joints)
        shown = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "none"
        g = ", ".join(f"{x:g}" for x in self.gravity)
        rows = [
            f"Model {self.name!r}",
            f"  bodies   {self.nb} on a {self.base} base, nq = {self.nq}, nv = {self.nv}",
            f"  joints   {shown}",
            f"  mass     {self.mass:.6g} kg, gravity ({g}) m/s²",
            f"  frames   {len(self.frames)}, sensors {len(self.sensors)}",
        ]
        if self.closures:
            followers = ", ".join(self.followers[:4]) + (", …" if len(self.followers) > 4 else "") or "none"
            rows.append(f"  coupled  {followers}; loops {len(self.closures) - len(self.followers)}")
        return "\n".join(rows)

    def _check_plausible(self, strict: bool) -> None:
        reasons = [
            f"{x!r}: {why}" for x, I in zip(self.body_names, self.inertias, strict=True) if (why := implausibility(I))
        ]
        if not reasons:
            return
        message = f"model {self.name!r} has inertias no rigid body can have: {few(reasons, between='; ')}"
        if strict:
            raise ModelError(f"{message}. Correct them, or load with strict=False to use them as they are.")
        warn(f"{message}. They are used as they are; strict=True makes this an error", PlausibilityWarning)


def _to_floats(name: str, x: ArrayLike, n: int) -> np.ndarray:
    """Convert x (…, n) to floats. Raises InvalidInput for a wrong shape."""
    x = float_array(name, x)
    batch_axes(name, x, (n,))
    return x


def _field_values(x: Any) -> dict[str, Any]:
    """Fields of a dataclass in JSON types."""
    return {f.name: to_plain(getattr(x, f.name)) for f in fields(x)}


def _joint_to_dict(joint: Joint) -> dict[str, Any]:
    return {"type": joint.kind, **_field_values(joint)}


def _joint_from_dict(data: Mapping[str, Any]) -> Joint:
    check_among("joint type", data.get("type"), JOINTS)
    return JOINTS[data["type"]](**{k: v for k, v in data.items() if k != "type"})
