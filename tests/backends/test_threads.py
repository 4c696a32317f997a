"""Batches that are shared by threads, in calls and in prepared calls."""

from __future__ import annotations

import os
import threading
from functools import partial

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.backends.team import Team
from sysdyn.errors import InvalidInput


@pytest.fixture(scope="module")
def solver() -> sd.Solver:
    return sd.compile(sd.forward_dynamics(sd.auto_tree(5, 2, 1.5, 0.9)), outputs="qdd", level="fast")


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100])
def test_steps_give_every_state_whatever_the_number_of_threads(solver, threads, n):
    q, qd, tau = solver.model.random_state(seed=1, batch=n)
    step = solver.bind(q, qd, tau, threads=threads)
    for scale in (1.0, 0.5):
        tau *= scale
        step.out["qdd"][:] = np.nan
        step()
        expected = [sd.aba(solver.model, *state) for state in zip(q, qd, tau, strict=True)]
        np.testing.assert_allclose(step.out["qdd"], np.reshape(expected, (n, solver.model.nv)), rtol=1e-9, atol=1e-9)
        assert not step.status.any()
    one = solver.bind(*solver.model.random_state(seed=1), threads=threads)
    one()
    np.testing.assert_array_equal(one.out["qdd"], solver(*solver.model.random_state(seed=1)).qdd)


def test_derivatives_and_the_states_that_fail(solver):
    J = solver.derivatives(wrt=("q", "tau"))
    q, qd, tau = solver.model.random_state(seed=2, batch=50)
    step = J.bind(q, qd, tau, threads=2)
    step()
    for key, value in J(q, qd, tau, threads=1).items():
        np.testing.assert_array_equal(step.out[key], value)
    tau[[3, 40]] = np.inf
    step()
    assert set(np.flatnonzero(step.status)) == {3, 40}


def test_threads_are_a_number(solver):
    state = solver.model.random_state(seed=0, batch=4)
    J = solver.derivatives(wrt="tau")
    for threads in (0, -1, 1.5, "2"):
        for call in (solver, solver.bind, J, J.bind):
            with pytest.raises(InvalidInput, match="threads is .* an integer ≥ 1"):
                call(*state, threads=threads)


def test_many_callers_share_the_threads(solver):
    """Each thread steps a batch of its own, all at the same time."""
    states = [solver.model.random_state(seed=k, batch=200) for k in range(6)]
    steps = [solver.bind(*state, threads=3) for state in states]
    callers = [threading.Thread(target=lambda step=step: [step() for _ in range(30)]) for step in steps]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for step, state in zip(steps, states, strict=True):
        np.testing.assert_array_equal(step.out["qdd"], solver(*state, threads=1).qdd)


def test_a_team_works_side_by_side():
    team, meeting = Team(), threading.Barrier(3)
    team.run([lambda: meeting.wait(10)] * 3)  # passes if all three wait at the same time


@pytest.mark.parametrize("bad", range(3))
def test_the_other_parts_are_finished_when_one_fails(bad):
    done = []

    def part(k: int) -> None:
        done.append(k if k != bad else 1 // 0)

    with pytest.raises(ZeroDivisionError):
        Team().run([partial(part, k) for k in range(3)])
    assert sorted(done) == [k for k in range(3) if k != bad]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own(solver):
    q, qd, tau = solver.model.random_state(seed=1, batch=40)
    step = solver.bind(q, qd, tau, threads=2)
    step()
    expected = step.out["qdd"].copy()
    child = os.fork()
    if not child:
        step.out["qdd"][:] = 0.0
        threading.Timer(30.0, os._exit, (2,)).start()
        step()
        os._exit(int((step.out["qdd"] != expected).any()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
