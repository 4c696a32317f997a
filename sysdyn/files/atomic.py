"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from sysdyn.errors import FileError


def write_file(path: str | os.PathLike[str], payload: bytes) -> Path:
    """Write a file in one step. Raises FileError."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.write_bytes(payload)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    return path
