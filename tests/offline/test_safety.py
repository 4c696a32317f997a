"""The judge: singular states, guards of every division, and errors that are not small."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.backward_error import residual_at
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import NoSafeOrdering
from sysdyn.model import Model, Revolute
from sysdyn.model.inertia import inertia
from sysdyn.model.se3 import X_motion
from sysdyn.offline import recursion
from sysdyn.offline.elimination import Elimination, judged_states
from sysdyn.offline.options import Options
from sysdyn.offline.pivoted_solves import reference
from sysdyn.offline.safety import (
    DOUBTFUL,
    EVERYWHERE,
    FAR_ERROR,
    KNOWN,
    LOOKED_AT,
    LOSING,
    LOST,
    ROUNDS,
    SAFETY_SAMPLES,
    SUSPECT,
    WEAK,
    judge,
    ranged,
    relative_difference,
)
from sysdyn.offline.sampling import SAFETY_SEED, is_singular, sample_states, travelled
from sysdyn.offline.verdict import COMPARED_UNKNOWNS, FIRM_ERROR, HOPELESS, TAIL, Behaviour, Candidate, Verdict
from sysdyn.problem import Problem
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
    for policy in ("nan", "repivot"):
        assert not solver(zero, zero, np.ones(3), on_singular=policy).ok
    q, qd, tau = np.array([0.3, 0.4, 0.5]), zero, np.ones(3)
    solution, expected = solver(q, qd, tau), sd.aba(neck(0.0095), q, qd, tau)
    if "qdd" in solver.outputs:
        np.testing.assert_allclose(solution.qdd, expected, rtol=1e-9)
    assert solution.ok and solver.safety.singular > 0 and solver.safety.small


def test_how_near_a_state_is_to_a_singular_one():
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


def test_what_is_singular_at_every_state_is_said_to_be_so():
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
        for options in ({"outputs": "qdd"}, {"ordering": "colamd"}):
            solver = sd.compile(problem, backend="python", level="fast", **options)
            assert not unguarded(solver.program), options


def test_forward_dynamics_of_a_serial_arm_guards_all_pivots_but_the_constant_one():
    solver = sd.compile(sd.forward_dynamics(sd.chain(6, seed=1)), outputs="qdd", backend="python")
    assert solver.choice.is_recursion and len(solver.program.guards) >= 5


# ---- pivots that come near zero --------------------------------------------------------------------------------------

N = 512


@functools.cache
def sampled(problem: Problem, ranges: bool) -> tuple[System, dict[str, np.ndarray], np.ndarray]:
    """(system, inputs at N states, the right answers there)."""
    system, inputs = problem.system(), sample_states(problem, N, seed=1, ranges=ranges)
    return system, inputs, reference(system, inputs).refined


def verdict(
    problem: Problem, pivots: np.ndarray, errors: np.ndarray, strict: bool = False, *, ranges: bool = False,
    told: np.ndarray | None = None, certain: np.ndarray | None = None,
    again: bool | None = None, singular: dict[int, bool] | None = None, states: int = N, compared: int | None = None,
) -> Verdict:  # fmt: skip
    """On a program with these pivots (N, p) and relative errors (N,) at the sampled states.

    ranges: these are in the ranges of the joints. told (N,): the backward errors that the program reports. states: the
    number of those that it is judged at. compared: the number of those that are compared at a time, as usual if None.
    """
    system, inputs, right = sampled(problem, ranges)
    number = {qd.tobytes(): k for k, qd in enumerate(inputs["qd"])}

    def run(part: dict[str, np.ndarray]) -> Behaviour:
        k = [number[qd.tobytes()] for qd in part["qd"]]
        error = None if told is None else told[k]
        return Behaviour(right[k] * (1.0 + errors[k])[:, None], pivots[k], error)

    candidate = Candidate(
        run=run, system=system, labels=[f"p{k}" for k in range(pivots.shape[1])], chunk=64, certain=certain,
        again=not problem.noisy if again is None else again,
        compared=COMPARED_UNKNOWNS if compared is None else compared * system.layout.n,
    )  # fmt: skip
    return judge(candidate, {name: x[:states] for name, x in inputs.items()}, singular, strict)


def sizes(least: float, greatest: float) -> np.ndarray:
    return np.exp(np.random.default_rng(0).permutation(np.linspace(np.log(least), np.log(greatest), N)))


ARM = sd.forward_dynamics(sd.chain(2))


def test_a_pivot_of_very_different_sizes_is_not_zero_where_it_is_small():
    """With one body of 10¹² times the inertia the size of a pivot was 0.1 at most states and 10¹⁰ at some."""
    found = verdict(ARM, sizes(1e-3, 1e11)[:, None], np.zeros(N))
    [(zero, weak)] = found.guards
    assert 1e-8 < zero < weak < 1e-3


def test_a_pivot_that_is_rounding_at_many_states_is_weak_there():
    """Axes of a gimbal that nearly coincide at right angles: answers were 3e-3 off, and no residual said so."""
    rounding = np.arange(N) % 10 < 3
    found = verdict(ARM, np.where(rounding, 1e-15, 1.0)[:, None], np.where(rounding, 3e-3, 0.0), told=np.zeros(N))
    [(zero, weak)] = found.guards
    assert zero < 1e-15 < weak == pytest.approx(1e-8)
    assert found.safety.weak == rounding.sum() and found.safety.difference < 1e-8 and not found.safety.firm
    everywhere = verdict(ARM, np.eye(2)[np.arange(N) % 2] + 1e-15, np.zeros(N)).safety
    assert everywhere.states == N and everywhere.weak == 0


def test_lost_digits_mark_the_gap_above():
    """Sizes were 1.5 to 3.8 where digits were lost, and 10⁶ and more elsewhere; at 11.5 they were lost silently."""
    lossy = np.arange(N) % 50 == 7
    pivots, errors = np.where(lossy, np.linspace(1.5, 3.8, N), sizes(1e6, 1e10)), np.where(lossy, 1e-8, 0.0)
    found = verdict(ARM, pivots[:, None], errors)
    assert found.safety.ok and found.safety.weak == lossy.sum()
    assert 50.0 < found.guards[0][1] < 1e5  # the geometric mean


def test_no_error_counts_as_more_than_all_digits():
    """1e-5 · √(1 / 1e-11), where the next states have pivots of 50."""
    lossy = np.arange(N) % 30 == 7
    pivots, errors = np.where(lossy, 1e-5, 50.0), np.where(lossy, 1e3, 0.0)
    [(_, weak)] = verdict(ARM, pivots[:, None], np.zeros(N), told=errors).guards
    assert weak == pytest.approx(1e-5 * math.sqrt(1e11))


def test_a_pivot_that_lost_five_digits_is_weak_whatever_errors_were_seen():
    [(_, weak)] = verdict(ARM, np.where(np.arange(N) % 30 == 7, 4e-7, 4.0)[:, None], np.zeros(N)).guards
    assert weak == pytest.approx(4e-5)


def test_errors_that_grow_mark_smaller_pivots_than_those_sampled():
    """By an inverse square from 1e-12 on; few of the sampled states are marked."""
    pivots = sizes(1e-8, 1.0)
    [(_, weak)] = verdict(ARM, pivots[:, None], 1e-12 * (1e-8 / pivots) ** 2).guards
    assert 0.2e-8 < weak < 1.1e-8 and (pivots < weak).mean() <= 0.002
    [(_, harmless)] = verdict(ARM, pivots[:, None], np.zeros(N)).guards
    assert harmless == pytest.approx(0.99e-8)


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
def test_lonely_pivots_are_those_of_a_dense_elimination(make, shuffled):
    """A pivot alone in its row, or its column, is zero only if the determinant is.

    In another sequence of the same pivots one of them is alone in its row, but not in its column.
    """
    problem = make()
    system, order = problem.system(), sd.compile(problem, "umfpack", level="fast", formulation="elimination").choice
    if shuffled:
        places = np.random.default_rng(2).permutation(len(order.row_perm))
        row_perm, col_perm = (tuple(np.array(x)[places].tolist()) for x in (order.row_perm, order.col_perm))
        order = replace(order, row_perm=row_perm, col_perm=col_perm)
    eliminated = Elimination(system, order.row_perm, order.col_perm)
    inputs, (rows, columns) = sample_states(problem, 40, seed=SAFETY_SEED, ranges=True), system.scaling
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
    assert lonely.any() and (eliminated.candidate().certain == lonely).all()


def test_programs_that_nobody_judged_have_guards_against_zero():
    system, order = ARM.system(), sd.compile(ARM, "umfpack", level="fast", formulation="elimination").choice
    guards = Elimination(system, order.row_perm, order.col_perm).program(("qdd",)).guards
    assert {(x.threshold, x.weak) for x in guards} == {(0.0, 0.0)}


def test_refinement_takes_operations_only_if_it_is_asked_for():
    system = ARM.system()
    order = sd.compile(ARM, "umfpack", level="fast", formulation="elimination").choice
    plain, refined = (
        Elimination(system, order.row_perm, order.col_perm, refined=x).choice("umfpack", ("qdd",)).end_to_end.total
        for x in (False, True)
    )
    assert plain < refined / 1.5


def test_long_recursions_are_judged_at_fewer_states():
    of_length = [recursion.judged_states(n, least) for n, least in ((0, 0), (1000, 0), (10**6, 0), (10**6, 160))]
    assert of_length == [SAFETY_SAMPLES, SAFETY_SAMPLES, 100, 160]
    problem = sd.forward_dynamics(sd.chain(3, seed=0))
    options = Options(outputs=("qdd",), external_wrenches=False)
    for asked, states in ((None, SAFETY_SAMPLES), (160, 160)):
        choice, _ = recursion.build(problem, recursion.write(problem, options), options, asked)
        assert choice.judged.ok and 0.9 * states < choice.judged.states <= states


@pytest.mark.slow
def test_a_recursion_of_a_long_chain_loses_no_digits():
    """Torques of a motion with q̈ = 0, judged by accelerations of bodies that follow from the result, left 1.5e-9."""
    problem = sd.forward_dynamics(sd.auto_tree(200, 1, 1.5, 1))
    options = Options(outputs=("qdd",), external_wrenches=False)
    written = recursion.write(problem, options)
    choice, _ = recursion.build(problem, written, options, states=16)
    assert written.method == "articulated" and written.total <= 282.5 * 200
    assert choice.judged.ok and choice.judged.backward_error <= 1e-11


@pytest.mark.slow
def test_a_wrong_recursion_of_a_long_chain_is_seen():
    """By 1e-7 of one acceleration, though a and f of the articulated-body algorithm are right."""
    problem = sd.forward_dynamics(sd.auto_tree(70, 1, 1.5, 1))
    options = Options(outputs=("qdd",), external_wrenches=False)
    written = recursion.write(problem, options)
    written.outputs["qdd"][35] = written.outputs["qdd"][35] * (1.0 + 1e-7)
    choice, _ = recursion.build(problem, written, options, states=8)
    assert not choice.judged.ok


def test_large_systems_are_judged_at_fewer_states():
    of_size = [judged_states(SimpleNamespace(row_names=range(n))) for n in (100, 20_000, 10**6)]
    assert of_size == [SAFETY_SAMPLES, 200, 64]
    system = sd.forward_dynamics(sd.chain(3, seed=0)).system()
    elimination = Elimination(system, *RECURSIVE["aba"](system))
    for asked, states in ((None, SAFETY_SAMPLES), (200, 200)):
        safety, _ = elimination.assess(asked)
        assert 0.9 * states < safety.states <= states


def test_an_order_is_not_accepted_by_some_of_the_states():
    """Pivots that cross zero among the first states, where they are weak: the verdict was of these alone."""
    lossy = np.isin(np.arange(N), (5, 6))
    pivots = np.where(lossy, 1e-9, 1.0) * np.where(np.arange(N) == 6, -1.0, 1.0)
    found = verdict(ARM, np.stack([pivots, pivots], axis=1), np.where(lossy, 1e-6, 0.0), strict=True)
    assert found.safety.ok and found.safety.weak == 2 and found.safety.states == N - 2


def test_an_order_whose_pivots_cross_zero_is_judged_to_the_end(monkeypatch):
    """One that did so at the first states, and lost digits at later ones, was accepted."""
    assess = Elimination.assess

    def judged(self, states=64, singular=None, strict=False):
        safety, worst = assess(self, states, singular)
        return replace(safety, crossing=1, backward_error=1e-12 if strict else 1e-2), worst

    monkeypatch.setattr(Elimination, "assess", judged)
    with pytest.raises(NoSafeOrdering, match="backward error 1.0e-02"):
        sd.compile(ARM, "colamd", backend="python", level="fast")


def noisy() -> Problem:
    """Torques that are measured with noise."""
    model = sd.chain(2)
    torques = [sd.JointTorque(name, noise=0.1) for name in model.joint_names]
    return Problem(model, [*torques, *(sd.ExternalWrench(name) for name in model.body_names)])


def test_small_pivots_of_estimations_are_guarded():
    """9e-16 was the size of a pivot where exact equations were dependent, 1e-5 the least other: no guard met it."""
    steady, doubtful = sizes(0.1, 10.0), sizes(1e-5, 1e2)
    found = verdict(noisy(), np.stack([steady, doubtful], axis=1), np.zeros(N))
    (_, far), (zero, near) = found.guards
    assert far <= 1e-6  # covariances may be others, by 10⁴ as documented and a hundred times more
    assert zero < 1e-14 < near < 1e-6


def test_pivots_of_estimations_that_vanish_are_guarded_from_afar():
    """Two pivots of 1e-4 together cost eight digits near states at which both vanish: no sampled state is as near."""
    pivots = np.stack([sizes(1.0, 100.0), np.where(np.arange(N) == 8, 1e-9, sizes(1.0, 100.0))], axis=1)
    (_, steady), (_, vanishing) = verdict(noisy(), pivots, np.zeros(N), singular={8: True}).guards
    assert steady < 1e-4 and 1e-3 < vanishing < 1e-1
    pivots = np.where(np.arange(N) == 8, 1e-6, 1.0)[:, None]  # does not vanish at a limit
    assert verdict(noisy(), pivots, np.zeros(N), singular={8: True}).guards[0][1] == pytest.approx(DOUBTFUL)


def test_pivots_of_estimations_that_are_small_at_some_states_are_guarded_by_their_typical_size():
    """At right angles, say, where they are a ten thousandth of it and nothing is lost."""
    pivots = np.where(np.arange(N) % 10 < 3, 1.0, 1e4)
    for least, expected in ((1.0, 1e-2), (1e-3, 1e-4)):  # or below a tenth of the least size
        pivots[8] = least
        [(_, weak)] = verdict(noisy(), pivots[:, None], np.zeros(N)).guards
        assert weak == pytest.approx(expected)


def test_other_covariances_tell_nothing_of_usual_pivots():
    """Those of half of the states, though some of their numbers are what they were: zero."""
    model = sd.chain(2)
    torques = sd.JointTorque("all", noise=np.diag([0.01, 0.04]))
    problem = Problem(model, [torques, *(sd.ExternalWrench(name) for name in model.body_names)])
    others = np.arange(N) % 4 >= 2
    pivots, lossy = np.where(others, 1e-3, 1.0), others & (np.arange(N) % 8 == 3)
    for size, error in ((1e-3, 0.0), (1e-4, 1e-8)):
        [(_, weak)] = verdict(problem, np.where(lossy, size, pivots)[:, None], np.where(lossy, error, 0.0)).guards
        assert weak == pytest.approx(1e-6)


def test_estimations_that_lose_digits_are_guarded():
    """An error of 3e-9 at half the least pivot sampled was `ok`."""
    pivots = sizes(1e-9, 1.0)
    [(_, weak)] = verdict(noisy(), pivots[:, None], 1e-12 * (1e-9 / pivots) ** 1.5).guards
    assert 0.2e-9 < weak < 1.2e-9


# ---- what is accepted ------------------------------------------------------------------------------------------------

STEADY = np.ones((N, 1))


def at(state: int, value: float) -> np.ndarray:
    return np.where(np.arange(N) == state, value, 0.0)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("state", [0, N // 2 + 1, N - 1])
def test_one_state_with_an_error_is_enough(state):
    """Digits to spare, enough digits, too few, and no number at all."""
    fine, enough, poor, none = (verdict(ARM, STEADY, at(state, x)).safety for x in (1e-13, 1e-10, 1e-8, np.nan))
    assert fine.firm and fine.ok and fine.small
    assert enough.ok and enough.small and not enough.exact and enough.improvable
    assert not poor.stable and not poor.small and poor.improvable and poor.backward_error > 1e-9
    assert not none.ok and not none.improvable and none.backward_error == np.inf
    hopeless = verdict(ARM, STEADY, at(state, 0.1)).safety
    assert not hopeless.ok and not hopeless.improvable


def test_errors_that_residuals_do_not_show():
    """A pivoted solve of the worst states tells them; a well-conditioned system leaves it no excuse."""
    for error, ok, small in ((1e-12, True, True), (1e-8, False, True), (1e-5, False, False)):
        safety = verdict(ARM, STEADY, np.full(N, error), told=np.zeros(N)).safety
        assert safety.backward_error == 0.0 and safety.difference == pytest.approx(error, rel=0.1)
        assert (safety.ok, safety.small) == (ok, small) and safety.pivoted_difference < 0.2 * error
    for pivot in (0.1, 10.0):  # the states of the least and of the greatest pivots are among those compared
        pivots = np.where(at(5, 1.0) > 0.0, pivot, 1.0)[:, None]
        safety = verdict(ARM, pivots, at(5, 1e-8), told=np.zeros(N), compared=2).safety
        assert safety.difference == pytest.approx(1e-8, rel=0.1)


@pytest.mark.parametrize("share", [1e-4, 1e-7])
def test_states_that_lose_digits_without_a_residual_are_marked(share):
    """Whatever few others of the same size show, and however large other answers are."""
    few = np.arange(N) % 10 == 3
    pivots = np.where(few, share * (1.0 + np.arange(N) / N), 1.0)[:, None]
    found = verdict(ARM, pivots, np.where(few, 1e-4, 0.0), told=np.zeros(N))
    assert found.safety.weak == few.sum() and found.safety.difference < 1e-12
    assert 2.0 * share <= found.guards[0][1] < 1.0


def test_small_differences_mark_no_states():
    few = np.arange(N) % 10 == 3
    safety = verdict(ARM, np.where(few, 1e-4, 1.0)[:, None], np.where(few, 1e-7, 0.0), told=np.zeros(N)).safety
    assert safety.weak == 0 and safety.difference == pytest.approx(1e-7, rel=0.1) and not safety.ok


def test_states_that_lose_digits_without_a_residual_are_looked_for_once():
    """Of two that are compared after each other the second is the order's own."""
    errors = at(7, 1e-4) + at(9, 1e-4)
    pivots = np.where(at(7, 1.0) > 0.0, 1e-5, np.where(at(9, 1.0) > 0.0, 1e-4, 1.0))
    safety = verdict(ARM, pivots[:, None], errors, told=np.zeros(N), compared=1).safety
    assert safety.weak == 1 and safety.difference == pytest.approx(1e-4, rel=0.1)


