"""Data folders: next to the package in a source tree, inside the package in an installation."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# Parent folder of the package: the source tree or site-packages.
ROOT = PACKAGE.parent


def shipped(name: str) -> Path | None:
    """Path of the data folder `name` of this package; None if there is none, as for a package imported from a zip."""
    return next((path for path in (ROOT / name, PACKAGE / name) if path.is_dir()), None)
