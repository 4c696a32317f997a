"""Readings of a trajectory out of a log: all at once, a survey of them, and rows of a log of any length in turn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.data.sensor_log import Chunk, Log, Summary
from sysdyn.errors import InvalidInput
from sysdyn.estimation.process_noise import LONGEST_STEP, of_stretches
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.unwrapping import Unwrapping
from sysdyn.measurements.problem import Problem

# Instants over which densities are learnt, at most (chosen).
LEARNT_OVER = 600


@dataclass(frozen=True)
class Survey:
    """A log before it is smoothed.

    rows; begin and end [s]; first (Readings): of its begin, over which densities are learnt. sample (Readings): of the
    stretches by which encoders tell densities. measured {measurement: (m,) bool}: components that it has somewhere.
    gap: (from, to) [s] of its longest step in time if the motion does not bridge it. digest: of all that was read, if
    it was read in turn.
    """

    rows: int
    begin: float
    end: float
    first: MeasurementData
    sample: MeasurementData
    measured: dict[str, np.ndarray]
    gap: tuple[float, float] | None
    digest: str = ""

    @classmethod
    def of(cls, readings: MeasurementData) -> Survey:
        """The survey of readings in memory."""
        t = readings.t
        sample, measured = readings.part(of_stretches(len(t))), {}
        for name, on in readings.active.items():
            measured[name] = np.asarray(on.any(axis=0))
        gap = _gap(float(np.median(np.diff(t))), *_longest(t))
        first = readings.part(slice(0, LEARNT_OVER))
        return cls(len(t), float(t[0]), float(t[-1]), first, sample, measured, gap)


def opened(problem: Problem, log: Any, **options: Any) -> Log:
    """A `Log` of unknown states: as it is, or of what one is made of, with its options."""
    return log if isinstance(log, Log) else Log(log, problem, states="unknown", **options)


def read(problem: Problem, log: Any, **options: Any) -> MeasurementData:
    """The readings of a whole log: a `Log` of unknown states, or what one is made of, with its options.

    Raises InvalidInput if it has fewer than two rows.
    """
    found = readings(problem, opened(problem, log, **options))
    _require_rows(len(found.t))
    return found


def surveyed(problem: Problem, log: Log) -> Survey:
    """The survey of a log that is not held in memory, in one pass, and another for stretches of long ones.

    Raises what `Log` does, wherever it is in the log, and InvalidInput if it has fewer than two rows.
    """
    digest, rows, steps, measured = hashlib.sha256(), 0, list[float](), dict[str, np.ndarray]()
    times, first, longest = list[float](), list[MeasurementData](), (0.0, 0.0, 0.0)
    log.summary = Summary()
    for part in _read(problem, log, log.told):
        for x in ({"": part.t}, part.y, part.active, part.known):
            for name in sorted(x):
                digest.update(name.encode() + np.ascontiguousarray(x[name]).tobytes())
        if rows < LEARNT_OVER:
            first.append(part)
        for name, on in part.active.items():
            measured[name] = np.asarray(on.any(axis=0) | measured.get(name, False))
        t = np.concatenate([times[-1:], part.t])
        longest = max(longest, _longest(t))
        steps += [float(np.median(np.diff(t)))] if len(t) > 1 else []
        rows, times = rows + len(part.t), [times[0] if times else float(part.t[0]), float(part.t[-1])]
    _require_rows(rows)
    wanted, at, sample = of_stretches(rows), 0, list[MeasurementData]()
    log.summary = Summary()
    for part in _read(problem, log, log.told):
        here = wanted[(wanted >= at) & (wanted < at + len(part.t))] - at
        sample.append(part.part(here))
        at += len(part.t)
    gap = _gap(float(np.median(steps)), *longest)
    begun = joined(first).part(slice(0, LEARNT_OVER))
    return Survey(rows, times[0], times[-1], begun, joined(sample), measured, gap, digest.hexdigest())


class Rolling:
    """Rows of a log that come in turn, of which few are held: part(at, end), neither less than before."""

    def __init__(self, problem: Problem, log: Log):
        log.summary = Summary()
        self._chunks = _read(problem, log, log.told)
        self._held, self._from = list[MeasurementData](), 0

    def part(self, at: int, end: int) -> MeasurementData:
        """The readings of rows at ≤ row < end."""
        while self._held and self._from + len(self._held[0].t) <= at:
            self._from += len(self._held.pop(0).t)
        have = self._from + sum(len(x.t) for x in self._held)
        while have < end:
            x = next(self._chunks)
            have += len(x.t)
            if have <= at:
                self._from = have
            else:
                self._held.append(x)
        return joined(self._held).part(slice(at - self._from, end - self._from))


def _require_rows(n: int) -> None:
    if n < 2:
        raise InvalidInput(f"the log has {n} row{'s' * (n != 1)}: a trajectory needs two or more")


def _longest(t: np.ndarray) -> tuple[float, float, float]:
    """(length, from, to) of the longest step of times."""
    if len(t) < 2:
        return 0.0, 0.0, 0.0
    k = int(np.argmax(np.diff(t)))
    return float(t[k + 1] - t[k]), float(t[k]), float(t[k + 1])


def _gap(step: float, longest: float, begin: float, end: float) -> tuple[float, float] | None:
    return (begin, end) if longest > LONGEST_STEP * step else None


def readings(problem: Problem, chunks: Iterable[Chunk]) -> MeasurementData:
    """The readings of successive chunks of a log.

    A stance without a condition and without a column stands until its motion says otherwise; any other measurement
    with noise that the log does not have is off, and a prior has its mean.
    """
    return joined(list(_read(problem, chunks, getattr(chunks, "told", None))))


def joined(parts: list[MeasurementData]) -> MeasurementData:
    """Successive readings as one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return MeasurementData(np.zeros(0), {}, {}, {})
    return MeasurementData(np.concatenate([x.t for x in parts]), *(
        {name: np.concatenate([getattr(x, group)[name] for x in parts]) for name in getattr(parts[0], group)}
        for group in ("y", "active", "known")
    ))  # fmt: skip


def _read(problem: Problem, chunks: Iterable[Chunk], told: set[str] | None = None) -> Iterator[MeasurementData]:
    model, unwrapping = problem.model, Unwrapping(problem, told)
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
