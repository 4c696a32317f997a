"""The back end of machine code: a kernel of one state and one of a register of states, called at addresses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.backends.backend import Argument, Arrays, Backend, Batch, Direct, Results
from sysdyn.backends.llvm import entry, target
from sysdyn.backends.llvm.kernel import Kernel, aligned, compile_kernel
from sysdyn.program.program import Program

# Direct calls hold the interpreter's lock: they are for programs of up to so many operations, a tenth of a millisecond.
LONGEST = 200_000
# The quaternions of so many states are looked at before these are computed, while they are in the cache.
TURNED = 1024


class MachineCode(Backend):
    """scalar: the kernel of one state; vector: that of `width` states at a time, made for the first batch."""

    name = "llvm"
    binds = True
    shares = True

    def __init__(self, program: Program, level: int = 2, zeros: bool = True):
        super().__init__(program, level, zeros)
        self.width = target.here().width
        self.scalar = compile_kernel(program, 1, level, zeros)
        self._vector: Kernel | None = None
        self._local = threading.local()

    @property
    def vector(self) -> Kernel:
        if self._vector is None:
            with target.LOCK:
                if self._vector is None:
                    self._vector = compile_kernel(self.program, self.width, self.level, self.zeros)
        return self._vector

    @classmethod
    def require(cls) -> None:
        target.library()

    def one(self, inputs: Arrays) -> Results:
        """A call that is prepared once a thread."""
        try:
            call = self._local.call
        except AttributeError:
            call = self._local.call = _Call(self)
        return call(inputs)

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        kernel = self.scalar if len(status) == 1 else self.vector
        words = self.words(inputs, outputs, status, start, size)
        kernel.run(_address(words), self.work(kernel))

    def prepared(
        self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int, single: bool
    ) -> tuple[Callable[[], None], object]:
        kernel = self.scalar if single else self.vector
        words = self.words(inputs, outputs, status, start, size)
        work, address = aligned(kernel.work_doubles)
        keep = kernel, words, work
        if single:
            return entry.prepared(kernel.methods, _address(words), address), keep
        return partial(kernel.run, _address(words), address), keep

    def direct(self, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]) -> Direct | None:
        program, kernel = self.program, self.scalar
        if len(program) > LONGEST or not entry.reads_arrays():
            return None
        groups = (*program.output_groups, *program.input_groups)
        ends = np.cumsum([size for _, size in groups])
        row, status = np.concatenate([np.zeros(program.n_outputs), constants]), np.zeros(1, dtype=np.int64)
        parts = np.split(row, ends[:-1])
        names = [name for name, _ in groups]
        split = len(program.output_groups)
        outputs = {name: x[None] for name, x in zip(names[:split], parts[:split], strict=True)}
        inputs = dict(zip(names[split:], parts[split:], strict=True))
        words = self.words(inputs, outputs, status, 0, 1)
        work, at_work = aligned(kernel.work_doubles)
        begin = _address(row) + 8 * program.n_outputs
        length = program.n_outputs + 1 + max((int(numbers.max()) for _, numbers, _ in arguments), default=-1)
        tables, targets = [], []
        for shape, numbers, key in arguments:
            places = begin + 8 * numbers.astype(np.int64)
            scattered = bool((np.diff(places) != 8).any())
            tables.append(places)
            targets.append(entry.Target(shape, _address(places) if scattered else int(places[0]), scattered, key))
        call = entry.direct(
            kernel.methods, _address(words), at_work, _address(status), _address(row), length, targets,
            [begin + 8 * k for k in quaternions],
        )  # fmt: skip
        return Direct(call, length, (kernel, row, status, words, work, tables, targets))

    def batch(
        self, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]
    ) -> Batch | None:  # fmt: skip
        groups, places, kept, turning, begin = self.program.input_groups, {}, {}, [], 0
        for k, (name, size) in enumerate(groups):
            kept[name] = constants[begin : begin + size]
            places[tuple(range(begin, begin + size))] = 2 + 2 * k
            turning += [(2 + 2 * k, x - begin) for x in quaternions if begin <= x < begin + size]
            begin += size
        whole = [places.get(tuple(x.inputs.tolist())) for x in arguments]
        if None in whole or not entry.reads_arrays():
            return None  # values that have to be put together
        kernel = self.vector
        outputs, status = self.new(1)
        template = self.words(kept, outputs, status, 0, 1).tolist()
        targets = [(x.shape, place) for x, place in zip(arguments, whole, strict=True) if place]
        call = entry.batch(kernel.methods, targets, template, len(outputs), turning, TURNED if turning else 2**62)

        def run(outputs: Arrays, status: np.ndarray, arrays: tuple, counter: np.ndarray | None = None) -> bool | None:
            return call((self.workspace(kernel)[0], counter, status, *outputs.values()), arrays)

        return Batch(run, constants)

    def guarded(self, inputs: Arrays) -> np.ndarray:
        return interpreter.guarded(self.program, inputs)

    def words(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> np.ndarray:
        """Arguments of a kernel for states start … start + size − 1, as `sysdyn.backends.llvm.kernel` has them."""
        words = [size, _address(status) + 8 * start]
        for name, length in self.program.input_groups:
            x = inputs[name]
            words += (_address(x), 0) if x.ndim == 1 else (_address(x) + 8 * length * start, length)
        for name, length in self.program.output_groups:
            words += (_address(outputs[name]) + 8 * length * start, length)
        return np.array(words, dtype=np.int64)

    def work(self, kernel: Kernel) -> int:
        """Address of this thread's workspace."""
        return self.workspace(kernel)[1]

    def workspace(self, kernel: Kernel) -> tuple[np.ndarray, int]:
        """This thread's workspace, and where it begins."""
        held: dict[int, tuple[np.ndarray, int]] = self._local.__dict__.setdefault("work", {})
        if kernel.width not in held:
            held[kernel.width] = aligned(kernel.work_doubles)
        return held[kernel.width]


class _Call:
    """A thread's call of one state: buffers that stay, and the kernel with their addresses."""

    def __init__(self, backend: MachineCode):
        program = backend.program
        self._inputs = {name: np.zeros(size) for name, size in program.input_groups}
        ends = np.cumsum([size for _, size in program.output_groups]).tolist()
        self._places = [
            (name, slice(end - size, end)) for (name, size), end in zip(program.output_groups, ends, strict=True)
        ]
        self._row, self._status = np.zeros((1, program.n_outputs)), np.zeros(1, dtype=np.int64)
        outputs = {name: self._row[:, place] for name, place in self._places}
        self._words = backend.words(self._inputs, outputs, self._status, 0, 1)
        self._run = partial(backend.scalar.run, _address(self._words), backend.work(backend.scalar))

    def __call__(self, inputs: Arrays) -> Results:
        for name, x in self._inputs.items():
            x[:] = inputs[name]
        self._run()
        row = self._row.copy()
        return {name: row[:, place] for name, place in self._places}, self._status.copy()


def _address(x: Any) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only, empty or broadcast; five times slower
        return x.__array_interface__["data"][0]
