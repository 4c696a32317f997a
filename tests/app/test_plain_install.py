"""What needs no extra: examples of the command line, the paper's figures and the demo, on a plain installation."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from commands import error, run
from nori import harness
from nori.curves import LEFT_OUT

from sysdyn.app.cli import app
from sysdyn.sparse import umfpack

ROOT = Path(__file__).parents[2]
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]
# Commands whose examples have tests of their own.
ELSEWHERE = ("reproduce", "demo")
# The one command that needs an extra, which its help names.
NEEDS_AN_EXTRA = "show"


@pytest.fixture
def plain(tmp_path, monkeypatch, installed):
    """An empty folder, no packages with robots, and no UMFPACK."""
    monkeypatch.setitem(sys.modules, "scikits.umfpack", None)
    monkeypatch.setenv("SYSDYN_CACHE", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples(command: str) -> list[list[str]]:
    """Arguments of the examples that the help of a command shows."""
    (told,) = (x.callback.__doc__ for x in app.registered_commands if command in (x.name, x.callback.__name__))
    return [shlex.split(line) for line in re.findall(r"Example: sysdyn (.*)", told)]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("command", [x for x in ("problems", *COMMANDS) if x not in ELSEWHERE])
def test_examples_of_help_run(command, plain, fast_commands):
    if command == NEEDS_AN_EXTRA:
        pytest.importorskip("meshcat")
    if command != "problems":
        run("problems")
    shown = examples(command)
    assert shown
    for arguments in shown:
        run(*arguments)


def test_example_problems_that_are_not_there_are_written_by_a_command(plain):
    assert "'sysdyn problems'" in error("diagnose", "problems/load_cells.toml")
    assert "sysdyn problems" not in error("diagnose", "mine.toml")


def test_the_list_of_commands_has_whole_sentences():
    listed = run("--help").stdout.split("Commands:")[1]
    assert "problems" in listed and "..." not in listed


def test_orders_that_do_not_apply_have_a_reason(plain):
    lines = [line for line in run("flops", "chain:2").stdout.splitlines() if "not applicable" in line]
    assert any(line.startswith("symmetric") for line in lines)
    assert [line for line in lines if line.rstrip().endswith(":")] == []


@pytest.mark.slow
def test_experiments_without_umfpack_do_not_name_it(plain):
    assert "UMFPACK" not in run("reproduce", "property3", "--quick", "--out", "found").stdout


def test_robots_of_this_package_are_there_by_name(plain):
    assert {"biped", "delta", "four_bar", "leg", "quadruped"} <= set(run("robots").stdout.split())
    assert "13 on a floating base" in run("info", "sysdyn:biped", "--base", "floating").stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig1", "fig2", "property1"])
def test_figures_leave_umfpack_out_with_one_line(name, plain):
    text = run("reproduce", name, "--quick", "--out", "found").stdout
    assert text.count(LEFT_OUT) == 1 and (plain / "found" / f"{name}.png").is_file()
    page = (plain / "found" / "findings.md").read_text(encoding="utf-8")
    assert LEFT_OUT in page and "nan" not in page


@pytest.mark.slow
def test_figures_with_other_sizes(plain):
    text = run("reproduce", "fig2", "--bodies", "5", "7", "--quick", "--out", "found").stdout
    assert "fig2" in text
    rows = harness.read_csv(plain / "found" / "fig2.csv")
    assert {row["bodies"] for row in rows} == {5, 7}
    assert "Sizes 5, 7." in (plain / "found" / "findings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig2", "--bodies", "x"), "'x'"),
        (("fig2", "--bodies", "3"), "3 bodies"),
        (("property2", "--bodies", "5"), "fig1, fig2"),
    ],
)
def test_wrong_sizes(arguments, message, plain):
    assert message in error("reproduce", *arguments, "--out", "found") and not (plain / "found").exists()


@pytest.mark.slow
def test_the_demo_claims_no_order_that_did_not_run(plain, fast_commands):
    text = run("demo").stdout
    assert "aba" in text and "umfpack" not in text


def test_a_missing_order_takes_one_line_of_a_report(plain):
    lines = run("report", "chain:3", "--outputs", "all").stdout.splitlines()
    assert sum("UMFPACK is not available" in line for line in lines) == 1


def test_the_remedy_for_umfpack_is_that_of_the_readme():
    text = re.sub(r"\s+#.*", "", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert all(command in text.splitlines() and command in umfpack.remedy("") for command in umfpack.COMMANDS)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert umfpack.COMMANDS[-1].endswith(extras["umfpack"][0])
