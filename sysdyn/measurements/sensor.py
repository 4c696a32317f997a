"""Sensors and contacts as measurements, in any frame of the model or at a pose given relative to a body.

Every one is exact, linear in a, f, τ, fx, q̈ with coefficients of q, q̇, and says in which axes its value is:

    reference "local"   axes of the frame, at its origin
              "world"   axes of the world, at the origin of the frame
              "space"   axes and origin of the world (wrenches and spatial accelerations)

With gravity=True an acceleration is proper (as an accelerometer feels it, upwards at rest), else relative to the world.
Sensors of the state, such as gyroscopes, are in `sysdyn.measurements.state_sensors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.measurements.bias_models import BiasModel, bias_model_of
from sysdyn.measurements.linear import zeros
from sysdyn.measurements.measurement import Context, FrameRef, Measurement, Names, find_frame, moving_frame
from sysdyn.model import Model
from sysdyn.model.kinematics import REFERENCES
from sysdyn.model.quantities import UNIT_OF
from sysdyn.model.se3 import X_inverse, checked_pose, cross_force
from sysdyn.program.arrays import to_plain
from sysdyn.program.graph import is_zero

# Coefficients (m, size) of an equation, by quantity and the name of its joint or body.
CoefficientBlocks = Mapping[tuple[str, str], np.ndarray]


class ConfigurableMeasurement(Measurement, listed=False):
    """A measurement that can be stored, with components chosen out of `scalars`.

    components: "all", one name, or several, in the order of the value. name: default the class and `on`. noise: None
    for an exact equation. bias: of a log, unknown: a Constant or a RandomWalk. unit_of: the unit of each of `scalars`.
    derived_arguments: arguments that are not stored, as they follow from the others.
    arguments: keyword arguments of the class other than components, name, noise and bias.
    """

    scalars: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = REFERENCES
    unit_of: Mapping[str, str] = UNIT_OF
    derived_arguments: ClassVar[tuple[str, ...]] = ()
    selectable = True

    def __init__(
        self, on: str, components: Names, name: str | None, noise: Any, bias: BiasModel | None = None, **arguments: Any
    ):
        kind = type(self).__name__
        chosen = (components,) if isinstance(components, str) else tuple(components)
        chosen = self.scalars if chosen == ("all",) else chosen
        self.name = name or f"{kind}({on}{'' if chosen == self.scalars else '.' + ','.join(map(str, chosen))})"
        self.noise, self.drift = noise, bias_model_of(self.name, bias)
        self.arguments = arguments
        for k, component in enumerate(chosen):
            check_among(f"component of {self.name!r}:", component, self.scalars)
            if component in chosen[:k]:
                raise ProblemError(f"{self.name!r} states {component} twice: remove one of them")
        self.selection = None if chosen == self.scalars else tuple(map(self.scalars.index, chosen))
        if not chosen:
            raise InvalidInput(f"{self.name!r} has no components: choose some of {', '.join(self.scalars)}")
        reference = arguments.get("reference", "local")
        check_among(f"reference of {self.name!r}:", reference, self.references)
        self.reference: str = reference

    @property
    def numbers(self) -> list[int]:
        """Numbers of its components among `scalars`."""
        return list(range(len(self.scalars)) if self.selection is None else self.selection)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of its components."""
        return tuple(self.scalars[k] for k in self.numbers)

    @property
    def units(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.unit_of[c] for c in self.chosen)

    def check(self, model: Model) -> None:
        """Raise UnknownName or InvalidInput if the model lacks its frame, joint or body, or that cannot move."""

    def components(self, model: Model) -> tuple[str, ...]:
        self.check(model)
        return self.chosen

    def identity(self) -> str | None:
        described = self.describe()
        return json.dumps({key: x for key, x in described.items() if key != "name"}) if self.selectable else None

    def describe(self, model: Model | None = None) -> dict:
        arguments = {key: to_plain(x) for key, x in self.arguments.items()}
        described = {"type": type(self).__name__, "name": self.name, **arguments}
        if model is not None and self.arguments.get("frame") is not None:
            described["placed"] = frame_pose_json(model, self.arguments["frame"])
        return {key: x for key, x in described.items() if key not in self.derived_arguments}

    def __repr__(self) -> str:
        arguments = "".join(f", {key}={x!r}" for key, x in self.arguments.items() if not isinstance(x, np.ndarray))
        return f"<{self.name}: {', '.join(self.chosen)}{arguments}>"


class FrameMixin(ConfigurableMeasurement, listed=False):
    """Mixin of measurements at a frame of a moving body, such as accelerometers and contacts.

    frame: name of a frame or body of the model, or (body, T) with the pose T (4, 4) of the frame in the body.
    """

    def __init__(self, frame: FrameRef, components, name, noise, bias: BiasModel | None = None, **arguments):
        self.frame, label = checked_frame(frame, type(self).__name__)
        super().__init__(label, components, name, noise, bias, frame=self.frame, **arguments)

    def check(self, model: Model) -> None:
        moving_frame(model, self.frame)


