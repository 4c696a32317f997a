"""Docstrings as they are read in a terminal, for Sphinx: words, aligned tables of arguments, indented formulas."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import sysdyn

# A name, or several, each with shape, unit or a value, and what they mean, after a colon or in a second column.
NAME = r"[\w*]+(?::[A-Z]+)?(?: \([^)]*\)| \[[^\]]*\])*"
ENTRY = re.compile(rf"(?P<head>{NAME}(?:, {NAME})*(?: \"[^:]*)?)(?:: |\s{{2,}})(?P<meaning>\S.*)")


# NumPy sections of entries `name : type` with an indented meaning; others are text.
ENTRY_SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns", "Other Parameters")


def code(text: str) -> str:
    """Code as reStructuredText; a public name, or one of its members, as a link to where it is described."""
    name = re.fullmatch(r"(?:sysdyn\.|sd\.)?((\w+)(?:\.\w+)?)", text)
    return f":py:obj:`{text} <sysdyn.{name[1]}>`" if name and name[2] in sysdyn.__all__ else f"``{text}``"


def marked(text: str) -> str:
    """Text as reStructuredText, with nothing in it marked up but `code`."""
    parts = re.split(r"``?([^`\n]+)``?", text)
    words = (re.sub(r"([\\*|_`])", r"\\\1", part) for part in parts[::2])
    codes = (f"\\ {code(part)}\\ " for part in parts[1::2])  # an escaped blank, so that letters may follow
    return "".join(word + next(codes, "") for word in words)


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """The runs of lines between blank ones."""
    yield from (block.splitlines() for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")) if block)


def paragraph(text: str) -> list[str]:
    return ["", f"\\ {marked(text)}", ""]  # an escaped blank, so that "A. Name" begins no list


def items(block: list[str]) -> list[tuple[bool, str]]:
    """(whether it is an item of a list, text): lines with the indented ones below them, and the words in between."""
    found: list[tuple[bool, str]] = []
    for line, after in zip(block, [*block[1:], ""], strict=True):
        listed = bool(ENTRY.fullmatch(line)) or after.startswith(" ")
        if found and (line.startswith(" ") or not listed and not found[-1][0]):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            found.append((listed, line))
    return found


def item(text: str) -> str:
    entry = ENTRY.fullmatch(text)
    if entry is None:
        return f"* {marked(text)}"
    return f"* **{marked(entry['head'])}**: {marked(' '.join(entry['meaning'].split()))}"


def written(block: list[str]) -> list[str]:
    """A block as reStructuredText: formulas and tables as they stand, arguments as a list, words as a paragraph."""
    table = any(len(re.split(r"\s{2,}", line.strip())) > 2 for line in block)
    if all(
        line.startswith("        ") or line.startswith("    ") and (table or not ENTRY.fullmatch(line.strip()))
        for line in block
    ):
        return ["::", "", *(f"    {line}" for line in textwrap.dedent("\n".join(block)).splitlines()), ""]
    block = textwrap.dedent("\n".join(block)).splitlines()
    entries = [line for line in block if ENTRY.fullmatch(line)]
    columns = any(re.search(r"\S\s{2,}\S", line) for line in entries)
    if not (columns or any(line.startswith(" ") for line in block) or 1 < len(entries) == len(block)):
        return paragraph(" ".join(block))
    found: list[str] = []
    for listed, text in items(block):
        found += [item(text)] if listed else paragraph(text)
    return [*found, ""]


def sections(lines: list[str]) -> list[tuple[str, list[str]]]:
    """(title, lines) of the text before the first section, whose title is empty, and of each NumPy section."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for k, line in enumerate(lines):
        if k + 1 < len(lines) and line.strip() and re.fullmatch(r"-{3,}", lines[k + 1]):
            found.append((line.strip(), []))
        elif not (k and found[-1][0] == lines[k - 1].strip() and re.fullmatch(r"-{3,}", line)):
            found[-1][1].append(line)
    return found


def section(title: str, lines: list[str]) -> list[str]:
    """A NumPy section as reStructuredText: its title, and its text or a list of its entries `name : type`."""
    heading = ["", f".. rubric:: {title}", ""]
    if title not in ENTRY_SECTIONS:
        return [*heading, *(line for block in blocks(lines) for line in written(block))]
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(" ") and entries:
            entries[-1][1].append(line.strip())
        elif line.strip():
            entries.append((line.strip(), []))
    for head, meaning in entries:
        name, _, kind = head.partition(" : ")
        text = f"**{marked(name)}**" + (f" ({marked(kind)})" if kind else "")
        heading.append(f"* {text}" + (f": {marked(' '.join(meaning))}" if meaning else ""))
    return [*heading, ""]


def process(app, what, name, obj, options, lines: list[str]) -> None:
    """The docstring; of data there is none, as Python has that of its type."""
    if what == "data":
        lines[:] = []
        return
    (_, text), *rest = sections(lines)
    lines[:] = [line for block in blocks(text) for line in written(block)]
    for title, content in rest:
        lines += section(title, content)


def signature(app, what, name, obj, options, args, returned) -> tuple[str, str] | None:
    """No arguments of classes that no example of their page makes: functions return them."""
    page = Path(app.env.doc2path(app.env.docname)).read_text(encoding="utf-8")
    made = args is None or what not in ("class", "exception") or f"sd.{obj.__name__}(" in page
    return None if made else ("", "")


def is_skipped(app, what, name, obj, skipped, options) -> bool | None:
    """Fields of tuples are explained where the class is."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", is_skipped)
    return {"parallel_read_safe": True}
