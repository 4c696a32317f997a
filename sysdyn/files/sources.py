"""Digests of this package's own sources, so that the cache gives nothing that other sources computed."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]  # The folder of the package.


@functools.cache
def sources_digest(*parts: str, package: Path = PACKAGE) -> str:
    """sha256 of the Python files of these parts (folders or files, relative to the package), with their names."""
    digest = hashlib.sha256()
    for part in parts:
        path = package / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(package).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
