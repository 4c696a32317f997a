"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from sysdyn.errors import FileError


class Replacement:
    """What will be the file `path`: written at `temporary`, beside it, and put into its place in one step.

    Whoever has written calls `put`, or `drop`, which leaves `path` as it was. Several may write one path at a time.
    """

    def __init__(self, path: Path):
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")

    def put(self) -> None:
        """Put it into its place. Raises OSError, and is dropped then."""
        try:
            os.replace(self.temporary, self.path)
        except OSError:
            self.drop()
            raise

    def drop(self) -> None:
        self.temporary.unlink(missing_ok=True)


def replace_file(path: Path, payload: bytes) -> None:
    """Make `payload` the content of the file, in one step. Raises OSError, after which the file is as it was."""
    new = Replacement(path)
    with open(new.temporary, "xb") as file:
        try:
            file.write(payload)
            file.flush()
        except OSError:
            new.drop()
            raise
    new.put()


def write_file(path: str | os.PathLike[str], payload: bytes) -> Path:
    """As `replace_file`, with a FileError that names the file."""
    try:
        replace_file(Path(path), payload)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    return Path(path)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files, by name, into a folder, which is made if it is not there: none is put into its place half-written.

    Raises FileError, after which a new folder is not there. Files of another name stay.
    """
    new = not folder.exists()
    place = folder.absolute()
    temporary = (place.parent if new else place) / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}"
    try:
        temporary.mkdir()
        for name, payload in files.items():
            (temporary / name).write_bytes(payload)
        if new:
            os.rename(temporary, folder)
        else:
            for name in files:
                os.replace(temporary / name, folder / name)
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
