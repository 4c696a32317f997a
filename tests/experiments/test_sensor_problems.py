"""The benchmarks of random sensor problems: what is drawn, the states, and the judge of answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import random_sensors
    import sensor_problems
    import silent
    import states

FAST = {"backend": "python", "level": "fast"}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", [5, 8, 11, 36])
def test_a_seed_gives_one_regular_problem(seed):
    problem = random_sensors.random_problem(seed)
    assert problem.digest == random_sensors.random_problem(seed).digest
    equations, unknowns = sd.assemble(problem).plain.shape
    assert equations > unknowns if problem.noisy else equations == unknowns
    assert random_sensors.is_regular(problem)
    assert sd.diagnose(problem).well_posed


def test_too_few_and_dependent_equations_are_not_regular():
    model = sd.chain(2, seed=1)
    first = sd.Problem(model, [sd.ExternalWrench("all"), sd.JointAcceleration("joint0")])
    turning = sd.AngularAccelerometer("body0", "alpha_z")  # tells q̈ of joint0 once more
    assert not random_sensors.is_regular(first)
    assert not random_sensors.is_regular(first + turning)
    assert random_sensors.is_regular(first + sd.JointTorque("joint1"))


def test_positions_stay_within_limits_and_reach_far():
    model = random_sensors.biped()
    q = states.positions(model, 300, np.random.default_rng(0), 1e3)
    joints, lengths = q[:, 7:], q[:, :3]
    assert np.all(np.abs(joints) <= 2.5) and np.mean(np.abs(joints) == 2.5) > 0.2
    assert np.abs(lengths).max() == 1e3 and np.median(np.abs(lengths)) < 100.0
    np.testing.assert_allclose(np.linalg.norm(q[:, 3:7], axis=1), 1.0)


class Wrong:
    """A solver whose torques are wrong by a factor."""

    def __init__(self, solver: sd.Solver, factor: float):
        self.solver, self.factor = solver, factor

    def __call__(self, *args, **options):
        solution = self.solver(*args, **options)
        solution["tau"][:] *= self.factor
        return solution


def test_wrong_answers_are_counted():
    problem = sd.inverse_dynamics(sd.random_tree(3, 5, ("revolute", "prismatic")))
    solver = sd.compile(problem, **FAST)
    count = {factor: states.judged(problem, Wrong(solver, factor), 50, np.random.default_rng(0), 1e3)
             for factor in (1.0, 1.0 + 1e-7)}  # fmt: skip
    assert count[1.0].silent == 0 and count[1.0].residual < 1e-11
    assert count[1.0 + 1e-7].silent == 50 and 1e-8 < count[1.0 + 1e-7].residual < 2e-7
    assert count[1.0 + 1e-7].equation.startswith("c:tau")


@pytest.mark.parametrize(("factor", "silent"), [(1.0, 0), (1.0 + 1e-8, 40)])
def test_answers_far_out_are_judged_by_equations_in_50_digits(factor, silent):
    """Of sliders at 1,000 km, whose rounded equations right answers do not solve."""
    problem = sd.inverse_dynamics(sd.random_tree(4, 0, ("revolute", "prismatic")))
    solver, system = Wrong(sd.compile(problem, **FAST), factor), sd.assemble(problem).plain
    inputs = states.calls(problem, 40, np.random.default_rng(0), 1e6)
    d = states.unknowns(problem, states.called(problem, solver, inputs))
    assert states.row_wise(system, inputs, d).max() > 5 * states.WRONG
    found = states.judged(problem, solver, 40, np.random.default_rng(0), 1e6)
    assert found.farther == found.silent == silent and (found.residual > states.WRONG) == (silent > 0)


def test_rounding_errors_of_what_vanishes_are_no_errors():
    """Bodies that slide alone do not turn; angular accelerations of 1e-20 rad/s² beside 10 m/s² are none."""
    problem = sd.inverse_dynamics(sd.random_tree(3, 6, ("prismatic",)))
    inputs = states.calls(problem, 20, np.random.default_rng(0), 1.0)
    system, d = (
        sd.assemble(problem),
        states.unknowns(problem, states.called(problem, sd.compile(problem, **FAST), inputs)),
    )
    turning = system.layout.quantity_columns("a")[0]
    d[:, turning] = 1e-20
    assert states.row_wise(system, inputs, d).max() < 1e-12
    d[:, turning] = 1e-6
    assert states.row_wise(system, inputs, d).max(axis=1).min() > 1e-9


@pytest.mark.parametrize(("noise", "units"), [(None, states.ROUNDINGS), (0.1, 10.0)], ids=["exact", "noisy"])
def test_suspects_are_held_beside_the_answer_in_50_digits(noise, units):
    """Accelerations that are off by 1e-10 are farther from it than rounding explains."""
    problem = sd.forward_dynamics(sd.chain(3, 0)) + [sd.JointAcceleration("joint0", noise=noise)] * bool(noise)
    problem += [sd.Accelerometer("body2", noise=noise)] * bool(noise)
    solver = sd.compile(problem, **FAST)
    inputs = states.calls(problem, 4, np.random.default_rng(1), 1.0)
    system, d = sd.assemble(problem).plain, states.unknowns(problem, states.called(problem, solver, inputs))
    for k in range(4):
        assert states.farther(system, states.at(inputs, k), d[k]).units <= units
        d[k, system.layout.quantity_columns("qdd")] *= 1.0 + 1e-10
        assert states.farther(system, states.at(inputs, k), d[k]).wrong


def test_a_quantity_that_is_zero_is_held_beside_the_others_of_its_unit():
    """Forces of 1e-25 of the greatest one are no wrong external wrench, and those of 1e-9 are."""
    problem = sd.forward_dynamics(sd.chain(3, 0))
    inputs = states.calls(problem, 1, np.random.default_rng(1), 1.0)
    inputs["fx"][:] = 0.0
    one, system = states.at(inputs, 0), sd.assemble(problem).plain
    d = states.unknowns(problem, states.called(problem, sd.compile(problem, **FAST), inputs))[0]
    greatest = np.abs(d[system.layout.quantity_columns("f")]).max()
    d[system.layout.quantity_columns("fx")] = 1e-25 * greatest
    found = states.farther(system, one, d)
    assert found.units <= states.ROUNDINGS and found.off < 1e-12 and not (found.wrong or found.untold)
    d[system.layout.quantity_columns("fx")] = 1e-9 * greatest
    assert states.farther(system, one, d).wrong


@pytest.mark.slow
def test_a_pivot_that_is_smaller_than_any_sampled_one_costs_no_digits():
    """1.4e-4 of its usual size at one state in 10,000, where the least one that the judge saw is 1.5e-4."""
    problem = silent.PROBLEMS["sensors"](silent.ROBOTS["auto_tree 15"]())
    rng = np.random.default_rng([list(silent.ROBOTS).index("auto_tree 15"), list(silent.PROBLEMS).index("sensors")])
    inputs = [states.calls(problem, 1000, rng, states.KILOMETRE) for _ in range(2)][-1]
    one = {name: x[[479]] for name, x in inputs.items()}
    d = states.unknowns(problem, states.called(problem, sd.compile(problem), one))
    assert states.farther(sd.assemble(problem).plain, states.at(one, 0), d[0]).units <= states.ROUNDINGS


def test_unsolved_states_count_by_whether_they_are_regular():
    model = sd.chain(3, 0)
    problem = sd.inverse_dynamics(model)

    def refuses(q, qd, **options):
        solution = sd.compile(problem, **FAST)(q, qd, **options)
        solution.ok = np.zeros(len(q), dtype=bool)
        return solution

    found = states.judged(problem, refuses, 20, np.random.default_rng(0), 1.0)
    assert found[:6] == (20, 20, states.LOOKED_AT, 0, 0, 0.0)


def test_ratios_are_of_problems_that_both_files_have():
    rows = [{"seed": k, "operations": x} for k, x in enumerate([50, 300, ""])]
    earlier = [{"seed": k, "operations": x} for k, x in enumerate([100, 100, 100])]
    assert "2 problems" in sensor_problems.ratios_to(rows, earlier)
    assert "median 1.750, sum 1.750, greatest 3.000" in sensor_problems.ratios_to(rows, earlier)
