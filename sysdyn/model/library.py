"""Robots by name: the URDF and MJCF files of installed packages."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from sysdyn.errors import BackendUnavailable, UnknownName
from sysdyn.files.shipped import shipped

# Packages with robots, and their files that are robots; a name in several packages belongs to the first.
PACKAGES: dict[str, re.Pattern] = {
    "icub-models": re.compile(r".*/iCub/robots/(?P<name>[^/]+)/model\.urdf"),
    "example-robot-data": re.compile(r".*/example-robot-data/robots/.*/(?P<name>[^/]+)\.urdf"),
    "robosuite": re.compile(r"robosuite/models/assets/robots/(?P<name>[^/]+)/robot\.xml"),
    "dm_control": re.compile(r"dm_control/suite/(?P<name>[^/]+)\.xml"),
    "gymnasium": re.compile(r"gymnasium/envs/mujoco/assets/(?P<name>[^/]+)\.xml"),
}
# Name of this package in front of a robot of its own.
OWN = "sysdyn"
# Names of robots whose file has another name.
ALIASES = {
    "icub": ("icub-models", "iCubGazeboV2_5"),
    "talos": ("example-robot-data", "talos_reduced"),
    "talos_full": ("example-robot-data", "talos_full_v2"),
    "panda": ("example-robot-data", "panda"),
    "ur3": ("example-robot-data", "ur3_robot"),
    "ur5": ("example-robot-data", "ur5_robot"),
    "ur10": ("example-robot-data", "ur10_robot"),
    "hyq": ("example-robot-data", "hyq_no_sensors"),
    "g1": ("example-robot-data", "g1_29dof_rev_1_0"),
}


def robots() -> dict[str, Path]:
    """{name: file} of the robots in installed packages, each a `source` of `sysdyn.load`.

    Of icub-models, example-robot-data (URDF), robosuite, dm_control and gymnasium (MJCF), and small ones of this
    package (biped, delta, four_bar, leg, quadruped). A name that several packages have is that of the first of them;
    "gymnasium:humanoid" says which package.
    """
    found = {f"{package}:{name}": path for package in (*PACKAGES, OWN) for name, path in _files(package).items()}
    named = {alias: found[f"{package}:{name}"] for alias, (package, name) in ALIASES.items()
             if f"{package}:{name}" in found}  # fmt: skip
    for full, path in found.items():
        package, name = full.split(":")
        named.setdefault(name, path)
        if named[name] != path:
            named[full] = path
    return named


def find(name: str) -> Path:
    """The file of the robot of that name, "package:name" or as in `robots`.

    Raises BackendUnavailable if the package of a well-known robot is missing, UnknownName.
    """
    known = robots()
    if name in known:
        return known[name]
    package, _, own = name.rpartition(":")
    if package in (*PACKAGES, OWN) and own in (files := _files(package)):
        return files[own]
    package = ALIASES[name][0] if name in ALIASES else package
    if package in PACKAGES and not _files(package):
        raise BackendUnavailable(
            f"robot {name!r} is in the package {package}, which is not installed: pip install {package}"
        )
    raise UnknownName("robot", name, known)


def _files(package: str) -> dict[str, Path]:
    """{name: file} of the robots in a package; empty if it is not installed."""
    if package == OWN:
        folder = shipped("problems")
        return {path.stem: path for path in sorted(folder.glob("*.urdf"))} if folder else {}
    try:
        listed = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, Path] = {}
    for file in sorted(listed):
        if match := PACKAGES[package].fullmatch(file.as_posix()):
            found.setdefault(match["name"], Path(str(file.locate())).resolve())
    return found
