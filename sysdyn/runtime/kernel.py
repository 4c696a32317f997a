"""Kernels: machine code of programs, and their calling convention.

A kernel gets its arguments as `words`, an array of int64: the address of the workspace, the address of the status (n,),
and two words for each group of inputs and then of outputs. These are the address of its first row and its row stride,
counted in floating-point numbers. If the stride is 0, all states share one row. If the address of an output is 0, the
kernel does not write it. See also native/driver.h.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sysdyn.program.program import Program
from sysdyn.runtime.native import extension
from sysdyn.runtime.real import DOUBLE, Real
from sysdyn.runtime.spans import input_spans, output_spans

# Alignment of workspaces in bytes: the size of a cache line and of the widest register.
ALIGN = 64


@dataclass(frozen=True)
class Kernel:
    """Machine code of a program. Several threads may call it, each with its own workspace.

    body: address of the function body(workspace), which computes `width` states. n_slots: slots of the workspace, each
    with one number per state. status_slot: slot of the status. n_pauses: number of times that `body` calls the prefetch
    function. owner: object that owns the code. cached: True if the code was loaded from the disk cache. real:
    floating-point type.
    """

    program: Program
    body: int
    width: int
    n_slots: int
    status_slot: int
    n_pauses: int
    owner: object = None
    cached: bool = False
    real: Real = DOUBLE
    _local: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @cached_property
    def address(self) -> int:
        """Address of the struct KernelData of native/driver.h."""
        return address(self._struct[0])

    @cached_property
    def _struct(self) -> tuple[np.ndarray, ...]:
        gathered, scattered = input_spans(self.program), output_spans(self.program)
        row = self.real.size * int(gathered[:, 2].sum() + scattered[:, 2].sum())
        struct = [
            self.body, self.n_pauses, self.width, self.real.size, row, self.status_slot, len(gathered), len(scattered),
            address(gathered), address(scattered),
        ]  # fmt: skip
        return np.array(struct, dtype=np.int64), gathered, scattered

    def run(self, words: np.ndarray, n: int) -> None:
        """Compute n states without the GIL."""
        extension.run(self.address, words, n)

    def work(self) -> tuple[np.ndarray, int]:
        """Allocate a workspace: (array, address of its first slot). It is padded for vector loads beyond its end."""
        array = np.empty((self.n_slots + 1) * self.width + 2 * ALIGN // self.real.size, self.real.dtype)
        return array, -(-array.ctypes.data // ALIGN) * ALIGN

    @cached_property
    def shared_work(self) -> tuple[np.ndarray, int]:
        """The workspace that all calls under the GIL share."""
        return self.work()

    def own_work(self) -> int:
        """Address of the first slot of this thread's workspace."""
        try:
            return self._local.work[1]
        except AttributeError:
            self._local.work = self.work()
            return self._local.work[1]


def words(
    program: Program, work: int, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray],
    status: np.ndarray, start: int = 0,
) -> np.ndarray:  # fmt: skip
    """Kernel arguments (`words`) for the states from `start` on; arrays as in `sysdyn.runtime.backend`."""
    addresses = [work, address(status) + status.itemsize * start]
    for name, size in program.inputs.sizes.items():
        x = inputs[name]
        addresses += (address(x), 0) if x.ndim == 1 else (address(x) + x.itemsize * size * start, size)
    for name, size in program.outputs.sizes.items():
        x = outputs[name]
        addresses += (address(x) + x.itemsize * size * start, size)
    return np.array(addresses, dtype=np.int64)


def address(x: Any) -> int:
    """The address of the first entry of an array."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only, empty or broadcast: five times slower
        return x.__array_interface__["data"][0]
