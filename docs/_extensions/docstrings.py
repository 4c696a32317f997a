"""Docstrings as they are read in a terminal, for Sphinx: words, aligned tables of arguments, indented formulas."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

# A name, or several, with shape, unit or a value, and what they mean, after a colon or in a second column.
ENTRY = re.compile(
    r"(?P<head>[\w*]+(?:, [\w*]+)*(?: \([^)]*\))?(?: \[[^\]]*\])?(?: \"[^:]*)?)(?:: |\s{2,})(?P<meaning>\S.*)"
)


def marked(text: str) -> str:
    """Text as reStructuredText, with nothing in it marked up but `code`."""
    parts = re.split(r"`([^`\n]+)`", text)
    words = (re.sub(r"([\\*|_`])", r"\\\1", part) for part in parts[::2])
    codes = (f"``{part}``" for part in parts[1::2])
    return "".join(word + next(codes, "") for word in words)


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """The runs of lines between blank ones."""
    yield from (block.splitlines() for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")) if block)


def items(block: list[str]) -> list[str]:
    """Each line with the indented ones below it, as one."""
    found: list[str] = []
    for line in block:
        if line.startswith(" ") and found:
            found[-1] += " " + line.strip()
        else:
            found.append(line.strip())
    return found


def item(text: str) -> str:
    entry = ENTRY.fullmatch(text)
    if entry is None:
        return f"* {marked(text)}"
    return f"* **{marked(entry['head'])}**: {marked(' '.join(entry['meaning'].split()))}"


def written(block: list[str]) -> list[str]:
    """A block as reStructuredText: formulas as they stand, arguments as a list, words as a paragraph."""
    if all(line.startswith("        ") for line in block) or all(
        line.startswith("    ") and not ENTRY.fullmatch(line.strip()) for line in block
    ):
        return ["::", "", *(f"    {line}" for line in textwrap.dedent("\n".join(block)).splitlines()), ""]
    found = items(block)
    if len(found) < len(block) or any(ENTRY.fullmatch(line) and re.search(r"\S\s{2,}\S", line) for line in block):
        return [*map(item, found), ""]
    return [marked(" ".join(found)), ""]


def process(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = [line for block in blocks(lines) for line in written(block)]


def setup(app) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
