"""Sensors of the state: measurements whose value is a smooth function of q and q̇, in place of linear in the unknowns.

Solvers of one state take q and q̇ as given and leave these measurements aside; over a log q and q̇ are unknown, and
each of them has noise. An attitude is measured as a rotation vector [rad], and its error is about the frame's own axes:

    h(q, q̇) + β = y + ε                in general
    ½ vee(R_m^T R − R^T R_m) = ε       for an attitude R measured as R_m = exp(y×), about its rotation vector if small

With reference "local" a value is in the axes of the frame, with "world" in those of the world.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.bias_models import BiasModel, bias_model_of
from sysdyn.measurements.conditions import Condition, condition_of
from sysdyn.measurements.constraints import AXES, CONTACTS, checked_kind
from sysdyn.measurements.input_names import GRAVITY
from sysdyn.measurements.known_quantities import QuantityMeasurement, as_tuple
from sysdyn.measurements.linear import numbers, scalars, zeros
from sysdyn.measurements.measurement import Context, FrameRef, Measurement, Names, find_frame
from sysdyn.measurements.sensor import ConfigurableMeasurement, FrameMixin, checked_frame, frame_pose_json
from sysdyn.model import Model
from sysdyn.model.quantities import ACCELERATION
from sysdyn.model.se3 import cross, se3_log, smooth_trig, so3_log_coefficients, vector
from sysdyn.program.arrays import to_plain
from sysdyn.program.graph import Expr, sqrt

# Names of the components of a velocity, of a position, and of an attitude as rotation vector.
TWIST = ("omega_x", "omega_y", "omega_z", "v_x", "v_y", "v_z")
POSITION = AXES
ATTITUDE = ("r_x", "r_y", "r_z")
# Units of all of these by the name of a component.
UNITS = {
    **dict.fromkeys(TWIST[:3], "rad/s"), **dict.fromkeys(TWIST[3:], "m/s"), **dict.fromkeys(POSITION, "m"),
    **dict.fromkeys(ATTITUDE, "rad"),
}  # fmt: skip
# Name of a component of velocity by that of acceleration, as contacts name them.
_RATE = dict(zip(ACCELERATION, TWIST, strict=True))
# Value of when=: contacts are detected from the velocity of the foot.
KINEMATICS = "kinematics"
# Added to the square of twice the cosine of half an angle: a few times its rounding, so that it stays positive.
COSINE_ROUNDING = 1e-15


class StateMeasurement(Measurement, listed=False):
    """A measurement of q and q̇: base class of sensors of the state.

    Subclasses give `name`, `noise`, `components(model)`, `component_units(model)` and `value(ctx) → (m,)`, floats or
    Expr, a smooth function of q and q̇. If value − y is no valid error, as for angles, they also give
    `residual(ctx, y)`, where y may have entries of type Expr.
    """

    of_state = True

    def value(self, ctx: Context) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__} must implement value(ctx)")

    def rows(self, ctx: Context):
        raise InvalidInput(
            f"{self.name!r} is a sensor of the state: its value follows from q and q̇, and it has no rows in the "
            "equations of one state"
        )


# ---- joints --------------------------------------------------------------------------------------------------------


class JointSensor(StateMeasurement, QuantityMeasurement, listed=False):
    """A sensor of joints: their variables of one quantity of the state.

    joints      "all" that have one degree of freedom, one name, or several
    components  "all", or numbers of some of their scalars
    """

    def __init__(
        self, joints: Names = "all", components: str | Sequence[int] = "all", name: str | None = None, noise=None,
        bias: BiasModel | None = None,
    ):  # fmt: skip
        kind = type(self).__name__
        self.targets = joints if isinstance(joints, str) else tuple(joints)
        names = as_tuple(self.targets)
        if not names or len(set(names)) < len(names):
            raise InvalidInput(f"{kind} must name joints, each once, not {joints!r}")
        self.name = name or (kind if self.targets == "all" else f"{kind}({','.join(names)})")
        if not (isinstance(components, str) and components == "all"):
            numbers = tuple(components)
            if not numbers or len(set(numbers)) < len(numbers) or not all(isinstance(k, int) for k in numbers):
                raise InvalidInput(f"components of {self.name!r} are 'all' or different numbers, not {components!r}")
            self.selection = numbers  # type: ignore[assignment]
        self.noise, self.drift = noise, bias_model_of(self.name, bias)

    def bodies(self, model: Model) -> list[int]:
        """Indices of the joints. Raises UnknownName; InvalidInput for a joint without the measured variable."""
        if self.targets == "all":
            bodies = [i for i, joint in enumerate(model.joints) if joint.nq == joint.nv == 1]
            if not bodies:
                raise InvalidInput(f"{self.name!r}: {model.name!r} has no joint of one degree of freedom")
            return bodies
        bodies = super().bodies(model)
        for i in bodies:
            self.check_joint(model, i)
        return bodies

    def check_joint(self, model: Model, i: int) -> None:
        """Raise InvalidInput if the joint lacks the measured variable: a fixed joint has none."""
        if not model.joints[i].nv:
            raise InvalidInput(f"{self.name!r}: joint {model.joint_names[i]!r} is fixed and has no velocity")

    def components(self, model: Model) -> tuple[str, ...]:
        return tuple(x.partition(":")[2] for x in self.labels(model))

    def value(self, ctx: Context) -> np.ndarray:
        state = {"q": ctx.q, "qd": ctx.qd}[self.state]
        return np.asarray(state, dtype=object)[self.places(ctx.model)]

    def identity(self) -> str | None:
        return json.dumps({"type": type(self).__name__}) if self.selectable else None

    def describe(self, model: Model | None = None) -> dict:
        return {"type": type(self).__name__, "name": self.name, "joints": to_plain(self.targets)}

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(as_tuple(self.targets))}>"


class JointPosition(JointSensor):
    """Measured q of joints [rad or m], as encoders give it.

    Angles may count turns, or wrap at (−π, π] or [0, 2π): `smooth` and `filter` unwrap them, see docs/trajectories.md.

    joints      "all" that have one degree of freedom, one name, or several with one degree of freedom
    components  "all", or numbers of some of these
    """

    state = "q"

    def check_joint(self, model: Model, i: int) -> None:
        joint, name = model.joints[i], model.joint_names[i]
        if not joint.nq == joint.nv == 1:
            raise InvalidInput(
                f"{self.name!r}: joint {name!r} ({joint.kind}) has {joint.nv} degrees of freedom, so that no single "
                f"position is measured: use FramePose, FramePosition or FrameAttitude of {model.body_names[i]!r}"
            )


class JointVelocity(JointSensor):
    """Measured q̇ of joints [rad/s or m/s], all degrees of freedom of the joints that are named.

    joints      "all" that have one degree of freedom, one name, or several
    components  "all", or numbers of some of their degrees of freedom
    """

    state = "qd"


# ---- frames --------------------------------------------------------------------------------------------------------


class StateSensor(StateMeasurement, ConfigurableMeasurement, listed=False):
    """An instrument of the state. Subclasses give `scalars` and `all_values(ctx)`, of all of them."""

    unit_of = UNITS
    references = ("local", "world")

    def all_values(self, ctx: Context) -> np.ndarray:
        """Values of all `scalars`."""
        raise NotImplementedError

    def value(self, ctx: Context) -> np.ndarray:
        return self.all_values(ctx)[self.numbers]


class FrameStateSensor(FrameMixin, StateSensor, listed=False):
    """A sensor of the state in a frame that moves."""

    def in_value_axes(self, ctx: Context, x: np.ndarray) -> np.ndarray:
        """A vector (3,) in axes of the frame, in the axes of the value."""
        return ctx.R(self.frame) @ x if self.reference == "world" else x


class FrameVelocity(FrameStateSensor, listed=False):
    """One of the two vectors of the velocity (6,) of a frame: the part of_twist."""

    of_twist: slice

    def __init__(
        self, frame: FrameRef, components: Names = "all", reference: str = "local", name: str | None = None, noise=None,
        bias: BiasModel | None = None,
    ):  # fmt: skip
        super().__init__(frame, components, name, noise, bias, reference=reference)

    def all_values(self, ctx):
        return self.in_value_axes(ctx, ctx.v(self.frame)[self.of_twist])


class Gyroscope(FrameVelocity):
    """Angular velocity [rad/s] of a frame."""

    of_twist = slice(0, 3)
    scalars = TWIST[:3]


class Velocimeter(FrameVelocity):
    """Linear velocity [m/s] of the origin of a frame, as a point."""

    of_twist = slice(3, 6)
    scalars = TWIST[3:]


class FramePosition(FrameStateSensor):
    """Position [m] of the origin of a frame in the world, as of motion capture or satellites."""

    scalars = POSITION

    def __init__(
        self,
        frame: FrameRef,
        components: Names = "all",
        name: str | None = None,
        noise=None,
        bias: BiasModel | None = None,
    ):
        super().__init__(frame, components, name, noise, bias)

    def all_values(self, ctx):
        return ctx.p(self.frame)


class _Attitude(FrameStateSensor, listed=False):
    """A sensor whose last three scalars are a rotation vector."""

    def residual(self, ctx: Context, y: np.ndarray) -> np.ndarray:
        """Value less y; for an attitude the rotation from y to the value, about the axes of the frame."""
        y = np.asarray(y, dtype=object)
        turns = [k for k, place in enumerate(self.numbers) if self.scalars[place] in ATTITUDE]
        difference = zeros(len(y))
        straight = [k for k in range(len(y)) if k not in turns]
        if straight:
            positions = ctx.p(self.frame)
            difference[straight] = [positions[POSITION.index(self.chosen[k])] - y[k] for k in straight]
        if turns:
            difference[turns] = rotation_difference(ctx.R(self.frame), y[turns])
        return difference

    def check(self, model: Model) -> None:
        super().check(model)
        turns = [c for c in self.chosen if c in ATTITUDE]
        if turns and turns != list(ATTITUDE):
            raise InvalidInput(
                f"{self.name!r} has the components {', '.join(self.chosen)}: an attitude is measured as a whole, "
                f"{', '.join(ATTITUDE)} in this order, or not at all"
            )


class FrameAttitude(_Attitude):
    """Attitude of a frame in the world as rotation vector [rad]: R = exp(r×), from axes of the frame to the world's.

    Its error is a small rotation about the axes of the frame: see `sysdyn.measurements.state_sensors`.
    """

    scalars = ATTITUDE
    selectable = False

    def __init__(self, frame: FrameRef, name: str | None = None, noise=None, bias: BiasModel | None = None):
        super().__init__(frame, "all", name, noise, bias)

    def all_values(self, ctx):
        return rotation_vector(ctx.R(self.frame))


class FramePose(_Attitude):
    """Pose of a frame in the world: position of its origin [m], then its attitude as rotation vector [rad].

    As of motion capture, or visual odometry. components: "all", or positions alone. Errors of the attitude as of
    `FrameAttitude`.
    """

    scalars = (*POSITION, *ATTITUDE)

    def __init__(
        self,
        frame: FrameRef,
        components: Names = "all",
        name: str | None = None,
        noise=None,
        bias: BiasModel | None = None,
    ):
        super().__init__(frame, components, name, noise, bias)

    def all_values(self, ctx):
        return np.concatenate([ctx.p(self.frame), rotation_vector(ctx.R(self.frame))])


class Direction(FrameStateSensor):
    """A vector that is constant in the world, seen in the axes of a frame: R^T vector, as by a magnetometer.

    vector: (3,) in world axes, in the unit of the value; or "gravity": the unit vector upwards, against gravity.
    Raises InvalidInput for a vector of zeros, and if there is no gravity.
    """

    scalars = ("d_x", "d_y", "d_z")
    unit_of = dict.fromkeys(scalars, "")

    def __init__(
        self, frame: FrameRef, vector: Any = GRAVITY, components: Names = "all", name: str | None = None, noise=None,
        bias: BiasModel | None = None,
    ):  # fmt: skip
        if isinstance(vector, str) and vector != GRAVITY:
            raise UnknownName("vector of a Direction:", vector, (GRAVITY,))
        self.vector = vector if isinstance(vector, str) else numbers("vector of a Direction", vector, (3,))
        if not isinstance(self.vector, str) and not np.any(self.vector):
            raise InvalidInput("the vector of a Direction is zero: give for example (1, 0, 0), or 'gravity'")
        self.unit_of = dict.fromkeys(self.scalars, "1" if isinstance(self.vector, str) else "")
        super().__init__(frame, components, name, noise, bias, vector=self.vector)

    def check(self, model: Model) -> None:
        super().check(model)
        if isinstance(self.vector, str):
            _check_gravity(self.name, model)

    def all_values(self, ctx):
        vector = _upwards(ctx.model) if isinstance(self.vector, str) else np.asarray(self.vector, dtype=object)
        return ctx.R(self.frame).T @ vector


class Stance(FrameStateSensor):
    """Velocity [rad/s, m/s] of a frame that stands: zero while it is active, unless a call gives a value.

    frame       a name of the model, or (body, T) with the pose T (4, 4) fixed in the body
    kind        held components, as of a `Contact`: "point" the origin; "fixed" all six; "normal" the origin along z …;
                components="all" are these, else names out of omega_x … v_z
    reference   axes of the components: "local", the frame's, or "world"
    radius      of a round foot [m]: the frame is its centre, and the held point is the lowest one, on which it rolls
    when        None: as a log or a run says; or the condition under which it stands, by columns of measurements of the
                problem: "l_foot_ft: fz > 40", with <, >=, <=, and several joined by "and"; "l_foot_ft: fz" alone: a
                limit is found from the log, between the forces of a foot that stands and of one that does not;
                "kinematics": while its velocity, estimated from other sensors and feet, agrees with zero
    settle      time [s] after its begin in which it does not count: a foot rings on the floor
    noise       standard deviation of the velocity of the frame while it stands

    Raises UnknownName, InvalidInput; the problem for columns in `when` that it does not have.
    """

    scalars = TWIST
    optional = True

    def __init__(
        self, frame: FrameRef, kind: str = "point", components: Names = "all", reference: str = "local",
        when: str | Condition | None = None, name: str | None = None, noise=None, bias: BiasModel | None = None,
        radius: float = 0.0, settle: float = 0.0,
    ):  # fmt: skip
        held = CONTACTS[checked_kind("kind of a Stance:", kind, CONTACTS)]
        name = name or f"Stance({checked_frame(frame, 'Stance')[1]})"
        everything = (components if isinstance(components, str) else tuple(components)) in ("all", ("all",))
        chosen = tuple(_RATE[c] for c in held) if everything else components
        self.proposed = isinstance(when, str) and when == KINEMATICS
        self.when = None if self.proposed else condition_of(name, when)
        if not (isinstance(radius, (int, float)) and 0.0 <= radius < math.inf):
            raise InvalidInput(f"the radius of {name!r} is {radius!r}: a length ≥ 0 m is needed")
        if not (isinstance(settle, (int, float)) and 0.0 <= settle < math.inf):
            raise InvalidInput(f"settle of {name!r} is {settle!r}: a time ≥ 0 s is needed")
        self.radius, self.settle = float(radius), float(settle)
        further = {x: value for x, value in (("radius", radius), ("settle", settle)) if value}
        super().__init__(frame, chosen, name, noise, bias, reference=reference, **further)

    def all_values(self, ctx):
        v = ctx.v(self.frame)
        if self.radius:
            lowest = ctx.R(self.frame).T @ (-self.radius * _upwards(ctx.model))
            v = np.concatenate([v[:3], v[3:] + cross(v[:3], lowest)])
        return np.concatenate([self.in_value_axes(ctx, v[:3]), self.in_value_axes(ctx, v[3:])])

    def check(self, model: Model) -> None:
        super().check(model)
        if self.radius:
            _check_gravity(self.name, model)

    def describe(self, model: Model | None = None) -> dict:
        text = KINEMATICS if self.proposed else None if self.when is None else self.when.text
        when = {} if text is None else {"when": text}
        return {**super().describe(model), **when}


class FrameDistance(StateSensor):
    """Distance [m] between the origins of two frames, as by a range finder or a cable; one may be fixed to the base.

    The distance must not become 0 in a motion. Raises InvalidInput if no joint is between the frames.
    """

    scalars = ("distance",)
    unit_of = {"distance": "m"}
    selectable = False

    def __init__(
        self, frame_a: FrameRef, frame_b: FrameRef, name: str | None = None, noise=None, bias: BiasModel | None = None
    ):
        (self.frame_a, a), (self.frame_b, b) = (checked_frame(x, "FrameDistance") for x in (frame_a, frame_b))
        super().__init__(f"{a}-{b}", "all", name, noise, bias, frame_a=self.frame_a, frame_b=self.frame_b)

    def check(self, model: Model) -> None:
        a, b = (find_frame(model, x) for x in (self.frame_a, self.frame_b))
        if a.body == b.body:
            on = "the base" if a.body < 0 else f"body {model.body_names[a.body]!r}"
            raise InvalidInput(f"{self.name!r}: both frames are on {on}, so that their distance never changes")

    def all_values(self, ctx):
        d = ctx.p(self.frame_a) - ctx.p(self.frame_b)
        return vector([sqrt(d @ d)], object)

    def describe(self, model: Model | None = None) -> dict:
        described = super().describe(model)
        if model is not None:
            described["placed"] = [frame_pose_json(model, x) for x in (self.frame_a, self.frame_b)]
        return described


# ---- functions -----------------------------------------------------------------------------------------------------


class StateFunction(StateMeasurement, listed=False):
    """Any smooth function of q and q̇, whose derivatives follow from it.

    name        name of its value in a call, y={name: …}
    function    function(ctx) → (m,) of a `Context` with q, qd, X0, R, p and v of frames, made of + − · / and numpy's
                sin, cos, sqrt, without branching on values: it receives expressions once. It has no stored form
    components  number of values m, or a name for each
    units       unit of each value, or one for all

    Raises InvalidInput if it gives another number of values.
    """

    def __init__(
        self, name: str, function: Callable[[Context], Any], components: int | Sequence[str] = 1, noise=None,
        units: Sequence[str] | str = "", bias: BiasModel | None = None,
    ):  # fmt: skip
        if not callable(function):
            raise InvalidInput(f"{name!r} needs a function of a context, (ctx) -> values, not {function!r}")
        count = range(components) if isinstance(components, int) else ()
        self.chosen = tuple(map(str, count)) or (
            (components,) if isinstance(components, str) else () if isinstance(components, int) else tuple(components)
        )
        if not self.chosen or len(set(self.chosen)) < len(self.chosen):
            raise InvalidInput(f"components of {name!r} are their number, or different names, not {components!r}")
        self.units = (units,) * len(self.chosen) if isinstance(units, str) else tuple(units)
        if len(self.units) != len(self.chosen):
            raise InvalidInput(f"{name!r} has {len(self.chosen)} values, but {len(self.units)} units")
        self.name, self.function, self.noise, self.drift = name, function, noise, bias_model_of(name, bias)

    def components(self, model: Model) -> tuple[str, ...]:
        return self.chosen

    def value(self, ctx: Context) -> np.ndarray:
        values = scalars(self.function(ctx))
        if values.shape != (len(self.chosen),):
            raise InvalidInput(
                f"the function of {self.name!r} gives shape {values.shape}, but ({len(self.chosen)},) is needed"
            )
        return values

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.chosen)}>"


# ---- errors --------------------------------------------------------------------------------------------------------


def with_errors(m: Measurement, values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Values (n, m) with errors (n, m) of the measurement's noise: sums, but for attitudes R exp(ε×)."""
    result = values + errors
    if isinstance(m, _Attitude) and set(ATTITUDE) <= set(m.chosen):
        first = m.chosen.index(ATTITUDE[0])
        for k in range(len(values)):
            turn = rotation_matrix(values[k, first:]) @ rotation_matrix(errors[k, first:])
            result[k, first:] = rotation_vector(turn)
    return result


