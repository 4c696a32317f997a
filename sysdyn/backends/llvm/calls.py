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
# Matrices by rows. sparse(k, entries, places, A, x, y): rows y[i] += A[i, j] x[j] of k columns, of entries (i, j) of
# A (k, k) at `places`; packed: the same with A (entries,) itself. transpose(n, k, x, y): y (k, n) = x^T. mirror(k, x):
# entries above the diagonal are those below it. add(n, numbers, x, y): y[numbers[i]] += x[i]. flush(n, least, x): x[i]
# is 0 if it is smaller, as numbers with leading zeros take processors a hundred times as long.
_SPARSE = """
define void @NAME(ptr %pk, ptr %pn, ptr %places, ptr %A, ptr %x, ptr %y) {
entry:
  %k = load i64, ptr %pk
  %n = load i64, ptr %pn
  %wide = and i64 %k, -4
  br label %next
next:
  %e = phi i64 [ 0, %entry ], [ %e1, %done ]
  %more = icmp slt i64 %e, %n
  br i1 %more, label %entries, label %end
entries:
  %two = mul i64 %e, 2
  %pi = getelementptr i64, ptr %places, i64 %two
  %pj = getelementptr i64, ptr %pi, i64 1
  %i = load i64, ptr %pi
  %j = load i64, ptr %pj
  %ik = mul i64 %i, %k
  %jk = mul i64 %j, %k
  %ij = add i64 %ik, %j
  %pa = getelementptr double, ptr %A, i64 %ENTRY
  %a = load double, ptr %pa
  %one = insertelement <4 x double> poison, double %a, i64 0
  %four = shufflevector <4 x double> %one, <4 x double> poison, <4 x i32> zeroinitializer
  %from = getelementptr double, ptr %x, i64 %jk
  %to = getelementptr double, ptr %y, i64 %ik
  br label %vector
vector:
  %c = phi i64 [ 0, %entries ], [ %c4, %vectors ]
  %inside = icmp slt i64 %c, %wide
  br i1 %inside, label %vectors, label %scalar
vectors:
  %pu = getelementptr double, ptr %from, i64 %c
  %pv = getelementptr double, ptr %to, i64 %c
  %u = load <4 x double>, ptr %pu, align 8
  %v = load <4 x double>, ptr %pv, align 8
  %au = fmul contract <4 x double> %four, %u
  %w = fadd contract <4 x double> %v, %au
  store <4 x double> %w, ptr %pv, align 8
  %c4 = add i64 %c, 4
  br label %vector
scalar:
  %d = phi i64 [ %wide, %vector ], [ %d1, %scalars ]
  %left = icmp slt i64 %d, %k
  br i1 %left, label %scalars, label %done
scalars:
  %qu = getelementptr double, ptr %from, i64 %d
  %qv = getelementptr double, ptr %to, i64 %d
  %su = load double, ptr %qu
  %sv = load double, ptr %qv
  %sau = fmul contract double %a, %su
  %sw = fadd contract double %sv, %sau
  store double %sw, ptr %qv
  %d1 = add i64 %d, 1
  br label %scalar
done:
  %e1 = add i64 %e, 1
  br label %next
end:
  ret void
}
"""
# Tiles of four by four entries, and the entries that are left one by one. FROM: the first column of tiles of a row of
# tiles; ALONE: the first of the columns before the tiles that a row has alone.
_TURN = """
define void @NAME {
entry:
  %n = load i64, ptr %pn
  %k = load i64, ptr %pk
  %n4 = and i64 %n, -4
  %k4 = and i64 %k, -4
  br label %rows
rows:
  %a = phi i64 [ 0, %entry ], [ %a4, %rowsdone ]
  %moretiles = icmp slt i64 %a, %k4
  %a4 = add i64 %a, 4
  br i1 %moretiles, label %tiles, label %row
tiles:
  %b = phi i64 [ FROM, %rows ], [ %b4, %tile ]
  %insidetiles = icmp slt i64 %b, %n4
  br i1 %insidetiles, label %tile, label %rowsdone
tile:
LOADS
STORES
  %b4 = add i64 %b, 4
  br label %tiles
rowsdone:
  br label %rows
row:
  %i = phi i64 [ 0, %rows ], [ %i1, %rowdone ]
  %more = icmp slt i64 %i, %k
  br i1 %more, label %begin, label %end
begin:
  %tiled = icmp slt i64 %i, %k4
  %past = select i1 %tiled, i64 %n4, i64 ALONE
  %block = and i64 %i, -4
  %blockend = add i64 %block, 4
  br i1 %tiled, label %own, label %column
own:
  %o = phi i64 [ OWN, %begin ], [ %o1, %eachown ]
  %insideown = icmp slt i64 %o, OWNEND
  br i1 %insideown, label %eachown, label %column
eachown:
  %oin = mul i64 %i, %n
  %ojk = mul i64 %o, %k
  %oij = add i64 %oin, %o
  %oji = add i64 %ojk, %i
  %opx = getelementptr double, ptr %x, i64 %oji
  %opy = getelementptr double, ptr TO, i64 %oij
  %ov = load double, ptr %opx
  store double %ov, ptr %opy
  %o1 = add i64 %o, 1
  br label %own
column:
  %j = phi i64 [ %past, %begin ], [ %past, %own ], [ %j1, %each ]
  %inside = icmp slt i64 %j, %n
  br i1 %inside, label %each, label %rowdone
each:
  %in = mul i64 %i, %n
  %jk = mul i64 %j, %k
  %ij = add i64 %in, %j
  %ji = add i64 %jk, %i
  %px = getelementptr double, ptr %x, i64 %ji
  %py = getelementptr double, ptr TO, i64 %ij
  %v = load double, ptr %px
  store double %v, ptr %py
  %j1 = add i64 %j, 1
  br label %column
rowdone:
  %i1 = add i64 %i, 1
  br label %row
end:
  ret void
}
"""
_EACH = """
define void @NAME {
entry:
  %n = load i64, ptr %pn
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %each ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %each, label %end
each:
  %px = getelementptr double, ptr %x, i64 %i
  %u = load double, ptr %pxBODY
  %i1 = add i64 %i, 1
  br label %next
end:
  ret void
}
"""
_ADD = """
  %pj = getelementptr i64, ptr %numbers, i64 %i
  %j = load i64, ptr %pj
  %py = getelementptr double, ptr %y, i64 %j
  %v = load double, ptr %py
  %w = fadd contract double %u, %v
  store double %w, ptr %py"""
