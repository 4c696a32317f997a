"""Run a program with NumPy, operation by operation: reference for the other back ends, and for offline batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.program.groups import Arrays
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT, COS, OPERATIONS, OUT_OF_RANGE, SIN, WEAK_PIVOT
from sysdyn.program.program import Program
from sysdyn.program.reproducible import LARGEST_ANGLE, sincos
from sysdyn.runtime.backend import Backend
from sysdyn.runtime.real import DOUBLE, Real


def numpy_functions() -> dict[int, Callable]:
    """{opcode: NumPy function}; sine and cosine of one angle are computed together."""
    angle: Any = None
    pair: tuple = ()

    def both(x: Any) -> tuple:
        nonlocal angle, pair
        if x is not angle:  # safe: no array of values is overwritten
            in_range = np.abs(x) <= LARGEST_ANGLE
            angle, pair = x, tuple(np.where(in_range, y, math.nan) for y in sincos(x))
        return pair

    functions = {kind: operation.numpy for kind, operation in OPERATIONS.items() if operation.numpy}
    return functions | {SIN: lambda x: both(x)[0], COS: lambda x: both(x)[1]}


def run(
    program: Program,
    inputs: Sequence,
    functions: Mapping[int, Callable] | None = None,
    watch: Callable[[int, Any], None] | None = None,
    constant: Callable[[float], Any] = float,
) -> list:
    """Evaluate a program. Returns the outputs in order.

    inputs: a scalar or an (N,) array for each scalar input, in order. functions: {opcode: function}, by default those
    of NumPy. watch(value number, value): called after each operation. constant: converts the program's constants to the
    scalar type of `functions`.
    """
    functions = functions or numpy_functions()
    n_in, first = program.n_inputs, program.first_op
    lhs, rhs = program.lhs.tolist(), program.rhs.tolist()
    last_use, here = np.arange(first + len(program)), first + np.arange(len(program))
    for operands in (program.lhs, program.rhs):
        np.maximum.at(last_use, operands[operands >= 0], here[operands >= 0])
    last_use[program.output_values] = np.iinfo(np.int64).max
    last = last_use.tolist()
    value: list = [*inputs, *map(constant, program.constants.tolist()), *[None] * len(program)]
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
    return [value[i] for i in program.output_values.tolist()]


def run_groups(
    program: Program, inputs: Arrays, functions: Mapping[int, Callable] | None = None, real: Real = DOUBLE
) -> dict[str, np.ndarray]:
    """Outputs by group (N, size) for inputs by group, each (N, size) or (size,) for all N states."""
    arrays = [np.asarray(inputs[name], dtype=real.dtype) for name in program.inputs]
    n = max((a.shape[0] for a in arrays if a.ndim == 2), default=1)
    columns = [
        np.broadcast_to(a.T if a.ndim == 2 else a.reshape(-1, 1), (size, n))
        for a, size in zip(arrays, program.inputs.sizes.values(), strict=True)
    ]
    flat = [row for c in columns for row in c]
    values = run(program, flat, functions, constant=float if real is DOUBLE else real.dtype.type)
    result = {}
    for name, part in program.outputs.slices.items():
        rows = np.empty((part.stop - part.start, n), real.dtype)  # contiguous by output: callers mostly read one output
        for row, value in zip(rows, values[part], strict=True):
            row[:] = value
        result[name] = rows.T
    return result


def guarded(program: Program, inputs: Arrays) -> np.ndarray:
    """Guarded pivots (N, guards) for inputs by group; (1, guards) if all states share them."""
    if not program.guards:
        return np.empty((1, 0))
    pivots: dict[int, Any] = {g.value: None for g in program.guards}

    def watch(index: int, value: Any) -> None:
        if index in pivots:
            pivots[index] = value

    run(program, _scalars(program, inputs), watch=watch)
    columns = np.broadcast_arrays(*(np.atleast_1d(pivots[g.value]) for g in program.guards))
    return np.stack(columns, axis=1)


def _scalars(program: Program, inputs: Arrays) -> list[np.ndarray]:
    """Each scalar input as an (N,) array, or (1,) if all states share it."""
    return [x for name in program.inputs for x in np.atleast_2d(inputs[name]).T]


class Interpreter(Backend):
    """The back end without compilation. functions: {opcode: function}, by default NumPy's."""

    name = "python"
    functions: Mapping[int, Callable] | None = None

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        part = slice(start, start + size)
        rows = {name: x if x.ndim == 1 else x[part] for name, x in inputs.items()}
        bits = status[part]
        bits[:] = 0
        for name, own in self.program.inputs.slices.items():
            read = rows[name][..., self.program.used_inputs[own]]
            bits |= np.where(np.isfinite(read).all(axis=-1), 0, BAD_INPUT)
        scalars = _scalars(self.program, rows)
        for k, limit in self.program.ranges:
            bits |= np.where(np.abs(scalars[k]) > limit, OUT_OF_RANGE, 0)
        for name, x in run_groups(self.program, rows, self.functions, self.real).items():
            outputs[name][part] = x
            bits |= np.where(np.isfinite(x).all(axis=-1), 0, BAD_OUTPUT)
        if self.program.guards:
            pivots = np.abs(self.guarded(rows))
            bits |= np.where((pivots >= [g.threshold for g in self.program.guards]).all(axis=1), 0, BAD_PIVOT)
            bits |= np.where((pivots >= [g.weak for g in self.program.guards]).all(axis=1), 0, WEAK_PIVOT)

    def guarded(self, inputs: Arrays) -> np.ndarray:
        return guarded(self.program, inputs)
