"""Robot models: the tree of bodies and joints, its kinematics, and where models come from (files, formulas, chance)."""

from __future__ import annotations

import os
from pathlib import Path

from sysdyn.errors import ModelError
from sysdyn.model.base_parameters import inertial_parameters
from sysdyn.model.frames import Frame, Sensor
from sysdyn.model.generate import auto_tree, chain, from_dh, random_tree
from sysdyn.model.joints import JOINTS, Cylindrical, Fixed, Free, Helical, Joint, Planar, Prismatic, Revolute, Spherical
from sysdyn.model.kinematics import (
    forward_kinematics,
    frame_jacobian,
    frame_pose,
    frame_transform,
    joint_transforms,
    pose_and_jacobian,
    velocities,
)
from sysdyn.model.mjcf import from_mujoco, load_mjcf
from sysdyn.model.mujoco_state import MujocoState
from sysdyn.model.screws import from_screws
from sysdyn.model.tree import Model
from sysdyn.model.urdf import UrdfJoint, UrdfLink, UrdfRobot, read_urdf
from sysdyn.model.urdf_model import load_urdf

__all__ = [
    "Cylindrical", "Fixed", "Frame", "Free", "Helical", "JOINTS", "Joint", "Model", "MujocoState", "Planar",
    "Prismatic", "Revolute", "Sensor", "Spherical", "UrdfJoint", "UrdfLink", "UrdfRobot", "auto_tree", "chain",
    "forward_kinematics", "frame_jacobian", "frame_pose", "frame_transform", "from_dh", "from_mujoco", "from_screws",
    "inertial_parameters", "joint_transforms", "load", "load_mjcf", "load_urdf", "pose_and_jacobian", "random_tree",
    "read_urdf", "velocities",
]  # fmt: skip


def load(path: str | os.PathLike[str], base: str = "fixed", **options) -> Model:
    """The model in a file, by its suffix: .urdf by `load_urdf`, .xml (MJCF) by `load_mjcf`, which take the `options`.

    base: of a URDF, "fixed" or "floating". An MJCF file says itself whether its root is free; "floating" demands it.
    Raises ModelError for a suffix without a reader, and as the readers do.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".urdf":
        return load_urdf(path, base=base, **options)
    if suffix == ".xml":
        model = load_mjcf(path, **options)
        if base not in ("fixed", model.base):
            raise ModelError(
                f"{str(path)!r} has a {model.base} base, not {base!r}: an MJCF file has a floating base where one body "
                "with a <freejoint/> carries all others"
            )
        return model
    if suffix == ".xacro":
        raise ModelError(f"{str(path)!r} is a xacro file: run xacro first and load the .urdf it writes")
    raise ModelError(f"{str(path)!r} has the suffix {suffix!r}; readable: .urdf, .xml (MJCF)")
