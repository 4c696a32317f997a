"""Measurement data of a log: read into memory or part by part, with statistics of the whole log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.data.sensor_log import Chunk, Log, Summary
from sysdyn.errors import FileError, InvalidInput
from sysdyn.estimation.process_noise import LONGEST_STEP, sample_segments
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.unwrapping import Unwrapping
from sysdyn.measurements.problem import Problem

# Most time steps from which process noise is learnt (chosen).
LEARNT_OVER = 600

Parts = Callable[[], Iterable[MeasurementData]]  # each call reads the log from its first row


@dataclass(frozen=True)
class LogStatistics:
    """Statistics of a log, before its states are estimated.

    rows; begin, end [s]; first: its first LEARNT_OVER rows; sample: segments by which encoders determine the process
    noise; measured {measurement: (m,) bool}: components with at least one value; gap: (from, to) [s] of the longest
    time step if the process model does not bridge it.
    """

    rows: int
    begin: float
    end: float
    first: MeasurementData
    sample: MeasurementData
    measured: dict[str, np.ndarray]
    gap: tuple[float, float] | None

    @classmethod
    def of(cls, parts: Parts) -> LogStatistics:
        """Read a log twice. Raises what `Log` does, wherever in the log, and InvalidInput for fewer than two rows."""
        rows, times, longest = 0, list[float](), (0.0, 0.0, 0.0)
        first, measured = list[MeasurementData](), dict[str, np.ndarray]()
        for part in parts():
            if rows < LEARNT_OVER:
                first.append(part.part(slice(0, LEARNT_OVER - rows)))
            for name, on in part.active.items():
                measured[name] = np.asarray(on.any(axis=0) | measured.get(name, False))
            longest = max(longest, _longest_step(np.concatenate([times[-1:], part.t])))
            rows, times = rows + len(part.t), [*times[:1], *part.t[:1].tolist(), *part.t[-1:].tolist()]
        if rows < 2:
            raise InvalidInput(f"the log has {rows} row{'s' * (rows != 1)}: a trajectory needs two or more")
        wanted, at, segments = sample_segments(rows), 0, list[MeasurementData]()
        for part in parts():
            segments.append(part.part(wanted[(wanted >= at) & (wanted < at + len(part.t))] - at))
            at += len(part.t)
        sample = concatenated(segments)
        gap = longest[1:] if longest[0] > LONGEST_STEP * np.median(np.diff(sample.t)) else None
        return cls(rows, times[0], times[-1], concatenated(first), sample, measured, gap)


class SlidingReader:
    """Reads a log once, and keeps the rows of the present window."""

    def __init__(self, parts: Iterable[MeasurementData]):
        self._parts, self._window, self._begin = iter(parts), list[MeasurementData](), 0

    def rows(self, begin: int, end: int) -> MeasurementData:
        """Rows begin … end − 1; neither may be less than before. Raises FileError if the log has become shorter."""
        while self._window and self._begin + len(self._window[0].t) <= begin:
            self._begin += len(self._window.pop(0).t)
        available = self._begin + sum(len(x.t) for x in self._window)
        while available < end:
            part = next(self._parts, None)
            if part is None:
                raise FileError(f"the log had {end} rows when it was first read, and {available} now")
            available += len(part.t)
            if available <= begin:
                self._begin = available
            else:
                self._window.append(part)
        return concatenated(self._window).part(slice(begin - self._begin, end - self._begin))


def open_log(problem: Problem, log: Any, **options: Any) -> Log:
    """The log if it is a `Log` of unknown states, else a `Log` of this source with these options."""
    return log if isinstance(log, Log) else Log(log, problem, states="unknown", **options)


def read_log(problem: Problem, log: Any, **options: Any) -> MeasurementData:
    """The data of a whole log, a `Log` of unknown states or a source of one with its options."""
    return concatenated(list(log_parts(problem, open_log(problem, log, **options))))


def log_parts(problem: Problem, log: Log) -> Iterator[MeasurementData]:
    """The data of a log, chunk by chunk; its `summary` counts anew."""
    log.summary = Summary()
    return measurement_data(problem, log, log.warned)


def concatenated(parts: list[MeasurementData]) -> MeasurementData:
    """Successive rows as one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return MeasurementData(np.zeros(0), {}, {}, {})
    return MeasurementData(np.concatenate([x.t for x in parts]), *(
        {name: np.concatenate([getattr(x, group)[name] for x in parts]) for name in getattr(parts[0], group)}
        for group in ("y", "active", "known")
    ))  # fmt: skip


def measurement_data(
    problem: Problem, chunks: Iterable[Chunk], warned: set[str] | None = None
) -> Iterator[MeasurementData]:
    """The data of each chunk. warned: warnings that were given before.

    A stance without a condition and without a column is in contact until its motion contradicts that. Any other
    measurement with noise that the log lacks is off, and a prior has its mean.
    """
    model, unwrapping = problem.model, Unwrapping(problem, warned)
    for chunk in chunks:
        n, y, active, known = len(chunk.t), {}, {}, {}
        for m in (*problem.state_sensors, *problem.custom):
            size = len(m.components(model))
            default = np.zeros((n, size))
            y[m.name] = np.broadcast_to(chunk.y.get(m.name, default), (n, size))
            on = chunk.active.get(m.name, m.name in chunk.y or m.has_default)
            active[m.name] = np.array(np.broadcast_to(on if np.ndim(on) != 1 else np.asarray(on)[:, None], (n, size)))
        y |= unwrapping(chunk, y, active)
        for name in problem.known_quantities:
            known[name] = np.zeros((n, problem.inputs[name].size))
        for m in problem.raw:
            if m.name in chunk.y:
                known[m.quantity][:, m.places(model)] = chunk.y[m.name]
        yield MeasurementData(chunk.t, y, active, known)


def _longest_step(t: np.ndarray) -> tuple[float, float, float]:
    """(length, from, to) of the longest step of times."""
    if len(t) < 2:
        return 0.0, 0.0, 0.0
    k = int(np.argmax(np.diff(t)))
    return float(t[k + 1] - t[k]), float(t[k]), float(t[k + 1])
