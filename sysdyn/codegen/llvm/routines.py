"""LLVM IR of routines that tapes call beside BLAS and LAPACK, by loops in registers; arguments are addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Matrices by rows. product(k, n, keep, starts, entries, A, x, y): y (n, k) = A x, + y if keep = 1, of a sparse A; row i
# has its entries starts[i] ≤ e < starts[i + 1], A[a] in column j of (j, a) = entries[e]. solved(k, m, L, x):
# x (m, k) = L⁻¹ x, L lower by columns. less(k, m, x, y, P): P −= x^T y (k, k) of x, y (m, k), below the diagonal at
# least. transpose(n, k, x, y): y (k, n) = x^T. mirror(k, x): entries above the diagonal are those below it.
# add(n, numbers, x, y): y[numbers[i]] += x[i]. take(n, numbers, x, y): y[i] = x[numbers[i]]. flush(n, least, x): x[i]
# is 0 if it is smaller, as numbers with leading zeros take processors a hundred times as long.
# place(n, t, first, moves, y): y[i] = first[i] + t moves[i] of whole numbers.
NAMES = "product", "solved", "less", "transpose", "mirror", "add", "take", "flush", "place"
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

    def minus(self, x: str) -> str:
        return self.new(f"fneg double {x}")

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


def written(lanes: int) -> str:
    """The text of all routines, with vectors of `lanes` numbers."""
    return "".join([
        "declare double @llvm.fabs.f64(double)\n", _product(lanes), _solved(lanes), _less(lanes),
        _turned("transpose", "pn pk x y", "%pn", "%y", False), _turned("mirror", "pk x", "%pk", "%x", True),
        _each("add", "pn numbers x y", _add), _each("take", "pn numbers x y", _take),
        _each("flush", "pn pleast x", _flush), _each("place", "pn pt first moves y", _place),
    ])  # fmt: skip
