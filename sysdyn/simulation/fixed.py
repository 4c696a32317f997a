"""Steps of constant length in one compiled loop.

Robots are computed in groups that fit in the cache, each group from the start to the end. Calls alternate between two
sets of arrays, so that the state before a step is still there if its program fails. Python runs only if that happens,
if an event occurs, or if a controller is called.
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
from sysdyn.simulation.control import ControlLaw
from sysdyn.simulation.events import SimulationEvent
from sysdyn.simulation.steps import NORMALS, SIGNS, STAGE, StepProgram

# A controller of some robots: (t, q, qd) → τ (robots or 1, nv), checked.
Controller = Callable[[float, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SimulationSpec:
    """A simulation of N robots.

    inputs: of the solver by group, (size,) or (N, size), q and q̇ of all robots among them. law: torques, in which a
    controller replaces u before each step. step [s]; count: number of steps; every: steps from a recorded state to the
    next. outputs: recorded. on_singular: as for a call.
    """

    steps: StepProgram
    inputs: dict[str, np.ndarray]
    law: ControlLaw
    controller: Controller | None
    step: float
    count: int
    every: int
    outputs: tuple[str, ...]
    on_singular: str
    tolerance: float

    @property
    def robots(self) -> int:
        return len(self.inputs["q"])

    def time(self, k: int) -> float:
        """The time [s] at which step k begins."""
        return k * self.step


@dataclass
class Recording:
    """States and outputs (records, N, size) by name, events, and {robot: step in which it diverged}."""

    arrays: dict[str, np.ndarray]
    events: list[SimulationEvent] = field(default_factory=list)
    diverged: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: SimulationSpec) -> Recording:
        model, sizes = spec.steps.model, spec.steps.outputs
        sizes = {"q": model.nq, "qd": model.nv} | {name: sizes[name] for name in spec.outputs}
        shape = (spec.count // spec.every + 1, spec.robots)
        return cls({name: np.full((*shape, size), np.nan) for name, size in sizes.items()})


def run(spec: SimulationSpec, threads: int | None) -> Recording:
    """The simulation. Raises as the solver does at a state, with the time."""
    recording, steps, n = Recording.of(spec), spec.steps, spec.robots
    row = 16 * (sum(steps.sizes.values()) + sum(steps.outputs.values()))
    width = steps.runner.backend.width
    size = n if spec.controller else max(1, INTERMEDIATE_BYTES // row // width) * width
    parts = [_RobotRange(spec, recording, k, min(n, k + size)).run for k in range(0, n, size)]
    team = steps.runner.choose_threads(n * (spec.count + 1), threads) if len(parts) > 1 else 1
    if team > 1:
        THREADS.run(parts, team)
    else:
        for part in parts:
            part()
    return recording


class _RobotRange:
    """Simulation of the robots first … last − 1 of a batch by one compiled loop. Ranges can run in parallel threads.

    `run` writes their states, outputs and events to the recording.
    """

    def __init__(self, spec: SimulationSpec, recording: Recording, first: int, last: int):
        self.spec, self.recording, self.first, self.n = spec, recording, first, last - first
        self.robots, self.stages = slice(first, last), len(spec.steps.integrator.coefficients(spec.step))
        self.diverged: dict[int, int] = {}
        self.events: list[SimulationEvent] = []

    def run(self) -> None:
        """Simulate the robots from start to end; the last state has outputs, too."""
        spec = self.spec
        self._allocate()
        self._make_loop()
        last = spec.count * self.stages
        if spec.controller is None:
            self._advance(0, last)
        else:
            for k in range(0, last, self.stages):
                self._control(k)
                self._advance(k, k + self.stages)
            self._control(last)
        if len(self.u) > 1:  # the torques of the last step are also those of its end
            self.loop.words[last % len(self.loop.words), self.input_words["tau"]] = address(self.u[-1])
        self._advance(last, last + 1)
        for robot, k in self.diverged.items():
            for x in self.recording.arrays.values():
                x[-(-k // spec.every) :, robot] = np.nan
        self.recording.diverged.update(self.diverged)
        self.recording.events.extend(self.events)

    # ---- arrays and calls ------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        spec, steps, n = self.spec, self.spec.steps, self.n
        self.inputs = {name: x if x.ndim == 1 else x[self.robots] for name, x in (spec.inputs | spec.law.gains).items()}
        u = spec.law.u
        self.u = np.ascontiguousarray(u if u.shape[1] == 1 else u[:, self.robots])  # (1 or steps, 1 or n, nv)
        self.coefficients = steps.integrator.coefficients(spec.step)
        self.state = {name: np.zeros((2, n, size)) for name, size in steps.sizes.items()}
        for name, x in self.state.items():
            if not name.startswith("sum "):
                x[0] = self.inputs[name.removeprefix("start ")]
        self.status = np.zeros(n, dtype=np.int64)
        self.signs = np.full((2, n, steps.events.words), np.nan)
        self.normals = np.zeros((2, n, len(steps.events.normals)))
        self.outputs = {name: np.zeros((n, size)) for name, size in steps.outputs.items()}
        kernel = steps.runner.backend.kernel(n == 1)
        assert kernel is not None
        self.kernel, self.work = kernel, kernel.work()

    def _make_loop(self) -> None:
        """The compiled loop; its arguments repeat after two steps."""
        spec, program = self.spec, self.spec.steps.program
        period = 2 * self.stages
        rows = np.array([words(program, self.work[1], *self._arrays(k), self.status) for k in range(period)])
        increments = np.zeros_like(rows)
        self.input_words = {name: 2 + 2 * k for k, name in enumerate(program.inputs)}
        output_words = {name: 2 + 2 * k for k, name in enumerate(program.outputs, len(program.inputs))}
        for name, word in output_words.items():  # outputs that nobody reads are not written
            if name in (SIGNS, NORMALS) or name in spec.outputs:
                rows[np.arange(period) % self.stages > 0, word] = 0
            elif name in self.outputs:
                rows[:, word] = 0
        if len(self.u) > 1:
            rows[self.stages :, self.input_words["tau"]] += self.u[0].nbytes
            increments[:, self.input_words["tau"]] = 2 * self.u[0].nbytes
        records = [
            (self.input_words[name] if name in self.state else output_words[name],
             address(x[0, self.robots]), x[0, self.robots].nbytes, x[0].nbytes)
            for name, x in self.recording.arrays.items()
        ]  # fmt: skip
        self.loop = TimeLoop(
            self.kernel.address, self.status, rows, increments, self.signs.view(np.int64), self.stages,
            spec.every * self.stages, np.array(records, dtype=np.int64),
        )  # fmt: skip

    def _arrays(self, k: int) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """(inputs, outputs) of call k of a period."""
        row, step = k % 2, k // self.stages % 2
        tau = self.u[0] if self.u.shape[1] > 1 else self.u[0, 0]
        inputs = self.inputs | {name: x[row] for name, x in self.state.items()}
        inputs |= {STAGE: self.coefficients[k % self.stages], "tau": tau}
        outputs = {f"next {name}": x[1 - row] for name, x in self.state.items()}
        return inputs, outputs | self.outputs | {SIGNS: self.signs[step], NORMALS: self.normals[step]}

    def _control(self, k: int) -> None:
        """Ask the controller for the torques of the step that begins with call k."""
        assert self.spec.controller is not None
        t, row = self.spec.time(k // self.stages), k % 2
        self.u[0] = self.spec.controller(t, self.state["q"][row].copy(), self.state["qd"][row].copy())

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _advance(self, k: int, last: int) -> None:
        """Calls k … last − 1."""
        resume = False
        while (k := self.loop.run(k, last, resume)) < last:
            resume = True
            if self.status.any():
                self._solve_fallback(k)
            if k % self.stages == 0:
                self._find_events(k)

    def _solve_fallback(self, k: int) -> None:
        """Solve the states that the program flagged in call k by the fallbacks of the solver."""
        spec, (inputs, outputs), flagged = self.spec, self._arrays(k), np.flatnonzero(self.status)
        arguments = {name: x if x.ndim == 1 else x[flagged] for name, x in inputs.items()}
        u = self.u[min(k // self.stages, spec.count - 1) if len(self.u) > 1 else 0]
        arguments["tau"] = np.broadcast_to(u, (self.n, u.shape[-1]))[flagged]
        t = spec.time(k // self.stages)
        try:
            solution, ok = spec.steps.solve_fallback(arguments, self.status[flagged], spec.on_singular)
        except InvalidInput:  # the arguments were checked: it is the state, whose angles are too large for a sine
            solution, ok = {}, np.zeros(len(flagged), dtype=bool)
        except SingularState as error:
            raise with_time(error, t, self.first + flagged) from error
        if not ok.all() and spec.on_singular == "raise":
            raise diverged(t, self.first + flagged[~ok])
        for name, x in outputs.items():
            if name in solution and (name.startswith("next ") or k % self.stages == 0):
                x[flagged] = solution[name]
        for j in flagged[~ok].tolist():
            self.diverged.setdefault(self.first + j, k // self.stages)
            for name, x in self.state.items():  # it restarts from its first state, without being recorded
                start = name.removeprefix("start ").removeprefix("sum ")
                x[1 - k % 2, j] = 0.0 if name.startswith("sum ") else self.inputs[start][j]
            for signs in self.signs:
                signs[j] = self.signs[k // self.stages % 2 - 1, j]

    def _find_events(self, k: int) -> None:
        """Find the events of the step that ends with call k."""
        number = k // self.stages
        new, old = number % 2, 1 - number % 2
        if number:
            diverged = [j - self.first for j in self.diverged]
            before = self.signs[old].copy()
            before[diverged] = self.signs[new][diverged]
            events = self.spec.steps.events.changes(
                before, self.signs[new], self.state["q"][k % 2], self.state["qd"][k % 2], self.normals[old],
                self.normals[new], self.spec.time(number), self.spec.step,
            )  # fmt: skip
            self.events += [x._replace(robot=x.robot + self.first) for x in events]


def with_time(error: SingularState, t: float, robots: np.ndarray) -> SingularState:
    """The same error with the time [s] and with the indices of these robots instead of those of states."""
    states = tuple(int(robots[k]) for k in error.states)
    advice = "" if error.equation else "; a motion that grows without end needs a smaller step"
    return SingularState(f"at t = {t:.6g} s: {error}{advice}", error.equation, error.unknown, states)


def diverged(t: float, robots: np.ndarray) -> SingularState:
    """The error for states that are not finite after this time [s]."""
    return SingularState(
        f"after t = {t:.6g} s the state is not finite: take a smaller step, or look at a shorter duration; "
        "on_singular='nan' goes on with the other robots",
        states=tuple(robots.tolist()),
    )
