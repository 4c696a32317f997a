"""The chain about a path: rows of instants and of motion in normal form, part by part of what nothing couples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.trajectories import chain
from sysdyn.trajectories.equations import EXACT_SHARE, Lines, OfDynamics, OfStates, Readings, in_parts
from sysdyn.trajectories.filtering import Belief
from sysdyn.trajectories.motion import transition
from sysdyn.trajectories.path import Path, Unknowns


class Least(NamedTuple):
    """A path with the chain about it in parts, and the objective there."""

    path: Path
    parts: list[chain.Part]
    objective: float


class _Unknowns(NamedTuple):
    """Chains side by side: numbers (chains, k) of their unknowns, and degrees of freedom, of all chains.

    single: each chain is one degree of freedom, which does not move in a group, by itself.
    """

    columns: np.ndarray
    freedoms: np.ndarray
    single: bool = False


@dataclass
class Linearised:
    """The equations of a path, linearised about it, with a prior of its first instant.

    density: κ (nv,) of the motion. sizes (unknowns,): standard deviations without exact rows, by which these are
    weighted; None: exact rows are left out.
    """

    unknowns: Unknowns
    sources: Sequence[OfStates | OfDynamics]
    density: np.ndarray
    start: Belief
    sizes: np.ndarray | None = None
    _kept: dict[tuple[int, int], list] = field(default_factory=dict)

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
        grouped = np.concatenate([[-1], *(np.arange(nv)[part] for _, _, part in own.motion.groups)])
        single = [x for x in found if len(x) == own.motion.order and x[0] < own.n_states and x[0] not in grouped]
        biases = [x for x in found if len(x) == 1 and x[0] >= own.n_states]
        beside = {int(x[0]) for x in (*single, *biases)}
        parts = [_Unknowns(x[None], x[x < nv]) for x in found if int(x[0]) not in beside]
        if single:
            parts.append(_Unknowns(np.array(single), np.array(single)[:, 0], single=True))
        if biases:
            parts.append(_Unknowns(np.array(biases), np.zeros(0, dtype=int)))
        return parts

    def about(self, path: Path, readings: Readings) -> Least:
        """The chain about a path, and the objective there."""
        own, n = self.unknowns, len(path)
        away = path.beyond(self.start.path)
        H = [np.zeros((n, *x.columns.shape, x.columns.shape[1])) for x in self._parts]
        h = [np.zeros((n, *x.columns.shape)) for x in self._parts]
        total = float(away @ np.linalg.solve(self.start.P, away))
        start = own.turned(self.start.P, away)
        for number, source in enumerate(self.sources):
            for part in in_parts(n, source):
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
        left, walk = own.walk(dt)
        change = path.biases[1:] - left * path.biases[:-1]
        total += float((change * change / walk).sum()) if own.n_biases else 0.0
        found = []
        for x, own_H, own_h in zip(self._parts, H, h, strict=True):
            Phi, Q, c = self._motion(x, e, step, dt, change, left, walk)
            P = start[x.columns[:, :, None], x.columns[:, None, :]]
            found.append(chain.Part(x.columns, chain.Linear(own_H, own_h, Phi, c, Q, -away[x.columns], P)))
        return Least(path, found, total)

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
        self, x: _Unknowns, e: np.ndarray, step: np.ndarray, dt: np.ndarray, change: np.ndarray, left: np.ndarray,
        walk: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """(Phi, Q (N − 1, chains, k, k), c (N − 1, chains, k)) of a part."""
        own, motion, n = self.unknowns, self.unknowns.motion, len(dt)
        if x.single:
            one, chains = motion.noise(dt, np.ones(1)), len(x.columns)
            phi = np.repeat(transition(dt, motion.order)[:, None], chains, axis=1)
            Q = one[:, None] * np.square(self.density[x.freedoms])[:, None, None]
            return phi, Q, -e[:, :, x.freedoms].swapaxes(1, 2)
        if not len(x.freedoms):
            biases, one = x.columns - own.n_states, np.eye(x.columns.shape[1])
            return left[:, biases, None] * one, walk[:, biases, None] * one, -change[:, biases]
        columns, k, f = x.columns[0], x.columns.shape[1], motion.order * len(x.freedoms)
        Phi, Q, c = np.zeros((n, k, k)), np.zeros((n, k, k)), np.zeros((n, k))
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
        Phi[:, j, j], Q[:, j, j], c[:, f:] = left[:, biases], walk[:, biases], -change[:, biases]
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

    def sweep(self, least: Least, covariances: bool = False) -> chain.Sweep:
        """The step of Gauss-Newton from there, and covariances if asked for."""
        return chain.sweep(least.parts, len(least.path), self.unknowns.size, covariances)

    def counted(self, readings: Readings) -> int:
        """Degrees of freedom of the objective at its least: rows of all instants."""
        return sum(source.counted(readings) for source in self.sources)

    def weigh_exact(self, path: Path, readings: Readings) -> None:
        """Find the sizes by which exact rows are weighted, from covariances about a path without them."""
        if any(source.exact.any() for source in self.sources):
            found = self.covariances(self.about(path, readings))
            self.sizes = np.sqrt(np.median(found.diagonal(), axis=0))

    def covariances(self, least: Least) -> chain.Covariances:
        """Covariances of the instants of a path."""
        return self.sweep(least, covariances=True).covariances
