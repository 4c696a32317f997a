"""Logs whose times are wrong: clocks that jitter, and schedules that are irregular and right."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import butter, filtfilt

import sysdyn as sd
from sysdyn.errors import LogWarning

STEP, N, NOISE = 2e-3, 1500, 1e-4
arm = sd.chain(3)
torques = sd.compile(sd.inverse_dynamics(arm))


def problem_of(noise):
    wrench = sd.ExternalWrench("all", name="nothing touches it")
    return sd.Problem(arm, [sd.JointPosition("all", noise=noise, name="encoders"), wrench])


problem = problem_of(NOISE)


def motion(t):
    """q, q̇, q̈ (N, 3) of sums of sines."""
    w, a = np.array([[1.0, 2.5, 4.0], [0.7, 1.9, 5.0], [1.3, 3.1, 4.4]]), np.array([0.8, 0.4, 0.15])
    x = w * t[:, None, None] + np.arange(3.0)
    return (a * np.sin(x)).sum(axis=2), (a * w * np.cos(x)).sum(axis=2), (-a * w * w * np.sin(x)).sum(axis=2)


def logged(jitter, noise=NOISE, schedule="equal"):
    """(log whose times are wrong by this share of a step, true torques)."""
    rng = np.random.default_rng(3)
    steps = {
        "equal": np.full(N, STEP),
        "random": STEP * rng.uniform(0.5, 1.5, N),
        "two rates": np.where(np.arange(N) // 150 % 2, STEP, 2.5 * STEP),
        "missing": STEP * rng.choice([1, 2, 3], N, p=[0.8, 0.15, 0.05]),
    }[schedule]
    t = np.cumsum(steps)
    q, qd, qdd = motion(t)
    readings = q + noise * rng.standard_normal(q.shape)
    wrong = np.clip(rng.standard_normal(N), -2.0, 2.0) * jitter * STEP
    return {"t": t + wrong, "encoders": readings}, torques(q, qd, qdd)["tau"]


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def error(run, tau):
    return rms((run["tau"] - tau)[20:-20]) / rms(tau)


@pytest.mark.parametrize("schedule", ["equal", "missing"])
def test_a_clock_that_jitters_is_found_and_said(schedule, tmp_path):
    log, tau = logged(0.2, schedule=schedule)
    with pytest.warns(LogWarning, match="jitter"):
        run = sd.smooth(problem, log)
    assert 0.1 * STEP < run.jitter < 0.4 * STEP and "jitter" in repr(run)
    assert error(run, tau) < 0.02
    assert np.mean(np.abs(run["tau"] - tau) <= 2.0 * run.std("tau")) > 0.9
    with pytest.warns(LogWarning, match="jitter"):
        parts, stored = sd.smooth(problem, log, window=400), sd.smooth(problem, log, out=tmp_path / "run.npz")
    assert error(parts, tau) < 0.02
    assert stored.jitter == pytest.approx(run.jitter, rel=1e-12) and "jitter" in repr(stored)
    with np.load(tmp_path / "run.npz") as found:
        np.testing.assert_allclose(found["tau"], run["tau"], atol=1e-6 * rms(tau))


def test_noise_is_learnt_apart_from_jitter():
    log, tau = logged(0.2, noise=3e-5)
    with pytest.warns(LogWarning, match="jitter"):
        found = sd.learn_noise(problem, log)
        run = sd.smooth(found.problem, log, density=found.density, order=found.order)
    assert error(run, tau) < 0.02
    # 3e-5 of readings whose times add up to 1e-3
    assert (found.noise["encoders"] < 2e-4).all()


def test_a_live_filter_takes_the_jitter_of_a_run():
    log, _ = logged(0.2)
    with pytest.warns(LogWarning, match="jitter"):
        run = sd.smooth(problem, log)
    truth, wrong = motion(STEP * np.arange(1, N + 1))[1][500:], []
    for known in (run, run.motion):
        live = sd.filter(problem, motion=known, order=run.order)
        found = [live(t, {"encoders": y}) for t, y in zip(log["t"], log["encoders"], strict=True)][500:]
        std = np.array([x.std("qd") for x in found])
        wrong.append(np.mean(np.abs(np.array([x.qd for x in found]) - truth) > 2.0 * std))
    assert wrong[0] < 0.05 and wrong[1] > 4.0 * wrong[0]  # 5 % of normal errors


@pytest.mark.parametrize("schedule", ["equal", "random", "two rates", "missing"])
def test_times_that_are_right_stay_as_they_are(schedule):
    log, tau = logged(0.0, schedule=schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogWarning)
        run = sd.smooth(problem, log)
    assert run.jitter == 0.0 and error(run, tau) < 0.02


@pytest.mark.parametrize("out", [None, "run.npz"])
def test_samples_that_repeat_the_one_before_are_not_used(tmp_path, out):
    """A log at twice the rate of the robot: every other sample is stale by a step."""
    log, tau = logged(0.0, noise=1e-5)
    twice = {"t": STEP * np.arange(1, N + 1), "encoders": np.repeat(log["encoders"][::2], 2, axis=0)}
    options = {} if out is None else {"out": tmp_path / out}
    with pytest.warns(LogWarning, match="repeat all positions"):
        run = sd.smooth(problem, twice, **options)
    found = run["tau"] if out is None else np.load(run.path)["tau"]
    assert rms((found - tau)[20:-20]) < 0.01 * rms(tau)


@pytest.mark.parametrize("quantum", [1e-4, 2e-3])
def test_a_robot_at_rest_repeats_its_readings(quantum):
    """Quantised readings of a robot that stands, creeps and moves."""
    t = STEP * np.arange(N)
    q = np.where(t > 1.0, 0.5 * (1.0 - np.cos(0.6 * (t - 1.0))), 0.0)[:, None] * np.array([1.0, 0.5, 0.2])
    log = {"t": t, "encoders": np.round(q / quantum) * quantum}
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogWarning)
        run = sd.smooth(problem_of(quantum), log)
    assert run.missing == {}


# ---- recorded by a Franka Emika Panda ------------------------------------------------------------------------------

PANDA = Path(__file__).parents[2].parent / "shared/data/panda/panda.npz"


def filtered(t, q, at):
    """Accelerations at times `at` of positions q (N, m) at t: Butterworth's filter of 10 Hz, and differences."""
    even = np.arange(t[0], t[-1], 1e-3)
    b, a = butter(2, 10.0 * 2e-3)
    x = filtfilt(b, a, np.stack([np.interp(even, t, x) for x in q.T], axis=1), axis=0)
    qdd = np.gradient(np.gradient(x, 1e-3, axis=0), 1e-3, axis=0)
    return np.stack([np.interp(at, even, x) for x in qdd.T], axis=1)


