"""Gauss-Newton smoother: states and biases of all time steps of a log, with rejection of outliers and impacts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # loads scipy.special lazily

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

# Maximum number of Gauss-Newton steps (chosen).
MOST_STEPS = 60
# Gauss-Newton steps between two rounds of outlier rejection (chosen).
STEPS_A_ROUND = 3
# Convergence tolerances, decreases of the objective χ² (its standard deviation is 1.4 for one degree of freedom): of
# the final solution, during outlier rejection, and during rejection of gross outliers (chosen).
DECREASE, ROUGH_DECREASE, EARLY_DECREASE = 1e-4, 1e-1, 100.0
# Tolerance of the difference between the objective after a step and its linear prediction, at which it has converged,
# in units of DECREASE (chosen: the gain of the next step is of second order in it).
FORETOLD = 0.1
# Relative decrease of the objective that is rounding, in units of DECREASE (chosen).
ROUNDING = 1e-4
# Root mean square of a further step, in standard deviations, up to which a path counts as converged after MOST_STEPS
# (chosen): stiff motions cost digits, so that steps of a few hundredths never become smaller.
CLOSE = 0.1
# Greatest relative size of the component of a step orthogonal to the previous step, up to which the secant of both
# shortens a step that goes back (chosen).
ASIDE = 0.5
# Watchdog: successive steps that may increase the objective before the best path is restored, and the least fraction
# of a step (chosen).
WATCHED_STEPS, LEAST_OF_A_STEP = 3, 1e-3
# Outlier limits of residuals, in standard deviations, of successive rounds of outlier rejection (chosen).
LIMITS = (1e3, 1e2, 20.0, 7.0, OUTLIER_THRESHOLD, OUTLIER_THRESHOLD, OUTLIER_THRESHOLD)
# Outlier limits for a path that is near the solution (chosen).
AGAIN = (LIMITS[0], OUTLIER_THRESHOLD, OUTLIER_THRESHOLD)
# Outlier limit at and above which a path need not be converged: such outliers are far from every path (chosen).
EARLY = 20.0
# Impacts: velocity jump allowed at the begin of a stance [rad/s, m/s]; steps before that begin in which the jump may
# be; steps on both sides of a jump of the motion in which it may be; time steps on both sides of an impact whose χ²
# decides on it (chosen).
IMPACT, BESIDE, AROUND, SHAKEN = 1.0, 2, 1, 20
# Weight of stances while they are checked against all sensors: 100 times their noise (chosen).
WEAKENED = 1e-4


class Smoothed(NamedTuple):
    """Result of the smoother: path, covariances of all time steps, converged, and the objective χ² at the path."""

    path: StateTrajectory
    covariances: Covariances
    converged: bool
    objective: float


class VelocityJump(NamedTuple):
    """A candidate velocity jump, as by an impact, in one of the steps `part` around `step`.

    sizes (nv,): of the jump by degree of freedom. shown (nv,) bool: degrees of freedom whose jump is significant in the
    smoothed motion. All others may jump, too, because an impact moves the whole robot: by the standard deviation of
    their jump.
    """

    step: int
    part: slice
    sizes: np.ndarray
    shown: np.ndarray


class Believed(NamedTuple):
    """Result of outlier rejection: nearly converged solution, inliers `left`, outliers `events`, and velocity jumps."""

    least: Least
    left: MeasurementData
    events: list[Event]
    jumps: Sequence[VelocityJump] = ()


def _between(before: np.ndarray, step: np.ndarray) -> float:
    """Step length: below 1 if a step reverses the previous step `before`, by the secant of both; else 1.

    before: empty if there is no previous step.
    """
    along = float(np.vdot(step, before)) if len(before) else 0.0
    if along >= 0.0:
        return 1.0
    back = -along / float(np.vdot(before, before))
    aside = np.linalg.norm(step + back * before)
    return 1.0 / (1.0 + back) if aside <= ASIDE * np.linalg.norm(step) else 1.0


def _small(least: Least, enough: float) -> float:
    """Convergence tolerance: `enough`, or the rounding of the objective if that is greater."""
    return enough * max(1.0, ROUNDING * least.objective)


@dataclass
class Smoother:
    """Gauss-Newton smoother of a log with outlier rejection and detection of impacts.

    equations: the least-squares problem. robust: reject outliers. impacts: impacts that are known, at which `equations`
    has raised process noise; None: `run` detects them. events: impacts and outliers of the last `run`.
    """

    equations: Linearised
    robust: bool = True
    impacts: list[Event] | None = None
    events: list[Event] = field(default_factory=list)

    def coupled(self, sources: Sequence[StateResiduals | DynamicsResiduals]) -> Smoother:
        """Smoother of other sources, such as those of a coupled problem, with the impacts that the last `run` detected.

        Impacts are detected by sensors of motion alone: with forces, a contact that is stated wrongly would be
        mistaken for an impact, and an impact for such a contact.
        """
        own = self.equations
        equations = Linearised(own.layout, sources, own.density, own.start, own.gone, raised=own.raised)
        return Smoother(equations, self.robust, [e for e in self.events if e.measurement == MOTION])

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------

    def solve(
        self, path: StateTrajectory, readings: MeasurementData, enough: float = DECREASE, most: int = MOST_STEPS
    ) -> tuple[Least, bool]:  # fmt: skip
        """Minimise the objective by Gauss-Newton from `path`: (linearised solution, True if converged).

        enough: convergence tolerance, a decrease of the objective. most: maximum number of steps; below MOST_STEPS, a
        path that has not converged after them is not checked against CLOSE.

        Globalisation by the watchdog technique (Chamberlain, Powell, Lemarechal and Pedersen 1982): WATCHED_STEPS
        successive steps may increase the objective, because a large rotation is corrected by shifts of the next step.
        Then the best path is restored and a quarter of the step length is tried. A step that reverses the one before
        is shortened by a secant, because weakly observable directions are strongly nonlinear.
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
        """Smooth a log: (smoothed path, inliers).

        Outlier rejection: in the first round state sensors have Student's t-distribution, which is robust to outliers.
        Then readings whose residual exceeds the limit of the round are dropped, with a lower limit in each round, and
        dropped readings are accepted again if they agree with the path; see `sysdyn.estimation.outliers`.
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
        """Final solution and covariances from `best`: by one step if the objective is as predicted, else by `solve`.

        converged: `best` has converged. Covariances are those about `best` or a path whose objective differs by less
        than ROUGH_DECREASE, which is negligible in standard deviations.
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
        """Reject outliers, first stances and then all readings; detect impacts unless they are known.

        Process noise is raised at the impacts.
        """
        searched = self.impacts is None
        path, given, refused = self._without_false_stances(path, readings, searched)
        found = self._believed(path, given, LIMITS, searched)
        self.events = refused + found.events
        return self._with_jumps(found, readings, given, refused) if found.jumps else found

    def _believed(
        self, path: StateTrajectory, readings: MeasurementData, limits: Sequence[float], searched: bool = False
    ) -> Believed:  # fmt: skip
        """Outlier rejection in rounds from `path`, with one limit of residuals, in standard deviations, for each round.

        searched: look for velocity jumps, and stop at the first round of limit OUTLIER_THRESHOLD if there are any.
        """
        own, left, off, events, converged = self.equations, readings, Dropped(), list[Event](), False
        least: Least | None = None
        covariances: Covariances | None = None  # of a coupled problem
        for round_, limit in enumerate(limits):
            before = dict(off)
            events = [e for e in events if e.measurement not in self._of_states]
            errors: dict[str, np.ndarray] = {}  # of state sensors
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
            if last:  # `_finished` solves it, with covariances
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
        """Repeat outlier rejection with process noise raised at velocity jumps, as by a blow; sets `self.events`.

        found: the result without them, with candidate jumps. A candidate is accepted as an impact if it decreases the
        χ² of the time steps around it significantly (99.9 %); an outlier counts as CHI2_THRESHOLD in both. If none is
        accepted, the process noise stays as it was. given: readings without the stances rejected before, which are the
        events `refused`.
        """
        own, before, path, left = self.equations, self.equations.raised, found.least.path, found.left
        near = np.zeros((len(path), 1), dtype=bool)
        for x in found.jumps:
            near[max(x.step - SHAKEN, 0) : x.step + SHAKEN] = True
        # without the readings that contradict the motion near a jump, the jump could not be located
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
        """Candidate velocity jumps of a smoothed motion, significant at 99.9 % for the whole log (Bonferroni).

        covariances: with adjoint covariances Λ; None: standard deviations are robust estimates over all steps.
        """
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
        """(N,) χ² of each time step, where each outlier, in `readings` but not in `left`, counts as CHI2_THRESHOLD."""
        dropped = sum((x & ~left.active[name]).sum(axis=1) for name, x in readings.active.items())
        return self.equations.squares(path, left, self.equations.raised) + CHI2_THRESHOLD * dropped

    def _raised(self, jumps: Sequence[VelocityJump], path: StateTrajectory) -> np.ndarray:
        """(N − 1, nv) factors of the process-noise density that allow all of these velocity jumps."""
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
        """Accept the jumps that decrease χ² significantly: (factors of the process-noise density, impacts as events).

        tried, path: factors (N − 1, nv) and smoothed path with all jumps. drop (N,): decrease of χ² by all jumps, by
        time step. before: factors without the jumps, returned if none is accepted; None: 1.
        """
        order, needed = path.layout.motion.order, process_noise.process_chi2(path, self.equations.density)
        raised, events = np.ones_like(needed) if before is None else before.copy(), list[Event]()
        away = np.abs(np.arange(len(path)) - 0.5 - np.array([[x.step] for x in jumps]))  # a step precedes its sample
        nearest = np.where(away.min(axis=0) < SHAKEN, away.argmin(axis=0), -1)
        for i, x in enumerate(jumps):
            freedoms = (x.part.stop - x.part.start) * order * int(x.shown.sum())  # raised noise frees as many residuals
            less = float(drop[nearest == i].sum())
            if less > scipy.special.chdtri(freedoms, 1.0 - CONFIDENCE):
                # no more than each degree of freedom needs, so that the uncertainty of others does not grow
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
        """Detect impacts of feet at touch-down: (solution with raised process noise at impacts, impacts as events).

        Candidates are the begins of stances in `touching`. One is accepted if a velocity jump near it decreases the χ²
        of the time steps around it significantly (99.9 %). least: solution without new impacts.
        """
        own, before = self.equations, self.equations.raised
        begins: set[int] = set()
        # feet with a settling time touch down on a compliant floor: their velocity does not jump
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
        """Reject false stances: (path with down-weighted stances, readings without false stances, events).

        A stance is an assumption, not a measurement. It is rejected where it contradicts the path that all other
        sensors determine, with the weight of stances reduced to WEAKENED. events: rejected stances, and impacts.
        touching: detect impacts at touch-down first.
        """
        own = self.equations
        source = next((x for x in own.sources if isinstance(x, StateResiduals) and stances(x)), None)
        if source is None:
            return path, readings, []
        weak = replace(readings, weights={name: np.full(len(path), WEAKENED) for name in stances(source)})
        least, _ = self.solve(path, weak, ROUGH_DECREASE, STEPS_A_ROUND)
        # otherwise stances that begin with an impact would contradict the motion
        least, events = self._with_impacts(least, weak, readings) if touching else (least, [])
        left = source.linearize(least.path, readings, weighted=False).r
        standing = np.concatenate([source.rows[name] for name in stances(source)])
        if not (np.abs(left[:, standing]) > SLIPS).any():  # whatever the variance of the path is
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
