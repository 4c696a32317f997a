"""Steps as long as a tolerance lets them be, by SciPy: robot by robot, from one change of held torques to the next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.simulation.fixed import Recording, SimulationTask, lost, told
from sysdyn.simulation.steps import NORMALS, SIGNS, STAGE

# SciPy's method: Dormand and Prince's of order 8.
METHOD = "DOP853"
# Events are found to this share of the time from one recorded state to the next (chosen).
INSTANT = 1e-9


def run(job: SimulationTask) -> Recording:
    """The simulation. Raises as the solver does at a state, with the time."""
    record = Recording.of(job)
    for robot in range(job.robots):
        _Robot(job, record, robot).run()
    return record


class _Robot:
    """One robot of a job; y is q and q̇ in one row. t [s]: of the slopes asked for last."""

    def __init__(self, job: SimulationTask, record: Recording, robot: int):
        self.job, self.record, self.robot, self.model = job, record, robot, job.steps.model
        given = {name: x if x.ndim == 1 else x[robot] for name, x in (job.given | job.law.gains).items()}
        self.inputs = given | {STAGE: np.zeros(1)}
        self.quaternions = [part for _, part in self.model.quaternions]
        self.t, self.signs, self.normals = 0.0, np.zeros((1, 0)), np.zeros((1, 0))

    def run(self) -> None:
        job = self.job
        y, held = np.concatenate([self.inputs["q"], self.inputs["qd"]]), job.controller or len(job.law.u) > 1
        ends = range(1, job.count + 1) if held else [job.count]
        begin = 0
        try:
            for end in ends:
                self._hold(begin, y)
                y = self._advanced(y, begin, end)
                begin = end
            self._hold(job.count, y)
            self._keep(job.count, y)
        except SingularState:
            if job.on_singular == "raise":
                raise
            last = int(self.t / job.step)
            self.record.lost[self.robot] = last
            for x in self.record.arrays.values():
                x[last // job.every + 1 :, self.robot] = np.nan

    def _hold(self, k: int, y: np.ndarray) -> None:
        """Take the torques of step k."""
        job, row = self.job, min(k, len(self.job.law.u) - 1)
        if job.controller is not None:
            q, qd = (x[None] for x in self._state(y))
            self.inputs["tau"] = job.controller(job.instant(k), q.copy(), qd.copy())[0]
        else:
            self.inputs["tau"] = job.law.u[row, self.robot if job.law.u.shape[1] > 1 else 0]

    def _state(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = normalise_quaternions(y[: self.model.nq], self.quaternions)
        return self.job.steps.solver.problem.imposed(q, y[self.model.nq :])

    def _outputs(self, t: float, y: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs {name: (1, size)} of the program. Raises as the solver does."""
        self.t, given = t, self.inputs | {"q": y[: self.model.nq], "qd": y[self.model.nq :]}
        found, status = self.job.steps.executable.results(given, 1)
        if status.any():
            robot = np.array([self.robot])
            try:
                found, ok = self.job.steps.settled(given, status, self.job.on_singular)
            except InvalidInput as error:  # angles without a sine
                raise lost(t, robot) from error
            except SingularState as error:
                raise told(error, t, robot) from error
            if not ok.all():
                raise lost(t, robot)
        return found

    def _slopes(self, t: float, y: np.ndarray) -> np.ndarray:
        found = self._outputs(t, y)
        return np.concatenate([found["next q"][0], found["next qd"][0]])

    def _advanced(self, y: np.ndarray, begin: int, end: int) -> np.ndarray:
        """The state after steps begin … end − 1, of which states are recorded."""
        job = self.job
        kept = [k for k in range(begin, end) if k % job.every == 0]
        times = [job.instant(k) for k in (*kept, end)]
        span, tolerance = (job.instant(begin), job.instant(end)), job.tolerance
        found = solve_ivp(
            self._slopes, span, y, METHOD, t_eval=times, rtol=max(tolerance, 1e-13), atol=tolerance,
            dense_output=True,
        )  # fmt: skip
        if not found.success:
            raise lost(self.t, np.array([self.robot]))
        for k, state in zip(kept, found.y.T, strict=False):
            self._keep(k, state)
        if job.steps.margins.words:
            self._look(found.sol, found.sol.ts)
        return np.concatenate(self._state(found.y[:, -1]))

    def _keep(self, k: int, y: np.ndarray) -> None:
        """Record a state."""
        found = self._outputs(self.job.instant(k), y)
        arrays, row = self.record.arrays, k // self.job.every
        arrays["q"][row, self.robot], arrays["qd"][row, self.robot] = self._state(y)
        for name in self.job.wanted:
            arrays[name][row, self.robot] = found[name][0]

    # ---- events ----------------------------------------------------------------------------------------------------

    def _look(self, states: Callable[[float], np.ndarray], times: np.ndarray) -> None:
        """Find the events from step to step of SciPy."""
        begin, signs, normals = float(times[0]), self.signs, self.normals
        for t in times.tolist():
            found = self._outputs(t, states(t))
            if signs.size:  # the torques may have changed since the state before
                self._between(states, (begin, signs, normals), (t, found[SIGNS], found[NORMALS]))
            begin, signs, normals = t, found[SIGNS], found[NORMALS]
        self.signs, self.normals = signs, normals

    def _between(self, states: Callable[[float], np.ndarray], first: tuple, last: tuple) -> None:
        """Find the events between two instants (t, signs, normal forces), by halving the time between them."""
        (a, old, before), (b, new, normal) = first, last
        if np.array_equal(old, new):
            return
        if b - a > INSTANT * self.job.step * self.job.every:
            t = 0.5 * (a + b)
            found = self._outputs(t, states(t))
            middle = t, found[SIGNS], found[NORMALS]
            self._between(states, first, middle)
            self._between(states, middle, last)
            return
        q, qd = (x[None] for x in self._state(states(b)))
        events = self.job.steps.margins.changes(old, new, q, qd, before, normal, b, b - a)
        self.record.events += [x._replace(robot=self.robot) for x in events]