def test_answers_near_singular_states_tell_nothing_of_others():
    """They are 1e13 times as large: a relative error of 1e-2 of the others counts."""
    system, inputs, right = sampled(ARM, False)
    columns, huge = system.layout.quantity_columns("qdd"), np.arange(N) % 3 == 0
    reference = np.where(huge[:, None], 1e13, 1.0) * right
    d = reference.copy()
    d[:, columns] *= np.where(huge, 1.0, 1.01)[:, None]
    assert relative_difference(system, d, reference) == pytest.approx(1e-2, rel=0.1)


def test_the_worst_states_are_handed_on():
    """Those with the largest errors and the least pivot, by which the next search is guided."""
    pivots = np.hstack([np.where(at(77, 1.0)[:, None] > 0.0, 1e-3, STEADY), STEADY])
    inputs = sampled(ARM, False)[1]
    worst = verdict(ARM, pivots, at(401, 3e-10) + at(402, 2e-10)).worst
    assert len(worst["qd"]) < 20
    for state in (77, 401, 402):
        assert (worst["qd"] == inputs["qd"][state]).all(axis=1).any(), state


# ---- pivots that change their sign -----------------------------------------------------------------------------------


def signs(every: int) -> np.ndarray:
    """(N, 1): −1 at each of so many states."""
    return np.where(np.arange(N) % every == 3, -1.0, 1.0)[:, None]


