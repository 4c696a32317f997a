"""Least squares along a chain: each instant is coupled with its neighbours alone.

    δ_1 ~ N(m, P₁),    δ_{t+1} = Φ_t δ_t + c_t + N(0, Q_t),    least δ_t^T H_t δ_t + 2 h_t^T δ_t of what is measured

is solved forwards and back (Kalman 1960; Rauch, Tung and Striebel 1965), with all covariances on the way. The normal
equations of the chain would hold Q⁻¹, of which the motion of a millisecond leaves no digits (Δ^7 at order 4);
here Q is added to covariances, and a reading comes in through the Cholesky factor L of a covariance,
(L⁻^T L⁻¹ + H)⁻¹ = L (1 + L^T H L)⁻¹ L^T, in which what is large and what is small keep their digits (Bierman 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg and scipy.sparse where they are first used

from sysdyn.errors import SingularState

# Greatest blocks of which several chains are solved at a time, by NumPy's stacks (measured: beyond, LAPACK's calls one
# by one take no longer).
STACKED = 8


# Least pivot of a covariance, as a share of the variance of its unknown: seven digits are left (chosen).
LEAST_SHARE_LEFT = 1e-9


class Linear(NamedTuple):
    """A chain: H (N, k, k), h (N, k); Phi, Q (N − 1, k, k), c (N − 1, k); m (k,), P (k, k) of the first instant."""

    H: np.ndarray
    h: np.ndarray
    Phi: np.ndarray
    c: np.ndarray
    Q: np.ndarray
    m: np.ndarray
    P: np.ndarray


class Part(NamedTuple):
    """Chains side by side of some unknowns: their numbers (chains, k), and arrays with an axis of chains behind N."""

    columns: np.ndarray
    linear: Linear


class Solved(NamedTuple):
    """δ (N, k), and covariances if asked for, else none: P (N, k, k) of instants, C (N − 1, k, k) of t + 1 with t.

    logdet: logarithm of the determinant of the covariance of all that is measured, in units of its noise.
    """

    step: np.ndarray
    P: np.ndarray
    C: np.ndarray
    logdet: float


class Block(NamedTuple):
    """Covariances P (N, chains, k, k) of unknowns (chains, k), and C (N − 1, chains, k, k) of t + 1 with t."""

    columns: np.ndarray
    P: np.ndarray
    C: np.ndarray


class Covariances:
    """Covariances of N instants with `size` unknowns, in blocks that are independent of each other."""

    def __init__(self, size: int, blocks: Sequence[Block]):
        self.size, self.blocks = size, tuple(blocks)

    @classmethod
    def of_one(cls, P: np.ndarray) -> Covariances:
        """Covariances of one instant, P (size, size)."""
        columns = np.arange(len(P))[None]
        return cls(len(P), [Block(columns, P[None, None], np.zeros((0, 1, *P.shape)))])

    def part(self, chosen: slice) -> Covariances:
        """The covariances of some of the instants."""
        return Covariances(self.size, [Block(x.columns, x.P[chosen], x.C[:0]) for x in self.blocks])

    def dense(self) -> np.ndarray:
        """(N, size, size)."""
        found = np.zeros((len(self.blocks[0].P), self.size, self.size))
        for columns, P, _ in self.blocks:
            found[:, columns[:, :, None], columns[:, None, :]] = P
        return found

    def diagonal(self) -> np.ndarray:
        """Variances (N, size)."""
        found = np.zeros((len(self.blocks[0].P), self.size))
        for columns, P, _ in self.blocks:
            found[:, columns] = np.einsum("ncii->nci", P)
        return found

    def together(self, columns: np.ndarray) -> np.ndarray:
        """Numbers of all unknowns in blocks with some of these."""
        found = [own for x in self.blocks for own in x.columns if np.isin(own, columns).any()]
        return np.sort(np.concatenate(found))

    def replaced(self, columns: np.ndarray, P: np.ndarray) -> Covariances:
        """With P (N, k, k) of these unknowns (k,), whole blocks until now."""
        kept = []
        for x in self.blocks:
            own = ~np.isin(x.columns, columns).any(axis=1)
            kept.append(Block(x.columns[own], x.P[:, own], x.C[:, own]))
        return Covariances(self.size, [*kept, Block(columns[None], P[:, None], P[:0, None])])


class Sweep(NamedTuple):
    """δ (N, size) of a chain, its covariances if asked for, and the logarithm of `Solved`."""

    step: np.ndarray
    covariances: Covariances
    logdet: float


def components(pattern: np.ndarray) -> list[np.ndarray]:
    """Numbers of unknowns in parts that are not coupled, of a pattern (k, k) of couplings."""
    count, label = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(pattern), directed=False)
    return [np.flatnonzero(label == k) for k in range(count)]


def couplings(x: Linear) -> np.ndarray:
    """(k, k) bool: pairs of unknowns that are coupled at some instant or step."""
    pattern = (x.P != 0.0) | (x.H != 0.0).any(axis=0)
    return np.asarray(pattern | (x.Phi != 0.0).any(axis=0) | (x.Q != 0.0).any(axis=0))


def solve(x: Linear, covariances: bool = False) -> Solved:
    """The solution of a chain, part by part. Raises SingularState that names the instant if digits run out."""
    n, k = x.h.shape
    parts = []
    for chosen in components(couplings(x)):
        rows, columns = chosen[:, None], chosen
        H, Phi, Q = (y[:, None, rows, columns] for y in (x.H, x.Phi, x.Q))
        own = Linear(H, x.h[:, None, chosen], Phi, x.c[:, None, chosen], Q, x.m[None, chosen], x.P[None, rows, columns])
        parts.append(Part(chosen[None], own))
    found = sweep(parts, n, k, covariances)
    if not covariances:
        return Solved(found.step, np.zeros((0, k, k)), np.zeros((0, k, k)), found.logdet)
    C = np.zeros((max(n - 1, 0), k, k))
    for block in found.covariances.blocks:
        C[:, block.columns[:, :, None], block.columns[:, None, :]] = block.C
    return Solved(found.step, found.covariances.dense(), C, found.logdet)


def sweep(parts: Sequence[Part], n: int, size: int, covariances: bool = False) -> Sweep:
    """The solution of n instants with `size` unknowns, of which the parts have some each. Raises as `solve`."""
    step, blocks, logdet = np.zeros((n, size)), [], 0.0
    for columns, linear in parts:
        found = (_single if len(columns) == 1 and columns.shape[1] > STACKED else _stacked)(linear, covariances)
        step[:, columns], logdet = found.step, logdet + found.logdet
        if covariances:
            blocks.append(Block(columns, found.P, found.C))
    return Sweep(step, Covariances(size, blocks), logdet)


def _stacked(x: Linear, covariances: bool, roots: bool = False) -> Solved:
    """Chains (N, chains, k, k) of small blocks side by side. roots: see `_single`."""
    n, one = len(x.h), np.eye(x.h.shape[-1])
    m, P, factors = np.empty_like(x.h), np.empty_like(x.H), np.empty_like(x.H)
    before = np.empty_like(x.c)  # predictions of each next instant
    mean, cov, t, logdet = x.m, x.P, 0, 0.0
    try:
        noise = _roots(x.Q) if roots else x.Q
        rows = _rows(x.H) if roots else x.H
        G = L = np.linalg.cholesky(cov)
        for t in range(n):
            if t:
                F = x.Phi[t - 1]
                Ft = F.swapaxes(-1, -2)
                mean = (F @ mean[..., None])[..., 0] + x.c[t - 1]
                before[t - 1] = mean
                if roots:
                    L = _triangle(G @ Ft, noise[t - 1])
                else:
                    cov = F @ cov @ Ft + x.Q[t - 1]
                    L = np.linalg.cholesky(cov)
                    _check(L, cov)
            factors[t], Lt = L, L.swapaxes(-1, -2)
            R = _root(rows[t] @ L) if roots else np.linalg.cholesky(one + Lt @ x.H[t] @ L)
            logdet += 2.0 * float(np.log(np.abs(np.einsum("...ii->...i", R))).sum())
            G = np.linalg.solve(R, Lt)
            cov = G.swapaxes(-1, -2) @ G
            right = x.h[t] + (x.H[t] @ mean[..., None])[..., 0]
            mean = mean - (cov @ right[..., None])[..., 0]
            m[t], P[t] = mean, cov
    except np.linalg.LinAlgError:
        if roots:
            raise _lost(t) from None
        return _stacked(x, covariances, roots=True)
    C = np.empty_like(x.Phi)
    for t in range(n - 2, -1, -1):
        L, F = factors[t + 1], x.Phi[t]
        K = np.linalg.solve(L.swapaxes(-1, -2), np.linalg.solve(L, F @ P[t])).swapaxes(-1, -2)
        m[t] += (K @ (m[t + 1] - before[t])[..., None])[..., 0]
        if covariances:
            Kt, kept = K.swapaxes(-1, -2), one - K @ F
            C[t] = P[t + 1] @ Kt
            P[t] = kept @ P[t] @ kept.swapaxes(-1, -2) + K @ x.Q[t] @ Kt + K @ C[t]
    return Solved(m, P, C, logdet) if covariances else Solved(m, P[:0], P[:0], logdet)


def _single(x: Linear, covariances: bool, roots: bool = False) -> Solved:
    """A chain (N, 1, k, k) of large blocks, by LAPACK.

    roots: factors of covariances from those of their terms by QR factorisations (Kaminski, Bryson and Schmidt 1971),
    which keep all digits and take three times as long; used if Cholesky's of the sums lose too many.
    """
    n, k = len(x.h), x.h.shape[-1]
    H, h, Phi, c, Q = x.H[:, 0], x.h[:, 0], x.Phi[:, 0], x.c[:, 0], x.Q[:, 0]
    step = _Step(Phi)
    seen = np.flatnonzero((H != 0.0).any(axis=(0, 1)))  # what readings tell directly
    H = H[:, seen[:, None], seen]
    potrf, trtrs, potrs = scipy.linalg.lapack.dpotrf, scipy.linalg.lapack.dtrtrs, scipy.linalg.lapack.dpotrs
    m, P, factors = np.empty((n, k)), np.empty((n, k, k)), np.empty((n, k, k))
    before = np.empty((max(n - 1, 0), k))  # predictions of each next instant; factors are of their covariances
    one, mean, cov, t, logdet = np.eye(k), x.m[0], x.P[0], 0, 0.0
    try:
        noise = _roots(Q) if roots else Q
        rows = _rows(H) if roots else H
        G = L = np.linalg.cholesky(cov)
        for t in range(n):
            if t:
                mean = Phi[t - 1] @ mean + c[t - 1]
                before[t - 1] = mean
                if roots:
                    L = _triangle(G @ Phi[t - 1].T, noise[t - 1])
                else:
                    cov = step.applied(t - 1, step.applied(t - 1, cov).T) + Q[t - 1]
                    L, wrong = potrf(cov, lower=1, clean=1)
                    if wrong:
                        raise np.linalg.LinAlgError
                    _check(L, cov)
            factors[t] = L
            if roots:
                R = _root(rows[t] @ L[seen])
            else:
                R, wrong = potrf(one + L[seen].T @ (H[t] @ L[seen]), lower=1)
                if wrong:
                    raise np.linalg.LinAlgError
            logdet += 2.0 * float(np.log(np.abs(np.diagonal(R))).sum())
            G = trtrs(R, L.T, lower=1)[0]
            cov = G.T @ G
            right = h[t].copy()
            right[seen] += H[t] @ mean[seen]
            mean = mean - cov @ right
            m[t], P[t] = mean, cov
    except np.linalg.LinAlgError:
        if roots:
            raise _lost(t) from None
        return _single(x, covariances, roots=True)
    if not covariances:
        for t in range(n - 2, -1, -1):
            m[t] += P[t] @ (Phi[t].T @ potrs(factors[t + 1], m[t + 1] - before[t], lower=1)[0])
        return Solved(m[:, None], P[:0, None], P[:0, None], logdet)
    C = np.empty((max(n - 1, 0), k, k))
    for t in range(n - 2, -1, -1):
        K = potrs(factors[t + 1], step.applied(t, P[t]), lower=1)[0].T
        m[t] += K @ (m[t + 1] - before[t])
        kept = one - K @ Phi[t]
        C[t] = P[t + 1] @ K.T
        P[t] = kept @ P[t] @ kept.T + K @ (Q[t] @ K.T + C[t])
    return Solved(m[:, None], P[:, None], C[:, None], logdet)


class _Step:
    """Products with Φ (N − 1, k, k), most of whose rows have one entry, on the diagonal: last rates and biases."""

    def __init__(self, Phi: np.ndarray):
        self._diagonal = np.einsum("nii->ni", Phi).copy()
        pattern = (Phi != 0.0).any(axis=0) & ~np.eye(Phi.shape[-1], dtype=bool)
        rows = np.flatnonzero(pattern.any(axis=1))
        self._rows = slice(int(rows.min(initial=0)), int(rows.max(initial=-1)) + 1)
        columns = np.flatnonzero(pattern[self._rows].any(axis=0))
        first, last = int(columns.min(initial=0)), int(columns.max(initial=-1)) + 1
        self._columns = slice(min(first, self._rows.start), max(last, self._rows.stop))
        self._part = np.ascontiguousarray(Phi[:, self._rows, self._columns])

    def applied(self, t: int, x: np.ndarray) -> np.ndarray:
        """Φ_t x (k, m)."""
        found = self._diagonal[t, :, None] * x
        found[self._rows] = self._part[t] @ x[self._columns]
        return found


def _roots(Q: np.ndarray) -> np.ndarray:
    """X (N − 1, …) with X^T X = Q. Raises SingularState that names the instant behind the first that has none."""
    try:
        return np.linalg.cholesky(Q).swapaxes(-1, -2)
    except np.linalg.LinAlgError:
        finite = np.isfinite(Q).all(axis=(-1, -2))
        least = np.linalg.eigvalsh(np.where(finite[..., None, None], Q, 0.0)).min(axis=-1)
        bad = (least <= 0.0).reshape(len(Q), -1).any(axis=1)
        raise _lost(int(np.argmax(bad)) + 1) from None


def _triangle(*blocks: np.ndarray) -> np.ndarray:
    """Lower L with L L^T the sum of X^T X of the blocks X (…, rows, k)."""
    R = np.asarray(np.linalg.qr(np.concatenate(blocks, axis=-2), "r"))
    return R.swapaxes(-1, -2)


def _root(rows: np.ndarray) -> np.ndarray:
    """Lower R with R R^T = 1 + X^T X of rows X (…, m, k)."""
    return _triangle(rows, np.broadcast_to(np.eye(rows.shape[-1]), (*rows.shape[:-2], *[rows.shape[-1]] * 2)))


def _rows(H: np.ndarray) -> np.ndarray:
    """X (…, k, k) with X^T X = H, of matrices without negative eigenvalues but for rounding."""
    w, V = np.linalg.eigh(H)
    return np.sqrt(np.maximum(w, 0.0))[..., None] * V.swapaxes(-1, -2)


def _check(L: np.ndarray, cov: np.ndarray) -> None:
    """Raise LinAlgError if a pivot of a covariance is what rounding leaves."""
    pivots, own = (np.diagonal(x, axis1=-2, axis2=-1) for x in (L, cov))
    if (pivots * pivots < LEAST_SHARE_LEFT * own).any():
        raise np.linalg.LinAlgError


def _lost(t: int) -> SingularState:
    return SingularState(
        f"digits run out at instant {t}: its covariance has standard deviations too far apart. Give states that no "
        "sensor tells a prior or a sensor, or noise that is not so small", states=(t,),
    )  # fmt: skip
