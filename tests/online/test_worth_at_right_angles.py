"""What estimates are worth at right angles, where entries of exact rows vanish: beside their own means, and pivoted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from estimates import FAST, dense

import sysdyn as sd
from sysdyn.equations.whitened import whitened_system
from sysdyn.offline import square_root as form
from sysdyn.offline.sampling import lengths
from sysdyn.online.states import States
from sysdyn.sparse.information import product
from sysdyn.sparse.lu import eliminate

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import worth

STATES = 40
# Problems of small robots: floating trees, trees of all joints, redundant random sensors.
SEEDS = (5, 8, 9, 13)


def solved(seed: int) -> tuple[sd.Problem, dict[str, np.ndarray], sd.Estimate]:
    problem = worth.worth_problem(seed)
    inputs = worth.right_angles(problem, STATES, np.random.default_rng(seed))
    solver = sd.compile(problem, **FAST)
    return problem, inputs, worth.called(problem, solver, inputs)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", SEEDS)
def test_residuals_are_those_of_the_mean(seed):
    problem, inputs, estimate = solved(seed)
    residual, chi2 = worth.differences(problem, inputs, estimate)
    ok = estimate.ok
    assert ok.any()
    assert residual[ok].max() <= worth.OFF and chi2[ok].max() <= worth.OFF
    assert np.isnan(estimate.chi2()[~ok]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "state"), [(38, 387), (47, 454)])
def test_several_small_pivots_at_once_are_solved_with_pivoting(seed, state):
    """Bipeds that are nearly singular: four pivots of 1e-7 to 1e-5 of their typical size, and two of 3e-5 and 1e-3."""
    problem, rng = worth.worth_problem(seed), np.random.default_rng(seed)
    worth.right_angles(problem, 500, rng)
    inputs = worth.picked(worth.right_angles(problem, 500, rng), [state, *range(10)])
    estimate = worth.called(problem, sd.compile(problem, level="fast", formulation="elimination"), inputs)
    residual, chi2 = worth.differences(problem, inputs, estimate)
    ok = estimate.ok
    assert ok[0] and residual[ok].max() <= worth.OFF and chi2[ok].max() <= worth.OFF


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_results_are_those_with_pivoting(seed):
    """Deviations, residuals and the determinant, of the fixed order and of dense matrices with pivoting."""
    problem, inputs, estimate = solved(seed)
    chosen = np.flatnonzero(estimate.ok)[:4]
    assert len(chosen) == 4
    system = whitened_system(problem)
    states = {name: np.broadcast_to(x, (STATES, x.shape[-1]))[chosen] for name, x in inputs.items()}
    determinant = estimate.posterior.log_determinant(States(estimate.inputs, STATES, refuse=False))
    for k, at in zip(chosen, form.pivoted(system, states), strict=True):
        assert at is not None
        for quantity in problem.quantities:
            scalars = [product(z, z) ** 0.5 for z in map(at.information.deviations, system.output_terms(quantity))]
            found = estimate.std(quantity)[k].ravel()
            assert np.abs(found - scalars).max(initial=0.0) <= max(1e-12, 1e-7 * max(scalars, default=0.0))
        whitened = np.sqrt(sum(x * x for x in at.information.residuals().values()))
        assert whitened == pytest.approx(np.sqrt(estimate.chi2()[k]), rel=1e-7, abs=1e-7)
        pivots = at.information.pivots()
        size = 2.0 * sum(np.log(np.abs(x)) for x in (*pivots.exact, *pivots.noisy))
        # `log_likelihood` has the determinant beside those of all covariances
        assert size == pytest.approx(determinant[k], rel=1e-9, abs=1e-7)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", SEEDS)
def test_exact_rows_have_pivots_that_cannot_vanish(seed):
    """The same at every state, or the norm of what is left of an exact row: then exact rows depend on each other."""
    problem = worth.worth_problem(seed)
    system = whitened_system(problem)
    order = form.orders(system)[0]
    exact = [k for k, i in enumerate(order.pivots.rows) if i not in system.plain.noise_by_row]
    q, qd, _ = problem.model.random_state(seed=3, batch=3)
    entries, b = system.values({"q": q, "qd": qd})
    pivots = []
    for values, rest in zip(entries, b, strict=True):
        rows: list[dict[int, float]] = [{} for _ in range(system.shape[0])]
        for i, j, x in zip(*(x.tolist() for x in system.coordinates), values.tolist(), strict=True):
            rows[i][j] = x
        factors = eliminate(rows, rest.tolist(), *order.pivots, early=order.early, across=order.across)
        pivots.append(np.array([abs(x) for x in factors.pivots]))
    constant = [k for k in exact if k not in order.across]
    assert len(constant) > 0.8 * len(exact)
    np.testing.assert_allclose(pivots[1][constant], pivots[0][constant], rtol=1e-7)
    np.testing.assert_allclose(pivots[2][constant], pivots[0][constant], rtol=1e-7)


def test_states_out_of_range_are_solved_with_pivoting():
    """Beyond the lengths at which factors were judged: of 16 digits the squares of 2 km leave some 6."""
    model = sd.random_tree(3, 4, ("revolute", "prismatic"))
    problem = sd.Problem(model, [
        sd.JointAcceleration("all", noise=0.1), sd.JointTorque("all", noise=0.2, name="torques"),
        sd.ExternalWrench("all"), sd.Accelerometer(model.body_names[2], name="imu", noise=0.3),
        sd.Accelerometer(model.body_names[1], ["a_x"], name="exact"),
    ])  # fmt: skip
    q, qd, qdd = model.random_state(seed=1)
    far = np.where(lengths(model), 2e3, q)
    y = sd.predict(problem, far, qd, qdd, seed=1)
    y.pop("ExternalWrench", None)
    solver = sd.compile(problem, **FAST)
    estimate = solver(far, qd, y=y)
    expected = dense(problem, far, qd, y)
    std = np.sqrt(np.diagonal(expected["C"]))
    for quantity in ("tau", "qdd"):
        columns = problem.layout().quantity_columns(quantity)
        np.testing.assert_allclose(estimate.std(quantity), std[columns], rtol=1e-6, atol=1e-8 * std[columns].max())
    assert estimate.chi2() == pytest.approx(expected["chi2"], rel=1e-5)
