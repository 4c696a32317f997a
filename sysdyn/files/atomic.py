"""Atomic writes: a file is replaced completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sysdyn.errors import FileError, checked_path


class Replacement:
    """Atomic replacement of the file `path`: write `temporary`, a hidden file in the same folder, then call `put`.

    `drop` deletes the temporary file, and does nothing after `put`. Several processes may replace one path at a time.
    A process that is killed leaves the hidden file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")

    def put(self) -> None:
        """Replace `path` in one step. Raises OSError."""
        os.replace(self.temporary, self.path)

    def drop(self) -> None:
        self.temporary.unlink(missing_ok=True)


def replace_file(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Make `payload` the content of the file, in one step. Raises OSError, after which the file is as it was.

    mode: permissions of the file, masked by the umask of the process.
    """
    new = Replacement(path)
    try:
        with open(new.temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(payload)
        new.put()
    finally:
        new.drop()


def write_file(path: str | os.PathLike[str], payload: bytes) -> Path:
    """`replace_file` with a FileError that names the file."""
    place = checked_path("a file", path)
    try:
        replace_file(place, payload)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    return place


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write {name: content} into a folder, which is created if it does not exist.

    Raises FileError; files written before the failure stay, and so do files with other names.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror or error}") from error
    for name, payload in files.items():
        write_file(folder / name, payload)
    return folder
