"""Machine code for other processors: made here, and in need of nothing that is not there."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from kernels import run_kernel
from programs import assert_within, random_inputs, run_bounded

import sysdyn as sd
from sysdyn.codegen.instruction_order import hoist_trig
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.codegen.llvm.emitter import Emitter
from sysdyn.codegen.llvm.target import LOCK, Processor, host_processor, library
from sysdyn.program.graph import Graph, cos, sin
from sysdyn.program.program import Program
from sysdyn.program.reproducible import LARGEST_ANGLE

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
PROCESSORS = {
    "v1": Processor(X86, "x86-64", ""),
    "AVX": Processor(X86, "sandybridge", "+avx"),
    "AVX2": Processor(X86, "haswell", "+avx,+avx2,+fma"),
    "AVX-512": Processor(X86, "skylake-avx512", "+avx,+avx2,+fma,+avx512f,+avx512vl,+avx512dq"),
    "AVX-512F": Processor(X86, "haswell", "+avx,+avx2,+fma,+avx512f,-avx512dq,-avx512vl"),
    "ARM": Processor(ARM, "cortex-a76", ""),
}
# Functions of the C library that a kernel may call.
LIBRARY = {"memcpy", "memset", "memmove"}


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    """One with orthogonal columns and guards, one with sines among other operations, one with limbs that are alike."""
    contact = sd.forward_dynamics(sd.chain(3)) + sd.Contact("body2", ["a_x", "a_y"])
    program = sd.compile(contact, outputs=["qdd"], level="fast", backend="python").program
    graph = Graph("none")
    x = graph.inputs("x", 2).tolist()
    ends = []
    for v in x:
        for k in range(30):
            v = v * (0.3 + 0.01 * k) + v * v * 0.1
        ends.append(v)
    limbs = Program.from_graph(graph, [("x", x)], [("y", ends)])
    y = sin(sin(x[0]) * x[1]) * 0.5 + x[0]
    return [program, limbs, Program.from_graph(graph, [("x", x)], [("y", [y])])]


def undefined(code: bytes) -> set[str]:
    """Names that an ELF object needs from elsewhere."""
    (table,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + 64 * k) for k in range(count)]
    found = set()
    for _, kind, _, _, at, size, link, *_ in sections:
        if kind == 2:  # symbols, whose names are in the section `link`
            for symbol in range(at, at + size, 24):
                name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", code, symbol)
                if name and not section:
                    begin = sections[link][4] + name
                    found.add(code[begin : code.index(b"\0", begin)].decode())
    return found


@pytest.mark.slow(after=len(PROCESSORS))
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize(("many", "level"), [(False, 2), (True, 0), (True, 2), (False, 0)])
def test_kernels_need_nothing_that_is_not_there(programs, name, many, level):
    """As of llvm.fma, which is a call of libm's function on processors without it."""
    processor = PROCESSORS[name]
    library().initialize_all_targets()
    library().initialize_all_asmprinters()
    for program in programs:
        width = processor.lanes() if many else 1
        emitter = Emitter(hoist_trig(program), width, level=level, processor=processor)
        with LOCK:
            target, module = processor.machine(level), library().parse_assembly(emitter.module())
            code, text = target.emit_object(module), target.emit_assembly(module)
        assert code[:4] == b"\x7fELF" and undefined(code) <= LIBRARY
        fused = re.search(r"\bvfn?m(add|sub)\d|\bfn?m(add|sub)\b|\bfml[as]\b", text)
        assert bool(fused) == processor.fuses
        if name == "AVX-512F":
            assert not re.search(r"\bv(and|or|xor|andn)p[sd]\s[^\n]*%zmm", text)  # which need AVX-512DQ


def test_limbs_are_vectorised_on_arm(programs):
    _, limbs, _ = programs
    processor = PROCESSORS["ARM"]
    with LOCK:
        module = library().parse_assembly(Emitter(limbs, 1, processor=processor).module())
        text = processor.machine(2).emit_assembly(module)
    assert re.search(r"\bfml[as]\s+v\d+\.2d", text)


def run(program: Program, inputs: dict[str, np.ndarray], n: int, processor: Processor, width: int):
    """(outputs by group, status) on this machine, which has to have what the processor has."""
    wanted = {x for x in processor.features.split(",") if x.startswith("+")}
    if processor.triple.split("-")[0] != host_processor().triple.split("-")[0] or not wanted <= set(
        host_processor().features.split(",")
    ):
        pytest.skip("this machine cannot run code for that processor")
    return run_kernel(compile_kernel(program, width, processor=processor), program, inputs, n)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", PROCESSORS)
def test_kernels_give_the_same_on_each_processor(programs, name, many, monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE", "")
    processor = PROCESSORS[name]
    for program in programs[1:]:
        inputs = random_inputs(program, 11, 0)
        expected, _ = run_bounded(program, inputs)
        found, status = run(program, inputs, 11, processor, processor.lanes() if many else 1)
        assert not status.any()
        assert_within(found["y"], expected["y"])


@pytest.mark.parametrize("name", PROCESSORS)
def test_sines_are_as_exact_on_each_processor(name, monkeypatch):
    """Up to the largest angle, next to multiples of π/2, too."""
    monkeypatch.setenv("SYSDYN_CACHE", "")
    graph = Graph("none")
    x = graph.inputs("x", 1).tolist()
    program = Program.from_graph(graph, [("x", x)], [("y", [sin(x[0]), cos(x[0])])])
    rng = np.random.default_rng(0)
    multiples = np.round(np.exp(rng.uniform(0.0, np.log(LARGEST_ANGLE * 2.0 / np.pi), 2000))) * (np.pi / 2.0)
    angles = np.concatenate([multiples, -multiples, rng.uniform(-LARGEST_ANGLE, LARGEST_ANGLE, 2000)])
    found, status = run(program, {"x": angles[:, None]}, len(angles), PROCESSORS[name], 1)
    assert not status.any()
    np.testing.assert_allclose(found["y"], np.stack([np.sin(angles), np.cos(angles)], axis=1), rtol=4e-16, atol=0.0)
