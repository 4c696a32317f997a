"""LLVM IR of segments: access to their operands and results, instructions, sines and cosines, checks of pivots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from sysdyn.codegen.instruction_order import Instruction, belady_spills
from sysdyn.codegen.llvm.types import Types
from sysdyn.codegen.partition import CONSTANT, EXTERNAL, Segment, SegmentTemplate
from sysdyn.codegen.slp import EXTRACT_HIGH, INSERT, LaneConstant
from sysdyn.program.opcodes import ANGULAR, BAD_PIVOT, SIN, WEAK_PIVOT

# Instructions per basic block: compile time grows faster than linearly with the length of a block. Blocks four times
# as long run no faster (measured).
BLOCK_LENGTH = 64


class OperandAccess(ABC):
    """How the function of a segment loads its operands and stores its results.

    types: IR types of the registers. parameters: IR parameters of the function, in addition to the workspace. written:
    operations whose results are stored.
    """

    parameters: str = ""

    def __init__(self, types: Types, written: Iterable[int]):
        self.types, self.written = types, frozenset(written)

    @abstractmethod
    def read(self, k: int, to: str) -> list[str]:
        """Lines that load the k-th external value into the register `to`."""

    @abstractmethod
    def write(self, k: int, what: str) -> list[str]:
        """Lines that store the register `what` as the result of operation k."""

    @abstractmethod
    def constant(self, k: int, to: str) -> tuple[list[str], str]:
        """(lines, operand) of the k-th constant in all lanes: a literal, or the register `to` after a load."""

    def _from_table(self, pointer: str, to: str) -> list[str]:
        """Lines that load a constant and broadcast it to all lanes."""
        vec, width, num = self.types.vec, self.types.width, self.types.num
        one = to if width == 1 else f"{to}s"
        lines = [f"  {one} = load {num}, ptr {pointer}, !invariant.load !{{}}"]
        if width > 1:
            lines += [
                f"  {to}i = insertelement {vec} poison, {num} {one}, i32 0",
                f"  {to} = shufflevector {vec} {to}i, {vec} poison, <{width} x i32> zeroinitializer",
            ]
        return lines


class InlineAccess(OperandAccess):
    """Operand access of a segment with its own function: offsets in the workspace are literals in the code.

    slot: workspace slot of each value of the program. constants: scalar or two-lane constants. pivot_slots: slot for
    each guarded pivot. table: table of constants of the module; the segment appends its constants.
    """

    def __init__(
        self, types: Types, slot: np.ndarray, segment: Segment, constants: Sequence[LaneConstant],
        pivot_slots: Sequence[int], table: list[float],
    ):  # fmt: skip
        writes = [*zip(segment.template.exported, slot[segment.writes].tolist(), strict=True)]
        writes += zip((k for k, *_ in segment.template.guards), pivot_slots, strict=True)
        super().__init__(types, (k for k, _ in writes))
        self._reads = [place * types.width for place in slot[segment.reads].tolist()]
        self._writes: dict[int, list[int]] = defaultdict(list)
        for k, place in writes:
            self._writes[k].append(place * types.width)
        self._constants, self._table = constants, table
        self._numbers: dict[LaneConstant, int] = {}

    def read(self, k: int, to: str) -> list[str]:
        return self.types.load(to, f"{to}p", self._reads[k])

    def write(self, k: int, what: str) -> list[str]:
        lines = []
        for n, place in enumerate(self._writes[k]):
            lines += self.types.store(what, f"%w{k}_{n}", place)
        return lines

    def constant(self, k: int, to: str) -> tuple[list[str], str]:
        value = self._constants[k]
        if value not in self._numbers:
            self._numbers[value] = len(self._table)
            self._table.extend(value if isinstance(value, tuple) else [value])
        pointer = f"getelementptr ({self.types.num}, ptr @constants, i64 {self._numbers[value]})"
        if isinstance(value, tuple):
            both = self.types.of(2)
            return [f"  {to} = load {both.vec}, ptr {pointer}, align {both.size}, !invariant.load !{{}}"], to
        return self._from_table(pointer, to), to


class IndirectAccess(OperandAccess):
    """Operand access of a function that all segments of a template share: the caller passes a table of offsets.

    The table lists the slots of the operands, then of the exported results, then of the guarded pivots.
    """

    parameters = ", ptr noalias readonly %constants, ptr noalias readonly %places"

    def __init__(self, types: Types, template: SegmentTemplate):
        writes = (*template.exported, *(k for k, *_ in template.guards))
        super().__init__(types, writes)
        codes = [c for c in (*template.lhs, *template.rhs) if c >= 0 and c % 4 == EXTERNAL]
        self._writes: dict[int, list[int]] = defaultdict(list)
        for number, k in enumerate(writes, 1 + max((c // 4 for c in codes), default=-1)):
            self._writes[k].append(number)

    def read(self, k: int, to: str) -> list[str]:
        return [*self._place(k, to[1:]), f"  {to} = load {self.types.vec}, ptr %q{to[1:]}, align {self.types.align}"]

    def write(self, k: int, what: str) -> list[str]:
        lines = []
        for number in self._writes[k]:
            store = f"  store {self.types.vec} {what}, ptr %qw{number}, align {self.types.align}"
            lines += [*self._place(number, f"w{number}"), store]
        return lines

    def constant(self, k: int, to: str) -> tuple[list[str], str]:
        """Load a constant from the table that the caller passes."""
        return [
            f"  {to}k = getelementptr {self.types.num}, ptr %constants, i64 {k}",
            *self._from_table(f"{to}k", to),
        ], to

    def _place(self, k: int, tag: str) -> list[str]:
        return [
            f"  %a{tag} = getelementptr i64, ptr %places, i64 {k}",
            f"  %o{tag} = load i64, ptr %a{tag}",
            f"  %q{tag} = getelementptr {self.types.num}, ptr %work, i64 %o{tag}",
        ]


class PackedAccess(OperandAccess):
    """Operand access of a packed segment: one function computes several equal segments of one state, one per SIMD lane.

    lanes: segment of each lane. reads: slot in each lane, per external value. writes: {operation: slot in each lane}.
    """

    def __init__(self, types: Types, slot: np.ndarray, segment: Segment):
        super().__init__(types.of(pack_width(segment)), segment.template.exported)
        self.lanes = segment.instances
        self.reads = [[int(slot[v]) for v in values] for values in zip(*(x.reads for x in self.lanes), strict=True)]
        writes = zip(*(x.writes for x in self.lanes), strict=True)
        self.writes = {
            k: [int(slot[v]) for v in values] for k, values in zip(segment.template.exported, writes, strict=True)
        }

    def constant(self, k: int, to: str) -> tuple[list[str], str]:
        """A vector literal with one constant per lane."""
        entries = [lane.constants[k] for lane in self.lanes]
        return [], _numbers(self.types, entries + entries[:1] * (self.types.width - len(entries)))

    def read(self, k: int, to: str) -> list[str]:
        places, vec = self.reads[k], self.types.vec
        if len(set(places)) == 1:
            return [
                *self.types.of(1).load(f"{to}l", f"{to}p", places[0]),
                f"  {to}s = insertelement {vec} poison, {self.types.num} {to}l, i32 0",
                f"  {to} = shufflevector {vec} {to}s, {vec} poison, <{self.types.width} x i32> zeroinitializer",
            ]
        runs = _consecutive(places)
        if len(runs) == 1:  # lanes beyond the last segment are unused
            return self.types.load(to, f"{to}p", places[0], self.types.size)
        lines, value = [], "poison"
        for n, run in enumerate(runs):
            loaded = to if n == len(runs) - 1 else f"{to}j{n}"
            lines += self._load_run(f"{to}n{n}", places, run, value, loaded)
            value = loaded
        return lines

    def _load_run(self, tag: str, places: list[int], run: tuple[int, int], value: str, loaded: str) -> list[str]:
        """IR lines that load a run of consecutive slots into lanes of the vector `value`; the result is `loaded`.

        tag: prefix of names. places: slot of each lane. run: first lane and number of lanes.
        """
        (lane, length), types = run, self.types
        if length == 1:
            return [
                *types.of(1).load(f"{tag}l", f"{tag}p", places[lane]),
                f"  {loaded} = insertelement {types.vec} {value}, {types.num} {tag}l, i32 {lane}",
            ]
        return [
            types.address(f"{tag}p", places[lane] - lane),
            f"  {loaded} = call {types.vec} @llvm.masked.load.{types.suffix}.p0"
            f"(ptr {tag}p, i32 {types.size}, {types.bits} {_mask(types, lane, length)}, {types.vec} {value})",
        ]

    def write(self, k: int, what: str) -> list[str]:
        places, types, lines = self.writes[k], self.types, []
        for n, (lane, length) in enumerate(_consecutive(places)):
            at = f"%w{k}_{n}"
            if length == types.width:
                lines += types.store(what, at, places[lane], types.size)
            elif length == 1:
                lines.append(f"  %e{k}_{n} = extractelement {types.vec} {what}, i32 {lane}")
                lines += types.of(1).store(f"%e{k}_{n}", at, places[lane])
            else:
                lines += [
                    types.address(at, places[lane] - lane),
                    f"  call void @llvm.masked.store.{types.suffix}.p0"
                    f"({types.vec} {what}, ptr {at}, i32 {types.size}, {types.bits} {_mask(types, lane, length)})",
                ]
        return lines


def pack_width(segment: Segment) -> int:
    """Lanes of the registers of a packed segment: a power of 2."""
    return 1 << (len(segment.instances) - 1).bit_length()


def _consecutive(places: Sequence[int]) -> list[tuple[int, int]]:
    """(first lane, number of lanes) of each run of consecutive slots."""
    begins = [k for k, place in enumerate(places) if k == 0 or place != places[k - 1] + 1]
    return [(a, b - a) for a, b in zip(begins, [*begins[1:], len(places)], strict=True)]


def _mask(types: Types, first: int, length: int) -> str:
    """Mask of the lanes first … first + length − 1."""
    return "<" + ", ".join(f"i1 {int(first <= k < first + length)}" for k in range(types.width)) + ">"


# ---- operations ----------------------------------------------------------------------------------------------------


def instruction_lines(
    instructions: Sequence[Instruction], access: OperandAccess, registers: int, free: int
) -> tuple[list[str], int]:  # fmt: skip
    """(IR lines, end of the spill area in the workspace).

    Each result is stored as soon as it is computed. Values beyond the number of registers are spilled to the workspace
    from offset `free` on. Spills by LLVM take 4 % more time in batches (measured on AVX-512).
    """
    made = _Emission(instructions, access, registers, free)
    return made.lines, made.end


class _Emission:
    def __init__(self, instructions: Sequence[Instruction], access: OperandAccess, registers: int, free: int):
        width = access.types.width
        self.access, self.end = access, -(-free // width) * width
        self.lines: list[str] = []
        self._n = 0  # number of names
        self._lanes: dict[int, int] = {}  # result → number of lanes
        self._registers: dict[tuple[int, int], str] = {}  # (operand, number of lanes) → register
        self._pairs: dict[int, str] = {}  # angle → register of its sine and cosine
        self._spilled: dict[int, int] = {}  # result → spill slot
        self._free_places: dict[int, list[int]] = defaultdict(list)  # spill slots by number of lanes
        last_read = {x: t for t, instruction in enumerate(instructions) for x in instruction.reads}
        loads, stores = belady_spills(instructions, registers)
        for t, (instruction, loaded) in enumerate(zip(instructions, loads, strict=True)):
            if t and t % BLOCK_LENGTH == 0:
                self._next_block(f"block_{t // BLOCK_LENGTH}")
            for x in loaded:
                self._registers.pop((x, 1), None)
                self._registers.pop((x, 2), None)
            for operation in instruction.operations:
                self._add(*operation)
            if instruction.result in stores:
                self._spill(instruction.result)
            for x in instruction.reads:
                if last_read[x] == t and x in self._spilled:
                    self._free_places[self._lanes[x]].append(self._spilled.pop(x))

    def _next_block(self, name: str) -> None:
        """Begin a basic block. A fence prevents LLVM from merging it, or its loads, with the previous block."""
        self.lines += ['  fence syncscope("singlethread") seq_cst', f"  br label %{name}", f"{name}:"]

    def _name(self) -> str:
        self._n += 1
        return f"%v{self._n}"

    def _wide(self, lanes: int) -> Types:
        return self.access.types if lanes == 1 else self.access.types.of(lanes)

    def _add(
        self, result: int, kind: int | str, operands: tuple[int, ...], lanes: int, defines: tuple[int, ...]
    ) -> None:
        names = [self._operand(x, 2 if kind == EXTRACT_HIGH else 1 if kind == INSERT else lanes) for x in operands]
        to, types = self._name(), self._wide(lanes)
        if kind == INSERT:
            self.lines += [
                f"  {to}p = insertelement {types.vec} poison, {types.num} {names[0]}, i32 0",
                f"  {to} = insertelement {types.vec} {to}p, {types.num} {names[1]}, i32 1",
            ]
        elif kind == EXTRACT_HIGH:
            self.lines.append(f"  {to} = extractelement {self._wide(2).vec} {names[0]}, i32 1")
        elif kind in ANGULAR:
            self._angular(to, kind, operands[0], names[0])
        else:
            assert isinstance(kind, int)
            self.lines.append(f"  {to} = {types.instruction(kind, names)}")
        self._lanes[result] = lanes
        self._registers[result, lanes] = to
        for lane, k in enumerate(defines):
            if k in self.access.written:
                one = to
                if lanes == 2:
                    one = f"{to}e{lane}"
                    self.lines.append(f"  {one} = extractelement {types.vec} {to}, i32 {lane}")
                self.lines += self.access.write(k, one)

    def _operand(self, code: int, lanes: int) -> str:
        """Register of an operand; loads the operand if no register contains it."""
        if (code, lanes) in self._registers:
            return self._registers[code, lanes]
        (number, kind), to = divmod(code, 4), self._name()
        if kind == CONSTANT:
            lines, name = self.access.constant(number, to)
            self.lines += lines
            return name
        if kind == EXTERNAL:
            self.lines += self.access.read(number, to)
        elif lanes == self._lanes[code]:
            self.lines += self._wide(lanes).load(to, f"{to}p", self._spilled[code], self.access.types.align)
        else:  # low lane of a pair
            self.lines.append(f"  {to} = extractelement {self._wide(2).vec} {self._operand(code, 2)}, i32 0")
        self._registers[code, lanes] = to
        return to

    def _spill(self, result: int) -> None:
        """Spill a result to the workspace."""
        lanes = self._lanes[result]
        types, name, places = self._wide(lanes), self._registers[result, lanes], self._free_places[lanes]
        if not places:
            places.append(self.end)
            self.end += types.width
        self._spilled[result] = place = places.pop()
        self.lines += types.store(name, f"{self._name()}p", place, self.access.types.align)

    def _angular(self, to: str, kind: int | str, angle: int, x: str) -> None:
        """Extract a sine or cosine; both are computed once per angle."""
        types = self.access.types
        pair = f"{{ {types.vec}, {types.vec} }}"
        if angle not in self._pairs:
            self._pairs[angle] = f"{to}t"
            self.lines.append(f"  {to}t = call {pair} @sincos_{types.suffix}({types.vec} {x})")
        self.lines.append(f"  {to} = extractvalue {pair} {self._pairs[angle]}, {0 if kind == SIN else 1}")


def _flags(types: Types, k: int, limit: str, weak_limit: str) -> list[str]:
    """Lines for the status bits %gc{k} of the pivot %v{k}.

    WEAK_PIVOT if its absolute value is below `weak_limit`, BAD_PIVOT as well if it is below `limit`; both for NaN.
    """
    bad, weak, good = (types.integer(x) for x in (BAD_PIVOT | WEAK_PIVOT, WEAK_PIVOT, 0))
    vec, ints, bits = types.vec, types.ints, types.bits
    return [
        f"  %ga{k} = call {vec} @llvm.fabs.{types.suffix}({vec} %v{k})",
        f"  %gb{k} = fcmp ult {vec} %ga{k}, {limit}",
        f"  %gn{k} = fcmp ult {vec} %ga{k}, {weak_limit}",
        f"  %gs{k} = select {bits} %gn{k}, {ints} {weak}, {ints} {good}",
        f"  %gc{k} = select {bits} %gb{k}, {ints} {bad}, {ints} %gs{k}",
    ]


def check_pivots(
    types: Types, limits: Sequence[tuple[float, float]], first: int, status_slot: int, lanes: int
) -> list[str]:  # fmt: skip
    """Lines that check pivots, and add their status bits to the status of the state.

    limits: (threshold, weak threshold) of each pivot. The pivots are in consecutive slots from `first` on. lanes: most
    pivots per vector operation.
    """
    lines = [
        types.address("%at", status_slot * types.width),
        f"  %found0 = load {types.ints}, ptr %at, align {types.align}",
    ]
    found, k = "%found0", 0
    while k < len(limits):
        size = min(lanes, 1 << (len(limits) - k).bit_length() - 1)
        wide = types.of(size * types.width)
        bad, weak = (_numbers(wide, values) for values in zip(*limits[k : k + size], strict=True))
        lines += [
            *wide.load(f"%v{k}", f"%p{k}", (first + k) * types.width, types.size),
            *_flags(wide, k, bad, weak),
        ]
        flags = f"%gc{k}"
        if size > 1:
            lines.append(f"  %any{k} = call {types.int} @llvm.vector.reduce.or.{wide.whole}({wide.ints} {flags})")
            flags = f"%any{k}"
        lines.append(f"  %found{k + size} = or {types.ints} {found}, {flags}")
        k += size
        found = f"%found{k}"
    return [*lines, f"  store {types.ints} {found}, ptr %at, align {types.align}"]


def _numbers(types: Types, values: Sequence[float]) -> str:
    """IR constant from one number per lane, or from a single number for all lanes."""
    if len(values) == 1:
        return types.constant(values[0])
    return "<" + ", ".join(f"{types.num} {types.real.llvm_literal(x)}" for x in values) + ">"


def trig_lines(segment: Segment, slot: np.ndarray, types: Types, angles_per_call: int) -> list[str]:
    """Lines of a "trig" segment: calls of the sine-cosine function, each with a vector of `angles_per_call` angles.

    slot: workspace slot of each value of the program.
    """
    wide, width, lines = types.of(angles_per_call * types.width), types.width, []
    pair = f"{{ {wide.vec}, {wide.vec} }}"
    for start in range(0, len(segment.reads), angles_per_call):
        packed = "zeroinitializer"
        for k, value in enumerate(segment.reads[start : start + angles_per_call], start):
            lines += types.load(f"%x{k}", f"%p{k}", int(slot[value]) * width)
            lines += _insert_part(types, wide, f"%in{k}", packed, f"%x{k}", k - start)
            packed = f"%in{k}"
        lines += [
            f"  %pair{start} = call {pair} @sincos_{wide.suffix}({wide.vec} {packed})",
            f"  %sin{start} = extractvalue {pair} %pair{start}, 0",
            f"  %cos{start} = extractvalue {pair} %pair{start}, 1",
        ]
        for value, local in zip(segment.writes, segment.template.exported, strict=True):
            lane = segment.template.lhs[local] // 4 - start
            function = "sin" if segment.template.kind[local] == SIN else "cos"
            if 0 <= lane < angles_per_call:
                lines += [
                    *_extract_part(types, wide, f"%v{local}", f"%{function}{start}", lane),
                    *types.store(f"%v{local}", f"%w{local}", int(slot[value]) * width),
                ]
    return lines


def _insert_part(types: Types, wide: Types, to: str, packed: str, x: str, k: int) -> list[str]:
    """IR lines that assign `packed`, with the vector x inserted as its k-th part, to the register `to`."""
    n, total = types.width, wide.width
    if total == 1:
        return [f"  {to} = bitcast {types.vec} {x} to {types.vec}"]
    if n == 1:
        return [f"  {to} = insertelement {wide.vec} {packed}, {types.num} {x}, i32 {k}"]
    widened = ", ".join(f"i32 {lane % n}" for lane in range(total))
    merged = ", ".join(f"i32 {lane + total * (lane // n == k)}" for lane in range(total))
    return [
        f"  {to}w = shufflevector {types.vec} {x}, {types.vec} poison, <{total} x i32> <{widened}>",
        f"  {to} = shufflevector {wide.vec} {packed}, {wide.vec} {to}w, <{total} x i32> <{merged}>",
    ]


def _extract_part(types: Types, wide: Types, to: str, packed: str, k: int) -> list[str]:
    """IR lines that assign the k-th part of the wide vector `packed` to the register `to`."""
    n = types.width
    if wide.width == 1:
        return [f"  {to} = bitcast {types.vec} {packed} to {types.vec}"]
    if n == 1:
        return [f"  {to} = extractelement {wide.vec} {packed}, i32 {k}"]
    lanes = ", ".join(f"i32 {k * n + lane}" for lane in range(n))
    return [f"  {to} = shufflevector {wide.vec} {packed}, {wide.vec} poison, <{n} x i32> <{lanes}>"]
