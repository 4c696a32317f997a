"""The raw logs of experiments/trajectories: what they say is what happened, and problems read them."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import LogWarning
from sysdyn.model.kinematics import frame_pose

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "trajectories"))
    import logs


@functools.cache
def walk() -> logs.RawLog:
    return logs.quadruped(seed=3)


def test_the_quadruped_walks():
    truth = walk().truth
    assert truth.t.shape == (2000,) and np.allclose(np.diff(truth.t), 0.002)
    assert np.ptp(truth.q[:, 0]) > 1.0 and np.ptp(truth.q[:, 1]) < 0.1  # straight on
    assert truth.q[:, 2].min() > 0.25 and abs(truth.q[:, 3:5]).max() < 0.05  # upright
    strides = truth.t[-1] / logs.STRIDE
    assert 8 * strides - 8 <= len(truth.switches) <= 12 * strides
    assert np.all((truth.contacts.mean(axis=0) > 0.5) & (truth.contacts.mean(axis=0) < 0.75))
    steps = {name: np.diff([t for t, leg, down in truth.switches if leg == name and down]) for name in logs.LEGS}
    assert all(abs(np.median(x) - logs.STRIDE) < 0.02 for x in steps.values())


def test_its_truth_fulfils_the_equations_of_motion():
    """Forces of the floor act where the spheres touch it; what is left is that they dent it by less than 2 mm."""
    truth, model = walk().truth, walk().model
    rows = np.arange(0, 2000, 37)
    left = []
    for k in rows:
        fx = np.zeros((model.nb, 6))
        for leg, force in zip(logs.LEGS, truth.forces[k], strict=True):
            T, body = frame_pose(model, truth.q[k], f"{leg}_foot"), f"{leg}_calf"
            B = frame_pose(model, truth.q[k], body)
            touch = T[:3, 3] - [0.0, 0.0, logs.FOOT]
            moment = np.cross(touch - B[:3, 3], force)
            fx[model.body_index(body)] = np.concatenate([B[:3, :3].T @ moment, B[:3, :3].T @ force])
        left.append(sd.rnea(model, truth.q[k], truth.qd[k], truth.qdd[k], fx) - truth.tau[k])
    left = np.array(left)
    assert np.abs(left[:, 3:6]).max() < 1e-6  # forces on the base
    assert np.abs(left).max() < 0.002 * np.abs(truth.forces).max()
    assert not np.abs(truth.tau[:, :6]).any()


def test_its_sensors_show_the_truth_with_the_declared_noise_and_biases():
    log, truth = walk().log, walk().truth
    problem = logs.quadruped_problem(walk())
    shown = sd.predict(problem, truth.q, truth.qd, truth.qdd, state_sensors=True)
    for name, std in logs.NOISE.items():
        expected = truth.tau[:, 6:] if name == "torques" else shown[name]
        errors = log[name] - expected - truth.biases.get(name, 0.0)
        assert 0.95 * std < errors.std() < 1.05 * std, name
        assert np.abs(errors.mean(axis=0)).max() < 5.0 * std / np.sqrt(len(errors)), name


def test_problems_read_the_logs():
    problem = logs.quadruped_problem(walk())
    assert [m.name for m in problem.biased] == ["gyro", "acc", *logs.LEGS]
    given = logs.with_contacts(walk())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chunks = list(sd.Log(given, problem, states="unknown", values={"no motor": np.zeros(6)}))
    for k, leg in enumerate(logs.LEGS):
        stands = np.concatenate([chunk.active[leg][:, 0] for chunk in chunks])
        settled = walk().truth.contacts[:, k].copy()
        for begin in np.flatnonzero(settled[1:] & ~settled[:-1]) + 1:
            settled[begin : begin + round(logs.SETTLE / (walk().truth.t[1] - walk().truth.t[0]))] = False
        np.testing.assert_array_equal(stands, settled)
    late = logs.with_contacts(walk(), late=0.004)
    np.testing.assert_array_equal(late["active: FL"][2:], given["active: FL"][:-2])


def test_the_arm_and_its_encoders():
    arm = logs.arm(seconds=0.5, seed=1)
    truth = arm.truth
    step = 1e-3
    np.testing.assert_allclose(np.gradient(truth.q, step, axis=0)[1:-1], truth.qd[1:-1], atol=2e-3)
    np.testing.assert_allclose(np.gradient(truth.qd, step, axis=0)[1:-1], truth.qdd[1:-1], atol=2e-2)
    errors = arm.log["encoders"] - truth.q
    assert 0.95 < errors.std() / logs.ARM_ENCODERS < 1.05
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogWarning)
        (chunk,) = sd.Log(arm.log, logs.arm_problem(arm), states="unknown")
    np.testing.assert_array_equal(chunk.y["encoders"], arm.log["encoders"])
