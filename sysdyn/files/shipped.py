"""Data folders: next to the package in a source tree, inside the package in an installation."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# Parent folder of the package: the source tree or site-packages.
ROOT = PACKAGE.parent


def places(name: str) -> tuple[Path, Path]:
    """The two possible paths of a data folder: in a source tree and in an installation."""
    return ROOT / name, PACKAGE / name


def shipped(name: str) -> Path | None:
    """Path of a data folder; None if it does not exist, for example in a zip file."""
    return next((path for path in places(name) if path.is_dir()), None)
