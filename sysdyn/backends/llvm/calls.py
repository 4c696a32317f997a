"""Routines of BLAS and LAPACK called along a log by compiled code: no Python from instant to instant.

A `Tape` is the list of calls of one instant. Arguments are addresses, as in Fortran, and each moves by a distance in
bytes from one instant to the next. Beside SciPy's routines there are products with sparse matrices and transposes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.backends.executable import Executable
from sysdyn.backends.kernel import Kernel, address, words
from sysdyn.backends.llvm import target
from sysdyn.program.program import Program

_MAKING = threading.Lock()
# Most arguments of a routine: those of dgemm.
MOST_ARGUMENTS = 13
# Routines, those of BLAS first.
_BLAS = ("dcopy", "daxpy", "dgemv", "dgemm", "dsyrk", "dtrsm")
_LAPACK = ("dpotrf", "dpotrs", "dgeqrf", "dlaset", "dlacpy")
# run(tape, count, first, last, step): the calls of instants first, first + step, …, before last.
_RUN = """
define void @run(ptr %tape, i64 %count, i64 %first, i64 %last, i64 %step) {
entry:
  br label %instant
instant:
  %t = phi i64 [ %first, %entry ], [ %t1, %done ]
  %over = icmp eq i64 %t, %last
  br i1 %over, label %end, label %next
next:
  %j = phi i64 [ 0, %instant ], [ %j1, %call ]
  %more = icmp slt i64 %j, %count
  br i1 %more, label %call, label %done
call:
  %at = mul i64 %j, WIDTH
  %row = getelementptr i64, ptr %tape, i64 %at
  %f = load ptr, ptr %row
ARGUMENTS
  call void %f(NAMES)
  %j1 = add i64 %j, 1
  br label %next
done:
  %t1 = add i64 %t, %step
  br label %instant
end:
  ret void
}
"""
_ARGUMENT = """
  %pa{k} = getelementptr i64, ptr %row, i64 {place}
  %a{k} = load ptr, ptr %pa{k}
  %pm{k} = getelementptr i64, ptr %row, i64 {move}
  %m{k} = load i64, ptr %pm{k}
  %o{k} = mul i64 %m{k}, %t
  %x{k} = getelementptr i8, ptr %a{k}, i64 %o{k}"""
# Matrices by rows. product(k, n, keep, starts, entries, A, x, y): y (n, k) = A x, + y if keep = 1, of a sparse A; row i
# has its entries starts[i] ≤ e < starts[i + 1], A[a] in column j of (j, a) = entries[e]. solved(k, m, L, x):
# x (m, k) = L⁻¹ x, L lower by columns. less(k, m, x, y, P): P −= x^T y (k, k) of x, y (m, k), below the diagonal at
# least. transpose(n, k, x, y): y (k, n) = x^T. mirror(k, x): entries above the diagonal are those below it.
# add(n, numbers, x, y): y[numbers[i]] += x[i]. take(n, numbers, x, y): y[i] = x[numbers[i]]. flush(n, least, x): x[i]
# is 0 if it is smaller, as numbers with leading zeros take processors a hundred times as long.
# place(n, t, first, moves, y): y[i] = first[i] + t moves[i] of whole numbers.
_OWN = "product", "solved", "less", "transpose", "mirror", "add", "take", "flush", "place"
# Vectors of a tile of `product` and `solved`, and rows and vectors of one of `less` (chosen: as many sums at a time as
# hide their latencies, in 16 registers).
_WIDE, _TALL, _BROAD = 5, 4, 2


class _Text:
    """LLVM's text of a routine; arguments are addresses by name."""

    def __init__(self, name: str, arguments: str):
        self._head = f"define void @{name}({', '.join(f'ptr %{x}' for x in arguments.split())}) {{"
        self._lines, self._count, self._block = ["entry:"], 0, "entry"

    @property
    def text(self) -> str:
        return "\n".join([self._head, *self._lines, "  ret void", "}", ""])

    def new(self, value: str) -> str:
        """The name of a new value."""
        self._count += 1
        self._lines.append(f"  %v{self._count} = {value}")
        return f"%v{self._count}"

    def whole(self, place: str) -> str:
        return self.new(f"load i64, ptr {place}")

    def sum(self, a: str | int, b: str | int) -> str:
        return self.new(f"add i64 {a}, {b}")

    def product(self, a: str, b: str | int) -> str:
        return self.new(f"mul i64 {a}, {b}")

    def at(self, base: str, place: str | int, kind: str = "double") -> str:
        return self.new(f"getelementptr {kind}, ptr {base}, i64 {place}")

    def load(self, place: str, width: int = 1) -> str:
        return self.new(f"load {_kind(width)}, ptr {place}, align 8")

    def store(self, x: str, place: str, width: int = 1) -> None:
        self._lines.append(f"  store {_kind(width)} {x}, ptr {place}, align 8")

    def store_whole(self, x: str, place: str) -> None:
        self._lines.append(f"  store i64 {x}, ptr {place}, align 8")

    def spread(self, x: str, width: int) -> str:
        """A vector of one number."""
        if width == 1:
            return x
        kind = _kind(width)
        one = self.new(f"insertelement {kind} poison, double {x}, i64 0")
        return self.new(f"shufflevector {kind} {one}, {kind} poison, <{width} x i32> zeroinitializer")

    def mixed(self, x: str, y: str, places: Sequence[int]) -> str:
        """A vector of entries of two vectors of four, those of y from 4 on."""
        mask = ", ".join(f"i32 {k}" for k in places)
        return self.new(f"shufflevector {_kind(4)} {x}, {_kind(4)} {y}, <4 x i32> <{mask}>")

    def fused(self, a: str, b: str, c: str, width: int) -> str:
        """a b + c."""
        ab = self.new(f"fmul contract {_kind(width)} {a}, {b}")
        return self.new(f"fadd contract {_kind(width)} {ab}, {c}")

    def fused_at(self, a: str, source: str, parts: Sequence[int], sums: Sequence[str], width: int) -> list[str]:
        """a x + sum of vectors x at these places behind a source."""
        return [self.fused(a, self.load(self.at(source, part), width), y, width)
                for part, y in zip(parts, sums, strict=True)]  # fmt: skip

    def minus(self, x: str, width: int = 1) -> str:
        return self.new(f"fneg {_kind(width)} {x}")

    def loop(
        self, first: str | int, last: str | int, step: int, carried: Sequence[tuple[int, str]],
        body: Callable[[str, list[str]], Sequence[str]],
    ) -> tuple[str, list[str]]:  # fmt: skip
        """(i, values) after the body of each i = first, first + step, … < last; carried: (width, value) at first."""
        self._count += 1
        n, before = self._count, self._block
        i, values = f"%i{n}", [f"%c{n}_{k}" for k in range(len(carried))]
        at = len(self._lines)
        self._lines += ["", f"  %m{n} = icmp slt i64 {i}, {last}", f"  br i1 %m{n}, label %b{n}, label %e{n}", f"b{n}:"]
        self._block = f"b{n}"
        after = body(i, values)
        self._lines += [f"  %n{n} = add i64 {i}, {step}", f"  br label %h{n}", f"e{n}:"]
        phis = [f"  br label %h{n}", f"h{n}:", f"  {i} = phi i64 [ {first}, %{before} ], [ %n{n}, %{self._block} ]"]
        for name, (width, x), y in zip(values, carried, after, strict=True):
            phis.append(f"  {name} = phi {_kind(width)} [ {x}, %{before} ], [ {y}, %{self._block} ]")
        self._lines[at] = "\n".join(phis)
        self._block = f"e{n}"
        return i, values

    def tiles(self, last: str, widths: Sequence[int], body: Callable[[str, int], None]) -> None:
        """The body of each tile of columns before `last`: of the first width while it fits in, then of the others."""
        c: str | int = 0

        for width in widths:

            def tile(i: str, _: list[str], width: int = width) -> Sequence[str]:
                body(i, width)
                return ()

            c, _ = self.loop(c, self.sum(last, 1 - width), width, (), tile)


