"""Orders whose pivots stay away from zero, at right angles, on tapered chains and at singular states."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace

import numpy as np
import pytest
from solvers import (
    ALIGNED,
    ORDERINGS,
    TOLERANCE,
    aligning,
    aligning_states,
    check_against_reference,
    compiled,
    model_of,
    relative_error,
    wrenches,
)

import sysdyn as sd
from sysdyn.errors import NoSafeOrdering
from sysdyn.model import (
    auto_tree,
    chain,
)
from sysdyn.offline.accepted import AcceptedOrder
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.formulations import eliminated_system
from sysdyn.offline.options import GIVEN, Options
from sysdyn.offline.stages import Stages
from sysdyn.online.compile import load_solver
from sysdyn.online.solver import Solver
from sysdyn.passes import PAPER
from sysdyn.reference import aba, rnea


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("ordering", [x for x in ORDERINGS if x != "rnea"])
def test_joints_at_multiples_of_a_right_angle(ordering):
    """Every combination on a chain: the states at which orders from a generic q meet zero pivots."""
    model = model_of("auto_tree 5 1 1.5 1")
    solver = compiled("auto_tree 5 1 1.5 1", "fd", ordering, level="fast")
    q = np.stack(np.meshgrid(*[np.arange(4) * (np.pi / 2)] * 5, indexing="ij"), axis=-1).reshape(-1, 5)
    rng = np.random.default_rng(0)
    qd, tau = rng.standard_normal((2, *q.shape))
    solution = solver(q, qd, tau)
    assert solution.ok.all()
    assert solution.backward_error().max() <= 1e-12
    assert relative_error(solution.qdd, aba(model, q, qd, tau)) <= TOLERANCE
    assert solver.safety.ok and solver.safety.states >= 2000


@pytest.mark.slow
def test_a_problem_that_is_singular_at_right_angles_compiles():
    """A past failure: states at which no order can do anything were held against every order."""
    for angle in (0.0, np.pi / 2):
        model = aligning(angle)
        solver = sd.compile(sd.forward_dynamics(model), level="fast", on_singular="nan")
        assert solver.safety.small  # states that lose digits without a residual, by 3e-4 of q̈, are marked
        q, qd, tau, fx = aligning_states(angle)
        for policy in ("nan", "repivot"):  # pivoting has a tiny residual there, and no meaning
            solution = solver(q, qd, tau, fx=fx, on_singular=policy)
            assert solution.ok.tolist() == [not singular for singular in ALIGNED]
            assert np.isnan(solution.qdd).any(axis=1).tolist() == ALIGNED


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["aba", "umfpack"])
def test_a_long_tapered_chain_leaves_no_residual(ordering, tmp_path):
    """Masses over 14 decades. A past failure: searched orders left 1e-10; refinement in the program ends that."""
    model = auto_tree(40, 1, 1.5, 0.77)
    solver = sd.compile(sd.forward_dynamics(model), ordering, level="fast")
    q, qd, qdd = model.random_state(seed=5, batch=64)
    q[::4] = np.round(q[::4] / (np.pi / 2)) * (np.pi / 2)
    solution = solver(q, qd, rnea(model, q, qd, qdd))
    assert solution.backward_error().max() <= 1e-11
    assert solver.safety.difference <= 1e-9
    assert solver.choice.refined == ("refinement follows" in solver.report()) == (ordering == "umfpack")
    assert load_solver(solver.save(tmp_path / "x.solver")).choice == solver.choice


def test_a_massless_leaf_is_found_when_compiling():
    model = chain(3, seed=1)
    I = model.inertias.copy()
    I[2] = 0.0
    with pytest.raises((NoSafeOrdering, sd.StructurallySingular), match="body2|joint2"):
        sd.compile(sd.forward_dynamics(model.replace(inertias=I)))
    check_against_reference(sd.compile(sd.inverse_dynamics(model.replace(inertias=I))))


@pytest.mark.slow
def test_the_tapered_tree_of_100_by_backward_error():
    solver = compiled("auto_tree 100 1.5 1.5 0.9", "fd", "auto", level="fast")
    q, qd, tau = solver.model.random_state(seed=1, batch=20)
    solution = solver(q, qd, tau * 0.9 ** np.arange(0, 500, 5))
    assert solution.ok.all()
    assert solution.backward_error().max() <= 1e-11


@pytest.mark.slow
def test_large_robots():
    """Nothing calls itself once a body: the limit of recursion is below the depth of the chain."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 170)
    try:
        check_a_large_robot(compiled("auto_tree 200 1 1.5 1", "fd", "aba", level="fast"))
    finally:
        sys.setrecursionlimit(limit)


