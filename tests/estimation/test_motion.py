"""Motion between instants: Jacobians on the manifold, covariances by quadrature and fractions, and identities."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sysdyn as sd
from sysdyn.errors import InvalidInput
from sysdyn.estimation.kalman_smoother import Sparse
from sysdyn.estimation.process_model import ProcessModel, covariance, information, transition
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory

ORDERS = (3, 4)
KINDS = ("free", "spherical", "planar", "revolute", "prismatic", "cylindrical", "helical")
# Times between instants, from 0.1 ms to seconds.
SPANS = (1e-4, 1e-3, 0.02, 0.3, 2.0)


def layout_of(model: sd.Model, order: int) -> StateLayout:
    """Layout with a bias that fades and one that is constant."""
    body = (model.body_names[0], np.eye(4))
    gyro = sd.Gyroscope(body, noise=0.1, bias=sd.GaussMarkov(0.5, 0.1), name="gyro")
    acc = sd.Accelerometer(body, noise=0.3, bias=sd.Constant(1.0), name="acc")
    problem = sd.Problem(model, [gyro, acc, sd.ExternalWrench("all", name="none")])
    return StateLayout(problem, ProcessModel(model, order), 1.0)


def random_states(layout: StateLayout, rng: np.random.Generator, t: np.ndarray) -> StateTrajectory:
    n, nv = len(t), layout.model.nv
    q = layout.model.random_state(seed=int(rng.integers(1 << 30)), batch=n)[0]
    rates = rng.standard_normal((n, layout.motion.order - 1, nv))
    return StateTrajectory(layout, t, q, rates, rng.standard_normal((n, layout.n_biases)))


def dense_transition(before: StateTrajectory, after: StateTrajectory, density: np.ndarray) -> list[np.ndarray]:
    """Φ and Q (unknowns, unknowns) between two states."""
    layout, entries = before.layout, before.layout.transitions(before, after, density)
    places = layout.transition.Phi, layout.transition.Q
    return [Sparse(x, y).dense(layout.size, layout.size)[0] for x, y in zip(entries, places, strict=True)]


def error(before: StateTrajectory, after: StateTrajectory) -> np.ndarray:
    both = (np.concatenate([getattr(x, name) for x in (before, after)]) for name in ("t", "q", "rates", "biases"))
    return before.layout.process_errors(StateTrajectory(before.layout, *both))[0]


def slopes(before: StateTrajectory, after: StateTrajectory) -> list[np.ndarray]:
    """F0 and F1 of the error of a pair of states, by the state before and after: central differences."""
    found, h = [], 1e-5
    for which in (0, 1):
        columns = []
        for step in h * np.eye(before.layout.size):
            pairs = [[before, after], [before, after]]
            for pair, sign in zip(pairs, (1.0, -1.0), strict=True):
                pair[which] = pair[which].retract(sign * step[None])
            columns.append((error(*pairs[0]) - error(*pairs[1])) / (2.0 * h))
        found.append(np.array(columns).T)
    return found


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
    dt=st.floats(1e-3, 0.6),
)
def test_transitions_follow_from_differences_of_the_error(seed, kinds, order, dt):
    layout, rng = layout_of(sd.random_tree(3, seed=seed, joints=kinds), order), np.random.default_rng(seed)
    n, dt, density = layout.n_states, np.array([dt]), rng.uniform(1.0, 30.0, layout.model.nv)
    before = random_states(layout, rng, np.zeros(1))
    left, walk = layout.bias_transition(dt)
    predicted = StateTrajectory(layout, dt, *layout.motion.predict(before.q, before.rates, dt), left * before.biases)
    np.testing.assert_allclose(error(before, predicted), 0.0, atol=1e-12)
    Q = np.diag(np.concatenate([np.zeros(n), walk[0]]))
    Q[:n, :n] = np.kron(covariance(dt[0], order), np.diag(density**2))
    for size in (0.0, 0.4):  # at the predicted state, and away from it
        after = predicted.retract(size * rng.standard_normal((1, layout.size)))
        F0, F1 = slopes(before, after)
        Phi, noise = dense_transition(before, after, density)
        np.testing.assert_allclose(F1 @ Phi, -F0, rtol=0, atol=2e-8)
        np.testing.assert_allclose(F1 @ noise @ F1.T, Q, rtol=0, atol=1e-8 * Q.max())
        np.testing.assert_allclose(F1 @ error(before, after), error(before, after), rtol=0, atol=1e-7)


@pytest.mark.parametrize("order", ORDERS)
def test_errors_of_joints_of_all_kinds_and_their_chi2(order):
    layout, rng, n = layout_of(sd.random_tree(9, seed=1, joints=KINDS), order), np.random.default_rng(0), 7
    model, motion, density = layout.model, layout.motion, rng.uniform(1.0, 30.0, layout.model.nv)
    path = random_states(layout, rng, np.cumsum(rng.uniform(0.01, 0.3, n)))
    q, rates = motion.predict(path.q[:-1], path.rates[:-1], dt := np.diff(path.t))
    e = layout.process_errors(path)[:, : layout.n_states].reshape(n - 1, order, -1)
    np.testing.assert_allclose(e[:, 0], model.difference(q, path.q[1:]), rtol=0, atol=1e-11)
    np.testing.assert_allclose(e[:, 1:], path.rates[1:] - rates, rtol=0, atol=1e-13)
    expected = np.einsum("niv,nij,njv->nv", e / density, information(dt, order), e / density)
    np.testing.assert_allclose(motion.chi2(e.reshape(n - 1, -1), dt, density), expected, rtol=1e-11)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dt", SPANS)
def test_covariance_is_the_integral_of_white_noise(order, dt):
    """A push of the highest derivative s ago has moved the i-th by s^(p−1−i)/(p−1−i)!: by Gauss's quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(order)  # exact up to degree 2p − 1
    s = 0.5 * dt * (nodes + 1.0)
    pushed = np.array([s ** (order - 1 - i) / math.factorial(order - 1 - i) for i in range(order)])
    np.testing.assert_allclose(covariance(dt, order), pushed * (0.5 * dt * weights) @ pushed.T, rtol=1e-13)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dt", SPANS)
