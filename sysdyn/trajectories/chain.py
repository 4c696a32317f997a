"""Least squares along a chain of blocks: each instant is coupled with its neighbours alone.

½ Σ |rows|² over δ_1 … δ_N has the normal equations A_t δ_t + B_t^T δ_{t+1} + B_{t−1} δ_{t−1} + g_t = 0, which block
Cholesky solves forwards and back; the blocks of the inverse on and beside the diagonal follow backwards (Rauch, Tung
and Striebel 1965; Takahashi 1973). The error of a Cholesky factorisation does not depend on the units of the unknowns
(Higham 2002, section 10.1), so that positions and accelerations need no scaling.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg and scipy.sparse where they are first used

from sysdyn.errors import SingularState

# Greatest blocks of which several chains are solved at a time, by NumPy's stacks (measured: beyond, LAPACK's calls one
# by one take no longer).
STACKED = 8


class Blocks(NamedTuple):
    """Normal equations of a chain: A (N, k, k), B (N − 1, k, k), rows of t + 1 and columns of t; g (N, k)."""

    A: np.ndarray
    B: np.ndarray
    g: np.ndarray


class Solved(NamedTuple):
    """δ (N, k); log |A B|, the logarithm of the determinant of the matrix; covariances if they were asked for.

    P (N, k, k) of each instant; C (N − 1, k, k) of t + 1 with t.
    """

    step: np.ndarray
    logdet: float
    P: np.ndarray | None = None
    C: np.ndarray | None = None


def components(blocks: Blocks) -> list[np.ndarray]:
    """Numbers of unknowns of an instant, in parts that no instant and no step in time couples."""
    pattern = (blocks.A != 0.0).any(axis=0)
    if len(blocks.B):
        pattern |= (blocks.B != 0.0).any(axis=0)
    count, label = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(pattern), directed=False)
    return [np.flatnonzero(label == k) for k in range(count)]


def solve(blocks: Blocks, covariances: bool = False) -> Solved:
    """The solution of a chain, part by part. Raises SingularState that names the instant if one is not determined."""
    n, k = blocks.g.shape
    step, logdet = np.zeros((n, k)), 0.0
    P = np.zeros((n, k, k)) if covariances else None
    C = np.zeros((max(n - 1, 0), k, k)) if covariances else None
    parts: dict[int, list[np.ndarray]] = {}
    for part in components(blocks):
        parts.setdefault(len(part), []).append(part)
    for size, alike in parts.items():
        together = [np.array(alike)] if size <= STACKED else [part[None] for part in alike]
        for chosen in together:  # (chains, size)
            rows, columns = chosen[:, :, None], chosen[:, None, :]
            own = Blocks(blocks.A[:, rows, columns], blocks.B[:, rows, columns], blocks.g[:, chosen])
            found = _stacked(own, covariances) if size <= STACKED else _single(own, covariances)
            step[:, chosen] = found.step
            logdet += found.logdet
            if P is not None and C is not None:
                P[:, rows, columns], C[:, rows, columns] = found.P, found.C
    return Solved(step, logdet, P, C)


def _stacked(x: Blocks, covariances: bool) -> Solved:
    """Chains (N, chains, k, k) of small blocks, by their inverses."""
    n = len(x.g)
    inverse, gain, z = np.empty_like(x.A), np.empty_like(x.B), np.empty_like(x.g)
    S, r, logdet = x.A[0], x.g[0], 0.0
    for t in range(n):
        sign, size = np.linalg.slogdet(S)
        if not (sign > 0.0).all():
            raise _undetermined(t)
        logdet += float(size.sum())
        inverse[t], z[t] = np.linalg.inv(S), r
        if t + 1 < n:
            gain[t] = x.B[t] @ inverse[t]
            S = x.A[t + 1] - gain[t] @ x.B[t].swapaxes(-1, -2)
            S = 0.5 * (S + S.swapaxes(-1, -2))
            r = x.g[t + 1] - (gain[t] @ r[..., None])[..., 0]
    step = np.empty_like(x.g)
    step[-1] = -(inverse[-1] @ z[-1][..., None])[..., 0]
    for t in range(n - 2, -1, -1):
        both = z[t][..., None] + x.B[t].swapaxes(-1, -2) @ step[t + 1][..., None]
        step[t] = -(inverse[t] @ both)[..., 0]
    if not covariances:
        return Solved(step, logdet)
    P, C = np.empty_like(x.A), np.empty_like(x.B)
    P[-1] = inverse[-1]
    for t in range(n - 2, -1, -1):
        C[t] = -P[t + 1] @ gain[t]
        P[t] = inverse[t] - gain[t].swapaxes(-1, -2) @ C[t]
    return Solved(step, logdet, P, C)


def _single(x: Blocks, covariances: bool) -> Solved:
    """A chain (N, 1, k, k) of large blocks, by LAPACK's factors of each."""
    n, k = len(x.g), x.g.shape[-1]
    A, B, g = x.A[:, 0], x.B[:, 0], x.g[:, 0]
    lapack, blas = scipy.linalg.lapack, scipy.linalg.blas
    upper, half, z = np.empty((n, k, k)), np.empty((max(n - 1, 0), k, k)), np.empty((n, k))
    S, r, logdet = np.asfortranarray(A[0]), g[0], 0.0
    for t in range(n):
        R, wrong = lapack.dpotrf(S, lower=0, clean=1)
        if wrong:
            raise _undetermined(t)
        upper[t] = R
        logdet += 2.0 * float(np.log(np.diagonal(R)).sum())
        z[t] = lapack.dtrtrs(R, r, lower=0, trans=1)[0]
        if t + 1 < n:
            # H = R^-T B^T, so that B S^-1 B^T = H^T H
            H = lapack.dtrtrs(R, B[t].T, lower=0, trans=1)[0]
            half[t] = H
            S = blas.dsyrk(-1.0, H, beta=1.0, c=A[t + 1], trans=1, lower=0)
            r = g[t + 1] - H.T @ z[t]
    step = np.empty((n, k))
    step[-1] = -lapack.dtrtrs(upper[-1], z[-1], lower=0)[0]
    for t in range(n - 2, -1, -1):
        step[t] = -lapack.dtrtrs(upper[t], z[t] + half[t] @ step[t + 1], lower=0)[0]
    if not covariances:
        return Solved(step[:, None], logdet)
    P, C = np.empty((n, k, k)), np.empty((max(n - 1, 0), k, k))
    P[-1] = _inverse(upper[-1])
    for t in range(n - 2, -1, -1):
        gain = lapack.dtrtrs(upper[t], half[t], lower=0)[0]  # S^-1 B^T
        C[t] = -P[t + 1] @ gain.T
        P[t] = _inverse(upper[t]) - gain @ C[t]
    return Solved(step[:, None], logdet, P[:, None], C[:, None])


def _inverse(R: np.ndarray) -> np.ndarray:
    """(R^T R)⁻¹ of an upper triangle."""
    found, _ = scipy.linalg.lapack.dpotri(R, lower=0)
    return np.triu(found) + np.triu(found, 1).T


def _undetermined(t: int) -> SingularState:
    return SingularState(
        f"instant {t} is not determined by what is before it and what is measured: give the states it leaves open a "
        "sensor or a prior", states=(t,),
    )  # fmt: skip
