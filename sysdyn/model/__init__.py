"""Robot models: trees of bodies and joints, kinematics, readers of robot files, generated robots."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sysdyn.errors import InvalidInput, ModelError
from sysdyn.model.frames import DeclaredSensor, Frame
from sysdyn.model.generate import auto_tree, chain, from_dh, from_screws, random_tree
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
from sysdyn.model.readers.mjcf import from_mujoco, load_mjcf
from sysdyn.model.readers.mujoco import root_element
from sysdyn.model.readers.pinocchio import PinocchioState, from_pinocchio
from sysdyn.model.readers.robots import find, robots
from sysdyn.model.readers.source import is_text
from sysdyn.model.readers.urdf import UrdfJoint, UrdfLink, UrdfRobot, read_urdf
from sysdyn.model.readers.urdf_model import load_urdf
from sysdyn.model.readers.xacro import load_xacro

__all__ = [
    "Cylindrical", "Fixed", "Frame", "Free", "Helical", "JOINTS", "Joint", "Model", "MujocoState", "PinocchioState",
    "Planar", "Prismatic", "Revolute", "DeclaredSensor", "Spherical", "UrdfJoint", "UrdfLink", "UrdfRobot", "auto_tree",
    "chain", "forward_kinematics", "frame_jacobian", "frame_pose", "frame_transform", "from_dh", "from_mujoco",
    "from_pinocchio", "from_screws", "inertial_parameters", "joint_transforms", "load", "load_mjcf", "load_urdf",
    "pose_and_jacobian", "random_tree", "read_urdf", "robots", "velocities",
]  # fmt: skip


# {suffix: reader of robot files}. A reader accepts a path or a text, and options.
READERS: dict[str, Callable[..., Model]] = {".urdf": load_urdf, ".xacro": load_xacro, ".xml": load_mjcf}
# {package: converter of its models}
CONVERTERS: dict[str, Callable[..., Model]] = {"pinocchio": from_pinocchio, "mujoco": from_mujoco}


def load(
    source: str | os.PathLike[str] | Any, base: str = "fixed", mappings: Mapping[str, object] | None = None, **options
) -> Model:
    """Load a robot model.

    Parameters
    ----------
    source : path, str, pinocchio.Model or mujoco.MjModel
        A file (.urdf for `load_urdf`, .xml for `load_mjcf`, .xacro for `load_xacro`), the XML text of such a file, a
        robot name of `robots` such as "talos", or a model of Pinocchio or MuJoCo (see `from_pinocchio`,
        `from_mujoco`).
    base : {"fixed", "floating"}
        Base of a URDF model. The other formats define the base themselves; there "floating" checks that it is floating.
    mappings : mapping, optional
        Arguments of a xacro file. Xacro evaluates expressions as Python code: load trusted files only.
    **options
        Options of the reader.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        For an unknown suffix, for another base than the required one, and for the errors of the reader.
    InvalidInput
        For an option that the reader does not have.
    UnknownName, BackendUnavailable
        For an unknown robot name; for a missing package.
    """
    if mappings is not None:
        options["mappings"] = mappings
    package = type(source).__module__.partition(".")[0]
    if package in CONVERTERS:
        reader, name = CONVERTERS[package], f"the model that {package} has loaded"
    elif isinstance(source, (str, os.PathLike)):
        source, suffix = _locate(source, "mappings" in options)
        name = "the text" if is_text(source) else repr(str(source))
        if suffix not in READERS:
            raise ModelError(f"{name} has the suffix {suffix!r}; readable: {', '.join(READERS)}")
        reader = READERS[suffix]
    else:
        raise InvalidInput(f"a robot is the path of a file, its text or a name, not {type(source).__name__}")
    parameters = inspect.signature(reader).parameters
    for option in options:
        if option not in parameters and "options" not in parameters:
            valid = ", ".join([*parameters][1:])
            raise InvalidInput(f"{name} is read by {reader.__name__}, which has no option {option!r}; it has {valid}")
    if "base" in parameters:
        options["base"] = base
    model = reader(source, **options)
    if base not in ("fixed", model.base):
        raise ModelError(
            f"{name} has a {model.base} base, not {base!r}: a floating one is a free joint that carries all bodies, "
            "<freejoint/> in an MJCF file, JointModelFreeFlyer in Pinocchio"
        )
    return model


def _locate(source: str | os.PathLike[str], xacro: bool) -> tuple[str | os.PathLike[str], str]:
    """Resolve a path, a text or a robot name to (file or text, suffix). xacro: True if xacro arguments are passed."""
    if is_text(source):
        if xacro or "<xacro:" in str(source):
            return source, ".xacro"
        return source, ".xml" if root_element(str(source)) == "mujoco" else ".urdf"
    suffix = Path(source).suffix.lower()
    if not os.path.exists(source) and (not suffix or str(source) in robots()):
        source = find(str(source))
        suffix = source.suffix
    return source, suffix
