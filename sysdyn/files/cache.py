"""Cache folder for compiled things: atomic writes, checked reads, and never an error.

Entries contain code that will be executed: a folder that belongs to another user, or that others can write to, is not
used, with one warning; an entry that is damaged, or was stored under another key, is ignored. The folder is
SYSDYN_CACHE if set (empty or off: no cache), else the user's cache folder. If it is larger than SYSDYN_CACHE_LIMIT,
each store deletes the least recently used entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

import platformdirs

from sysdyn.errors import CacheWarning, warn
from sysdyn.files.atomic import replace_file

# First bytes of every entry: a word with the version; sha256 of the key and the content follows.
_MAGIC = b"sysdyn2\n"
# Names of entries and of their temporary files, see `Replacement`. No other file is ever deleted.
_ENTRY = re.compile(r"(\.)?[0-9a-f]{64}\.[a-z]+(?(1)\.\d+-[0-9a-f]{8})")
# Values of SYSDYN_CACHE that stand for no cache.
OFF = ("", "off")
# Bytes of a MiB, the unit of SYSDYN_CACHE_LIMIT.
MEBIBYTE = 2**20
# Size of the folder [MiB] if SYSDYN_CACHE_LIMIT is not set; chosen.
LIMIT = 1024.0

_complained: set[str] = set()  # Folders and environment variables that a warning has named already.


class Entry(NamedTuple):
    """A file of the cache: its size in bytes, and when it was last used, in seconds since the epoch."""

    name: str
    size: int
    used: float


def folder() -> Path | None:
    """The folder of the entries; None if the user switched the cache off."""
    chosen = os.environ.get("SYSDYN_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen not in OFF else None
    return Path(platformdirs.user_cache_dir("sysdyn"))


def limit() -> float:
    """Number of bytes that the folder may hold."""
    chosen = os.environ.get("SYSDYN_CACHE_LIMIT", LIMIT)
    try:
        size = float(chosen)
        if not size >= 0.0:
            raise ValueError
    except ValueError:
        size = LIMIT
        _warn("SYSDYN_CACHE_LIMIT", f"SYSDYN_CACHE_LIMIT is {chosen!r}, not a number ≥ 0 of MiB: {LIMIT:.0f} are used")
    return size * MEBIBYTE


def load(key: str) -> bytes | None:
    """The bytes stored under `key`; None if there are none that can be trusted."""
    where = folder()
    if where is None:
        return None
    path = where / key
    try:
        if not _usable(where):
            return None
        content = path.read_bytes()
    except OSError:
        return None
    head, payload = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if head != _head(key, payload):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return payload


def store(key: str, payload: bytes) -> None:
    """Store `payload` under `key`; concurrent writers of one key leave one whole entry."""
    where = folder()
    if where is None:
        return
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _usable(where):
            replace_file(where / key, _head(key, payload) + payload, mode=0o600)
            _evict(where)
    except OSError as error:
        _complain(where, error.strerror or str(error))


def entries() -> list[Entry]:
    """The entries in the folder and their temporary files, the least recently used first."""
    where, found = folder(), []
    if where is not None:
        with contextlib.suppress(OSError), os.scandir(where) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    if _ENTRY.fullmatch(file.name):
                        about = file.stat(follow_symlinks=False)
                        found.append(Entry(file.name, about.st_size, about.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def clear() -> None:
    """Delete all entries that can be deleted."""
    where = folder()
    if where is not None:
        for entry in entries():
            _delete(where / entry.name)


def _evict(where: Path) -> None:
    """Delete the least recently used entries of a folder that is over its limit."""
    found, most = entries(), limit()
    excess = sum(entry.size for entry in found) - most
    for entry in found:
        if excess <= 0.0:
            break
        _delete(where / entry.name)
        excess -= entry.size


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _head(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\0")
    digest.update(payload)
    return _MAGIC + digest.digest()


def _usable(where: Path) -> bool:
    """True if the folder belongs to the user and nobody else can write to it; warns if not."""
    about = where.stat()
    if not hasattr(os, "geteuid"):
        return True
    if about.st_uid != os.geteuid():
        _complain(where, "it belongs to another user")
        return False
    if about.st_mode & 0o022:
        _complain(where, f"others can write to it, mode {stat.S_IMODE(about.st_mode):o}: chmod go-w")
        return False
    return True


def _complain(where: Path, why: str) -> None:
    """Warn, once per folder, that it is not used."""
    _warn(
        str(where),
        f"the cache folder {where} cannot be used ({why}); compiling without it. "
        "Set SYSDYN_CACHE to another folder, or to nothing for no cache.",
    )


def _warn(about: str, message: str) -> None:
    if about not in _complained:
        _complained.add(about)
        warn(message, CacheWarning)
