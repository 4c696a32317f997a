"""Smoothing: states and biases of all instants at once, by Gauss-Newton along the chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.measurements.state_sensors import Stance
from sysdyn.trajectories import chain
from sysdyn.trajectories.equations import DENSE_NUMBERS, EXACT_SHARE, OfDynamics, OfStates, Readings
from sysdyn.trajectories.filtering import CONFIDENCE, Belief, Event
from sysdyn.trajectories.path import Path, Unknowns

# Most steps of Gauss-Newton (chosen).
MOST_STEPS = 60
# Steps after readings are dropped or come back, before all are tested again (chosen).
STEPS_A_ROUND = 3
# Decrease of the objective below which it has converged: of χ², whose standard deviation is 1.4 for one degree of
# freedom; at the end, and while readings are tested (chosen).
DECREASE, ROUGH_DECREASE = 1e-6, 1e-2
# Share of the objective below which a decrease is rounding, in units of the above (chosen).
ROUNDING = 1e-6
# Steps that may increase the objective before the best path goes on, and the least share of a step (chosen).
WATCHED_STEPS, LEAST_OF_A_STEP = 3, 1e-3
# Residuals that are dropped, in standard deviations, round by round: the last is CONFIDENCE (the others chosen).
LIMITS = (1e3, 1e2, 20.0, 7.0, *[float(scipy.special.ndtri(0.5 + 0.5 * CONFIDENCE))] * 3)
# Degrees of freedom of Student's distribution (chosen, as usual: 4).
FREEDOMS = 4.0
# Residual of a stance beyond which it does not stand: CONFIDENCE of that distribution, in standard deviations.
SLIPS = float(scipy.special.stdtrit(FREEDOMS, 0.5 + 0.5 * CONFIDENCE))

# Weight of stances while they are tested against all sensors: 100 times their noise (chosen).
WEAK = 1e-4
# Share of its own variance in a residual below which nothing else checks a reading (chosen).
UNCHECKED_SHARE = 1e-4

Dropped = dict[str, np.ndarray]  # {measurement: (N, m) bool}.


class Smoothed(NamedTuple):
    """A smoothed path, covariances P (N, k, k) of its instants, and the least objective."""

    path: Path
    P: np.ndarray
    objective: float


class Least(NamedTuple):
    """A path with the chain about it and the objective there."""

    path: Path
    linear: chain.Linear
    objective: float


@dataclass
class Smoother:
    """The least-squares problem over a path, with a prior of its first instant.

    density: κ (nv,) or (N − 1, nv) of the motion. events: readings that the last `run` dropped. sizes (unknowns,):
    standard deviations without exact rows, which `run` finds; None: exact rows are left out.
    """

    unknowns: Unknowns
    sources: Sequence[OfStates | OfDynamics]
    density: np.ndarray
    start: Belief
    robust: bool = True
    sizes: np.ndarray | None = None
    events: list[Event] = field(default_factory=list)

    # ---- equations ---------------------------------------------------------------------------------------------

    def linear(self, path: Path, readings: Readings) -> tuple[chain.Linear, float]:
        """(the chain about a path, the objective there)."""
        own, n = self.unknowns, len(path)
        k, s = own.size, own.n_states
        H, h, total = np.zeros((n, k, k)), np.zeros((n, k)), 0.0
        for source in self.sources:
            for part in _parts(n, source, k):
                lines = source.at(path.part(part), readings.part(part))
                weight = self._row_scale(lines.J, lines.exact)
                J, r = lines.J * weight[:, :, None], lines.r * weight
                Jt = J.swapaxes(1, 2)
                H[part] += Jt @ J
                h[part] += (Jt @ r[:, :, None])[..., 0]
                total += float((r * r).sum())
        away = path.beyond(self.start.path)
        total += float(away @ np.linalg.solve(self.start.P, away))
        Phi, Q, c = np.zeros((n - 1, k, k)), np.zeros((n - 1, k, k)), np.zeros((n - 1, k))
        if n > 1:
            dt, motion = np.diff(path.t), own.motion
            e, F0, F1 = motion.steps(path.q, path.rates, dt)
            total += float(np.einsum("ni,nij,nj->", e, motion.weights(dt, self.density), e))
            Phi[:, :s, :s], c[:, :s], Q[:, :s, :s] = -F0, -e, motion.noise(dt, self.density)
            for _, _, group in motion.groups:  # F1 is 1 but for positions of groups
                inverse = np.linalg.inv(F1[:, group, group])
                Phi[:, group, :s] = inverse @ Phi[:, group, :s]
                c[:, group] = (inverse @ c[:, group, None])[..., 0]
                Q[:, group, :s] = inverse @ Q[:, group, :s]
                Q[:, :s, group] = Q[:, :s, group] @ inverse.swapaxes(1, 2)
            if own.n_biases:
                walk = own.bias_density**2 * dt[:, None]
                change = np.diff(path.biases, axis=0)
                j = np.arange(s, k)
                Phi[:, j, j], Q[:, j, j], c[:, s:] = 1.0, walk, -change
                total += float((change * change / walk).sum())
        return chain.Linear(H, h, Phi, c, Q, -away, self.start.P), total

    def _row_scale(self, J: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """(N, rows): weights of rows, 1 for noisy ones; for exact ones see EXACT_SHARE."""
        if not exact.any():
            return np.ones(J.shape[:2])
        if self.sizes is None:
            return np.broadcast_to(np.where(exact, 0.0, 1.0), J.shape[:2])
        known = np.where(J != 0.0, np.abs(J) * self.sizes, np.inf).min(axis=2, initial=np.inf)
        return np.where(exact, 1.0 / (EXACT_SHARE * np.where(np.isfinite(known), known, 1.0)), 1.0)

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------

    def solve(self, path: Path, readings: Readings, enough: float = DECREASE, most: int = MOST_STEPS) -> Least:
        """The path of least squares near `path`, by Gauss-Newton. enough: decrease that ends it. most: steps.

        A step that increases the objective is followed by others, as a large turn is right though the shifts that
        belong to it come with the next step; without success the best path goes on by part of a step (Chamberlain,
        Powell, Lemarechal and Pedersen 1982: the watchdog technique).
        """
        best, share, waited = Least(path, *self.linear(path, readings)), 1.0, 0
        now = best
        for _ in range(most):
            path = now.path.moved(share * chain.solve(now.linear).step)
            now = Least(path, *self.linear(path, readings))
            change, small = best.objective - now.objective, enough * max(1.0, ROUNDING * best.objective)
            if change >= 0.0:
                best, share, waited = now, min(1.0, 2.0 * share), 0
            if abs(change) <= small:
                break
            if not change >= 0.0:
                waited += 1
                if waited == WATCHED_STEPS:
                    now, share, waited = best, 0.25 * share, 0
                    if share < LEAST_OF_A_STEP:
                        break
        return best

    def run(self, path: Path, readings: Readings) -> tuple[Smoothed, Readings]:
        """The smoothed path and the readings that are left.

        At first all sensors of states have Student's distribution, which a path near the right one survives; then a
        reading whose residual is beyond belief is dropped, the farthest first, and comes back if it agrees with the
        path of the others. Stances keep Student's distribution: a foot that touches down slips. Of dynamic variables
        one reading of an instant is dropped at a time, since it spoils the others (Baarda 1968: data snooping).
        """
        if any(source.exact.any() for source in self.sources):
            P = chain.solve(self.linear(path, readings)[0], covariances=True).P
            self.sizes = np.sqrt(np.median(np.einsum("nii->ni", P), axis=0))
        refused: list[Event] = []
        if self.robust:
            path, readings, refused = self._without_false_stances(path, readings)
        left, off = readings, Dropped()
        for round_, limit in enumerate(LIMITS if self.robust else ()):
            before = dict(off)
            self.events = [e for e in self.events if e.measurement not in self._of_states]
            for source in self.sources:
                now, events = tested(source, path, readings if isinstance(source, OfStates) else left, limit)
                self.events += events
                merged = (
                    now if isinstance(source, OfStates) else {x: y | off[x] if x in off else y for x, y in now.items()}
                )
                off |= merged
            if round_ and limit > LIMITS[-1] and _same(off, before):
                continue
            left = replace(readings.without(off), weights=self._weights(path, readings, round_ == 0))
            path = self.solve(path, left, ROUGH_DECREASE, STEPS_A_ROUND).path
        self.events[:0] = refused
        best = self.solve(path, left)
        return Smoothed(best.path, chain.solve(best.linear, covariances=True).P, best.objective), left

    def _without_false_stances(self, path: Path, readings: Readings) -> tuple[Path, Readings, list[Event]]:
        """(a path that stances hardly hold, readings without stances that contradict it, these as events).

        That a foot stands is an assumption and no measurement: what all sensors say without it goes first.
        """
        source = next((x for x in self.sources if isinstance(x, OfStates) and stances(x)), None)
        if source is None:
            return path, readings, []
        n = len(path)
        weak = replace(readings, weights={name: np.full(n, WEAK) for name in stances(source)})
        least = self.solve(path, weak, ROUGH_DECREASE, STEPS_A_ROUND)
        P = chain.solve(least.linear, covariances=True).P
        off, events = Dropped(), list[Event]()
        for part in _parts(n, source, self.unknowns.size):
            lines = source.at(least.path.part(part), readings.part(part), weighted=False)
            for name in stances(source):
                rows = source.groups()[name]
                J = lines.J[:, rows]
                variance = 1.0 + np.einsum("nij,njk,nik->ni", J, P[part], J)
                size = (np.abs(lines.r[:, rows]) / np.sqrt(variance)).max(axis=1)
                active = readings.active[name][part]
                off.setdefault(name, np.zeros_like(readings.active[name]))[part] = (size > SLIPS)[:, None] & active
                for i in np.flatnonzero((size > SLIPS) & active.any(axis=1)).tolist():
                    at = part.start + i
                    events.append(Event(at, float(path.t[at]), name, "0", float(size[i]), "innovation"))
        return least.path, readings.without(off), events

    # ---- robustness --------------------------------------------------------------------------------------------

    def _weights(self, path: Path, readings: Readings, first: bool) -> dict[str, np.ndarray]:
        """{sensor: (N,)} weights of Student's distribution: of stances, and at first of all sensors of states."""
        found: dict[str, list[np.ndarray]] = {}
        for source in self.sources:
            if isinstance(source, OfStates):
                for _, errors in residuals(source, path, readings):
                    for name, e in errors.items():
                        if first or name in stances(source):
                            weight = (FREEDOMS + e.shape[1]) / (FREEDOMS + (e * e).sum(axis=1))
                            found.setdefault(name, []).append(weight)
        return {name: np.concatenate(x) for name, x in found.items()}

    @property
    def _of_states(self) -> frozenset[str]:
        return frozenset(m.name for source in self.sources if isinstance(source, OfStates) for m in source.sensors)


