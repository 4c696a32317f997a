"""Run a Program with NumPy, operation by operation: the oracle of the other back ends, and the batch tool offline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.program.opcodes import (
    BAD_INPUT,
    BAD_OUTPUT,
    BAD_PIVOT,
    COS,
    OPERATIONS,
    OUT_OF_RANGE,
    SIN,
    WEAK_PIVOT,
)
from sysdyn.program.program import Program
from sysdyn.program.reproducible import LARGEST_ANGLE, sincos
from sysdyn.runtime.backend import Arrays, Backend
from sysdyn.runtime.real import DOUBLE, Real


def numpy_functions() -> dict[int, Callable]:
    """{kind of operation: its NumPy function}; the sine and the cosine of an angle are computed together."""
    angle: Any = None
    found: tuple = ()

    def both(x: Any) -> tuple:
        nonlocal angle, found
        if x is not angle:  # values are never changed
            in_range, (sine, cosine) = np.abs(x) <= LARGEST_ANGLE, sincos(x)
            angle, found = x, (np.where(in_range, sine, math.nan), np.where(in_range, cosine, math.nan))
        return found

    functions = {kind: operation.numpy for kind, operation in OPERATIONS.items() if operation.numpy}
    return functions | {SIN: lambda x: both(x)[0], COS: lambda x: both(x)[1]}


def run(
    program: Program,
    inputs: Sequence,
    functions: Mapping[int, Callable] | None = None,
    watch: Callable[[int, Any], None] | None = None,
    constant: Callable[[float], Any] = float,
) -> list:
    """The outputs of `program` for `inputs` (one scalar or (N,) array an input, in order).

    functions: the function for each kind of operation, of NumPy by default. watch(value number, value) sees each
    result; values are dropped after their last use. constant: makes a number that `functions` take of each constant.
    """
    functions = functions or numpy_functions()
    n_in, first = program.n_inputs, program.first_op
    lhs, rhs = program.lhs.tolist(), program.rhs.tolist()
    last_use = np.arange(first + len(program), dtype=np.int64)
    here = first + np.arange(len(program))
    np.maximum.at(last_use, program.lhs, here)
    two = program.rhs >= 0
    np.maximum.at(last_use, program.rhs[two], here[two])
    last_use[program.output_values] = np.iinfo(np.int64).max
    last = last_use.tolist()
    value: list = list(inputs) + [constant(x) for x in program.constants.tolist()]
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
    return [value[i] for i in program.output_values.tolist()]


def run_groups(
    program: Program, inputs: Arrays, functions: Mapping[int, Callable] | None = None, real: Real = DOUBLE
) -> dict[str, np.ndarray]:
    """Outputs by group (N, size) for inputs by group, each (N, size) or (size,) for all N states.

    real: type of the numbers.
    """
    arrays = [np.asarray(inputs[name], dtype=real.dtype) for name in program.inputs]
    n = max((a.shape[0] for a in arrays if a.ndim == 2), default=1)
    columns = [
        np.broadcast_to(a.T if a.ndim == 2 else a.reshape(-1, 1), (size, n))
        for a, size in zip(arrays, program.inputs.sizes.values(), strict=True)
    ]
    flat = [row for c in columns for row in c]
    values = run(program, flat, functions, constant=float if real is DOUBLE else real.dtype.type)
    result, at = {}, 0
    for name, size in program.outputs.sizes.items():
        rows = np.empty((size, n), real.dtype)  # written, and mostly read, an output at a time
        for j in range(size):
            rows[j] = values[at + j]
        result[name] = rows.T
        at += size
    return result


def guarded(program: Program, inputs: Arrays) -> np.ndarray:
    """(N, guards): the values that the program guards, for inputs by group; (1, guards) if all states share them."""
    if not program.guards:
        return np.empty((1, 0))
    seen: dict[int, Any] = {g.value: None for g in program.guards}

    def watch(number: int, value: Any) -> None:
        if number in seen:
            seen[number] = value

    flat = [row for name in program.inputs for row in np.atleast_2d(inputs[name]).T]
    run(program, flat, watch=watch)
    columns = np.broadcast_arrays(*(np.atleast_1d(seen[g.value]) for g in program.guards))
    return np.stack(columns, axis=1)


class Interpreter(Backend):
    """The back end that needs nothing but NumPy. functions: of each kind of operation; None: NumPy's."""

    name = "python"
    functions: Mapping[int, Callable] | None = None

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        part = slice(start, start + size)
        rows = {name: x if x.ndim == 1 else x[part] for name, x in inputs.items()}
        bits = status[part]
        bits[:] = 0
        for name in self.program.inputs:
            bits |= np.where(np.isfinite(rows[name]).all(axis=-1), 0, BAD_INPUT)
        if self.program.ranges:
            sizes = np.abs(
                np.concatenate(
                    [np.broadcast_to(rows[g], (size, k)) for g, k in self.program.inputs.sizes.items()], axis=1
                )
            )
            numbers, most = zip(*self.program.ranges, strict=True)
            bits |= np.where((sizes[:, numbers] > most).any(axis=1), OUT_OF_RANGE, 0)
        for name, x in run_groups(self.program, rows, self.functions, self.real).items():
            outputs[name][part] = x
            bits |= np.where(np.isfinite(x).all(axis=-1), 0, BAD_OUTPUT)
        if self.program.guards:
            values = np.abs(self.guarded(rows))
            bits |= np.where((values >= [g.threshold for g in self.program.guards]).all(axis=1), 0, BAD_PIVOT)
            bits |= np.where((values >= [g.weak for g in self.program.guards]).all(axis=1), 0, WEAK_PIVOT)

    def guarded(self, inputs: Arrays) -> np.ndarray:
        return guarded(self.program, inputs)
