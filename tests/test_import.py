"""What `import sysdyn` loads, nothing that only some calls need, since every script pays for it; what a wheel holds."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import sysdyn
from sysdyn.backends.entries.calls import built

# Some programs need these, and only a few of what they call.
LATER = (
    "networkx", "lxml", "matplotlib", "typer", "rich", "scipy.sparse", "scipy.linalg", "scipy.optimize", "scipy.stats",
    "casadi", "mujoco", "pandas", "pyarrow", "sysdyn.app", "sysdyn.data", "sysdyn.papers", "sysdyn.views",
)  # fmt: skip
# All calls need these, but not the import by itself.
CALLED = ("numpy", "llvmlite", "sysdyn.model", "sysdyn.online")
CALL = """
import sysdyn
solver = sysdyn.compile(sysdyn.inverse_dynamics(model := sysdyn.chain(2)), level="fast")
assert solver(*model.random_state()).ok
"""


def loaded(statement: str) -> set[str]:
    """The modules of LATER and CALLED that a new interpreter has loaded after the statement."""
    program = f"import sys\n{statement}\nprint(*(name for name in {LATER + CALLED!r} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_loads_next_to_nothing_and_a_call_what_all_calls_need(tmp_path, monkeypatch):
    assert not loaded("import sysdyn")
    assert loaded("import sysdyn, networkx, scipy.linalg") >= {"networkx", "scipy.linalg"}
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    loaded(CALL)
    assert loaded(CALL) == {*CALLED}


def test_commands_load_what_they_need_alone():
    assert not loaded("import sysdyn.app.cli") & {"matplotlib", "scipy.stats", "pandas", "mujoco"}


def test_the_stub_has_the_names():
    stub = ast.parse(Path(sysdyn.__file__).with_suffix(".pyi").read_text())
    (listed,) = (ast.literal_eval(x.value) for x in stub.body if isinstance(x, ast.Assign))
    assert sorted(listed) == sysdyn.__all__ and {*listed, "model", "__version__"} <= {*dir(sysdyn)}
    found = {name: getattr(sysdyn, name) for name in sysdyn.__all__}
    assert all(not isinstance(x, ModuleType) for x in found.values())
    assert sysdyn.model.Model is found["Model"] and vars(sysdyn)["Model"] is found["Model"]
    with pytest.raises(AttributeError, match="'sysdyn' has no attribute 'Modell'"):
        sysdyn.Modell  # noqa: B018


@pytest.mark.parametrize("compiler", [pytest.param("cc", marks=pytest.mark.slow), "false"])
def test_the_wheel_holds_the_package_and_the_experiments_and_is_small(compiler, tmp_path):
    """The calls in C, too, if they can be compiled."""
    pytest.importorskip("hatchling")
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = os.environ | {"CC": compiler}
    run = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=120, text=True, env=environment)
    assert ("built without native calls" in run.stdout + run.stderr) == (compiler == "false" or not built)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(root).as_posix() for path in (root / "sysdyn").rglob("*.py")}
    scripts = {f"sysdyn/experiments/{path.name}" for path in (root / "experiments").glob("*.py")}
    assert "sysdyn/py.typed" in names and sources <= names
    libraries = [name for name in names if name.endswith(".so")]
    assert [x.rpartition("/")[0] for x in libraries] == ["sysdyn/backends/entries"] * (compiler == "cc" and built)
    assert {name for name in names if name.startswith("sysdyn/experiments/")} == scripts
    problems = {f"sysdyn/problems/{path.name}" for path in (root / "problems").iterdir()}
    assert {name for name in names if name.startswith("sysdyn/problems/")} == problems
    assert wheel.stat().st_size <= 1_250_000


FROM_ZIP = """
import sys
sys.meta_path = [x for x in sys.meta_path if "editable" not in str(x).lower()]  # else this source tree is found first
import sysdyn as sd
from sysdyn.papers.nori.arms import ARMS
model = sd.chain(2, seed=1)
print(sd.__file__, sd.compile(sd.inverse_dynamics(model))(*model.random_state(seed=1)).tau.shape, len(ARMS))
"""


@pytest.mark.slow
def test_the_package_runs_from_a_zip_file(tmp_path):
    package, archive = Path(sysdyn.__file__).parent, tmp_path / "sysdyn.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for path in package.rglob("*"):
            if path.is_file() and path.parent.name != "__pycache__":
                made.write(path, path.relative_to(package.parent))
    environment = os.environ | {"PYTHONPATH": str(archive), "SYSDYN_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", FROM_ZIP]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
    file, rest = run.stdout.split(maxsplit=1)
    assert file.startswith(str(archive)) and rest.split("(2,)")[1].strip() > "0"
