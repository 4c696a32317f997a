"""The motion of a tree in the frame of its root body, for algorithms that pair freedoms far apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.model import Model
from sysdyn.model.kinematics import joint_placement
from sysdyn.spatial import cross, cross_motion


class RootMotion(NamedTuple):
    """Lists of nb, all in coordinates of the body at the root of the tree that body i belongs to.

    With v_λ and a_λ those of the parent, ψ̇ = v_λ × s and ψ̈ = a_λ × s + v_λ × ψ̇ of each freedom s.
    """

    R: list[np.ndarray]  # (3, 3) attitude of the body: its coordinates to the root's
    o: list[np.ndarray]  # (3,) [m] its origin
    S: list[np.ndarray]  # (nv_i, 6) its freedoms, one row each
    v: list[np.ndarray]  # (6,) [rad/s, m/s] its spatial velocity
    a: list[np.ndarray]  # (6,) [rad/s², m/s²] its proper spatial acceleration (gravity folded in)
    psi_d: list[np.ndarray]  # (nv_i, 6)
    psi_dd: list[np.ndarray]  # (nv_i, 6)

    def seen(self, i: int, s: np.ndarray) -> np.ndarray:
        """A motion vector (6) in coordinates of body i."""
        R, o, w = self.R[i], self.o[i], s[:3]
        return np.concatenate([R.T @ w, R.T @ (s[3:] - cross(o, w))])

    def placed_wrench(self, i: int, f: np.ndarray) -> np.ndarray:
        """A wrench (6) given in coordinates of body i, at its origin, in those of the root."""
        force = self.R[i] @ f[3:]
        return np.concatenate([self.R[i] @ f[:3] + cross(self.o[i], force), force])


def root_motion(model: Model, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> RootMotion:
    """Positions, freedoms, velocities and accelerations of all bodies; float arrays or object (Expr, batches)."""
    dtype = np.result_type(q, qd, qdd)
    found = RootMotion([], [], [], [], [], [], [])
    zero = np.zeros(6).astype(dtype)
    for i, joint in enumerate(model.joints):
        E, r = joint_placement(model, i, q)
        parent, part = model.parent[i], model.v_slice(i)
        if parent < 0:
            R, o = np.eye(3).astype(dtype), np.zeros(3).astype(dtype)
            v, a = zero, np.concatenate([zero[:3], E @ model.a0[3:].astype(dtype)])
        else:
            R, o = found.R[parent] @ E.T, found.o[parent] + found.R[parent] @ r
            v, a = found.v[parent], found.a[parent]
        S = np.empty((joint.nv, 6), dtype=dtype)
        psi_d, psi_dd = S.copy(), S.copy()
        for k, s in enumerate(joint.S.T.astype(dtype)):
            w = R @ s[:3]
            S[k, :3], S[k, 3:] = w, R @ s[3:] + cross(o, w)
            psi_d[k] = cross_motion(v, S[k])
            psi_dd[k] = cross_motion(a, S[k]) + cross_motion(v, psi_d[k])
        if joint.nv:
            # v_i × S q̇ = v_λ × S q̇, as S q̇ × S q̇ = 0
            v, a = v + qd[part] @ S, a + qdd[part] @ S + qd[part] @ psi_d
        for values, x in zip(found, (R, o, S, v, a, psi_d, psi_dd), strict=True):
            values.append(x)
    return found
