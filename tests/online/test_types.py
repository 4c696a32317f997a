"""Users' files are checked for types: the examples of the documentation are clean, and mistakes are seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sysdyn as sd

ROOT = Path(__file__).parents[2]
PAGES = ("quickstart", "problems", "solving", "sensors", "contacts")
MISTAKES = """
import numpy as np
import sysdyn as sd

model = sd.chain(2)
solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", effort="1")  # arg-type
solution = solver([0.0, 0.0], (0.0, 0.0), np.zeros(2), threads="2")  # arg-type
name: str = solution.tau  # assignment
ok: int = solution.backward_error()  # assignment
solver(np.zeros(2), np.zeros(2), y={"imu": print})  # dict-item
estimate: sd.Estimate = solution  # assignment
step = solver.bind([0.0, 0.0], np.zeros(2), np.zeros(2))  # arg-type
J = solver.derivatives(wrt=("q", 1))  # arg-type
shape: str = J(np.zeros(2), np.zeros(2), [0.0, 0.0])["qdd", "q"]  # assignment
learned = sd.learn_noise(solver, np.zeros(2), np.zeros(2), iterations="5")  # call-overload
fine = sd.least_norm(sd.forward_dynamics(model), [0.0, 0.0], [0.0, 0.0], [1, 2]).qdd.sum() + solution.std("tau").sum()
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory) -> dict[str, list[str]]:
    """{file: "line: … [code]"} of mypy on a user's files."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("user")
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
        (folder / f"{page}.py").write_text("\n".join(blocks), encoding="utf-8")
    (folder / "mistakes.py").write_text(MISTAKES, encoding="utf-8")
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", "--cache-dir=cache"]
    command = [sys.executable, "-m", "mypy", *options, *sorted(file.name for file in folder.glob("*.py"))]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, run.stdout + run.stderr
    found: dict[str, list[str]] = {file.name: [] for file in folder.glob("*.py")}
    for line in run.stdout.splitlines():
        file, _, rest = line.partition(":")
        if ": error:" in line:
            found[file].append(rest)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_the_pages_are_clean(complaints, page):
    assert not complaints[f"{page}.py"]


@pytest.mark.slow
def test_mistakes_are_seen(complaints):
    expected = {
        (number, found[1])
        for number, line in enumerate(MISTAKES.splitlines(), start=1)
        if (found := re.search(r"# (\S+)$", line))
    }
    seen = {(int(line.split(":")[0]), re.search(r"\[([\w-]+)\]$", line)[1]) for line in complaints["mistakes.py"]}
    assert seen == expected, "\n".join(complaints["mistakes.py"])


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "sysdyn" / "py.typed").exists()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("solver(1, 2)", {"Solution", "Estimate"}),
        ("solver(1, 2).std('tau')", {"ndarray"}),
        ("sd.kinematics(model, 'pose:a')(1)", {"ndarray", "dict", "tuple"}),
    ],
)
def test_editors_see_names_and_types(code, kinds):
    jedi = pytest.importorskip("jedi")
    head = "import sysdyn as sd\nmodel = sd.load('x')\nsolver = sd.compile(sd.inverse_dynamics(model))\n"
    assert {x.name for x in jedi.Script(f"{head}sd.").complete(4, 3)} >= set(sd.__all__)
    assert {x.name for x in jedi.Script(f"{head}x = {code}\nx").infer(5, 1)} == kinds
