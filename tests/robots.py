"""Robots that tests share: the arms of the literature, and floating trees."""

from __future__ import annotations

from nori.arms import ARMS as ROBOTS
from nori.arms import load_arm as load_robot

from sysdyn.model import Free, Model, random_tree

__all__ = ["ROBOTS", "floating_tree", "load_robot"]


def floating_tree(n: int, seed: int, parent: tuple[int, ...] | None = None) -> Model:
    """A random tree of revolute joints whose first joint is free and carries all others."""
    model = random_tree(n, seed=seed, joints=("revolute",))
    parent = tuple(p if i == 0 else max(p, 0) for i, p in enumerate(parent or model.parent))
    limits = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))
    return model.replace(joints=(Free(), *model.joints[1:]), parent=parent, base="floating", **limits)
