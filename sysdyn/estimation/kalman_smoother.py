"""Least squares along a chain: each instant is coupled with its neighbours alone.

    δ_1 ~ N(m, P₁),    δ_{t+1} = Φ_t δ_t + c_t + N(0, Q_t),    least Σ |r_t + J_t δ_t|² of what is measured

is solved forwards and back (Kalman 1960; Rauch, Tung and Striebel 1965), with all covariances on the way. The normal
equations of the chain would hold Q⁻¹, of which the motion of a millisecond leaves no digits (Δ^7 at order 4);
here Q is added to covariances. Readings that leave most of a covariance come in by P − X^T X, X = L⁻¹ J P of
1 + J P J^T = L L^T; those that take more than digits allow, as of a start of which nothing is known, through the
Cholesky factor of the covariance, P = U U^T, U (1 + U^T J^T J U)⁻¹ U^T, in which what is large and what is small keep
their digits (Bierman 1977). Steps alone need no factors on the way back: with what comes after an instant as λ,

    δ_t = m_t − P_t Φ_t^T λ_{t+1},    λ_t = Φ_t^T λ_{t+1} + J_t^T (r_t + J_t δ_t)

(Bryson and Frazier 1963), and covariances follow from Λ, that of λ:

    P_t ← P_t − P_t Φ_t^T Λ_{t+1} Φ_t P_t,    Λ_t = (1 − J_t^T K_t^T) Φ_t^T Λ_{t+1} Φ_t (1 − K_t J_t) + J_t^T S_t⁻¹ J_t,

K = P J^T of P after readings, S⁻¹ = 1 − J K. The noise of a step is Q λ, of variance Q − Q Λ Q (Koopman 1993).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg and scipy.sparse where they are first used

from sysdyn.errors import SingularState
from sysdyn.estimation import beside
from sysdyn.estimation.beside import ParallelChains, Sparse
from sysdyn.estimation.covariances import CovarianceBlock, Covariances
from sysdyn.runtime.call_list import CallList, StridedArray

# Least pivot of a covariance, as a share of the variance of its unknown: seven digits are left (chosen).
LEAST_SHARE_LEFT = 1e-9
# Variance that the unknowns give to a reading, in units of its noise, up to which P − X^T X keeps the digits that are
# asked for: ten of covariances, four of the gains of a step of Gauss-Newton, which the next one makes good.
MOST_TOLD, MOST_TOLD_FOR_STEPS = 1e6, 1e12
# The same up to which the covariance of what comes after keeps ten digits, which loses them by the square of it.
MOST_TOLD_BACK = 1e3
# Share of a variance that what comes after leaves of it, up to which P − U^T Λ U keeps ten digits.
LEAST_LEFT = 1e-6
# Instants at the start that are read through factors, since little is known before, and instants behind them after
# which is looked whether the others need it, too (chosen: twice the order of motion).
START, PROBED = 8, 4
# Unknowns of chains that are solved side by side by programs, and instants of all chains that are worth compiling these
# (chosen: routines of BLAS take 1 to 4 µs for such a chain and instant, programs 0.05; compiling takes 0.1 s).
FEW_UNKNOWNS, WORTH_A_PROGRAM = 4, 10_000


class DenseChain(NamedTuple):
    """A chain by dense matrices, readings as δ^T H δ + 2 h^T δ.

    H (N, k, k), h (N, k); Phi, Q (N − 1, k, k), c (N − 1, k); m (k,), P (k, k) of the first instant.
    """

    H: np.ndarray
    h: np.ndarray
    Phi: np.ndarray
    c: np.ndarray
    Q: np.ndarray
    m: np.ndarray
    P: np.ndarray


class Solved(NamedTuple):
    """δ (N, k), and if asked for, else none, covariances P (N, k, k) of instants and Λ of instants behind a step.

    later (N − 1, …): entries of Λ at the places of Q, of a `DenseChain` (N − 1, k, k) with zeros elsewhere. least: the
    least sum of squares. logdet: logarithm of the determinant of the covariance of all measurements, in units of their
    noise.
    """

    step: np.ndarray
    P: np.ndarray
    later: np.ndarray
    least: float
    logdet: float


class Sweep(NamedTuple):
    """δ (N, size) of a chain, its covariances if asked for, and the last two of `Solved`."""

    step: np.ndarray
    covariances: Covariances
    least: float
    logdet: float


def components(pattern: np.ndarray) -> list[np.ndarray]:
    """Numbers of unknowns in parts that are not coupled, of a pattern (k, k) of couplings."""
    count, label = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(pattern), directed=False)
    return [np.flatnonzero(label == k) for k in range(count)]


def couplings(x: DenseChain) -> np.ndarray:
    """(k, k) bool: pairs of unknowns that are coupled at some instant or step."""
    pattern = (x.P != 0.0) | (x.H != 0.0).any(axis=0)
    return np.asarray(pattern | (x.Phi != 0.0).any(axis=0) | (x.Q != 0.0).any(axis=0))


def solve(x: DenseChain, covariances: bool = False) -> Solved:
    """The solution of a chain, part by part. Raises SingularState that names the instant if digits run out."""
    n, k = x.h.shape
    parts = []
    for chosen in components(couplings(x)):
        rows, columns = chosen[:, None], chosen
        root, r = rows_of(x.H[:, rows, columns], x.h[:, chosen])
        sparse = (Sparse.of(y) for y in (root, x.Phi[:, rows, columns], x.Q[:, rows, columns]))
        J, Phi, Q = (Sparse(y.entries[:, None], y.places) for y in sparse)
        c, m, P = x.c[:, None, chosen], x.m[None, chosen], x.P[None, rows, columns]
        parts.append(ParallelChains(chosen[None], J, r[:, None], Phi, c, Q, m, P))
    found = sweep(parts, n, k, covariances, covariances)
    if not covariances:
        return Solved(found.step, np.zeros((0, k, k)), np.zeros((0, k, k)), found.least, found.logdet)
    later = np.zeros((n - 1, k, k))
    for block in found.covariances.blocks:
        row, column = block.columns[0, block.places.T]
        later[:, row, column] = block.later[:, 0]
    return Solved(found.step, found.covariances.dense(), later, found.least, found.logdet)


class Room:
    """Memory for covariances, which stays from sweep to sweep until they are asked for, as new memory costs more."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], np.ndarray] = {}

    def of(self, *shape: int) -> np.ndarray:
        """An array that the next call with this shape gives, too."""
        if shape not in self._kept:
            self._kept[shape] = np.empty(shape)
        return self._kept[shape]

    def given(self, *shape: int) -> np.ndarray:
        """An array that is the caller's from now on."""
        found = self.of(*shape)
        del self._kept[shape]
        return found


