"""Model builder for the readers of robot files. Bodies are added one by one, parents first."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.model.closures import Closure
from sysdyn.model.constants import clean
from sysdyn.model.frames import Frame
from sysdyn.model.joints import Joint
from sysdyn.model.se3 import X_motions
from sysdyn.program.reproducible import matmul


class FramePlacement(NamedTuple):
    """Placement of a frame on a body (−1: base): E (3, 3) from body to frame axes, origin r (3,) [m] in the body."""

    body: int
    E: np.ndarray
    r: np.ndarray

    @classmethod
    def on_body(cls, body: int) -> FramePlacement:
        """Placement of the body frame itself."""
        return cls(body, np.eye(3), np.zeros(3))

    def compose(self, E: np.ndarray, r: np.ndarray) -> FramePlacement:
        """Placement on the body of a frame whose placement in this frame is (E, r). Rounds entries near 0 and ±1."""
        return FramePlacement(self.body, clean(matmul(E, self.E)), clean(self.r + matmul(self.E.T, r)))


class JointLimits(NamedTuple):
    """Joint limits per degree of freedom: position [rad or m], velocity [rad/s or m/s], effort [N m or N]."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


UNLIMITED = JointLimits()


class ModelBuilder:
    """Collects bodies, joints and frames; `model_arguments` returns the arguments of `Model`."""

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
        self.limits: list[JointLimits] = []
        self.closures: list[Closure] = []
        self.frames: dict[str, tuple[FramePlacement, str]] = {}

    def add(
        self, body: str, name: str, joint: Joint, parent: int, X_tree: np.ndarray, *, limits: JointLimits = UNLIMITED,
        armature: np.ndarray | None = None, damping: ArrayLike = 0.0, friction: ArrayLike = 0.0,
    ) -> int:  # fmt: skip
        """Add a massless body with its joint. body, name: names of the body and the joint. Returns the body index."""
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

    def add_inertia(self, body: int, I: np.ndarray) -> None:
        """Add a spatial inertia (6, 6) in body coordinates to a body. Inertias of the base (−1) are ignored."""
        if body >= 0:
            self.inertias[body] = self.inertias[body] + I

    def add_frame(self, name: str, placement: FramePlacement, joint: str = "") -> None:
        """Add a named frame. joint: for the frame of a lumped link, the name of its fixed joint."""
        self.frames[name] = placement, joint

    def model_arguments(self, gravity: ArrayLike) -> dict[str, Any]:
        """Keyword arguments for `Model`. gravity: (3,) [m/s²] in base coordinates."""
        lower, upper, velocity, effort = np.array(self.limits, dtype=float).reshape(-1, 4).T
        placements = [placement for placement, _ in self.frames.values()]
        X = X_motions(
            np.array([p.E for p in placements]).reshape(-1, 3, 3), np.array([p.r for p in placements]).reshape(-1, 3)
        )
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
            "frames": {
                name: Frame(name, p.body, X, joint)
                for (name, (p, joint)), X in zip(self.frames.items(), X, strict=True)
            },
        }
