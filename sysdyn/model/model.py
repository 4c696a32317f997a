"""The robot: a tree of bodies joined by joints, as immutable data, validated when it is made.

Bodies are numbered 0 … nb−1 with parent[i] < i and −1 for the base; body i is moved by joint i. Everything is in SI
units; spatial quantities are angular-first in body coordinates.
"""

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
    Coupling,
    Link,
    check_closures,
    dissipated,
    impose,
    matrix,
    ordered,
    restored,
    stored,
)
from sysdyn.model.frames import Frame, Origin, Sensor
from sysdyn.model.joints import JOINTS, Free, Joint
from sysdyn.model.validate import (
    check_count,
    check_names,
    checked_inertias,
    checked_parents,
    checked_placement,
    frozen,
    implausible,
)
from sysdyn.program.arrays import batch_axes, broadcast_shapes, finite_array, float_array
from sysdyn.program.groups import slices

GRAVITY = (0.0, 0.0, -9.81)  # The gravity of models without any, in base coordinates [m/s²].
# Fields of the limits of joints, each (nv,).
_LIMITS = ("lower", "upper", "velocity_limit", "effort_limit")
# Fields of degrees of freedom that are not negative, each (nv,), and the complaint about negative ones.
_RESISTANCES = {
    "armature": "rotor inertias are ≥ 0", "damping": "it takes energy and is ≥ 0", "friction": "it is ≥ 0",
}  # fmt: skip
# Velocity [rad/s, m/s] at which friction has grown to 1/√2 of its full size (chosen).
SLIP = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """An articulated robot. Arrays are read-only copies; `replace` makes a changed model.

    name: of the robot.
    body_names, joint_names (nb): unique; body i is the child link of joint i.
    joints (nb): the joint between body parent[i] and body i.
    parent (nb): parent[i] < i, −1 for the base.
    X_tree (nb, 6, 6): constant motion transform from the parent body to the parent-side frame of joint i;
        entries of its E and r within 1e-12 of 0 and ±1 are snapped.
    inertias (nb, 6, 6) [kg m², kg m, kg]: spatial inertia at the body origin in body coordinates.
    gravity (3,) [m/s²]: in base coordinates.
    armature (nv,): reflected rotor inertia added to the joint's own equation (default 0).
    frames: by name; each body has one of its own name, and so has every lumped link.
    base: "fixed" or "floating" (then joint 0 is `Free`).
    sensors: as declared in the file.
    lower, upper, velocity_limit, effort_limit (nv,): ±inf if there is none; lower and upper only for joints with one
        degree of freedom.
    damping [N m s/rad or N s/m], friction [N m or N] (nv,): ≥ 0; no equation has them unless `passive_torque` or
        `MotorTorque(…, passive=True)` is used.
    closures: `Coupling`s of joints and `Loop`s of frames, which problems impose and algorithms of trees do not.
    source: the robot file that it was read from, for its shapes; None for a changed or stored model.
    strict: raise ModelError for implausible inertias instead of warning (None: do not look).

    Raises ModelError naming the body or field that is wrong; warns with PlausibilityWarning of inertias no rigid body
    can have (as real files contain).
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
    sensors: tuple[Sensor, ...] = ()
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
        self._check_tree()
        nb, nv = self.nb, self.nv
        X_tree = finite_array("X_tree", self.X_tree, (nb, 6, 6), ModelError).copy()
        for i in range(nb):
            X_tree[i] = checked_placement(X_tree[i], f"X_tree of body {self.body_names[i]!r}")
        put("X_tree", frozen(X_tree))
        inertias = finite_array("inertias", self.inertias, (nb, 6, 6), ModelError)
        put("inertias", frozen(checked_inertias(inertias, self.body_names)))
        put("gravity", frozen(finite_array("gravity", self.gravity, (3,), ModelError)))
        for name, what in _RESISTANCES.items():
            value = getattr(self, name)
            value = finite_array(name, np.zeros(nv) if value is None else value, (nv,), ModelError)
            if np.any(value < 0.0):
                raise ModelError(f"the {name} of {self.dof_names[int(np.argmin(value))]!r} is {value.min()}; {what}")
            put(name, frozen(value))
        for name in _LIMITS:
            value = getattr(self, name)
            if value is None:
                value = np.full(nv, -math.inf if name == "lower" else math.inf)
            put(name, frozen(finite_array(name, value, (nv,), ModelError, infinite=True)))
        self._check_position_limits()
        put("frames", self._completed_frames(self.frames))
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
        """Place of the position of joint i in q."""
        return self._q_slices[i]

    def v_slice(self, i: int) -> slice:
        """Place of the velocity of joint i in q̇, q̈ and τ."""
        return self._v_slices[i]

    @cached_property
    def dof_names(self) -> tuple[str, ...]:
        """Name of each velocity variable (nv): the joint's, with [k] if it has several."""
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
        """Number of the body called `name`. Raises UnknownName with near matches."""
        if name not in self._body_index:
            raise UnknownName("body", name, self.body_names, self.lumped(name))
        return self._body_index[name]

    def joint_index(self, name: str) -> int:
        """Number of the joint called `name`. Raises UnknownName with near matches."""
        if name not in self._joint_index:
            raise UnknownName("joint", name, self.joint_names, self.lumped(name))
        return self._joint_index[name]

    def frame(self, name: str) -> Frame:
        """The frame called `name`. Raises UnknownName with near matches."""
        check_among("frame", name, self.frames)
        return self.frames[name]

    def lumped(self, name: str) -> str:
        """Advice for messages if a fixed joint, or the link beyond it, of this name was lumped; empty if not."""
        for f in self.frames.values():
            if f.joint and name in (f.name, f.joint):
                body = f"body {self.body_names[f.body]!r}" if f.body >= 0 else "the base"
                said = f"It is a fixed joint, lumped with link {f.name!r} into {body}"
                if name == f.name:
                    said = f"It is a link that fixed joint {f.joint!r} lumps into {body}, and a frame of it"
                return f"{said}: load the robot with fixed_joints=[{f.joint!r}] to keep it."
        return ""

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """μ(i) (nb): the bodies whose parent is i."""
        mu: list[list[int]] = [[] for _ in self.parent]
        for i, p in enumerate(self.parent):
            if p >= 0:
                mu[p].append(i)
        return tuple(map(tuple, mu))

    @cached_property
    def a0(self) -> np.ndarray:
        """(6,) proper spatial acceleration of the base, [0, −gravity]: gravity folded in."""
        return frozen(np.concatenate([np.zeros(3), 0.0 - self.gravity]))

    @cached_property
    def mass(self) -> float:
        """Total mass of the moving bodies [kg]."""
        return float(self.inertias[:, 5, 5].sum())

    # ---- states --------------------------------------------------------------------------------------------------

    def neutral(self) -> np.ndarray:
        """q (nq,) at which every joint transform is the identity."""
        return np.concatenate([joint.neutral() for joint in self.joints] or [np.zeros(0)])

    def random_state(
        self, seed: int = 0, batch: int | None = None, scale: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(q (nq,), q̇ (nv,), q̈ (nv,)), each with a leading axis of length `batch` if given; the same for the same seed.

        q: angles uniform in ±π, lengths in ±1 m, attitudes uniform (position limits are not looked at); q̇ and q̈
        uniform in ±`scale`. Followers move as their leaders demand.
        """
        rng = np.random.default_rng(seed)
        shape = () if batch is None else (batch,)
        q = np.concatenate([joint.random(rng, shape) for joint in self.joints] or [np.zeros((*shape, 0))], axis=-1)
        qd, qdd = rng.uniform(-scale, scale, (*shape, self.nv)), rng.uniform(-scale, scale, (*shape, self.nv))
        return impose(self.couplings, q, qd, qdd)

    @cached_property
    def couplings(self) -> tuple[Link, ...]:
        """The couplings by places in q and q̇, leaders first."""
        return ordered(self)

    @cached_property
    def followers(self) -> tuple[str, ...]:
        """Names of the joints whose position is a function of another's."""
        return tuple(c.joint for c in self.closures if isinstance(c, Coupling))

    def imposed(
        self, q: ArrayLike, qd: ArrayLike | None = None, qdd: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(q (…, nq), q̇ (…, nv), q̈ (…, nv)) with the entries of followers as their leaders demand; None: zeros."""
        rest = np.zeros(self.nv)
        rates = [(name, rest if x is None else x, self.nv) for name, x in (("qd", qd), ("qdd", qdd))]
        q, qd, qdd = self._together(("q", q, self.nq), *rates)
        return impose(self.couplings, q, qd, qdd)

    def coupling_matrix(self, q: ArrayLike) -> np.ndarray:
        """G (nv, n) at q (nq,), with a column for each degree of freedom that follows no other, in order.

        q̇ = G q̇_independent, τ_independent = G^T τ, and G^T H G is the joint-space inertia of the coupled robot.
        """
        return matrix(self.couplings, self.nv, self._shaped("q", q, self.nq))

    def passive_torque(self, qd: ArrayLike, slip: float = SLIP) -> np.ndarray:
        """−(damping q̇ + friction q̇/√(q̇² + slip²)) (…, nv) at q̇ (…, nv), to be added to the τ of motors."""
        return 0.0 - dissipated(self.damping, self.friction, self._shaped("qd", qd, self.nv), slip)

    def integrate(self, q: ArrayLike, v: ArrayLike, dt: float = 1.0) -> np.ndarray:
        """q ⊕ v dt (…, nq): exact for velocities v (…, nv) constant in body coordinates over dt [s]."""
        q, v = self._together(("q", q, self.nq), ("v", v, self.nv))
        result, v = np.empty(q.shape), v * dt
        for joint, iq, iv in zip(self.joints, self._q_slices, self._v_slices, strict=True):
            result[..., iq] = joint.integrate(q[..., iq], v[..., iv])
        return result

    def difference(self, q0: ArrayLike, q1: ArrayLike) -> np.ndarray:
        """v (…, nv) with q0 ⊕ v = q1 (quaternions up to sign, by the shortest rotation)."""
        q0, q1 = self._together(("q0", q0, self.nq), ("q1", q1, self.nq))
        result = np.empty((*q0.shape[:-1], self.nv))
        for joint, iq, iv in zip(self.joints, self._q_slices, self._v_slices, strict=True):
            result[..., iv] = joint.difference(q0[..., iq], q1[..., iq])
        return result

    def normalise(self, q: ArrayLike) -> np.ndarray:
        """q (…, nq) with its quaternions normalised; the same array if they are already.

        Raises InvalidInput for a wrong shape, and for a quaternion whose norm differs from 1 by more than 1e-6 (or is
        not a number), naming the joint, the norm and, in a batch, the state.
        """
        q = self._shaped("q", q, self.nq)
        result = q
        for name, part in self.quaternions:
            norm = np.linalg.norm(q[..., part], axis=-1)
            error = np.abs(norm - 1.0)
            if np.any(~(error <= 1e-6)):
                where = np.unravel_index(int(np.argmax(~(error <= 1e-6))), norm.shape)
                state = f" of state {where[0] if len(where) == 1 else tuple(map(int, where))}" if where else ""
                raise InvalidInput(
                    f"the quaternion of joint {name!r}{state} has norm {float(norm[where]):.9g}, not 1 within 1e-6; "
                    "divide it by its norm (order x, y, z, w)"
                )
            off = error > 4 * np.finfo(float).eps
            if np.any(off):
                if result is q:
                    result = q.copy()
                result[..., part] /= np.where(off, norm, 1.0)[..., None]  # no state depends on the others
        return result

    @cached_property
    def quaternions(self) -> tuple[tuple[str, slice], ...]:
        """(joint, place in q) of each quaternion."""
        found = []
        for name, joint, part in zip(self.joint_names, self.joints, self._q_slices, strict=True):
            if joint.quaternion is not None:
                found.append((name, slice(part.start + joint.quaternion.start, part.start + joint.quaternion.stop)))
        return tuple(found)

    def _together(self, *given: tuple[str, ArrayLike, int]) -> list[np.ndarray]:
        """Arrays (…, n), each with its name and n, with the same leading axes."""
        found = {x[0]: self._shaped(*x) for x in given}
        lead = broadcast_shapes({name: x.shape[:-1] for name, x in found.items()})
        return [np.broadcast_to(x, (*lead, x.shape[-1])) for x in found.values()]

    @staticmethod
    def _shaped(name: str, x: ArrayLike, n: int) -> np.ndarray:
        x = float_array(name, x)
        batch_axes(name, x, (n,))
        return x

    # ---- copies and files ----------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Model:
        """A new validated model with the given fields changed. Raises UnknownName for a field that does not exist."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        for name in changes:
            if name not in known and name != "strict":
                raise UnknownName("field of Model", name, known)
        for name in ("damping", "friction"):
            if not known[name].any():
                changes.setdefault(name, None)  # none is none, whatever the joints are now
        if "inertias" not in changes:
            changes.setdefault("strict", None)  # already warned of when this model was made
        return Model(**{**known, **changes})

    def to_dict(self) -> dict[str, Any]:
        """The model as lists, strings and floats (exact); limits that do not exist are None."""
        return {
            "name": self.name,
            "body_names": list(self.body_names),
            "joint_names": list(self.joint_names),
            "joints": [_joint_to_dict(joint) for joint in self.joints],
            "parent": list(self.parent),
            "X_tree": self.X_tree.tolist(),
            "inertias": self.inertias.tolist(),
            "gravity": self.gravity.tolist(),
            "armature": self.armature.tolist(),
            "frames": [
                {"name": f.name, "body": f.body, "X": f.X.tolist(), "joint": f.joint} for f in self.frames.values()
            ],
            "base": self.base,
            "sensors": [
                {
                    "name": s.name, "type": s.type, "parent_kind": s.parent_kind, "parent": s.parent, "X": s.X.tolist(),
                    "attributes": dict(s.attributes), "line": s.line, "xml": s.xml,
                    "links": list(s.links), "fault": s.fault,
                }
                for s in self.sensors
            ],
            **{name: getattr(self, name).tolist() for name in ("damping", "friction")},
            "closures": [stored(c) for c in self.closures],
            **{name: [x if math.isfinite(x) else None for x in getattr(self, name).tolist()] for name in _LIMITS},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """The model of `to_dict`. Raises ModelError for a missing or unknown field."""
        known = {f.name for f in fields(cls) if f.compare}
        if set(data) != known:
            missing, extra = sorted(known - set(data)), sorted(set(data) - known)
            raise ModelError(f"not the data of a Model: missing fields {missing}, unknown fields {extra}")
        values = dict(data)
        values["joints"] = tuple(_joint_from_dict(joint) for joint in data["joints"])
        values["frames"] = {
            f["name"]: Frame(f["name"], f["body"], np.array(f["X"]), f["joint"]) for f in data["frames"]
        }
        values["sensors"] = tuple(Sensor(**{**s, "X": np.array(s["X"])}) for s in data["sensors"])
        values["closures"] = tuple(restored(c) for c in data["closures"])
        for name in _LIMITS:
            none = -math.inf if name == "lower" else math.inf
            values[name] = [none if x is None else x for x in data[name]]
        return cls(**values, strict=None)

    def __reduce__(self):
        return Model.from_dict, (self.to_dict(),)

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all that enters the equations of motion: not the names, frames, sensors and limits."""
        parts = ("joints", "parent", "X_tree", "inertias", "gravity", "armature")
        data = {name: value for name, value in self.to_dict().items() if name in parts}
        for name in ("X_tree", "inertias", "gravity", "armature"):
            data[name] = (np.asarray(data[name]) + 0.0).tolist()  # −0.0 is 0.0
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def table(self) -> TextTable:
        """Its bodies as text: their joints, parents, masses, and limits of position if there are any."""
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

    # ---- validation ----------------------------------------------------------------------------------------------

    def _check_tree(self) -> None:
        nb = len(self.parent)
        for name in ("body_names", "joint_names", "joints"):
            if len(getattr(self, name)) != nb:
                raise ModelError(f"{name} has {len(getattr(self, name))} entries, but parent has {nb}")
        check_names("body", self.body_names)
        check_names("joint", self.joint_names)
        for i, p in enumerate(self.parent):
            if p >= i:
                raise ModelError(f"parent[{i}] = {p}: bodies must be numbered so that parents come first")
            if p < -1:
                raise ModelError(f"parent[{i}] = {p}: the base is −1 and bodies are numbered from 0")
        for i, joint in enumerate(self.joints):
            if not isinstance(joint, Joint):
                raise ModelError(f"joints[{i}] is {joint!r}, not a Joint; valid: {', '.join(JOINTS)}")
        self._check_labels()
        self._check_base()

    def _check_labels(self) -> None:
        """Raise ModelError for a joint named like a variable of another one ("hip[0]"): columns would be ambiguous."""
        taken = set(self.joint_names)
        for name, joint in zip(self.joint_names, self.joints, strict=True):
            for label in (f"{name}[{k}]" for k in range(joint.nq) if joint.nv > 1):
                if label in taken:
                    raise ModelError(f"{label!r} is a joint, and a variable of joint {name!r}: rename one of them")

    def _check_base(self) -> None:
        if self.base not in ("fixed", "floating"):
            raise ModelError(f'base is {self.base!r}; valid: "fixed", "floating"')
        if self.base == "floating":
            if not self.joints or not isinstance(self.joints[0], Free):
                raise ModelError("a floating-base model must have a Free joint as joint 0")
            if self.parent.count(-1) > 1:
                bad = self.body_names[self.parent.index(-1, 1)]
                raise ModelError(f"body {bad!r} hangs on the base of a floating-base model; only body 0 may")

    def _check_position_limits(self) -> None:
        for name, joint, part in zip(self.joint_names, self.joints, self._v_slices, strict=True):
            if joint.nv > 1 and (np.any(self.lower[part] > -math.inf) or np.any(self.upper[part] < math.inf)):
                freedoms = f"{joint.nv} degrees of freedom"
                raise ModelError(f"joint {name!r} has {freedoms}: position limits are for joints with one")
        if np.any(self.lower > self.upper):
            k = int(np.argmax(self.lower > self.upper))
            raise ModelError(f"the limits of {self.dof_names[k]!r} are lower {self.lower[k]} > upper {self.upper[k]}")

    def _completed_frames(self, given: Mapping[str, Frame] | None) -> Mapping[str, Frame]:
        frames: dict[str, Frame] = {}
        if given is None:
            given = {} if "base" in self._body_index else {"base": Frame("base", -1)}
        for key, f in given.items():
            if key != f.name:
                raise ModelError(f"frames[{key!r}] is called {f.name!r}: key and name must agree")
            if not -1 <= f.body < self.nb:
                raise ModelError(f"frame {f.name!r} is on body {f.body}; valid: −1 (the base) to {self.nb - 1}")
            X = checked_placement(f.X, f"X of frame {f.name!r}")
            if key in self._body_index and (f.body != self._body_index[key] or not np.array_equal(X, np.eye(6))):
                raise ModelError(f"frame {key!r} has the name of a body: it must be the frame of that body itself")
            frames[key] = Frame(f.name, int(f.body), X, f.joint)
        for i, name in enumerate(self.body_names):
            frames.setdefault(name, Frame(name, i))
        return MappingProxyType(frames)

    def _check_plausible(self, strict: bool) -> None:
        found = [(name, why) for name, I in zip(self.body_names, self.inertias, strict=True) if (why := implausible(I))]
        if not found:
            return
        shown = few((f"{name!r}: {why}" for name, why in found), between="; ")
        message = f"model {self.name!r} has inertias no rigid body can have: {shown}"
        if strict:
            raise ModelError(f"{message}. Correct them, or load with strict=False to use them as they are.")
        message = f"{message}. They are used as they are; strict=True makes this an error"
        warn(message, PlausibilityWarning)


def _joint_to_dict(joint: Joint) -> dict[str, Any]:
    data = {f.name: getattr(joint, f.name) for f in fields(joint)}
    return {"type": joint.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}}


def _joint_from_dict(data: Mapping[str, Any]) -> Joint:
    check_among("joint type", data.get("type"), JOINTS)
    return JOINTS[data["type"]](**{k: v for k, v in data.items() if k != "type"})
