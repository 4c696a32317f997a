"""Batches that are shared by threads, in calls and in prepared calls."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from estimates import FAST, small
from programs import random_program

import sysdyn as sd
from sysdyn.codegen.interpreter import Interpreter
from sysdyn.errors import InvalidInput, SysdynError
from sysdyn.runtime import runner
from sysdyn.runtime.kernel import Kernel
from sysdyn.runtime.runner import Runner
from sysdyn.runtime.threads import LONGEST_PAUSE, ThreadPool, cores


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
    double, kinematics = sd.compile_function(lambda q: 2.0 * q, {"q": (3,)}), sd.kinematics(solver.model, ["bias"])
    for threads in (0, -1, 1.5, "2", True):
        for own, arguments in ((double, (np.zeros((2, 3)),)), (kinematics, state[:2])):
            with pytest.raises(InvalidInput, match="threads is .* an integer ≥ 1"):
                own(*arguments, threads=threads)
        for call in (solver, solver.bind, J, J.bind):
            for arguments in (state, [x[0] for x in state]):
                with pytest.raises(InvalidInput, match="threads is .* an integer ≥ 1"):
                    call(*arguments, threads=threads)


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


def test_threads_share_a_batch_by_its_work(solver):
    """As many as have some tens of microseconds each, whatever the number of states."""
    run = solver.executable
    worth = runner.THREAD_OPERATIONS // len(run.program)
    threads = []
    for n in (1, worth, 2 * worth - 16, 2 * worth + 16, 9 * worth):
        while not runner.THREADS.has_idle_cores():  # after calls whose threads got no cores
            pass
        threads.append(run.choose_threads(n))
    assert threads == [1, 1, 1, min(2, runner.CORES), min(8, runner.CORES)]


def test_a_team_works_side_by_side():
    team, meeting = ThreadPool(), threading.Barrier(3)
    team.run([lambda: meeting.wait(10)] * 3)  # passes if all three wait at the same time


def test_nobody_waits_for_a_thread_that_comes_too_late():
    crew, met, go_on, done = ThreadPool(), threading.Barrier(3), threading.Event(), []
    busy = threading.Thread(target=lambda: crew.run([lambda: (met.wait(10.0), go_on.wait(20.0))] * 2))
    busy.start()
    met.wait(10.0)  # the only thread of the team is busy from now on
    in_time(lambda: crew.run([partial(done.append, k) for k in range(9)], threads=2))
    assert done == [*range(9)] and not go_on.is_set()
    go_on.set()
    busy.join()


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("n", [2, 61, 700])
def test_regions_of_threads_that_never_come_are_done_by_others(solver, monkeypatch, threads, n):
    """Each state once, whoever comes."""
    state, solved = solver.model.random_state(seed=5, batch=n), []
    expected = solver(*state, threads=1).qdd
    for coming in (slice(1), slice(1, 2), slice(None)):
        monkeypatch.setattr(runner.THREADS, "run", lambda parts, own=coming: [part() for part in parts[own]])
        np.testing.assert_array_equal(solver(*state, threads=threads).qdd, expected)
    run_work_stealing = solver.executable.run_work_stealing
    monkeypatch.setattr(runner.THREADS, "run", lambda parts: [part() for part in parts])

    def call(counter: np.ndarray) -> bool:
        solved.append(counter.copy())
        return True

    assert run_work_stealing(n, threads, call)
    begun, region, share, *taken = solved[0].tolist()
    assert begun == 0 == sum(taken) and len(taken) == threads and region * threads >= n and region % share == 0


def test_calls_go_without_threads_where_others_have_the_cores():
    """Once, then three times, seven times; threads that get cores are taken again."""
    clock, own_clock = list[float](), list[float]()
    crew = ThreadPool(clock=lambda: clock.pop(0), own_clock=lambda: own_clock.pop(0))

    def run(wall: float, used: float) -> int:
        """How many calls go without threads after one that takes these times."""
        clock[:], own_clock[:] = (1.0, 1.0 + wall), (7.0, 7.0 + used)
        crew.run([lambda: None] * 2)
        return next(k for k in itertools.count() if crew.has_idle_cores())

    crowded, free = (3.0, 1.0), (1.2, 1.0)
    assert [run(*times) for times in (free, crowded, crowded, crowded, free, crowded)] == [0, 1, 3, 7, 0, 1]
    assert max(run(*crowded) for _ in range(9)) == LONGEST_PAUSE


@pytest.mark.parametrize("bad", range(3))
def test_the_other_parts_are_finished_when_one_fails(bad):
    done = []

    def part(k: int) -> None:
        done.append(k if k != bad else 1 // 0)

    with pytest.raises(ZeroDivisionError):
        ThreadPool().run([partial(part, k) for k in range(3)])
    assert sorted(done) == [k for k in range(3) if k != bad]


@pytest.mark.parametrize("started", [0, 1, 2])
def test_threads_that_cannot_be_started_are_done_without(started):
    """As where the limit of processes is reached; the team goes on, and starts them when it can."""
    made, limited = [], True

    class Limited(threading.Thread):
        def start(self) -> None:
            if limited and len(made) == started:
                raise RuntimeError("can't start new thread")
            made.append(self)
            super().start()

    crew, done = ThreadPool(thread=Limited), []
    for _ in range(3):
        in_time(lambda: crew.run([partial(done.append, k) for k in range(5)]))
    assert sorted(done) == sorted([*range(5)] * 3) and len(made) == started
    limited = False
    meeting = threading.Barrier(5)
    crew.run([lambda: meeting.wait(10)] * 5)


def in_time(call) -> None:
    """Call it on a thread; fails where it does not return."""
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(20.0)
    assert not caller.is_alive()


class Waiting(Interpreter):
    """A back end whose kernel takes as long as it is told."""

    began, go_on = threading.Event(), threading.Event()

    def kernel(self, single):
        body = ctypes.cast(COMPUTE, ctypes.c_void_p).value
        return Kernel(self.program, body, 1, n_slots=999, status_slot=998, n_pauses=0, owner=COMPUTE)


@ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
def COMPUTE(work, between, context):
    Waiting.began.set()
    Waiting.go_on.wait(20.0)


def test_a_step_is_refused_while_it_runs_on_another_thread():
    """The two would share a workspace."""
    program = random_program(3, blocks=1)
    inputs = {name: np.zeros((8, size)) for name, size in program.inputs.sizes.items()}
    outputs = {name: np.zeros((8, size)) for name, size in program.outputs.sizes.items()}
    step = Runner(Waiting(program)).bind(inputs, outputs, np.zeros(8, np.int64), outputs, single=False)
    busy = threading.Thread(target=step)
    busy.start()
    assert Waiting.began.wait(10.0)
    with pytest.raises(SysdynError, match="running on another thread: bind one for each thread"):
        step()
    Waiting.go_on.set()
    busy.join()
    step()


# ---- cores ---------------------------------------------------------------------------------------------------------

V1, V2 = "4:cpu,cpuacct:/user/jobs\n0::/\n", "0::/user/jobs\n"
QUOTAS = {
    "no files": (V2, {}, None),
    "no limit": (V2, {"user/jobs/cpu.max": "max 100000\n"}, None),
    "of its own": (V2, {"user/jobs/cpu.max": "200000 100000\n"}, 2),
    "a part of a core": (V2, {"user/jobs/cpu.max": "50000 100000\n"}, 1),
    "of a group above": (V2, {"user/jobs/cpu.max": "max 100000\n", "user/cpu.max": "250000 100000\n"}, 3),
    "in a container": (V2, {"cpu.max": "150000 100000\n"}, 2),
    "first version": (V1, {"cpu/user/jobs/cpu.cfs_quota_us": "300000", "cpu/user/jobs/cpu.cfs_period_us": "100000"}, 3),
    "none in the first": (V1, {"cpu/user/cpu.cfs_quota_us": "-1", "cpu/user/cpu.cfs_period_us": "100000"}, None),
    "damaged": (V2, {"cpu.max": "many\n", "user/cpu.max": "100000 0\n"}, None),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_threads_are_no_more_than_the_cores_that_may_be_used(name, tmp_path):
    groups, files, allowed = QUOTAS[name]
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text(groups)
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    for available in (1, 4, 64):
        assert cores(root, own, available) == min(available, allowed or available)


# ---- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_process_is_forked_while_another_thread_compiles(monkeypatch):
    """In the new process nobody releases what that thread has locked."""
    monkeypatch.setenv("SYSDYN_CACHE", "")
    stop = threading.Event()

    def compile_on() -> None:
        function, size = (lambda x: np.tanh(1.0) * x / (x + 2.0)), 3
        while not stop.is_set():
            size += 1
            sd.compile_function(function, {"x": (size,)}, level=0)(np.ones(size))

    def child() -> None:
        threading.Timer(30.0, os._exit, (2,)).start()
        sd.compile_function(lambda x: x / 3.0, {"x": (2,)}, level=0)(np.ones((9, 2)))
        os._exit(0)

    sd.compile_function(lambda x: x / 2.0, {"x": (2,)}, level=0)(np.ones((9, 2)))  # Python locks imports
    busy = threading.Thread(target=compile_on)
    busy.start()
    try:
        codes = []
        for _ in range(8):
            number = os.fork()
            if not number:
                child()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
    finally:
        stop.set()
        busy.join()
    assert codes == [0] * 8


class Slow:
    """Something with a property that takes its time."""

    began, go_on = threading.Event(), threading.Event()

    @functools.cached_property
    def value(self) -> int:
        self.began.set()
        self.go_on.wait(60.0)
        return 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_computes_properties_that_another_thread_was_at(monkeypatch):
    """Before Python 3.12 a lock is held meanwhile."""
    monkeypatch.setattr("sysdyn.runtime.threads.Slow", Slow, raising=False)
    busy = threading.Thread(target=lambda: Slow().value)
    busy.start()
    Slow.began.wait(10.0)
    child = os.fork()
    if not child:
        threading.Timer(30.0, os._exit, (2,)).start()
        Slow.go_on.set()
        os._exit(0 if Slow().value == 3 else 1)
    Slow.go_on.set()
    busy.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_asks_what_another_thread_was_asking(monkeypatch):
    """Of an estimate, whose programs are made when they are first asked for."""
    problem, began, go_on = small(), threading.Event(), threading.Event()

    def waiting(what: str, share: float) -> None:
        if what == "variances of tau: eliminating":
            began.set()
            go_on.wait(10.0)

    monkeypatch.setenv("SYSDYN_CACHE", "")
    q, qd, _ = problem.model.random_state(seed=1)
    y = {m.name: np.zeros(len(m.components(problem.model))) for m in problem.custom}
    estimate = sd.compile(problem, **FAST, outputs="tau", progress=waiting)(q, qd, y=y)
    busy = threading.Thread(target=lambda: estimate.std("tau"))
    busy.start()
    assert began.wait(10.0)
    child = os.fork()
    if not child:
        threading.Timer(30.0, os._exit, (2,)).start()
        go_on.set()
        os._exit(int(not np.isfinite(estimate.std("tau")).all()))
    go_on.set()
    busy.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


MANY = """
import threading
import numpy as np, sysdyn as sd
from sysdyn.runtime.threads import MOST_THREADS

arm = sd.chain(3)
solver = sd.compile(sd.forward_dynamics(arm), outputs="qdd", level="fast")
J, kinematics = solver.derivatives(wrt="q"), sd.kinematics(arm, ["bias"], level=0)
double = sd.compile_function(lambda q: 2.0 * q, {"q": (3,)})
for n, most in ((0, 1), (1, 1), (2, 1), (40, 20), (20_000, MOST_THREADS)):
    q, qd, tau = arm.random_state(seed=0, batch=n)
    for call in (
        lambda: solver(q, qd, tau, threads=100_000), lambda: solver(q.astype("f4"), qd, tau, threads=100_000),
        lambda: J(q, qd, tau, threads=100_000), lambda: kinematics(q, qd, threads=100_000),
        lambda: double(q, threads=100_000), solver.bind(q, qd, tau, threads=100_000),
        J.bind(q, qd, tau, threads=100_000),
    ):
        call()
        call()
        assert threading.active_count() <= most, (n, threading.active_count())
"""


@pytest.mark.slow
def test_no_call_starts_more_threads_than_it_has_states_for():
    """However many are asked for; those that were started stay."""
    found = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
