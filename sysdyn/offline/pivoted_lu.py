"""Solutions at single states by LU with partial pivoting, or by QR if there are more equations than unknowns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.system import SINGULAR, System
from sysdyn.offline.dense_estimate import DenseEstimate
from sysdyn.sparse.condition import balance, inverse_norm
from sysdyn.sparse.double_double import DoubleDouble, iterative_refinement
from sysdyn.sparse.superlu import factors

# Refinement steps in double precision (three reach the last bit).
REFINEMENTS = 3
# Backward error of a converged solution: 45 rounding units.
CONVERGED = 1e-14
# Greatest number of reweightings of least squares.
WEIGHTINGS = 4
# Least terms of a row relative to natural ones, in the weights of least squares (chosen).
SMALL_TERMS = 1e-6
# Relative pivot below which it is a rounding error: 4.5 rounding units. Reweighting may raise a pivot below SINGULAR
# that is due to units.
ROUNDING_PIVOT = 1e-15


class Reference(NamedTuple):
    """Unknowns (N, full layout) of pivoted solves, plain and refined, and backward errors (N,) of the refined ones."""

    plain: np.ndarray
    refined: np.ndarray
    error: np.ndarray


def reference(system: System, inputs: dict[str, np.ndarray]) -> Reference:
    """Solutions at N states in double precision, for the check of a program; NaN at exactly singular states.

    If the backward error after refinement exceeds `CONVERGED`, the solve is repeated with the scaling of that state.
    """
    entries, b = system.values_at(inputs, len(inputs["q"]))
    plain, refined = np.zeros((2, len(entries), system.layout.n))
    for k in range(len(entries)):
        lu = PivotedLU.of(system, entries[k], system.scaling)
        plain[k, system.columns] = -lu.solve(b[k]) if lu else math.nan
        refined[k, system.columns] = refine(lu, b[k]) if lu else math.nan
    with np.errstate(all="ignore"):
        error = residual_of(system, entries, b, refined).backward_error
        for k in np.flatnonzero(error > CONVERGED).tolist():
            d = refined[k : k + 1].copy()
            if lu := PivotedLU.of(system, entries[k], system.scaling_at(entries[k])):
                d[0, system.columns] = refine(lu, b[k])
            better = residual_of(system, entries[k : k + 1], b[k : k + 1], d).backward_error[0]
            if better < error[k]:
                refined[k], error[k] = d[0], better
    return Reference(plain, refined, error)


class PivotedSolution(NamedTuple):
    """Solution of D d + b = 0 at one state: unknowns (columns,), and the factors of D or None."""

    system: System
    unknowns: np.ndarray
    b: np.ndarray
    factorisation: PivotedLU | OrthogonalColumns | None

    @property
    def d(self) -> np.ndarray:
        """Unknowns (layout.n,) in the full layout."""
        d = np.zeros(self.system.layout.n)
        d[self.system.columns] = self.unknowns
        return d


def solve_pivoted(system: System, inputs: Mapping[str, np.ndarray]) -> PivotedSolution | None:
    """Solve at one state to double precision; None at singular states, or if the refinement does not converge.

    LU with partial pivoting, its condition number, and iterative refinement with double-double residuals. Orthogonal
    factors solve systems with more equations than unknowns. inputs: {group: (size,)}.
    """
    entries, b = system.values_double_double(inputs)
    if system.shape[0] > system.shape[1]:
        orthogonal = OrthogonalColumns.of(system, entries.high, b.high)
        return orthogonal and PivotedSolution(system, refine(orthogonal, b.high), b.high, orthogonal)
    clean = system.drop_rounding(entries.high)
    lu = PivotedLU.of(system, clean, system.scaling)
    if lu is None or not lu.reciprocal_condition >= SINGULAR:
        if not system.solvability(entries.high, SINGULAR) >= SINGULAR:
            return None
        lu = PivotedLU.of(system, clean, system.scaling_at(clean))  # in the units of this state
    unknowns = None
    if lu is not None:
        right = DoubleDouble(b.high[:, None], b.low[:, None])
        unknowns = iterative_refinement(lu.solve, *system.coordinates, entries, right, lu.columns)
    if unknowns is not None:
        return PivotedSolution(system, unknowns[:, 0], b.high, lu)
    if isinstance(system, AugmentedSystem):  # multipliers square the condition number
        estimate = DenseEstimate(system, inputs)
        return PivotedSolution(system, estimate.solution, b.high, lu) if estimate.converged else None
    return None


def refine(factorisation: PivotedLU | OrthogonalColumns, b: np.ndarray) -> np.ndarray:
    """Solution d of D d + b = 0 after `REFINEMENTS` steps of iterative refinement in double precision."""
    D, d = factorisation.D, -factorisation.solve(b)
    for _ in range(REFINEMENTS):
        d = d - factorisation.solve(D @ d + b)
    return d


class PivotedLU(NamedTuple):
    """SuperLU factors of the equilibrated matrix D of a system at one state. entries (nnz): see `System.values`."""

    system: System
    entries: np.ndarray
    lu: Any
    rows: np.ndarray
    columns: np.ndarray

    @staticmethod
    def of(system: System, entries: np.ndarray, scaling: tuple[np.ndarray, np.ndarray]) -> PivotedLU | None:
        """Factorise D with these entries (nnz); None if exactly singular. scaling: factors of (rows, columns)."""
        (rows, columns), (r, c) = scaling, system.coordinates
        lu = factors(system.matrix(entries * rows[r] * columns[c]))
        return None if lu is None else PivotedLU(system, entries, lu, rows, columns)

    @property
    def D(self) -> scipy.sparse.csr_matrix:
        return self.system.matrix(self.entries)

    @property
    def reciprocal_condition(self) -> float:
        """1 / ‖|D⁻¹| |D|‖∞ of the scaled matrix, estimated from above. Skeel (1979)."""
        row, col = self.system.coordinates
        sizes = self.rows * np.bincount(row, np.abs(self.entries) * self.columns[col], len(self.rows))

        def solve(x: np.ndarray, side: str) -> np.ndarray:
            return self.lu.solve(sizes * x) if side == "N" else sizes * self.lu.solve(x, trans="T")

        with np.errstate(all="ignore"):
            return 1.0 / inverse_norm(solve, len(sizes), of="T")

    def solve(self, x: np.ndarray) -> np.ndarray:
        """D⁻¹ x for a vector x (n,) or several columns (n, k)."""
        return np.asarray((self.lu.solve((x.T * self.rows).T).T * self.columns).T)

    def solve_transposed(self, x: np.ndarray) -> np.ndarray:
        """D^-T x."""
        return np.asarray(self.rows * self.lu.solve(self.columns * x, trans="T"))


class OrthogonalColumns(NamedTuple):
    """Dense QR factors of the matrix D of a system at one state, for consistent overdetermined equations.

    Residuals of consistent equations are rounding errors of their terms |D| |d| + |b|. So rows are reweighted by the
    reciprocal terms of the previous solution until each residual is small compared with its terms and D is regular.
    """

    D: scipy.sparse.csr_matrix
    rows: np.ndarray
    columns: np.ndarray
    Q: np.ndarray
    R: np.ndarray
    order: np.ndarray

    @staticmethod
    def of(system: System, entries: np.ndarray, b: np.ndarray) -> OrthogonalColumns | None:
        """Factorise D with these entries (nnz), with row weights for the solution of D d + b = 0.

        Returns None if D is rank deficient or the solution is not finite.
        """
        D, clean = system.matrix(entries), system.drop_rounding(entries)
        rows, columns = (x * y for x, y in zip(system.scaling, balance(abs(system.scaled(clean))), strict=True))
        dense, accepted, full, regular = system.matrix(clean).toarray(), None, np.zeros((1, system.layout.n)), False
        for _ in range(WEIGHTINGS):
            Q, R, order = scipy.linalg.qr(rows[:, None] * dense * columns, mode="economic", pivoting=True)
            pivots = np.abs(np.diag(R))
            if not pivots[-1] > ROUNDING_PIVOT * pivots[0]:
                break
            regular |= bool(pivots[-1] > SINGULAR * pivots[0])
            last = OrthogonalColumns(D, rows, columns, Q, R, order)
            with np.errstate(all="ignore"):
                full[0, system.columns] = x = refine(last, b)
            if not np.isfinite(x).all():
                break
            if regular:
                accepted = last
                if residual_of(system, entries[None], b[None], full).backward_error[0] <= CONVERGED:
                    break
            natural = abs(D) @ (columns * np.abs(x / columns).max(initial=0.0))
            terms = np.maximum(abs(D) @ np.abs(x) + np.abs(b), SMALL_TERMS * natural)
            rows = 1.0 / np.where(terms > 0.0, terms, 1.0)
            columns = 1.0 / np.linalg.norm(rows[:, None] * dense, axis=0)
        return accepted

    def solve(self, x: np.ndarray) -> np.ndarray:
        """D⁺ x for a vector x (m,) or several columns (m, k), with D⁺ D = 1."""
        y = np.empty((len(self.columns), *x.shape[1:]))
        y[self.order] = scipy.linalg.solve_triangular(self.R, self.Q.T @ (x.T * self.rows).T, check_finite=False)
        return np.asarray((y.T * self.columns).T)

    def solve_transposed(self, x: np.ndarray) -> np.ndarray:
        """(D⁺)^T x."""
        y = scipy.linalg.solve_triangular(self.R, (self.columns * x)[self.order], trans="T")
        return np.asarray(self.rows * (self.Q @ y))
