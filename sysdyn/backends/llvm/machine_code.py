"""The back end of machine code: a kernel of one state and one of a register of states."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.backends.backend import Arrays, Backend
from sysdyn.backends.kernel import Kernel, address, words
from sysdyn.backends.llvm import target
from sysdyn.backends.llvm.kernel import compile_kernel
from sysdyn.program.program import Program


class MachineCode(Backend):
    """scalar: the kernel of one state; vector: that of `width` states at a time, made for the first batch."""

    name = "llvm"
    shares = True

    def __init__(self, program: Program, level: int = 2, zeros: bool = True):
        super().__init__(program, level, zeros)
        self.width = target.here().lanes()
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

    def kernel(self, single: bool) -> Kernel:
        return self.scalar if single else self.vector

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        if len(status) == 1:
            self._run_one(inputs, outputs, status)
            return
        own = words(self.program, self.vector.own_work(), inputs, outputs, status, start)
        self.vector.run(address(own), size)

    def _run_one(self, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
        """Run one state by arrays that each thread keeps: copying a few numbers is faster than asking for addresses."""
        try:
            kept, results, bits, call, _ = self._local.one
        except AttributeError:
            program, kernel = self.program, self.scalar
            kept = {name: np.zeros(size) for name, size in program.input_groups}
            results, bits = self.new(1)
            own = words(program, kernel.own_work(), kept, results, bits)
            call = partial(kernel.run, address(own), 1)
            self._local.one = kept, results, bits, call, own
        for name, x in kept.items():
            x[:] = inputs[name]
        call()
        for name, x in results.items():
            outputs[name][:] = x
        status[:] = bits

    def guarded(self, inputs: Arrays) -> np.ndarray:
        return interpreter.guarded(self.program, inputs)
