"""Compiled problems are kept under a key that follows from the sources that decide them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sources import all_imported, changed_copy, covered

import sysdyn as sd
from sysdyn.files.sources import sources_digest
from sysdyn.offline import key, pipeline
from sysdyn.offline.key import DECIDING, cache_key
from sysdyn.offline.options import Options

# These run programs, read and write files, and say what is wrong, but do not decide what a program is.
NO_PART_OF_PROGRAMS = {
    "errors.py", "files/cache.py", "files/atomic.py", "files/sources.py", "files/toml.py", "files/tables.py",
    "files/table_writers.py", "files/html.py", "runtime/backend.py", "runtime/runner.py", "frameworks/function.py",
    "codegen/registry.py", "runtime/threads.py", "frameworks/casadi.py", "codegen/c99.py", "codegen/c_project.py",
}  # fmt: skip


def test_all_that_programs_are_made_by_is_part_of_their_key():
    """Whatever `pipeline.py` imports, and that imports, and so on."""
    names = all_imported(Path(pipeline.__file__), NO_PART_OF_PROGRAMS)
    assert {"sparse/lu.py", "recursions/write.py", "codegen/interpreter.py"} <= names
    assert not {name for name in names if not covered(name, DECIDING)}


@pytest.mark.parametrize("changed", ["sparse/lu.py", "offline/check.py", "recursions/plan.py", "passes.py", None])
def test_a_changed_source_is_another_key(changed, monkeypatch, tmp_path):
    problem, keys = sd.forward_dynamics(sd.chain(2)), set()
    for number, name in enumerate((None, changed)):
        package = changed_copy(tmp_path / str(number), DECIDING, name)
        monkeypatch.setattr(key, "sources_digest", partial(sources_digest, package=package))
        keys.add(cache_key(problem, Options()))
    assert len(keys) == (2 if changed else 1)


def test_problems_and_options_are_part_of_the_key():
    problem = sd.forward_dynamics(sd.chain(2))
    options = [
        Options(), Options(ordering="aba"), Options(outputs=("qdd",)), Options(level="fast"),
        Options(external_wrenches=False), Options(effort=2.0),
    ]  # fmt: skip
    keys = {cache_key(problem, x) for x in options}
    assert len(keys) == len(options) and None not in keys
    assert cache_key(problem, Options()) == cache_key(sd.forward_dynamics(sd.chain(2)), Options())
    assert cache_key(problem, Options()) not in {cache_key(sd.inverse_dynamics(sd.chain(2)), Options())}
