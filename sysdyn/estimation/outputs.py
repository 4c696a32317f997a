"""Results of a log whose states are estimated: outputs with standard deviations by window, merged to a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.estimation import kalman_smoother
from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.ekf import GaussianState
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.kalman_smoother import ParallelChains, Sparse
from sysdyn.estimation.outliers import Event, snooped
from sysdyn.estimation.output_values import evaluate_outputs
from sysdyn.estimation.residuals import EXACT_SHARE, LinearizedResiduals, MeasurementData, memory_slices
from sysdyn.estimation.run import Run
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.measurements.measurement import output_name
from sysdyn.measurements.state_sensors import Stance

# Iterations of the biases from dynamic measurements, whose rows are nonlinear in the tilt (chosen).
ROUNDS_OF_BIASES = 3


class Piece(NamedTuple):
    """Results of the time steps of a window: path, standard deviations of the unknowns, outputs with theirs, switches.

    forces: χ² of measured dynamic variables at the states estimated from sensors of motion, and degrees of freedom.
    """

    path: StateTrajectory
    std: np.ndarray
    values: dict[str, tuple[np.ndarray, np.ndarray]]
    active: Mapping[str, np.ndarray]
    forces: tuple[float, int] = (0.0, 0)


def pieces_of(
    estimation: EstimationProblem,
    whole: StateTrajectory,
    of_path: Covariances,
    readings: MeasurementData,
    robust: bool,
    events: list[Event],
    told: Told | None = None,
) -> list[Piece]:
    """Evaluate states, outputs and standard deviations along a smoothed path, in slices that fit into memory.

    Unless the estimation is coupled, the dynamic measurements of a time step also update its state. robust: reject
    their outliers and append them to `events`; a coupled smoother has rejected them before.

    whole, of_path: the smoothed path (N,) and its covariances. told: information of dynamic measurements on slow biases
    that `with_biases` has added to both; it is removed from each time step before the measurements of that time step
    update it, so that they do not count twice.
    """
    if not (estimation.dynamics.outputs or len(estimation.dynamics.exact)):
        return [Piece(whole, np.sqrt(np.maximum(of_path.diagonal(), 0.0)), {}, readings.active)]
    pieces = []
    for part in memory_slices(len(whole), estimation.dynamics):
        path, P, read = whole.part(part), of_path.part(part).dense(), readings.part(part)
        if told is not None:
            path, P = told.without(path, P, part)
        forces = 0.0, 0
        if not estimation.coupled:
            path, P, read, dropped, forces = _tested(estimation, path, P, read, robust)
            events += [e._replace(instant=e.instant + part.start) for e in dropped]
        std = np.sqrt(np.maximum(np.einsum("nii->ni", P), 0.0))
        pieces.append(Piece(path, std, evaluate_outputs(estimation.dynamics, path, read, P), read.active, forces))
    return pieces


def _tested(
    estimation: EstimationProblem,
    before: StateTrajectory,
    of_before: np.ndarray,
    readings: MeasurementData,
    robust: bool,
) -> tuple[StateTrajectory, np.ndarray, MeasurementData, list[Event], tuple[float, int]]:
    """Test the dynamic measurements of each time step for outliers and update its state by the inliers.

    Returns (states, covariances, inliers, outliers, (χ², degrees of freedom) as `Piece.forces`).
    """
    left, events = readings, list[Event]()
    if robust:
        left, events = snooped(estimation.dynamics, before, readings, of_before)
    lines = estimation.dynamics.linearize(before, left)
    noisy = ~lines.exact
    J, r = lines.J[:, noisy], lines.r[:, noisy]
    S = J @ of_before @ J.swapaxes(1, 2) + np.eye(J.shape[1])
    squares = float(np.vdot(r, np.linalg.solve(S, r[..., None])[..., 0]))
    freedoms = estimation.dynamics.count(left) - len(before) * int(lines.exact.sum())
    return *_informed(estimation, before, of_before, lines), left, events, (squares, freedoms)


class Told(NamedTuple):
    """Information of dynamic measurements on biases with indices columns (m,): δ^T H δ + 2 h^T δ; H (N, m, m)."""

    columns: np.ndarray
    H: np.ndarray
    h: np.ndarray

    def without(self, path: StateTrajectory, P: np.ndarray, part: slice) -> tuple[StateTrajectory, np.ndarray]:
        """States and covariances of time steps without the information of their own dynamic measurements."""
        s, H, h = self.columns, self.H[part], self.h[part]
        left = np.linalg.inv(P[:, s[:, None], s])
        before = np.linalg.inv(left - H)
        change = (before @ h[..., None])[..., 0]
        return path.retract((_gains(P, s) @ change[..., None])[..., 0]), _with_biases_of(P, s, before)


def with_biases(
    estimation: EstimationProblem,
    path: StateTrajectory,
    covariances: Covariances,
    readings: MeasurementData,
    robust: bool,
) -> tuple[StateTrajectory, Covariances, Told]:
    """Update path and covariances by the information of all dynamic measurements on the slow biases β.

    Returns (path, covariances, information that was added to each time step). The error of a state is split into a
    part correlated with the biases and the rest, x = G β + e with G = Cov(x, β) Cov(β)⁻¹. A Kalman smoother estimates β
    from all time steps; e counts as measurement noise, independent from time step to time step. robust: reject outliers
    in each of ROUNDS_OF_BIASES iterations. Friedland (1969), "Treatment of bias in recursive filtering".
    """
    own, s, n = estimation.layout, estimation.slow_biases, len(path)
    m, places = len(s), s - own.n_states
    decay, variance = (x[:, None, places] for x in own.bias_transition(np.diff(path.t)))
    diagonal = np.argwhere(np.eye(m))
    first = covariances.part(slice(0, 1)).dense()[0][s[:, None], s]
    step, P_now = np.zeros((n, m)), np.zeros((0, m, m))
    for _ in range(ROUNDS_OF_BIASES):
        white = []
        for part in memory_slices(n, estimation.dynamics):
            P = covariances.part(part).dense()
            G = _gains(P, s)
            some, left = path.part(part).retract((G @ step[part, :, None])[..., 0]), readings.part(part)
            if robust:
                now = _with_biases_of(P, s, P_now[part]) if len(P_now) else P
                left, _ = snooped(estimation.dynamics, some, left, now)
            lines = estimation.dynamics.linearize(some, left)
            J, r = lines.J[:, ~lines.exact], lines.r[:, ~lines.exact]
            shown = J @ G
            S = J @ _with_biases_of(P, s, np.zeros((m, m))) @ J.swapaxes(1, 2) + np.eye(J.shape[1])
            r = r - (shown @ step[part, :, None])[..., 0]
            white.append(np.linalg.solve(np.linalg.cholesky(S), np.concatenate([shown, r[..., None]], axis=2)))
        J, r = np.split(np.concatenate(white), [m], axis=2)
        chain = ParallelChains(
            np.arange(m)[None], Sparse(J.reshape(n, 1, -1), np.argwhere(np.ones(J.shape[1:]))), r.reshape(n, 1, -1),
            Sparse(decay, diagonal), np.zeros((n - 1, 1, m)), Sparse(variance, diagonal), np.zeros((1, m)), first[None],
        )  # fmt: skip
        solved = kalman_smoother.smooth([chain], n, m, covariances=True)
        step, P_now = solved.step, solved.covariances.dense()
    # linearised about the returned path: H (step + δ) + h
    H = J.swapaxes(1, 2) @ J
    told = Told(s, H, (J.swapaxes(1, 2) @ r + H @ step[..., None])[..., 0])
    columns = covariances.together(s)
    moved, dense = np.zeros((n, own.size)), np.zeros((n, len(columns), len(columns)))
    for part in memory_slices(n, estimation.dynamics):
        P = covariances.part(part).dense()
        moved[part] = (_gains(P, s) @ step[part, :, None])[..., 0]
        dense[part] = _with_biases_of(P, s, P_now[part])[:, columns[:, None], columns]
    return path.retract(moved), covariances.replaced(columns, dense), told


def _gains(P: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Cov(x, β) Cov(β)⁻¹ (N, k, m) of covariances P (N, k, k) with β their columns s (m,)."""
    own = P[:, s[:, None], s]
    size = np.sqrt(np.einsum("nii->ni", own))
    scaled = own / (size[:, :, None] * size[:, None, :])
    return np.linalg.solve(scaled, P[:, s] / size[:, :, None]).swapaxes(1, 2) / size[:, None, :]