def sweep(
    parts: Sequence[ParallelChains], n: int, size: int, covariances: bool = False, later: bool = False,
    room: Room | None = None, last: bool = False,
) -> Sweep:  # fmt: skip
    """The solution of n instants with `size` unknowns, of which the parts have some each. Raises as `solve`.

    covariances: of instants; later: Λ behind each step; last: the covariance of the last instant alone, which the way
    forwards gives. room: for covariances.
    """
    step, blocks, least, logdet = np.zeros((n, size)), [], 0.0, 0.0
    for part in parts:
        k = part.columns.shape[1]
        if k <= FEW_UNKNOWNS and part.columns.shape[0] * n >= WORTH_A_PROGRAM:
            together = beside.solved(part, covariances, later, last, LEAST_SHARE_LEFT)
            if together is not None:
                step[:, part.columns] = together.step
                least, logdet = least + together.least, logdet + together.logdet
                if covariances or later or last:
                    blocks.append(CovarianceBlock(part.columns, together.P, together.later, part.Q.places))
                continue
        found = [_swept(part.one(i), covariances, later, last, room or Room()) for i in range(len(part.columns))]
        for own, one in zip(part.columns, found, strict=True):
            step[:, own], least, logdet = one.step, least + one.least, logdet + one.logdet
        if covariances or later or last:
            P, after = (_side_by_side([getattr(one, x) for one in found]) for x in ("P", "later"))
            blocks.append(CovarianceBlock(part.columns, P, after, part.Q.places))
    return Sweep(step, Covariances(size, blocks), least, logdet)


def told_after(part: ParallelChains, room: Room) -> np.ndarray:
    """Variances (N, chains, m) that the unknowns give the rows of a part after all of them. Raises as `solve`."""
    n, (chains, k), m = len(part.r), part.columns.shape, part.r.shape[2]
    found = []
    for i in range(chains if k > FEW_UNKNOWNS else 0):
        form = _ChainSolution(part.one(i), START, False, MOST_TOLD, room.of(n, k, k))
        told = form.told_after() if form.forwards() else None
        if told is None:
            break
        found.append(told)
    if len(found) == chains:
        return np.stack(found, axis=1)
    P = sweep([part], n, int(part.columns.max()) + 1, covariances=True).covariances.blocks[0].P
    J = part.J.dense(m, k)
    return np.asarray(np.einsum("ncij,ncij->nci", J @ P, J))