_FLUSH = """
  %least = load double, ptr %pleast
  %size = call double @llvm.fabs.f64(double %u)
  %small = fcmp olt double %size, %least
  %w = select i1 %small, double 0.0, double %u
  store double %w, ptr %px"""
_TRANSPOSE = {"NAME": "transpose(ptr %pn, ptr %pk, ptr %x, ptr %y)", "FROM": "0", "ALONE": "0", "OWNEND": "0",
              "OWN": "0", "TO": "%y"}  # fmt: skip
_MIRROR = {"NAME": "mirror(ptr %pk, ptr %x)", "FROM": "%a4", "ALONE": "%i", "OWNEND": "%blockend", "OWN": "%i",
           "TO": "%x", "%pn": "%pk"}  # fmt: skip
_OWN = "sparse", "packed", "transpose", "mirror", "add", "flush"


def _tile() -> dict[str, str]:
    """The text of a tile: rows b … b + 3 from column a on are read, columns of these are written."""
    loads, stores = [], []
    for r in range(4):
        loads += [f"  %lr{r} = add i64 %b, {r}", f"  %lk{r} = mul i64 %lr{r}, %k", f"  %la{r} = add i64 %lk{r}, %a",
                  f"  %lp{r} = getelementptr double, ptr %x, i64 %la{r}",
                  f"  %l{r} = load <4 x double>, ptr %lp{r}, align 8"]  # fmt: skip
    pairs = {"e0": (0, 1, "0, i32 4, i32 2, i32 6"), "o0": (0, 1, "1, i32 5, i32 3, i32 7"),
             "e2": (2, 3, "0, i32 4, i32 2, i32 6"), "o2": (2, 3, "1, i32 5, i32 3, i32 7")}  # fmt: skip
    shuffle = "  %{} = shufflevector <4 x double> %{}, <4 x double> %{}, <4 x i32> <i32 {}>"
    for name, (one, two, mask) in pairs.items():
        loads.append(shuffle.format(name, f"l{one}", f"l{two}", mask))
    for r in range(4):
        name, mask = "eo"[r % 2], ("0, i32 1, i32 4, i32 5", "2, i32 3, i32 6, i32 7")[r // 2]
        loads.append(shuffle.format(f"t{r}", f"{name}0", f"{name}2", mask))
        stores += [f"  %sr{r} = add i64 %a, {r}", f"  %sn{r} = mul i64 %sr{r}, %n", f"  %sb{r} = add i64 %sn{r}, %b",
                   f"  %sp{r} = getelementptr double, ptr TO, i64 %sb{r}",
                   f"  store <4 x double> %t{r}, ptr %sp{r}, align 8"]  # fmt: skip
    return {"LOADS": "\n".join(loads), "STORES": "\n".join(stores)}


def _own() -> str:
    """The text of the routines of this module."""
    parts = [(_SPARSE, {"NAME": "sparse", "ENTRY": "ij"}), (_SPARSE, {"NAME": "packed", "ENTRY": "e"}),
             (_TURN, _tile() | _TRANSPOSE), (_TURN, _tile() | _MIRROR),
             (_EACH, {"NAME": "add(ptr %pn, ptr %numbers, ptr %x, ptr %y)", "BODY": _ADD}),
             (_EACH, {"NAME": "flush(ptr %pn, ptr %pleast, ptr %x)", "BODY": _FLUSH})]  # fmt: skip
    texts = ["declare double @llvm.fabs.f64(double)\n"]
    for text, changes in parts:
        for word, by in changes.items():
            text = text.replace(word, by)
        texts.append(text)
    return "".join(texts)


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
        table = np.array(found) + np.arange(instants)[:, None] * np.array(moves)
        self._kept += [kernel, table, work, inputs, outputs, status]
        spare = [0] * (MOST_ARGUMENTS - 2)
        self._rows.append([kernel.address, address(table), n, *spare, table.strides[0], 0, *spare])

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
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text + _own()), target.here().machine(2))
        engine.finalize_object()
        places = {name: engine.get_function_address(name) for name in ("run", *_OWN)}
    kinds = ctypes.c_void_p, *[ctypes.c_int64] * 4
    return {"run": ctypes.CFUNCTYPE(None, *kinds)(places.pop("run"))}, places, engine
