"""The calling convention of machine code: kernel(words, n) computes n states.

`words` are 64-bit numbers: the addresses of a workspace and of the status (n,), then for each group of inputs, and then
for each group of outputs, the address of its first row and the numbers from row to row. The distance 0 repeats one row
for all states; outputs at address 0 are left out.

by_number(words, n, rows, into), of kernels for many states, is the same for rows of larger arrays: rows and into are
the addresses of their numbers (n,), of those that are read and those that are written; 0 if they follow one another.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE, Real

# Alignment of workspaces in bytes: the size of a cache line and of the widest register.
ALIGN = 64


@dataclass(frozen=True)
class Kernel:
    """Machine code of a program, which is called by many threads, each with a workspace of its own.

    width: states computed at a time. n_slots: numbers of each in a workspace. keep: the owner of the code. cached: the
    code was not made anew. real: type of its numbers. by_number: address of the code for rows by number, or 0.
    """

    address: int
    width: int
    n_slots: int
    keep: object
    cached: bool
    real: Real = DOUBLE
    by_number: int = 0
    _own: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @cached_property
    def run(self) -> Callable[[int, int], None]:
        """The kernel as a function of ctypes (address of the words, n), which releases the interpreter's lock."""
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.address)

    def work(self) -> tuple[np.ndarray, int]:
        """(array, address of the first slot) of a new workspace. A register's worth may be read beyond its slots."""
        array = np.empty((self.n_slots + 1) * self.width + 2 * ALIGN // self.real.size, self.real.dtype)
        return array, -(-array.ctypes.data // ALIGN) * ALIGN

    @cached_property
    def shared_work(self) -> tuple[np.ndarray, int]:
        """The workspace of all calls that hold the interpreter's lock."""
        return self.work()

    def own_work(self) -> int:
        """Address of the first slot of this thread's workspace."""
        try:
            return self._own.work[1]
        except AttributeError:
            self._own.work = self.work()
            return self._own.work[1]


def words(
    program: Program, work: int, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray],
    status: np.ndarray, start: int = 0,
) -> np.ndarray:  # fmt: skip
    """Words for the states of these arrays from `start` on; arrays as in `sysdyn.runtime.backend`."""
    found = [work, address(status) + status.itemsize * start]
    for name, size in program.inputs.sizes.items():
        x = inputs[name]
        found += (address(x), 0) if x.ndim == 1 else (address(x) + x.itemsize * size * start, size)
    for name, size in program.outputs.sizes.items():
        x = outputs[name]
        found += (address(x) + x.itemsize * size * start, size)
    return np.array(found, dtype=np.int64)


def address(x: Any) -> int:
    """The address of the first entry of an array."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only, empty or broadcast; five times slower
        return x.__array_interface__["data"][0]
