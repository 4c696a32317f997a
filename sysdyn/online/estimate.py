"""Solutions of problems with noise: estimated quantities, and statistics of their errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.problem_system import assemble
from sysdyn.measurements.input_names import SWITCH, group_of
from sysdyn.measurements.problem import Problem
from sysdyn.offline.options import Options
from sysdyn.offline.report import Choice
from sysdyn.offline.stages import Progress
from sysdyn.online import display
from sysdyn.online.posterior import OutputPart, Posterior
from sysdyn.online.solution import Solution
from sysdyn.online.states import SolvedStates
from sysdyn.online.whitening import Multipliers, NoiseStatistics, NoisyComponents
from sysdyn.program.program import Guard

# Redundancy number of a component, 1 − leverage, below which no other equation checks it (chosen).
UNCHECKED = 1e-9


class Posteriors:
    """Picklable holder of a `Posterior`: a pickle has its constructor arguments only."""

    def __init__(
        self, problem: Problem, choice: Choice, options: Options, guards: Sequence[Guard], key: str | None,
        progress: Progress | None = None,
    ):  # fmt: skip
        self._arguments = problem, choice, options, guards, key
        self.posterior = Posterior(*self._arguments, progress)

    def __reduce__(self):
        return Posteriors, self._arguments

    def __deepcopy__(self, memo: object) -> Posteriors:
        return self  # its programs do not change


class Estimate(Solution):
    """Estimated quantities at one state or many, with standard deviations, residual tests and likelihood on request.

    Maximum a posteriori of unknowns d, given y: satisfies the exact equations and minimises ½ ε^T Σ⁻¹ ε of the noisy
    ones. Quantities are as in any `Solution`.
    """

    _asked: SolvedStates | None = None  # created at the first request

    @property
    def posterior(self) -> Posterior:
        """Source of covariances, residuals and likelihood; its `programs` have operation counts."""
        return self._about.posterior.posterior

    def _displayed_std(self) -> dict[str, np.ndarray]:
        return {name: self.std(name) for name in self._values if self.posterior.has_variances(name)}

    def __str__(self) -> str:
        return "\n".join([repr(self), *display.std_lines(self._outputs, self._displayed_std())])

    def backward_error(self) -> np.ndarray:
        """Componentwise relative backward error (…) of the augmented system. Needs outputs="all".

        As in `Solution.backward_error`, with the multipliers that fit the estimate best. It is zero if the exact
        equations hold and the estimate minimises ½ ε^T Σ⁻¹ ε among their solutions. NaN if the state was not solved.
        """
        system = assemble(self._problem)
        assert isinstance(system, AugmentedSystem)
        entries, b = system.values(self.inputs)
        d = system.completed(entries, b, self._unknowns(system))
        known = np.isfinite(d).all(axis=1)
        error = np.full(self._n, np.nan)
        if known.any():
            D, e = (x if len(x) == 1 else x[known] for x in (entries, b))
            error[known] = residual_of(system, D, e, d[known]).backward_error
        return error.reshape(self._lead)

    # ---- covariances --------------------------------------------------------------------------------------------

    def std(self, quantity: str, name: str | None = None) -> np.ndarray:
        """Posterior standard deviations of an output, in its shape, or of one joint, body or component of it.

        For a measured output they refer to the predicted value Y d + b_Y, without the noise of the sensor. The program
        is compiled at first use.
        """
        posterior, states = self.posterior, self._states
        variances = np.maximum(posterior.variances(quantity, states), 0.0)  # negative by rounding
        values = np.sqrt(variances).reshape(self._lead + posterior.shape(quantity))
        return values if name is None else self._part(values, quantity, name)

    def covariance(self, first: OutputPart, second: OutputPart | None = None) -> np.ndarray:
        """Posterior covariance (…, m, n) of one or between two flattened parts: "tau", "imu", ("fx", "l_foot")."""
        other = first if second is None else second
        covariance = self.posterior.covariance(first, other, self._states)
        if first == other:  # variances that are negative by rounding
            diagonal = np.einsum("nii->ni", covariance)
            np.maximum(diagonal, 0.0, out=diagonal)
        return covariance.reshape(*self._lead, *covariance.shape[1:])

    # ---- tests --------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[str, np.ndarray]:
        """Residuals {name: y − ŷ (…, m)} of each noisy measurement, prior and equation, in its unit.

        NaN for components that are switched off.
        """
        return self._by_name(self._noise.hidden(-self._noise.residuals(self._mu())))

    def normalised_residuals(self) -> dict[str, np.ndarray]:
        """Normalised residuals {name: w (…, m)}: standard normal if noise is as declared; |w| > 4 suggests an outlier.

        Baarda's w-test of the hypothesis that this component alone is wrong. NaN if no other equation checks the
        component, or if it is switched off.
        """
        return self._by_name(self._noise.normalised(self._multipliers(), UNCHECKED))

    def leverage(self) -> dict[str, np.ndarray]:
        """Leverage {name: h (…, m)}, h_i = ∂ŷ_i/∂y_i: 1 if no other equation checks the component.

        The sum is the number of noisy equations minus `redundancy`. 0 for components that are switched off.
        """
        return self._by_name(self._noise.unchecked(self._multipliers()))

    def chi2(self) -> np.ndarray:
        """Sum ε^T Σ⁻¹ ε (…) over all noisy equations: χ² distributed with `redundancy` degrees of freedom."""
        return self._shaped(self._noise.chi2(self._mu()))

    @property
    def redundancy(self) -> np.ndarray:
        """Number of equations minus number of unknowns (…): degrees of freedom of `chi2`."""
        equations, unknowns = self._equations().shape
        off = [np.sum(x == 0.0, axis=-1) for name, x in self._states.inputs.items() if group_of(name).role == SWITCH]
        return np.broadcast_to(equations - unknowns - sum(off), self._n).reshape(self._lead)

    def log_likelihood(self) -> np.ndarray:
        """Marginal log-likelihood log p(y) (…), integrated over all solutions of the exact equations.

        log p = −½ (χ² + log |det A| + ν log 2π), A the augmented matrix and ν = redundancy.
        """
        det = self.posterior.log_determinant(self._states)
        return -0.5 * (self.chi2() + self._shaped(det) + self.redundancy * math.log(2.0 * math.pi))

    def expected_noise(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Mean of E[ε ε^T] over the active states: {name: standard deviations (m,) or covariance (m, m)}.

        One iteration of expectation maximisation; see `sysdyn.learn_noise`.
        """
        multipliers = self._multipliers()
        chosen = {name: noise for name, noise in self._noisy.noises.items() if name in names}
        return {name: self._noise.expected(noise, multipliers) for name, noise in chosen.items()}

    def noise_moments(self, names: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{name: (σ² μ² (n, m), its expectation)} at n states, with μ = Σ⁻¹ ε.

        For a full covariance L L^T: the lower triangles (n, m (m + 1) / 2), row by row, of L^T μ μ^T L and
        L^T Cov(μ) L. The difference is the derivative of the log-likelihood with respect to log σ, or to the lower
        triangular X of a covariance L (1 + X) (1 + X)^T L^T. Both are zero for components that no other equation checks
        or that are switched off.
        """
        multipliers = self._multipliers()
        chosen = {name: noise for name, noise in self._noisy.noises.items() if name in names}
        return {name: self._noise.moments(noise, multipliers) for name, noise in chosen.items()}

    # ---- multipliers --------------------------------------------------------------------------------------------

    @property
    def _states(self) -> SolvedStates:
        if self._asked is None:  # `cached_property` has a lock, which takes a microsecond
            if self._row is not None:
                vector = self._row_arrays()[1]
                self._asked = SolvedStates(lambda: self.inputs, 1, self._about.refuse, vector=vector)
            else:
                solved = None if self.ok is np.True_ else np.broadcast_to(self.ok, self._lead).reshape(-1)
                self._asked = SolvedStates(self.inputs, self._n, self._about.refuse, solved)
        return self._asked

    @property
    def _noisy(self) -> NoisyComponents:
        return self.posterior.noisy

    @functools.cached_property
    def _noise(self) -> NoiseStatistics:
        return NoiseStatistics(self._noisy, self._states)

    def _mu(self) -> np.ndarray:
        """Multipliers Σ⁻¹ (Y d + y₀ − y) (n, m) of all components; zero for those that are switched off."""
        return self._noise.switched(self.posterior.multipliers(self._states))

    def _multipliers(self) -> Multipliers:
        return self._noise.multipliers(*self.posterior.tests(self._states))

    def _by_name(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Split values (n, m) of all components into {noise: (…, size)}."""
        return self._noisy.by_name(self._shaped(x))
