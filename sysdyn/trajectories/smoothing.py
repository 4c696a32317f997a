"""Smoothing: states and biases of all instants at once, by Gauss-Newton along the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.stats where it is first used

from sysdyn.measurements.state_sensors import Stance
from sysdyn.trajectories import chain
from sysdyn.trajectories.equations import EXACT_SHARE, MOST_NUMBERS, OfDynamics, OfStates, Readings
from sysdyn.trajectories.filtering import CONFIDENCE, Event
from sysdyn.trajectories.path import Path, Unknowns

# Most steps of Gauss-Newton (chosen).
MOST_STEPS = 60
# Steps after readings are dropped or come back, before all are tested again (chosen).
STEPS_A_ROUND = 2
# Decrease of the objective below which it has converged: of χ², whose standard deviation is 1.4 for one degree of
# freedom; at the end, and while readings are tested (chosen).
CONVERGED, NEARLY = 1e-6, 1e-2
# Rounding of the objective, as a share of it, in units of CONVERGED (chosen).
ROUNDING = 1e-6
# Steps that may increase the objective before the best path goes on, and its least share of a step (chosen).
PATIENCE, LEAST_SHARE = 3, 1e-3
# Residuals that are dropped, in standard deviations, round by round: the last is CONFIDENCE (the others chosen).
LIMITS = (1e3, 1e2, 20.0, 7.0, *[float(scipy.stats.norm.ppf(0.5 + 0.5 * CONFIDENCE))] * 3)

# Degrees of freedom of Student's distribution (chosen, as usual: 4).
FREEDOMS = 4.0
# Residual of a stance beyond which it does not stand: CONFIDENCE of that distribution, in standard deviations.
SLIPS = float(scipy.stats.t.ppf(0.5 + 0.5 * CONFIDENCE, FREEDOMS))
Dropped = dict[str, np.ndarray]  # {measurement: (N, m) bool}.


class Start(NamedTuple):
    """Prior of the first instant: path of one instant, covariance (unknowns, unknowns)."""

    path: Path
    covariance: np.ndarray


@dataclass
class Smoothed:
    """A smoothed path; P (N, k, k), C (N − 1, k, k) covariances of instants and of neighbours.

    chi2: sum of squares of all rows but those of motion. rows: number of these. objective: all of it.
    """

    path: Path
    P: np.ndarray | None
    C: np.ndarray | None
    objective: float
    steps: int


@dataclass
class Smoother:
    """The least-squares problem over a path. density: κ (nv,) or (N − 1, nv) of the motion."""

    unknowns: Unknowns
    sources: Sequence[OfStates | OfDynamics]
    density: np.ndarray
    start: Start
    robust: bool = True
    events: list[Event] = field(default_factory=list)

    # ---- equations ---------------------------------------------------------------------------------------------

    def _row_scale(self, path: Path, J: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """(N, rows): weights of rows, 1 for noisy ones; for exact ones see EXACT_SHARE."""
        if not exact.any():
            return np.ones(J.shape[:2])
        own, n = self.unknowns, len(path)
        dt = np.median(np.diff(path.t)) if n > 1 else 1.0
        Q = own.motion.noise(np.array([dt]), np.atleast_2d(self.density).mean(axis=0))[0]
        sizes = np.zeros(own.size)
        sizes[: own.n_states] = np.sqrt(np.diagonal(Q))
        spread = np.sqrt(np.einsum("nij,j->ni", J * J, sizes * sizes))
        spread = np.where(spread > 0.0, spread, 1.0)
        return np.where(exact, 1.0 / (EXACT_SHARE * spread), 1.0)

    def linear(self, path: Path, readings: Readings) -> tuple[chain.Linear, float]:
        """(the chain about a path, the objective there)."""
        own, n = self.unknowns, len(path)
        k, s = own.size, own.n_states
        H, h, total = np.zeros((n, k, k)), np.zeros((n, k)), 0.0
        for source in self.sources:
            rows = max(len(source.exact), 1)
            size = max(1, MOST_NUMBERS // (rows * k))
            for at in range(0, n, size):
                part = slice(at, min(at + size, n))
                lines = source.at(path.part(part), readings.part(part))
                weight = self._row_scale(path, lines.J, lines.exact)
                J, r = lines.J * weight[:, :, None], lines.r * weight
                Jt = J.swapaxes(1, 2)
                H[part] += Jt @ J
                h[part] += (Jt @ r[:, :, None])[..., 0]
                total += float((r * r).sum())
        away = self._from_start(path)
        total += float(away @ np.linalg.solve(self.start.covariance, away))
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
        return chain.Linear(H, h, Phi, c, Q, -away, self.start.covariance), total

    def _from_start(self, path: Path) -> np.ndarray:
        """Step (unknowns,) from the prior of the first instant to the path."""
        first = self.start.path
        q = self.unknowns.model.difference(first.q, path.q[:1])[0]
        rates = (path.rates[:1] - first.rates)[0].reshape(-1)
        return np.concatenate([q, rates, (path.biases[:1] - first.biases)[0]])

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------

    def solve(
        self, path: Path, readings: Readings, covariances: bool = True, most: int = MOST_STEPS
    ) -> Smoothed:
        """The path of least squares near `path`, by Gauss-Newton.

        A step that increases the objective is followed by others, as a large turn is right though the shifts that
        belong to it come with the next step; without success the best path goes on by half a step (Chamberlain, Powell,
        Lemarechal and Pedersen 1982: the watchdog technique). covariances: with these, and converged to the end.
        """
        enough = CONVERGED if covariances else NEARLY
        x, objective = self.linear(path, readings)
        best, share, waited, steps = (path, x, objective), 1.0, 0, 0
        while steps < most:
            steps += 1
            path = path.moved(share * chain.solve(x).step)
            x, objective = self.linear(path, readings)
            if objective <= best[2]:
                decrease = best[2] - objective
                best, share, waited = (path, x, objective), min(1.0, 2.0 * share), 0
                if decrease <= enough * max(1.0, ROUNDING * objective):
                    break
                continue
            waited += 1
            if objective - best[2] <= enough * max(1.0, ROUNDING * objective):
                break
            if waited == PATIENCE:
                (path, x, objective), share, waited = best, 0.25 * share, 0
                if share < LEAST_SHARE:
                    break
        path, x, objective = best
        solved = chain.solve(x, covariances)
        return Smoothed(path, solved.P, solved.C, objective, steps)

    def run(self, path: Path, readings: Readings) -> tuple[Smoothed, Readings]:
        """The smoothed path and the readings that are left.

        At first all sensors of states have Student's distribution, which a path near the right one survives; then a
        reading whose residual is beyond belief is dropped, the farthest first, and comes back if it agrees with the
        path of the others. Stances keep Student's distribution: a foot that touches down slips.
        """
        if not self.robust:
            return self.solve(path, readings), readings
        left = readings
        for limit in LIMITS:
            self.events = []  # those of the last round
            off = self._tested(path, readings, limit)
            left = replace(readings.without(off), weights=self._weights(path, readings, limit == LIMITS[0]))
            path = self.solve(path, left, covariances=False, most=STEPS_A_ROUND).path
        return self.solve(path, left), left

    @cached_property
    def _stances(self) -> frozenset[str]:
        return frozenset(
            m.name for source in self.sources if isinstance(source, OfStates) for m in source.sensors if isinstance(m.of, Stance)
        )

    def _weights(self, path: Path, readings: Readings, first: bool) -> dict[str, np.ndarray]:
        """{sensor: (N,)} weights of Student's distribution: of stances, and at first of all sensors of states."""
        found = {}
        for source in self.sources:
            if isinstance(source, OfStates):
                r = source.at(path, readings, weighted=False).r
                for m in source.sensors:
                    if first or m.name in self._stances:
                        e = r[:, source.groups()[m.name]]
                        found[m.name] = (FREEDOMS + e.shape[1]) / (FREEDOMS + (e * e).sum(axis=1))
        return found

    def _tested(self, path: Path, readings: Readings, limit: float) -> Dropped:
        """{name: (N, m) bool}: components whose residuals are beyond this multiple of their own noise."""
        off: dict[str, np.ndarray] = {}
        n = len(path)
        for source in self.sources:
            size = max(1, MOST_NUMBERS // (max(len(source.exact), 1) * self.unknowns.size))
            for at in range(0, n, size):
                part = slice(at, min(at + size, n))
                some, read = path.part(part), readings.part(part)
                if isinstance(source, OfStates):
                    r = source.at(some, read, weighted=False).r
                    errors = {name: r[:, rows] for name, rows in source.groups().items()}
                else:
                    errors = source.errors(some, read)
                for name, e in errors.items():
                    if name not in readings.active:
                        continue
                    if name in self._stances:  # it stands or not, as a whole
                        e = np.broadcast_to(np.abs(e).max(axis=1, keepdims=True), e.shape)
                    wrong = (np.abs(e) > (max(limit, SLIPS) if name in self._stances else limit)) & read.active[name]
                    if name not in off:
                        off[name] = np.zeros_like(readings.active[name])
                    off[name][part] = wrong
                    self.events += [Event(at + int(i), float(path.t[at + i]), name, str(k), float(abs(e[i, k])), "residual")
                                    for i, k in zip(*np.nonzero(wrong), strict=True)]  # fmt: skip
        return off
