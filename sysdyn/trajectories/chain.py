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

from sysdyn.backends.llvm.calls import Moving, Tape
from sysdyn.errors import SingularState

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
    for columns, x in parts:
        found = []
        for i in range(len(columns)):
            H, h, Phi, c, Q = (y[:, i] for y in (x.H, x.h, x.Phi, x.c, x.Q))
            found.append(_swept(Linear(H, h, Phi, c, Q, x.m[i], x.P[i]), covariances))
        for own, one in zip(columns, found, strict=True):
            step[:, own], logdet = one.step, logdet + one.logdet
        if covariances:
            P, C = (np.stack([getattr(one, name) for one in found], axis=1) for name in ("P", "C"))
            blocks.append(Block(columns, P, C))
    return Sweep(step, Covariances(size, blocks), logdet)


def _swept(x: Linear, covariances: bool, roots: bool = False) -> Solved:
    """A chain (N, k, k), by routines of BLAS and LAPACK that compiled code calls.

    roots: factors of covariances from those of their terms by QR factorisations (Kaminski, Bryson and Schmidt 1971),
    which keep all digits and take twice as long; used if Cholesky's of the sums lose too many.
    """
    n, k = x.h.shape
    h, Phi, c, Q = (np.ascontiguousarray(y) for y in (x.h, x.Phi, x.c, x.Q))
    seen = np.flatnonzero((x.H != 0.0).any(axis=(0, 1)))  # what readings tell directly
    H = np.ascontiguousarray(x.H[:, seen[:, None], seen])
    m, before, P, factors = np.empty((n, k)), np.empty((n, k)), np.empty((n, k, k)), np.zeros((n, k, k))
    try:
        before[0], factors[0] = x.m, np.linalg.cholesky(x.P)
    except np.linalg.LinAlgError:
        raise _lost(0) from None
    steps = _pattern(Phi)
    checks = _Checks(np.zeros((n, k)), np.ones((n, k)), np.zeros((n, 2), dtype=np.int64))
    right, told = np.zeros(k), Tape()
    G = np.zeros((k, k))
    _read(told, h, H, seen, before, factors, checks, G, right, roots)
    told.call("dsyrk", "U", "T", k, k, 1.0, G, k, 0.0, Moving(P), k)
    told.call("mirror", k, Moving(P))
    told.call("dcopy", k, Moving(before), 1, Moving(m), 1)
    told.call("dgemv", "N", k, k, -1.0, Moving(P), k, right, 1, 1.0, Moving(m), 1)
    told.run(range(1))
    if n > 1:
        ahead = Tape()
        ahead.call("dcopy", k, Moving(c, 1), 1, Moving(before), 1)
        ahead.call("dgemv", "T", k, k, 1.0, Moving(Phi, 1), k, Moving(m, 1), 1, 1.0, Moving(before), 1)
        _predict(ahead, Phi, Q, steps, P, factors, checks, G, roots)
        (ahead + told).run(range(1, n))
    bad = checks.lost(factors)
    if bad.any():
        if roots:
            raise _lost(int(np.argmax(bad)))
        return _swept(x, covariances, roots=True)
    logdet = 2.0 * float(np.log(np.abs(checks.pivots)).sum())
    C, d = np.zeros((max(n - 1, 0) if covariances else 0, k, k)), np.zeros(k)
    if n == 1:
        return Solved(m, P if covariances else P[:0], C, logdet)
    back, L = Tape(), Moving(factors, -1)
    back.call("dcopy", k, Moving(m, -1), 1, d, 1)
    back.call("daxpy", k, -1.0, Moving(before, -1), 1, d, 1)
    if covariances:
        _spread_back(back, Phi, Q, steps, m, P, C, L, d)
    else:
        back.call("dpotrs", "U", k, 1, L, k, d, k, np.zeros(1, dtype=np.int64))
        back.call("dgemv", "N", k, k, 1.0, Moving(Phi), k, d, 1, 0.0, right, 1)
        back.call("dgemv", "N", k, k, 1.0, Moving(P), k, right, 1, 1.0, Moving(m), 1)
    back.run(range(n - 2, -1, -1))
    return Solved(m, P if covariances else P[:0], C, logdet)