def _kind(width: int) -> str:
    return "double" if width == 1 else f"<{width} x double>"


def _widths(lanes: int, most: int) -> list[int]:
    """Widths of tiles: of `most` vectors, of fewer, and of parts of one."""
    return [*(k * lanes for k in range(most, 0, -1)), *(lanes >> k for k in range(1, lanes.bit_length()))]


def _sums(width: int, lanes: int) -> tuple[int, range]:
    """(width of the vectors of a tile, where they begin)."""
    one = min(width, lanes)
    return one, range(0, width, one)


def _product(lanes: int) -> str:
    x = _Text("product", "pk pn pkeep starts entries A x y")
    k, n, keep = (x.whole(f"%{name}") for name in ("pk", "pn", "pkeep"))
    kept = x.new(f"sitofp i64 {keep} to double")
    zero = x.new(f"icmp eq i64 {keep}, 0")

    def tile(c: str, width: int) -> None:
        one, parts = _sums(width, lanes)
        source, to = x.at("%x", c), x.at("%y", c)

        def row(i: str, _: list[str]) -> Sequence[str]:
            first, own = x.at("%starts", i, "i64"), x.at(to, x.product(i, k))
            places, before = [x.at(own, part) for part in parts], []
            for place in places:
                y = x.new(f"fmul {_kind(one)} {x.load(place, one)}, {x.spread(kept, one)}")
                before.append((one, x.new(f"select i1 {zero}, {_kind(one)} zeroinitializer, {_kind(one)} {y}")))

            def entry(e: str, sums: list[str]) -> Sequence[str]:
                pair = x.at("%entries", x.product(e, 2), "i64")
                a = x.spread(x.load(x.at("%A", x.whole(x.at(pair, 1, "i64")))), one)
                return x.fused_at(a, x.at(source, x.product(x.whole(pair), k)), parts, sums, one)

            sums = x.loop(x.whole(first), x.whole(x.at(first, 1, "i64")), 1, before, entry)[1]
            for y, place in zip(sums, places, strict=True):
                x.store(y, place, one)
            return ()

        x.loop(0, n, 1, (), row)

    x.tiles(k, _widths(lanes, _WIDE), tile)
    return x.text


