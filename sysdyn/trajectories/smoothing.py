"""Smoothing: states and biases of all instants at once, by Gauss-Newton along the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.stats where it is first used

from sysdyn.trajectories import chain
from sysdyn.trajectories.equations import EXACT_SHARE, MOST_NUMBERS, OfDynamics, OfStates, Readings
from sysdyn.trajectories.filtering import CONFIDENCE, Event
from sysdyn.trajectories.path import Path, Unknowns

# Most steps of Gauss-Newton, and the change of the objective, as a share of itself, below which it has converged
# (chosen).
MOST_STEPS, CONVERGED = 30, 1e-9
# Damping: the first, and its factor after a step that does not decrease the objective (Levenberg; chosen).
FIRST_DAMPING, DAMPING_FACTOR = 1e-6, 10.0
# Most dampings of a step that are tried (chosen).
MOST_DAMPINGS = 12
# Most rounds of tests of the residuals (chosen).
ROUNDS = 4


class Start(NamedTuple):
    """Prior of the first instant: path of one instant, information (unknowns, unknowns)."""

    path: Path
    information: np.ndarray


@dataclass
class Smoothed:
    """A smoothed path; P (N, k, k), C (N − 1, k, k) covariances of instants and of neighbours.

    chi2: sum of squares of all rows but those of motion. rows: number of these. objective: all of it.
    """

    path: Path
    P: np.ndarray
    C: np.ndarray
    objective: float
    steps: int
    logdet: float


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

    def _motion(self, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(e, F0, W, F1) of the steps in time."""
        dt = np.diff(path.t)
        steps = self.unknowns.motion.steps(path.q, path.rates, dt)
        return steps.e, steps.F0, self.unknowns.motion.weights(dt, self.density), steps.F1

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

    def blocks(self, path: Path, readings: Readings) -> tuple[chain.Blocks, float]:
        """(normal equations about a path, objective there)."""
        own, n = self.unknowns, len(path)
        k, s = own.size, own.n_states
        A, g, total = np.zeros((n, k, k)), np.zeros((n, k)), 0.0
        for source in self.sources:
            rows = max(len(source.exact), 1)
            size = max(1, MOST_NUMBERS // (rows * k))
            for at in range(0, n, size):
                part = slice(at, min(at + size, n))
                lines = source.at(path.part(part), readings.part(part))
                weight = self._row_scale(path, lines.J, lines.exact)
                J, r = lines.J * weight[:, :, None], lines.r * weight
                Jt = J.swapaxes(1, 2)
                A[part] += Jt @ J
                g[part] += (Jt @ r[:, :, None])[..., 0]
                total += float((r * r).sum())
        away = self._from_start(path)
        A[0] += self.start.information
        g[0] += self.start.information @ away
        total += float(away @ self.start.information @ away)
        B = np.zeros((n - 1, k, k))
        if n > 1:
            e, F0, W, F1 = self._motion(path)
            WF0, WF1, We = W @ F0, W @ F1, (W @ e[..., None])[..., 0]
            F0t, F1t = F0.swapaxes(1, 2), F1.swapaxes(1, 2)
            A[:-1, :s, :s] += F0t @ WF0
            A[1:, :s, :s] += F1t @ WF1
            B[:, :s, :s] = F1t @ WF0
            g[:-1, :s] += (F0t @ We[..., None])[..., 0]
            g[1:, :s] += (F1t @ We[..., None])[..., 0]
            total += float((e * We).sum())
            if own.n_biases:
                walk = 1.0 / (own.bias_density**2 * np.diff(path.t)[:, None])
                change = np.diff(path.biases, axis=0)
                j = np.arange(s, k)
                A[:-1, j, j] += walk
                A[1:, j, j] += walk
                B[:, j, j] = -walk
                g[:-1, s:] -= walk * change
                g[1:, s:] += walk * change
                total += float((walk * change * change).sum())
        return chain.Blocks(A, B, g), total

    def _from_start(self, path: Path) -> np.ndarray:
        """Step (unknowns,) from the prior of the first instant to the path."""
        first = self.start.path
        q = self.unknowns.model.difference(first.q, path.q[:1])[0]
        rates = (path.rates[:1] - first.rates)[0].reshape(-1)
        return np.concatenate([q, rates, (path.biases[:1] - first.biases)[0]])

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------

    def solve(self, path: Path, readings: Readings, covariances: bool = True) -> Smoothed:
        """The path of least squares near `path`, by Gauss-Newton with damping."""
        damping = 0.0
        blocks, objective = self.blocks(path, readings)
        steps = 0
        for steps in range(1, MOST_STEPS + 1):
            better = None
            for _ in range(MOST_DAMPINGS):
                step = chain.solve(_damped(blocks, damping)).step
                after = path.moved(step)
                found = self.blocks(after, readings)
                if found[1] <= objective * (1.0 + CONVERGED) + CONVERGED:
                    better = after, *found
                    damping = damping / DAMPING_FACTOR if damping > FIRST_DAMPING else 0.0
                    break
                damping = max(FIRST_DAMPING, damping * DAMPING_FACTOR)
            if better is None:
                break
            decrease = objective - better[2]
            path, blocks, objective = better
            if decrease <= CONVERGED * max(objective, 1.0):
                break
        found = chain.solve(blocks, covariances)
        return Smoothed(path, found.P, found.C, objective, steps, found.logdet)  # type: ignore[arg-type]

    def run(self, path: Path, readings: Readings) -> tuple[Smoothed, Readings]:
        """The smoothed path, with readings dropped whose residuals are beyond belief; and the readings that are left."""
        found = self.solve(path, readings, covariances=not self.robust)
        if not self.robust:
            return found, readings
        for round_ in range(ROUNDS):
            off = self._tested(found.path, readings)
            if not any(x.any() for x in off.values()):
                break
            readings = readings.without(off)
            found = self.solve(found.path, readings, covariances=False)
        return self.solve(found.path, readings), readings

    def _tested(self, path: Path, readings: Readings) -> dict[str, np.ndarray]:
        """{name: (N, m) bool}: components whose residuals are beyond CONFIDENCE for their own noise alone."""
        limit = scipy.stats.chi2.ppf(CONFIDENCE, 1)
        off: dict[str, np.ndarray] = {}
        n = len(path)
        for source in self.sources:
            size = max(1, MOST_NUMBERS // (max(len(source.exact), 1) * self.unknowns.size))
            for at in range(0, n, size):
                part = slice(at, min(at + size, n))
                some, read = path.part(part), readings.part(part)
                if isinstance(source, OfStates):
                    r = source.at(some, read).r
                    errors = {name: r[:, rows] for name, rows in source.groups().items()}
                else:
                    errors = source.errors(some, read)
                for name, e in errors.items():
                    if name not in readings.active:
                        continue
                    wrong = (e * e > limit) & read.active[name]
                    if name not in off:
                        off[name] = np.zeros_like(readings.active[name])
                    off[name][part] = wrong
                    self.events += [Event(at + int(i), float(path.t[at + i]), name, str(k), float(abs(e[i, k])), "residual")
                                    for i, k in zip(*np.nonzero(wrong), strict=True)]  # fmt: skip
        return off


def _damped(blocks: chain.Blocks, damping: float) -> chain.Blocks:
    if damping == 0.0:
        return blocks
    A = blocks.A.copy()
    j = np.arange(A.shape[1])
    A[:, j, j] *= 1.0 + damping
    return blocks._replace(A=A)
