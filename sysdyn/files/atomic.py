"""Files and folders that are written whole or not at all, and leave nothing else behind."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sysdyn.errors import FileError, checked_path


class Replacement:
    """The future file `path`: written at `temporary` and put into its place in one step.

    Whoever has written calls `put`, or `drop`, which leaves `path` as it was. Several may write one path at a time. The
    file has no name until then where the system can do that (O_TMPFILE), so that a process that is killed leaves
    nothing; elsewhere it has a hidden one in `folder`, by default that of `path`, on whose disk it is written.
    """

    def __init__(self, path: Path, folder: Path | None = None):
        self.path = path
        folder = folder or path.parent
        self._named = hidden(folder / path.name)
        self._file = _nameless(folder)
        self.temporary = self._named if self._file is None else Path(f"/proc/self/fd/{self._file}")

    def put(self) -> None:
        """Put it into its place. Raises OSError, and is dropped then."""
        try:
            if self._file is not None:
                # a folder, though absolute paths need none, makes link follow what /proc shows as a link
                os.link(self.temporary, self._named, src_dir_fd=self._file, follow_symlinks=True)
            os.replace(self._named, self.path)
        finally:
            self.drop()

    def drop(self) -> None:
        self._named.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def hidden(path: Path) -> Path:
    """A name beside `path` that nobody else takes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")


def _nameless(folder: Path) -> int | None:
    """Descriptor of a new file without a name on the disk of a folder; None if the system has no such files."""
    with suppress(OSError, AttributeError):
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
        if os.path.exists(f"/proc/self/fd/{file}"):
            return file
        os.close(file)
    return None


def replace_file(path: Path, payload: bytes, mode: int | None = None) -> None:
    """Make `payload` the content of the file, in one step. Raises OSError, after which the file is as it was.

    mode: of the file; by default as of every new file.
    """
    new = Replacement(path)
    try:
        with open(new.temporary, "wb") as file:
            file.write(payload)
        if mode is not None:
            os.chmod(new.temporary, mode)
    except BaseException:
        new.drop()
        raise
    new.put()


def write_file(path: str | os.PathLike[str], payload: bytes) -> Path:
    """`replace_file` with a FileError that names the file."""
    place = checked_path("a file", path)
    try:
        replace_file(place, payload)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    return place


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files, by name, into a folder, which is made if it does not exist: none is put into its place half-written.

    Raises FileError, after which a new folder is not there. Files of another name stay.
    """
    new = not folder.exists()
    place = folder.absolute()
    temporary = hidden(place)
    parts = [Replacement((temporary if new else place) / name, place.parent if new else place) for name in files]
    try:
        for part, payload in zip(parts, files.values(), strict=True):
            part.temporary.write_bytes(payload)
        if new:
            temporary.mkdir()
        for part in parts:
            part.put()
        if new:
            os.rename(temporary, folder)
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        for part in parts:
            part.drop()
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
