"""Smoothing in overlapping windows: the rows before a window are marginalised into its first state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.errors import LogWarning, warn
from sysdyn.estimation.contact_detection import proposed
from sysdyn.estimation.ekf import GaussianState
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.gauss_newton import Smoothed, Smoother
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.measurement_data import SlidingReader
from sysdyn.estimation.outliers import Event, residuals
from sysdyn.estimation.outputs import Piece, carried, missing, pieces_of, with_biases
from sysdyn.estimation.process_noise import MAD_TO_STD
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.offline.stages import Stages

# Most numbers in an array of a window: 256 MB in memory, 32 MB if the run is written to a file.
WINDOW_NUMBERS, WRITTEN_NUMBERS = 2**25, 2**22
# Least rows of a window, and overlap of windows as a share of their length (chosen).
MIN_WINDOW, OVERLAP = 100, 0.1
# Share of the progress when smoothing begins.
COMPILED = 0.3


class Window(NamedTuple):
    """Results of successive rows, with their events and numbers of missing values.

    residuals {sensor of the state: (N, m)}: in standard deviations of its noise, NaN at outliers. scales
    {sensor of the state: (m,)}: robust standard deviations of all its residuals, in the same units. fit: χ² and its
    degrees of freedom, of all rows so far.
    """

    pieces: list[Piece]
    events: list[Event]
    missing: dict[str, int]
    residuals: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]
    fit: tuple[float, int]


def window_rows(estimation: EstimationProblem, numbers: int = WINDOW_NUMBERS) -> int:
    """Number of rows of a window whose arrays have at most this many numbers."""
    return max(MIN_WINDOW, numbers // estimation.layout.size**2)


def windows(
    estimation: EstimationProblem,
    kappa: np.ndarray,
    state: GaussianState,
    rows: int,
    reader: SlidingReader,
    n: int,
    robust: bool,
    stages: Stages,
    initial: StateTrajectory | None = None,
) -> Iterator[Window]:
    """Smooth a log of `rows` samples in windows of n samples; yield the results of each window.

    kappa (nv,): densities of the process noise. state: belief of the first time step before its measurements. robust:
    reject outliers. stages: receives the progress. initial: trajectory from which the first window is
    linearised, if it has the length of that window.
    """
    begin, last, chi2, dof = 0, slice(-1, None), 0.0, 0
    while begin < rows:
        end = min(begin + n, rows)
        share = COMPILED + (1.0 - COMPILED) * begin / rows
        stages.report(f"smoothing rows {begin + 1} to {end} of {rows}", share)
        data = estimation.timed(reader.rows(begin, min(end + max(1, int(OVERLAP * n)), rows)))
        data = proposed(estimation, state, kappa, data)
        equations = Linearised(estimation.layout, estimation.kinematic, kappa, state, estimation.gauge_directions)
        smoother = Smoother(equations, robust, None if estimation.impacts else [])
        if initial is None or len(initial) != len(data.t):
            initial = estimation.initial_trajectory(state, data, kappa)
        solution, inliers = smoother.run(initial, data)
        initial = None
        if estimation.coupled:
            smoother = smoother.coupled(estimation.sources)
            solution, inliers = smoother.run(solution.path, data)
        if not solution.converged:
            warn(
                f"rows {begin + 1} to {end} have not converged: values are near the right ones at best, and standard "
                "deviations do not hold. Give start= near the first position, density=, or sensors of more",
                LogWarning,
            )  # fmt: skip
        own, events = slice(0, end - begin), [e for e in smoother.events if e.instant < end - begin]
        path, P, used = solution.path.part(own), solution.covariances.part(own), inliers.part(own)
        kinematic, bias_information = (path.part(last), P.part(last).dense()[0]), None
        if len(estimation.slow_biases):
            path, P, bias_information = with_biases(estimation, path, P, used, robust)
        pieces = pieces_of(estimation, path, P, used, robust, events, bias_information)
        dof += smoother.equations.count(used) - (0 if begin else _initial_dof(state, solution))
        if end == rows:
            chi2 += solution.objective
        else:
            state, before = _marginalized(smoother.equations, solution, inliers, end - begin)
            chi2 += before
            if bias_information is not None:
                with_forces = path.part(last), P.part(last).dense()[0]
                state = carried(state, kinematic, with_forces, estimation.slow_biases)
        measured = data.part(own)
        errors = _residuals(estimation, path, measured)
        yield Window(
            pieces, [e._replace(instant=e.instant + begin) for e in events], missing(estimation, measured),
            {name: np.where(used.active[name], x, np.nan) for name, x in errors.items()},
            {name: _scale(x, measured.active[name]) for name, x in errors.items()}, (chi2, dof),
        )  # fmt: skip
        begin = end


def _residuals(estimation: EstimationProblem, path: StateTrajectory, data: MeasurementData) -> dict[str, np.ndarray]:
    """{sensor of the state: (N, m)} residuals along a path in standard deviations."""
    parts = [part for _, part in residuals(estimation.states, path, data)]
    return {name: np.concatenate([x[name] for x in parts]) for name in (parts[0] if parts else ())}


def _scale(x: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Robust standard deviations (m,) of residuals (N, m), from the median of |e|; 0 of components without readings."""
    return np.array([MAD_TO_STD * np.median(np.abs(e[k])) if k.any() else 0.0 for e, k in zip(x.T, on.T, strict=True)])


def _initial_dof(prior: GaussianState, solution: Smoothed) -> int:
    """Number of measurements that determine the first state, of which the prior says next to nothing."""
    before, after = np.diagonal(prior.P), solution.covariances.part(slice(0, 1)).diagonal()[0]
    free = np.concatenate([np.ones(prior.path.layout.n_states), prior.path.layout.unknown_starts])
    return round(float(free @ np.clip(1.0 - after / before, 0.0, 1.0)))


def _marginalized(
    equations: Linearised, solution: Smoothed, data: MeasurementData, at: int
) -> tuple[GaussianState, float]:
    """(state of time step `at` given all before it, without its own measurements; χ² of those before)."""
    before = np.arange(at + 1)[:, None] < at
    data = data.part(slice(0, at + 1))
    data = replace(data, active={name: x & before for name, x in data.active.items()})
    linear = equations.about(solution.path.part(slice(0, at + 1)), data)
    sweep = equations.sweep(linear, last=True)
    P, path = sweep.covariances.dense()[0], equations.moved(linear, sweep.step, data)
    return GaussianState(path.part(slice(at, at + 1)), P), equations.about(path, data).objective