# ---- rotations -----------------------------------------------------------------------------------------------------


def rotation_difference(R: np.ndarray, y: np.ndarray) -> np.ndarray:
    """½ vee(R_m^T R − R^T R_m) (3,) with R_m = exp(y×): sine of the angle from R_m to R, along its axis in the frame.

    R (3, 3), y (3,) [rad]: floats or Expr. Smooth at every y.
    """
    M = rotation_matrix(y).T @ np.asarray(R, dtype=object)
    return _vee(M)


def rotation_matrix(y: np.ndarray) -> np.ndarray:
    """exp(y×) = 1 + s y× + b y×² (3, 3) of y (3,) [rad], floats or Expr; s = sin θ/θ, b = (1 − cos θ)/θ².

    Smooth at every y, to 15 digits up to 10 rad. Rodrigues; see `sysdyn.model.se3.smooth_trig`.
    """
    x, y, z = np.asarray(y, dtype=object)
    s, _, _, b = smooth_trig(x * x + y * y + z * z)
    entries = [
        1.0 - b * (y * y + z * z), b * x * y - s * z, b * x * z + s * y,
        b * x * y + s * z, 1.0 - b * (x * x + z * z), b * y * z - s * x,
        b * x * z - s * y, b * y * z + s * x, 1.0 - b * (x * x + y * y),
    ]  # fmt: skip
    return vector(entries, object).reshape(3, 3)


