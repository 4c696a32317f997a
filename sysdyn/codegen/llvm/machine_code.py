"""The LLVM back end: a scalar kernel for one state, and a SIMD kernel for batches."""

from __future__ import annotations

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.codegen.llvm import target
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.program.groups import Arrays
from sysdyn.program.program import Program
from sysdyn.runtime.backend import Backend
from sysdyn.runtime.kernel import Kernel, words
from sysdyn.runtime.real import DOUBLE, Real


class MachineCode(Backend):
    """Scalar and SIMD kernel of a program, each compiled on first use. The SIMD kernel computes `width` states."""

    name = "llvm"
    supports_threads = True

    def __init__(self, program: Program, level: int = 2, real: Real = DOUBLE):
        super().__init__(program, level, real)
        self.width = target.host_processor().lanes(real)
        self._kernels: dict[int, Kernel] = {}  # by number of states at a time

    @classmethod
    def require(cls) -> None:
        target.library()

    def kernel(self, single: bool) -> Kernel:
        width = 1 if single else self.width
        if width not in self._kernels:
            with target.LOCK:
                if width not in self._kernels:
                    self._kernels[width] = compile_kernel(self.program, width, self.level, real=self.real)
        return self._kernels[width]

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        kernel = self.kernel(len(status) == 1)
        inputs = {name: np.ascontiguousarray(inputs[name], self.real.dtype) for name in self.program.inputs}
        kernel.run(words(self.program, kernel.own_work(), inputs, outputs, status, start), size)

    def guarded(self, inputs: Arrays) -> np.ndarray:
        return interpreter.guarded(self.program, inputs)
