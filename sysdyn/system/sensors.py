"""Sensors and contacts as measurements, in any frame of the model or at a pose given relative to a body.

Every one is exact, linear in a, f, τ, fx, q̈ with coefficients of q, q̇, and says what its value is in which axes:

    reference "local"   axes of the frame, at its origin
              "world"   axes of the world, at the origin of the frame
              "space"   axes and origin of the world (wrenches and spatial accelerations)

With gravity=True an acceleration is proper (what an accelerometer feels, upwards at rest), else relative to the world.
A gyroscope is not here: kinematics are inputs, so that ω is known before the problem is solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.expr import is_zero
from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.spatial import X_inverse, checked_pose, cross, cross_force, rotation, skew
from sysdyn.system.linear import Linear, MotorTorque, numbers, stored, zeros
from sysdyn.system.measurements import Context, Measurement, Place, find_frame, moving_frame
from sysdyn.system.variables import ACCELERATION, WRENCH

REFERENCES = ("local", "world", "space")
SIDES = ("child", "parent")
_UNIT = {**dict.fromkeys(WRENCH[:3], "N m"), **dict.fromkeys(WRENCH[3:], "N"),
         **dict.fromkeys(ACCELERATION[:3], "rad/s²"), **dict.fromkeys(ACCELERATION[3:], "m/s²")}  # fmt: skip

Blocks = Mapping[tuple[str, str], np.ndarray]


class Sensor(Measurement):
    """A measurement that can be stored, with components chosen out of `scalars`.

    Subclasses implement `equations(ctx) → (blocks, bias)` for all scalars, in the coordinates where they are simplest,
    and `axes(ctx) → (A, A⁻¹)` from there to the axes of the value. components: "all", one name, or several, in the
    order of the value. name: default the class and what it is on. noise: None for an exact equation.
    """

    scalars: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = REFERENCES

    def __init__(self, on: str, components, name: str | None, noise, **arguments):
        kind = type(self).__name__
        chosen = (components,) if isinstance(components, str) else tuple(components)
        self.chosen = self.scalars if chosen == ("all",) else chosen
        self.name = name or f"{kind}({on}{'' if self.chosen == self.scalars else '.' + ','.join(map(str, chosen))})"
        self.noise = noise
        self.arguments = arguments
        for k, component in enumerate(self.chosen):
            if component not in self.scalars:
                raise UnknownName(f"component of {self.name!r}:", component, self.scalars)
            if component in self.chosen[:k]:
                raise ProblemError(f"{self.name!r} states {component} twice: remove one of them")
        if not self.chosen:
            raise InvalidInput(f"{self.name!r} has no components: choose some of {', '.join(self.scalars)}")
        reference = arguments.get("reference", "local")
        if reference not in self.references:
            raise UnknownName(f"reference of {self.name!r}:", reference, self.references)
        self.reference: str = reference

    def equations(self, ctx: Context) -> tuple[Blocks, np.ndarray]:
        raise NotImplementedError

    def check(self, model: Model) -> None:
        """Raise where it speaks of what the model does not have."""

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each component."""
        return tuple(_UNIT[c] for c in self.chosen)

    def components(self, model: Model) -> tuple[str, ...]:
        self.check(model)
        return self.chosen

    def axes(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.scalars)
        return _eye(n), _eye(n)

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        A = self.axes(ctx)[0][self._places]
        return {key: A @ block for key, block in self.equations(ctx)[0].items()}

    def bias(self, ctx: Context) -> np.ndarray:
        return self.axes(ctx)[0][self._places] @ self.equations(ctx)[1]

    def solved_form(self, ctx: Context):
        """The equations as they are, where their chosen components follow from the chosen components of the value."""
        chosen = self._places
        others = [k for k in range(len(self.scalars)) if k not in chosen]
        inverse = self.axes(ctx)[1][chosen]
        if not all(is_zero(x) for x in inverse[:, others].flat):
            return super().solved_form(ctx)
        blocks, bias = self.equations(ctx)
        return {key: block[chosen] for key, block in blocks.items()}, bias[chosen], inverse[:, chosen]

    @property
    def _places(self) -> list[int]:
        return [self.scalars.index(c) for c in self.chosen]

    def describe(self, model: Model | None = None) -> dict | None:
        arguments = {key: stored(x) for key, x in self.arguments.items()}
        described = {"type": type(self).__name__, "name": self.name, "components": list(self.chosen), **arguments}
        if model is not None and self.arguments.get("frame") is not None:
            frame = find_frame(model, self.arguments["frame"])
            described["placed"] = [frame.body, frame.X.tolist()]
        return described

    def __repr__(self) -> str:
        arguments = "".join(f", {key}={x!r}" for key, x in self.arguments.items() if not isinstance(x, np.ndarray))
        return f"<{self.name}: {', '.join(self.chosen)}{arguments}>"