def rotation_vector(R: np.ndarray) -> np.ndarray:
    """y (3,) [rad] with exp(y×) = R (3, 3) and |y| ≤ π, floats or Expr.

    Near half a turn, where no smooth function is the rotation vector, the error for Expr grows as 1e-15/(π − |y|)².
    """
    R = np.asarray(R, dtype=object)
    if not any(isinstance(x, (Expr, np.ndarray)) for x in R.flat):
        T = np.eye(4)
        T[:3, :3] = R.astype(float)
        return se3_log(T)[:3].astype(object)
    # u = sin(θ/2) n and w = cos(θ/2) of the quaternion
    w = 0.5 * sqrt(1.0 + R[0, 0] + R[1, 1] + R[2, 2] + COSINE_ROUNDING)
    u = _vee(R) / (w + w)
    ratio, _ = so3_log_coefficients(w, u @ u)
    return 2.0 * ratio * u


def _vee(M: np.ndarray) -> np.ndarray:
    """½ vee(M − M^T) (3,)."""
    return 0.5 * vector([M[2, 1] - M[1, 2], M[0, 2] - M[2, 0], M[1, 0] - M[0, 1]], object)


def _upwards(model: Model) -> np.ndarray:
    """The unit vector (3,) against gravity, in world axes."""
    g = np.asarray(model.gravity, dtype=object)
    return -g / sqrt(g @ g)


def _check_gravity(name: str, model: Model) -> None:
    """Raise InvalidInput if the model has no gravity."""
    if not any(isinstance(x, Expr) or x != 0.0 for x in model.gravity):
        raise InvalidInput(f"{name!r}: the model has no gravity, so that nothing tells where up is")
