"""Solutions of the equations at single states by pivoting: the ones that programs are compared with or replaced by."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.system import SINGULAR, System
from sysdyn.sparse.condition import balance, skeel_condition
from sysdyn.sparse.double_double import DoubleDouble, Residuals, iterative_refinement
from sysdyn.sparse.superlu import factors

# Steps of refinement of pivoted solutions that others are compared with or replaced by (three reach the last bit).
REFINED = 3
# Backward error after these steps beyond which the solve is repeated in the units of the state: 45 rounding
# units.
LEFT = 1e-14
# Times that rows of least squares are weighted anew, and least terms of a row compared with natural ones.
WEIGHINGS, SMALL_TERMS = 4, 1e-6
# Least pivot, as a share of the greatest, that is no rounding: 4.5 rounding units. One below SINGULAR may be due to the
# units, if rows weighted by their terms have a greater one.
NO_ROUNDING = 1e-15
# Condition number beyond which a state with weak pivots is solved in double-double (six digits).
ILL_CONDITIONED = 1e6


def pivoted(system: System, entries: np.ndarray, b: np.ndarray, refine: int = 0) -> np.ndarray:
    """Unknowns d (N, full layout) by SuperLU with partial pivoting, equilibrated; NaN if exactly singular.

    entries (N, nnz) of the matrix, b (N, equations); refine: steps of iterative refinement. If these leave more than
    `LEFT`, equilibrated by the entries at the state.
    """
    return _pivoted(system, entries, b, refine).refined


class Reference(NamedTuple):
    """Unknowns (N, full layout) by pivoted solves without and with refinement, backward errors (N,) of the latter."""

    plain: np.ndarray
    refined: np.ndarray
    error: np.ndarray


def reference(system: System, inputs: dict[str, np.ndarray]) -> Reference:
    """Solutions at N states that those of a program are compared with; each matrix is factored once."""
    n = len(inputs["q"])
    entries, b = system.values_at(inputs, n)
    return _pivoted(system, entries, b, REFINED)


def _pivoted(system: System, entries: np.ndarray, b: np.ndarray, refine: int) -> Reference:
    plain = np.zeros((len(entries), system.layout.n))
    d = np.zeros_like(plain)
    for k in range(len(entries)):
        plain[k, system.columns], d[k, system.columns] = _solved(system, entries[k], b[k], system.scaling, refine)
    error = np.full(len(d), math.nan)
    if refine:
        with np.errstate(all="ignore"):
            error = residual_of(system, entries, b, d).backward_error
        for k in np.flatnonzero(error > LEFT).tolist():
            other = d[k : k + 1].copy()
            other[0, system.columns] = _solved(system, entries[k], b[k], system.scaling_at(entries[k]), refine)[1]
            with np.errstate(all="ignore"):
                better = residual_of(system, entries[k : k + 1], b[k : k + 1], other).backward_error[0]
            if better < error[k]:
                d[k], error[k] = other[0], better
    return Reference(plain, d, error)


def is_ill_conditioned(system: System, entries: np.ndarray) -> np.ndarray:
    """(N,) bool: True for states whose rounded entries cost a solution more than some 6 digits; entries (N, nnz)."""
    conditions = [skeel_condition(system.scaled(system.drop_rounding(x))) for x in entries]
    return np.array(conditions) > ILL_CONDITIONED


def solve_double_double(system: System, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Unknowns d (N, full layout) of ill-conditioned double-double equations; NaN without convergence.

    d is NaN for singular equations, too, for which refinement may converge to one of many solutions. To detect them, a
    known vector near the null space is solved for with a second right-hand side, and has to be reproduced.

    inputs: (N, size) by group.
    """
    n, (row, col) = len(inputs["q"]), system.coordinates
    d = np.full((n, system.layout.n), math.nan)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=system.shape[0])  # any that favour no direction
    for k in range(n):
        exact, b = system.values_double_double({name: x[k] for name, x in inputs.items()})
        residuals = Residuals(row, col, exact)
        for scaling in (lambda _: system.scaling, system.scaling_at):  # the latter takes a hundred times as long
            lu = PivotedLU.of(system, exact.high, scaling(exact.high))
            if lu is None:
                continue
            weak = lu.solve(signs / lu.rows)[:, None]
            made = residuals(DoubleDouble.of(-weak), DoubleDouble.of(np.zeros_like(weak)))
            right = DoubleDouble(np.column_stack([b.high, made]), np.column_stack([b.low, np.zeros_like(made)]))
            solution = iterative_refinement(lu.solve_all, row, col, exact, right, lu.columns)
            if solution is not None and _near(solution[:, 1:] / lu.columns[:, None], weak / lu.columns[:, None]):
                d[k] = 0.0
                d[k, system.columns] = solution[:, 0]
                break
    return d


