"""Sensors of forces and moments: F/T sensors, load cells, contacts of a point, net wrenches."""

from __future__ import annotations

import numpy as np

from sysdyn.errors import InvalidInput, check_among
from sysdyn.measurements.bias_models import BiasModel
from sysdyn.measurements.linear import numbers, zeros
from sysdyn.measurements.measurement import FrameRef, Names, find_frame
from sysdyn.measurements.sensor import (
    FrameSensor,
    ReferencedSensor,
    Sensor,
    checked_frame,
    identity,
    linear,
    net_force,
    output_axes,
    wrench_axes,
)
from sysdyn.model import Model
from sysdyn.model.quantities import WRENCH
from sysdyn.model.se3 import X_inverse
from sysdyn.program.reproducible import norm

# Bodies of a joint, on one of which the wrench across it is measured.
SIDES = ("child", "parent")


# ---- wrenches ------------------------------------------------------------------------------------------------------


class ForceTorqueSensor(Sensor):
    """Six-axis sensor at a joint: the wrench [N m, N] transmitted across it, y = X_F^{−T} f.

    joint   the joint across which the wrench passes; its name, or its child body's
    frame   origin and axes of the measured wrench: a frame of the child or of the parent of the joint, whichever the
            sensor is fixed to; default the body frame of the child
    side    "child": the wrench that the parent exerts on the child (f itself); "parent": the opposite
    """

    scalars = WRENCH

    def __init__(
        self, joint: str, frame: FrameRef | None = None, side: str = "child", reference: str = "local",
        components: Names = "all", name: str | None = None, noise=None, bias: BiasModel | None = None,
    ):  # fmt: skip
        check_among("side of a ForceTorqueSensor:", side, SIDES)
        self.joint, self.side = joint, side
        self.frame = None if frame is None else checked_frame(frame, "ForceTorqueSensor")[0]
        super().__init__(
            joint, components, name, noise, bias, joint=joint, frame=self.frame, side=side, reference=reference
        )

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
        return {("f", body): identity(6) if self.side == "child" else -identity(6)}, zeros(6)

    def axes(self, ctx):
        child = self._child(ctx.model)
        frame = (ctx.model.body_names[child], np.eye(4)) if self.frame is None else self.frame
        A, inverse = wrench_axes(ctx, frame, self.reference)
        if find_frame(ctx.model, frame).body != child:
            X = ctx.transforms[child]
            return A @ X.T, X_inverse(X).T @ inverse
        return A, inverse


class LoadCells(ReferencedSensor):
    """Components of the external wrench [N m, N] on the body of a frame, at the origin of the frame in its axes.

    A foot on four vertical cells measures components=["nx", "ny", "fz"]; Nori eq. (18).
    """

    scalars = WRENCH

    def equations(self, ctx):
        return {("fx", ctx.body(self.frame)): identity(6)}, zeros(6)

    def axes(self, ctx):
        return wrench_axes(ctx, self.frame, self.reference)


class PointContact(ReferencedSensor):
    """Pure force as external wrench on a body, at the origin of a frame: no moment there [N m].

    A patch of tactile sensors that finds one contact gives its centroid as the frame. With components ["nx", "ny"] the
    origin is the centre of pressure of a sole whose normal is z. The value is zero unless a call gives one.
    """

    scalars = WRENCH[:3]
    references = ("local", "world")
    optional = True

    def equations(self, ctx):
        return {("fx", ctx.body(self.frame)): X_inverse(ctx.X(self.frame)).T[:3]}, zeros(3)

    def axes(self, ctx):
        return output_axes(ctx, self.frame, self.reference)


class ForceDirection(FrameSensor):
    """Known direction of the external force on a body: two perpendicular components [N] are zero.

    direction (3,): in the axes of the frame, or of the world with reference="world"; of any length and sign.
    The value is zero unless a call gives one.
    """

    scalars = ("across_1", "across_2")
    unit_of = dict.fromkeys(scalars, "N")
    references = ("local", "world")
    optional = True

    def __init__(
        self, frame: FrameRef, direction, reference: str = "local", components: Names = "all", name: str | None = None,
        noise=None, bias: BiasModel | None = None,
    ):  # fmt: skip
        d = numbers("direction of a ForceDirection", direction, (3,))
        if not np.any(d):
            raise InvalidInput("the direction of a ForceDirection is zero: give for example (0, 0, 1)")
        self.direction = d
        super().__init__(frame, components, name, noise, bias, direction=d, reference=reference)

    def equations(self, ctx):
        d = self.direction / norm(self.direction)
        first = np.cross(d, np.eye(3)[np.argmin(np.abs(d))])
        first /= norm(first)
        across = np.array([first, np.cross(d, first)]).astype(object)
        transform = wrench_axes(ctx, self.frame, self.reference)[0]
        return {("fx", ctx.body(self.frame)): across @ transform[3:]}, zeros(2)


class NetWrench(FrameSensor):
    """Net wrench [N m, N] on the body of a frame, at the origin of the frame: I a + v ×* I v.

    I, a and v are the spatial inertia, acceleration and velocity of the body. gravity=True: `a` is the proper
    acceleration, so the sum excludes the weight; False: the sum includes the weight.
    """

    scalars = WRENCH

    def __init__(
        self, frame: FrameRef, components: Names = "all", gravity: bool = True, reference: str = "local",
        name: str | None = None, noise=None, bias: BiasModel | None = None,
    ):  # fmt: skip
        self.gravity = gravity
        super().__init__(frame, components, name, noise, bias, gravity=gravity, reference=reference)

    def equations(self, ctx):
        body = ctx.body(self.frame)
        i = ctx.model.body_index(body)
        I, nu = net_force(ctx, i)
        if not self.gravity:
            E = ctx.R((body, np.eye(4))).T
            nu = nu + I @ linear(E @ ctx.model.gravity.astype(object))
        return {("a", body): I}, nu

    def axes(self, ctx):
        return wrench_axes(ctx, self.frame, self.reference)
