"""Textual LLVM IR of programs.

One emitter makes the scalar kernel and the SIMD kernel, in which every value is a vector of `width` states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sysdyn.codegen.instruction_order import contract, schedule_instructions
from sysdyn.codegen.llvm.segments import (
    IndirectAccess,
    InlineAccess,
    OperandAccess,
    PackedAccess,
    check_pivots,
    instruction_lines,
    pack_width,
    trig_lines,
)
from sysdyn.codegen.llvm.sincos import sincos_function, wrapped_function
from sysdyn.codegen.llvm.target import Processor, host_processor
from sysdyn.codegen.llvm.types import Types
from sysdyn.codegen.partition import MAX_OPS, Segment, SegmentTemplate, partition
from sysdyn.codegen.slp import LaneOperation, scalar_operations, slp_vectorise
from sysdyn.program.opcodes import ANGULAR, OUT_OF_RANGE, WRAP
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE, Real
from sysdyn.runtime.spans import output_spans

# Longest program that stays one segment and is SLP vectorised; longer ones compile slowly (chosen).
MAX_UNSPLIT_OPS = 20_000
# Number of pivots per check function (chosen).
PIVOTS_PER_CHECK = 64
# Largest number of output copies per function: compile time grows faster than linearly (chosen).
MAX_COPIES = 500
# Number of calls of the prefetch function within the body of a batch kernel (chosen).
PAUSES = 4
# Vector registers of angles per call of a sine-cosine function; they share its constants (chosen).
REGISTERS_PER_SINCOS = 2

# Stack alignment for spilled vector registers. `body` aligns the stack; internal functions rely on it.
_STACK = """!llvm.module.flags = !{!0}
!0 = !{i32 1, !"override-stack-alignment", i32 64}
attributes #1 = { "stackrealign" }
"""


@dataclass
class _Code:
    """Emitted code: functions, their calls in execution order, and the constant and slot tables of outlined functions.

    names: {outlined template: its function}. limits: thresholds of the pivots that are not yet checked.
    """

    functions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    names: dict[SegmentTemplate, str] = field(default_factory=dict)
    limits: list[tuple[float, float]] = field(default_factory=list)

    def call(self, name: str, *tables: str) -> None:
        self.calls.append(f"  call void @{name}({', '.join(['ptr %work', *tables])})")

    def next_constants(self, num: str) -> str:
        return f"ptr getelementptr ({num}, ptr @constants, i64 {len(self.constants)})"

    def next_places(self) -> str:
        return f"ptr getelementptr (i64, ptr @places, i64 {len(self.places)})"


class Emitter(Types):
    """LLVM module of a kernel: its function `body` computes `width` states in a workspace.

    level: optimisation level. Level 0 neither schedules instructions nor applies SLP vectorisation.
    """

    def __init__(
        self, program: Program, width: int, level: int = 2, processor: Processor | None = None, real: Real = DOUBLE
    ):
        super().__init__(width, real)
        self.program, self.processor = program, processor or host_processor()
        self.register = self.processor.lanes(real)
        # Lanes of a vector register for a kernel of one state; a batch kernel has a state per lane.
        self.lanes = self.register if width == 1 else 1
        self.level, whole = level, level > 0 and len(program) <= MAX_UNSPLIT_OPS
        self.vectorises = whole and width == 1
        self.plan = plan = partition(program, self.lanes, MAX_UNSPLIT_OPS if whole else MAX_OPS)
        spans = output_spans(program).tolist()
        written = {slot + k for _, _, size, slot, zero in spans if not zero for k in range(size)}
        self.copies = [(place, value) for place, value in plan.output_copies if place in written]
        # Pivots that are not yet checked have adjacent slots.
        self.first_pivot_slot = plan.n_slots
        most_pivots = max((len(segment.template.guards) for segment in plan.segments), default=0)
        self.status_slot = self.first_pivot_slot + PIVOTS_PER_CHECK + most_pivots
        self.n_slots = self.status_slot + 1  # spills of the segments add to it
        # Angles per call of a sine-cosine function.
        self.angles_per_call = self.lanes if width == 1 else REGISTERS_PER_SINCOS

    def module(self) -> str:
        """Emit the LLVM IR text."""
        code = _Code()
        if self.program.ranges:
            code.functions.append(self._function("ranges", "", self._ranges()))
            code.call("ranges")
        for k, segment in enumerate(self.plan.segments):
            self._add_segment(code, f"segment_{k}", segment)
            if len(code.limits) >= PIVOTS_PER_CHECK:
                self._check_pivots(code)
        self._check_pivots(code)
        self._add_copies(code)
        parts = [
            _table("constants", self.num, [self.real.llvm_literal(c) for c in code.constants]),
            _table("places", "i64", [str(p * self.width) for p in code.places]),
            *self._declarations(),
            *self._sincos(),
            *code.functions,
            self._body(code.calls),
            self._attributes(),
        ]
        return "\n".join(parts)

    # ---- functions and calls -----------------------------------------------------------------------------------

    def _add_segment(self, code: _Code, name: str, segment: Segment) -> None:
        """Emit the function of a segment and append its call. All segments of an outlined template share a function."""
        slot, template, size = self.plan.workspace_slot, segment.template, len(segment.template.kind)
        pivot_slots = [self.first_pivot_slot + len(code.limits) + k for k in range(len(template.guards))]
        code.limits += [(segment.constants[a], segment.constants[b]) for _, a, b in template.guards]
        if segment.kind == "outlined":
            if template not in code.names:
                code.names[template] = f"template_{len(code.names)}"
                access: OperandAccess = IndirectAccess(self, template)
                code.functions.append(self._computing(code.names[template], access, scalar_operations(template), size))
            code.call(code.names[template], code.next_constants(self.num), code.next_places())
            code.constants += segment.constants
            code.places += [*(int(slot[v]) for v in (*segment.reads, *segment.writes)), *pivot_slots]
        elif segment.kind == "packed":
            access = PackedAccess(self, slot, segment)
            code.functions.append(self._computing(name, access, scalar_operations(template), size))
            code.call(name)
        elif segment.kind == "trig":
            code.functions.append(self._function(name, "", trig_lines(segment, slot, self, self.angles_per_call)))
            code.call(name)
        else:
            both = slp_vectorise(segment) if self.vectorises else None
            what, constants = both or (scalar_operations(template), segment.constants)
            inline = InlineAccess(self, slot, segment, constants, pivot_slots, code.constants)
            code.functions.append(self._computing(name, inline, what, size))
            code.call(name)

    def _check_pivots(self, code: _Code) -> None:
        """Emit a function that checks the pivots computed since the previous check, and append its call."""
        if code.limits:
            name = f"guards_{len(code.calls)}"
            body = check_pivots(self, code.limits, self.first_pivot_slot, self.status_slot, self.lanes)
            code.functions.append(self._function(name, "", body))
            code.call(name)
            code.limits.clear()

    def _ranges(self) -> list[str]:
        """Lines that add OUT_OF_RANGE to the status if an input exceeds its range."""
        far, good = self.integer(OUT_OF_RANGE), self.integer(0)
        lines = [
            self.address("%status", self.status_slot * self.width),
            f"  %s0 = load {self.ints}, ptr %status, align {self.align}",
        ]
        for k, (number, most) in enumerate(self.program.ranges):
            lines += [
                *self.load(f"%x{k}", f"%p{k}", int(self.plan.workspace_slot[number]) * self.width),
                f"  %a{k} = call {self.vec} @llvm.fabs.{self.suffix}({self.vec} %x{k})",
                f"  %c{k} = fcmp ogt {self.vec} %a{k}, {self.constant(most)}",
                f"  %b{k} = select {self.bits} %c{k}, {self.ints} {far}, {self.ints} {good}",
                f"  %s{k + 1} = or {self.ints} %s{k}, %b{k}",
            ]
        return [*lines, f"  store {self.ints} %s{len(self.program.ranges)}, ptr %status, align {self.align}"]

    def _add_copies(self, code: _Code) -> None:
        for k in range(0, len(self.copies), MAX_COPIES):
            code.functions.append(self._copying(f"copies_{k}", self.copies[k : k + MAX_COPIES]))
            code.call(f"copies_{k}")

    def _code_share(self, n_operations: int) -> int:
        """Bytes of the instruction cache for a segment, in proportion to its operations; 0 for batch kernels."""
        return self.processor.code_cache * n_operations // len(self.program) if self.width == 1 else 0

    def _computing(self, name: str, access: OperandAccess, what: list[LaneOperation], n_operations: int) -> str:
        free = (self.status_slot + 1) * self.width
        instructions, registers = contract(what, access.written), self.processor.registers
        if self.level:
            instructions = schedule_instructions(instructions, registers, self._code_share(n_operations))
        lines, end = instruction_lines(instructions, access, registers, free)
        self.n_slots = max(self.n_slots, -(-end // self.width))
        return self._function(name, access.parameters, lines)

    def _copying(self, name: str, copies: list[tuple[int, int]]) -> str:
        """Function for outputs that no segment writes. copies: (output slot, value number of the copied value)."""
        program, lines = self.program, []
        for k, (place, value) in enumerate(copies):
            if program.n_inputs <= value < program.first_op:
                what = self.constant(float(program.constants[value - program.n_inputs]))
            else:
                what = f"%x{k}"
                lines += self.load(what, f"%p{k}", int(self.plan.workspace_slot[value]) * self.width)
            lines += self.store(what, f"%w{k}", place * self.width)
        return self._function(name, "", lines)

    def _function(self, name: str, parameters: str, body: list[str]) -> str:
        head = f"define internal void @{name}(ptr %work{parameters}) noinline #0 {{"
        return "\n".join([head, *body, "  ret void", "}"])

    # ---- declarations -----------------------------------------------------------------------------------------

    def _widths(self) -> set[int]:
        """Vector widths of the sine-cosine functions: for one angle per call, and for `angles_per_call` angles."""
        return {self.width, self.angles_per_call * self.width}

    def _declarations(self) -> list[str]:
        packs = {pack_width(segment) for segment in self.plan.segments if segment.packed_with}
        pivot_slots = {1 << k for k in range(1, self.lanes.bit_length())}
        pairs = {2} if self.vectorises else set()
        lines = []
        for width in sorted(self._widths() | packs | pivot_slots | pairs):
            types = self.of(width)
            lines += types.declarations()
            if width in pivot_slots:
                lines.append(f"declare {self.int} @llvm.vector.reduce.or.{types.whole}({types.ints})")
            if width in packs:
                vec, suffix = types.vec, types.suffix
                lines += [
                    f"declare {vec} @llvm.masked.load.{suffix}.p0(ptr, i32, {types.bits}, {vec})",
                    f"declare void @llvm.masked.store.{suffix}.p0({vec}, ptr, i32, {types.bits})",
                ]
        return lines

    def _sincos(self) -> list[str]:
        """Definitions of the sine-cosine and angle-wrapping functions that the program uses, for each vector width."""
        makers = ((ANGULAR, sincos_function), ((WRAP,), wrapped_function))
        made = [make for kinds, make in makers if np.isin(self.program.kind, kinds).any()]
        return [make(self.of(width), self.processor.fuses) for make in made for width in sorted(self._widths())]

    def _body(self, calls: list[str]) -> str:
        """The function body(work, between, context). Batch kernels call between(context) to prefetch rows."""
        pauses = {len(calls) * k // PAUSES for k in range(PAUSES)} if self.width > 1 and calls else set()
        self.n_pauses = len(pauses)
        calls = ["  call void %between(ptr %context)\n" * (k in pauses) + call for k, call in enumerate(calls)]
        head = "define void @body(ptr %work, ptr %between, ptr %context) #0 #1 {"
        return "\n".join([head, *calls, "  ret void", "}"])

    def _attributes(self) -> str:
        bits = self.real.bits * max(self.width, self.register)
        widths = f'"min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}"'
        return f"{_STACK}attributes #0 = {{ nounwind {widths} }}"


def _table(name: str, kind: str, entries: list[str]) -> str:
    entries = entries or ["0" if kind == "i64" else "0.0"]
    values = ", ".join(f"{kind} {x}" for x in entries)
    return f"@{name} = internal constant [{len(entries)} x {kind}] [{values}]"
