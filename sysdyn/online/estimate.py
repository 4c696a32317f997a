"""The solution of a problem with noise: quantities, and statistics of their errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.measurements.groups import SWITCH, group_of, switch_group
from sysdyn.measurements.noise import Noise
from sysdyn.offline.choice import Choice
from sysdyn.offline.options import Options
from sysdyn.offline.stages import Progress
from sysdyn.online.posterior import Part, Posterior, States
from sysdyn.online.solution import Solution
from sysdyn.problem import Problem

# Share of its own error in the residual of a component below which no other equation checks it (chosen).
UNCHECKED = 1e-9


class Posteriors:
    """The posterior of a solver; a pickle holds the arguments of `Posterior` alone, which make it again."""

    def __init__(
        self, problem: Problem, choice: Choice, options: Options, key: str | None, progress: Progress | None = None
    ):
        self._arguments = problem, choice, options, key
        self.posterior = Posterior(problem, choice, options, key, progress)

    def __reduce__(self):
        return Posteriors, self._arguments

    def __deepcopy__(self, memo: object) -> Posteriors:
        return self  # its programs do not change


class Estimate(Solution):
    """Estimated quantities at one state or many, with standard deviations, residual tests and likelihood on request.

    The maximum a posteriori of the unknowns d, given y: exact equations hold exactly, and ½ ε^T Σ⁻¹ ε of the noisy ones
    is least. Quantities are as in any `Solution`.

    A request for a result raises LostDigits if it keeps fewer than 8 digits, as covariances handed in with the call are
    too far from the declared ones; after on_singular="nan" or "repivot", it is NaN there.
    """

    @property
    def _posterior(self) -> Posterior:
        return self._about.posterior.posterior

    def _tables(self) -> list[tuple[str, Mapping[str, np.ndarray]]]:
        return [*super()._tables(), ("std:", {name: self.std(name) for name in self._values})]

    def backward_error(self) -> np.ndarray:
        """Relative change (…) of entries of the augmented system that makes the estimate exact. Needs outputs="all".

        Row by row, as of any `Solution`, with the multipliers that suit the estimate best: exact equations hold, and no
        change that they allow makes ½ ε^T Σ⁻¹ ε less. NaN if the state was not solved.
        """
        system = self._problem.system()
        assert isinstance(system, AugmentedSystem)
        entries, b = system.values(self._inputs)
        d = system.completed(entries, b, self._unknowns(system))
        known = np.isfinite(d).all(axis=1)
        error = np.full(self._n, np.nan)
        if known.any():
            D, e = (x if len(x) == 1 else x[known] for x in (entries, b))
            error[known] = system.misfit(D, e, d[known]).backward_error
        return error.reshape(self._lead)

    # ---- covariances --------------------------------------------------------------------------------------------

    def std(self, quantity: str, name: str | None = None) -> np.ndarray:
        """Posterior standard deviation of an output, in its shape; or of one joint, body or component of it.

        For a measured output it is that of its predicted value Y d + b_Y, in which its own noise has no part.

        The program for it is compiled at first use.
        """
        values = np.sqrt(self._posterior.variances(quantity, self._states))
        known = self._outputs  # others can be asked for, too
        group = known[quantity] if quantity in known else self._problem.outputs([quantity])[quantity]
        return self._picked(values.reshape(*self._lead, *group.shape), quantity, name)

    def covariance(self, first: Part, second: Part | None = None) -> np.ndarray:
        """Posterior covariance (…, m, n) of one part or between two: "tau", "imu", ("fx", "l_foot"), flattened."""
        other = first if second is None else second
        found = self._posterior.covariance(first, other, self._states)
        return found.reshape(*self._lead, *found.shape[1:])

    # ---- tests --------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[str, np.ndarray]:
        """Residuals {name: y − ŷ (…, m)} of each noisy measurement, prior and equation, in its unit.

        NaN for components that are switched off.
        """
        return {
            name: self._shaped(np.where(self._on(name), -np.einsum("nij,nj->ni", self._factor(name), x), np.nan))
            for name, x in self._whitened().items()
        }

    def normalised_residuals(self) -> dict[str, np.ndarray]:
        """Normalised residuals {name: w (…, m)}: standard normal if noise is as declared; beyond 4 a fault is likely.

        The w-test of Baarda: that a component alone is wrong. NaN if no other equation checks it, or it is switched
        off.
        """
        result = {}
        for name, (mu, M) in self._multipliers().items():
            # Cov(μ) of an unchecked component is zero, that of one that all others determine is Σ⁻¹
            inverse = np.linalg.inv(self._factor(name))
            variance = np.einsum("nii->ni", M)
            checked = variance > UNCHECKED * np.einsum("nji,nji->ni", inverse, inverse)
            with np.errstate(all="ignore"):
                result[name] = self._shaped(np.where(checked, -mu / np.sqrt(variance), np.nan))
        return result

    def leverage(self) -> dict[str, np.ndarray]:
        """Leverage {name: h (…, m)}: share of a component's own error in the estimate, 1 if nothing else checks it.

        They sum to the number of noisy equations less `redundancy`; 0 for components that are switched off.
        """
        result = {}
        for name, (_, M) in self._multipliers().items():
            checked = np.einsum("nij,nji->ni", self._covariance(name), M)
            result[name] = self._shaped(self._on(name) * (1.0 - checked))
        return result

    def chi2(self) -> np.ndarray:
        """Sum ε^T Σ⁻¹ ε (…) over all noisy equations: χ² distributed with `redundancy` degrees of freedom."""
        return self._shaped(np.sum([np.sum(x * x, axis=1) for x in self._whitened().values()], axis=0))

    @property
    def redundancy(self) -> np.ndarray:
        """Number of equations (…) beyond the number of unknowns: degrees of freedom of `chi2`."""
        equations, unknowns = self._equations().shape
        off = [np.sum(x == 0.0, axis=-1) for name, x in self._inputs.items() if group_of(name).role == SWITCH]
        return np.broadcast_to(equations - unknowns - sum(off), self._n).reshape(self._lead)

    def log_likelihood(self) -> np.ndarray:
        """Logarithm log p(y) (…) of all noisy equations, integrated over unknowns that satisfy the exact ones.

        log p = −½ (χ² + log |det K| + ν log 2π), ν = redundancy.
        """
        det = self._posterior.log_determinant(self._states)
        for name in self._noises:
            det = det + 2.0 * np.log(np.einsum("nii->ni", self._factor(name))).sum(axis=1)
        return -0.5 * (self.chi2() + self._shaped(det) + self.redundancy * math.log(2.0 * math.pi))

    def expected_noise(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Standard deviations {name: (m,)} or covariance (m, m): mean of E[ε ε^T] over states at which it is active.

        One iteration of expectation maximisation; see `sysdyn.learn_noise`.
        """
        multipliers = self._multipliers()
        return {
            name: _expected(noise, self._covariance(name), *multipliers[name], self._on(name))
            for name, noise in self._noises.items()
            if name in names
        }

    # ---- whitened equations and switches ------------------------------------------------------------------------

    @functools.cached_property
    def _states(self) -> States:
        solved = np.broadcast_to(self.ok, self._lead).reshape(-1)
        return States(self._inputs, self._n, self._about.refuse, solved, self._found.again)

    @property
    def _noises(self) -> dict[str, Noise]:
        return {noise.name: noise for noise in self._posterior.noises}

    def _whitened(self) -> dict[str, np.ndarray]:
        """Whitened residuals {name: L⁻¹ (Y d + y₀ − y) (n, m)}; zero for components that are switched off."""
        found = self._posterior.residuals(self._states)
        return {name: x * self._on(name) for name, x in found.items()}

    def _multipliers(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Multipliers {name: (μ = Σ⁻¹ ε (n, m), Cov(μ) (n, m, m))}; zero for components that are switched off."""
        shares, result = self._posterior.redundancy(self._states), {}
        for name, x in self._whitened().items():
            inverse = np.linalg.inv(self._factor(name))
            M = inverse.swapaxes(1, 2) @ shares[name] @ inverse
            result[name] = np.einsum("nji,nj->ni", inverse, x), M * self._both(name)
        return result

    def _covariance(self, name: str) -> np.ndarray:
        """Covariance Σ (n, m, m) of the call."""
        noise = self._noises[name]
        return noise.matrix(np.broadcast_to(self._inputs[noise.group], (self._n, noise.scalars)))

    def _factor(self, name: str) -> np.ndarray:
        """Factor L (n, m, m), L L^T = Σ; as of the identity for components that are switched off."""
        S = self._covariance(name)
        return np.linalg.cholesky(np.where(self._both(name), S, np.eye(S.shape[1])))

    def _on(self, name: str) -> np.ndarray:
        """(n or 1, m or 1) bool: False for components that are switched off."""
        return np.atleast_2d(self._inputs.get(switch_group(name), 1.0)) != 0.0

    def _both(self, name: str) -> np.ndarray:
        """(n or 1, m or 1, m or 1) bool: False for pairs of which a component is switched off."""
        on = self._on(name)
        return on[:, :, None] & on[:, None, :]


def _expected(noise: Noise, S: np.ndarray, mu: np.ndarray, M: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Mean of E[ε ε^T] = r r^T + Σ − Σ Cov(μ) Σ, r = Σ μ, over the states at which components are on.

    Standard deviations (m,) or a covariance (m, m), as the noise is declared; components never on keep theirs.
    """
    on = np.broadcast_to(on, mu.shape)
    if noise.full:  # components that are off are expected as the others tell by correlation
        on = np.broadcast_to(on.any(axis=1, keepdims=True), mu.shape)
    r = np.einsum("nij,nj->ni", S, mu)
    expected = r[:, :, None] * r[:, None, :] + S - S @ M @ S
    both = on[:, :, None] & on[:, None, :]
    count = both.sum(axis=0)
    mean = np.where(both, expected, 0.0).sum(axis=0) / np.maximum(count, 1)
    mean = np.where(count > 0, mean, S[0])
    mean = 0.5 * (mean + mean.T)
    return mean if noise.full else np.sqrt(np.diagonal(mean))
