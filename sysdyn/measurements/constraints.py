"""Rigid contacts, loop closures and coupled joints: motions kept to a known acceleration by an unknown wrench.

Each adds rows C (J a − J' a' + bias) = y and the components w of a wrench, which loads the bodies by the transpose of
the rows' coefficients of their accelerations: D'Alembert's principle, so that the constraint does no work. With a
regular joint-space inertia H, and independent rows A in terms of q̈, the matrix left for w after all else is eliminated
is A H⁻¹ A^T, positive definite. RBDA sections 8.1 and 8.5; Baraff (1996) eliminates in the same order.

If `stabilise` is given, 2 ζ ω ė + ω² e is added to the left side, e being the error of the position: it decays in a
simulation instead of growing. It is a time constant T [s], for ω = 1/T and ζ = 1, or (ω [rad/s], ζ).
J. Baumgarte, Stabilization of constraints and integrals of motion in dynamical systems, CMAME 1 (1972).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, UnknownName, check_among
from sysdyn.measurements.acceleration_sensors import FrameAcceleration
from sysdyn.measurements.bias_models import BiasModel
from sysdyn.measurements.linear import numbers, zeros
from sysdyn.measurements.measurement import (
    Constraint,
    Context,
    FrameRef,
    changed,
    find_frame,
    moving_frame,
    select_noise,
)
from sysdyn.measurements.sensor import FrameSensor, Sensor, checked_frame, diagonal, identity, linear, wrench_axes
from sysdyn.model import Frame, Model
from sysdyn.model.closures import Coupling, Loop
from sysdyn.model.kinematics import path
from sysdyn.model.quantities import ACCELERATION, QUANTITY, WRENCH, WRENCHES
from sysdyn.model.se3 import checked_pose, cross, translation, unskew
from sysdyn.program.arrays import to_plain
from sysdyn.program.graph import sqrt

# A kind of contact or joint: its name, or the components that it holds.
ConstraintKind = str | Sequence[str]

# Components that a contact of each kind holds, z being the normal.
CONTACTS: dict[str, tuple[str, ...]] = {
    "fixed": ACCELERATION,
    "point": ("a_x", "a_y", "a_z"),
    "line": ("a_y", "a_z"),
    "normal": ("a_z",),
    "plane": ("alpha_x", "alpha_y", "a_z"),
    "edge": ("alpha_y", "alpha_z", "a_x", "a_y", "a_z"),
}
# Components that a joint of each kind leaves free, with its axis for "·".
LOOPS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "spherical": ACCELERATION[:3],
    "revolute": ("alpha_·",),
    "prismatic": ("a_·",),
    "cylindrical": ("alpha_·", "a_·"),
}
# Axes about or along which a joint that closes a loop turns or slides.
AXES = ("x", "y", "z")
# Multiple of the size of a robot beyond which a point is not on one of its bodies (chosen).
OFF_BODY = 10.0
# Advice for users who ask for a rolling contact.
_ROLLING = (
    "A contact constrains one point of a body, and a body that rolls changes that point: in a plane "
    "JointCoupling(slide, wheel, (0.0, radius)) couples the joint along which the axle moves to that of the wheel; "
    "a Stance of a round foot has radius=."
)
# Decay of position errors, as above; None for no decay.
Stabilise = float | Sequence[float] | None


class Stabilised(Constraint, listed=False):
    """A constraint that can take out the error of its position. Subclasses give `error`, and call `stabilised`."""

    stabilise: tuple[float, float] | None = None  # (ω, ζ)

    def error(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        """Error of the position and its rate (e, ė), with an entry for each component."""
        raise NotImplementedError

    def stabilised(self, ctx: Context, bias: np.ndarray, places: Sequence[int] | slice = slice(None)) -> np.ndarray:
        """bias + 2 ζ ω ė + ω² e; bias: of the components of `error` at these places."""
        if self.stabilise is None:
            return bias
        (omega, zeta), (e, rate) = self.stabilise, self.error(ctx)
        return bias + 2.0 * zeta * omega * rate[places] + omega**2 * e[places]

    def _take(self, stabilise: Stabilise) -> None:
        if stabilise is not None:
            self.stabilise = _oscillator(self.name, stabilise)

    def _stored_gains(self) -> dict:
        return {} if self.stabilise is None else {"stabilise": list(self.stabilise)}


class FrameConstraint(Stabilised, Sensor, listed=False):
    """A constraint whose wrench has some of the six components at one point, in the axes of `frame` or of the world.

    held: indices of the wrench components. `selection`: indices of the components that have an acceleration equation,
    fewer than held after redundant equations are removed.
    """

    frame: FrameRef
    selectable = False
    held: tuple[int, ...]

    def select(self, numbers: Sequence[int]) -> Self:
        """The constraint of the components with these numbers alone: the wrench has no others, either."""
        selection = tuple(self.numbers[k] for k in numbers)
        return changed(self, selection=selection, held=selection, noise=select_noise(self.noise, numbers))

    def without_redundant_rows(self, numbers: Sequence[int]) -> Self:
        """The same wrench, but equations of the components with these numbers alone, from which the others follow."""
        return changed(self, selection=tuple(self.numbers[k] for k in numbers))

    @property
    def places(self) -> tuple[FrameRef, ...]:
        """The constrained frames: one that is fixed to the world, or two that are fixed to each other."""
        return (self.frame,)

    def wrench(self, model: Model) -> tuple[str, ...]:
        return tuple(WRENCH[k] for k in self.held)

    def loads(self, ctx: Context) -> dict[str, np.ndarray]:
        return {body: block.T for (_, body), block in self.rows_of(ctx, self.held).items()}

    def bias(self, ctx: Context) -> np.ndarray:
        return self.stabilised(ctx, super().bias(ctx), [self.held.index(k) for k in self.numbers])

    def simplified_rows(self, ctx: Context):
        """The equations unchanged: rows and wrench are in the same axes, so that the matrix they leave is symmetric."""
        return self.rows(ctx), self.bias(ctx), None

    def _angles(self, R: np.ndarray) -> np.ndarray:
        """Angles (3,) about the held axes by which R (3, 3) turns, as sines."""
        free = [k for k in range(3) if k not in self.held]
        if len(free) == 1:  # the tilt of the free axis, whatever the angle about it
            (k,) = free
            return cross(np.eye(3).astype(object)[k], R[:, k])
        return 0.5 * unskew(R - R.T)

    def cosine(self, ctx: Context) -> Any:
        """Cosine of the rotation error, whose sines are in `error`."""
        R, free = self._attitude(ctx), [k for k in range(3) if k not in self.held]
        if len(free) == 1:
            return R[free[0], free[0]]
        if not free:
            return 0.5 * (R[0, 0] + R[1, 1] + R[2, 2]) - 0.5
        sines = [x for k, x in enumerate(self._angles(R)) if k not in free]
        return sqrt(1.0 - sum(x * x for x in sines)) if sines else 1.0

    def _attitude(self, ctx: Context) -> np.ndarray:
        """Rotation error (3, 3): the identity if the constraint is satisfied, except for rotations about free axes."""
        raise NotImplementedError

    def spread(self, w: np.ndarray) -> np.ndarray:
        """All six components (…, 6) of the wrench: w, and zero for the others."""
        full = np.zeros((*w.shape[:-1], 6))
        full[..., list(self.held)] = w
        return full

    def implausible(self, model: Model) -> str | None:
        """A point that is off its body by many times the size of the robot, in words."""
        size = float(np.linalg.norm(model.X_tree[:, 3:, :3], axis=(1, 2)).sum() / math.sqrt(2.0))  # ‖r×‖ = √2 ‖r‖
        size += max(_radius(I) for I in model.inertias)
        for frame in (find_frame(model, place) for place in self.places):
            away = float(np.linalg.norm(translation(frame.X)))
            if frame.body >= 0 and away > OFF_BODY * size > 0.0:
                return (
                    f"{self.name!r} holds a point {away:.4g} m off the origin of {model.body_names[frame.body]!r}, but "
                    f"all links of the robot together are {size:.3g} m long: is its place in metres?"
                )
        return None


def _radius(I: np.ndarray) -> float:
    """√(tr J / m) [m] of a body: how far it reaches from its origin; 0 if it has no mass."""
    return math.sqrt(max(0.0, float(np.trace(I[:3, :3])) / m)) if (m := float(I[5, 5])) > 0.0 else 0.0


class Contact(FrameConstraint, FrameAcceleration):
    """Rigid contact of a frame with the world: constrains its acceleration, and adds the contact wrench as an unknown.

    The constrained components of the classical acceleration of the frame (as `FrameAcceleration`) are zero, or y of a
    call. The contact wrench w [N m, N], which the world exerts on the body at the origin of the frame, has the same
    components, n for alpha and f for a. It acts in addition to the external wrench fx.

    frame      a name of the model, or (body, T) with the pose T (4, 4) fixed in the body
    kind       constrained components, with normal z: "fixed" all six; "point" the origin; "line" the origin except
               motion along x; "normal" the origin along z; "plane" a sole that may slide on a plane; "edge" a hinge
               about x; or the names of the components (alpha_x … a_z)
    reference  axes of the components: "local", the frame's, or "world"
    stabilise  Baumgarte stabilisation: (ω [rad/s], ζ), or a time T [s] for (1/T, 1). The acceleration is
               −2 ζ ω v − ω² e instead of zero, with the velocity v of the frame and the error e of its pose
    at         desired pose (4, 4) of the frame in the world, such as `sd.frame_pose(model, q, frame)`; without it e is
               zero, and only velocities decay. Attitude errors are sines of angles

    A rolling wheel is none of these contacts: its point of contact moves over the body. In a plane,
    `JointCoupling` couples the joint along which the axle moves to the joint of the wheel.

    Raises InvalidInput if the frame cannot move, or if `at` is given with local axes that may rotate so that a
    constrained direction becomes free: use reference="world". Raises UnknownName for an unknown frame.
    """

    references = ("local", "world")
    derived_arguments = ("classical", "gravity")
    at: np.ndarray | None = None

    def __init__(
        self, frame: FrameRef, kind: ConstraintKind = "fixed", reference: str = "local", name: str | None = None,
        stabilise: Stabilise = None, at: np.ndarray | None = None,
    ):  # fmt: skip
        self.kind = kind if isinstance(kind, str) else tuple(kind)
        held = _named("kind of a Contact", kind, CONTACTS)
        name = name or f"Contact({checked_frame(frame, 'Contact')[1]})"
        check_among(f"reference of {name!r}:", reference, self.references)
        super().__init__(frame, held, reference=reference, name=name)
        self.held = tuple(self.numbers)
        self._take(stabilise)
        if at is not None:
            self.at = checked_pose(f"pose at={at!r} of {name!r}", at)
            if self.stabilise is None:
                raise InvalidInput(f"{name!r} has a pose to be kept, at=, but does not say how fast: add stabilise=")
            if reference == "local" and any(self._turns(k) for k in range(3)):
                raise InvalidInput(
                    f"{name!r} lets the axes turn along which it holds its origin, which is no position then: "
                    "use reference='world', or leave out at="
                )

    def _turns(self, k: int) -> bool:
        """True if the frame may rotate about axis k, which rotates a constrained direction into a free one."""
        held = [f"a_{x}" in self.chosen for i, x in enumerate(AXES) if i != k]
        return f"alpha_{AXES[k]}" not in self.chosen and held[0] != held[1]

    def error(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        """Error of the pose, sine of the angle · axis and position, and its rate, in the axes of the components."""
        R, v, e = ctx.R(self.frame), ctx.v(self.frame), zeros(6)
        world = self.reference == "world"
        if self.at is not None:
            slid = ctx.p(self.frame) - self.at[:3, 3].astype(object)
            e[:3] = self._angles(self._attitude(ctx)) if world else -self._angles(self._attitude(ctx))
            e[3:] = slid if world else R.T @ slid
        held = list(self.held)
        return e[held], (diagonal(R) @ v if world else v)[held]

    def _attitude(self, ctx: Context) -> np.ndarray:
        if self.at is None:
            return identity(3)
        R, at = ctx.R(self.frame), self.at[:3, :3].astype(object)
        return R @ at.T if self.reference == "world" else R.T @ at

    def check(self, model: Model) -> None:
        found = moving_frame(model, self.frame)
        if not any(model.joints[i].nv for i in path(model, found.body)):
            raise InvalidInput(f"{self.name!r}: frame {found.name!r} cannot move: no joint carries it")

    def describe(self, model: Model | None = None) -> dict:
        at = {} if self.at is None else {"at": self.at.tolist()}
        return {**super().describe(model), "kind": to_plain(self.kind), **self._stored_gains(), **at}


class ContactWrench(FrameConstraint, FrameSensor):
    """Unknown wrench of a contact whose motion is known, as in inverse dynamics: w = y ± noise.

    The wrench [N m, N] that the world exerts on the body of the frame, at the origin of the frame, adds to fx. Of all
    wrenches that explain the motion the estimate is the one with the least Σ ((w − y) / σ)²: the least norm if σ is the
    same for all, with y zero by default. Its wrench is in w and `solution.wrench`, as that of a `Contact`.

    frame, kind, reference  as of a Contact; or names of the components that the contact exerts (nx … fz)
    noise                   σ [N m, N]: what the wrench is expected to be, give or take; the greater, the more it takes

    Raises InvalidInput if the frame cannot move, ProblemError without noise, UnknownName.
    """

    scalars = WRENCH
    references = ("local", "world")
    optional = prior = True

    def __init__(
        self, frame: FrameRef, kind: ConstraintKind = "fixed", reference: str = "local", name: str | None = None,
        noise: Any = None, bias: BiasModel | None = None,
    ):  # fmt: skip
        name = name or f"ContactWrench({checked_frame(frame, 'ContactWrench')[1]})"
        if noise is None:
            raise ProblemError(
                f"{name!r} needs noise=, the size [N m, N] that its components are expected to have; "
                "a wrench that is measured exactly is LoadCells"
            )
        kinds = {x: tuple(WRENCH[ACCELERATION.index(c)] for c in held) for x, held in CONTACTS.items()}
        single = isinstance(kind, str) and kind in WRENCH
        exerted = (kind,) if single else _named("kind of a ContactWrench", kind, kinds)
        super().__init__(frame, exerted, name, noise, bias, reference=reference)
        self.held = tuple(self.numbers)

    def wrench(self, model: Model) -> tuple[str, ...]:
        return self.chosen

    def loads(self, ctx: Context) -> dict[str, np.ndarray]:
        return {ctx.body(self.frame): wrench_axes(ctx, self.frame, self.reference)[1][:, list(self.held)]}

    def equations(self, ctx):
        block = identity(len(self.scalars))[:, list(self.held)]
        return {(WRENCHES.name, self.name): block}, zeros(len(self.scalars))

    def bias(self, ctx: Context) -> np.ndarray:
        return zeros(len(self.chosen))

    def describe(self, model: Model | None = None) -> dict:
        return super().describe(model) | {"kind": list(self.chosen)}


class LoopJoint(FrameConstraint):
    """A joint that closes a kinematic loop between two frames, with an unknown wrench of its own.

    The place and the attitude of frame_b as seen from frame_a move as the joint lets them. Known are the second
    derivative of the position of its origin and the derivative of its angular velocity, in the axes of frame_a, in the
    components that the joint holds: zero unless a call gives y. The wrench [N m, N] that the body of frame_a
    exerts on the body of frame_b has the same components, in the axes of frame_a at the origin of frame_b; the opposite
    acts on the body of frame_a.

    frame_a, frame_b  names of the model, or (body, T); one of them may be fixed to the base
    kind   "fixed", "spherical", "revolute", "prismatic" or "cylindrical"; or the names of the components that are held
           (alpha_x … a_z), as a plane mechanism needs if a joint of the tree already holds some
    axis   of a revolute, prismatic or cylindrical joint: "x", "y" or "z" of frame_a
    stabilise  (ω [rad/s], ζ), or a time T [s] for (1/T, 1): −2 ζ ω ė − ω² e in place of zero, with the error e of the
           position and of the attitude (as the sine of the angle)

    Raises InvalidInput if the frames cannot move relative to each other, UnknownName. RBDA section 8.5.
    """

    scalars = ACCELERATION
    references = ("local",)
    optional = True

    def __init__(
        self, frame_a: FrameRef, frame_b: FrameRef, kind: ConstraintKind = "spherical", axis: str = "z",
        name: str | None = None, stabilise: Stabilise = None,
    ):  # fmt: skip
        self.kind = kind if isinstance(kind, str) else tuple(kind)
        self.axis = axis
        check_among("axis of a LoopJoint:", axis, AXES)
        joints = {x: [c for c in ACCELERATION if c not in _free(x, axis)] for x in LOOPS}
        held = _named("kind of a LoopJoint", kind, joints)
        self.frame, label_a = checked_frame(frame_a, "LoopJoint")
        self.frame_b, label_b = checked_frame(frame_b, "LoopJoint")
        name = name or f"LoopJoint({label_a},{label_b})"
        super().__init__(name, held, name, None, frame_a=self.frame, frame_b=self.frame_b)
        self.held = tuple(self.numbers)
        self._take(stabilise)

    @property
    def places(self) -> tuple[FrameRef, ...]:
        return self.frame, self.frame_b

    def _frames(self, model: Model) -> tuple[Frame, Frame]:
        return find_frame(model, self.frame), find_frame(model, self.frame_b)

    def check(self, model: Model) -> None:
        a, b = self._frames(model)
        between = set(path(model, a.body)) ^ set(path(model, b.body))
        if not any(model.joints[i].nv for i in between):
            raise InvalidInput(f"{self.name!r}: frames {a.name!r} and {b.name!r} cannot move relative to each other")

    def equations(self, ctx):
        """Derivatives of ω_b − ω_a, and of ṗ = v_b − v_a − ω_a × p with p = p_b − p_a, in the axes of frame_a."""
        a, b = self._frames(ctx.model)
        E, lever, v_a, v_b = self._moving(ctx)
        turn, turning = diagonal(E), lever @ -v_a[:3]  # ω_a × p
        sliding = v_b[3:] - v_a[3:] - turning
        bias = linear(cross(v_b[:3], v_b[3:]) - cross(v_a[:3], v_a[3:] + turning + 2.0 * sliding))
        bias[:3] = -cross(v_a[:3], v_b[:3])
        blocks = {}
        if b.body >= 0:
            blocks["a", ctx.model.body_names[b.body]] = turn @ b.X.astype(object)
        if a.body >= 0:
            shift = np.eye(6).astype(object)
            shift[3:, :3] = -lever
            blocks["a", ctx.model.body_names[a.body]] = -(shift @ a.X.astype(object))
        if a.body < 0 or b.body < 0:  # unknowns are proper accelerations, and the base has none
            g = ctx.R(self.frame).T @ ctx.model.gravity.astype(object)
            bias = bias + linear(g if a.body < 0 else -g)
        return blocks, bias

    def error(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        E, lever, v_a, v_b = self._moving(ctx)
        e = np.concatenate([self._angles(E), unskew(lever)])
        rate = np.concatenate([v_b[:3] - v_a[:3], v_b[3:] - v_a[3:] - lever @ -v_a[:3]])
        held = list(self.held)
        return e[held], rate[held]

    def _attitude(self, ctx: Context) -> np.ndarray:
        return ctx.between(self.frame, self.frame_b)[0]

    def _moving(self, ctx: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(E from frame_b to frame_a, p×, v_a, v_b), all in the axes of frame_a."""
        E, lever = ctx.between(self.frame, self.frame_b)
        return E, lever, ctx.v(self.frame), diagonal(E) @ ctx.v(self.frame_b)

    def describe(self, model: Model | None = None) -> dict:
        kept = super().describe(model)
        if model is not None:
            kept["placed"] = [[frame.body, frame.X.tolist()] for frame in self._frames(model)]
        return {**kept, "kind": to_plain(self.kind), "axis": self.axis, **self._stored_gains()}


