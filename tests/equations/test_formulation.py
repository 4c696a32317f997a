"""Formulations: which passes apply, and which outputs do not depend on linear velocities."""

from __future__ import annotations

import numpy as np
import pytest
from systems import TorqueSum

import sysdyn as sd
from sysdyn.equations.formulation import GALILEAN_TOLERANCE, galilean_invariant
from sysdyn.passes import ELIMINATION

MODEL = sd.random_tree(4, seed=3, joints=("revolute",))
TIP, JOINT = MODEL.body_names[-1], MODEL.joint_names[-1]


class Wind(sd.Measurement):
    """c · (the linear acceleration that an accelerometer feels, with a share of v² along x) + an offset."""

    def __init__(self, share: float, c: float = 1.0, offset: float = 0.0):
        self.name, self.share, self.c, self.offset, self.sensor = "wind", share, c, offset, sd.Accelerometer(TIP)

    def components(self, model):
        return ("x", "y", "z", "offset")

    def rows(self, ctx):
        ((key, block),) = self.sensor.rows(ctx).items()
        return {key: self.c * np.vstack([block, np.zeros((1, 6))])}

    def bias(self, ctx):
        drag = np.array([self.share * ctx.v(TIP)[3] ** 2, 0.0, 0.0])
        return np.append(self.c * (self.sensor.bias(ctx) + drag), self.offset)


class Along(sd.Measurement):
    """The torque of a joint times the velocity of a body: its coefficient varies."""

    name = "along"

    def components(self, model):
        return ("x",)

    def rows(self, ctx):
        return {("tau", JOINT): np.array([[ctx.v(TIP)[3]]], dtype=object)}


@pytest.mark.parametrize(
    ("measurement", "expected"),
    [
        (sd.Accelerometer(TIP), True),
        (sd.AngularAccelerometer(TIP), True),
        (sd.FrameAcceleration(TIP), True),
        (sd.FrameAcceleration(TIP, classical=False), False),
        (sd.BodyAcceleration(TIP, ["a_x"]), False),
        (sd.BodyAcceleration(TIP, ["alpha_x"]), True),
        (sd.NetWrench(TIP), True),
        (sd.ForceTorqueSensor(JOINT), True),
        (TorqueSum(JOINT, MODEL.joint_names[0]), True),
        (Along(), False),
        (Wind(0.0), True),
        (Wind(0.3), False),
        (Wind(1e-3 * GALILEAN_TOLERANCE), True),
        (Wind(1e3 * GALILEAN_TOLERANCE), False),
        # the difference is relative to the greatest value
        (Wind(0.3, c=1e-12), False),
        (Wind(0.0, c=1e12), True),
        (Wind(0.3, offset=1e3 / GALILEAN_TOLERANCE), True),
    ],
)  # fmt: skip
def test_values_that_do_not_depend_on_linear_velocities(measurement, expected):
    assert galilean_invariant(MODEL, measurement) == expected


def test_outputs_in_large_units_are_right():
    """The tolerance of `galilean_invariant` is relative."""
    wind = Wind(0.3, c=1e-9)
    solver = sd.compile(sd.inverse_dynamics(MODEL), outputs=[wind], formulation="elimination", backend="python")
    assert "classical_accelerations" in solver.passes
    q, qd, qdd = MODEL.random_state(seed=1)
    expected = sd.predict(sd.Problem(MODEL, [wind]), q, qd, qdd)["wind"]
    np.testing.assert_allclose(solver(q, qd, qdd)["wind"], expected, rtol=1e-12)


INVERSE = sd.inverse_dynamics(MODEL)
NOISY = sd.Problem(MODEL, [sd.JointTorque("all", noise=1.0), sd.JointAcceleration("all"), sd.ExternalWrench("all")])
FRAMES, BASE, CLASSICAL = "canonical_frames", "base_parameters", "classical_accelerations"
# (problem, outputs, known, passes that do not apply)
WITHOUT: dict[str, tuple[sd.Problem, tuple[str, ...], str, set[str]]] = {
    "inverse dynamics": (INVERSE, ("tau",), "rows", set()),
    "accelerations are wanted": (INVERSE, ("tau", "a"), "rows", {CLASSICAL}),
    "wrenches are wanted": (INVERSE, ("tau", "f"), "rows", {BASE}),
    "accelerations are known": (INVERSE + sd.BodyAcceleration(TIP), ("tau",), "rows", {CLASSICAL}),
    "wrenches are known": (INVERSE + sd.JointWrench(JOINT), ("tau",), "rows", {BASE}),
    "known quantities are substituted": (INVERSE, ("tau",), "substituted", {FRAMES}),
    "gravity is an input": (INVERSE.varying("gravity"), ("tau",), "rows", {FRAMES, BASE, CLASSICAL}),
    "noise": (NOISY, ("tau",), "rows", {BASE}),
    "noise of all equations": (NOISY + sd.ModelNoise(noise=1.0), ("tau",), "rows", {FRAMES, BASE}),
    "noise of accelerations": (NOISY + sd.ModelNoise("a", noise=1.0), ("tau",), "rows", {FRAMES, BASE}),
    "noise of torques": (NOISY + sd.ModelNoise("tau", noise=1.0), ("tau",), "rows", {BASE}),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_passes_that_apply(case):
    problem, outputs, known, without = WITHOUT[case]
    system = sd.assemble(problem, known=known, passes="all", outputs=outputs)
    assert set(system.passes) == {*ELIMINATION} - without
