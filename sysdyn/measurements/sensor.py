"""Sensors and contacts as measurements, in any frame of the model or at a pose given relative to a body.

Every one is exact, linear in a, f, τ, fx, q̈ with coefficients of q, q̇, and says in which axes its value is:

    reference "local"   axes of the frame, at its origin
              "world"   axes of the world, at the origin of the frame
              "space"   axes and origin of the world (wrenches and spatial accelerations)

With gravity=True an acceleration is proper (as an accelerometer feels it, upwards at rest), else relative to the world.
Sensors of the state, such as gyroscopes, are in `sysdyn.measurements.state_sensors`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.measurements.bias_models import Drift, drift_of, drift_part
from sysdyn.measurements.linear import zeros
from sysdyn.measurements.measurement import Context, FrameRef, Measurement, Names, find_frame, moving_frame
from sysdyn.measurements.noise import noise_part
from sysdyn.model import Model
from sysdyn.model.kinematics import REFERENCES
from sysdyn.model.quantities import UNIT_OF
from sysdyn.model.se3 import X_inverse, checked_pose, cross_force
from sysdyn.program.arrays import to_plain
from sysdyn.program.graph import is_zero

# Coefficients (m, size) of an equation, by quantity and the name of its joint or body.
CoefficientBlocks = Mapping[tuple[str, str], np.ndarray]


class Instrument(Measurement):
    """A measurement that can be stored, with components chosen out of `scalars`.

    components: "all", one name, or several, in the order of the value. name: default the class and `on`. noise: None
    for an exact equation. bias: of a log, unknown: a Constant or a RandomWalk. unit_of: the unit of each of `scalars`.
    implied: arguments that are not stored, as they follow from the others.
    arguments: keyword arguments of the class beside components, name, noise and bias.
    """

    scalars: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = REFERENCES
    unit_of: ClassVar[Mapping[str, str]] = UNIT_OF
    implied: ClassVar[tuple[str, ...]] = ()
    divisible = True

    def __init__(
        self, on: str, components: Names, name: str | None, noise: Any, bias: Drift | None = None, **arguments: Any
    ):
        kind = type(self).__name__
        chosen = (components,) if isinstance(components, str) else tuple(components)
        self.chosen = self.scalars if chosen == ("all",) else chosen
        self.name = name or f"{kind}({on}{'' if self.chosen == self.scalars else '.' + ','.join(map(str, chosen))})"
        self.noise, self.drift = noise, drift_of(self.name, bias)
        self.arguments = arguments
        for k, component in enumerate(self.chosen):
            check_among(f"component of {self.name!r}:", component, self.scalars)
            if component in self.chosen[:k]:
                raise ProblemError(f"{self.name!r} states {component} twice: remove one of them")
        if not self.chosen:
            raise InvalidInput(f"{self.name!r} has no components: choose some of {', '.join(self.scalars)}")
        reference = arguments.get("reference", "local")
        check_among(f"reference of {self.name!r}:", reference, self.references)
        self.reference: str = reference
        self.units = tuple(self.unit_of[c] for c in self.chosen)

    def check(self, model: Model) -> None:
        """Raise UnknownName or InvalidInput if the model lacks its frame, joint or body, or that cannot move."""

    def components(self, model: Model) -> tuple[str, ...]:
        self.check(model)
        return self.chosen

    @property
    def _places(self) -> list[int]:
        return [self.scalars.index(c) for c in self.chosen]

    def part(self, kept: Sequence[int]) -> Self:
        rest = copy.copy(self)
        rest.chosen, rest.noise = tuple(self.chosen[k] for k in kept), noise_part(self.noise, kept)
        rest.units, rest.drift = tuple(self.units[k] for k in kept), drift_part(self.drift, kept)
        return rest

    def identity(self) -> str | None:
        described = self.describe()
        return json.dumps({key: x for key, x in described.items() if key not in ("name", "components")})

    def describe(self, model: Model | None = None) -> dict:
        arguments = {key: to_plain(x) for key, x in self.arguments.items()}
        described = {"type": type(self).__name__, "name": self.name, "components": list(self.chosen), **arguments}
        if model is not None and self.arguments.get("frame") is not None:
            described["placed"] = place_of(model, self.arguments["frame"])
        return {key: x for key, x in described.items() if key not in self.implied}

    def __repr__(self) -> str:
        arguments = "".join(f", {key}={x!r}" for key, x in self.arguments.items() if not isinstance(x, np.ndarray))
        return f"<{self.name}: {', '.join(self.chosen)}{arguments}>"


class InFrame(Instrument):
    """An instrument in a frame that moves: a name of the model, or (body, T) with the pose T (4, 4) in the body."""

    def __init__(self, frame: FrameRef, components, name, noise, bias: Drift | None = None, **arguments):
        self.frame, label = placed(frame, type(self).__name__)
        super().__init__(label, components, name, noise, bias, frame=self.frame, **arguments)

    def check(self, model: Model) -> None:
        moving_frame(model, self.frame)


class Sensor(Instrument):
    """An instrument that is linear in the unknowns, with coefficients of q and q̇.

    Subclasses implement `equations(ctx) → (blocks, bias)` for all scalars, in the coordinates of simplest coefficients,
    and `axes(ctx) → (A, A⁻¹)` from there to the axes of the value. Arguments as of `Instrument`.
    """

    def equations(self, ctx: Context) -> tuple[CoefficientBlocks, np.ndarray]:
        raise NotImplementedError

    def axes(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.scalars)
        return identity(n), identity(n)

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        A = self.axes(ctx)[0][self._places]
        return {key: A @ block for key, block in self.equations(ctx)[0].items()}

    def bias(self, ctx: Context) -> np.ndarray:
        return self.axes(ctx)[0][self._places] @ self.equations(ctx)[1]

    def solved_form(self, ctx: Context):
        """The equations without `axes`, if their chosen components follow from the chosen components of the value."""
        chosen = self._places
        others = [k for k in range(len(self.scalars)) if k not in chosen]
        inverse = self.axes(ctx)[1][chosen]
        if not all(is_zero(x) for x in inverse[:, others].flat):
            return super().solved_form(ctx)
        blocks, bias = self.equations(ctx)
        return {key: block[chosen] for key, block in blocks.items()}, bias[chosen], inverse[:, chosen]


class FrameSensor(InFrame, Sensor):
    """A sensor in a frame that moves, linear in the unknowns."""


class ReferencedSensor(FrameSensor):
    """A frame sensor of which only the axes of the value can be chosen beside what every instrument has."""

    def __init__(
        self, frame: FrameRef, components: Names = "all", reference: str = "local", name: str | None = None, noise=None,
        bias: Drift | None = None,
    ):  # fmt: skip
        super().__init__(frame, components, name, noise, bias, reference=reference)


def turned_axes(ctx: Context, frame: FrameRef, reference: str) -> tuple[np.ndarray, np.ndarray]:
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


def place_of(model: Model, frame: FrameRef) -> list:
    """[body, X] of a frame, as JSON: data of the model that rows depend on beside its digest."""
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


def placed(frame: FrameRef, kind: str) -> tuple[FrameRef, str]:
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
