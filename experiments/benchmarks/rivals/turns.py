"""Calls of C functions that take turns on one thread, timed in C: what a call from Python costs does not count."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from common import Ratio

import sysdyn as sd
from rivals.build import SOURCES, CannotBuild, shared_library
from sysdyn.runtime.kernel import words as kernel_words
from sysdyn.runtime.native import extension
from sysdyn.runtime.runner import Runner

# Each call is repeated for at least so many seconds at a turn.
TURN = 1e-3
# Kernels are loaded so many times, of which the one of median time counts.
PLACES = 5


@dataclass(frozen=True)
class Call:
    """A function of two arguments, the words of a call and a number, for `states` states.

    result: what it writes, the first of several. keep: what
    must live as long as the call.
    """

    name: str
    function: object
    first: object
    second: object
    states: int
    result: np.ndarray
    keep: tuple

    def __call__(self) -> None:
        self.function(self.first, self.second)


def words(name: str, function, handle: int, arrays: Sequence[np.ndarray]) -> Call:
    """The call of a function that takes one pointer: to words handle, number of states, and addresses of `arrays`."""
    table = np.array([handle, len(arrays[0]), *(a.ctypes.data for a in arrays)], dtype=np.int64)
    pointer = ctypes.c_void_p(table.ctypes.data)
    return Call(name, function, pointer, ctypes.c_void_p(0), len(arrays[0]), arrays[-1], (table, arrays))


def kernel_call(
    name: str, executable, arrays: Mapping[str, np.ndarray], outs: Mapping[str, np.ndarray], single: bool
) -> Call:
    """The kernel itself, of one state at a time or of the SIMD one, over all rows of `arrays` into the `outs`."""
    code, n = executable.backend, len(next(iter(outs.values())))
    kernel = code.kernel(single)
    status = np.empty(n, dtype=np.int64)
    work, start = kernel.work()
    table = kernel_words(code.program, start, arrays, outs, status)
    driver = ctypes.cast(ctypes.CDLL(extension.__file__).run_kernel_on, ctypes.c_void_p).value
    call = np.array([driver, kernel.address, n], dtype=np.int64)
    keep = table, call, kernel, status, work, arrays, outs, executable
    first, second = (ctypes.c_void_p(x.ctypes.data) for x in (call, table))
    return Call(name, _library().call_kernel, first, second, n, next(iter(outs.values())), keep)


def solver_calls(solver: sd.Solver, arrays: Mapping[str, np.ndarray], single: bool, places: int = PLACES) -> list[Call]:
    """The kernel of a solver; see `kernel_call`. Loaded so many times, as times depend on the place.

    Inputs that are not among `arrays` are zero.
    """
    arrays = {name: np.zeros(size) for name, size in solver.program.inputs.sizes.items()} | dict(arrays)
    n, name, backend = len(arrays["q"]), "one state" if single else "batch", solver.executable.backend
    return [
        kernel_call(
            f"{name}, {k}", Runner(type(backend)(backend.program, backend.level)), arrays,
            {output: np.empty((n, size)) for output, size in solver.program.outputs.sizes.items()}, single,
        )
        for k in range(places)
    ]  # fmt: skip


class Turns:
    """Seconds a state of each call at each turn, by the call's name."""

    def __init__(self, names: Sequence[str], seconds: np.ndarray):
        self.seconds = dict(zip(names, seconds.T, strict=True))

    def ratio(self, call: str, peer: str) -> Ratio:
        a, b = self.seconds[call], self.seconds[peer]
        return Ratio(float(np.median(b / a)), min(b / a), max(b / a), min(a), min(b))

    def median(self, call: str) -> float:
        return float(np.median(self.seconds[call]))

    def middle(self, calls: Sequence[Call]) -> str:
        """The name of the call of median time."""
        return sorted((c.name for c in calls), key=self.median)[len(calls) // 2]


@cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        raise CannotBuild("there is no C compiler")
    return shared_library(compiler, [SOURCES / "turns.c"], ["-O2"])


def in_turns(calls: Sequence[Call], turns: int = 51) -> Turns:
    """Run the calls in turns of at least a millisecond each. Raises CannotBuild where there is no C compiler."""
    run, n = _library().in_turns, len(calls)
    functions = (ctypes.c_void_p * n)(*(ctypes.cast(c.function, ctypes.c_void_p).value for c in calls))
    first, second = ((ctypes.c_void_p * n)(*(getattr(c, x) for c in calls)) for x in ("first", "second"))

    def timed(repeated: np.ndarray, turns: int) -> np.ndarray:
        times = np.empty((turns, n))
        run(ctypes.c_long(n), functions, first, second, repeated.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_long(turns), times.ctypes.data_as(ctypes.c_void_p))  # fmt: skip
        return times

    once = timed(np.ones(n, dtype=np.int64), 3).min(axis=0)
    repeated = np.ceil(TURN / once).astype(np.int64)
    return Turns([c.name for c in calls], timed(repeated, turns) / [c.states for c in calls])
