"""Normal form of a model: canonical frames and base inertial parameters, with which programs are shortest.

Canonical frames: every revolute and prismatic axis is along z. The frame of such a body may be moved along the axis of
its joint and rotated about it without a change of q. Here it is put where the common perpendicular to the axis of its
first child meets the axis, with x along the perpendicular, so that the constant displacement between the two axes is a
screw about x: a rotation by the twist α and a translation by the length d. A body without such a child stays at the
foot of the perpendicular to its parent's axis. Khalil & Kleinfinger (1986), for trees.

Base parameters: a joint leaves some mass distributions where they are; a rotation about z does not move a rod on the
z axis, and a translation rotates nothing. That part of body i is moved to its parent: τ and q̈ are the same for every
motion, f_i is not. Gautier & Khalil (1990), numerically, in terms of the pseudo-inertia P of `sysdyn.model.inertia`:
the move is T P T^T, T (4, 4) the pose of the body in its parent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sysdyn.model.constants import clean, unify
from sysdyn.model.frames import Frame
from sysdyn.model.inertia import parameters, pseudo_inertia, spatial_inertia
from sysdyn.model.joints import Z_AXIS, Fixed, Prismatic, Revolute, Spherical
from sysdyn.model.model import Model
from sysdyn.model.se3 import X_inverse, X_motion, pose, rotation, skew, translation, unskew
from sysdyn.program.reproducible import atan2, dot, matmul, norm

# Sine of the angle between two axes below which frames are not moved to their common perpendicular: its foot may be far
# away. Chosen.
NEARLY_PARALLEL = 1e-3
# Number of choices of `retained` in `regroup`.
RETAINED_CHOICES = 5
CosSin = tuple[float, float]  # (cos, sin) of a constant angle.
ZERO_ANGLE: CosSin = (1.0, 0.0)


def normal_form(model: Model, keep: Collection[int] = ()) -> tuple[Model, np.ndarray]:
    """`canonical_frames` and `regroup`: (the model, X (nb, 6, 6) from each body's frame to its canonical frame).

    Bodies in `keep` keep their frames and parameters. q, τ and q̈ are the same; see there for a and f.
    """
    model, X = canonical_frames(model, keep)
    return regroup(model, keep=keep), X


# ---- canonical frames ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """X_tree as screws: rotz(θ) transz(r) rotx(α) rotz(γ) xlt(p), rightmost first, each angle as (cos, sin).

    p (3,) [m]: in the parent's frame. θ and r are about and along the axis of the joint itself, and add to its q.
    """

    p: tuple[float, float, float]
    gamma: CosSin
    alpha: CosSin
    theta: CosSin
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
    """The screws of a constant transform X (6, 6); p is along z and x only, unless the axes are nearly parallel."""
    E, r = rotation(X), clean(translation(X))
    sine = float(norm(E[2, :2]))
    if not clean(sine):
        up = 1.0 if E[2, 2] > 0.0 else -1.0  # parallel: the direction of x is free, take it along E
        theta = _cos_sin(E[0, 0], up * E[0, 1])
        return Placement((float(r[0]), float(r[1]), 0.0), ZERO_ANGLE, (up, 0.0), theta, up * float(r[2]))
    alpha, gamma, theta = _cos_sin(E[2, 2], sine), _cos_sin(-E[2, 1], E[2, 0]), _cos_sin(E[1, 2], E[0, 2])
    if 0.0 not in gamma or 0.0 not in theta or gamma[0] < 0.0:  # the other solution: x, α, d of opposite sign
        alpha, gamma, theta = (alpha[0], -alpha[1]), (-gamma[0], -gamma[1]), (-theta[0], -theta[1])
    if sine < NEARLY_PARALLEL:
        return Placement(tuple(r.tolist()), gamma, alpha, theta, 0.0)
    # r = b z + d x + r0 u, u the axis of the joint: the part across x is split between the two axes
    x, u = np.array([gamma[0], gamma[1], 0.0]), E[2]
    across = r - x * dot(r, x)
    n = np.cross(x, [0.0, 0.0, 1.0])
    r0 = float(dot(across, n)) / float(dot(u, n))
    return Placement(tuple(clean(r - r0 * u).tolist()), gamma, alpha, theta, float(clean(r0)))


def placements(model: Model) -> list[Placement]:
    """The screws of each X_tree; lengths, and cosines and sines, that differ by rounding alone are the same."""
    screws = [placement(X) for X in model.X_tree]
    (lengths,) = unify(np.array([(*x.p, x.r) for x in screws]).reshape(-1, 4))
    (angles,) = unify(np.array([(x.gamma, x.alpha, x.theta) for x in screws]).reshape(-1, 3, 2))
    return [
        Placement((p[0], p[1], p[2]), tuple(gamma), tuple(alpha), tuple(theta), p[3])
        for p, (gamma, alpha, theta) in zip(lengths.tolist(), angles.tolist(), strict=True)
    ]


def transform(place: Placement) -> np.ndarray:
    """X (6, 6) of the screws."""
    E = matmul(_rotz(place.theta), _rotx(place.alpha), _rotz(place.gamma))
    return X_motion(E, np.array(place.p) + place.r * E[2])


def axes_to_z(model: Model) -> tuple[Model, np.ndarray]:
    """As `canonical_frames`, but frames are only rotated, by a permutation of axes where one leads to z."""
    X = np.tile(np.eye(6), (model.nb, 1, 1))
    for i, joint in enumerate(model.joints):
        if isinstance(joint, (Revolute, Prismatic)):
            X[i] = X_motion(rotation_to_z(np.array(joint.axis)), np.zeros(3))
    return _change_frames(model, X, ()), X


def canonical_frames(model: Model, keep: Collection[int] = ()) -> tuple[Model, np.ndarray]:
    """The model in canonical frames, and the transforms to them.

    Parameters
    ----------
    model : Model
        Any tree.
    keep : collection of int
        Bodies that keep their frames; so do bodies on joints that are neither revolute nor prismatic.

    Returns
    -------
    model : Model
        q, τ and q̈ are the same; a becomes X a, and f becomes X⁻ᵀ f.
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
            screw = _align_leaf(_moved(model.inertias[i], X[i]), placement(before).r)
        else:
            continue
        X[i] = matmul(screw, X[i])
        placed[i] = matmul(screw, placed[i])
    return _change_frames(model, X, keep), X


def changes_frames(model: Model, keep: Collection[int]) -> bool:
    """True if canonical frames differ from those of the bodies."""
    return bool(np.any(canonical_frames(model, keep)[1] != np.eye(6)))


def _change_frames(model: Model, X: np.ndarray, keep: Collection[int]) -> Model:
    """The model with the frame of body i moved by X[i] (6, 6), after which the axis of joint i is z.

    X is the identity for the bodies `keep`, whose joints keep their axes.
    """
    X_tree, inertias, joints = np.empty((model.nb, 6, 6)), [], []
    for i, joint in enumerate(model.joints):
        parent = model.parent[i]
        X_tree[i] = matmul(X[i], model.X_tree[i])
        if parent >= 0:
            X_tree[i] = matmul(X_tree[i], X_inverse(X[parent]))
        inertias.append(_moved(model.inertias[i], X[i]))
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
    """The screw about z that makes the placement of the child shortest."""
    angle, height = child.gamma, child.p[2] if abs(child.alpha[1]) >= NEARLY_PARALLEL else 0.0
    if child.alpha[1] == 0.0:  # parallel axes: x towards the child, and its own frame at that height
        d = float(norm(np.array(child.p[:2])))
        angle = _cos_sin(child.p[0] / d, child.p[1] / d) if clean(d) else ZERO_ANGLE
        height = child.alpha[0] * child.r
    return X_motion(_rotz(angle), np.array([0.0, 0.0, height if may_translate else 0.0]))


def _align_leaf(I: np.ndarray, r: float) -> np.ndarray:
    """The screw about z that removes the displacement r along z and the y component of the first moment of I (6, 6)."""
    x, y = float(I[1, 5]) * -1.0, float(I[0, 5])
    size = float(norm(np.array([x, y])))
    angle = _cos_sin(x / size, y / size) if clean(size, max(1.0, abs(I[5, 5]))) else ZERO_ANGLE
    return X_motion(_rotz(angle), np.array([0.0, 0.0, -r]))


def rotation_to_z(axis: np.ndarray) -> np.ndarray:
    """E (3, 3) that rotates the unit vector `axis` onto z; a signed permutation for axes of coordinates."""
    k = int(np.argmax(np.abs(axis)))
    if np.count_nonzero(axis) == 1:
        E = np.roll(np.eye(3), k + 1, axis=1)  # cyclic: row 2 is e_k
        return E if axis[k] > 0.0 else np.array([1.0, -1.0, -1.0])[:, None] * E
    x = np.cross(axis, np.eye(3)[int(np.argmin(np.abs(axis)))])
    x /= norm(x)
    return clean(np.array([x, np.cross(axis, x), axis]))


def _cos_sin(c: float, s: float) -> CosSin:
    """(c, s) on the unit circle as floats; exact at multiples of π/2."""
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


def _moved(I: np.ndarray, X: np.ndarray) -> np.ndarray:
    """X⁻ᵀ I X⁻¹: the spatial inertia in the child frame of X."""
    back = X_inverse(X)
    return matmul(back.T, I, back)


# ---- base parameters -------------------------------------------------------------------------------------------------


def inertial_parameters(model: Model) -> np.ndarray:
    """The inertial parameters π of all bodies.

    Parameters
    ----------
    model : Model
        Any tree.

    Returns
    -------
    (10 nb,) array
        Of each body m [kg], m c (3) [kg m] and I_xx, I_xy, I_yy, I_xz, I_yz, I_zz [kg m²] about its origin, in its
        coordinates; the order of Pinocchio's `Inertia.toDynamicParameters`.
    """
    return np.concatenate([parameters(I) for I in model.inertias] or [np.zeros(0)])


def regroup(model: Model, retained: Mapping[int, int] | None = None, keep: Collection[int] = ()) -> Model:
    """The model with as many inertial parameters as possible moved towards the base; τ and q̈ are the same, f is not.

    A revolute joint, with z along its axis, moves m, h_z and Σ_zz; a prismatic one Σ; a spherical one m; a fixed one
    all. Parameters that reach the base are omitted. Other joints keep their parameters, and so do the bodies in `keep`,
    whose f stays. Armature stays.

    Parameters
    ----------
    model : Model
        Any tree.
    retained : mapping of int to int
        {revolute body: choice} of the part of Σ_zz that stays, which makes other parameters simpler: 0 none, 1 … 4 as
        much that Σ_zz = −Σ_xx (J_yy = 0), −Σ_yy (J_xx = 0), Σ_xx or Σ_yy.
    keep : collection of int
        Bodies whose parameters stay.
    """
    P = [pseudo_inertia(I) for I in model.inertias]
    for i in reversed(range(model.nb)):
        part = None if i in keep else _unobservable_part(model, i, P[i], (retained or {}).get(i, 0))
        if part is None:
            continue
        P[i] = P[i] - part
        if model.parent[i] >= 0:
            T = pose(rotation(model.X_tree[i]), translation(model.X_tree[i]))
            P[model.parent[i]] = P[model.parent[i]] + matmul(T, part, T.T)
    return model.replace(inertias=_clean_inertias(map(spatial_inertia, P)), strict=None)


def rescale_length(model: Model, length: float) -> Model:
    """The model with `length` [m] as the unit of length, and a unit of mass that leaves moments the same numbers.

    Useful where all degrees of freedom are rotations, since τ, q̈, the armature and Σ then are the same numbers, too: a
    product with a length that is the unit needs no multiplication. h becomes h L, m becomes m L².
    """
    (r,) = unify(np.array([translation(X) / length for X in model.X_tree]).reshape(-1, 3))
    X_tree = np.array([X_motion(rotation(X), p) for X, p in zip(model.X_tree, r, strict=True)]).reshape(-1, 6, 6)
    scale = np.array([1.0, 1.0, 1.0, length])
    frames = {f.name: Frame(f.name, f.body, X_motion(rotation(f.X), translation(f.X) / length))
              for f in model.frames.values()}  # fmt: skip
    inertias = _clean_inertias(spatial_inertia(scale[:, None] * pseudo_inertia(I) * scale) for I in model.inertias)
    return model.replace(
        X_tree=X_tree, inertias=inertias, frames=frames, gravity=model.gravity / length, strict=None
    )  # fmt: skip


def weld_fixed_joints(model: Model) -> Model:
    """The model without its fixed joints: bodies are welded to their parents, or omitted if those are the base."""
    if not any(isinstance(joint, Fixed) for joint in model.joints):
        return model
    number: dict[int, int] = {-1: -1}  # new number of the body that carries each body
    X: dict[int, np.ndarray] = {-1: np.eye(6)}  # from the frame of that body to its own
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


def _unobservable_part(model: Model, i: int, P: np.ndarray, retained: int) -> np.ndarray | None:
    """The part (4, 4) of the pseudo-inertia of body i that joint i does not move; None if there is none."""
    joint = model.joints[i]
    part = np.zeros((4, 4))
    if isinstance(joint, Revolute):
        T = np.eye(4)
        T[:3, :3] = rotation_to_z(np.array(joint.axis))
        P = matmul(T, P, T.T)
        part[2:, 2:] = P[2:, 2:]
        part[2, 2] -= (0.0, -P[0, 0], -P[1, 1], P[0, 0], P[1, 1])[retained]
        return matmul(T.T, part, T)
    if isinstance(joint, Prismatic):
        part[:3, :3] = P[:3, :3]
        return part
    if isinstance(joint, Spherical):
        part[3, 3] = P[3, 3]
        return part
    return P.copy() if isinstance(joint, Fixed) else None


def _clean_inertias(inertias: Iterable[np.ndarray]) -> np.ndarray:
    """Spatial inertias (nb, 6, 6) of exactly RBDA's form; rounding errors of J and h are 0, equal numbers the same."""
    cleaned = []
    for I in inertias:
        H, m = (I[:3, 3:] + I[3:, :3].T) / 2, I[5, 5]
        h = (unskew(H) - unskew(H.T)) / 2
        h = clean(h, max(np.abs(h).max(), abs(m)))
        J = clean((I[:3, :3] + I[:3, :3].T) / 2, np.abs(I[:3, :3]).max())
        cleaned.append(np.block([[J, skew(h)], [skew(h).T, m * np.eye(3)]]))
    return unify(np.array(cleaned).reshape(-1, 6, 6))[0]
