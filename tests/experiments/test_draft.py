"""The draft of the paper: its table is what was counted, its citations and figures exist."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRAFT = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")


def counted() -> dict[tuple[str, str], dict[str, str]]:
    lines = (ROOT / "experiments" / "results" / "counts.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {(row["robot"], row["problem"]): row for row in rows if row["scope"] == "end to end"}


@pytest.mark.parametrize(
    "row", re.findall(r"^\| (\w+) \| (inverse|forward) \| ([\d,]+) \| ([\d,]+) \|$", DRAFT, re.MULTILINE)
)
def test_counts_are_those_of_the_results(row):
    robot, problem, best, total = row
    found = counted()[robot, problem]
    assert (found["best_known"], found["total"]) == (best.replace(",", ""), total.replace(",", ""))


def test_the_table_is_read():
    assert len(re.findall(r"^\| \w+ \| (?:inverse|forward) \|", DRAFT, re.MULTILINE)) == 6


def test_citations_and_figures_exist():
    keys = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE))
    cited = set(re.findall(r"@(\w+)", DRAFT.split("---", 2)[2]))
    assert cited == keys
    for figure in re.findall(r"!\[[^]]*\]\(([^)]+)\)", DRAFT):
        assert (ROOT / "paper" / figure).exists()
