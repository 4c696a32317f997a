"""Measurements that a user writes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from oracles import icub
from systems import Accelerometer, DistantWrench, TorqueSum

import sysdyn as sd
from sysdyn.errors import ProblemError, UnknownName
from sysdyn.measurements.classical import forward_dynamics, inverse_dynamics
from sysdyn.measurements.known_quantities import JointAcceleration, JointTorque
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model, chain
from sysdyn.model.se3 import X_motion


@functools.cache
def icub_with_accelerometer() -> Model:
    """iCub with an accelerometer on the left shin, 0.2 m below the knee, whose x axis is along the shin's."""
    model = icub("floating")
    shin = model.joint_index("l_knee")
    imu = sd.Frame("imu", shin, X_motion(np.eye(3), np.array([0.1, 0.0, -0.2])))
    return model.replace(frames={**model.frames, "imu": imu})


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["python", "llvm"])
def test_an_accelerometer_in_place_of_an_encoder(backend):
    """The knee's acceleration from one axis of an accelerometer on the shin, through the whole chain."""
    model = icub_with_accelerometer()
    problem = inverse_dynamics(model) - JointAcceleration("l_knee") + Accelerometer("imu", "x")
    solver = sd.compile(problem, "umfpack", ("tau", "qdd"), level="fast", backend=backend)
    assert problem.y_names[-1] == "accelerometer: x"
    q, qd, qdd = model.random_state(seed=4, batch=20)
    fx = np.random.default_rng(0).uniform(-10.0, 10.0, (20, model.nb, 6))
    full = sd.compile(inverse_dynamics(model), "rnea", level="fast", backend="python")(q, qd, qdd, fx=fx)
    y = full.acceleration("imu", classical=True, gravity=True)[:, [3]]
    known = qdd.copy()
    known[:, model.v_slice(model.joint_index("l_knee"))] = 1e6  # ignored
    found = solver(q, qd, qdd=known, fx=fx, y={"accelerometer": y})
    for x in ("qdd", "tau"):
        np.testing.assert_allclose(found[x], full[x], rtol=0, atol=1e-9 * np.abs(full[x]).max())
    with pytest.raises(sd.InvalidInput, match="no value was given for 'accelerometer'"):
        solver(q, qd, known, fx=fx)
    with pytest.raises(sd.InvalidInput, match="accelerometer is nan at state 3, entry 0"):
        solver(q, qd, known, fx=fx, y={"accelerometer": np.where(np.arange(20) == 3, np.nan, 1.0)[:, None]})


def test_diagnosis_of_accelerometers():
    """Three axes at one point see three joints of a leg, but not those that do not move the point."""
    model = icub("fixed")
    problem = inverse_dynamics(model)
    leg = ["l_hip_pitch", "l_hip_roll", "l_knee"]
    assert sd.diagnose(problem - JointAcceleration(leg) + Accelerometer("l_sole")).well_posed
    arm = ["l_elbow", "l_shoulder_roll", "l_shoulder_yaw"]
    wrong = sd.diagnose(problem - JointAcceleration(arm) + Accelerometer("l_sole"))
    assert wrong.structural and {"qdd(l_elbow)", "qdd(l_shoulder_roll)"} <= set(wrong.undetermined)
    assert any(name.startswith("y:accelerometer") for name in wrong.redundant)


def test_a_sum_of_two_torques():
    model = chain(4, seed=2)
    problem = forward_dynamics(model) - JointTorque(["joint1"]) + TorqueSum("joint1", "joint3")
    solver = sd.compile(problem, level="fast", backend="python")
    q, qd, tau = model.random_state(seed=4, batch=9)
    y = {"joint1+joint3": tau[:, [1]] + tau[:, [3]]}
    expected = sd.aba(model, q, qd, tau)
    np.testing.assert_allclose(solver(q, qd, tau, y=y).qdd, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    one = solver(q[0], qd[0], tau[0], y={"joint1+joint3": y["joint1+joint3"][0]})
    np.testing.assert_allclose(one.tau, tau[0], rtol=0, atol=1e-9)
    assert one.backward_error() <= 1e-12
    assert (problem - TorqueSum("joint1", "joint3")).ny == problem.ny - 1
    with pytest.raises(ProblemError, match="custom and cannot be stored"):
        solver.save("never.solver")


def test_context_transforms_to_ancestors():
    model = chain(4, seed=2)
    problem = Problem(model, [DistantWrench("body3", "body1")])
    system = sd.assemble(problem)
    q, qd, _ = model.random_state(seed=1)
    X = sd.model.joint_transforms(model, q)
    rows = [k for k, block in enumerate(system.row_blocks) if block[0] == "y"]
    columns = [k for k, block in enumerate(system.col_blocks) if block == ("f", 1)]
    np.testing.assert_allclose(system.D(q).toarray()[np.ix_(rows, columns)], X[3] @ X[2], atol=1e-14)
    for wrong, text in ((("body1", "body3"), "must be on its path to the base"), (("body9", "body1"), "frame 'body9'")):
        with pytest.raises(sd.InvalidInput, match=text):
            sd.assemble(Problem(model, [DistantWrench(*wrong)])).D(q)


class Broken(Measurement):
    def __init__(self, rows):
        self.name, self._rows = "broken", rows

    def components(self, model):
        return ("only",)

    def rows(self, ctx):
        return self._rows


@pytest.mark.parametrize(
    ("rows", "kind", "text"),
    [
        ({("a", "body1"): np.zeros((2, 6))}, ProblemError, r"block of shape \(2, 6\) for a\(body1\).*\(1, 6\)"),
        ({("tau", "joint1"): np.zeros((1, 6))}, ProblemError, r"block of shape \(1, 6\).*\(1, 1\)"),
        ({("acc", "body1"): np.zeros((1, 6))}, UnknownName, "quantity in the rows of 'broken'.*'acc'"),
        ({("a", "bodi1"): np.zeros((1, 6))}, UnknownName, "body 'bodi1'.*Did you mean 'body1'"),
        ({("tau", "body1"): np.zeros((1, 1))}, UnknownName, "joint 'body1'"),
    ],
)
def test_custom_measurements_that_are_wrong(rows, kind, text):
    with pytest.raises(kind, match=text):
        sd.compile(inverse_dynamics(chain(2)) + Broken(rows))