class JointCoupling(Stabilised):
    """A joint that moves as another one demands, through a transmission whose force is an unknown.

    q = Σ_k coefficients[k] q_leader^k, so that q̈ = r q̈_leader + r' q̇_leader² with the ratio r = ∂q/∂q_leader; q̈ = 0
    if there is no leader. A value y of a call is added. The transmission exerts w [N m or N] on the joint and
    −r w on its leader: one coordinate, on which the torque τ of the joint acts as r τ. If the coupling is one of the
    model's closures, solvers ignore q and q̇ of the joint and compute them from the leader. Otherwise q and q̇ are used
    verbatim, and should satisfy the coupling.

    A wheel of radius r that rolls without slip in a plane is such a transmission from its joint (the leader) to the
    prismatic joint of its axle: coefficients (offset, r), and w is the force of the ground along that joint.

    joint, leader  names of joints with one degree of freedom
    coefficients   (offset, ratio, …), as of URDF `<mimic>` and the polycoef of MJCF
    stabilise      (ω [rad/s], ζ), or a time T [s] for (1/T, 1): −2 ζ ω ė − ω² e is added, with the error e of q

    Raises UnknownName, InvalidInput.
    """

    optional = True
    units = ("rad/s²", "m/s²")

    def __init__(
        self, joint: str, leader: str | None = None, coefficients: Sequence[float] = (0.0, 1.0),
        name: str | None = None, stabilise: Stabilise = None,
    ):  # fmt: skip
        self.name = name or f"JointCoupling({joint})"
        if leader == joint:
            raise InvalidInput(f"{self.name!r}: joint {joint!r} cannot be its own leader: name another joint, or None")
        self.coupling = Coupling(joint, leader, tuple(numbers(f"coefficients of {self.name!r}", coefficients, (None,))))
        self._take(stabilise)

    def components(self, model: Model) -> tuple[str, ...]:
        for joint in filter(None, (self.coupling.joint, self.coupling.leader)):
            if model.joints[model.joint_index(joint)].nv != 1:
                raise InvalidInput(f"{self.name!r}: joint {joint!r} has not one degree of freedom")
        return ("acceleration",)

    def component_units(self, model: Model) -> tuple[str, ...]:
        return (QUANTITY["qdd"].units_at(model, model.joint_index(self.coupling.joint))[0],)

    def wrench(self, model: Model) -> tuple[str, ...]:
        return ("torque",) if self.component_units(model) == self.units[:1] else ("force",)

    def loads(self, ctx: Context) -> dict[str, np.ndarray]:
        return {}

    def torques(self, ctx: Context) -> dict[str, np.ndarray]:
        return {joint: block.T for (_, joint), block in self.rows(ctx).items()}

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        rows = {("qdd", self.coupling.joint): np.array([[1.0]], dtype=object)}
        if self.coupling.leader is not None:
            rows["qdd", self.coupling.leader] = np.array([[-self._leading(ctx)[1]]], dtype=object)
        return rows

    def bias(self, ctx: Context) -> np.ndarray:
        bias = zeros(1)
        if self.coupling.leader is not None:
            _, _, curve, rate = self._leading(ctx)
            bias[0] = -(curve * rate * rate)
        return self.stabilised(ctx, bias)

    def error(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        i, (position, slope, _, rate) = ctx.model.joint_index(self.coupling.joint), self._leading(ctx)
        e, e_rate = ctx.q[ctx.model.q_slice(i).start] - position, ctx.qd[ctx.model.v_slice(i).start] - slope * rate
        return np.array([e], dtype=object), np.array([e_rate], dtype=object)

    def _leading(self, ctx: Context) -> tuple[Any, Any, Any, Any]:
        """(demanded q, r, r', q̇ of the leader)."""
        if self.coupling.leader is None:
            return self.coupling.coefficients[0], 0.0, 0.0, 0.0
        i = ctx.model.joint_index(self.coupling.leader)
        return *self.coupling.derivatives(ctx.q[ctx.model.q_slice(i).start]), ctx.qd[ctx.model.v_slice(i).start]

    def describe(self, model: Model | None = None) -> dict:
        c = self.coupling
        return {
            "type": "JointCoupling", "name": self.name, "joint": c.joint, "leader": c.leader,
            "coefficients": list(c.coefficients), **self._stored_gains(),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.name}: {self.coupling}>"


def closures(model: Model, stabilise: Stabilise = None) -> list[Constraint]:
    """Constraints that a robot file declares: JointCoupling of coupled joints, LoopJoint of loops.

    stabilise: as of these classes.
    """
    return [
        LoopJoint(c.frame_a, c.frame_b, c.kind, name=c.name, stabilise=stabilise) if isinstance(c, Loop)
        else JointCoupling(c.joint, c.leader, c.coefficients, stabilise=stabilise)
        for c in model.closures
    ]  # fmt: skip


def as_contact_wrench(contact: Contact | ContactWrench, model: Model) -> ContactWrench:
    """The contact as a ContactWrench, for known motions; the noise of a Contact is the robot's weight.

    Raises InvalidInput for something else.
    """
    if isinstance(contact, ContactWrench):
        return contact
    if not isinstance(contact, Contact):
        raise InvalidInput(f"contacts of inverse dynamics are ContactWrench(frame, kind, noise=…), not {contact!r}")
    weight = model.mass * float(np.linalg.norm(model.gravity)) or 1.0
    return ContactWrench(contact.frame, contact.wrench(model), contact.reference, contact.name, noise=weight)


def stabilised(constraint: Stabilised, stabilise: Stabilise) -> Stabilised:
    """The constraint with another decay of its errors; stabilise: as of these classes. Raises InvalidInput."""
    gains = None if stabilise is None else _oscillator(constraint.name, stabilise)
    return changed(constraint, stabilise=gains)


def _named(what: str, kind: ConstraintKind, kinds) -> Sequence[str]:
    """Components of a kind, given by its name or by themselves. Raises UnknownName."""
    return kinds[checked_kind(f"{what}:", kind, kinds)] if isinstance(kind, str) else kind


def checked_kind(what: str, kind: str, kinds: Collection[str]) -> str:
    """Return a valid kind. Raises UnknownName, with advice for rolling contacts."""
    if kind not in kinds:
        raise UnknownName(what, kind, kinds, _ROLLING if "roll" in kind.lower() else "")
    return kind


def _free(kind: str, axis: str) -> tuple[str, ...]:
    return tuple(c.replace("·", axis) for c in LOOPS[kind])


def _oscillator(name: str, stabilise: float | Sequence[float]) -> tuple[float, float]:
    """(ω, ζ) of `stabilise`. Raises InvalidInput."""
    x = np.atleast_1d(np.array(stabilise, dtype=object))
    if not (x.shape in ((1,), (2,)) and all(isinstance(k, (int, float)) and 0.0 < k < math.inf for k in x)):
        raise InvalidInput(
            f"stabilise of {name!r} is a time constant [s], or (ω [rad/s], ζ), of positive numbers, not {stabilise!r}"
        )
    return (1.0 / x[0], 1.0) if len(x) == 1 else (float(x[0]), float(x[1]))
