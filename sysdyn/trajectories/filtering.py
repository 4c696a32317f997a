"""The filter over the unknowns of a trajectory: an extended Kalman filter on the manifold of the states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.trajectories.believed import FAR_SQUARED, Event, snooped
from sysdyn.trajectories.equations import EXACT_SHARE, Lines, OfDynamics, OfStates, Readings
from sysdyn.trajectories.path import Path, Unknowns

# Instants at the start at which nothing is dropped, since the state is not known well.
UNTESTED = 20
# Steps of Gauss-Newton for the first state, and the size of a step below which it has converged (chosen).
FIRST_STEPS, FIRST_CONVERGED = 50, 1e-9


@dataclass
class Belief:
    """A state with its covariance: path of one instant, P (unknowns, unknowns)."""

    path: Path
    P: np.ndarray


@dataclass
class Filter:
    """Filter of the rows of `sources`, density (nv,) of the motion.

    events: innovations that it did not believe. squares, freedoms: of the innovations of the last instant, normalised,
    and how many they are. Sensors of states beyond CONFIDENCE count as if they were at it; of
    dynamic variables of the coupled level the farthest are dropped.
    """

    unknowns: Unknowns
    sources: Sequence[OfStates | OfDynamics]
    density: np.ndarray
    gate: bool = True
    events: list[Event] = field(default_factory=list)
    squares: float = 0.0
    freedoms: int = 0
    _seen: int = 0
    _noise: tuple[float, np.ndarray] | None = None

    def predicted(self, belief: Belief, t: float) -> Belief:
        """The belief at a later time."""
        path, own, dt = belief.path, self.unknowns, np.array([t - belief.path.t[0]])
        q, rates = own.motion.predicted(path.q, path.rates, dt)
        F, Q = self.step(path, dt)
        biases = own.walk(dt)[0] * path.biases
        return Belief(Path(own, np.array([t]), q, rates, biases), F @ belief.P @ F.T + Q)

    def step(self, path: Path, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Φ, Q) (unknowns, unknowns) of the error of a path of one instant."""
        own, n = self.unknowns, self.unknowns.n_states
        F, k = np.zeros((own.size, own.size)), np.arange(n, own.size)
        F[:n, :n] = own.motion.transition(path.rates, dt)[0]
        F[k, k], walk = (x[0] for x in own.walk(dt))
        if self._noise is None or self._noise[0] != dt[0]:
            Q = np.zeros((own.size, own.size))
            Q[:n, :n] = own.motion.noise(dt, self.density)[0]
            Q[k, k] = walk
            self._noise = dt[0], Q
        return F, self._noise[1]

    def updated(self, belief: Belief, readings: Readings) -> Belief:
        """The belief after the readings of one instant, the first of `readings`."""
        path, P, self.squares, self.freedoms = belief.path, belief.P, 0.0, 0
        for source in self.sources:
            if self.gate and isinstance(source, OfDynamics) and source.outputs:
                readings, events = snooped(source, path, readings, P[None])
                self.events += [e._replace(instant=self._seen, why="innovation") for e in events]
            lines = source.at(path, readings)
            J, r = lines.J[0], lines.r[0]
            if self.gate and isinstance(source, OfStates):
                weight = self._believed(lines, P, path)
                J, r = J * weight[:, None], r * weight
            keep = (J != 0.0).any(axis=1)
            J, r, exact = J[keep], r[keep], lines.exact[keep]
            if not len(r):
                continue
            PJ = P @ J.T
            S = J @ PJ
            S[np.arange(len(r)), np.arange(len(r))] += np.where(exact, EXACT_SHARE**2 * np.diagonal(S), 1.0)
            factor = scipy.linalg.cho_factor(S, lower=True, check_finite=False)
            K = scipy.linalg.cho_solve(factor, PJ.T, check_finite=False).T
            step, P = -(K @ r), P - K @ PJ.T
            self.squares += float(r @ scipy.linalg.cho_solve(factor, r, check_finite=False))
            self.freedoms += len(r)
            path, P = path.moved(step[None]), self.unknowns.turned(0.5 * (P + P.T), step)
        self._seen += 1
        return Belief(path, P)

    def _believed(self, lines: Lines, P: np.ndarray, path: Path) -> np.ndarray:
        """(rows,): weights of rows, less than 1 for innovations beyond belief."""
        J, r = lines.J[0], lines.r[0]
        far = r * r / (np.einsum("ij,ij->i", J @ P, J) + 1.0)
        wrong = (far > FAR_SQUARED) & ~lines.exact
        if self._seen >= UNTESTED:
            for i in np.flatnonzero(wrong):
                name, k = lines.names[i]
                self.events.append(
                    Event(self._seen, float(path.t[0]), name, str(k), float(far[i] ** 0.5), "innovation")
                )
        return np.where(wrong, np.sqrt(FAR_SQUARED / np.where(wrong, far, 1.0)), 1.0)

    def backwards(self, found: Sequence[Belief], ahead: Sequence[Belief]) -> list[Belief]:
        """Beliefs of successive instants smoothed once; ahead: the predictions of all but the first."""
        last, smoothed = found[-1], [found[-1]]
        for before, prediction in zip(found[-2::-1], ahead[::-1], strict=True):
            F, _ = self.step(before.path, prediction.path.t - before.path.t)
            factor = scipy.linalg.cho_factor(prediction.P, check_finite=False)  # whatever the units
            K = scipy.linalg.cho_solve(factor, F @ before.P, check_finite=False).T
            away = last.path.beyond(prediction.path)
            step, P = K @ away, before.P + K @ (self.unknowns.turned(last.P, away, back=True) - prediction.P) @ K.T
            last = Belief(before.path.moved(step[None]), self.unknowns.turned(0.5 * (P + P.T), step))
            smoothed.append(last)
        return smoothed[::-1]

    def started(self, belief: Belief, readings: Readings) -> Belief:
        """The belief of the first instant, by Gauss-Newton from a prior: the readings of one instant."""
        prior, P = belief.path, belief.P
        path = prior
        for _ in range(FIRST_STEPS):
            away = path.beyond(prior)
            H = np.linalg.inv(self.unknowns.turned(P, away))
            g = H @ away
            for source in self.sources:
                lines = source.at(path, readings)
                weight = np.where(lines.exact, 1.0 / EXACT_SHARE, 1.0)
                J, r = lines.J[0] * weight[:, None], lines.r[0] * weight
                H, g = H + J.T @ J, g + J.T @ r
            step = -np.linalg.solve(H, g)
            path = path.moved(step[None])
            if np.abs(step).max() < FIRST_CONVERGED:
                break
        return Belief(path, np.linalg.inv(H))