def test_pivots_that_pass_through_zero():
    """One of two that change their signs together is at fault; of one alone the determinant vanishes with it."""
    both, one = np.hstack([signs(9), signs(9)]), np.hstack([signs(9), STEADY])
    safety = verdict(ARM, both, np.zeros(N)).safety
    assert (safety.crossing, safety.states) == (2, N)
    assert verdict(ARM, one, np.zeros(N)).safety.crossing == 0
    assert verdict(ARM, np.hstack([both, signs(5)]), np.zeros(N)).safety.crossing == 0
    found = verdict(ARM, np.hstack([both, signs(9), signs(9)]), np.zeros(N), certain=np.array([True, False] * 2))
    assert found.safety.crossing == 2 and not found.safety.firm


def test_where_pivots_pass_through_zero_small_ones_lose_digits():
    """Between two states of opposite signs there are some that were not sampled, with a pivot of any size."""
    pivots = 4.0 * np.hstack([signs(9), signs(9), STEADY])
    through, also, steady = verdict(ARM, pivots, np.zeros(N)).guards
    assert through == also == pytest.approx((4e-11, 4e-3))
    assert steady == pytest.approx((4e-11, 4e-3))  # a thousandth of the greatest, below the least
    *_, small = verdict(ARM, np.hstack([pivots, sizes(1e-4, 1.0)[:, None]]), np.zeros(N)).guards
    assert small == pytest.approx((1e-11, 0.99e-4))  # what is smaller than all that was sampled is not known
    small = signs(9) * sizes(1e-4, 1.0)[:, None]
    assert verdict(ARM, np.hstack([small, small, STEADY]), np.zeros(N)).guards[0] == pytest.approx((1e-11, 1e-3))
    certain = np.array([True, True, False])
    found = verdict(ARM, np.hstack([small, small, STEADY]), np.zeros(N), certain=certain)
    assert found.guards[0] == pytest.approx((1e-11, 0.99e-4))