def test_information_is_the_inverse_by_exact_fractions(order, dt):
    step, p = Fraction(dt), order
    rows = [
        [step ** (2 * p - 1 - i - j) / ((2 * p - 1 - i - j) * math.factorial(p - 1 - i) * math.factorial(p - 1 - j))
         for j in range(p)] + [Fraction(i == j) for j in range(p)]
        for i in range(p)
    ]  # fmt: skip
    for k in range(p):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in [i for i in range(p) if i != k]:
            rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    expected = np.array([row[p:] for row in rows], dtype=float)
    np.testing.assert_allclose(information(dt, order), expected, rtol=1e-11)


@pytest.mark.parametrize("order", ORDERS)
def test_two_steps_are_one(order):
    for a in SPANS:
        for b in SPANS:
            np.testing.assert_allclose(
                transition(b, order) @ transition(a, order), transition(a + b, order), rtol=1e-13
            )
            F = transition(b, order)
            np.testing.assert_allclose(
                F @ covariance(a, order) @ F.T + covariance(b, order), covariance(a + b, order), rtol=1e-12
            )


@pytest.mark.parametrize("order", [0, 2, 5, "jerk"])
def test_other_orders_are_refused(order):
    with pytest.raises(InvalidInput, match="order of motion"):
        ProcessModel(sd.chain(2), order)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
def test_errors_behind_a_step(seed, kinds):
    model = sd.random_tree(3, seed=seed, joints=kinds)
    rng, motion = np.random.default_rng(seed), ProcessModel(model)
    q, step, h = model.random_state(seed=seed)[0], 0.5 * rng.standard_normal(model.nv), 1e-5
    J, there = motion.right_jacobian(step[None])[0], model.integrate(q, step)
    for k, e in enumerate(h * np.eye(model.nv)):
        ahead, behind = (model.difference(there, model.integrate(q, step + sign * e)) for sign in (1, -1))
        np.testing.assert_allclose(J[:, k], (ahead - behind) / (2 * h), rtol=0, atol=1e-8)
    np.testing.assert_allclose(J @ step, step, atol=1e-12)
