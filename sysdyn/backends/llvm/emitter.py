"""Textual LLVM IR of programs.

One emitter makes the scalar kernel and the SIMD kernel, in which every value is a vector of `width` states."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from sysdyn.backends.assembler.encoding import Encoder
from sysdyn.backends.assembler.straight import Straight, assembles, straight
from sysdyn.backends.llvm.driver import Driver, Run
from sysdyn.backends.llvm.instructions import declared
from sysdyn.backends.llvm.segments import (
    Access,
    FromTables,
    Inline,
    SideBySide,
    angles,
    operations,
    pack_width,
    watching,
)
from sysdyn.backends.llvm.sincos import sincos_function
from sysdyn.backends.llvm.target import simd_width
from sysdyn.backends.llvm.types import Types, double
from sysdyn.backends.schedule import MAX_OPS, Schedule, Segment, Shape, schedule
from sysdyn.program.operations import ANGULAR
from sysdyn.program.program import Program
from sysdyn.program.status import BAD_INPUT, BAD_OUTPUT, OUT_OF_RANGE

# Segments that are assembled here have at most so many operations.
LONGEST = 50_000
# A function copies at most so many outputs, as compile time grows faster than linearly.
MAX_COPIES = 500
# Registers of angles whose sines and cosines are computed together, and share the constants.
SHARING = 2
# The scalar kernel copies so many doubles at a time.
CHUNK = 4
# Machine code is written down in lines of so many words.
LINE = 32
# Outputs that are at least so many places apart are written separately, without the constant zeros in between.
LEAST_GAP = 4


# Registers of the widest kind that are kept on the stack begin at its lines: `run` aligns it, the rest relies on that.
_STACK = """!llvm.module.flags = !{!0}
!0 = !{i32 1, !"override-stack-alignment", i32 64}
attributes #1 = { "stackrealign" }
"""


@dataclass
class _Code:
    """What the segments come to: functions, calls of them in order, and the tables that some calls point into.

    names: of the shapes whose code is shared.
    """

    functions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    names: dict[Shape, str] = field(default_factory=dict)

    def call(self, name: str, *tables: str) -> None:
        self.calls.append(f"  call void @{name}({', '.join(['ptr %work', *tables])})")

    def next_constants(self) -> str:
        return f"ptr getelementptr (double, ptr @constants, i64 {len(self.constants)})"

    def next_places(self) -> str:
        return f"ptr getelementptr (i64, ptr @places, i64 {len(self.places)})"


class Emitter(Types):
    """zeros: outputs that are the constant 0 are written, too. encoder: of the segments that are assembled here.

    twins: limbs that are alike are looked for.
    """

    def __init__(
        self, program: Program, width: int, zeros: bool = True, encoder: Encoder | None = None, twins: bool = True
    ):  # fmt: skip
        super().__init__(width)
        self.program, self.encoder, self.twins = program, encoder, twins
        self.plan = plan = self._scheduled()
        self.runs = _runs(program, np.ones(program.n_outputs, dtype=bool) if zeros else ~program.zero_outputs)
        written = {place + k for _, _, length, place in self.runs for k in range(length)}
        self.copies = [(place, value) for place, value in plan.copies if place in written]
        self.watched = plan.n_slots  # where values that guards look at are put together
        watched = sum(len(segment.shape.guards) for segment in plan.segments if self._is_straight(segment))
        self.straight = {
            k: self._assembled(segment, plan.n_slots + watched)
            for k, segment in enumerate(plan.segments)
            if self._is_straight(segment)
        }
        self.status_slot = plan.n_slots + watched + max((x.spilled for x in self.straight.values()), default=0)
        self.n_slots = self.status_slot
        # Angles of which sines and cosines are taken together: a register's worth, or registers that share constants.
        self.together = simd_width() if width == 1 else SHARING

    def _scheduled(self) -> Schedule:
        """Segments as long as they can be assembled, or short enough for LLVM."""
        lanes = simd_width() if self.width == 1 else 1
        if self.encoder:
            plan = schedule(self.program, lanes, LONGEST)
            if all(self._is_straight(segment) or len(segment.shape.kind) <= MAX_OPS for segment in plan.segments):
                return plan
        return schedule(self.program, lanes)

    def _is_straight(self, segment: Segment) -> bool:
        return bool(self.encoder) and not (segment.shared or segment.beside) and assembles(segment.shape)

    def _assembled(self, segment: Segment, free: int) -> Straight:
        slot, n = self.plan.slot, len(segment.shape.guards)
        assert self.encoder
        reads, writes = ([int(slot[v]) for v in values] for values in (segment.reads, segment.writes))
        watched = range(self.watched, self.watched + n)
        return straight(segment, reads, writes, watched, free, self.encoder, self.twins)

    def module(self) -> str:
        """The IR text."""
        code = _Code()
        if self.program.ranges:
            code.functions.append(self._function("ranges", "", self._ranges()))
            code.call("ranges")
        for k, segment in enumerate(self.plan.segments):
            if k in self.straight:
                self._add_straight(code, f"segment_{k}", segment, self.straight[k])
            else:
                self._add_segment(code, f"segment_{k}", segment)
        self._add_copies(code)
        parts = [
            _table("constants", "double", [double(c) for c in code.constants]),
            _table("places", "i64", [str(p * self.width) for p in code.places]),
            *self._declarations(),
            *self._sincos(),
            *code.functions,
            self._driver(code.calls),
            self._attributes(),
        ]
        return "\n".join(parts)

    # ---- functions and calls -----------------------------------------------------------------------------------

    def _add_segment(self, code: _Code, name: str, segment: Segment) -> None:
        """The segment's function, unless there is one of its shape already, and the call of it."""
        slot = self.plan.slot
        if segment.shared:
            shape = segment.shape
            if shape not in code.names:
                code.names[shape] = f"shape_{len(code.names)}"
                code.functions.append(self._computing(code.names[shape], shape, FromTables(self, shape)))
            code.call(code.names[shape], code.next_constants(), code.next_places())
            code.constants += segment.constants
            code.places += [int(slot[v]) for v in (*segment.reads, *segment.writes)]
        elif segment.beside:
            code.functions.append(self._computing(name, segment.shape, SideBySide(slot, segment)))
            code.call(name)
        elif segment.shape.angles:
            code.functions.append(self._function(name, "", angles(segment, slot, self, self.together)))
            code.call(name)
        else:
            code.functions.append(self._computing(name, segment.shape, Inline(self, slot, segment)))
            code.call(name, code.next_constants())
            code.constants += segment.constants

    def _add_straight(self, code: _Code, name: str, segment: Segment, made: Straight) -> None:
        """The segment's machine code, a call of it, and one of what looks at its guards."""
        words = struct.unpack(f"<{-(-len(made.code) // 8)}Q", made.code + bytes(-len(made.code) % 8))
        lines = [", ".join(map(hex, words[k : k + LINE])) for k in range(0, len(words), LINE)]
        asm = [".text", ".p2align 6", f"{name}:", *(f".quad {line}" for line in lines)]
        code.functions += [*(f'module asm "{line}"' for line in asm), f"declare void @{name}(ptr, ptr)"]
        code.call(name, code.next_constants())
        code.constants += made.constants
        if segment.shape.guards:
            limits = [(segment.constants[a], segment.constants[b]) for _, a, b in segment.shape.guards]
            watched = watching(self, limits, self.watched, self.status_slot)
            code.functions.append(self._function(f"{name}_guards", "", watched))
            code.call(f"{name}_guards")

    def _ranges(self) -> list[str]:
        """status |= OUT_OF_RANGE where an input is beyond its range."""
        far, good = self.integer(OUT_OF_RANGE), self.integer(0)
        lines = [
            f"  %status = getelementptr double, ptr %work, i64 {self.status_slot * self.width}",
            f"  %s0 = load {self.ints}, ptr %status, align {self.align}",
        ]
        for k, (number, most) in enumerate(self.program.ranges):
            lines += [
                f"  %p{k} = getelementptr double, ptr %work, i64 {int(self.plan.slot[number]) * self.width}",
                f"  %x{k} = load {self.vec}, ptr %p{k}, align {self.align}",
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

    def _computing(self, name: str, shape: Shape, access: Access) -> str:
        return self._function(name, access.parameters, operations(shape, access, self.status_slot))

    def _copying(self, name: str, copies: list[tuple[int, int]]) -> str:
        """Outputs that no operation writes: inputs, constants, repeated outputs."""
        program, lines = self.program, []
        for k, (place, value) in enumerate(copies):
            if program.n_inputs <= value < program.first_op:
                what = self.constant(float(program.constants[value - program.n_inputs]))
            else:
                lines.append(
                    f"  %p{k} = getelementptr double, ptr %work, i64 {int(self.plan.slot[value]) * self.width}"
                )
                lines.append(f"  %x{k} = load {self.vec}, ptr %p{k}, align {self.align}")
                what = f"%x{k}"
            lines.append(f"  %w{k} = getelementptr double, ptr %work, i64 {place * self.width}")
            lines.append(f"  store {self.vec} {what}, ptr %w{k}, align {self.align}")
        return self._function(name, "", lines)

    def _function(self, name: str, parameters: str, body: list[str]) -> str:
        head = f"define internal void @{name}(ptr %work{parameters}) noinline #0 {{"
        return "\n".join([head, *body, "  ret void", "}"])

    # ---- around them -------------------------------------------------------------------------------------------

    def _widths(self) -> set[int]:
        """Lanes of what sines and cosines are taken of: single values, and angles together."""
        return {self.width, self.together * self.width}

    def _declarations(self) -> list[str]:
        packs = {pack_width(segment) for segment in self.plan.segments if segment.beside}
        watched = {1 << k for k in range(1, simd_width().bit_length())} if self.width == 1 else set()
        by_driver = min(CHUNK, simd_width())
        lines = []
        for width in sorted(self._widths() | packs | watched):
            types = Types(width)
            lines += declared(types)
            if width in watched:
                lines.append(f"declare i64 @llvm.vector.reduce.or.v{width}i64({types.ints})")
            if width in packs - {by_driver}:
                vec, suffix = types.vec, types.suffix
                lines += [
                    f"declare {vec} @llvm.masked.load.{suffix}.p0(ptr, i32, {types.bits}, {vec})",
                    f"declare void @llvm.masked.store.{suffix}.p0({vec}, ptr, i32, {types.bits})",
                ]
        return lines

    def _sincos(self) -> list[str]:
        if not np.isin(self.program.kind, ANGULAR).any():
            return []
        return [sincos_function(Types(width)) for width in sorted(self._widths())]

    def _driver(self, calls: list[str]) -> str:
        groups = [size for _, size in self.program.input_groups]
        inputs = [Run(2 + 2 * k, 0, size, sum(groups[:k])) for k, size in enumerate(groups) if size]
        outputs = [Run(2 + 2 * (len(groups) + group), first, size, place) for group, first, size, place in self.runs]
        made = Driver(self.width, min(CHUNK, simd_width()), self.status_slot)
        return made.functions(inputs, outputs, calls, (BAD_INPUT, BAD_OUTPUT))

    def _attributes(self) -> str:
        bits = 64 * max(self.width, simd_width())
        widths = f'"min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}"'
        return f"{_STACK}attributes #0 = {{ nounwind {widths} }}"


def _table(name: str, kind: str, entries: list[str]) -> str:
    entries = entries or ["0" if kind == "i64" else "0.0"]
    values = ", ".join(f"{kind} {x}" for x in entries)
    return f"@{name} = internal constant [{len(entries)} x {kind}] [{values}]"


def _runs(program: Program, wanted: np.ndarray) -> list[tuple[int, int, int, int]]:
    """(group, first, length, place) of runs that hold all wanted outputs, and others only where few lie between."""
    found, offset = [], 0
    for g, (_, size) in enumerate(program.output_groups):
        marked = np.flatnonzero(wanted[offset : offset + size])
        for part in np.split(marked, np.flatnonzero(np.diff(marked) >= LEAST_GAP) + 1):
            if len(part):
                first, last = int(part[0]), int(part[-1])
                found.append((g, first, last - first + 1, program.n_inputs + offset + first))
        offset += size
    return found
