"""Residuals row by row, over the ranges of the joints and beyond: what is wrong is not `ok`."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from solvers import relative_error

import sysdyn as sd
from sysdyn.equations.backward_error import residual_at, residual_of
from sysdyn.errors import SingularState
from sysdyn.model import Free, Model, Planar, Prismatic, Revolute, Spherical
from sysdyn.offline.pivoted_lu import solve_pivoted
from sysdyn.offline.sampling import FARTHEST, NEAR, lengths, limits, reach, sample_states
from sysdyn.online.solver import Solver
from sysdyn.program.opcodes import OUT_OF_RANGE

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import random_sensors
    import states
    from digits import Digits, relative

SLIDING = sd.random_tree(12, 5, ("revolute", "prismatic"))
# A state is wrong where its backward error is larger.
WRONG = 1e-9


SLIDING_FORWARD = sd.forward_dynamics(SLIDING)


@functools.cache
def sliding(outputs: str, backend: str = "python") -> Solver:
    return sd.compile(SLIDING_FORWARD, outputs=outputs, backend=backend)


def far(model: Model, scale: float, count: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, qd, tau = model.random_state(seed=1, batch=count)
    return np.where(lengths(model), scale * q, q), qd, tau


def heavy(body: int) -> Model:
    """A chain of six with one body of 10¹² times the inertia."""
    model = sd.chain(6, 4)
    inertias = model.inertias.copy()
    inertias[body] *= 1e12
    return model.replace(inertias=inertias)


# ---- the figure -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_componentwise_residual_shows_a_small_row_that_the_norm_hides():
    """A torque that is wrong by a part in a thousand, where moments are 10¹² times larger."""
    problem = sd.inverse_dynamics(SLIDING)
    state = far(SLIDING, 1e3, 8)
    solution, inputs = sd.compile(problem)(*state), dict(zip(("q", "qd", "qdd"), state, strict=True))
    system = sd.assemble(problem)
    d = np.zeros((8, system.layout.n))
    for quantity in problem.quantities:
        columns = system.layout.quantity_columns(quantity)
        d[:, columns] = solution[quantity].reshape(8, -1)
    right = residual_at(system, inputs, d)
    assert right.backward_error.max() <= 1e-10 and (right.normwise <= right.backward_error).all()
    smallest = np.argmin(np.abs(solution.tau[0]))
    d[0, system.layout.quantity_columns("tau")[smallest]] *= 1.0 + 1e-3
    wrong = residual_at(system, inputs, d)
    assert wrong.normwise[0] < 1e-9 < 1e-6 < wrong.backward_error[0]
    np.testing.assert_array_equal(wrong.backward_error[1:], right.backward_error[1:])


def test_rows_of_rounding_errors_say_nothing():
    """Bodies that only slide: angular accelerations are zero but for rounding, and so is the torque of gravity."""
    model = sd.auto_tree(3).replace(joints=(Prismatic((1.0, 0.0, 0.0)),) * 3)
    system = sd.assemble(sd.forward_dynamics(model))
    states = {"q": np.full((1, 3), 0.3), "qd": np.ones((1, 3)), "tau": np.ones((1, 3))}
    solution = sd.compile(sd.forward_dynamics(model))(states["q"], states["qd"], states["tau"])
    d = np.zeros((1, system.layout.n))
    for quantity in sd.forward_dynamics(model).quantities:
        d[:, system.layout.quantity_columns(quantity)] = solution[quantity].reshape(1, -1)
    d[0, system.layout.columns("a", 2)[0]] = 1e-28
    assert residual_at(system, states, d).backward_error[0] <= 1e-14
    d[0, system.layout.columns("a", 2)[0]] = 1e-6
    assert residual_at(system, states, d).backward_error[0] >= 1e-3


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("seed", [18, 45, 15, 82, 108, 118, 122, 137])
def test_consistent_redundant_equations_have_small_residuals_row_by_row(seed):
    """By orthogonal columns of all of them, at random, at right angles, at limits and 1 km away."""
    rng = np.random.default_rng(seed)
    kinds = random_sensors.JOINTS[1:]
    model = sd.random_tree(int(rng.integers(3, 8)), seed, kinds[int(rng.integers(len(kinds)))])
    problem = random_sensors.sensor_problem(model, rng, redundant=True, exact=True)
    system = sd.assemble(problem)
    assert system.shape[0] > system.shape[1]
    inputs = states.calls(problem, 20, np.random.default_rng(1), states.KILOMETRE)
    inputs["q"] = model.normalise(inputs["q"])
    entries, b = (np.broadcast_to(x, (20, x.shape[1])) for x in system.values(inputs))
    solutions = [solve_pivoted(system, {name: x[k] for name, x in inputs.items()}) for k in range(20)]
    error = residual_of(system, entries, b, np.array([x.d for x in solutions])).backward_error
    assert error.max() < 1e-11


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("turned", range(3))
def test_residuals_do_not_depend_on_the_orientation_of_frames(turned):
    """Vectors count by their norm: components that vanish in some frame are as exact as those that do not."""
    model = sd.chain(4, turned)
    q, qd, tau = model.random_state(seed=turned, batch=30)
    q[:, turned] = np.pi / 2 * np.arange(30)
    solution = sd.compile(sd.forward_dynamics(model), level="fast")(q, qd, tau)
    assert solution.backward_error().max() <= 1e-12


# ---- what must not happen again -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["all", "qdd"])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_sliders_that_travel_far(outputs, scale):
    """At 1000 km torques were wrong by 7e-3 with ok True and a normwise backward error of 7e-16."""
    q, qd, tau = far(SLIDING, scale)
    solution = sliding(outputs)(q, qd, tau, on_singular="nan")
    assert solution.ok.all() or scale > FARTHEST
    every = solution if outputs == "all" else sliding("all")(q, qd, tau, on_singular="nan")
    # far out rounded equations may leave more, of answers that are right to the last digits of unrounded ones
    left = np.where(every.ok, every.backward_error(), 0.0)
    assert left.max() <= (WRONG if scale <= FARTHEST else 10 * WRONG)
    for k in np.flatnonzero(left > WRONG):
        exact = Digits(sd.assemble(SLIDING_FORWARD), {"q": q[k], "qd": qd[k], "tau": tau[k]})
        assert relative(every.qdd[k], exact.quantity("qdd")) < 1e-13
    both = solution.ok & every.ok
    expected = every.qdd[both]
    assert not both.any() or relative_error(solution.qdd[both], expected) <= 1e-9


@pytest.mark.slow(after=1)
def test_answers_beyond_checked_lengths_are_those_of_unrounded_equations():
    """Of joints that travel 150 m, one at a time: well-conditioned, though entries are differences of lengths."""
    solver, travelling = sliding("all"), np.array([2, 9, 11])
    q, qd, tau = far(SLIDING, 1.0, len(travelling))
    q[np.arange(len(travelling)), travelling] = 150.0
    assert solver.stability.verified_range < 150.0 < FARTHEST
    solution = solver(q, qd, tau)
    for k in range(len(travelling)):
        exact = Digits(sd.assemble(SLIDING_FORWARD), {"q": q[k], "qd": qd[k], "tau": tau[k]})
        assert all(relative(solution[x][k].ravel(), exact.quantity(x)) < 1e-15 for x in ("a", "qdd", "f"))


def test_lengths_with_a_few_large_residuals_are_outside_the_verified_range():
    """At 58 m one of 10,000 states left 2.5e-11, row by row, where the 80 sampled ones leave 6e-12."""
    assert sliding("all").stability.verified_range == NEAR


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["all", pytest.param("qdd", marks=pytest.mark.slow)])
def test_a_named_order_loses_no_digits_far_out(outputs):
    """Accelerations were wrong by 2e-4 at 1 km."""
    q, qd, tau = far(SLIDING, FARTHEST, count=10)  # most of which are solved again, with twice the precision
    solver = sd.compile(sd.forward_dynamics(SLIDING), "markowitz", outputs=outputs, level="fast", backend="python")
    solution = solver(q, qd, tau)
    expected = sliding("all")(q, qd, tau)
    assert relative_error(solution.qdd, expected.qdd) <= 1e-9
    if outputs == "all":
        assert solution.backward_error().max() <= WRONG


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["auto", "umfpack"])
def test_an_inertia_ratio_of_a_trillion(ordering):
    """The order of UMFPACK was wrong by 5e-4 with ok True."""
    model = heavy(5)
    q, qd, tau = model.random_state(seed=1, batch=50)
    solution = sd.compile(sd.forward_dynamics(model), ordering, level="fast")(q, qd, tau, on_singular="nan")
    assert solution.ok.all() and solution.backward_error().max() <= WRONG


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("held", [(), (sd.Contact("body5", "normal"),)], ids=["forward", "contact"])
def test_an_inertia_ratio_of_a_trillion_makes_no_state_singular(held):
    """Forces of a heavy body at the end are lost in every order; a step of refinement gives them back."""
    model = heavy(5)
    problem = sum(held, sd.forward_dynamics(model))
    q, qd, tau = model.random_state(seed=1, batch=400)
    q[::2] = np.random.default_rng(3).integers(0, 4, q[::2].shape) * (np.pi / 2)
    solver = sd.compile(problem, level="fast")
    solution = solver(q, qd, tau, on_singular="nan")
    assert solver.choice.refined and solution.ok.all() and solution.backward_error().max() <= 1e-10


# ---- ranges ---------------------------------------------------------------------------------------------------------


def ranged() -> Model:
    joints = (Free(), Prismatic(), Prismatic((1.0, 0.0, 0.0)), Revolute(), Spherical(), Planar())
    lower, upper = np.full(18, -np.inf), np.full(18, np.inf)
    tree = sd.random_tree(6, 1, ("revolute",))
    first = 6
    lower[first], upper[first] = -0.1, 30.0  # the first slider
    lower[first + 2], upper[first + 2] = -0.5, 0.25  # the hinge
    nv = sum(joint.nv for joint in joints)
    return Model(
        name="ranged", parent=tree.parent, joints=joints, X_tree=tree.X_tree, inertias=tree.inertias,
        body_names=tree.body_names, joint_names=tree.joint_names, lower=lower[:nv], upper=upper[:nv],
    )  # fmt: skip


def test_inverse_dynamics_is_regular_however_far_joints_slide():
    """A triangular matrix, though lever arms of 1,000 km make its condition number 10¹² and more."""
    model = sd.random_tree(6, 3, ("prismatic", "revolute", "prismatic"))
    q, qd, qdd = far(model, 1e6, 20)
    solution = sd.compile(sd.inverse_dynamics(model), backend="python")(q, qd, qdd)
    assert solution.ok.all() and solution.backward_error().max() <= WRONG
    assert solution.reciprocal_condition().min() > 1e-3
    expected = np.stack([sd.rnea(model, *x) for x in zip(q, qd, qdd, strict=True)])
    assert relative_error(solution.tau, expected) <= WRONG


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sysdyn.AccuracyWarning")  # of inertias so different: pivoting loses as much
def test_motions_far_out_are_checked():
    """At 1 km, with bodies that differ by 10¹² and torques of a smooth motion: large residuals hide in violent ones."""
    model = sd.random_tree(8, 9)
    inertias = model.inertias * (1e12 ** np.random.default_rng(9).uniform(-0.5, 0.5, 8))[:, None, None]
    model = model.replace(inertias=inertias)
    q, qd, qdd = far(model, 1e3, 200)
    q = np.where(lengths(model), np.copysign(1e3, q), q)
    tau = np.stack([sd.rnea(model, *x) for x in zip(q, qd, qdd, strict=True)])
    solver = sd.compile(sd.forward_dynamics(model))
    solution = solver(q, qd, tau, on_singular="nan")
    assert (solution.backward_error()[solution.ok] <= WRONG).all() and solution.ok.mean() > 0.9


def test_states_cover_the_ranges_of_the_joints():
    model = ranged()
    free, slider, rail, hinge, ball, plane = (model.q_slice(i) for i in range(6))
    assert lengths(model)[[*range(3), slider.start, rail.start, plane.start, plane.start + 1]].all()
    assert lengths(model).sum() == 7
    assert reach(model)[slider.start] == 30.0 and reach(model)[rail.start] == FARTHEST == reach(model)[0]
    assert np.isinf(reach(model)[[hinge.start, *range(ball.start, ball.stop), plane.stop - 1, free.stop - 1]]).all()
    assert [x[hinge.start] for x in limits(model)] == [-0.5, 0.25]
    problem = sd.forward_dynamics(model)
    q, usual = (sample_states(problem, 512, 1, ranges=x)["q"] for x in (True, False))
    assert np.abs(usual[:, lengths(model)]).max() < 10.0
    for place, ends in ((slider, (-0.1, 30.0)), (hinge, (-0.5, 0.25))):
        assert all((q[:, place] == end).sum() >= 16 for end in ends)
    assert np.ptp(q[:, hinge]) > 2 * np.pi * 0.9  # all around nevertheless
    out = np.abs(q[:, rail]).reshape(-1)
    assert out.max() > 500.0 and all((out > 10.0**k).sum() >= 20 for k in range(3)) and out.max() <= FARTHEST
    np.testing.assert_allclose(np.linalg.norm(q[:, ball], axis=1), 1.0)
    assert (q == usual).all(axis=1).mean() >= 0.5


def test_a_state_out_of_range_is_solved_with_pivoting_or_not_ok():
    solver = sliding("qdd", "llvm")
    q, qd, tau = SLIDING.random_state(seed=3, batch=6)
    slider = next(i for i, joint in enumerate(SLIDING.joints) if isinstance(joint, Prismatic) and SLIDING.children[i])
    q[1, slider], q[2, slider] = 1.5 * FARTHEST, 1e40
    step = solver.bind(q, qd, tau)
    step()
    assert ((step.status & OUT_OF_RANGE) != 0).tolist() == [False, True, True, False, False, False]
    solution = solver(q, qd, tau, on_singular="nan")
    assert solution.ok.tolist() == [True, True, False, True, True, True]
    np.testing.assert_allclose(solution.qdd[1], sd.aba(SLIDING, q[1], qd[1], tau[1]), rtol=1e-6)
    one = solver(q[1], qd[1], tau[1])
    np.testing.assert_array_equal(one.qdd, solution.qdd[1])
    with pytest.raises(SingularState, match=rf"joint '{SLIDING.joint_names[slider]}' is at 1e\+40, beyond the 1e\+03"):
        solver(q, qd, tau)


def test_a_robot_that_only_turns_has_no_range(tmp_path):
    assert sd.compile(sd.forward_dynamics(sd.chain(3)), outputs="qdd").program.ranges == ()
    solver = sliding("qdd")
    assert len(solver.program.ranges) >= 2
    assert sd.load_solver(solver.save(tmp_path / "sliding.solver")).program.ranges == solver.program.ranges


def test_sensors_have_the_values_of_the_motion_at_checked_states():
    """A past failure: they read 1, so that no reading was ever small beside the terms that it is the sum of."""
    model = sd.random_tree(4, 2, ("revolute", "prismatic"))
    last = model.body_names[-1]
    problem = (
        sd.inverse_dynamics(model) - sd.ExternalWrench(last) + sd.ForceTorqueSensor(model.joint_names[-1], name="ft")
    )
    found = sample_states(problem, 64, seed=3, ranges=True)
    fx = found["fx"].reshape(64, model.nb, 6)
    read = sd.predict(problem, found["q"], found["qd"], found["qdd"], fx)["ft"]
    k = np.arange(64)
    measured = (k % 4 < 2) & ~np.isin(k % 8, (4, 7))
    np.testing.assert_array_equal(found["y:ft"][measured], read[measured])
