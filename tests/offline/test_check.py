"""The check of programs at sampled states: errors, thresholds of pivots, singular states, and what is accepted."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model, Revolute
from sysdyn.model.inertia import inertia
from sysdyn.model.se3 import X_motion
from sysdyn.offline import recursion
from sysdyn.offline.check import (
    CHECKED_STATES,
    EXPLAINS,
    FALLBACK,
    FALLBACK_OF_ESTIMATES,
    MARGIN,
    ZERO,
    Check,
    CheckedProgram,
    Results,
    SampledStates,
    check,
    relative_differences,
    with_ranges,
)
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.offline.pivoted_lu import reference
from sysdyn.offline.report import FEW_FALLBACKS, MOST_FALLBACKS
from sysdyn.offline.sampling import CHECK_SEED, FARTHEST, NEAR, is_singular, sample_states, travelled
from sysdyn.program.graph import Graph, is_constant
from sysdyn.program.opcodes import CONST, DIV, INPUT, MUL, NEG
from sysdyn.program.program import Program

OUTPUTS = ("qdd", ["qdd", "tau"], "a", "f", ["tau", "qdd", "f"], "all")


def neck(offset: float) -> Model:
    """Three joints, axes pairwise orthogonal, two links without mass, and a point mass; `offset` [m] of the second."""
    placements = [X_motion(np.eye(3), np.array([x, 0.0, 0.0])) for x in (0.0, offset, 0.0)]
    point = inertia(1.3, np.array([0.0185, 0.1108, 0.0]), np.zeros((3, 3)))
    return Model(
        name="neck", parent=(-1, 0, 1), joints=tuple(Revolute(a) for a in ((0, 0, 1), (1, 0, 0), (0, 1, 0))),
        X_tree=np.array(placements), inertias=np.array([np.zeros((6, 6)), np.zeros((6, 6)), point]),
        body_names=("link1", "link2", "load"), joint_names=("pitch", "roll", "yaw"), strict=None,
    )  # fmt: skip


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("outputs", OUTPUTS, ids=str)
def test_a_neck_that_carries_a_point_mass_is_singular_at_zero(outputs):
    """At q = 0 two of its axes turn the mass about lines in one plane with it: H has rank 2."""
    solver = sd.compile(sd.forward_dynamics(neck(0.0095)), outputs=outputs, backend="python")
    zero = np.zeros(3)
    with pytest.raises(sd.SingularState, match=r"nothing determines qdd\(roll\), qdd\(yaw\)"):
        solver(zero, zero, np.ones(3))
    assert not solver(zero, zero, np.ones(3), on_singular="nan").ok
    q, qd, tau = np.array([0.3, 0.4, 0.5]), zero, np.ones(3)
    solution, expected = solver(q, qd, tau), sd.aba(neck(0.0095), q, qd, tau)
    if "qdd" in solver.outputs:
        np.testing.assert_allclose(solution.qdd, expected, rtol=1e-9)
    assert solution.ok and solver.stability.singular > 0 and not solver.stability.inaccurate


def test_reciprocal_condition_falls_towards_a_singular_state():
    """At q = 0 two axes are in one plane with the mass: the condition grows as the inverse square of the distance."""
    solver = sd.compile(sd.forward_dynamics(neck(0.0095)), outputs="qdd", backend="python")
    distance = np.array([1e-1, 1e-2, 1e-3, 1e-4, 0.0])
    q = np.array([0.3, 0.4, 1.0]) * np.array([1.0, 1.0, 0.0]) + np.outer(distance, [0.0, 0.0, 1.0])
    found = solver(q, np.zeros((5, 3)), np.ones((5, 3)), on_singular="nan")
    nearness = found.reciprocal_condition()
    assert nearness.shape == (5,) and (np.diff(nearness) < 0.0).all()
    assert nearness[0] > 1e-6 and nearness[4] < 1e-15
    assert found.ok[:3].all() and not found.ok[4]
    assert (
        sd.compile(sd.forward_dynamics(sd.chain(3)), outputs="qdd", backend="python")(
            np.ones(3), np.ones(3), np.ones(3)
        ).reciprocal_condition()
        > 1e-4
    )


def test_systems_singular_at_every_state_raise():
    """Three axes that meet turn a point mass in two directions only."""
    for outputs in ("qdd", "all"):
        with pytest.raises(sd.StructurallySingular, match="singular at every sampled state") as error:
            sd.compile(sd.forward_dynamics(neck(0.0)), outputs=outputs, backend="python")
        assert {"qdd(pitch)", "qdd(roll)", "qdd(yaw)"} & set(error.value.undetermined)


def unguarded(program: Program) -> list[int]:
    """Divisors that are no constants, no guarded values, and no products or opposites of guarded ones."""
    guarded = {g.value for g in program.guards}
    first = program.first_op

    def safe(value: int) -> bool:
        if value in guarded or program.n_inputs <= value < first:
            return True
        if value < first:
            return False
        k = value - first
        kind, a, b = int(program.kind[k]), int(program.lhs[k]), int(program.rhs[k])
        return kind in (MUL, NEG) and safe(a) and (b < 0 or safe(b))

    assert INPUT < CONST < DIV
    divisors = program.rhs[program.kind == DIV]
    return [v for v in divisors.tolist() if not safe(v)]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", range(2))
def test_every_divisor_is_guarded(seed):
    """Those of recursions, too, whose signs and products are rewritten."""
    tree = sd.random_tree(6, seed)
    some = [name for name, joint in zip(tree.joint_names, tree.joints, strict=True) if joint.nv][::2]
    problems = {"forward": sd.forward_dynamics(tree), "hybrid": sd.hybrid_dynamics(tree, some)}
    for problem in problems.values():
        for options in ({"outputs": "qdd"}, {"ordering": "markowitz"}):
            solver = sd.compile(problem, backend="python", level="fast", **options)
            assert not unguarded(solver.program), options


def test_forward_dynamics_of_a_serial_arm_guards_all_pivots_but_the_constant_one():
    solver = sd.compile(sd.forward_dynamics(sd.chain(6, seed=1)), outputs="qdd", backend="python")
    assert solver.choice.is_recursion and len(solver.program.guards) >= 5


# ---- a program with given pivots and errors ------------------------------------------------------------------------

N = 512
EVERY = np.arange(N)
ONES = np.ones((N, 1))
ARM = sd.forward_dynamics(sd.chain(2))
NECK = sd.forward_dynamics(neck(0.0095))


@functools.cache
def sampled(problem: Problem) -> tuple[System, dict[str, np.ndarray], np.ndarray]:
    """(system, inputs at N states, the right answers there)."""
    system, inputs = sd.assemble(problem), sample_states(problem, N, seed=1, ranges=True)
    return system, inputs, reference(system, inputs).refined


def checked(
    problem: Problem, pivots: np.ndarray, errors: np.ndarray, residuals: np.ndarray | None = None,
    structural: np.ndarray | None = None, states: int = N,
) -> Check:  # fmt: skip
    """The check of a program with these pivots (N, p), relative errors (N,) and backward errors (N,), else the same."""
    system, inputs, right = sampled(problem)
    number = {qd.tobytes(): k for k, qd in enumerate(inputs["qd"])}

    def run(part: dict[str, np.ndarray]) -> Results:
        k = [number[qd.tobytes()] for qd in part["qd"]]
        return Results(
            right[k] * (1.0 + errors[k])[:, None], pivots[k], (errors if residuals is None else residuals)[k]
        )

    labels = [f"p{k}" for k in range(pivots.shape[1])]
    program = CheckedProgram(run=run, labels=labels, structural=structural, chunk=64)
    return check(program, SampledStates(system, {name: x[:states] for name, x in inputs.items()}))


def at(state: int, value: float) -> np.ndarray:
    return np.where(state == EVERY, value, 0.0)


def small(states: np.ndarray, size: float) -> np.ndarray:
    """Pivots (N, 1) of this size at some states, 1 at the others."""
    return np.where(states, size, 1.0)[:, None]


def signs(every: int) -> np.ndarray:
    """(N, 1): −1 at each of so many states."""
    return np.where(EVERY % every == 3, -1.0, 1.0)[:, None]


def noisy(noise: object = 0.1) -> Problem:
    model = sd.chain(2)
    torques = sd.JointTorque("all", noise=noise)
    return Problem(model, [torques, *(sd.ExternalWrench(name) for name in model.body_names)])


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [0, N // 2 + 1, N - 1])
@pytest.mark.parametrize(("error", "acceptable", "good", "inaccurate"), [
    (1e-13, True, True, False), (1e-10, True, False, False), (1e-8, False, False, True), (1e-2, False, False, True),
    (math.nan, False, False, True),
])  # fmt: skip
def test_one_state_with_an_error_is_enough(state, error, acceptable, good, inaccurate):
    report = checked(ARM, ONES, at(state, error)).report
    assert (report.acceptable, report.good, report.inaccurate) == (acceptable, good, inaccurate)
    assert report.states == N and report.backward_error == (math.inf if np.isnan(error) else error)


@pytest.mark.parametrize(("error", "acceptable", "inaccurate"), [
    (1e-12, True, False), (1e-8, False, False), (1e-5, False, True),
])  # fmt: skip
def test_errors_without_a_residual_count(error, acceptable, inaccurate):
    """At all states, or at the one of the least pivots alone."""
    for states in (EVERY >= 0, EVERY == 7):
        report = checked(ARM, small(EVERY == 7, 0.1), np.where(states, error, 0.0), np.zeros(N)).report
        assert report.backward_error == 0.0 and report.difference == pytest.approx(error, rel=0.1)
        assert (report.acceptable, report.inaccurate) == (acceptable, inaccurate)
        assert 16 < report.compared <= 48


def test_a_program_may_lose_a_hundred_times_what_a_pivoted_solve_loses():
    """Errors of an ill-conditioned system are no fault of the order; but they are not small for that."""
    fine = replace(checked(ARM, ONES, np.zeros(N)).report, pivoted_backward_error=0.0, pivoted_difference=0.0)
    assert fine.good
    for name, limit in (("backward_error", 1e-9), ("difference", 3e-10)):
        assert replace(fine, **{name: limit}).acceptable and not replace(fine, **{name: 2.0 * limit}).acceptable
        for pivoted, acceptable in ((1e-3, True), (1e-5, False)):
            report = replace(fine, **{name: 5e-2, f"pivoted_{name}": pivoted})
            assert (report.acceptable, report.inaccurate, report.good) == (acceptable, True, False)
    assert replace(fine, backward_error=1e-10, pivoted_backward_error=1e-11).good


def test_a_check_without_a_state_to_compare_is_not_acceptable():
    """A pivot is below its threshold at every state."""
    report = checked(ARM, np.hstack([small(EVERY % 4 == k, 1e-9) for k in range(4)]), np.zeros(N)).report
    assert (report.states, report.compared) == (0, 0) and report.fallback == N
    assert not report.acceptable and report.inaccurate and "e" in str(report)


def test_the_worst_states_guide_the_next_search():
    """Those with the largest errors, the least pivots, and the rarer sign guide the next search."""
    pivots = np.hstack([small(EVERY == 77, 2e-3) * np.where(EVERY == 67, -5.0, 1.0)[:, None], signs(64)])
    inputs, worst = sampled(ARM)[1], checked(ARM, pivots, at(401, 3e-10) + at(402, 2e-10)).worst
    assert len(worst["qd"]) < 20
    for state in (67, 77, 401, 402):
        assert (worst["qd"] == inputs["qd"][state]).all(axis=1).any(), state


# ---- small pivots --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-6])
def test_states_with_small_pivots_use_the_fallback(unit):
    """Below a thousandth of the typical size; neither their errors count, nor rarely that there are some."""
    rare = EVERY % 30 == 7
    found = checked(ARM, unit * np.hstack([small(rare, 0.9 * FALLBACK), ONES]), np.where(rare, 0.1, 0.0))
    assert found.report.good and found.report.fallback == rare.sum() and found.report.states == N - rare.sum()
    assert found.report.least_pivot == pytest.approx(0.9 * FALLBACK) and found.report.least_pivot_name == "p0"
    assert found.thresholds[0] == found.thresholds[1] == pytest.approx((unit * ZERO, unit * FALLBACK))
    report = checked(ARM, unit * small(rare, 2.0 * EXPLAINS), np.where(rare, 0.1, 0.0)).report
    assert report.fallback == 0 and not report.acceptable


@pytest.mark.parametrize("share", [1.1 * FALLBACK, 0.5 * EXPLAINS])
def test_small_pivots_of_inaccurate_states_raise_their_thresholds(share):
    rare = EVERY % 30 == 7
    found = checked(ARM, np.hstack([small(rare, share), ONES]), np.where(rare, 0.1, 0.0))
    assert found.report.good and found.report.fallback == rare.sum()
    assert found.thresholds == [pytest.approx((ZERO, x)) for x in (MARGIN * share, FALLBACK)]


@pytest.mark.parametrize(("share", "acceptable", "good"), [
    (0.9 * FEW_FALLBACKS, True, True), (1.1 * FEW_FALLBACKS, True, False), (1.1 * MOST_FALLBACKS, False, False),
])  # fmt: skip
def test_limits_on_the_share_of_fallbacks(share, acceptable, good):
    report = checked(ARM, small(share * N > EVERY, 1e-5), np.zeros(N)).report
    assert (report.acceptable, report.good, report.often_falls_back) == (acceptable, good, not good)
    assert report.fallback_share == pytest.approx(share, abs=0.01) and "need the fallback" in str(report)


def test_a_pivot_that_is_rounding_at_right_angles_is_compared_with_others():
    """At half of the states axes of a gimbal nearly coincide: answers were 3e-3 off, and no residual said so."""
    rounding = EVERY % 2 == 1
    found = checked(ARM, small(rounding, 1e-15), np.where(rounding, 3e-3, 0.0), np.zeros(N))
    assert found.thresholds == [pytest.approx((ZERO, FALLBACK))] and found.report.difference < 1e-8
    assert found.report.fallback == rounding.sum() and found.report.often_falls_back


def test_a_pivot_of_very_different_sizes_is_not_zero_where_it_is_small():
    """With one body of 10¹² times the inertia the size of a pivot was 0.1 at most states and 10¹⁰ at some."""
    found = checked(ARM, np.where(EVERY % 10 == 3, 1e10, 0.1)[:, None], np.zeros(N))
    assert found.thresholds == [pytest.approx((0.1 * ZERO, 0.1 * FALLBACK))] and found.report.fallback == 0


def test_pivots_of_estimates_scale_with_covariances():
    """Their thresholds are lower, and follow from the states with the declared covariances."""
    assert checked(noisy(), ONES, np.zeros(N)).thresholds[0][1] == pytest.approx(FALLBACK_OF_ESTIMATES)
    problem = noisy(np.diag([0.01, 0.04]))
    others = EVERY % 4 >= 2
    found = checked(problem, small(others, 1e-3), np.zeros(N))
    assert found.thresholds[0][1] == pytest.approx(FALLBACK_OF_ESTIMATES) and found.report.states == N


def test_the_least_pivot_is_named():
    pivots = np.hstack([np.full((N, 1), 5.0), small(EVERY == 3, 0.02)])
    report = checked(ARM, pivots, np.zeros(N)).report
    assert (report.least_pivot, report.least_pivot_name) == (pytest.approx(0.02), "p1")
    report = checked(ARM, pivots, np.zeros(N), structural=np.array([False, True])).report
    assert (report.least_pivot, report.least_pivot_name) == (1.0, "p0")
    report = checked(ARM, pivots, np.zeros(N), structural=np.ones(2, dtype=bool)).report
    assert report.least_pivot == 1.0 and report.least_pivot_name.startswith("none")
    assert checked(ARM, np.zeros((N, 0)), np.zeros(N)).report.good


# ---- signs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pivots", "structural", "changes"), [
    ([ONES, ONES], None, 0),
    ([signs(9), ONES], None, 0),  # the determinant changes its sign, too
    ([signs(9), signs(9)], None, 2),
    ([signs(9), signs(9), signs(5)], None, 2),
    ([signs(9), signs(9)], [True, False], 1),
    ([signs(9), signs(9)], [True, True], 0),
    ([signs(9), ONES], [True, False], 0),
    ([small(EVERY == 8, -1e-9), small(EVERY == 8, -1e-9)], None, 0),  # rounding
    ([small(EVERY == 8, 0.0), ONES], None, 0),
], ids=str)  # fmt: skip
def test_pivots_that_change_their_sign(pivots, structural, changes):
    """All but one that the determinant explains, at states where they are no rounding errors."""
    pivots = np.hstack(pivots)
    report = checked(ARM, pivots, np.zeros(N), structural=None if structural is None else np.array(structural)).report
    assert report.sign_changes == changes and report.good == (not changes)
    assert ("change their sign" in str(report)) == (changes > 0)


# ---- states that are singular, or far ------------------------------------------------------------------------------


@pytest.mark.parametrize(("pivot", "error"), [(1.0, 0.5), (1e-9, 0.0), (math.nan, 0.0), (1e-9, 0.5)], ids=str)
def test_singular_states_do_not_count(pivot, error):
    """Whatever tells them: a residual, a pivot that is rounding or no number; the neck at q = 0 and other angles."""
    singular = is_singular(*sampled(NECK)[:2])
    singular &= np.cumsum(singular) <= 40
    others = is_singular(*sampled(NECK)[:2]) & ~singular
    pivots = np.where(singular, pivot, np.where(others, 1e-9, 1.0))[:, None]
    report = checked(NECK, pivots, np.where(singular, error, 0.0)).report
    assert report.acceptable and report.least_pivot == 1.0 and report.fallback == 0
    assert report.singular == (singular & ((pivot != 1.0) | (error > 0.0)) | others).sum()


def test_errors_at_singular_states_without_a_residual_do_not_count():
    singular = is_singular(*sampled(NECK)[:2])
    singular &= np.cumsum(singular) <= 8
    pivots = np.where(is_singular(*sampled(NECK)[:2]) & ~singular, 1e-9, np.where(singular, 2e-3, 1.0))[:, None]
    assert checked(NECK, pivots, np.where(singular, 0.5, 0.0), np.zeros(N)).report.acceptable


def test_programs_are_checked_at_few_states():
    report = checked(ARM, ONES, at(2, 1e-8), states=6).report
    assert report.states == report.compared == 6 and not report.acceptable


def test_lengths_far_away_are_checked_as_far_as_digits_go():
    """Out to 1 km, 100 m or 5 m, and calls use the fallback beyond; errors at near states are errors."""
    problem = sd.forward_dynamics(sd.random_tree(3, seed=4, joints=("revolute", "prismatic")))
    lengths = travelled(sd.assemble(problem), sampled(problem)[1]["q"])
    assert (lengths > 100.0).sum() > 20
    for beyond, verified in ((1e9, FARTHEST), (100.0, 100.0), (10.0, NEAR)):
        report = checked(problem, ONES, np.where(lengths > beyond, 1e-6, 0.0)).report
        assert report.verified_range == verified and report.good and report.states == (lengths <= verified).sum()
    far = checked(problem, np.where(lengths > NEAR, 1e10, 1.0)[:, None], np.zeros(N))
    assert far.thresholds == [pytest.approx((ZERO, FALLBACK))]  # by pivots that every program meets
    assert not checked(problem, ONES, np.where((lengths > 0.5) & (lengths < 3.0), 1e-6, 0.0)).report.acceptable


def test_programs_have_the_ranges_of_what_was_checked():
    """Lengths without limits that the program reads, out to its verified range; angles have none."""
    model = sd.random_tree(3, seed=4, joints=("revolute", "prismatic"))
    graph = Graph("structural")
    q, qd = graph.inputs("q", 3), graph.inputs("qd", 3)
    program = Program.from_graph(graph, [("qd", list(qd)), ("q", list(q))], [("x", [q[1] * q[2]])])
    report = replace(checked(ARM, ONES, np.zeros(N)).report, verified_range=10.0)
    assert [joint.kind for joint in model.joints] == ["prismatic", "prismatic", "revolute"]
    assert with_ranges(program, model, report).ranges == ((4, 10.0),)


# ---- differences ---------------------------------------------------------------------------------------------------


def difference(system: System, d: np.ndarray, expected: np.ndarray) -> float:
    return float(relative_differences(system, d, expected).max())


def test_large_values_near_singular_states_do_not_hide_errors_of_others():
    """They are 1e13 times as large: a relative error of 1e-2 of the others counts."""
    system, _, right = sampled(ARM)
    columns, huge = system.layout.quantity_columns("qdd"), np.arange(N) % 3 == 0
    reference = np.where(huge[:, None], 1e13, 1.0) * right
    d = reference.copy()
    d[:, columns] *= np.where(huge, 1.0, 1.01)[:, None]
    assert difference(system, d, reference) == pytest.approx(1e-2, rel=0.1)


def test_differences_are_relative_to_each_quantity():
    """A small one among large ones; but not where it vanishes, and what is left of it is rounding. No known one."""
    system, _, right = sampled(ARM)
    known = right.copy()
    known[:, system.layout.quantity_columns("tau")] += 1.0
    assert difference(system, known, right) == 0.0
    nothing, columns = np.zeros_like(right), system.layout.quantity_columns("qdd")
    assert difference(system, nothing, nothing) == 0.0
    assert difference(system, nothing + 1e-3, nothing) == 1e-3
    for factor in (1.0, 1e-3):
        reference = right.copy()
        reference[:, columns] *= factor
        d = reference.copy()
        d[:, columns] *= 1.0 + 1e-6
        assert difference(system, d, reference) == pytest.approx(1e-6, rel=1e-3)
        d, reference[7, columns] = reference.copy(), 0.0
        d[7, columns] = 1e-14 * np.abs(right[7]).max()
        assert difference(system, d, reference) < 1.1e-8


# ---- eliminations and recursions -----------------------------------------------------------------------------------


def force_by_torque() -> Problem:
    """A force on the last body of an arm, which the torque of its first joint tells."""
    arm = sd.chain(3)
    return sd.Problem(arm, [
        sd.JointAcceleration("all"), sd.JointTorque(arm.joint_names[:1]), sd.ExternalWrench(arm.body_names[:-1]),
        sd.ExternalWrench(arm.body_names[-1], ["nx", "ny", "nz", "fy", "fz"]),
    ])  # fmt: skip


@pytest.mark.parametrize(("make", "shuffled"), [
    (lambda: sd.forward_dynamics(sd.chain(3)), False), (force_by_torque, False), (lambda: ARM, True)
], ids=["forward", "force", "shuffled"])  # fmt: skip
def test_structural_pivots_are_those_of_a_dense_elimination(make, shuffled):
    """A pivot alone in its row, or its column, is zero only if the determinant is.

    In another sequence of the same pivots one of them is alone in its row, but not in its column.
    """
    problem = make()
    system, order = sd.assemble(problem), sd.compile(problem, "umfpack", level="fast", formulation="paper").choice
    if shuffled:
        places = np.random.default_rng(2).permutation(len(order.row_perm))
        row_perm, col_perm = (tuple(np.array(x)[places].tolist()) for x in (order.row_perm, order.col_perm))
        order = replace(order, row_perm=row_perm, col_perm=col_perm)
    eliminated = Elimination(system, order.row_perm, order.col_perm)
    inputs, (rows, columns) = sample_states(problem, 40, seed=CHECK_SEED, ranges=True), system.scaling
    rearranged = np.ix_(order.row_perm, order.col_perm)
    pivots = [k for k, x in enumerate(eliminated.factors.pivots) if not is_constant(x)]
    lonely = np.ones(len(pivots), dtype=bool)
    for entries in system.values(inputs)[0]:
        U, L = (rows[:, None] * system.matrix(entries).toarray() * columns)[rearranged], np.eye(system.shape[0])
        for k in range(len(U)):
            L[k + 1 :, k] = U[k + 1 :, k] / U[k, k]
            U[k + 1 :] -= np.outer(L[k + 1 :, k], U[k])
        others = (np.abs(x) > 1e-12 for x in (np.triu(U, 1), np.tril(L, -1).T))
        lonely &= ~np.logical_and(*(x.any(axis=1)[pivots] for x in others))
    assert lonely.any() and (eliminated.checked_program().structural == lonely).all()


def test_programs_that_were_not_checked_have_guards_against_zero():
    system, order = sd.assemble(ARM), sd.compile(ARM, "umfpack", level="fast", formulation="elimination").choice
    guards = Elimination(system, order.row_perm, order.col_perm).program(("qdd",)).guards
    assert {(x.threshold, x.weak) for x in guards} == {(0.0, 0.0)}


@pytest.mark.slow
def test_a_recursion_of_a_long_chain_loses_no_digits():
    """Torques of a motion with q̈ = 0, checked by accelerations of bodies that follow from the result, left 1.5e-9."""
    problem = sd.forward_dynamics(sd.auto_tree(200, 1, 1.5, 1))
    options = Options(outputs=("qdd",), external_wrenches=False)
    written = recursion.generate_dynamics(problem, options)
    choice, _ = recursion.compile_recursion(problem, written, options, states=16)
    assert written.method == "articulated" and written.total <= 282.5 * 200
    assert choice.report.acceptable and choice.report.backward_error <= 1e-11


@pytest.mark.slow
def test_a_wrong_recursion_of_a_long_chain_is_not_acceptable():
    """By 1e-7 of one acceleration, though a and f of the articulated-body algorithm are right."""
    problem = sd.forward_dynamics(sd.auto_tree(70, 1, 1.5, 1))
    options = Options(outputs=("qdd",), external_wrenches=False)
    written = recursion.generate_dynamics(problem, options)
    written.outputs["qdd"][35] = written.outputs["qdd"][35] * (1.0 + 1e-7)
    choice, _ = recursion.compile_recursion(problem, written, options, states=8)
    assert not choice.report.acceptable


def test_large_systems_are_checked_at_fewer_states():
    arm, chain = (sd.assemble(sd.forward_dynamics(sd.chain(n, seed=0))) for n in (3, 400))
    assert SampledStates.of(arm).n == CHECKED_STATES > SampledStates.of(chain).n >= 64
    report = Elimination(arm, *RECURSIVE["aba"](arm)).check(SampledStates.of(arm, 200)).report
    assert 180 < report.states <= 200
