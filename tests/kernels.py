"""Kernels run beside memory that must stay as it is."""

from __future__ import annotations

import numpy as np

from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.program.program import Program
from sysdyn.runtime.kernel import Kernel

CANARY = -7.25  # around every output; nobody may write there


def run_kernel(
    kernel: Kernel,
    program: Program,
    inputs: dict[str, np.ndarray],
    n: int,
    skip: tuple[str, ...] = (),
    work: tuple | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(outputs by group (n, size), status (n,)); an input of one dimension is repeated for all states."""
    status = np.full(n + 2, 99, dtype=np.int64)
    space = work or kernel.work()
    words = [space[1], status[1:].ctypes.data]
    keep = []
    for name, size in program.inputs.sizes.items():
        x = np.ascontiguousarray(inputs[name], dtype=kernel.real.dtype)
        assert x.shape in ((size,), (n, size))
        keep.append(x)
        words += [x.ctypes.data, 0 if x.ndim == 1 else size]
    outputs = {}
    for name, size in program.outputs.sizes.items():
        # rows longer than needed, so that the stride matters
        out = np.full((n + 2, size + 2), CANARY, dtype=kernel.real.dtype)
        outputs[name] = out
        words += [0 if name in skip else out[1:, 1:].ctypes.data, size + 2]
    arguments = np.array(words, dtype=np.int64)
    kernel.run(arguments, n)
    assert status[0] == status[-1] == 99
    for name, size in program.outputs.sizes.items():
        out = outputs[name]
        edge = np.ones(out.shape, dtype=bool)
        edge[1:-1, 1 : size + 1] = name in skip
        assert np.all(out[edge] == CANARY), f"{name}: written outside of its place"
        outputs[name] = out[1:-1, 1 : size + 1].copy()
    return outputs, status[1:-1].copy()


def run_llvm(width: int, level: int):
    def run(program: Program, inputs: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
        return run_kernel(compile_kernel(program, width, level), program, inputs, n)[0]

    return run