@pytest.mark.slow
@pytest.mark.skipif(not PANDA.exists(), reason="recorded logs are not part of the project")
@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")
@pytest.mark.parametrize("learnt", [False, True])
def test_the_log_of_a_panda(learnt):
    """Positions that a PC's clock dates; `ms` are times by the robot's own clock."""
    with np.load(PANDA) as log:
        t, q, rows, ms = log["t_pc"], log["q"].astype(float), log["rows"], 1e-3 * log["ms"]
    seven = sd.chain(7)
    wrench = sd.ExternalWrench("all", name="nothing touches it")
    encoders = sd.Problem(seven, [sd.JointPosition("all", noise=1e-4, name="encoders"), wrench])
    data, options = {"t": t, "encoders": q}, {}
    with pytest.warns(LogWarning, match="jitter|repeat"):
        if learnt:
            found = sd.learn_noise(encoders, data)
            encoders, options = found.problem, {"density": found.density, "order": found.order}
        run = sd.smooth(encoders, data, outputs=(), **options)
    middle = slice(300, -300)
    truth = filtered(ms, q[rows], ms)[middle]
    wrong = np.sqrt(np.mean((run.qdd[rows][middle] - truth) ** 2, axis=0))
    limit = np.sqrt(np.mean((filtered(t, q, t[rows])[middle] - truth) ** 2, axis=0))
    assert (wrong <= 1.3 * limit).all()
