"""Dense equality-constrained least squares by the null-space method. Björck (1996), section 5.1.3."""

from __future__ import annotations

import numpy as np
import scipy  # which loads scipy.linalg where it is first used


class ConstrainedLeastSquares:
    """Solver of [0 E^T W^T; E 0 0; W 0 −1] for exact equations E (e, n) and whitened ones W (w, n).

    units (n,): column scaling. QR with column pivoting, and rows of W sorted by decreasing size, is stable for rows of
    very different weights. Powell and Reid (1969); Cox and Higham (1998).
    """

    def __init__(self, E: np.ndarray, W: np.ndarray, units: np.ndarray):
        e, self.columns = len(E), _power_of_two(units)
        E, self._W = E * self.columns, W * self.columns
        self.rows = _power_of_two(1.0 / np.abs(E).max(axis=1, initial=0.0))
        Q, R, self._exact_order = _pivoted_qr((E * self.rows[:, None]).T)
        self._range, self._null, self._R = Q[:, :e], Q[:, e:], R[:e]
        reduced = self._W @ self._null
        self._heaviest = np.argsort(-np.abs(reduced).max(axis=1, initial=0.0), kind="stable")
        self._P, T, self._order = _pivoted_qr(reduced[self._heaviest])
        self._T = T[: self._null.shape[1]]

    def solve(self, f: np.ndarray, g: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(d (n, k), multipliers of E (e, k), W d − h (w, k)) for the right-hand sides f (n, k), g (e, k), h (w, k)."""
        f, g = self.columns[:, None] * f, self.rows[:, None] * g
        d = self._range @ _triangular(self._R, g[self._exact_order], trans="T")
        rest = self._P.T @ (self._W @ d - h)[self._heaviest]
        first = _triangular(self._T, (self._null.T @ f)[self._order], trans="T")
        d += self._null[:, self._order] @ _triangular(self._T, first - rest[: len(first)])
        rest[: len(first)] = first
        mu, multipliers = np.empty_like(h), np.empty_like(g)
        mu[self._heaviest] = self._P @ rest
        multipliers[self._exact_order] = _triangular(self._R, self._range.T @ (f - self._W.T @ mu))
        return self.columns[:, None] * d, self.rows[:, None] * multipliers, mu

    @property
    def condition(self) -> float:
        """Estimated condition number: the ratio of extreme pivots, for E or W, whichever is greater."""
        sizes = (np.abs(np.diagonal(x)) for x in (self._R, self._T))
        return float(np.max([x.max() / x.min() if x.min() else np.inf for x in sizes if len(x)], initial=1.0))

    @property
    def log_determinant(self) -> float:
        """log |det| of the matrix."""
        logs = sum(np.log(np.abs(np.diagonal(x))).sum() for x in (self._R, self._T))
        return float(2.0 * (logs - np.log(self.columns).sum() - np.log(self.rows).sum()))


def _power_of_two(x: np.ndarray) -> np.ndarray:
    """The powers of 2 nearest to positive x: products with them are exact."""
    return np.ldexp(1.0, np.rint(np.log2(x)).astype(int))


def _pivoted_qr(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Q, R, order) of A[:, order] = Q R; A may have no columns."""
    if matrix.shape[1] == 0:
        return np.eye(len(matrix)), matrix, np.zeros(0, dtype=int)
    Q, R, order = scipy.linalg.qr(matrix, pivoting=True)
    return Q, R, order


def _triangular(A: np.ndarray, b: np.ndarray, trans: str = "N") -> np.ndarray:
    return np.asarray(scipy.linalg.solve_triangular(A, b, trans=trans, check_finite=False)) if len(A) else b[:0]
