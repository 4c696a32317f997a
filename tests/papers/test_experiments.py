"""`sysdyn reproduce`: the page of findings and the names of the experiments."""

from __future__ import annotations

import re
import subprocess

import pytest
from typer.testing import CliRunner

from sysdyn.app.cli import app
from sysdyn.papers.nori import experiments
from sysdyn.papers.nori.experiments import about, names, reproduce


@pytest.mark.slow
def test_the_page_keeps_what_other_runs_found(tmp_path):
    page = reproduce(["costs"], tmp_path, quick=True)
    first = page.read_text(encoding="utf-8")
    assert first.count("\n## ") == first.count("The paper: ") == first.count("Found: ") == 1
    assert "## costs: " in first and "Reduced sizes" in first and (tmp_path / "costs.png").is_file()
    page.write_text(first + "\n## property1: found before\n\nas it was\n", encoding="utf-8")
    second = reproduce(["costs"], tmp_path, quick=True).read_text(encoding="utf-8")
    assert second == page.read_text(encoding="utf-8")
    assert second.count("\n## ") == 2 and second.endswith("## property1: found before\n\nas it was\n")
    assert reproduce(["costs"], tmp_path, quick=True).read_text(encoding="utf-8") == second


def test_unknown_experiments_are_named():
    result = CliRunner().invoke(app, ["reproduce", "fig3"])
    assert result.exit_code == 2 and "experiment" in result.output and "fig2" in result.output
    assert {"costs", "fig1", "fig2", "numerics", "orderings", "property1", "property2", "property3"} <= set(names())


def test_results_of_a_run_do_not_make_its_commit_dirty(tmp_path, monkeypatch):
    """Of the files of a run the first was said to come from a commit, and the others from a changed tree."""

    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "experiments" / "results").mkdir(parents=True)
    result, source = tmp_path / "experiments" / "results" / "a.csv", tmp_path / "a.py"
    for path in (result, source):
        path.write_text("1")
    git("init")
    git("add", "-A")
    git("commit", "-m", "x")
    monkeypatch.setattr(experiments, "ROOT", tmp_path)
    result.write_text("2")
    assert re.search(r"\([0-9a-f]{7,}\)$", about()["sysdyn"])
    source.write_text("2")
    assert about()["sysdyn"].endswith("-dirty)")
    monkeypatch.setattr(experiments, "ROOT", tmp_path.parent)
    assert about()["sysdyn"].endswith("(no commit)")
