"""Noise, drifts and motion learnt from raw logs: what was drawn is found again, with honest errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from estimation.test_bad_logs import floating

import sysdyn as sd
from sysdyn.errors import AccuracyWarning, InvalidInput, UnknownName
from sysdyn.estimation import process_noise
from sysdyn.estimation.ekf import Filter
from sysdyn.estimation.gauss_newton import Smoother
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.measurement_data import LogStatistics, read_log
from sysdyn.estimation.process_model import covariance, transition
from sysdyn.estimation.quantisation import quantisation_noise
from sysdyn.estimation.residuals import CHI2_THRESHOLD
from sysdyn.estimation.smooth import with_motion

ENCODERS, TACHOMETERS, DRIFT, JERK = 1e-3, 0.1, 0.3, 500.0


def drawn(n: int, seed: int) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """(problem with wrong noise and drift, log) of three joints that move by white noise on jerk."""
    rng, model = np.random.default_rng(seed), sd.chain(3, seed=1)
    t = np.cumsum(rng.uniform(2e-3, 8e-3, n))
    x = np.zeros((n, 3, 3))
    x[0] = rng.standard_normal((3, 3)) * np.array([0.5, 1.0, 10.0])[:, None]
    bias = np.zeros((n, 3))
    nodes, weights = np.polynomial.legendre.leggauss(3)
    for k, dt in enumerate(np.diff(t)):
        F = np.array([[1.0, dt, dt * dt / 2.0], [0.0, 1.0, dt], [0.0, 0.0, 1.0]])
        ago = 0.5 * dt * (1.0 + nodes)
        B = np.array([ago ** (2 - i) / math.factorial(2 - i) for i in range(3)]) * np.sqrt(0.5 * dt * weights)
        x[k + 1] = F @ x[k] + JERK * B @ rng.standard_normal((3, 3))
        bias[k + 1] = bias[k] + DRIFT * math.sqrt(dt) * rng.standard_normal(3)
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=3.0 * ENCODERS, name="encoders"),
        sd.JointVelocity("all", noise=0.2 * TACHOMETERS, bias=sd.RandomWalk(0.2 * DRIFT, std=1.0), name="tachometers"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    shown = {"encoders": x[:, 0] + ENCODERS * rng.standard_normal((n, 3)),
             "tachometers": x[:, 1] + bias + TACHOMETERS * rng.standard_normal((n, 3))}  # fmt: skip
    return problem, {"t": t, **shown}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", range(4))
def test_what_was_drawn_is_learnt(seed):
    problem, log = drawn(400, seed)
    found = sd.learn_noise(problem, log, order=3, robust=False)
    assert found.converged and np.all(np.diff(found.log_likelihood) > -1e-6)
    truth = {"noise:encoders": ENCODERS, "noise:tachometers": TACHOMETERS, "drift:tachometers": DRIFT, "motion": JERK}
    learnt = {"noise:encoders": found.noise["encoders"], "noise:tachometers": found.noise["tachometers"],
              "drift:tachometers": found.drift["tachometers"],
              "motion": np.array([*found.density.values()])}  # fmt: skip
    for name, x in learnt.items():
        assert np.abs(np.log(x / truth[name]) / found.error[name]).max() < 3.5, name
        assert found.error[name].max() < (0.8 if name.startswith("drift") else 0.2)
    # the problem that comes back has it all
    encoders = next(m for m in found.problem.measurements if m.name == "encoders")
    np.testing.assert_array_equal(encoders.noise, found.noise["encoders"])
    run = sd.smooth(found.problem, log, density=found.density, order=found.order, robust=False)
    low, high = run.chi2_band()
    assert low < run.chi2() < high
    assert f"converged; log-likelihood {found.log_likelihood[0]:.6g}" in repr(found)


@pytest.mark.parametrize("seed", range(2))
def test_readings_that_were_dropped_come_back_with_the_noise_that_is_learnt(seed):
    """Noise that is declared five times too small makes outliers of many readings, without which it stays too small."""
    problem, log = drawn(400, seed)
    log["encoders"][50, 0] += 0.5
    found = sd.learn_noise(problem, log, order=3)
    assert found.converged
    learnt, error = found.noise["tachometers"], found.error["noise:tachometers"]
    assert np.abs(np.log(learnt / TACHOMETERS) / error).max() < 2.5
    run = sd.smooth(found.problem, log, density=found.density, order=found.order)
    low, high = run.chi2_band()
    assert low < run.chi2() < high and len(run.events) < 20
    assert (50, "encoders", "joint0") in {(e.instant, e.measurement, e.component) for e in run.events}


def test_the_likelihood_is_that_of_the_innovations():
    """Of the filter, with the determinants of their covariances."""
    problem, log = drawn(25, 0)
    found = sd.learn_noise(problem, log, "encoders", order=3, robust=False, iterations=1)
    readings = read_log(problem, log)
    estimation, kappa, _ = with_motion(problem, (), False, 3, None, LogStatistics.of(lambda: [readings]))
    belief, _ = estimation.initial_state(readings, None, kappa)
    filter_, total = Filter(estimation.layout, estimation.kinematic, kappa, gate=False), 0.0
    for k, t in enumerate(readings.t):
        part = readings.part(slice(k, k + 1))
        if k:
            belief = filter_.predict(belief, float(t))
        J = estimation.states.linearize(belief.path, part).J[0]
        total -= 0.5 * np.linalg.slogdet(np.eye(len(J)) + J @ belief.P @ J.T)[1]
        belief = filter_.update(belief, part)
        total -= 0.5 * (filter_.chi2 + filter_.degrees_of_freedom * math.log(2.0 * math.pi))
    total -= 25 * 3 * (math.log(3.0 * ENCODERS) + math.log(0.2 * TACHOMETERS))
    assert found.log_likelihood[0] == pytest.approx(total, rel=1e-6)


def test_sensors_of_a_floating_base():
    """An accelerometer, whose rows go through the dynamic variables, a gyroscope, and a density that is stated."""
    problem, log = floating("enc", "gyro", "acc", "mocap")
    wrong = [sd.Accelerometer(m.frame, noise=0.5, name="acc") if m.name == "acc" else m for m in problem.measurements]
    still = dict.fromkeys(problem.model.dof_names, 1e-2)
    learn = ["acc", "gyro", "enc"]
    found = sd.learn_noise(sd.Problem(problem.model, wrong), log, learn, density=still, order=3, rows=30)
    assert set(found.noise) == set(learn) and found.density == pytest.approx(still)
    for name, truth in (("acc", 0.1), ("gyro", 1e-2), ("enc", 1e-3)):
        assert np.abs(np.log(found.noise[name] / truth) / found.error[f"noise:{name}"]).max() < 3.5, name


def test_what_a_log_does_not_tell():
    """Noise of one reading of each joint by its own process: nothing checks it."""
    problem, log = drawn(6, 0)
    with pytest.warns(AccuracyWarning, match=r"relative errors beyond 1 have .*drift of tachometers"):
        found = sd.learn_noise(problem, log, order=3, robust=False, density=JERK)
    assert np.isinf(found.error["motion"]).all() and "not determined" in repr(found)


def test_nothing_to_learn_has_converged():
    found = sd.learn_noise(*drawn(40, 0), [], density=JERK, order=3, robust=False)
    assert found.converged and len(found.log_likelihood) == 1


def test_calls_that_are_refused():
    problem, log = drawn(10, 0)
    with pytest.raises(UnknownName, match="sensor of motion 'encoder'"):
        sd.learn_noise(problem, log, "encoder")
    with pytest.raises(InvalidInput, match="iterations is 0"):
        sd.learn_noise(problem, log, iterations=0)


def test_motion_that_markers_alone_show():
    """Densities of joints without encoders are learnt to the end: ten times too large, and noise makes the torques."""
    model, rng = sd.chain(2, seed=1), np.random.default_rng(0)
    t = 0.01 * np.arange(250)
    w, size = 2.0 * np.pi * np.array([0.4, 0.7]), np.array([0.5, 0.3])
    q, qd, qdd = (
        size * np.sin(t[:, None] * w),
        size * w * np.cos(t[:, None] * w),
        -size * w * w * np.sin(t[:, None] * w),
    )
    places = [(body, np.eye(4)) for body in model.body_names]
    for k, (_, T) in enumerate(places):
        T[:3, 3] = 0.2 + 0.1 * k
    markers = [sd.FramePosition(place, noise=1e-3, name=place[0]) for place in places]
    problem = sd.Problem(model, [*markers, sd.ExternalWrench("all", name="none")])
    log = {"t": t, **sd.predict(problem, q, qd, qdd, state_sensors=True)}
    log = {x: y if x == "t" else y + 1e-3 * rng.standard_normal(y.shape) for x, y in log.items()}
    run, tau = sd.smooth(problem, log), sd.rnea(model, q, qd, qdd)
    error = run["tau"] - tau
    assert np.sqrt(np.mean(error**2)) < 0.03 * np.sqrt(np.mean(tau**2))
    assert np.mean(np.abs(error) < 2.0 * run.std("tau")) > 0.9 and np.median(run.std("tau")) < 0.1 * np.abs(tau).max()
    found = sd.learn_noise(problem, log, (), order=run.order)
    assert found.converged and found.density == pytest.approx(dict(run.motion), rel=0.2)


@pytest.mark.parametrize("order", [3, 4])
def test_likelihoods_of_encoders_are_those_of_filters_by_matrices(order):
    """At irregular times, with gaps, of two encoders with noise of their own."""
    rng, n, std = np.random.default_rng(0), 60, np.array([1e-3, 1e-2])
    t = np.cumsum(rng.uniform(5e-3, 2e-2, n))
    z = np.sin(3.0 * t)[:, None] + std * rng.standard_normal((n, 2))
    on = rng.random((n, 2)) > 0.2
    kappa, likelihood = process_noise.psd_from_encoders(t, np.where(on, z, 0.0), on, std, np.arange(2), order)
    dt, tried = (
        np.diff(t),
        10.0 ** np.linspace(process_noise.LEAST_DENSITY, process_noise.GREATEST_DENSITY, process_noise.DENSITIES),
    )
    forgotten = np.minimum(process_noise.BURN_IN_SHARE * on.sum(axis=0), process_noise.BURN_IN)
    for j in range(2):
        found = []
        for density in tried / np.median(dt) ** (order - 0.5):
            x = np.array([z[on[:, j].argmax(), j] / std[j], *np.zeros(order - 1)])
            P, total = np.diag(process_noise.WIDE * np.median(dt) ** (-2.0 * np.arange(order))), 0.0
            for k in range(n):
                if k:
                    F = transition(dt[k - 1], order)
                    x, P = F @ x, F @ P @ F.T + density**2 * covariance(dt[k - 1], order)
                if not on[k, j]:
                    continue
                e = z[k, j] / std[j] - x[0]
                S = max(P[0, 0] + 1.0, e * e / CHI2_THRESHOLD)
                total -= 0.5 * (np.log(S) + e * e / S) * (on[: k + 1, j].sum() > forgotten[j])
                x, P = x + P[:, 0] * e / S, P - np.outer(P[:, 0], P[0]) / S
            found.append(total)
        assert likelihood[j] == pytest.approx(max(found), abs=1e-4)
        best = tried[int(np.argmax(found))] * std[j] / np.median(dt) ** (order - 0.5)
        assert abs(np.log10(kappa[j] / best)) < 0.25


def of_process(order: int, kappa: np.ndarray, t: np.ndarray, seed: int) -> np.ndarray:
    """(N, p, m) states of m processes of density κ (m,), from rest at random positions."""
    rng, dt = np.random.default_rng(seed), float(t[1] - t[0])
    F, L = transition(dt, order), np.linalg.cholesky(covariance(dt, order))
    x = np.zeros((len(t), order, len(kappa)))
    x[0, 0] = rng.standard_normal(len(kappa))
    for k in range(1, len(t)):
        x[k] = F @ x[k - 1] + L @ rng.standard_normal(x[0].shape) * kappa
    return x


FINE, COARSE = 1e-4, 0.1
ENCODERS_OF_A_JOINT = {
    "one": ["fine"], "coarse last": ["fine", "coarse"], "coarse first": ["coarse", "fine"],
    "without readings": ["fine", "silent"], "of half the rate": ["fine", "slow"],
}  # fmt: skip


@pytest.mark.parametrize("case", ENCODERS_OF_A_JOINT)
def test_all_encoders_of_a_joint_determine_its_density(case):
    t, kappa, rng = 1e-2 * np.arange(400), np.array([0.1, 0.01]), np.random.default_rng(1)
    x = of_process(3, kappa, t, seed=3)
    every = {"fine": FINE, "coarse": COARSE, "silent": 10.0 * FINE, "slow": 0.3 * FINE}
    readings = {name: x[:, 0] + std * rng.standard_normal(x[:, 0].shape) for name, std in every.items()}
    readings["silent"][:], readings["slow"][1::2] = np.nan, np.nan
    chosen = ENCODERS_OF_A_JOINT[case]
    sensors = [sd.JointPosition("all", noise=every[name], name=name) for name in chosen]
    problem = sd.Problem(sd.chain(2, seed=1), [*sensors, sd.ExternalWrench("all", name="none")])
    run = sd.smooth(problem, {"t": t, **{name: readings[name] for name in chosen}}, order=3)
    assert np.all(np.abs(np.log(list(run.motion.values()) / kappa)) < 0.4), run.motion
    assert np.all(np.abs(np.log(np.sqrt(np.mean(((run.qdd - x[:, 2]) / run.std("qdd")) ** 2, axis=0))) < 0.3))


# Rows at which an encoder of the second joint has readings.
SELDOM = {
    "never": slice(0), "once": slice(1), "at both ends": slice(0, None, 399), "at first": slice(8),
    "a while": slice(20), "every half second": slice(0, None, 50),
}  # fmt: skip


@pytest.mark.parametrize("case", SELDOM)
def test_encoders_that_read_little_do_not_determine_a_density(case):
    """A marker measures the motion meanwhile; errors are as large as their standard deviations."""
    model, rng, t = sd.chain(2, seed=1), np.random.default_rng(0), 1e-2 * np.arange(400)
    omega, size, place = 2.0 * np.pi * np.array([0.4, 0.7]), np.array([0.5, 0.3]), np.eye(4)
    angle, place[:3, 3] = t[:, None] * omega, 0.3
    q, qd, qdd = size * np.sin(angle), size * omega * np.cos(angle), -size * omega**2 * np.sin(angle)
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-4, name="enc"), sd.ExternalWrench("all", name="none"),
        sd.FramePosition((model.body_names[-1], place), noise=1e-3, name="marker"),
    ])  # fmt: skip
    log = sd.predict(problem, q, qd, qdd, state_sensors=True)
    log = {m.name: log[m.name] + m.noise * rng.standard_normal(log[m.name].shape) for m in problem.state_sensors}
    there = np.zeros(len(t), dtype=bool)
    there[SELDOM[case]] = True
    log["enc"][~there, 1] = np.nan
    run = sd.smooth(problem, {"t": t, **log})
    for x, true in ((run.q, q), (run.qdd, qdd)):
        assert np.sqrt(np.mean(((x - true) / run.std("q" if x is run.q else "qdd")) ** 2, axis=0)).max() < 1.3
    assert np.median(run.std("q")[:, 1]) < 2e-3


def test_a_joint_at_rest_has_a_density_that_its_readings_accept():
    t, rng = 1e-2 * np.arange(400), np.random.default_rng(0)
    model = sd.chain(3, seed=1)
    q = np.column_stack([np.sin(2.0 * t), np.full(len(t), 0.3), np.full(len(t), -0.2)])
    reading = q + 1e-4 * rng.standard_normal(q.shape) * [1.0, 1.0, 0.0]
    problem = sd.Problem(
        model, [sd.JointPosition("all", noise=1e-4, name="enc"), sd.ExternalWrench("all", name="none")]
    )
    run = sd.smooth(problem, {"t": t, "enc": reading})
    still = slice(1, 3)
    assert np.sqrt(np.mean(run.qdd[:, still] ** 2)) < 2.0 * np.median(run.std("qdd")[:, still]) < 1e-3


@pytest.mark.parametrize("rows", [6, 8, 12, 15, 16, 24])
def test_orders_are_compared_by_the_same_readings(rows):
    """Of 400 logs of order 3 that is the likelier one, however short they are."""
    m, t, std, rng = 400, 1e-2 * np.arange(rows), np.full(400, 1e-4), np.random.default_rng(0)
    x = of_process(3, np.full(m, 10.0 * std[0] / 0.01**2.5), t, seed=1)[:, 0]
    readings = x + std * rng.standard_normal(x.shape), np.ones(x.shape, dtype=bool), std, np.arange(m)
    likelihood = {order: process_noise.psd_from_encoders(t, *readings, order)[1] for order in (3, 4)}
    assert np.mean(likelihood[4] > likelihood[3]) < 0.4


def test_densities_follow_from_the_expected_squares_of_noise():
    """Of a base and a joint, whose covariances of two instants are those of one dense system; and of a bias."""
    problem, log = floating("enc", "gyro", "acc", "mocap")
    readings = read_log(problem, log).part(slice(0, 9))
    joints = problem.model.nv - 6
    estimation, kappa, _ = with_motion(
        problem, (), False, 3, [40.0] * 6 + [4e4] * joints, LogStatistics.of(lambda: [readings])
    )
    belief, _ = estimation.initial_state(readings, None, kappa)
    equations = Linearised(estimation.layout, estimation.kinematic, kappa, belief, estimation.gauge_directions)
    least, _ = Smoother(equations, False).solve(estimation.initial_trajectory(belief, readings, kappa), readings)
    found, (n, nv) = equations.sweep(least, covariances=True).covariances, (9, estimation.model.nv)
    squares = np.zeros(nv)
    for part in least.parts:
        for i in range(len(part.columns)):
            x = part.one(i)
            k, m = len(x.columns), x.r.shape[1]
            J, Phi, Q = x.J.dense(m, k), x.Phi.dense(k, k), x.Q.dense(k, k)
            H = np.zeros((n * k, n * k))
            H[:k, :k] = np.linalg.inv(x.P)
            steps = [np.hstack([-F, np.eye(k)]) for F in Phi]
            for t in range(n):
                H[t * k : t * k + k, t * k : t * k + k] += J[t].T @ J[t]
            for t, F in enumerate(steps):
                H[t * k : (t + 2) * k, t * k : (t + 2) * k] += F.T @ np.linalg.solve(Q[t], F)
            scale = 1.0 / np.sqrt(np.diagonal(H))
            whole = np.linalg.inv(H * scale[:, None] * scale) * scale[:, None] * scale
            for t, F in enumerate(steps):
                pair = whole[t * k : (t + 2) * k, t * k : (t + 2) * k]
                ratio = np.diagonal(np.linalg.solve(Q[t], F @ pair @ F.T + np.outer(x.c[t], x.c[t])))
                own = x.columns < estimation.layout.n_states
                np.add.at(squares, x.columns[own] % nv, ratio[own])
    expected = kappa.copy()
    for group in process_noise.groups(estimation.motion):
        expected[group] *= np.sqrt(squares[group].sum() / (3 * (n - 1) * len(group)))
    new = process_noise.em_update(least.path, found, kappa, np.ones(nv, dtype=bool))
    np.testing.assert_allclose(new, expected, rtol=1e-4)
    assert (np.abs(np.log(new / kappa)) > 1e-3).all()


@pytest.mark.parametrize("rows, order", [(20, 3), (20, 4), (60, 4)])
@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")
def test_motion_that_a_short_log_hardly_tells_is_learnt_to_the_end(rows, order):
    """A parabola or a cubic within the noise: densities as small as one looks for."""
    model, rng = sd.chain(2, seed=1), np.random.default_rng(2)
    t = 2e-3 * np.arange(rows)
    q = np.sin(np.outer(t, [1.5, 3.0]) + [0.3, 2.0])
    problem = sd.Problem(
        model, [sd.JointPosition("all", noise=2e-4, name="encoders"), sd.ExternalWrench("all", name="none")]
    )
    log = {"t": t, "encoders": q + 1e-4 * rng.standard_normal(q.shape)}
    found = sd.learn_noise(problem, log, order=order, iterations=200)
    assert found.converged and np.isinf(found.error["motion"]).any()
    error = found.error["noise:encoders"]
    assert np.abs(np.log(found.noise["encoders"] / 1e-4) / error).max() < 3.5 and error.max() < 0.2


@pytest.mark.parametrize("rows", [10, 20])
def test_logs_of_a_few_rows_tell_their_motion(rows):
    """As many as are forgotten of a long one: no density was likelier than another, and the least one was taken."""
    model, rng = sd.chain(2, seed=1), np.random.default_rng(0)
    t, omega = 2e-2 * np.arange(rows), np.array([4.0, 7.0])
    q, qd = np.sin(t[:, None] * omega), omega * np.cos(t[:, None] * omega)
    problem = sd.Problem(
        model, [sd.JointPosition("all", noise=1e-4, name="encoders"), sd.ExternalWrench("all", name="none")]
    )
    run = sd.smooth(problem, {"t": t, "encoders": q + 1e-4 * rng.standard_normal(q.shape)}, [], order=3)
    assert not run.events and np.sqrt(np.mean((run.qd - qd) ** 2)) < 0.05


# ---- encoders that say little --------------------------------------------------------------------------------------


def psd_from_encoders(step=0.0, noise=1e-4, still=None):
    """(problem, log, q̈ (N, 3)) of slow sines whose readings are rounded to a step; still: the reading of joint 0."""
    rng, t = np.random.default_rng(0), 2e-3 * np.arange(1500)
    w, x = np.array([1.1, 0.7, 1.6]), np.arange(3.0)
    q, qdd = 0.5 * np.sin(w * t[:, None] + x), -0.5 * w * w * np.sin(w * t[:, None] + x)
    y = q + noise * rng.standard_normal(q.shape)
    y = np.round(y / step) * step if step else y
    if still is not None:
        y[:, 0] = still
    encoders = [sd.JointPosition("all", noise=1e-3, name="encoders"), sd.ExternalWrench("all", name="none")]
    return sd.Problem(sd.chain(3), encoders), {"t": t, "encoders": y}, qdd


@pytest.mark.parametrize("still", [0.0, 0.3])
def test_an_encoder_that_never_changes_keeps_its_noise(still):
    problem, log, qdd = psd_from_encoders(still=still)
    with pytest.warns(AccuracyWarning, match=r"noise of encoders: joint0 \(inf\)"):
        found = sd.learn_noise(problem, log)
    assert found.converged and found.noise["encoders"][0] == pytest.approx(1e-3)
    np.testing.assert_allclose(found.noise["encoders"][1:], 1e-4, rtol=0.1)
    run = sd.smooth(found.problem, log, density=found.density, order=found.order)
    assert np.abs(run.q[:, 0] - still).max() < 1e-9 and np.abs((run.qdd - qdd)[50:-50, 1:]).max() < 0.2


@pytest.mark.parametrize("digits", [None, np.float32])
@pytest.mark.parametrize("step", [1e-4, 1e-3])
def test_noise_is_no_less_than_the_rounding_of_readings(step, digits):
    problem, log, qdd = psd_from_encoders(step, noise=0.0)
    log["encoders"] = log["encoders"].astype(digits or float)
    found = sd.learn_noise(problem, log)
    assert (found.noise["encoders"] >= 0.95 * step / math.sqrt(12.0)).all()
    run = sd.smooth(found.problem, log, density=found.density, order=found.order)
    assert np.sqrt(np.mean((run.qdd - qdd)[50:-50] ** 2)) < 0.1 * np.sqrt(np.mean(qdd**2))


@pytest.mark.parametrize("noise", [0.0, 1e-5, 1e-3])
def test_readings_that_are_not_rounded_have_no_step(noise):
    _, log, _ = psd_from_encoders(noise=noise)
    for y in (log["encoders"], log["encoders"].astype(np.float32).astype(float)):
        assert not quantisation_noise(y, np.ones(y.shape, dtype=bool)).any()


TX40 = Path(__file__).parents[2].parent / "shared/data/tx40/tx40.npz"


@pytest.mark.skipif(not TX40.exists(), reason="recorded logs are not part of the project")
def test_rounding_of_recorded_encoders():
    """Motor positions of five digits, in float32: of 10 to 100 rad, as of joints 1, 2 and 5, three of them decimals."""
    with np.load(TX40) as log:
        motors = log["motor_position"].astype(float)[:, [0, 1, 4]]
    joints = motors / np.array([32.0, 32.0, 45.0])
    found = quantisation_noise(joints, np.ones(joints.shape, dtype=bool))
    np.testing.assert_allclose(found, 1e-3 / np.array([32.0, 32.0, 45.0]) / math.sqrt(12.0), rtol=0.02)
