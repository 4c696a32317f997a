"""Singular states and states at which only the order fails: errors, NaN, and solving with pivoting."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from solvers import ALIGNED, TOLERANCE, aligning, aligning_states, on_backend, relative_error

import sysdyn as sd
from sysdyn.codegen.registry import BACKENDS
from sysdyn.errors import SingularState
from sysdyn.model import (
    auto_tree,
)
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline import sampling
from sysdyn.offline.check import FALLBACK, ZERO, SampledStates
from sysdyn.offline.elimination import Elimination
from sysdyn.online.solver import ON_SINGULAR, Solver
from sysdyn.program.opcodes import BAD_PIVOT, WEAK_PIVOT
from sysdyn.reference import aba
from sysdyn.sparse import umfpack

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import random_sensors
    import singular
    import states


@pytest.fixture(scope="module", params=BACKENDS)
def aligning_solver(request) -> Solver:
    return sd.compile(sd.forward_dynamics(aligning()), backend=request.param)


def test_singular_state_names_equation_unknown_and_state(aligning_solver):
    q, qd, tau, fx = aligning_states()
    with pytest.raises(
        SingularState, match=r"cannot be solved at this state 4: equation .* does not give .*on_singular='nan'"
    ) as found:
        aligning_solver(q, qd, tau, fx=fx)
    assert found.value.states == (4,)
    assert found.value.equation in sd.assemble(aligning_solver.problem).row_names
    assert found.value.unknown in sd.assemble(aligning_solver.problem).col_names
    assert found.value.equation in str(found.value) and found.value.unknown in str(found.value)
    with pytest.raises(SingularState, match="cannot be solved at this state: equation"):
        aligning_solver(q[4], qd[4], tau[4], fx=fx[4])
    with pytest.raises(SingularState, match=r"at this state 4 \(and 1 more of 20\)"):
        aligning_solver(*(np.concatenate([x, x]) for x in (q, qd, tau)), fx=np.concatenate([fx, fx]))


def test_singular_states_leave_the_others_alone(aligning_solver):
    q, qd, tau, fx = aligning_states()
    solution = aligning_solver(q, qd, tau, fx=fx, on_singular="nan")
    assert solution.ok.tolist() == [not singular for singular in ALIGNED]
    assert "1 not solved" in repr(solution)
    keep = solution.ok
    expected = aligning_solver(q[keep], qd[keep], tau[keep], fx=fx[keep])
    for quantity in QUANTITIES:
        assert np.isnan(solution[quantity][4]).all()
        np.testing.assert_allclose(solution[quantity][keep], expected[quantity], rtol=1e-12, atol=1e-12)
    single = aligning_solver(q[4], qd[4], tau[4], fx=fx[4], on_singular="nan")
    assert not single.ok and np.isnan(single.qdd).all()
    grid = [x.reshape(2, 5, *x.shape[1:]) for x in (q, qd, tau, fx)]
    shaped = aligning_solver(*grid[:3], fx=grid[3], on_singular="nan")
    assert shaped.ok.shape == (2, 5) and not shaped.ok[0, 4]


def test_on_singular_is_an_option_of_compile_too():
    q, qd, tau, fx = aligning_states()
    solver = sd.compile(sd.forward_dynamics(aligning()), on_singular="nan")
    assert solver(q, qd, tau, fx=fx).ok.sum() == 9
    assert pickle.loads(pickle.dumps(solver))(q, qd, tau, fx=fx).ok.sum() == 9
    with pytest.raises(SingularState):
        solver(q, qd, tau, fx=fx, on_singular="raise")


@functools.cache
def careless() -> Solver:
    """Forward dynamics of a chain, ordered by UMFPACK at a generic q: exact zero pivots at right angles."""
    problem = sd.forward_dynamics(auto_tree(6, 1, 1.5, 1))
    system = sd.assemble(problem)
    sampled = sampling.sample_matrix(system, sampling.sample_states(problem, 1))
    elimination = Elimination(system, *umfpack.permutations(sampled.weighted(1.0)))
    report = elimination.check(SampledStates.of(system, 64)).report
    assert not report.acceptable
    # at its worst states the pivots are as large as they like
    elimination.thresholds = dict.fromkeys(elimination.thresholds, (ZERO, FALLBACK))
    good = sd.compile(problem, "aba")
    choice = replace(good.choice, ordering="careless", row_perm=tuple(elimination.factors.row_perm),
                     col_perm=tuple(elimination.factors.col_perm), stability=report)  # fmt: skip
    broken = replace(good.compiled, choice=choice, program=elimination.program(QUANTITIES))
    return Solver(problem, good.options, broken)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_at_which_only_the_order_fails_are_solved(backend):
    """Whatever the policy: a pivot that vanishes is that of the order, the system is regular."""
    solver = on_backend(careless(), backend)
    model = solver.model
    q, qd, tau = model.random_state(seed=6, batch=24)
    q[::3] = np.random.default_rng(6).integers(0, 4, q[::3].shape) * (np.pi / 2)
    arrays = {"q": q, "qd": qd, "tau": tau, "fx": np.zeros((24, 6 * model.nb))}
    failing = solver.executable.results(arrays, 24)[1] & BAD_PIVOT != 0
    assert failing[::3].any() and not failing[1::3].any() and not failing[2::3].any()
    expected = aba(model, q, qd, tau)
    for policy in ON_SINGULAR:
        solution = solver(q, qd, tau, on_singular=policy)
        assert solution.ok.all() and relative_error(solution.qdd, expected) <= 1e-8
    k = int(np.flatnonzero(failing)[0])
    assert relative_error(solver(q[k], qd[k], tau[k]).qdd[None], expected[k][None]) <= 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", ["raise", "nan"])
def test_a_pivot_near_zero_costs_no_digits(backend, policy):
    """Near right angles the order alone loses them; the states are solved again with pivoting, whatever the policy."""
    solver = on_backend(careless(), backend)
    model = solver.model
    q, qd, tau = model.random_state(seed=7, batch=40)
    q[::2] = np.random.default_rng(7).integers(0, 4, q[::2].shape) * (np.pi / 2) + 1e-5
    solution = solver(q, qd, tau, on_singular=policy)
    assert solution.ok.all()
    assert relative_error(solution.qdd, aba(model, q, qd, tau)) <= TOLERANCE
    if backend == "llvm":
        step = solver.bind(q, qd, tau)
        step()
        weak = step.status == WEAK_PIVOT
        assert weak.any() and not weak.all() and not step.status[~weak].any()
        assert relative_error(step.out["qdd"], aba(model, q, qd, tau)) > 1e-6


# ---- estimates far out -----------------------------------------------------------------------------------------------


def states_of(seed: int, n: int) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """A random redundant problem, and inputs at n states out to a kilometre."""
    problem = random_sensors.random_problem(seed)
    return problem, states.calls(problem, n, np.random.default_rng(seed), states.KILOMETRE)


@pytest.mark.slow
def test_an_estimate_far_out_whose_multipliers_look_singular_is_solved():
    """With digits that pivoting keeps; it was refused, for the augmented matrix has a condition number beyond 1e12."""
    problem, inputs = states_of(18, 60)
    state = states.at(inputs, 38)
    system = sd.assemble(problem)
    entries = system.values(state)[0][0]
    assert system.reciprocal_condition(entries) < sampling.SINGULAR <= system.estimability(entries)
    solution = states.called(problem, sd.compile(problem, level="fast"), state)
    assert solution.ok and solution.reciprocal_condition() == system.estimability(entries)


@pytest.mark.slow
def test_singular_estimates_are_seen_without_multipliers():
    """At right angles a sensor sees nothing of what it is for: rounding errors must not look like a row."""
    problem, inputs = states_of(15, 25)
    system = sd.assemble(problem)
    found = np.array([system.estimability(x) >= sampling.SINGULAR for x in system.values(inputs)[0]])
    assert found.tolist() == [random_sensors.regular_at(problem, states.at(inputs, k)) for k in range(25)]
    assert 0 < np.count_nonzero(~found) < 12


# ---- necks and gimbals ----------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")  # of those that turn by 1e-8 rad to be regular
@pytest.mark.parametrize("seed", (0, 1, 3, 6))
@pytest.mark.parametrize("order", ("auto", "tearing", "markowitz"))
def test_singular_states_of_necks_and_gimbals_are_not_answered(seed, order):
    """Frames turned by 1.5707963 rad leave rounding errors for pivots, which 7 of 14 robots were answered by."""
    problem = sd.forward_dynamics(singular.robot(seed))
    for outputs in ("qdd", "all"):
        solver = sd.compile(problem, order, outputs=outputs, level="fast", backend="python")
        found = singular.counted(solver, 240, np.random.default_rng(seed))
        assert found["wrong"] == 0 and found["regular"] == 0 and 0 < found["answered"] < 240
