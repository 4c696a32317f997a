"""Kalman smoother: the Gauss-Newton step of a log, and its marginal covariances.

    δ_0 ~ N(m, P),    δ_{t+1} = Φ_t δ_t + c_t + N(0, Q_t),    minimise Σ |r_t + J_t δ_t|² with these priors

Covariances are propagated rather than information, because Q⁻¹ at 1 ms loses all digits (Q has entries from Δ⁷ to Δ at
order 4). The forward pass is the Kalman filter (Kalman 1960),

    m ← m − Kᵀ (r + J m),    P ← P − Xᵀ X,    X = L⁻¹ J P,    1 + J P Jᵀ = L Lᵀ,    K = L⁻ᵀ X

The backward pass has the adjoint λ of the state and its covariance Λ (Bryson and Frazier 1963, Koopman 1993). With
m, P after the measurements of a time step, and K = J P = the gain of noise of variance 1,

    δ_t = m − P Φᵀ λ_{t+1},          λ_t = Φᵀ λ_{t+1} + Jᵀ (r + J δ_t)
    P_t = P − P Φᵀ Λ_{t+1} Φ P,      Λ_t = (1 − Kᵀ J)ᵀ Φᵀ Λ_{t+1} Φ (1 − Kᵀ J) + Jᵀ (L Lᵀ)⁻¹ J

Compiled code makes these calls of BLAS and LAPACK. A subtraction that reduces a variance by a factor loses as many
digits. `square_root_filter` and `square_root_smoother` lose none: they triangularise factors of covariances by QR
(Kaminski, Bryson and Schmidt 1971), in NumPy. They specify the compiled code, and compute the first time steps, whose
prior is wide, and all before one that would lose too many digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # loads scipy.linalg and scipy.sparse lazily

from sysdyn.errors import SingularState
from sysdyn.estimation.covariances import CovarianceBlock, Covariances
from sysdyn.runtime.call_list import CallList, StridedArray

# Largest factor by which a subtraction may reduce a variance: states are right to 1e-4 of their std (measured).
MAX_REDUCTION = 1e11
# Time steps that always take square roots: the highest order of the process model.
SQUARE_ROOT_STEPS = 4


class Sparse(NamedTuple):
    """Matrices of one pattern: entries (N, …, e) at places (e, 2), rows and columns."""

    entries: np.ndarray
    places: np.ndarray

    def dense(self, rows: int, columns: int) -> np.ndarray:
        """The matrices (N, …, rows, columns) with their zeros."""
        matrices = np.zeros((*self.entries.shape[:-1], rows, columns))
        matrices[..., self.places[:, 0], self.places[:, 1]] = self.entries
        return matrices


class ParallelChains(NamedTuple):
    """Independent chains of one structure: columns (chains, k) of their unknowns; all arrays have an axis of chains.

    J, r (N, chains, m): measurements. Phi, Q, c: N − 1 transitions; an axis of length 1 is shared by all chains. m
    (chains, k), P (chains, k, k): prior of the first time step.
    """

    columns: np.ndarray
    J: Sparse
    r: np.ndarray
    Phi: Sparse
    c: np.ndarray
    Q: Sparse
    m: np.ndarray
    P: np.ndarray

    def contiguous(self) -> ParallelChains:
        """The same chains in contiguous memory."""
        J, Phi, Q = (Sparse(np.ascontiguousarray(x.entries), x.places) for x in (self.J, self.Phi, self.Q))
        return self._replace(J=J, r=np.ascontiguousarray(self.r), Phi=Phi, c=np.ascontiguousarray(self.c), Q=Q)

    def one(self, i: int) -> ParallelChains:
        """Chain i, without the axis of chains."""

        def select(x: np.ndarray) -> np.ndarray:
            return x[:, i if x.shape[1] > 1 else 0]

        J, Phi, Q = (Sparse(select(x.entries), x.places) for x in (self.J, self.Phi, self.Q))
        return ParallelChains(self.columns[i], J, select(self.r), Phi, select(self.c), Q, self.m[i], self.P[i])


class SmootherResult(NamedTuple):
    """Result of the Kalman smoother of a linearised log.

    step (N, size): δ, the Gauss-Newton step. covariances: empty unless requested. min_cost: minimum of the cost.
    logdet: log det of the covariance of all measurements, for the log-likelihood.
    """

    step: np.ndarray
    covariances: Covariances
    min_cost: float
    logdet: float


class BufferPool:
    """Buffers for covariances, reused until a caller takes one, because new memory is expensive."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, ...], np.ndarray] = {}

    def borrow(self, *shape: int) -> np.ndarray:
        """A buffer, which the next call with this shape returns, too."""
        if shape not in self._buffers:
            self._buffers[shape] = np.empty(shape)
        return self._buffers[shape]

    def take(self, *shape: int) -> np.ndarray:
        """A buffer that belongs to the caller."""
        self.borrow(*shape)
        return self._buffers.pop(shape)


