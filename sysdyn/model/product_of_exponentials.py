"""Models from screw axes: the product of exponentials (Lynch & Park, Modern Robotics, ch. 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import ModelError
from sysdyn.model.constants import clean
from sysdyn.model.frames import Frame
from sysdyn.model.joints import Helical, Joint, Prismatic, Revolute
from sysdyn.model.model import Model
from sysdyn.model.se3 import X_motion, adjoint, checked_pose
from sysdyn.program.arrays import finite_array
from sysdyn.program.reproducible import dot, matmul, norm

UNIT_ERROR = 1e-6  # Largest ||ω| − 1| of a unit vector ω that was written with few digits (chosen).
NO_PITCH = 1e-12  # Rounding of a pitch ω · v, as a fraction of |v| (chosen).


def from_screws(
    home: ArrayLike,
    space: ArrayLike | None = None,
    body: ArrayLike | None = None,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    name: str = "screws",
) -> Model:
    """Serial chain without mass whose frame "tool" is at T(q) = exp([S_1] q_1) … exp([S_n] q_n) M = M exp([B_1] q_1) ….

    home (4, 4): M, the pose of the tool at q = 0.
    space or body (6, n), one of the two: a column [ω; v] for each joint, at q = 0, S_i in world coordinates or B_i in
        those of the tool; |ω| = 1 and v = −ω × p + h ω for an axis through p with the pitch h (0 for revolute joints),
        or ω = 0 and |v| = 1 for prismatic joints.
    lower, upper (n,): limits of q, by default none.

    The unit of length is that of M and v: what the library calls m is then that. Raises ModelError, and InvalidInput
    where M is no pose. Lynch & Park eqs. (4.14), (4.16).
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
        X_tree[i] = X_motion(np.eye(3), clean(point - origin))
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
    """(joint, the point (3,) of its axis nearest to `origin`) of the screw axis (6,)."""
    w, v = screw[:3], screw[3:]
    size = float(norm(w))
    if size <= UNIT_ERROR:
        speed = float(norm(v))
        if abs(speed - 1.0) > UNIT_ERROR:
            raise ModelError(f"screw axis {i} has ω = 0 and |v| = {speed:.9g}; a prismatic one needs |v| = 1")
        return Prismatic(tuple(v)), origin
    if abs(size - 1.0) > UNIT_ERROR:
        raise ModelError(
            f"screw axis {i} has |ω| = {size:.9g}; it must be 1 (or 0 for a prismatic joint): divide by it"
        )
    w, v = w / size, v / size
    pitch, point = float(dot(w, v)), np.cross(w, v)
    point = point + w * dot(w, origin - point)
    joint = Revolute(tuple(w)) if abs(pitch) <= NO_PITCH * norm(v) else Helical(tuple(w), pitch)
    return joint, point


def _screws(name: str, screws: ArrayLike | None) -> np.ndarray:
    """(6, n) array with a column [ω; v] for each joint. Raises ModelError."""
    return finite_array(f"{name} (a column [ω; v] for each joint)", screws, (6, None), ModelError)
