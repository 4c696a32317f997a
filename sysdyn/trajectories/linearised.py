"""The chain about a path: rows of instants and of motion in normal form, part by part of what nothing couples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.trajectories import chain, densities
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


class _Rows(NamedTuple):
    """Rows of a source with entries in some columns of a chain; places there, and numbers of these entries."""

    rows: np.ndarray
    columns: np.ndarray
    local: np.ndarray
    chosen: np.ndarray


@dataclass
class Linearised:
    """The equations of a path, linearised about it, with a prior of its first instant.

    density: κ (nv,) of the motion. sizes (unknowns,): standard deviations without exact rows, by which these are
    weighted; None: exact rows are left out. raised (N − 1, nv): multiples of the density from instant to instant.
    """

    unknowns: Unknowns
    sources: Sequence[OfStates | OfDynamics]
    density: np.ndarray
    start: Belief
    sizes: np.ndarray | None = None
    raised: np.ndarray | None = None
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
                for i in range(len(self._parts)):
                    for j, rows_of_one in enumerate(self._local(number, i)):
                        own_H, own_h = H[i][part, j], h[i][part, j]
                        for rows, columns, local, chosen in rows_of_one:
                            J = np.zeros((len(r), len(rows), len(columns)))
                            J[:, local[0], local[1]] = entries[:, chosen]
                            Jt = J.swapaxes(1, 2)
                            own_H[:, columns[:, None], columns] += Jt @ J
                            own_h[:, columns] += (Jt @ r[:, rows, None])[..., 0]
        dt, motion = np.diff(path.t), own.motion
        e, step = motion.errors((path.q[:-1], path.rates[:-1]), (path.q[1:], path.rates[1:]), dt)
        raised = None if self.raised is None else self.raised[: n - 1]
        total += motion.objective(e if raised is None else e / raised[:, None], dt, self.density)
        left, walk = own.walk(dt)
        change = path.biases[1:] - left * path.biases[:-1]
        total += float((change * change / walk).sum()) if own.n_biases else 0.0
        found = []
        for x, own_H, own_h in zip(self._parts, H, h, strict=True):
            Phi, Q, c = self._motion(x, e, step, dt, change, left, walk)
            if raised is not None and len(x.freedoms):
                Q *= self._factor(x, raised)
            P = start[x.columns[:, :, None], x.columns[:, None, :]]
            found.append(chain.Part(x.columns, chain.Linear(own_H, own_h, Phi, c, Q, -away[x.columns], P)))
        return Least(path, found, total)

    def _local(self, source: int, part: int) -> list[list[_Rows]]:
        """Rows of a source that belong to each chain of a part, measurement by measurement."""
        if (source, part) not in self._kept:
            row, column = self.sources[source].places
            names = [name for name, _ in self.sources[source].names]
            found = []
            for columns in self._parts[part].columns:
                here = np.isin(column, columns)
                own: dict[str, list[int]] = {}
                for i in np.unique(row[here]).tolist():
                    own.setdefault(names[i], []).append(i)
                parts = []
                for numbers in own.values():
                    rows = np.array(numbers)
                    chosen = np.flatnonzero(here & np.isin(row, rows))
                    seen = np.unique(column[chosen])
                    local = np.array([np.searchsorted(rows, row[chosen]), np.searchsorted(seen, column[chosen])])
                    parts.append(_Rows(rows, np.searchsorted(columns, seen), local, chosen))
                found.append(parts)
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
        motion.ahead(e, step, dt, self.density, x.freedoms, Phi, Q, c)
        j, biases = np.arange(f, k), columns[f:] - own.n_states
        Phi[:, j, j], Q[:, j, j], c[:, f:] = left[:, biases], walk[:, biases], -change[:, biases]
        return Phi[:, None], Q[:, None], c[:, None]

    def squares(self, path: Path, readings: Readings, raised: np.ndarray | None) -> np.ndarray:
        """(N,) squares of the rows of each instant that are noisy, and of the motion to it."""
        found = np.zeros(len(path))
        for source in self.sources:
            for part in in_parts(len(path), source):
                lines = source.at(path.part(part), readings.part(part))
                found[part] += (lines.r[:, ~lines.exact] ** 2).sum(axis=1)
        found[1:] += densities.each_square(path, self.density if raised is None else self.density * raised).sum(axis=1)
        return found

    def _factor(self, x: _Unknowns, raised: np.ndarray) -> np.ndarray:
        """(N − 1, chains, k, k): factors of Q by multiples of the density (N − 1, nv)."""
        own = self.unknowns
        here = x.columns < own.n_states
        of = np.where(here, raised[:, np.where(here, x.columns % own.model.nv, 0)], 1.0)
        return of[..., :, None] * of[..., None, :]

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