def _solved(lanes: int) -> str:
    x = _Text("solved", "pk pm L x")
    k, m = x.whole("%pk"), x.whole("%pm")

    def tile(c: str, width: int) -> None:
        one, parts = _sums(width, lanes)
        first = x.at("%x", c)

        def row(i: str, _: list[str]) -> Sequence[str]:
            to, own = x.at(first, x.product(i, k)), x.at("%L", i)
            places = [x.at(to, part) for part in parts]

            def before(j: str, sums: list[str]) -> Sequence[str]:
                a = x.spread(x.minus(x.load(x.at(own, x.product(j, m)))), one)
                source = x.at(first, x.product(j, k))
                return x.fused_at(a, source, parts, sums, one)

            sums = x.loop(0, i, 1, [(one, x.load(place, one)) for place in places], before)[1]
            inverse = x.spread(x.new(f"fdiv double 1.0, {x.load(x.at(own, x.product(i, m)))}"), one)
            for total, place in zip(sums, places, strict=True):
                x.store(x.new(f"fmul {_kind(one)} {total}, {inverse}"), place, one)
            return ()

        x.loop(0, m, 1, (), row)

    x.tiles(k, _widths(lanes, _WIDE), tile)
    return x.text


def _less(lanes: int) -> str:
    x = _Text("less", "pk pm x y P")
    k, m = x.whole("%pk"), x.whole("%pm")

    def rows(count: int) -> Callable[[str, list[str]], Sequence[str]]:
        def several(i: str, _: list[str]) -> Sequence[str]:
            def tile(c: str, width: int) -> None:
                one, parts = _sums(width, lanes)
                places = []
                for r in range(count):
                    to = x.at(x.at("%P", x.product(x.sum(i, r), k)), c)
                    places += [x.at(to, part) for part in parts]

                def term(l: str, sums: list[str]) -> Sequence[str]:
                    row = x.product(l, k)
                    own, source = x.at(x.at("%x", row), i), x.at(x.at("%y", row), c)
                    vectors = [x.load(x.at(source, part), one) for part in parts]
                    found = []
                    for r in range(count):
                        a = x.spread(x.load(x.at(own, r)), one)
                        for v, y in zip(vectors, sums[r * len(parts) : (r + 1) * len(parts)], strict=True):
                            found.append(x.fused(a, v, y, one))
                    return found

                _, sums = x.loop(0, m, 1, [(one, "zeroinitializer" if one > 1 else "0.0")] * len(places), term)
                for y, place in zip(sums, places, strict=True):
                    x.store(x.new(f"fsub {_kind(one)} {x.load(place, one)}, {y}"), place, one)

            x.tiles(x.sum(i, count), _widths(lanes, _BROAD), tile)
            return ()

        return several

    i, _ = x.loop(0, x.sum(k, 1 - _TALL), _TALL, (), rows(_TALL))
    x.loop(i, k, 1, (), rows(1))
    return x.text