class _Checks(NamedTuple):
    """By instant: variances (N, k) before factorisation, pivots (N, k) of readings, and LAPACK's signs (N, 2)."""

    variances: np.ndarray
    pivots: np.ndarray
    wrong: np.ndarray

    def lost(self, factors: np.ndarray) -> np.ndarray:
        """(N,) bool: instants of which a pivot of a covariance is what rounding leaves."""
        own = np.square(np.einsum("nii->ni", factors[1:]))
        left = (own >= LEAST_SHARE_LEFT * self.variances[1:]).all(axis=1)
        found = self.wrong.any(axis=1) | ~np.isfinite(self.pivots).all(axis=1)
        found[1:] |= ~left
        return np.asarray(found)


def _predict(
    tape: Tape, Phi: np.ndarray, Q: np.ndarray, steps: np.ndarray, P: np.ndarray, factors: np.ndarray,
    checks: _Checks, G: np.ndarray, roots: bool,
) -> None:  # fmt: skip
    """Calls for L of Φ P Φ^T + Q, P of the instant before, = G^T G."""
    k, F, L, wrong = len(G), Moving(Phi, 1), Moving(factors), Moving(checks.wrong)
    if roots:
        noise = np.ascontiguousarray(_roots(Q).swapaxes(1, 2))  # by columns
        both, tau, work = np.zeros((k, 2 * k)), np.zeros(k), np.zeros(64 * k)
        tape.call("dgemm", "N", "N", k, k, k, 1.0, G, k, F, k, 0.0, both, 2 * k)
        tape.call("dlacpy", "A", k, k, Moving(noise, 1), k, both.reshape(-1)[k:], 2 * k)
        tape.call("dgeqrf", 2 * k, k, both, 2 * k, tau, work, len(work), wrong)
        tape.call("dlacpy", "U", k, k, both, 2 * k, L, k)
        return
    W, V = np.zeros((2, k, k))
    tape.call("dlaset", "A", k, k, 0.0, 0.0, W, k)
    tape.call("sparse", k, len(steps), steps, F, Moving(P, 1), W)
    tape.call("transpose", k, k, W, V)
    tape.call("dcopy", k * k, Moving(Q, 1), 1, L, 1)
    tape.call("sparse", k, len(steps), steps, F, V, L)
    tape.call("dcopy", k, L, k + 1, Moving(checks.variances), 1)
    tape.call("dpotrf", "U", k, L, k, wrong)
    if k > 1:
        tape.call("dlaset", "L", k - 1, k - 1, 0.0, 0.0, Moving(factors, offset=1), k)


def _read(
    tape: Tape, h: np.ndarray, H: np.ndarray, seen: np.ndarray, before: np.ndarray, factors: np.ndarray,
    checks: _Checks, G: np.ndarray, right: np.ndarray, roots: bool,
) -> None:  # fmt: skip
    """Calls for G = R⁻¹ L^T with R R^T = 1 + L^T H L, and for h + H m."""
    k, s = len(G), len(seen)
    R, B, HB, at, y = np.zeros((k, k)), np.zeros((s, k)), np.zeros((s, k)), np.zeros(s), np.zeros(s)
    runs, place = (np.split(seen, np.flatnonzero(np.diff(seen) > 1) + 1) if s else []), 0
    tape.call("dcopy", k, Moving(h), 1, right, 1)
    for run in runs:
        first, size = int(run[0]), len(run)
        tape.call("dlacpy", "A", k, size, Moving(factors, offset=k * first), k, B[place:], k)
        tape.call("dcopy", size, Moving(before, offset=first), 1, at[place:], 1)
        place += size
    if s:
        tape.call("dgemv", "N", s, s, 1.0, Moving(H), s, at, 1, 0.0, y, 1)
    place = 0
    for run in runs:
        tape.call("daxpy", len(run), 1.0, y[place:], 1, right[int(run[0]) :], 1)
        place += len(run)
    wrong, pivots, half = Moving(checks.wrong, offset=1), Moving(checks.pivots), "LN"
    if roots and s:
        rows = np.ascontiguousarray(_rows(H).swapaxes(1, 2))  # by columns
        both, tau, work, half = np.zeros((k, s + k)), np.zeros(k), np.zeros(64 * k), "UT"
        tape.call("dgemm", "N", "T", s, k, s, 1.0, Moving(rows), s, B, k, 0.0, both, s + k)
        tape.call("dlaset", "A", k, k, 0.0, 1.0, both.reshape(-1)[s:], s + k)
        tape.call("dgeqrf", s + k, k, both, s + k, tau, work, len(work), wrong)
        tape.call("dlacpy", "U", k, k, both, s + k, R, k)
    else:
        tape.call("dlaset", "A", k, k, 0.0, 1.0, R, k)
        if s:
            tape.call("dgemm", "N", "N", k, s, s, 1.0, B, k, Moving(H), s, 0.0, HB, k)
            tape.call("dgemm", "N", "T", k, k, s, 1.0, B, k, HB, k, 1.0, R, k)
        tape.call("dpotrf", "L", k, R, k, wrong)
    tape.call("dcopy", k, R, k + 1, pivots, 1)
    tape.call("dcopy", k * k, Moving(factors), 1, G, 1)
    tape.call("dtrsm", "L", *half, "N", k, k, 1.0, R, k, G, k)


