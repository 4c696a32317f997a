"""A program ready to run: on one state or on many, on machine code or NumPy, from several threads at a time."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sysdyn.backends import call, llvm, python
from sysdyn.sparse.program import Program

BACKENDS = ("llvm", "python")
THREAD_STATES = 2048  # states a further thread is worth
CORES = os.cpu_count() or 1  # asked once: it costs more than a small kernel


class Executable:
    """Runs a program on states.

    Arrays are C-contiguous float64 by name of the program's groups: inputs (N, size), or (size,) for what all states
    share; outputs (N, size). status (N,) int64 receives the bits of `sysdyn.backends.llvm` for each state.
    zeros: outputs that are the constant 0 are written, too; where not, they have to be 0 beforehand.
    """

    def __init__(self, program: Program, backend: str = "llvm", level: int = 2, zeros: bool = True):
        self.program, self.backend = program, backend
        self._local = threading.local()
        if backend == "llvm":
            self._scalar = llvm.compile(program, 1, level, zeros)
            self._vector = llvm.compile(program, llvm.simd_width(), level, zeros)

    def run(self, inputs: Mapping, outputs: Mapping, status: np.ndarray, threads: int | None = None) -> None:
        """threads: as many as the batch is worth, up to the number of cores, where it is None."""
        n = len(status)
        if not n:
            return
        if self.backend == "python":
            self._run_python(inputs, outputs, status)
            return
        kernel = self._scalar if n == 1 else self._vector
        count = min(CORES, -(-n // THREAD_STATES)) if threads is None else min(threads, n)
        share = n if count == 1 else -(-n // (count * kernel.width)) * kernel.width

        def part(start: int) -> None:
            words = self._words(inputs, outputs, status, start, min(share, n - start))
            kernel.run(words.ctypes.data, self._work(kernel))

        if count == 1:
            part(0)
        else:
            list(_pool(count).map(part, range(0, n, share)))

    def step(self, inputs: Mapping, outputs: Mapping, status: np.ndarray, out, single: bool) -> Step:
        """The run with these arrays as a call without arguments; `out` is what it shows as its results."""
        words = self._words(inputs, outputs, status, 0, len(status))
        kernel = self._scalar if single else self._vector
        work, address = llvm.aligned(kernel.work_doubles)
        if single:
            run = call.prepared(kernel.method, words.ctypes.data, address)
        else:
            run = functools.partial(kernel.run, words.ctypes.data, address)
        return Step(run, out, status, (kernel, words, work, inputs, outputs))

    def guarded(self, inputs: Mapping) -> np.ndarray:
        """(N, guards): the values that the program guards."""
        seen: dict[int, object] = {g.value: None for g in self.program.guards}

        def watch(number: int, value) -> None:
            if number in seen:
                seen[number] = value

        flat = [row for name, _ in self.program.input_groups for row in np.atleast_2d(inputs[name]).T]
        python.run(self.program, flat, watch=watch)
        columns = np.broadcast_arrays(*(np.atleast_1d(seen[g.value]) for g in self.program.guards))
        return np.stack(columns, axis=1)

    def _words(self, inputs: Mapping, outputs: Mapping, status: np.ndarray, start: int, n: int) -> np.ndarray:
        """Arguments of the kernel for states start … start + n − 1."""
        words = [n, _address(status) + 8 * start]
        for name, size in self.program.input_groups:
            x = inputs[name]
            words += (_address(x), 0) if x.ndim == 1 else (_address(x) + 8 * size * start, size)
        for name, size in self.program.output_groups:
            words += (_address(outputs[name]) + 8 * size * start, size)
        return np.array(words, dtype=np.int64)

    def _work(self, kernel: llvm.Kernel) -> int:
        """Address of this thread's workspace."""
        held = self._local.__dict__.get(kernel.width)
        if held is None:
            held = self._local.__dict__[kernel.width] = llvm.aligned(kernel.work_doubles)
        return held[1]

    def _run_python(self, inputs: Mapping, outputs: Mapping, status: np.ndarray) -> None:
        result = python.run_groups(self.program, inputs)
        status[:] = 0
        for x in inputs.values():
            status[~np.isfinite(x).all(axis=-1)] |= llvm.BAD_INPUT
        for name, x in result.items():
            outputs[name][:] = x
            status[~np.isfinite(x).all(axis=-1)] |= llvm.BAD_OUTPUT
        if self.program.guards:
            size = np.abs(self.guarded(inputs))
            status[~(size >= [g.threshold for g in self.program.guards]).all(axis=1)] |= llvm.BAD_PIVOT
            status[~(size >= [g.weak for g in self.program.guards]).all(axis=1)] |= llvm.WEAK_PIVOT


class Step:
    """A prepared call: `step()` computes the results for the values that the bound arrays hold then.

    out: where it writes them; status (N,) int64: bits of `sysdyn.backends.llvm`, zero where all went well.
    """

    __slots__ = ("_keep", "_run", "out", "status")

    def __init__(self, run: Callable[[], None], out, status: np.ndarray, keep):
        self._run, self.out, self.status, self._keep = run, out, status, keep

    def __call__(self) -> None:
        self._run()


@functools.lru_cache(maxsize=4)
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="sysdyn")


def _address(x: np.ndarray) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only, empty or broadcast; five times slower
        return x.__array_interface__["data"][0]
