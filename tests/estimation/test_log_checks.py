"""Logs that a problem does not describe are reported, with numbers and names."""

import warnings

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import LogWarning

ENCODERS, TACHOMETERS, STEP, N = 1e-4, 0.02, 2e-3, 800
arm = sd.chain(3)


def logged():
    """(log of encoders and tachometers, q̈ (N, 3))."""
    rng, t = np.random.default_rng(0), STEP * np.arange(N)
    w, a = np.array([[1.0, 2.5], [0.7, 1.9], [1.3, 3.1]]), np.array([0.8, 0.4])
    x = w * t[:, None, None] + np.arange(2.0)
    q, qd, qdd = (a * np.sin(x)).sum(axis=2), (a * w * np.cos(x)).sum(axis=2), (-a * w * w * np.sin(x)).sum(axis=2)
    noise = rng.standard_normal((2, N, 3))
    return {"t": t, "encoders": q + ENCODERS * noise[0], "tachometers": qd + TACHOMETERS * noise[1]}, qdd


def problem(tachometers=TACHOMETERS):
    return sd.Problem(arm, [
        sd.JointPosition("all", noise=ENCODERS, name="encoders"),
        sd.JointVelocity("all", noise=tachometers, name="tachometers"),
        sd.ExternalWrench("all", name="nothing touches it"),
    ])  # fmt: skip


def test_a_log_as_declared_is_not_reported():
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogWarning)
        sd.smooth(problem(), logged()[0])


def test_readings_that_are_dropped_often_are_reported():
    log, _ = logged()
    log["encoders"][::17, 1] += 0.01
    with pytest.warns(LogWarning, match=r"encoders.*joint1 6"):
        run = sd.smooth(problem(), log)
    assert sum(e.component == "joint1" for e in run.events) >= N // 17


@pytest.mark.parametrize("out", [None, "run.npz"])
@pytest.mark.parametrize("factor", [10.0, 30.0])
def test_noise_that_passes_for_motion_is_reported(tmp_path, out, factor):
    """White noise that is declared far too small: densities of the motion fit it, so that few readings are dropped."""
    log, _ = logged()
    log["encoders"] += factor * ENCODERS * np.random.default_rng(3).standard_normal((N, 3))
    stated = sd.Problem(arm, [x for x in problem().measurements if x.name != "tachometers"])
    options = {} if out is None else {"out": tmp_path / out}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sd.smooth(stated, {"t": log["t"], "encoders": log["encoders"]}, **options)
    (said,) = (str(x.message) for x in caught if "noisier than declared" in str(x.message))
    assert all(f"{joint} {factor:.0f} times" in said for joint in arm.joint_names)


def test_chi2_beyond_its_band_is_reported():
    log, _ = logged()
    with pytest.warns(LogWarning, match=r"χ².* times its \d+ degrees of freedom"):
        run = sd.smooth(problem(0.5 * TACHOMETERS), log, robust=False)
    assert run.chi2() > 1.1 * run.redundancy


@pytest.mark.parametrize("out", [None, "run.npz"])
def test_noise_is_raised_where_many_readings_are_dropped(tmp_path, out):
    log, qdd = logged()
    options = {} if out is None else {"out": tmp_path / out}
    with pytest.warns(LogWarning, match="tachometers.*smoothed once more"):
        run = sd.smooth(problem([0.2 * TACHOMETERS, TACHOMETERS, TACHOMETERS]), log, outputs=["qdd"], **options)
    noise = next(m.noise for m in run.problem.measurements if m.name == "tachometers")
    np.testing.assert_allclose(noise, TACHOMETERS, rtol=0.2)
    right = sd.smooth(problem(), log)
    error = np.sqrt(np.mean((right.qdd - qdd) ** 2))
    found = run.qdd if out is None else np.load(run.path)["qdd"]
    assert np.sqrt(np.mean((found - qdd) ** 2)) < 1.3 * error


@pytest.mark.parametrize("out", [None, "run.npz"])
def test_a_bias_beyond_its_prior_is_reported(tmp_path, out):
    """A bias of 10 m/s², as a false stance makes of an accelerometer's, of 0.1 that is declared."""
    log, _ = logged()
    imu = sd.Accelerometer(arm.body_names[-1], noise=0.1, name="imu", bias=sd.Constant(0.1))
    whole = problem() + imu
    state = sd.smooth(problem(), log)
    value = sd.predict(sd.Problem(arm, [imu]), state.q, state.qd, state.qdd)["imu"]
    log["imu"] = value + np.array([0.0, 0.0, -10.0]) + 0.1 * np.random.default_rng(1).standard_normal(value.shape)
    options = {} if out is None else {"out": tmp_path / out}
    with pytest.warns(LogWarning, match="χ²"), pytest.warns(LogWarning, match=r"bias of 'imu'.* -(9\.|10)"):
        run = sd.smooth(whole, log, robust=False, **options)
    assert "bias:imu" in np.load(run.path) if out else abs(run.bias("imu")[0, 2] + 10.0) < 0.5


@pytest.mark.parametrize("out", [None, "run.npz"])
@pytest.mark.parametrize("share", [1.0, 3.0])
def test_chi2_of_forces_is_shown_and_reported(tmp_path, out, share):
    """Torques whose noise is declared `share` times too small; a wrench is unknown with a prior."""
    log, _ = logged()
    state = sd.smooth(problem(), log)
    tau = sd.compile(sd.inverse_dynamics(arm))(state.q, state.qd, state.qdd)["tau"]
    log["torques"] = tau + 0.5 * np.random.default_rng(2).standard_normal(tau.shape)
    whole = problem() + sd.JointTorque("all", noise=0.5 / share, name="torques")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = sd.smooth(whole, log, robust=False, **({} if out is None else {"out": tmp_path / out}))
    assert any("χ² of the forces" in str(x.message) for x in caught) == (share > 1.0)
    (fit,) = (x for x in run.tables() if x.title == "fit")
    label, squares, freedoms, _ = fit.rows[1]
    assert "forces" in label and "forces" in repr(run) and int(freedoms) == 3 * N
    assert float(squares) / int(freedoms) == pytest.approx(share**2, rel=0.15)
