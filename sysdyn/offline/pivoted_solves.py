"""Reference solutions at single states by pivoted LU, or by QR if there are more equations than unknowns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.system import SINGULAR, System
from sysdyn.sparse.condition import balance, inverse_norm
from sysdyn.sparse.superlu import factors

# Refinement steps of reference solutions (three reach the last bit).
REFINED = 3
# Backward error after refinement beyond which the solve is repeated with the scaling of the state: 45 rounding units.
LEFT = 1e-14
# Greatest number of reweightings of least squares, and least terms of a row relative to natural ones.
WEIGHINGS, SMALL_TERMS = 4, 1e-6
# Relative pivot below which it is a rounding error: 4.5 rounding units. Reweighting may raise a pivot below SINGULAR
# that is due to units.
NO_ROUNDING = 1e-15


class Reference(NamedTuple):
    """Unknowns (N, full layout) of pivoted solves, plain and refined, and backward errors (N,) of the refined ones."""

    plain: np.ndarray
    refined: np.ndarray
    error: np.ndarray


def reference(system: System, inputs: dict[str, np.ndarray]) -> Reference:
    """Reference solutions at N states for the check of a program; NaN if exactly singular.

    Solved by SuperLU with partial pivoting and equilibration. If the backward error after refinement exceeds `LEFT`,
    the solve is repeated with the scaling of that state.
    """
    entries, b = system.values_at(inputs, len(inputs["q"]))
    plain, d = np.zeros((2, len(entries), system.layout.n))
    for k in range(len(entries)):
        plain[k, system.columns], d[k, system.columns] = _solved(system, entries[k], b[k], system.scaling)
    with np.errstate(all="ignore"):
        error = residual_of(system, entries, b, d).backward_error
        for k in np.flatnonzero(error > LEFT).tolist():
            other = d[k : k + 1].copy()
            other[0, system.columns] = _solved(system, entries[k], b[k], system.scaling_at(entries[k]))[1]
            better = residual_of(system, entries[k : k + 1], b[k : k + 1], other).backward_error[0]
            if better < error[k]:
                d[k], error[k] = other[0], better
    return Reference(plain, d, error)


def _solved(
    system: System, entries: np.ndarray, b: np.ndarray, scaling: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(plain, refined) unknowns at one state; NaN if the matrix is exactly singular."""
    lu = PivotedLU.of(system, entries, scaling)
    undefined = np.full(len(system.columns), math.nan)
    return (undefined, undefined) if lu is None else (-lu.solve(b), refine(lu, b))


def refine(factorisation: PivotedLU | OrthogonalColumns, b: np.ndarray) -> np.ndarray:
    """Solution d of D d + b = 0 after `REFINED` steps of iterative refinement."""
    D, d = factorisation.D, -factorisation.solve(b)
    for _ in range(REFINED):
        d = d - factorisation.solve(D @ d + b)
    return d


class PivotedLU(NamedTuple):
    """SuperLU factors of the equilibrated matrix D of a system at one state. entries: its row of `values`."""

    system: System
    entries: np.ndarray
    lu: Any
    rows: np.ndarray
    columns: np.ndarray

    @staticmethod
    def of(system: System, entries: np.ndarray, scaling: tuple[np.ndarray, np.ndarray]) -> PivotedLU | None:
        """Factorise one row of `values`. scaling: (rows, columns). None if exactly singular."""
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
        """Factorise one row of `values`; None if D is rank deficient or the solution is not finite."""
        D, clean = system.matrix(entries), system.drop_rounding(entries)
        rows, columns = (x * y for x, y in zip(system.scaling, balance(abs(system.scaled(clean))), strict=True))
        dense, accepted, full, regular = system.matrix(clean).toarray(), None, np.zeros((1, system.layout.n)), False
        for _ in range(WEIGHINGS):
            Q, R, order = scipy.linalg.qr(rows[:, None] * dense * columns, mode="economic", pivoting=True)
            pivots = np.abs(np.diag(R))
            if not pivots[-1] > NO_ROUNDING * pivots[0]:
                break
            regular |= bool(pivots[-1] > SINGULAR * pivots[0])
            last = OrthogonalColumns(D, rows, columns, Q, R, order)
            with np.errstate(all="ignore"):
                full[0, system.columns] = x = refine(last, b)
            if not np.isfinite(x).all():
                break
            if regular:
                accepted = last
                if residual_of(system, entries[None], b[None], full).backward_error[0] <= LEFT:
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
