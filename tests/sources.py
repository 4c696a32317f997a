"""Which files of the package a file is made of, and copies of the package with one of them changed."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from sysdyn.files.sources import PACKAGE


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


def all_imported(path: Path, leaving: Collection[str]) -> set[str]:
    """Names, relative to the package, of a file and of what it imports, and so on; not beyond `leaving`."""
    found, todo = set(), [path]
    while todo:
        path = todo.pop()
        name = path.relative_to(PACKAGE).as_posix()
        if name not in found and name not in leaving:
            found.add(name)
            todo += imported(path)
    return found


def covered(name: str, parts: Sequence[str]) -> bool:
    return any(name == part or name.startswith(f"{part}/") for part in parts)


def changed_copy(folder: Path, parts: Sequence[str], changed: str | None) -> Path:
    """A copy of these parts of the package, one file with another line."""
    for part in parts:
        copy = shutil.copytree if (PACKAGE / part).is_dir() else shutil.copyfile
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        copy(PACKAGE / part, folder / part)
    if changed:
        with open(folder / changed, "a") as file:
            file.write("# another line\n")
    return folder
