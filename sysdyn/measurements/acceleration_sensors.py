"""Sensors of accelerations of a frame."""

from __future__ import annotations

from sysdyn.errors import InvalidInput
from sysdyn.measurements.bias_models import BiasModel
from sysdyn.measurements.linear import zeros
from sysdyn.measurements.measurement import Context, FrameRef, Names
from sysdyn.measurements.sensor import FrameSensor, ReferencedSensor, diagonal, linear, output_axes
from sysdyn.model.quantities import ACCELERATION
from sysdyn.model.se3 import X_inverse, cross

# ---- accelerations of frames ---------------------------------------------------------------------------------------


class FrameAcceleration(FrameSensor):
    """Acceleration [rad/s², m/s²] of a frame; zero unless a call gives a value, as of a frame in contact.

    classical  linear part of the frame's origin as a point (spatial acceleration + ω × v) instead of spatial
    gravity    proper acceleration instead of acceleration relative to the world

    RBDA section 2.11.
    """

    scalars = ACCELERATION
    optional = True

    def __init__(
        self, frame: FrameRef, components: Names = "all", classical: bool = True, gravity: bool = False,
        reference: str = "local", name: str | None = None, noise=None, bias: BiasModel | None = None,
    ):  # fmt: skip
        self.classical, self.gravity = classical, gravity
        if classical and reference == "space":
            raise InvalidInput(
                "a classical acceleration is of the frame's origin: use reference='world', or classical=False"
            )
        super().__init__(
            frame, components, name, noise, bias, classical=classical, gravity=gravity, reference=reference
        )

    def equations(self, ctx):
        return _acceleration(ctx, self.frame, self.classical, self.gravity)

    def axes(self, ctx):
        if self.reference == "space":
            X = ctx.X0(self.frame)
            return X_inverse(X), X
        R, E = output_axes(ctx, self.frame, self.reference)
        return diagonal(R), diagonal(E)


class Accelerometer(ReferencedSensor):
    """Proper classical acceleration [m/s²] of the origin of a frame: linear part of X_F a, + ω × v of the frame.

    At rest its value is 9.81 upwards.
    """

    scalars = ACCELERATION[3:]
    references = ("local", "world")

    def equations(self, ctx):
        blocks, bias = _acceleration(ctx, self.frame, True, True)
        return {key: block[3:] for key, block in blocks.items()}, bias[3:]

    def axes(self, ctx):
        return output_axes(ctx, self.frame, self.reference)


class AngularAccelerometer(ReferencedSensor):
    """Angular acceleration [rad/s²] of a frame."""

    scalars = ACCELERATION[:3]
    references = ("local", "world")

    def equations(self, ctx):
        blocks, bias = _acceleration(ctx, self.frame, False, True)
        return {key: block[:3] for key, block in blocks.items()}, bias[:3]

    def axes(self, ctx):
        return output_axes(ctx, self.frame, self.reference)


# ---- shared equations ----------------------------------------------------------------------------------------------


def _acceleration(ctx: Context, frame: FrameRef, classical: bool, gravity: bool):
    """Blocks {("a", body): (6, 6)} and bias (6,) of X_F a in the axes of the frame.

    classical: + ω × v. gravity: proper acceleration, else + g.
    """
    X, bias = ctx.X(frame), zeros(6)
    if classical:
        v = ctx.v(frame)
        bias = bias + linear(cross(v[:3], v[3:]))
    if not gravity:
        bias = bias + linear(ctx.R(frame).T @ ctx.model.gravity.astype(object))
    return {("a", ctx.body(frame)): X}, bias
