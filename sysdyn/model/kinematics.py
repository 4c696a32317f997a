"""Position and velocity kinematics of bodies and frames.

q and q̇ are arrays of floats, or object arrays of Expr, floats and batches. For object arrays, the results also have
dtype object, and their constants are Python floats, so that products with 0 and ±1 fold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, check_among
from sysdyn.model.constants import clean
from sysdyn.model.model import Frame, Model
from sysdyn.model.se3 import (
    X_motion,
    adjoint,
    cross,
    cross_motion,
    pose,
    quaternion_product,
    quaternion_step,
    rotation,
    se3_log,
)
from sysdyn.program.arrays import float_array, is_scalar
from sysdyn.program.reproducible import matmul

Mark = Callable[[int], None]  # Callback: called with i before the operations of body i.
# Coordinates of a frame quantity: frame axes, world axes, or world axes with the world origin as reference point.
REFERENCES = ("local", "world", "space")


def joint_transforms(model: Model, q: np.ndarray, mark: Mark | None = None) -> list[np.ndarray]:
    """Motion transforms X_i = X_J(q_i) X_tree,i from body parent[i] to body i.

    Parameters
    ----------
    model : Model
        Robot model.
    q : (nq,) array, rad and m
        Floats, or an object array of Expr, floats and batches.
    mark : callable, optional
        Called with i before the operations of body i begin.

    Returns
    -------
    list of nb (6, 6) arrays

    References
    ----------
    RBDA eq. (4.1).
    """
    q = _values("q", q, model.nq)
    X = []
    for i in range(model.nb):
        if mark is not None:
            mark(i)
        X.append(joint_transform(model, i, q))
    return X


def velocities(
    model: Model, X: list[np.ndarray], qd: np.ndarray, mark: Mark | None = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Velocities v_i = X_i v_λ(i) + S_i q̇_i of the bodies, and their velocity products c_i = v_i × S_i q̇_i.

    Parameters
    ----------
    model : Model
        Robot model.
    X : list of nb (6, 6) arrays
        From `joint_transforms`.
    qd : (nv,) array, rad/s and m/s
        Floats, or an object array of Expr, floats and batches.
    mark : callable, optional
        Called with i before the operations of body i begin.

    Returns
    -------
    v, c : lists of nb (6,) arrays
        In body coordinates. The base is at rest, so c_i = 0 for its children.

    References
    ----------
    Nori eqs. (2), (3a).
    """
    qd = _values("qd", qd, model.nv)
    dtype = object if qd.dtype == object or any(x.dtype == object for x in X) else float
    zero = np.full(6, 0.0, dtype=dtype)
    v: list[np.ndarray] = []
    c: list[np.ndarray] = []
    for i, joint in enumerate(model.joints):
        if mark is not None:
            mark(i)
        p = model.parent[i]
        v_J = zero.copy() if joint.nv == 0 else matmul(joint.S.astype(dtype), qd[model.v_slice(i)])
        if p < 0:
            v.append(v_J)
            c.append(zero.copy())
        elif joint.nv == 0:
            v.append(matmul(X[i], v[p]))
            c.append(zero.copy())
        else:
            v.append(matmul(X[i], v[p]) + v_J)
            c.append(cross_motion(v[i], v_J))
    return v, c


def forward_kinematics(model: Model, q: np.ndarray) -> list[np.ndarray]:
    """Motion transforms X_i0 = X_i X_λ(i)0 from the world to the bodies, a list of nb (6, 6) arrays at q (nq,)."""
    X0: list[np.ndarray] = []
    for X, p in zip(joint_transforms(model, q), model.parent, strict=True):
        X0.append(X if p < 0 else X @ X0[p])
    return X0


def frame_transform(model: Model, q: np.ndarray, frame_name: str) -> np.ndarray:
    """Motion transform X (6, 6) from the world to the frame called `frame_name` at q (nq,). Raises UnknownName."""
    return X_motion(*frame_placement(model, _values("q", q, model.nq), model.frame(frame_name)))


