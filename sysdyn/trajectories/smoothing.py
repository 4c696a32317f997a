"""Smoothing: states and biases of all instants at once, by Gauss-Newton along the chain."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.trajectories import densities
from sysdyn.trajectories.believed import (
    CONFIDENCE,
    FAR,
    MOTION,
    SLIPS,
    Dropped,
    Event,
    residuals,
    same,
    stances,
    tested,
    weight,
)  # fmt: skip
from sysdyn.trajectories.chain import Covariances
from sysdyn.trajectories.equations import OfDynamics, OfStates, Readings, in_parts
from sysdyn.trajectories.linearised import Least, Linearised
from sysdyn.trajectories.motion import covariance
from sysdyn.trajectories.path import Path

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
LIMITS = (1e3, 1e2, 20.0, 7.0, FAR, FAR, FAR)
# Limit of LIMITS from which on a path need not be near the least: dropped readings are far from every path (chosen).
EARLY = 20.0
# Change of velocities that an impact allows [rad/s, m/s], steps of a log before the begin of a stance at which it may
# be, as contacts are told late, and instants on both sides whose readings it explains (chosen).
IMPACT, BESIDE, SHAKEN = 1.0, 2, 20
# Weight of stances while they are tested against all sensors: 100 times their noise (chosen).
WEAKENED = 1e-4


class Smoothed(NamedTuple):
    """A smoothed path, covariances of its instants, whether it is the one of least squares, and these squares."""

    path: Path
    covariances: Covariances
    converged: bool
    objective: float


def _between(before: np.ndarray, step: np.ndarray) -> float:
    """Share of a step that goes back along the one before (none: empty), by the secant of both; 1 if it does not."""
    along = float(np.vdot(step, before)) if len(before) else 0.0
    if along >= 0.0:
        return 1.0
    back = -along / float(np.vdot(before, before))
    aside = np.linalg.norm(step + back * before)
    return 1.0 / (1.0 + back) if aside <= ASIDE * np.linalg.norm(step) else 1.0


@dataclass
class Smoother:
    """Gauss-Newton on the equations of a path. events: readings that the last `run` dropped."""

    equations: Linearised
    robust: bool = True
    events: list[Event] = field(default_factory=list)

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------

    def solve(
        self, path: Path, readings: Readings, enough: float = DECREASE, most: int = MOST_STEPS
    ) -> tuple[Least, bool]:  # fmt: skip
        """(the least squares near `path`, by Gauss-Newton; True if converged). enough: decrease that ends it.

        most: steps, of which fewer than all leave open whether a path that still moves is good enough.

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
            change, small = best.objective - now.objective, enough * max(1.0, ROUNDING * best.objective)
            if change >= 0.0:
                best, share, waited = now, min(1.0, 2.0 * share), 0
            if abs(change) <= small or (best is now and whole and abs(now.objective - swept.least) <= FORETOLD * small):
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
        return best, abs(best.objective - after.objective) <= CLOSE**2 * len(path) * path.unknowns.size

    def run(self, path: Path, readings: Readings) -> tuple[Smoothed, Readings]:
        """The smoothed path and the readings that are left.

        At first all sensors of states have Student's distribution, which a path near the right one survives; then a
        reading whose residual is beyond belief is dropped, the farthest first, and comes back if it agrees with the
        path of the others; see `sysdyn.trajectories.believed`.
        """
        own = self.equations
        own.weigh_exact(path, readings)
        left, converged = readings, False
        best: Least | None = None
        if self.robust:
            path, left, best, converged = self._believed(*self._without_false_stances(path, readings))
        if best is None:
            best, converged = self.solve(path, left)
        found = own.sweep(best, covariances=True)
        if converged and abs(best.objective - found.least) <= DECREASE * max(1.0, ROUNDING * best.objective):
            best = own.about(own.moved(best, found.step, left), left)  # a step for nothing
        return Smoothed(best.path, found.covariances, converged, best.objective), left

    # ---- robustness --------------------------------------------------------------------------------------------

    def _believed(
        self, path: Path, readings: Readings, refused: list[Event]
    ) -> tuple[Path, Readings, Least | None, bool]:  # fmt: skip
        """(a path, the readings that agree with it, and `solve` of them if the last round has found it, else None).

        refused: events before.
        """
        own, left, off, events, converged = self.equations, readings, Dropped(), list[Event](), False
        least: Least | None = None
        covariances: Covariances | None = None  # of the coupled level
        for round_, limit in enumerate(LIMITS):
            before = dict(off)
            events = [e for e in events if e.measurement not in self._of_states]
            for source in own.sources:
                anew = isinstance(source, OfStates)
                now, more = tested(source, path, readings if anew else left, limit, covariances)
                events += more
                off |= now if anew else {x: y | off.get(x, False) for x, y in now.items()}
            unchanged, last = bool(round_) and same(off, before), round_ == len(LIMITS) - 1
            if unchanged and limit > FAR:
                continue
            weights = self._weights(path, readings, round_ == 0)
            if unchanged and converged and not weights and not left.weights:
                least = None
                continue
            left = replace(readings.without(off), weights=weights)
            enough = DECREASE if last else EARLY_DECREASE if limit >= EARLY else ROUGH_DECREASE
            least, converged = self.solve(path, left, enough, MOST_STEPS if last else STEPS_A_ROUND)
            path = least.path
            if not last and any(isinstance(x, OfDynamics) and x.outputs for x in own.sources):
                covariances = own.covariances(least)
        self.events = refused + events
        return path, left, least, converged

    def _with_impacts(self, least: Least, readings: Readings, touching: Readings) -> tuple[Least, list[Event]]:
        """(the path with densities of the motion raised at impacts, these as events).

        An impact is the begin of a stance near which a velocity that jumps explains all readings better, by 99.9 % of
        χ². touching: with all stances that begin.
        """
        own, path, dt = self.equations, least.path, np.diff(least.path.t)
        order, model = path.unknowns.motion.order, path.unknowns.model
        begins: set[int] = set()
        # floors on which feet settle give way, and are no jumps of velocities
        settling = {
            x.name for y in own.sources if isinstance(y, OfStates) for x in y.sensors if getattr(x.of, "settle", 0)
        }
        for source in own.sources:
            for name in stances(source) - settling:
                on = np.asarray(touching.active[name].any(axis=1))
                begins |= set(np.flatnonzero(on[1:] & ~on[:-1]).tolist())
        if not begins:
            return least, []
        jump = np.maximum(IMPACT / (own.density * np.sqrt(covariance(dt, order)[:, 1, 1])[:, None]), 1.0)
        beside = {k: slice(max(k - BESIDE, 0), k + 1) for k in sorted(begins)}
        own.raised = np.ones((len(dt), model.nv))
        for part in beside.values():
            own.raised[part] = jump[part]
        before = own.squares(least.path, readings, None)
        jumped = self.solve(path, readings, ROUGH_DECREASE, STEPS_A_ROUND)[0].path
        after, needed = own.squares(jumped, readings, own.raised), densities.each_square(jumped, own.density)
        raised, events = np.ones_like(own.raised), list[Event]()
        for k, part in beside.items():
            freedoms = (part.stop - part.start) * order * model.nv  # as many squares are free then
            limit = scipy.special.chdtri(freedoms, 1.0 - CONFIDENCE)
            near = slice(max(k - SHAKEN, 0), k + SHAKEN)
            drop = float(before[near].sum() - after[near].sum())
            if drop > limit:
                # no more than what each degree of freedom did, so that others are as certain as before
                own_part = np.sqrt(needed[part].mean(axis=0) / order)
                raised[part] = np.clip(own_part, 1.0, jump[part])
                size = float(np.sqrt(drop / freedoms))
                events.append(Event(k + 1, float(path.t[k + 1]), MOTION, "0", size, "impact"))
        own.raised = raised if events else None
        return (self.solve(path, readings, ROUGH_DECREASE, STEPS_A_ROUND)[0] if events else least), events

    def _without_false_stances(self, path: Path, readings: Readings) -> tuple[Path, Readings, list[Event]]:
        """(a path that stances hardly hold, readings without stances that contradict it, these as events).

        That a foot stands is an assumption and no measurement: what all sensors say without it goes first.
        """
        own = self.equations
        source = next((x for x in own.sources if isinstance(x, OfStates) and stances(x)), None)
        if source is None:
            return path, readings, []
        weak = replace(readings, weights={name: np.full(len(path), WEAKENED) for name in stances(source)})
        least, _ = self.solve(path, weak, ROUGH_DECREASE, STEPS_A_ROUND)
        # else feet that come to rest at once would contradict the motion
        least, events = self._with_impacts(least, weak, readings)
        left = source.at(least.path, readings, weighted=False).r
        standing = np.concatenate([source.groups()[name] for name in stances(source)])
        if not (np.abs(left[:, standing]) > SLIPS).any():  # whatever their variances are
            return least.path, readings, events
        covariances = own.covariances(least)
        off = Dropped()
        for part in in_parts(len(path), source):
            lines = source.at(least.path.part(part), readings.part(part), weighted=False)
            known = covariances.part(part)
            for name in stances(source):
                rows = source.groups()[name]
                J, columns = lines.within(rows)
                variance = 1.0 + np.einsum("nij,nij->ni", J @ known.among(columns), J)
                size = (np.abs(lines.r[:, rows]) / np.sqrt(variance)).max(axis=1)
                active = readings.active[name][part]
                off.setdefault(name, np.zeros_like(readings.active[name]))[part] = (size > SLIPS)[:, None] & active
                for i in np.flatnonzero((size > SLIPS) & active.any(axis=1)).tolist():
                    at = part.start + i
                    events.append(Event(at, float(path.t[at]), name, "0", float(size[i]), "innovation"))
        return least.path, readings.without(off), events

    def _weights(self, path: Path, readings: Readings, first: bool) -> dict[str, np.ndarray]:
        """{sensor: (N,)} weights of Student's distribution: of stances, and at first of all sensors of states."""
        found: dict[str, list[np.ndarray]] = {}
        for source in self.equations.sources:
            if isinstance(source, OfStates):
                for _, errors in residuals(source, path, readings):
                    for name, e in errors.items():
                        if first or name in stances(source):
                            found.setdefault(name, []).append(weight(e))
        return {name: np.concatenate(x) for name, x in found.items()}

    @cached_property
    def _of_states(self) -> frozenset[str]:
        sources = self.equations.sources
        return frozenset(m.name for source in sources if isinstance(source, OfStates) for m in source.sensors)
