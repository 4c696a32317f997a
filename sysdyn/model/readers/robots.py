"""Robots by name: URDF and MJCF files in installed packages."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath

from sysdyn.errors import BackendUnavailable, InvalidInput, UnknownName
from sysdyn.files.shipped import shipped

# {package with robots: pattern of its robot files}
PACKAGES: dict[str, re.Pattern] = {
    "icub-models": re.compile(r".*/iCub/robots/(?P<name>[^/]+)/model\.urdf"),
    "example-robot-data": re.compile(r".*/example-robot-data/robots/.*/(?P<name>[^/]+)\.urdf"),
    "pybullet": re.compile(r"pybullet_data/(?!random_urdfs/)(.*/)?(?P<name>[^/]+)\.urdf"),
    "robosuite": re.compile(r"robosuite/models/assets/robots/(?P<name>[^/]+)/robot\.xml"),
    "dm_control": re.compile(r"dm_control/suite/(?P<name>[^/]+)\.xml"),
    "gymnasium": re.compile(r"gymnasium/envs/mujoco/assets/(?P<name>[^/]+)\.xml"),
}
# Package prefix of the robots of this package.
OWN = "sysdyn"
# {well-known name: robot of one package}. Independent of the other installed packages.
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
    """{name: file} of the robots in installed packages. The names are valid sources for `sysdyn.load`.

    The packages are icub-models, example-robot-data, pybullet (URDF), robosuite, dm_control, gymnasium (MJCF) and
    sysdyn. The names biped, delta, four_bar, leg and quadruped (robots of sysdyn) and well-known names such as icub,
    talos and panda are unique, independently of the installed packages. Other robots with these names, and robots whose
    name occurs in several packages, are listed with a package prefix: "pybullet:quadruped".
    """
    qualified, plain = _all_files()
    unique = {name: files[0] for name, files in plain.items() if len(files) == 1}
    paths = {qualified[full] for full in unique.values()}
    return {name: qualified[full] for name, full in unique.items()} | {
        full: path for full, path in qualified.items() if path not in paths
    }


def find(name: str) -> Path:
    """File of a robot. name: "package:name", or a name listed by `robots`.

    Raises InvalidInput for an ambiguous name, BackendUnavailable if the package of a well-known robot is missing,
    UnknownName for other names.
    """
    package, _, robot = ":".join(ALIASES.get(name, (name,))).rpartition(":")
    if package in (OWN, *PACKAGES) and robot in (robots_of_package := _files(package)):
        return robots_of_package[robot]
    qualified, plain = _all_files()
    if name in qualified:
        return qualified[name]
    files = plain.get(name, [])
    if len(files) == 1:
        return qualified[files[0]]
    if files:
        raise InvalidInput(f"several robots are called {name!r}: write {' or '.join(map(repr, files))}")
    package = ALIASES[name][0] if name in ALIASES else name.rpartition(":")[0]
    if package in PACKAGES and not any(full.startswith(f"{package}:") for full in qualified):
        others = [full for full in qualified if full.endswith(f":{name}")]
        hint = f"; {' and '.join(map(repr, others))} {'is' if len(others) == 1 else 'are'} installed" if others else ""
        raise BackendUnavailable(
            f"robot {name!r} is in the package {package}, which is not installed: pip install {package}{hint}"
        )
    raise UnknownName("robot", name, robots())


def _all_files() -> tuple[dict[str, Path], dict[str, list[str]]]:
    """({"package:name": file}, {name: its entries "package:name" in all packages})."""
    qualified: dict[str, Path] = {}
    plain: dict[str, list[str]] = {}
    for package in (OWN, *PACKAGES):
        for name, path in _files(package).items():
            qualified[f"{package}:{name}"] = path
            plain.setdefault(name.rpartition("/")[2], []).append(f"{package}:{name}")
    for alias, (package, name) in ALIASES.items():
        plain[alias] = [full] if (full := f"{package}:{name}") in qualified else []
    for name in _files(OWN):
        plain[name] = [f"{OWN}:{name}"]
    return qualified, plain


def _files(package: str) -> dict[str, Path]:
    """{name: file} of the robots in a package; empty if it is not installed.

    Files with the same name are listed as "folder/name".
    """
    if package == OWN:
        folder = shipped("problems")
        return {path.stem: path for path in sorted(folder.glob("*.urdf"))} if folder else {}
    folder, lines = _record(package)
    groups: dict[str, list[PurePosixPath]] = {}
    for line in sorted(lines):
        if match := PACKAGES[package].fullmatch(line.rsplit(",", 2)[0]):
            groups.setdefault(match["name"], []).append(PurePosixPath(match[0]))
    paths: dict[str, Path] = {}
    for name, files in groups.items():
        common = os.path.commonpath(files)
        for file in files:
            full = name if len(files) == 1 else file.relative_to(common).with_suffix("").as_posix()
            paths[full] = (folder / file).resolve()
    return paths


def _record(package: str) -> tuple[Path, list[str]]:
    """(folder, lines "file,hash,size" of the RECORD) of an installed package; no lines if it is not installed.

    Importing importlib.metadata for this takes 15 ms.
    """
    for folder in map(Path, sys.path):
        for info in folder.glob(f"{package.replace('-', '_')}-*.dist-info"):
            record = info / "RECORD"
            return folder, record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return Path(), []
