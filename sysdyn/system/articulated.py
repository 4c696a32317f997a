"""The articulated-body algorithm as matrices: W^L D W^R, permuted, is lower triangular (Nori, Property 2).

W^R replaces the unknown f_i by p_i = f_i − I^A_i a_i. W^L = W4 W3 W2 W1 works on the Newton-Euler rows of
D W^R d' + b = 0, with D_i = S_i^T I^A_i S_i + A_i:

    W1   row c(τ_i) += S_i^T I^A_i · row c(a_i)      −τ_i + S_i^T p_i + S_i^T I^A_i (X_i a_λ + c_i) + D_i q̈_i = 0
    W2   row c(τ_i)  = D_i⁻¹ · row c(τ_i)            q̈_i = D_i⁻¹ (τ_i − S_i^T p_i − S_i^T I^A_i (X_i a_λ + c_i))
    W3   row c(a_i) −= S_i · row c(τ_i)              a_i without q̈_i
    W4   row c(f_i) += Σ_{j∈μ(i)} X_j^T I^A_j · row c(a_j)     p_i without a_i: its factor I_i + Σ X_j^T I^a_j X_j − I^A_i is 0

These signs, derived here, are the paper's (30) … (33). Different from the paper: b is multiplied by W^L, too, and the
solution is d', of which d = W^R d'; W4 has one block for each child; D_i contains the armature; where the net force
fB_i is an unknown, W^R also replaces it by fB_i − I_i a_i = ν_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse

from sysdyn.errors import ProblemError, SingularState
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms
from sysdyn.system.assemble import BlockSystem
from sysdyn.system.orders import Permutations, articulated

Block = tuple[str, int]  # (quantity, body)
Blocks = dict[tuple[Block, Block], np.ndarray]


@dataclass(frozen=True)
class MatrixABA:
    """W^L, W^R of one state, and the permutations under which W^L D W^R is lower triangular.

    right (unknowns, unknowns): W^R, rows and columns as the columns of D
    left: (W1, W2, W3, W4), each (equations, equations), rows and columns as the rows of D. Rows of measurements stay
        as they are; they come last, so that W[:k, :k] of the k Newton-Euler rows is the paper's.
    row_perm, col_perm: eqs. (35), as corrected, and (34); (W^L D W^R)[row_perm][:, col_perm] is lower triangular but
        for rounding errors.
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

    def permuted(self, D: scipy.sparse.spmatrix) -> scipy.sparse.csr_matrix:
        """W^L D W^R in the order of (34), (35)."""
        return (self.W_L @ D @ self.right).tocsr()[self.row_perm][:, self.col_perm]


def matrix_aba(system: BlockSystem, q: np.ndarray) -> MatrixABA:
    """W^L and W^R of a forward dynamics system at q (nq,), in either layout, known quantities as rows or substituted.

    Raises ProblemError where torques or external wrenches are not all known, SingularState where a joint moves no
    inertia. Nori, Property 2 and its proof, eqs. (29) … (35).
    """
    row_perm, col_perm = articulated(system)
    q = system._one("q", q, system.model.nq)
    right, left = transformations(system.model, joint_transforms(system.model, q))
    if system.layout.name == "net_force":
        right |= {(("fB", i), ("a", i)): I for i, I in enumerate(system.model.inertias)}
    scaled = _matrix(left[1], system.row_blocks) - scipy.sparse.diags(
        [1.0 if block[0] == "tau" else 0.0 for block in system.row_blocks]
    )  # W2 is not 1 + blocks
    W1, _, W3, W4 = (_matrix(blocks, system.row_blocks) for blocks in left)
    return MatrixABA(_matrix(right, system.col_blocks), (W1, scaled.tocsr(), W3, W4), row_perm, col_perm)
