"""Checks at compilation that have no sampled state to compare fail: none passes on no states."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import NoSafeOrdering
from sysdyn.offline import compile as offline_compile
from sysdyn.offline import recursion, sampling, time_step
from sysdyn.offline.sampling import PASSES_SEED, is_singular, sample_states
from sysdyn.offline.time_step import TimeStepElimination

FAST = {"level": "fast", "backend": "python"}
ARM = sd.chain(5, seed=1)


def heavy(factor: float) -> sd.Problem:
    """A chain with one body of many times the inertia: near singular at every state, but determined."""
    model = sd.chain(6, 4)
    inertias = model.inertias.copy()
    inertias[2] *= factor
    return sd.forward_dynamics(model.replace(inertias=inertias))


def test_single_precision_without_a_finite_state_raises():
    light, huge = (sd.forward_dynamics(ARM.replace(inertias=ARM.inertias * x)) for x in (1.0, 1e60))
    assert 0.0 < sd.compile(light, outputs="qdd", real="float32", **FAST).stability.single_error < 1e-2
    with pytest.raises(NoSafeOrdering, match="single precision"):
        sd.compile(huge, outputs="qdd", real="float32", **FAST)


def test_passes_are_verified_at_states_that_are_all_near_singular():
    problem = heavy(1e17)
    assert is_singular(sd.assemble(problem), sample_states(problem, sampling.VERIFIED_STATES, PASSES_SEED)).all()
    right, wrong = (sd.compile(x, outputs="f", formulation="elimination", **FAST) for x in (problem, heavy(1.001e17)))
    assert "classical_accelerations" in right.passes
    offline_compile._require_unchanged(problem, right.program, ("f",), right.passes)
    with pytest.raises(NoSafeOrdering, match="classical_accelerations"):
        offline_compile._require_unchanged(problem, wrong.program, ("f",), right.passes)


def test_measured_outputs_without_an_accurate_state_raise(monkeypatch):
    problem, imu = sd.forward_dynamics(ARM), sd.Accelerometer(ARM.body_names[-1], name="imu")
    assert sd.compile(problem, outputs=["qdd", imu], formulation="recursive", **FAST).choice.is_recursion
    monkeypatch.setattr(recursion, "VERIFIED_STATES", 12)  # another number of states: nothing is in the cache
    true = recursion._unknowns

    def doubtful(system, inputs, values):
        d, error = true(system, inputs, values)
        return d, np.ones_like(error) if len(d) == 12 else error

    monkeypatch.setattr(recursion, "_unknowns", doubtful)
    monkeypatch.setenv("SYSDYN_CACHE", "")
    with pytest.raises(NoSafeOrdering, match="cannot be checked"):
        sd.compile(problem, outputs=["qdd", imu], formulation="recursive", **FAST)
    assert not sd.compile(problem, outputs=["qdd", imu], **FAST).choice.is_recursion


@pytest.mark.parametrize("reading", [1e-3, np.nan])
def test_errors_of_measured_outputs_are_those_of_accurate_states(monkeypatch, reading):
    """The first state does not count, and has a reading that is not a number."""
    problem, imu = sd.forward_dynamics(ARM), sd.Accelerometer(ARM.body_names[-1], name="imu")
    true = recursion._unknowns

    def spoilt(system, inputs, values):
        d, error = true(system, inputs, values)
        if "imu" in values and len(d) == recursion.VERIFIED_STATES:
            values["imu"] += reading * np.abs(values["imu"]).max(axis=1, keepdims=True)
            values["imu"][0], error[0] = 7e7, 1.0
        return d, error

    monkeypatch.setattr(recursion, "_unknowns", spoilt)
    monkeypatch.setenv("SYSDYN_CACHE", "")
    with pytest.raises(NoSafeOrdering, match="'imu' with an error of") as caught:
        sd.compile(problem, outputs=["qdd", imu], formulation="recursive", **FAST)
    error = float(str(caught.value).split()[-1])
    assert error == np.inf if np.isnan(reading) else 0.0 < error < 1e-1


@pytest.mark.parametrize("noisy", [True, False])
def test_time_steps_without_a_regular_state_raise(monkeypatch, noisy):
    torques = [sd.JointTorque("all", noise=0.3, name="tq")] if noisy else []
    problem = sd.Problem(ARM, [sd.ExternalWrench("all"), *torques])
    assert 0.0 < TimeStepElimination(problem, ("tau",)).error() < 1e-9
    monkeypatch.setattr(time_step, "SINGULAR", 1.0)
    with pytest.raises(NoSafeOrdering, match="condition number"):
        TimeStepElimination(problem, ("tau",))


def test_a_time_step_with_errors_that_are_nan_is_rejected(monkeypatch):
    true = time_step.interpreter.run_groups

    def spoilt(*args, **options):
        return {name: x * (np.nan if name == time_step.ERRORS else 1.0) for name, x in true(*args, **options).items()}

    monkeypatch.setattr(time_step.interpreter, "run_groups", spoilt)
    with pytest.raises(NoSafeOrdering):
        TimeStepElimination(
            sd.Problem(ARM, [sd.ExternalWrench("all"), sd.JointTorque("all", noise=0.3, name="tq")]), ("tau",)
        )