def test_a_pivot_that_is_zero_at_a_state_does_not_pass_through_it():
    """Whatever sign the others have; one that is zero at most states has no typical size."""
    zero = np.where(at(8, 1.0) > 0.0, 0.0, 1.0)[:, None]
    for sign in (1.0, -1.0):
        assert verdict(ARM, sign * zero, np.zeros(N)).guards == [(0.0, pytest.approx(1e-5))]
    assert not verdict(ARM, np.where(np.arange(N) % 3 == 0, 1.0, 0.0)[:, None], np.zeros(N)).safety.ok


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_the_rarer_sign_guides_the_search(size):
    """The state that is farthest on the other side, among the worst."""
    pivots = size * np.hstack([signs(64), signs(64)])
    pivots[67] *= 50.0
    inputs = sampled(ARM, False)[1]
    assert (verdict(ARM, pivots, np.zeros(N)).worst["qd"] == inputs["qd"][67]).all(axis=1).any()


def test_the_least_pivot_is_named():
    pivots = np.stack([np.full(N, 5.0), sizes(1e-3, 2.0)], axis=1)
    safety = verdict(ARM, pivots, np.zeros(N)).safety
    assert safety.least_pivot == pytest.approx(5e-4) and safety.least_pivot_name == "p1" and safety.firm
    certain = verdict(ARM, pivots, np.zeros(N), certain=np.array([False, True])).safety
    assert certain.least_pivot == 1.0 and certain.least_pivot_name == "p0"
    none = verdict(ARM, pivots, np.zeros(N), certain=np.ones(2, dtype=bool)).safety
    assert none.least_pivot_name.startswith("none") and (none.least_pivot, none.crossing) == (1.0, 0)
    assert not verdict(ARM, np.stack([STEADY[:, 0], sizes(1e-6, 1.0)], axis=1), np.zeros(N)).safety.firm