def _side_by_side(found: list[np.ndarray]) -> np.ndarray:
    """(N, chains, …) of arrays (N, …); of one as it is, for it may be large."""
    return found[0][:, None] if len(found) == 1 else np.stack(found, axis=1)


def _swept(x: ParallelChains, covariances: bool, later: bool, last: bool, room: Room) -> Solved:
    """A chain, by routines of BLAS and LAPACK that compiled code calls.

    Through factors where P − X^T X would cost digits; by factors of covariances from those of their terms by QR
    factorisations (Kaminski, Bryson and Schmidt 1971), which keep all digits and take twice as long, if Cholesky's of
    the sums lose too many.
    """
    n, k, most = len(x.r), len(x.columns), MOST_TOLD if covariances or later or last else MOST_TOLD_FOR_STEPS
    for start, roots in ((START, False), (n, False), (n, True)):
        form = _ChainSolution(x, start, roots, most, (room.given if covariances else room.of)(n, k, k), later)
        if form.forwards():
            found = form.back_with_covariances(covariances) if covariances or later else form.back()
            if found is not None:
                return found._replace(P=form.P[-1:].copy()) if last else found
    raise _lost(form.bad)


class _ChainSolution:
    """A chain (N, k) that is solved: means before and after readings, and P after them.

    start: instants that are read through factors. most: variance of readings beyond which digits are lost. P (N, k, k):
    memory for it. roots: by QR factorisations, see `_swept`. later (N or 0, e): Λ at the places of Q. factors
    (N, k, k): of P before readings, if by roots. bad: the first instant that has lost its digits.
    """

    def __init__(self, x: ParallelChains, start: int, roots: bool, most: float, P: np.ndarray, later: bool = False):
        self.x, self.start, self.roots, self.most, self.bad = x, start, roots, most, 0
        n, k = len(x.r), len(x.columns)
        self.later = np.empty((n if later else 0, len(x.Q.places)))
        self.n, self.k, self.rows = n, k, x.r.shape[1]
        self.m, self.before, self.P = np.empty((n, k)), np.empty((n, k)), P
        self.factors = np.zeros((n if roots else 1, k, k))
        self.variances, self.pivots = np.zeros((n, k)), np.ones((n, k))
        self.wrong = np.zeros((n, 3), dtype=np.intc)
        # of readings: what is left of them, its factor's pivots, and the variances that the unknowns give them
        self.z, self.sizes, self.told = np.zeros((n, self.rows)), np.ones((n, self.rows)), np.zeros((n, self.rows))
        self.G = np.zeros((k, k))
        self.arrays = [np.ascontiguousarray(y) for y in (x.r, x.c, x.J.entries, x.Phi.entries, x.Q.entries)]
        self.noise = (x.Q.places @ [k, 1]).astype(np.intc)

    # ---- forwards ----------------------------------------------------------------------------------------------

    def forwards(self) -> bool:
        """Go forwards; False if digits are lost."""
        x, n, head = self.x, self.n, min(self.start, self.n)
        self.before[0], self.P[0] = x.m, x.P
        first, ahead, through, plain = CallList(), CallList(), CallList(), CallList()
        if self.roots:
            try:
                self.factors[0] = np.linalg.cholesky(x.P)
            except np.linalg.LinAlgError:
                raise _lost(0) from None
        else:
            self._factor(first)
        self._read_through(through)
        (first + through).run(range(1))
        if n > 1:
            self._predict(ahead)
            if not self.roots:
                self._factor(through_all := CallList())
                through = through_all + through
            (ahead + through).run(range(1, head))
            self._read(plain)
            tried = min(head + PROBED, n)
            (ahead + plain).run(range(head, tried))
            if self._lost(head):
                return False
            (ahead + plain).run(range(tried, n))
        return not self._lost(head)

    def _lost(self, head: int) -> bool:
        """True if digits are lost; the first instants have been read through factors."""
        bad = np.zeros(self.n, dtype=bool)
        if not self.roots:  # the first instant is as it is given
            own, variances = np.square(self.pivots[1:head]), self.variances[1:head]
            bad[1:head] = ~(own >= LEAST_SHARE_LEFT * variances).all(axis=1)
        bad |= self.wrong.any(axis=1) | ~np.isfinite(self.sizes).all(axis=1)
        bad[head:] |= ~(np.abs(self.told[head:]) <= self.most).all(axis=1)
        self.bad = int(np.argmax(bad))
        return bool(bad.any())

    def _predict(self, calls: CallList) -> None:
        """Calls for the mean and P before readings, Φ P Φ^T + Q; or its factor, P of the instant before = G^T G."""
        k, (_, c, _, phi, noise) = self.k, self.arrays
        F, places = StridedArray(phi, 1), self.x.Phi.places
        calls.call("dcopy", k, StridedArray(c, 1), 1, StridedArray(self.before), 1)
        calls.spmm(1, k, places, F, StridedArray(self.m, 1), StridedArray(self.before), add=True)
        if self.roots:
            roots = np.ascontiguousarray(_roots(self.x.Q.dense(k, k)).swapaxes(1, 2))  # by columns
            dense = self.x.Phi.dense(k, k)
            both, tau, work = np.zeros((k, 2 * k)), np.zeros(k), np.zeros(64 * k)
            calls.call("dgemm", "N", "N", k, k, k, 1.0, self.G, k, StridedArray(dense, 1), k, 0.0, both, 2 * k)
            calls.call("dlacpy", "A", k, k, StridedArray(roots, 1), k, both.reshape(-1)[k:], 2 * k)
            calls.call("dgeqrf", 2 * k, k, both, 2 * k, tau, work, len(work), StridedArray(self.wrong))
            calls.call("dlacpy", "U", k, k, both, 2 * k, StridedArray(self.factors), k)
            return
        W, V = np.zeros((2, k, k))
        calls.spmm(k, k, places, F, StridedArray(self.P, 1), W)
        calls.call("transpose", k, k, W, V)
        self._sum(calls, F, StridedArray(noise, 1), V, StridedArray(self.P))

    def _sum(
        self, calls: CallList, F: StridedArray, noise: StridedArray, V: np.ndarray, into: StridedArray | np.ndarray
    ) -> None:
        """Calls for Φ V + Q."""
        calls.spmm(self.k, self.k, self.x.Phi.places, F, V, into)
        calls.call("scatter_add", len(self.noise), self.noise, noise, into)

    def _factor(self, calls: CallList) -> None:
        """Calls for the factor of P before readings."""
        k, L = self.k, self.factors[0]
        calls.call("dcopy", k * k, StridedArray(self.P), 1, L, 1)
        calls.call("dcopy", k, L, k + 1, StridedArray(self.variances), 1)
        calls.call("dpotrf", "U", k, L, k, StridedArray(self.wrong))
        calls.call("dcopy", k, L, k + 1, StridedArray(self.pivots), 1)
        if k > 1:
            calls.call("dlaset", "L", k - 1, k - 1, 0.0, 0.0, L.reshape(-1)[1:], k)

    def _expected(self, calls: CallList) -> None:
        """Calls for the readings before they are taken in, r + J m."""
        places, (r, _, J, _, _) = self.x.J.places, self.arrays
        calls.call("dcopy", self.rows, StridedArray(r), 1, StridedArray(self.z), 1)
        calls.spmm(1, self.rows, places, StridedArray(J), StridedArray(self.before), StridedArray(self.z), add=True)

    def _weighed(self, calls: CallList, S: np.ndarray) -> None:
        """Calls for the factor of 1 + S, S = J P J^T."""
        m = self.rows
        calls.call("dcopy", m, S, m + 1, StridedArray(self.told), 1)
        calls.call("daxpy", m, 1.0, np.ones(m), 1, S, m + 1)
        calls.call("dpotrf", "L", m, S, m, StridedArray(self.wrong, offset=1))
        calls.call("dcopy", m, S, m + 1, StridedArray(self.sizes), 1)

    def _read(self, calls: CallList) -> None:
        """Calls for the mean and P after readings, P − X^T X."""
        k, m, places, P = self.k, self.rows, self.x.J.places, StridedArray(self.P)
        calls.call("dcopy", k, StridedArray(self.before), 1, StridedArray(self.m), 1)
        if not m:
            return
        J, X, W, S = StridedArray(self.arrays[2]), np.zeros((m, k)), np.zeros((k, m)), np.zeros((m, m))
        calls.spmm(k, m, places, J, P, X)
        calls.call("transpose", m, k, X, W)
        calls.spmm(m, m, places, J, W, S)
        self._weighed(calls, S)
        self._expected(calls)
        calls.call("trsm", 1, m, S, StridedArray(self.z))
        calls.call("trsm", k, m, S, X)
        calls.call("dgemv", "N", k, m, -1.0, X, k, StridedArray(self.z), 1, 1.0, StridedArray(self.m), 1)
        calls.call("syrk_sub", k, m, X, X, P)
        calls.call("symmetrise", k, P)

    def _read_through(self, calls: CallList) -> None:
        """Calls for G = R⁻¹ L^T with R R^T = 1 + L^T J^T J L, P = G^T G, and the mean after readings."""
        k, m, places, G, P = self.k, self.rows, self.x.J.places, self.G, StridedArray(self.P)
        L = StridedArray(self.factors) if self.roots else self.factors[0]
        J, R, B, S, right = (
            StridedArray(self.arrays[2]),
            np.zeros((k, k)),
            np.zeros((m, k)),
            np.zeros((m, m)),
            np.zeros(k),
        )
        half = "LN"
        calls.call("dcopy", k, StridedArray(self.before), 1, StridedArray(self.m), 1)
        calls.call("dcopy", k * k, L, 1, G, 1)
        if m:
            calls.spmm(k, m, places, J, L, B)
            calls.call("dsyrk", "L", "T", m, k, 1.0, B, k, 0.0, S, m)
            self._weighed(calls, S)
            if self.roots:
                both, tau, work, half = np.zeros((k, m + k)), np.zeros(k), np.zeros(64 * k), "UT"
                calls.call("transpose", m, k, B, both_rows := np.zeros((k, m)))
                calls.call("dlacpy", "A", m, k, both_rows, m, both, m + k)
                calls.call("dlaset", "A", k, k, 0.0, 1.0, both.reshape(-1)[m:], m + k)
                calls.call("dgeqrf", m + k, k, both, m + k, tau, work, len(work), StridedArray(self.wrong, offset=2))
                calls.call("dlacpy", "U", k, k, both, m + k, R, k)
            else:
                calls.call("dlaset", "A", k, k, 0.0, 1.0, R, k)
                calls.call("dsyrk", "L", "N", k, m, 1.0, B, k, 1.0, R, k)
                calls.call("dpotrf", "L", k, R, k, StridedArray(self.wrong, offset=2))
            calls.call("dtrsm", "L", *half, "N", k, k, 1.0, R, k, G, k)
        calls.call("dsyrk", "U", "T", k, k, 1.0, G, k, 0.0, P, k)
        calls.call("symmetrise", k, P)
        if m:
            self._expected(calls)
            calls.spmm(1, k, places[:, ::-1], J, StridedArray(self.z), right)
            calls.call("dgemv", "N", k, k, -1.0, P, k, right, 1, 1.0, StridedArray(self.m), 1)
            calls.call("trsm", 1, m, S, StridedArray(self.z))

    # ---- back --------------------------------------------------------------------------------------------------

    def _solved(self, P: np.ndarray) -> Solved:
        least, logdet = float(np.vdot(self.z, self.z)), 2.0 * float(np.log(self.sizes).sum())
        return Solved(self.m, P, self.later[1:], least, logdet)

    def back(self) -> Solved | None:
        """Go back, steps alone: through factors where readings came in through them. None if digits are lost."""
        k, n, head = self.k, self.n, min(self.start, self.n)
        own, calls, through, later, u = CallList(), CallList(), CallList(), np.zeros(k), np.zeros(k)
        self._step(calls, later)
        for x in (own, calls):
            self._later(x, later)
        if head < n:
            own.run(range(n - 1, n - 2, -1))
            calls.run(range(n - 2, head - 1, -1))
        d, L, _, _ = self._moved(through)
        through.call("dpotrs", "U", k, 1, L, k, d, k, np.zeros(1, dtype=np.intc))
        through.spmm(1, k, self.x.Phi.places[:, ::-1], StridedArray(self.arrays[3]), d, u)
        through.call("dgemv", "N", k, k, 1.0, StridedArray(self.P), k, u, 1, 1.0, StridedArray(self.m), 1)
        through.run(range(min(head, n - 1) - 1, -1, -1))
        if not self.roots and self._lost(min(head + 1, n)):
            return None
        return self._solved(self.P[:0])

    def back_with_covariances(self, covariances: bool = True) -> Solved | None:
        """Go back; None if digits are lost. covariances: those of all instants; else what Λ needs alone.

        Through factors, where readings came in through them: K = P Φ^T (Φ P Φ^T + Q)⁻¹, A = P − K Φ P and
        P ← A + (P₊ K^T − (A Φ^T)^T + K Q)^T K^T.
        """
        n, k, x, head, now = self.n, self.k, self.x, min(self.start, self.n), StridedArray(self.P)
        kept = np.zeros((k, k))
        F, noise, places = StridedArray(self.arrays[3]), StridedArray(self.arrays[4]), x.Phi.places
        if not covariances and head < n:
            return self._solved(self.P[:0]) if self._informed_back(0, covariances=False) else None
        if head < n and not self._informed_back(head):
            return None
        calls, R = CallList(), np.zeros((k, k))
        d, L, W, V = self._moved(calls)
        if len(self.later):
            self._compared(calls, L)
        calls.call("dcopy", k * k, W, 1, R, 1)  # P Φ^T by columns, from which K
        calls.call("dtrsm", "R", "U", "N", "N", k, k, 1.0, L, k, R, k)
        calls.call("dtrsm", "R", "U", "T", "N", k, k, 1.0, L, k, R, k)
        calls.call("transpose", k, k, R, V)  # by rows
        calls.call("dgemv", "T", k, k, 1.0, V, k, d, 1, 1.0, StridedArray(self.m), 1)
        calls.call("dgemm", "T", "N", k, k, k, 1.0, V, k, StridedArray(self.P, -1), k, 0.0, kept, k)
        calls.call("dgemm", "T", "T", k, k, k, -1.0, V, k, W, k, 1.0, now, k)  # A, by columns
        calls.spmm(k, k, places, F, now, R)
        calls.call("daxpy", k * k, -1.0, R, 1, kept, 1)
        calls.call("transpose", k, k, V, R)
        calls.spmm(k, k, x.Q.places, noise, R, kept, add=True)
        calls.call("dgemm", "N", "N", k, k, k, 1.0, kept, k, V, k, 1.0, now, k)
        calls.run(range(min(head, n - 1) - 1, -1, -1))
        if not self.roots and self._lost(min(head + 1, n)):
            return None
        return self._solved(self.P[: n if covariances else 0])

    def told_after(self) -> np.ndarray | None:
        """Go back; variances (N, m) that the unknowns give the readings after all of them, in units of their noise.

        None if digits are lost.
        """
        told = np.zeros((self.n, self.rows))
        return -told if self._informed_back(0, told, covariances=False) else None

    def _informed_back(self, head: int, told: np.ndarray | None = None, covariances: bool = True) -> bool:
        """Go back to an instant: δ, and P after all readings. False if digits are lost.

        With Λ, the covariance of λ, and U = Φ P: P ← P − U^T Λ₊ U. Where readings take more than Λ keeps in digits, it
        is P₋⁻¹ (P₋ − P) P₋⁻¹. told: see `_informed`. covariances: P of all instants, else only where Λ needs it.
        """
        n, k, x, now = self.n, self.k, self.x, StridedArray(self.P)
        F, places = StridedArray(self.arrays[3]), x.Phi.places
        variances = np.ones((2, n, k))  # before and after what comes later
        later, (Later, U, V) = np.zeros(k), np.zeros((3, k, k))
        strong = np.asarray((np.abs(self.told) > MOST_TOLD_BACK).any(axis=1))
        strong[0] = False
        lists = {}
        for renewed in (False, True):
            for last in (False, True):
                calls = lists[renewed, last] = CallList()
                spread = not last and (renewed or covariances)
                if spread:
                    calls.spmm(k, k, places, F, now, U)
                    calls.call("dgemm", "N", "N", k, k, k, 1.0, U, k, Later, k, 0.0, V, k)
                if not last:
                    self._step(calls, later)
                if not renewed or told is not None:
                    if not last:
                        self._turned_back(calls, Later)
                    self._informed(calls, Later, told)
                if spread:
                    calls.call("dcopy", k, now, k + 1, StridedArray(variances[0]), 1)
                    calls.call("syrk_sub", k, k, U, V, now)
                    calls.call("symmetrise", k, now)
                    calls.call("dcopy", k, now, k + 1, StridedArray(variances[1]), 1)
                if renewed:
                    self._renewed(calls, later, Later)
                else:
                    self._later(calls, later)
                if len(self.later):
                    calls.call("gather", len(self.noise), self.noise, Later, StridedArray(self.later))
        lists[bool(strong[-1]), True].run(range(n - 1, n - 2, -1))
        bounds = [n - 2, *(np.flatnonzero(np.diff(strong[head : n - 1]))[::-1] + head).tolist(), head - 1]
        for first, last in itertools.pairwise(bounds):
            lists[bool(strong[first]), False].run(range(first, last, -1))
        return bool((variances[1] >= LEAST_LEFT * variances[0]).all()) and not self.wrong.any()

    def _step(self, calls: CallList, later: np.ndarray) -> None:
        """Calls for δ, and for Φ^T λ in place of λ."""
        k, before = self.k, np.zeros(self.k)
        calls.call("dcopy", k, later, 1, before, 1)
        calls.spmm(1, k, self.x.Phi.places[:, ::-1], StridedArray(self.arrays[3]), before, later)
        calls.call("dgemv", "N", k, k, -1.0, StridedArray(self.P), k, later, 1, 1.0, StridedArray(self.m), 1)

    def _later(self, calls: CallList, later: np.ndarray) -> None:
        """Calls that add what is read to λ, J^T (r + J δ)."""
        if self.rows:
            places, J, y = self.x.J.places, StridedArray(self.arrays[2]), np.zeros(self.rows)
            calls.call("dcopy", self.rows, StridedArray(self.arrays[0]), 1, y, 1)
            calls.spmm(1, self.rows, places, J, StridedArray(self.m), y, add=True)
            calls.spmm(1, self.k, places[:, ::-1], J, y, later, add=True)

    def _renewed(self, calls: CallList, later: np.ndarray, Later: np.ndarray) -> None:
        """Calls for λ and Λ of an instant from its δ and P, and from those before its readings."""
        k, F, (W, V, R) = self.k, StridedArray(self.arrays[3], 1), np.zeros((3, self.k, self.k))
        calls.spmm(k, k, self.x.Phi.places, F, StridedArray(self.P, 1), W)
        calls.call("transpose", k, k, W, V)
        self._sum(calls, F, StridedArray(self.arrays[4], 1), V, R)
        calls.call("dpotrf", "L", k, R, k, StridedArray(self.wrong))
        # by rows, L⁻¹ P L⁻^T and L⁻^T (1 − that) L⁻¹
        calls.call("dcopy", k * k, StridedArray(self.P), 1, W, 1)
        for x, y in ((W, V), (V, W)):
            calls.call("trsm", k, k, R, x)
            calls.call("transpose", k, k, x, y)
        calls.call("dlaset", "A", k, k, 0.0, 1.0, Later, k)
        calls.call("daxpy", k * k, -1.0, W, 1, Later, 1)
        for x, y in ((Later, V), (V, Later)):
            calls.call("dtrsm", "R", "L", "N", "N", k, k, 1.0, R, k, x, k)
            calls.call("transpose", k, k, x, y)
        calls.call("dcopy", k, StridedArray(self.before), 1, later, 1)
        calls.call("daxpy", k, -1.0, StridedArray(self.m), 1, later, 1)
        calls.call("dpotrs", "L", k, 1, R, k, later, k, np.zeros(1, dtype=np.intc))

    def _compared(self, calls: CallList, L: StridedArray | np.ndarray) -> None:
        """Calls for Λ of the next instant by its P before readings, of this factor, and after all of them."""
        k, (E, Later) = self.k, np.zeros((2, self.k, self.k))
        calls.call("dcopy", k * k, StridedArray(self.P, -1), 1, E, 1)
        calls.call("dtrsm", "R", "U", "N", "N", k, k, 1.0, L, k, E, k)
        calls.call("dtrsm", "L", "U", "T", "N", k, k, 1.0, L, k, E, k)
        calls.call("dlaset", "A", k, k, 0.0, 1.0, Later, k)
        calls.call("daxpy", k * k, -1.0, E, 1, Later, 1)
        calls.call("dtrsm", "L", "U", "N", "N", k, k, 1.0, L, k, Later, k)
        calls.call("dtrsm", "R", "U", "T", "N", k, k, 1.0, L, k, Later, k)
        calls.call("gather", len(self.noise), self.noise, Later, StridedArray(self.later, -1))

    def _turned_back(self, calls: CallList, Later: np.ndarray) -> None:
        """Calls for Φ^T Λ Φ in place of Λ."""
        k, places, F, (W, V) = (
            self.k,
            self.x.Phi.places[:, ::-1],
            StridedArray(self.arrays[3]),
            np.zeros((2, self.k, self.k)),
        )
        calls.spmm(k, k, places, F, Later, W)
        calls.call("transpose", k, k, W, V)
        calls.spmm(k, k, places, F, V, Later)
        calls.call("transpose", k, k, Later, W)
        calls.call("daxpy", k * k, 1.0, W, 1, Later, 1)
        calls.call("daxpy", k * k, -0.5, Later, 1, Later, 1)

    def _informed(self, calls: CallList, Later: np.ndarray, told: np.ndarray | None = None) -> None:
        """Calls that add what is read to Λ: J^T (1 − K^T J^T) J + (1 − K J)^T Λ (1 − K J), K = P J^T.

        told (N, m): receives −J P J^T of P after all readings.
        """
        k, m, places, J = self.k, self.rows, self.x.J.places, StridedArray(self.arrays[2])
        if not m:
            return
        (K, B, X), (W, V), (D, E) = np.zeros((3, m, k)), np.zeros((2, k, k)), np.zeros((2, m, m))
        Y = np.zeros((k, m))
        calls.spmm(k, m, places, J, StridedArray(self.P), K)
        calls.call("dgemm", "N", "N", k, m, k, 1.0, Later, k, K, k, 0.0, B, k)
        calls.call("dgemm", "T", "N", m, m, k, 1.0, K, k, B, k, 0.0, D, m)
        calls.call("transpose", m, k, K, Y)
        calls.spmm(m, m, places, J, Y, E)
        calls.call("daxpy", m * m, -1.0, E, 1, D, 1)
        if told is not None:
            calls.call("dcopy", m, D, m + 1, StridedArray(told), 1)
        calls.call("daxpy", m, 1.0, np.ones(m), 1, D, m + 1)
        # Λ − J^T (B − D J/2) − (B − D J/2)^T J
        calls.spmm(m, k, places[:, ::-1], J, D, Y)
        calls.call("transpose", k, m, Y, X)
        calls.call("daxpy", m * k, -0.5, X, 1, B, 1)
        calls.spmm(k, k, places[:, ::-1], J, B, W)
        calls.call("transpose", k, k, W, V)
        calls.call("daxpy", k * k, -1.0, W, 1, Later, 1)
        calls.call("daxpy", k * k, -1.0, V, 1, Later, 1)

    def _moved(self, calls: CallList) -> tuple[np.ndarray, StridedArray | np.ndarray, np.ndarray, np.ndarray]:
        """Calls for (what the next instant moves, the factor of its P before readings, Φ P, P Φ^T)."""
        k, places, F = self.k, self.x.Phi.places, StridedArray(self.arrays[3])
        d, (W, V, R) = np.zeros(k), np.zeros((3, k, k))
        calls.call("dcopy", k, StridedArray(self.m, -1), 1, d, 1)
        calls.call("daxpy", k, -1.0, StridedArray(self.before, -1), 1, d, 1)
        calls.spmm(k, k, places, F, StridedArray(self.P), W)
        calls.call("transpose", k, k, W, V)
        if self.roots:
            return d, StridedArray(self.factors, -1), W, V
        self._sum(calls, F, StridedArray(self.arrays[4]), V, R)
        calls.call("dcopy", k, R, k + 1, StridedArray(self.variances, -1), 1)
        calls.call("dpotrf", "U", k, R, k, StridedArray(self.wrong, -1))
        calls.call("dcopy", k, R, k + 1, StridedArray(self.pivots, -1), 1)
        return d, R, W, V