def tested(
    source: OfStates | OfDynamics, path: Path, readings: Readings, limit: float
) -> tuple[Dropped, list[Event]]:  # fmt: skip
    """({name: (N, m) bool}, events) of components whose residuals are beyond this multiple of what they may be.

    Of dynamic variables the farthest of each instant alone.
    """
    off, events = Dropped(), []
    for part, found in residuals(source, path, readings):
        far = {}
        for name, e in found.items():
            own = limit
            if name in stances(source):  # it stands or not, as a whole
                e, own = np.broadcast_to(np.abs(e).max(axis=1, keepdims=True), e.shape), max(limit, SLIPS)
            far[name] = np.where((np.abs(e) > own) & readings.active[name][part], np.abs(e), 0.0)
        farthest = np.max([np.zeros(len(path.t[part])), *(x.max(axis=1) for x in far.values())], axis=0)
        for name, x in far.items():
            wrong = (x > 0.0) if isinstance(source, OfStates) else (x > 0.0) & (x == farthest[:, None])
            off.setdefault(name, np.zeros_like(readings.active[name]))[part] = wrong
            for i, k in np.argwhere(wrong).tolist():
                at = part.start + i
                events.append(Event(at, float(path.t[at]), name, str(k), float(x[i, k]), "residual"))
    return off, events


