"""Normal form of a model: canonical frames and base inertial parameters minimise the number of operations.

Canonical frames: all revolute and prismatic axes are along z. The frame of such a body can be moved along the joint
axis and rotated about it without a change of q. Its origin is placed at the foot of the common perpendicular between
the joint axis and the axis of the first child; x is along the perpendicular. The constant displacement between the two
axes is then a screw about x: a rotation by the twist α and a translation by the length d. For a body without such a
child, the origin is the foot of the perpendicular to the axis of the parent. Khalil & Kleinfinger (1986), for trees.

Base parameters: some mass distributions are invariant under the joint motion. A rotation about z does not move a rod on
the z axis; a translation rotates nothing. Such a part of body i is regrouped into its parent. τ and q̈ are unchanged
for every motion, f_i changes. Gautier & Khalil (1990), computed numerically with the pseudo-inertia P of
`sysdyn.model.inertia`: the parent receives T P T^T, with the pose T (4, 4) of the body in its parent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from sysdyn.model.constants import clean, unify
from sysdyn.model.frames import Frame
from sysdyn.model.inertia import parameters, pseudo_inertia, spatial_inertia
from sysdyn.model.joints import Z_AXIS, Fixed, Prismatic, Revolute, Spherical
from sysdyn.model.model import Model
from sysdyn.model.se3 import X_inverse, X_motion, pose, rotation, skew, translation, unskew
from sysdyn.program.reproducible import atan2, dot, matmul, norm

# Smallest sine of the angle between two axes for which a frame is moved to their common perpendicular (chosen): for
# nearly parallel axes, the foot of the perpendicular may be far away.
NEARLY_PARALLEL = 1e-3
CosSin = tuple[float, float]  # (cos, sin) of a constant angle
ZERO_ANGLE: CosSin = (1.0, 0.0)


def normal_form(model: Model, keep: Collection[int] = ()) -> tuple[Model, np.ndarray]:
    """Apply `canonical_frames` and `regroup`. Returns (model, X (nb, 6, 6) from body frames to canonical frames).

    Bodies in `keep` retain their frames and inertial parameters. q, τ and q̈ are unchanged; for a and f see the two
    functions.
    """
    model, X = canonical_frames(model, keep)
    return regroup(model, keep=keep), X


# ---- canonical frames ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """X_tree as a product of screws, rotz(θ) transz(r) rotx(α) rotz(γ) xlt(p). Angles are stored as (cos, sin).

    The rightmost factor is applied first. p (3,) [m] is in the parent frame. θ is the rotation about the joint axis, r
    the translation along it: q adds to θ or r.
    """

    p: tuple[float, float, float]
    gamma: CosSin
    alpha: CosSin
    theta: CosSin
    r: float

    @property
    def offset(self) -> float:
        """Angle θ [rad] about the joint axis."""
        return atan2(self.theta[1], self.theta[0])


def is_axial(model: Model, i: int) -> bool:
    """True if joint i is revolute or prismatic. The frame of body i can then be moved along and about its axis."""
    return isinstance(model.joints[i], (Revolute, Prismatic))


def is_along_z(model: Model, i: int) -> bool:
    """True if joint i is revolute or prismatic with axis z."""
    return is_axial(model, i) and model.joints[i].axis == Z_AXIS  # type: ignore[attr-defined]


def placement(X: np.ndarray) -> Placement:
    """Decompose a constant transform X (6, 6) into screws. p has no y component unless the axes are nearly parallel."""
    E, r = rotation(X), clean(translation(X))
    sine = float(norm(E[2, :2]))
    if not clean(sine):
        up = 1.0 if E[2, 2] > 0.0 else -1.0  # parallel axes: the direction of x is arbitrary, take that of E
        theta = _cos_sin(E[0, 0], up * E[0, 1])
        return Placement((float(r[0]), float(r[1]), 0.0), ZERO_ANGLE, (up, 0.0), theta, up * float(r[2]))
    alpha, gamma, theta = _cos_sin(E[2, 2], sine), _cos_sin(-E[2, 1], E[2, 0]), _cos_sin(E[1, 2], E[0, 2])
    if 0.0 not in gamma or 0.0 not in theta or gamma[0] < 0.0:  # use the second solution, opposite signs of x, α, d
        alpha, gamma, theta = (alpha[0], -alpha[1]), (-gamma[0], -gamma[1]), (-theta[0], -theta[1])
    if sine < NEARLY_PARALLEL:
        return Placement(tuple(r.tolist()), gamma, alpha, theta, 0.0)
    # r = b z + d x + r0 u, with the joint axis u: the part across x is split between the two axes
    x, u = np.array([gamma[0], gamma[1], 0.0]), E[2]
    across = r - x * dot(r, x)
    n = np.cross(x, [0.0, 0.0, 1.0])
    r0 = float(dot(across, n)) / float(dot(u, n))
    return Placement(tuple(clean(r - r0 * u).tolist()), gamma, alpha, theta, float(clean(r0)))


def placements(model: Model) -> list[Placement]:
    """Screws of each X_tree. Lengths, cosines and sines that differ only by rounding are made equal."""
    screws = [placement(X) for X in model.X_tree]
    (lengths,) = unify(np.array([(*x.p, x.r) for x in screws]).reshape(-1, 4))
    (angles,) = unify(np.array([(x.gamma, x.alpha, x.theta) for x in screws]).reshape(-1, 3, 2))
    return [
        Placement((p[0], p[1], p[2]), tuple(gamma), tuple(alpha), tuple(theta), p[3])
        for p, (gamma, alpha, theta) in zip(lengths.tolist(), angles.tolist(), strict=True)
    ]


def transform(place: Placement) -> np.ndarray:
    """Transform X (6, 6) of a placement."""
    E = matmul(_rotz(place.theta), _rotx(place.alpha), _rotz(place.gamma))
    return X_motion(E, np.array(place.p) + place.r * E[2])


def axes_to_z(model: Model) -> tuple[Model, np.ndarray]:
    """Rotate the body frames so that joint axes are along z, if possible by a permutation of axes.

    Returns (model, X (nb, 6, 6)) like `canonical_frames`; origins do not move.
    """
    X = np.tile(np.eye(6), (model.nb, 1, 1))
    for i, joint in enumerate(model.joints):
        if isinstance(joint, (Revolute, Prismatic)):
            X[i] = X_motion(rotation_to_z(np.array(joint.axis)), np.zeros(3))
    return _change_frames(model, X, ()), X


def canonical_frames(model: Model, keep: Collection[int] = ()) -> tuple[Model, np.ndarray]:
    """Move the body frames of a model to canonical frames: z on the joint axis, x on a common perpendicular.

    Parameters
    ----------
    model : Model
        Robot model.
    keep : collection of int
        Bodies that keep their frames. Bodies on joints that are neither revolute nor prismatic always do.

    Returns
    -------
    model : Model
        q, τ and q̈ are unchanged; a becomes X a, and f becomes X⁻ᵀ f.
    X : (nb, 6, 6) array
        Motion transforms from the frame of each body to its canonical frame.
    """
    X = axes_to_z(model)[1]
    X[list(keep)] = np.eye(6)
    placed = matmul(X, model.X_tree)
    for i in range(model.nb):
        if i in keep or not is_axial(model, i):
            continue
        children = [j for j in model.children[i] if is_axial(model, j) and j not in keep]
        if children:
            child = placement(matmul(placed[children[0]], X_inverse(X[i])))
            screw = _align_to_child(child, isinstance(model.joints[i], Revolute))
        elif isinstance(model.joints[i], Revolute):
            parent = model.parent[i]
            before = placed[i] if parent < 0 else matmul(placed[i], X_inverse(X[parent]))
            screw = _align_leaf(_transform_to_child(model.inertias[i], X[i]), placement(before).r)
        else:
            continue
        X[i] = matmul(screw, X[i])
        placed[i] = matmul(screw, placed[i])
    return _change_frames(model, X, keep), X


def changes_frames(model: Model, keep: Collection[int]) -> bool:
    """True if `canonical_frames` moves the frame of any body. Bodies in `keep` keep their frames."""
    return bool(np.any(canonical_frames(model, keep)[1] != np.eye(6)))


def _change_frames(model: Model, X: np.ndarray, keep: Collection[int]) -> Model:
    """Move the frame of each body i by X[i] (6, 6). The axis of joint i is then z.

    X is the identity for the bodies in `keep`; their joints keep their axes.
    """
    X_tree, inertias, joints = np.empty((model.nb, 6, 6)), [], []
    for i, joint in enumerate(model.joints):
        parent = model.parent[i]
        X_tree[i] = matmul(X[i], model.X_tree[i])
        if parent >= 0:
            X_tree[i] = matmul(X_tree[i], X_inverse(X[parent]))
        inertias.append(_transform_to_child(model.inertias[i], X[i]))
        joints.append(type(joint)() if is_axial(model, i) and i not in keep else joint)
    (E,) = unify(clean(X_tree[:, :3, :3]))
    (r,) = unify(clean(np.array([translation(x) for x in X_tree]).reshape(-1, 3)))
    X_tree = np.array([X_motion(*x) for x in zip(E, r, strict=True)]).reshape(-1, 6, 6)
    frames = {}
    for f in model.frames.values():
        fixed = f.body < 0 or f.name in model.body_names
        frames[f.name] = Frame(f.name, f.body, f.X if fixed else matmul(f.X, X_inverse(X[f.body])))
    return model.replace(
        X_tree=X_tree, inertias=_clean_inertias(inertias), joints=tuple(joints), frames=frames,
        strict=None,
    )  # fmt: skip


def _align_to_child(child: Placement, may_translate: bool) -> np.ndarray:
    """Screw about z that minimises the operations of the placement of the child."""
    angle, height = child.gamma, child.p[2] if abs(child.alpha[1]) >= NEARLY_PARALLEL else 0.0
    if child.alpha[1] == 0.0:  # parallel axes: x points to the child, origin at the height of its frame
        d = float(norm(np.array(child.p[:2])))
        angle = _cos_sin(child.p[0] / d, child.p[1] / d) if clean(d) else ZERO_ANGLE
        height = child.alpha[0] * child.r
    return X_motion(_rotz(angle), np.array([0.0, 0.0, height if may_translate else 0.0]))


def _align_leaf(I: np.ndarray, r: float) -> np.ndarray:
    """Screw about z that eliminates the displacement r along z and the first moment h_y of the inertia I (6, 6)."""
    x, y = float(I[1, 5]) * -1.0, float(I[0, 5])
    size = float(norm(np.array([x, y])))
    angle = _cos_sin(x / size, y / size) if clean(size, max(1.0, abs(I[5, 5]))) else ZERO_ANGLE
    return X_motion(_rotz(angle), np.array([0.0, 0.0, -r]))


def rotation_to_z(axis: np.ndarray) -> np.ndarray:
    """Rotation E (3, 3) with E axis = z. For coordinate axes it is a signed permutation."""
    k = int(np.argmax(np.abs(axis)))
    if np.count_nonzero(axis) == 1:
        E = np.roll(np.eye(3), k + 1, axis=1)  # cyclic: row 2 is e_k
        return E if axis[k] > 0.0 else np.array([1.0, -1.0, -1.0])[:, None] * E
    x = np.cross(axis, np.eye(3)[int(np.argmin(np.abs(axis)))])
    x /= norm(x)
    return clean(np.array([x, np.cross(axis, x), axis]))


def _cos_sin(c: float, s: float) -> CosSin:
    """Normalise (c, s) to the unit circle; multiples of π/2 are exact."""
    size = float(norm(np.array([c, s])))
    c, s = float(c / size), float(s / size)
    if not clean(s):
        return math.copysign(1.0, c), 0.0
    return (c, s) if clean(c) else (0.0, math.copysign(1.0, s))


def _rotz(angle: CosSin) -> np.ndarray:
    c, s = angle
    return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])


def _rotx(angle: CosSin) -> np.ndarray:
    c, s = angle
    return np.array([[1.0, 0.0, 0.0], [0.0, c, s], [0.0, -s, c]])


def _transform_to_child(I: np.ndarray, X: np.ndarray) -> np.ndarray:
    """X⁻ᵀ I X⁻¹: transform a spatial inertia from the parent frame to the child frame of X."""
    back = X_inverse(X)
    return matmul(back.T, I, back)


# ---- base parameters -------------------------------------------------------------------------------------------------


def inertial_parameters(model: Model) -> np.ndarray:
    """Inertial parameters π of all bodies.

    Parameters
    ----------
    model : Model
        Robot model.

    Returns
    -------
    (10 nb,) array
        For each body m [kg], m c (3) [kg m] and I_xx, I_xy, I_yy, I_xz, I_yz, I_zz [kg m²] about the body origin in
        body coordinates. The order is that of Pinocchio's `Inertia.toDynamicParameters`.
    """
    return np.concatenate([parameters(I) for I in model.inertias] or [np.zeros(0)])


def regroup(model: Model, keep: Collection[int] = ()) -> Model:
    """Regroup inertial parameters towards the base (base inertial parameters). τ and q̈ are unchanged; f changes.

    The parent body receives m, h_z and Σ_zz of a body on a revolute joint (z along its axis), Σ for a prismatic joint,
    m for a spherical joint, and all parameters for a fixed joint. Parameters that reach the base are dropped. Bodies on
    other joints, and the bodies in `keep`, retain their parameters. Armature is unchanged.

    Parameters
    ----------
    model : Model
        Robot model.
    keep : collection of int
        Bodies that retain their parameters; their f is unchanged.
    """
    P = [pseudo_inertia(I) for I in model.inertias]
    for i in reversed(range(model.nb)):
        part = None if i in keep else _unobservable_part(model, i, P[i])
        if part is None:
            continue
        P[i] = P[i] - part
        if model.parent[i] >= 0:
            T = pose(rotation(model.X_tree[i]), translation(model.X_tree[i]))
            P[model.parent[i]] = P[model.parent[i]] + matmul(T, part, T.T)
    return model.replace(inertias=_clean_inertias(map(spatial_inertia, P)), strict=None)


def weld_fixed_joints(model: Model) -> Model:
    """Remove the fixed joints: lump their bodies with the parents, or drop them if the parent is the base."""
    if not any(isinstance(joint, Fixed) for joint in model.joints):
        return model
    number: dict[int, int] = {-1: -1}  # {body: new index of the body that carries it}
    X: dict[int, np.ndarray] = {-1: np.eye(6)}  # {body: transform from the frame of its carrier to its frame}
    moving: list[int] = []
    inertias: list[np.ndarray] = []
    X_tree: list[np.ndarray] = []
    for i, joint in enumerate(model.joints):
        parent = model.parent[i]
        X_i = matmul(model.X_tree[i], X[parent])
        if not isinstance(joint, Fixed):
            number[i], X[i] = len(moving), np.eye(6)
            moving.append(i)
            inertias.append(model.inertias[i].copy())
            X_tree.append(X_i)
            continue
        number[i], X[i] = number[parent], X_i
        if number[i] >= 0:
            inertias[number[i]] += matmul(X_i.T, model.inertias[i], X_i)
    frames = {
        f.name: Frame(f.name, number[f.body], matmul(f.X, X[f.body]))
        for f in model.frames.values()
        if f.body < 0 or f.name not in model.body_names or f.body in moving
    }
    return model.replace(
        body_names=[model.body_names[i] for i in moving],
        joint_names=[model.joint_names[i] for i in moving],
        joints=[model.joints[i] for i in moving],
        parent=[number[model.parent[i]] for i in moving],
        X_tree=np.array(X_tree).reshape(-1, 6, 6),
        inertias=np.array([(I + I.T) / 2 for I in inertias]).reshape(-1, 6, 6),
        frames=frames,
        strict=None,
    )


def _unobservable_part(model: Model, i: int, P: np.ndarray) -> np.ndarray | None:
    """Part (4, 4) of the pseudo-inertia of body i that is invariant under the motion of joint i, or None."""
    joint = model.joints[i]
    part = np.zeros((4, 4))
    if isinstance(joint, Revolute):
        T = np.eye(4)
        T[:3, :3] = rotation_to_z(np.array(joint.axis))
        P = matmul(T, P, T.T)
        part[2:, 2:] = P[2:, 2:]
        return matmul(T.T, part, T)
    if isinstance(joint, Prismatic):
        part[:3, :3] = P[:3, :3]
        return part
    if isinstance(joint, Spherical):
        part[3, 3] = P[3, 3]
        return part
    return P.copy() if isinstance(joint, Fixed) else None


def _clean_inertias(inertias: Iterable[np.ndarray]) -> np.ndarray:
    """Remove rounding errors from spatial inertias (nb, 6, 6): exact form of RBDA eq. (2.63), zeros, equal numbers."""
    cleaned = []
    for I in inertias:
        H, m = (I[:3, 3:] + I[3:, :3].T) / 2, I[5, 5]
        h = (unskew(H) - unskew(H.T)) / 2
        h = clean(h, max(np.abs(h).max(), abs(m)))
        J = clean((I[:3, :3] + I[:3, :3].T) / 2, np.abs(I[:3, :3]).max())
        cleaned.append(np.block([[J, skew(h)], [skew(h).T, m * np.eye(3)]]))
    return unify(np.array(cleaned).reshape(-1, 6, 6))[0]