def _with_biases_of(P: np.ndarray, s: np.ndarray, of_biases: np.ndarray) -> np.ndarray:
    """Covariances P (N, k, k) with the block of the biases, indices s (m,), changed to of_biases (…, m, m).

    The other unknowns follow by regression on the biases, with the gains G.
    """
    G = _gains(P, s)
    return P + G @ (of_biases - P[:, s[:, None], s]) @ G.swapaxes(1, 2)


def carried(
    belief: GaussianState,
    kept: tuple[StateTrajectory, np.ndarray],
    found: tuple[StateTrajectory, np.ndarray],
    s: np.ndarray,
) -> GaussianState:
    """Initial state of the next window, updated by what dynamic measurements of the last window say on slow biases.

    belief: the marginalised state at the begin of the next window, from sensors of motion only. kept, found: (state,
    covariance (size, size)) at the last time step of the last window, without and with the dynamic measurements.
    s (m,): indices of the slow biases. Their information matrices, propagated to the time of `belief`, add up:
    belief + found − kept. The other unknowns follow by regression on the biases.
    """
    own, t = belief.path.layout, belief.path.t
    places = s - own.n_states
    left, walk = (x[0, places] for x in own.bias_transition(t - found[0].t))
    block = np.ix_(s, s)
    before, after = (np.linalg.inv(left[:, None] * P[block] * left + np.diag(walk)) for _, P in (kept, found))
    first, last = (left * x.biases[0, places] for x, _ in (kept, found))
    now = np.linalg.inv(belief.P[block])
    P = np.linalg.inv(now + after - before)
    beta = P @ (now @ belief.path.biases[0, places] + after @ last - before @ first)
    change = _gains(belief.P[None], s)[0] @ (beta - belief.path.biases[0, places])
    whole = _with_biases_of(belief.P[None], s, P)[0]
    return GaussianState(belief.path.retract(change[None]), 0.5 * (whole + whole.T))


