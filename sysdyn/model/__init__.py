"""Robot models: trees of bodies and joints, their kinematics, readers of robot files and generators."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sysdyn.errors import InvalidInput, ModelError
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
from sysdyn.model.model import Model
from sysdyn.model.mujoco_state import MujocoState
from sysdyn.model.normal_form import inertial_parameters
from sysdyn.model.product_of_exponentials import from_screws
from sysdyn.model.readers.mjcf import from_mujoco, load_mjcf
from sysdyn.model.readers.mujoco import root_element
from sysdyn.model.readers.pinocchio import PinocchioState, from_pinocchio
from sysdyn.model.readers.robots import find, robots
from sysdyn.model.readers.source import is_text
from sysdyn.model.readers.urdf import UrdfJoint, UrdfLink, UrdfRobot, read_urdf
from sysdyn.model.readers.urdf_model import load_urdf
from sysdyn.model.readers.xacro import expanded

__all__ = [
    "Cylindrical", "Fixed", "Frame", "Free", "Helical", "JOINTS", "Joint", "Model", "MujocoState", "PinocchioState",
    "Planar", "Prismatic", "Revolute", "Sensor", "Spherical", "UrdfJoint", "UrdfLink", "UrdfRobot", "auto_tree",
    "chain", "forward_kinematics", "frame_jacobian", "frame_pose", "frame_transform", "from_dh", "from_mujoco",
    "from_pinocchio", "from_screws", "inertial_parameters", "joint_transforms", "load", "load_mjcf", "load_urdf",
    "pose_and_jacobian", "random_tree", "read_urdf", "robots", "velocities",
]  # fmt: skip


# Readers of the model objects of other packages.
LOADED: dict[str, Callable[..., Model]] = {"pinocchio": from_pinocchio, "mujoco": from_mujoco}


def load(
    source: str | os.PathLike[str] | Any, base: str = "fixed", mappings: Mapping[str, object] | None = None, **options
) -> Model:
    """Load a robot model.

    Parameters
    ----------
    source : path, str or model
        The path of a file: .urdf (`load_urdf`), .xml for MJCF (`load_mjcf`) or .xacro, a URDF that the package xacro
        expands. Or the XML text, a name of `robots` such as "talos", or a model that Pinocchio or MuJoCo has loaded
        (`from_pinocchio`, `from_mujoco`).
    base : {"fixed", "floating"}
        Of a URDF. An MJCF file itself says whether its root is free; "floating" then requires it.
    mappings : mapping, optional
        Arguments of a xacro file. Its expressions are evaluated as Python: load trusted files only.
    **options
        Options of the reader.

    Raises
    ------
    ModelError, InvalidInput, UnknownName, BackendUnavailable
        For a suffix without a reader; for a wrong source; for an unknown name; for a package that is missing. Readers
        raise further ModelErrors.
    """
    package = type(source).__module__.partition(".")[0]
    if package in LOADED:
        if mappings is not None:
            raise InvalidInput(f"a model that {package} has loaded takes no mappings: expand the xacro file before")
        return _with_base(LOADED[package](source, **options), base, f"the model that {package} has loaded")
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidInput(f"a robot is the path of a file, its text or a name, not {type(source).__name__}")
    text = is_text(source)
    label, suffix = ("<string>", "") if text else (str(source), Path(source).suffix.lower())
    if text and (mappings is not None or "<xacro:" in str(source)):
        suffix = ".xacro"
    elif text:
        suffix = ".xml" if root_element(str(source)) == "mujoco" else ".urdf"
    elif (not suffix or label in robots()) and not os.path.exists(source):
        source = find(label)
        suffix = source.suffix
    if suffix == ".xacro":
        return load_urdf(expanded(source, mappings, text), base=base, **options)
    if mappings is not None:
        raise InvalidInput(f"{label!r} is no xacro file: only these take mappings")
    if suffix == ".urdf":
        return load_urdf(source, base=base, **options)
    if suffix == ".xml":
        if others := set(options) - {"strict", "snap"}:
            raise InvalidInput(f"{label!r} is an MJCF file; {', '.join(sorted(others))} are options of URDF files")
        return _with_base(load_mjcf(source, **options), base, repr(label))
    raise ModelError(f"{label!r} has the suffix {suffix!r}; readable: .urdf, .xacro, .xml (MJCF)")


def _with_base(model: Model, base: str, label: str) -> Model:
    """The model itself. Raises ModelError if `base` is neither "fixed" nor that of the model."""
    if base not in ("fixed", model.base):
        raise ModelError(
            f"{label} has a {model.base} base, not {base!r}: a floating one is a free joint that carries all bodies, "
            "<freejoint/> in an MJCF file, JointModelFreeFlyer in Pinocchio"
        )
    return model
