"""Routines of BLAS and LAPACK called along a log by compiled code: no Python from instant to instant.

A `Tape` is the list of calls of one instant. Arguments are addresses, as in Fortran, and each moves by a distance in
bytes from one instant to the next. Beside SciPy's routines there are ours, see `sysdyn.codegen.llvm.routines`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.codegen.llvm import routines, target
from sysdyn.program.program import Program
from sysdyn.runtime.kernel import Kernel, address, words
from sysdyn.runtime.runner import Runner

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
        self, executable: Runner, inputs: Mapping[str, Moving | np.ndarray], outputs: Mapping[str, Moving], n: int,
        instants: int,
    ) -> None:  # fmt: skip
        """Add a run of a program at n states, which moves from instant to instant up to this number of them.

        Arrays (N, n, size), (N, 1, size) that all states share, and those that stay (n, size).
        """
        program, kernel = executable.program, executable.backend.kernel(n == 1)
        assert kernel is not None
        (work, first), status = kernel.work(), np.zeros(n, dtype=np.int64)
        found, moves = [first, address(status)], [0, 0]
        for groups, arrays in ((program.inputs, inputs), (program.outputs, outputs)):
            for name, size in groups.sizes.items():
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
    """(functions of ctypes, addresses of our routines, the owner of the code), made once for all threads."""
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
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text + routines.written(here.lanes())), here.machine(2))
        engine.finalize_object()
        places = {name: engine.get_function_address(name) for name in ("run", *routines.NAMES)}
    kinds = ctypes.c_void_p, *[ctypes.c_int64] * 4
    return {"run": ctypes.CFUNCTYPE(None, *kinds)(places.pop("run"))}, places, engine
