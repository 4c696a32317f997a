"""MuJoCo's layout of the joint-space inertia M and of its factor M = L^T D L by mj_factorM (MuJoCo 3.3 and later).

`data.M` and `data.qLD` store the lower triangle by rows: columns of ancestors in ascending order, then the diagonal.
The diagonal of qLD is D, and qLDiagInv is 1/D. Degrees of freedom that MuJoCo calls simple store only the diagonal.

    layout = csr_layout(mj_model.dof_parentid, mj_model.dof_simplenum)
    M = MujocoState(mj_model).inertia_to_mujoco(q, crba(model, q))
    layout.pack(M)                                             # data.M
    layout.pack_factor(ltdl(M, mj_model.dof_parentid))         # data.qLD, data.qLDiagInv
    layout.unpack_factor(data.qLD).solve(b)                    # as mj_solveM
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput
from sysdyn.reference.generic import checked_array
from sysdyn.reference.ltdl import Factor, ancestors, reject_entries


@dataclass(frozen=True, eq=False)
class MujocoLayout:
    """Storage of lower triangles (…, nv, nv) in arrays (…, n): entry k is at (row[k], col[k]).

    In MuJoCo, parent (nv) is `dof_parentid`, n is `nC`, col is `M_colind`. Methods raise InvalidInput for wrong shapes.
    """

    parent: tuple[int, ...]
    row: np.ndarray
    col: np.ndarray

    def pack(self, M: ArrayLike) -> np.ndarray:
        """The entries (…, n) of a symmetric M (…, nv, nv). Raises InvalidInput for nonzeros outside the layout."""
        return self._stored("M", checked_array("M", M, (len(self.parent),) * 2))

    def unpack(self, data: ArrayLike) -> np.ndarray:
        """Symmetric M (…, nv, nv) from its entries (…, n)."""
        M = self._lower("data", data)
        M[..., self.col, self.row] = M[..., self.row, self.col]
        return M

    def pack_factor(self, factor: Factor) -> tuple[np.ndarray, np.ndarray]:
        """(qLD (…, n), qLDiagInv (…, nv)). Raises InvalidInput for another parent or nonzeros outside the layout."""
        if factor.parent != self.parent:
            raise InvalidInput(
                f"the factor has parent {factor.parent}, but the layout {self.parent}: use ltdl(M, layout.parent)"
            )
        qLD, diagonal = factor.L.copy(), np.arange(len(self.parent))
        qLD[..., diagonal, diagonal] = factor.D
        return self._stored("L", qLD), 1.0 / factor.D

    def unpack_factor(self, qLD: ArrayLike) -> Factor:
        """L and D of M = L^T D L from qLD (…, n)."""
        L, diagonal = self._lower("qLD", qLD), np.arange(len(self.parent))
        D = L[..., diagonal, diagonal].copy()
        L[..., diagonal, diagonal] = 1.0
        return Factor(L, D, self.parent)

    def _stored(self, name: str, A: np.ndarray) -> np.ndarray:
        outside = np.tri(len(self.parent), dtype=bool)
        outside[self.row, self.col] = False
        reject_entries(name, A, outside, lambda i, j: (
            f"the layout has no place for it: {j} is no ancestor of {i} in `parent`, or {i} is declared simple"
        ))  # fmt: skip
        return A[..., self.row, self.col]

    def _lower(self, name: str, data: ArrayLike) -> np.ndarray:
        data = checked_array(name, data, self.row.shape)
        A = np.full((*data.shape[:-1], len(self.parent), len(self.parent)), 0.0, dtype=data.dtype)
        A[..., self.row, self.col] = data
        return A


def csr_layout(parent: Sequence[int], simplenum: Sequence[int] | None = None) -> MujocoLayout:
    """Layout from MuJoCo's `dof_parentid` (nv) and `dof_simplenum` (nv); nonzero simplenum: diagonal only."""
    paths = ancestors(parent)
    simple = np.zeros(len(paths)) if simplenum is None else np.asarray(simplenum)
    if simple.shape != (len(paths),):
        raise InvalidInput(f"simplenum has shape {simple.shape}, but parent has {len(paths)} entries")
    rows = [(k,) if simple[k] else (*reversed(path), k) for k, path in enumerate(paths)]
    entries = np.array([(k, j) for k, columns in enumerate(rows) for j in columns], dtype=int).reshape(-1, 2)
    return MujocoLayout(tuple(int(p) for p in parent), entries[:, 0], entries[:, 1])
