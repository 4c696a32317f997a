"""Statistics of the noisy components of a call, from their covariances, switches and multipliers.

With multipliers μ = Σ⁻¹ ε, residuals are ε = Σ μ. Components are in the order of the noises. Independent components are
computed together, each full covariance by its matrix Σ. Switches are 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.measurements.input_names import switch_group
from sysdyn.measurements.noise import Noise
from sysdyn.online.states import SolvedStates, as_columns
from sysdyn.program.groups import slices


class Multipliers(NamedTuple):
    """Multipliers μ = Σ⁻¹ ε of the m noisy components of a problem at n states, and their covariances.

    mu, variance (n, m): μ and Var μ, zero for components that are switched off. inverse (n or 1, m): diagonal of Σ⁻¹,
    with the covariance Σ of the noise. full: {measurement: Cov(μ) (n, k, k)} if its noise has a full covariance.
    """

    mu: np.ndarray
    variance: np.ndarray
    inverse: np.ndarray
    full: dict[str, np.ndarray]


class NoisyComponents:
    """The noisy components of a problem. switched: names of the noises that have switches."""

    def __init__(self, noises: Sequence[Noise], switched: Sequence[str]):
        self.noises = {x.name: x for x in noises}
        self.full = [x for x in noises if x.full]
        self.places = _places(noises, [x.size for x in noises])
        self.numbers = _places(noises, [x.scalars for x in noises])
        # index of the variance of each component in packed covariances
        own = [np.arange(x.size) * (np.arange(x.size) + 3) // 2 if x.full else np.arange(x.size) for x in noises]
        self._variances = np.concatenate([self.numbers[x.name].start + k for x, k in zip(noises, own, strict=True)])
        self._groups = tuple(x.group for x in noises)
        self._switches = [switch_group(x.name) if x.name in switched else None for x in noises]
        self._ones = [np.ones(x.size) for x in noises]

    def covariances(self, states: SolvedStates) -> np.ndarray:
        """Packed covariances (n, p) of all noises; (1, p) if they are the same at all states.

        Independent components have their variances, full covariances their lower triangles, row by row.
        """
        return states.columns(self._groups)

    def variances(self, numbers: np.ndarray) -> np.ndarray:
        """Variances (n or 1, m) of all components, from packed covariances."""
        return numbers[:, self._variances] if self.full else numbers

    def switches(self, states: SolvedStates) -> np.ndarray | None:
        """Switches (n or 1, m) of all components, False for those that are off; None if there are none."""
        if not any(self._switches):
            return None
        pairs = zip(self._switches, self._ones, strict=True)
        return as_columns([one if group is None else states.inputs[group] for group, one in pairs]) != 0.0

    def by_name(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Split an array (…, m) over all noisy components by measurement: {name: (…, size)}."""
        if x.ndim == 1:  # twice as fast
            return {name: x[part] for name, part in self.places.items()}
        return {name: x[..., part] for name, part in self.places.items()}


