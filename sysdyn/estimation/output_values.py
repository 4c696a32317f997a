"""Outputs at estimated states, with standard deviations."""

from __future__ import annotations

import numpy as np

from sysdyn.estimation.kalman_smoother import components
from sysdyn.estimation.residuals import DynamicsResiduals, MeasurementData
from sysdyn.estimation.state_trajectory import StateTrajectory


def evaluate_outputs(
    source: DynamicsResiduals, path: StateTrajectory, readings: MeasurementData, P: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{output: (values (N, size), standard deviations (N, size))}; P (N, unknowns, unknowns): of the unknowns."""
    if not source.outputs:
        return {}
    n, columns = len(path), source.columns
    results, _ = source.results.results(source.unbiased_inputs(path, readings), n)
    parts, outputs = _uncoupled(P, columns) if n > 1 else np.arange(len(columns))[None], {}
    for name in [x for x in results if not x.startswith(("d ", "var "))]:
        x = results[name]
        J = results[f"d {name}"].reshape(n, x.shape[1], len(columns)) * source.sign
        variance = results[f"var {name}"] + _variance(J, P, columns, parts)
        outputs[name] = x, np.sqrt(np.maximum(variance, 0.0))
    return outputs


def _uncoupled(P: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Indices (parts, k) of columns that no covariance P (N, …) couples, in parts of one size; else one part."""
    parts = components((P != 0.0).any(axis=0)[columns[:, None], columns])
    return np.array(parts) if len({len(x) for x in parts}) == 1 else np.arange(len(columns))[None]


def _variance(J: np.ndarray, P: np.ndarray, columns: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Diagonal (N, m) of J P Jᵀ. J (N, m, c): by the unknowns columns (c,); parts (parts, k): see `_uncoupled`."""
    J, at = J[:, :, parts].swapaxes(1, 2), columns[parts]  # (N, parts, m, k)
    return np.asarray(np.einsum("npij,npij->ni", J @ P[:, at[:, :, None], at[:, None, :]], J))
