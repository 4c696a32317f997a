"""Estimates and their statistics at single states, by dense matrices with pivoting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.offline.sampling import is_unsolvable
from sysdyn.program.graph import Scalar
from sysdyn.sparse.constrained_least_squares import ConstrainedLeastSquares
from sysdyn.sparse.double_double import DoubleDouble, iterative_refinement

LinearTerms = Mapping[int, Scalar]  # A linear combination of unknowns, {index: coefficient}.


class Covariance(ABC):
    """Statistics of an estimate. Components of noise are in the order of `AugmentedSystem.noise_numbers`."""

    system: AugmentedSystem

    @abstractmethod
    def output_rows(self, name: str) -> Sequence[LinearTerms]:
        """Each scalar of a measured output as a combination of unknowns."""

    @abstractmethod
    def covariances(self, pairs: Sequence[tuple[LinearTerms, LinearTerms]]) -> list[Scalar]:
        """Covariances of pairs of scalars, each given as a combination of unknowns."""

    @abstractmethod
    def multipliers(self) -> list[Scalar]:
        """Multipliers Σ⁻¹ ε of the noisy equations."""

    @abstractmethod
    def multiplier_covariances(self) -> list[Scalar]:
        """Variances of the multipliers; if Σ is full, the lower triangle of their covariance, row by row."""

    @abstractmethod
    def pivots(self) -> list[Scalar]:
        """Scalars whose product is the determinant of the augmented matrix, up to its sign."""

    def _multiplier_pairs(self) -> Iterator[tuple[int, int]]:
        """Index pairs of the entries of `multiplier_covariances`."""
        for noise, numbers in self.system.noise_numbers:
            for i in range(noise.size):
                yield from ((numbers[i], numbers[j]) for j in (range(i + 1) if noise.full else [i]))


class DenseEstimate(Covariance):
    """An estimate and its statistics at one state, from dense matrices with pivoting.

    The augmented equations are solved in the null space of the exact ones and refined in double-double arithmetic.
    Covariances are C Cᵀ, where C is the response of the solution to whitened errors.
    """

    def __init__(self, system: AugmentedSystem, inputs: Mapping[str, np.ndarray]):
        """inputs: (size,) by group. `converged` is False if iterative refinement fails."""
        self.system = system
        entries, b = system.values_double_double(inputs)
        M, n = system.matrix(entries.high).toarray(), system.n_unknowns
        has_noise = np.diagonal(M)[n:] != 0.0  # without variance an equation is exact
        noisy, exact = n + np.flatnonzero(has_noise), n + np.flatnonzero(~has_noise)
        L = np.linalg.cholesky(-M[np.ix_(noisy, noisy)])
        whitened = np.linalg.solve(L, M[noisy, :n])
        solver = ConstrainedLeastSquares(M[exact, :n], whitened, system.plain.scaling[1])

        def solve(r: np.ndarray) -> np.ndarray:
            x = np.empty_like(r)
            x[:n], x[exact], mu = solver.solve(r[:n], r[exact], np.linalg.solve(L, r[noisy]))
            x[noisy] = np.linalg.solve(L.T, mu)
            return x

        units = np.empty(len(M))
        units[:n], units[exact], units[noisy] = solver.columns, solver.rows, 1.0 / np.diagonal(L)
        errors = np.zeros((len(M), len(noisy)))
        errors[noisy] = L
        right = DoubleDouble(np.column_stack([b.high, errors]), np.column_stack([b.low, np.zeros_like(errors)]))
        x = iterative_refinement(solve, *system.coordinates, entries, right, units)
        self.converged = x is not None
        x = right.high if x is None else x
        self._solution, self._changes = x[:, 0], x[:, 1:]
        self._log_determinant = solver.log_determinant + 2.0 * float(np.log(np.diagonal(L)).sum())
        self._output_rows = {
            name: [{c: x[0] for c, x in row.items()} for row in y.rows]
            for name, y in system.output_rows({name: x[None] for name, x in inputs.items()}).items()
        }

    @property
    def solution(self) -> np.ndarray:
        """Unknowns and multipliers."""
        return self._solution

    def output_rows(self, name: str) -> Sequence[LinearTerms]:
        return self._output_rows[name]

    def covariances(self, pairs: Sequence[tuple[LinearTerms, LinearTerms]]) -> list[Scalar]:
        return [float(self._change(x) @ self._change(y)) for x, y in pairs]

    def _change(self, row: LinearTerms) -> np.ndarray:
        return np.array([*row.values()], dtype=float) @ self._changes[[*row]]

    def multipliers(self) -> list[Scalar]:
        return [float(self._solution[i]) for _, numbers in self.system.noise_numbers for i in numbers]

    def multiplier_covariances(self) -> list[Scalar]:
        return [float(self._changes[i] @ self._changes[j]) for i, j in self._multiplier_pairs()]

    def pivots(self) -> list[Scalar]:
        """Equal factors of |determinant|, as many as there are pivots."""
        n = len(self._solution)
        return [float(np.exp(self._log_determinant / n))] * n


def dense_estimates(system: AugmentedSystem, inputs: Mapping[str, np.ndarray]) -> list[DenseEstimate | None]:
    """The estimates at N states; None at singular states and if refinement fails. inputs: (N, size) by group."""
    singular = is_unsolvable(system, dict(inputs), system.values(inputs)[0])
    estimates: list[DenseEstimate | None] = []
    for k in range(len(singular)):
        estimate = None if singular[k] else DenseEstimate(system, {name: x[k] for name, x in inputs.items()})
        estimates.append(estimate if estimate and estimate.converged else None)
    return estimates
