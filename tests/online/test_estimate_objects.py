"""Estimates as objects: their backward errors, their copies, and what is predicted of priors."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from estimates import FAST, dense, random_problem, small

import sysdyn as sd

SEEDS = range(12)


def solved(seed: int, n: int | None, **options) -> tuple[sd.Problem, sd.Estimate]:
    problem, active = random_problem(seed)
    q, qd, qdd = problem.model.random_state(seed=seed, batch=n)
    y = sd.predict(problem, q, qd, qdd, seed=seed)
    return problem, sd.compile(problem, outputs="all", **{**FAST, **options})(q, qd, y=y, active=active or None)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", SEEDS)
def test_backward_errors_of_estimates_are_those_of_their_equations(seed):
    """Small at the estimate; large where it is moved, in what exact equations leave free and out of it."""
    problem, estimate = solved(seed, 3)
    error = estimate.backward_error()
    assert error.shape == (3,) and error.max() < 1e-12
    layout, active = problem.layout(), random_problem(seed)[1]
    q, qd = (estimate.inputs[x][0] for x in ("q", "qd"))
    y = {name.removeprefix("y:"): x[0] for name, x in estimate.inputs.items() if name.startswith("y:")}
    y |= {x: estimate.inputs[x].reshape(-1, layout.model.nb * 6)[0] for x in ("fx",) if x in estimate.inputs}
    free = dense(problem, q, qd, y, active=active)["N"]
    for direction in (free.sum(axis=1), np.ones(len(free))):
        size = max(np.abs(x[0]).max() for x in dict(estimate).values())
        moved = {}
        for name, x in dict(estimate).items():
            columns = layout.quantity_columns(name)
            step = np.zeros(layout.n)
            step[sd.assemble(problem).plain.columns] = direction / np.abs(direction).max()
            moved[name] = x + 1e-3 * size * step[columns].reshape(x.shape[1:])
        # only a solver makes estimates, and none that is wrong
        other = copy.deepcopy(estimate)
        for name, x in moved.items():
            other[name][...] = x
        assert other.backward_error().min() > 1e-8


def test_unsolved_states_have_no_backward_error():
    problem = small()
    solver = sd.compile(problem, outputs="all", **FAST)
    q, qd, qdd = problem.model.random_state(seed=1, batch=3)
    y = sd.predict(problem, q, qd, qdd, seed=1)
    y["torque"][1] = 1e308
    y["acc"][1] = -1e308
    estimate = solver(q, qd, y=y, on_singular="nan")
    assert estimate.ok.tolist() == [True, False, True]
    assert estimate.backward_error()[[0, 2]].max() < 1e-12 and np.isnan(estimate.backward_error()[1])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("backend", ["python", "llvm"])
@pytest.mark.parametrize("n", [None, 5])
@pytest.mark.parametrize("again", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_estimates_can_be_copied_and_pickled(again, n, backend):
    for fresh in (True, False):
        _, estimate = solved(2, n, backend=backend)
        if not fresh:
            estimate.std("tau"), estimate.chi2()
        found = again(estimate)
        assert type(found) is sd.Estimate and np.array_equal(found.ok, estimate.ok)
        for name in estimate.keys():
            assert np.array_equal(found[name], estimate[name])
            assert np.allclose(found.std(name), estimate.std(name), rtol=1e-9)
        for name in ("chi2", "log_likelihood", "backward_error"):
            assert np.array_equal(getattr(found, name)(), getattr(estimate, name)())
        assert np.array_equal(found.redundancy, estimate.redundancy)
        for name, x in estimate.normalised_residuals().items():
            assert np.array_equal(found.normalised_residuals()[name], x, equal_nan=True)
        assert np.array_equal(found.covariance("tau", "qdd"), estimate.covariance("tau", "qdd"))


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("noise", [0.5, [0.1, 0.2, 0.3]])
def test_priors_are_expected_and_not_measured(seed, noise):
    """Their value is zero, whatever the motion, with noise or without; that of other measurements is the motion's."""
    arm = sd.chain(3, seed=1)
    kinds = {
        "torque": sd.JointTorque("all", noise=noise), "acceleration": sd.JointAcceleration("all", noise=noise),
        "wrench": sd.ExternalWrench("body2", components=["fx", "fy", "fz"], noise=noise),
        "sensor": sd.Accelerometer("body1", noise=noise), "net": sd.NetWrench("body1", ["nx", "ny", "nz"], noise=noise),
    }  # fmt: skip
    q, qd, qdd = arm.random_state(seed=2, batch=4)
    fx = np.random.default_rng(0).standard_normal((4, 3, 6))
    for of in kinds.values():
        problem = sd.Problem(arm, [sd.Prior(of, name="expected"), of])
        y = sd.predict(problem, q, qd, qdd, fx, seed)
        assert list(y) == ["expected", of.name] and np.array_equal(y["expected"], np.zeros((4, 3)))
        exact = sd.predict(sd.Problem(arm, [of]), q, qd, qdd, fx)[of.name]
        assert np.array_equal(y[of.name], exact) if seed is None else 0.0 < np.abs(y[of.name] - exact).max() < 5.0
        assert problem.pack(y).shape == (4, 6)


@pytest.mark.parametrize("n", [None, 3])
def test_estimates_show_their_standard_deviations(n):
    model = sd.chain(3, seed=1)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration("all")
    problem = problem + sd.JointAcceleration("all", noise=0.5, name="encoders")
    q, qd, qdd = model.random_state(seed=0, batch=n)
    found = sd.compile(problem, outputs=["tau", "f"], **FAST)(q, qd, y={"encoders": qdd})
    for display in (str, sd.Estimate.tables, sd.Estimate._repr_html_):  # no display compiles a program
        assert display(found) and not found.posterior.programs
    std = found.std("tau")
    found.std("f")
    assert repr(found).startswith("Estimate at ") and f"σ of tau: {std.min():.3g} … {std.max():.3g} N m" in str(found)
    tables = found.tables()
    if n:
        (row, _) = tables[0].rows
        assert row[4:6] == (f"{np.median(std):.3g}", f"{std.max():.3g}") and "greatest σ" in found._repr_html_()
    else:
        assert [row[2] for row in tables[0].rows] == [f"{x:.3g}" for x in std] and "±" in tables[1].rows[0][1]
