"""LLVM IR of the driver: gather inputs of a block of states, call the segments, scatter outputs and status.

Rows of `width` states are transposed in registers. Inputs of later blocks are fetched while one is computed, so that
batches in memory take as long as those in the cache. Rows may be given by their numbers, in any order. Values that are
no numbers are found in passing: zero times infinity or not-a-number is not-a-number, and so is a sum in which it
occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sysdyn.codegen.llvm.rows import fetching, numbering
from sysdyn.codegen.llvm.types import Types

# Most entries of one state that are copied singly, as a wide load has to wait for narrow stores (chosen).
ONE_BY_ONE = 64
# Number of sums, side by side, into which entries are summed up that are checked one by one (chosen).
SUMS = 4
# Bytes of a batch beyond which rows are fetched ahead, about the size of the second-level cache …
CACHED = 2**19
# … unless the rows of a block have more bytes than this, as rows under way must not drive out the workspace (chosen).
MOST_FETCHED = 64_000
# Rows are fetched at most so many blocks ahead (measured: of a humanoid two and four take a tenth less time than one).
BLOCKS_AHEAD = 4
# Bytes of the blocks under way up to which these come to the first-level cache, a quarter of it (chosen).
FIRST_LEVEL = 2**13


class Run(NamedTuple):
    """`size` entries of a row, from entry `first` on, and their place in the workspace."""

    word: int  # word of the arguments that holds the row's pointer; the next one holds its stride
    first: int
    size: int
    place: int  # ZERO: all of them are 0


# The function of many states: rows, into are the numbers of the rows that are read and written, or null if these follow
# one another.
_BY_NUMBER = "by_number(ptr %args, i64 %n, ptr %rows, ptr %into"
_IN_ORDER = """define void @run(ptr %args, i64 %n) #0 #1 {
entry:
  call void @by_number(ptr %args, i64 %n, ptr null, ptr null)
  ret void
}"""
# The place of entries that are no values of the workspace, but 0.
ZERO = -1


class _Chunk:
    """Lines that move registers of entries; the first `count` entries count. total: name of the sum of 0 · entries."""

    def __init__(self, tag: str, types: Types, count: int, total: str):
        self.tag, self.types, self.count, self.total = tag, types, count, total
        self.lines: list[str] = []
        self.mask = "<" + ", ".join(f"i1 {int(k < count)}" for k in range(types.width)) + ">"

    def load(self, name: str, pointer: str, align: int) -> str:
        self.lines.append(f"  {name} = load {self.types.vec}, ptr {pointer}, align {align}")
        return name

    def store(self, value: str, pointer: str, align: int) -> None:
        self.lines.append(f"  store {self.types.vec} {value}, ptr {pointer}, align {align}")

    def load_part(self, name: str, pointer: str) -> str:
        """Load the entries that count from a row."""
        vec = self.types.vec
        if self.count == self.types.width:
            return self.load(name, pointer, self.types.size)
        kind = f"call {vec} @llvm.masked.load.{self.types.suffix}.p0"
        masked = f"i32 {self.types.size}, {self.types.bits} {self.mask}"
        self.lines.append(f"  {name} = {kind}(ptr {pointer}, {masked}, {vec} zeroinitializer)")
        return name

    def store_part(self, value: str, pointer: str) -> None:
        """Store the entries that count to a row."""
        vec = self.types.vec
        if self.count == self.types.width:
            self.store(value, pointer, self.types.size)
            return
        kind = f"call void @llvm.masked.store.{self.types.suffix}.p0"
        self.lines.append(
            f"  {kind}({vec} {value}, ptr {pointer}, i32 {self.types.size}, {self.types.bits} {self.mask})"
        )

    def check(self, value: str, k: int) -> None:
        """Add 0 · value to the sum, which is NaN from then on if an entry is infinite or NaN."""
        vec, tag = self.types.vec, self.tag
        self.lines.append(f"  %{tag}z{k} = fmul contract {vec} {value}, zeroinitializer")
        self.lines.append(f"  %{tag}sum{k} = fadd contract {vec} {self.total}, %{tag}z{k}")
        self.total = f"%{tag}sum{k}"


class Driver(Types):
    """The functions around the segments of a kernel of these types. chunk: numbers moved at a time for one state."""

    def __init__(self, types: Types, chunk: int, status_slot: int):
        super().__init__(types.width, types.real)
        self.row = types.of(types.width if types.width > 1 else chunk)  # a register's worth of a row
        self.status_slot = status_slot
        self.movers: dict[str, str] = {}

    def functions(
        self, inputs: Sequence[Run], outputs: Sequence[Run], calls: Sequence[str], bits: tuple[int, int]
    ) -> str:
        """`run` and the functions it needs. bits: of the status for inputs and for outputs that are no numbers.

        That of many states is `by_number` with rows in their order.
        """
        run = self._run(inputs, outputs, calls, bits)
        near = self._ahead(inputs, outputs) * self._bytes(inputs, outputs) <= FIRST_LEVEL
        vec, suffix, masks = self.row.vec, self.row.suffix, self.row.bits
        declared = [
            f"declare {vec} @llvm.masked.load.{suffix}.p0(ptr, i32, {masks}, {vec})",
            f"declare void @llvm.masked.store.{suffix}.p0({vec}, ptr, i32, {masks})",
            f"declare void @llvm.masked.store.v{self.row.width}i64.p0(<{self.row.width} x i64>, ptr, i32, {masks})",
            f"declare {self.num} @llvm.vector.reduce.fadd.{suffix}({self.num}, {vec})",
        ]
        if self.width > 1:
            declared += ["declare void @llvm.prefetch.p0(ptr, i32, i32, i32)", "declare i64 @llvm.smin.i64(i64, i64)",
                         numbering(self.width), fetching(self, near), _IN_ORDER]  # fmt: skip
        return "\n".join([*declared, *self.movers.values(), run])

    # ---- one run of entries --------------------------------------------------------------------------------------

    def mover(self, gather: bool, size: int) -> str:
        """Name of the function that moves `size` entries of each lane between its row and the workspace.

        vec @name(ptr begin, i64 stride, ptr numbers, ptr cell): the row of a lane begins `stride` times its number
        behind `begin`; numbers: 0, 1, … width − 1 if null. The result is not-a-number in lanes where an entry is none.
        """
        name = f"{'gather' if gather else 'scatter'}_{size}"
        if name in self.movers:
            return name
        n = self.row.width
        lines = [
            f"define internal {self.vec} @{name}(ptr %begin, i64 %stride, ptr %numbers, ptr %cell) noinline #0 {{",
            "entry:",
        ]
        lines += self._rows()
        begin = "rows" if self.width > 1 else "entry"
        single = self.width == 1 and not gather and size <= ONE_BY_ONE
        whole, rest = (0, size) if single else divmod(size, n)
        total = "zeroinitializer"
        if whole:
            body, out = self._chunk("a", gather, n, "%j", "%sum")
            lines += [
                "  br label %loop",
                "loop:",
                f"  %j = phi i64 [ 0, %{begin} ], [ %next, %loop ]",
                f"  %sum = phi {self.row.vec} [ zeroinitializer, %{begin} ], [ {out}, %loop ]",
                *body,
                f"  %next = add i64 %j, {n}",
                f"  %more = icmp slt i64 %next, {whole * n}",
                "  br i1 %more, label %loop, label %end",
                "end:",
            ]
            total = out
        if self.width == 1:
            body, total = self._one_by_one(gather, rest, whole * n, total)
            lines += body
        elif rest:
            body, total = self._chunk("b", gather, rest, str(whole * n), total)
            lines += body
        self.movers[name] = "\n".join([*lines, f"  ret {self.vec} {total}", "}"])
        return name

    def clearer(self, size: int) -> str:
        """Name of the function that writes 0 to `size` entries of each lane's row; parameters as of movers.

        One row after the other: the same entries of long rows share few places of a cache.
        """
        name = f"clear_{size}"
        if name in self.movers:
            return name
        row, n, mask = self.row, self.row.width, ""
        if size % n:
            lanes = ", ".join(f"i1 {int(k < size % n)}" for k in range(n))
            mask = (f"  call void @llvm.masked.store.{row.suffix}.p0({row.vec} zeroinitializer, ptr %left, "
                    f"i32 {self.size}, {row.bits} <{lanes}>)")  # fmt: skip
        lines = [
            f"define internal void @{name}(ptr %begin, i64 %stride, ptr %numbers) noinline #0 {{",
            "entry:",
            "  %ordered = icmp eq ptr %numbers, null",
            "  br label %row",
            "row:",
            "  %k = phi i64 [ 0, %entry ], [ %following, %rest ]",
            "  br i1 %ordered, label %begun, label %given",
            "given:",
            "  %place = getelementptr i64, ptr %numbers, i64 %k",
            "  %other = load i64, ptr %place",
            "  br label %begun",
            "begun:",
            "  %number = phi i64 [ %k, %row ], [ %other, %given ]",
            "  %skip = mul i64 %number, %stride",
            f"  %own = getelementptr {self.num}, ptr %begin, i64 %skip",
            "  br label %next",
            "next:",
            "  %j = phi i64 [ 0, %begun ], [ %after, %store ]",
            f"  %more = icmp slt i64 %j, {size // n * n}",
            "  br i1 %more, label %store, label %rest",
            "store:",
            f"  %after = add i64 %j, {n}",
            f"  %w = getelementptr {self.num}, ptr %own, i64 %j",
            f"  store {row.vec} zeroinitializer, ptr %w, align {self.size}",
            "  br label %next",
            "rest:",
            f"  %left = getelementptr {self.num}, ptr %own, i64 {size // n * n}",
            mask,
            "  %following = add i64 %k, 1",
            f"  %further = icmp slt i64 %following, {self.width}",
            "  br i1 %further, label %row, label %done",
            "done:",
            "  ret void",
            "}",
        ]
        self.movers[name] = "\n".join(lines)
        return name

    def _rows(self) -> list[str]:
        """%row0 …, of many lanes in a block %rows; without multiplications if they follow one another."""
        if self.width == 1:
            return [f"  %row0 = getelementptr {self.num}, ptr %begin, i64 0"]
        lanes = range(self.width)
        return [
            "  %ordered = icmp eq ptr %numbers, null",
            "  br i1 %ordered, label %following, label %given",
            "following:",
            *(
                f"  %next{k} = getelementptr {self.num}, ptr %{f'next{k - 1}, i64 %stride' if k else 'begin, i64 0'}"
                for k in lanes
            ),
            "  br label %rows",
            "given:",
            *(
                line
                for k in lanes
                for line in (
                    f"  %place{k} = getelementptr i64, ptr %numbers, i64 {k}",
                    f"  %number{k} = load i64, ptr %place{k}",
                    f"  %skip{k} = mul i64 %number{k}, %stride",
                    f"  %other{k} = getelementptr {self.num}, ptr %begin, i64 %skip{k}",
                )
            ),
            "  br label %rows",
            "rows:",
            *(f"  %row{k} = phi ptr [ %next{k}, %following ], [ %other{k}, %given ]" for k in lanes),
        ]

    def _one_by_one(self, gather: bool, count: int, start: int, total: str) -> tuple[list[str], str]:
        """Entries start … start + count − 1 of one lane; (lines, sum with that of the chunks)."""
        row = self.row
        lines = [f"  %whole = call {row.num} @llvm.vector.reduce.fadd.{row.suffix}({row.num} 0.0, {row.vec} {total})"]
        sums = ["%whole"] + ["0.0"] * (SUMS - 1)
        here, there = ("%row0", "%cell") if gather else ("%cell", "%row0")
        for k in range(count):
            lines += [
                f"  %s{k} = getelementptr {self.num}, ptr {here}, i64 {start + k}",
                f"  %d{k} = getelementptr {self.num}, ptr {there}, i64 {start + k}",
                f"  %v{k} = load {self.num}, ptr %s{k}",
                f"  store {self.num} %v{k}, ptr %d{k}",
                f"  %z{k} = fmul contract {self.num} %v{k}, 0.0",
                f"  %t{k} = fadd contract {self.num} {sums[k % SUMS]}, %z{k}",
            ]
            sums[k % SUMS] = f"%t{k}"
        lines += [f"  %u{k} = fadd {self.num} {sums[k]}, {f'%u{k + 1}' if k + 2 < SUMS else sums[k + 1]}"
                  for k in reversed(range(SUMS - 1))]  # fmt: skip
        return lines, "%u0"

    def _chunk(self, tag: str, gather: bool, count: int, start: str, total: str) -> tuple[list[str], str]:
        """Entries start … start + count − 1 of every lane, at most a register's worth; (lines, sum)."""
        chunk = _Chunk(tag, self.row, count, total)
        for k in range(self.width):
            chunk.lines.append(f"  %{tag}r{k} = getelementptr {self.num}, ptr %row{k}, i64 {start}")
        chunk.lines.append(f"  %{tag}at = mul i64 {start}, {self.width}")
        chunk.lines.append(f"  %{tag}cell = getelementptr {self.num}, ptr %cell, i64 %{tag}at")
        if self.width == 1:
            here, there = (f"%{tag}r0", f"%{tag}cell") if gather else (f"%{tag}cell", f"%{tag}r0")
            value = chunk.load_part(f"%{tag}v", here)
            chunk.check(value, 0)
            chunk.store_part(value, there)
        else:
            for k in range(count):
                chunk.lines.append(f"  %{tag}p{k} = getelementptr {self.num}, ptr %{tag}cell, i64 {k * self.width}")
            (self._rows_to_cells if gather else self._cells_to_rows)(chunk)
        return chunk.lines, chunk.total

    def _rows_to_cells(self, chunk: _Chunk) -> None:
        tag = chunk.tag
        values = [chunk.load_part(f"%{tag}v{k}", f"%{tag}r{k}") for k in range(self.width)]
        columns = self._transposed(tag, values, chunk.lines)
        for k in range(chunk.count):
            chunk.check(columns[k], k)
            chunk.store(columns[k], f"%{tag}p{k}", self.align)

    def _cells_to_rows(self, chunk: _Chunk) -> None:
        tag = chunk.tag
        values = [chunk.load(f"%{tag}v{k}", f"%{tag}p{k}", self.align) for k in range(chunk.count)]
        for k, value in enumerate(values):
            chunk.check(value, k)
        rows = self._transposed(tag, values + ["poison"] * (self.width - chunk.count), chunk.lines)
        for k in range(self.width):
            chunk.store_part(rows[k], f"%{tag}r{k}")

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
        """The loop over blocks of states; the lanes left over at the end repeat the last state."""
        lines = [
            *self._arguments((*inputs, *outputs)),
            self.address("%flags", self.status_slot * self.width),
            "  %some = icmp sgt i64 %n, 0",
            "  br i1 %some, label %block, label %done",
            "block:",
            "  %base = phi i64 [ 0, %entry ], [ %nextbase, %outend ]",
            "  %first = icmp eq i64 %base, 0",
            *self._numbered(),
            *self._moved("in", inputs, bits[0]),
            f"  store {self.ints} %flagsin, ptr %flags, align {self.align}",
            *(self._computed(inputs, outputs, calls) if self.width > 1 else calls),
            "  br label %computed",
            "computed:",
            *self._moved("out", outputs, bits[1]),
            f"  %kept = load {self.ints}, ptr %flags, align {self.align}",
            f"  %all = or {self.ints} %kept, %flagsout",
            "  %to = getelementptr i64, ptr %status, i64 %base",
            *self._status(),
            f"  %nextbase = add i64 %base, {self.width}",
            "  %more = icmp slt i64 %nextbase, %n",
            "  br i1 %more, label %block, label %done",
            "done:",
            "  ret void",
            "}",
        ]
        return "\n".join(lines)

    def _arguments(self, runs: Sequence[Run]) -> list[str]:
        """%work, %status, and %pointer… and %stride… of each row."""
        lines = [
            f"define void @{'run(ptr %args, i64 %n' if self.width == 1 else _BY_NUMBER}) #0 #1 {{",
            "entry:",
            *self._tables(),
            "  %work = load ptr, ptr %args",
            "  %atstatus = getelementptr i64, ptr %args, i64 1",
            "  %status = load ptr, ptr %atstatus",
        ]
        for word in dict.fromkeys(run.word for run in runs):
            for name, kind, at in ((f"%pointer{word}", "ptr", word), (f"%stride{word}", "i64", word + 1)):
                lines.append(f"  %at{at} = getelementptr i64, ptr %args, i64 {at}")
                lines.append(f"  {name} = load {kind}, ptr %at{at}")
        return lines

    def _tables(self) -> list[str]:
        """Places of the numbers of rows of a block, to be read and to be written, and the number of the last state."""
        if self.width == 1:
            return []
        return [
            *(f"  %table{way} = alloca [{self.width} x i64], align 8" for way in ("in", "out")),
            "  %nlast = sub i64 %n, 1",
            "  %mixed = icmp ne ptr %rows, null",
            "  %written = icmp ne ptr %into, null",
            "  %given = or i1 %mixed, %written",
        ]

    def _numbered(self) -> list[str]:
        """%last lane that has a state of its own, and %numbers… of the rows of this block, up to a block %known."""
        if self.width == 1:
            return []
        ways = (("in", "rows"), ("out", "into"))
        return [
            "  %last = sub i64 %nlast, %base",
            f"  %partial = icmp slt i64 %last, {self.width - 1}",
            "  %single = or i1 %given, %partial",
            "  br i1 %single, label %number, label %known",
            "number:",
            *(f"  %own{way} = call ptr @numbered(ptr %{rows}, i64 %base, i64 %last, ptr %table{way})"
              for way, rows in ways),
            "  br label %known",
            "known:",
            *(f"  %numbers{way} = phi ptr [ null, %block ], [ %own{way}, %number ]" for way, _ in ways),
        ]  # fmt: skip

    def _moved(self, way: str, runs: Sequence[Run], bit: int) -> list[str]:
        """Blocks that move the runs, `way` "in" or "out", and %flags{way}: `bit` if an entry is no number.

        Skipped are inputs that all states share, which are in their place since the first block, and null outputs.
        """
        labels = [f"{way}{g}" for g in range(len(runs))] + [f"{way}end"]
        begin = "computed" if way == "out" else "known" if self.width > 1 else "block"
        total = f"[ zeroinitializer, %{begin} ]"
        lines = [f"  br label %{labels[0]}"]
        for run, k, after in zip(runs, labels, labels[1:], strict=False):
            stride = f"%stride{run.word}"
            if way == "in":
                go = [f"  %own{k} = icmp ne i64 {stride}, 0", f"  %go{k} = or i1 %own{k}, %first"]
            else:
                go = [f"  %go{k} = icmp ne ptr %pointer{run.word}, null"]
            lines += [
                f"{k}:",
                f"  %total{k} = phi {self.vec} {total}",
                *go,
                f"  br i1 %go{k}, label %move{k}, label %{after}",
                f"move{k}:",
                f"  %skip{k} = mul i64 %base, {stride}",
                f"  %from{k} = add i64 %skip{k}, {run.first}",
                f"  %row{k} = getelementptr {self.num}, ptr %pointer{run.word}, i64 %from{k}",
                *self._run_moved(
                    way == "in",
                    run,
                    k,
                    f"ptr %row{k}, i64 {stride}, ptr {f'%numbers{way}' if self.width > 1 else 'null'}",
                ),  # fmt: skip
                f"  br label %{after}",
            ]
            total = f"[ %total{k}, %{k} ], [ %with{k}, %move{k} ]"
        flag, none = self.integer(bit), self.integer(0)
        return [
            *lines,
            f"{way}end:",
            f"  %total{way} = phi {self.vec} {total}",
            f"  %bad{way} = fcmp uno {self.vec} %total{way}, zeroinitializer",
            f"  %flags{way} = select {self.bits} %bad{way}, {self.ints} {flag}, {self.ints} {none}",
        ]

    def _run_moved(self, gather: bool, run: Run, k: str, row: str) -> list[str]:
        """Lines that move a run, and add what it gives to the total."""
        if run.place == ZERO:
            return [
                f"  call void @{self.clearer(run.size)}({row})",
                f"  %with{k} = bitcast {self.vec} %total{k} to {self.vec}",
            ]
        return [
            self.address(f"%cell{k}", run.place * self.width),
            f"  %sum{k} = call {self.vec} @{self.mover(gather, run.size)}({row}, ptr %cell{k})",
            f"  %with{k} = fadd {self.vec} %total{k}, %sum{k}",
        ]

    def _computed(self, inputs: Sequence[Run], outputs: Sequence[Run], calls: Sequence[str]) -> list[str]:
        """The calls, each after a share of a later block's inputs and of this block's outputs is brought to the cache.

        Beyond the last state that has no effect.
        """
        blocks = self._ahead(inputs, outputs)
        if not blocks:
            return list(calls)
        few = CACHED * self.width // self._bytes(inputs, outputs)  # states
        rows = [("fetch", run.word, "rows", "ahead") for run in inputs]
        rows += [("own", run.word, "into", "base") for run in outputs]
        lines = [
            f"  %ahead = add i64 %base, {blocks * self.width}",
            f"  %many = icmp sgt i64 %n, {few}", "  %large = or i1 %mixed, %many",
        ]  # fmt: skip
        begin = 0
        for word in dict.fromkeys(run.word for run in (*inputs, *outputs)):
            size = max(run.first + run.size for run in (*inputs, *outputs) if run.word == word)
            lines.append(f"  %varies{word} = icmp ne i64 %stride{word}, 0")
            lines.append(f"  %fetched{word} = select i1 %varies{word}, i64 {size}, i64 0")
        for k, call in enumerate(calls, 1):
            end = self.width * k // len(calls)
            if end > begin:
                lines += [f"  br i1 %large, label %fetch{k}, label %call{k}", f"fetch{k}:",
                          f"  br i1 %mixed, label %numbered{k}, label %ordered{k}"]  # fmt: skip
                for label, suffix in (("ordered", ""), ("numbered", "_rows")):
                    lines.append(f"{label}{k}:")
                    for function, word, numbers, first in dict.fromkeys(rows):
                        row = f"ptr %pointer{word}, i64 %stride{word}, i64 %fetched{word}"
                        share = f"i64 %{first}, i64 {begin}, i64 {end}"
                        given = f", ptr %{numbers}, i64 %nlast" if suffix else ""
                        lines.append(f"  call void @{function}{suffix}({row}, {share}{given})")
                    lines.append(f"  br label %call{k}")
                lines.append(f"call{k}:")
            lines.append(call)
            begin = end
        return lines

    def _bytes(self, inputs: Sequence[Run], outputs: Sequence[Run]) -> int:
        """Bytes of the rows of a block."""
        return self.width * self.size * sum(run.size for run in (*inputs, *outputs))

    def _ahead(self, inputs: Sequence[Run], outputs: Sequence[Run]) -> int:
        """Number of blocks that rows are fetched ahead; 0: not at all."""
        size = self._bytes(inputs, outputs)
        return min(BLOCKS_AHEAD, MOST_FETCHED // size) if size else 0

    def _status(self) -> list[str]:
        """%all stored at %to, of the lanes that have a state of their own."""
        w, status = self.width, "i64" if self.width == 1 else f"<{self.width} x i64>"
        lines, all_ = [], "%all"
        if self.ints != status:
            lines, all_ = [f"  %bits = zext {self.ints} %all to {status}"], "%bits"
        if w == 1:
            return [*lines, f"  store i64 {all_}, ptr %to"]
        numbers = ", ".join(f"i64 {k}" for k in range(w))
        return [
            *lines,
            f"  %last0 = insertelement {status} poison, i64 %last, i32 0",
            f"  %lasts = shufflevector {status} %last0, {status} poison, <{w} x i32> zeroinitializer",
            f"  %valid = icmp sle {status} <{numbers}>, %lasts",
            f"  call void @llvm.masked.store.v{w}i64.p0({status} {all_}, ptr %to, i32 8, {self.bits} %valid)",
        ]
