"""Observability of logs: coordinates and biases that a log does not tell, named before anything is smoothed."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from estimation.test_bad_logs import UNTOLD, N, arm, floating

import sysdyn as sd
from sysdyn.diagnosis.observability import unobservable_biases
from sysdyn.errors import InvalidInput, ProblemError

WALK = sd.RandomWalk(1e-5)  # nothing is known of its start


@functools.cache
def biased(*sensors: str) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """A base at rest whose accelerometer and gyroscope have biases."""
    problem, log = floating(*sensors)
    bias = {"acc": sd.Constant(0.3), "gyro": WALK}
    measurements = [
        type(m)(m.frame, noise=m.noise, name=m.name, bias=bias[m.name]) if m.name in bias else m
        for m in problem.measurements
    ]
    return sd.Problem(problem.model, measurements), log


@pytest.mark.parametrize("sensors", UNTOLD, ids=" ".join)
def test_coordinates_that_no_sensor_tells(sensors):
    problem, log = floating(*sensors)
    found = sd.observability(problem, log)
    assert sorted(found.chosen) == sorted(f"joint0 {x}" for x in UNTOLD[sensors])
    assert found.observable == (not UNTOLD[sensors]) and found.rows == found.of == N
    if found.chosen:
        assert "suggestion: FramePosition or FramePose" in str(found) and "forces and torques do not" in str(found)
    else:
        assert found.observable and "not observable" not in str(found)


def test_sensors_without_readings_tell_nothing():
    """Columns of NaN are no motion capture: neither the diagnosis nor the run believe that there is one."""
    problem, log = floating("enc", "gyro", "mocap")
    log = {**log, "mocap": np.full((N, 3), np.nan)}
    names = {f"joint0 {x}" for x in ("position x", "position y", "position z", "yaw")}
    assert set(sd.observability(problem, log).chosen) == names
    assert set(sd.smooth(problem, log).gauge_fixed) == names


def test_a_joint_without_readings():
    problem, log = arm()
    found = sd.observability(problem, {**log, "enc": np.where([True, False, True], log["enc"], np.nan)})
    assert found.positions == ("joint1",) and "JointPosition" in found.suggestions[0]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("coupled", [False, True])
def test_biases_that_pass_for_tilt(coupled):
    problem, log = biased("enc", "gyro", "acc", "foot")
    found = sd.observability(problem, log, coupled=coupled)
    run = sd.smooth(problem, log, coupled=coupled)
    names = {x for x in run.unobserved if x.startswith("bias")}
    assert names == {x.terms[0].name for x in found.biases} == {"bias of acc: a_x", "bias of acc: a_y"}
    assert set(run.gauge_fixed) == set(found.chosen)
    for direction in found.biases:  # 1 m/s² is a tilt of 1/9.81, which noise of the foot takes half of
        tilts = [abs(x.amount) for x in direction.terms[1:] if x.name.startswith("q(") and x.unit == "rad"]
        assert tilts and 0.03 < max(tilts) < 1.2 / 9.81
    assert any("FrameAttitude" in x for x in found.suggestions)


def test_available_sensors_that_help():
    problem, log = biased("enc", "gyro", "acc", "foot")
    trunk = (problem.model.body_names[0], np.eye(4))
    speed = sd.Velocimeter(trunk, noise=1e-2, name="speed")
    position, attitude = (kind(trunk, noise=1e-3, name=kind.__name__) for kind in (sd.FramePosition, sd.FrameAttitude))
    assert sd.observability(problem, log, available=[position, speed, attitude]).additions == (position, attitude)
    refused = sd.observability(problem, log, available=[position, speed])
    assert refused.additions is None and "not enough" in str(refused)
    with pytest.raises(InvalidInput, match="sensors of the state can be added"):
        sd.observability(problem, log, available=[sd.Accelerometer(trunk, noise=1.0, name="another")])


def test_biases_of_torques_along_what_nothing_tells():
    """An offset of a current passes for a force at the tip, which has no prior but a wide one."""
    model = arm()[0].model
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-4, name="enc"),
        sd.JointTorque("all", noise=0.1, bias=sd.Constant(1.0), name="currents"),
        sd.ExternalWrench(model.body_names[:-1], name="none"),
        sd.Prior(sd.ExternalWrench(model.body_names[-1], noise=1e3), name="touched"),
    ])  # fmt: skip
    log = {**arm()[1], "currents": np.zeros((N, 3))}
    found = sd.observability(problem, log, density=100.0)
    assert len(found.biases) == 3 and all("bias of currents" in str(x) for x in found.biases)
    assert any(x.startswith("biases that nothing else checks") for x in found.suggestions)
    free = sd.Problem(model, [*problem.measurements[:2], sd.ExternalWrench("all", name="none")])
    assert sd.observability(free, log, density=1.0).observable


def test_dynamic_variables_that_states_do_not_determine():
    problem = sd.Problem(arm()[0].model, [m for m in arm()[0].measurements if m.name == "enc"])
    found = sd.observability(problem, arm()[1])
    assert not found.observable and found.instant.missing == 18 and "ExternalWrench('all')" in str(found)
    # q̈ follows from the encoders: it is none of what is to be stated
    assert "qdd" not in " ".join(found.instant.undetermined)


def test_calls_that_are_refused():
    problem, log = arm()
    with pytest.raises(InvalidInput, match="sysdyn.observability"):
        sd.diagnose(problem, log)
    with pytest.raises(ProblemError, match="no sensor of the problem observes the states"):
        sd.observability(sd.Problem(problem.model, [sd.ExternalWrench("all")]), {"t": log["t"]})


def test_a_diagnosis_without_a_log_points_to_it():
    assert "sysdyn.observability" in str(sd.diagnose(arm()[0]))
    assert "sysdyn.observability" not in str(sd.diagnose(sd.forward_dynamics(arm()[0].model)))


def test_directions_of_biases_are_those_of_their_covariance():
    """A sum of two biases that is told, a difference that is not, and a tilt that goes along with it."""
    rng = np.random.default_rng(0)
    difference, rest = rng.standard_normal((2, 200_000))
    x = np.array([0.5 * difference + 0.01 * rest, rest, difference + 0.1 * rest, -difference + 0.1 * rest])
    (found,) = unobservable_biases(
        np.cov(x), np.array([0.0, 0.0, 1.0, 1.0]), ["tilt", "other", "a", "b"], ["1"] * 4, 0.5
    )
    amounts = {term.name: term.amount for term in found.terms}
    assert set(amounts) == {"a", "b", "tilt"}
    assert amounts["a"] == pytest.approx(-amounts["b"], rel=0.05)
    assert amounts["tilt"] == pytest.approx(0.5 * amounts["a"], rel=0.05)
