"""docs/paper.md: every equation of the sources has a line, and every function and test that it names exists."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8").split("\n## ")[1:]
# What each section has to have a line for.
NEEDED = {
    "F. Nori": [*(f"({k})" for k in range(1, 36) if k not in (19, 24)), "(19a)", "(19b)", "(24a)", "(24b)", "(24ab)",
                "Property 1", "Property 2", "Property 3", "Problems 1, 2", "Definition 1", "Remarks 2, 3", "Remark 4",
                "Remark 5", "Figure 1", "Figure 2", "lu_cost", "fb_cost", "fw_cost", "mult_cost"],
    "R. Featherstone": [*(f"(6.{k})" for k in range(1, 26)), *(f"Table 6.{k}" for k in range(1, 7))],
    "A. Jain": [*(f"({k})" for k in (1, 2, 3, 53, 54, 58, 61, 62, 63)), "Lemmas 1, 2",
                *(f"Lemma {k}" for k in range(3, 13)), "Corollary 6.1", "§6.2", "§7", "§8"],
    "K. Lynch": ["§6.2.1", "§6.2.2", "initial guess"],
    "MuJoCo": ["mj_crb", "mj_factorM", "mj_factorI", "mj_solveM", "M", "qLD", "qLDiagInv", "dof_parentid",
               "M_colind"],
}  # fmt: skip


def lines(section: str) -> list[list[str]]:
    """Cells of each line of the section's table."""
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def found(name: str) -> bool:
    """Whether a dotted name of the package leads to something."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


@cache
def functions_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.parse("")
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("source", NEEDED)
def test_every_equation_has_a_line(source):
    (section,) = (section for section in SECTIONS if section.startswith(source))
    words = {item for row in lines(section) for item in re.split(r", (?=\(|Table|Lemma|Algorithm|[A-Za-z§])", row[0])}
    for item in NEEDED[source]:
        assert item in words, f"docs/paper.md has no line for {item} of {source}"


def test_every_function_and_test_exists():
    assert found("nori.counters.lu_cost") and not found("nori.counters.lu_costs")
    rows = [row for section in SECTIONS for row in lines(section)]
    assert len(rows) > 60
    for row in rows:
        assert len(row) == 4, row
        functions, tests = (re.findall(r"`([^`]+)`", cell) for cell in row[2:])
        assert functions and tests, row
        assert [name for name in functions if not found(name)] == []
        named = [name.split("::") for name in tests]
        assert [name for file, name in named if name not in functions_in(file)] == []
