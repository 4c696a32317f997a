"""Disk cache of compiled programs: atomic writes, entries with a checksum, least recently used entries evicted.

Entries contain code that will be executed. So the folder must belong to the user and nobody else may write to it, and
an entry is read only if its sha256 fits its key and content. Where the cache cannot be used, one warning says so, and
everything is compiled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import re
from pathlib import Path
from typing import NamedTuple

import platformdirs

from sysdyn.errors import CacheWarning, FileError, warn
from sysdyn.files.atomic import write_file

# First bytes of every entry: a word with the version; sha256 of the key and the content follows.
_MAGIC = b"sysdyn2\n"
# Names of entries and of their temporary files, see `AtomicFile`. No other file is ever deleted.
_ENTRY = re.compile(r"(\.)?[0-9a-f]{64}\.[a-z]+(?(1)\.\d+-[0-9a-f]{8})")
# Values of SYSDYN_CACHE that switch the cache off.
_OFF = ("", "off")
# Bytes of a MiB, the unit of SYSDYN_CACHE_LIMIT.
MEBIBYTE = 2**20
# Size limit [MiB] if SYSDYN_CACHE_LIMIT is not set: tuned, some thousand humanoids.
_LIMIT = 1024.0
# Scans of the folder, on average, while as many bytes are stored as it may hold: tuned, 0.1 s each.
_SCANS = 64

_random = random.Random().random  # apart from the user's random numbers
_warned: set[str] = set()  # folders and variables that a warning has named


class CacheEntry(NamedTuple):
    """A file of the cache: its size in bytes, and when it was last used, in seconds since the epoch."""

    name: str
    size: int
    used: float


def folder() -> Path | None:
    """The folder of the entries: SYSDYN_CACHE or the user's cache folder; None if the cache is switched off."""
    path = os.environ.get("SYSDYN_CACHE")
    if path is not None:
        return Path(path) if path not in _OFF else None
    return Path(platformdirs.user_cache_dir("sysdyn"))


def limit() -> float:
    """Number of bytes that the folder may hold, by SYSDYN_CACHE_LIMIT."""
    text = os.environ.get("SYSDYN_CACHE_LIMIT", str(_LIMIT))
    with contextlib.suppress(ValueError):
        if float(text) >= 0.0:
            return float(text) * MEBIBYTE
    message = f"SYSDYN_CACHE_LIMIT is {text!r}, not a number ≥ 0 of MiB: {_LIMIT:.0f} are used"
    _warn_once("SYSDYN_CACHE_LIMIT", message)
    return _LIMIT * MEBIBYTE


def load(key: str) -> bytes | None:
    """The bytes stored under `key`; None if there are none that can be trusted."""
    where = folder()
    if where is None:
        return None
    try:
        content = (where / key).read_bytes() if _is_private(where) else b""
    except OSError:
        return None
    head, payload = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if head != _head(key, payload):
        return None
    with contextlib.suppress(OSError):
        os.utime(where / key)
    return payload


def store(key: str, payload: bytes) -> None:
    """Store `payload` under `key`; concurrent writers of one key leave one whole entry."""
    where = folder()
    if where is None:
        return
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(where):
            write_file(where / key, _head(key, payload) + payload, mode=0o600)
            if _random() * limit() <= _SCANS * len(payload):
                _evict(where)
    except (OSError, FileError) as error:
        _warn_unusable(where, str(error))


def entries() -> list[CacheEntry]:
    """The entries in the folder and their temporary files, the least recently used first."""
    where, listed = folder(), []
    if where is not None:
        with contextlib.suppress(OSError), os.scandir(where) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    if _ENTRY.fullmatch(file.name):
                        stat = file.stat(follow_symlinks=False)
                        listed.append(CacheEntry(file.name, stat.st_size, stat.st_mtime))
    return sorted(listed, key=lambda entry: entry.used)


def clear() -> None:
    """Delete all entries that can be deleted."""
    where = folder()
    if where is not None:
        _evict(where, -math.inf)


def _evict(where: Path, size: float | None = None) -> None:
    """Delete the least recently used entries until the others have at most this size in bytes, by default the limit."""
    oldest_first = entries()
    excess = sum(entry.size for entry in oldest_first) - (limit() if size is None else size)
    for entry in oldest_first:
        if excess <= 0.0:
            break
        with contextlib.suppress(OSError):
            (where / entry.name).unlink()
        excess -= entry.size


def _head(key: str, payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + b"\0" + payload).digest()


def _is_private(where: Path) -> bool:
    """True if the folder belongs to the user and nobody else can write to it; warns if not. Raises OSError."""
    stat = where.stat()
    if stat.st_uid == os.geteuid() and not stat.st_mode & 0o022:
        return True
    _warn_unusable(where, "it belongs to another user or others can write to it: chmod 700")
    return False


def _warn_unusable(where: Path, reason: str) -> None:
    message = f"the cache folder {where} cannot be used ({reason}); compiling without it. "
    _warn_once(str(where), message + "Set SYSDYN_CACHE to another folder, or to nothing for no cache.")


def _warn_once(subject: str, message: str) -> None:
    if subject not in _warned:
        _warned.add(subject)
        warn(message, CacheWarning)
