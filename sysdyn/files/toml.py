"""TOML files that remember their lines, so that errors name them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sysdyn.errors import FileError, SysdynError, checked_path

# Most levels of nested tables and lists (chosen).
DEEPEST = 100
# Tokens that may hold the end of a line without ending a statement; strings before the characters within them.
_TOKENS = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[][{}\n]''', re.DOTALL
)
# The place of a value in a file: keys and numbers from the root, as ("measurement", 2, "type").
Place = tuple[str | int, ...]


def stored(x: Any) -> Any:
    """The form of x in JSON and TOML: lists for arrays and tuples."""
    if isinstance(x, np.ndarray):
        return x.tolist()
    return [stored(part) for part in x] if isinstance(x, (tuple, list)) else x


class Document:
    """A TOML file: its data, and the lines of every key. Raises FileError (unreadable, not UTF-8, not TOML)."""

    def __init__(self, path: str | Path):
        self.path = checked_path("a TOML file", path)
        try:
            text = self.path.read_bytes().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError, OverflowError) as error:  # of numbers too long, and of depth, too
            raise FileError(f"{path} is not valid TOML: {error}") from error
        if _depth(self.data) > DEEPEST:
            raise FileError(f"{path} nests tables and lists deeper than {DEEPEST} levels")
        self._text = text.split("\n")
        self._lines: dict[Place, range] = {}
        self._locate()

    def _locate(self) -> None:
        """Lines of each key."""
        table: Place = ()
        number: dict[Place, int] = {}  # tables seen of each [[array]]
        for at, end in _statements("\n".join(self._text)):
            parsed: Any = tomllib.loads("\n".join(self._text[at:end]))
            lines, header = range(at + 1, end + 1), self._text[at].lstrip().startswith("[")
            place: Place = () if header else table
            while isinstance(parsed, dict) and len(parsed) == 1:
                ((key, parsed),) = parsed.items()
                place = (*place, key)
                if place in number and header and parsed != [{}]:
                    place = (*place, number[place])  # a table within the last one of an array
                self._lines.setdefault(place, lines)
            if header and parsed == [{}]:
                number[place] = number.get(place, -1) + 1
                place = (*place, number[place])
                self._lines[place] = lines
            table = place if header else table

    def where(self, place: Place = ()) -> str:
        """FILE line N of a key, or of the nearest table around it."""
        while place and place not in self._lines:
            place = place[:-1]
        return f"{self.path} line {self._lines[place].start}" if place else str(self.path)

    def fail(self, place: Place, message: str) -> NoReturn:
        raise FileError(f"{self.where(place)}: {message}")

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Errors of sysdyn that are raised within get the file and line of the place before their message.

        Of an UnknownName, the line that has the name in quotes, first within the place. Errors with a line keep it.
        """
        try:
            yield
        except SysdynError as error:
            if str(error).startswith(f"{self.path} line "):
                raise
            word = getattr(error, "name", None)
            within = {n for key, lines in self._lines.items() if key[: len(place)] == place for n in lines}
            for n in (*sorted(within), *range(1, len(self._text) + 1)):
                if f'"{word}"' in self._text[n - 1] or f"'{word}'" in self._text[n - 1]:
                    found = f"{self.path} line {n}"
                    break
            else:
                found = self.where(place)
            error.args = (f"{found}: {error}",)
            raise


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """(first line, line behind the last) of each statement of a valid file, lines counted from 0."""
    depth, line, start = 0, 0, 0
    for token in _TOKENS.finditer(text + "\n"):
        found = token.group()
        line += found.count("\n")
        depth += (found in "[{") - (found in "]}")
        if found == "\n" and depth == 0:
            yield start, line
            start = line


def _depth(data: dict[str, Any]) -> int:
    """Number of levels to which tables and lists are nested; the file itself is one level."""
    level: list[Any] = [data]
    depth = 0
    while level:
        inner = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]
        level, depth = [y for y in inner if isinstance(y, (dict, list))], depth + 1
    return depth
