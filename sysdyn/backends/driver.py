"""LLVM IR of the driver: gather inputs of a block of states, call the segments, scatter outputs and status.

Rows of `width` states are transposed in registers. Values that are no numbers are found in passing: infinite and
not-a-number have all exponent bits set, and adding one to the exponent carries into the sign bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sysdyn.backends.ir import Types

_EXPONENT, _ONE = 0x7FF0000000000000, 0x0010000000000000


class Run(NamedTuple):
    """`size` entries of a row, from entry `first` on, and their place in the workspace."""

    word: int  # where the arguments hold the row's pointer; its stride is the next
    first: int
    size: int
    place: int


class Driver(Types):
    """The functions around the segments of a kernel of `width` states. chunk: doubles moved at a time where it is 1."""

    def __init__(self, width: int, chunk: int, rounds: int, block: int, status_slot: int):
        super().__init__(width)
        self.lanes = width if width > 1 else chunk  # of a register
        self.row = Types(self.lanes)
        self.rounds, self.block, self.status_slot = rounds, block, status_slot
        self.movers: dict[str, str] = {}

    def functions(
        self, inputs: Sequence[Run], outputs: Sequence[Run], calls: Sequence[str], bits: tuple[int, int]
    ) -> str:
        """`run` and what it needs. bits: of the status for inputs and for outputs that are no numbers."""
        run = self._run(inputs, outputs, calls, bits)
        n, vec = self.lanes, self.row.vec
        suffix, masks = self.row.suffix, f"<{n} x i1>"
        declared = [
            f"declare {vec} @llvm.masked.load.{suffix}.p0(ptr, i32, {masks}, {vec})",
            f"declare void @llvm.masked.store.{suffix}.p0({vec}, ptr, i32, {masks})",
            f"declare void @llvm.masked.store.{suffix.replace('f', 'i')}.p0({self.row.ints}, ptr, i32, {masks})",
            f"declare i64 @llvm.vector.reduce.or.v{n}i64({self.row.ints})",
        ]
        return "\n".join([*declared, *self.movers.values(), run])

    # ---- one run of entries --------------------------------------------------------------------------------------

    def mover(self, gather: bool, size: int) -> str:
        """Name of the function that moves `size` entries of each lane between its row and the workspace.

        i64s @name(ptr rows, ptr cell): rows holds the address of each lane's row. The result has its sign bit set in
        the lanes where an entry is no number.
        """
        n = self.lanes
        name = f"{'gather' if gather else 'scatter'}_{size}"
        if name in self.movers:
            return name
        whole, rest = divmod(size, n)
        lines = [f"define internal {self.ints} @{name}(ptr %rows, ptr %cell) noinline #0 {{", "entry:"]
        lanes = range(self.width)
        for k in lanes:
            lines.append(f"  %rp{k} = getelementptr ptr, ptr %rows, i64 {k}")
            lines.append(f"  %row{k} = load ptr, ptr %rp{k}")
        zero = "zeroinitializer"
        bad = zero
        if whole:
            body, out = self._chunk("a", gather, n, "%j", "%bad")
            lines += [
                "  br label %loop",
                "loop:",
                "  %j = phi i64 [ 0, %entry ], [ %next, %loop ]",
                f"  %bad = phi {self.row.ints} [ {zero}, %entry ], [ {out}, %loop ]",
                *body,
                f"  %next = add i64 %j, {n}",
                f"  %more = icmp slt i64 %next, {whole * n}",
                "  br i1 %more, label %loop, label %end",
                "end:",
            ]
            bad = out
        if rest and self.width > 1:
            body, bad = self._chunk("b", gather, rest, str(whole * n), bad)
            lines += body
        if self.width == 1:
            # one by one: a masked store would hold up the loads that follow
            lines.append(f"  %any0 = call i64 @llvm.vector.reduce.or.v{n}i64({self.row.ints} {bad})")
            for k in range(rest):
                here, there = ("%row0", "%cell") if gather else ("%cell", "%row0")
                lines += [
                    f"  %s{k} = getelementptr i64, ptr {here}, i64 {whole * n + k}",
                    f"  %d{k} = getelementptr i64, ptr {there}, i64 {whole * n + k}",
                    f"  %v{k} = load i64, ptr %s{k}",
                    f"  store i64 %v{k}, ptr %d{k}",
                    f"  %e{k} = and i64 %v{k}, {_EXPONENT}",
                    f"  %c{k} = add i64 %e{k}, {_ONE}",
                    f"  %any{k + 1} = or i64 %any{k}, %c{k}",
                ]
            bad = f"%any{rest}"
        lines += [f"  ret {self.ints} {bad}", "}"]
        self.movers[name] = "\n".join(lines)
        return name

    def _chunk(self, tag: str, gather: bool, count: int, start: str, bad: str) -> tuple[list[str], str]:
        """Entries start … start + count − 1 of every lane; (lines, bits of those that are no numbers)."""
        n, vec, ints = self.lanes, self.row.vec, self.row.ints
        lines: list[str] = []
        mask = "<" + ", ".join(f"i1 {int(k < count)}" for k in range(n)) + ">"
        masks = f"<{n} x i1>"

        def load(name: str, pointer: str, align: int, part: bool) -> str:
            if part and count < n:
                lines.append(
                    f"  {name} = call {vec} @llvm.masked.load.{self.row.suffix}.p0(ptr {pointer}, i32 {align}, "
                    f"{masks} {mask}, {vec} zeroinitializer)"
                )
            else:
                lines.append(f"  {name} = load {vec}, ptr {pointer}, align {align}")
            return name

        def store(value: str, pointer: str, align: int, part: bool) -> None:
            if part and count < n:
                lines.append(
                    f"  call void @llvm.masked.store.{self.row.suffix}.p0({vec} {value}, ptr {pointer}, i32 {align}, "
                    f"{masks} {mask})"
                )
            else:
                lines.append(f"  store {vec} {value}, ptr {pointer}, align {align}")

        def check(value: str, k: int) -> None:
            nonlocal bad
            lines.extend([
                f"  %{tag}i{k} = bitcast {vec} {value} to {ints}",
                f"  %{tag}e{k} = and {ints} %{tag}i{k}, {self.row.integer(_EXPONENT)}",
                f"  %{tag}c{k} = add {ints} %{tag}e{k}, {self.row.integer(_ONE)}",
                f"  %{tag}o{k} = or {ints} {bad}, %{tag}c{k}",
            ])  # fmt: skip
            bad = f"%{tag}o{k}"

        for k in range(self.width):
            lines.append(f"  %{tag}r{k} = getelementptr double, ptr %row{k}, i64 {start}")
        lines.append(f"  %{tag}at = mul i64 {start}, {self.width}")
        lines.append(f"  %{tag}cell = getelementptr double, ptr %cell, i64 %{tag}at")
        if self.width == 1:
            here, there = (f"%{tag}r0", f"%{tag}cell") if gather else (f"%{tag}cell", f"%{tag}r0")
            value = load(f"%{tag}v", here, 8, True)
            check(value, 0)
            store(value, there, 8, True)
            return lines, bad
        for k in range(count):
            lines.append(f"  %{tag}p{k} = getelementptr double, ptr %{tag}cell, i64 {k * n}")
        if gather:
            values = [load(f"%{tag}v{k}", f"%{tag}r{k}", 8, True) for k in range(n)]
            columns = self._transposed(tag, values, lines)
            for k in range(count):
                check(columns[k], k)
                store(columns[k], f"%{tag}p{k}", 8 * n, False)
        else:
            values = [load(f"%{tag}v{k}", f"%{tag}p{k}", 8 * n, False) for k in range(count)]
            for k, value in enumerate(values):
                check(value, k)
            rows = self._transposed(tag, values + ["poison"] * (n - count), lines)
            for k in range(n):
                store(rows[k], f"%{tag}r{k}", 8, True)
        return lines, bad

    def _transposed(self, tag: str, values: list[str], lines: list[str]) -> list[str]:
        """n vectors of n lanes: exchange the off-diagonal halves of pairs, at distances 1, 2, 4, …"""
        n, vec, step = len(values), self.row.vec, 1
        while step < n:
            values = list(values)
            for k in range(n):
                if k & step:
                    continue
                a, b = values[k], values[k + step]
                low = [lane if not lane & step else n + lane - step for lane in range(n)]
                high = [lane + step if not lane & step else n + lane for lane in range(n)]
                for at, picked in ((k, low), (k + step, high)):
                    name = f"%{tag}t{step}_{at}"
                    order = ", ".join(f"i32 {x}" for x in picked)
                    lines.append(f"  {name} = shufflevector {vec} {a}, {vec} {b}, <{n} x i32> <{order}>")
                    values[at] = name
            step *= 2
        return values

    # ---- all states ------------------------------------------------------------------------------------------------

    def _run(self, inputs: Sequence[Run], outputs: Sequence[Run], calls: Sequence[str], bits: tuple[int, int]) -> str:
        """The loop over passes of `rounds` blocks of states; the lanes left over at the end repeat the last state."""
        w, ints = self.width, self.ints
        words = {}
        lines = [
            "define void @run(ptr %args, ptr %work) #0 {",
            "entry:",
            f"  %rows = alloca [{w} x ptr], align 64",
            "  %n = load i64, ptr %args",
            "  %atstatus = getelementptr i64, ptr %args, i64 1",
            "  %status = load ptr, ptr %atstatus",
        ]
        for run in (*inputs, *outputs):
            if run.word not in words:
                words[run.word] = f"%pointer{run.word}", f"%stride{run.word}"
                for name, kind, at in zip(words[run.word], ("ptr", "i64"), (run.word, run.word + 1), strict=True):
                    lines.append(f"  %at{at} = getelementptr i64, ptr %args, i64 {at}")
                    lines.append(f"  {name} = load {kind}, ptr %at{at}")

        def rows(tag: str, run: Run) -> list[str]:
            """Addresses of the row of each lane; %state{k}: the state in lane k."""
            pointer, stride = words[run.word]
            made = []
            for k in range(w):
                made += [
                    f"  %{tag}m{k} = mul i64 %{tag[0]}state{k}, {stride}",
                    f"  %{tag}f{k} = add i64 %{tag}m{k}, {run.first}",
                    f"  %{tag}g{k} = getelementptr double, ptr {pointer}, i64 %{tag}f{k}",
                    f"  %{tag}h{k} = getelementptr ptr, ptr %rows, i64 {k}",
                    f"  store ptr %{tag}g{k}, ptr %{tag}h{k}",
                ]
            return made

        def block_of_states(tag: str, first: str) -> list[str]:
            """%{tag}state{k} for each lane of block `first`, and its cells."""
            made = [
                f"  %{tag}lane = mul i64 {first}, {w}",
                f"  %{tag}base = add i64 %base, %{tag}lane",
                f"  %{tag}start = mul i64 {first}, {self.block}",
                f"  %{tag}cells = getelementptr double, ptr %work, i64 %{tag}start",
                f"  %{tag}flags = getelementptr double, ptr %{tag}cells, i64 {self.status_slot * w}",
            ]
            for k in range(w):
                made += [
                    f"  %{tag}want{k} = add i64 %{tag}base, {k}",
                    f"  %{tag}inside{k} = icmp slt i64 %{tag}want{k}, %nlast",
                    f"  %{tag}state{k} = select i1 %{tag}inside{k}, i64 %{tag}want{k}, i64 %nlast",
                ]
            return made

        def move(tag: str, run: Run, gather: bool, bit: int) -> list[str]:
            name = self.mover(gather, run.size)
            return [
                *rows(tag, run),
                f"  %{tag}cell = getelementptr double, ptr %{tag[0]}cells, i64 {run.place * w}",
                f"  %{tag}bad = call {ints} @{name}(ptr %rows, ptr %{tag}cell)",
                f"  %{tag}bit = lshr {ints} %{tag}bad, {self.integer(63)}",
                f"  %{tag}flag = mul {ints} %{tag}bit, {self.integer(bit)}",
                f"  %{tag}old = load {ints}, ptr %{tag[0]}flags, align {self.align}",
                f"  %{tag}new = or {ints} %{tag}old, %{tag}flag",
                f"  store {ints} %{tag}new, ptr %{tag[0]}flags, align {self.align}",
            ]

        lines += [
            "  %nlast = sub i64 %n, 1",
            "  %some = icmp sgt i64 %n, 0",
            "  br i1 %some, label %block, label %done",
            "block:",
            "  %base = phi i64 [ 0, %entry ], [ %nextbase, %blockend ]",
            "  %left = sub i64 %n, %base",
            f"  %leftup = add i64 %left, {w - 1}",
            f"  %wanted = udiv i64 %leftup, {w}",
            f"  %few = icmp slt i64 %wanted, {self.rounds}",
            f"  %rounds = select i1 %few, i64 %wanted, i64 {self.rounds}",
            "  %later = icmp sgt i64 %base, 0",
            "  br label %pack",
            "pack:",
            "  %r = phi i64 [ 0, %block ], [ %rnext, %packend ]",
            *block_of_states("i", "%r"),
            f"  store {ints} zeroinitializer, ptr %iflags, align {self.align}",
            "  br label %in0",
        ]
        for g, run in enumerate(inputs):
            lines += [
                f"in{g}:",
                # what all states share is in its place since the first pass
                f"  %same{g} = icmp eq i64 {words[run.word][1]}, 0",
                f"  %skip{g} = and i1 %same{g}, %later",
                f"  br i1 %skip{g}, label %in{g + 1}, label %ingo{g}",
                f"ingo{g}:",
                *move(f"i{g}_", run, True, bits[0]),
                f"  br label %in{g + 1}",
            ]
        lines += [
            f"in{len(inputs)}:",
            "  br label %packend",
            "packend:",
            "  %rnext = add i64 %r, 1",
            "  %rmore = icmp slt i64 %rnext, %rounds",
            "  br i1 %rmore, label %pack, label %compute",
            "compute:",
            *calls,
            "  br label %unpack",
            "unpack:",
            "  %u = phi i64 [ 0, %compute ], [ %unext, %unpackend ]",
            *block_of_states("o", "%u"),
            "  br label %out0",
        ]
        for g, run in enumerate(outputs):
            lines += [
                f"out{g}:",
                f"  %null{g} = icmp eq ptr {words[run.word][0]}, null",
                f"  br i1 %null{g}, label %out{g + 1}, label %outgo{g}",
                f"outgo{g}:",
                *move(f"o{g}_", run, False, bits[1]),
                f"  br label %out{g + 1}",
            ]
        lines += [
            f"out{len(outputs)}:",
            f"  %flags = load {ints}, ptr %oflags, align {self.align}",
            "  %kept = getelementptr i64, ptr %status, i64 %obase",
        ]
        if w == 1:
            lines.append("  store i64 %flags, ptr %kept")
        else:
            numbers = ", ".join(f"i64 {k}" for k in range(w))
            suffix = self.suffix.replace("f", "i")
            lines += [
                "  %here = sub i64 %n, %obase",
                f"  %here0 = insertelement {ints} poison, i64 %here, i32 0",
                f"  %heres = shufflevector {ints} %here0, {ints} poison, <{w} x i32> zeroinitializer",
                f"  %valid = icmp slt {ints} <{numbers}>, %heres",
                f"  call void @llvm.masked.store.{suffix}.p0({ints} %flags, ptr %kept, i32 8, {self.bits} %valid)",
            ]
        lines += [
            "  br label %unpackend",
            "unpackend:",
            "  %unext = add i64 %u, 1",
            "  %umore = icmp slt i64 %unext, %rounds",
            "  br i1 %umore, label %unpack, label %blockend",
            "blockend:",
            f"  %passed = mul i64 %rounds, {w}",
            "  %nextbase = add i64 %base, %passed",
            "  %more = icmp slt i64 %nextbase, %n",
            "  br i1 %more, label %block, label %done",
            "done:",
            "  ret void",
            "}",
        ]
        return "\n".join(lines)
