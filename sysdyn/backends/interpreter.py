"""Run a Program with NumPy, operation by operation: the oracle of the other backends, and the batch tool offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sysdyn.program.operations import ADD, COS, DIV, MUL, NEG, SIN, SQRT, SUB
from sysdyn.program.program import Program

_NUMPY = {
    ADD: np.add, SUB: np.subtract, MUL: np.multiply, DIV: np.divide,
    NEG: np.negative, SIN: np.sin, COS: np.cos, SQRT: np.sqrt,
}  # fmt: skip


def run(
    program: Program,
    inputs: Sequence,
    functions: dict[int, Callable] = _NUMPY,
    watch: Callable[[int, object], None] | None = None,
) -> list:
    """The outputs of `program` for `inputs` (one scalar or (N,) array an input, in order).

    functions: what executes each kind of operation (a counting one in the tests). watch(value number, value) sees each
    result; values are dropped after their last use.
    """
    n_in, first = program.n_inputs, program.first_op
    lhs, rhs = program.lhs.tolist(), program.rhs.tolist()
    last = np.arange(first + len(program), dtype=np.int64)
    here = first + np.arange(len(program))
    np.maximum.at(last, program.lhs, here)
    two = program.rhs >= 0
    np.maximum.at(last, program.rhs[two], here[two])
    last[program.outputs] = np.iinfo(np.int64).max
    last = last.tolist()
    value: list = list(inputs) + program.constants.tolist()
    value.extend([None] * len(program))
    with np.errstate(all="ignore"):
        for k, kind in enumerate(program.kind.tolist()):
            a, b, i = lhs[k], rhs[k], first + k
            value[i] = functions[kind](value[a]) if b < 0 else functions[kind](value[a], value[b])
            if watch:
                watch(i, value[i])
            if n_in <= a and last[a] <= i:
                value[a] = None
            if n_in <= b and last[b] <= i:
                value[b] = None
    return [value[i] for i in program.outputs.tolist()]


def run_groups(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by group (N, size) for inputs by group, each (N, size) or (size,) for all N states."""
    arrays = [np.asarray(inputs[name], dtype=float) for name, _ in program.input_groups]
    n = max((a.shape[0] for a in arrays if a.ndim == 2), default=1)
    columns = [
        np.broadcast_to(a.T if a.ndim == 2 else a.reshape(-1, 1), (size, n))
        for a, (_, size) in zip(arrays, program.input_groups, strict=True)
    ]
    flat = [row for c in columns for row in c]
    values = run(program, flat)
    result, at = {}, 0
    for name, size in program.output_groups:
        block = np.empty((n, size))
        for j in range(size):
            block[:, j] = values[at + j]
        result[name] = block
        at += size
    return result
