"""Imports point one way, files stay short, and nothing names a place on somebody's disk."""

from __future__ import annotations

import ast
import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sysdyn"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 550

# What each part may import beside itself. `model` and `sparse` never meet; `system` runs programs to get numbers.
LEAVES = {"errors", "expr", "evaluate", "spatial", "passes"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "expr": {"errors"},
    "passes": {"errors"},
    "evaluate": {"errors", "expr"},
    "spatial": {"errors", "expr"},
    "cache": {"errors"},
    "model": LEAVES,
    "reference": LEAVES | {"model", "function"},
    "sparse": {"errors", "expr"},
    "backends": {"errors", "expr", "sparse", "cache"},
    "formulation": LEAVES | {"model", "sparse"},
    "function": {"errors", "expr", "sparse", "backends"},
    "system": LEAVES | {"model", "sparse", "backends"},
}
# The offline and the online phase join them. What people look at is on top of that, may import all, and is not listed.
JOIN = {
    "sampling",
    "elimination",
    "recursive",
    "search",
    "compiler",
    "inputs",
    "solution",
    "storage",
    "export",
    "sensitivity",
    "derivatives",
}
JOIN |= {"solver", "estimate"}
ALLOWED |= {part: set(ALLOWED) | JOIN for part in JOIN}


def module_name(path: Path) -> str:
    """Dotted, as it is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


def part_of(module: str) -> str:
    """The file or folder directly below sysdyn that it belongs to."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imports(path: Path) -> set[str]:
    """Modules of this package that the file imports, wherever in the file it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            for name in node.names:
                module = f"{node.module}.{name.name}"
                found.add(module if module in MODULES else node.module)
    return {m for m in found if m.split(".")[0] == "sysdyn"}


def wrong(part: str, imported: str) -> bool:
    other = part_of(imported)
    return part in ALLOWED and other != part and other not in ALLOWED[part]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path):
    part = part_of(module_name(path))
    bad = sorted(m for m in imports(path) if wrong(part, m))
    assert not bad, f"{module_name(path)} must not import {', '.join(bad)}"


def test_what_is_forbidden_is_seen():
    """The rules of the design, said the other way round."""
    for part, other in (
        ("model", "sparse.lu"), ("model", "system"), ("model", "reference.rnea"), ("sparse", "model.tree"),
        ("sparse", "spatial"), ("sparse", "backends.llvm"), ("sparse", "system"), ("expr", "spatial"),
        ("errors", "expr"), ("spatial", "model"), ("backends", "model"), ("backends", "system"), ("backends", "solver"),
        ("reference", "sparse.lu"), ("reference", "system"), ("system", "reference"), ("system", "compiler"),
        ("system", "solver"), ("cache", "backends"), ("compiler", "cli"), ("solver", "plot"), ("solver", "flops"),
    ):  # fmt: skip
        assert wrong(part, f"sysdyn.{other}"), (part, other)
    assert wrong("model", "sysdyn")  # the package itself holds all
    for part, other in (("backends", "cache"), ("system", "backends.python"), ("solver", "compiler"), ("cli", "plot")):
        assert not wrong(part, f"sysdyn.{other}"), (part, other)


def test_imports_are_found_in_every_form(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(
        "import numpy\nimport sysdyn.cache\nfrom sysdyn import spatial, Model\n"
        "from sysdyn.model.tree import Frame\n\ndef f():\n    from sysdyn.sparse import lu\n"
    )
    assert imports(path) == {"sysdyn.cache", "sysdyn.spatial", "sysdyn", "sysdyn.model.tree", "sysdyn.sparse.lu"}


def test_the_parts_form_no_circle():
    """By parts; and the rules themselves allow none below the parts that join."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        part = part_of(module_name(path))
        graph.setdefault(part, set()).update({part_of(m) for m in imports(path)} - {part})
    list(TopologicalSorter(graph).static_order())  # raises CycleError
    list(TopologicalSorter({part: others for part, others in ALLOWED.items() if part not in JOIN}).static_order())


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_can_be_read_in_one_sitting(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{path.relative_to(ROOT)} has {lines} lines; split it by what it is about"


# ---- the repository ------------------------------------------------------------------------------------------------


def repository_files() -> list[Path]:
    """Tracked files and those about to be; generated and ignored ones are not ours."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no git checkout: {error}")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


PRIVATE = re.compile(r"(?<![\w.:/-])/(?:work|root|home|Users)/\w[\w./-]*")


def test_no_file_names_a_place_on_somebodys_disk():
    found = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # pictures and the like
        for number, line in enumerate(text.splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {place}" for place in PRIVATE.findall(line)]
    assert not found, "\n".join(found)


def test_private_places_are_recognised():
    for top in ("work", "root", "home", "Users"):
        assert PRIVATE.findall(f'open("/{top}/me/file.txt")') == [f"/{top}/me/file.txt"]
    for line in ("https://example.org/home/page", "a/work/b", "work/main", "/usr/lib", "../work/x"):
        assert not PRIVATE.findall(line)
