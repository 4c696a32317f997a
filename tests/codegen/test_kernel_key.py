"""Machine code is kept under a key that follows from the sources that decide it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from programs import random_program
from sources import all_imported, changed_copy, covered

from sysdyn.codegen.llvm import compile as kernel
from sysdyn.codegen.llvm.compile import EMITTING, compile_kernel
from sysdyn.files.sources import sources_digest

# These decide where code is kept, how it is called and what errors say, but not what the code is.
NO_PART_OF_CODE = {"errors.py", "runtime/kernel.py", "files/cache.py", "files/atomic.py", "files/sources.py"}


def test_all_that_machine_code_is_made_by_is_part_of_its_key():
    """Whatever `kernel.py` imports, and that imports, and so on."""
    names = all_imported(Path(kernel.__file__), NO_PART_OF_CODE)
    assert {"program/opcodes.py", "codegen/llvm/segments.py", "codegen/partition.py"} <= names
    assert not {name for name in names if not covered(name, EMITTING)}


@pytest.mark.parametrize("changed", ["program/opcodes.py", "program/reproducible.py", "codegen/llvm/segments.py",
                                     "codegen/llvm/sincos.py", "codegen/partition.py", None])  # fmt: skip
def test_a_changed_source_is_another_key(changed, monkeypatch, tmp_path):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path / "cache"))
    program, cached = random_program(3, blocks=1), []
    for number, name in enumerate((None, changed)):
        package = changed_copy(tmp_path / str(number), EMITTING, name)
        monkeypatch.setattr(kernel, "sources_digest", partial(sources_digest, package=package))
        cached.append(compile_kernel(program, 1, 0).cached)
    assert cached == [False, not changed]


def flipped(payload: bytes) -> bytes:
    middle = len(payload) // 2
    return payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]


DAMAGED = {
    "nothing": lambda mine, other: b"",
    "text": lambda mine, other: b"not an object" * 100,
    "half of it": lambda mine, other: mine[: len(mine) // 2],
    "one bit": lambda mine, other: flipped(mine),
    "more slots": lambda mine, other: mine[:40] + b"\xff" + mine[41:],
    "of another program": lambda mine, other: other,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_object_that_is_not_one_of_the_key_never_reaches_llvm(name, monkeypatch, tmp_path):
    """LLVM ends the process where it is handed a malformed object."""
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    program = random_program(3, blocks=1)
    compile_kernel(random_program(4, blocks=1), 1, 0)
    other = next(iter(tmp_path.iterdir())).name
    compile_kernel(program, 1, 0)
    (key,) = (path.name for path in tmp_path.iterdir() if path.name != other)
    (tmp_path / key).write_bytes(DAMAGED[name]((tmp_path / key).read_bytes(), (tmp_path / other).read_bytes()))
    assert not compile_kernel(program, 1, 0).cached
    assert compile_kernel(program, 1, 0).cached
