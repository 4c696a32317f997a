"""Deviations and residuals of a least-squares solution from its factors: sums of squares, whatever the weights.

With exact rows eliminated, whitened noisy rows W d + w become R d + r = 0 and a rest: Q^T (W d + w) = (0, left).
Then Cov(c^T d) = |R^-T c|², residuals are Q₂ left and their covariance is Q₂ Q₂^T, Q = (Q₁ Q₂). Golub (1965); Bierman
(1977).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.program.graph import Scalar, is_zero
from sysdyn.program.reproducible import exp, log
from sysdyn.sparse.double_double import DoubleDouble, Residuals, iterative_refinement
from sysdyn.sparse.lu import Factors, Row, divider


class Pivots(NamedTuple):
    """Pivots of exact and of noisy rows: twice the sum of log |pivot| is log |det [0 E^T W^T; E 0 0; W 0 −1]|."""

    exact: Sequence[Scalar]
    noisy: Sequence[Scalar]


class Information(ABC):
    """Deviations and residuals of a least-squares solution."""

    @abstractmethod
    def deviations(self, terms: Mapping[int, Scalar]) -> Row:
        """Error {number: z} of Σ c_j d_j, of {j: c_j}, in terms of independent errors of variance 1; z = R^-T c."""

    @abstractmethod
    def residuals(self) -> Row:
        """Residuals {noisy row: W d + w} at the solution."""

    @abstractmethod
    def free(self) -> list[Row]:
        """Columns of Q₂, {noisy row: entry}, for each row left: residuals that an error of variance 1 causes."""

    @abstractmethod
    def pivots(self) -> Pivots:
        """The pivots, for the determinant of the augmented matrix."""


class OfFactors(Information):
    """Information over the scalars of sparse factors in a fixed order. noisy: the rows that are not exact."""

    def __init__(self, factors: Factors, noisy: Collection[int]):
        self._factors, self._noisy = factors, noisy
        self._left = [i for i in factors.left if i in noisy]

    def deviations(self, terms: Mapping[int, Scalar]) -> Row:
        f, r = self._factors, dict(terms)
        z: Row = {}
        for k, (row, column) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            if k in f.across:
                f.across[k].apply(r)
            x = r.pop(column, 0.0)
            if is_zero(x):
                continue
            divide = divider(f.pivots[k], 2)
            if not f.scaled[k]:
                x = divide(x)
            for j, u in f.upper[k].items():
                r[j] = r.get(j, 0.0) - u * x
            if row in self._noisy:
                z[k] = divide(x) if f.scaled[k] else x
        return z

    def residuals(self) -> Row:
        return self._turned_back({i: self._factors.left[i] for i in self._left})

    def free(self) -> list[Row]:
        return [self._turned_back({i: 1.0}) for i in self._left]

    def pivots(self) -> Pivots:
        pairs = [(i in self._noisy, x) for i, x in zip(self._factors.row_perm, self._factors.pivots, strict=True)]
        return Pivots(*([x for y, x in pairs if y == noisy] for noisy in (False, True)))

    def _turned_back(self, y: Row) -> Row:
        for k in reversed(sorted(self._factors.turns)):
            for turned in reversed(self._factors.turns[k]):
                if turned.rows[0] in self._noisy:
                    turned.apply_transposed(y)
        return y


class OfMatrix(Information):
    """Information at one state, by dense matrices with pivoting: exact if the state determines a solution.

    The null space of exact rows by Householder's method with column pivoting (Björck 1996, section 5.1.3), then noisy
    rows, the heaviest first, with column pivoting (Powell and Reid 1969; Cox and Higham 1998).
    """

    def __init__(self, matrix: np.ndarray, b: np.ndarray, noisy: Collection[int], columns: np.ndarray):
        """matrix (m, n), b (m,): exact and whitened noisy rows; columns (n,): factors that make columns comparable."""
        columns = self._columns = _power(columns)
        self.noisy = sorted(noisy)
        exact = sorted(set(range(len(b))).difference(noisy))
        scaled = matrix * columns
        rows = _power(1.0 / np.abs(scaled[exact]).max(axis=1, initial=0.0))
        m, n = len(exact), len(columns)
        Q, R, order = _qr((scaled[exact] * rows[:, None]).T)
        self._null = Q[:, m:]
        start = Q[:, :m] @ scipy.linalg.solve_triangular(R[:m], -(b[exact] * rows)[order], trans="T")
        W, w = scaled[self.noisy] @ self._null, scaled[self.noisy] @ start + b[self.noisy]
        self._scaled, self._rows, self._exact = scaled, rows, exact
        self._range, self._triangle, self._first = Q[:, :m], R[:m], order
        self._heaviest = np.argsort(-np.abs(W).max(axis=1, initial=0.0), kind="stable")
        self._reduced = W[self._heaviest]
        self._Q, R2, self._order = _qr(self._reduced)
        self._R, self._left = R2[: n - m], (self._Q.T @ w[self._heaviest])[n - m :]
        shift = -log(columns).sum() + log(1.0 / rows).sum()
        even = exp(np.array(shift / max(n, 1)))  # all pivots take part in the factors of rows and columns
        self._pivots = Pivots(list(even * np.diagonal(R)[:m]), list(even * np.diagonal(self._R)))

    def deviations(self, terms: Mapping[int, Scalar]) -> Row:
        places = [*terms]
        c = np.array([terms[j] for j in places], dtype=float) * self._columns[places]
        x = self._null[places].T @ c
        z = scipy.linalg.solve_triangular(self._R, x[self._order], trans="T")
        return dict(enumerate(z.tolist()))

    def residuals(self) -> Row:
        return self._by_row(self._Q[:, len(self._R) :] @ self._left)

    def free(self) -> list[Row]:
        return [self._by_row(y) for y in self._Q[:, len(self._R) :].T]

    def pivots(self) -> Pivots:
        return self._pivots

    @property
    def condition(self) -> float:
        """Greatest over least pivot of the exact rows or of the noisy ones, about their condition number."""
        sizes = (np.abs(np.diagonal(R)) for R in (self._triangle, self._R))
        return float(np.max([x.max() / x.min() if x.min() else np.inf for x in sizes if len(x)], initial=1.0))

    @property
    def units(self) -> np.ndarray:
        """(n + m,): factors of the unknowns and the multipliers that make them comparable."""
        both = np.ones(len(self._scaled))
        both[self._exact] = self._rows
        return np.concatenate([self._columns, both])

    def solve(self, r: np.ndarray) -> np.ndarray:
        """[0 A^T; A −S]⁻¹ r (n + m, k), A the matrix, S 1 for noisy rows and 0 for exact ones: d and multipliers."""
        n, units = len(self._columns), self.units[:, None]
        f, g = (units * r)[:n], (units * r)[n:]
        W, lower = self._scaled[self.noisy], {"lower": False, "trans": "T"}
        d = self._range @ scipy.linalg.solve_triangular(self._triangle, g[self._exact][self._first], **lower)
        h = (W @ d - g[self.noisy])[self._heaviest]
        first = scipy.linalg.solve_triangular(self._R, (self._null.T @ f)[self._order], **lower)
        turned = self._Q.T @ h
        z = np.empty((len(self._R), r.shape[1]))
        z[self._order] = scipy.linalg.solve_triangular(self._R, first - turned[: len(first)])
        d = d + self._null @ z
        turned[: len(first)] = first
        found = np.empty((len(self._scaled), r.shape[1]))
        found[np.array(self.noisy, dtype=int)[self._heaviest]] = self._Q @ turned
        rest = self._range.T @ (f - W.T @ found[self.noisy])
        back = np.empty((len(self._exact), r.shape[1]))
        back[self._first] = scipy.linalg.solve_triangular(self._triangle, rest)
        found[self._exact] = back
        return np.asarray(units * np.concatenate([d, found]))

    def refined(self, row: np.ndarray, col: np.ndarray, entries: DoubleDouble, b: DoubleDouble) -> np.ndarray | None:
        """Solutions and multipliers (n + m, k) for b (m, k), refined; row, col, entries: of the matrix."""
        m, noisy = len(b.high), np.array(self.noisy, dtype=int)
        n = len(self.units) - m
        both = np.concatenate([row + n, col, noisy + n]), np.concatenate([col, row + n, noisy + n])
        high, low = (np.concatenate([x, x, np.full(len(noisy), y)]) for x, y in zip(entries, (-1.0, 0.0), strict=True))
        right = DoubleDouble(*(np.concatenate([np.zeros((n, x.shape[1])), x]) for x in b))
        return iterative_refinement(self.solve, *both, DoubleDouble(high, low), right, self.units)

    def off(self, row: np.ndarray, col: np.ndarray, entries: DoubleDouble) -> tuple[float, float]:
        """Logarithms (of exact, of noisy rows) of the unrounded entries' products of pivots over the factored ones.

        The factors are those of rounded entries: R, V of the exact rows with null space N, and Q, R₂ of the noisy ones.
        Exact rows E as they are have E V = (1 + F) R^T, of determinant |R| |1 + F|. Their null space is N − V G with
        (1 + F) R^T G = E N. Noisy rows W are W (N − V G) = Q (1 + Y) R₂ on it. The length of the basis N − V G counts
        once in either product, and cancels.
        """
        place = np.empty(len(self._scaled), dtype=int)  # of each row among exact ones, or noisy ones, as factored
        place[np.array(self._exact, dtype=int)[self._first]] = np.arange(len(self._exact))
        place[np.array(self.noisy, dtype=int)[self._heaviest]] = np.arange(len(self.noisy))
        is_noisy = np.zeros(len(self._scaled), dtype=bool)
        is_noisy[self.noisy] = True
        units = self.units[len(self._columns) :][row] * self._columns[col]

        def product(rows: np.ndarray, x: DoubleDouble, less: np.ndarray) -> np.ndarray:
            part = DoubleDouble(*((units * y)[rows] for y in entries))
            return Residuals(place[row[rows]], col[rows], part)(x, DoubleDouble.of(-less))

        exact, noisy, R = ~is_noisy[row], is_noisy[row], self._triangle
        none = np.zeros((len(R), self._null.shape[1]))
        first, both = (
            scipy.linalg.solve_triangular(R, product(exact, DoubleDouble.of(x), less), trans="T")
            for x, less in ((self._range, R.T), (self._null, none))
        )
        first += np.eye(len(R))
        basis = DoubleDouble(self._null, -self._range @ np.linalg.solve(first, both))
        change, Q, m = product(noisy, basis, self._reduced)[:, self._order], self._Q.T, len(self._Q)
        places = np.repeat(np.arange(m), m), np.tile(np.arange(m), m)
        less = np.vstack([self._R, np.zeros((m - len(self._R), len(self._R)))])
        rounded = Residuals(*places, DoubleDouble.of(Q.ravel()))(
            DoubleDouble.of(self._reduced[:, self._order]), DoubleDouble.of(-less)
        )
        second = scipy.linalg.solve_triangular(self._R, (rounded + Q @ change).T, trans="T").T
        second += np.eye(*second.shape)
        return float(np.linalg.slogdet(first)[1]), 0.5 * float(np.linalg.slogdet(second.T @ second)[1])

    def _by_row(self, y: np.ndarray) -> Row:
        return {self.noisy[k]: x for k, x in zip(self._heaviest.tolist(), y.tolist(), strict=True)}


class Refined(Information):
    """Information at one state near a singular one, of refined solutions, see `double_double.iterative_refinement`.

    Deviations are the changes of the solution by an error of 1 of each noisy row.
    """

    def __init__(self, factors: OfMatrix, row: np.ndarray, col: np.ndarray, entries: DoubleDouble, b: DoubleDouble):
        """factors: of the matrix, rounded. row, col, entries (nnz), b (m,): as they are; see `converged`."""
        noisy = np.array(factors.noisy, dtype=int)
        errors = np.zeros((len(b.high), len(noisy)))
        errors[noisy, np.arange(len(noisy))] = 1.0
        right = DoubleDouble(np.column_stack([b.high, errors]), np.column_stack([b.low, np.zeros_like(errors)]))
        x = factors.refined(row, col, entries, right)
        self.converged = x is not None
        self._factors, self._matrix = factors, (row, col, entries)
        if x is not None:
            n = len(factors.units) - len(b.high)
            self._changes, self._residuals = x[:n, 1:], x[n + noisy]

    def deviations(self, terms: Mapping[int, Scalar]) -> Row:
        c = np.array([*terms.values()], dtype=float)
        return dict(enumerate((c @ self._changes[[*terms]]).tolist()))

    def residuals(self) -> Row:
        return dict(zip(self._factors.noisy, self._residuals[:, 0].tolist(), strict=True))

    def free(self) -> list[Row]:
        return [dict(zip(self._factors.noisy, x, strict=True)) for x in self._residuals[:, 1:].T.tolist()]

    def pivots(self) -> Pivots:
        pairs = zip(self._factors.pivots(), self._factors.off(*self._matrix), strict=True)
        return Pivots(*([y * math.exp(off / len(x)) for y in x] for x, off in pairs))


def _power(x: np.ndarray) -> np.ndarray:
    """The powers of 2 nearest to positive x: products with them are exact."""
    return np.ldexp(1.0, np.rint(np.log2(x)).astype(int))


def _qr(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Q, R, order) of A[:, order] = Q R with column pivoting, of matrices without columns, too."""
    if matrix.shape[1] == 0:
        return np.eye(len(matrix)), matrix, np.zeros(0, dtype=int)
    Q, R, order = scipy.linalg.qr(matrix, pivoting=True)
    return Q, R, order


def product(x: Row, y: Row) -> Scalar:
    """Σ x_k y_k."""
    total: Scalar = 0.0
    for k, value in x.items():
        if k in y:
            total = total + value * y[k]
    return total
