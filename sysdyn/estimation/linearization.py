"""Linearisation of a log about a trajectory: residuals, process model and prior, split into uncoupled chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.estimation import kalman_smoother, process_noise
from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.ekf import GaussianState
from sysdyn.estimation.gauge_freedom import Unseen, settled
from sysdyn.estimation.kalman_smoother import BufferPool, ParallelChains, SmootherResult, Sparse
from sysdyn.estimation.residuals import (
    EXACT_SHARE,
    DynamicsResiduals,
    LinearizedResiduals,
    MeasurementData,
    StateResiduals,
    memory_slices,
)
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory


@dataclass
class Least:
    """A trajectory with its objective; rows: r and entries of J of each source. chain: builds its uncoupled chains."""

    path: StateTrajectory
    objective: float
    rows: list[tuple[np.ndarray, np.ndarray]]
    chain: Callable[[], list[ParallelChains]]

    @cached_property
    def parts(self) -> list[ParallelChains]:
        """The uncoupled chains, built on first use: many trajectories need only their objective."""
        return self.chain()


class _ChainIndices(NamedTuple):
    """Gather indices of uncoupled chains with equal structure, which the smoother solves in parallel.

    columns (chains, k): unknowns of each chain. rows, entries: for each source, indices (chains, …) of the residual
    rows of each chain, and of the entries of J in these rows. places (e, 2): row and column of each of these entries
    within its chain. Phi, Q: (indices (chains, e) of the entries of each chain among all entries of Φ or Q, row and
    column (e, 2) of these entries within a chain).
    """

    columns: np.ndarray
    rows: tuple[np.ndarray, ...]
    entries: tuple[np.ndarray, ...]
    places: np.ndarray
    Phi: tuple[np.ndarray, np.ndarray]
    Q: tuple[np.ndarray, np.ndarray]


@dataclass
class Linearised:
    """Least-squares problem of a trajectory, to be linearised about any trajectory: measurements, process model, prior.

    sources: residuals of the measurements. density: κ (nv,) of the process noise. start: prior of the first time step.
    gone: unobservable coordinates of a free base, see `sysdyn.estimation.gauge_freedom`. sizes (unknowns,): standard
    deviations that set the weights of exact rows, see `weigh_exact`; None: exact rows are omitted. raised (N − 1, nv):
    factors of the density in each step, greater than 1 at impacts; None: 1.
    """

    layout: StateLayout
    sources: Sequence[StateResiduals | DynamicsResiduals]
    density: np.ndarray
    start: GaussianState
    gone: Sequence[Unseen] = ()
    sizes: np.ndarray | None = None
    raised: np.ndarray | None = None
    _known_transitions: tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]] | None = None
    _known_errors: tuple[StateTrajectory, np.ndarray] | None = None
    _pool: BufferPool = field(default_factory=BufferPool)

    @cached_property
    def _parts(self) -> list[_ChainIndices]:
        """Connected components of the unknowns, the uncoupled chains; those of equal structure are in one item."""
        own, nv = self.layout, self.layout.model.nv
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
        alike: dict[tuple, list[np.ndarray]] = {}
        numbers = [np.full(len(source.exact), -1) for source in self.sources]
        for columns in kalman_smoother.components(pattern):
            at, signature = 0, [len(columns), int((columns < nv).sum())]
            for source, number in zip(self.sources, numbers, strict=True):
                row, column = source.places[:, np.isin(source.places[1], columns)]
                rows = np.unique(row)
                number[rows] = at + np.arange(len(rows))
                at += len(rows)
                signature += [len(rows), *number[row].tolist(), *np.searchsorted(columns, column).tolist()]
            grouped = any(np.isin(part.start, columns) for _, _, part in own.motion.groups)
            key = (*signature, int(columns[0]) if grouped else -1)
            alike.setdefault(key, []).append(columns)
        return [self._side_by_side(np.array(columns), numbers) for columns in alike.values()]

    def _side_by_side(self, columns: np.ndarray, numbers: list[np.ndarray]) -> _ChainIndices:
        """Gather indices of chains (chains, k) of equal structure; numbers: index of each residual row in its chain."""
        rows, entries, places = [], [], []
        for source, number in zip(self.sources, numbers, strict=True):
            chosen = np.array([np.flatnonzero(np.isin(source.places[1], x)) for x in columns])
            rows.append(np.array([np.unique(source.places[0, x]) for x in chosen], dtype=int))
            entries.append(chosen)
            row, column = source.places[:, chosen[0]]
            places.append(np.stack([number[row], np.searchsorted(columns[0], column)], axis=1))
        both = np.ascontiguousarray(np.concatenate(places), dtype=np.int64)
        x = self.layout.transition
        return _ChainIndices(
            columns, tuple(rows), tuple(entries), both, _entries_among(columns, x.Phi), _entries_among(columns, x.Q)
        )

    def about(self, path: StateTrajectory, readings: MeasurementData) -> Least:
        """Linearise about the trajectory `path` with the measurements `readings`: objective and uncoupled chains."""
        own, motion = self.layout, self.layout.motion
        away, dt = path.part(slice(0, 1)).local_coordinates(self.start.path)[0], np.diff(path.t)
        total = float(away @ np.linalg.solve(self.start.P, away))
        start = own.transport(self.start.P, away)
        found = []
        for source in self.sources:
            lines = source.linearize(path, readings)
            r, entries = lines.r, lines.entries
            if lines.exact.any():
                weight = self._row_scale(source, lines)
                r, entries = r * weight, entries * weight[:, lines.places[0]]
            total += float(np.vdot(r, r))
            found.append((r, entries))
        e, n = self._errors(path), own.n_states
        raised = None if self.raised is None else self.raised[: len(path) - 1]
        density = self.density if raised is None else self.density * raised
        total += float(motion.chi2(e[:, :n], dt, density).sum())
        if own.n_biases:
            total += float((np.square(e[:, n:]) / own.bias_transition(dt)[1]).sum())

        def parts() -> list[ParallelChains]:
            made = []
            for x, (phi, noise) in zip(self._parts, self._transitions(path), strict=True):
                r = _chosen([y for y, _ in found], x.rows)
                J = Sparse(_chosen([y for _, y in found], x.entries), x.places)
                if raised is not None:
                    noise = noise * self._factor(x, raised)
                P = start[x.columns[:, :, None], x.columns[:, None, :]]
                Phi, Q = Sparse(phi, x.Phi[1]), Sparse(noise, x.Q[1])
                made.append(ParallelChains(x.columns, J, r, Phi, -e[:, x.columns], Q, -away[x.columns], P))
            return made

        return Least(path, total, found, parts)

    def _errors(self, path: StateTrajectory) -> np.ndarray:
        """Errors of the process model along a path; the last ones are cached, for other readings of a path."""
        if self._known_errors is None or self._known_errors[0] is not path:
            self._known_errors = path, self.layout.process_errors(path)
        return self._known_errors[1]

    def _transitions(self, path: StateTrajectory) -> list[tuple[np.ndarray, np.ndarray]]:
        """Entries of Φ and Q of each part. They depend on time alone unless a joint moves in a group: then cached."""
        if self._known_transitions is None or self._known_transitions[0] is not path.t:
            Phi, Q = self.layout.transitions(path.part(slice(0, -1)), path.part(slice(1, None)), self.density)
            entries = [(_chosen([Phi], (x.Phi[0],)), _chosen([Q], (x.Q[0],))) for x in self._parts]
            if self.layout.motion.groups:
                return entries
            self._known_transitions = path.t, entries
        return self._known_transitions[1]

    def squares(self, path: StateTrajectory, readings: MeasurementData, raised: np.ndarray | None) -> np.ndarray:
        """(N,) χ² of each time step: of its noisy residuals, and of the process error of the step to it."""
        found = np.zeros(len(path))
        for source in self.sources:
            for part in memory_slices(len(path), source):
                lines = source.linearize(path.part(part), readings.part(part))
                found[part] += (lines.r[:, ~lines.exact] ** 2).sum(axis=1)
        found[1:] += process_noise.process_chi2(path, self.density if raised is None else self.density * raised).sum(
            axis=1
        )
        return found

    def _factor(self, x: _ChainIndices, raised: np.ndarray) -> np.ndarray:
        """(N − 1, chains, e): factors of the entries of Q for factors `raised` (N − 1, nv) of the density."""
        own = self.layout
        here = x.columns < own.n_states
        of = np.where(here, raised[:, np.where(here, x.columns % own.model.nv, 0)], 1.0)
        return np.asarray(of[..., x.Q[1][:, 0]] * of[..., x.Q[1][:, 1]])

    def _row_scale(self, source: StateResiduals | DynamicsResiduals, lines: LinearizedResiduals) -> np.ndarray:
        """Weights (N, rows) of residual rows: 1 for noisy rows; for exact rows see EXACT_SHARE, 0 without `sizes`."""
        scale = np.ones(lines.r.shape)
        if not lines.exact.any():
            return scale
        if self.sizes is None:
            scale[:, lines.exact] = 0.0
            return scale
        row, column = lines.places
        least, known = np.full(lines.r.shape, np.inf), source.sizes(lines.entries) * self.sizes[column]
        known[known == 0.0] = np.inf
        for k in np.flatnonzero(lines.exact):
            least[:, k] = known[:, row == k].min(axis=1, initial=np.inf)
        exact = 1.0 / (EXACT_SHARE * np.where(np.isfinite(least), least, 1.0))
        return np.where(lines.exact, exact, 1.0)

    def sweep(self, least: Least, covariances: bool = False, last: bool = False) -> SmootherResult:
        """Gauss-Newton step of a linearisation, and covariances on request; see `kalman_smoother.smooth`."""
        size = self.layout.size
        return kalman_smoother.smooth(least.parts, len(least.path), size, covariances, last, self._pool)

    def told_after(self, least: Least, source: StateResiduals | DynamicsResiduals, rows: np.ndarray) -> np.ndarray:
        """Posterior variances (N, rows) of residual rows of a source, in units of their noise."""
        covariances, found = self.covariances(least), np.zeros((len(least.path), len(rows)))
        at = [x is source for x in self.sources].index(True)
        for part in memory_slices(len(least.path), source):
            J = Sparse(least.rows[at][1][part], source.places.T).dense(len(source.exact), self.layout.size)[:, rows]
            P = covariances.part(part).dense()
            found[part] = np.einsum("nij,nij->ni", J @ P, J)
        return found

    def moved(self, least: Least, step: np.ndarray, readings: MeasurementData) -> StateTrajectory:
        """The trajectory after a step (N, unknowns), corrected for the nonlinearity of large rotations of a free base.

        If a step rotates the base by a large angle, process errors and residuals differ from their linear prediction.
        Two corrections reduce the difference. Unobservable coordinates `gone` are moved so that the process errors are
        those predicted (`settled`). A constant offset of each bias that does not decay is solved for by least squares,
        so that the residuals of its sensor are close to those predicted; such a bias acts like a tilt of the base.
        """
        path, own = least.path.retract(step), self.layout
        if not own.motion.groups:
            return path
        if self.gone:
            path = settled(self.gone, path, self._errors_after(least, step), self.density)
        lasting = np.flatnonzero(np.isinf(own.bias_walk[1]))
        if not len(lasting):
            return path
        m = len(lasting)
        H, h = np.zeros((m, m)), np.zeros(m)
        for source, (r, entries) in zip(self.sources, least.rows, strict=True):
            row, column = source.places
            of_bias = np.flatnonzero(np.isin(column, own.n_states + lasting) & ~source.exact[row])
            rows = np.unique(row[of_bias])
            if not len(rows):
                continue
            after = source.linearize(path, readings)
            along = np.flatnonzero(np.isin(row, rows))
            ahead = (entries[:, along] * step[:, column[along]]) @ (row[along, None] == rows)
            away = after.r[:, rows] - r[:, rows] - ahead
            J = np.zeros((len(path), len(rows), m))
            J[:, np.searchsorted(rows, row[of_bias]), np.searchsorted(lasting, column[of_bias] - own.n_states)] = (
                after.entries[:, of_bias]
            )
            flat = J.reshape(-1, m)
            H, h = H + flat.T @ flat, h + flat.T @ away.reshape(-1)
        biases = path.biases.copy()
        biases[:, lasting] -= np.linalg.lstsq(H, h, rcond=None)[0]
        return replace(path, biases=biases)

    def _errors_after(self, least: Least, step: np.ndarray) -> np.ndarray:
        """Process errors (N − 1, nv) of positions after a step, by linear prediction e + δ_{t+1} − Φ δ_t.

        Only of joints with unobservable coordinates `gone`; zero for all others.
        """
        freedoms = np.unique(np.concatenate([np.r_[x.tangent.v] for x in self.gone]))
        found = np.zeros((len(step) - 1, self.layout.model.nv))
        for part in least.parts:
            for i, columns in enumerate(part.columns):
                rows, own = np.flatnonzero(np.isin(columns, freedoms)), part.one(i)
                known = np.isin(own.Phi.places[:, 0], rows)
                row, column = own.Phi.places[known].T
                ahead = (own.Phi.entries[:, known] * step[:-1, columns[column]]) @ (row[:, None] == rows)
                found[:, columns[rows]] = step[1:, columns[rows]] - ahead - own.c[:, rows]
        return found

    def count(self, readings: MeasurementData) -> int:
        """Degrees of freedom of the minimal objective: number of valid measurement rows of all time steps."""
        return sum(source.count(readings) for source in self.sources)

    def weigh_exact(self, path: StateTrajectory, readings: MeasurementData) -> None:
        """Set `sizes`, which weight exact rows: median standard deviations of the unknowns about a path."""
        if any(source.exact.any() for source in self.sources):
            found = self.covariances(self.about(path, readings))
            self.sizes = np.sqrt(np.median(found.diagonal(), axis=0))

    def covariances(self, least: Least) -> Covariances:
        """Covariances of all time steps of a linearised trajectory."""
        return self.sweep(least, covariances=True).covariances


def _entries_among(columns: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(indices (chains, e) of matrix entries within each chain, their row and column (e, 2) within a chain).

    columns (chains, k): unknowns of the chains. places (…, 2): row and column of the matrix entries of all chains.
    """
    numbers = np.array([np.flatnonzero(np.isin(places, x).all(axis=1)) for x in columns])
    return numbers, np.searchsorted(columns[0], places[numbers[0]])


def _chosen(found: list[np.ndarray], numbers: tuple[np.ndarray, ...]) -> np.ndarray:
    """Gather values (N, …) of each source at its indices (chains, …) into one array (N, chains, …)."""
    whole = [x[:, None] if np.array_equal(at, np.arange(x.shape[1])[None]) else x[:, at]
             for x, at in zip(found, numbers, strict=True)]  # fmt: skip
    return whole[0] if len(whole) == 1 else np.concatenate(whole, axis=2)
