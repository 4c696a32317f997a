"""Operation counters behind Figures 1 and 2 of the paper, as published, with their errors.

They do not count the operations of a solver: `lu_cost` counts only the diagonal of each update, and `mult_cost` no
multiplication of an inner product with more than one term. They serve only to reproduce those figures; exact counts are
`sysdyn.count_flops`, `Solver.flops` and `sysdyn.program.graph.Graph.count`.

Matrices are NumPy arrays or SciPy sparse matrices; an entry counts if it is not exactly zero.
Nori, published experiments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
import scipy.sparse

from nori.matrix_aba import matrix_aba
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.se3 import crm
from sysdyn.sparse import umfpack

# A dense matrix, or a sparse one in any of SciPy's formats, which ship no types of their own.
Matrix: TypeAlias = np.ndarray | Any

# Pivot tolerance of UMFPACK in the published experiments, the default of lu in MATLAB.
PIVOT_TOLERANCE = 0.1


class Cost(NamedTuple):
    """Multiplications (including divisions) and additions by a published counter or formula."""

    mul: int
    add: int

    @property
    def total(self) -> int:
        return self.mul + self.add


# Costs of a chain of n ≥ 2 revolute joints with generic placements, RBDA ch. 10. "aba" (page 202) is the curve of
# Figure 1. "ltdl" includes factorisation and solution of H q̈ = τ − C.
RBDA: dict[str, Callable[[int], Cost]] = {
    "rnea": lambda n: Cost(93 * n - 108, 81 * n - 100),
    "crba": lambda n: Cost(10 * n**2 + 22 * n - 32, 6 * n**2 + 37 * n - 43),
    "ltdl": lambda n: Cost((n**3 + 9 * n**2 - 4 * n) // 6, (n**3 + 6 * n**2 - 7 * n) // 6),
    "aba": lambda n: Cost(224 * n - 259, 205 * n - 248),
}


# ---- the counters ----------------------------------------------------------------------------------------------------


def lu_cost(A: Matrix, figure: int = 1) -> Cost:
    """Cost of A = L U without pivoting, by the counter of Figure 1 or 2; A (n, n).

    For pivot k with l = A[k+1:, k] / A[k, k] and u = A[k, k+1:], both counters count nnz(l) divisions and only the
    diagonal of the update −l u: |I| additions and |I| multiplications, I = {j: l[j] u[j] ≠ 0}. The counter of Figure 1
    subtracts products with ±1, with two errors: it counts entries ≠ 1 and entries ≠ −1, and it applies I to the whole
    matrix instead of the remainder. The result can be negative: −90 for a dense A with n = 10, where the exact count is
    285 multiplications, 285 additions and 45 divisions.

    Raises InvalidInput for another figure or a non-square matrix, SingularState at a zero pivot.
    """
    if figure not in (1, 2):
        raise InvalidInput(f"figure is {figure!r}; the paper counts for figure 1 and figure 2")
    R, mul, add = _square(A), 0, 0
    for k in range(len(R) - 1):
        _eliminate(R, k)
        l, u = R[k + 1 :, k], R[k, k + 1 :]
        I = np.flatnonzero((l != 0.0) & (u != 0.0))
        mul += int(np.count_nonzero(l)) + len(I)
        add += len(I)
        if figure == 1:
            mul -= sum(int(np.count_nonzero(x != one)) for x in (R[I, k], R[k, I]) for one in (1.0, -1.0))
    return Cost(mul, add)


def fb_cost(L: Matrix, U: Matrix, b: np.ndarray) -> Cost:
    """Published cost of the solution of L U x = b.

    mul = nnz(L off diagonal) + nnz(diag L) + nnz(U off diagonal) + nnz(diag U), including the unit diagonal of L,
    add = nnz(b) + nnz(L off diagonal) + nnz(L⁻¹ b) + nnz(U off diagonal). Raises InvalidInput, SingularState.
    """
    L, U, b = _lower("L", L), _lower("the transpose of U", _dense(U).T).T, np.asarray(b, dtype=float)
    forward = _solve_lower(L, b)
    below, above = np.count_nonzero(np.tril(L, -1)), np.count_nonzero(np.triu(U, 1))
    mul = below + np.count_nonzero(np.diag(L)) + above + np.count_nonzero(np.diag(U))
    return Cost(int(mul), int(np.count_nonzero(b) + below + np.count_nonzero(forward) + above))


def fw_cost(L: Matrix, b: np.ndarray) -> Cost:
    """Published cost of solving L x = b: mul = nnz(L), add = nnz(b) + nnz(L off diagonal). Raises InvalidInput."""
    L = _lower("L", L)
    below = np.count_nonzero(np.tril(L, -1))
    return Cost(int(below + np.count_nonzero(np.diag(L))), int(np.count_nonzero(b) + below))


def mult_cost(A: Matrix, B: Matrix) -> Cost:
    """Published cost of the product A B.

    An inner product with z > 1 nonzero terms counts z − 1 additions and no multiplication, one with z = 1 counts one
    multiplication. A dense 5 × 5 product therefore counts no multiplication; the exact count is 125.
    """
    terms = (_pattern(A) @ _pattern(B)).data
    return Cost(int(np.count_nonzero(terms == 1)), int((terms - 1).sum()))


# ---- the experiments around them -------------------------------------------------------------------------------------


def right_hand_side(system: BlockSystem, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """Right-hand side b (equations,) of the experiments: bias terms, and 1 for each known quantity.

    ν_i is evaluated as (v_i ×* I_i) v_i, as in the original: terms that cancel in exact arithmetic may leave rounding
    errors, which the counters count as entries.
    """
    known = np.array([block[0] == "y" for block in system.row_blocks])
    b = np.where(known, 1.0, system.b(q, qd))
    model, force = system.model, "fB" if system.layout.name == "net_force" else "f"
    speeds, _ = velocities(model, joint_transforms(model, q), qd)
    for i, (I, v) in enumerate(zip(model.inertias, speeds, strict=True)):
        rows = [r for r, block in enumerate(system.row_blocks) if block == (force, i)]
        # object arrays sum from left to right on every machine
        b[rows] = (-crm(v).T.astype(object) @ I.astype(object) @ v.astype(object)).astype(float)
    return b


def row_pivoting(A: Matrix) -> list[int]:
    """Row permutation P of P A = L U by partial pivoting. Raises InvalidInput, SingularState."""
    R = _square(A)
    rows = np.arange(len(R))
    for k in range(len(R) - 1):
        p = k + int(np.argmax(np.abs(R[k:, k])))
        if p != k:
            R[[k, p]], rows[[k, p]] = R[[p, k]], rows[[p, k]]
        _eliminate(R, k)
    return rows.tolist()


def umfpack_pivots(A: Matrix) -> tuple[list[int], list[int]]:
    """Row and column permutations of P A Q = L U by UMFPACK, without scaling, with the published pivot tolerance.

    Explicit zeros of A are removed first. Raises BackendUnavailable.
    """
    A = scipy.sparse.csc_matrix(A, copy=True)
    A.eliminate_zeros()
    return umfpack.permutations(A, PIVOT_TOLERANCE)


def solution_cost(
    A: Matrix, b: np.ndarray, row_perm: list[int], col_perm: list[int] | None = None, figure: int = 1
) -> Cost:
    """Cost of A x = b in the curves: `lu_cost` of P A Q plus `fb_cost` of its factors, with b not permuted."""
    permuted = _dense(A)[row_perm]
    if col_perm is not None:
        permuted = permuted[:, col_perm]
    return total(lu_cost(permuted, figure), fb_cost(*unpivoted_lu(permuted), b))


def matrix_aba_cost(system: BlockSystem, q: np.ndarray, b: np.ndarray) -> Cost:
    """Cost of W^L D W^R d' + b = 0 in the curve: products W2 W1, W3 (W2 W1), W4 (…), W^L D, and `fw_cost`.

    As published, the cost excludes the articulated-body inertias in W^L and W^R and the product with W^R. Counts use
    the structural pattern, because rounding mostly leaves a nonzero where a sum cancels exactly. Raises ProblemError if
    the problem is not forward dynamics. Nori, Property 2.
    """
    matrices = matrix_aba(system, q)
    A, W = _pattern(system.D(q)), [_pattern(w) for w in matrices.left]
    k = sum(block[0] != "y" for block in system.row_blocks)
    costs, product = [], W[0]
    for w in W[1:]:
        costs.append(mult_cost(w[:k, :k], product[:k, :k]))
        product = w @ product
    costs.append(mult_cost(product[:k, :k], A[:k]))
    triangle = (product @ A @ _pattern(matrices.right)).tocsr()[matrices.row_perm][:, matrices.col_perm]
    return total(*costs, fw_cost(scipy.sparse.tril(triangle), b))


def unpivoted_lu(A: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """(L, U) with A = L U, L unit lower triangular, without pivoting. Raises InvalidInput, SingularState."""
    R = _square(A)
    for k in range(len(R) - 1):
        _eliminate(R, k)
    return np.tril(R, -1) + np.eye(len(R)), np.triu(R)


def total(*costs: Cost) -> Cost:
    """The sum of costs."""
    return Cost(sum(c.mul for c in costs), sum(c.add for c in costs))


# ---- matrices --------------------------------------------------------------------------------------------------------


def _eliminate(R: np.ndarray, k: int) -> None:
    """Eliminate with pivot k in place: R stores L, U and the remainder. Raises SingularState."""
    if R[k, k] == 0.0:
        raise SingularState(f"pivot {k} is zero: permute the rows first, see row_pivoting", equation=str(k))
    i = k + 1 + np.flatnonzero(R[k + 1 :, k])
    j = k + 1 + np.flatnonzero(R[k, k + 1 :])
    R[i, k] /= R[k, k]
    R[np.ix_(i, j)] -= np.outer(R[i, k], R[k, j])


def _dense(A: Matrix) -> np.ndarray:
    """A as a dense float array (copy)."""
    return np.array(A if isinstance(A, np.ndarray) else A.toarray(), dtype=float)


def _square(A: Matrix) -> np.ndarray:
    A = _dense(A)
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise InvalidInput(f"the matrix has shape {A.shape}; LU needs a square one")
    return A


def _pattern(A: Matrix) -> scipy.sparse.csr_matrix:
    pattern = scipy.sparse.csr_matrix(A, copy=True)
    pattern.eliminate_zeros()
    return scipy.sparse.csr_matrix((np.ones(pattern.nnz, dtype=int), pattern.indices, pattern.indptr), pattern.shape)


def _lower(name: str, L: Matrix) -> np.ndarray:
    L = _dense(L)
    if np.any(np.triu(L, 1)):
        raise InvalidInput(f"{name} has entries above its diagonal; substitution needs a triangular matrix")
    return L


def _solve_lower(L: np.ndarray, b: np.ndarray) -> np.ndarray:
    """L⁻¹ b. Raises SingularState."""
    if not np.all(np.diag(L)):
        raise SingularState("L has a zero on its diagonal", equation=str(int(np.argmin(np.abs(np.diag(L))))))
    return scipy.linalg.solve_triangular(L, b, lower=True, check_finite=False)
