"""The augmented system of an estimation problem: maximum a posteriori with exact equations kept exact.

The equations E d + e = 0 are exact and Y d + y₀ = ε, ε ~ N(0, Σ), are noisy. The estimate minimises
½ ε^T Σ⁻¹ ε over all d that satisfy the exact ones; with multipliers λ and μ = Σ⁻¹ ε it solves

    E^T λ + Y^T μ = 0        (stationarity, one equation for each unknown)
    E d + e = 0
    Y d + y₀ − Σ μ = 0

The matrix is symmetric and linear in Σ. For Σ → 0 the system stays as well posed as the exact problem. The block of the
inverse at the rows and columns of d is the posterior covariance. Björck (1996), section 2.5; Golub and Van Loan (2013),
section 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.assembly import Assembly
from sysdyn.equations.system import BlockSystem, System
from sysdyn.measurements.input_names import switch_group
from sysdyn.measurements.noise import Noise
from sysdyn.model.kinematics import path
from sysdyn.sparse.condition import equilibration, rank_condition
from sysdyn.sparse.lu import Row
from sysdyn.sparse.superlu import factors

# If the augmented matrix has a smaller reciprocal condition number, the equations without multipliers are checked too,
# because augmenting can square their condition number.
SQUARED = 1e-6


class AugmentedSystem(System):
    """The symmetric system of an estimate: the unknowns of the problem, then one multiplier per equation.

    n_unknowns: number of columns before the multipliers. tree_node: the body that each column belongs to, for orders
    that follow the kinematic tree.
    """

    def __init__(self, plain: BlockSystem):
        self.plain = plain
        rows, n = plain.shape
        self.n_unknowns = n
        self.tree_node = [*(bodies := bodies_of_columns(plain)), *_bodies_of_rows(plain, bodies)]
        super().__init__(
            plain.form,
            replace(plain.layout, multipliers=rows),
            [*plain.columns, *range(plain.layout.n, plain.layout.n + rows)],
            (*plain.col_names, *(f"multiplier of {name}" for name in plain.row_names)),
            (*plain.col_blocks, *(("multiplier", body) for body in self.tree_node[n:])),
        )

    def estimability(self, entries: np.ndarray) -> float:
        """Reciprocal condition number of the equations without multipliers, at one state; entries (nnz), see `values`.

        The minimum over two dense matrices: the exact equations, which have to be independent, and all equations, which
        have to determine the unknowns. An equation of variance zero is exact.
        """
        D = self.matrix(self.drop_rounding(entries)).tocsr()[self.n_unknowns :, : self.n_unknowns].toarray()
        exact = self.matrix(entries).diagonal()[self.n_unknowns :] == 0.0
        at_this_state = exact.sum() > (~self.plain.noisy_mask).sum()  # variances that are zero in the call
        if D.shape[0] < D.shape[1] or (at_this_state and exact.sum() > D.shape[1]):
            return 0.0
        return 1.0 / max(rank_condition(x) for x in (D, D[exact]))

    def drop_rounding(self, entries: np.ndarray) -> np.ndarray:
        return np.where(self._covariance, entries, super().drop_rounding(entries))

    def solvability(self, entries: np.ndarray, sufficient: float = math.inf) -> float:
        reciprocal = self.reciprocal_condition(entries, sufficient)
        return reciprocal if reciprocal >= min(sufficient, SQUARED) else max(reciprocal, self.estimability(entries))

    # ---- expressions -------------------------------------------------------------------------------------------

    def rewrite(self, plain: Assembly) -> Assembly:
        """Augment the equations `plain` with their transpose, covariances and switches, in the same graph."""
        n = self.n_unknowns
        rows: list[Row] = [{} for _ in range(n)]
        rows += [dict(row) for row in plain.rows]
        for r, row in enumerate(plain.rows):
            for c, x in row.items():
                rows[c][n + r] = x
        b = [*(0.0 for _ in range(n)), *plain.b]
        inputs, multipliers = [*plain.inputs], {noise.name: numbers for noise, numbers in self.noise_numbers}
        for noise, numbers in self.noise_numbers:
            scalars = plain.graph.inputs(noise.group, noise.scalars)
            inputs.append((noise.group, scalars))
            _put_covariance(rows, noise, scalars, numbers)
        for m in self.problem.switchable:
            active = plain.graph.inputs(switch_group(m.name), len(multipliers[m.name]))
            inputs.append((switch_group(m.name), active))
            for i, x in zip(multipliers[m.name], active, strict=True):
                _switch(rows, b, i, x)
        names = (*(f"stationarity of {name}" for name in self.plain.col_names), *plain.names)
        blocks = (*(("stationarity", block[1]) for block in self.plain.col_blocks), *plain.blocks)
        return Assembly(plain.graph, tuple(inputs), rows, b, names, blocks, plain.outputs)

    # ---- noise -------------------------------------------------------------------------------------------------

    @cached_property
    def noise_numbers(self) -> list[tuple[Noise, list[int]]]:
        """(covariance, numbers of the multipliers of its components) of each noisy measurement."""
        return [(noise, [self.n_unknowns + r for r in rows]) for noise, rows in self.plain.noise_rows]

    @cached_property
    def _covariance(self) -> np.ndarray:
        """(nnz) bool: True for entries of Σ."""
        return (self.coordinates[0] >= self.n_unknowns) & (self.coordinates[1] >= self.n_unknowns)

    @cached_property
    def variances(self) -> np.ndarray:
        """(nnz) bool: True for the diagonal of Σ."""
        return self._covariance & (self.coordinates[0] == self.coordinates[1])

    @cached_property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Scaling factors (equal for rows and columns) that equilibrate the matrix without Σ."""
        sizes = np.where(self._covariance, 0.0, self.typical_sizes)
        rows, columns = equilibration(*self.coordinates, sizes, self.shape)
        both = np.sqrt(rows * columns)
        return both, both

    def completed(self, entries: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Solution d (N, layout) with the multipliers filled in; NaN where Σ is singular.

        μ = Σ⁻¹ (Y d + y₀), and λ minimises the residual E^T λ + Y^T μ of stationarity in natural units. entries (N or
        1, nnz) and b (N or 1, equations) are results of `values`. Multipliers in the argument d are ignored.
        """
        result = np.full((len(d), self.layout.n), np.nan)
        result[:, self.plain.columns] = d[:, self.plain.columns]
        entries, b = np.broadcast_to(entries, (len(d), entries.shape[1])), np.broadcast_to(b, (len(d), b.shape[1]))
        for k in range(len(d)):
            result[k, self.columns[self.n_unknowns :]] = self._multipliers(entries[k], b[k], d[k, self.plain.columns])
        return result

    def _multipliers(self, entries: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Multipliers (equations,) at one state with unknowns x: λ of exact, μ of noisy equations; see `completed`."""
        n, M = self.n_unknowns, self.matrix(entries)
        noisy = np.flatnonzero(self.plain.noisy_mask)
        exact = np.flatnonzero(~self.plain.noisy_mask)
        multipliers = np.full(self.shape[0] - n, np.nan)
        Y, E = M[n + noisy][:, :n], M[n + exact][:, :n]
        covariance = factors(-M[n + noisy][:, n + noisy])
        if covariance is None:
            return multipliers
        multipliers[noisy] = covariance.solve(Y @ x + b[n + noisy])
        units = self.scaling[0]
        A = (E.T.multiply(units[:n, None]).multiply(units[None, n + exact])).tocsr()
        least = factors(scipy.sparse.bmat([[scipy.sparse.eye(n), A], [A.T, None]])) if len(exact) else None
        if least is not None:
            rhs = np.concatenate([-units[:n] * (Y.T @ multipliers[noisy]), np.zeros(len(exact))])
            multipliers[exact] = units[n + exact] * least.solve(rhs)[n:]
        return multipliers

    def residual_scale(self, terms: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Scales (N, equations) of relative residuals; arguments as for `System.residual_scale`.

        All stationarity rows share one scale: the greatest of their sums of absolute terms, in equilibrated units. If
        a multiplier μ = Σ⁻¹ (Y d + y₀) should be zero, its computed value is a rounding error. The sums therefore use
        the absolute terms of Y d + y₀, divided by the variance, as a bound of |μ|. Equations that are switched off
        have scale inf.
        """
        (r, c), n = self.coordinates, self.n_unknowns
        off = self.row_sums(np.where(r == c, 0.0, size))[:, n:] == 0.0
        variance = np.zeros((len(size), len(self.columns)))
        variance[:, c[self.variances]] = size[:, self.variances]
        with np.errstate(all="ignore"):
            mu = np.where((variance[:, n:] > 0.0) & ~off, terms[:, n:] / variance[:, n:], 0.0)
        mu = np.concatenate([np.zeros((len(size), n)), mu], axis=1)
        stationarity = np.maximum(terms, self.row_sums(size * mu[:, c]))[:, :n]
        units = self.scaling[0][:n]
        greatest = (stationarity * units).max(axis=1)
        return np.concatenate([greatest[:, None] / units, np.where(off, np.inf, terms[:, n:])], axis=1)

    def scaled(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """`System.scaled` with nonzero variances set to 1: their size is irrelevant to uniqueness."""
        scale, (r, c) = self.scaling[0], self.coordinates
        covariance = np.where((r == c) & (entries != 0.0), -1.0, 0.0)
        return self.matrix(np.where(self._covariance, covariance, entries * scale[r] * scale[c]))


def _put_covariance(rows: list[Row], noise: Noise, scalars: np.ndarray, numbers: Sequence[int]) -> None:
    """Put −Σ into the rows and columns `numbers` of its multipliers. scalars: inputs from which Σ is computed."""
    for k, i in enumerate(numbers):
        for l, j in enumerate(numbers):
            if k == l or noise.full:
                rows[i][j] = -noise.entry(scalars, k, l)


def _switch(rows: list[Row], b: list, i: int, active) -> None:
    """Multiply equation i by `active`: 1 leaves it unchanged, 0 replaces it by −μ_i = 0."""
    for j, x in rows[i].items():
        if j == i:
            rows[i][i] = x * active - (1.0 - active)
        else:
            rows[i][j] = x * active
            rows[j][i] = rows[j][i] * active
    b[i] = b[i] * active


def bodies_of_columns(plain: BlockSystem) -> list[int]:
    """Body of each unknown. A constraint wrench is assigned to the `_common_body` of the bodies on which it acts."""
    bodies = [block[1] for block in plain.col_blocks]
    for c in (c for c, block in enumerate(plain.col_blocks) if block[0] == "w"):
        rows = zip(plain.row_blocks, plain.assembly.rows, strict=True)
        bodies[c] = _common_body(plain, {block[1] for block, row in rows if c in row and block[0] != "y"})
    return bodies


def _bodies_of_rows(plain: BlockSystem, bodies: Sequence[int]) -> list[int]:
    """Body of each row. A measurement is assigned to the `_common_body` of its unknowns. bodies: of the unknowns."""
    rows = zip(plain.row_blocks, plain.assembly.rows, strict=True)
    return [block[1] if block[0] != "y" else _common_body(plain, {bodies[c] for c in row}) for block, row in rows]


def _common_body(plain: BlockSystem, bodies: set[int]) -> int:
    """The outermost body if all are on one path to the root, else their nearest common ancestor; −1 for the world."""
    paths = [path(plain.model, i) for i in bodies]
    longest = max(paths, key=len, default=[])
    if bodies <= set(longest):
        return longest[0] if longest else -1
    return max(set.intersection(*map(set, paths)), default=-1)
