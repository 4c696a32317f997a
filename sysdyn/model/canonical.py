"""Canonical frames: every revolute and prismatic axis along z, frames slid and turned so that placements are short.

The frame of a body may be slid along the axis of its joint and turned about it without a change of q. Here it is put
where the common perpendicular to the axis of its first child meets the axis, x along it, so that what is constant
between the two axes is a screw about x: a turn by the twist α and a displacement by the length d. Khalil & Kleinfinger
(1986), for trees. A body without such a child stays at its foot on the perpendicular to its parent's axis.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from sysdyn.model.frames import Frame
from sysdyn.model.joints import Z_AXIS, Prismatic, Revolute, agreed, snap
from sysdyn.model.model import Model
from sysdyn.model.spatial import X_inverse, X_motion, rotation, skew, translation
from sysdyn.program.reproducible import atan2, dot, matmul, norm

PARALLEL = 1e-12  # Sine of the angle between two axes below which they are parallel (chosen).
# Frames are not slid to the common perpendicular of two axes if the sine of their angle is below this: its foot may be
# far away (chosen).
NEARLY_PARALLEL = 1e-3
LENGTH = 1e-12  # Distance [m] below which lengths are zero (chosen).
Turn = tuple[float, float]  # (cos, sin) of a constant angle.
NO_TURN: Turn = (1.0, 0.0)  # The turn by the angle 0.


@dataclass(frozen=True)
class Placement:
    """X_tree as screws: rotz(θ) transz(r) rotx(α) rotz(γ) xlt(p), rightmost first, each turn as (cos, sin).

    p (3,) [m]: in the parent's frame. θ and r are about and along the axis of the joint itself, and add to its q.
    """

    p: tuple[float, float, float]
    gamma: Turn
    alpha: Turn
    theta: Turn
    r: float

    @property
    def offset(self) -> float:
        """θ [rad]."""
        return atan2(self.theta[1], self.theta[0])


def is_axial(model: Model, i: int) -> bool:
    """True if joint i is revolute or prismatic: the frame of body i is then free about its axis."""
    return isinstance(model.joints[i], (Revolute, Prismatic))


def is_along_z(model: Model, i: int) -> bool:
    """True if joint i is revolute or prismatic with its axis along z."""
    return is_axial(model, i) and model.joints[i].axis == Z_AXIS  # type: ignore[attr-defined]


def placement(X: np.ndarray) -> Placement:
    """The screws of a constant transform X (6, 6); p is along z and x alone unless the axes are nearly parallel."""
    E, r = rotation(X), snap(translation(X))
    sine = float(norm(E[2, :2]))
    if sine <= PARALLEL:
        up = 1.0 if E[2, 2] > 0.0 else -1.0  # parallel: the direction of x is free, take it along E
        theta = _turn(E[0, 0], up * E[0, 1])
        return Placement((float(r[0]), float(r[1]), 0.0), NO_TURN, (up, 0.0), theta, up * float(r[2]))
    alpha, gamma, theta = _turn(E[2, 2], sine), _turn(-E[2, 1], E[2, 0]), _turn(E[1, 2], E[0, 2])
    if _cost(gamma) + _cost(theta) > 0 or gamma[0] < 0.0:  # the other solution: x, α, d of opposite sign
        alpha, gamma, theta = (alpha[0], -alpha[1]), (-gamma[0], -gamma[1]), (-theta[0], -theta[1])
    if sine < NEARLY_PARALLEL:
        return Placement(tuple(r.tolist()), gamma, alpha, theta, 0.0)
    # r = b z + d x + r0 u, u the axis of the joint: the part across x is split between the two axes
    x, u = np.array([gamma[0], gamma[1], 0.0]), E[2]
    across = r - x * dot(r, x)
    n = np.cross(x, [0.0, 0.0, 1.0])
    r0 = float(dot(across, n)) / float(dot(u, n))
    p = snap(r - r0 * u)
    return Placement(tuple(np.where(np.abs(p) < LENGTH, 0.0, p).tolist()), gamma, alpha, theta, _length(r0))


def placements(model: Model) -> list[Placement]:
    """The screws of each X_tree; lengths, and cosines and sines, that differ by rounding alone are the same."""
    found = [placement(X) for X in model.X_tree]
    lengths, turns = (
        agreed(np.array([(*x.p, x.r) for x in found]).reshape(-1, 4))[0],
        agreed(np.array([(x.gamma, x.alpha, x.theta) for x in found]).reshape(-1, 3, 2))[0],
    )
    return [
        Placement((p[0], p[1], p[2]), tuple(gamma), tuple(alpha), tuple(theta), p[3])
        for p, (gamma, alpha, theta) in zip(lengths.tolist(), turns.tolist(), strict=True)
    ]


def transform(place: Placement) -> np.ndarray:
    """X (6, 6) of the screws."""
    E = matmul(_rotz(place.theta), _rotx(place.alpha), _rotz(place.gamma))
    return X_motion(E, np.array(place.p) + place.r * E[2])


def upright(model: Model) -> tuple[Model, np.ndarray]:
    """As `canonical`, but frames are only turned, onto z by a permutation of axes if there is one."""
    X = np.tile(np.eye(6), (model.nb, 1, 1))
    for i, joint in enumerate(model.joints):
        if isinstance(joint, (Revolute, Prismatic)):
            X[i] = X_motion(to_z(np.array(joint.axis)), np.zeros(3))
    return changed_frames(model, X), X


def canonical(model: Model, kept: Collection[int] = ()) -> tuple[Model, np.ndarray]:
    """(the model in canonical frames, X (nb, 6, 6): motion transforms from each body's frame to its canonical one).

    q, τ and q̈ are the same; a becomes X a, and f becomes X⁻ᵀ f. Joints that are neither revolute nor prismatic keep
    the frames of their bodies, and so do the bodies `kept`.
    """
    X = upright(model)[1]
    X[list(kept)] = np.eye(6)
    placed = matmul(X, model.X_tree)
    for i in range(model.nb):
        if i in kept or not is_axial(model, i):
            continue
        children = [j for j in model.children[i] if is_axial(model, j) and j not in kept]
        screw = _toward([matmul(placed[j], X_inverse(X[i])) for j in children], isinstance(model.joints[i], Revolute))
        if screw is None:
            parent = model.parent[i]
            before = placed[i] if parent < 0 else matmul(placed[i], X_inverse(X[parent]))
            screw = _leaf(model, i, X[i], before)
        X[i] = matmul(screw, X[i])
        placed[i] = matmul(screw, placed[i])
    return changed_frames(model, X, kept), X


def moves_frames(model: Model, kept: Collection[int]) -> bool:
    """True if canonical frames differ from those of the bodies."""
    return bool(np.any(canonical(model, kept)[1] != np.eye(6)))


def changed_frames(model: Model, X: np.ndarray, kept: Collection[int] = ()) -> Model:
    """The model with the frame of body i replaced by the one that X[i] (6, 6) leads to, in which its axis is z.

    X is the identity for the bodies `kept`, whose axes stay as they are.
    """
    X_tree, inertias, joints = np.empty((model.nb, 6, 6)), np.empty((model.nb, 6, 6)), []
    for i, joint in enumerate(model.joints):
        parent = model.parent[i]
        X_tree[i] = matmul(X[i], model.X_tree[i])
        if parent >= 0:
            X_tree[i] = matmul(X_tree[i], X_inverse(X[parent]))
        back = X_inverse(X[i])
        moved = matmul(back.T, model.inertias[i], back)
        inertias[i] = _clean(moved)
        joints.append(type(joint)() if is_axial(model, i) and i not in kept else joint)
    E = agreed(snap(X_tree[:, :3, :3]))[0]
    r = agreed(np.array([_lengths(translation(X)) for X in X_tree]).reshape(-1, 3))[0]
    X_tree = np.array([X_motion(*x) for x in zip(E, r, strict=True)]).reshape(-1, 6, 6)
    inertias = agreed(inertias)[0]
    frames = {}
    for f in model.frames.values():
        own = f.name in model.body_names
        at = f.X if f.body < 0 or own else matmul(f.X, X_inverse(X[f.body]))
        frames[f.name] = Frame(f.name, f.body, at)
    return model.replace(X_tree=X_tree, inertias=inertias, joints=tuple(joints), frames=frames, strict=None)


def _toward(children: list[np.ndarray], slides: bool) -> np.ndarray | None:
    """The screw about z that makes the placement of the first child shortest; None without children."""
    if not children:
        return None
    place = placement(children[0])
    turn, slide = place.gamma, place.p[2] if abs(place.alpha[1]) >= NEARLY_PARALLEL else 0.0
    if abs(place.alpha[1]) <= PARALLEL:  # parallel axes: x towards the child, and its own frame at that height
        d = float(norm(np.array(place.p[:2])))
        turn = (place.p[0] / d, place.p[1] / d) if d > LENGTH else NO_TURN
        turn, slide = _turn(*turn), place.alpha[0] * place.r
    return X_motion(_rotz(turn), np.array([0.0, 0.0, slide if slides else 0.0]))


def _leaf(model: Model, i: int, X: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The screw about z that takes the displacement r from X_tree and the first moment off the y axis."""
    back = X_inverse(X)
    inertia = matmul(back.T, model.inertias[i], back)
    x, y = float(inertia[1, 5]) * -1.0, float(inertia[0, 5])
    size = float(norm(np.array([x, y])))
    turn = _turn(x / size, y / size) if size > LENGTH * max(1.0, abs(inertia[5, 5])) else NO_TURN
    if not isinstance(model.joints[i], Revolute):
        return np.eye(6)
    return X_motion(_rotz(turn), np.array([0.0, 0.0, -placement(before).r]))


def to_z(axis: np.ndarray) -> np.ndarray:
    """E (3, 3) that turns the unit vector `axis` onto z; a permutation with signs for axes of coordinates."""
    k = int(np.argmax(np.abs(axis)))
    if np.count_nonzero(axis) == 1:
        E = np.roll(np.eye(3), k + 1, axis=1)  # cyclic: row 2 is e_k
        return E if axis[k] > 0.0 else np.array([1.0, -1.0, -1.0])[:, None] * E
    x = np.cross(axis, np.eye(3)[int(np.argmin(np.abs(axis)))])
    x /= norm(x)
    return snap(np.array([x, np.cross(axis, x), axis]))


def _turn(c: float, s: float) -> Turn:
    """(c, s) on the unit circle as floats, multiples of π/2 exact."""
    size = float(norm(np.array([c, s])))
    c, s = float(c / size), float(s / size)
    if abs(s) <= PARALLEL:
        return math.copysign(1.0, c), 0.0
    if abs(c) <= PARALLEL:
        return 0.0, math.copysign(1.0, s)
    return c, s


def _cost(turn: Turn) -> int:
    return int(0.0 not in turn)


def _length(x: float) -> float:
    return 0.0 if abs(x) < LENGTH else float(x)


def _lengths(x: np.ndarray) -> np.ndarray:
    x = snap(x)
    return np.where(np.abs(x) < LENGTH, 0.0, x)


def _rotz(turn: Turn) -> np.ndarray:
    c, s = turn
    return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])


def _rotx(turn: Turn) -> np.ndarray:
    c, s = turn
    return np.array([[1.0, 0.0, 0.0], [0.0, c, s], [0.0, -s, c]])


def _clean(I: np.ndarray) -> np.ndarray:
    """I (6, 6) symmetric, entries that are rounding made 0, of RBDA's form."""
    I = (I + I.T) / 2
    m = I[5, 5]
    h = np.array([I[2, 4] - I[1, 5], I[0, 5] - I[2, 3], I[1, 3] - I[0, 4]]) / 2
    I[:3, :3][np.abs(I[:3, :3]) < 1e-14 * np.abs(I[:3, :3]).max()] = 0.0
    h[np.abs(h) < 1e-14 * max(np.abs(h).max(), abs(m))] = 0.0
    I[:3, 3:], I[3:, :3], I[3:, 3:] = skew(h), skew(h).T, m * np.eye(3)
    return I
