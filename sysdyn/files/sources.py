"""Digests of the package sources, which are part of cache keys: changed sources invalidate entries."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

PACKAGE = files("sysdyn")  # Package folder; may be in a zip file.


@functools.cache
def sources_digest(*parts: str, package: Traversable = PACKAGE) -> str:
    """sha256 of the names and contents of Python files. parts: files or folders of the package; default: all."""
    digest = hashlib.sha256()
    for part in parts or ("",):
        for name, file in _sources(part, package.joinpath(part) if part else package):
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _sources(name: str, path: Traversable) -> Iterator[tuple[str, Traversable]]:
    """(name, file) of a Python file, or of all those below a folder, sorted by name."""
    if name.endswith(".py"):
        yield name, path
        return
    for inside in sorted(path.iterdir(), key=lambda x: x.name):
        if inside.name.endswith(".py") or ("." not in inside.name and inside.name != "__pycache__" and inside.is_dir()):
            yield from _sources(f"{name}/{inside.name}", inside)
