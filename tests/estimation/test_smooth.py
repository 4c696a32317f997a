"""Smoothed logs: both levels, windows, gaps, densities, biases, coupled joints, stances, and honest deviations."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import numpy as np
import pytest
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import LogWarning
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.gauss_newton import Smoother
from sysdyn.estimation.output_values import evaluate_outputs
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.state_trajectory import StateTrajectory as States
from sysdyn.model.closures import Coupling
from sysdyn.model.joints import Free

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "trajectories"))
    import logs

ENCODERS = 1e-3


def motion(model: sd.Model, t: np.ndarray, seed: int = 0):
    """(q, qd, qdd) (N, nv) of hinges on sines of 0.5 to 1.5 Hz."""
    rng = np.random.default_rng(seed)
    omega, phase = 2 * np.pi * rng.uniform(0.5, 1.5, model.nv), rng.uniform(0.0, 6.0, model.nv)
    angle = t[:, None] * omega + phase
    return 0.4 * np.sin(angle), 0.4 * omega * np.cos(angle), -0.4 * omega**2 * np.sin(angle)


def encoders(model: sd.Model) -> sd.Problem:
    return sd.Problem(
        model, [sd.JointPosition("all", noise=ENCODERS, name="encoders"), sd.ExternalWrench("all", name="none")]
    )


def measured(q: np.ndarray, seed: int = 1) -> np.ndarray:
    return q + ENCODERS * np.random.default_rng(seed).standard_normal(q.shape)


def close(a: sd.Run, b: sd.Run, tolerance: float, rows=slice(None), others=slice(None)) -> None:
    """Estimates in units of their standard deviation, and these relative."""
    model = a.problem.model
    off = {"q": model.difference(b.q[others], a.q[rows])}
    off |= {name: getattr(a, name)[rows] - getattr(b, name)[others] for name in ("qd", "qdd")}
    off |= {name: a[name][rows] - b[name][others] for name in a.outputs}
    for name, x in off.items():
        std = b.std(name)[others]
        known = std > 1e-12
        assert np.abs(x[known] / std[known]).max() < tolerance, name
        assert np.abs(a.std(name)[rows][known] / std[known] - 1.0).max() < tolerance, name


# ---- levels ----------------------------------------------------------------------------------------------------------


def test_levels_agree_where_the_dynamics_say_nothing_of_the_state():
    model = sd.chain(4, seed=1)
    t = 4e-3 * np.arange(120)
    q, qd, qdd = motion(model, t)
    log = {"t": t, "encoders": measured(q)}
    exact, kinematic = (sd.smooth(encoders(model), log, ["tau", "a"], coupled=x) for x in (True, False))
    assert exact.coupled and not kinematic.coupled
    assert exact.motion == kinematic.motion and exact.order == kinematic.order
    close(exact, kinematic, 1e-6)
    tau = sd.rnea(model, q, qd, qdd)
    assert np.sqrt(np.mean((exact["tau"] - tau) ** 2)) < 0.05 * np.sqrt(np.mean(tau**2))
    assert 0.8 < np.mean(np.abs(exact["tau"] - tau) < 2.0 * exact.std("tau")) <= 1.0
    # no wrench: torques are those of the states
    np.testing.assert_allclose(
        exact["tau"], sd.rnea(model, exact.q, exact.qd, exact.qdd), atol=1e-8 * np.abs(tau).max()
    )


@pytest.mark.parametrize("coupled", [False, True])
def test_states_are_the_same_without_outputs(coupled):
    model, t = sd.chain(3, seed=1), 4e-3 * np.arange(40)
    log = {"t": t, "encoders": measured(motion(model, t)[0])}
    alone, whole = (sd.smooth(encoders(model), log, x, density=100.0, coupled=coupled) for x in ([], ["tau"]))
    close(alone, whole, 1e-9)
    assert not alone.outputs


def test_torques_make_the_exact_level_more_certain():
    model = sd.chain(3, seed=2)
    t = 4e-3 * np.arange(150)
    q, qd, qdd = motion(model, t)
    tau, rng = sd.rnea(model, q, qd, qdd), np.random.default_rng(0)
    problem = encoders(model) + sd.JointTorque("all", noise=0.3, name="torques")
    log = {"t": t, "encoders": measured(q), "torques": tau + 0.3 * rng.standard_normal(tau.shape)}
    exact, kinematic = (sd.smooth(problem, log, coupled=x, robust=False) for x in (True, False))
    assert np.all(exact.std("qdd").mean(axis=0) < kinematic.std("qdd").mean(axis=0))
    for run in (exact, kinematic):
        assert 0.9 < np.mean(np.abs(run["tau"] - tau) < 2.0 * run.std("tau"))


# ---- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("coupled", [False, True])
def test_instants_without_readings_change_nothing(order, coupled):
    """A process with white noise does not know at which instants it is looked at, irregular or with gaps."""
    model, rng = sd.chain(3, seed=1), np.random.default_rng(0)
    t = np.sort(rng.uniform(0.0, 0.4, 80))
    t = np.where(t > 0.25, t + 0.1, t)
    log = {"t": t, "encoders": measured(motion(model, t)[0])}
    between = np.sort(np.concatenate([rng.uniform(t[0], t[-1], 40), np.linspace(0.26, 0.34, 5)]))
    whole = np.sort(np.concatenate([t, between]))
    at = np.searchsorted(whole, t)
    filled = np.full((len(whole), model.nv), np.nan)
    filled[at] = log["encoders"]
    options = {"order": order, "density": 300.0 if order == 3 else 3000.0, "coupled": coupled, "robust": False}
    dense = sd.smooth(encoders(model), {"t": whole, "encoders": filled}, **options)
    with pytest.warns(LogWarning, match="no readings from 0.249"):
        sparse = sd.smooth(encoders(model), log, **options)
    close(dense, sparse, 1e-5, rows=at)
    # what is between is known less well, the middle of the gap least
    middle = np.searchsorted(whole, 0.30)
    assert np.all(dense.std("q")[middle] > 3.0 * np.median(sparse.std("q"), axis=0))


def test_a_gap_longer_than_the_process_bridges_has_wide_deviations():
    model = sd.chain(2, seed=1)
    t = np.concatenate([2e-3 * np.arange(60), 5.0 + 2e-3 * np.arange(60)])
    t = np.insert(t, 60, 2.5)
    log = {"t": t, "encoders": measured(motion(model, t)[0])}
    log["encoders"][60] = np.nan
    with pytest.warns(LogWarning, match="no readings from 2.5 to 5 s"):
        run = sd.smooth(encoders(model), log, density=100.0)
    assert np.all(run.std("q")[60] > 10.0) and np.all(run.std("tau")[60] > 5.0 * run.std("tau")[30])
    assert np.all(run.std("q")[[30, 90]] < ENCODERS)
    for values in run.arrays().values():
        assert np.all(np.isfinite(values))


@pytest.mark.parametrize("order", [None, 3, 4])
def test_sensors_at_four_rates(order):
    """Readings that are missing are those of a sensor that is slower: none of them is invented."""
    model = sd.chain(3, seed=4)
    t = 2e-3 * np.arange(200)
    q, qd, qdd = motion(model, t)
    rng, frame = np.random.default_rng(0), (model.body_names[-1], np.eye(4))
    problem = encoders(model) + [
        sd.JointVelocity("all", noise=0.02, name="tachometers"), sd.Gyroscope(frame, noise=5e-3, name="gyro"),
        sd.Accelerometer(frame, noise=0.1, name="acc"),
    ]  # fmt: skip
    log = sd.predict(problem, q, qd, qdd, state_sensors=True)
    noise = {"encoders": ENCODERS, "tachometers": 0.02, "gyro": 5e-3, "acc": 0.1}
    log = {name: log[name] + std * rng.standard_normal(log[name].shape) for name, std in noise.items()}
    for name, rate in (("encoders", 5), ("tachometers", 2), ("acc", 3)):
        log[name][np.arange(len(t)) % rate != 0] = np.nan
    runs = [sd.smooth(problem, {"t": t, **log}, ["tau"], coupled=x, robust=False, order=order) for x in (False, True)]
    close(*runs, 0.02)
    slow = sd.smooth(
        encoders(model),
        {"t": t, "encoders": log["encoders"]},
        robust=False,
        density=runs[0].motion,
        order=runs[0].order,
    )
    for run in runs:
        for name, truth in (("q", q), ("qd", qd), ("qdd", qdd)):
            assert np.mean(np.abs(getattr(run, name) - truth) < 2.0 * run.std(name)) > 0.85, name
            assert np.all(run.std(name).mean(axis=0) < slow.std(name).mean(axis=0))


# ---- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("coupled, biased", [(True, True), (True, False), (False, False), (False, True)])
def test_windows_give_the_whole(coupled, biased):
    """What is after an overlap hardly matters but for biases, and what is before is condensed: nothing is lost."""
    model = sd.chain(3, seed=1)
    t = 2e-3 * np.arange(400)
    q, qd, qdd = motion(model, t)
    tau = sd.rnea(model, q, qd, qdd)
    bias = sd.Constant(2.0) if biased else None
    problem = encoders(model) + sd.JointTorque("all", noise=1.0, name="torques", bias=bias)
    log = {
        "t": t,
        "encoders": measured(q),
        "torques": tau + 0.7 * biased + np.random.default_rng(0).standard_normal(tau.shape),
    }
    options = {"coupled": coupled, "order": 3, "density": 300.0, "robust": False}
    whole = sd.smooth(problem, log, **options)
    parts = sd.smooth(problem, log, window=200, **options)
    np.testing.assert_array_equal(parts.t, t)
    last = slice(-150, None)
    close(parts, whole, 1e-3, rows=last, others=last)
    if not biased:
        inner = np.r_[0:150, 200:400]
        close(parts, whole, 0.01, rows=inner, others=inner)
        close(parts, whole, 0.5)  # the ends of windows see a tenth ahead


@pytest.mark.parametrize("out", [None, "run.npz"])
def test_windows_of_a_joint_without_an_encoder(out, tmp_path):
    """Its density is learnt from more rows than a window has."""
    model, t = sd.chain(2, seed=1), 2e-3 * np.arange(300)
    q, qd, qdd = motion(model, t)
    marker = (model.body_names[-1], np.eye(4))
    marker[1][:3, 3] = 0.3
    problem = sd.Problem(model, [
        sd.JointPosition("joint0", noise=1e-4, name="enc"), sd.FramePosition(marker, noise=1e-3, name="marker"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    log = {"t": t, **sd.predict(problem, q, qd, qdd, state_sensors=True)}
    whole = sd.smooth(problem, log)
    parts = sd.smooth(problem, log, window=100, out=tmp_path / out if out else None)
    found = np.load(tmp_path / out)["q"] if out else parts.q
    assert np.abs(found - whole.q).max() < 1e-3 and np.abs(found - q).max() < 1e-3


# ---- deviations ------------------------------------------------------------------------------------------------------


def normalised(seed: int, coupled: bool, order: int) -> dict[str, np.ndarray]:
    """Errors in standard deviations {quantity: (N, m)} of a log drawn from the declared process."""
    log, problem, fx = logs.drawn_arm(seed, order)
    truth, density = log.truth, logs.DRAWN if order == 3 else logs.DRAWN_SNAP
    run = sd.smooth(problem, log.log, ["tau", "fx"], coupled=coupled, order=order, density=density, robust=False)
    return {
        "q": (run.q - truth.q) / run.std("q"), "qd": (run.qd - truth.qd) / run.std("qd"),
        "qdd": (run.qdd - truth.qdd) / run.std("qdd"), "tau": (run["tau"] - truth.tau) / run.std("tau"),
        "fx": (run["fx"] - fx)[:, -1] / run.std("fx")[:, -1],
        "bias": (run.bias("torques") - truth.biases["torques"]) / run.bias_std("torques"),
    }  # fmt: skip


def covered(draws: int, coupled: bool, order: int) -> None:
    """Share within 2 σ (95.4 % of normal errors), and mean squares."""
    errors: dict[str, list[np.ndarray]] = {}
    for seed in range(draws):
        for name, x in normalised(seed, coupled, order).items():
            errors.setdefault(name, []).append(x)
    found = {name: np.concatenate(x) for name, x in errors.items()}
    found = {name: (float(np.mean(np.abs(x) < 2.0)), float(np.mean(x**2))) for name, x in found.items() if x.size}
    bias = found.pop("bias", (0.95, 1.0))
    assert all(0.92 < share < 0.98 and 0.85 < square < 1.15 for share, square in found.values()), found
    assert 0.85 < bias[0] <= 1.0 and bias[1] < 1.6, bias  # three of each draw: they stay the same along the log


@pytest.mark.slow
@pytest.mark.parametrize("coupled, order", [(False, 3), (True, 3), (False, 4), (True, 4)])
def test_deviations_are_honest(coupled, order):
    covered(20, coupled, order)


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [False, True])
def test_deviations_are_honest_over_200_draws(coupled):
    covered(200, coupled, 3)


# ---- biases ----------------------------------------------------------------------------------------------------------


def test_biases_are_found():
    model = sd.random_tree(4, seed=0, joints=("revolute",))
    t = 2e-3 * np.arange(250)
    q, qd, qdd = motion(model, t)
    rng, frame = np.random.default_rng(0), (model.body_names[-1], np.eye(4))
    biases = {
        "gyro": np.array([0.05, -0.1, 0.03]),
        "acc": np.array([0.3, 0.2, -0.4]),
        "torques": np.array([1.0, -2.0, 0.5, 0.0]),
    }
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=ENCODERS, name="encoders"), sd.ExternalWrench("all", name="none"),
        sd.Gyroscope(frame, noise=5e-3, bias=sd.Constant(0.1), name="gyro"),
        sd.Accelerometer(frame, noise=0.1, bias=sd.RandomWalk(1e-3, std=0.5), name="acc"),
        sd.JointTorque("all", noise=0.3, bias=sd.Constant(2.0), name="torques"),
    ])  # fmt: skip
    shown = sd.predict(problem, q, qd, qdd, state_sensors=True)
    noise = {"encoders": ENCODERS, "gyro": 5e-3, "acc": 0.1, "torques": 0.3}
    log = {
        name: shown[name] + biases.get(name, 0.0) + std * rng.standard_normal(shown[name].shape)
        for name, std in noise.items()
    }
    run = sd.smooth(problem, {"t": t, **log}, coupled=True)
    for name, bias in biases.items():
        error, std = run.bias(name) - bias, run.bias_std(name)
        assert np.abs(error / std).max() < 4.0, name
        assert np.all(std[-1] < 0.2 * np.array([0.1 if name == "gyro" else 0.5 if name == "acc" else 2.0])), name
    # constants stay the same
    assert np.ptp(run.bias("gyro"), axis=0).max() < 0.01 * 0.1
    with pytest.raises(sd.UnknownName, match="encoders"):
        run.bias("encoders")


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 90])
def test_a_tilt_that_passes_for_a_bias_is_told_by_torques_over_time(window):
    """A base whose accelerometer is biased, held by a joint whose torque is measured with a bias, too.

    The error of the tilt stays the same from row to row: counted as white it would give each row another tilt, and
    biases of torques as precise as if the tilt were known.
    """
    model = floating_tree(3, seed=2)
    trunk, rng, n = (model.body_names[0], np.eye(4)), np.random.default_rng(3), 180
    acc, torques = np.array([0.25, -0.2, 0.15]), 0.5 * rng.standard_normal(2)
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="encoders"), sd.Gyroscope(trunk, noise=1e-3, name="gyro"),
        sd.Accelerometer(trunk, noise=0.05, bias=sd.Constant(0.3), name="acc"),
        sd.Stance(trunk, noise=1e-2, name="foot"),
        sd.JointTorque(model.joint_names[1:], noise=0.2, bias=sd.Constant(0.5), name="torques"),
        sd.ExternalWrench(model.body_names[1:], name="none"),
        sd.Prior(sd.ExternalWrench(model.body_names[0], noise=100.0), name="held"),
    ])  # fmt: skip
    t = 4e-3 * np.arange(n)
    sway, rate, push = motion(sd.chain(2, seed=1), t)
    q = np.repeat(model.neutral()[None], n, axis=0)
    q[:, 7:] = 2.0 * sway
    qd, qdd = np.zeros((2, n, model.nv))
    qd[:, 6:], qdd[:, 6:] = 2.0 * rate, 2.0 * push
    shown = sd.predict(problem, q, qd, qdd, state_sensors=True)
    noise, bias = {"encoders": 1e-3, "gyro": 1e-3, "acc": 0.05, "torques": 0.2}, {"acc": acc, "torques": torques}
    log = {x: shown[x] + bias.get(x, 0.0) + std * rng.standard_normal(shown[x].shape) for x, std in noise.items()}
    options = {"order": 3, "robust": False, "density": {"joint0": 30.0, "joint1": 300.0, "joint2": 300.0}}
    run = sd.smooth(problem, {"t": t, **log}, window=window, **options)
    exact = sd.smooth(problem, {"t": t, **log}, coupled=True, **options)
    tilt, std = model.difference(q, run.q)[:, :2], run.std("q")[:, :2]
    assert np.mean(np.abs(tilt) < 2.5 * std) > 0.9
    steps = np.abs(np.diff(tilt, axis=0)).max(axis=1)  # from row to row it stays, but for the ends of windows
    assert np.sort(steps)[-2] < 0.05 * std.max()
    for name, truth in bias.items():
        assert np.abs((run.bias(name)[-1] - truth) / run.bias_std(name)[-1]).max() < 3.0, name
        ratio = run.bias_std(name)[-1] / exact.bias_std(name)[-1]
        assert ratio.min() > 0.95 and ratio.max() < 1.6, name  # never more certain than all at once
        assert np.abs(run.bias(name)[-1] - exact.bias(name)[-1]).max() < exact.bias_std(name)[-1].max()


# ---- coupled joints --------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "coupled, order, density",
    [(True, 4, 300.0), (False, 3, 300.0), (False, 4, 300.0), (True, 3, 300.0), (False, 4, 3e4), (True, 4, 3e4)],
)
def test_coupled_joints_move_together(coupled, order, density):
    model = sd.chain(4, seed=2).replace(closures=(Coupling("joint2", "joint0", (0.1, -0.5, 0.3)),))
    t = 4e-3 * np.arange(100)
    q, _, _ = model.imposed(*motion(model, t))
    log, options = {"t": t, "encoders": measured(q)}, {"robust": False, "order": order, "density": density}
    run = sd.smooth(encoders(model), log, coupled=coupled, **options)
    x, v = run.q[:, 0], run.qd[:, 0]
    p, slope = 0.1 - 0.5 * x + 0.3 * x**2, -0.5 + 0.6 * x
    assert np.abs(run.q[:, 2] - p).max() < 0.02 * ENCODERS
    assert np.abs(run.qd[:, 2] - slope * v).max() < 0.02 * run.std("qd")[:, 0].max()
    alone = sd.smooth(encoders(model.replace(closures=())), log, **options)
    assert np.all(run.std("q")[:, 0] < 0.999 * alone.std("q")[:, 0])  # one joint tells of the other
    assert np.mean(np.abs(run.q - q) < 2.5 * run.std("q")) > 0.9


# ---- stances ---------------------------------------------------------------------------------------------------------


def standing(slip: float = 0.0) -> tuple[sd.Problem, dict[str, np.ndarray], np.ndarray]:
    """(problem, log, (N,) slip [m/s]): a base at rest on its feet, or that slips for a while, and a link that sways.

    The tip of the link stands while the link is at rest.
    """
    model = floating_tree(2, seed=2)
    model = model.replace(X_tree=(np.eye(6), *model.X_tree[1:]))
    trunk, tip, other = (model.body_names[0], np.eye(4)), np.eye(4), np.eye(4)
    tip[:3, 3], other[:3, 3] = (0.2, 0.2, 0.2), (0.3, -0.1, 0.2)
    n = 200
    t, k = 4e-3 * np.arange(n), np.arange(n)
    speed = np.where((k >= 100) & (k < 140), 0.5 * slip * (1.0 - np.cos(2.0 * np.pi * (k - 99.5) / 40.0)), 0.0)
    q = np.repeat(model.neutral()[None], n, axis=0)
    q[:, 0] = np.cumsum(speed) * 4e-3
    q[:, 7] = 0.2 * np.where(SWAYS, 1.0 - np.cos(2.0 * np.pi * (k - 50) / 50.0), 0.0)
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="encoders"), sd.Gyroscope(trunk, noise=5e-3, name="gyro"),
        sd.FramePosition(trunk, noise=1e-3, name="mocap"),
        sd.Stance(trunk, noise=5e-3, name="foot"), sd.Stance((model.body_names[0], other), noise=5e-3, name="heel"),
        sd.Stance((model.body_names[1], tip), noise=5e-3, name="tip"), sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    rng = np.random.default_rng(0)
    log = {
        "t": t, "encoders": q[:, 7:] + 1e-3 * rng.standard_normal((n, 1)),
        "gyro": 5e-3 * rng.standard_normal((n, 3)), "mocap": q[:, :3] + 1e-3 * rng.standard_normal((n, 3)),
    }  # fmt: skip
    return problem, log, speed


# Instants at which the link of `standing` sways.
SWAYS = (np.arange(200) >= 50) & (np.arange(200) < 150)


def test_a_stance_that_contradicts_the_motion_is_dropped():
    problem, log, _ = standing()
    run = sd.smooth(problem, log)
    stands = run.contacts["tip"]
    assert stands.shape == SWAYS.shape and stands.dtype == bool
    fast = np.abs(run.qd[:, 6]) > 0.4 * np.abs(run.qd[:, 6]).max()
    assert fast.sum() > 50 and not stands[fast & SWAYS].any() and stands[~SWAYS].mean() > 0.9
    assert run.contacts["foot"].mean() > 0.98 and run.contacts["heel"].mean() > 0.98
    named = [e for e in run.events if e.measurement == "tip"]
    assert {e.instant for e in named} == set(np.flatnonzero(~stands).tolist())
    assert all(e.t == log["t"][e.instant] and e.size > 3.0 and e.component in ("v_x", "v_y", "v_z") for e in named)
    assert "dropped" in repr(run) and "tip" in repr(run)
    assert np.abs(run.qd[:, 3:6]).max() < 0.05  # the base does not follow it


@pytest.mark.slow
def test_feet_that_slip_do_not_cost_positions():
    problem, log, speed = standing(slip=0.5)
    log["active: tip"] = np.zeros(200)
    run = sd.smooth(problem, log)
    assert sum(e.measurement == "mocap" for e in run.events) < 20
    assert np.abs(run.qd[:, 3] - speed).max() < 0.2


def test_stances_that_agree_stay():
    problem, log, _ = standing()
    log["active: tip"] = (~SWAYS).astype(float)
    run = sd.smooth(problem, log)
    assert run.contacts["foot"].all() and run.contacts["heel"].all()
    assert (run.contacts["tip"] == ~SWAYS).sum() > 197 and not run.contacts["tip"][SWAYS].any()
    assert len([e for e in run.events if e.measurement in ("foot", "heel", "tip")]) < 5


def test_a_run_that_has_not_converged_says_so(monkeypatch):
    problem, log, _ = standing()
    log["active: tip"] = (~SWAYS).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogWarning)
        sd.smooth(problem, log, robust=False)
    monkeypatch.setattr(Smoother.solve, "__defaults__", (1e-4, 1))  # one step
    with pytest.warns(LogWarning, match="rows 1 to 200 have not converged"):
        sd.smooth(problem, log, robust=False, density=300.0)  # learning it would take further steps


def test_outliers_are_dropped_and_named():
    model = sd.chain(3, seed=1)
    t = 2e-3 * np.arange(200)
    log = {"t": t, "encoders": measured(motion(model, t)[0])}
    log["encoders"][[50, 120], [1, 2]] += 0.05
    run = sd.smooth(encoders(model), log, density=300.0, order=3)
    named = {(e.instant, e.measurement, e.component) for e in run.events}
    assert {(50, "encoders", "joint1"), (120, "encoders", "joint2")} <= named and len(named) < 12
    with pytest.warns(LogWarning, match="χ²"):
        trusting = sd.smooth(encoders(model), log, density=300.0, order=3, robust=False)  # all believed
    truth = motion(model, t)[0]
    for row, joint in ((50, 1), (120, 2)):
        assert abs(trusting.q - truth)[row, joint] > 5.0 * trusting.std("q")[row, joint]
        assert abs(run.q - truth)[row, joint] < 3.0 * run.std("q")[row, joint]
    assert not trusting.events


# ---- what is given ---------------------------------------------------------------------------------------------------


def test_densities_by_joint_and_what_is_not_named_is_learnt():
    model = sd.chain(3, seed=1)
    t = 2e-3 * np.arange(150)
    log = {"t": t, "encoders": measured(motion(model, t)[0])}
    learnt = sd.smooth(encoders(model), log, order=3)
    some = sd.smooth(encoders(model), log, order=3, density={"joint1": 77.0})
    assert some.motion == {**learnt.motion, "joint1": 77.0}
    number = sd.smooth(encoders(model), log, order=3, density=77.0)
    each = sd.smooth(encoders(model), log, order=3, density=[77.0] * 3)
    assert number.motion == each.motion == dict.fromkeys(model.joint_names, 77.0)
    close(number, each, 1e-12)
    # of a joint alone: others do not know
    np.testing.assert_allclose(some.q[:, 1], number.q[:, 1], rtol=0, atol=1e-9)
    assert sd.smooth(encoders(model), log, order=4).order == 4


def test_densities_are_those_of_the_process():
    for order, density in ((3, logs.DRAWN), (4, logs.DRAWN_SNAP)):
        ratios = []
        for seed in range(3):  # of 60 instants each
            log, _, _ = logs.drawn_arm(seed, order)
            given = {name: log.log[name] for name in ("t", "encoders")}
            ratios += [x / density for x in sd.smooth(encoders(log.model), given, order=order).motion.values()]
        assert 0.6 < np.exp(np.mean(np.log(ratios))) < 1.6, ratios


def test_where_to_start():
    """Without an attitude that is told, the heading is as at the start; near it a large turn is found at once."""
    model = floating_tree(2, seed=2)
    model = model.replace(X_tree=(np.eye(6), *model.X_tree[1:]))
    assert isinstance(model.joints[0], Free)
    I = (model.body_names[0], np.eye(4))
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="encoders"), sd.Gyroscope(I, noise=5e-3, name="gyro"),
        sd.Accelerometer(I, noise=0.05, name="acc"), sd.Stance(I, noise=5e-3, name="foot"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    n, rng = 100, np.random.default_rng(0)
    start = model.neutral()
    up = -model.gravity / np.linalg.norm(model.gravity)
    start[:7] = [1.0, 2.0, 0.5, *(up * np.sin(0.6)), np.cos(0.6)]
    start[7:] = 0.3
    q = np.repeat(start[None], n, axis=0)
    still = np.zeros((n, model.nv))
    shown = sd.predict(problem, q, still, still, state_sensors=True)
    log = {"t": 4e-3 * np.arange(n), **{k: shown[k] + s * rng.standard_normal(shown[k].shape)
           for k, s in (("encoders", 1e-3), ("gyro", 5e-3), ("acc", 0.05))}}  # fmt: skip
    run = sd.smooth(problem, log, start=start)
    assert (
        len(run.gauge_fixed) == 4
        and sum("position" in x for x in run.gauge_fixed) == 3
        and any("yaw" in x for x in run.gauge_fixed)
    )
    off = model.difference(q, run.q)
    assert np.abs(off[:, :6]).max() < 0.03
    elsewhere = sd.smooth(problem, log)
    assert np.abs(elsewhere.q[:, :3]).max() < 0.05  # as the neutral position
    np.testing.assert_allclose(
        elsewhere["tau"], run["tau"], atol=0.2 * np.median(run.std("tau")[run.std("tau") > 1e-9])
    )


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_and_its_parts():
    model = sd.chain(3, seed=1)
    t = 2e-3 * np.arange(50)
    run = sd.smooth(encoders(model), {"t": t, "encoders": measured(motion(model, t)[0])}, ["tau", "fx", "a"])
    assert run.outputs == ("tau", "fx", "a") and len(run) == 50
    assert run["tau"].shape == (50, 3) and run["fx"].shape == run["a"].shape == (50, 3, 6)
    np.testing.assert_array_equal(run["tau", "joint1"], run["tau"][:, 1])
    np.testing.assert_array_equal(run.std("q", "joint2"), run.std("q")[:, 2])
    assert run.std("a").shape == (50, 3, 6) and not run.std("fx").any()
    assert set(run.arrays()) >= {"t", "q", "qd", "qdd", "tau", "fx", "a", "std:q", "std:tau"}
    for key in ("torque", ("tau", "joint9")):
        with pytest.raises(sd.UnknownName):
            run[key]


def test_parts_of_a_run_by_names_with_brackets():
    tree = floating_tree(2, seed=0).replace(joint_names=("base[x]", "base"), body_names=("a.b", "a"))
    problem = sd.Problem(tree, [
        sd.JointPosition("base", noise=1e-3, name="encoder"), sd.FramePosition("a.b", noise=1e-3, name="place"),
        sd.FrameAttitude("a.b", noise=1e-3, name="attitude"), sd.ExternalWrench("all"),
    ])  # fmt: skip
    log = {
        "t": 0.01 * np.arange(20),
        "encoder": np.zeros(20),
        "place": np.zeros((20, 3)),
        "attitude": np.zeros((20, 3)),
    }
    run = sd.smooth(problem, log, ["tau", "a"], order=3)
    np.testing.assert_array_equal(run["tau", "base[x]"], run["tau"][:, :6])
    np.testing.assert_array_equal(run["tau", "base"], run["tau"][:, 6])
    np.testing.assert_array_equal(run["a", "a.b"], run["a"][:, 0])
    np.testing.assert_array_equal(run["a", "a"], run["a"][:, 1])


# ---- χ² --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("coupled, order", [(True, 3), (False, 3), (True, 4), (False, 4)])
def test_chi2_is_in_its_band(coupled, order):
    """Of logs that are drawn as declared: its mean, its spread, and 95 % of them in the band, in windows as well."""
    normal, inside, draws = [], [], 24
    density = logs.DRAWN if order == 3 else logs.DRAWN_SNAP
    for seed in range(draws):
        log, problem, _ = logs.drawn_arm(seed, order)
        options = {"coupled": coupled, "order": order, "density": density, "robust": False}
        run = sd.smooth(problem, log.log, window=(None, 25)[seed % 2], **options)
        low, high = run.chi2_band()
        inside.append(low < run.chi2() < high)
        normal.append((run.chi2() - run.redundancy) / np.sqrt(2.0 * run.redundancy))
        # three (or four) readings of each joint find the first state
        readings = 60 * 3 * (2 if coupled else 1)
        assert run.redundancy == readings - 3 * order
    assert abs(np.mean(normal)) < 3.0 / np.sqrt(draws) and 0.6 < np.std(normal) < 1.5, (normal, inside)
    assert np.mean(inside) > 0.8


@pytest.mark.parametrize("share, above", [(3.0, True), (1.0 / 3.0, False)])
def test_noise_that_is_wrong_is_out_of_the_band(share, above):
    log, problem, _ = logs.drawn_arm(0)
    wrong = [
        sd.JointPosition("all", noise=m.noise / share, name=m.name) if m.name == "encoders" else m
        for m in problem.measurements
    ]
    with pytest.warns(LogWarning, match="χ²") if above else contextlib.nullcontext():
        run = sd.smooth(sd.Problem(problem.model, wrong), log.log, density=logs.DRAWN, order=3, robust=False)
    low, high = run.chi2_band()
    assert (run.chi2() > high) if above else (run.chi2() < low)
    assert f"χ²        {run.chi2():.0f}" in repr(run) and any(table.title == "fit" for table in run.tables())


def test_dropped_readings_do_not_count():
    log, problem, _ = logs.drawn_arm(1)
    options = {"density": logs.DRAWN, "order": 3}
    clean = sd.smooth(problem, log.log, robust=False, **options)
    encoders = log.log["encoders"].copy()
    encoders[[10, 30], [0, 2]] += 0.5
    run = sd.smooth(problem, {**log.log, "encoders": encoders}, **options)
    assert clean.redundancy - 6 < run.redundancy < clean.redundancy - 1
    low, high = run.chi2_band()
    assert low < run.chi2() < high


def test_chi2_with_a_free_base_and_exact_rows():
    """Rows that hold exactly, and coordinates that nothing tells, are counted as what they say."""
    model = sd.chain(4, seed=2).replace(closures=(Coupling("joint2", "joint0", (0.1, -0.5, 0.3)),))
    t = 4e-3 * np.arange(100)
    q, _, _ = model.imposed(*motion(model, t))
    run = sd.smooth(encoders(model), {"t": t, "encoders": measured(q)}, order=3, robust=False)
    assert run.redundancy == 100 * (4 + 2) - 12
    low, high = run.chi2_band()
    assert run.chi2() < high


@pytest.mark.parametrize("coupled", [False, True])
def test_variances_of_outputs_are_those_of_the_whole_covariance(coupled):
    """Joint by joint if nothing couples them, together if something does."""
    model, rng = sd.chain(3, seed=1), np.random.default_rng(0)
    problem = sd.Problem(model, [sd.JointPosition("all", noise=1e-3), sd.ExternalWrench("all", name="none")])
    estimation = EstimationProblem(problem, ("tau",), 1.0, 3, False)
    source, own, n = estimation.dynamics, estimation.layout, 5
    q, qd, qdd = model.random_state(seed=0, batch=n)
    path = States(own, np.arange(float(n)), q, np.stack([qd, qdd], axis=1), np.zeros((n, 0)))
    readings = MeasurementData(path.t, {}, {}, {})
    X = rng.standard_normal((n, own.size, own.size))
    if not coupled:
        j = np.arange(own.size) % model.nv
        X = X * (j[:, None] == j)
    P = X @ X.swapaxes(1, 2)
    value, std = evaluate_outputs(source, path, readings, P)["tau"]
    np.testing.assert_allclose(value, sd.rnea(model, q, qd, qdd), atol=1e-9)
    for k in range(n):  # central differences
        J, h = np.zeros((model.nv, own.size)), 1e-6
        for i in range(own.size):
            d = np.zeros((1, own.size))
            d[0, i] = h
            ahead, behind = (path.part(slice(k, k + 1)).retract(x) for x in (d, -d))
            J[:, i] = (sd.rnea(model, *(ahead.state().values())) - sd.rnea(model, *(behind.state().values())))[0] / 2e-6
        np.testing.assert_allclose(std[k], np.sqrt(np.diagonal(J @ P[k] @ J.T)), rtol=1e-6)
