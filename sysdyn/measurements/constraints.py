"""Rigid contacts, loop closures and coupled joints: motions kept to a known acceleration by a wrench that is unknown.

Each adds rows C (J a − J' a' + bias) = y and the components w of a wrench, which loads the bodies by the transpose of
what the rows have for their accelerations: D'Alembert's principle, so that the constraint does no work. With a
regular joint-space inertia H, and independent rows A in terms of q̈, what is left for w when all else is eliminated is
A H⁻¹ A^T, positive definite. RBDA sections 8.1 and 8.5; Baraff (1996) eliminates in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.acceleration_sensors import FrameAcceleration
from sysdyn.measurements.linear import numbers, zeros
from sysdyn.measurements.measurement import Constraint, Context, Place, find_frame, moving_frame
from sysdyn.measurements.sensor import Sensor, diagonal, linear, placed
from sysdyn.measurements.variables import ACCELERATION, WRENCH, freedom_units
from sysdyn.model import Frame, Model
from sysdyn.model.closures import Coupling, Loop
from sysdyn.model.kinematics import path
from sysdyn.model.spatial import X_inverse, cross, rotation

# A kind of contact or joint has a name, or is named by the components that it holds.
Kind = str | Sequence[str]

# A contact of each kind holds these components, z being the normal.
CONTACTS: dict[str, tuple[str, ...]] = {
    "fixed": ACCELERATION,
    "point": ("a_x", "a_y", "a_z"),
    "line": ("a_y", "a_z"),
    "normal": ("a_z",),
    "plane": ("alpha_x", "alpha_y", "a_z"),
    "edge": ("alpha_y", "alpha_z", "a_x", "a_y", "a_z"),
}
# A joint of each kind leaves these components free, with its axis for "·".
LOOPS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "spherical": ACCELERATION[:3],
    "revolute": ("alpha_·",),
    "prismatic": ("a_·",),
    "cylindrical": ("alpha_·", "a_·"),
}
# A joint that closes a loop turns or slides about one of these axes.
AXES = ("x", "y", "z")


class FrameConstraint(Constraint):
    """A constraint whose wrench has some of the six components at one point, in the axes of `frame` or of the world."""

    chosen: tuple[str, ...]
    frame: Place
    reference: str
    divisible = False

    @property
    def places(self) -> tuple[Place, ...]:
        """The frames that it holds: one to the world, or two to each other."""
        return (self.frame,)

    def wrench(self, model: Model) -> tuple[str, ...]:
        return tuple(WRENCH[k] for k in self._numbers)

    def loads(self, ctx: Context) -> dict[str, np.ndarray]:
        return {body: block.T for (_, body), block in self.rows(ctx).items()}

    def solved_form(self, ctx: Context):
        """As it is: rows and wrench are in the same axes, so that what they leave is symmetric."""
        return self.rows(ctx), self.bias(ctx), None

    def identity(self) -> None:
        """None: what a constraint holds is its kind."""
        return None

    def spread(self, w: np.ndarray) -> np.ndarray:
        """(…, 6): components w among those that are zero."""
        full = np.zeros((*w.shape[:-1], 6))
        full[..., self._numbers] = w
        return full

    @property
    def _numbers(self) -> list[int]:
        return [ACCELERATION.index(c) for c in self.chosen]


class Contact(FrameConstraint, FrameAcceleration):
    """Rigid contact of a frame with the world, with an unknown wrench of its own beside fx.

    Components of the classical acceleration of the frame (as `FrameAcceleration`) are known: zero where no value y is
    handed in; −2 ζ ω v − ω² e, for example, takes out a drift e. The wrench [N m, N] that the world exerts on the body
    at the origin of the frame has the components of the same names, n for alpha and f for a.

    frame      a name of the model, or (body, T) with the pose T (4, 4) fixed in the body
    kind       what is held, z being the normal: "fixed" all six; "point" the origin; "line" the origin but for motion
               along x; "normal" the origin along z; "plane" a sole that may slide on a plane; "edge" a hinge about x;
               or the names of the components (alpha_x … a_z)
    reference  in which axes: "local" those of the frame, or "world"

    Raises InvalidInput where the frame cannot move, UnknownName.
    """

    references = ("local", "world")

    def __init__(self, frame: Place, kind: Kind = "fixed", reference: str = "local", name: str | None = None):
        self.kind = kind if isinstance(kind, str) else tuple(kind)
        held = _named("kind of a Contact", kind, CONTACTS)
        name = name or f"Contact({placed(frame, 'Contact')[1]})"
        if reference not in self.references:
            raise UnknownName(f"reference of {name!r}:", reference, self.references)
        super().__init__(frame, held, reference=reference, name=name)

    def check(self, model: Model) -> None:
        found = moving_frame(model, self.frame)
        if not any(model.joints[i].nv for i in path(model, found.body)):
            raise InvalidInput(f"{self.name!r}: frame {found.name!r} cannot move: no joint carries it")

    def describe(self, model: Model | None = None) -> dict:
        described = super().describe(model)
        kept = {key: x for key, x in described.items() if key not in ("components", "classical", "gravity")}
        return {**kept, "kind": _stored(self.kind)}


class LoopJoint(FrameConstraint, Sensor):
    """A joint that closes a kinematic loop between two frames, with an unknown wrench of its own.

    The place and the attitude of frame_b as seen from frame_a move as the joint lets them. Known is the second
    derivative of the position of its origin and the derivative of its angular velocity, in the axes of frame_a, along
    what the joint does not leave free: zero where no value y is handed in (a drift e is taken out by −2 ζ ω ė − ω² e).
    The wrench [N m, N] that the body of frame_a exerts on that of frame_b has the other components, in the axes of
    frame_a at the origin of frame_b; the opposite acts on the body of frame_a.

    frame_a, frame_b  names of the model, or (body, T); one of them may be fixed to the base
    kind   "fixed", "spherical", "revolute", "prismatic" or "cylindrical"; or the names of the components that are held
           (alpha_x … a_z), as a plane mechanism needs where a joint of the tree already holds some
    axis   of a revolute, prismatic or cylindrical joint: "x", "y" or "z" of frame_a

    Raises InvalidInput where the frames cannot move relative to each other, UnknownName. RBDA section 8.5.
    """

    scalars = ACCELERATION
    references = ("local",)
    optional = True

    def __init__(
        self, frame_a: Place, frame_b: Place, kind: Kind = "spherical", axis: str = "z", name: str | None = None
    ):
        self.kind = kind if isinstance(kind, str) else tuple(kind)
        self.axis = axis
        if axis not in AXES:
            raise UnknownName("axis of a LoopJoint:", axis, AXES)
        joints = {x: [c for c in ACCELERATION if c not in _free(x, axis)] for x in LOOPS}
        held = _named("kind of a LoopJoint", kind, joints)
        self.frame, label_a = placed(frame_a, "LoopJoint")
        self.frame_b, label_b = placed(frame_b, "LoopJoint")
        name = name or f"LoopJoint({label_a},{label_b})"
        super().__init__(name, held, name, None, frame_a=self.frame, frame_b=self.frame_b)

    @property
    def places(self) -> tuple[Place, ...]:
        return self.frame, self.frame_b

    def _frames(self, model: Model) -> tuple[Frame, Frame]:
        return find_frame(model, self.frame), find_frame(model, self.frame_b)

    def check(self, model: Model) -> None:
        a, b = self._frames(model)
        between = set(path(model, a.body)) ^ set(path(model, b.body))
        if not any(model.joints[i].nv for i in between):
            raise InvalidInput(f"{self.name!r}: frames {a.name!r} and {b.name!r} cannot move relative to each other")

    def equations(self, ctx):
        """In the axes of frame_a: of ω_b − ω_a, and of ṗ with p = p_b − p_a and ṗ = v_b − v_a − ω_a × p."""
        a, b = self._frames(ctx.model)
        X = self._between(ctx)
        E = rotation(X)
        turn = diagonal(E)
        lever = X[3:, :3] @ E.T  # p×
        v_a, v_b = ctx.v(self.frame), turn @ ctx.v(self.frame_b)
        turning = lever @ -v_a[:3]  # ω_a × p
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

    def _between(self, ctx: Context) -> np.ndarray:
        """X (6, 6) from frame_b to frame_a, by way of the body that carries both."""
        model = ctx.model
        a, b = (path(model, frame.body) for frame in self._frames(model))
        common = next((i for i in a if i in b), None)
        if common is None:
            return ctx.X0(self.frame) @ X_inverse(ctx.X0(self.frame_b))
        name = model.body_names[common]
        return ctx.X(self.frame, name) @ X_inverse(ctx.X(self.frame_b, name))

    def describe(self, model: Model | None = None) -> dict:
        described = super().describe(model)
        kept = {key: x for key, x in described.items() if key != "components"}
        if model is not None:
            kept["placed"] = [[frame.body, frame.X.tolist()] for frame in self._frames(model)]
        return {**kept, "kind": _stored(self.kind), "axis": self.axis}


class JointCoupling(Constraint):
    """A joint that moves as another one demands, through a transmission whose force is an unknown.

    q = Σ_k coefficients[k] q_leader^k, so that q̈ = r q̈_leader + r' q̇_leader² with the ratio r = ∂q/∂q_leader; q̈ = 0
    where there is no leader. What is handed in as y is added (a drift e is taken out by −2 ζ ω ė − ω² e). The
    transmission exerts w [N m or N] on the joint and −r w on its leader: one coordinate, on which the torque τ of the
    joint acts as r τ. A state should have q and q̇ as demanded: `Model.imposed`.

    joint, leader  names of joints with one freedom
    coefficients   (offset, ratio, …), as of URDF `<mimic>` and the polycoef of MJCF

    Raises UnknownName, InvalidInput.
    """

    optional = True
    units = ("rad/s²", "m/s²")

    def __init__(
        self, joint: str, leader: str | None = None, coefficients: Sequence[float] = (0.0, 1.0), name: str | None = None
    ):
        self.name = name or f"JointCoupling({joint})"
        self.coupling = Coupling(joint, leader, tuple(numbers(f"coefficients of {self.name!r}", coefficients, (None,))))

    def components(self, model: Model) -> tuple[str, ...]:
        for joint in filter(None, (self.coupling.joint, self.coupling.leader)):
            if model.joints[model.joint_index(joint)].nv != 1:
                raise InvalidInput(f"{self.name!r}: joint {joint!r} has not one freedom")
        return ("acceleration",)

    def component_units(self, model: Model) -> tuple[str, ...]:
        return (freedom_units(model, "qdd")[model.v_slice(model.joint_index(self.coupling.joint)).start],)

    def wrench(self, model: Model) -> tuple[str, ...]:
        return ("torque",) if self.component_units(model) == self.units[:1] else ("force",)

    def loads(self, ctx: Context) -> dict[str, np.ndarray]:
        return {}

    def torques(self, ctx: Context) -> dict[str, np.ndarray]:
        return {joint: block.T for (_, joint), block in self.rows(ctx).items()}

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        rows = {("qdd", self.coupling.joint): np.array([[1.0]], dtype=object)}
        if self.coupling.leader is not None:
            rows["qdd", self.coupling.leader] = np.array([[-self._leading(ctx)[0]]], dtype=object)
        return rows

    def bias(self, ctx: Context) -> np.ndarray:
        bias = zeros(1)
        if self.coupling.leader is not None:
            _, curve, rate = self._leading(ctx)
            bias[0] = -(curve * rate * rate)
        return bias

    def _leading(self, ctx: Context) -> tuple[Any, Any, Any]:
        """(r, r', q̇) of the leader."""
        i = ctx.model.joint_index(self.coupling.leader or "")
        _, slope, curve = self.coupling.derivatives(ctx.q[ctx.model.q_slice(i).start])
        return slope, curve, ctx.qd[ctx.model.v_slice(i).start]

    def describe(self, model: Model | None = None) -> dict:
        c = self.coupling
        return {
            "type": "JointCoupling", "name": self.name, "joint": c.joint, "leader": c.leader,
            "coefficients": list(c.coefficients),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.name}: {self.coupling}>"


# Constraints by the name of their class.
CONSTRAINTS: dict[str, type[Constraint]] = {cls.__name__: cls for cls in (Contact, LoopJoint, JointCoupling)}


def closures(model: Model) -> list[Constraint]:
    """What a robot file says beside the tree, as constraints: a JointCoupling of each coupled joint, a LoopJoint of
    each loop.
    """
    return [
        LoopJoint(c.frame_a, c.frame_b, c.kind, name=c.name) if isinstance(c, Loop)
        else JointCoupling(c.joint, c.leader, c.coefficients)
        for c in model.closures
    ]  # fmt: skip


def _named(what: str, kind: Kind, kinds) -> Sequence[str]:
    """Components of the kind, or those that are named."""
    if not isinstance(kind, str):
        return kind
    if kind not in kinds:
        raise UnknownName(f"{what}:", kind, kinds)
    return kinds[kind]


def _free(kind: str, axis: str) -> tuple[str, ...]:
    return tuple(c.replace("·", axis) for c in LOOPS[kind])


def _stored(kind: Kind) -> str | list[str]:
    return kind if isinstance(kind, str) else list(kind)