def joint_placement(model: Model, i: int, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(E (3, 3), r (3,)) of body i in its parent at q (nq,): X_i = [E 0; −E r× E] of `joint_transforms`."""
    E, r = rotation(model.X_tree[i]).astype(q.dtype), model.r_tree[i].astype(q.dtype)
    if model.joints[i].nq:
        E_J, r_J = model.joints[i].transform(q[model.q_slice(i)])
        E, r = E_J @ E, r + E.T @ r_J
    return E, r


def path(model: Model, body: int) -> list[int]:
    """Indices of `body` and its ancestors, without the base."""
    bodies = []
    while body >= 0:
        bodies.append(body)
        body = model.parent[body]
    return bodies


def pose_and_jacobian(model: Model, q: ArrayLike, frame_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pose of a frame and its body Jacobian.

    The columns of joint i are J_i = [E 0; −E r× E] S_i, where E, r place the frame in body i. Columns of joints that do
    not carry the frame are 0.

    Parameters
    ----------
    model : Model
        Robot model.
    q : (nq,) array_like, rad and m
        Floats, or an object array of Expr, floats and batches.
    frame_name : str
        Name of the frame.

    Returns
    -------
    T : (4, 4) array
        Pose T = [R p; 0 1] of the frame in the world.
    J : (6, nv) array
        J q̇ = [ω; v] is the twist of the frame at its origin, in frame coordinates.

    Raises
    ------
    UnknownName, InvalidInput
        For an unknown frame; for a wrong shape of q.

    References
    ----------
    Lynch & Park eq. (5.18), RBDA eq. (4.1).
    """
    frame = model.frame(frame_name)
    q = _values("q", q, model.nq)
    J = np.full((6, model.nv), 0.0, dtype=q.dtype)
    E, r = rotation(frame.X).astype(q.dtype), frame.r.astype(q.dtype)
    for i in path(model, frame.body):
        joint = model.joints[i]
        for column, s in enumerate(joint.S.T.astype(q.dtype), model.v_slice(i).start):
            J[:3, column] = E @ s[:3]
            J[3:, column] = E @ (s[3:] - cross(r, s[:3]))
        E_i, r_i = joint_placement(model, i, q)
        E, r = E @ E_i, r_i + E_i.T @ r
    return pose(E, r), J


def frame_placement(model: Model, q: np.ndarray, frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """(E (3, 3), r (3,)) of a frame in the world at q (nq,): E from world to frame axes, origin r in the world."""
    E, r = rotation(frame.X).astype(q.dtype), frame.r.astype(q.dtype)
    for i in path(model, frame.body):
        E_i, r_i = joint_placement(model, i, q)
        E, r = E @ E_i, r_i + E_i.T @ r
    return E, r


def frame_pose(model: Model, q: ArrayLike, frame_name: str) -> np.ndarray:
    """Pose T = [R p; 0 1] (4, 4) of a frame in the world, see `pose_and_jacobian`."""
    return pose(*frame_placement(model, _values("q", q, model.nq), model.frame(frame_name)))


def frame_quaternion(model: Model, q: ArrayLike, frame_name: str) -> np.ndarray:
    """Attitude of a frame in the world at q (nq,), as a unit quaternion (x, y, z, w).

    It is the product of the quaternions of joints and placements, hence smooth in q. A quaternion computed from R would
    have sign jumps. Raises UnknownName, InvalidInput.
    """
    frame = model.frame(frame_name)
    q = _values("q", q, model.nq)
    p = _quaternion(frame.X)
    for i in path(model, frame.body):
        joint = model.joints[i]
        if joint.nq:
            p = quaternion_product(joint.attitude(q[model.q_slice(i)]), p)
        p = quaternion_product(_quaternion(model.X_tree[i]), p)
    return p.astype(q.dtype)


def frame_jacobian(model: Model, q: ArrayLike, frame_name: str, reference: str = "local") -> np.ndarray:
    """Jacobian J (6, nv) of a frame: J q̇ = [ω; v] is its twist.

    Parameters
    ----------
    model : Model
        Robot model.
    q : (nq,) array_like, rad and m
        Floats, or an object array of Expr, floats and batches.
    frame_name : str
        Name of the frame.
    reference : {"local", "world", "space"}
        "local": body Jacobian, the twist at the frame origin in frame coordinates. "world": the twist at the frame
        origin in world coordinates. "space": space Jacobian, the twist at the world origin in world coordinates.

    Raises
    ------
    UnknownName, InvalidInput
        For an unknown frame or reference; for a wrong shape of q.

    References
    ----------
    Lynch & Park eqs. (5.11), (5.18), (5.22).
    """
    check_among("reference", reference, REFERENCES)
    T, J = pose_and_jacobian(model, q, frame_name)
    if reference == "world":
        R = T[:3, :3]
        return np.concatenate([R @ J[:3], R @ J[3:]])
    return adjoint(T) @ J if reference == "space" else J


def joint_transform(model: Model, i: int, q: np.ndarray) -> np.ndarray:
    """X_i (6, 6) of `joint_transforms` at q (nq,)."""
    joint = model.joints[i]
    X_tree = model.X_tree[i] if q.dtype != object else model.X_tree[i].astype(object)
    if joint.nq == 0:
        return X_tree.copy()
    X_J = X_motion(*joint.transform(q[model.q_slice(i)]))
    if _is_identity(model.X_tree[i]):
        return X_J
    X = np.full((6, 6), 0.0, dtype=X_J.dtype)
    X[:3, :3] = X[3:, 3:] = matmul(X_J[:3, :3], X_tree[:3, :3])
    X[3:, :3] = matmul(X_J[3:], X_tree[:, :3])
    return X


def _quaternion(X: np.ndarray) -> np.ndarray:
    """Unit quaternion (x, y, z, w ≥ 0) of the attitude of a constant transform X."""
    w = se3_log(pose(rotation(X), np.zeros(3)))[:3]
    return clean(quaternion_step(np.array([0.0, 0.0, 0.0, 1.0]), w))


def _is_identity(X: np.ndarray) -> bool:
    return bool(np.array_equal(X, np.eye(6)))


def _values(name: str, x: ArrayLike, n: int) -> np.ndarray:
    """Convert x (n,) to floats, or to objects that support float arithmetic. Raises InvalidInput."""
    if np.asarray(x).dtype != object:
        x = float_array(name, x)
    x = np.asarray(x)
    for y in x.flat if x.dtype == object else ():
        if not is_scalar(y):
            raise InvalidInput(f"{name} holds something that is not a real number: {y!r}")
    if x.shape != (n,):
        raise InvalidInput(
            f"{name} has shape {x.shape}, but the model needs ({n},); for a batch, pass an object array whose "
            "entries are arrays"
        )
    return x
