"""Textual LLVM IR of programs.

One emitter makes the scalar kernel and the SIMD kernel, in which every value is a vector of `width` states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.backends.llvm import entry
from sysdyn.backends.llvm.driver import Driver, Run
from sysdyn.backends.llvm.instructions import declared, instruction
from sysdyn.backends.llvm.sincos import sincos_function
from sysdyn.backends.llvm.target import simd_width
from sysdyn.backends.llvm.types import Types, double
from sysdyn.backends.schedule import CONSTANT, LOCAL, Segment, Shape, schedule
from sysdyn.program.operations import ANGULAR, SIN
from sysdyn.program.program import Program
from sysdyn.program.status import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT, WEAK_PIVOT

# Several blocks of states in turn: of small programs, as one goes on while another waits for its results; of those that
# are larger than the instruction cache, to use code more than once each time it comes by.
ROUNDS, SMALL_BYTES, LARGE_OPS = 2, 12_000, 4000

MAX_COPIES = 500  # in a function, as compile_kernel time grows faster than linearly
CHUNK = 4  # doubles that the scalar kernel copies at a time
LEAST_GAP = 4  # distance of outputs between which zeros are left out


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


def _pack_width(segment: Segment) -> int:
    """Of the registers that hold a value of each lane."""
    return 1 << (len(segment.lanes) - 1).bit_length()


def _consecutive(places: Sequence[int]) -> list[tuple[int, int]]:
    """(first lane, number of lanes) of the runs of consecutive places."""
    begins = [k for k, place in enumerate(places) if k == 0 or place != places[k - 1] + 1]
    return [(a, b - a) for a, b in zip(begins, [*begins[1:], len(places)], strict=True)]


def _mask(types: Types, first: int, length: int) -> str:
    """The lanes first … first + length − 1."""
    return "<" + ", ".join(f"i1 {int(first <= k < first + length)}" for k in range(types.width)) + ">"


class Emitter(Types):
    def __init__(self, program: Program, width: int, zeros: bool = True):
        super().__init__(width)
        self.program, self.plan = program, schedule(program, simd_width() if width == 1 else 1)
        plan = self.plan
        self.runs = _runs(program, np.ones(program.n_outputs, dtype=bool) if zeros else ~program.zero_outputs)
        written = {place + k for _, _, length, place in self.runs for k in range(length)}
        self.copies = [(place, value) for place, value in plan.copies if place in written]
        self.status_slot = plan.n_slots
        self.block = (plan.n_slots + 1) * width  # doubles of workspace of one block of states
        alone = sum(len(segment.shape.kind) for segment in plan.segments if not segment.shared)
        self.rounds = ROUNDS if width > 1 and (8 * self.block <= SMALL_BYTES or alone > LARGE_OPS) else 1

    def module(self) -> str:
        """The IR text."""
        functions: list[str] = []
        calls: list[str] = []
        constants: list[float] = []
        places: list[int] = []
        names: dict[Shape, str] = {}
        for k, segment in enumerate(self.plan.segments):
            if segment.shared:
                name = names.get(segment.shape)
                if name is None:
                    name = names[segment.shape] = f"shape_{len(names)}"
                    functions.append(self.shared_function(name, segment.shape))
                calls.append(
                    f"  call void @{name}(ptr %work, i64 %rounds, "
                    f"ptr getelementptr (double, ptr @constants, i64 {len(constants)}), "
                    f"ptr getelementptr (i64, ptr @places, i64 {len(places)}))"
                )
                constants.extend(segment.constants)
                places.extend(int(self.plan.slot[v]) for v in (*segment.reads, *segment.writes))
            elif segment.beside:
                functions.append(self.side_by_side_function(f"segment_{k}", segment))
                calls.append(f"  call void @segment_{k}(ptr %work, i64 %rounds)")
            elif segment.shape.angles and self.width == 1:
                functions.append(self.angles_function(f"segment_{k}", segment))
                calls.append(f"  call void @segment_{k}(ptr %work, i64 %rounds)")
            else:
                functions.append(self.inline_function(f"segment_{k}", segment))
                calls.append(
                    f"  call void @segment_{k}(ptr %work, i64 %rounds, "
                    f"ptr getelementptr (double, ptr @constants, i64 {len(constants)}))"
                )
                constants.extend(segment.constants)
        for k in range(0, len(self.copies), MAX_COPIES):
            functions.append(self.copies_function(f"copies_{k}", self.copies[k : k + MAX_COPIES]))
            calls.append(f"  call void @copies_{k}(ptr %work, i64 %rounds)")
        every = (self, Types(simd_width())) if self.width == 1 else (self,)
        packs = {_pack_width(segment) for segment in self.plan.segments if segment.beside}
        parts = [
            _table("constants", "double", [double(c) for c in constants]),
            _table("places", "i64", [str(p * self.width) for p in places]),
        ]
        row = min(CHUNK, simd_width())  # the driver's
        for width in sorted({types.width for types in every} | packs):
            types = Types(width)
            vec, suffix = types.vec, types.suffix
            parts += declared(types)
            if width in packs - {row}:
                parts += [
                    f"declare {vec} @llvm.masked.load.{suffix}.p0(ptr, i32, {types.bits}, {vec})",
                    f"declare void @llvm.masked.store.{suffix}.p0({vec}, ptr, i32, {types.bits})",
                ]
        if np.isin(self.program.kind, ANGULAR).any():
            parts += [sincos_function(types) for types in every]
        parts += functions
        parts += [self.driver(calls), entry.IR]
        bits = 64 * (self.width if self.width > 1 else simd_width())
        parts.append(f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}" }}')
        return "\n".join(parts)

    def function(self, name: str, tables: str, body: list[str]) -> str:
        """A segment: `body` with %work at each block of the pass in turn; without a loop where there is one block."""
        head = f"define internal void @{name}(ptr %{{}}, i64 %rounds{tables}) noinline #0 {{{{"
        if self.rounds == 1:
            return "\n".join([head.format("work"), *body, "  ret void", "}"])
        return "\n".join([
            head.format("blocks"),
            "entry:",
            "  br label %loop",
            "loop:",
            "  %round = phi i64 [ 0, %entry ], [ %nextround, %loop ]",
            f"  %offset = mul i64 %round, {self.block}",
            "  %work = getelementptr double, ptr %blocks, i64 %offset",
            *body,
            "  %nextround = add i64 %round, 1",
            "  %moreround = icmp slt i64 %nextround, %rounds",
            "  br i1 %moreround, label %loop, label %end",
            "end:",
            "  ret void",
            "}",
        ])  # fmt: skip

    # ---- segments ----------------------------------------------------------------------------------------------

    def inline_function(self, name: str, segment) -> str:
        """The segment with its places written into the code.

        Its constants are read from a table, one address being known: in this code model each address costs ten bytes.
        """
        slot = self.plan.slot

        def read(k: int, to: str) -> list[str]:
            return [
                f"  %p{k} = getelementptr double, ptr %work, i64 {int(slot[segment.reads[k]]) * self.width}",
                f"  {to} = load {self.vec}, ptr %p{k}, align {self.align}",
            ]

        def write(k: int, what: str) -> list[str]:
            return [
                f"  %w{k} = getelementptr double, ptr %work, i64 {int(slot[segment.writes[k]]) * self.width}",
                f"  store {self.vec} {what}, ptr %w{k}, align {self.align}",
            ]

        body = self.body(segment.shape, read, write)
        return self.function(name, ", ptr noalias readonly %constants", body)

    def shared_function(self, name: str, shape: Shape) -> str:
        """The shape with its constants and places read from the caller's tables."""
        n_reads = 1 + max((c // 4 for c in (*shape.lhs, *shape.rhs) if c >= 0 and c % 4 > CONSTANT), default=-1)

        def place(k: int, tag: str) -> list[str]:
            return [
                f"  %a{tag} = getelementptr i64, ptr %places, i64 {k}",
                f"  %o{tag} = load i64, ptr %a{tag}",
                f"  %q{tag} = getelementptr double, ptr %work, i64 %o{tag}",
            ]

        def read(k: int, to: str) -> list[str]:
            return [*place(k, f"r{k}"), f"  {to} = load {self.vec}, ptr %qr{k}, align {self.align}"]

        def write(k: int, what: str) -> list[str]:
            return [*place(n_reads + k, f"w{k}"), f"  store {self.vec} {what}, ptr %qw{k}, align {self.align}"]

        body = self.body(shape, read, write)
        return self.function(name, ", ptr noalias readonly %constants, ptr noalias readonly %places", body)

    def body(self, shape: Shape, read, write, constant=None, types: Types | None = None) -> list[str]:
        """constant, types: those of the whole kernel unless they are given."""
        constant, types = constant or self.table_entry, types or self
        lines: list[str] = []
        known: dict[int, str] = {}
        trig: dict[int, str] = {}
        exported = {local: k for k, local in enumerate(shape.exported)}
        watched = {k: limits for k, *limits in shape.guards}
        vec, suffix = types.vec, types.suffix

        def operand(code: int) -> str:
            number, kind = divmod(code, 4)
            if kind == LOCAL:
                return f"%v{number}"
            found = known.get(code)
            if found is None:
                if kind == CONSTANT:
                    extra, found = constant(number)
                else:
                    found = f"%x{number}"
                    extra = read(number, found)
                lines.extend(extra)
                known[code] = found
            return found

        for k, (kind, a, b) in enumerate(zip(shape.kind, shape.lhs, shape.rhs, strict=True)):
            x = [operand(code) for code in (a, b) if code >= 0]
            if kind not in ANGULAR:
                lines.append(f"  %v{k} = {instruction(kind, types, x)}")
            else:
                pair = trig.get(a)
                if pair is None:
                    pair = trig[a] = f"%t{k}"
                    lines.append(f"  {pair} = call {{ {vec}, {vec} }} @sincos_{suffix}({vec} {x[0]})")
                lines.append(f"  %v{k} = extractvalue {{ {vec}, {vec} }} {pair}, {0 if kind == SIN else 1}")
            if k in exported:
                lines.extend(write(exported[k], f"%v{k}"))
            if k in watched:
                lines.extend(self.guard(k, *(operand(c * 4 + CONSTANT) for c in watched[k])))
        return lines

    def side_by_side_function(self, name: str, segment: Segment) -> str:
        """Equal pieces of one state, each in a lane."""
        lanes, slot = segment.lanes, self.plan.slot
        types = Types(_pack_width(segment))

        def spread(name: str, value: str) -> list[str]:
            return [
                f"  {name}s = insertelement {types.vec} poison, double {value}, i32 0",
                f"  {name} = shufflevector {types.vec} {name}s, {types.vec} poison, "
                f"<{types.width} x i32> zeroinitializer",
            ]

        def constant(k: int) -> tuple[list[str], str]:
            entries = [double(lane.constants[k]) for lane in lanes]
            entries += entries[:1] * (types.width - len(lanes))
            return [], "<" + ", ".join(f"double {x}" for x in entries) + ">"

        def read(k: int, to: str) -> list[str]:
            places = [int(slot[lane.reads[k]]) for lane in lanes]
            if len(set(places)) == 1:
                return [
                    f"  %p{k} = getelementptr double, ptr %work, i64 {places[0]}",
                    f"  %l{k} = load double, ptr %p{k}",
                    *spread(to, f"%l{k}"),
                ]
            lines, value = [], "poison"
            runs = _consecutive(places)
            for n, (lane, length) in enumerate(runs):
                at, next_ = f"%p{k}_{n}", to if n == len(runs) - 1 else f"%r{k}_{n}"
                if len(runs) == 1:  # beyond the last lane there is something that does not matter
                    lines.append(f"  {at} = getelementptr double, ptr %work, i64 {places[0]}")
                    lines.append(f"  {next_} = load {types.vec}, ptr {at}, align 8")
                elif length == 1:
                    lines.append(f"  {at} = getelementptr double, ptr %work, i64 {places[lane]}")
                    lines.append(f"  %l{k}_{n} = load double, ptr {at}")
                    lines.append(f"  {next_} = insertelement {types.vec} {value}, double %l{k}_{n}, i32 {lane}")
                else:
                    mask = _mask(types, lane, length)
                    lines.append(f"  {at} = getelementptr double, ptr %work, i64 {places[lane] - lane}")
                    lines.append(
                        f"  {next_} = call {types.vec} @llvm.masked.load.{types.suffix}.p0"
                        f"(ptr {at}, i32 8, {types.bits} {mask}, {types.vec} {value})"
                    )
                value = next_
            return lines

        def write(k: int, what: str) -> list[str]:
            places = [int(slot[lane.writes[k]]) for lane in lanes]
            lines = []
            for n, (lane, length) in enumerate(_consecutive(places)):
                at = f"%w{k}_{n}"
                lines.append(f"  {at} = getelementptr double, ptr %work, i64 {places[lane] - lane * (length > 1)}")
                if length == types.width:
                    lines.append(f"  store {types.vec} {what}, ptr {at}, align 8")
                elif length == 1:
                    lines.append(f"  %e{k}_{n} = extractelement {types.vec} {what}, i32 {lane}")
                    lines.append(f"  store double %e{k}_{n}, ptr {at}")
                else:
                    mask = _mask(types, lane, length)
                    lines.append(
                        f"  call void @llvm.masked.store.{types.suffix}.p0"
                        f"({types.vec} {what}, ptr {at}, i32 8, {types.bits} {mask})"
                    )
            return lines

        return self.function(name, "", self.body(segment.shape, read, write, constant, types))

    def angles_function(self, name: str, segment) -> str:
        """Sines and cosines of one state, as many at a time as a register holds."""
        lanes, slot = Types(simd_width()), self.plan.slot
        lines = []
        for start in range(0, len(segment.reads), lanes.width):
            angles = segment.reads[start : start + lanes.width]
            packed = "zeroinitializer"
            for k, value in enumerate(angles, start):
                lines += [
                    f"  %p{k} = getelementptr double, ptr %work, i64 {int(slot[value])}",
                    f"  %x{k} = load double, ptr %p{k}",
                    f"  %in{k} = insertelement {lanes.vec} {packed}, double %x{k}, i32 {k - start}",
                ]
                packed = f"%in{k}"
            pair = f"{{ {lanes.vec}, {lanes.vec} }}"
            lines += [
                f"  %pair{start} = call {pair} @sincos_{lanes.suffix}({lanes.vec} {packed})",
                f"  %sin{start} = extractvalue {pair} %pair{start}, 0",
                f"  %cos{start} = extractvalue {pair} %pair{start}, 1",
            ]
        for value, local in zip(segment.writes, segment.shape.exported, strict=True):
            lane, function = segment.shape.lhs[local] // 4, "sin" if segment.shape.kind[local] == SIN else "cos"
            start = lane // lanes.width * lanes.width
            lines += [
                f"  %v{local} = extractelement {lanes.vec} %{function}{start}, i32 {lane - start}",
                f"  %w{local} = getelementptr double, ptr %work, i64 {int(slot[value])}",
                f"  store double %v{local}, ptr %w{local}",
            ]
        return self.function(name, "", lines)

    def table_entry(self, k: int) -> tuple[list[str], str]:
        """(lines, name) of the segment's constant k in all lanes."""
        lines = [f"  %ck{k} = getelementptr double, ptr %constants, i64 {k}", f"  %cs{k} = load double, ptr %ck{k}"]
        if self.width == 1:
            return lines, f"%cs{k}"
        lines += [
            f"  %ci{k} = insertelement {self.vec} poison, double %cs{k}, i32 0",
            f"  %c{k} = shufflevector {self.vec} %ci{k}, {self.vec} poison, <{self.width} x i32> zeroinitializer",
        ]
        return lines, f"%c{k}"

    def guard(self, k: int, limit: str, weak_limit: str) -> list[str]:
        """status |= BAD_PIVOT where |v_k| is below its limit, WEAK_PIVOT below the weak one; both if not a number."""
        bad, weak, good = (self.integer(x) for x in (BAD_PIVOT | WEAK_PIVOT, WEAK_PIVOT, 0))
        return [
            f"  %ga{k} = call {self.vec} @llvm.fabs.{self.suffix}({self.vec} %v{k})",
            f"  %gb{k} = fcmp ult {self.vec} %ga{k}, {limit}",
            f"  %gn{k} = fcmp ult {self.vec} %ga{k}, {weak_limit}",
            f"  %gs{k} = select {self.bits} %gn{k}, {self.ints} {weak}, {self.ints} {good}",
            f"  %gc{k} = select {self.bits} %gb{k}, {self.ints} {bad}, {self.ints} %gs{k}",
            f"  %gp{k} = getelementptr double, ptr %work, i64 {self.status_slot * self.width}",
            f"  %gd{k} = load {self.ints}, ptr %gp{k}, align {self.align}",
            f"  %ge{k} = or {self.ints} %gd{k}, %gc{k}",
            f"  store {self.ints} %ge{k}, ptr %gp{k}, align {self.align}",
        ]

    def copies_function(self, name: str, copies: list[tuple[int, int]]) -> str:
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
        return self.function(name, "", lines)

    # ---- driver ------------------------------------------------------------------------------------------------

    def driver(self, calls: list[str]) -> str:
        groups = [size for _, size in self.program.input_groups]
        inputs = [Run(2 + 2 * k, 0, size, sum(groups[:k])) for k, size in enumerate(groups) if size]
        outputs = [Run(2 + 2 * (len(groups) + group), first, size, place) for group, first, size, place in self.runs]
        made = Driver(self.width, min(CHUNK, simd_width()), self.rounds, self.block, self.status_slot)
        return made.functions(inputs, outputs, calls, (BAD_INPUT, BAD_OUTPUT))
