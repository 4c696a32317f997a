"""LLVM IR of segments: where one reads and writes its values, and the operations in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from sysdyn.backends.llvm.instructions import instruction
from sysdyn.backends.llvm.target import simd_width
from sysdyn.backends.llvm.types import Types, double
from sysdyn.backends.schedule import CONSTANT, EXTERNAL, LOCAL, Segment, Shape
from sysdyn.program.operations import ANGULAR, SIN
from sysdyn.program.status import BAD_PIVOT, WEAK_PIVOT


class Access(ABC):
    """How a segment gets at its values, with registers of `types`.

    parameters: of the segment's function, after the workspace.
    """

    parameters: str = ""

    def __init__(self, types: Types):
        self.types = types

    @abstractmethod
    def read(self, k: int, to: str) -> list[str]:
        """Lines that load the k-th value from outside into the register `to`."""

    @abstractmethod
    def write(self, k: int, what: str) -> list[str]:
        """Lines that store the register `what` as the k-th result."""

    def constant(self, k: int) -> tuple[list[str], str]:
        """(lines, name) of the k-th constant in all lanes: from a table, one address being known.

        In this code model each address in the code costs ten bytes.
        """
        vec, width = self.types.vec, self.types.width
        lines = [f"  %ck{k} = getelementptr double, ptr %constants, i64 {k}", f"  %cs{k} = load double, ptr %ck{k}"]
        if width == 1:
            return lines, f"%cs{k}"
        lines += [
            f"  %ci{k} = insertelement {vec} poison, double %cs{k}, i32 0",
            f"  %c{k} = shufflevector {vec} %ci{k}, {vec} poison, <{width} x i32> zeroinitializer",
        ]
        return lines, f"%c{k}"


class Inline(Access):
    """Places in the workspace that are written into the code."""

    parameters = ", ptr noalias readonly %constants"

    def __init__(self, types: Types, slot: np.ndarray, segment: Segment):
        super().__init__(types)
        self.reads, self.writes = ([int(slot[v]) * types.width for v in x] for x in (segment.reads, segment.writes))

    def read(self, k: int, to: str) -> list[str]:
        return [
            f"  %p{k} = getelementptr double, ptr %work, i64 {self.reads[k]}",
            f"  {to} = load {self.types.vec}, ptr %p{k}, align {self.types.align}",
        ]

    def write(self, k: int, what: str) -> list[str]:
        return [
            f"  %w{k} = getelementptr double, ptr %work, i64 {self.writes[k]}",
            f"  store {self.types.vec} {what}, ptr %w{k}, align {self.types.align}",
        ]


class FromTables(Access):
    """Places that are read from the caller's table, so that segments of one shape share their code."""

    parameters = ", ptr noalias readonly %constants, ptr noalias readonly %places"

    def __init__(self, types: Types, shape: Shape):
        super().__init__(types)
        codes = [c for c in (*shape.lhs, *shape.rhs) if c >= 0 and c % 4 == EXTERNAL]
        self.n_reads = 1 + max((c // 4 for c in codes), default=-1)

    def read(self, k: int, to: str) -> list[str]:
        return [*self._place(k, f"r{k}"), f"  {to} = load {self.types.vec}, ptr %qr{k}, align {self.types.align}"]

    def write(self, k: int, what: str) -> list[str]:
        lines = self._place(self.n_reads + k, f"w{k}")
        return [*lines, f"  store {self.types.vec} {what}, ptr %qw{k}, align {self.types.align}"]

    @staticmethod
    def _place(k: int, tag: str) -> list[str]:
        return [
            f"  %a{tag} = getelementptr i64, ptr %places, i64 {k}",
            f"  %o{tag} = load i64, ptr %a{tag}",
            f"  %q{tag} = getelementptr double, ptr %work, i64 %o{tag}",
        ]


class SideBySide(Access):
    """Equal segments of one state, each in a lane."""

    def __init__(self, slot: np.ndarray, segment: Segment):
        super().__init__(Types(pack_width(segment)))
        self.lanes = segment.lanes
        self.reads = [[int(slot[v]) for v in values] for values in zip(*(x.reads for x in self.lanes), strict=True)]
        self.writes = [[int(slot[v]) for v in values] for values in zip(*(x.writes for x in self.lanes), strict=True)]

    def constant(self, k: int) -> tuple[list[str], str]:
        entries = [lane.constants[k] for lane in self.lanes]
        return [], _numbers(self.types, entries + entries[:1] * (self.types.width - len(entries)))

    def read(self, k: int, to: str) -> list[str]:
        places, vec = self.reads[k], self.types.vec
        if len(set(places)) == 1:
            return [
                f"  %p{k} = getelementptr double, ptr %work, i64 {places[0]}",
                f"  %l{k} = load double, ptr %p{k}",
                f"  {to}s = insertelement {vec} poison, double %l{k}, i32 0",
                f"  {to} = shufflevector {vec} {to}s, {vec} poison, <{self.types.width} x i32> zeroinitializer",
            ]
        runs = _consecutive(places)
        if len(runs) == 1:  # whatever is loaded beyond the last lane is not used
            return [
                f"  %p{k}_0 = getelementptr double, ptr %work, i64 {places[0]}",
                f"  {to} = load {vec}, ptr %p{k}_0, align 8",
            ]
        lines, value = [], "poison"
        for n, run in enumerate(runs):
            joined = to if n == len(runs) - 1 else f"%r{k}_{n}"
            lines += self._joined(f"{k}_{n}", places, run, value, joined)
            value = joined
        return lines

    def _joined(self, tag: str, places: list[int], run: tuple[int, int], value: str, joined: str) -> list[str]:
        """`joined`: the register `value` with the lanes of a run of consecutive places."""
        (lane, length), types = run, self.types
        if length == 1:
            return [
                f"  %p{tag} = getelementptr double, ptr %work, i64 {places[lane]}",
                f"  %l{tag} = load double, ptr %p{tag}",
                f"  {joined} = insertelement {types.vec} {value}, double %l{tag}, i32 {lane}",
            ]
        return [
            f"  %p{tag} = getelementptr double, ptr %work, i64 {places[lane] - lane}",
            f"  {joined} = call {types.vec} @llvm.masked.load.{types.suffix}.p0"
            f"(ptr %p{tag}, i32 8, {types.bits} {_mask(types, lane, length)}, {types.vec} {value})",
        ]

    def write(self, k: int, what: str) -> list[str]:
        places, types, lines = self.writes[k], self.types, []
        for n, (lane, length) in enumerate(_consecutive(places)):
            at = f"%w{k}_{n}"
            lines.append(f"  {at} = getelementptr double, ptr %work, i64 {places[lane] - lane * (length > 1)}")
            if length == types.width:
                lines.append(f"  store {types.vec} {what}, ptr {at}, align 8")
            elif length == 1:
                lines.append(f"  %e{k}_{n} = extractelement {types.vec} {what}, i32 {lane}")
                lines.append(f"  store double %e{k}_{n}, ptr {at}")
            else:
                lines.append(
                    f"  call void @llvm.masked.store.{types.suffix}.p0"
                    f"({types.vec} {what}, ptr {at}, i32 8, {types.bits} {_mask(types, lane, length)})"
                )
        return lines


def pack_width(segment: Segment) -> int:
    """Of the registers that hold a value of each lane."""
    return 1 << (len(segment.lanes) - 1).bit_length()


def _consecutive(places: Sequence[int]) -> list[tuple[int, int]]:
    """(first lane, number of lanes) of the runs of consecutive places."""
    begins = [k for k, place in enumerate(places) if k == 0 or place != places[k - 1] + 1]
    return [(a, b - a) for a, b in zip(begins, [*begins[1:], len(places)], strict=True)]


def _mask(types: Types, first: int, length: int) -> str:
    """The lanes first … first + length − 1."""
    return "<" + ", ".join(f"i1 {int(first <= k < first + length)}" for k in range(types.width)) + ">"


# ---- operations ----------------------------------------------------------------------------------------------------


def operations(shape: Shape, access: Access, status_slot: int) -> list[str]:
    """The operations of a shape: values are read and constants loaded when they are first needed, results written."""
    return _Operations(shape, access, status_slot).lines


class _Operations:
    def __init__(self, shape: Shape, access: Access, status_slot: int):
        self.access, self.types = access, access.types
        self.lines: list[str] = []
        self._known: dict[int, str] = {}  # code of an operand → its register
        self._pairs: dict[int, str] = {}  # code of an angle → the register of its sine and cosine
        exported = {local: k for k, local in enumerate(shape.exported)}
        watched = {k: limits for k, *limits in shape.guards}
        for k, (kind, a, b) in enumerate(zip(shape.kind, shape.lhs, shape.rhs, strict=True)):
            operands = [self._operand(code) for code in (a, b) if code >= 0]
            if kind in ANGULAR:
                self._angular(k, kind, a, operands[0])
            else:
                self.lines.append(f"  %v{k} = {instruction(kind, self.types, operands)}")
            if k in exported:
                self.lines += access.write(exported[k], f"%v{k}")
            if k in watched:
                limits = [self._operand(c * 4 + CONSTANT) for c in watched[k]]
                self.lines += _guard(self.types, k, status_slot, *limits)

    def _operand(self, code: int) -> str:
        """The register of an operand, loaded if it is not yet."""
        number, kind = divmod(code, 4)
        if kind == LOCAL:
            return f"%v{number}"
        if code not in self._known:
            name = f"%x{number}"
            lines, name = self.access.constant(number) if kind == CONSTANT else (self.access.read(number, name), name)
            self.lines += lines
            self._known[code] = name
        return self._known[code]

    def _angular(self, k: int, kind: int, angle: int, x: str) -> None:
        """A sine or cosine, of the pair that is computed once an angle."""
        pair = f"{{ {self.types.vec}, {self.types.vec} }}"
        if angle not in self._pairs:
            self._pairs[angle] = f"%t{k}"
            self.lines.append(f"  %t{k} = call {pair} @sincos_{self.types.suffix}({self.types.vec} {x})")
        self.lines.append(f"  %v{k} = extractvalue {pair} {self._pairs[angle]}, {0 if kind == SIN else 1}")


def _guard(types: Types, k: int, status_slot: int, limit: str, weak_limit: str) -> list[str]:
    """status |= `_flags` of v_k."""
    ints = types.ints
    return [
        *_flags(types, k, limit, weak_limit),
        f"  %gp{k} = getelementptr double, ptr %work, i64 {status_slot * types.width}",
        f"  %gd{k} = load {ints}, ptr %gp{k}, align {types.align}",
        f"  %ge{k} = or {ints} %gd{k}, %gc{k}",
        f"  store {ints} %ge{k}, ptr %gp{k}, align {types.align}",
    ]


def _flags(types: Types, k: int, limit: str, weak_limit: str) -> list[str]:
    """%gc_k: BAD_PIVOT where |v_k| is below its limit, WEAK_PIVOT below the weak one; both if not a number."""
    bad, weak, good = (types.integer(x) for x in (BAD_PIVOT | WEAK_PIVOT, WEAK_PIVOT, 0))
    vec, ints, bits = types.vec, types.ints, types.bits
    return [
        f"  %ga{k} = call {vec} @llvm.fabs.{types.suffix}({vec} %v{k})",
        f"  %gb{k} = fcmp ult {vec} %ga{k}, {limit}",
        f"  %gn{k} = fcmp ult {vec} %ga{k}, {weak_limit}",
        f"  %gs{k} = select {bits} %gn{k}, {ints} {weak}, {ints} {good}",
        f"  %gc{k} = select {bits} %gb{k}, {ints} {bad}, {ints} %gs{k}",
    ]


def watching(types: Types, limits: Sequence[tuple[float, float]], first: int, status_slot: int) -> list[str]:
    """status |= `_flags` of values in neighbouring places from `first` on, each with its limits.

    Those of one state are looked at as many at a time as a register holds.
    """
    lines = [
        f"  %at = getelementptr double, ptr %work, i64 {status_slot * types.width}",
        f"  %found0 = load {types.ints}, ptr %at, align {types.align}",
    ]
    found, k = "%found0", 0
    while k < len(limits):
        size = min(simd_width(), 1 << (len(limits) - k).bit_length() - 1) if types.width == 1 else 1
        wide = Types(size * types.width)
        bad, weak = (_numbers(wide, values) for values in zip(*limits[k : k + size], strict=True))
        lines += [
            f"  %p{k} = getelementptr double, ptr %work, i64 {(first + k) * types.width}",
            f"  %v{k} = load {wide.vec}, ptr %p{k}, align 8",
            *_flags(wide, k, bad, weak),
        ]
        flags = f"%gc{k}"
        if size > 1:
            lines.append(f"  %any{k} = call i64 @llvm.vector.reduce.or.v{size}i64({wide.ints} {flags})")
            flags = f"%any{k}"
        lines.append(f"  %found{k + size} = or {types.ints} {found}, {flags}")
        k += size
        found = f"%found{k}"
    return [*lines, f"  store {types.ints} {found}, ptr %at, align {types.align}"]


def _numbers(types: Types, values: Sequence[float]) -> str:
    """A constant: one number for all lanes, or one for each."""
    if len(values) == 1:
        return types.constant(values[0])
    return "<" + ", ".join(f"double {double(x)}" for x in values) + ">"


def angles(segment: Segment, slot: np.ndarray, types: Types, together: int) -> list[str]:
    """Sines and cosines, of `together` angles at a time: one state's side by side, or registers of states in a row."""
    wide, width, lines = Types(together * types.width), types.width, []
    pair = f"{{ {wide.vec}, {wide.vec} }}"
    for start in range(0, len(segment.reads), together):
        packed = "zeroinitializer"
        for k, value in enumerate(segment.reads[start : start + together], start):
            lines += [
                f"  %p{k} = getelementptr double, ptr %work, i64 {int(slot[value]) * width}",
                f"  %x{k} = load {types.vec}, ptr %p{k}, align {types.align}",
            ]
            lines += _put(types, wide, f"%in{k}", packed, f"%x{k}", k - start)
            packed = f"%in{k}"
        lines += [
            f"  %pair{start} = call {pair} @sincos_{wide.suffix}({wide.vec} {packed})",
            f"  %sin{start} = extractvalue {pair} %pair{start}, 0",
            f"  %cos{start} = extractvalue {pair} %pair{start}, 1",
        ]
        for value, local in zip(segment.writes, segment.shape.exported, strict=True):
            lane, function = segment.shape.lhs[local] // 4 - start, "sin" if segment.shape.kind[local] == SIN else "cos"
            if 0 <= lane < together:
                lines += [
                    *_taken(types, wide, f"%v{local}", f"%{function}{start}", lane),
                    f"  %w{local} = getelementptr double, ptr %work, i64 {int(slot[value]) * width}",
                    f"  store {types.vec} %v{local}, ptr %w{local}, align {types.align}",
                ]
    return lines


def _put(types: Types, wide: Types, to: str, packed: str, x: str, k: int) -> list[str]:
    """`to`: the wide register `packed` with the register x as its k-th part."""
    n, total = types.width, wide.width
    if n == 1:
        return [f"  {to} = insertelement {wide.vec} {packed}, double {x}, i32 {k}"]
    widened = ", ".join(f"i32 {lane % n}" for lane in range(total))
    merged = ", ".join(f"i32 {lane + total * (lane // n == k)}" for lane in range(total))
    return [
        f"  {to}w = shufflevector {types.vec} {x}, {types.vec} poison, <{total} x i32> <{widened}>",
        f"  {to} = shufflevector {wide.vec} {packed}, {wide.vec} {to}w, <{total} x i32> <{merged}>",
    ]


def _taken(types: Types, wide: Types, to: str, packed: str, k: int) -> list[str]:
    """`to`: the k-th part of the wide register `packed`."""
    n = types.width
    if n == 1:
        return [f"  {to} = extractelement {wide.vec} {packed}, i32 {k}"]
    lanes = ", ".join(f"i32 {k * n + lane}" for lane in range(n))
    return [f"  {to} = shufflevector {wide.vec} {packed}, {wide.vec} poison, <{n} x i32> <{lanes}>"]
