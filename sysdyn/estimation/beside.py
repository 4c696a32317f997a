"""Chains of few unknowns side by side, such as joints that nothing couples: a step of all of them is one program.

The recursions are those of `sysdyn.estimation.kalman_smoother` through factors of covariances, written out for the
pattern of the chains; compiled code runs them from instant to instant, several chains to a register.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sysdyn.estimation.lie_jacobians import machine_code
from sysdyn.program.graph import SHARING, Graph, sqrt
from sysdyn.program.program import Program
from sysdyn.recursions.transforms import dot
from sysdyn.runtime.call_list import CallList, StridedArray
from sysdyn.runtime.runner import Runner

DenseMatrix = list[list[Any]]
Nonzeros = tuple[tuple[int, int], ...]


class Sparse(NamedTuple):
    """Matrices of one pattern: entries (N, …, e) at places (e, 2), rows and columns."""

    entries: np.ndarray
    places: np.ndarray

    def dense(self, rows: int, columns: int) -> np.ndarray:
        """The matrices (N, …, rows, columns) with their zeros."""
        found = np.zeros((*self.entries.shape[:-1], rows, columns))
        found[..., self.places[:, 0], self.places[:, 1]] = self.entries
        return found

    @classmethod
    def of(cls, x: np.ndarray) -> Sparse:
        """The sparse form of matrices (N, rows, columns): entries that are zero in all of them are left out."""
        places = np.ascontiguousarray(np.argwhere((x != 0.0).any(axis=0)), dtype=np.int64)
        return cls(np.ascontiguousarray(x[:, places[:, 0], places[:, 1]]), places)


class ParallelChains(NamedTuple):
    """Chains side by side of some unknowns: their numbers (chains, k), with an axis of chains behind N.

    Rows J δ + r, r (N, chains, m); Phi, Q, c of N − 1 steps, where an axis of length 1 is of all chains; m, P of the
    first instant.
    """

    columns: np.ndarray
    J: Sparse
    r: np.ndarray
    Phi: Sparse
    c: np.ndarray
    Q: Sparse
    m: np.ndarray
    P: np.ndarray

    def one(self, i: int) -> ParallelChains:
        """A chain of them, without the axis."""

        def own(x: np.ndarray) -> np.ndarray:
            return x[:, i if x.shape[1] > 1 else 0]

        J, Phi, Q = (Sparse(own(x.entries), x.places) for x in (self.J, self.Phi, self.Q))
        return ParallelChains(self.columns[i], J, own(self.r), Phi, own(self.c), Q, self.m[i], self.P[i])


class Beside(NamedTuple):
    """δ (N, chains, k); if asked for P (N, chains, k, k) and later (N − 1, chains, e), and sums: see `chain.Solved`."""

    step: np.ndarray
    P: np.ndarray
    later: np.ndarray
    least: float
    logdet: float


def solved(x: ParallelChains, covariances: bool, later: bool, last: bool, least_share: float) -> Beside | None:
    """The solution of the chains of a part; None if a pivot of a covariance is below this share of its variance.

    covariances, later, last: see `sysdyn.estimation.kalman_smoother.sweep`.
    """
    n, (chains, k) = len(x.r), x.columns.shape
    m, tri, J, Phi, Q = x.r.shape[2], k * (k + 1) // 2, _key(x.J), _key(x.Phi), _key(x.Q)
    r, c, j, phi, noise = (np.ascontiguousarray(y) for y in (x.r, x.c, x.J.entries, x.Phi.entries, x.Q.entries))
    before, mean, lower_P = (np.empty((n, chains, size)) for size in (k, k, tri))
    z, sizes, shares = (np.ones((n, chains, size)) for size in (m, m, k))
    before[0] = x.m
    given = {"J": StridedArray(j), "r": StridedArray(r)}
    found = {"mean": StridedArray(mean), "P": StridedArray(lower_P), "z": StridedArray(z), "sizes": StridedArray(sizes)}
    lower = np.tril_indices(k)
    first = CallList()
    prior = np.ascontiguousarray(x.P[:, lower[0], lower[1]])
    first.call_program(
        _first(k, m, J),
        {**given, "before": StridedArray(before), "prior": prior},
        found | {"shares": StridedArray(shares)},
        chains,
    )
    first.run(range(1))
    shares[0] = 1.0  # the first instant is as it is given
    steps = {"Phi": StridedArray(phi), "Q": StridedArray(noise)}
    if n > 1:
        ahead, moved = CallList(), {"Phi": StridedArray(phi, 1), "Q": StridedArray(noise, 1), "c": StridedArray(c, 1)}
        given |= moved | {"m": StridedArray(mean, 1), "P": StridedArray(lower_P, 1)}
        found |= {"before": StridedArray(before), "shares": StridedArray(shares)}
        ahead.call_program(_ahead(k, m, J, Phi, Q), given, found, chains)
        ahead.run(range(1, n))
    if not (shares.min() >= least_share and np.isfinite(mean[-1]).all() and np.isfinite(sizes).all()):
        return None
    both = covariances or later
    whole = np.empty((n if both else 0, chains, k * k))
    after = np.empty((n - 1 if later else 0, chains, len(Q)))
    step = np.empty((n, chains, k))
    step[-1] = mean[-1]
    given = steps | {
        "mean": StridedArray(mean),
        "P": StridedArray(lower_P),
        "before": StridedArray(before, -1),
        "step": StridedArray(step, -1),
    }
    found = {"found": StridedArray(step)}
    full = np.zeros((chains, k, k))
    full[:, lower[0], lower[1]] = full[:, lower[1], lower[0]] = lower_P[-1]
    if both:
        whole[-1] = full.reshape(chains, k * k)
        given["after"], found["whole"] = StridedArray(whole, -1), StridedArray(whole)
    if later:
        found["later"] = StridedArray(after)
    if n > 1:
        back = CallList()
        back.call_program(_back(k, Phi, Q, both, later), given, found, chains)
        back.run(range(n - 2, -1, -1))
    least, logdet = float(np.vdot(z, z)), 2.0 * float(np.log(sizes).sum())
    P = full[None] if last else whole.reshape(len(whole), chains, k, k)[: n if covariances else 0]
    return Beside(step, P, after, least, logdet)


def _key(x: Sparse) -> Nonzeros:
    return tuple((int(i), int(j)) for i, j in x.places)


# ---- programs --------------------------------------------------------------------------------------------------------


@functools.cache
def _first(k: int, m: int, J: Nonzeros) -> Runner:
    """The program of the first instant: from its mean `before`, the lower triangle `prior` of its P, J and r."""
    graph, sizes = Graph(SHARING), {"J": len(J), "r": m, "before": k, "prior": k * (k + 1) // 2}
    x = {name: list(graph.inputs(name, size)) for name, size in sizes.items()}
    return _program(graph, x, _read(k, _symmetric(k, x["prior"]), x["before"], _matrix(m, k, J, x["J"]), x["r"]))


@functools.cache
def _ahead(k: int, m: int, J: Nonzeros, Phi: Nonzeros, Q: Nonzeros) -> Runner:
    """The program of an instant: from the mean m and P of the one before."""
    graph = Graph(SHARING)
    sizes = {"J": len(J), "r": m, "Phi": len(Phi), "Q": len(Q), "c": k, "m": k, "P": k * (k + 1) // 2}
    x = {name: list(graph.inputs(name, size)) for name, size in sizes.items()}
    F = _matrix(k, k, Phi, x["Phi"])
    before = [c + y for c, y in zip(x["c"], _product(F, [[y] for y in x["m"]]), strict=True) for y in y]
    P = _moved(F, _symmetric(k, x["P"]), _matrix(k, k, Q, x["Q"]))
    return _program(graph, x, [("before", before), *_read(k, P, before, _matrix(m, k, J, x["J"]), x["r"])])


@functools.cache
def _back(k: int, Phi: Nonzeros, Q: Nonzeros, covariances: bool, later: bool) -> Runner:
    """The program of an instant on the way back, see `chain._Chain.back_with_covariances`; later: with covariances."""
    graph, tri = Graph(SHARING), k * (k + 1) // 2
    sizes = {"Phi": len(Phi), "Q": len(Q), "mean": k, "P": tri, "before": k, "step": k}
    if covariances:
        sizes["after"] = k * k
    x = {name: list(graph.inputs(name, size)) for name, size in sizes.items()}
    F, P, noise = _matrix(k, k, Phi, x["Phi"]), _symmetric(k, x["P"]), _matrix(k, k, Q, x["Q"])
    FP = _product(F, P)
    L = _cholesky(_moved(F, P, noise))
    d = [a - b for a, b in zip(x["step"], x["before"], strict=True)]
    if not covariances:
        u = _product([list(y) for y in zip(*FP, strict=True)], [[y] for y in _solved(L, d)])
        return _program(graph, x, [("found", [a + y[0] for a, y in zip(x["mean"], u, strict=True)])])
    KT = _transposed([_solved(L, list(column)) for column in _transposed(FP)])  # (Φ P Φ^T + Q)⁻¹ Φ P
    K = _transposed(KT)
    step = [a + y[0] for a, y in zip(x["mean"], _product(K, [[y] for y in d]), strict=True)]
    after = [x["after"][i * k : (i + 1) * k] for i in range(k)]
    C, KFP = _product(after, KT), _product(K, FP)
    A = [[P[i][j] - KFP[i][j] for j in range(k)] for i in range(k)]
    AF, KQ = _product(A, _transposed(F)), _product(K, noise)
    left = [[C[j][i] - AF[i][j] + KQ[i][j] for j in range(k)] for i in range(k)]
    spread = _product(left, KT)
    whole = [[A[max(i, j)][min(i, j)] + spread[max(i, j)][min(i, j)] for j in range(k)] for i in range(k)]
    outputs = [("found", step), ("whole", [y for row in whole for y in row])]
    if later:  # P₋⁻¹ − P₋⁻¹ P P₋⁻¹ of the next instant
        inside = _transposed([_forwards(L, row) for row in _transposed([_forwards(L, row) for row in after])])
        inside = [[float(i == j) - y for j, y in enumerate(row)] for i, row in enumerate(inside)]
        told = [_backwards(L, row) for row in _transposed([_backwards(L, row) for row in inside])]
        outputs.append(("later", [told[i][j] for i, j in Q]))
    return _program(graph, x, outputs)


def _program(graph: Graph, x: dict[str, list], outputs: Sequence[tuple[str, list]]) -> Runner:
    return machine_code(Program.from_graph(graph, tuple(x.items()), outputs))


def _read(k: int, P: DenseMatrix, before: list, J: DenseMatrix, r: list) -> list[tuple[str, list]]:
    """Outputs of readings J δ + r, of a mean and P before: see `chain._Chain._read_through`."""
    m, L = len(J), _cholesky(P)
    shares = [L[i][i] * L[i][i] / P[i][i] for i in range(k)]
    mean, sizes, z = before, [], []
    if m:
        B = _product(J, L)
        S, R = _product(B, _transposed(B)), _product(_transposed(B), B)
        for X, size in ((S, m), (R, k)):
            for i in range(size):
                X[i][i] = X[i][i] + 1.0
        S, R = _cholesky(S), _cholesky(R)
        G = _transposed([_forwards(R, row) for row in L])  # R⁻¹ L^T
        P = _product(_transposed(G), G)
        y = [a + b[0] for a, b in zip(r, _product(J, [[b] for b in before]), strict=True)]
        right = _product(_transposed(J), [[b] for b in y])
        mean = [a - b[0] for a, b in zip(before, _product(P, right), strict=True)]
        sizes, z = [S[i][i] for i in range(m)], _forwards(S, y)
    lower = [P[i][j] for i in range(k) for j in range(i + 1)]
    return [("mean", list(mean)), ("P", lower), ("z", z), ("sizes", sizes), ("shares", shares)]


def _matrix(rows: int, columns: int, places: Nonzeros, entries: list) -> DenseMatrix:
    found: DenseMatrix = [[0.0] * columns for _ in range(rows)]
    for (i, j), y in zip(places, entries, strict=True):
        found[i][j] = y
    return found


def _symmetric(k: int, lower: list) -> DenseMatrix:
    """The matrix with this lower triangle, row by row."""
    return [[lower[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)] for j in range(k)] for i in range(k)]


def _transposed(x: DenseMatrix) -> DenseMatrix:
    return [list(y) for y in zip(*x, strict=True)]


def _product(x: DenseMatrix, y: DenseMatrix) -> DenseMatrix:
    columns = list(zip(*y, strict=True))
    return [[dot(a, b) for b in columns] for a in x]


def _moved(F: DenseMatrix, P: DenseMatrix, Q: DenseMatrix) -> DenseMatrix:
    """Φ P Φ^T + Q."""
    found = _product(_product(F, P), _transposed(F))
    return [[found[max(i, j)][min(i, j)] + Q[max(i, j)][min(i, j)] for j in range(len(F))] for i in range(len(F))]


def _cholesky(P: DenseMatrix) -> DenseMatrix:
    """Cholesky factor L of P = L L^T. Only the lower triangle of P is read."""
    k = len(P)
    L: DenseMatrix = [[0.0] * k for _ in range(k)]
    for j in range(k):
        pivot = P[j][j]
        for l in range(j):
            pivot = pivot - L[j][l] * L[j][l]
        L[j][j] = sqrt(pivot)
        inverse = 1.0 / L[j][j]
        for i in range(j + 1, k):
            x = P[i][j]
            for l in range(j):
                x = x - L[i][l] * L[j][l]
            L[i][j] = x * inverse
    return L


def _forwards(L: DenseMatrix, values: list) -> list:
    """L⁻¹ values."""
    found: list = []
    for k, x in enumerate(values):
        for l in range(k):
            x = x - L[k][l] * found[l]
        found.append(x * (1.0 / L[k][k]))
    return found


def _solved(L: DenseMatrix, values: list) -> list:
    """(L L^T)⁻¹ values."""
    return _backwards(L, _forwards(L, values))


def _backwards(L: DenseMatrix, values: list) -> list:
    """L⁻^T values."""
    turned = [row[::-1] for row in _transposed(L)[::-1]]
    return _forwards(turned, values[::-1])[::-1]
