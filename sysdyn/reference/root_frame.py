"""Motion of a tree in root-body coordinates, for algorithms that pair degrees of freedom of distant bodies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.model import Model
from sysdyn.model.kinematics import joint_placement
from sysdyn.model.se3 import cross, cross_motion


class RootMotion(NamedTuple):
    """Motion of each body in coordinates of the root body of its tree; lists have length nb.

    psi_d: ψ̇ = v_λ × s of each degree of freedom s, with the velocity v_λ of the parent.
    """

    model: Model
    qd: np.ndarray  # (nv,)
    R: list[np.ndarray]  # (3, 3) attitude of the body: its coordinates to the root's
    o: list[np.ndarray]  # (3,) [m] its origin
    S: list[np.ndarray]  # (nv_i, 6) its degrees of freedom, one row each
    v: list[np.ndarray]  # (6,) [rad/s, m/s] its spatial velocity
    psi_d: list[np.ndarray]  # (nv_i, 6)
    a0: list[np.ndarray]  # (6,) [m/s²] acceleration −g of the base

    def accelerations(self, qdd: np.ndarray) -> list[np.ndarray]:
        """Proper spatial acceleration (6,) [rad/s², m/s²] of each body (gravity folded in)."""
        a: list[np.ndarray] = []
        for i, parent in enumerate(self.model.parent):
            before, part = self.a0[i] if parent < 0 else a[parent], self.model.v_slice(i)
            # v_i × S q̇ = v_λ × S q̇, as S q̇ × S q̇ = 0
            moves = len(self.S[i]) > 0
            a.append(before + qdd[part] @ self.S[i] + self.qd[part] @ self.psi_d[i] if moves else before)
        return a

    def in_body(self, i: int, s: np.ndarray) -> np.ndarray:
        """Transform a motion vector (6) from root to body coordinates."""
        R, o, w = self.R[i], self.o[i], s[:3]
        return np.concatenate([R.T @ w, R.T @ (s[3:] - cross(o, w))])

    def placed_wrench(self, i: int, f: np.ndarray) -> np.ndarray:
        """Transform a wrench (6) from body to root coordinates."""
        force = self.R[i] @ f[3:]
        return np.concatenate([self.R[i] @ f[:3] + cross(self.o[i], force), force])


def root_motion(model: Model, q: np.ndarray, qd: np.ndarray) -> RootMotion:
    """Compute `RootMotion`; q (nq,), qd (nv,): float arrays, or object arrays of Expr or batches."""
    dtype = np.result_type(q, qd)
    motion = RootMotion(model, qd, [], [], [], [], [], [])
    zero = np.zeros(6).astype(dtype)
    for i, joint in enumerate(model.joints):
        E, r = joint_placement(model, i, q)
        parent = model.parent[i]
        if parent < 0:
            R, o, v = np.eye(3).astype(dtype), np.zeros(3).astype(dtype), zero
            a0 = np.concatenate([zero[:3], E @ model.a0[3:].astype(dtype)])
        else:
            R, o = motion.R[parent] @ E.T, motion.o[parent] + motion.R[parent] @ r
            v, a0 = motion.v[parent], motion.a0[parent]
        S = np.empty((joint.nv, 6), dtype=dtype)
        psi_d = S.copy()
        for k, s in enumerate(joint.S.T.astype(dtype)):
            w = R @ s[:3]
            S[k, :3], S[k, 3:] = w, R @ s[3:] + cross(o, w)
            psi_d[k] = cross_motion(v, S[k])
        if joint.nv:
            v = v + qd[model.v_slice(i)] @ S
        for values, x in zip(motion[2:], (R, o, S, v, psi_d, a0), strict=True):
            values.append(x)
    return motion