def _same(off: Dropped, before: Dropped) -> bool:
    return off.keys() == before.keys() and all(np.array_equal(x, before[name]) for name, x in off.items())


def stances(source: OfStates | OfDynamics) -> frozenset[str]:
    """Names of the stances among the sensors of states."""
    sensors = source.sensors if isinstance(source, OfStates) else ()
    return frozenset(m.name for m in sensors if isinstance(m.of, Stance))


def residuals(
    source: OfStates | OfDynamics, path: Path, readings: Readings
) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:  # fmt: skip
    """(instants, {measurement: residuals (n, m)}) of everything measured with noise, in standard deviations.

    Those of dynamic variables are relative to the residuals that they have if the states are known.
    """
    for part in _parts(len(path), source, path.unknowns.size):
        some, read = path.part(part), readings.part(part)
        if isinstance(source, OfStates):
            r = source.at(some, read, weighted=False).r
            yield part, {name: r[:, rows] for name, rows in source.groups().items()}
            continue
        found = {}
        for name, (e, share) in source.errors(some, read).items():
            if name in readings.active:
                checked = share > UNCHECKED_SHARE
                found[name] = np.where(checked, e / np.sqrt(np.where(checked, share, 1.0)), 0.0)
        yield part, found


def _parts(n: int, source: OfStates | OfDynamics, size: int) -> list[slice]:
    """Instants in parts whose dense rows fit into memory."""
    step = max(1, DENSE_NUMBERS // (max(len(source.exact), 1) * size))
    return [slice(at, min(at + step, n)) for at in range(0, n, step)]
