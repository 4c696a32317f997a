"""The joint-space inertia matrix by the composite-rigid-body algorithm, and forward dynamics with it (RBDA ch. 6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import SingularState
from sysdyn.model import Model
from sysdyn.model.closures import coupling_bias, coupling_matrix
from sysdyn.model.constants import clean
from sysdyn.model.inertia import first_moment
from sysdyn.model.se3 import rotation, skew
from sysdyn.reference.aba import moves_no_inertia, symmetric
from sysdyn.reference.generic import run, run_arrays
from sysdyn.reference.ltdl import expanded_parent, ltdl_or
from sysdyn.reference.rnea import rnea


def crba(model: Model, q: ArrayLike) -> np.ndarray:
    """H (…, nv, nv): the joint-space inertia matrix, of H q̈ + C = τ and of the kinetic energy ½ q̇^T H q̇.

    With the composite inertia I^c_i of the bodies that joint i carries:

        I^c_i = I_i + Σ_{j∈μ(i)} X_j^T I^c_j X_j
        H_ii = S_i^T I^c_i S_i + A_i,    H_ij = F^T S_j for j on the way from i to the base, F = I^c_i S_i carried to j

    q (…, nq): leading axes are batch axes. Arrays of Expr give Expr. H_ij = 0.0 if neither of i and j is an ancestor
    of the other (see `sparsity`); the upper triangle is the lower one, mirrored. Raises InvalidInput.

    RBDA Table 6.2. The armature A_i is not in the book.
    """
    (H,) = run(recursion, model, {"q": q})
    return H


def forward_dynamics_crba(
    model: Model, q: ArrayLike, qd: ArrayLike, tau: ArrayLike, fx: ArrayLike | None = None
) -> np.ndarray:
    """q̈ (…, nv): the accelerations under the joint forces τ, by H q̈ = τ − C and H = L^T D L.

    C = ID(q, q̇, 0, fx) by `rnea`, H by `crba`, D and L by `ltdl`. O(nb d²) for a tree of depth d, where `aba` is O(nb);
    cheaper than it, by our counts, up to a dozen joints between the base and a tip.

    q (…, nq), qd (…, nv), tau (…, nv): the state and the joint forces; leading axes are batch axes.
    fx (…, nb, 6) [N m, N] body i: external wrench on body i, at its origin and in its coordinates; None: none.
    Arrays of Expr give Expr. Raises InvalidInput, and SingularState naming a joint that moves no inertia.

    Couplings of the model hold: q̈ = G q̈_r + γ with (G^T H G) q̈_r = G^T (τ − C − H γ), `Model.coupling_matrix`; loops
    do not. q and q̇ are taken as they are, see `Model.imposed`.

    RBDA §6.1; FDcrb of spatial_v2.
    """
    C = rnea(model, q, qd, np.zeros(model.nv), fx)
    (b,) = run_arrays(lambda tau, C: (tau - C,), {"tau": (tau, (model.nv,)), "C(q, qd, fx)": (C, (model.nv,))})
    if model.couplings:
        return _coupled(model, q, qd, b)

    def failure(row: int, pivot: float, states: tuple[int, ...]) -> SingularState:
        i = next(i for i in range(model.nb) if row < model.v_slice(i).stop)
        return moves_no_inertia(model, i, row - model.v_slice(i).start, pivot, states)

    return ltdl_or(failure, crba(model, q), expanded_parent(model)).solve(b)


def _coupled(model: Model, q: ArrayLike, qd: ArrayLike, b: np.ndarray) -> np.ndarray:
    """q̈ (…, nv) of a robot with coupled joints under the forces b = τ − C."""
    G, gamma = run(_coupling, model, {"q": q, "qd": qd})
    nv, n = G.shape[-2:]

    def reduced(G, H, b, gamma):
        return G.T @ H @ G, G.T @ (b - H @ gamma)

    def expanded(G, x, gamma):
        return (G @ x + gamma,)

    sizes = {"G": (G, (nv, n)), "H(q)": (crba(model, q), (nv, nv)), "tau": (b, (nv,)), "gamma": (gamma, (nv,))}
    H, rest = run_arrays(reduced, sizes)
    independent = np.setdiff1d(np.arange(nv), [joint.v for joint in model.couplings]).tolist()

    def failure(row: int, pivot: float, states: tuple[int, ...]) -> SingularState:
        i = next(i for i in range(model.nb) if independent[row] < model.v_slice(i).stop)
        return moves_no_inertia(model, i, independent[row] - model.v_slice(i).start, pivot, states)

    x = ltdl_or(failure, H, range(-1, n - 1)).solve(rest)
    (qdd,) = run_arrays(expanded, {"G": (G, (nv, n)), "qdd": (x, (n,)), "gamma": (gamma, (nv,))})
    return qdd


def _coupling(model: Model, q, qd) -> tuple[np.ndarray, np.ndarray]:
    """(G, γ) with q̈ = G q̈_independent + γ."""
    return coupling_matrix(model.couplings, model.nv, q), coupling_bias(model.couplings, q, qd)


def recursion(model: Model, q) -> tuple[np.ndarray]:
    S = [joint.S.astype(q.dtype) for joint in model.joints]
    Ic = [_Inertia(I[5, 5], first_moment(I), I[:3, :3]) for I in model.inertias.astype(q.dtype)]
    steps = [_steps(model, i, q[model.q_slice(i)]) for i in range(model.nb)]
    armature = model.armature.astype(q.dtype)
    H = np.full((model.nv, model.nv), 0.0, dtype=q.dtype)
    for i in reversed(range(model.nb)):
        part, parent = model.v_slice(i), model.parent[i]
        if parent >= 0:
            moved = Ic[i]
            for step in steps[i]:
                moved = step.inertia(moved)
            Ic[parent] = Ic[parent].plus(moved)  # I^c_λ + X^T I^c X
        F = Ic[i].matrix() @ S[i]
        H[part, part] = symmetric(model.joints[i].nv, q.dtype, lambda r, s, F=F, S=S[i]: S[:, r] @ F[:, s])
        for k in range(part.start, part.stop):
            H[k, k] = H[k, k] + armature[k]
        j = i
        while model.joints[i].nv and model.parent[j] >= 0:
            for step in steps[j]:
                F = step.force(F)  # X^T F
            j = model.parent[j]
            H[part, model.v_slice(j)] = F.T @ S[j]
            H[model.v_slice(j), part] = H[part, model.v_slice(j)].T
    return (H,)


# ---- across a joint, in steps that cost little -----------------------------------------------------------------------


class _Step(NamedTuple):
    """A step to a frame from one placed in it by E (3, 3) and r (3,): X^T of X = [E 0; −E r× E]."""

    E: np.ndarray
    r: np.ndarray
    axis: int | None  # the axis of coordinates that E turns about; None: another, or E only permutes and changes signs

    def force(self, F: np.ndarray) -> np.ndarray:
        """X^T F (6, n): [E^T n + r × E^T f; E^T f]."""
        f = self.E.T @ F[3:]
        return np.concatenate([self.E.T @ F[:3] + skew(self.r) @ f, f])

    def inertia(self, I: _Inertia) -> _Inertia:
        """X^T I X, with h' = E^T h + m r: J' = E^T J E + (r·(E^T h + h')) 1 − E^T h r^T − r h'^T. RBDA app. A."""
        turned, h, r = self._turned(I.J), self.E.T @ I.h, self.r
        moved = h + I.m * r
        p = r * (h + moved)

        def entry(i: int, j: int):
            return turned[i, j] + (p[i - 1] + p[i - 2] if i == j else -(h[i] * r[j] + r[i] * moved[j]))

        return _Inertia(I.m, moved, symmetric(3, h.dtype, entry))

    def _turned(self, J: np.ndarray) -> np.ndarray:
        """E^T J E (3, 3).

        About an axis, with c and s of the angle and [A B; B C] the part of J across it,

        [A + s k, −B − c k; −B − c k, C − s k], k = s (C − A) − 2 c B: 4 multiplications where products of matrices
        have 12.
        """
        E = self.E
        if self.axis is None:
            JE = J @ E
            return symmetric(3, J.dtype, lambda i, j: E[:, i] @ JE[:, j])
        a, b = (self.axis + 1) % 3, (self.axis + 2) % 3
        c, s = E[a, a], E[a, b]
        k = s * (J[b, b] - J[a, a]) - c * (J[a, b] + J[a, b])
        turned = J.copy()
        turned[:, self.axis] = turned[self.axis, :] = E.T @ J[:, self.axis]
        turned[a, a], turned[b, b] = J[a, a] + s * k, J[b, b] - s * k
        turned[a, b] = turned[b, a] = -(J[a, b] + c * k)
        return turned


class _Inertia(NamedTuple):
    """A spatial inertia [J h×; −h× m 1] of a rigid body by its ten parameters: h = m c, J (3, 3) about the origin."""

    m: float
    h: np.ndarray
    J: np.ndarray

    def plus(self, other: _Inertia) -> _Inertia:
        J = symmetric(3, self.J.dtype, lambda i, j: self.J[i, j] + other.J[i, j])
        return _Inertia(self.m + other.m, self.h + other.h, J)

    def matrix(self) -> np.ndarray:
        """(6, 6)."""
        I = np.full((6, 6), 0.0, dtype=self.h.dtype)
        I[:3, :3] = self.J
        I[:3, 3:] = skew(self.h)
        I[3:, :3] = -I[:3, 3:]
        I[3:, 3:] = self.m * np.eye(3)
        return I


def _steps(model: Model, i: int, q: np.ndarray) -> tuple[_Step, ...]:
    """X_i^T as one step; as two, which cost less, if both X_J and X_tree turn about axes of coordinates.

    What X_tree is displaced by along the axis of the joint is left to the first step where that makes the second one
    simpler: it does for parameters of Denavit and Hartenberg. All is decided by the constants of the model, so that
    floats, batches and Expr take the same path.
    """
    joint, E, r = model.joints[i], rotation(model.X_tree[i]), model.r_tree[i]
    E_J, r_J = joint.transform(q)
    turning = np.flatnonzero(np.any(joint.S[:3] != 0.0, axis=1))  # coordinates of the axes that the joint turns about
    axis, permutes = _axis(E)
    if len(turning) == 1 and (permutes or axis is not None):
        k = int(turning[0])
        along = np.eye(3)[k] * (E[k] @ r)
        rest = clean(r - E.T @ along)
        if np.count_nonzero(rest) + 1 < np.count_nonzero(r):
            r_J, r = r_J + along.astype(q.dtype), rest
        return _Step(E_J, r_J, k), _Step(E.astype(q.dtype), r.astype(q.dtype), axis)
    E_tree = E.astype(q.dtype)
    return (_Step(E_J @ E_tree, r.astype(q.dtype) + E_tree.T @ r_J, None if len(turning) else axis),)


def _axis(E: np.ndarray) -> tuple[int | None, bool]:
    """(axis of coordinates that E (3, 3) of floats turns about or None, True if E has only entries 0 and ±1)."""
    if np.all((E == 0.0) | (np.abs(E) == 1.0)):
        return None, True
    unit = np.eye(3)
    found = [k for k in range(3) if np.array_equal(E[k], unit[k]) and np.array_equal(E[:, k], unit[k])]
    return (found[0] if found else None), False
