"""Least squares along a chain: each instant is coupled with its neighbours alone.

    δ_1 ~ N(m, P₁),    δ_{t+1} = Φ_t δ_t + c_t + N(0, Q_t),    least δ_t^T H_t δ_t + 2 h_t^T δ_t of what is measured

is solved forwards and back (Kalman 1960; Rauch, Tung and Striebel 1965), with all covariances on the way. The normal
equations of the chain would hold Q⁻¹, of which the motion of a millisecond leaves no digits (Δ^7 at order 4);
here Q is added to covariances, and a reading comes in through the Cholesky factor L of a covariance,
(L⁻^T L⁻¹ + H)⁻¹ = L (1 + L^T H L)⁻¹ L^T, in which what is large and what is small keep their digits (Bierman 1977).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg and scipy.sparse where they are first used

from sysdyn.errors import SingularState

# Greatest blocks of which several chains are solved at a time, by NumPy's stacks (measured: beyond, LAPACK's calls one
# by one take no longer).
STACKED = 8


class Linear(NamedTuple):
    """A chain: H (N, k, k), h (N, k); Phi, Q (N − 1, k, k), c (N − 1, k); m (k,), P (k, k) of the first instant."""

    H: np.ndarray
    h: np.ndarray
    Phi: np.ndarray
    c: np.ndarray
    Q: np.ndarray
    m: np.ndarray
    P: np.ndarray


class Solved(NamedTuple):
    """δ (N, k), and covariances if asked for, else none: P (N, k, k) of instants, C (N − 1, k, k) of t + 1 with t."""

    step: np.ndarray
    P: np.ndarray
    C: np.ndarray


def components(x: Linear) -> list[np.ndarray]:
    """Numbers of unknowns of an instant, in parts that no instant and no step in time couples."""
    pattern = (x.P != 0.0) | (x.H != 0.0).any(axis=0)
    for coupling in (x.Phi, x.Q):
        pattern |= (coupling != 0.0).any(axis=0)
    count, label = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(pattern), directed=False)
    return [np.flatnonzero(label == k) for k in range(count)]


def solve(x: Linear, covariances: bool = False) -> Solved:
    """The solution of a chain, part by part. Raises SingularState that names the instant if digits run out."""
    n, k = x.h.shape
    step = np.zeros((n, k))
    P, C = (np.zeros((size if covariances else 0, k, k)) for size in (n, max(n - 1, 0)))
    parts: dict[int, list[np.ndarray]] = {}
    for part in components(x):
        parts.setdefault(len(part), []).append(part)
    for size, alike in parts.items():
        together = [np.array(alike)] if size <= STACKED else [part[None] for part in alike]
        for chosen in together:  # (chains, size)
            if chosen.size == k == size:  # all of it
                found = _single(
                    Linear(
                        x.H[:, None], x.h[:, None], x.Phi[:, None], x.c[:, None], x.Q[:, None], x.m[None], x.P[None]
                    ),
                    covariances,
                )
                return Solved(*(y[:, 0] for y in found))
            rows, columns = chosen[:, :, None], chosen[:, None, :]
            H, Phi, Q = (y[:, rows, columns] for y in (x.H, x.Phi, x.Q))
            own = Linear(H, x.h[:, chosen], Phi, x.c[:, chosen], Q, x.m[chosen], x.P[rows, columns])
            found = _stacked(own, covariances) if size <= STACKED else _single(own, covariances)
            step[:, chosen] = found.step
            if covariances:
                P[:, rows, columns], C[:, rows, columns] = found.P, found.C
    return Solved(step, P, C)


def _stacked(x: Linear, covariances: bool) -> Solved:
    """Chains (N, chains, k, k) of small blocks side by side."""
    n, one = len(x.h), np.eye(x.h.shape[-1])
    m, P = np.empty_like(x.h), np.empty_like(x.H)
    before, ahead = np.empty_like(x.c), np.empty_like(x.Phi)  # predictions of each next instant
    mean, cov = x.m, x.P
    for t in range(n):
        if t:
            mean = (x.Phi[t - 1] @ mean[..., None])[..., 0] + x.c[t - 1]
            cov = x.Phi[t - 1] @ cov @ x.Phi[t - 1].swapaxes(-1, -2) + x.Q[t - 1]
            before[t - 1], ahead[t - 1] = mean, cov
        try:
            L = np.linalg.cholesky(cov)
            Lt = L.swapaxes(-1, -2)
            G = np.linalg.solve(np.linalg.cholesky(one + Lt @ x.H[t] @ L), Lt)
        except np.linalg.LinAlgError:
            raise _lost(t) from None
        cov = G.swapaxes(-1, -2) @ G
        right = x.h[t] + (x.H[t] @ mean[..., None])[..., 0]
        mean = mean - (cov @ right[..., None])[..., 0]
        m[t], P[t] = mean, cov
    for t in range(n - 2, -1, -1):
        K = np.linalg.solve(ahead[t], x.Phi[t] @ P[t]).swapaxes(-1, -2)
        m[t] += (K @ (m[t + 1] - before[t])[..., None])[..., 0]
        if covariances:
            kept = one - K @ x.Phi[t]
            ahead[t] = P[t + 1] @ K.swapaxes(-1, -2)  # C; what it held is done with
            P[t] = kept @ P[t] @ kept.swapaxes(-1, -2) + K @ x.Q[t] @ K.swapaxes(-1, -2) + K @ ahead[t]
    return Solved(m, P, ahead)


def _single(x: Linear, covariances: bool) -> Solved:
    """A chain (N, 1, k, k) of large blocks, by LAPACK."""
    n, k = len(x.h), x.h.shape[-1]
    H, h, Phi, c, Q = x.H[:, 0], x.h[:, 0], x.Phi[:, 0], x.c[:, 0], x.Q[:, 0]
    seen = np.flatnonzero((H != 0.0).any(axis=(0, 1)))  # what readings tell directly
    H = H[:, seen[:, None], seen]
    potrf, trtrs, potrs = scipy.linalg.lapack.dpotrf, scipy.linalg.lapack.dtrtrs, scipy.linalg.lapack.dpotrs
    m, P, factors = np.empty((n, k)), np.empty((n, k, k)), np.empty((n, k, k))
    before = np.empty((max(n - 1, 0), k))  # predictions of each next instant; factors are of their covariances
    one, mean, cov = np.eye(k), x.m[0], x.P[0]
    for t in range(n):
        if t:
            F = Phi[t - 1]
            mean = F @ mean + c[t - 1]
            cov = F @ cov @ F.T + Q[t - 1]
            before[t - 1] = mean
        L, wrong = potrf(cov, lower=1, clean=1)
        half = H[t] @ L[seen]
        R, worse = potrf(one + L[seen].T @ half, lower=1)
        if wrong or worse:
            raise _lost(t)
        factors[t] = L
        G = trtrs(R, L.T, lower=1)[0]
        cov = G.T @ G
        right = h[t].copy()
        right[seen] += H[t] @ mean[seen]
        mean = mean - cov @ right
        m[t], P[t] = mean, cov
    if not covariances:
        for t in range(n - 2, -1, -1):
            m[t] += P[t] @ (Phi[t].T @ potrs(factors[t + 1], m[t + 1] - before[t], lower=1)[0])
        return Solved(m[:, None], P, factors)
    C = np.empty((max(n - 1, 0), k, k))
    for t in range(n - 2, -1, -1):
        F = Phi[t]
        K = potrs(factors[t + 1], F @ P[t], lower=1)[0].T
        m[t] += K @ (m[t + 1] - before[t])
        kept = one - K @ F
        C[t] = P[t + 1] @ K.T
        P[t] = kept @ P[t] @ kept.T + K @ Q[t] @ K.T + K @ C[t]
    return Solved(m[:, None], P[:, None], C[:, None])


def _lost(t: int) -> SingularState:
    return SingularState(
        f"digits run out at instant {t}: its covariance has standard deviations too far apart. Give states that no "
        "sensor tells a prior or a sensor, or noise that is not so small", states=(t,),
    )  # fmt: skip
