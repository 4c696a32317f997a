"""A program ready to run: on one state or on many, on machine code or NumPy, from several threads at a time."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.backends.llvm import entry
from sysdyn.backends.llvm.kernel import Kernel, aligned, compile_kernel
from sysdyn.backends.llvm.target import simd_width
from sysdyn.backends.team import TEAM
from sysdyn.errors import InvalidInput
from sysdyn.program.program import Program
from sysdyn.program.status import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT, WEAK_PIVOT

BACKENDS = ("llvm", "python")
THREAD_STATES = 2048  # states a further thread is worth
CORES = os.cpu_count() or 1  # asked once: it costs more than a small kernel


class Executable:
    """Runs a program on states.

    Arrays are C-contiguous float64 by name of the program's groups: inputs (N, size), or (size,) for what all states
    share; outputs (N, size). status (N,) int64 receives the bits of `sysdyn.backends.llvm.kernel` for each state.
    zeros: outputs that are the constant 0 are written, too; where not, they have to be 0 beforehand.
    """

    def __init__(self, program: Program, backend: str = "llvm", level: int = 2, zeros: bool = True):
        self.program, self.backend, self.zeros = program, backend, zeros
        self._local = threading.local()
        if backend == "llvm":
            self._scalar = compile_kernel(program, 1, level, zeros)
            self._vector = compile_kernel(program, simd_width(), level, zeros)

    def run(self, inputs: Mapping, outputs: Mapping, status: np.ndarray, threads: int | None = None) -> None:
        """threads: as many as the batch is worth, up to the number of cores, where it is None."""
        n = len(status)
        if not n:
            return
        if self.backend == "python":
            self._run_python(inputs, outputs, status)
            return
        kernel = self._scalar if n == 1 else self._vector
        if threads is None:
            threads = min(CORES, -(-n // THREAD_STATES))

        def part(start: int, size: int) -> None:
            words = self._words(inputs, outputs, status, start, size)
            kernel.run(_address(words), self._work(kernel))

        if threads == 1 or n == 1:
            part(0, n)
        else:
            TEAM.run([partial(part, *share) for share in _shares(n, threads, kernel.width)])

    def results(self, inputs: Mapping, n: int, threads: int | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """({output: (n, size)}, status (n,)) at n states, in new arrays; threads as for `run`.

        One state is computed by a call that is prepared once a thread.
        """
        if n == 1 and self.backend == "llvm":
            call = self._local.__dict__.get("call")
            if call is None:
                call = self._local.call = _Call(self)
            return call(inputs)
        new = np.empty if self.zeros else np.zeros
        outputs = {name: new((n, size)) for name, size in self.program.output_groups}
        status = np.empty(n, dtype=np.int64)
        self.run(inputs, outputs, status, threads)
        return outputs, status

    def step(self, inputs: Mapping, outputs: Mapping, status: np.ndarray, out, single: bool, threads: int = 1) -> Step:
        """The run with these arrays as a call without arguments; `out` is what it shows as its results.

        single: of one state, by the scalar kernel.
        """
        kernel = self._scalar if single else self._vector
        words = [self._words(inputs, outputs, status, *share) for share in _shares(len(status), threads, kernel.width)]
        works = [aligned(kernel.work_doubles) for _ in words]
        keep = kernel, words, works, inputs, outputs, status
        addresses = [(_address(x), address) for x, (_, address) in zip(words, works, strict=True)]
        if single:
            return Step(entry.prepared(kernel.method, *addresses[0]), out, status, keep)
        if len(words) == 1:
            return Step(partial(kernel.run, *addresses[0]), out, status, keep)
        # each part keeps the arrays: a call that is interrupted goes on in its threads
        return Step(partial(TEAM.run, [partial(_run, kernel.run, *x, keep) for x in addresses]), out, status, keep)

    def guarded(self, inputs: Mapping) -> np.ndarray:
        """(N, guards): the values that the program guards."""
        seen: dict[int, object] = {g.value: None for g in self.program.guards}

        def watch(number: int, value) -> None:
            if number in seen:
                seen[number] = value

        flat = [row for name, _ in self.program.input_groups for row in np.atleast_2d(inputs[name]).T]
        interpreter.run(self.program, flat, watch=watch)
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

    def _work(self, kernel: Kernel) -> int:
        """Address of this thread's workspace."""
        held = self._local.__dict__.get(kernel.width)
        if held is None:
            held = self._local.__dict__[kernel.width] = aligned(kernel.work_doubles)
        return held[1]

    def _run_python(self, inputs: Mapping, outputs: Mapping, status: np.ndarray) -> None:
        result = interpreter.run_groups(self.program, inputs)
        status[:] = 0
        for x in inputs.values():
            status[~np.isfinite(x).all(axis=-1)] |= BAD_INPUT
        for name, x in result.items():
            outputs[name][:] = x
            status[~np.isfinite(x).all(axis=-1)] |= BAD_OUTPUT
        if self.program.guards:
            size = np.abs(self.guarded(inputs))
            status[~(size >= [g.threshold for g in self.program.guards]).all(axis=1)] |= BAD_PIVOT
            status[~(size >= [g.weak for g in self.program.guards]).all(axis=1)] |= WEAK_PIVOT


class _Call:
    """A thread's call of one state: buffers that stay, and the kernel with their addresses."""

    def __init__(self, executable: Executable):
        program, kernel = executable.program, executable._scalar
        self._inputs = {name: np.zeros(size) for name, size in program.input_groups}
        ends = np.cumsum([size for _, size in program.output_groups]).tolist()
        self._places = [
            (name, slice(end - size, end)) for (name, size), end in zip(program.output_groups, ends, strict=True)
        ]
        self._row, self._status = np.zeros((1, program.n_outputs)), np.zeros(1, dtype=np.int64)
        outputs = {name: self._row[:, place] for name, place in self._places}
        self._words = executable._words(self._inputs, outputs, self._status, 0, 1)
        self._run = partial(kernel.run, _address(self._words), executable._work(kernel))

    def __call__(self, inputs: Mapping) -> tuple[dict[str, np.ndarray], np.ndarray]:
        for name, x in self._inputs.items():
            x[:] = inputs[name]
        self._run()
        row = self._row.copy()
        return {name: row[:, place] for name, place in self._places}, self._status.copy()


class Step:
    """A prepared call: `step()` computes the results for the values that the bound arrays hold then.

    out: where it writes them; status (N,) int64: bits of `sysdyn.backends.llvm.kernel`, zero where all went well.
    """

    __slots__ = ("_keep", "_run", "out", "status")

    def __init__(self, run: Callable[[], None], out, status: np.ndarray, keep):
        self._run, self.out, self.status, self._keep = run, out, status, keep

    def __call__(self) -> None:
        self._run()


def checked_threads(threads: object) -> None:
    """Raise InvalidInput unless `threads` is a number of threads."""
    if not (isinstance(threads, int) and threads >= 1):
        raise InvalidInput(f"threads is {threads!r}, but an integer ≥ 1 is needed")


def _shares(n: int, threads: int, width: int) -> list[tuple[int, int]]:
    """(first state, number of states) of the part of each thread: whole registers, but for the last."""
    share = -(-n // (threads * width)) * width
    return [(start, min(share, n - start)) for start in range(0, n, share)] if threads > 1 and n else [(0, n)]


def _run(kernel: Callable[[int, int], None], words: int, work: int, keep: tuple) -> None:
    kernel(words, work)


def _address(x: np.ndarray) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only, empty or broadcast; five times slower
        return x.__array_interface__["data"][0]
