"""Models from screw axes (product of exponentials)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import ModelError
from sysdyn.model.constants import UNIT_ERROR, clean
from sysdyn.model.frames import Frame
from sysdyn.model.joints import Helical, Joint, Prismatic, Revolute
from sysdyn.model.model import Model
from sysdyn.model.se3 import X_motion, adjoint, checked_pose
from sysdyn.program.arrays import finite_array
from sysdyn.program.reproducible import dot, matmul, norm


def from_screws(
    home: ArrayLike,
    space: ArrayLike | None = None,
    body: ArrayLike | None = None,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    name: str = "screws",
) -> Model:
    """Create a massless serial chain from screw axes (product of exponentials).

    The pose of its frame "tool" is T(q) = exp([S_1] q_1) … exp([S_n] q_n) M = M exp([B_1] q_1) … exp([B_n] q_n). The
    unit of length is that of M and v.

    Parameters
    ----------
    home : (4, 4) array_like
        Pose M of the tool at q = 0.
    space, body : (6, n) array_like
        Pass exactly one. A column [ω; v] is the screw axis of a joint at q = 0: S_i in world coordinates or B_i in tool
        coordinates. Revolute and helical joints: |ω| = 1 and v = −ω × p + h ω, for an axis through p with pitch h (0 if
        revolute). Prismatic joints: ω = 0 and |v| = 1.
    lower, upper : (n,) array_like, optional
        Limits of q.
    name : str
        Name of the robot.

    Raises
    ------
    InvalidInput, ModelError
        If M is not a pose; for invalid axes.

    References
    ----------
    Lynch & Park, Modern Robotics, eqs. (4.14), (4.16).
    """
    M = checked_pose("home", home)
    if (space is None) == (body is None):
        raise ModelError("give the screw axes either as space=S (world coordinates) or as body=B (tool coordinates)")
    S = _screws("space", space) if body is None else matmul(adjoint(M), _screws("body", body))
    n = S.shape[1]
    joints, X_tree = [], np.empty((n, 6, 6))
    origin = np.zeros(3)
    for i, screw in enumerate(S.T):
        joint, point = _joint(screw, i, origin)
        joints.append(joint)
        X_tree[i] = X_motion(np.eye(3), point - origin)
        origin = point
    return Model(
        name,
        tuple(f"body{i}" for i in range(n)),
        tuple(f"joint{i}" for i in range(n)),
        tuple(joints),
        tuple(range(-1, n - 1)),
        X_tree,
        np.zeros((n, 6, 6)),
        frames={"base": Frame("base", -1), "tool": Frame("tool", n - 1, X_motion(M[:3, :3].T, M[:3, 3] - origin))},
        lower=lower,  # type: ignore[arg-type]
        upper=upper,  # type: ignore[arg-type]
    )


def _joint(screw: np.ndarray, i: int, origin: np.ndarray) -> tuple[Joint, np.ndarray]:
    """Convert a screw axis (6,) to (joint, point (3,) on its axis). The point is the nearest one to `origin`."""
    w, v = screw[:3], screw[3:]
    size, speed = float(norm(w)), float(norm(v))
    if size <= UNIT_ERROR:
        if abs(speed - 1.0) > UNIT_ERROR:
            raise ModelError(f"screw axis {i} has ω = 0 and |v| = {speed:.9g}; a prismatic joint needs |v| = 1")
        return Prismatic(tuple(v)), origin
    if abs(size - 1.0) > UNIT_ERROR:
        raise ModelError(
            f"screw axis {i} has |ω| = {size:.9g}; it must be 1 (or 0 for a prismatic joint): divide by it"
        )
    w, v = w / size, v / size
    pitch, point = float(dot(w, v)), np.cross(w, v)
    joint = Helical(tuple(w), pitch) if clean(pitch, norm(v)) else Revolute(tuple(w))
    return joint, point + w * dot(w, origin - point)


def _screws(name: str, screws: ArrayLike | None) -> np.ndarray:
    """Check screw axes (6, n) and convert them to floats. Raises ModelError."""
    return finite_array(f"{name} (a column [ω; v] for each joint)", screws, (6, None), ModelError)