class _FrameSensor(Sensor):
    """A sensor in a frame that moves: a name of the model, or (body, T) with the pose T (4, 4) fixed in the body."""

    def __init__(self, frame: Place, components, name, noise, **arguments):
        self.frame, label = placed(frame, type(self).__name__)
        super().__init__(label, components, name, noise, frame=self.frame, **arguments)

    def check(self, model: Model) -> None:
        moving_frame(model, self.frame)


# ---- wrenches ------------------------------------------------------------------------------------------------------


class ForceTorqueSensor(Sensor):
    """Six-axis sensor at a joint: the wrench [N m, N] transmitted across it, y = X_F^{−T} f.

    joint   the joint across which the wrench passes; its name, or that of its child body
    frame   where and in which axes it is measured: a frame of the child or of the parent of the joint, whichever the
            sensor is fixed to; default the body frame of the child
    side    "child": the wrench that the parent exerts on the child (f itself); "parent": the opposite
    """

    scalars = WRENCH

    def __init__(
        self, joint: str, frame: Place | None = None, side: str = "child", reference: str = "local", components="all",
        name: str | None = None, noise=None,
    ):  # fmt: skip
        if side not in SIDES:
            raise UnknownName("side of a ForceTorqueSensor:", side, SIDES)
        self.joint, self.side = joint, side
        self.frame = None if frame is None else placed(frame, "ForceTorqueSensor")[0]
        super().__init__(joint, components, name, noise, joint=joint, frame=self.frame, side=side, reference=reference)

    def _child(self, model: Model) -> int:
        return model.body_index(self.joint) if self.joint in model.body_names else model.joint_index(self.joint)

    def check(self, model: Model) -> None:
        child = self._child(model)
        frame = None if self.frame is None else find_frame(model, self.frame)
        if frame is not None and frame.body not in (child, model.parent[child]):
            raise InvalidInput(
                f"{self.name!r}: frame {frame.name!r} must be fixed to the child or the parent of joint "
                f"{model.joint_names[child]!r}"
            )

    def equations(self, ctx):
        body = ctx.model.body_names[self._child(ctx.model)]
        return {("f", body): _eye(6) if self.side == "child" else -_eye(6)}, zeros(6)

    def axes(self, ctx):
        child = self._child(ctx.model)
        frame = (ctx.model.body_names[child], np.eye(4)) if self.frame is None else self.frame
        A, inverse = _wrench_axes(ctx, frame, self.reference)
        if find_frame(ctx.model, frame).body != child:
            X = ctx.transforms[child]
            return A @ X.T, X_inverse(X).T @ inverse
        return A, inverse


class LoadCells(_FrameSensor):
    """Components of the external wrench [N m, N] on the body of a frame, at the origin of the frame in its axes.

    A foot on four vertical cells measures components=["nx", "ny", "fz"]; Nori eq. (18).
    """

    scalars = WRENCH

    def __init__(self, frame: Place, components="all", reference: str = "local", name: str | None = None, noise=None):
        super().__init__(frame, components, name, noise, reference=reference)

    def equations(self, ctx):
        return {("fx", ctx.body(self.frame)): _eye(6)}, zeros(6)

    def axes(self, ctx):
        return _wrench_axes(ctx, self.frame, self.reference)


class PointContact(_FrameSensor):
    """The external wrench on a body is a pure force at the origin of a frame: no moment there [N m].

    A patch of tactile sensors that finds one contact gives its centroid as the frame. With components ["nx", "ny"] the
    origin is the centre of pressure of a sole whose normal is z. The value is zero where none is handed in.
    """

    scalars = WRENCH[:3]
    references = ("local", "world")
    optional = True

    def __init__(self, frame: Place, components="all", reference: str = "local", name: str | None = None, noise=None):
        super().__init__(frame, components, name, noise, reference=reference)

    def equations(self, ctx):
        return {("fx", ctx.body(self.frame)): X_inverse(ctx.X(self.frame)).T[:3]}, zeros(3)

    def axes(self, ctx):
        return _turned(ctx, self.frame, self.reference)


