"""Smoothing: states and biases of all instants at once, by Gauss-Newton along the chain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.estimation import process_noise
from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.linearization import Least, Linearised
from sysdyn.estimation.outliers import (
    MOTION,
    SLIPS,
    Dropped,
    Event,
    beyond,
    residuals,
    same,
    stances,
    weight,
)  # fmt: skip
from sysdyn.estimation.process_model import covariance
from sysdyn.estimation.residuals import (
    CHI2_THRESHOLD,
    CONFIDENCE,
    OUTLIER_THRESHOLD,
    DynamicsResiduals,
    MeasurementData,
    StateResiduals,
)
from sysdyn.estimation.state_trajectory import StateTrajectory

# Most steps of Gauss-Newton (chosen).
MOST_STEPS = 60
# Steps after readings are dropped or come back, before all are tested again (chosen).
STEPS_A_ROUND = 3
# Decrease of the objective below which it has converged: of χ², whose standard deviation is 1.4 for one degree of
# freedom; at the end, while readings are tested, and while those far beyond belief are (chosen).
DECREASE, ROUGH_DECREASE, EARLY_DECREASE = 1e-4, 1e-1, 100.0
# Difference of the objective from what the chain foretold of a step up to which there is nothing left to decrease, in
# units of DECREASE (chosen: the gain of the next step is of second order in it).
FORETOLD = 0.1
# Share of the objective below which a decrease is rounding, in units of DECREASE (chosen).
ROUNDING = 1e-4
# Root mean square of a further step, in standard deviations, up to which a path that stays is good enough (chosen):
# stiff motions cost digits, so that steps of a few hundredths follow each other without end.
CLOSE = 0.1
# Greatest part of a step beside the one before, along which it goes back, up to which both meet between (chosen).
ASIDE = 0.5
# Steps that may increase the objective before the best path goes on, and the least share of a step (chosen).
WATCHED_STEPS, LEAST_OF_A_STEP = 3, 1e-3
# Residuals that are dropped, in standard deviations, round by round, down to the last limit (chosen).
LIMITS = (1e3, 1e2, 20.0, 7.0, OUTLIER_THRESHOLD, OUTLIER_THRESHOLD, OUTLIER_THRESHOLD)
# The same from a path from which nothing is far (chosen).
AGAIN = (LIMITS[0], OUTLIER_THRESHOLD, OUTLIER_THRESHOLD)
# Limit of LIMITS from which on a path need not be near the least: dropped readings are far from every path (chosen).
EARLY = 20.0
# Change of velocities that the begin of a stance allows [rad/s, m/s], steps of a log before it, or on both sides of a
# jump that the motion shows, at which it may be, and instants on both sides whose readings it explains (chosen).
IMPACT, BESIDE, AROUND, SHAKEN = 1.0, 2, 1, 20
# Weight of stances while they are tested against all sensors: 100 times their noise (chosen).
WEAKENED = 1e-4


class Smoothed(NamedTuple):
    """A smoothed path, covariances of its instants, whether it is the one of least squares, and these squares."""

    path: StateTrajectory
    covariances: Covariances
    converged: bool
    objective: float


class VelocityJump(NamedTuple):
    """A jump that may be at or near a step of the path (part), of velocities by these sizes (nv,); shown (nv,) bool.

    Velocities of which the motion shows nothing jump, too, as all parts of a robot do: by what is not told of them.
    """

    step: int
    part: slice
    sizes: np.ndarray
    shown: np.ndarray


class Believed(NamedTuple):
    """Least squares near the end, the readings that agree with each other, others as events, and jumps that show."""

    least: Least
    left: MeasurementData
    events: list[Event]
    jumps: Sequence[VelocityJump] = ()


def _between(before: np.ndarray, step: np.ndarray) -> float:
    """Share of a step that goes back along the one before (none: empty), by the secant of both; 1 if it does not."""
    along = float(np.vdot(step, before)) if len(before) else 0.0
    if along >= 0.0:
        return 1.0
    back = -along / float(np.vdot(before, before))
    aside = np.linalg.norm(step + back * before)
    return 1.0 / (1.0 + back) if aside <= ASIDE * np.linalg.norm(step) else 1.0


def _small(least: Least, enough: float) -> float:
    """Decrease of the objective that counts as none."""
    return enough * max(1.0, ROUNDING * least.objective)


@dataclass
class Smoother:
    """Gauss-Newton on the equations of a path. events: impacts, and readings that the last `run` dropped.

    impacts: known ones, at which the equations have raised densities; None: they are looked for.
    """

    equations: Linearised
    robust: bool = True
    impacts: list[Event] | None = None
    events: list[Event] = field(default_factory=list)

    def coupled(self, sources: Sequence[StateResiduals | DynamicsResiduals]) -> Smoother:
        """One of more sources, which has the impacts that the last `run` found by the sensors of motion.

        Forces of a contact that is told wrong would pass for impacts, and impacts for these.
        """
        own = self.equations
        equations = Linearised(own.layout, sources, own.density, own.start, own.gone, raised=own.raised)
        return Smoother(equations, self.robust, [e for e in self.events if e.measurement == MOTION])

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------

    def solve(
        self, path: StateTrajectory, readings: MeasurementData, enough: float = DECREASE, most: int = MOST_STEPS
    ) -> tuple[Least, bool]:  # fmt: skip
        """(the least squares near `path`, by Gauss-Newton; True if converged).

        enough: decrease that ends it. most: steps, of which fewer than all leave open whether a path that
        still moves is good enough.

        A step that increases the objective is followed by others, as a large turn is right though the shifts that
        belong to it come with the next step; without success the best path goes on by part of a step (Chamberlain,
        Powell, Lemarechal and Pedersen 1982: the watchdog technique). A step back goes part of the way, as directions
        that readings hardly tell bend more than the equations say that are linear.
        """
        own = self.equations
        best, share, waited = own.about(path, readings), 1.0, 0
        now, before = best, np.zeros((0, 0))
        for _ in range(most):
            swept = own.sweep(now)
            part = share * _between(before, swept.step)
            now, whole = own.about(own.moved(now, part * swept.step, readings), readings), part == 1.0
            before = part * swept.step
            change = best.objective - now.objective
            if change >= 0.0:
                best, share, waited = now, min(1.0, 2.0 * share), 0
            small = _small(best, enough)
            if abs(change) <= small or (
                best is now and whole and abs(now.objective - swept.min_cost) <= FORETOLD * small
            ):
                return best, True
            if not change >= 0.0:
                waited += 1
                if waited == WATCHED_STEPS:
                    now, share, waited = best, 0.25 * share, 0
                    if share < LEAST_OF_A_STEP:
                        break
        if most < MOST_STEPS:  # one of several rounds
            return best, False
        after = own.about(own.moved(best, own.sweep(best).step, readings), readings)
        return best, abs(best.objective - after.objective) <= CLOSE**2 * len(path) * path.layout.size

    def run(self, path: StateTrajectory, readings: MeasurementData) -> tuple[Smoothed, MeasurementData]:
        """The smoothed path and the readings that are left.

        At first all sensors of states have Student's distribution, which a path near the right one survives; then a
        reading whose residual is beyond belief is dropped, the farthest first, and comes back if it agrees with the
        path of the others; see `sysdyn.estimation.outliers`.
        """
        own = self.equations
        own.weigh_exact(path, readings)
        if not self.robust:
            least, converged = self.solve(path, readings)
            return self._finished(least, True, readings)._replace(converged=converged), readings
        found = self._tested(path, readings)
        if self.impacts is not None:
            self.events = self.impacts + self.events
        return self._finished(found.least, False, found.left), found.left

    def _finished(self, best: Least, converged: bool, readings: MeasurementData) -> Smoothed:
        """The smoothed path near `best`, by one sweep if its step leads where it foretells.

        converged: `best` is the least. Covariances are about it, or about a path whose squares differ by less than
        ROUGH_DECREASE, which no standard deviation tells.
        """
        own = self.equations
        found = own.sweep(best, covariances=True)
        after = own.about(own.moved(best, found.step, readings), readings)
        if converged or abs(after.objective - found.min_cost) <= FORETOLD * _small(after, DECREASE):
            least = after if not converged or abs(best.objective - found.min_cost) <= _small(best, DECREASE) else best
            return Smoothed(least.path, found.covariances, True, least.objective)
        least, converged = self.solve(min(after, best, key=lambda x: x.objective).path, readings)
        if abs(after.objective - least.objective) > ROUGH_DECREASE:
            found = own.sweep(least, covariances=True)
        return Smoothed(least.path, found.covariances, converged, least.objective)

    # ---- robustness --------------------------------------------------------------------------------------------

    def _tested(self, path: StateTrajectory, readings: MeasurementData) -> Believed:
        """Readings that agree with each other, with densities raised at impacts if these are looked for."""
        searched = self.impacts is None
        path, given, refused = self._without_false_stances(path, readings, searched)
        found = self._believed(path, given, LIMITS, searched)
        self.events = refused + found.events
        return self._with_jumps(found, readings, given, refused) if found.jumps else found

    def _believed(
        self, path: StateTrajectory, readings: MeasurementData, limits: Sequence[float], searched: bool = False
    ) -> Believed:  # fmt: skip
        """The readings that agree with a path near this one, dropped down to the last of these limits.

        searched: ends with the jumps that the motion shows, if any, at the first limit OUTLIER_THRESHOLD.
        """
        own, left, off, events, converged = self.equations, readings, Dropped(), list[Event](), False
        least: Least | None = None
        covariances: Covariances | None = None  # of the coupled level
        for round_, limit in enumerate(limits):
            before = dict(off)
            events = [e for e in events if e.measurement not in self._of_states]
            errors: dict[str, np.ndarray] = {}  # of sensors of states
            for source in own.sources:
                anew = isinstance(source, StateResiduals)
                read = readings if anew else left
                found = list(residuals(source, path, read, covariances))
                errors |= {name: np.concatenate([x[name] for _, x in found]) for name in found[0][1]} if anew else {}
                now, more = beyond(source, found, path, read, limit)
                events += more
                off |= now if anew else {x: y | off.get(x, False) for x, y in now.items()}
            unchanged, last = bool(round_) and same(off, before), round_ == len(limits) - 1
            if unchanged and limit > OUTLIER_THRESHOLD:
                continue
            first = limit == LIMITS[0]
            weights = {name: weight(e) for name, e in errors.items() if first or name in self._stances}
            if unchanged and converged and not weights and not left.weights:
                break
            left = replace(readings.exclude(off), weights=weights)
            if last:  # solved with its covariances
                least = own.about(path, left)
                break
            enough = EARLY_DECREASE if limit >= EARLY else ROUGH_DECREASE
            least, converged = self.solve(path, left, enough, STEPS_A_ROUND)
            path = least.path
            if searched and limit == OUTLIER_THRESHOLD:
                searched, jumps = False, self._jumps(least)
                if jumps:
                    return Believed(least, left, events, jumps)
            if any(isinstance(x, DynamicsResiduals) and x.outputs for x in own.sources):
                covariances = own.covariances(least)
        assert least is not None
        return Believed(least, left, events, self._jumps(least) if searched else ())

    def _with_jumps(
        self, found: Believed, readings: MeasurementData, given: MeasurementData, refused: list[Event]
    ) -> Believed:
        """The same with the density of the motion raised where velocities jump, as by a blow, among `self.events`.

        A jump shows in the noise that moves a degree of freedom, and is one if the readings around it, and as few as
        are dropped, are explained better by 99.9 % of χ². given: readings without stances that were refused before.
        """
        own, before, path, left = self.equations, self.equations.raised, found.least.path, found.left
        near = np.zeros((len(path), 1), dtype=bool)
        for x in found.jumps:
            near[max(x.step - SHAKEN, 0) : x.step + SHAKEN] = True
        # a path without the readings that a jump contradicts does not tell where it is
        moving = {x: left.active[x] | readings.active[x] & near for x in self._of_states - self._stances}
        most = replace(left, active={**left.active, **moving})
        whole, _ = self.solve(path, most, ROUGH_DECREASE, STEPS_A_ROUND)
        jumps = self._jumps(whole, own.sweep(whole, covariances=True).covariances)
        if jumps:
            squares = self._squares(path, left, readings)
            own.raised = tried = self._raised(jumps, path)
            start, _ = self.solve(path, most, ROUGH_DECREASE, STEPS_A_ROUND)
            standing = {x: given.active[x] | readings.active[x] & near for x in self._stances}
            anew = replace(given, active={**given.active, **standing})
            kept = [e for e in refused if e.measurement == MOTION or not near[e.instant, 0]]
            jumped = self._believed(start.path, anew, AGAIN)
            drop = squares - self._squares(jumped.least.path, jumped.left, readings)
            own.raised, impacts = self._impacts(jumps, tried, jumped.least.path, drop, before)
            if impacts:
                if len(impacts) < len(jumps):
                    jumped = self._believed(jumped.least.path, anew, AGAIN)
                self.events = kept + impacts + jumped.events
                return jumped._replace(least=own.about(jumped.least.path, jumped.left))
        found = self._believed(path, given, AGAIN)
        self.events = refused + found.events
        return found

    def _jumps(self, least: Least, covariances: Covariances | None = None) -> list[VelocityJump]:
        """Jumps of velocities that a smoothed motion shows, by 99.9 % in the whole log; covariances: with Λ."""
        own = self.equations
        density = own.density if own.raised is None else own.density * own.raised
        slope, std = process_noise.jump_slopes(least.path, density, covariances)
        far = np.abs(slope) / std
        limit, together = -scipy.special.ndtri(0.5 * (1.0 - CONFIDENCE) / far.size), (far**2).sum(axis=1)
        found: list[VelocityJump] = []
        for k in np.flatnonzero((far > limit).any(axis=1)).tolist():
            if together[k] == together[max(k - SHAKEN, 0) : k + SHAKEN + 1].max():
                part = slice(max(k - AROUND, 0), k + AROUND + 1)
                shown = far[part].max(axis=0) > OUTLIER_THRESHOLD
                size = np.where(shown, np.abs(slope[part]) / std[part] ** 2, 1.0 / std[part])
                found.append(VelocityJump(k, part, size.max(axis=0), shown))
        return found

    def _squares(self, path: StateTrajectory, left: MeasurementData, readings: MeasurementData) -> np.ndarray:
        """(N,) squares of each instant, where one of `readings` that is not left counts as if it were at its limit."""
        dropped = sum((x & ~left.active[name]).sum(axis=1) for name, x in readings.active.items())
        return self.equations.squares(path, left, self.equations.raised) + CHI2_THRESHOLD * dropped

    def _raised(self, jumps: Sequence[VelocityJump], path: StateTrajectory) -> np.ndarray:
        """(N − 1, nv) multiples of the density if all of these are jumps."""
        own, dt = self.equations, np.diff(path.t)
        spread = covariance(dt, path.layout.motion.order)[:, 1, 1]
        unit = own.density * np.sqrt(spread)[:, None]
        raised = np.ones_like(unit) if own.raised is None else own.raised.copy()
        for x in jumps:
            raised[x.part] = np.maximum(raised[x.part], x.sizes / unit[x.part])
        return raised

    def _impacts(
        self,
        jumps: Sequence[VelocityJump],
        tried: np.ndarray,
        path: StateTrajectory,
        drop: np.ndarray,
        before: np.ndarray | None,
    ) -> tuple[np.ndarray | None, list[Event]]:
        """(multiples of the density at jumps that explain the readings around them, these as events).

        tried, path: multiples and path with all of them, drop (N,): decrease of the squares by them; before: multiples
        without.
        """
        order, needed = path.layout.motion.order, process_noise.process_chi2(path, self.equations.density)
        raised, events = np.ones_like(needed) if before is None else before.copy(), list[Event]()
        away = np.abs(np.arange(len(path)) - 0.5 - np.array([[x.step] for x in jumps]))  # a step is before its instant
        nearest = np.where(away.min(axis=0) < SHAKEN, away.argmin(axis=0), -1)
        for i, x in enumerate(jumps):
            freedoms = (x.part.stop - x.part.start) * order * int(x.shown.sum())  # as many squares are free then
            less = float(drop[nearest == i].sum())
            if less > scipy.special.chdtri(freedoms, 1.0 - CONFIDENCE):
                # no more than what each degree of freedom did, so that others are as certain as before
                did = np.where(x.shown, np.sqrt(needed[x.part] / order), 1.0)
                others = np.where(x.shown, 1.0, tried[x.part])
                raised[x.part] = np.maximum.reduce([raised[x.part], did, others])
                row, most = np.unravel_index(np.argmax(did), did.shape)
                size, at = math.sqrt(less / freedoms), x.part.start + int(row) + 1
                events.append(Event(at, float(path.t[at]), MOTION, str(most), size, "impact"))
        return (raised if events else before), sorted(events)

    def _with_impacts(
        self, least: Least, readings: MeasurementData, touching: MeasurementData
    ) -> tuple[Least, list[Event]]:
        """(the path with densities of the motion raised at impacts of feet, these as events).

        An impact is the begin of a stance near which a velocity that jumps explains all readings better, by 99.9 % of
        χ². touching: with all stances that begin.
        """
        own, before = self.equations, self.equations.raised
        begins: set[int] = set()
        # floors on which feet settle give way, and are no jumps of velocities
        settling = {
            x.name for y in own.sources if isinstance(y, StateResiduals) for x in y.sensors if getattr(x, "settle", 0)
        }
        for source in own.sources:
            for name in stances(source) - settling:
                on = np.asarray(touching.active[name].any(axis=1))
                begins |= set(np.flatnonzero(on[1:] & ~on[:-1]).tolist())
        if not begins:
            return least, []
        nv = least.path.layout.model.nv
        every = np.full(nv, IMPACT), np.ones(nv, dtype=bool)
        jumps = [VelocityJump(k, slice(max(k - BESIDE, 0), k + 1), *every) for k in sorted(begins)]
        squares = own.squares(least.path, readings, before)
        own.raised = tried = self._raised(jumps, least.path)
        jumped = self.solve(least.path, readings, ROUGH_DECREASE, STEPS_A_ROUND)[0].path
        drop = squares - own.squares(jumped, readings, own.raised)
        own.raised, events = self._impacts(jumps, tried, jumped, drop, before)
        return (self.solve(least.path, readings, ROUGH_DECREASE, STEPS_A_ROUND)[0] if events else least), events

    def _without_false_stances(
        self, path: StateTrajectory, readings: MeasurementData, touching: bool
    ) -> tuple[StateTrajectory, MeasurementData, list[Event]]:  # fmt: skip
        """(a path that stances hardly hold, readings without stances that contradict it, these as events).

        That a foot stands is an assumption and no measurement: what all sensors say without it goes first.
        """
        own = self.equations
        source = next((x for x in own.sources if isinstance(x, StateResiduals) and stances(x)), None)
        if source is None:
            return path, readings, []
        weak = replace(readings, weights={name: np.full(len(path), WEAKENED) for name in stances(source)})
        least, _ = self.solve(path, weak, ROUGH_DECREASE, STEPS_A_ROUND)
        # else feet that come to rest at once would contradict the motion
        least, events = self._with_impacts(least, weak, readings) if touching else (least, [])
        left = source.linearize(least.path, readings, weighted=False).r
        standing = np.concatenate([source.rows[name] for name in stances(source)])
        if not (np.abs(left[:, standing]) > SLIPS).any():  # whatever their variances are
            return least.path, readings, events
        off, variance = Dropped(), np.ones_like(left)
        variance[:, standing] += own.told_after(least, source, standing) / WEAKENED
        for name in stances(source):
            rows, active = source.rows[name], readings.active[name]
            size = (np.abs(left[:, rows]) / np.sqrt(variance[:, rows])).max(axis=1)
            wrong = (size > SLIPS) & active.any(axis=1)
            off[name] = wrong[:, None] & active
            for i in np.flatnonzero(wrong).tolist():
                events.append(Event(i, float(path.t[i]), name, "0", float(size[i]), "innovation"))
        return least.path, readings.exclude(off), events

    @cached_property
    def _stances(self) -> frozenset[str]:
        return frozenset().union(*(stances(source) for source in self.equations.sources))

    @cached_property
    def _of_states(self) -> frozenset[str]:
        sources = self.equations.sources
        return frozenset(m.name for source in sources if isinstance(source, StateResiduals) for m in source.sensors)
