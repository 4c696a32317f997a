"""Imports point one way, nothing reaches into another module, and nothing names a place on somebody's disk."""

from __future__ import annotations

import ast
import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sysdyn"

# From the ground up: a part may import those before it and no others.
ORDER = (
    "errors", "passes", "program", "files", "model", "sparse", "runtime", "codegen", "frameworks",
    "reference", "recursions",
    "measurements", "equations", "diagnosis", "offline", "online", "contact", "identification",
    "views", "data", "simulation", "estimation", "app", "__main__",
)  # fmt: skip
STRANGERS = {("sparse", "model"), ("recursions", "reference")}  # side by side: neither imports the other


def module_name(path: Path) -> str:
    """Dotted, as it is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {path: module_name(path) for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = set(FILES.values())


def part_of(module: str) -> str:
    """The file or folder directly below sysdyn that it belongs to."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imports(text: str) -> set[tuple[str, str]]:
    """(module, name) of each import of this package, anywhere in the file; the name is "" for a module."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {(name.name, "") for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(f"{'.' * node.level}{node.module or ''}", name.name) for name in node.names}
    whole = {(f"{m}.{name}", "") if f"{m}.{name}" in MODULES else (m, name) for m, name in found}
    return {(m, name) for m, name in whole if m.split(".")[0] in ("sysdyn", "")}


def wrong(part: str, other: str) -> bool:
    """True if `part` must not import `other`."""
    if part in (other, "__init__"):
        return False
    return other not in ORDER[: ORDER.index(part)] or (part, other) in STRANGERS


def complaint(module: str, imported: tuple[str, str]) -> str:
    """The fault of an import in words; "" if there is none."""
    source, name = imported
    if source.startswith("."):
        return f"{module} imports {name} relatively"
    if wrong(part_of(module), part_of(source)):
        return f"{module} must not import {source}"
    return f"{module} takes the private {name} of {source}" if name.startswith("_") and name != "__version__" else ""


def test_imports_point_one_way_and_take_public_names():
    assert {part_of(m) for m in MODULES} == {*ORDER, "__init__"}
    found = [complaint(FILES[path], x) for path in FILES for x in sorted(imports(path.read_text()))]
    assert not any(found), "\n".join(filter(None, found))


def private_attributes(tree: ast.AST) -> tuple[set[str], set[str]]:
    """(names that a module defines, private attributes that it reads)."""
    defined, read = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if isinstance(node.ctx, ast.Store):
                defined.add(name)
            elif isinstance(node, ast.Attribute) and name.startswith("_") and not name.startswith("__"):
                read.add(name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            defined.add(node.value)  # a slot
    return defined, read


def test_private_attributes_are_read_in_their_own_package_alone():
    assert private_attributes(ast.parse("self._x = 1\na._y\nb.__dict__")) == ({"_x"}, {"_y"})
    defined: dict[str, set[str]] = {}
    read: dict[str, set[str]] = {}
    for path, module in FILES.items():
        names = private_attributes(ast.parse(path.read_text()))
        defined.setdefault(part_of(module), set()).update(names[0])
        read.setdefault(part_of(module), set()).update(names[1])
    foreign = {(part, x) for part in read for x in read[part] - defined[part] if any(x in y for y in defined.values())}
    assert not foreign, sorted(foreign)


def test_imports_of_modules_and_of_their_types_make_no_circles():
    """Imports within functions do not count."""
    order = TopologicalSorter[str]()
    for path, module in FILES.items():
        body = [x for x in ast.parse(path.read_text()).body if not isinstance(x, (ast.FunctionDef, ast.ClassDef))]
        sources = {source for source, _ in imports(ast.unparse(ast.Module(body, [])))}
        order.add(module, *(sources - {module}) & MODULES)
    order.prepare()  # raises CycleError


def test_what_is_forbidden_is_seen():
    """The rule, said the other way round, and imports found in every form."""
    text = (
        "import numpy\nimport sysdyn.files.cache\nfrom sysdyn import model, Model\nfrom .tree import Frame\n"
        "from sysdyn.model.model import _Private\n\ndef f():\n    from sysdyn.sparse import lu\n"
    )
    found = imports(text)
    assert found == {
        ("sysdyn.files.cache", ""), ("sysdyn.model", ""), ("sysdyn", "Model"), (".tree", "Frame"),
        ("sysdyn.model.model", "_Private"), ("sysdyn.sparse.lu", ""),
    }  # fmt: skip
    assert not complaint("sysdyn.online.solver", ("sysdyn.files.cache", ""))
    for imported in found - {("sysdyn.files.cache", "")}:
        assert complaint("sysdyn.sparse.lu", imported) or imported == ("sysdyn.sparse.lu", "")
    for part, other in (
        ("model", "sparse"), ("sparse", "model"), ("recursions", "reference"), ("program", "model"),
        ("runtime", "codegen"), ("codegen", "measurements"),
        ("measurements", "equations"), ("equations", "diagnosis"), ("offline", "online"),
        ("online", "app"), ("data", "simulation"), ("model", "__init__"), ("online", "solver"),
    ):  # fmt: skip
        assert wrong(part, other), (part, other)


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
    for top in ("work", "root", "home", "Users"):
        assert PRIVATE.findall(f'open("/{top}/me/file.txt")') == [f"/{top}/me/file.txt"]
    for line in ("https://example.org/home/page", "a/work/b", "work/main", "/usr/lib", "../work/x"):
        assert not PRIVATE.findall(line)
    found = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # pictures and the like
        for number, line in enumerate(text.splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {place}" for place in PRIVATE.findall(line)]
    assert not found, "\n".join(found)
