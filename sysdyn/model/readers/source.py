"""Sources of robot models, files or texts, and their content."""

from __future__ import annotations

import os
from pathlib import Path

from sysdyn.errors import InvalidInput, ModelError
from sysdyn.model.frames import Origin

# Largest robot file [bytes], chosen: the elements of a larger file would not fit into memory.
MAX_BYTES = 64 * 2**20
# Longest file name that messages quote in full: chosen.
MAX_QUOTED = 200


class GeneratedText(str):
    """Text of a robot file that was generated from another file, such as a xacro file.

    Attributes
    ----------
    name : str
        Name of the text in messages.
    folder : Path
        Folder of the other file, the base of relative paths.
    """

    name: str
    folder: Path


def is_text(source: str | os.PathLike[str]) -> bool:
    """True if `source` is the text of a robot file, False if it is a path."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def origin_of(source: str | os.PathLike[str]) -> Origin:
    """`Origin` of a path or a text."""
    if is_text(source):
        return Origin(str(source), source.folder if isinstance(source, GeneratedText) else Path.cwd())
    path = Path(source).absolute()
    return Origin(str(path), path.parent)


def read_text(source: str | os.PathLike[str]) -> tuple[bytes, str]:
    """Read a robot file or text. Returns (bytes, name in messages). Raises ModelError, InvalidInput."""
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidInput(f"a robot file is a path or the text itself, not {type(source).__name__}")
    if isinstance(source, str) and is_text(source):
        text = source.lstrip("\ufeff \t\r\n").encode(errors="replace")
        name = source.name if isinstance(source, GeneratedText) else "<string>"
    else:
        name = str(source)
        try:
            with open(source, "rb") as file:
                text = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            quoted = name if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]}…"
            raise ModelError(f"cannot read {quoted!r}: {reason}") from None
    if len(text) > MAX_BYTES:
        raise ModelError(f"{name!r} is longer than {MAX_BYTES >> 20} MiB, the limit for robot files")
    return text, name
