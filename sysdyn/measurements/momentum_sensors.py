"""Accelerations of the centre of mass and rates of momentum of a robot, or of a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.measurements.bias_models import BiasModel
from sysdyn.measurements.linear import zeros
from sysdyn.measurements.measurement import Context, Names
from sysdyn.measurements.sensor import Sensor, diagonal, identity, linear, net_force
from sysdyn.model import Model
from sysdyn.model.inertia import first_moment
from sysdyn.model.kinematics import path
from sysdyn.model.quantities import ACCELERATION, WRENCH
from sysdyn.model.se3 import cross, rotation, skew, unskew

# ---- the robot as a whole ------------------------------------------------------------------------------------------


class _Subtree(Sensor, listed=False):
    """A sum over the bodies that `root` carries, itself among them; None for the whole robot.

    reference "world", or "local": the axes of the root body.
    """

    references = ("local", "world")

    def __init__(
        self, root: str | None = None, components: Names = "all", gravity: bool = False, reference: str = "world",
        name: str | None = None, noise=None, bias: BiasModel | None = None,
    ):  # fmt: skip
        self.root, self.gravity = root, gravity
        super().__init__(root or "all", components, name, noise, bias, root=root, gravity=gravity, reference=reference)

    def _bodies(self, model: Model) -> tuple[int, list[int]]:
        """(index of the body whose coordinates the sum has, −1 for the base; indices of the bodies in the sum).

        Raises InvalidInput.
        """
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
            moment = moment + E.T @ mc + m * unskew(rx)
            mass += m
        return X, moment, mass, self._rotation(ctx).T @ model.gravity.astype(object)

    def _rotation(self, ctx: Context) -> np.ndarray:
        """R (3, 3) from axes of the root to the world's."""
        root = self._bodies(ctx.model)[0]
        return identity(3) if root < 0 else ctx.R((ctx.model.body_names[root], np.eye(4)))

    def axes(self, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        R = self._rotation(ctx) if self.reference == "world" else identity(3)
        return (R, R.T) if len(self.scalars) == 3 else (diagonal(R), diagonal(R.T))


class CentreOfMassAcceleration(_Subtree):
    """Acceleration [m/s²] of the centre of mass of the robot or of a subtree.

    root       the body whose subtree is meant; None for the whole robot
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
            blocks["a", ctx.model.body_names[i]] = turn @ np.hstack([-skew(mc), m * identity(3)]) * (1.0 / mass)
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
        to_centre = identity(6)  # n_G = n − c_G × f
        to_centre[:3, 3:] = -skew(moment * (1.0 / mass))
        blocks, bias = {}, zeros(6)
        for i in X:
            I, nu = net_force(ctx, i)
            transform = to_centre @ X[i].T
            blocks["a", ctx.model.body_names[i]] = transform @ I
            bias = bias + transform @ nu
        return blocks, bias if self.gravity else bias + linear(gravity * mass)


def _mass_moment(model: Model, i: int) -> tuple[Any, np.ndarray]:
    """Mass and first mass moment (m, m c (3,)) of body i."""
    I = model.inertias[i]
    return I[5, 5], first_moment(I).astype(object)
