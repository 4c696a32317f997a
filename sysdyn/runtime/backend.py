"""The contract of a back end: a program, and a way to run it on some states of a batch.

Arrays are C-contiguous, of the back end's type of numbers, by name of the program's groups: inputs (N, size), or
(size,) for what all states share; outputs (N, size). status (N,) int64 receives for each state the bits of
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
    """A program made ready to run. A back end is a subclass, and a line in `sysdyn.codegen.registry.BACKENDS`.

    level: of code generation, 0 (fast to compile) to 3, for those that generate code. real: type of the numbers.
    Several threads may run it at the same time.
    """

    name: ClassVar[str]
    supports_threads: ClassVar[bool] = False  # True if parts of a batch run faster on threads side by side.
    width: int = 1  # States computed at a time: the size of each part of a batch is a multiple of it.

    def __init__(self, program: Program, level: int = 2, real: Real = DOUBLE):
        self.require()
        self.program, self.level, self.real = program, level, real
        self._buffers = BufferPool()

    def __reduce__(self):
        return type(self), (self.program, self.level, self.real)

    @classmethod
    def require(cls) -> None:
        """Raise BackendUnavailable, with the remedy, unless all that the back end needs is installed."""
        return None

    @abstractmethod
    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        """Run states start … start + size − 1 of the batch."""

    @abstractmethod
    def guarded(self, inputs: Arrays) -> np.ndarray:
        """(N, guards): the values that the program guards."""

    def kernel(self, single: bool) -> Kernel | None:
        """Machine code for calls without checks, for one state (`single`) or for many; None if there is none.

        Each is compiled when it is first asked for; callers whose first call must not wait ask beforehand.
        """
        return None

    @property
    def kernels(self) -> bool:
        """True if there is machine code for calls without checks, whether it is made already or not."""
        return type(self).kernel is not Backend.kernel

    def allocate_results(self, n: int) -> RunResults:
        """Arrays for the results at n states that nothing else refers to."""
        shapes = {name: (n, size) for name, size in self.program.outputs.sizes.items()}
        return self._buffers.arrays(shapes, self.real.dtype), np.empty(n, dtype=np.int64)

    def cast_inputs(self, inputs: Arrays) -> Arrays:
        """Inputs of float64 in the back end's type of numbers; those that are of this type are not copied."""
        if self.real is DOUBLE:
            return inputs
        with np.errstate(over="ignore"):  # the kernel finds infinite numbers
            return {name: x.astype(self.real.dtype, order="C", copy=False) for name, x in inputs.items()}
