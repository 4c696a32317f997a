"""Cache folder for compiled things: atomic writes, checked reads, and never an error.

Entries are run later: a folder or an entry that belongs to another user, or that others can write to, is reported once
and left alone; an entry that is damaged, or was stored under another key, is ignored. The folder is SYSDYN_CACHE if set
(empty or off: no cache), else the user's cache folder; if it is larger than SYSDYN_CACHE_LIMIT, the entries that were
not used for longest go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

import platformdirs

from sysdyn.errors import CacheWarning, warn
from sysdyn.files.atomic import replace_file

# First bytes of every entry: a word with the version; sha256 of the key and the content follows.
_MAGIC = b"sysdyn2\n"
# Names of entries, with the dot and the end of `Replacement` during writing. No other file is touched.
_ENTRY = re.compile(r"(\.)?[0-9a-f]{64}\.[a-z]+(?(1)\.\d+-[0-9a-f]{8})")
# Values of SYSDYN_CACHE that stand for no cache.
OFF = ("", "off")
# Bytes of a MiB, the unit of SYSDYN_CACHE_LIMIT.
MEBIBYTE = 2**20
# Size of the folder [MiB] if SYSDYN_CACHE_LIMIT is not set; chosen.
LIMIT = 1024.0
# Share of the limit to which a full folder is brought down, so that the next entries find room (chosen).
_SHARE = 0.9
# Parts of the limit after each of which the size of the folder is looked up, as others may store there, too (chosen).
_LOOKS = 16
# Seconds after which a file left unfinished by a process that died is deleted (chosen).
_FORGOTTEN = 3600.0
# Flags of files that are no links and, should they be pipes, do not wait for a writer.
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

_complained: set[str] = set()  # Files and variables that a warning was given of.
_room: dict[tuple[Path, float], float] = {}  # Bytes that may be stored in a folder, of a limit, before the next look.


class Entry(NamedTuple):
    """A file of the cache: its size in bytes, and when it was last used, in seconds since the epoch."""

    path: Path
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
        with open(path, "rb", opener=_opened) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or not _own(path, about) or not _usable(where):
                return None
            content = file.read()
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
            content = _head(key, payload) + payload
            replace_file(where / key, content, mode=0o600)
            _make_room(where, len(content))
    except OSError as error:
        _complain(where, error.strerror or str(error))


def entries() -> list[Entry]:
    """The entries in the folder, unfinished ones too; the latest used one comes last."""
    where, found = folder(), []
    if where is not None:
        with contextlib.suppress(OSError), os.scandir(where) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    if _ENTRY.fullmatch(file.name):
                        about = file.stat(follow_symlinks=False)
                        found.append(Entry(Path(file.path), about.st_size, about.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def clear() -> None:
    """Delete all entries that can be deleted."""
    for entry in entries():
        _delete(entry)
    _room.clear()


def _make_room(where: Path, size: int) -> None:
    """Delete the entries used longest ago if the folder, which has got `size` more bytes, is over its limit."""
    most = limit()
    room = _room.get((where, most), 0.0) - size
    if room < 0.0:
        found, now = entries(), time.time()
        total = sum(entry.size for entry in found)
        allowed = most if total <= most else _SHARE * most
        for entry in found:
            unfinished = entry.path.name.startswith(".")
            if now - entry.used > _FORGOTTEN if unfinished else total > allowed:
                _delete(entry)
                total -= entry.size
        room = min(most - total, most / _LOOKS)
    _room[where, most] = room


def _delete(entry: Entry) -> None:
    with contextlib.suppress(OSError):
        entry.path.unlink()


def _head(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\0")
    digest.update(payload)
    return _MAGIC + digest.digest()


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | _PLAIN)


# ---- whom files belong to ------------------------------------------------------------------------------------------


def _usable(where: Path) -> bool:
    """True if nobody else can write to the folder; the user's own, not a chosen one, is closed to all others first."""
    about = where.stat()
    if "SYSDYN_CACHE" not in os.environ and about.st_mode & 0o077 and not _strange(about):
        where.chmod(0o700)
        about = where.stat()
    return _own(where, about)


def _own(path: Path, about: os.stat_result) -> bool:
    """True if the user alone can write to the file or folder; complains if not."""
    if _strange(about):
        why = "it belongs to another user"
    elif hasattr(os, "geteuid") and about.st_mode & 0o022:
        why = f"others can write to it, mode {stat.S_IMODE(about.st_mode):o}: chmod go-w"
    else:
        return True
    _complain(path, why)
    return False


def _strange(about: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and about.st_uid != os.geteuid()


def _complain(path: Path, why: str) -> None:
    """Warn once that a folder or an entry is not used."""
    what = "folder" if path == folder() else "entry"
    _warn(
        str(path),
        f"the cache {what} {path} cannot be used ({why}); compiling without it. "
        "Set SYSDYN_CACHE to another folder, or to nothing for no cache.",
    )


def _warn(about: str, message: str) -> None:
    if about not in _complained:
        _complained.add(about)
        warn(message, CacheWarning)
