"""Online estimates while a robot moves: `filter`, and its fixed-lag smoother."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.data.sensor_log import Chunk
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.estimation import process_noise
from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.ekf import Filter, GaussianState
from sysdyn.estimation.estimation_problem import STRIDE, EstimationProblem
from sysdyn.estimation.export import export_filter
from sysdyn.estimation.measurement_data import measurement_data
from sysdyn.estimation.outputs import joined, missing, pieces_of
from sysdyn.estimation.process_model import ORDER
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.run import Run
from sysdyn.estimation.smooth import checked_outputs, first_position, single_blas_thread
from sysdyn.estimation.timing import timed_sensors
from sysdyn.estimation.unwrapping import Unwrapping, angles_of
from sysdyn.measurements.contact_schedule import Standing
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.program.arrays import float_array

# Assumed length of a log [s], over which constant biases do not drift: longer than most.
LONG_LOG = 600.0


def filter(
    problem: Problem,
    outputs: str | Output | Sequence[Output] = ("tau",),
    *,
    motion: Run | float | Mapping[str, float] | np.ndarray,
    order: int | None = None,
    lag: float = 0.0,
    coupled: bool = False,
    start: ArrayLike | None = None,
    robust: bool = True,
) -> Live:
    """Create an online filter: `live = filter(problem, motion=run)`, then `live(t, y)` at each sample.

    Parameters
    ----------
    problem : Problem
    outputs : quantities and measurements to estimate, as for `smooth`
    motion : Run, float, mapping or (nv,) array
        Process noise: a Run of a similar log, which also provides the jitter of the times, or densities as for
        `smooth`.
    order : {3, 4}, optional
        Order of the process model; by default that of the Run, or 3.
    lag : float, s
        Delay of the estimates, which later readings smooth meanwhile; 0 for the present.
    coupled, start : as for `smooth`
    robust : bool
        Innovations of state sensors beyond their 99.9 % limit are down-weighted to that limit, outliers of other
        measurements are rejected. Impacts are not detected; they appear as a series of outliers.

    Returns
    -------
    Live

    Raises
    ------
    InvalidInput, UnknownName, ProblemError
        As for `smooth`.
    """
    given: float | Mapping[str, float] | np.ndarray = motion.motion if isinstance(motion, Run) else motion
    order = order or (motion.order if isinstance(motion, Run) else ORDER)
    density = process_noise.by_joint(problem.model, given)
    if not np.isfinite(density).all():
        raise InvalidInput("the motion of a filter needs a positive density for each degree of freedom")
    if not (isinstance(lag, (int, float)) and 0.0 <= lag < np.inf):
        raise InvalidInput(f"lag is {lag!r}, but a time ≥ 0 s is needed")
    jitter = motion.jitter if isinstance(motion, Run) else 0.0
    estimation = EstimationProblem(problem, checked_outputs(problem, outputs), LONG_LOG, order, coupled, jitter=jitter)
    first = first_position(problem, start)
    return Live(estimation, density, float(lag), first, robust)


class LazyRun(Run):
    """A Run that is computed at the first access to an attribute, and an ordinary one from then on."""

    def __init__(self, make: Callable[[], Run]):
        self.__dict__["_make"] = make

    def _read(self) -> Run:
        self.__dict__.update(self.__dict__.pop("_make")().__dict__)
        object.__setattr__(self, "__class__", Run)
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self._read(), name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple:
        return self._read().__reduce_ex__(protocol)


class Live:
    """A running filter of one thread; see `filter`."""

    def __init__(
        self, estimation: EstimationProblem, density: np.ndarray, lag: float, first: np.ndarray | None, robust: bool
    ):
        self.problem, self.lag = estimation.problem, lag
        self._trajectory, self._density, self._first = estimation, density, first
        angles = angles_of(self.problem.model, self.problem.state_sensors)
        self._filter = Filter(estimation.layout, estimation.sources, density, gate=robust, angles=angles)
        self._found: list[GaussianState] = []
        self._ahead: list[GaussianState] = []
        self._read: list[MeasurementData] = []
        self._standing = Standing(self.problem)
        for name in (m.name for m in self.problem.state_sensors if getattr(m, "proposed", False)):
            raise InvalidInput(
                f"contacts of {name!r} follow from what is before and after an instant, and a filter has the former "
                "alone: give it a condition when=, or none and hand in active"
            )
        problem, nothing = self.problem, np.empty((1, 0))
        self._nothing = nothing
        self._measured = {m.name: m for m in (*problem.state_sensors, *problem.valued)}
        groups = {**problem.values, **problem.state_values}
        self._whole = {name: np.ones((1, groups[name].size), dtype=bool) for name in self._measured}
        undriven = {m.name for m in problem.raw if m.undriven(problem.model)}
        self._needed = [
            m for m in self._measured.values() if m.noise is None and not m.has_default and m.name not in undriven
        ]
        self._exact = {m.name: (m.quantity, m.places(problem.model)) for m in problem.raw}
        now = Chunk("now", np.array([1]), np.zeros(1), nothing, nothing, {}, {})
        (self._blank,) = measurement_data(problem, [now])
        self._chosen: tuple[str, ...] = ()
        self._dt = STRIDE

    def __call__(self, t: float, y: Mapping[str, ArrayLike], active: Mapping[str, ArrayLike] | None = None) -> Run:
        """Estimate the state and the outputs at t − lag.

        Parameters
        ----------
        t : float, s
        y : {measurement: (m,) array}
            Readings at t; NaN or omitted if there is none.
        active : {measurement: bool}, optional
            Whether stances, for instance, are active.

        Returns
        -------
        Run
            Of one time step, without an axis N.

        Raises
        ------
        InvalidInput
            If t does not increase, or for readings of a wrong size.
        UnknownName
        """
        with single_blas_thread():
            return self._estimate(t, y, active or {})

    @property
    def belief(self) -> GaussianState:
        """The state at the last readings, with its covariance. Raises InvalidInput before the first ones."""
        if not self._found:
            raise InvalidInput("this filter has no state yet: call it with some readings first")
        return self._found[-1]

    def export_c(self, folder: str | os.PathLike, name: str = "state_filter", real: str = "float64") -> Path:
        """Write the filter as it stands as a C99 project with static memory, which needs nothing but math.h.

        NAME_step(now) takes the readings of an instant, NAME_now(out) gives q, its rates, biases and their standard
        deviations, NAME_start begins elsewhere; torques and wrenches follow from the export of a compiled problem.
        The caller evaluates conditions of stances; outliers are not reported; times count as exact. main checks the
        filter against steps computed here. name: a C identifier. real: number type, "float64", or "float32", for which
        readings have the time since the previous ones instead of the time of the clock.

        Raises InvalidInput for the name, before the first reading, if it stays behind or drops readings of dynamic
        variables (coupled and robust); UnknownName for the type, FileError if the folder cannot be written.
        """
        if self.lag or (self._trajectory.coupled and self._filter.gate):
            what = "stays behind: give lag=0" if self.lag else "drops readings of dynamic variables: give robust=False"
            raise InvalidInput(f"this filter {what} to export it")
        return export_filter(
            folder, name, self._filter, self.belief, replace(self._read[-1], further={}), self._dt, real
        )

    def _estimate(self, t: float, y: Mapping[str, ArrayLike], active: Mapping[str, ArrayLike]) -> Run:
        if not np.isfinite(t):
            raise InvalidInput(f"the time is {t!r}, but a finite number of seconds is needed")
        if self._found and not t > self.belief.path.t[0]:
            raise InvalidInput(f"time goes from {self.belief.path.t[0]:.9g} s to {t:.9g} s: it must increase")
        now = self._readings(float(t), y, active)
        if self._found and self._trajectory.jitter:
            now = self._timed(now)
        if self._found:
            self._dt = t - float(self.belief.path.t[0])
        if self._found and not self.lag:
            self._found, self._read = [self._filter.predict_and_update(self.belief, now)], [now]
        else:
            self._take(now)
        smoothed = self.belief
        if self.lag:
            path, P = self._filter.smooth(self._found, self._ahead)
            smoothed = GaussianState(path.part(slice(0, 1)), P[0])
        events, self._filter.events = self._filter.events, []
        fit, read, gate = (self._filter.chi2, self._filter.degrees_of_freedom), self._read[0], self._filter.gate

        def result() -> Run:
            pieces = pieces_of(self._trajectory, smoothed.path, Covariances.of_one(smoothed.P), read, gate, events)
            own = [e._replace(instant=0) for e in events]
            gaps = missing(self._trajectory, read)
            return joined(self._trajectory, pieces, own, self._chosen, self._density, gaps, fit).first()

        return LazyRun(result)

    def _timed(self, now: MeasurementData) -> MeasurementData:
        """The readings with the variances that jitter adds, from the rates of the previous state."""
        states, path, nv = self._trajectory.states, self.belief.path, self.problem.model.nv
        lines, further = states.linearize(path, now), {}
        rate = lines.J[0, :, : 2 * nv] @ path.rates[0, :2].reshape(-1)
        timed = {m.name for m in timed_sensors(self.problem)}
        for name in timed:
            std, rows = states.std[name], states.rows[name]
            further[name] = np.square(self._trajectory.jitter * std * rate[rows])[None]
        return replace(now, further=further)

    def _take(self, now: MeasurementData) -> None:
        """Process the first readings, or later ones if there is a lag."""
        if self._found:
            belief = self._filter.predict(self.belief, float(now.t[0]))
            self._ahead.append(belief)
        else:
            chunk = Chunk("the first readings", np.array([1]), now.t, self._nothing, self._nothing, {}, {})
            now = replace(now, y={**now.y, **Unwrapping(self.problem)(chunk, now.y, now.active)})
            belief, self._chosen = self._trajectory.initial_state(now, self._first, self._density)
        self._found.append(self._filter.update(belief, now))
        self._read.append(now)
        while len(self._found) > 1 and self._found[1].path.t[0] <= now.t[0] - self.lag:
            del self._found[0], self._ahead[0], self._read[0]

    def _readings(self, t: float, y: Mapping[str, ArrayLike], active: Mapping[str, ArrayLike]) -> MeasurementData:
        """The readings of one instant, checked. Raises UnknownName, InvalidInput."""
        measured = self._measured
        for name in (*y, *active):
            if name not in measured:
                raise UnknownName("measurement", name, measured)
        values, on = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for name, value in y.items():
            plain = value if isinstance(value, np.ndarray) and value.dtype == np.float64 else float_array(name, value)
            x, whole = plain.reshape(1, -1).copy(), self._whole[name]  # callers write into their arrays again
            finite = np.isfinite(x)
            there = bool(finite.all())
            if x.size != whole.size or not (there or np.isfinite(x[~np.isnan(x)]).all()):
                raise InvalidInput(
                    f"{name!r} has the value {value!r}: {whole.size} numbers are needed, NaN for a missing one"
                )
            values[name], on[name] = (x, whole) if there else (np.where(finite, x, 0.0), finite)
            if measured[name].noise is None and not there:
                raise InvalidInput(f"{name!r} is exact and has to have a value at every instant: give it noise")
        for m in self._needed:
            if m.name not in y:
                raise InvalidInput(f"no value was given for {m.name!r}: pass {m.argument_hint}")
        for name, switch in active.items():
            on[name] = on.get(name, self._whole[name]) & (np.asarray(switch, dtype=float) != 0.0)
        if self._standing.used:
            self._standing.switch(values, on, active.keys(), np.array([t]))
        blank, known = self._blank, self._blank.known
        for name in values.keys() & self._exact.keys():
            quantity, places = self._exact[name]
            known = {**known, quantity: known[quantity].copy()}
            known[quantity][:, places] = values.pop(name)
        return MeasurementData(np.array([t]), {**blank.y, **values}, {**blank.active, **on}, known)
