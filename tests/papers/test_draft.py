"""The draft of the paper: its table is what was counted, its citations and figures exist, its length is JOSS's."""

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


def results(name: str) -> list[dict[str, str]]:
    lines = (ROOT / "experiments" / "results" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_figures_of_logs_and_contacts_are_those_of_the_results():
    (squat,) = (row for row in results("squat") if row["joint"] == "all")
    logs = {(row["what"], row["level"]): row for row in results("trajectories")}
    late = logs["late contacts, outliers, biases: foot forces", "kinematic"]
    arm, plain = (logs["arm, encoders alone: torques", x]["rms"] for x in ("smoother", "differences over 11 rows"))
    text = " ".join(DRAFT.split())
    for said in (
        f"{100 * float(squat['within_95']):.1f} % of the errors",
        f"error of {float(squat['rms_error_Nm']):.3f} N m",
        f"found to {arm} N m ({plain} by differences)",
        f"found to {late['rms']} N, and {late['within 2 sigma']} % of their errors",
    ):
        assert said in text, said


def test_costs_of_contacts_are_those_of_the_results():
    icub = {row["contacts"]: row for row in results("contacts") if row["robot"] == "iCub"}
    one, two = (
        [f"{int(icub[x][name]):,}" for name in ("operations", "operations_eliminated", "operations_free")]
        for x in ("fixed", "fixed + fixed")
    )
    text = " ".join(DRAFT.split())
    assert f"take {one[0]} operations on one foot and {two[0]} on two" in text
    assert f"takes {one[1]} and {two[1]} and the robot in free fall {one[2]}." in text


def test_costs_of_gradients_are_those_of_the_results():
    costs = {(row["problem"], row["what"]): row["of_solution"] for row in results("products")}
    rows = re.findall(r"^\| (iCub, \w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", DRAFT, re.MULTILINE)
    assert len(rows) == 3
    for problem, *shown in rows:
        assert shown == [costs[problem, x] for x in ("jvp", "vjp", "hvp")]


def test_the_table_is_read():
    assert len(re.findall(r"^\| \w+ \| (?:inverse|forward) \|", DRAFT, re.MULTILINE)) == 6


def test_citations_and_figures_exist():
    keys = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE))
    cited = set(re.findall(r"@(\w+)", DRAFT.split("---", 2)[2]))
    assert cited == keys
    for figure in re.findall(r"!\[[^]]*\]\(([^)]+)\)", DRAFT):
        assert (ROOT / "paper" / figure).exists()


def test_it_is_as_long_as_the_journal_wants():
    assert 750 <= len(re.findall(r"\w+", DRAFT.split("---", 2)[2])) <= 1750
    for section in (
        "Summary",
        "Statement of need",
        "State of the field",
        "Software design",
        "Counts and claims",
        "References",
    ):
        assert f"\n# {section}\n" in DRAFT
