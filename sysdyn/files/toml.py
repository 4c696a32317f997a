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

# Tokens that may contain the end of a line without ending a statement; strings before the characters within them.
_TOKENS = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[][{}\n]''', re.DOTALL
)
# The place of a value in a file: keys and numbers from the root, as ("measurement", 2, "type").
KeyPath = tuple[str | int, ...]


def to_plain(x: Any) -> Any:
    """The form of x in JSON and TOML: lists for arrays and tuples."""
    if isinstance(x, np.ndarray):
        return x.tolist()
    return [to_plain(part) for part in x] if isinstance(x, (tuple, list)) else x


class Document:
    """A TOML file: its data, and the lines of every key. Raises FileError (unreadable, not UTF-8, not TOML)."""

    def __init__(self, path: str | Path):
        self.path = checked_path("a TOML file", path)
        try:
            text = self.path.read_text(encoding="utf-8")
            self.data: dict[str, Any] = tomllib.loads(text)
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
        except (ValueError, RecursionError, OverflowError) as error:  # the last two: nested too deep, numbers too long
            raise FileError(f"{path} is not valid TOML: {error}") from error
        self._text = text.split("\n")
        self._lines: dict[KeyPath, range] = {}
        self._locate()

    def _locate(self) -> None:
        """Find the lines of each key."""
        table: KeyPath = ()
        number: dict[KeyPath, int] = {}  # index of the current table of each [[array]]
        for at, end in _statements("\n".join(self._text)):
            parsed: Any = tomllib.loads("\n".join(self._text[at:end]))
            lines, header = range(at + 1, end + 1), self._text[at].lstrip().startswith("[")
            place: KeyPath = () if header else table
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

    def location(self, place: KeyPath = ()) -> str:
        """FILE line N of a key, or of the nearest table around it."""
        while place and place not in self._lines:
            place = place[:-1]
        return f"{self.path} line {self._lines[place].start}" if place else str(self.path)

    def fail(self, place: KeyPath, message: str) -> NoReturn:
        raise FileError(f"{self.location(place)}: {message}")

    @contextmanager
    def errors_at(self, place: KeyPath) -> Iterator[None]:
        """Prefix the messages of errors raised within by the file and line of the place.

        For an UnknownName it is the line that has the name in quotes, first within the place.
        """
        try:
            yield
        except SysdynError as error:
            if not str(error).startswith(f"{self.path} line "):
                word, location = getattr(error, "name", None), self.location(place)
                inner = sorted({n for key, lines in self._lines.items() if key[: len(place)] == place for n in lines})
                for n in (*inner, *range(1, len(self._text) + 1)):
                    if f'"{word}"' in self._text[n - 1] or f"'{word}'" in self._text[n - 1]:
                        location = f"{self.path} line {n}"
                        break
                error.args = (f"{location}: {error}",)
            raise


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """(first line, line after the last) of each statement of a valid file, lines counted from 0."""
    depth, line, start = 0, 0, 0
    for token in _TOKENS.finditer(text + "\n"):
        text = token.group()
        line += text.count("\n")
        depth += (text in "[{") - (text in "]}")
        if text == "\n" and depth == 0:
            yield start, line
            start = line
