"""Machine code is kept under a key that follows from the sources that decide it."""

from __future__ import annotations

import ast
import shutil
from functools import partial
from pathlib import Path

import pytest
from programs import random_program

from sysdyn.backends.llvm import kernel
from sysdyn.backends.llvm.kernel import EMITTING, compile_kernel
from sysdyn.files.sources import PACKAGE, sources_digest

# These decide where code is kept and what errors say, but not what the code is.
NO_PART_OF_CODE = {"errors.py", "files/cache.py", "files/atomic.py", "files/sources.py"}


def imported(path: Path) -> set[Path]:
    """Files of the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    files = [PACKAGE.parent / f"{name.replace('.', '/')}.py" for name in names if name.split(".")[0] == "sysdyn"]
    return {file for file in files if file.is_file()}


def test_all_that_machine_code_is_made_by_is_part_of_its_key():
    """Whatever `kernel.py` imports, and that imports, and so on."""
    found, todo = set(), [Path(kernel.__file__)]
    while todo:
        path = todo.pop()
        name = path.relative_to(PACKAGE).as_posix()
        if path not in found and name not in NO_PART_OF_CODE:
            found.add(path)
            todo += imported(path)
    names = {path.relative_to(PACKAGE).as_posix() for path in found}
    assert {"program/operations.py", "backends/llvm/segments.py", "backends/schedule.py"} <= names
    covered = lambda name: any(name == part or name.startswith(f"{part}/") for part in EMITTING)  # noqa: E731
    assert not {name for name in names if not covered(name)}


@pytest.mark.parametrize("changed", ["program/operations.py", "program/status.py", "backends/llvm/segments.py",
                                     "backends/llvm/sincos.py", "backends/schedule.py", None])  # fmt: skip
def test_a_changed_source_is_another_key(changed, monkeypatch, tmp_path):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path / "cache"))
    program = random_program(3, blocks=1)
    copies = []
    for name in ("as it is", "changed"):
        copies.append(tmp_path / name)
        for part in EMITTING:
            copy = shutil.copytree if (PACKAGE / part).is_dir() else shutil.copyfile
            (copies[-1] / part).parent.mkdir(parents=True, exist_ok=True)
            copy(PACKAGE / part, copies[-1] / part)
    if changed:
        with open(copies[1] / changed, "a") as file:
            file.write("# another line\n")
    cached = []
    for package in copies:
        monkeypatch.setattr(kernel, "sources_digest", partial(sources_digest, package=package))
        cached.append(compile_kernel(program, 1, 0).cached)
    assert cached == [False, not changed]
