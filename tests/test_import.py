"""What `import sysdyn` loads, nothing that only some calls need, since every script pays for it; what a wheel holds."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

LATER = (
    "networkx", "lxml", "matplotlib", "typer", "rich", "scipy.sparse", "scipy.linalg", "scipy.optimize", "casadi",
    "mujoco", "pyarrow", "sysdyn.app",
)  # fmt: skip


def loaded(statement: str) -> set[str]:
    """The modules of LATER that a new interpreter has loaded after the statement."""
    program = f"import sys\n{statement}\nprint(*(name for name in {LATER!r} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_loads_only_what_every_program_needs():
    assert not loaded("import sysdyn")


def test_a_load_is_seen():
    assert loaded("import sysdyn, networkx, scipy.linalg") >= {"networkx", "scipy.linalg"}


def test_the_wheel_holds_the_package_and_the_experiments_and_is_small(tmp_path):
    pytest.importorskip("hatchling")
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(root).as_posix() for path in (root / "sysdyn").rglob("*.py")}
    scripts = {f"sysdyn/experiments/{path.name}" for path in (root / "experiments").glob("*.py")}
    assert "sysdyn/py.typed" in names and sources <= names
    assert {name for name in names if name.startswith("sysdyn/experiments/")} == scripts
    assert wheel.stat().st_size <= 1_000_000