class ForceDirection(_FrameSensor):
    """The external force on a body is along a known direction: two perpendicular components [N] are zero.

    direction (3,): in the axes of the frame, or of the world with reference="world"; of any length and sign.
    The value is zero where none is handed in.
    """

    scalars = ("across_1", "across_2")
    references = ("local", "world")
    optional = True

    def __init__(
        self, frame: Place, direction, reference: str = "local", components="all", name: str | None = None, noise=None
    ):  # fmt: skip
        d = numbers("direction of a ForceDirection", direction, (3,))
        if not np.any(d):
            raise InvalidInput("the direction of a ForceDirection is zero: give for example (0, 0, 1)")
        self.direction = d
        super().__init__(frame, components, name, noise, direction=d, reference=reference)

    @property
    def units(self):
        return ("N",) * len(self.chosen)

    def equations(self, ctx):
        d = self.direction / np.linalg.norm(self.direction)
        first = np.cross(d, np.eye(3)[np.argmin(np.abs(d))])
        first /= np.linalg.norm(first)
        across = np.array([first, np.cross(d, first)]).astype(object)
        transform = _wrench_axes(ctx, self.frame, self.reference)[0]
        return {("fx", ctx.body(self.frame)): across @ transform[3:]}, zeros(2)


class NetWrench(_FrameSensor):
    """Net wrench [N m, N] on the body of a frame, at the origin of the frame: I a + ν.

    gravity=True: the sum of all wrenches but the weight (`a` is proper; the paper's fB); False: with the weight.
    """

    scalars = WRENCH

    def __init__(
        self, frame: Place, components="all", gravity: bool = True, reference: str = "local", name: str | None = None,
        noise=None,
    ):  # fmt: skip
        self.gravity = gravity
        super().__init__(frame, components, name, noise, gravity=gravity, reference=reference)

    def equations(self, ctx):
        body = ctx.body(self.frame)
        i = ctx.model.body_index(body)
        I, nu = _net(ctx, i)
        if not self.gravity:
            E = ctx.R((body, np.eye(4))).T
            nu = nu + I @ linear(E @ ctx.model.gravity.astype(object))
        return {("a", body): I}, nu

    def axes(self, ctx):
        return _wrench_axes(ctx, self.frame, self.reference)


# ---- accelerations of frames ---------------------------------------------------------------------------------------


class FrameAcceleration(_FrameSensor):
    """Acceleration [rad/s², m/s²] of a frame; zero where no value is handed in, as of a frame in contact.

    classical  linear part of the frame's origin as a point (spatial acceleration + ω × v) instead of spatial
    gravity    proper acceleration instead of acceleration relative to the world

    RBDA section 2.11.
    """

    scalars = ACCELERATION
    optional = True

    def __init__(
        self, frame: Place, components="all", classical: bool = True, gravity: bool = False, reference: str = "local",
        name: str | None = None, noise=None,
    ):  # fmt: skip
        self.classical, self.gravity = classical, gravity
        if classical and reference == "space":
            raise InvalidInput(
                "a classical acceleration is of the frame's origin: use reference='world', or classical=False"
            )
        super().__init__(frame, components, name, noise, classical=classical, gravity=gravity, reference=reference)

    def equations(self, ctx):
        return _acceleration(ctx, self.frame, self.classical, self.gravity)

    def axes(self, ctx):
        if self.reference == "space":
            X = ctx.X0(self.frame)
            return X_inverse(X), X
        R, E = _turned(ctx, self.frame, self.reference)
        return diagonal(R), diagonal(E)


class Accelerometer(_FrameSensor):
    """Proper classical acceleration [m/s²] of the origin of a frame: linear part of X_F a, + ω × v of the frame.

    At rest it shows 9.81 upwards.
    """

    scalars = ACCELERATION[3:]
    references = ("local", "world")

    def __init__(self, frame: Place, components="all", reference: str = "local", name: str | None = None, noise=None):
        super().__init__(frame, components, name, noise, reference=reference)

    def equations(self, ctx):
        blocks, bias = _acceleration(ctx, self.frame, True, True)
        return {key: block[3:] for key, block in blocks.items()}, bias[3:]

    def axes(self, ctx):
        return _turned(ctx, self.frame, self.reference)


class AngularAccelerometer(_FrameSensor):
    """Angular acceleration [rad/s²] of a frame."""

    scalars = ACCELERATION[:3]
    references = ("local", "world")

    def __init__(self, frame: Place, components="all", reference: str = "local", name: str | None = None, noise=None):
        super().__init__(frame, components, name, noise, reference=reference)

    def equations(self, ctx):
        blocks, bias = _acceleration(ctx, self.frame, False, True)
        return {key: block[:3] for key, block in blocks.items()}, bias[:3]

    def axes(self, ctx):
        return _turned(ctx, self.frame, self.reference)


