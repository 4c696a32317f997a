"""What is known or measured. A measurement is a named list of scalar equations, exact unless it has noise.

Raw ones state components of q̈, τ, fx, a or f directly. A custom one subclasses `Measurement` and gives its block rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Frame, Model
from sysdyn.model.kinematics import path
from sysdyn.model.poses import checked_pose
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.spatial import X_motion, rotation

# A place is a frame of the model, or (body, T (4, 4)): a pose fixed in a body.
Place = str | tuple[str, np.ndarray]
# Components, joints and bodies are "all", one, or several, by name.
Names = str | Sequence[str]


@dataclass(frozen=True)
class Context:
    """What a measurement may use while its rows are assembled; every value is float or Expr.

    A frame is given by its name in the model, or as (body, T): the pose T (4, 4) fixed in that body.

    q (nq,), qd (nv,)     the state
    body(frame)           name of the body that carries it
    X(frame, reference)   (6, 6) motion transform to the frame from body `reference` (default: the carrying body)
    X0(frame)             (6, 6) motion transform from the world to the frame
    R(frame)              (3, 3) rotation from coordinates of the frame to the world's
    v(frame)              (6,) velocity of the frame in its own coordinates
    """

    model: Model
    transforms: Sequence[np.ndarray]
    velocities: Sequence[np.ndarray]
    q: np.ndarray = field(default_factory=lambda: np.zeros(0))
    qd: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def body(self, frame: Place) -> str:
        return self.model.body_names[moving_frame(self.model, frame).body]

    def X(self, frame: Place, reference: str | None = None) -> np.ndarray:
        found = find_frame(self.model, frame)
        if reference is None:
            return found.X.astype(object)
        target = self.model.body_index(reference)
        if target not in path(self.model, found.body):
            raise InvalidInput(
                f"body {reference!r} does not carry frame {found.name!r}: it must be on its path to the base"
            )
        return self._from(found, target)

    def X0(self, frame: Place) -> np.ndarray:
        return self._from(find_frame(self.model, frame), -1)

    def R(self, frame: Place) -> np.ndarray:
        found = find_frame(self.model, frame)
        E = rotation(found.X).astype(object)
        for i in path(self.model, found.body):
            E = E @ rotation(self.transforms[i])
        return E.T

    def v(self, frame: Place) -> np.ndarray:
        found = find_frame(self.model, frame)
        if found.body < 0:
            return np.array([0.0] * 6, dtype=object)
        return found.X.astype(object) @ self.velocities[found.body]

    def _from(self, frame: Frame, target: int) -> np.ndarray:
        X, i = frame.X.astype(object), frame.body
        while i != target:
            X = X @ self.transforms[i]
            i = self.model.parent[i]
        return X


def find_frame(model: Model, frame: Place) -> Frame:
    """The frame of that name, or the one that (body, T) makes. Raises UnknownName, InvalidInput."""
    if isinstance(frame, str):
        return model.frame(frame)
    body, T = frame
    T = checked_pose(f"pose of a frame on {body!r}", T)
    return Frame(f"a pose on {body}", model.body_index(body), X_motion(T[:3, :3].T, T[:3, 3]))


def moving_frame(model: Model, frame: Place) -> Frame:
    """As `find_frame`. Raises InvalidInput for a frame of the base, which does not move."""
    found = find_frame(model, frame)
    if found.body < 0:
        raise InvalidInput(f"frame {found.name!r} is fixed to the base and has no dynamic variables")
    return found


class Measurement:
    """Base class: `m` equations Σ block · x + bias = y with value y of shape (…, m).

    Subclasses give `name`, `rows(ctx) → {(quantity, owner name): (m, size) block}`, `bias(ctx) → (m,)` (default
    zero), and `components(model) → m names`; `noise` is None for an exact equation. optional: the value is zero
    where none is handed in. A measurement that can be stored gives `describe()`; one of whose components some can be
    had without the others is `divisible` and gives `part(kept)`.

    quantity: the one of which it states components directly; empty for combinations. units: unit of each component, or
    those that they may have.
    """

    name: str
    noise: Any = None
    optional: bool = False
    quantity: str = ""
    units: tuple[str, ...] = ()
    divisible: bool = False

    @property
    def of(self) -> Measurement:
        """What is measured: the measurement itself, or the one that is wrapped."""
        return self

    @property
    def pass_as(self) -> str:
        """Text that hands its value in, in messages."""
        return f"y={{{self.name!r}: …}}"

    @property
    def has_default(self) -> bool:
        """Whether its value is zero where none is handed in."""
        return self.optional or (self.quantity in QUANTITY and QUANTITY[self.quantity].zero)

    def components(self, model: Model) -> tuple[str, ...]:
        raise NotImplementedError(f"{type(self).__name__} must implement components(model)")

    def rows(self, ctx: Context) -> Mapping[tuple[str, str], np.ndarray]:
        raise NotImplementedError(f"{type(self).__name__} must implement rows(ctx)")

    def bias(self, ctx: Context) -> np.ndarray:
        return np.zeros(len(self.components(ctx.model)))

    def component_units(self, model: Model) -> tuple[str, ...]:
        """Unit of each component."""
        return self.units

    def part(self, kept: Sequence[int]) -> Measurement:
        """The measurement of the components with these numbers alone, with its name and its noise of these."""
        raise InvalidInput(f"measurement {self.name!r} has no part: its components are measured together")

    def identity(self) -> str | None:
        """What it is but for its name, components and noise; None for a measurement that is not `divisible`."""
        return None

    def solved_form(self, ctx: Context) -> tuple[Mapping[tuple[str, str], np.ndarray], np.ndarray, np.ndarray | None]:
        """(T rows, T bias, T) with an invertible T (m, m) that makes them simple: T Σ block · x + T bias = T y.

        None for T = 1. It turns values instead of unknowns, so that fewer coefficients (and pivots) depend on q.
        """
        return self.rows(ctx), self.bias(ctx), None

    def describe(self, model: Model | None = None) -> dict | None:
        """What it is, as JSON, or None where that cannot be written down.

        With a model, that of the model which the rows depend on beside its digest, such as where the frame is.
        """
        return None


# What a solver computes: a quantity by its name, or the value that a measurement has at the solution.
Output = str | Measurement


def output_name(output: Output) -> str:
    """How an output is called in solutions."""
    return output if isinstance(output, str) else output.name


class Constraint(Measurement):
    """A measurement that brings unknowns of its own: the wrench by which a motion is kept to what is known of it.

    Subclasses give `wrench(model) → names of the components of w` and `loads(ctx) → {body name: (6, size of w)}`: the
    wrench L w on each body, in its coordinates, which is one term more in c(f_i) as fx_i is. Without friction L is the
    transpose of what `rows` has for the acceleration of that body. `torques` does for joints, and what `rows` has for
    their accelerations, what `loads` does for bodies.
    """

    def wrench(self, model: Model) -> tuple[str, ...]:
        raise NotImplementedError(f"{type(self).__name__} must implement wrench(model)")

    def loads(self, ctx: Context) -> Mapping[str, np.ndarray]:
        raise NotImplementedError(f"{type(self).__name__} must implement loads(ctx)")

    def torques(self, ctx: Context) -> Mapping[str, np.ndarray]:
        """{joint name: (degrees of freedom, size of w)}: L w is one term more in c(τ_i), as τ_i is."""
        return {}
