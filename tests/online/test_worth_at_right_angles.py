"""What estimates are worth at right angles, where entries of exact rows vanish: beside their own means, and pivoted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from estimates import FAST, dense

import sysdyn as sd
from sysdyn.offline.sampling import lengths

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
