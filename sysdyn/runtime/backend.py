"""Abstract base class of back ends, which run a program on some states of a batch.

Arrays are C-contiguous, of the back end's floating-point type, and named after the program's groups: inputs (N, size),
or (size,) if all states share them; outputs (N, size). status (N,) int64 receives the status bits of each state, see
`sysdyn.program.opcodes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from sysdyn.program.groups import Arrays
from sysdyn.program.program import Program
from sysdyn.runtime.buffer_pool import BufferPool
from sysdyn.runtime.kernel import Kernel
from sysdyn.runtime.real import DOUBLE, Real

RunResults = tuple[dict[str, np.ndarray], np.ndarray]  # ({output: (N, size)}, status (N,))


class Backend(ABC):
    """A program that is ready to run. Each back end is a subclass, registered in `sysdyn.codegen.registry.BACKENDS`.

    level: code generation level, 0 (fast to compile) to 3; others ignore it. real: floating-point type.
    Several threads may run it at the same time.
    """

    name: ClassVar[str]
    supports_threads: ClassVar[bool] = False  # True if a batch runs faster on several threads.
    width: int = 1  # Number of states per SIMD pass; the size of each part of a batch is a multiple of it.

    def __init__(self, program: Program, level: int = 2, real: Real = DOUBLE):
        self.require()
        self.program, self.level, self.real = program, level, real
        self._buffers = BufferPool()

    def __reduce__(self):
        return type(self), (self.program, self.level, self.real)

    @classmethod
    def require(cls) -> None:
        """Raise BackendUnavailable if a required package is not installed; the message names it."""
        return None

    @abstractmethod
    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        """Run states start … start + size − 1 of the batch."""

    @abstractmethod
    def guarded(self, inputs: Arrays) -> np.ndarray:
        """Guarded pivots (N, guards): the pivots that the program compares with thresholds."""

    def kernel(self, single: bool) -> Kernel | None:
        """The kernel for one state (`single`) or for batches; None for a back end without machine code.

        Compiled on first use.
        """
        return None

    @property
    def kernels(self) -> bool:
        """True if the back end has kernels, compiled or not."""
        return type(self).kernel is not Backend.kernel

    def allocate_results(self, n: int) -> RunResults:
        """Arrays for the results at n states, reused as in `BufferPool`."""
        shapes = {name: (n, size) for name, size in self.program.outputs.sizes.items()}
        return self._buffers.arrays(shapes, self.real.dtype), np.empty(n, dtype=np.int64)

    def cast_inputs(self, inputs: Arrays) -> Arrays:
        """Convert float64 inputs to the back end's floating-point type; inputs of this type are not copied."""
        if self.real is DOUBLE:
            return inputs
        with np.errstate(over="ignore"):  # the kernel reports infinite numbers
            return {name: x.astype(self.real.dtype, order="C", copy=False) for name, x in inputs.items()}
