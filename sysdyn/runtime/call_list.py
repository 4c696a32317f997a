"""Call lists: compiled code repeats calls of BLAS, LAPACK and kernels for each time step of a log, without Python.

A `CallList` has the calls of one time step. Arguments are passed by address, as in Fortran; each has a stride in bytes
from one time step to the next. runtime/native/routines.h adds routines that BLAS and LAPACK lack.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.linalg lazily

from sysdyn.program.program import Program
from sysdyn.runtime.kernel import address, words
from sysdyn.runtime.native import extension
from sysdyn.runtime.runner import Runner

# Equals ARGUMENTS in call_list.c.
MAX_ARGUMENTS = 13
_BLAS = ("dcopy", "daxpy", "dgemv", "dgemm", "dsyrk", "dtrsm")
_LAPACK = ("dpotrf", "dpotrs", "dgeqrf", "dlaset", "dlacpy")


class StridedArray:
    """An array with an entry per time step along its first axis.

    lag: at time step t, a routine gets entry t − lag. offset: index of the first number of the argument in the entry.
    """

    def __init__(self, array: np.ndarray, lag: int = 0, offset: int = 0):
        self.array, self.stride, self.lag = array, array.strides[0], lag
        self.address = address(array) - lag * self.stride + offset * array.itemsize


class ProgramCall(NamedTuple):
    """A run of a program at one state, between arrays (size,) by group."""

    program: Program
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


Array = StridedArray | np.ndarray
ListArgument = Array | str | int | float


class CallList:
    """Calls of one time step in execution order. calls: routines with their arguments, and program calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Sequence[ListArgument]] | ProgramCall] = []
        self._rows: list[list[int]] = []
        self._references: list[Any] = []

    def call_program(
        self, runner: Runner, inputs: Mapping[str, Array], outputs: Mapping[str, Array], n: int = 1,
        status: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Append a kernel call that runs a program at n states in each time step.

        inputs, outputs: {group: array}. An array that is the same at all N time steps has shape (size,) or (n, size).
        An array that changes is a `StridedArray` of shape (N, n, size), or (N, 1, size) if the n states share one row.
        status (n,) int64: status bits of the states, overwritten in each time step; None: they are discarded.
        """
        program, kernel = runner.program, runner.backend.kernel(n == 1)
        assert kernel is not None
        work, workspace = kernel.work()
        status = np.zeros(n, dtype=np.int64) if status is None else status
        first = [{name: _first(x) for name, x in group.items()} for group in (inputs, outputs)]
        strides, lags = [0, 0], [0, 0]
        for group, arrays in ((program.inputs, inputs), (program.outputs, outputs)):
            for name in group:
                x = arrays[name]
                strides += [x.stride if isinstance(x, StridedArray) else 0, 0]
                lags += [x.lag if isinstance(x, StridedArray) else 0, 0]
        steps = np.array(strides)
        begin = words(program, workspace, first[0], first[1], status) - np.array(lags) * steps
        current = np.empty_like(begin)
        self._add(0, [kernel.address, *map(address, (current, begin, steps))], [n, len(begin)])
        self._references += [kernel, work, status, begin, steps, current, inputs, outputs]
        self.calls.append(ProgramCall(program, first[0], first[1]))

    def call(self, name: str, *arguments: ListArgument) -> None:
        """Append a call of a routine. Matrices are column-major in BLAS and LAPACK, row-major in routines.h.

        arguments: arrays of float64 or C int, characters, integers, and floats.
        """
        self.calls.append((name, arguments))
        addresses, strides = [], []
        for argument in arguments:
            x = argument.array if isinstance(argument, StridedArray) else argument
            if isinstance(x, str):
                x = np.frombuffer(x.encode(), dtype=np.uint8).copy()
            elif not isinstance(x, np.ndarray):
                x = np.array(x, dtype=float if isinstance(x, float) else np.intc)
            elif x.dtype not in (np.float64, np.intc):
                raise TypeError(
                    f"an argument of {name} is an array of {x.dtype}: float64 or {np.dtype(np.intc)} is needed"
                )
            self._references.append(x)
            addresses.append(argument.address if isinstance(argument, StridedArray) else address(x))
            strides.append(argument.stride if isinstance(argument, StridedArray) else 0)
        self._add(_addresses()[name], addresses, strides)

    def _add(self, routine: int, addresses: Sequence[int], strides: Sequence[int]) -> None:
        """Append a struct Call of call_list.c."""
        row = [routine]
        for numbers in (addresses, strides):
            row += [*numbers, *[0] * (MAX_ARGUMENTS - len(numbers))]
        self._rows.append(row)

    def spmm(
        self, columns: int, rows: int, places: np.ndarray, A: ListArgument, x: ListArgument, y: ListArgument,
        add: bool = False,
    ) -> None:  # fmt: skip
        """Append a call of the sparse matrix product y = A x, or y ← y + A x if `add`; y has shape (rows, columns).

        places (…, 2): row and column of each entry of A.
        """
        order = np.argsort(places[:, 0], kind="stable").astype(np.intc)
        starts = np.searchsorted(places[order, 0], np.arange(rows + 1)).astype(np.intc)
        self.call("spmm", columns, rows, int(add), starts, places[order, 1].astype(np.intc), order, A, x, y)

    def __add__(self, other: CallList) -> CallList:
        both = CallList()
        both._rows, both._references = self._rows + other._rows, self._references + other._references
        both.calls = self.calls + other.calls
        return both

    def bind_first(self) -> Callable[[], None]:
        """A function without arguments that makes the calls of the first time step."""
        return functools.partial(_run_once, np.array(self._rows, dtype=np.int64), self)

    def run(self, steps: range) -> None:
        """Make the calls of the time steps `steps` without the GIL."""
        rows = np.array(self._rows, dtype=np.int64)
        if len(steps) and len(rows):
            extension.run_calls(rows, steps.start, steps[-1] + steps.step, steps.step)


def _run_once(rows: np.ndarray, _: CallList) -> None:
    extension.run_calls(rows, 0, 1, 1)


def _first(x: Array) -> np.ndarray:
    """The entry of time step 0, (n, size), or (size,) if all states share it."""
    if not isinstance(x, StridedArray):
        return x
    return x.array[0, 0] if x.array.shape[1] == 1 else x.array[0]


@functools.cache
def _addresses() -> dict[str, int]:
    """{routine: address}, of BLAS, LAPACK and routines.h."""
    pointer, name_of = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_GetName
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    addresses = dict(extension.ROUTINES)
    for module, names in ((scipy.linalg.cython_blas, _BLAS), (scipy.linalg.cython_lapack, _LAPACK)):
        for name in names:
            capsule = module.__pyx_capi__[name]
            addresses[name] = pointer(capsule, name_of(capsule))
    return addresses
