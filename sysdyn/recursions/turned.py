"""A floating tree read from another of its bodies: a foot that is held becomes the root.

Joint j between parent p and child c, on the way from the old root to the new one, turns p against c: the same axis with
the opposite sign and the same q. All others stay. The free joint of the old root leaves; the new root has six degrees
of freedom, of which the attitude, the angular velocity and the acceleration are given: the wrench through it is the one
that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from sysdyn.model import Model
from sysdyn.model.frames import Frame
from sysdyn.model.joints import Fixed, Free, Helical, Joint, Prismatic, Revolute
from sysdyn.model.kinematics import path
from sysdyn.model.se3 import X_inverse
from sysdyn.program.reproducible import matmul

# Joints that turn the other way with the opposite axis.
REVERSIBLE = (Revolute, Prismatic, Helical)


@dataclass(frozen=True)
class Carried(Joint):
    """The joint of a root whose attitude is given: q = E (9) by rows, from the axes of the base to its own; S = 1."""

    nq: ClassVar[int] = 9
    nv: ClassVar[int] = 6
    kind: ClassVar[str] = "carried"

    @cached_property
    def S(self) -> np.ndarray:
        return np.eye(6)

    def transform(self, q):
        return np.reshape(q, (3, 3)), np.zeros(3, dtype=np.asarray(q).dtype)

    def random(self, rng, batch=()):
        return np.broadcast_to(np.eye(3).ravel(), (*batch, 9))


@dataclass(frozen=True)
class Turned:
    """A model that was turned.

    bodies: number in the given model of each body, the new root first. X (nb, 6, 6): from its given frame to its own.
    """

    given: Model
    model: Model
    bodies: tuple[int, ...]
    X: np.ndarray

    @cached_property
    def freedoms(self) -> list[int]:
        """Degree of freedom in the given model of each but the six of the root."""
        given = self.given
        return [k for i in self.joints for k in range(given.v_slice(i).start, given.v_slice(i).stop)]

    @cached_property
    def positions(self) -> list[int]:
        """The same of the entries of q."""
        given = self.given
        return [k for i in self.joints for k in range(given.q_slice(i).start, given.q_slice(i).stop)]

    @property
    def joints(self) -> list[int]:
        """Number in the given model of the joint of each body but the root."""
        way = path(self.given, self.bodies[0])
        before = dict(zip(way[1:], way, strict=False))  # of a body on the way, the joint towards the new root
        return [before.get(i, i) for i in self.bodies[1:]]


def can_turn(model: Model, body: int) -> bool:
    """True if the tree is a floating one and can be read from this body."""
    if body < 0 or not isinstance(model.joints[0], Free) or model.armature[:6].any():
        return False
    way = path(model, body)
    return way[-1] == 0 and all(isinstance(model.joints[i], (*REVERSIBLE, Fixed)) for i in way[:-1])


def turned(model: Model, body: int, X: np.ndarray) -> Turned:
    """The model read from `body`, whose frame becomes the one that X (6, 6) leads to; see `can_turn`."""
    way = path(model, body)  # from the new root to the old one
    inner = {i: model.X_tree[j] for j, i in zip(way, way[1:], strict=False)}  # from a body to the joint it now turns by
    to = {i: inner.get(i, np.eye(6)) for i in range(model.nb)} | {body: X}
    bodies = (*way, *(i for i in range(model.nb) if i not in way))
    number = {i: k for k, i in enumerate(bodies)}
    towards = dict(zip(way[1:], way, strict=False))
    joints: list[Joint] = [Carried()]
    parent, placed, names = [-1], [np.eye(6)], [model.joint_names[0]]
    for i in bodies[1:]:
        j = towards.get(i, i)  # the joint by which it moves
        before = j if i in towards else model.parent[i]
        back = X_inverse(to[before]) if before >= 0 else np.eye(6)
        joints.append(_reversed(model.joints[j]) if i in towards else model.joints[i])
        parent.append(number[before] if before >= 0 else -1)
        placed.append(back if i in towards else matmul(model.X_tree[i], back))
        names.append(model.joint_names[j])
    backs = [X_inverse(to[i]) for i in bodies]
    inertias = [matmul(F.T, model.inertias[i], F) for F, i in zip(backs, bodies, strict=True)]
    frames = {
        f.name: Frame(f.name, number[f.body], matmul(f.X, X_inverse(to[f.body]))) for f in model.frames.values()
        if f.body >= 0 and f.name not in model.body_names
    }  # fmt: skip
    found = Turned(model, model, bodies, np.array([to[i] for i in bodies]))
    own = Model(
        model.name, tuple(model.body_names[i] for i in bodies), tuple(names), tuple(joints), tuple(parent),
        np.array(placed), np.array([(I + I.T) / 2 for I in inertias]), model.gravity,
        np.concatenate([np.zeros(6), model.armature[found.freedoms]]), frames, strict=None,
    )  # fmt: skip
    return replace(found, model=own)


def _reversed(joint: Joint) -> Joint:
    if isinstance(joint, REVERSIBLE):
        x, y, z = joint.axis
        return replace(joint, axis=(-x, -y, -z))
    return joint
