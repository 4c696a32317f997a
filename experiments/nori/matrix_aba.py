"""The articulated-body algorithm as matrices: W^L D W^R, permuted, is lower triangular (Nori, Property 2).

W^R replaces the unknown f_i by p_i = f_i − I^A_i a_i. W^L = W4 W3 W2 W1 transforms the rows of D W^R d' + b = 0; with
H_i = S_i^T I^A_i S_i + A_i,

    W1   row c(τ_i) += S_i^T I^A_i · row c(a_i)             eliminates a_i; the coefficient of q̈_i becomes H_i
    W2   row c(τ_i)  = H_i⁻¹ · row c(τ_i)                   q̈_i − H_i⁻¹ (τ_i − S_i^T (p_i + I^A_i (X_i a_λ + c_i))) = 0
    W3   row c(a_i) −= S_i · row c(τ_i)                     eliminates q̈_i
    W4   row c(f_i) += X_j^T I^A_j · row c(a_j), j ∈ μ(i)   eliminates a_j, and a_i: I^A_i = I_i + Σ_j X_j^T I^a_j X_j

The signs follow from the equations and agree with eqs. (30) … (33). Differences from the paper: W^L also multiplies b;
the unknown is d' with d = W^R d'; W4 has one block per child; H_i includes the armature A_i; if the net force fB_i is
an unknown, W^R replaces it by fB_i − I_i a_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from nori.orders import articulated
from sysdyn.equations.system import BlockSystem
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms
from sysdyn.reference.aba import without_joint
from sysdyn.reference.crba import no_inertia
from sysdyn.reference.ltdl import ldl_solve

Label = tuple[str, int]  # (quantity, body) of a block row or column
Blocks = dict[tuple[Label, Label], np.ndarray]


@dataclass(frozen=True)
class MatrixABA:
    """W^L and W^R at one state, and the permutations that make W^L D W^R lower triangular up to rounding.

    right (unknowns, unknowns): W^R, ordered as the columns of D
    left: (W1, W2, W3, W4), each (equations, equations), ordered as the rows of D. Rows of measurements are unchanged
        and come last: with k Newton-Euler rows, [:k, :k] is the matrix of the paper.
    row_perm, col_perm: eqs. (35), corrected, and (34)
    """

    right: scipy.sparse.csr_matrix
    left: tuple[scipy.sparse.csr_matrix, ...]
    row_perm: list[int]
    col_perm: list[int]

    @cached_property
    def W_L(self) -> scipy.sparse.csr_matrix:
        """W4 W3 W2 W1."""
        W1, W2, W3, W4 = self.left
        return (W4 @ W3 @ W2 @ W1).tocsr()

    def triangle(self, D: scipy.sparse.spmatrix) -> scipy.sparse.csr_matrix:
        """W^L D W^R with rows permuted by row_perm and columns by col_perm."""
        return (self.W_L @ D @ self.right).tocsr()[self.row_perm][:, self.col_perm]

    def solve(self, D: scipy.sparse.spmatrix, b: np.ndarray) -> np.ndarray:
        """Solve D d + b = 0 by forward substitution in W^L D W^R d' + W^L b = 0; returns d = W^R d' (unknowns,)."""
        lower = scipy.sparse.tril(self.triangle(D), format="csr")
        moved = np.empty(len(self.col_perm))
        moved[self.col_perm] = scipy.sparse.linalg.spsolve_triangular(lower, -(self.W_L @ b)[self.row_perm])
        return self.right @ moved


def matrix_aba(system: BlockSystem, q: np.ndarray) -> MatrixABA:
    """W^L and W^R of a forward dynamics system at q (nq,), for every layout of the system.

    Raises ProblemError if a torque or external wrench is unknown, InvalidInput for a wrong q, SingularState if a joint
    moves no inertia. Nori, Property 2 and its proof, eqs. (29) … (35).
    """
    row_perm, col_perm = articulated(system)
    model = system.model
    # Object arrays sum in a fixed order, so that rounding is the same on every machine.
    X = [x.astype(object) for x in joint_transforms(model, model.normalise(q))]
    right, left = transformations(model, X)
    if system.layout.name == "net_force":
        right |= {(("fB", i), ("a", i)): I for i, I in enumerate(model.inertias)}
    matrices = tuple(_matrix(blocks, system.row_blocks) for blocks in left)
    return MatrixABA(_matrix(right, system.col_blocks), matrices, row_perm, col_perm)


def transformations(model: Model, X: Sequence[np.ndarray]) -> tuple[Blocks, tuple[Blocks, Blocks, Blocks, Blocks]]:
    """Blocks of (W^R, (W1, W2, W3, W4)) that differ from the identity, generic over the scalar type.

    X (nb) of (6, 6): motion transforms from the parents. Nori eqs. (29) … (33), I^A by eq. (13).
    """
    dtype = np.result_type(*X)
    IA = list(model.inertias.astype(dtype))
    right: Blocks = {}
    W1: Blocks = {}
    W2: Blocks = {}
    W3: Blocks = {}
    W4: Blocks = {}
    for i in reversed(range(model.nb)):
        S, parent = model.joints[i].S.astype(dtype), model.parent[i]
        a, f, tau = ("a", i), ("f", i), ("tau", i)
        U = IA[i] @ S
        armature = np.diag(model.armature[model.v_slice(i)]).astype(dtype)
        n = S.shape[1]
        one = np.diag([1] * n).astype(dtype)
        solution = ldl_solve(S.T @ U + armature, np.concatenate([one, U.T], axis=1), partial(no_inertia, model, i))
        inverse, W = solution[:, :n], solution[:, n:]  # H⁻¹ and H⁻¹ U^T
        right[f, a] = IA[i]
        W1[tau, a], W2[tau, tau], W3[a, tau] = S.T @ IA[i], inverse, -S
        if parent >= 0:
            W4[("f", parent), a] = X[i].T @ IA[i]
            IA[parent] = IA[parent] + X[i].T @ without_joint(IA[i], S, U, W) @ X[i]  # I_λ + X^T I^a X
    return right, (W1, W2, W3, W4)


def _matrix(blocks: Blocks, labels: Sequence[Label]) -> scipy.sparse.csr_matrix:
    """Identity matrix with `blocks` inserted; labels: block label of each row and column."""
    places: dict[Label, list[int]] = {}
    for k, label in enumerate(labels):
        places.setdefault(label, []).append(k)
    own = {row for row, column in blocks if row == column}
    kept = [k for k, label in enumerate(labels) if label not in own]
    rows, columns, values = [np.array(kept, dtype=int)], [np.array(kept, dtype=int)], [np.ones(len(kept))]
    for (row, column), block in blocks.items():
        if block.size:
            r, c = np.meshgrid(places[row], places[column], indexing="ij")
            rows.append(r.ravel())
            columns.append(c.ravel())
            values.append(block.ravel())
    entries = np.concatenate(values).astype(float)
    shape = (len(labels), len(labels))
    matrix = scipy.sparse.csr_matrix((entries, (np.concatenate(rows), np.concatenate(columns))), shape=shape)
    matrix.eliminate_zeros()
    return matrix
