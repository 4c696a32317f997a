"""Blows that make velocities jump: found in the motion, named, and no cost to the rest of a log."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import LogWarning

pytestmark = pytest.mark.filterwarnings("ignore:.* impacts were found:sysdyn.errors.LogWarning")
ENCODERS, DT, ROWS, BLOW = 1e-4, 2e-3, 300, 150
# Time constant by which a controller takes out what a blow did [s].
BACK = 0.05


def hit_arm(impulse: float, seed: int = 0):
    """(problem, log, q̇ (N, nv), jump (nv,)) of an arm on sines; an impulse [N m s] at its end, just before row BLOW."""
    model, rng = sd.chain(3, seed=1), np.random.default_rng(seed)
    t = DT * np.arange(ROWS)
    omega = 2.0 * np.pi * np.array([0.7, 1.0, 1.3])
    q, qd = 0.4 * np.sin(t[:, None] * omega), 0.4 * omega * np.cos(t[:, None] * omega)
    jump = np.linalg.solve(sd.crba(model, q[BLOW]), impulse * np.array([0.2, 0.1, 0.3]))
    since = t - t[BLOW] + 0.5 * DT
    left = np.where(since > 0.0, np.exp(-np.maximum(since, 0.0) / BACK), 0.0)
    q, qd = q + np.outer(np.where(since > 0.0, BACK * (1.0 - left), 0.0), jump), qd + np.outer(left, jump)
    problem = sd.Problem(
        model, [sd.JointPosition("all", noise=ENCODERS, name="encoders"), sd.ExternalWrench("all", name="none")]
    )
    return problem, {"t": t, "encoders": q + ENCODERS * rng.standard_normal(q.shape)}, qd, jump


def impacts(run: sd.Run) -> list:
    return [e for e in run.events if e.measurement == "motion"]


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize(("impulse", "density"), [(0.2, 30.0), (1.0, 200.0)])
def test_a_blow_is_found_and_named(impulse, density, coupled):
    problem, log, qd, jump = hit_arm(impulse)
    run = sd.smooth(problem, log, order=3, density=density, coupled=coupled, impacts=True)
    (blow,) = impacts(run)
    assert blow.why == "impact" and abs(blow.instant - BLOW) <= 1 and blow.t == run.t[blow.instant]
    assert blow.component in ("joint0", "joint1", "joint2")
    assert "impacts   1, at which velocities jump" in repr(run)
    # the readings after it are believed, and the velocities before and after it are those of the arm
    near = np.r_[BLOW - 10 : BLOW - 1, BLOW + 1 : BLOW + 10]
    assert sum(abs(e.instant - BLOW) < 10 for e in run.events) <= 2
    error = run.qd - qd
    assert np.mean(np.abs(error[near]) < 2.0 * run.std("qd")[near]) > 0.85
    assert np.abs(error[near]).max() < 0.15 * np.abs(jump).max()
    # elsewhere nothing is less certain for it
    calm, *_ = hit_arm(0.0)
    before = sd.smooth(calm, hit_arm(0.0)[1], order=3, density=density, coupled=coupled, impacts=True)
    far = np.r_[0 : BLOW - 40, BLOW + 40 : ROWS]
    np.testing.assert_allclose(run.std("qd")[far], before.std("qd")[far], rtol=0.1)


def test_a_motion_without_a_blow_has_no_impact():
    problem, log, *_ = hit_arm(0.0)
    assert not impacts(sd.smooth(problem, log, order=3, impacts=True))
    log["encoders"][[60, 61, 200], [0, 1, 2]] += 0.05  # readings that are wrong are no jumps
    run = sd.smooth(problem, log, order=3, density=30.0, impacts=True)
    assert not impacts(run) and {(60, "joint0"), (61, "joint1"), (200, "joint2")} <= {
        (e.instant, e.component) for e in run.events
    }
    with pytest.warns(LogWarning, match="χ²"):
        run = sd.smooth(problem, hit_arm(1.0)[1], order=3, density=30.0, robust=False, impacts=True)
    assert not impacts(run)


def test_impacts_are_searched_where_something_may_touch():
    problem, log, *_ = hit_arm(0.2)
    assert not impacts(sd.smooth(problem, log, order=3, density=30.0))
    with pytest.warns(LogWarning, match="1 impacts"):
        assert len(impacts(sd.smooth(problem, log, order=3, density=30.0, impacts=True))) == 1
    still = sd.Stance(problem.model.body_names[0], noise=1e-3, name="foot", when="encoders: joint0 > 100.0")
    assert len(impacts(sd.smooth(problem + still, log, order=3, density=30.0))) == 1


@pytest.mark.parametrize("seed", [1, 7])
def test_a_faint_blow_beside_a_reading_that_is_far_off(seed):
    """Nothing but what is far is dropped, so that the last rounds have nothing to do."""
    problem, log, *_ = hit_arm(0.05, seed)
    log["encoders"][40, 1] += 0.05
    run = sd.smooth(problem, log, order=3, density=30.0, impacts=True)
    (blow,) = impacts(run)
    assert abs(blow.instant - BLOW) <= 1 and (40, "joint1") in {(e.instant, e.component) for e in run.events}


def test_a_blow_in_any_window_of_a_long_log():
    problem, log, *_ = hit_arm(1.0)
    whole, parts = (sd.smooth(problem, log, order=3, density=200.0, window=n, impacts=True) for n in (None, 120))
    assert [e.instant for e in impacts(parts)] == [e.instant for e in impacts(whole)]


def test_a_base_that_a_hammer_hits():
    """A free body with an IMU and few positions: the gyroscope and the accelerometer see what the hammer did."""
    model, rng = sd.random_tree(1, seed=0, joints=("free",)), np.random.default_rng(0)
    imu, t = (model.body_names[0], np.eye(4)), DT * np.arange(ROWS)
    noise = {"gyro": 2e-3, "acc": 0.05, "mocap": 1e-3, "attitude": 2e-3}
    problem = sd.Problem(model, [
        sd.Gyroscope(imu, noise=noise["gyro"], name="gyro"), sd.Accelerometer(imu, noise=noise["acc"], name="acc"),
        sd.FramePosition(imu, noise=noise["mocap"], name="mocap"),
        sd.FrameAttitude(imu, noise=noise["attitude"], name="attitude"),
        sd.Prior(sd.ExternalWrench("all", noise=1e3), name="anything"),
    ])  # fmt: skip
    after = t >= t[BLOW]
    v, omega = np.outer(after, [0.0, 0.8, 0.0]), np.outer(after, [0.0, 0.0, 1.5])
    turn = 1.5 * np.where(after, t - t[BLOW], 0.0)
    q, qd = np.zeros((ROWS, 7)), np.zeros((ROWS, 6))
    q[:, 5:7] = np.column_stack([np.sin(0.5 * turn), np.cos(0.5 * turn)])
    q[:, 1] = np.cumsum(v[:, 1]) * DT
    c, s = np.cos(turn), np.sin(turn)
    qd[:, :3], qd[:, 3:5] = omega, np.column_stack([s * v[:, 1], c * v[:, 1]])
    qdd = np.zeros((ROWS, 6))  # of the twist in the body: the frame turns
    qdd[:, 3:5] = 1.5 * np.column_stack([c * v[:, 1], -s * v[:, 1]])
    shown = sd.predict(problem, q, qd, qdd, state_sensors=True)
    log = {name: shown[name] + std * rng.standard_normal(shown[name].shape) for name, std in noise.items()}
    run = sd.smooth(problem, {"t": t, **log}, ["fx"], order=3, density=[30.0] * 6, start=q[0], impacts=True)
    (blow,) = impacts(run)
    assert abs(blow.instant - BLOW) <= 1
    near = np.r_[BLOW - 8 : BLOW - 1, BLOW + 1 : BLOW + 8]
    assert np.abs((run.qd - qd)[near, :3]).max() < 0.05 and np.abs((run.qd - qd)[near, 3:]).max() < 0.1