# ---- digits lost by small pivots -------------------------------------------------------------------------------------


def test_digits_lost_at_many_states_are_the_order_s_own():
    """Small pivots lose digits at a third of the states: calls cannot solve all of these with pivoting."""
    lossy = np.arange(N) % 3 == 0
    pivots = np.where(lossy, 1e-4, 1.0)[:, None]
    for columns in (pivots, np.hstack([pivots, STEADY])):
        many = verdict(ARM, columns, np.where(lossy, 1e-8, 0.0)).safety
        assert many.weak == 0 and not many.ok
    lossy = np.arange(N) % 30 == 0
    larger = np.where(np.arange(N) % 31 == 5, 1e-2, 1.0)  # these lose nothing
    few = verdict(ARM, np.where(lossy, 1e-4, larger)[:, None], np.where(lossy, 1e-8, 0.0))
    assert few.safety.weak == lossy.sum() and few.safety.ok and few.guards[0][1] > 1e-4
    assert few.safety.singular == 0
    assert few.safety.states == N - lossy.sum() and not few.safety.firm  # at more than one in a hundred
    one = verdict(ARM, np.stack([np.where(lossy, 1e-4, larger), np.ones(N)], axis=1), np.where(lossy, 1e-8, 0.0)).safety
    assert one.weak == lossy.sum() and one.ok  # one of two pivots is enough
    kept = verdict(ARM, np.where(lossy, 1e-4, 1.0)[:, None], np.where(lossy, 1e-8, 0.0), again=False)
    assert kept.safety.weak == 0 and not kept.safety.ok


def test_limits_of_a_firm_program_are_its_own():
    """An error of exactly the limit, and pivots that are weak at exactly one in a hundred states."""
    fine = replace(verdict(ARM, STEADY, np.zeros(N)).safety, states=200, pivoted=0.0)
    assert replace(fine, backward_error=FIRM_ERROR).exact and not replace(fine, backward_error=2.0 * FIRM_ERROR).exact
    assert replace(fine, weak=2).firm and not replace(fine, weak=3).firm
    assert "2 states to be solved with pivoting" in str(replace(fine, weak=2)) and "states" not in str(fine)


def test_errors_near_the_limit_at_more_than_two_of_a_thousand_states_reach_beyond_it():
    errors = np.zeros(N)
    errors[: int(TAIL * (N - 1))] = 0.5 * FIRM_ERROR
    few = verdict(ARM, STEADY, errors).safety
    errors[-1] = 0.5 * FIRM_ERROR
    many = verdict(ARM, STEADY, errors).safety
    assert few.exact and few.firm and not many.exact and many.ok and many.improvable
    assert few.tail < 0.1 * FIRM_ERROR < many.tail < few.backward_error < FIRM_ERROR
    assert replace(many, pivoted=5e-13).exact  # a pivoted solve loses as many digits


