"""Deviations and residuals of a least-squares solution from its factors: sums of squares, whatever the weights.

With exact rows eliminated, whitened noisy rows W d + w become R d + r = 0 and a rest: Q^T (W d + w) = (0, left).
Then Cov(c^T d) = |R^-T c|², residuals are Q₂ left and their covariance is Q₂ Q₂^T, Q = (Q₁ Q₂). Golub (1965); Bierman
(1977).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.program.expr import is_zero
from sysdyn.program.plain import exp, log
from sysdyn.program.scalar import Scalar
from sysdyn.sparse.lu import Factors, Row, divider


class Pivots(NamedTuple):
    """Pivots of exact and of noisy rows: twice the sum of log |pivot| is log |det [0 E^T W^T; E 0 0; W 0 −1]|."""

    exact: Sequence[Scalar]
    noisy: Sequence[Scalar]


class Information(ABC):
    """Deviations and residuals of a least-squares solution."""

    @abstractmethod
    def deviations(self, terms: Mapping[int, Scalar]) -> Row:
        """{number: z}: error of Σ c_j d_j, of {j: c_j}, in terms of independent errors of variance 1; z = R^-T c."""

    @abstractmethod
    def residuals(self) -> Row:
        """{noisy row: W d + w} at the solution."""

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
        self._columns, self._noisy = columns, sorted(noisy)
        exact = sorted(set(range(len(b))).difference(noisy))
        scaled = matrix * columns
        rows = 1.0 / np.abs(scaled[exact]).max(axis=1, initial=0.0)
        m, n = len(exact), len(columns)
        Q, R, order = _qr((scaled[exact] * rows[:, None]).T)
        self._null = Q[:, m:]
        start = Q[:, :m] @ scipy.linalg.solve_triangular(R[:m], -(b[exact] * rows)[order], trans="T")
        W, w = scaled[self._noisy] @ self._null, scaled[self._noisy] @ start + b[self._noisy]
        self._heaviest = np.argsort(-np.abs(W).max(axis=1, initial=0.0), kind="stable")
        self._Q, R2, self._order = _qr(W[self._heaviest])
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

    def _by_row(self, y: np.ndarray) -> Row:
        return {self._noisy[k]: x for k, x in zip(self._heaviest.tolist(), y.tolist(), strict=True)}


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
