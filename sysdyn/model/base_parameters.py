"""Base inertial parameters: parameters that no motion tells apart are moved to bodies where they cost nothing.

A joint leaves some distributions of mass where they are: turning about z does not move a rod on the z axis, and sliding
does not turn anything. Such a part of body i may as well be counted to its parent: τ and q̈ are the same for every
motion, f_i is not. Gautier & Khalil (1990), by numbers instead of rules, in terms of the pseudo-inertia P of
`sysdyn.model.inertia`, for which the move is T P T^T, T (4, 4) the pose of the body in its parent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from sysdyn.model.canonical import to_z
from sysdyn.model.frames import Frame
from sysdyn.model.inertia import parameters, pseudo_inertia, spatial_inertia
from sysdyn.model.joints import Fixed, Prismatic, Revolute, Spherical, agreed
from sysdyn.model.model import Model
from sysdyn.model.poses import pose
from sysdyn.model.spatial import X_motion, rotation, translation
from sysdyn.program.reproducible import matmul

# Rounding of pseudo-inertias: a parameter below this fraction of the greatest entry of its own counts as zero.
NEGLIGIBLE = 1e-14
# Number of choices for Σ_zz of a revolute body: the values of `left` in `regrouped`.
LEFT_CHOICES = 5


def inertial_parameters(model: Model) -> np.ndarray:
    """π (10 nb): of each body m [kg], m c (3) [kg m], and I_xx, I_xy, I_yy, I_xz, I_yz, I_zz [kg m²] about its origin.

    In body coordinates; the order is Pinocchio's (`Inertia.toDynamicParameters`).
    """
    return np.concatenate([parameters(I) for I in model.inertias] or [np.zeros(0)])


def regrouped(model: Model, left: Mapping[int, int] | None = None, kept: Collection[int] = ()) -> Model:
    """The model with as many inertial parameters as possible moved to the base; τ and q̈ are the same, f is not.

    Revolute, with z along the axis: m, h_z and Σ_zz; prismatic: Σ; spherical: m; fixed: all. What reaches the base is
    left out. Other joints keep their parameters, and so do the bodies in `kept`, whose f stays. Armature stays.

    left: the part of Σ_zz that a revolute body keeps, to make its other parameters simpler: 0 nothing, 1 … 4 so much
        that Σ_zz = −Σ_xx (J_yy = 0), −Σ_yy (J_xx = 0), Σ_xx or Σ_yy.
    """
    P = [pseudo_inertia(I) for I in model.inertias]
    for i in reversed(range(model.nb)):
        part = None if i in kept else _unseen(model, i, P[i], (left or {}).get(i, 0))
        if part is None:
            continue
        P[i] = P[i] - part
        if model.parent[i] >= 0:
            E, r = rotation(model.X_tree[i]), translation(model.X_tree[i])
            T = pose(E, r)
            P[model.parent[i]] = P[model.parent[i]] + matmul(T, part, T.T)
    P = agreed(*(_clean(p) for p in P))
    return model.replace(inertias=np.array([spatial_inertia(p) for p in P]).reshape(-1, 6, 6), strict=None)


def in_units(model: Model, length: float) -> Model:
    """The model with `length` [m] as the unit of length and of mass such that moments have the same numbers.

    Of use where all degrees of freedom are turns, for then τ, q̈ and the armature have the same numbers too, and so has
    Σ: a product with a length that is the unit needs no multiplication. h becomes h L, m becomes m L².
    """
    (r,) = agreed(np.array([translation(X) / length for X in model.X_tree]).reshape(-1, 3))
    X_tree = np.array([X_motion(rotation(X), p) for X, p in zip(model.X_tree, r, strict=True)]).reshape(-1, 6, 6)
    scale = np.array([1.0, 1.0, 1.0, length])
    P = agreed(*(scale[:, None] * pseudo_inertia(I) * scale for I in model.inertias))
    frames = {f.name: Frame(f.name, f.body, X_motion(rotation(f.X), translation(f.X) / length))
              for f in model.frames.values()}  # fmt: skip
    return model.replace(
        X_tree=X_tree, inertias=np.array([spatial_inertia(p) for p in P]).reshape(-1, 6, 6), frames=frames,
        gravity=model.gravity / length, strict=None,
    )  # fmt: skip


def _unseen(model: Model, i: int, P: np.ndarray, left: int) -> np.ndarray | None:
    """The part (4, 4) of the pseudo-inertia of body i that joint i does not move; None if there is none."""
    joint = model.joints[i]
    part = np.zeros((4, 4))
    if isinstance(joint, Revolute):
        T = np.eye(4)
        T[:3, :3] = to_z(np.array(joint.axis))
        P = matmul(T, P, T.T)
        part[2:, 2:] = P[2:, 2:]
        part[2, 2] -= (0.0, -P[0, 0], -P[1, 1], P[0, 0], P[1, 1])[left]
        part = matmul(T.T, part, T)
    elif isinstance(joint, Prismatic):
        part[:3, :3] = P[:3, :3]
    elif isinstance(joint, Spherical):
        part[3, 3] = P[3, 3]
    elif isinstance(joint, Fixed):
        part = P.copy()
    else:
        return None
    return part


def without_fixed(model: Model) -> Model:
    """The model without its fixed joints: bodies are welded to their parents, or left out if those are the base."""
    if not any(isinstance(joint, Fixed) for joint in model.joints):
        return model
    number: dict[int, int] = {-1: -1}  # new number of a body, or of what it is welded to
    X: dict[int, np.ndarray] = {-1: np.eye(6)}  # from the frame of that to its own
    kept: list[int] = []
    inertias: list[np.ndarray] = []
    X_tree: list[np.ndarray] = []
    for i, joint in enumerate(model.joints):
        parent = model.parent[i]
        X_i = matmul(model.X_tree[i], X[parent])
        if not isinstance(joint, Fixed):
            number[i], X[i] = len(kept), np.eye(6)
            kept.append(i)
            inertias.append(model.inertias[i].copy())
            X_tree.append(X_i)
            continue
        number[i], X[i] = number[parent], X_i
        if number[i] >= 0:
            inertias[number[i]] += matmul(X_i.T, model.inertias[i], X_i)
    frames = {
        f.name: Frame(f.name, number[f.body], matmul(f.X, X[f.body]))
        for f in model.frames.values()
        if f.body < 0 or f.name not in model.body_names or f.body in kept
    }
    return model.replace(
        body_names=[model.body_names[i] for i in kept],
        joint_names=[model.joint_names[i] for i in kept],
        joints=[model.joints[i] for i in kept],
        parent=[number[model.parent[i]] for i in kept],
        X_tree=np.array(X_tree).reshape(-1, 6, 6),
        inertias=np.array([(I + I.T) / 2 for I in inertias]).reshape(-1, 6, 6),
        frames=frames,
        strict=None,
    )


def _clean(P: np.ndarray) -> np.ndarray:
    P = (P + P.T) / 2
    for part in (np.s_[:3, :3], np.s_[:3, 3], np.s_[3, :3]):
        block = P[part]
        block[np.abs(block) <= NEGLIGIBLE * max(np.abs(P).max(), 1e-300)] = 0.0
    return P