def test_errors_that_small_pivots_or_lengths_tell_reach_no_farther():
    """Guards are beside these pivots, and ranges end where lengths lose digits."""
    lossy = np.arange(N) % 30 == 0
    errors, pivots = np.where(lossy, 0.5 * FIRM_ERROR, 0.0), np.where(lossy, 1e-4, 1.0)[:, None]
    assert verdict(ARM, pivots, errors).safety.exact and not verdict(ARM, STEADY, errors).safety.exact
    problem = sd.forward_dynamics(sd.random_tree(3, seed=4, joints=("revolute", "prismatic")))
    lengths = travelled(problem.system(), sampled(problem, True)[1]["q"])
    for lossy, exact in ((lengths > 1.0, True), (lengths < 1.0, False)):
        told = np.where(lossy, 0.5 * FIRM_ERROR, 0.0)
        assert verdict(problem, STEADY, np.zeros(N), told=told, ranges=True).safety.exact == exact


def test_a_program_may_lose_a_hundred_times_what_a_pivoted_solve_loses():
    """Residuals and differences of an ill-conditioned system are no fault of the order; but not small for that."""
    fine = replace(verdict(ARM, STEADY, np.zeros(N)).safety, pivoted=0.0, pivoted_difference=0.0)
    for name, other, limit in (("backward_error", "pivoted", 1e-9), ("difference", "pivoted_difference", 3e-10)):
        assert replace(fine, **{name: limit}).ok and not replace(fine, **{name: 2.0 * limit}).ok
        for lost, ok in ((1e-3, True), (1e-5, False)):
            found = replace(fine, **{name: 5e-2, other: lost})
            assert (found.ok, found.small) == (ok, False)
    assert replace(fine, backward_error=1e-9, pivoted=1e-10).exact
    lossy = replace(fine, backward_error=1e-10)
    assert lossy.improvable and not fine.improvable and not replace(lossy, crossing=2).improvable
    assert fine.firm and lossy.ok and not lossy.firm and not replace(fine, difference=1e-8).firm
    assert not replace(fine, least_pivot=0.0).ok
    assert replace(fine, weak=17, states=200).seldom and not replace(fine, weak=18, states=200).seldom


def test_errors_without_small_pivots_are_the_order_s_own():
    lossy = np.arange(N) % 30 == 0
    found = verdict(ARM, np.where(lossy, 0.5, 1.0)[:, None], np.where(lossy, 1e-8, 0.0)).safety
    assert found.weak == 0 and not found.ok


# ---- states that are singular, far, or switched off ------------------------------------------------------------------


NECK = sd.forward_dynamics(neck(0.0095))


def test_singular_states_do_not_count_and_guards_meet_them():
    """The neck at q = 0 and other right angles: a pivot that is rounding there, and anything as the answer."""
    problem, singular = NECK, is_singular(*sampled(NECK, False)[:2])
    assert 10 < singular.sum() < N / 2
    pivots, errors = np.where(singular, 1e-9, 1.0)[:, None], np.where(singular, 0.5, 0.0)
    found = verdict(problem, pivots, errors)
    assert found.safety.singular == singular.sum() and found.safety.ok
    assert found.safety.states == N - singular.sum() and found.safety.least_pivot == 1.0
    assert found.guards[0][1] > 1e-9
    told = {k: True for k in np.flatnonzero(singular)[:5].tolist()}
    assert verdict(problem, pivots, errors, singular=told).safety == found.safety
    assert len(told) > 5  # what was looked at is added


@pytest.mark.parametrize(
    ("pivot", "error"), [(1.0, 0.5), (1e-9, 0.0), (1e9, 0.0), (math.nan, 0.0)], ids=["error", "small", "large", "none"]
)
def test_each_sign_of_a_singular_state_is_enough(pivot, error):
    """A residual, a pivot that is rounding, or no number, or one that rounding was a divisor of; in any unit."""
    singular = is_singular(*sampled(NECK, False)[:2])
    for unit in (1.0, 1e6, 1e-6):
        pivots = unit * np.where(singular, pivot, 1.0)[:, None]
        safety = verdict(NECK, pivots, np.where(singular, error, 0.0)).safety
        assert safety.singular == singular.sum() and safety.ok and safety.least_pivot == 1.0


def test_singular_states_do_not_end_the_check():
    """One regular state among the first is against an order: the others are looked at unless it is hopeless."""
    singular = is_singular(*sampled(NECK, False)[:2])
    pivots, first = np.where(singular, 1e-9, 1.0)[:, None], np.flatnonzero(~singular)[0]
    for error, states in ((1e-8, N - singular.sum()), (0.5, (~singular)[:64].sum())):
        errors = np.where(singular, 0.5, at(first, error))
        safety = verdict(NECK, pivots, errors, strict=True).safety
        assert not safety.ok and safety.states == states


def test_some_states_with_doubtful_pivots_are_looked_at():
    known: dict[int, bool] = {}
    verdict(ARM, np.where(np.arange(N) % 2, 1e-5, 1.0)[:, None], np.zeros(N), singular=known)
    assert LOOKED_AT <= len(known) <= LOOKED_AT + EVERYWHERE