def components(pattern: np.ndarray) -> list[np.ndarray]:
    """Indices of the unknowns of each connected component of a pattern (k, k)."""
    count, label = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(pattern), directed=False)
    return [np.flatnonzero(label == k) for k in range(count)]


def smooth(
    parts: Sequence[ParallelChains], n: int, size: int, covariances: bool = False, last: bool = False,
    pool: BufferPool | None = None,
) -> SmootherResult:  # fmt: skip
    """Smooth all chains of n time steps and `size` unknowns. Raises SingularState that names the time step.

    covariances: of all time steps, and Λ; last: of the last one only, which the forward pass gives.
    """
    step, blocks, cost, logdet, pool = np.zeros((n, size)), [], 0.0, 0.0, pool or BufferPool()
    for part in parts:
        solution = _solve(part, covariances, pool)
        step[:, part.columns] = solution.m
        cost, logdet = cost + solution.min_cost, logdet + solution.logdet
        if covariances or last:
            P = solution.P if covariances else solution.P[-1:].copy()
            blocks.append(CovarianceBlock(part.columns, P, solution.adjoint, part.Q.places))
    return SmootherResult(step, Covariances(size, blocks), cost, logdet)


class _Solution:
    """Buffers of the chains of a part: m (N, chains, k), P (N, chains, k, k), and entries of Λ at the places of Q.

    innovation (N, chains, m, m): L, by columns, if covariances are requested.
    """

    def __init__(self, x: ParallelChains, covariances: bool, pool: BufferPool):
        (n, chains, m), k = x.r.shape, x.columns.shape[1]
        self.m = np.empty((n, chains, k))
        self.P = (pool.take if covariances else pool.borrow)(n, chains, k, k)
        self.innovation = pool.borrow(n if covariances else 0, chains, m, m)
        self.adjoint = np.empty((n - 1 if covariances else 0, chains, len(x.Q.places)))
        self.min_cost = self.logdet = 0.0


def _solve(x: ParallelChains, covariances: bool, pool: BufferPool) -> _Solution:
    """Smooth the chains of a part: time steps up to `head` by square roots, the others by subtraction."""
    n, chains, head = len(x.r), len(x.columns), SQUARE_ROOT_STEPS
    x, solution = x.contiguous(), _Solution(x, covariances, pool)
    for final in (False, True, True):
        head = min(head, n)
        smoother_steps = square_root_filter(x, head, solution)
        worst = -1
        for i in range(chains if head < n else 0):
            chain = _CompiledChain(x.one(i), head, solution, i)
            worst = max(worst, chain.run(covariances))
        if worst < head:
            square_root_smoother(x, smoother_steps, solution)
            return solution
        head = n if final else worst + 1
    raise AssertionError("square roots have no step that is too large")


# ---- specification, by square roots ----------------------------------------------------------------------------------


class SmootherStep(NamedTuple):
    """Transition to a time step, given the measurements before: δ_t | δ_{t+1} ~ N(m_t + Kᵀ (δ_{t+1} − mean), Vᵀ V).

    root (chains, k, k): upper factor of the predicted covariance.
    """

    mean: np.ndarray
    root: np.ndarray
    K: np.ndarray
    V: np.ndarray


