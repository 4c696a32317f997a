"""The solution of a problem with noise: quantities, and what is known of their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sysdyn.measurements.groups import SWITCH, group_of, switch_group
from sysdyn.measurements.noise import Noise
from sysdyn.measurements.variables import WRENCHES
from sysdyn.online.posterior import Checked, Part, Posterior
from sysdyn.online.solution import Solution
from sysdyn.problem import Problem

# Components whose residual shows less than this share of their own error count as checked by no other equation.
UNCHECKED = 1e-9


class Estimate(Solution):
    """Estimated quantities at one state or many, with standard deviations, residual tests and likelihood on request.

    The maximum a posteriori of the unknowns d, given y: exact equations hold exactly, and ½ ε^T Σ⁻¹ ε of the noisy ones
    is least. Quantities are those of any `Solution`.
    """

    def __init__(
        self,
        problem: Problem,
        inputs: dict[str, np.ndarray],
        lead: tuple[int, ...],
        values: dict[str, np.ndarray],
        ok: np.ndarray,
        posterior: Posterior,
        components: Mapping[str, Sequence[str]] | None = None,
    ):
        super().__init__(problem, inputs, lead, values, ok, components)
        self._posterior = posterior

    # ---- covariances --------------------------------------------------------------------------------------------

    def std(self, quantity: str, name: str | None = None) -> np.ndarray:
        """Posterior standard deviation of an output, shaped as it is; or of one joint, body or component of it.

        Of a measured output it is that of its predicted value Y d + b_Y, in which its own noise has no part.

        The program for it is compiled when it is first asked for. States at which double precision has too few digits
        take milliseconds each, see docs/estimation.md.
        """
        values = np.sqrt(np.maximum(self._posterior.variances(quantity, self._inputs, self._n), 0.0))
        model = self._problem.model
        shape = (model.nb, 6) if quantity in WRENCHES else values.shape[1:]
        return self._picked(values.reshape(*self._lead, *shape), quantity, name)

    def covariance(self, first: Part, second: Part | None = None) -> np.ndarray:
        """Posterior covariance (…, m, n) of one part or between two: "tau", "imu", ("fx", "l_foot"), flattened."""
        other = first if second is None else second
        found = self._posterior.covariance(first, other, self._inputs, self._n)
        return found.reshape(*self._lead, *found.shape[1:])

    # ---- tests --------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[str, np.ndarray]:
        """{name: y − ŷ (…, m)}: the residual of each noisy measurement, prior and equation, in its unit.

        NaN for components that are switched off.
        """
        result = {}
        for name, (S, mu, _) in self._parts(self._checked()).items():
            result[name] = self._shaped(np.where(self._on(name), -np.einsum("nij,nj->ni", S, mu), np.nan))
        return result

    def normalised_residuals(self) -> dict[str, np.ndarray]:
        """{name: w (…, m)}: standard normal where the noise is as declared; beyond 4 a fault is likely.

        The w-test of Baarda: that a component alone is wrong. NaN where no other equation checks it, and where it is
        switched off.
        """
        result = {}
        for name, (S, mu, M) in self._parts(self._checked()).items():
            # Cov(μ) of an unchecked component is zero, that of one that all others determine is Σ⁻¹
            variance = np.einsum("nii->ni", M)
            checked = variance > UNCHECKED * np.einsum("nii->ni", self._inverse(name, S))
            with np.errstate(all="ignore"):
                result[name] = self._shaped(np.where(checked, -mu / np.sqrt(variance), np.nan))
        return result

    def leverage(self) -> dict[str, np.ndarray]:
        """{name: h (…, m)}: how much of a component's own error the estimate follows, 1 where nothing else checks it.

        They sum to the number of noisy equations less `redundancy`; 0 for components that are switched off.
        """
        parts = self._parts(self._checked()).items()
        return {
            name: self._shaped(self._on(name) * (1.0 - np.einsum("nij,nji->ni", S, M))) for name, (S, _, M) in parts
        }

    def chi2(self) -> np.ndarray:
        """ε^T Σ⁻¹ ε (…) of all noisy equations: χ² distributed with `redundancy` degrees of freedom."""
        return self._chi2(self._checked())

    @property
    def redundancy(self) -> np.ndarray:
        """Equations (…) beyond those that determine the unknowns: degrees of freedom of `chi2`."""
        equations, unknowns = self._equations().shape
        off = [np.sum(x == 0.0, axis=-1) for name, x in self._inputs.items() if group_of(name).role == SWITCH]
        return np.broadcast_to(equations - unknowns - sum(off), self._n).reshape(self._lead)

    def log_likelihood(self) -> np.ndarray:
        """log p(y) (…) of all noisy equations, the unknowns integrated out over those that satisfy the exact ones.

        log p = −½ (χ² + log |det K| + ν log 2π), ν = redundancy.
        """
        checked = self._checked()
        det = self._shaped(checked.log_determinant)
        return -0.5 * (self._chi2(checked) + det + self.redundancy * math.log(2.0 * math.pi))

    def expected_noise(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """{name: standard deviations (m,) or covariance (m, m)}: mean of E[ε ε^T] over the states where it is active.

        One iteration of expectation maximisation; see `sysdyn.learn_noise`.
        """
        parts = self._parts(self._checked())
        return {
            noise.name: _expected(noise, *parts[noise.name], self._on(noise.name))
            for noise in self._posterior.noises
            if noise.name in names
        }

    # ---- multipliers and switches -------------------------------------------------------------------------------

    def _checked(self) -> Checked:
        return self._posterior.check(self._inputs, self._n)

    def _parts(self, checked: Checked) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """{name: (Σ, μ, Cov(μ))}; μ and Cov(μ) are zero for components that are switched off."""
        result = {}
        for noise in self._posterior.noises:
            on = self._on(noise.name)
            S = noise.matrix(np.broadcast_to(self._inputs[noise.group], (self._n, noise.scalars)))
            M = checked.covariances[noise.name] * (on[:, :, None] & on[:, None, :])
            result[noise.name] = S, checked.multipliers[noise.name] * on, M
        return result

    def _chi2(self, checked: Checked) -> np.ndarray:
        parts = self._parts(checked).values()
        return self._shaped(np.sum([np.einsum("ni,nij,nj->n", mu, S, mu) for S, mu, _ in parts], axis=0))

    def _on(self, name: str) -> np.ndarray:
        """(n or 1, m or 1) bool: the component is not switched off."""
        return np.atleast_2d(self._inputs.get(switch_group(name), 1.0)) != 0.0

    def _inverse(self, name: str, S: np.ndarray) -> np.ndarray:
        """Σ⁻¹ of the components that are switched on; the identity for the rest."""
        on = np.broadcast_to(self._on(name), S.shape[:2])
        both = on[:, :, None] & on[:, None, :]
        return np.linalg.inv(np.where(both, S, np.eye(S.shape[1])))


def _expected(noise: Noise, S: np.ndarray, mu: np.ndarray, M: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Mean of E[ε ε^T] = r r^T + Σ − Σ Cov(μ) Σ, r = Σ μ, over the states at which components are on.

    Standard deviations (m,) or a covariance (m, m), as the noise is declared; components never on keep theirs.
    """
    on = np.broadcast_to(on, mu.shape)
    if noise.full:  # those that are off are expected to be as those that are on tell by correlation
        on = np.broadcast_to(on.any(axis=1, keepdims=True), mu.shape)
    r = np.einsum("nij,nj->ni", S, mu)
    expected = r[:, :, None] * r[:, None, :] + S - S @ M @ S
    both = on[:, :, None] & on[:, None, :]
    count = both.sum(axis=0)
    mean = np.where(both, expected, 0.0).sum(axis=0) / np.maximum(count, 1)
    mean = np.where(count > 0, mean, S[0])
    mean = 0.5 * (mean + mean.T)
    return mean if noise.full else np.sqrt(np.diagonal(mean))
