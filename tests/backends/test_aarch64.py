"""Machine code for ARM: kernels are emitted for it here, and call nothing that is not there."""

from __future__ import annotations

import re

import pytest

import sysdyn as sd
from sysdyn.backends.llvm.emitter import Emitter
from sysdyn.backends.llvm.registers import REGISTERS, arranged
from sysdyn.backends.llvm.target import LOCK, library

# What a kernel may take from the C library.
LIBRARY = {"memcpy", "memset", "memmove"}


@pytest.fixture(scope="module")
def arm():
    llvm = library()
    with LOCK:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
        return target.create_target_machine(cpu="cortex-a76", opt=2, reloc="pic", codemodel="small", jit=True)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("kind", ["forward", "contact"])
def test_kernels_are_emitted_for_arm(arm, kind, width):
    problem = sd.forward_dynamics(sd.chain(3))
    if kind == "contact":  # orthogonal columns and guards
        problem = problem + sd.Contact("body2", ["a_x", "a_y"])
    program = sd.compile(problem, outputs=["qdd"], level="fast", backend="python").program
    with LOCK:
        module = library().parse_assembly(Emitter(arranged(program, REGISTERS), width, True).module())
        text = arm.emit_assembly(module)
        code = arm.emit_object(module)
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 183  # EM_AARCH64
    defined = set(re.findall(r"^(\S+):", text, re.MULTILINE))
    called = set(re.findall(r"^\s+(?:bl|b)\s+([A-Za-z_]\w*)$", text, re.MULTILINE))
    assert "run" in defined and called - defined <= LIBRARY
    assert re.search(r"\bfmadd\b|\bfmla\b", text)  # fused multiply-adds
    assert width == 1 or re.search(r"\bfml[as]\s+v\d+\.2d", text)  # of two states at a time
