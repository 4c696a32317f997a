"""Models of URDF files."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection, Sequence

import numpy as np

from sysdyn.errors import PlausibilityWarning, UnknownName
from sysdyn.model.frames import Frame
from sysdyn.model.joints import Fixed, Free, Joint, Planar, Prismatic, Revolute, snap
from sysdyn.model.spatial import X_motion, transform_inertia
from sysdyn.model.tree import GRAVITY, Model
from sysdyn.model.urdf import UrdfJoint, UrdfRobot, read_urdf

ROOT_JOINT = "root_joint"


def load_urdf(
    source: str | os.PathLike[str],
    base: str = "fixed",
    fixed_joints: str | Collection[str] = "lump",
    strict: bool = False,
    gravity: Sequence[float] = GRAVITY,
) -> Model:
    """Model of the URDF file (or text, if it begins with "<") `source`.

    base: "fixed" (the root link is the base) or "floating" (the root link is body 0 on a Free joint "root_joint").
    fixed_joints: "lump" adds the inertia of a link on a fixed joint to the body that carries it (drops it if that is
        the base) and keeps its frame; "keep" makes each fixed joint a `Fixed` joint with its own body, so that the
        force through it is an unknown; "sensors" keeps those with a force/torque sensor on them; a collection of joint
        names keeps those.
    strict: raise for implausible inertias instead of warning. gravity (3,) [m/s²] in base coordinates.

    Bodies have the names of their links, depth first in document order. Entries of placements within 1e-12 of 0 and ±1,
    and roll, pitch and yaw within 1e-11 rad of multiples of π/2, are made exact. A `<mimic>` joint becomes independent,
    with one warning. Raises ModelError with file, line and element for what cannot be read; UnknownName for a joint
    name in `fixed_joints`.
    """
    robot = read_urdf(source)
    kept = _kept(fixed_joints, robot)
    mimics = [j.name for j in robot.joints.values() if j.mimic is not None]
    if mimics:
        warnings.warn(
            f"{robot.source}: <mimic> is not imposed; these joints are independent: {', '.join(mimics)}",
            PlausibilityWarning,
            stacklevel=2,
        )

    names: list[str] = []
    joints: list[tuple[str, Joint]] = []
    parent: list[int] = []
    X_tree: list[np.ndarray] = []
    inertias: list[np.ndarray] = []
    limits: dict[str, list[float]] = {"lower": [], "upper": [], "velocity_limit": [], "effort_limit": []}
    frames: dict[str, Frame] = {}
    placed: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}  # link: its body, and E, r from body to link

    def add_body(link: str, name: str, joint: Joint, body: int, E: np.ndarray, r: np.ndarray) -> None:
        placed[link] = (len(names), np.eye(3), np.zeros(3))
        names.append(link)
        joints.append((name, joint))
        parent.append(body)
        X_tree.append(X_motion(E, r))
        inertias.append(robot.links[link].inertia)
        j = robot.joints.get(name)
        bounds = (j.lower, j.upper, j.velocity, j.effort) if j and joint.nv == 1 else (-math.inf, *[math.inf] * 3)
        for values, bound in zip(limits.values(), bounds, strict=True):
            values += [bound] * joint.nv

    if base == "floating":
        add_body(robot.root, ROOT_JOINT, Free(), -1, np.eye(3), np.zeros(3))
    else:
        placed[robot.root] = (-1, np.eye(3), np.zeros(3))
    above = {j.child: j for j in robot.joints.values()}
    below: dict[str, list[str]] = {link: [] for link in robot.links}
    for j in robot.joints.values():
        below[j.parent].append(j.child)
    stack = [robot.root]
    while stack:
        link = stack.pop()
        if link in above:
            j = above[link]
            body, E, r = placed[j.parent]
            E, r = snap(j.E @ E), snap(r + E.T @ j.r)
            if j.type == "fixed" and j.name not in kept:
                placed[link] = (body, E, r)
                if body >= 0:
                    inertias[body] = inertias[body] + transform_inertia(robot.links[link].inertia, X_motion(E, r))
            else:
                add_body(link, j.name, _joint(j), body, E, r)
        body, E, r = placed[link]
        frames[link] = Frame(link, body, X_motion(E, r))
        stack += reversed(below[link])

    return Model(
        name=robot.name,
        body_names=tuple(names),
        joint_names=tuple(name for name, _ in joints),
        joints=tuple(joint for _, joint in joints),
        parent=tuple(parent),
        X_tree=np.array(X_tree).reshape(-1, 6, 6),
        inertias=np.array(inertias).reshape(-1, 6, 6),
        gravity=gravity,  # type: ignore[arg-type]
        frames=frames,
        base=base,
        sensors=robot.sensors,
        strict=strict,
        **{key: np.array(values) for key, values in limits.items()},
    )


def _kept(fixed_joints: str | Collection[str], robot: UrdfRobot) -> set[str]:
    fixed = [j.name for j in robot.joints.values() if j.type == "fixed"]
    if isinstance(fixed_joints, str):
        carriers = {s.parent for s in robot.sensors if s.type == "force_torque"}
        choices = {"lump": set(), "keep": set(fixed), "sensors": carriers & set(fixed)}
        if fixed_joints not in choices:
            raise UnknownName("choice for fixed_joints", fixed_joints, choices)
        return choices[fixed_joints]
    for name in fixed_joints:
        if name not in fixed:
            raise UnknownName("fixed joint", name, fixed)
    return set(fixed_joints)


def _joint(j: UrdfJoint) -> Joint:
    if j.type in ("revolute", "continuous"):
        return Revolute(j.axis)
    if j.type == "prismatic":
        return Prismatic(j.axis)
    if j.type == "planar":
        return Planar(j.axis)
    return Free() if j.type == "floating" else Fixed()
