"""Orders whose pivots stay away from zero, at right angles, on tapered chains and at singular states."""

from __future__ import annotations

import inspect
import pickle
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
from sysdyn.offline.check import Check, SampledStates
from sysdyn.offline.compile import eliminated_system
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import CUSTOM, Options
from sysdyn.offline.order_selection import OrderSelection
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
    assert solver.stability.acceptable and solver.stability.states >= 1000


@pytest.mark.slow
def test_a_problem_that_is_singular_at_right_angles_compiles():
    """A past failure: states at which no order can do anything were held against every order."""
    for angle in (0.0, np.pi / 2):
        model = aligning(angle)
        solver = sd.compile(sd.forward_dynamics(model), level="fast", on_singular="nan")
        assert not solver.stability.inaccurate  # states that lose digits without a residual, by 3e-4 of q̈, are flagged
        q, qd, tau, fx = aligning_states(angle)
        solution = solver(q, qd, tau, fx=fx)  # pivoting has a tiny residual there, and no meaning
        assert solution.ok.tolist() == [not singular for singular in ALIGNED]
        assert np.isnan(solution.qdd).any(axis=1).tolist() == ALIGNED


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["aba", "umfpack"])
def test_a_long_tapered_chain_leaves_no_residual(ordering, tmp_path):
    """Masses over 14 decades."""
    model = auto_tree(40, 1, 1.5, 0.77)
    solver = sd.compile(sd.forward_dynamics(model), ordering, level="fast")
    q, qd, qdd = model.random_state(seed=5, batch=64)
    q[::4] = np.round(q[::4] / (np.pi / 2)) * (np.pi / 2)
    solution = solver(q, qd, rnea(model, q, qd, qdd))
    assert solution.backward_error().max() <= (1e-11 if ordering == "aba" else 1e-9)
    assert solver.stability.difference <= 1e-9
    assert load_solver(solver.save(tmp_path / "x.solver")).choice == solver.choice


def test_compilation_names_a_massless_leaf():
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
    choice, elimination = OrderSelection(system, options, Stages()).run()
    found = elimination.factors
    assert (choice.row_perm, choice.col_perm) == (tuple(found.row_perm), tuple(found.col_perm))
    assert choice.report.acceptable and choice.total == elimination.choice("again", options.outputs).total


@pytest.mark.parametrize(("share", "taken"), [(0.02, True), (0.1, False)])
def test_an_order_that_often_falls_back_gives_way_to_others(monkeypatch, share, taken):
    """To the cheapest other one, and stays if there is none."""
    problem, options = sd.forward_dynamics(sd.chain(2)), Options(formulation="paper", level="fast")
    system, check = eliminated_system(problem, options, PAPER), Elimination.check
    cheapest: list[tuple] = []

    def checked(elimination: Elimination, states: SampledStates) -> Check:
        result = check(elimination, states)
        order = tuple(elimination.factors.row_perm), tuple(elimination.factors.col_perm)
        cheapest[:] = cheapest or [order]
        fallback = int(share * result.report.states) if order == cheapest[0] else 0
        return result._replace(report=replace(result.report, fallback=fallback))

    monkeypatch.setattr(Elimination, "check", checked)
    choice, _ = OrderSelection(system, options, Stages(None)).run()
    assert (choice.report.fallback > 0) == taken and not choice.report.often_falls_back
    own, _ = OrderSelection(system, replace(options, ordering=CUSTOM, custom_order=cheapest[0]), Stages(None)).run()
    assert own.report.fallback > 0


@pytest.mark.parametrize(("error", "accepted"), [(1e-2, False), (1e-10, True)])
def test_orders_that_are_not_accurate_are_refused_with_their_errors(monkeypatch, error, accepted):
    check = Elimination.check

    def inaccurate(elimination: Elimination, states: SampledStates) -> Check:
        result = check(elimination, states)
        return result._replace(report=replace(result.report, backward_error=error))

    monkeypatch.setattr(Elimination, "check", inaccurate)
    problem = sd.forward_dynamics(sd.chain(2))
    if accepted:
        assert sd.compile(problem, "markowitz", backend="python", level="fast").stability.backward_error == error
        return
    with pytest.raises(NoSafeOrdering, match="backward error 1.0e-02") as caught:
        sd.compile(problem, "markowitz", backend="python", level="fast")
    error = caught.value
    assert all(line.startswith("markowitz") for line in error.tried) and len(set(error.tried)) == len(error.tried)
    assert pickle.loads(pickle.dumps(error)).tried == error.tried
