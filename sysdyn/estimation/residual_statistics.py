"""Residuals of measurements with noise, with their variances: for outlier rejection and for learning of noise.

References
----------
Baarda (1968), A testing procedure for use in geodetic networks.
"""

from __future__ import annotations

import numpy as np
import scipy  # loads scipy.special lazily

from sysdyn.estimation.process_model import BIASES
from sysdyn.estimation.residuals import (
    CHI2_THRESHOLD,
    CONFIDENCE,
    MIN_REDUNDANCY,
    DynamicsResiduals,
    MeasurementData,
    StateResiduals,
)
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.offline.time_step import ERRORS, FREE, VARIANCES

Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


def residuals_given_state(source: DynamicsResiduals, path: StateTrajectory, readings: MeasurementData) -> Pairs:
    """{measurement: (residuals (N, m), their variances (N, m))} if the states are exact, in units of the noise.

    Components that no other measurement checks have variance 0.
    """
    inputs = source.all_inputs(path, readings) | {BIASES: np.ascontiguousarray(path.biases)}
    outputs, _ = source.runner.results(inputs, len(path))
    errors, variances = (_by_measurement(source, outputs[x]) for x in (ERRORS, VARIANCES))
    return {name: (e, variances[name]) for name, e in errors.items()}


def expected_squares(
    source: StateResiduals | DynamicsResiduals, path: StateTrajectory, readings: MeasurementData, P: np.ndarray
) -> Pairs:
    """{measurement: (squared residuals (N, m), their variances (N, m))} after all measurements, in units of the noise.

    P (N, unknowns, unknowns): smoothed covariances. The sum of both is the expected square of an error. Sensors of the
    state with correlated components are omitted.
    """
    if isinstance(source, StateResiduals):
        lines = source.linearize(path, readings)
        variance = np.einsum("nij,njk,nik->ni", lines.J, P, lines.J, optimize=True)
        rows = {name: x for name, x in source.rows.items() if not source.noise[name].full}
        return {name: (lines.r[:, x] ** 2, variance[:, x]) for name, x in rows.items()}
    F, J, r = _whitened(source, path, readings)
    FJ, e = F @ J, (F @ r[..., None])[..., 0]
    variance = np.einsum("nij,njk,nik->ni", FJ, P, FJ, optimize=True) + 1.0 - (F * F).sum(axis=2)
    squares, variances = _by_measurement(source, e * e), _by_measurement(source, variance)
    return {name: (squares[name], variances[name]) for name in squares}


def studentized_residuals(
    source: DynamicsResiduals, path: StateTrajectory, readings: MeasurementData, P: np.ndarray, after: bool = False
) -> dict[str, np.ndarray]:
    """{measurement: residuals (N, m) after all measurements, divided by their standard deviations}.

    path, P (N, unknowns, unknowns): states before these measurements, or after them. Components that no other
    measurement checks are 0. A measurement that is rejected as a whole has one number for all components: the root of
    the decrease of χ² if it is rejected, shifted so that its limit of CONFIDENCE is that of one component.
    """
    F, J, r = _whitened(source, path, readings)
    S, one = J @ P @ J.swapaxes(1, 2), np.eye(r.shape[1])
    both = np.concatenate([r[:, :, None], F.swapaxes(1, 2)], axis=2)
    if after:
        both[:, :, 1:] = (one - S) @ both[:, :, 1:]
    else:
        both = np.linalg.solve(one + S, both)
    e, V = (F @ both[:, :, :1])[..., 0], both[:, :, 1:]
    variance = np.einsum("nij,nji->ni", F, V)
    checked = variance > MIN_REDUNDANCY
    studentized = np.where(checked, e / np.sqrt(np.where(checked, variance, 1.0)), 0.0)
    for name in source.problem.swing_measurements:
        rows = [k for k, (x, _) in enumerate(source.noisy) if x == name]
        covariance = F[:, rows] @ V[:, :, rows]
        size, axes = np.linalg.eigh(0.5 * (covariance + covariance.swapaxes(1, 2)))
        checked = size > MIN_REDUNDANCY
        along = (axes.swapaxes(1, 2) @ e[:, rows, None])[..., 0]
        decrease = np.where(checked, along**2 / np.where(checked, size, 1.0), 0.0).sum(axis=1)
        limit = scipy.special.chdtri(np.maximum(checked.sum(axis=1), 1), 1.0 - CONFIDENCE)
        studentized[:, rows] = np.sqrt(np.maximum(decrease - limit + CHI2_THRESHOLD, 0.0))[:, None]
    return _by_measurement(source, studentized)


def _whitened(
    source: DynamicsResiduals, path: StateTrajectory, readings: MeasurementData
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F (N, noisy equations, rows), J (N, rows, unknowns) and r (N, rows) of rows with noise."""
    lines, (runner, places) = source.linearize(path, readings), source.free
    J, r = lines.J[:, ~lines.exact], lines.r[:, ~lines.exact]
    F = np.zeros((len(path), len(source.noisy), r.shape[1]))
    F[:, places[0], places[1]] = runner.results(source.unbiased_inputs(path, readings), len(path))[0][FREE]
    return F, J, r


def _by_measurement(source: DynamicsResiduals, x: np.ndarray) -> dict[str, np.ndarray]:
    """{measurement: (N, m)} of values (N, noisy equations)."""
    places: dict[str, dict[int, int]] = {}
    for column, (name, k) in enumerate(source.noisy):
        places.setdefault(name, {})[k] = column
    return {name: x[:, [place[k] for k in range(len(place))]] for name, place in places.items()}
