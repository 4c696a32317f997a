"""The filter over the unknowns of a trajectory: an extended Kalman filter on the manifold of the states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg and scipy.stats where they are first used

from sysdyn.trajectories.equations import EXACT_SHARE, Lines, OfDynamics, OfStates, Readings
from sysdyn.trajectories.path import Path, Unknowns

# Probability beyond which a reading is dropped at its instant (house rule of χ² tests of innovations: 99.9 %).
CONFIDENCE = 0.999
# Most instants in a row at which a reading is dropped: one that goes on failing tells that the prediction is wrong.
MOST_IN_A_ROW = 10
# Instants at the start at which nothing is dropped, since the state is not known well.
UNTESTED = 20
# Steps of Gauss-Newton for the first state, and the size of a step below which it has converged (chosen).
FIRST_STEPS, SMALL = 50, 1e-9


class Event(NamedTuple):
    """A component of a measurement dropped at an instant: its number and time [s], names, and how far off it was.

    size: in units of the standard deviation that was expected. why: "innovation" (filter) or "residual" (smoother).
    """

    instant: int
    t: float
    measurement: str
    component: str
    size: float
    why: str


@dataclass
class Belief:
    """A state with its covariance: path of one instant, P (unknowns, unknowns)."""

    path: Path
    P: np.ndarray


@dataclass
class Filter:
    """Filter of the rows of `sources`, density (nv,) of the motion.

    run(…) goes over instants. events: what it dropped.
    """

    unknowns: Unknowns
    sources: Sequence[OfStates | OfDynamics]
    density: np.ndarray
    gate: bool = True
    events: list[Event] = field(default_factory=list)
    _in_a_row: dict[tuple[str, int], int] = field(default_factory=dict)
    _seen: int = 0

    def predicted(self, belief: Belief, t: float) -> Belief:
        """The belief at a later time."""
        path, own = belief.path, self.unknowns
        dt = np.array([t - path.t[0]])
        q, rates = own.motion.predicted(path.q, path.rates, dt)
        after = Path(own, np.array([t]), q, rates, path.biases)
        steps = own.motion.between((path.q, path.rates), (q, rates), dt)
        F = -steps.F0[0]  # F1 is 1 where the error is 0
        n = own.n_states
        P = np.empty_like(belief.P)
        P[:n, :n] = F @ belief.P[:n, :n] @ F.T + own.motion.noise(dt, self.density)[0]
        P[:n, n:] = F @ belief.P[:n, n:]
        P[n:, :n] = P[:n, n:].T
        P[n:, n:] = belief.P[n:, n:]
        k = np.arange(n, own.size)
        P[k, k] += own.bias_density**2 * dt[0]
        return Belief(after, P)

    def updated(self, belief: Belief, readings: Readings) -> Belief:
        """The belief after the readings of one instant, the first of `readings`."""
        path, P = belief.path, belief.P
        self._seen += 1
        for source in self.sources:
            lines = source.at(path, readings)
            J, r, keep = lines.J[0], lines.r[0], np.ones(len(lines.r[0]), dtype=bool)
            keep = (J != 0.0).any(axis=1)
            if self.gate and isinstance(source, OfStates):
                keep &= self._accepted(lines, P, path, readings)
            J, r, exact = J[keep], r[keep], lines.exact[keep]
            if not len(r):
                continue
            PJ = P @ J.T
            S = J @ PJ
            S[np.arange(len(r)), np.arange(len(r))] += np.where(exact, EXACT_SHARE**2 * np.diagonal(S), 1.0)
            factor = scipy.linalg.cho_factor(S, lower=True, check_finite=False)
            K = scipy.linalg.cho_solve(factor, PJ.T, check_finite=False).T
            path = path.moved(-(K @ r)[None])
            P = P - K @ PJ.T
            P = 0.5 * (P + P.T)
        return Belief(path, P)

    def _accepted(self, lines: Lines, P: np.ndarray, path: Path, readings: Readings) -> np.ndarray:
        """(rows,) bool: rows whose innovation passes the test, or that have failed it for too long."""
        J, r = lines.J[0], lines.r[0]
        limit = scipy.stats.chi2.ppf(CONFIDENCE, 1)
        variance = np.einsum("ij,ij->i", J @ P, J) + 1.0
        wrong = (r * r > limit * variance) & ~lines.exact & (self._seen > UNTESTED)
        for i in np.flatnonzero(wrong | np.array([x in self._in_a_row for x in lines.names])):
            name = lines.names[i]
            if not wrong[i]:
                del self._in_a_row[name]
                continue
            self._in_a_row[name] = count = self._in_a_row.get(name, 0) + 1
            if count > MOST_IN_A_ROW:
                wrong[i] = False
                continue
            size = float(abs(r[i]) / np.sqrt(variance[i]))
            self.events.append(Event(self._seen - 1, float(path.t[0]), name[0], str(name[1]), size, "innovation"))
        return ~wrong

    def started(self, belief: Belief, readings: Readings) -> Belief:
        """The belief of the first instant, by Gauss-Newton from a prior: the readings of one instant."""
        prior, P = belief.path, belief.P
        inverse, path = np.linalg.inv(P), prior
        for _ in range(FIRST_STEPS):
            H, g = inverse.copy(), inverse @ _away(prior, path)
            for source in self.sources:
                lines = source.at(path, readings)
                weight = np.where(lines.exact, 1.0 / EXACT_SHARE, 1.0)
                J, r = lines.J[0] * weight[:, None], lines.r[0] * weight
                H, g = H + J.T @ J, g + J.T @ r
            step = -np.linalg.solve(H, g)
            path = path.moved(step[None])
            if np.abs(step).max() < SMALL:
                break
        return Belief(path, np.linalg.inv(H))


def _away(prior: Path, path: Path) -> np.ndarray:
    """Step (unknowns,) from a prior of one instant to a path."""
    q = path.unknowns.model.difference(prior.q, path.q)[0]
    return np.concatenate([q, (path.rates - prior.rates)[0].reshape(-1), (path.biases - prior.biases)[0]])
