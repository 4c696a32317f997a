"""Conversion of states, accelerations and forces between sysdyn and MuJoCo."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.model.joints import Free, Spherical
from sysdyn.model.readers.mjcf import TO_WXYZ, TO_XYZW, convert_joints, joint_armature
from sysdyn.model.readers.mujoco import check_type
from sysdyn.model.se3 import normalise_quaternion, point_acceleration_term, rotate
from sysdyn.program.arrays import finite_array


class MujocoState:
    """Converts states, accelerations and forces between a `mujoco.MjModel` and its `Model` from `from_mujoco`.

        state = MujocoState(mj_model)
        q, qd = state.to_sysdyn(data.qpos, data.qvel)
        tau = state.force_to_sysdyn(data.qpos, data.qfrc_applied)
        qacc = state.acceleration_to_mujoco(q, qd, aba(model, q, qd, tau))

    T (nv, nv) is the identity, except for the 6 × 6 block of each free joint. R is the attitude of its body:

        q̇_mj = T q̇,    τ_mj = T τ,    M = T H T^T,    T = [0 R; 1 0],    q̈_mj = T q̈ + [R (ω × v); 0]

                      sysdyn                          MuJoCo
        hinge, slide  q                               qpos = q + qpos0
        ball          quaternion xyzw; ω in body      quaternion wxyz; ω in body
        free          p, quaternion xyzw              p, quaternion wxyz
                      q̇ = [ω; v], τ = [n; f] in body  [R v; ω], [R f; n]: v and f in the world

    Positions are (…, nq), vectors (…, nv); leading batch axes broadcast. Quaternions are normalised, as in MuJoCo. All
    methods raise InvalidInput for a wrong shape, a number that is not finite and a zero quaternion.
    """

    def __init__(self, mj_model: Any):
        check_type(mj_model)
        self.nq, self.nv = int(mj_model.nq), int(mj_model.nv)
        self._q0 = np.zeros(self.nq)
        self._quaternions: list[int] = []
        self._free: list[tuple[int, int]] = []  # Free joints: start of the quaternion in q, of the velocity in q̇
        for j, parts in enumerate(convert_joints(mj_model, joint_armature(mj_model))):
            at = int(mj_model.jnt_qposadr[j])
            if isinstance(parts[0], Free):
                self._free.append((at + 3, int(mj_model.jnt_dofadr[j])))
            if isinstance(parts[-1], (Free, Spherical)):
                self._quaternions.append(at + sum(part.nq for part in parts) - 4)
            else:
                self._q0[at] = mj_model.qpos0[at]

    def to_sysdyn(self, qpos: ArrayLike, qvel: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Convert MuJoCo's (qpos, qvel) to (q, q̇)."""
        q = self._position(qpos)
        return q, self._from_world(q, self._vector("qvel", qvel))

    def to_mujoco(self, q: ArrayLike, qd: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Convert (q, q̇) to MuJoCo's (qpos, qvel)."""
        q, qd = self._normalise("q", q), self._vector("qd", qd)
        qpos = q + self._q0
        for s in self._quaternions:
            qpos[..., s : s + 4] = q[..., s : s + 4][..., TO_WXYZ]
        return qpos, self._to_world(q, qd)

    def acceleration_to_sysdyn(self, qpos: ArrayLike, qvel: ArrayLike, qacc: ArrayLike) -> np.ndarray:
        """Convert MuJoCo's qacc at (qpos, qvel) to q̈."""
        q, qd = self.to_sysdyn(qpos, qvel)
        qdd = self._from_world(q, self._vector("qacc", qacc))
        return qdd - point_acceleration_term(qd, (k for _, k in self._free))

    def acceleration_to_mujoco(self, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike) -> np.ndarray:
        """Convert q̈ at (q, q̇) to MuJoCo's qacc."""
        q, qd = self._normalise("q", q), self._vector("qd", qd)
        return self._to_world(q, self._vector("qdd", qdd) + point_acceleration_term(qd, (k for _, k in self._free)))

    def force_to_sysdyn(self, qpos: ArrayLike, qfrc: ArrayLike) -> np.ndarray:
        """Convert MuJoCo's generalised force qfrc at qpos to τ."""
        return self._from_world(self._position(qpos), self._vector("qfrc", qfrc))

    def force_to_mujoco(self, q: ArrayLike, tau: ArrayLike) -> np.ndarray:
        """Convert τ at q to MuJoCo's generalised force."""
        return self._to_world(self._normalise("q", q), self._vector("tau", tau))

    def inertia_to_sysdyn(self, qpos: ArrayLike, M: ArrayLike) -> np.ndarray:
        """Convert MuJoCo's joint-space inertia M at qpos to H = T^T M T (…, nv, nv)."""
        q, M = self._position(qpos)[..., None, :], self._vector("M", M, rows=self.nv)
        half = np.swapaxes(self._from_world(q, M), -1, -2)
        return np.swapaxes(self._from_world(q, half), -1, -2)

    def inertia_to_mujoco(self, q: ArrayLike, H: ArrayLike) -> np.ndarray:
        """Convert H at q to MuJoCo's joint-space inertia M = T H T^T (…, nv, nv)."""
        q, H = self._normalise("q", q)[..., None, :], self._vector("H", H, rows=self.nv)
        half = np.swapaxes(self._to_world(q, H), -1, -2)
        return np.swapaxes(self._to_world(q, half), -1, -2)

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _position(self, qpos: ArrayLike) -> np.ndarray:
        q = finite_array("qpos", qpos, (..., self.nq)) - self._q0
        for s in self._quaternions:
            q[..., s : s + 4] = q[..., s : s + 4][..., TO_XYZW]
        return self._normalise("qpos", q)

    def _normalise(self, name: str, q: ArrayLike) -> np.ndarray:
        q = finite_array(name, q, (..., self.nq))
        for s in self._quaternions:
            q = normalise_quaternion(name, q, s)
        return q

    def _vector(self, name: str, x: ArrayLike, rows: int | None = None) -> np.ndarray:
        return finite_array(name, x, (..., self.nv) if rows is None else (..., rows, self.nv))

    def _to_world(self, q: np.ndarray, x: np.ndarray) -> np.ndarray:
        """T x, for x (…, nv)."""
        y = np.array(np.broadcast_to(x, (*np.broadcast_shapes(q.shape[:-1], x.shape[:-1]), self.nv)))
        for s, k in self._free:
            y[..., k : k + 3] = rotate(q[..., s : s + 4], x[..., k + 3 : k + 6])
            y[..., k + 3 : k + 6] = x[..., k : k + 3]
        return y

    def _from_world(self, q: np.ndarray, y: np.ndarray) -> np.ndarray:
        """T^T y, for y (…, nv)."""
        x = np.array(np.broadcast_to(y, (*np.broadcast_shapes(q.shape[:-1], y.shape[:-1]), self.nv)))
        for s, k in self._free:
            back = q[..., s : s + 4] * (-1.0, -1.0, -1.0, 1.0)
            x[..., k : k + 3] = y[..., k + 3 : k + 6]
            x[..., k + 3 : k + 6] = rotate(back, y[..., k : k + 3])
        return x
