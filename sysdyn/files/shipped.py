"""Folders beside the package in a source tree that an installation holds within it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# The source tree, or the folder that holds the installed package.
ROOT = PACKAGE.parent


def places(name: str) -> tuple[Path, Path]:
    """Paths of the folder of this name, one of which exists: in a source tree, and in an installation."""
    return ROOT / name, PACKAGE / name


def shipped(name: str) -> Path | None:
    """The folder of this name; None where the package has none, as in a zip file."""
    return next((path for path in places(name) if path.is_dir()), None)
