"""The scripts of the gallery, which `./run docs` runs: pages with a title and a picture, out of public names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sysdyn as sd

SCRIPTS = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("*.py"))


def test_there_are_eighteen():
    assert [int(path.name[:2]) for path in SCRIPTS] == list(range(1, 19))


# Parts of scripts that need an extra, or files of the repository.
NEEDS = {
    "icub": r"sd\.load\(\"icub|logs\.icub|import squat",
    "mujoco": r"<mujoco|import squat|import logs",
    "casadi": r"import casadi",
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_run_on_a_plain_installation_or_say_what_they_need(path):
    text = path.read_text(encoding="utf-8")
    first = ast.get_docstring(ast.parse(text)) or ""
    said = re.findall(r"``pip install 'sysdyn-robotics\[([\w,]+)\]'``", first)
    needed = [extra for extra, part in NEEDS.items() if re.search(part, text)]
    assert said == ([",".join(needed)] if needed else [])
    assert ("clone of the" in first) == ('"../.."' in text or "../../" in text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_pages(path):
    text = path.read_text(encoding="utf-8")
    title, line, *rest = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert title and line == "=" * len(title) and len(rest) > 1
    assert text.endswith("plt.show()\n") and text.count("plt.subplots(") == 1
    assert set(re.findall(r"\bsd\.(\w+)", text)) <= {*sd.__all__, "reference"}
