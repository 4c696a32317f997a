"""The linear chain of a trajectory, solved by GTSAM: the same rows, as factors of two instants each.

Unknowns are scaled by their standard deviations, since GTSAM squares rows. Needs the package gtsam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sysdyn.estimation.kalman_smoother import ParallelChains, SmootherResult


class Rival:
    """The chain of these parts, N instants with `size` unknowns; found: of sysdyn, whose deviations are the units."""

    def __init__(self, parts: list[ParallelChains], size: int, found: SmootherResult):
        import gtsam

        self.gtsam, self.graph = gtsam, gtsam.GaussianFactorGraph()
        self.n, self.unit = len(found.step), np.sqrt(np.median(found.covariances.diagonal(), axis=0))
        J, r, Phi, c, Q, m, P = _dense(parts, size, self.n)
        D = self.unit
        start, steps = np.linalg.inv(np.linalg.cholesky(P)), np.linalg.inv(np.linalg.cholesky(Q))
        self._add(((0, start * D),), start @ m)
        for t in range(self.n):
            self._add(((t, J[t] * D),), -r[t])
            if t:
                W = steps[t - 1]
                self._add(((t - 1, -W @ Phi[t - 1] * D), (t, W * D)), W @ c[t - 1])
        self.ordering = gtsam.Ordering(list(range(self.n)))

    def _add(self, blocks: tuple[tuple[int, np.ndarray], ...], b: np.ndarray) -> None:
        gtsam = self.gtsam
        flat = [y for key, A in blocks for y in (key, np.asfortranarray(A))]
        self.graph.push_back(gtsam.JacobianFactor(*flat, b, gtsam.noiseModel.Unit.Create(len(b))))

    def ways(self) -> tuple[Callable[[], object], ...]:
        """Solutions of the chain, in the order of time and in one that it chooses itself."""
        return (lambda: self.graph.optimize(self.ordering), self.graph.optimize)

    def step(self) -> np.ndarray:
        """δ (N, size)."""
        found = self.graph.optimize(self.ordering)
        return np.array([found.at(t) for t in range(self.n)]) * self.unit

    def covariances(self) -> np.ndarray:
        """P (N, size, size)."""
        marginals = self.gtsam.Marginals(self.graph, self.graph.optimize(self.ordering))
        P = np.array([marginals.marginalCovariance(t) for t in range(self.n)])
        return P * np.outer(self.unit, self.unit)


def _dense(parts: list[ParallelChains], size: int, n: int) -> tuple[np.ndarray, ...]:
    """J, r, Phi, c, Q, m and P of all parts together."""
    Phi, Q, c = np.zeros((n - 1, size, size)), np.zeros((n - 1, size, size)), np.zeros((n - 1, size))
    m, P, rows, rest = np.zeros(size), np.zeros((size, size)), [], []
    for part in parts:
        for i, columns in enumerate(part.columns):
            x, k, block = part.one(i), len(columns), np.ix_(columns, columns)
            Phi[:, block[0], block[1]], Q[:, block[0], block[1]] = x.Phi.dense(k, k), x.Q.dense(k, k)
            c[:, columns], m[columns], P[block] = x.c, x.m, x.P
            J = np.zeros((n, x.r.shape[1], size))
            J[:, :, columns] = x.J.dense(x.r.shape[1], k)
            rows.append(J)
            rest.append(x.r)
    return np.concatenate(rows, axis=1), np.concatenate(rest, axis=1), Phi, c, Q, m, P
