"""Cache folder for compiled things: atomic writes, checked reads, and never an error.

A damaged or foreign entry is ignored; a folder that is full or read-only is reported once and then left alone.
The folder is SYSDYN_CACHE if set (empty: no cache), else the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

import platformdirs

from sysdyn.errors import CacheWarning
from sysdyn.files.atomic import replace_file

_MAGIC = b"sysdyn1\n"  # Every entry begins with this word, its version, and the sha256 of what follows.
_complained: set[str] = set()  # Folders that a warning was given of.


def folder() -> Path | None:
    """Where entries are kept, or None where the user switched the cache off."""
    chosen = os.environ.get("SYSDYN_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    return Path(platformdirs.user_cache_dir("sysdyn"))


def load(key: str) -> bytes | None:
    """The bytes stored under `key`, or None where there are none that can be trusted."""
    where = folder()
    if where is None:
        return None
    try:
        content = (where / key).read_bytes()
    except OSError:
        return None
    head, payload = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(payload).digest():
        return None
    return payload


def store(key: str, payload: bytes) -> None:
    """Store `payload` under `key`; concurrent writers of one key leave one whole entry."""
    where = folder()
    if where is None:
        return
    try:
        where.mkdir(parents=True, exist_ok=True)
        replace_file(where / key, _MAGIC + hashlib.sha256(payload).digest() + payload)
    except OSError as error:
        if str(where) not in _complained:
            _complained.add(str(where))
            warnings.warn(
                f"the cache folder {where} cannot be used ({error.strerror or error}); compiling without it. "
                "Set SYSDYN_CACHE to another folder, or to nothing for no cache.",
                CacheWarning,
                stacklevel=3,
            )
