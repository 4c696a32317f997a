"""What `import sysdyn` loads: nothing that only some calls need, since every script pays for it."""

import subprocess
import sys

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
