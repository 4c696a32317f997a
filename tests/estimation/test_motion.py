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

ORDERS = (3, 4)
KINDS = ("free", "spherical", "planar", "revolute", "prismatic", "cylindrical", "helical")
# Times between instants, from 0.1 ms to seconds.
SPANS = (1e-4, 1e-3, 0.02, 0.3, 2.0)


def states(model: sd.Model, order: int, rng: np.random.Generator, n: int = 1):
    """(q (n, nq), rates (n, order − 1, nv)), random."""
    q = model.random_state(seed=int(rng.integers(1 << 30)), batch=n)[0]
    return q, rng.standard_normal((n, order - 1, model.nv))


def moved(model: sd.Model, state, step: np.ndarray):
    """The states after steps (n, p nv)."""
    q, rates = state
    step = step.reshape(len(step), -1, model.nv)
    return model.integrate(q, step[:, 0]), rates + step[:, 1:]


def slopes(motion: ProcessModel, before, after, dt: np.ndarray) -> list[np.ndarray]:
    """F0 and F1 (p nv, p nv) of the error of a pair of states, by the state before and after: central differences."""
    k, h, found = motion.order * motion.model.nv, 1e-5, []
    steps = h * np.concatenate([np.eye(k), -np.eye(k)])
    for which in (0, 1):
        pair = [tuple(np.repeat(x, 2 * k, axis=0) for x in state) for state in (before, after)]
        pair[which] = moved(motion.model, pair[which], steps)
        e = motion.process_residual(*pair, np.repeat(dt, 2 * k))[0].reshape(2 * k, k)
        found.append((e[:k] - e[k:]).T / (2 * h))
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_steps_errors_and_their_squares_of_joints_of_all_kinds(order):
    """Programs of joints that move in groups beside those of the model."""
    model, n, rng = sd.random_tree(9, seed=1, joints=KINDS), 7, np.random.default_rng(0)
    motion, dt, density = ProcessModel(model, order), rng.uniform(0.01, 0.3, n), rng.uniform(1.0, 30.0, model.nv)
    before, after = states(model, order, rng, n), states(model, order, rng, n)
    e, step = motion.process_residual(before, after, dt)
    phi = transition(dt, order)
    np.testing.assert_allclose(step, np.einsum("nj,njv->nv", phi[:, 0, 1:], before[1]), rtol=0, atol=1e-14)
    moved_on = model.integrate(before[0], step)
    np.testing.assert_allclose(motion.retract(before[0], step), moved_on, rtol=0, atol=1e-13)
    np.testing.assert_allclose(e[:, 0], model.difference(moved_on, after[0]), rtol=0, atol=1e-11)
    np.testing.assert_allclose(e[:, 1:], after[1] - phi[:, 1:, 1:] @ before[1], rtol=0, atol=1e-13)
    expected = np.einsum("niv,nij,njv", e / density, information(dt, order), e / density)
    assert motion.objective(e, dt, density) == pytest.approx(expected, rel=1e-11)


@settings(max_examples=6)
@given(
    seed=st.integers(0, 10_000),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
    dt=st.floats(1e-3, 0.6),
)
def test_what_a_step_moves_follows_from_differences_of_its_error(seed, kinds, order, dt):
    model = sd.random_tree(3, seed=seed, joints=kinds)
    rng, motion, dt = np.random.default_rng(seed), ProcessModel(model, order), np.array([dt])
    before = states(model, order, rng)
    q, rates = motion.predict(*before, dt)
    after = moved(model, (q, rates), 0.4 * rng.standard_normal((1, order * model.nv)))
    F0, F1 = slopes(motion, before, after, dt)
    k, density = order * model.nv, rng.uniform(1.0, 30.0, model.nv)
    whole, c = np.arange(model.nv), np.zeros((1, k))
    (phi, spread), places = motion.alone(dt, density, whole), motion.pattern(whole)
    motion.ahead(*motion.process_residual(before, after, dt), dt, density, whole, phi, spread, c)
    Phi, Q = (Sparse(x, at).dense(k, k) for x, at in zip((phi, spread), places, strict=True))
    np.testing.assert_allclose(F1 @ Phi[0], -F0, rtol=0, atol=2e-8)
    np.testing.assert_allclose(F1 @ c[0], -motion.process_residual(before, after, dt)[0].reshape(-1), rtol=0, atol=1e-8)
    noise = motion.noise(dt, density)[0]
    np.testing.assert_allclose(F1 @ Q[0] @ F1.T, noise, rtol=0, atol=1e-8 * noise.max())


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
)
def test_transition_is_that_of_a_state_that_moves_as_predicted(seed, kinds, order):
    model = sd.random_tree(3, seed=seed, joints=kinds)
    rng, motion = np.random.default_rng(seed), ProcessModel(model, order)
    dt = rng.uniform(1e-3, 1.0, 4)
    before = states(model, order, rng, 4)
    after = motion.predict(*before, dt)
    np.testing.assert_allclose(motion.process_residual(before, after, dt)[0], 0.0, atol=1e-12)
    found = motion.transition(before[1], dt)
    for k in range(4):
        (q, rates), (q1, rates1) = (tuple(x[k : k + 1] for x in pair) for pair in (before, after))
        F0, F1 = slopes(motion, (q, rates), (q1, rates1), dt[k : k + 1])
        np.testing.assert_allclose(-F0, found[k], rtol=0, atol=2e-8)
        np.testing.assert_allclose(F1, np.eye(order * model.nv), rtol=0, atol=2e-8)


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


@pytest.mark.parametrize("order", ORDERS)
def test_noise_of_all_degrees_of_freedom(order):
    model = sd.random_tree(4, seed=8)
    motion, rng = ProcessModel(model, order), np.random.default_rng(1)
    nv, dt = model.nv, np.array([0.1, 0.7])
    density = rng.uniform(0.5, 2.0, nv)
    Q = motion.noise(dt, density)
    for t in range(2):
        for v in range(nv):
            own = np.arange(order) * nv + v
            np.testing.assert_allclose(Q[t][np.ix_(own, own)], density[v] ** 2 * covariance(dt[t], order))
    assert np.count_nonzero(Q) == 2 * nv * order**2  # degrees of freedom are independent


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
    J, there = motion.right_jacobian(step), model.integrate(q, step)
    for k, e in enumerate(h * np.eye(model.nv)):
        ahead, behind = (model.difference(there, model.integrate(q, step + sign * e)) for sign in (1, -1))
        np.testing.assert_allclose(J[:, k], (ahead - behind) / (2 * h), rtol=0, atol=1e-8)
    np.testing.assert_allclose(J @ step, step, atol=1e-12)
