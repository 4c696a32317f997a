"""Derivatives of inverse dynamics by the recursion of Singh, Russo and Wensing (2022), with moments of mass.

All vectors are in the frame of the root body (`root_frame`), so that vectors of different bodies multiply without
transforms. Let s be a degree of freedom, ψ̇ = v_λ × s, ψ̈ = a_λ × s + v_λ × ψ̇, and I, B and f the composite inertia,
Coriolis matrix and force of the subtree that s moves. For every s and each t on the path from s to the base,

    ∂τ_s/∂q_t = s·(I ψ̈_t + 2B ψ̇_t)              ∂τ_t/∂q_s = t·(I ψ̈ + 2B ψ̇ + s ×* f)
    ∂τ_s/∂q̇_t = s·(I (ψ̇_t + ṫ) + 2B t)           ∂τ_t/∂q̇_s = t·(I (ψ̇ + ṡ) + 2B s)           H_st = s·I t

Unlike the paper, a body is described by moments over its points r: Σ m, h = Σ m r, P = Σ m r r^T, p = Σ m ṙ,
W = Σ m ṙ r^T. The moments of a subtree are sums of those of its bodies, without products, and

    I = [tr(P) 1 − P, h×; −h×, m 1]              2B = 2 [tr(W) 1 − W, 0; −p×, 0]

B has no columns for translations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.model.se3 import cross, cross_force, cross_motion
from sysdyn.reference.generic import mark_block, run
from sysdyn.reference.root_frame import root_motion


class RNEADerivatives(NamedTuple):
    """τ = ID(q, q̇, q̈, fx) and its partial derivatives; ∂q is in the tangent space.

    tau (…, nv) [N m, N]: τ.
    dtau_dq, dtau_dqd (…, nv, nv): ∂τ/∂q, ∂τ/∂q̇.
    H (…, nv, nv): ∂τ/∂q̈, the inertia matrix: both triangles, armature included.
    dtau_dfx (…, nv, nb, 6): ∂τ/∂fx, minus the transposed body Jacobians.
    """

    tau: np.ndarray
    dtau_dq: np.ndarray
    dtau_dqd: np.ndarray
    H: np.ndarray
    dtau_dfx: np.ndarray


def rnea_derivatives(
    model: Model, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike, fx: ArrayLike | None = None
) -> RNEADerivatives:
    """τ of `rnea` with ∂τ/∂q, ∂τ/∂q̇, ∂τ/∂q̈ = H and ∂τ/∂fx.

    Column k of ∂τ/∂q is the directional derivative of τ along degree of freedom k, as in `Model.integrate`: for a free
    or ball joint a rotation or translation in body coordinates. Entries (j, k) are 0.0 if neither degree of freedom
    moves the other.

    q (…, nq), qd (…, nv), qdd (…, nv): the state and its acceleration; leading axes are batch axes.
    fx (…, nb, 6) [N m, N] body i: external wrench on body i, at its origin and in its coordinates; None: none.
    Arrays of Expr give Expr. Raises InvalidInput.

    S. Singh, R. Russo, P. Wensing, Efficient analytical derivatives of rigid-body dynamics using spatial vector
    algebra, IEEE RA-L 7 (2022).
    """
    return RNEADerivatives(*run(recursion, model, {"q": q, "qd": qd, "qdd": qdd, "fx": fx}))


class _Moments:
    """Moments m, h (3), P (3, 3), p (3) and W (3, 3) of a body or a subtree."""

    def __init__(self, m, h: np.ndarray, P: np.ndarray, p: np.ndarray, W: np.ndarray):
        self.m, self.h, self.P, self.p, self.W = m, h, P, p, W

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(*(getattr(self, x) + getattr(other, x) for x in ("m", "h", "P", "p", "W")))

    def inertia(self, a: np.ndarray) -> np.ndarray:
        """I a (6)."""
        return np.concatenate(
            [_complement(self.P, a[:3]) + cross(self.h, a[3:]), self.m * a[3:] + cross(a[:3], self.h)]
        )

    def coriolis(self, a: np.ndarray) -> np.ndarray:
        """2B a (6), from the angular part of a."""
        w = a[:3] + a[:3]
        return np.concatenate([_complement(self.W, w), cross(w, self.p)])

    def coriolis_transposed(self, s: np.ndarray) -> np.ndarray:
        """(2B)^T s (3): its linear part is zero."""
        half = _complement(self.W.T, s[:3]) + cross(self.p, s[3:])
        return half + half


class _Side(NamedTuple):
    """Vectors of one degree of freedom s and its subtree; products of two such sets give the derivatives."""

    body: int
    s: np.ndarray  # (6,)
    psi_d: np.ndarray  # (6,) ψ̇
    psi_d_plus_s_d: np.ndarray  # (6,) ψ̇ + ṡ
    v_cross_psi_d: np.ndarray  # (6,) v_λ × ψ̇
    Is: np.ndarray  # (6,) I s
    Bs: np.ndarray  # (3,) (2B)^T s
    B_psi_d: np.ndarray  # (6,) 2B ψ̇
    dtau_dqd_column: np.ndarray  # (6,) I (ψ̇ + ṡ) + 2B s: a column of ∂τ/∂q̇


class Bodies:
    """A tree at (q, q̇): terms independent of q̈ and fx, shared by several calls of `inverse_dynamics`.

    H (nv, nv): inertia matrix with armature. B_psi_d, psi_dd: by degree of freedom, columns of ∂τ/∂q and ψ̈ of the
    last `inverse_dynamics`. Repeated computations are written as equal graph segments (`mark_block`).
    """

    B_psi_d: list[np.ndarray]
    psi_dd: list[np.ndarray]

    def __init__(self, model: Model, q: np.ndarray, qd: np.ndarray):
        self.model, self.dtype = model, np.result_type(q, qd)
        self.motion = motion = root_motion(model, q, qd)
        self.own: list[_Moments] = []
        self.centrifugal: list[np.ndarray] = []  # v ×* I v
        for i in range(model.nb):
            moments, force = _moments(
                *mark_block(*_parameters(model.inertias[i]), motion.R[i], motion.o[i], motion.v[i])
            )
            self.own.append(moments)
            self.centrifugal.append(force)
        self.subtree = list(self.own)
        for i in reversed(range(model.nb)):
            if (parent := model.parent[i]) >= 0:
                self.subtree[parent] = self.subtree[parent] + self.subtree[i]
        self.sides = [side for i in range(model.nb) for side in self._sides(i)]
        self.H = np.full((model.nv, model.nv), 0.0, dtype=self.dtype)
        for l, k in self._pairs():
            if l <= k:
                (Is,) = mark_block(self.sides[k].Is)
                self.H[k, l] = self.H[l, k] = Is @ self.sides[l].s
        for k in range(model.nv):
            self.H[k, k] = self.H[k, k] + float(model.armature[k])

    def _sides(self, i: int) -> Iterator[_Side]:
        """One `_Side` for each degree of freedom of joint i."""
        motion, parent = self.motion, self.model.parent[i]
        v = np.zeros(6).astype(self.dtype) if parent < 0 else motion.v[parent]
        subtree, S, psi_d, v, qd = self._begin(
            self.subtree[i], motion.S[i], motion.psi_d[i], v, motion.qd[self.model.v_slice(i)]
        )
        for s, d in zip(S, psi_d, strict=True):
            # ṡ = v × s = ψ̇ + v_J × s; v_J × s = 0 for a joint with one degree of freedom
            psi_d_plus_s_d = d + d + cross_motion(qd @ S, s) if len(S) > 1 else d + d
            yield _Side(
                i, s, d, psi_d_plus_s_d, cross_motion(v, d), subtree.inertia(s), subtree.coriolis_transposed(s),
                subtree.coriolis(d), subtree.inertia(psi_d_plus_s_d) + subtree.coriolis(s),
            )  # fmt: skip

    def _begin(self, moments: _Moments, *arrays: np.ndarray) -> tuple:
        """Begin a graph segment (`mark_block`) with the moments and arrays as operands."""
        h, P, p, W, *rest = mark_block(moments.h, moments.P, moments.p, moments.W, *arrays)
        return _Moments(moments.m, h, P, p, W), *rest

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs (l, k) of degrees of freedom: l belongs to the joint of k or to one of its ancestors."""
        model = self.model
        carried = sorted((j, i) for i in range(model.nb) for j in path(model, i))
        for j, i in carried:
            for k in range(model.v_slice(i).start, model.v_slice(i).stop):
                for l in range(model.v_slice(j).start, model.v_slice(j).stop):
                    yield l, k

    def _forces(self, qdd: np.ndarray, fx: np.ndarray | None) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(acceleration (6) of each body, force (6) transmitted across its joint)."""
        model, motion = self.model, self.motion
        a = motion.accelerations(qdd)
        forces: list[np.ndarray] = []
        for i in range(model.nb):
            own, acceleration, centrifugal = self._begin(self.own[i], a[i], self.centrifugal[i])
            forces.append(own.inertia(acceleration) + centrifugal)
            if fx is not None:
                forces[i] = forces[i] - motion.placed_wrench(i, fx[i])
        for i in reversed(range(model.nb)):
            if (parent := model.parent[i]) >= 0:
                forces[parent] = forces[parent] + forces[i]
        return a, forces

    def torques(self, qdd: np.ndarray, fx: np.ndarray | None) -> np.ndarray:
        """Joint forces τ (nv)."""
        _, forces = self._forces(qdd, fx)
        return self._torques(qdd, forces)

    def _torques(self, qdd: np.ndarray, forces: list[np.ndarray]) -> np.ndarray:
        tau = np.full(self.model.nv, 0.0, dtype=np.result_type(self.dtype, qdd))
        for k, side in enumerate(self.sides):
            tau[k] = side.s @ forces[side.body] + float(self.model.armature[k]) * qdd[k]
        return tau

    def inverse_dynamics(self, qdd: np.ndarray, fx: np.ndarray | None) -> RNEADerivatives:
        """τ and its derivatives; object arrays for symbolic or batched states."""
        model, motion, nv = self.model, self.motion, self.model.nv
        dtype = np.result_type(self.dtype, qdd)
        a, forces = self._forces(qdd, fx)
        tau = self._torques(qdd, forces)
        self.psi_dd = psi_dd = []
        self.B_psi_d = columns = []  # I ψ̈ + 2B ψ̇ + s ×* f
        for k, side in enumerate(self.sides):
            i, parent = side.body, model.parent[side.body]
            before = motion.a0[i] if parent < 0 else a[parent]
            subtree, s, before, v_cross_psi_d, B_psi_d, f = self._begin(
                self.subtree[i], side.s, before, side.v_cross_psi_d, side.B_psi_d, forces[i]
            )
            psi_dd.append(cross_motion(before, s) + v_cross_psi_d)
            columns.append(subtree.inertia(psi_dd[k]) + B_psi_d + cross_force(s, f))
        dq, dqd = (np.full((nv, nv), 0.0, dtype=dtype) for _ in range(2))
        for l, k in self._pairs():
            side, other = self.sides[k], self.sides[l]
            Is, Bs, column_q, column_qd = mark_block(side.Is, side.Bs, columns[k], side.dtau_dqd_column)
            dq[k, l] = Is @ psi_dd[l] + Bs @ other.psi_d[:3]
            dqd[k, l] = Is @ other.psi_d_plus_s_d + Bs @ other.s[:3]
            if other.body != side.body:
                dq[l, k], dqd[l, k] = other.s @ column_q, other.s @ column_qd
        dfx = np.full((nv, model.nb, 6), 0.0, dtype=dtype)
        for i in range(model.nb):
            for j in path(model, i):
                for l, t in enumerate(motion.S[j], start=model.v_slice(j).start):
                    dfx[l, i] = -motion.in_body(i, t)
        return RNEADerivatives(tau, dq, dqd, self.H, dfx)


def recursion(model: Model, q, qd, qdd, fx) -> RNEADerivatives:
    return Bodies(model, q, qd).inverse_dynamics(qdd, fx)


def _parameters(I: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(m (1,), h = Σ m r (3,), P = Σ m r r^T (3, 3)) of a spatial inertia I (6, 6)."""
    J = I[:3, :3]
    return I[5:, 5], I[[2, 0, 1], [4, 5, 3]], np.trace(J) / 2 * np.eye(3) - J


