"""Steps of one size, in one compiled loop: robots side by side in parts that stay in the cache, each from begin to end.

States are kept in place, in two sets of arrays that calls read and write in turns; so the state before a step is there
if its program has failed. Python sees a step only if that is so, if an event happens, or if a controller is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.runtime.kernel import address, words
from sysdyn.runtime.runner import INTERMEDIATE_BYTES
from sysdyn.runtime.threads import THREADS
from sysdyn.runtime.time_loop import TimeLoop
from sysdyn.simulation.control import Law
from sysdyn.simulation.events import SimulationEvent
from sysdyn.simulation.steps import NORMALS, SIGNS, STAGE, Steps

# A controller of some robots: (t, q, qd) → τ (robots or 1, nv), checked.
Controller = Callable[[float, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SimulationTask:
    """A simulation of N robots as it is asked for.

    given: inputs of the solver by group, (size,) or (N, size), q and q̇ of all robots among them. law: torques, in which
    a controller replaces u before each step. step [s], count of steps, every: steps from a recorded state to the next.
    wanted: recorded outputs. on_singular: as of a call.
    """

    steps: Steps
    given: dict[str, np.ndarray]
    law: Law
    controller: Controller | None
    step: float
    count: int
    every: int
    wanted: tuple[str, ...]
    on_singular: str
    tolerance: float

    @property
    def robots(self) -> int:
        return len(self.given["q"])

    def instant(self, k: int) -> float:
        """The time [s] of a step."""
        return k * self.step


@dataclass
class Recording:
    """States and outputs (records, N, size) by name, events, and {robot: first step from which it is lost}."""

    arrays: dict[str, np.ndarray]
    events: list[SimulationEvent] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: SimulationTask) -> Recording:
        model, outputs = job.steps.model, job.steps.outputs
        sizes = {"q": model.nq, "qd": model.nv} | {name: outputs[name] for name in job.wanted}
        shape = (job.count // job.every + 1, job.robots)
        return cls({name: np.full((*shape, size), np.nan) for name, size in sizes.items()})


def run(job: SimulationTask, threads: int | None) -> Recording:
    """The simulation. Raises as the solver does at a state, with the time."""
    record, steps, n = Recording.of(job), job.steps, job.robots
    row = 16 * (sum(steps.kept.values()) + sum(steps.outputs.values()))
    width = steps.executable.backend.width
    part = n if job.controller else max(1, INTERMEDIATE_BYTES // row // width) * width
    parts = [_RobotRange(job, record, k, min(n, k + part)).run for k in range(0, n, part)]
    team = steps.executable.choose_threads(n * (job.count + 1), threads) if len(parts) > 1 else 1
    if team > 1:
        THREADS.run(parts, team)
    else:
        for call in parts:
            call()
    return record


class _RobotRange:
    """Robots first … last − 1 of a job."""

    def __init__(self, job: SimulationTask, record: Recording, first: int, last: int):
        self.job, self.record, self.first, self.n = job, record, first, last - first
        self.own, self.stages = slice(first, last), len(job.steps.integrator.coefficients(job.step))

    # ---- arrays and calls ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate the robots from begin to end; the last state has outputs, too."""
        job = self.job
        self._place()
        last = job.count * self.stages
        if job.controller is None:
            self._advance(0, last)
        else:
            for k in range(0, last, self.stages):
                self._control(k)
                self._advance(k, k + self.stages)
            self._control(last)
        if len(self.u) > 1:  # the torques of the last step hold at its end, too
            self.loop.words[last % len(self.loop.words), self.word["tau"]] = address(self.u[-1])
        self._advance(last, last + 1)
        for robot, k in self.lost.items():
            begin = -(-k // job.every)
            for x in self.record.arrays.values():
                x[begin:, robot] = np.nan
        self.record.lost.update(self.lost)
        self.record.events.extend(self.events)

    def _place(self) -> None:
        """Make the arrays of this part, and the words of a period of calls."""
        job, steps, program, n = self.job, self.job.steps, self.job.steps.program, self.n
        given = {name: x if x.ndim == 1 else x[self.own] for name, x in (job.given | job.law.gains).items()}
        self.u = self._of_robots(job.law.u)
        self.coefficients = steps.integrator.coefficients(job.step)
        self.two = {name: np.zeros((2, n, size)) for name, size in steps.kept.items()}
        for name, x in self.two.items():
            if not name.startswith("sum "):
                x[0] = given[name.removeprefix("start ")]
        self.status, self.signs = np.zeros(n, dtype=np.int64), np.full((2, n, steps.margins.words), np.nan)
        self.normals = np.zeros((2, n, len(steps.margins.normals)))
        self.outputs = {name: np.zeros((n, size)) for name, size in steps.outputs.items()}
        self.shared = given
        self.lost: dict[int, int] = {}
        self.events: list[SimulationEvent] = []
        kernel = steps.executable.backend.kernel(n == 1)
        assert kernel is not None
        self.work = kernel.work()
        names = [*program.inputs, *program.outputs]
        period = 2 * self.stages
        rows = np.array([words(program, self.work[1], *self._arrays(k), self.status) for k in range(period)])
        moves = np.zeros_like(rows)
        first_output = len(program.inputs)
        self.word = {name: 2 + 2 * k for k, name in enumerate(names[:first_output])}
        of_outputs = {name: 2 + 2 * k for k, name in enumerate(names) if k >= first_output}
        own = {*self.outputs, SIGNS, NORMALS}
        for k in range(period):
            for name, at in of_outputs.items():
                if name in own and (k % self.stages or not (name in job.wanted or name in (SIGNS, NORMALS))):
                    rows[k, at] = 0
        if len(self.u) > 1:
            tau = self.word["tau"]
            rows[self.stages :, tau] += self.u[0].nbytes
            moves[:, tau] = 2 * self.u[0].nbytes
        self.loop = TimeLoop(
            kernel.address, self.status, rows, moves, self.signs.view(np.int64), self.stages,
            job.every * self.stages, self._copies(of_outputs),
        )  # fmt: skip

    def _of_robots(self, u: np.ndarray) -> np.ndarray:
        """u (1 or steps, 1 or n, nv) of this part, contiguous."""
        return np.ascontiguousarray(u if u.shape[1] == 1 else u[:, self.own])

    def _arrays(self, k: int) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """(inputs, outputs) of call k of a period."""
        row, step = k % 2, k // self.stages % 2
        tau = self.u[0] if self.u.shape[1] > 1 else self.u[0, 0]
        inputs = self.shared | {name: x[row] for name, x in self.two.items()}
        inputs |= {STAGE: self.coefficients[k % self.stages], "tau": tau}
        outputs = {f"next {name}": x[1 - row] for name, x in self.two.items()}
        return inputs, outputs | self.outputs | {SIGNS: self.signs[step], NORMALS: self.normals[step]}

    def _copies(self, of_outputs: Mapping[str, int]) -> np.ndarray:
        """Records of the loop: the states before calls, and outputs."""
        rows = []
        for name, x in self.record.arrays.items():
            word = self.word[name] if name in self.two else of_outputs[name]
            rows.append((word, address(x[0, self.own]), x[0, self.own].nbytes, x[0].nbytes))
        return np.array(rows, dtype=np.int64)

    def _control(self, k: int) -> None:
        """Ask the controller for the torques of the step that begins with call k."""
        assert self.job.controller is not None
        t, row = self.job.instant(k // self.stages), k % 2
        self.u[0] = self.job.controller(t, self.two["q"][row].copy(), self.two["qd"][row].copy())

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _advance(self, k: int, last: int) -> None:
        """Calls k … last − 1."""
        made = False
        while (k := self.loop.run(k, last, made)) < last:
            made = True
            if self.status.any():
                self._settle(k)
            if k % self.stages == 0:
                self._look(k)

    def _settle(self, k: int) -> None:
        """Solve the states at which the program has failed the general way."""
        job, (inputs, outputs), bad = self.job, self._arrays(k), np.flatnonzero(self.status)
        given = {name: x if x.ndim == 1 else x[bad] for name, x in inputs.items()}
        given["tau"] = self._torques(k)[bad]
        t = job.instant(k // self.stages)
        try:
            found, ok = job.steps.settled(given, self.status[bad], job.on_singular)
        except InvalidInput:  # the arguments were checked: it is the state, whose angles have no sine any more
            found, ok = {}, np.zeros(len(bad), dtype=bool)
        except SingularState as error:
            raise told(error, t, self.first + bad) from error
        if not ok.all() and job.on_singular == "raise":
            raise lost(t, self.first + bad[~ok])
        for name, x in outputs.items():
            if name in found and (name.startswith("next ") or k % self.stages == 0):
                x[bad] = found[name]
        for j in bad[~ok].tolist():
            self.lost.setdefault(self.first + j, k // self.stages)
            for name, x in self.two.items():  # it goes on from the first state, without being recorded
                start = name.removeprefix("start ").removeprefix("sum ")
                x[1 - k % 2, j] = 0.0 if name.startswith("sum ") else self.shared[start][j]
            for signs in self.signs:
                signs[j] = self.signs[k // self.stages % 2 - 1, j]

    def _torques(self, k: int) -> np.ndarray:
        """u (n, nv) of call k."""
        row = min(k // self.stages, self.job.count - 1) if len(self.u) > 1 else 0
        return np.broadcast_to(self.u[row], (self.n, self.u.shape[-1]))

    def _look(self, k: int) -> None:
        """Find the events of the step that ends with call k."""
        number = k // self.stages
        now, then = number % 2, 1 - number % 2
        if number:
            old, new = self.signs[then].copy(), self.signs[now]
            old[[j - self.first for j in self.lost]] = new[[j - self.first for j in self.lost]]
            found = self.job.steps.margins.changes(
                old, new, self.two["q"][k % 2], self.two["qd"][k % 2], self.normals[then], self.normals[now],
                self.job.instant(number), self.job.step,
            )  # fmt: skip
            self.events += [x._replace(robot=x.robot + self.first) for x in found]


def told(error: SingularState, t: float, robots: np.ndarray) -> SingularState:
    """The same error with the time, and the numbers of these robots for those of states."""
    states = tuple(int(robots[k]) for k in error.states)
    advice = "" if error.equation else "; a motion that grows without end needs a smaller step"
    return SingularState(f"at t = {t:.6g} s: {error}{advice}", error.equation, error.unknown, states)


def lost(t: float, robots: np.ndarray) -> SingularState:
    """The error for states that are not finite after this time [s]."""
    return SingularState(
        f"after t = {t:.6g} s the state is not finite: take a smaller step, or look at a shorter duration; "
        "on_singular='nan' goes on with the other robots",
        states=tuple(robots.tolist()),
    )
