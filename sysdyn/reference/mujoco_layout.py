"""The sparse layouts of MuJoCo's joint-space inertia M and of its factor M = L^T D L, to and from ours.

Both keep, row by row, only the entries of the lower triangle at ancestors, of M or of L with D on the diagonal:

    legacy  qM, qLD       each row from the diagonal up through λ(k), λ(λ(k)), …      MuJoCo before 3.3 (qM: before 4.0)
    CSR     M, qLD        each row by ascending columns, the diagonal last            since then

A degree of freedom that MuJoCo calls simple has a diagonal row in the CSR layout. `qLDiagInv` is 1/D in both;
`qLDiagSqrtInv`, 1/√D, stood beside it until MuJoCo 3.2.

    state = MujocoState(mj_model)
    M = state.inertia_to_mujoco(q, crba(model, q))
    layout = csr_layout(mj_model.dof_parentid, mj_model.dof_simplenum)
    layout.pack(M)                                             # data.M
    layout.pack_factor(ltdl(M, mj_model.dof_parentid))         # data.qLD, data.qLDiagInv
    layout.unpack_factor(data.qLD).solve(b)                    # as mj_solveM does
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.program.graph import is_zero
from sysdyn.reference.generic import checked_array
from sysdyn.reference.ltdl import UNEQUAL, Factor, ancestors


@dataclass(frozen=True, eq=False)
class MujocoLayout:
    """Places of the entries (row[k], col[k]) of lower triangles (…, nv, nv) in an array (…, n).

    parent (nv): the degree of freedom before each on the way to the base, −1 for the first: `dof_parentid`.
    row, col (n): in the order of rows; n is `nM` in the legacy layout and `nC` in CSR, where col is `M_colind`.

    Leading axes are batch axes; arrays of Expr give Expr. All methods raise InvalidInput for a wrong shape.
    """

    parent: tuple[int, ...]
    row: np.ndarray
    col: np.ndarray

    @property
    def nv(self) -> int:
        return len(self.parent)

    @property
    def n(self) -> int:
        return len(self.row)

    @cached_property
    def rownnz(self) -> np.ndarray:
        """(nv) number of entries of each row: `M_rownnz` in CSR."""
        return np.bincount(self.row, minlength=self.nv)

    @cached_property
    def rowadr(self) -> np.ndarray:
        """(nv) place of each row's first entry: `M_rowadr` in CSR, `dof_Madr` in the legacy layout."""
        return np.cumsum(self.rownnz) - self.rownnz

    def pack(self, M) -> np.ndarray:
        """(…, n): the entries of the symmetric M (…, nv, nv).

        Raises InvalidInput if one that is left out is above 1e-10 √(M_ii M_jj).
        """
        M = checked_array("M", M, (self.nv, self.nv))
        return self._kept("M", M, M)

    def unpack(self, data) -> np.ndarray:
        """M (…, nv, nv), symmetric, of its entries (…, n)."""
        data = checked_array("data", data, (self.n,))
        M = self._empty(data)
        M[..., self.row, self.col] = M[..., self.col, self.row] = data
        return M

    def pack_factor(self, factor: Factor) -> tuple[np.ndarray, np.ndarray]:
        """(qLD (…, n), qLDiagInv (…, nv)) of the factor that `ltdl` finds with the same parent.

        Raises InvalidInput for another parent, a factor without D, and a lower triangle of D L with an entry that is
        left out and above 1e-10 √(D_i D_j).
        """
        if factor.D is None:
            raise InvalidInput("qLD holds the factors of M = L^T D L: factor M with ltdl, not with ltl")
        if tuple(factor.parent) != self.parent:
            raise InvalidInput(
                f"the factor has parent {tuple(factor.parent)}, but the layout {self.parent}: factor M with ltdl(M, "
                "layout.parent)"
            )
        L, D = checked_array("L", factor.L, (self.nv, self.nv)), checked_array("D", factor.D, (self.nv,))
        diagonal = np.arange(self.nv)
        packed = L.copy()
        packed[..., diagonal, diagonal] = D
        return self._kept("D L", L if L.dtype == object else D[..., None] * L, packed), 1.0 / D

    def diagonal_sqrt_inverse(self, factor: Factor) -> np.ndarray:
        """qLDiagSqrtInv (…, nv) = 1/√D of a factor with D, by which `mj_solveM2` halved the solution.

        Raises InvalidInput if D is missing or not positive.
        """
        if factor.D is None:
            raise InvalidInput("qLDiagSqrtInv is of the D of M = L^T D L: factor M with ltdl, not with ltl")
        D = checked_array("D", factor.D, (self.nv,))
        if D.dtype != object and not np.all(D > 0.0):
            k = tuple(int(i) for i in np.argwhere(~(D > 0.0))[0])
            raise InvalidInput(f"D{list(k)} is {D[k]}: only the factor of a positive definite M has a qLDiagSqrtInv")
        return 1.0 / np.sqrt(D)

    def unpack_factor(self, qLD) -> Factor:
        """L and D of M = L^T D L of MuJoCo's factor qLD (…, n)."""
        qLD = checked_array("qLD", qLD, (self.n,))
        L = self._empty(qLD)
        L[..., self.row, self.col] = qLD
        diagonal = np.arange(self.nv)
        D = L[..., diagonal, diagonal]
        L[..., diagonal, diagonal] = 1.0
        return Factor(L, D, self.parent)

    def _empty(self, data: np.ndarray) -> np.ndarray:
        return np.full((*data.shape[:-1], self.nv, self.nv), 0.0, dtype=data.dtype)

    def _kept(self, name: str, A: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Entries of `packed`, after a check that the entries of A (…, nv, nv) left out are 0."""
        outside = np.tri(self.nv, dtype=bool)
        outside[self.row, self.col] = False
        i, j = np.nonzero(outside)
        if A.dtype == object:
            wrong = np.vectorize(lambda x: not is_zero(x), otypes=[bool])(A[..., i, j])
        else:
            size = np.sqrt(np.abs(np.diagonal(A, axis1=-2, axis2=-1)))
            wrong = np.abs(A[..., i, j]) > UNEQUAL * size[..., i] * size[..., j]
        if np.any(wrong):
            k = np.argwhere(wrong)[0, -1]
            raise InvalidInput(
                f"{name}[{i[k]}, {j[k]}] is not zero, but the layout has no place for it: either {j[k]} is no ancestor "
                f"of {i[k]} in `parent`, or {i[k]} is declared simple and is not"
            )
        return packed[..., self.row, self.col]


def legacy_layout(parent: Sequence[int]) -> MujocoLayout:
    """The layout of `qM`, and of `qLD` before MuJoCo 3.3. parent: `dof_parentid`. Raises InvalidInput."""
    return _layout(parent, [(k, *path) for k, path in enumerate(ancestors(parent))])


def csr_layout(parent: Sequence[int], simplenum: Sequence[int] | None = None) -> MujocoLayout:
    """The layout of `M`, and of `qLD` since MuJoCo 3.3.

    parent (nv): `dof_parentid`; simplenum (nv): `dof_simplenum`, not 0 if a row has only its diagonal (None: no row
    is so). Raises InvalidInput.
    """
    rows = [(*reversed(path), k) for k, path in enumerate(ancestors(parent))]
    if simplenum is not None:
        if np.shape(simplenum) != (len(rows),):
            raise InvalidInput(f"simplenum has shape {np.shape(simplenum)}, but parent has {len(rows)} entries")
        rows = [(k,) if simple else columns for k, (simple, columns) in enumerate(zip(simplenum, rows, strict=True))]
    return _layout(parent, rows)


def _layout(parent: Sequence[int], rows: Sequence[Sequence[int]]) -> MujocoLayout:
    row = np.array([k for k, columns in enumerate(rows) for _ in columns], dtype=int)
    col = np.array([j for columns in rows for j in columns], dtype=int)
    return MujocoLayout(tuple(int(p) for p in parent), row, col)