def _moments(
    mass: np.ndarray, c: np.ndarray, P: np.ndarray, R: np.ndarray, o: np.ndarray, v: np.ndarray
) -> tuple[_Moments, np.ndarray]:
    """Moments of a body in the root frame, from those in its own frame, and its velocity-product force v ×* I v."""
    m = mass[0]
    Rc, RP = R @ c, R @ P
    h, g = Rc + m * o, Rc + (0.5 * m) * o  # R P R^T + Rc o^T + o Rc^T + m o o^T = R P R^T + g o^T + o g^T
    P = np.empty((3, 3), dtype=R.dtype)
    for i in range(3):
        for j in range(i + 1):
            P[i, j] = P[j, i] = RP[i] @ R[j] + g[i] * o[j] + o[i] * g[j]
    w, u = v[:3], v[3:]
    p = m * u + cross(w, h)
    W = np.outer(u, h) + np.stack([cross(w, x) for x in P], axis=1)
    k = _vector([W[2, 1] - W[1, 2], W[0, 2] - W[2, 0], W[1, 0] - W[0, 1]], W.dtype)  # Σ m r × ṙ
    return _Moments(m, h, P, p, W), cross_force(v, np.concatenate([k, p]))


def _complement(M: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(tr(M) 1 − M) x (3)."""
    d0, d1, d2 = M[1, 1] + M[2, 2], M[2, 2] + M[0, 0], M[0, 0] + M[1, 1]
    return _vector(
        [
            d0 * x[0] - M[0, 1] * x[1] - M[0, 2] * x[2],
            d1 * x[1] - M[1, 0] * x[0] - M[1, 2] * x[2],
            d2 * x[2] - M[2, 0] * x[0] - M[2, 1] * x[1],
        ],
        np.result_type(M, x),
    )


def _vector(entries: list, dtype) -> np.ndarray:
    """Array (3,); an entry may be a batch (array), which NumPy would expand."""
    x = np.empty(3, dtype=dtype)
    for k, value in enumerate(entries):
        x[k] = value
    return x
