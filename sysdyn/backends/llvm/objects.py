"""Objects for microcontrollers: NAME_run of exported C as machine code of their processors.

The code has no loops and calls nothing outside. Its instructions are counted, in the text that LLVM writes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from sysdyn.backends.llvm.driver import SUMS
from sysdyn.backends.llvm.emitter import Emitter
from sysdyn.backends.llvm.registers import arranged
from sysdyn.backends.llvm.segments import BLOCK_LENGTH
from sysdyn.backends.llvm.target import LOCK, Processor, library
from sysdyn.backends.real import DOUBLE, SINGLE, Real
from sysdyn.errors import BackendUnavailable, ProblemError
from sysdyn.program.collector import no_collection
from sysdyn.program.program import Program
from sysdyn.program.status import BAD_INPUT, BAD_OUTPUT

# Level of LLVM's code generation, that of kernels of one state.
_LEVEL = 2


class Target(NamedTuple):
    """A processor with its name for people, and the types of numbers that it has instructions for."""

    says: str
    processor: Processor
    reals: tuple[Real, ...]


# Targets by name. Arguments that are numbers go through registers of the floating-point unit (eabihf).
_TRIPLE = "thumbv7em-unknown-none-eabihf"
TARGETS: Mapping[str, Target] = {
    "cortex-m4": Target("Cortex-M4F", Processor(_TRIPLE, "cortex-m4", ""), (SINGLE,)),
    "cortex-m7": Target("Cortex-M7", Processor(_TRIPLE, "cortex-m7", "+vfp4d16sp"), (SINGLE, DOUBLE)),
}


class Object(NamedTuple):
    """Machine code as a file. n_work: numbers of the workspace. instructions: that a call executes at most."""

    code: bytes
    n_work: int
    instructions: int


def compile_object(name: str, program: Program, target: Target, real: Real, mark: str) -> Object:
    """`int NAME_run(in, out, work)` of `sysdyn.backends.c.code` for a target. mark: a text in the file.

    Raises ProblemError for numbers that the target has no instructions for, BackendUnavailable.
    """
    says, processor, reals = target
    if real not in reals:
        raise ProblemError(f"a {says} has no instructions for {real.name}: export with real='{reals[0].name}'")
    llvm = library()
    with LOCK, no_collection():
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        try:
            kind = llvm.Target.from_triple(processor.triple)
        except RuntimeError as error:
            raise BackendUnavailable(
                f"the installed llvmlite makes no code for a {says}: leave target= out and compile the C"
            ) from error
        machine = kind.create_target_machine(
            cpu=processor.model, features=processor.features, opt=_LEVEL, reloc="static", codemodel="small"
        )
        emitter = _Function(name, arranged(program, processor.registers), processor, real, mark)
        text = emitter.module()
        code, listing = (make(llvm.parse_assembly(text)) for make in (machine.emit_object, machine.emit_assembly))
    return Object(code, emitter.n_slots, _instructions(listing, f"{name}_run"))


class _Function(Emitter):
    """The kernel of one state as NAME_run: structs are copied to the workspace, and from it."""

    def __init__(self, name: str, program: Program, processor: Processor, real: Real, mark: str):
        super().__init__(program, 1, twins=False, processor=processor, real=real)
        self.name, self.mark = name, mark

    def module(self) -> str:
        """The IR text; LLVM fuses no products with sums but those that it names, on every processor."""
        return super().module().replace(" contract ", " ")

    def _driver(self, calls: list[str]) -> str:
        inward, first = self._moved("%in", "%work", self.program.n_inputs, "i", BAD_INPUT)
        outward, last = self._moved("%results", "%out", self.program.n_outputs, "o", BAD_OUTPUT)
        bits = self.int
        return "\n".join([
            f"define i32 @{self.name}_run(ptr noalias %in, ptr noalias %out, ptr noalias %work) #0 {{",
            *inward,
            self.address("%flags", self.status_slot),
            f"  store {bits} {first}, ptr %flags",
            *calls,
            self.address("%results", self.program.n_inputs),
            *outward,
            f"  %kept = load {bits}, ptr %flags",
            f"  %all = or {bits} %kept, {last}",
            *([] if bits == "i32" else [f"  %status = trunc {bits} %all to i32"]),
            f"  ret i32 {'%all' if bits == 'i32' else '%status'}",
            "}",
        ])  # fmt: skip

    def _moved(self, source: str, to: str, n: int, way: str, bit: int) -> tuple[list[str], str]:
        """(lines that copy n numbers, the name of `bit` if one of them is not finite, else of 0)."""
        num, lines, sums = self.num, list[str](), ["0.0"] * SUMS
        for k in range(n):
            if k and k % BLOCK_LENGTH == 0:
                lines += [f"  br label %{way}b{k}", f"{way}b{k}:"]
            lines += [
                f"  %{way}s{k} = getelementptr {num}, ptr {source}, i32 {k}",
                f"  %{way}d{k} = getelementptr {num}, ptr {to}, i32 {k}",
                f"  %{way}v{k} = load {num}, ptr %{way}s{k}",
                f"  store {num} %{way}v{k}, ptr %{way}d{k}",
                f"  %{way}z{k} = fmul {num} %{way}v{k}, 0.0",
                f"  %{way}t{k} = fadd {num} {sums[k % SUMS]}, %{way}z{k}",
            ]
            sums[k % SUMS] = f"%{way}t{k}"
        total = sums[0]
        for k in range(1, SUMS):
            lines.append(f"  %{way}u{k} = fadd {num} {total}, {sums[k]}")
            total = f"%{way}u{k}"
        lines += [
            f"  %{way}bad = fcmp uno {num} {total}, 0.0",
            f"  %{way}flags = select i1 %{way}bad, {self.int} {bit}, {self.int} 0",
        ]
        return lines, f"%{way}flags"

    def _attributes(self) -> str:
        return f'attributes #0 = {{ nounwind }}\n!llvm.ident = !{{!0}}\n!0 = !{{!"{self.mark}"}}'


def _instructions(listing: str, name: str) -> int:
    """Number of instructions of a function and its callees, both ways of branches; calls of others are errors."""
    own: dict[str, int] = {}
    called: dict[str, list[str]] = {}
    current = ""
    for line in listing.splitlines():
        if label := re.match(r"([A-Za-z_]\w*):", line):
            current = label[1]
            own[current], called[current] = 0, []
        elif re.match(r"\t[a-z]", line) and current:
            own[current] += 1
            if call := re.match(r"\t(?:bl|b)\t([A-Za-z_]\w*)$", line.rstrip()):
                called[current].append(call[1])

    def count(function: str) -> int:
        return own[function] + sum(map(count, called[function]))

    return count(name)