def _near(x: np.ndarray, y: np.ndarray) -> bool:
    """True if x differs from y by less than half of the greatest entry of y."""
    return bool(np.abs(x - y).max() < 0.5 * np.abs(y).max())


def least_squares(system: System, entries: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Unknowns d (N, full layout) by least squares of more equations than unknowns that agree; NaN where none is found.

    entries (N, nnz), b (N, equations). See `OrthogonalColumns`, which is for single states.
    """
    d = np.full((len(entries), system.layout.n), math.nan)
    for k in range(len(entries)):
        factors = OrthogonalColumns.of(system, entries[k], b[k])
        if factors is not None:
            d[k] = 0.0
            d[k, system.columns] = solutions(factors, b[k], REFINED)[1]
    return d


def _solved(
    system: System, entries: np.ndarray, b: np.ndarray, scaling: tuple[np.ndarray, np.ndarray], refine: int
) -> tuple[np.ndarray, np.ndarray]:
    """Unknowns at one state before and after refinement; NaN if the matrix is exactly singular."""
    factors = PivotedLU.of(system, entries, scaling)
    if factors is None:
        lost = np.full(len(system.columns), math.nan)
        return lost, lost
    return solutions(factors, b, refine)


def solutions(factors: PivotedLU | OrthogonalColumns, b: np.ndarray, refine: int) -> tuple[np.ndarray, np.ndarray]:
    """d of D d + b = 0, before and after `refine` steps of iterative refinement."""
    plain, D = -factors.solve(b), factors.D if refine else None
    d = plain
    for _ in range(refine):
        d = d - factors.solve(D @ d + b)
    return plain, d


class PivotedLU(NamedTuple):
    """SuperLU's factors of the matrix D of a system at one state, equilibrated; entries: its row of `values`."""

    system: System
    entries: np.ndarray
    lu: Any
    rows: np.ndarray
    columns: np.ndarray

    @staticmethod
    def of(system: System, entries: np.ndarray, scaling: tuple[np.ndarray, np.ndarray]) -> PivotedLU | None:
        """The factors for one row of `values` and factors of rows and columns; None if exactly singular."""
        (rows, columns), (r, c) = scaling, system.coordinates
        lu = factors(system.matrix(entries * rows[r] * columns[c]))
        return None if lu is None else PivotedLU(system, entries, lu, rows, columns)

    @property
    def D(self) -> scipy.sparse.csr_matrix:
        return self.system.matrix(self.entries)

    def solve(self, x: np.ndarray) -> np.ndarray:
        """D⁻¹ x."""
        return np.asarray(self.columns * self.lu.solve(self.rows * x))

    def solve_all(self, x: np.ndarray) -> np.ndarray:
        """D⁻¹ x of several columns (n, k)."""
        return np.asarray(self.columns[:, None] * self.lu.solve(self.rows[:, None] * x))

    def solve_transposed(self, x: np.ndarray) -> np.ndarray:
        """D^-T x."""
        return np.asarray(self.rows * self.lu.solve(self.columns * x, trans="T"))


class OrthogonalColumns(NamedTuple):
    """Factors Q R of the dense matrix D of a system at one state, for more equations than unknowns that agree.

    Rows are weighted by their terms |D| |d| + |b| of the solution before, whose rounding is all that is left of
    equations that agree, until each is small beside its terms and the matrix is regular so.
    """

    D: scipy.sparse.csr_matrix
    rows: np.ndarray
    columns: np.ndarray
    Q: np.ndarray
    R: np.ndarray
    order: np.ndarray

    @staticmethod
    def of(system: System, entries: np.ndarray, b: np.ndarray) -> OrthogonalColumns | None:
        """The factors for one row of `values`; None without full rank, or without a finite solution."""
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
                full[0, system.columns] = x = solutions(last, b, REFINED)[1]
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
        """D⁺ x, with D⁺ D = 1."""
        y = np.empty(len(self.columns))
        y[self.order] = scipy.linalg.solve_triangular(self.R, self.Q.T @ (self.rows * x), check_finite=False)
        return self.columns * y

    def solve_transposed(self, x: np.ndarray) -> np.ndarray:
        """The product of x with the transpose of D⁺."""
        y = scipy.linalg.solve_triangular(self.R, (self.columns * x)[self.order], trans="T")
        return np.asarray(self.rows * (self.Q @ y))
