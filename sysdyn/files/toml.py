"""TOML files with line numbers, for error messages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sysdyn.errors import FileError, SysdynError, checked_path

# Tokens of the statement splitter: strings and comments first, then brackets and line ends.
_TOKENS = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[][{}\n]''', re.DOTALL
)
# Path of a value: keys and array indices from the root, such as ("measurement", 2, "type").
KeyPath = tuple[str | int, ...]


class Document:
    """A TOML file: its data and the line numbers of its keys.

    Raises FileError if the file cannot be read, is not UTF-8 or is not valid TOML.
    """

    def __init__(self, path: str | Path):
        self.path = checked_path("a TOML file", path)
        try:
            text = self.path.read_text(encoding="utf-8")
            self.data: dict[str, Any] = tomllib.loads(text)
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
        except (ValueError, RecursionError, OverflowError) as error:  # deep nesting, huge numbers
            raise FileError(f"{path} is not valid TOML: {error}") from error
        self._text = text.split("\n")
        self._lines: dict[KeyPath, range] = {}
        self._locate()

    def _locate(self) -> None:
        """Fill `_lines`: the line numbers of each key."""
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
                    place = (*place, number[place])  # a subtable of the current array element
                self._lines.setdefault(place, lines)
            if header and parsed == [{}]:
                number[place] = number.get(place, -1) + 1
                place = (*place, number[place])
                self._lines[place] = lines
            table = place if header else table

    def location(self, place: KeyPath = ()) -> str:
        """Location "FILE line N" of a key, or of the enclosing table if the key is missing."""
        while place and place not in self._lines:
            place = place[:-1]
        return f"{self.path} line {self._lines[place].start}" if place else str(self.path)

    def fail(self, place: KeyPath, message: str) -> NoReturn:
        """Raise FileError with the location of `place`."""
        raise FileError(f"{self.location(place)}: {message}")

    @contextmanager
    def errors_at(self, place: KeyPath) -> Iterator[None]:
        """Context that prefixes error messages with the file and the line of `place`.

        For an UnknownName, the line with the quoted name is used: first within `place`, then in the whole file.
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
    """(start, stop) line range of each statement of a valid file, counted from 0."""
    depth, line, start = 0, 0, 0
    for token in _TOKENS.finditer(text + "\n"):
        text = token.group()
        line += text.count("\n")
        depth += (text in "[{") - (text in "]}")
        if text == "\n" and depth == 0:
            yield start, line
            start = line