def square_root_filter(x: ParallelChains, head: int, solution: _Solution) -> list[SmootherStep]:
    """Filter time steps 0 to head − 1 into `solution`; return the transitions behind each, up to that to step head."""
    (chains, k), m = x.columns.shape, x.r.shape[2]
    J = x.J._replace(entries=x.J.entries[:head]).dense(m, k)
    transitions = min(head, len(x.r) - 1)
    Phi, Q = (y._replace(entries=y.entries[:transitions]).dense(k, k) for y in (x.Phi, x.Q))
    mean, root, steps = x.m, _factor(x.P, 0), list[SmootherStep]()
    solution.min_cost = solution.logdet = 0.0
    for t in range(head):
        array = np.zeros((chains, k + m, m + k + 1))
        array[:, :k, :m], array[:, :k, m:-1] = root @ J[t].swapaxes(-1, -2), root
        array[:, k:, :m], array[:, k:, -1] = np.eye(m), x.r[t] + (J[t] @ mean[..., None])[..., 0]
        R = np.asarray(np.linalg.qr(array, mode="r"))
        z, X, root = R[:, :m, -1], R[:, :m, m:-1], R[:, m : m + k, m:-1]
        mean = mean - (z[:, None] @ X)[:, 0]
        if not np.isfinite(mean).all():
            raise _singular(t)
        solution.m[t], solution.P[t] = mean, root.swapaxes(-1, -2) @ root
        solution.min_cost += float(np.vdot(z, z))
        solution.logdet += 2.0 * float(np.log(np.abs(np.einsum("cii->ci", R[:, :m, :m]))).sum())
        if t < transitions:
            array = np.zeros((chains, 2 * k, 2 * k))
            array[:, :k, :k], array[:, :k, k:] = root @ Phi[t].swapaxes(-1, -2), root
            array[:, k:, :k] = _factor(Q[t], t + 1)
            mean = (Phi[t] @ mean[..., None])[..., 0] + x.c[t]
            R = np.asarray(np.linalg.qr(array, mode="r"))
            root = R[:, :k, :k]
            steps.append(SmootherStep(mean, root, np.linalg.solve(root, R[:, :k, k:]), R[:, k:, k:]))
    return steps


def square_root_smoother(x: ParallelChains, steps: Sequence[SmootherStep], solution: _Solution) -> None:
    """Smooth time steps before len(steps), from that one on which is smoothed (Rauch, Tung and Striebel 1965)."""
    m, P, (row, column) = solution.m, solution.P, x.Q.places.T
    for t, (mean, root, K, V) in reversed(list(enumerate(steps))):
        m[t] += ((m[t + 1] - mean)[:, None] @ K)[:, 0]
        if len(solution.adjoint):
            inverse = np.linalg.inv(root)
            change = np.eye(len(inverse[0])) - inverse.swapaxes(-1, -2) @ P[t + 1] @ inverse
            solution.adjoint[t] = (inverse @ change @ inverse.swapaxes(-1, -2))[:, row, column]
            P[t] = V.swapaxes(-1, -2) @ V + K.swapaxes(-1, -2) @ P[t + 1] @ K


def _factor(P: np.ndarray, t: int) -> np.ndarray:
    """U with Uᵀ U = P. Raises SingularState that names time step t."""
    try:
        return np.linalg.cholesky(P).swapaxes(-1, -2)
    except np.linalg.LinAlgError:
        raise _singular(t) from None


def _singular(t: int) -> SingularState:
    return SingularState(
        f"digits run out at time step {t}: standard deviations of its states are too far apart. Give states that no "
        "sensor observes a prior or a sensor, or noise that is not so small", states=(t,),
    )  # fmt: skip


# ---- compiled, by subtraction ----------------------------------------------------------------------------------------


