"""The reference of the site: each public name is on one page, and an example below it uses it and what it has."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest
from pages import Page

import sysdyn as sd

DIRECTIVE = re.compile(r"^\.\. auto\w+:: sysdyn\.(\w+)\n((?:   :.*\n)*)", flags=re.MULTILINE)


class Entry(NamedTuple):
    """A name, the options of its directive, and the code between it and the next one."""

    name: str
    options: dict[str, str]
    code: str


def entries(text: str) -> list[Entry]:
    found = list(DIRECTIVE.finditer(text))
    ends = [x.start() for x in found[1:]] + [len(text)]
    return [
        Entry(x[1], dict(re.findall(r":([\w-]+): ?(.*)", x[2])), code(text[x.end() : end]))
        for x, end in zip(found, ends, strict=True)
    ]


def code(text: str) -> str:
    return "".join(block.code for block in Page(text).blocks)


REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ENTRIES = [entry for path in sorted(REFERENCE.glob("*.md")) for entry in entries(path.read_text(encoding="utf-8"))]


def members(entry: Entry) -> list[str]:
    """The members that the site shows of a class: those that are named, or all of its own with a docstring."""
    if entry.options.get("members"):
        return entry.options["members"].split(", ")
    kinds = (property, cached_property, classmethod, staticmethod)
    own = {
        name: x
        for name, x in vars(getattr(sd, entry.name)).items()
        if (inspect.isfunction(x) or isinstance(x, kinds)) and not name.startswith("_")
    }
    left_out = entry.options.get("exclude-members", "").split(", ")
    return [name for name, x in own.items() if x.__doc__ and name not in left_out]


def test_every_public_name_is_on_one_page():
    assert Counter(entry.name for entry in ENTRIES) == Counter(sd.__all__)


def test_examples_use_the_names_above_them():
    assert [x.name for x in ENTRIES if not re.search(rf"\bsd\.{x.name}\b", x.code)] == []


def test_examples_use_the_members_of_classes():
    shown = [entry for entry in ENTRIES if "members" in entry.options]
    used = "".join(entry.code for entry in ENTRIES)
    assert len(shown) > 30
    missing = [f"{x.name}.{m}" for x in shown for m in members(x) if not re.search(rf"(?:\.|def ){m}\b", used)]
    assert missing == []


def test_matrices_of_formulas_have_brackets_as_high_as_they_are(monkeypatch):
    """Drawn by the style sheet, as fonts whose brackets stretch are rare."""
    pytest.importorskip("latex2mathml"), pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(REFERENCE.parent / "_extensions"))
    from mathml import mathml

    found = mathml(r"Q \begin{bmatrix} a \\ b \end{bmatrix} [c]", "block")
    assert found.count('<mtable class="bracketed">') == 1 and found.count("<mo") == 2
    assert "mtable.bracketed" in (REFERENCE.parent / "_static" / "output.css").read_text(encoding="utf-8")
