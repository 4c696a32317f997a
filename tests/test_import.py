"""What `import sysdyn` loads, nothing that only some calls need, since every script pays for it; what a wheel holds."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import sysdyn

ROOT = Path(__file__).parents[1]

# Some programs need these, and only a few of what they call.
LATER = (
    "networkx", "lxml", "matplotlib", "typer", "rich", "scipy", "scipy.linalg", "scipy.stats", "numpy.ma",
    "casadi", "mujoco", "pandas", "pyarrow", "tomllib", "sysdyn.app", "sysdyn.data", "sysdyn.views", "sysdyn.equations",
    "sysdyn.diagnosis", "sysdyn.recursions", "sysdyn.reference", "sysdyn.offline.compile", "sysdyn.codegen.partition",
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
    assert {*sysdyn.__all__, "model", "__version__"} <= {*dir(sysdyn)}
    found = {name: getattr(sysdyn, name) for name in sysdyn.__all__}
    assert all(not isinstance(x, ModuleType) for x in found.values())
    assert sysdyn.model.Model is found["Model"] and vars(sysdyn)["Model"] is found["Model"]
    with pytest.raises(AttributeError, match="'sysdyn' has no attribute 'Modell'"):
        sysdyn.Modell  # noqa: B018


def wheel_built(folder: Path, compiler: str) -> subprocess.CompletedProcess:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = os.environ | {"CC": compiler}
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, text=True, env=environment)


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_a_build_without_a_compiler_ends_with_what_to_install(compiler, tmp_path):
    run = wheel_built(tmp_path, compiler)
    assert run.returncode and "python3-dev" in run.stderr and compiler in run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_the_example_problems_and_is_small(tmp_path):
    root = ROOT
    run = wheel_built(tmp_path, "cc")
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(root).as_posix() for path in (root / "sysdyn").rglob("*.py")}
    assert "sysdyn/py.typed" in names and sources <= names
    libraries = [name for name in names if name.endswith(".so")]
    assert [x.rpartition("/")[0] for x in libraries] == ["sysdyn/runtime/native"]
    assert not [name for name in names if "experiments" in name]
    problems = {f"sysdyn/problems/{path.name}" for path in (root / "problems").iterdir()}
    assert {name for name in names if name.startswith("sysdyn/problems/")} == problems
    assert wheel.stat().st_size <= 1_300_000
