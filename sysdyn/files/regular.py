"""Paths of regular files, and no others: a named pipe is waited for without end, a device may never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from sysdyn.errors import InvalidInput

# Kinds of files that are never read, in words.
_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}  # fmt: skip


class IrregularFile(OSError):
    """Error of a name whose file is no regular file."""


def checked_path(what: str, path: Any) -> Path:
    """The path, if it is one: numbers would be open files. Raises InvalidInput."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise InvalidInput(f"{what} must be a path, not {path!r}")
    return Path(path)


def require_regular(path: str | os.PathLike[str]) -> None:
    """Raise OSError unless a regular file has this name, or a link to one; for readers that open files by name."""
    _check(os.stat(path), path)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The regular file of this name, opened to be read in bytes. Raises OSError, and never waits."""
    return open(checked_path("a file", path), "rb", opener=_opened)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of the regular file of this name. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def require_regular_within(folder: Path) -> None:
    """Raise OSError unless all files of a folder, or the file itself, are regular."""
    for path in folder.iterdir() if folder.is_dir() else (folder,):
        if not path.is_dir():
            require_regular(path)


def _opened(path: str, flags: int) -> int:
    require_regular(path)  # sockets cannot be opened, and devices may do something when they are
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _check(os.fstat(file), path)
    except BaseException:
        os.close(file)
        raise
    return file


def _check(about: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "something else")
        raise IrregularFile(None, f"it is {kind}, not a regular file", os.fspath(path))
