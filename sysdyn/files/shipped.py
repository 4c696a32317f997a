"""Data folders: next to the package in a source tree, inside the package in an installation."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# Parent folder of the package: the source tree or site-packages.
ROOT = PACKAGE.parent


def shipped(name: str) -> Path | None:
    """Path of a data folder; None if it does not exist, for example in a zip file."""
    return next((path for path in (ROOT / name, PACKAGE / name) if path.is_dir()), None)