def _roots(Q: np.ndarray) -> np.ndarray:
    """X (N − 1, …) with X^T X = Q. Raises SingularState that names the instant behind the first that has none."""
    try:
        return np.linalg.cholesky(Q).swapaxes(-1, -2)
    except np.linalg.LinAlgError:
        finite = np.isfinite(Q).all(axis=(-1, -2))
        least = np.linalg.eigvalsh(np.where(finite[..., None, None], Q, 0.0)).min(axis=-1)
        bad = (least <= 0.0).reshape(len(Q), -1).any(axis=1)
        raise _lost(int(np.argmax(bad)) + 1) from None


def rows_of(H: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(X (N, k, k), y (N, k)) with X^T X = H and X^T y = h, of H without negative eigenvalues but for rounding."""
    size = np.sqrt(np.einsum("nii->ni", H))
    size[size == 0.0] = 1.0
    w, V = np.linalg.eigh(H / (size[:, :, None] * size[:, None, :]))
    root = np.sqrt(np.maximum(w, 0.0))
    along = (V.swapaxes(1, 2) @ (h / size)[..., None])[..., 0]
    y = np.divide(along, root, out=np.zeros_like(along), where=root > 0.0)
    return root[:, :, None] * V.swapaxes(1, 2) * size[:, None, :], y


def _lost(t: int) -> SingularState:
    return SingularState(
        f"digits run out at instant {t}: its covariance has standard deviations too far apart. Give states that no "
        "sensor tells a prior or a sensor, or noise that is not so small", states=(t,),
    )  # fmt: skip