def missing(estimation: EstimationProblem, read: MeasurementData) -> dict[str, int]:
    """{measurement: values that a log does not have}; stances and priors aside."""
    found = {}
    for m in (*estimation.problem.state_sensors, *estimation.problem.custom):
        if m.noise is not None and not m.has_default and m.name not in estimation.problem.swing_measurements:
            found[m.name] = int(np.sum(~read.active[m.name]))
    return {name: n for name, n in found.items() if n}


def _informed(
    estimation: EstimationProblem, path: StateTrajectory, P: np.ndarray, lines: LinearizedResiduals
) -> tuple[StateTrajectory, np.ndarray]:
    """The states of single time steps, updated by the measurements of dynamic variables."""
    if not len(estimation.dynamics.exact):
        return path, P
    told = (lines.J != 0.0).any(axis=(0, 2))
    J, r = lines.J[:, told], lines.r[:, told]
    if not J.shape[1]:
        return path, P
    PJ = P @ J.swapaxes(1, 2)
    S = J @ PJ
    j = np.arange(S.shape[1])
    own = S[:, j, j]
    S[:, j, j] += np.where(lines.exact[told], EXACT_SHARE**2 * own, 1.0) + (own == 0.0)
    K = np.linalg.solve(S, PJ.swapaxes(1, 2)).swapaxes(1, 2)
    after = P - K @ PJ.swapaxes(1, 2)
    return path.retract(-(K @ r[..., None])[..., 0]), 0.5 * (after + after.swapaxes(1, 2))


def joined(
    estimation: EstimationProblem, pieces: Sequence[Piece], events: Sequence[Event], chosen: tuple[str, ...],
    kappa: np.ndarray, gaps: Mapping[str, int], fit: tuple[float, int],
) -> Run:  # fmt: skip
    """The run of successive pieces; gaps: missing values by measurement; fit: χ² and its degrees of freedom."""
    problem, own = estimation.problem, estimation.layout
    q, rates, biases = (np.concatenate([getattr(x.path, name) for x in pieces]) for name in ("q", "rates", "biases"))
    t, std = np.concatenate([x.path.t for x in pieces]), np.concatenate([x.std for x in pieces])
    deviations = dict(zip(("q", "qd", "qdd"), np.split(std[:, : 3 * own.model.nv], 3, axis=1), strict=True))
    groups = estimation.groups
    values = {}
    for name in map(output_name, estimation.dynamics.outputs):
        both = (np.concatenate([x.values[name][k] for x in pieces]) for k in (0, 1))
        values[name], deviations[name] = (x.reshape(len(t), *groups[name].shape) for x in both)
    of_biases = std[:, own.n_states :]
    named = [e._replace(component=estimation.components[e.measurement][int(e.component)]) for e in events]
    contacts = {
        m.name: np.concatenate([x.active[m.name].any(axis=1) for x in pieces])
        for m in problem.state_sensors if isinstance(m, Stance)
    }  # fmt: skip
    return Run(
        problem=problem, t=t, q=q, qd=rates[:, 0], qdd=rates[:, 1],
        events=tuple(sorted(named, key=lambda e: e.instant)), contacts=contacts, gauge_fixed=chosen,
        motion=dict(zip(problem.model.dof_names, kappa.tolist(), strict=True)), order=estimation.motion.order,
        coupled=estimation.coupled, missing=gaps, _values=values, _std=deviations, _groups=groups,
        _biases={name: (biases[:, b.place], of_biases[:, b.place]) for name, b in own.biases.items()},
        _fit=fit, _forces=(sum(x.forces[0] for x in pieces), sum(x.forces[1] for x in pieces)),
        jitter=estimation.jitter,
    )  # fmt: skip
