"""Atomic writes: a file is replaced completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from sysdyn.errors import FileError, checked_path


class AtomicFile:
    """Atomic replacement of the file `path`: write the file `temporary`, then call `commit` or `abort`.

    `temporary` is a hidden file in the same folder. It remains if the process is killed.
    """

    def __init__(self, path: Path):
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")

    def commit(self) -> None:
        """Rename the temporary file to `path`. Raises OSError."""
        os.replace(self.temporary, self.path)

    def abort(self) -> None:
        """Delete the temporary file; no effect after `commit`."""
        with suppress(OSError):
            self.temporary.unlink()


def write_file(path: str | os.PathLike[str], payload: bytes, mode: int = 0o666) -> Path:
    """Replace the content of a file atomically.

    Parameters
    ----------
    path : path
    payload : bytes
        New content.
    mode : int
        Permissions before the umask.

    Returns
    -------
    Path

    Raises
    ------
    FileError
        If the file cannot be written. The old content then stays.
    """
    target = checked_path("a file", path)
    new = AtomicFile(target)
    try:
        with open(new.temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(payload)
        new.commit()
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        new.abort()
    return target


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write {name: content} into a folder, which is created if needed.

    Raises FileError. Files that were written before the failure stay.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror or error}") from error
    for name, payload in files.items():
        write_file(folder / name, payload)
    return folder