def check_a_large_robot(solver: Solver) -> None:
    model = solver.model
    q, qd, _ = model.random_state(seed=1, batch=9, scale=0.1)
    tau = np.random.default_rng(1).standard_normal((9, model.nv))
    fx = wrenches(model, 9)
    solution = solver(q, qd, tau, fx=fx)
    assert solution.backward_error().max() <= 1e-12
    assert relative_error(solution.qdd, aba(model, q, qd, tau, fx)) <= 1e-6
    single = solver(q[0], qd[0], tau[0], fx=fx[0])
    assert single.backward_error() <= 1e-12
    assert relative_error(rnea(model, q[0], qd[0], single.qdd, fx[0])[None], tau[0][None]) <= 1e-6


@pytest.mark.parametrize("joints", [2, 3])
def test_the_order_is_that_of_its_elimination(joints):
    """Of two orders of as many operations one was judged and written, and the other one named."""
    problem, options = sd.forward_dynamics(sd.chain(joints)), Options(formulation="paper")
    system = eliminated_system(problem, options, PAPER)
    choice, elimination = AcceptedOrder(system, options, Stages()).find()
    found = elimination.factors
    assert (choice.row_perm, choice.col_perm) == (tuple(found.row_perm), tuple(found.col_perm))
    assert choice.judged.ok and choice.total == elimination.choice("again", options.outputs).total


@pytest.mark.parametrize(("share", "taken"), [(0.02, True), (0.1, False)])
def test_an_order_that_is_often_weak_gives_way_to_others(monkeypatch, share, taken):
    """To orders whose pivots come nearer to zero, and stay if there is none."""
    problem, options = sd.forward_dynamics(sd.chain(2)), Options(formulation="paper", level="fast")
    system, assess = eliminated_system(problem, options, PAPER), Elimination.assess
    safest: list[tuple] = []

    def assessed(elimination: Elimination, *args, **kwargs):
        safety, worst = assess(elimination, *args, **kwargs)
        order = tuple(elimination.factors.row_perm), tuple(elimination.factors.col_perm)
        safest[:] = safest or [order]
        weak = order == safest[0]
        marked = int(share * safety.states) if weak else 0
        kept = safety.states - marked
        return replace(safety, states=kept, weak=marked, least_pivot=1e-3 if weak else 1e-6), worst

    monkeypatch.setattr(Elimination, "assess", assessed)
    order = AcceptedOrder(system, options, Stages())
    choice, _ = order.find()
    assert len(order.considered) > 1 and (choice.judged.weak > 0) == taken and choice.judged.seldom
    alone, _ = AcceptedOrder(system, replace(options, ordering=GIVEN, given=safest[0]), Stages()).find()
    assert alone.judged.weak > 0


def test_turned_columns_are_refined_whatever_a_row_shows(monkeypatch):
    """Exact rows of zeros held 5e-9 beside multipliers of 4e8, an error of 1 in their terms: no solver was found."""
    model = sd.chain(2)
    stated = [sd.JointAcceleration("all", noise=0.1), sd.JointTorque("all", noise=0.1), sd.ExternalWrench("all")]
    problem, options = sd.Problem(model, stated), Options(level="fast")
    system, assess = eliminated_system(problem, options, options.passes), Elimination.assess

    def assessed(elimination: Elimination, *args, **kwargs):
        safety, worst = assess(elimination, *args, **kwargs)
        return (safety if elimination.refined else replace(safety, backward_error=1.0)), worst

    monkeypatch.setattr(Elimination, "assess", assessed)
    monkeypatch.setattr("sysdyn.offline.accepted.candidates", lambda *args, **kwargs: iter(()))
    choice, _ = AcceptedOrder(system, options, Stages()).find()
    assert choice.ordering == "orthogonal" and choice.refined and choice.judged.firm