class _CompiledChain:
    """Chain i of a solution, from time step `head` on, by calls of BLAS, LAPACK and routines.h.

    A matrix that is symmetric, or stored row by row where BLAS expects columns, is its own transpose there.
    """

    def __init__(self, x: ParallelChains, head: int, solution: _Solution, i: int):
        self.n, self.m, self.k, self.head = len(x.r), x.r.shape[1], len(x.columns), head
        self.solution, self.J_places, self.Phi_places = solution, x.J.places, x.Phi.places
        self.noise = (x.Q.places @ [self.k, 1]).astype(np.intc)
        self.data = x.r, x.c, x.J.entries, x.Phi.entries, x.Q.entries
        # entry t of Phi, Q and c leads to time step t + 1; `…_to` to time step t
        self.r, self.J, self.Phi = StridedArray(x.r), StridedArray(x.J.entries), StridedArray(x.Phi.entries)
        self.c_to, self.Phi_to, self.Q_to = (StridedArray(y, 1) for y in (x.c, x.Phi.entries, x.Q.entries))
        self.mean, self.P = StridedArray(solution.m[:, i]), StridedArray(solution.P[:, i])
        self.mean_before, self.P_before = StridedArray(solution.m[:, i], 1), StridedArray(solution.P[:, i], 1)
        self.z, self.variances, self.pivots = np.ones((3, self.n, self.m))
        self.L = StridedArray(solution.innovation[:, i]) if len(solution.innovation) else np.zeros((self.m, self.m))
        self.failures = np.zeros((self.n, 1), dtype=np.intc)
        self.adjoint = solution.adjoint[:, i]

    def run(self, covariances: bool) -> int:
        """Filter and smooth; the last time step that reduces a variance too much, −1 if there is none."""
        calls = CallList()
        self._predict(calls)
        if self.m:
            self._update(calls)
        calls.run(range(self.head, self.n))
        worst = self._last_failure()
        if worst < 0:
            worst = self._smooth(covariances)
        if worst < 0:
            z = self.z[self.head :]
            self.solution.min_cost += float(np.vdot(z, z))
            self.solution.logdet += 2.0 * float(np.log(self.pivots[self.head :]).sum())
        return worst

    def _last_failure(self) -> int:
        """The last time step whose measurements reduce a variance too much, −1 if there is none."""
        failed = np.flatnonzero(~(self.variances <= MAX_REDUCTION).all(axis=1) | self.failures.any(axis=1))
        return int(failed[-1]) if len(failed) else -1

    def _predict(self, calls: CallList) -> None:
        """Add the calls of the prediction, m ← Φ m + c and P ← Φ P Φᵀ + Q."""
        k, places, (W, V) = self.k, self.Phi_places, np.zeros((2, self.k, self.k))
        calls.call("dcopy", k, self.c_to, 1, self.mean, 1)
        calls.spmm(1, k, places, self.Phi_to, self.mean_before, self.mean, add=True)
        calls.spmm(k, k, places, self.Phi_to, self.P_before, W)
        calls.call("transpose", k, k, W, V)
        calls.spmm(k, k, places, self.Phi_to, V, self.P)
        calls.call("scatter_add", len(self.noise), self.noise, self.Q_to, self.P)

    def _update(self, calls: CallList) -> None:
        """Add the calls of the Kalman update: m ← m − Xᵀ z, P ← P − Xᵀ X.

        L Lᵀ = 1 + J P Jᵀ is the innovation covariance, z = L⁻¹ (r + J m) and X = L⁻¹ J P.
        """
        k, m, places, z, L = self.k, self.m, self.J_places, StridedArray(self.z), self.L
        X, W = np.zeros((m, k)), np.zeros((k, m))
        calls.spmm(k, m, places, self.J, self.P, X)
        calls.call("transpose", m, k, X, W)
        calls.spmm(m, m, places, self.J, W, L)
        calls.call("daxpy", m, 1.0, np.ones(m), 1, L, m + 1)
        calls.call("dcopy", m, L, m + 1, StridedArray(self.variances), 1)
        calls.call("dpotrf", "L", m, L, m, StridedArray(self.failures))
        calls.call("dcopy", m, L, m + 1, StridedArray(self.pivots), 1)
        calls.call("dcopy", m, self.r, 1, z, 1)
        calls.spmm(1, m, places, self.J, self.mean, z, add=True)
        calls.call("trsm", 1, m, L, z)
        calls.call("trsm", k, m, L, X)
        calls.call("dgemv", "N", k, m, -1.0, X, k, z, 1, 1.0, self.mean, 1)
        calls.call("syrk_sub", k, m, X, X, self.P)
        calls.call("symmetrise", k, self.P)

    def _smooth(self, covariances: bool) -> int:
        """Smooth all time steps; the last one that reduces a variance too much, −1 if there is none."""
        n, k = self.n, self.k
        adjoint, covariance = np.zeros(k), np.zeros((k, k))
        variances = np.ones((2, n, k))
        last, calls = CallList(), CallList()
        U, V = np.zeros((2, k, k))
        if covariances:
            calls.spmm(k, k, self.Phi_places, self.Phi, self.P, U)
            calls.call("dgemm", "N", "N", k, k, k, 1.0, U, k, covariance, k, 0.0, V, k)
        self._move(calls, adjoint)
        for own in (last, calls):
            if covariances:
                if own is calls:
                    self._carry(own, covariance)
                if self.m:
                    self._inform(own, covariance)
                own.call("gather", len(self.noise), self.noise, covariance, StridedArray(self.adjoint, 1))
        if covariances:
            calls.call("dcopy", k, self.P, k + 1, StridedArray(variances[0]), 1)
            calls.call("syrk_sub", k, k, U, V, self.P)
            calls.call("symmetrise", k, self.P)
            calls.call("dcopy", k, self.P, k + 1, StridedArray(variances[1]), 1)
        for own in (last, calls):
            self._observe(own, adjoint)
        last.run(range(n - 1, n - 2, -1))
        calls.run(range(n - 2, self.head - 1, -1))
        before, after = variances
        failed = np.flatnonzero(~(after * MAX_REDUCTION >= before).all(axis=1))
        return int(failed[-1]) if len(failed) else -1

    def _move(self, calls: CallList, adjoint: np.ndarray) -> None:
        """Add the calls that take the adjoint back over a transition, λ ← Φᵀ λ, and smooth, δ = m − P λ."""
        k, later = self.k, np.zeros(self.k)
        calls.call("dcopy", k, adjoint, 1, later, 1)
        calls.spmm(1, k, self.Phi_places[:, ::-1], self.Phi, later, adjoint)
        calls.call("dgemv", "N", k, k, -1.0, self.P, k, adjoint, 1, 1.0, self.mean, 1)

    def _observe(self, calls: CallList, adjoint: np.ndarray) -> None:
        """Add the calls of the measurement term of the adjoint, λ ← λ + Jᵀ (r + J δ)."""
        if self.m:
            y = np.zeros(self.m)
            calls.call("dcopy", self.m, self.r, 1, y, 1)
            calls.spmm(1, self.m, self.J_places, self.J, self.mean, y, add=True)
            calls.spmm(1, self.k, self.J_places[:, ::-1], self.J, y, adjoint, add=True)

    def _carry(self, calls: CallList, covariance: np.ndarray) -> None:
        """Add the calls that take the adjoint covariance back over a transition, Λ ← Φᵀ Λ Φ, symmetrised."""
        k, places, (W, V) = self.k, self.Phi_places[:, ::-1], np.zeros((2, self.k, self.k))
        calls.spmm(k, k, places, self.Phi, covariance, W)
        calls.call("transpose", k, k, W, V)
        calls.spmm(k, k, places, self.Phi, V, covariance)
        calls.call("transpose", k, k, covariance, W)
        calls.call("daxpy", k * k, 1.0, W, 1, covariance, 1)
        calls.call("daxpy", k * k, -0.5, covariance, 1, covariance, 1)

    def _inform(self, calls: CallList, covariance: np.ndarray) -> None:
        """Add the calls of the measurement update of the adjoint covariance, Λ ← Λ − Jᵀ B − Bᵀ J + Jᵀ D J.

        K = J P with P after the Kalman update, B = K Λ, D = B Kᵀ + (L Lᵀ)⁻¹, L Lᵀ the innovation covariance.
        """
        k, m, places = self.k, self.m, self.J_places
        (K, B, X), (W, V), D = np.zeros((3, m, k)), np.zeros((2, k, k)), np.zeros((m, m))
        Y, L = np.zeros((k, m)), self.L
        calls.spmm(k, m, places, self.J, self.P, K)
        calls.call("dgemm", "N", "N", k, m, k, 1.0, covariance, k, K, k, 0.0, B, k)
        calls.call("dlaset", "A", m, m, 0.0, 1.0, D, m)
        calls.call("dtrsm", "L", "L", "N", "N", m, m, 1.0, L, m, D, m)
        calls.call("dtrsm", "L", "L", "T", "N", m, m, 1.0, L, m, D, m)
        calls.call("dgemm", "T", "N", m, m, k, 1.0, K, k, B, k, 1.0, D, m)
        # Λ − Jᵀ (B − D J/2) − (B − D J/2)ᵀ J
        calls.spmm(m, k, places[:, ::-1], self.J, D, Y)
        calls.call("transpose", k, m, Y, X)
        calls.call("daxpy", m * k, -0.5, X, 1, B, 1)
        calls.spmm(k, k, places[:, ::-1], self.J, B, W)
        calls.call("transpose", k, k, W, V)
        calls.call("daxpy", k * k, -1.0, W, 1, covariance, 1)
        calls.call("daxpy", k * k, -1.0, V, 1, covariance, 1)