def _turned(name: str, arguments: str, n: str, to: str, mirrored: bool) -> str:
    """Tiles of four by four entries, and the entries that are left one by one. mirrored: only those of j ≥ i."""
    x = _Text(name, arguments)
    n, k = x.whole(n), x.whole("%pk")
    n4, k4 = (x.new(f"and i64 {size}, -4") for size in (n, k))

    def tiles(a: str, _: list[str]) -> Sequence[str]:
        def tile(b: str, _: list[str]) -> Sequence[str]:
            rows = [x.load(x.at(x.at("%x", x.product(x.sum(b, r), k)), a), 4) for r in range(4)]
            pairs = [x.mixed(rows[r], rows[r + 1], (c, c + 4, c + 2, c + 6)) for c in (0, 1) for r in (0, 2)]
            columns = [x.mixed(pairs[c], pairs[c + 1], y) for y in ((0, 1, 4, 5), (2, 3, 6, 7)) for c in (0, 2)]
            for r, column in enumerate(columns):
                x.store(column, x.at(x.at(to, x.product(x.sum(a, r), n)), b), 4)
            return ()

        x.loop(x.sum(a, 4) if mirrored else 0, n4, 4, (), tile)
        return ()

    def row(i: str, parts: Sequence[tuple[str | int, str]]) -> Sequence[str]:
        def entry(j: str, _: list[str]) -> Sequence[str]:
            x.store(x.load(x.at("%x", x.sum(x.product(j, k), i))), x.at(to, x.sum(x.product(i, n), j)))
            return ()

        for first, last in parts:
            x.loop(first, last, 1, (), entry)
        return ()

    def own(i: str) -> list[tuple[str | int, str]]:
        return [(i, x.sum(x.new(f"and i64 {i}, -4"), 4))] if mirrored else []

    x.loop(0, k4, 4, (), tiles)
    x.loop(0, k4, 1, (), lambda i, _: row(i, [*own(i), (n4, n)]))
    x.loop(k4, k, 1, (), lambda i, _: row(i, [(i if mirrored else 0, n)]))
    return x.text


def _each(name: str, arguments: str, body: Callable[[_Text, str], None]) -> str:
    """A loop over n entries. body(text, i): of entry i."""
    x = _Text(name, arguments)

    def entry(i: str, _: list[str]) -> Sequence[str]:
        body(x, i)
        return ()

    x.loop(0, x.whole("%pn"), 1, (), entry)
    return x.text


def _add(x: _Text, i: str) -> None:
    to = x.at("%y", x.whole(x.at("%numbers", i, "i64")))
    x.store(x.new(f"fadd contract double {x.load(x.at('%x', i))}, {x.load(to)}"), to)


def _take(x: _Text, i: str) -> None:
    x.store(x.load(x.at("%x", x.whole(x.at("%numbers", i, "i64")))), x.at("%y", i))


def _flush(x: _Text, i: str) -> None:
    place = x.at("%x", i)
    u = x.load(place)
    small = x.new(f"fcmp olt double {x.new(f'call double @llvm.fabs.f64(double {u})')}, {x.load('%pleast')}")
    x.store(x.new(f"select i1 {small}, double 0.0, double {u}"), place)


