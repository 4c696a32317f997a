"""Derivatives of inverse dynamics by the recursion of Singh, Russo and Wensing (2022), with moments of mass.

All of a tree is written in the frame of its root body, where vectors of different bodies need no transforms to be
multiplied with one another (`root_frame`). ψ̇ = v_λ × s and ψ̈ = a_λ × s + v_λ × ψ̇ are what the velocities and
accelerations of all bodies beyond a freedom s change by in coordinates that move with it. With the composite inertia
I, Coriolis matrix B and force f of the bodies beyond s, for every freedom s and each t on its way to the base,

    ∂τ_s/∂q_t = s·(I ψ̈_t + 2B ψ̇_t)              ∂τ_t/∂q_s = t·(I ψ̈ + 2B ψ̇ + s ×* f)
    ∂τ_s/∂q̇_t = s·(I (ψ̇_t + ṫ) + 2B t)           ∂τ_t/∂q̇_s = t·(I (ψ̇ + ṡ) + 2B s)           H_st = s·I t

Different from the paper: bodies are described by the moments Σ m, h = Σ m r, P = Σ m r r^T, p = Σ m ṙ, W = Σ m ṙ r^T
of their points r. They add up without any product, and give

    I = [tr(P) 1 − P, h×; −h×, m 1]              2B = 2 [tr(W) 1 − W, 0; −p×, 0]

so that B has no column for translations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.reference.root_frame import root_motion
from sysdyn.reference.states import run
from sysdyn.spatial import cross, cross_force, cross_motion


class InverseDynamics(NamedTuple):
    """τ = ID(q, q̇, q̈, fx) with its partial derivatives, by q in the tangent space; ∂τ/∂q̈ is the inertia matrix H."""

    tau: np.ndarray  # (…, nv) [N m, N]
    dtau_dq: np.ndarray  # (…, nv, nv)
    dtau_dqd: np.ndarray  # (…, nv, nv)
    H: np.ndarray  # (…, nv, nv), both triangles, armature included
    dtau_dfx: np.ndarray  # (…, nv, nb, 6): minus the transposed body Jacobians


def rnea_derivatives(model: Model, q, qd, qdd, fx=None) -> InverseDynamics:
    """τ of `rnea` with ∂τ/∂q, ∂τ/∂q̇, ∂τ/∂q̈ = H and ∂τ/∂fx.

    Column k of ∂τ/∂q is the rate of τ while freedom k moves at unit velocity, which is what `Model.integrate` steps by:
    of a free or ball joint, along a rotation or translation in its body. Entries of freedoms of which none carries the
    other are 0.0.

    q (…, nq), qd (…, nv), qdd (…, nv): the state and its acceleration; leading axes are batch axes.
    fx (…, nb, 6) [N m, N] body i: external wrench on body i, at its origin and in its coordinates; None: none.
    Arrays of Expr give Expr. Raises InvalidInput.

    S. Singh, R. Russo, P. Wensing, Efficient analytical derivatives of rigid-body dynamics using spatial vector
    algebra, IEEE RA-L 7 (2022).
    """
    return InverseDynamics(*run(_recursion, model, {"q": q, "qd": qd, "qdd": qdd, "fx": fx}))


class _Moments:
    """m, h (3), P (3, 3), p (3), W (3, 3) and force f (6) of a body or of all bodies beyond a joint."""

    def __init__(self, m, h, P, p, W, f):
        self.m, self.h, self.P, self.p, self.W, self.f = m, h, P, p, W, f

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(*(getattr(self, x) + getattr(other, x) for x in ("m", "h", "P", "p", "W", "f")))

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


def _recursion(model: Model, q, qd, qdd, fx) -> tuple[np.ndarray, ...]:
    dtype = np.result_type(q, qd, qdd)
    nv = model.nv
    motion = root_motion(model, q, qd, qdd)
    R, o, S, v, a, psi_d, psi_dd = motion
    both: list[np.ndarray] = []  # ψ̇ + ṡ, one row a freedom
    moments: list[_Moments] = []

    # Forward: moments of each body.
    for i, joint in enumerate(model.joints):
        # ṡ = v × s = ψ̇ + v_J × s, of which the last is zero where the joint has one freedom
        both.append(psi_d[i] + psi_d[i])
        if joint.nv > 1:
            v_joint = qd[model.v_slice(i)] @ S[i]
            both[i] = both[i] + np.stack([cross_motion(v_joint, s) for s in S[i]])
        moments.append(_moments(model.inertias[i].astype(dtype), R[i], o[i], v[i], a[i]))
        if fx is not None:
            moments[i].f = moments[i].f - motion.placed_wrench(i, fx[i])

    # Backward: each joint with those between it and the base.
    tau = np.full(nv, 0.0, dtype=dtype)
    dq, dqd, H = (np.full((nv, nv), 0.0, dtype=dtype) for _ in range(3))
    dfx = np.full((nv, model.nb, 6), 0.0, dtype=dtype)
    for i in reversed(range(model.nb)):
        beyond, part = moments[i], model.v_slice(i)
        for k, s in enumerate(S[i], start=part.start):
            d, dd, b = psi_d[i][k - part.start], psi_dd[i][k - part.start], both[i][k - part.start]
            tau[k] = s @ beyond.f + float(model.armature[k]) * qdd[k]
            Is, Bs = beyond.inertia(s), beyond.coriolis_transposed(s)
            column_q = beyond.inertia(dd) + beyond.coriolis(d) + cross_force(s, beyond.f)
            column_qd = beyond.inertia(b) + beyond.coriolis(s)
            for j in path(model, i):
                for n, t in enumerate(S[j]):
                    l = model.v_slice(j).start + n
                    H[k, l] = Is @ t
                    dq[k, l] = Is @ psi_dd[j][n] + Bs @ psi_d[j][n][:3]
                    dqd[k, l] = Is @ both[j][n] + Bs @ t[:3]
                    if j != i:
                        H[l, k] = H[k, l]
                        dq[l, k], dqd[l, k] = t @ column_q, t @ column_qd
            H[k, k] = H[k, k] + float(model.armature[k])
        for j in path(model, i):
            for l, t in enumerate(S[j], start=model.v_slice(j).start):
                dfx[l, i] = -motion.seen(i, t)
        if model.parent[i] >= 0:
            moments[model.parent[i]] = moments[model.parent[i]] + beyond
    return tau, dq, dqd, H, dfx


def _moments(I: np.ndarray, R: np.ndarray, o: np.ndarray, v: np.ndarray, a: np.ndarray) -> _Moments:
    """Moments of a body with the spatial inertia I (body coordinates), and the force I a + v ×* I v that it needs."""
    m, c, J = I[5, 5], I[[2, 0, 1], [4, 5, 3]], I[:3, :3]
    half = 0.5 * (J[0, 0] + J[1, 1] + J[2, 2])
    P = np.array([[half - J[i, j] if i == j else -J[i, j] for j in range(3)] for i in range(3)], dtype=I.dtype)
    Rc, RP = R @ c, R @ P
    h, g = Rc + m * o, Rc + (0.5 * m) * o  # R P R^T + Rc o^T + o Rc^T + m o o^T = R P R^T + g o^T + o g^T
    P = np.empty((3, 3), dtype=np.result_type(I, R))
    for i in range(3):
        for j in range(i + 1):
            P[i, j] = P[j, i] = RP[i] @ R[j] + g[i] * o[j] + o[i] * g[j]
    w, u = v[:3], v[3:]
    p = m * u + cross(w, h)
    W = np.outer(u, h) + np.stack([cross(w, x) for x in P], axis=1)
    k = _vector([W[2, 1] - W[1, 2], W[0, 2] - W[2, 0], W[1, 0] - W[0, 1]], W.dtype)  # Σ m r × ṙ
    moments = _Moments(m, h, P, p, W, None)
    moments.f = moments.inertia(a) + cross_force(v, np.concatenate([k, p]))
    return moments


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
    """(3,) array; an entry that is a batch stays one entry."""
    x = np.empty(3, dtype=dtype)
    for k, value in enumerate(entries):
        x[k] = value
    return x
