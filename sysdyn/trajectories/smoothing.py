"""Smoothing: states and biases of all instants at once, by Gauss-Newton along the chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.measurements.state_sensors import Stance
from sysdyn.trajectories import chain
from sysdyn.trajectories.equations import (
    DENSE_NUMBERS,
    EXACT_SHARE,
    UNCHECKED_SHARE,
    Lines,
    OfDynamics,
    OfStates,
    Readings,
)
from sysdyn.trajectories.filtering import CONFIDENCE, Belief, Event
from sysdyn.trajectories.motion import transition
from sysdyn.trajectories.path import Path, Unknowns

# Most steps of Gauss-Newton (chosen).
MOST_STEPS = 60
# Steps after readings are dropped or come back, before all are tested again (chosen).
STEPS_A_ROUND = 3
# Decrease of the objective below which it has converged: of χ², whose standard deviation is 1.4 for one degree of
# freedom; at the end, and while readings are tested (chosen).
DECREASE, ROUGH_DECREASE = 1e-4, 1e-1
# Share of the objective below which a decrease is rounding, in units of the above (chosen).
ROUNDING = 1e-4
# Steps that may increase the objective before the best path goes on, and the least share of a step (chosen).
WATCHED_STEPS, LEAST_OF_A_STEP = 3, 1e-3
# Residuals that are dropped, in standard deviations, round by round: the last is CONFIDENCE (the others chosen).
LIMITS = (1e3, 1e2, 20.0, 7.0, *[float(scipy.special.ndtri(0.5 + 0.5 * CONFIDENCE))] * 3)
# Degrees of freedom of Student's distribution (chosen, as usual: 4).
FREEDOMS = 4.0
# Residual of a stance beyond which it does not stand: CONFIDENCE of that distribution, in standard deviations.
SLIPS = float(scipy.special.stdtrit(FREEDOMS, 0.5 + 0.5 * CONFIDENCE))

# Weight of stances while they are tested against all sensors: 100 times their noise (chosen).
WEAKENED = 1e-4

Dropped = dict[str, np.ndarray]  # {measurement: (N, m) bool}.


class Smoothed(NamedTuple):
    """A smoothed path, covariances of its instants, and the least objective."""

    path: Path
    covariances: chain.Covariances
    objective: float


class Least(NamedTuple):
    """A path with the chain about it and the objective there."""

    path: Path
    linear: list[chain.Part]
    objective: float


class _Unknowns(NamedTuple):
    """Chains side by side: numbers (chains, k) of their unknowns, and degrees of freedom, of all chains."""

    columns: np.ndarray
    freedoms: np.ndarray


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
    _kept: dict[tuple[int, int], list] = field(default_factory=dict)

    # ---- equations ---------------------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> list[_Unknowns]:
        """The unknowns in parts that nothing couples."""
        own, nv = self.unknowns, self.unknowns.model.nv
        pattern = self.start.P != 0.0
        for k in range(own.n_states):
            pattern[k, k % nv] = True
        for _, _, part in own.motion.groups:
            pattern[part, part.start] = True
        for source in self.sources:
            row, column = source.places
            first = np.full(len(source.exact), -1)
            np.maximum.at(first, row, column)
            pattern[column, first[row]] = True
        found = chain.components(pattern)
        simple = [x for x in found if len(x) == own.motion.order and x[0] < own.n_states and not self._in_group(x[0])]
        parts = [_Unknowns(x[None], x[x < nv]) for x in found if not any(x is y for y in simple)]
        return [*parts, *([_Unknowns(np.array(simple), np.array(simple)[:, 0])] if simple else [])]

    def _in_group(self, k: int) -> bool:
        return any(part.start <= k < part.stop for _, _, part in self.unknowns.motion.groups)

    def linear(self, path: Path, readings: Readings) -> tuple[list[chain.Part], float]:
        """(the chain about a path in parts, the objective there)."""
        own, n = self.unknowns, len(path)
        away = path.beyond(self.start.path)
        H = [np.zeros((n, *x.columns.shape, x.columns.shape[1])) for x in self._parts]
        h = [np.zeros((n, *x.columns.shape)) for x in self._parts]
        total = float(away @ np.linalg.solve(self.start.P, away))
        for number, source in enumerate(self.sources):
            for part in _parts(n, source, own.size):
                lines = source.at(path.part(part), readings.part(part))
                weight = self._row_scale(lines)
                r, entries = lines.r * weight, lines.entries * weight[:, lines.places[0]]
                total += float((r * r).sum())
                for i, x in enumerate(self._parts):
                    for j, (rows, local, chosen) in enumerate(self._local(number, i)):
                        if not len(rows):
                            continue
                        J = np.zeros((len(r), len(rows), x.columns.shape[1]))
                        J[:, local[0], local[1]] = entries[:, chosen]
                        Jt = J.swapaxes(1, 2)
                        H[i][part, j] += Jt @ J
                        h[i][part, j] += (Jt @ r[:, rows, None])[..., 0]
        dt, motion = np.diff(path.t), own.motion
        e, step = motion.errors((path.q[:-1], path.rates[:-1]), (path.q[1:], path.rates[1:]), dt)
        total += motion.objective(e, dt, self.density)
        change, walk = np.diff(path.biases, axis=0), own.bias_density**2 * dt[:, None]
        total += float((change * change / walk).sum()) if own.n_biases else 0.0
        found = []
        for x, own_H, own_h in zip(self._parts, H, h, strict=True):
            Phi, Q, c = self._motion(x, e, step, dt, change, walk)
            P = self.start.P[x.columns[:, :, None], x.columns[:, None, :]]
            found.append(chain.Part(x.columns, chain.Linear(own_H, own_h, Phi, c, Q, -away[x.columns], P)))
        return found, total

    def _local(self, source: int, part: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows of a source that belong to each chain of a part, places there, and numbers of the entries."""
        if (source, part) not in self._kept:
            row, column = self.sources[source].places
            found = []
            for columns in self._parts[part].columns:
                chosen = np.flatnonzero(np.isin(column, columns))
                rows = np.unique(row[chosen])
                local = np.array([np.searchsorted(rows, row[chosen]), np.searchsorted(columns, column[chosen])])
                found.append((rows, local, chosen))
            self._kept[source, part] = found
        return self._kept[source, part]

    def _motion(
        self, x: _Unknowns, e: np.ndarray, step: np.ndarray, dt: np.ndarray, change: np.ndarray, walk: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(Phi, Q (N − 1, chains, k, k), c (N − 1, chains, k)) of a part."""
        own, motion, n = self.unknowns, self.unknowns.motion, len(dt)
        if len(x.columns) > 1 or (len(x.freedoms) == 1 == len(x.columns) and x.columns.shape[1] == motion.order
                                  and not self._in_group(x.freedoms[0])):  # fmt: skip
            one, chains = motion.noise(dt, np.ones(1)), len(x.columns)
            phi = np.repeat(transition(dt, motion.order)[:, None], chains, axis=1)
            Q = one[:, None] * np.square(self.density[x.freedoms])[:, None, None]
            return phi, Q, -e[:, :, x.freedoms].swapaxes(1, 2)
        columns, k, f = x.columns[0], x.columns.shape[1], motion.order * len(x.freedoms)
        Phi, Q, c = np.zeros((n, k, k)), np.zeros((n, k, k)), np.zeros((n, k))
        if f:
            F0, F1 = motion.jacobians(e, step, dt, x.freedoms)
            Phi[:, :f, :f], c[:, :f] = -F0, -e[:, :, x.freedoms].reshape(n, f)
            Q[:, :f, :f] = motion.noise(dt, self.density[x.freedoms])
            for joint, _, whole in motion.groups:  # F1 is 1 but for positions of groups
                if whole.start not in x.freedoms:
                    continue
                first = int(np.searchsorted(x.freedoms, whole.start))
                group = slice(first, first + joint.nv)
                inverse = np.linalg.inv(F1[:, group, group])
                Phi[:, group, :f] = inverse @ Phi[:, group, :f]
                c[:, group] = (inverse @ c[:, group, None])[..., 0]
                Q[:, group, :f] = inverse @ Q[:, group, :f]
                Q[:, :f, group] = Q[:, :f, group] @ inverse.swapaxes(1, 2)
        j, biases = np.arange(f, k), columns[f:] - own.n_states
        Phi[:, j, j], Q[:, j, j], c[:, f:] = 1.0, walk[:, biases], -change[:, biases]
        return Phi[:, None], Q[:, None], c[:, None]

    def _row_scale(self, lines: Lines) -> np.ndarray:
        """(N, rows): weights of rows, 1 for noisy ones; for exact ones see EXACT_SHARE."""
        scale = np.ones(lines.r.shape)
        if not lines.exact.any():
            return scale
        if self.sizes is None:
            scale[:, lines.exact] = 0.0
            return scale
        row, column = lines.places
        least, known = np.full(lines.r.shape, np.inf), np.abs(lines.entries) * self.sizes[column]
        known[known == 0.0] = np.inf
        for k in np.flatnonzero(lines.exact):
            least[:, k] = known[:, row == k].min(axis=1, initial=np.inf)
        exact = 1.0 / (EXACT_SHARE * np.where(np.isfinite(least), least, 1.0))
        return np.where(lines.exact, exact, 1.0)

    def sweep(self, parts: Sequence[chain.Part], covariances: bool = False) -> chain.Sweep:
        """The step of Gauss-Newton, and covariances if asked for."""
        return chain.sweep(parts, len(parts[0].linear.h), self.unknowns.size, covariances)

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
            path = now.path.moved(share * self.sweep(now.linear).step)
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
            found = self.sweep(self.linear(path, readings)[0], covariances=True)
            self.sizes = np.sqrt(np.median(found.covariances.diagonal(), axis=0))
        refused: list[Event] = []
        if self.robust:
            path, readings, refused = self._without_false_stances(path, readings)
        left, off, covariances = readings, Dropped(), None  # covariances of the coupled level
        for round_, limit in enumerate(LIMITS if self.robust else ()):
            before = dict(off)
            self.events = [e for e in self.events if e.measurement not in self._of_states]
            for source in self.sources:
                anew = isinstance(source, OfStates)
                now, events = tested(source, path, readings if anew else left, limit, covariances)
                self.events += events
                off |= now if anew else {x: y | off.get(x, False) for x, y in now.items()}
            if round_ and limit > LIMITS[-1] and _same(off, before):
                continue
            left = replace(readings.without(off), weights=self._weights(path, readings, round_ == 0))
            least = self.solve(path, left, ROUGH_DECREASE, STEPS_A_ROUND)
            path = least.path
            if any(isinstance(x, OfDynamics) and x.outputs for x in self.sources):
                covariances = self.sweep(least.linear, covariances=True).covariances
        self.events[:0] = refused
        best = self.solve(path, left)
        return Smoothed(best.path, self.sweep(best.linear, covariances=True).covariances, best.objective), left

    def _without_false_stances(self, path: Path, readings: Readings) -> tuple[Path, Readings, list[Event]]:
        """(a path that stances hardly hold, readings without stances that contradict it, these as events).

        That a foot stands is an assumption and no measurement: what all sensors say without it goes first.
        """
        source = next((x for x in self.sources if isinstance(x, OfStates) and stances(x)), None)
        if source is None:
            return path, readings, []
        n = len(path)
        weak = replace(readings, weights={name: np.full(n, WEAKENED) for name in stances(source)})
        least = self.solve(path, weak, ROUGH_DECREASE, STEPS_A_ROUND)
        covariances = self.sweep(least.linear, covariances=True).covariances
        off, events = Dropped(), list[Event]()
        for part in _parts(n, source, self.unknowns.size):
            lines = source.at(least.path.part(part), readings.part(part), weighted=False)
            P = covariances.part(part).dense()
            for name in stances(source):
                rows = source.groups()[name]
                J = lines.J[:, rows]
                variance = 1.0 + np.einsum("nij,nij->ni", J @ P, J)
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
    source: OfStates | OfDynamics, path: Path, readings: Readings, limit: float,
    covariances: chain.Covariances | None = None,
) -> tuple[Dropped, list[Event]]:  # fmt: skip
    """({name: (N, m) bool}, events) of components whose residuals are beyond this multiple of what they may be.

    Of dynamic variables the farthest of each instant alone. covariances: of the path; None: it counts as known.
    """
    return beyond(source, residuals(source, path, readings, covariances), path, readings, limit)


def beyond(
    source: OfStates | OfDynamics, errors: Iterable[tuple[slice, dict[str, np.ndarray]]], path: Path,
    readings: Readings, limit: float,
) -> tuple[Dropped, list[Event]]:  # fmt: skip
    """`tested`, of residuals {measurement: (n, m)} of instants."""
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
    source: OfStates | OfDynamics, path: Path, readings: Readings, covariances: chain.Covariances | None = None
) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:  # fmt: skip
    """(instants, {measurement: residuals (n, m)}) of everything measured with noise, in standard deviations.

    Those of dynamic variables are relative to what they may be, with these covariances or if the states are known.
    """
    for part in _parts(len(path), source, path.unknowns.size):
        some, read = path.part(part), readings.part(part)
        if isinstance(source, OfStates):
            r = source.at(some, read, weighted=False).r
            yield part, {name: r[:, rows] for name, rows in source.groups().items()}
            continue
        if covariances is not None and source.outputs:
            found = source.normalised(some, read, covariances.part(part).dense(), after=True)
            yield part, {name: e for name, e in found.items() if name in readings.active}
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