def _place(x: _Text, i: str) -> None:
    first, moves = (x.whole(x.at(table, i, "i64")) for table in ("%first", "%moves"))
    x.store_whole(x.sum(first, x.product(moves, x.whole("%pt"))), x.at("%y", i, "i64"))


def _own(lanes: int) -> str:
    """The text of the routines of this module, by vectors of so many lanes."""
    return "".join([
        "declare double @llvm.fabs.f64(double)\n", _product(lanes), _solved(lanes), _less(lanes),
        _turned("transpose", "pn pk x y", "%pn", "%y", False), _turned("mirror", "pk x", "%pk", "%x", True),
        _each("add", "pn numbers x y", _add), _each("take", "pn numbers x y", _take),
        _each("flush", "pn pleast x", _flush), _each("place", "pn pt first moves y", _place),
    ])  # fmt: skip


class Moving:
    """An array whose entry of an instant moves by its first axis. behind: the entry `behind` instants before."""

    def __init__(self, array: np.ndarray, behind: int = 0, offset: int = 0):
        self.array, self.move = array, array.strides[0]
        self.address = address(array) - behind * self.move + offset * array.itemsize


class Run(NamedTuple):
    """A run of a program at one state, between arrays (size,) by group."""

    program: Program
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


Argument = Moving | np.ndarray | str | int | float


class Tape:
    """Calls of one instant; `call(name, arguments…)` adds one, and `run` makes them instant by instant. calls: these.

    Arguments: `Moving` arrays, arrays that stay, characters, whole numbers and floats. Matrices are by columns, as in
    Fortran, but for routines of this module, see above.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Sequence[Argument]] | Run] = []
        self._rows: list[list[int]] = []
        self._kept: list[Any] = []

    def program(
        self, program: Program, kernel: Kernel, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray],
        status: np.ndarray,
    ) -> None:  # fmt: skip
        """Add a run of a program at one state, by its machine code; arrays (size,) by group, status (1,)."""
        work, first = kernel.work()
        found = words(program, first, inputs, {name: x[None] for name, x in outputs.items()}, status)
        self._kept += [kernel, found, work, inputs, outputs, status]
        spare = [0] * (MOST_ARGUMENTS - 2)
        self._rows.append([kernel.address, address(found), 1, *spare, 0, 0, *spare])
        self.calls.append(Run(program, inputs, outputs))

    def batch(
        self, executable: Executable, inputs: Mapping[str, Moving | np.ndarray], outputs: Mapping[str, Moving], n: int,
        instants: int,
    ) -> None:  # fmt: skip
        """Add a run of a program at n states, which moves from instant to instant up to this number of them.

        Arrays (N, n, size), (N, 1, size) that all states share, and those that stay (n, size).
        """
        program, kernel = executable.program, executable.backend.kernel(n == 1)
        assert kernel is not None
        (work, first), status = kernel.work(), np.zeros(n, dtype=np.int64)
        found, moves = [first, address(status)], [0, 0]
        for groups, arrays in ((program.input_groups, inputs), (program.output_groups, outputs)):
            for name, size in groups:
                x = arrays[name]
                shared = isinstance(x, Moving) and x.array.shape[1] == 1
                found += [x.address if isinstance(x, Moving) else address(x), 0 if shared else size]
                moves += [x.move if isinstance(x, Moving) else 0, 0]
        now, number = np.empty(len(found), dtype=np.int64), Moving(np.arange(instants))
        self.call("place", len(found), number, np.array(found), np.array(moves), now)
        self._kept += [kernel, work, inputs, outputs, status]
        spare = [0] * (MOST_ARGUMENTS - 2)
        self._rows.append([kernel.address, address(now), n, *spare, 0, 0, *spare])

    def call(self, name: str, *arguments: Argument) -> None:
        self.calls.append((name, arguments))
        addresses, moves = [], []
        for x in arguments:
            if isinstance(x, Moving):
                self._kept.append(x.array)
                addresses.append(x.address)
                moves.append(x.move)
                continue
            if isinstance(x, str):
                x = np.frombuffer(x.encode(), dtype=np.uint8).copy()
            elif not isinstance(x, np.ndarray):
                x = np.array(x, dtype=float if isinstance(x, float) else np.int64)  # whose low half is an int
            self._kept.append(x)
            addresses.append(address(x))
            moves.append(0)
        spare = [0] * (MOST_ARGUMENTS - len(arguments))
        self._rows.append([_routines()[name], *addresses, *spare, *moves, *spare])

    def product(
        self, columns: int, rows: int, places: np.ndarray, A: Argument, x: Argument, y: Argument, keep: bool = False
    ) -> None:  # fmt: skip
        """Add y (rows, columns) = A x, or y + A x if `keep`; A by its entries at places (…, 2), rows and columns."""
        order = np.argsort(places[:, 0], kind="stable")
        starts = np.searchsorted(places[order, 0], np.arange(rows + 1)).astype(np.int64)
        entries = np.ascontiguousarray(np.stack([places[order, 1], order], axis=1), dtype=np.int64)
        self.call("product", columns, rows, int(keep), starts, entries, A, x, y)

    def __add__(self, other: Tape) -> Tape:
        both = Tape()
        both._rows, both._kept = self._rows + other._rows, self._kept + other._kept
        both.calls = self.calls + other.calls
        return both

    def once(self) -> Callable[[], None]:
        """The calls of the first instant as one call, without the interpreter's lock."""
        rows = np.array(self._rows, dtype=np.int64)
        run, kept = _code()[0]["run"], (rows, self)
        return functools.partial(_run_once, run, address(rows), len(rows), kept)

    def run(self, instants: range) -> None:
        """Make the calls at these instants; the interpreter's lock is released."""
        rows = np.array(self._rows, dtype=np.int64)
        if len(instants) and len(rows):
            last = instants[-1] + instants.step
            _code()[0]["run"](address(rows), len(rows), instants.start, last, instants.step)