def _spread_back(
    tape: Tape, Phi: np.ndarray, Q: np.ndarray, steps: np.ndarray, m: np.ndarray, P: np.ndarray, C: np.ndarray,
    L: Moving, d: np.ndarray,
) -> None:  # fmt: skip
    """Calls for means and covariances of an instant from those of the next; d: what the next one moves.

    K = P Φ^T (Φ P Φ^T + Q)⁻¹, C = P₊ K^T, A = P − K Φ P, P ← A + (C^T − A Φ^T + K Q) K^T.
    """
    k, noise, F, now = len(d), _pattern(Q), Moving(Phi), Moving(P)
    W, V, R = np.zeros((3, k, k))
    tape.call("dlaset", "A", k, k, 0.0, 0.0, W, k)
    tape.call("sparse", k, len(steps), steps, F, now, W)
    tape.call("transpose", k, k, W, V)
    tape.call("dpotrs", "U", k, k, L, k, V, k, np.zeros(1, dtype=np.int64))  # K, by rows
    tape.call("dgemv", "T", k, k, 1.0, V, k, d, 1, 1.0, Moving(m), 1)
    tape.call("dgemm", "T", "N", k, k, k, 1.0, V, k, Moving(P, -1), k, 0.0, Moving(C), k)
    tape.call("dgemm", "T", "T", k, k, k, -1.0, V, k, W, k, 1.0, now, k)  # A, by columns
    tape.call("dlaset", "A", k, k, 0.0, 0.0, R, k)
    tape.call("sparse", k, len(steps), steps, F, now, R)
    tape.call("dcopy", k * k, Moving(C), 1, W, 1)
    tape.call("daxpy", k * k, -1.0, R, 1, W, 1)
    tape.call("transpose", k, k, V, R)
    tape.call("sparse", k, len(noise), noise, Moving(Q), R, W)
    tape.call("dgemm", "N", "N", k, k, k, 1.0, W, k, V, k, 1.0, now, k)


def _pattern(x: np.ndarray) -> np.ndarray:
    """Places (entries, 2) of matrices (N, k, k) that are not zero throughout."""
    return np.ascontiguousarray(np.argwhere((x != 0.0).any(axis=0)), dtype=np.int64)


def _roots(Q: np.ndarray) -> np.ndarray:
    """X (N − 1, …) with X^T X = Q. Raises SingularState that names the instant behind the first that has none."""
    try:
        return np.linalg.cholesky(Q).swapaxes(-1, -2)
    except np.linalg.LinAlgError:
        finite = np.isfinite(Q).all(axis=(-1, -2))
        least = np.linalg.eigvalsh(np.where(finite[..., None, None], Q, 0.0)).min(axis=-1)
        bad = (least <= 0.0).reshape(len(Q), -1).any(axis=1)
        raise _lost(int(np.argmax(bad)) + 1) from None


def _rows(H: np.ndarray) -> np.ndarray:
    """X (…, k, k) with X^T X = H, of matrices without negative eigenvalues but for rounding."""
    w, V = np.linalg.eigh(H)
    return np.sqrt(np.maximum(w, 0.0))[..., None] * V.swapaxes(-1, -2)


def _lost(t: int) -> SingularState:
    return SingularState(
        f"digits run out at instant {t}: its covariance has standard deviations too far apart. Give states that no "
        "sensor tells a prior or a sensor, or noise that is not so small", states=(t,),
    )  # fmt: skip