# ---- the robot as a whole ------------------------------------------------------------------------------------------


class _Subtree(Sensor):
    """A sum over the bodies that `root` carries, itself among them; None: over the whole robot.

    reference "world", or "local": the axes of the root body.
    """

    references = ("local", "world")

    def __init__(
        self, root: str | None = None, components="all", gravity: bool = False, reference: str = "world",
        name: str | None = None, noise=None,
    ):  # fmt: skip
        self.root, self.gravity = root, gravity
        super().__init__(root or "all", components, name, noise, root=root, gravity=gravity, reference=reference)

    def _bodies(self, model: Model) -> tuple[int, list[int]]:
        """(the body in whose coordinates the sum is taken, −1 for the base; the bodies)."""
        if self.root is not None:
            root = model.body_index(self.root)
            return root, [i for i in range(model.nb) if root in path(model, i)]
        roots = [i for i in range(model.nb) if model.parent[i] < 0]
        if self.reference == "local" and len(roots) > 1:
            raise InvalidInput(f"{self.name!r}: the robot has {len(roots)} root bodies; use reference='world'")
        return (roots[0] if len(roots) == 1 else -1), list(range(model.nb))

    def check(self, model: Model) -> None:
        if not sum(model.inertias[i, 5, 5] for i in self._bodies(model)[1]) > 0.0:
            raise InvalidInput(f"{self.name!r}: the bodies have no mass, so there is no centre of mass")

    def _gathered(self, ctx: Context):
        """(X (6, 6) from the root to each body, first mass moment (3,), mass, gravity), in axes of the root."""
        model = ctx.model
        root, bodies = self._bodies(model)
        X: dict[int, np.ndarray] = {}
        moment, mass = zeros(3), 0.0
        for i in bodies:
            p = model.parent[i]
            X[i] = np.eye(6).astype(object) if i == root else ctx.transforms[i]
            if p in X:
                X[i] = X[i] @ X[p]
            m, mc = _mass_moment(model, i)
            E, rx = rotation(X[i]), -(rotation(X[i]).T @ X[i][3:, :3])
            moment = moment + E.T @ mc + m * np.array([rx[2, 1], rx[0, 2], rx[1, 0]], dtype=object)
            mass += m
        return X, moment, mass, self._rotation(ctx).T @ model.gravity.astype(object)

    def _rotation(self, ctx: Context) -> np.ndarray:
        """R (3, 3) from axes of the root to the world's."""
        root = self._bodies(ctx.model)[0]
        return _eye(3) if root < 0 else ctx.R((ctx.model.body_names[root], np.eye(4)))

    def axes(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        R = self._rotation(ctx) if self.reference == "world" else _eye(3)
        return (R, R.T) if len(self.scalars) == 3 else (diagonal(R), diagonal(R.T))


class CentreOfMassAcceleration(_Subtree):
    """Acceleration [m/s²] of the centre of mass of the robot or of a subtree.

    root       the body whose subtree is meant; None: the whole robot
    gravity    proper acceleration instead of acceleration relative to the world
    reference  "world", or "local": the axes of the root body
    """

    scalars = ACCELERATION[3:]

    def equations(self, ctx):
        X, _, mass, gravity = self._gathered(ctx)
        blocks, bias = {}, zeros(3)
        for i in X:
            m, mc = _mass_moment(ctx.model, i)
            v, turn = ctx.velocities[i], rotation(X[i]).T
            # m (a + α × c + ω × (v + ω × c)) in the body
            blocks["a", ctx.model.body_names[i]] = turn @ np.hstack([-skew(mc), m * _eye(3)]) * (1.0 / mass)
            bias = bias + turn @ (cross(v[:3], m * v[3:] + cross(v[:3], mc))) * (1.0 / mass)
        return blocks, bias if self.gravity else bias + gravity


class MomentumRate(_Subtree):
    """Rate of change [N m, N] of the spatial momentum about the centre of mass of the robot or of a subtree.

    Σ of I a + ν of the bodies, taken to the centre of mass. Its linear part is the mass times the acceleration of the
    centre of mass. Arguments as for CentreOfMassAcceleration; with gravity=True the weight is left out: the sum of the
    other external wrenches. Orin, Goswami and Lee (2013), eq. (40).
    """

    scalars = WRENCH

    def equations(self, ctx):
        X, moment, mass, gravity = self._gathered(ctx)
        to_centre = _eye(6)  # n_G = n − c_G × f
        to_centre[:3, 3:] = -skew(moment * (1.0 / mass))
        blocks, bias = {}, zeros(6)
        for i in X:
            I, nu = _net(ctx, i)
            transform = to_centre @ X[i].T
            blocks["a", ctx.model.body_names[i]] = transform @ I
            bias = bias + transform @ nu
        return blocks, bias if self.gravity else bias + linear(gravity * mass)


# ---- stored forms ---------------------------------------------------------------------------------------------------

SENSORS: dict[str, type[Measurement]] = {
    cls.__name__: cls
    for cls in (
        ForceTorqueSensor, LoadCells, PointContact, ForceDirection, NetWrench, FrameAcceleration, Accelerometer,
        AngularAccelerometer, CentreOfMassAcceleration, MomentumRate, Linear, MotorTorque,
    )
}  # fmt: skip


def from_description(data: Mapping, valid: Mapping[str, type[Measurement]] = SENSORS) -> Measurement:
    """Inverse of `describe()`. Raises UnknownName for a type that does not exist."""
    arguments = dict(data)
    kind = arguments.pop("type")
    if kind not in valid:
        raise UnknownName("type of measurement", kind, valid)
    if kind == "Linear":
        arguments["blocks"] = {(quantity, owner): C for quantity, owner, C in arguments["blocks"]}
    return valid[kind](**arguments)


# ---- what they share -----------------------------------------------------------------------------------------------


def _acceleration(ctx: Context, frame: Place, classical: bool, gravity: bool):
    """({("a", body): (6, 6)}, (6,)): X_F a, less −g, + ω × v, in the axes of the frame."""
    X, bias = ctx.X(frame), zeros(6)
    if classical:
        v = ctx.v(frame)
        bias = bias + linear(cross(v[:3], v[3:]))
    if not gravity:
        bias = bias + linear(ctx.R(frame).T @ ctx.model.gravity.astype(object))
    return {("a", ctx.body(frame)): X}, bias


def _turned(ctx: Context, frame: Place, reference: str) -> tuple[np.ndarray, np.ndarray]:
    """(R, R^T) from the axes of a frame to those asked for."""
    R = ctx.R(frame) if reference == "world" else _eye(3)
    return R, R.T


def _wrench_axes(ctx: Context, frame: Place, reference: str) -> tuple[np.ndarray, np.ndarray]:
    """(A, A⁻¹) from wrenches in coordinates of the body of a frame to the frame, or to the axes asked for."""
    X = ctx.X(frame)
    A, inverse = X_inverse(X).T, X.T
    if reference == "world":
        R = ctx.R(frame)
        return diagonal(R) @ A, inverse @ diagonal(R.T)
    if reference == "space":
        X0 = ctx.X0(frame)
        return X0.T @ A, inverse @ X_inverse(X0).T
    return A, inverse


def _net(ctx: Context, i: int) -> tuple[np.ndarray, np.ndarray]:
    """(I, ν) of body i."""
    I, v = ctx.model.inertias[i].astype(object), ctx.velocities[i]
    return I, cross_force(v, I @ v)


def _mass_moment(model: Model, i: int) -> tuple[object, np.ndarray]:
    """(m, m c (3,)) of body i, from I = [.. m c×; .. m 1]."""
    I = model.inertias[i]
    return I[5, 5], np.array([I[2, 4], I[0, 5], I[1, 3]]).astype(object)


def linear(x: np.ndarray) -> np.ndarray:
    return np.concatenate([zeros(3), x])


def diagonal(R: np.ndarray) -> np.ndarray:
    """[R 0; 0 R]."""
    A = np.full((6, 6), 0.0, dtype=object)
    A[:3, :3] = A[3:, 3:] = R
    return A


def _eye(n: int) -> np.ndarray:
    return np.eye(n).astype(object)


def placed(frame: Place, kind: str) -> tuple[Place, str]:
    """(the frame, checked; how it is called)."""
    if isinstance(frame, str):
        return frame, frame
    if not (isinstance(frame, (tuple, list)) and len(frame) == 2 and isinstance(frame[0], str)):
        raise InvalidInput(f"{kind}: a frame is a name, or (body, T) with the pose T (4, 4), not {frame!r}")
    body, T = frame
    T = checked_pose(f"pose of the {kind} on {body!r}", T)
    T.flags.writeable = False
    return (body, T), f"{body}+pose"