def _run_once(run: Callable[..., None], rows: int, count: int, kept: object) -> None:
    run(rows, count, 0, 1, 1)


@functools.cache
def _routines() -> dict[str, int]:
    """{name: address of its code}."""
    found = dict(_code()[1])
    capsule = ctypes.pythonapi.PyCapsule_GetPointer
    capsule.restype, capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    title = ctypes.pythonapi.PyCapsule_GetName
    title.restype, title.argtypes = ctypes.c_char_p, [ctypes.py_object]
    for module, names in ((scipy.linalg.cython_blas, _BLAS), (scipy.linalg.cython_lapack, _LAPACK)):
        for name in names:
            own = module.__pyx_capi__[name]
            found[name] = capsule(own, title(own))
    return found


def _code() -> tuple[dict[str, Callable[..., None]], dict[str, int], Any]:
    """(functions of ctypes, addresses of routines of this module, the owner of the code), made once for all threads."""
    with _MAKING:
        return _made()


@functools.cache
def _made() -> tuple[dict[str, Callable[..., None]], dict[str, int], Any]:
    """As `_code`; a second one made meanwhile would be lost, with code that others run."""
    ks: Sequence[int] = range(MOST_ARGUMENTS)
    arguments = "".join(_ARGUMENT.format(k=k, place=1 + k, move=1 + MOST_ARGUMENTS + k) for k in ks)
    text = _RUN.replace("WIDTH", str(1 + 2 * MOST_ARGUMENTS)).replace("ARGUMENTS", arguments)
    text = text.replace("NAMES", ", ".join(f"ptr %x{k}" for k in ks))
    with target.LOCK:
        llvm = target.library()
        here = target.here()
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text + _own(here.lanes())), here.machine(2))
        engine.finalize_object()
        places = {name: engine.get_function_address(name) for name in ("run", *_OWN)}
    kinds = ctypes.c_void_p, *[ctypes.c_int64] * 4
    return {"run": ctypes.CFUNCTYPE(None, *kinds)(places.pop("run"))}, places, engine
