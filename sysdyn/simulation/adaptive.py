"""Integration with adaptive steps by SciPy: robot by robot, from one change of the held torques to the next."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.integrate import solve_ivp

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.simulation.fixed import Recording, SimulationSpec, diverged, with_time
from sysdyn.simulation.steps import NORMALS, STAGE

# SciPy's method: Dormand and Prince's of order 8.
METHOD = "DOP853"

Instant = tuple[float, np.ndarray]  # t [s] and y


def run(spec: SimulationSpec) -> Recording:
    """The simulation. Raises as the solver does at a state, with the time."""
    recording = Recording.of(spec)
    for robot in range(spec.robots):
        _Robot(spec, recording, robot).run()
    return recording


class _Robot:
    """One robot; y is q and q̇ in one row, t [s] the time of the latest call of the program."""

    def __init__(self, spec: SimulationSpec, recording: Recording, robot: int):
        self.spec, self.recording, self.robot, self.model = spec, recording, robot, spec.steps.model
        arrays = {name: x if x.ndim == 1 else x[robot] for name, x in (spec.inputs | spec.law.gains).items()}
        self.inputs = arrays | {STAGE: np.zeros(1)}
        self.quaternions = [part for _, part in self.model.quaternions]
        self.t, count = 0.0, spec.steps.events.count
        self.event_functions = [partial(self._event_value, k=k) for k in range(count)]
        self.inside: list[bool | None] = [None] * count  # at the end of the latest interval

    def run(self) -> None:
        spec = self.spec
        y, law_varies = np.concatenate([self.inputs["q"], self.inputs["qd"]]), spec.controller or len(spec.law.u) > 1
        begin = 0
        try:
            for end in range(1, spec.count + 1) if law_varies else [spec.count]:
                self._hold(begin, y)
                y = self._integrate(y, begin, end)
                begin = end
            self._hold(spec.count, y)
            self._record(spec.count, y)
        except SingularState:
            if spec.on_singular == "raise":
                raise
            last = int(self.t / spec.step)
            self.recording.diverged[self.robot] = last
            for x in self.recording.arrays.values():
                x[last // spec.every + 1 :, self.robot] = np.nan

    def _hold(self, k: int, y: np.ndarray) -> None:
        """Apply the torques of step k."""
        spec, row = self.spec, min(k, len(self.spec.law.u) - 1)
        if spec.controller is not None:
            q, qd = (x[None] for x in self._state(y))
            self.inputs["tau"] = spec.controller(spec.time(k), q.copy(), qd.copy())[0]
        else:
            self.inputs["tau"] = spec.law.u[row, self.robot if spec.law.u.shape[1] > 1 else 0]

    def _state(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = normalise_quaternions(y[: self.model.nq], self.quaternions)
        return self.spec.steps.solver.problem.imposed(q, y[self.model.nq :])

    def _outputs(self, t: float, y: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs {name: (1, size)} of the program. Raises as the solver does."""
        self.t, inputs = t, self.inputs | {"q": y[: self.model.nq], "qd": y[self.model.nq :]}
        outputs, status = self.spec.steps.runner.results(inputs, 1)
        if status.any():
            robot = np.array([self.robot])
            try:
                outputs, ok = self.spec.steps.solve_fallback(inputs, status, self.spec.on_singular)
            except InvalidInput as error:  # the angles are too large for a sine
                raise diverged(t, robot) from error
            except SingularState as error:
                raise with_time(error, t, robot) from error
            if not ok.all():
                raise diverged(t, robot)
        return outputs

    def _slopes(self, t: float, y: np.ndarray) -> np.ndarray:
        outputs = self._outputs(t, y)
        return np.concatenate([outputs["next q"][0], outputs["next qd"][0]])

    def _event_value(self, t: float, y: np.ndarray, k: int) -> float:
        """Value of an event function; normal forces need the program."""
        events = self.spec.steps.events
        if k < len(events.limits):
            return events.limits[k].value(self._state(y)[0])
        return self._outputs(t, y)[NORMALS][0, k - len(events.limits)]

    def _integrate(self, y: np.ndarray, begin: int, end: int) -> np.ndarray:
        """The state after steps begin … end − 1; states in between are recorded."""
        spec = self.spec
        recorded = [k for k in range(begin, end) if k % spec.every == 0]
        solution = solve_ivp(
            self._slopes, (spec.time(begin), spec.time(end)), y, METHOD, rtol=max(spec.tolerance, 1e-13),
            atol=spec.tolerance, t_eval=[spec.time(k) for k in (*recorded, end)], events=self.event_functions,
        )  # fmt: skip
        if not solution.success:
            raise diverged(self.t, np.array([self.robot]))
        for k, state in zip(recorded, solution.y.T, strict=False):
            self._record(k, state)
        final = solution.y[:, -1]
        for k, crossings in enumerate(zip(solution.t_events, solution.y_events, strict=True)):
            self._add_events(k, list(zip(*crossings, strict=True)), (spec.time(begin), y), (spec.time(end), final))
        return np.concatenate(self._state(final))

    def _add_events(self, k: int, crossings: list[Instant], first: Instant, last: Instant) -> None:
        """Events of function k between two instants, from its zero crossings there."""
        before, after = (bool(np.copysign(1.0, self._event_value(t, y, k)) > 0.0) for t, y in (first, last))
        if len(crossings) % 2 != (before != after):  # a zero at an end of the interval, where the sign does not change
            crossings = crossings[1:]
        changes = [(crossing, before == bool(number % 2)) for number, crossing in enumerate(crossings)]
        if self.inside[k] not in (None, before):  # the held torques have changed
            changes = [(first, before), *changes]
        for (t, y), inside in changes:
            q, _ = self._state(y)
            self.recording.events.append(self.spec.steps.events.event(k, float(t), self.robot, q, inside))
        self.inside[k] = after

    def _record(self, k: int, y: np.ndarray) -> None:
        outputs = self._outputs(self.spec.time(k), y)
        arrays, row = self.recording.arrays, k // self.spec.every
        arrays["q"][row, self.robot], arrays["qd"][row, self.robot] = self._state(y)
        for name in self.spec.outputs:
            arrays[name][row, self.robot] = outputs[name][0]
