"""The chain about a path: its slope is that of the objective, at paths far from the prior, for joints of any kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from estimation.test_motion import dense_transition

import sysdyn as sd
from sysdyn.estimation.ekf import Filter, GaussianState
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.gauge_freedom import Unseen
from sysdyn.estimation.gauss_newton import Smoother
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.measurement_data import read_log
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.state_trajectory import StateTrajectory

# Readings are of no motion, so that their steps may be taken for whole turns.
pytestmark = pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")

KINDS = ("free", "spherical", "planar", "revolute")
INSTANTS = 4
# Standard deviation of a direction of the first position that is held, as those that nothing tells are.
HELD = 1e-6


def estimation(kind: str, order: int):
    """(trajectory, a path, its readings, a generator): two joints of this kind, errors that last."""
    model, rng = sd.random_tree(2, seed=3, joints=(kind,)), np.random.default_rng(1)
    encoders = [x for i, x in enumerate(model.joint_names) if model.joints[i].nv == 1]
    tip = (model.body_names[-1], np.eye(4))
    problem = sd.Problem(model, [
        *([sd.JointPosition(encoders, noise=1e-3, name="encoders")] if encoders else []),
        sd.Gyroscope(tip, noise=1e-2, bias=sd.GaussMarkov(0.1, 0.05), name="gyro"),
        sd.Stance(tip, noise=1e-2, bias=sd.RandomWalk(0.1, 0.1), name="foot"),
        sd.JointTorque("all", noise=0.3, bias=sd.Constant(1.0), name="torques"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    t = np.array([0.0, 0.01, 0.03, 0.04])
    q, qd, qdd = model.random_state(seed=2, batch=INSTANTS)
    shown = sd.predict(problem, q, qd, qdd, state_sensors=True)
    names = {"encoders", "gyro", "foot", *(m.name for m in problem.valued)}
    readings = read_log(problem, {"t": t, **{k: x for k, x in shown.items() if k in names}})
    found = EstimationProblem(problem, ("tau",), 0.04, order, False)
    rates = rng.standard_normal((INSTANTS, order - 1, model.nv))
    path = StateTrajectory(found.layout, t, q, rates, rng.standard_normal((INSTANTS, found.layout.n_biases)))
    return found, path, readings, rng


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_descends_by_what_it_says(kind, order):
    own, path, readings, rng = estimation(kind, order)
    first = path.part(slice(0, 1)).retract(0.5 * rng.standard_normal((1, own.layout.size)))
    P, _ = prior(own, rng)
    equations = Linearised(own.layout, own.kinematic, np.full(own.model.nv, 50.0), GaussianState(first, P))
    least = equations.about(path, readings)
    step, h = equations.sweep(least).step, 1e-6
    ahead, behind = (equations.about(path.retract(x * step), readings).objective for x in (h, -h))
    slope = (ahead - behind) / (2.0 * h)
    # the objective of the chain is a parabola, whose slope is −2 δ^T H δ at first, and 0 after the step
    assert slope == pytest.approx(-2.0 * _curvature(equations, path, readings, step), rel=1e-4)


def _curvature(equations: Linearised, path: StateTrajectory, readings, step: np.ndarray) -> float:
    """δ^T H δ of the chain along a step."""
    total = 0.0
    for part in equations.about(path, readings).parts:
        for i, chosen in enumerate(part.columns):
            x, d = part.one(i), step[:, chosen]
            k = d.shape[1]
            J, Phi, Q = x.J.dense(x.r.shape[1], k), x.Phi.dense(k, k), x.Q.dense(k, k)
            e, shown = d[1:] - np.einsum("nij,nj->ni", Phi, d[:-1]), np.einsum("nij,nj->ni", J, d)
            total += float(d[0] @ np.linalg.solve(x.P, d[0])) + float((shown * shown).sum())
            total += sum(float(a @ np.linalg.solve(y, a)) for a, y in zip(e, Q, strict=True))
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_a_direction_that_is_held_stays_held_where_readings_turn_the_state(kind):
    own, path, readings, rng = estimation(kind, 3)
    P, held = prior(own, rng)
    start = path.part(slice(0, 1)).retract(0.5 * rng.standard_normal((1, own.layout.size)))
    filter_ = Filter(own.layout, own.kinematic, np.full(own.model.nv, 50.0), gate=False)
    found = filter_.update(GaussianState(start, P), readings.part(slice(0, 1)))
    away = found.path.local_coordinates(start)[0]
    assert np.abs(away).max() > 0.05 and abs(away[: own.model.nv] @ held) < 1e-5
    back = own.layout.transport(found.P, away, back=True)[: own.model.nv, : own.model.nv]
    assert held @ back @ held < 4.0 * HELD**2


def flying(n: int, resting: bool) -> tuple[Linearised, StateTrajectory, MeasurementData, list[Unseen]]:
    """(equations, a path that fits, readings, what nothing tells) of a body with an IMU that sees its velocity."""
    model, size = sd.random_tree(1, seed=0, joints=("free",)), np.array([0.1, 0.1, 0.1, 1.0, 1.0, 1.0])
    imu = (model.body_names[0], np.eye(4))
    problem = sd.Problem(model, [
        sd.Gyroscope(imu, noise=2e-3, bias=sd.RandomWalk(1e-5), name="gyro"),
        sd.Velocimeter(imu, noise=1e-2, name="speed"),
        sd.Accelerometer(imu, noise=0.05, bias=sd.RandomWalk(1e-4), name="acc"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    t, step, phase = 0.01 * np.arange(n), 1e-3, np.arange(6.0)

    def rates(t: np.ndarray) -> np.ndarray:
        return (size * np.sin(4.0 * t[:, None] + phase) + [0.0, 0.0, 0.5, 0.5, 0.0, 0.0]) * (not resting)

    q = [model.neutral()]
    for twist in rates(step * np.arange(0.5, 10 * n)):
        q.append(model.integrate(q[-1], step * twist))
    qdd = 4.0 * size * np.cos(4.0 * t[:, None] + phase) * (not resting)
    shown = sd.predict(problem, np.array(q[:-1:10]), rates(t), qdd, state_sensors=True, seed=0)
    readings = read_log(problem, {"t": t, **{name: shown[name] for name in ("gyro", "speed", "acc")}})
    own, kappa = EstimationProblem(problem, (), float(t[-1]), 3, False), np.full(6, 30.0)
    belief, _ = own.initial_state(readings, None, kappa)
    equations = Linearised(own.layout, own.kinematic, kappa, belief, own.gauge_directions)
    found, converged = Smoother(equations, False).solve(own.initial_trajectory(belief, readings, kappa), readings)
    assert converged and len(own.gauge_directions) == 4
    return equations, found.path, readings, own.gauge_directions


@pytest.mark.slow
def test_a_step_that_turns_and_shifts_the_robot_in_the_world_does_what_it_foretells():
    """A gyroscope that is turned about the vertical by 0.2 rad/s: after 4 s headings and positions are far away."""
    equations, path, readings, gone = flying(400, resting=False)
    turning = readings.y["gyro"] + 0.2 * gone[3].tangent(path.q)[:, :3]
    other = replace(readings, y={**readings.y, "gyro": turning})
    least = equations.about(path, other)
    swept = equations.sweep(least)
    assert np.abs(swept.step[:, :6]).max() > 0.3
    plain, own = path.retract(swept.step), equations.moved(least, swept.step, other)
    states = equations.sources[0]
    np.testing.assert_allclose(states.linearize(own, other).r, states.linearize(plain, other).r, rtol=0, atol=1e-10)
    away = [equations.about(x, other).objective - swept.min_cost for x in (plain, own)]
    assert away[0] > 1e4 and away[1] < 0.1 * away[0]


def test_biases_take_up_what_a_tilt_does_beyond_its_first_order():
    equations, path, readings, _ = flying(50, resting=True)
    layout, source, tilt = equations.layout, equations.sources[1], 0.2
    least, step = equations.about(path, readings), np.zeros((len(path), equations.layout.size))
    J, place = source.linearize(path, readings).J[0], layout.biases["acc"].place
    biases = np.arange(place.start, place.stop) + layout.n_states
    step[:, 0], step[:, biases] = tilt, -tilt * np.linalg.solve(J[:, biases], J[:, 0])
    paths = path, path.retract(step), equations.moved(least, step, readings)
    before, plain, own = (source.linearize(x, readings).r for x in paths)
    assert np.abs(plain - before).max() > 3.0 and np.abs(own - before).max() < 0.3


@pytest.mark.parametrize("kind, tolerance", [("revolute", 1e-9), ("free", 1e-2)])
def test_smoothed_states_are_those_of_the_textbook(kind, tolerance):
    own, path, readings, _ = estimation(kind, 3)
    filter_ = Filter(own.layout, own.kinematic, np.full(own.model.nv, 50.0))
    belief, found, ahead = GaussianState(path.part(slice(0, 1)), 1e-4 * np.eye(own.layout.size)), [], []
    for k in range(INSTANTS):
        if k:
            belief = filter_.predict(belief, float(path.t[k]))
            ahead.append(belief)
        belief = filter_.update(belief, readings.part(slice(k, k + 1)))
        found.append(belief)
    smoothed, P = filter_.smooth(found, ahead)
    expected = found[-1]
    for k in reversed(range(INSTANTS - 1)):  # textbook, one time step after the other
        F, _ = dense_transition(found[k].path, ahead[k].path, filter_.density)
        K = found[k].P @ F.T @ np.linalg.inv(ahead[k].P)
        away = expected.path.local_coordinates(ahead[k].path)[0]
        change = own.layout.transport(expected.P, away, back=True) - ahead[k].P
        after = own.layout.transport(found[k].P + K @ change @ K.T, K @ away)
        expected = GaussianState(found[k].path.retract((K @ away)[None]), after)
        x = smoothed.part(slice(k, k + 1))
        off, moved = (x.local_coordinates(y.path) for y in (expected, found[k]))
        assert np.abs(off).max() <= tolerance * np.abs(moved).max() + 1e-12
        np.testing.assert_allclose(P[k], expected.P, rtol=0, atol=10.0 * tolerance * np.abs(expected.P).max())
    assert np.abs(moved).max() > 1e-3
    assert filter_.smooth(found[:1], [])[0].t.tolist() == path.t[:1].tolist()


class Counted(Linearised):
    """Equations that count how often they are swept."""

    count = 0

    def sweep(self, *given, **options):
        self.count += 1
        return super().sweep(*given, **options)


def test_a_linear_problem_takes_one_sweep_and_one_after_each_round():
    model, t = sd.chain(3, seed=1), 2e-3 * np.arange(40)
    problem = sd.Problem(model, [sd.JointPosition("all", noise=1e-3, name="encoders"), sd.ExternalWrench("all")])
    q = np.sin(np.outer(t, [3.0, 4.0, 5.0])) + 1e-3 * np.random.default_rng(0).standard_normal((40, 3))
    readings, own = read_log(problem, {"t": t, "encoders": q}), EstimationProblem(problem, (), 0.08, 3, False)
    kappa = np.full(3, 10.0)
    belief, _ = own.initial_state(readings, None, kappa)
    equations = Counted(own.layout, own.kinematic, kappa, belief)
    first = own.initial_trajectory(belief, readings, kappa)
    best, converged = Smoother(equations).solve(first, readings)
    assert converged and equations.count == 1
    assert np.abs(equations.sweep(best).step).max() < 1e-9
    equations.count, q[20, 1] = 0, 3.0
    found, left = Smoother(equations).run(first, replace(readings, y={"encoders": q}))
    assert found.converged and equations.count == 3  # by Student's weights, without it, and with covariances
    assert left.active["encoders"].sum() == 3 * 40 - 1
    least = equations.about(found.path, left)
    again = equations.sweep(least, covariances=True)
    assert np.abs(again.step).max() < 1e-9
    np.testing.assert_allclose(found.covariances.dense(), again.covariances.dense(), rtol=1e-9, atol=1e-20)


def prior(own: EstimationProblem, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(P, the direction (nv,) of the positions that it holds)."""
    P = np.eye(own.layout.size)
    held = rng.standard_normal(own.model.nv)
    held /= np.linalg.norm(held)
    P[: own.model.nv, : own.model.nv] -= (1.0 - HELD**2) * np.outer(held, held)
    return P, held