def test_values_at_their_limits():
    """One state that is known to be singular counts as such from a limit on; digits are lost from a limit on."""
    every, few = np.arange(N), np.arange(N) % 30 == 7

    def singular(pivot: float, error: float) -> int:
        known = dict.fromkeys(range(N), False) | {8: True}
        pivots = np.hstack([np.where(every == 8, pivot, 1.0)[:, None], STEADY])
        return verdict(ARM, pivots, np.zeros(N), told=at(8, error), singular=known, compared=1).safety.singular

    assert [singular(1.0, x * FIRM_ERROR) for x in (1.0, 1.1)] == [0, 1]
    assert [singular(x / SUSPECT, 0.0) for x in (1.0, 1.1)] == [0, 1]
    assert [singular(x * DOUBTFUL, 0.0) for x in (1.0, 1.1)] == [1, 0]

    def weak(size: float, error: float, states: np.ndarray = few) -> int:
        pivots = np.where(states, size, np.where(every % 30 == 8, 2.0 * size, 1.0))
        return verdict(ARM, pivots[:, None], np.zeros(N), told=np.where(states, error, 0.0)).safety.weak

    assert [weak(1e-4, x * LOSING[-1]) for x in (1.0, 1.1)] == [0, few.sum()]
    assert [weak(x * WEAK, 1e-8) for x in (1.0, 0.9)] == [0, few.sum()]
    assert [weak(x * SUSPECT, 0.0) for x in (1.0, 0.9)] == [0, few.sum()]
    assert [weak(1e-4, 1e-8, every % x == 0) for x in (4, 3)] == [N // 4, 0]

    def guarded(error: float) -> float:
        pivots = np.where(every == 9, 4e-5, np.where(every == 10, 5e-4, 1.0))[:, None]
        return verdict(ARM, pivots, np.zeros(N), told=at(10, error)).guards[0][1]

    assert [guarded(x * LOST) for x in (1.0, 1.1)] == [pytest.approx(KNOWN * 4e-5), pytest.approx(4e-5)]
    for error, states in ((HOPELESS, N), (2.0 * HOPELESS, 64)):
        assert verdict(ARM, STEADY, np.zeros(N), strict=True, told=at(0, error)).safety.states == states


def test_every_suspect_is_looked_at():
    """One singular state among regular ones with residuals, or with pivots smaller and larger than its own."""
    every, singular = np.arange(N), dict.fromkeys(range(N), False) | {8: True}
    lossy = np.where(every % 5 == 3, 1e-10, 0.0)
    assert verdict(ARM, STEADY, lossy, told=lossy, singular=dict(singular), compared=1).safety.singular == 1
    pivots = np.where(every < 200, np.where(every % 2, 1e-10, 1e-7), 1.0)
    pivots[8] = 1e-9
    for size in (1.0, 1e4):
        found = verdict(ARM, size * pivots[:, None], np.zeros(N), singular=dict(singular), compared=1)
        assert found.safety.singular == 1


def spread(states: np.ndarray, most: int) -> np.ndarray:
    """The states that are compared beside the worst ones where pivots tell nothing."""
    return states[np.linspace(0, len(states) - 1, most).astype(int)]


@pytest.mark.parametrize("rounds", [1, ROUNDS])
def test_singular_states_that_only_a_pivoted_solve_shows_do_not_count(rounds):
    """No pivot and no residual says so: the answers there are others. The worst ones are looked at again and again."""
    singular = is_singular(*sampled(NECK, False)[:2])
    at_once = math.ceil(singular.sum() / rounds)
    errors, told = np.where(singular, 0.5, 0.0), np.where(singular, 1e-13, 1e-15)
    safety = verdict(NECK, STEADY, errors, told=told, compared=at_once).safety
    assert safety.singular == singular.sum() and safety.ok and safety.difference < 1e-8


def test_the_worst_states_are_looked_at_a_few_times():
    """More of them are singular than are compared in all rounds."""
    singular = np.arange(N) < 20 * ROUNDS
    errors, told = np.where(singular, 0.5, 0.0), np.where(singular, 1e-13, 1e-15)
    safety = verdict(ARM, STEADY, errors, told=told, singular=dict(enumerate(singular.tolist())), compared=1).safety
    assert safety.difference == pytest.approx(0.5, rel=0.1) and 0 < safety.singular < 20 * ROUNDS


def test_where_all_states_compared_are_singular_others_are_looked_at():
    """Some of them, spread over all; where only some are singular the next worst ones are compared."""
    compared, every = 100, np.arange(N)
    worst = every < compared
    errors, told = np.where(worst, 0.5, 0.0), np.where(worst, 1e-13, 1e-15)
    singular = worst | (every % 2 == 1)
    known = dict(enumerate(singular.tolist()))
    safety = verdict(ARM, STEADY, errors, told=told, singular=known, compared=compared).safety
    chosen = np.union1d(every[worst], spread(every, EVERYWHERE))
    others = np.setdiff1d(every, chosen[singular[chosen]])
    looked_at = others[:: len(others) // EVERYWHERE]
    assert singular[chosen].sum() > compared and singular[looked_at].any()
    assert safety.singular == singular[chosen].sum() and safety.difference < 1e-8
    some = worst & (every != 8)
    errors, told = np.where(some, 0.5, 0.0), np.where(some, 1e-13, np.where(worst, 1e-14, 1e-15))
    singular = some | (every % 2 == 1)
    known = dict(enumerate(singular.tolist()))
    safety = verdict(ARM, STEADY, errors, told=told, singular=known, compared=compared).safety
    assert safety.singular == singular[chosen].sum() and safety.difference < 1e-8


def test_programs_are_judged_at_few_states():
    """Fewer than are looked at where all that were compared are singular: the first one, and the one with an error."""
    errors = at(2, 0.5)
    singular = {k: k in (0, 2, 3) for k in range(6)}
    safety = verdict(ARM, STEADY, errors, told=1e-13 * errors, singular=singular, states=6, compared=1).safety
    assert safety.ok and (safety.states, safety.singular) == (3, 3)


def test_answers_that_differ_at_regular_states_are_compared_with_a_pivoted_solve():
    """Refined and not, at the worst states: its errors there are the ones that excuse the program's."""
    system, inputs, _ = sampled(ARM, False)
    told = np.random.default_rng(0).permutation(np.linspace(0.0, 1e-13, N))
    for compared in (None, 1, 7):
        most = compared or COMPARED_UNKNOWNS // system.layout.n
        chosen = np.union1d(np.argsort(told)[-most:], spread(np.arange(N), min(most, EVERYWHERE)))
        solved = reference(system, {name: x[chosen] for name, x in inputs.items()})
        safety = verdict(ARM, STEADY, np.full(N, 1e-5), told=told, compared=compared).safety
        assert safety.difference == pytest.approx(1e-5, rel=0.1)
        assert safety.pivoted == solved.error.max()
        assert safety.pivoted_difference == relative_difference(system, solved.plain, solved.refined)
    again = [residual_at(system, inputs, x).backward_error for x in reference(system, inputs)[:2]]
    assert np.array_equal(again[1], reference(system, inputs).error) and again[1].max() < again[0].max()


@pytest.mark.parametrize("share", [1e-5, 1e-6, 1e-7])
def test_doubtful_pivots_of_singular_states_are_looked_at(share):
    """Two or three such pivots are those of a singular state, though each is far from rounding: guards leave room."""
    singular = is_singular(*sampled(NECK, False)[:2])
    pivots, some = np.where(singular, share, 1.0), np.flatnonzero(~singular)[::50]
    pivots[some] = 1e-5
    found = verdict(NECK, 8.0 * pivots[:, None], np.zeros(N))
    assert found.safety.singular == singular.sum() and found.safety.ok
    assert found.guards[0][1] == pytest.approx(8.0 * min(1e-4, 100.0 * share))


def test_regular_states_with_small_pivots_do_count():
    small = np.arange(N) % 30 == 0
    found = verdict(ARM, np.where(small, 1e-7, 1.0)[:, None], np.zeros(N)).safety
    assert found.singular == 0 and found.states == N and found.least_pivot == pytest.approx(1e-7) and not found.firm


def test_lengths_far_away_are_judged_as_far_as_digits_go():
    """Errors beyond 100 m: judged to there, and calls pivot at states beyond; errors at near states are errors."""
    problem = sd.forward_dynamics(sd.random_tree(3, seed=4, joints=("revolute", "prismatic")))
    lengths = travelled(problem.system(), sampled(problem, True)[1]["q"])
    assert (lengths > 100.0).sum() > 20
    for beyond, expected in ((100.0, 100.0), (10.0, 10.0), (1e9, 1000.0)):
        found = verdict(problem, STEADY, np.where(lengths > beyond, 1e-6, 0.0), ranges=True).safety
        assert found.reach == expected and found.ok and found.states == (lengths <= expected).sum()
        assert found.singular == 0
    at_limit = verdict(problem, STEADY, np.zeros(N), told=np.where(lengths > 100.0, FAR_ERROR, 0.0), ranges=True).safety
    assert at_limit.reach == 1000.0
    far = verdict(problem, np.where(lengths > 5.0, 1e10, 1.0)[:, None], np.zeros(N), ranges=True)
    assert far.guards == [pytest.approx((1e-11, 1e-3))]  # by pivots that every solver meets
    near = verdict(problem, STEADY, np.where((lengths > 0.5) & (lengths < 3.0), 1e-6, 0.0), ranges=True).safety
    assert not near.ok


def test_programs_have_the_ranges_of_what_was_judged():
    """Lengths without limits that the program reads, out to the reach of its verdict; angles have none."""
    model = sd.random_tree(3, seed=4, joints=("revolute", "prismatic"))
    graph = Graph("structural")
    q, qd = graph.inputs("q", 3), graph.inputs("qd", 3)
    program = Program.from_graph(graph, [("qd", list(qd)), ("q", list(q))], [("x", [q[1] * q[2]])])
    safety = replace(verdict(ARM, STEADY, np.zeros(N)).safety, reach=10.0)
    assert [joint.kind for joint in model.joints] == ["prismatic", "prismatic", "revolute"]
    assert ranged(program, model, safety).ranges == ((4, 10.0),)


def test_differences_are_relative_to_each_quantity():
    """A small one among large ones; but not where it vanishes, and what is left of it is rounding. No known one."""
    system, _, right = sampled(ARM, False)
    known = right.copy()
    known[:, system.layout.quantity_columns("tau")] += 1.0
    assert relative_difference(system, known, right) == 0.0
    nothing, columns = np.zeros_like(right), system.layout.quantity_columns("qdd")
    assert relative_difference(system, nothing, nothing) == 0.0
    assert relative_difference(system, nothing + 1e-3, nothing) == 1e-3
    for factor in (1.0, 1e-3):
        reference = right.copy()
        reference[:, columns] *= factor
        d = reference.copy()
        d[:, columns] *= 1.0 + 1e-6
        assert relative_difference(system, d, reference) == pytest.approx(1e-6, rel=1e-3)
        d, reference[7, columns] = reference.copy(), 0.0
        d[7, columns] = 1e-14 * np.abs(right[7]).max()
        assert relative_difference(system, d, reference) < 1.1e-8