class Sensor(ConfigurableMeasurement, listed=False):
    """An instrument that is linear in the unknowns, with coefficients of q and q̇.

    Subclasses implement `equations(ctx) → (blocks, bias)` for all scalars, in the coordinates of simplest coefficients,
    and `axes(ctx) → (A, A⁻¹)` from there to the axes of the value. Arguments as of `ConfigurableMeasurement`.
    """

    def equations(self, ctx: Context) -> tuple[CoefficientBlocks, np.ndarray]:
        raise NotImplementedError

    def axes(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.scalars)
        return identity(n), identity(n)

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        return self.rows_of(ctx, self.numbers)

    def rows_of(self, ctx: Context, numbers: Sequence[int]) -> dict[tuple[str, str], np.ndarray]:
        """Rows of the scalars with these numbers."""
        A = self.axes(ctx)[0][list(numbers)]
        return {key: A @ block for key, block in self.equations(ctx)[0].items()}

    def bias(self, ctx: Context) -> np.ndarray:
        return self.axes(ctx)[0][self.numbers] @ self.equations(ctx)[1]

    def simplified_rows(self, ctx: Context):
        """The equations without `axes`, if their chosen components follow from the chosen components of the value."""
        chosen = self.numbers
        others = [k for k in range(len(self.scalars)) if k not in chosen]
        inverse = self.axes(ctx)[1][chosen]
        if not all(is_zero(x) for x in inverse[:, others].flat):
            return super().simplified_rows(ctx)
        blocks, bias = self.equations(ctx)
        return {key: block[chosen] for key, block in blocks.items()}, bias[chosen], inverse[:, chosen]


class FrameSensor(FrameMixin, Sensor, listed=False):
    """A sensor in a frame that moves, linear in the unknowns."""


class ReferencedSensor(FrameSensor, listed=False):
    """A frame sensor whose value can be in axes of the frame or of the world."""

    def __init__(
        self, frame: FrameRef, components: Names = "all", reference: str = "local", name: str | None = None, noise=None,
        bias: BiasModel | None = None,
    ):  # fmt: skip
        super().__init__(frame, components, name, noise, bias, reference=reference)


def output_axes(ctx: Context, frame: FrameRef, reference: str) -> tuple[np.ndarray, np.ndarray]:
    """(R, R^T) from the axes of a frame to the axes of the value."""
    R = ctx.R(frame) if reference == "world" else identity(3)
    return R, R.T


def wrench_axes(ctx: Context, frame: FrameRef, reference: str) -> tuple[np.ndarray, np.ndarray]:
    """(A, A⁻¹) from wrenches in coordinates of the body of a frame to the frame, or to the axes of the value."""
    X = ctx.X(frame)
    A, inverse = X_inverse(X).T, X.T
    if reference == "world":
        R = ctx.R(frame)
        return diagonal(R) @ A, inverse @ diagonal(R.T)
    if reference == "space":
        X0 = ctx.X0(frame)
        return X0.T @ A, inverse @ X_inverse(X0).T
    return A, inverse


def frame_pose_json(model: Model, frame: FrameRef) -> list:
    """[body, X] of a frame, as JSON, which the digest of the model lacks."""
    found = find_frame(model, frame)
    return [found.body, found.X.tolist()]


def linear(x: np.ndarray) -> np.ndarray:
    return np.concatenate([zeros(3), x])


def diagonal(R: np.ndarray) -> np.ndarray:
    """Matrix [R 0; 0 R]."""
    A = np.full((6, 6), 0.0, dtype=object)
    A[:3, :3] = A[3:, 3:] = R
    return A


def identity(n: int) -> np.ndarray:
    return np.eye(n).astype(object)


def checked_frame(frame: FrameRef, kind: str) -> tuple[FrameRef, str]:
    """(the checked frame, its label). Raises InvalidInput."""
    if isinstance(frame, str):
        return frame, frame
    if not (isinstance(frame, (tuple, list)) and len(frame) == 2 and isinstance(frame[0], str)):
        raise InvalidInput(f"{kind}: a frame is a name, or (body, T) with the pose T (4, 4), not {frame!r}")
    body, T = frame
    T = checked_pose(f"pose of the {kind} on {body!r}", T)
    T.flags.writeable = False
    return (body, T), f"{body}+pose"


def net_force(ctx: Context, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Inertia and bias (I, ν) of body i: its net wrench is I a + ν."""
    I, v = ctx.model.inertias[i].astype(object), ctx.velocities[i]
    return I, cross_force(v, I @ v)
