"""Disk cache of compiled programs: atomic writes, checksums, least recently used (LRU) eviction.

Entries contain executable code. Therefore the folder must belong to the user and must not be writable by others, and
the sha256 of an entry must match its key and content. If the cache cannot be used, one warning is issued and every
program is compiled.
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

# Magic bytes of an entry, with the format version. The sha256 of key and content follows.
_MAGIC = b"sysdyn2\n"
# File names of entries and of their temporary files (`AtomicFile`). The cache deletes no other files.
_ENTRY = re.compile(r"(\.)?[0-9a-f]{64}\.[a-z]+(?(1)\.\d+-[0-9a-f]{8})")
# Values of SYSDYN_CACHE that switch the cache off.
_OFF = ("", "off")
# Bytes per MiB, the unit of SYSDYN_CACHE_LIMIT.
MEBIBYTE = 2**20
# Default of SYSDYN_CACHE_LIMIT [MiB]: tuned, some thousand humanoids.
_LIMIT = 1024.0
# Mean number of eviction scans per size limit of stored bytes: tuned, a scan takes 0.1 s.
_SCANS = 64

_random = random.Random().random  # leaves the user's random state unchanged
_warned: set[str] = set()  # folders and variables of earlier warnings


class CacheEntry(NamedTuple):
    """A cache file: name, size [bytes] and time of last use [s since the epoch]."""

    name: str
    size: int
    used: float


def folder() -> Path | None:
    """Cache folder: SYSDYN_CACHE or the user's cache folder; None if the cache is disabled."""
    path = os.environ.get("SYSDYN_CACHE")
    if path is not None:
        return Path(path) if path not in _OFF else None
    return Path(platformdirs.user_cache_dir("sysdyn"))


def limit() -> float:
    """Size limit of the cache [bytes], from SYSDYN_CACHE_LIMIT."""
    text = os.environ.get("SYSDYN_CACHE_LIMIT", str(_LIMIT))
    with contextlib.suppress(ValueError):
        if float(text) >= 0.0:
            return float(text) * MEBIBYTE
    message = f"SYSDYN_CACHE_LIMIT is {text!r}, not a number ≥ 0 of MiB: {_LIMIT:.0f} are used"
    _warn_once("SYSDYN_CACHE_LIMIT", message)
    return _LIMIT * MEBIBYTE


def load(key: str) -> bytes | None:
    """Content of the entry `key`; None if it is missing or fails its checksum."""
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
    """Store `payload` under `key`. Concurrent writers of a key leave one complete entry."""
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
        _warn_unusable(where, error.strerror or str(error))


def entries() -> list[CacheEntry]:
    """Entries and temporary files in the cache folder, least recently used first."""
    where, result = folder(), []
    if where is not None:
        with contextlib.suppress(OSError), os.scandir(where) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    if _ENTRY.fullmatch(file.name):
                        stat = file.stat(follow_symlinks=False)
                        result.append(CacheEntry(file.name, stat.st_size, stat.st_mtime))
    return sorted(result, key=lambda entry: entry.used)


def clear() -> None:
    """Delete all entries; ignore those that cannot be deleted."""
    where = folder()
    if where is not None:
        _evict(where, -math.inf)


def _evict(where: Path, size: float | None = None) -> None:
    """Delete the least recently used entries until the cache has at most `size` bytes; default: the limit."""
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
    """True if the folder belongs to the user and others cannot write to it; else warn. Raises OSError."""
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
