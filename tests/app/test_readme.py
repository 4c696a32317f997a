"""The documents: their code blocks run as they stand, print what is shown, and their tables say what is so."""

from __future__ import annotations

import functools
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from pages import Page, same
from test_architecture import PACKAGE
from typer.testing import CliRunner

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.app.robots import load_robot
from sysdyn.errors import BackendUnavailable

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "problems" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [path for path in DOCUMENTS if path.name != "extending.md"]  # which adds to tables: tests/test_extending.py
# Pages that are run always. The robots of the others take seconds to compile.
SHORT = ("README.md", "counts.md")


# These documents have no code that runs as it stands, but name modules and functions, too.
LISTS = [ROOT / "CHANGELOG.md", ROOT / "experiments" / "README.md"]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name not in SHORT)) for path in RUN],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_python_blocks_run(path, tmp_path, monkeypatch, pytestconfig):
    """Blocks whose output is shown compile as users do; the others at the level "fast", in a quarter of the time."""
    monkeypatch.chdir(tmp_path)
    page, compile = Page(path.read_text(encoding="utf-8")), sd.compile
    names: dict = {"__name__": "__main__"}
    with np.printoptions():  # what a page sets
        for block in page.blocks:
            quick = compile if block.shown is not None else functools.partial(compile, level="fast")
            monkeypatch.setattr(sd, "compile", quick)
            block.run(names, f"{path.name}, line {block.line}")
    if pytestconfig.getoption("write_pages"):
        path.write_text(page.written(), encoding="utf-8")
        return
    for block in page.blocks:
        assert block.shown is None or same(block.shown, block.printed), (
            f"{path.name}, line {block.line}: shown is\n{block.shown}\nand printed\n{block.printed}"
        )


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("q̈ [0.5 -1.]\n", "q̈ [ 0.5000001 -1.0 ]\n", True),
        ("7,469 operations", "7,633 operations", False),
        ("error 1.2e-12", "error 3.5e-12", False),
        ("error …", "error 3.5e-12", True),
        ("first\n…\nlast", "first\n2\n3\nlast", True),
        ("first\n…\nlast", "first\n2\n3\nlast one", False),
        ("a 1", "a 1\nb 2", False),
        ("1.0 + x", "1.0 + y", False),
    ],
)
def test_what_is_shown_is_compared(shown, printed, alike):
    assert same(shown, printed) == alike


def test_what_is_printed_is_written():
    page = Page("a\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n```python\nx = 1\n```\n```text\nno output\n")
    for block in page.blocks:
        block.run({}, "page")
    assert [block.shown for block in page.blocks] == ["3\n", None] and page.blocks[0].line == 3
    assert "```\n\n```text\n2\n```\n" in page.written() and page.written().endswith("```text\nno output\n")


def cells() -> list[list[str]]:
    """Lines of each cell of code of the notebook."""
    notebook = json.loads((ROOT / "docs" / "first_minute.ipynb").read_text(encoding="utf-8"))
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pyplot, "show", lambda: pyplot.savefig("force.png"))
    names: dict = {"__name__": "__main__"}
    for number, lines in enumerate(cells()):
        exec(compile("".join(lines), f"cell {number}", "exec"), names)
    pyplot.close("all")
    said = re.search(r"within 2 σ: (\d+)%", capsys.readouterr().out)
    assert said and 92 <= int(said[1]) <= 98 and (tmp_path / "force.png").stat().st_size > 10_000


@pytest.mark.slow
def test_command_lines_run(tmp_path, monkeypatch, fast_commands):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "command-line.md"
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [line.split()[1:] for line in lines if line.startswith("sysdyn ")]
    assert {command[0] for command in commands} >= {"info", "solve", "diagnose", "flops", "plot", "report"}
    for command in commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, f"{command}: {result.output}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def exists(name: str) -> bool:
    """Whether a dotted name, of a module or of anything in it, is one of the package's."""
    found, parts = sd, name.split(".")[1:]
    for k, part in enumerate(parts, start=1):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(["sysdyn", *parts[:k]]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("path", [*DOCUMENTS, *LISTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_the_package_exist(path):
    assert exists("sysdyn.data.states.read_states") and not exists("sysdyn.states")
    names = re.findall(r"(?<![\w./])(?:sysdyn|sd)(?:\.[A-Za-z_]\w*)+", path.read_text(encoding="utf-8"))
    assert [name for name in names if not exists(name)] == []


def test_the_files_on_the_page_of_the_architecture_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [name for name in re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text) if not name.startswith("tests/")]
    assert len(files) > 20 and [name for name in files if not (PACKAGE / name).exists()] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sysdyn.errors.FormatWarning")  # stiffnesses in the <dynamics> of Panda
def test_counts_of_robots_as_files_have_them():
    """HyQ with angles snapped and not, Panda with its fingers and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))
        from rivals import robots
    try:
        files = {"hyq": sd.load("hyq", base="floating"), "panda": sd.load(robots.ROBOTS["panda"].locate())}
    except (BackendUnavailable, robots.CannotBuild):
        pytest.skip("example-robot-data is not installed: pip install --no-deps example-robot-data")
    models = {
        "HyQ, floating base": files["hyq"],
        "the same, angles as they stand in the file (`snap=False`)": sd.load("hyq", base="floating", snap=False),
        "Panda, fingers fixed": files["panda"],
        "the same, fingers that move": sd.load("panda"),
    }
    text = (ROOT / "docs" / "counts.md").read_text(encoding="utf-8")
    for name, model in models.items():
        tau, qdd = (
            sd.compile(make(model), outputs=[out], backend="python", external_wrenches=False).flops.end_to_end.total
            for make, out in ((sd.inverse_dynamics, "tau"), (sd.forward_dynamics, "qdd"))
        )
        assert f"| {name} | {tau:,} | {qdd:,} |\n" in text


@pytest.mark.slow
def test_the_table_of_counts_is_what_is_counted():
    model, text = load_robot("icub"), (ROOT / "docs" / "counts.md").read_text(encoding="utf-8")
    rows = []
    for kind, name, symbol in (("inverse", "rnea", "τ"), ("forward", "aba", "q̈")):
        problem = {"inverse": sd.inverse_dynamics, "forward": sd.forward_dynamics}[kind](model)
        solver = sd.compile(problem, name, ["tau" if kind == "inverse" else "qdd"], backend="python")
        fill = f"{solver.fill_in:,}" + (", triangular" if solver.triangular else "")
        book = sd.count_flops(getattr(sd, name), model, fx=True)
        rows.append((kind, symbol, f"elimination, `{name}`", solver.flops.end_to_end, fill))
        recursion = sd.compile(problem, outputs=solver.outputs, backend="python")
        rows.append((kind, symbol, "recursion (`auto`)", recursion.flops.end_to_end, ""))
        rows.append((kind, symbol, f"{name.upper()}, textbook", book, ""))
    for kind, symbol, order, n, fill in rows:
        cells = f"| {kind}, {symbol} | {order} | {n.mul:,} | {n.add:,} | {n.div:,} | {n.total:,} | {fill}".rstrip()
        assert f"{cells} |\n" in text
