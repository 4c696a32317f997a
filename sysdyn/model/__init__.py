"""Robot models: the tree of bodies and joints, its kinematics, and where models come from (files, formulas, chance)."""

from __future__ import annotations

import os
from pathlib import Path

from sysdyn.errors import ModelError
from sysdyn.model.generate import auto_tree, chain, from_dh, random_tree
from sysdyn.model.joints import (
    JOINTS,
    Cylindrical,
    Fixed,
    Free,
    Helical,
    Joint,
    Planar,
    Prismatic,
    Revolute,
    Spherical,
)
from sysdyn.model.kinematics import forward_kinematics, frame_transform, joint_transforms, velocities
from sysdyn.model.tree import Frame, Model, Sensor
from sysdyn.model.urdf import UrdfJoint, UrdfLink, UrdfRobot, load_urdf, read_urdf

__all__ = [
    "JOINTS", "Cylindrical", "Fixed", "Frame", "Free", "Helical", "Joint", "Model", "Planar", "Prismatic", "Revolute",
    "Sensor", "Spherical", "UrdfJoint", "UrdfLink", "UrdfRobot", "auto_tree", "chain", "forward_kinematics",
    "frame_transform", "from_dh", "joint_transforms", "load", "load_urdf", "random_tree", "read_urdf", "velocities",
]  # fmt: skip


def load(path: str | os.PathLike[str], base: str = "fixed", **options) -> Model:
    """The model in a file, by its suffix: .urdf by `load_urdf`, which takes the `options`.

    Raises ModelError for a suffix without a reader.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".urdf":
        return load_urdf(path, base=base, **options)
    if suffix == ".xml":
        raise ModelError(
            f"{str(path)!r}: MJCF (.xml) files cannot be read by this version; convert it to URDF, or if it is a URDF, "
            "use load_urdf or rename it to .urdf"
        )
    if suffix == ".xacro":
        raise ModelError(f"{str(path)!r} is a xacro file: run xacro first and load the .urdf it writes")
    raise ModelError(f"{str(path)!r} has the suffix {suffix!r}; readable: .urdf")
