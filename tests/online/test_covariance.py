"""Posterior covariances to full accuracy whatever the variances, against the dense inverse in 80 digits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from estimates import FAST, dense_inverse, matrix, multiplied, random_problem, small

import sysdyn as sd
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITIES

TOLERANCE = 1e-7  # of standard deviations, each relative to itself
NOTHING = 1e-22  # variance relative to the greatest of its kind: zero but for the last digit of the matrix


def declaring(problem: sd.Problem, noise: dict) -> sd.Problem:
    """The problem with this noise instead of its own."""
    measurements = []
    for m in problem.measurements:
        other = copy.copy(m)
        if m.noise is not None:
            object.__setattr__(other, "noise", noise[m.name])
        measurements.append(other)
    return sd.Problem(problem.model, measurements)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(
    ("seed", "decades"),
    [(4, 0), (1, 24), (89, 16), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((0, 12), (99, 24)))],
)
def test_standard_deviations_and_covariances_over_many_decades(seed, decades, declared):
    """Each to 1e-7 of itself; covariances to 1e-7 of the standard deviations of the two.

    The order is one for these covariances, or for others that are up to 12 decades away.
    """
    problem, active = random_problem(seed)
    model = problem.model
    noise = multiplied(problem, decades, np.random.default_rng(100 * seed + decades))
    q, qd, qdd = model.random_state(seed=seed)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=seed).items() if name != "ExternalWrench"}
    if declared:
        problem = declaring(problem, noise)
        solution = sd.compile(problem, **FAST)(q, qd, y=y, active=active)
    else:
        solution = sd.compile(problem, **FAST)(q, qd, y=y, noise=noise, active=active)
    system, K, b = matrix(problem, q, qd, noise, active, y)
    Z, log_det, _ = dense_inverse(K, b)
    layout, number = Layout(model), {c: k for k, c in enumerate(system.plain.columns)}
    places = {x: [number.get(c, -1) for c in layout.quantity_columns(x)] for x in QUANTITIES}
    C = np.zeros((len(K) + 1,) * 2)  # the last one stands for what is known
    C[:-1, :-1] = Z
    for quantity, place in places.items():
        variance = np.diag(C)[place]
        expected = np.sqrt(np.where(variance > NOTHING * variance.max(initial=0.0), variance, 0.0))
        np.testing.assert_allclose(solution.std(quantity).ravel(), expected, rtol=TOLERANCE, atol=0, err_msg=quantity)
    for first, second in (("tau", "a"), ("f", "qdd")):
        rows, columns = places[first], places[second]
        found = solution.covariance(first, second) - C[np.ix_(rows, columns)]
        size = np.sqrt(np.outer(np.diag(C)[rows], np.diag(C)[columns]))
        assert (np.abs(found) <= TOLERANCE * size).all()
    # what the residuals are worth
    for name, h in solution.leverage().items():
        members = {k: system.n_unknowns + r for r, (x, k) in system.plain.noise_by_row.items() if x.name == name}
        on = np.broadcast_to(active.get(name, True), h.shape)
        rows = [members[k] for k in range(len(members))]
        S = -K[np.ix_(rows, rows)]
        expected = 1.0 + np.diag(S @ Z[np.ix_(rows, rows)])
        np.testing.assert_allclose(h[on], expected[on], rtol=0, atol=TOLERANCE)
    likelihood = -0.5 * (solution.chi2() + log_det + solution.redundancy * np.log(2.0 * np.pi))
    np.testing.assert_allclose(solution.log_likelihood(), likelihood, rtol=TOLERANCE)


def test_what_is_exactly_known_has_no_deviation():
    """The base of a chain turns about its first joint only: the other components of its acceleration are known."""
    problem = small()
    q, qd, qdd = problem.model.random_state(seed=3)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=1).items() if name != "ExternalWrench"}
    std = sd.compile(problem, **FAST)(q, qd, y=y).std("a")
    assert np.array_equal(std[0] == 0.0, problem.model.joints[0].S[:, 0] == 0.0)


@pytest.mark.parametrize("unit", [1.0, 1e-12])
def test_small_deviations_beside_large_ones_are_no_rounding_errors(unit):
    """Of torques that are measured to 1e-9 N m and to 1 N m, beside others that are not measured; or all of them."""
    model = sd.chain(3, seed=2)
    noise = (1e-9 * unit, 1e-4 * unit, unit)
    torques = [sd.JointTorque(x, noise=s, name=x) for x, s in zip(model.joint_names, noise, strict=True)]
    problem = sd.Problem(
        model, [*torques, sd.ExternalWrench("all"), sd.JointAcceleration("all", noise=3.0 * unit, name="acc")]
    )
    q, qd, _ = model.random_state(seed=1)
    y = {m.name: np.zeros(len(m.components(model))) for m in problem.custom}
    estimate = sd.compile(problem, **FAST)(q, qd, y=y)
    system, K, b = matrix(problem, q, qd, {m.name: m.noise for m in problem.noisy}, {}, y)
    variance = np.diag(dense_inverse(K, b)[0])
    number = {c: k for k, c in enumerate(system.plain.columns)}
    expected = np.sqrt(variance[[number[c] for c in problem.layout().quantity_columns("tau")]])
    np.testing.assert_allclose(estimate.std("tau"), expected, rtol=TOLERANCE)
    assert estimate.std("tau").max() > 1e7 * estimate.std("tau").min()


@pytest.mark.parametrize("name", ["accelerations", "torques", "cell"])
def test_variances_of_zero_in_a_call_make_equations_exact(name):
    """Mean, standard deviations and likelihood are those of the problem that states the measurement without noise."""
    model = sd.random_tree(4, seed=1, joints=("revolute",))
    noise = {"accelerations": 0.3, "torques": 0.5, "cell": 0.1}

    def problem(**noise) -> sd.Problem:
        return sd.Problem(model, [
            sd.JointAcceleration("all", noise=noise["accelerations"], name="accelerations"),
            sd.JointTorque("all", noise=noise["torques"], name="torques"),
            sd.ExternalWrench("all", noise=0.2, name="fx"),
            sd.ForceTorqueSensor(model.joint_names[1], noise=noise["cell"], name="cell"),
        ])  # fmt: skip

    q, qd, qdd = model.random_state(seed=1)
    y = sd.predict(problem(**noise), q, qd, qdd, seed=1)
    found = sd.compile(problem(**noise), **FAST)(q, qd, y=y, noise={name: 0.0})
    exact = sd.compile(problem(**noise | {name: None}), **FAST)(q, qd, y=y)
    for x in QUANTITIES:
        std = exact.std(x)
        np.testing.assert_allclose(found[x], exact[x], rtol=1e-9, atol=1e-9 * np.abs(exact[x]).max())
        np.testing.assert_allclose(found.std(x), std, rtol=TOLERANCE, atol=1e-12)
    assert found.log_likelihood() == pytest.approx(exact.log_likelihood(), rel=1e-9)


def test_variances_of_zero_that_contradict_each_other_are_refused():
    model = sd.chain(3, seed=2)
    problem = sd.Problem(model, [
        *(sd.JointAcceleration("all", noise=0.3, name=name) for name in ("encoder", "gyroscope")),
        sd.ExternalWrench("all"),
    ])  # fmt: skip
    solver, (q, qd, qdd) = sd.compile(problem, **FAST), model.random_state(seed=1)
    y, noise = {"encoder": qdd, "gyroscope": qdd + 1.0}, {"encoder": 0.0, "gyroscope": 0.0}
    with pytest.raises(sd.SingularState, match="'encoder'"):
        solver(q, qd, y=y, noise=noise)
    estimate = solver(q, qd, y=y, noise=noise, on_singular="nan")
    assert not estimate.ok and np.isnan(estimate.std("tau")).all()
