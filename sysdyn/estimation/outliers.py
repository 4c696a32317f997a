"""Readings that are not believed: residuals beyond what they may be, at the instants at which they are.

Those of sensors of states are looked at one by one. Of dynamic variables the farthest of an instant alone is dropped at
a time, relative to the standard deviation of its residual, since it spoils the others (Baarda 1968: data snooping). A
stance holds or does not, as a whole, and has Student's distribution, as feet slip when they touch down; what is said of
a foot in the air holds or does not, as a whole, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.residual_statistics import residuals_given_state, studentized_residuals
from sysdyn.estimation.residuals import (
    CONFIDENCE,
    MIN_REDUNDANCY,
    OUTLIER_THRESHOLD,
    DynamicsResiduals,
    MeasurementData,
    StateResiduals,
    memory_slices,
)
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.measurements.state_sensors import Stance

# Degrees of freedom of Student's distribution (chosen, as usual: 4).
FREEDOMS = 4.0
# Residual of a stance beyond which it does not stand: CONFIDENCE of that distribution, in standard deviations.
SLIPS = float(scipy.special.stdtrit(FREEDOMS, 0.5 + 0.5 * CONFIDENCE))
# Most readings of dynamic variables that are dropped at an instant (chosen: a robot of which more fail needs a look).
MOST_DROPPED = 8

# Name of events that are no measurement: the motion changes more than its density explains.
MOTION = "motion"

Dropped = dict[str, np.ndarray]  # {measurement: (N, m) bool}.


class Event(NamedTuple):
    """A component of a measurement that was not believed at an instant: its number and time [s], and names.

    size: in units of the standard deviation that was expected. why: "innovation" (before it is taken in), "residual",
    or "impact": of `MOTION`, whose densities were raised where velocities jump.
    """

    instant: int
    t: float
    measurement: str
    component: str
    size: float
    why: str


def beyond(
    source: StateResiduals | DynamicsResiduals,
    errors: Iterable[tuple[slice, dict[str, np.ndarray]]],
    path: StateTrajectory,
    readings: MeasurementData,
    limit: float,
) -> tuple[Dropped, list[Event]]:
    """({name: (N, m) bool}, events) of components whose residuals are beyond this multiple of what they may be.

    errors: residuals {measurement: (n, m)} of instants. Of dynamic variables the farthest of each instant alone.
    """
    off, events = Dropped(), []
    for part, found in errors:
        far = {}
        for name, e in found.items():
            own = limit
            if name in stances(source):  # it stands or not, as a whole
                e, own = np.broadcast_to(np.abs(e).max(axis=1, keepdims=True), e.shape), max(limit, SLIPS)
            far[name] = np.where((np.abs(e) > own) & readings.active[name][part], np.abs(e), 0.0)
        farthest = np.max([np.zeros(len(path.t[part])), *(x.max(axis=1) for x in far.values())], axis=0)
        for name, x in far.items():
            wrong = (x > 0.0) if isinstance(source, StateResiduals) else (x > 0.0) & (x == farthest[:, None])
            off.setdefault(name, np.zeros_like(readings.active[name]))[part] = wrong
            for i, k in np.argwhere(wrong).tolist():
                at = part.start + i
                events.append(Event(at, float(path.t[at]), name, str(k), float(x[i, k]), "residual"))
    return off, events


def snooped(
    source: DynamicsResiduals, path: StateTrajectory, readings: MeasurementData, P: np.ndarray
) -> tuple[MeasurementData, list[Event]]:  # fmt: skip
    """(readings of dynamic variables that are left, those dropped) of instants, each by itself.

    path, P (N, unknowns, unknowns): the states before these readings.
    """
    events: list[Event] = []
    for _ in range(MOST_DROPPED if source.has_redundancy else 0):
        errors = studentized_residuals(source, path, readings, P)
        known = {name: e for name, e in errors.items() if name in readings.active}
        off, now = beyond(source, [(slice(0, len(path)), known)], path, readings, OUTLIER_THRESHOLD)
        if not now:
            break
        readings, events = readings.exclude(off), events + now
    return readings, events


def same(off: Dropped, before: Dropped) -> bool:
    """True if the same is dropped."""
    return off.keys() == before.keys() and all(np.array_equal(x, before[name]) for name, x in off.items())


def weight(e: np.ndarray) -> np.ndarray:
    """Weights (N,) of squares of residuals (N, m) in standard deviations, of Student's distribution."""
    return np.asarray((FREEDOMS + e.shape[1]) / (FREEDOMS + (e * e).sum(axis=1)))


def stances(source: StateResiduals | DynamicsResiduals) -> frozenset[str]:
    """Names of the stances among the sensors of states."""
    sensors = source.sensors if isinstance(source, StateResiduals) else ()
    return frozenset(m.name for m in sensors if isinstance(m, Stance))


def residuals(
    source: StateResiduals | DynamicsResiduals,
    path: StateTrajectory,
    readings: MeasurementData,
    covariances: Covariances | None = None,
) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    """(instants, {measurement: residuals (n, m)}) of everything measured with noise, in standard deviations.

    Those of dynamic variables are relative to what they may be, with these covariances or if the states are known.
    """
    for part in memory_slices(len(path), source):
        some, read = path.part(part), readings.part(part)
        if isinstance(source, StateResiduals):
            r = source.linearize(some, read, weighted=False).r
            yield part, {name: r[:, rows] for name, rows in source.rows.items()}
            continue
        if covariances is not None and source.outputs:
            found = studentized_residuals(source, some, read, covariances.part(part).dense(), after=True)
            yield part, {name: e for name, e in found.items() if name in readings.active}
            continue
        found = {}
        for name, (e, share) in residuals_given_state(source, some, read).items():
            if name in readings.active:
                checked = share > MIN_REDUNDANCY
                found[name] = np.where(checked, e / np.sqrt(np.where(checked, share, 1.0)), 0.0)
        yield part, found
