"""`sysdyn reproduce`: the page of findings and the names of the experiments."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from nori import harness
from nori.harness import about, names, reproduce
from typer.testing import CliRunner

import sysdyn as sd
from sysdyn.app.cli import app


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
    result.write_text("2")
    assert re.search(r"\([0-9a-f]{7,}\)$", about(tmp_path)["sysdyn"])
    source.write_text("2")
    assert about(tmp_path)["sysdyn"].endswith("-dirty)")
    assert about(tmp_path.parent)["sysdyn"].endswith("(no commit)")
    (tmp_path.parent / harness.COMMIT).write_text("abc1234\n")  # as an archive has it
    assert about(tmp_path.parent)["sysdyn"] == f"{sd.__version__} (abc1234)"


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the system does not say what its processor is")
def test_results_name_the_processor():
    info = Path("/proc/cpuinfo").read_text()
    assert ("cpu family" in info) == ("(family " in about()["cpu"]) and about()["cpu"].endswith(" cores")


def test_an_archive_holds_code_results_and_environment(tmp_path):
    """What is committed, its commit, and what is installed here."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("this is no clone")
    subprocess.run(["sh", root / "run", "artifact", tmp_path], check=True, capture_output=True)
    (path,) = tmp_path.iterdir()
    top = f"sysdyn-{sd.__version__}"
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
        commit, environment = (archive.extractfile(f"{top}/{x}").read().decode() for x in ("COMMIT", "ENVIRONMENT"))
    assert path.name == f"{top}.tar.gz" and "Linux" in environment
    assert {f"{top}/{x}" for x in ("run", "constraints.txt", "CITATION.cff", "experiments/results/fig1.csv")} <= names
    told = subprocess.run(["git", "-C", root, "describe", "--always"], capture_output=True, text=True, check=True)
    assert commit == told.stdout


def test_an_archive_is_made_of_a_clone_alone(tmp_path):
    """Not of what is unpacked within another repository, which would be left out."""
    root = Path(__file__).parents[2]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "unpacked").mkdir()
    shutil.copy(root / "run", tmp_path / "unpacked")
    command = ["sh", tmp_path / "unpacked" / "run", "artifact", tmp_path / "out"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and "an archive is made of a clone: this is none" in result.stderr
    assert not (tmp_path / "out").exists()


def test_outside_a_clone_the_command_says_where_the_experiments_are(tmp_path, monkeypatch):
    monkeypatch.setattr("sysdyn.files.shipped.ROOT", tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "fig1"])
    assert isinstance(result.exception, sd.FileError) or result.exit_code == 2
    assert "clone" in f"{result.output}{result.exception}"
