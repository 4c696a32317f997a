"""TOML files that remember their lines, so that errors name them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sysdyn.errors import FileError, SysdynError

# Where a value is in a file: keys and numbers from the root, as ("measurement", 2, "type").
Place = tuple[str | int, ...]


class Document:
    """A TOML file: its data, and the lines of every key. Raises FileError (unreadable, not UTF-8, not TOML)."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FileError(f"{path} is not valid TOML: {error}") from error
        self._text = text.replace("\r\n", "\n").split("\n")
        self._lines: dict[Place, range] = {}
        self._locate()

    def _locate(self) -> None:
        """Lines of each key. A statement is the shortest run of lines that is TOML by itself, as the whole file is."""
        table: Place = ()
        number: dict[Place, int] = {}  # tables seen of each [[array]]
        at = 0
        while at < len(self._text):
            end = at + 1
            while (parsed := _parsed(self._text[at:end])) is None:
                end += 1
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
            at = end

    def where(self, place: Place = ()) -> str:
        """FILE line N of a key, or of what is nearest to it."""
        while place and place not in self._lines:
            place = place[:-1]
        return f"{self.path} line {self._lines[place].start}" if place else str(self.path)

    def fail(self, place: Place, message: str) -> NoReturn:
        raise FileError(f"{self.where(place)}: {message}")

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Errors of sysdyn that are raised within get the file and line of the place before their message.

        Of an UnknownName, the line that has the name in quotes, first within the place. Those that have a line keep it.
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


def _parsed(lines: list[str]) -> dict | None:
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None
