"""Conversion of URDF files to models."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import FormatWarning, IgnoredWarning, ModelError, check_among, few, warn
from sysdyn.model.builder import UNLIMITED, FramePlacement, JointLimits, ModelBuilder
from sysdyn.model.closures import Coupling
from sysdyn.model.inertia import transform_inertia
from sysdyn.model.joints import Fixed, Free, Joint, Planar, Prismatic, Revolute
from sysdyn.model.massless import check_inertialess_joints
from sysdyn.model.model import GRAVITY, Model
from sysdyn.model.readers.source import origin_of
from sysdyn.model.readers.urdf import UrdfJoint, UrdfRobot, read_urdf
from sysdyn.model.se3 import X_motion

# Name of the free joint of a floating base.
ROOT_JOINT = "root_joint"
# Largest number of deviations in a warning: chosen.
MAX_DEVIATIONS = 20


def load_urdf(
    source: str | os.PathLike[str],
    base: str = "fixed",
    fixed_joints: str | Collection[str] = "lump",
    strict: bool = False,
    gravity: ArrayLike = GRAVITY,
    snap: bool = True,
) -> Model:
    """Read a URDF file into a `Model`.

    Parameters
    ----------
    source : path or str
        A file, or the text itself if it begins with "<".
    base : {"fixed", "floating"}
        "fixed": the root link is the base. "floating": the root link is body 0 on a Free joint "root_joint".
    fixed_joints : {"lump", "keep", "sensors"} or collection of str
        "lump": add the inertia of a link on a fixed joint to its parent body (drop it if the parent is the base), and
        keep the frame. "keep": convert each fixed joint to a `Fixed` joint with a body, so that the wrench across it is
        an unknown. "sensors": keep only fixed joints with a force/torque sensor. A collection: keep the joints with
        these names.
    strict : bool
        Raise ModelError, instead of warning, for physically inconsistent inertias, joints that move no inertia, and
        deviations from the format.
    gravity : (3,) array, m/s²
        Gravity in base coordinates.
    snap : bool
        Round roll, pitch and yaw within 1e-11 rad of multiples of π/2 to these multiples (files often have
        1.57079632679 for π/2). Torques differ accordingly from those of tools without rounding.

    Returns
    -------
    Model
        Bodies have the names of their links and are ordered depth first, siblings in document order. Entries of
        placements within 1e-12 of 0 and ±1 are rounded to them. A `<mimic>` joint becomes a `Coupling` in `closures`,
        which problems impose. `<dynamics>` becomes damping and friction, which act only if a problem requests them.

    Raises
    ------
    ModelError
        For invalid input, with file, line and element.
    UnknownName
        For an unknown joint name in `fixed_joints`.

    Warns
    -----
    FormatWarning
        Once, with line and element of each unambiguous deviation from the format (treatment in parentheses): blanks
        before the XML declaration or an unknown XML version; undeclared namespace prefixes; `<inertial>` without
        `<mass>` (no inertia) or `<inertia>` (point mass); a second `<inertial>`, `<mass>`, `<inertia>`, `<origin>` or
        `<axis>` (first one used); a lower limit above the upper limit (no limits); negative damping or friction (zero);
        `<mimic>` of a joint without exactly one degree of freedom (ignored); duplicate and malformed sensors (an error
        if one is requested by name); `<gazebo reference=>` to an unknown link or joint; unknown attributes, and
        misplaced or misspelt child elements (ignored). Extensions of other tools cause no warning.
    IgnoredWarning
        Once, with lines, for ignored elements that affect the motion in other tools, if their values have an effect:
        `motorInertia` and `mechanicalReduction` of transmissions; joints and links in `<gazebo>`, `springStiffness`,
        `turnGravityOff`, `gravity`, `kinematic`, `static`, `dampingFactor`, `velocity_decay`, the plugin of a
        `mimicJoint`; `rotor_inertia`, `gear_ratio`, bushings, springs and constraints of Drake; `inertia_scaling` of
        Bullet. Contacts, limits and controllers are ignored without a warning.
    """
    robot = read_urdf(source, strict, snap)
    if robot.deviations:
        warn(few(robot.deviations, MAX_DEVIATIONS, between="\n"), FormatWarning)
    if robot.ignored:
        warn(f"{robot.source}: not part of the model, and ignored: {', '.join(robot.ignored)}", IgnoredWarning)
    if base == "floating" and ROOT_JOINT in robot.joints:
        raise ModelError(
            f'{robot.source}:{robot.joints[ROOT_JOINT].line}: <joint name="{ROOT_JOINT}">: the free joint of a '
            "floating base has this name: rename the joint in the file"
        )
    separate = _separate_joints(fixed_joints, robot)
    builder = ModelBuilder()
    root = builder.add(robot.root, ROOT_JOINT, Free(), -1, np.eye(6)) if base == "floating" else -1
    places = {robot.root: FramePlacement.on_body(root)}
    builder.add_inertia(root, robot.links[robot.root].inertia)
    builder.add_frame(robot.root, places[robot.root])
    for j in _depth_first(robot):
        place = places[j.parent].compose(j.E, j.r)
        I = robot.links[j.child].inertia
        lumped = j.type == "fixed" and j.name not in separate
        if lumped and I.any():
            I = transform_inertia(I, X_motion(place.E, place.r))
        elif not lumped:
            X = X_motion(place.E, place.r)
            joint = _joint(j)
            limits = JointLimits(j.lower, j.upper, j.velocity, j.effort) if joint.nv == 1 else UNLIMITED
            body = builder.add(
                j.child, j.name, joint, place.body, X, limits=limits, damping=j.damping, friction=j.friction
            )
            place = FramePlacement.on_body(body)
        if j.mimic is not None:
            leader, multiplier, offset = j.mimic
            builder.closures.append(Coupling(j.name, leader, (offset, multiplier)))
        builder.add_inertia(place.body, I)
        builder.add_frame(j.child, place, j.name if lumped else "")
        places[j.child] = place
    model = Model(
        name=robot.name, base=base, sensors=robot.sensors, source=origin_of(source), strict=strict,
        **builder.model_arguments(gravity),
    )  # fmt: skip
    check_inertialess_joints(model, strict)
    return model


def _depth_first(robot: UrdfRobot) -> Iterator[UrdfJoint]:
    """Joints depth first from the root, siblings in document order."""
    children: dict[str, list[UrdfJoint]] = {link: [] for link in robot.links}
    for j in robot.joints.values():
        children[j.parent].append(j)
    stack = children[robot.root][::-1]
    while stack:
        j = stack.pop()
        yield j
        stack += reversed(children[j.child])


def _separate_joints(fixed_joints: str | Collection[str], robot: UrdfRobot) -> set[str]:
    """Names of the fixed joints that become `Fixed` joints of the model."""
    fixed = [j.name for j in robot.joints.values() if j.type == "fixed"]
    if isinstance(fixed_joints, str):
        carriers = {s.parent for s in robot.sensors if s.type == "force_torque"}
        choices = {"lump": set(), "keep": set(fixed), "sensors": carriers & set(fixed)}
        check_among("choice for fixed_joints", fixed_joints, choices)
        return choices[fixed_joints]
    for name in fixed_joints:
        check_among("fixed joint", name, fixed)
    return set(fixed_joints)


def _joint(j: UrdfJoint) -> Joint:
    if j.type in ("revolute", "continuous"):
        return Revolute(j.axis)
    if j.type == "prismatic":
        return Prismatic(j.axis)
    if j.type == "planar":
        return Planar(j.axis)
    return Free() if j.type == "floating" else Fixed()
