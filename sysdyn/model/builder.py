"""A model that grows body by body, as readers of robot files meet them: parents first, then bodies welded to them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.model.closures import Closure
from sysdyn.model.frames import Frame
from sysdyn.model.joints import Joint, snap
from sysdyn.model.spatial import X_motion
from sysdyn.program.reproducible import product


class Place(NamedTuple):
    """A frame fixed on a body: E (3, 3) turns the body's coordinates into its own, r (3,) [m] is its origin there."""

    body: int
    E: np.ndarray
    r: np.ndarray

    @classmethod
    def of(cls, body: int) -> Place:
        """The frame of the body itself, −1 for the base."""
        return cls(body, np.eye(3), np.zeros(3))

    def then(self, E: np.ndarray, r: np.ndarray) -> Place:
        """The frame that E, r place in this one, made exact near 0 and ±1."""
        return Place(self.body, snap(product(E, self.E)), snap(self.r + product(self.E.T, r)))

    def frame(self, name: str, joint: str = "") -> Frame:
        return Frame(name, self.body, X_motion(self.E, self.r), joint)


class Limits(NamedTuple):
    """Limits of each degree of freedom of a joint."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


UNLIMITED = Limits()  # The limits of joints without any.


class GrowingTree:
    """Bodies, joints and frames found so far; `parts` are arguments of `Model`."""

    def __init__(self) -> None:
        self.body_names: list[str] = []
        self.joint_names: list[str] = []
        self.joints: list[Joint] = []
        self.parent: list[int] = []
        self.X_tree: list[np.ndarray] = []
        self.inertias: list[np.ndarray] = []
        self.armature: list[float] = []
        self.damping: list[float] = []
        self.friction: list[float] = []
        self.limits: list[Limits] = []
        self.closures: list[Closure] = []
        self.frames: dict[str, Frame] = {}

    def add(
        self, body: str, name: str, joint: Joint, parent: int, X_tree: np.ndarray, *, limits: Limits = UNLIMITED,
        armature: np.ndarray | None = None, damping: ArrayLike = 0.0, friction: ArrayLike = 0.0,
    ) -> int:  # fmt: skip
        """A body on a joint called `name`, without mass so far; returns its number."""
        self.body_names.append(body)
        self.joint_names.append(name)
        self.joints.append(joint)
        self.parent.append(parent)
        self.X_tree.append(X_tree)
        self.inertias.append(np.zeros((6, 6)))
        self.armature += (np.zeros(joint.nv) if armature is None else armature).tolist()
        self.damping += np.broadcast_to(damping, joint.nv).tolist()
        self.friction += np.broadcast_to(friction, joint.nv).tolist()
        self.limits += [limits] * joint.nv
        return len(self.parent) - 1

    def weld(self, body: int, I: np.ndarray) -> None:
        """Add a spatial inertia (6, 6) in body coordinates; the base takes none."""
        if body >= 0:
            self.inertias[body] = self.inertias[body] + I

    def name(self, name: str, place: Place, joint: str = "") -> None:
        """Call a place by a name. joint: the fixed joint that was lumped with the link of this name."""
        self.frames[name] = place.frame(name, joint)

    def parts(self, gravity: ArrayLike) -> dict[str, Any]:
        """Arguments of `Model`, with gravity (3,) [m/s²] in base coordinates."""
        lower, upper, velocity, effort = np.array(self.limits, dtype=float).reshape(-1, 4).T
        return {
            "body_names": tuple(self.body_names),
            "joint_names": tuple(self.joint_names),
            "joints": tuple(self.joints),
            "parent": tuple(self.parent),
            "X_tree": np.array(self.X_tree).reshape(-1, 6, 6),
            "inertias": np.array(self.inertias).reshape(-1, 6, 6),
            "armature": np.array(self.armature, dtype=float),
            "damping": np.array(self.damping, dtype=float),
            "friction": np.array(self.friction, dtype=float),
            "closures": tuple(self.closures),
            "lower": lower,
            "upper": upper,
            "velocity_limit": velocity,
            "effort_limit": effort,
            "gravity": gravity,
            "frames": self.frames,
        }