class NoiseStatistics:
    """Statistics of the noisy components of a call at n states."""

    def __init__(self, noisy: NoisyComponents, states: SolvedStates):
        self.noisy, self.n = noisy, states.n
        self.on = noisy.switches(states)
        self._numbers = noisy.covariances(states)
        self._variances = noisy.variances(self._numbers)

    def switched(self, x: np.ndarray) -> np.ndarray:
        """x (n, m) with zeros for components that are off."""
        return x if self.on is None else x * self.on

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """x (n, m) with NaN for components that are off."""
        return x if self.on is None else np.where(self.on, x, np.nan)

    def covariance(self, noise: Noise) -> np.ndarray:
        """Covariance Σ (n, k, k) of a noise at each state."""
        numbers = self._numbers[:, self.noisy.numbers[noise.name]]
        return noise.matrix(np.broadcast_to(numbers, (self.n, noise.scalars)))

    def residuals(self, mu: np.ndarray) -> np.ndarray:
        """Residuals ε = Σ μ (n, m); μ must be zero for components that are off."""
        residuals = self._variances * mu
        for noise in self.noisy.full:
            part = self.noisy.places[noise.name]
            residuals[:, part] = np.einsum("nij,nj->ni", self.covariance(noise), mu[:, part])
        return residuals

    def chi2(self, mu: np.ndarray) -> np.ndarray:
        """Weighted sum of squared residuals ε^T Σ⁻¹ ε (n,) of the components that are on, from μ = Σ⁻¹ ε (n, m)."""
        mu = self.switched(mu)
        terms = mu * self.residuals(mu)
        return np.sum([x.sum(axis=1) for x in self.noisy.by_name(terms).values()], axis=0)

    def multipliers(self, mu: np.ndarray, numbers: np.ndarray) -> Multipliers:
        """`Multipliers` from μ (n, m) and the packed covariances (n, p) of μ."""
        variance = self.switched(np.maximum(self.noisy.variances(numbers), 0.0))
        with np.errstate(divide="ignore"):
            inverse = 1.0 / self._variances
        full = {}
        for noise in self.noisy.full:
            part, S = self.noisy.places[noise.name], self.covariance(noise)
            M = noise.matrix(numbers[:, self.noisy.numbers[noise.name]])
            if self.on is not None:
                on = self.on[:, part]
                both = on[:, :, None] & on[:, None, :]
                S, M = np.where(both, S, np.eye(noise.size)), M * both
            full[noise.name] = M
            inverse = np.array(np.broadcast_to(inverse, mu.shape))
            inverse[:, part] = np.einsum("nii->ni", np.linalg.inv(S))
        return Multipliers(self.switched(mu), variance, inverse, full)

    def normalised(self, multipliers: Multipliers, least: float) -> np.ndarray:
        """Normalised residuals −μ / std(μ) (n, m); NaN for components that are off, or if Var μ ≤ least · (Σ⁻¹)_ii.

        Var μ is zero if no other equation checks a component, and (Σ⁻¹)_ii if the others determine its value exactly.
        """
        mu, variance, inverse, _ = multipliers
        with np.errstate(all="ignore"):  # in place: allocation takes longer than the arithmetic
            normalised = np.sqrt(variance)
            np.divide(mu, normalised, out=normalised)
            np.negative(normalised, out=normalised)
        normalised[~(variance > least * inverse)] = np.nan
        return normalised

    def unchecked(self, multipliers: Multipliers) -> np.ndarray:
        """Leverage 1 − diag(Σ Cov(μ)) (n, m) of each component; 0 if it is off."""
        shares = self._variances * multipliers.variance
        for noise in self.noisy.full:
            part = self.noisy.places[noise.name]
            shares[:, part] = np.einsum("nij,nji->ni", self.covariance(noise), multipliers.full[noise.name])
        return self.switched(1.0 - shares)

    def expected(self, noise: Noise, multipliers: Multipliers) -> np.ndarray:
        """Mean of E[ε ε^T] = r r^T + Σ − Σ Cov(μ) Σ, r = Σ μ, over the states at which components are on.

        Standard deviations (k,) or a covariance (k, k), as the noise is declared; Σ is kept for components that are
        never on.
        """
        part = self.noisy.places[noise.name]
        mu = multipliers.mu[:, part]
        on = np.ones(mu.shape, dtype=bool) if self.on is None else np.broadcast_to(self.on[:, part], mu.shape)
        if not noise.full:
            S = np.broadcast_to(self._variances[:, part], mu.shape)
            r = S * mu
            return np.sqrt(_mean(r * r + S - S * multipliers.variance[:, part] * S, on, S[0]))
        # components that are off are estimated from correlated ones that are on
        on = np.broadcast_to(on.any(axis=1, keepdims=True), mu.shape)
        S, M = self.covariance(noise), multipliers.full[noise.name]
        r = np.einsum("nij,nj->ni", S, mu)
        mean = _mean(r[:, :, None] * r[:, None, :] + S - S @ M @ S, on[:, :, None] & on[:, None, :], S[0])
        return 0.5 * (mean + mean.T)

    def moments(self, noise: Noise, multipliers: Multipliers) -> tuple[np.ndarray, np.ndarray]:
        """Outer products z z^T of z = L^T μ, Σ = L L^T, and their expectations L^T Cov(μ) L.

        Lower triangles (n, k (k + 1) / 2), row by row; for independent components only the diagonals (n, k).
        """
        part = self.noisy.places[noise.name]
        mu = multipliers.mu[:, part]
        if not noise.full:
            S = self._variances[:, part]
            return S * mu * mu, S * multipliers.variance[:, part]
        L = np.linalg.cholesky(self.covariance(noise))
        z, H = np.einsum("nji,nj->ni", L, mu), L.swapaxes(1, 2) @ multipliers.full[noise.name] @ L
        i, j = np.tril_indices(noise.size)
        return z[:, i] * z[:, j], H[:, i, j]


def _mean(x: np.ndarray, on: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Mean of x (n, …) over the states at which each entry is on; `otherwise` for entries that are never on."""
    count = on.sum(axis=0)
    return np.where(count > 0, np.where(on, x, 0.0).sum(axis=0) / np.maximum(count, 1), otherwise)


def _places(noises: Sequence[Noise], sizes: Sequence[int]) -> dict[str, slice]:
    return dict(zip([x.name for x in noises], slices(sizes), strict=True))
