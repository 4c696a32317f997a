"""The back end of machine code: a kernel of one state and one of a register of states."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.codegen.llvm import target
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.program.groups import Arrays
from sysdyn.program.program import Program
from sysdyn.runtime.backend import Backend
from sysdyn.runtime.kernel import Kernel, address, words
from sysdyn.runtime.real import DOUBLE, Real


class MachineCode(Backend):
    """Kernels of one state and of `width` states at a time, each made where it is first asked for."""

    name = "llvm"
    supports_threads = True

    def __init__(self, program: Program, level: int = 2, zeros: bool = True, real: Real = DOUBLE):
        super().__init__(program, level, zeros, real)
        self.width = target.here().lanes(real)
        self._made: dict[tuple[int, bool], Kernel] = {}  # by number of states at a time, and whether it clears
        self._local = threading.local()

    @classmethod
    def require(cls) -> None:
        target.library()

    def kernel(self, single: bool, clears: bool = True) -> Kernel:
        key = width, clears = (1, False) if single else (self.width, clears and not self.zeros)
        if key not in self._made:
            with target.LOCK:
                if key not in self._made:
                    made = compile_kernel(self.program, width, self.level, self.zeros, clears, real=self.real)
                    self._made[key] = made
        return self._made[key]

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        if len(status) == 1:
            self._run_one(inputs, outputs, status)
            return
        kernel = self.kernel(False)
        own = words(self.program, kernel.own_work(), inputs, outputs, status, start)
        kernel.run(address(own), size)

    def _run_one(self, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
        """Run one state by arrays that each thread keeps: copying a few numbers is faster than asking for addresses."""
        try:
            kept, results, bits, call, _ = self._local.one
        except AttributeError:
            program, kernel = self.program, self.kernel(True)
            kept = {name: np.zeros(size, self.real.dtype) for name, size in program.inputs.sizes.items()}
            results, bits = self.allocate_results(1)
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
