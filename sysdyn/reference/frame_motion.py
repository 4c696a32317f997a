"""Velocity and acceleration of a frame, and the time derivative of its Jacobian, generic over float and Expr.

q (nq,) and q̇ (nv,) are float arrays, or object arrays of Expr, floats and batches. J is the Jacobian of
`sysdyn.model.kinematics.frame_jacobian` for the reference "local", "world" or "space", and J̇ its elementwise time
derivative. For each reference the twist of the frame is J q̇, and its time derivative J q̈ + J̇ q̇.
"""

from __future__ import annotations

import numpy as np

from sysdyn.errors import check_among
from sysdyn.model import Model
from sysdyn.model.kinematics import REFERENCES, path, pose_and_jacobian
from sysdyn.model.se3 import adjoint, cross, cross_motion


def frame_velocity(model: Model, q: np.ndarray, qd: np.ndarray, frame: str, reference: str = "local") -> np.ndarray:
    """Twist J q̇ = [ω; v] (6,) [rad/s, m/s] of a frame.

    Raises UnknownName, InvalidInput. Lynch & Park eqs. (5.11), (5.18), (5.22).
    """
    T, J = pose_and_jacobian(model, q, frame)
    twist = np.full(6, 0.0, dtype=np.result_type(q, qd))
    for i in path(model, model.frame(frame).body):
        part = model.v_slice(i)
        if model.joints[i].nv:
            twist = twist + J[:, part] @ qd[part]
    return _in_reference(T, twist, reference)


def jacobian_rate(model: Model, q: np.ndarray, qd: np.ndarray, frame: str, reference: str = "local") -> np.ndarray:
    """J̇ (6, nv): elementwise time derivative of the frame Jacobian at joint velocities q̇.

    A column J_i of the local Jacobian is constant in body i; frame F moves relative to that body:

        J̇_i = (v_i − v_F) × J_i            local
        R (J̇_i + ω_F × J_i)                world, angular and linear part
        Ad(T) (J̇_i + v_F × J_i)            space

    Raises UnknownName, InvalidInput. RBDA eq. (2.45).
    """
    T, J = pose_and_jacobian(model, q, frame)
    rate = np.full(J.shape, 0.0, dtype=np.result_type(q, qd))
    behind = np.full(6, 0.0, dtype=rate.dtype)  # v_F − v_i
    carrying = [model.v_slice(i) for i in path(model, model.frame(frame).body) if model.joints[i].nv]
    for part in carrying:
        for k in range(part.start, part.stop):
            rate[:, k] = cross_motion(J[:, k], behind)
        behind = behind + J[:, part] @ qd[part]
    if reference != "local":
        turning = behind if reference == "space" else np.concatenate([behind[:3], 0.0 * behind[3:]])
        for part in carrying:
            for k in range(part.start, part.stop):
                rate[:, k] = rate[:, k] + cross_motion(turning, J[:, k])
    return _in_reference(T, rate, reference)


def bias_acceleration(model: Model, q: np.ndarray, qd: np.ndarray, frame: str, reference: str = "local") -> np.ndarray:
    """J̇ q̇ (6,) [rad/s², m/s²]: time derivative of the frame's twist for q̈ = 0.

    "local" and "space": spatial acceleration. "world": [ω̇; p̈], with the classical acceleration p̈ of the origin.

    Raises UnknownName, InvalidInput. RBDA eqs. (2.45), (2.48).
    """
    T, J = pose_and_jacobian(model, q, frame)
    rate = np.full(6, 0.0, dtype=np.result_type(q, qd))
    behind = rate.copy()  # v_F − v_i
    for i in path(model, model.frame(frame).body):
        part = model.v_slice(i)
        if model.joints[i].nv:
            across = J[:, part] @ qd[part]
            rate = rate + cross_motion(across, behind)
            behind = behind + across
    if reference == "world":
        rate = np.concatenate([rate[:3], rate[3:] + cross(behind[:3], behind[3:])])
    return _in_reference(T, rate, reference)


def _in_reference(T: np.ndarray, x: np.ndarray, reference: str) -> np.ndarray:
    """Transform motion vectors (6, …) from local coordinates of the frame at T to the reference."""
    check_among("reference", reference, REFERENCES)
    if reference == "world":
        R = T[:3, :3]
        return np.concatenate([R @ x[:3], R @ x[3:]])
    return adjoint(T) @ x if reference == "space" else x
