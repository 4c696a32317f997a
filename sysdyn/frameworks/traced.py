"""Common parts of the JAX and PyTorch exports: programs as functions with tracing, differentiation and batching.

Derivatives of any order, in forward and reverse mode, are programs that are compiled at the first trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.program.arrays import broadcast_shapes
from sysdyn.program.autodiff import ProgramDerivatives
from sysdyn.program.groups import Arrays, Groups
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE, Real
from sysdyn.runtime.runner import Runner

# on_failure(program, inputs, outputs, status (N,)) corrects failed states in place, sets them to NaN, or raises.
FailureHandler = Callable[[Program, Arrays, Arrays, np.ndarray], None]


class FrameworkFunction(NamedTuple):
    """A program and the calling convention of its function, for a framework.

    Attributes
    ----------
    program : Program
        Includes the normalisation of quaternions.
    groups : Groups
        Input groups.
    bind_arguments : callable
        Arguments of a call, which may be traced → {group: value}.
    shapes : dict
        {group: shape of the result of one state}.
    pack_results : callable
        {group: result} → return value of a call.
    on_failure, on_derivative_failure : FailureHandler
        Handlers for the program and for its derivatives.
    eager_call : callable
        Call with concrete arrays.
    derivative : callable or None
        (kind, groups) → program of the first derivative. None: differentiate the program.
    cache_tag : str
        Text that identifies everything except the program that affects `on_failure`.
    """

    name: str
    program: Program
    groups: Groups
    bind_arguments: Callable[..., Mapping[str, Any]]
    shapes: Mapping[str, tuple[int, ...]]
    pack_results: Callable[[dict[str, Any]], Any]
    on_failure: FailureHandler
    on_derivative_failure: FailureHandler
    eager_call: Callable[..., Any]
    derivative: Callable[[str, tuple[str, ...]], Program] | None = None
    cache_tag: str = ""
    level: int = 2
    real: Real = DOUBLE

    def flatten_arguments(
        self, args: tuple, kwargs: Mapping[str, Any], convert: Callable[[str, Any], Any], broadcast: Callable
    ) -> tuple[list, tuple[int, ...]]:
        """Flatten the arguments of a call. Returns (input (size,) or (N, size) of each group, batch axes).

        convert: (name, argument) → array of the framework. broadcast: (array, shape) → array. Raises InvalidInput for
        missing values and wrong shapes.
        """
        bound = self.bind_arguments(*args, **kwargs)
        arrays, batch_axes = {}, {}
        for name, group in self.groups.items():
            arrays[name] = convert(group.display_name, bound[name] if name in bound else group.require_default())
            batch_axes[name] = group.batch_axes(arrays[name])
        lead = broadcast_shapes({self.groups[name].display_name: axes for name, axes in batch_axes.items() if axes})
        n, inputs = math.prod(lead), []
        for name, group in self.groups.items():
            x = arrays[name].reshape((*batch_axes[name], group.size))
            inputs.append(broadcast(x, (*lead, group.size)).reshape((n, group.size)) if batch_axes[name] else x)
        return inputs, lead

    def results(self, outputs: Any, lead: tuple[int, ...]) -> Any:
        """Return value of a call. outputs: program outputs in order; lead: batch axes."""
        by_group = zip(self.program.outputs, outputs, strict=True)
        return self.pack_results({name: x.reshape(lead + self.shapes[name]) for name, x in by_group})


class Node:
    """A program in traced functions: the program of a `FrameworkFunction`, or a derivative of the parent node.

    kind: type of the derivative, "jvp" or "vjp". wrt: input groups of the parent with respect to which it is taken.
    """

    def __init__(
        self, function: FrameworkFunction, program: Program, on_failure: FailureHandler, parent: Self | None = None,
        kind: str = "", wrt: tuple[str, ...] = (),
    ):  # fmt: skip
        self.function, self.program, self.on_failure = function, program, on_failure
        self.parent, self.kind, self.wrt = parent, kind, wrt
        self.inputs = tuple(program.inputs)
        self._derivatives: dict[tuple[str, tuple[str, ...]], Self] = {}

    @classmethod
    def root(cls, function: FrameworkFunction) -> Self:
        """Node of the function itself, without differentiation."""
        return cls(function, function.program, function.on_failure)

    def derivative(self, kind: str, wrt: tuple[str, ...]) -> Self:
        """Node of J v (jvp) or wᵀ J (vjp) with respect to the input groups `wrt`. v or w are additional inputs."""
        if (kind, wrt) not in self._derivatives:
            special = self.function.derivative if self.parent is None else None
            outputs = list(self.program.outputs)
            program = special(kind, wrt) if special else ProgramDerivatives(self.program, outputs, wrt).product(kind)
            node = type(self)(self.function, program, self.function.on_derivative_failure, self, kind, wrt)
            self._derivatives[kind, wrt] = node
        return self._derivatives[kind, wrt]

    @cached_property
    def machine_code(self) -> MachineCode:
        return MachineCode(self.program, self.function.level, real=self.function.real)

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Run the program. Inputs and outputs are (size,) or (N, size), in order. Raises the errors of `on_failure`."""
        n = next((len(x) for x in arrays if x.ndim > 1), None)
        inputs = dict(zip(self.inputs, arrays, strict=True))
        outputs, status = Runner(self.machine_code).results(inputs, 1 if n is None else n)
        if status.any():
            self.on_failure(self.program, inputs, outputs, status)
        return [x[0] if n is None else x for x in outputs.values()]


def fill_nan(outputs: Arrays, states: Any) -> None:
    """Set outputs of failed states to NaN. states: mask (N,) or indices of the states, or `...` for all."""
    for x in outputs.values():
        x[states] = np.nan


def flatten_batch_axes(
    operands: Sequence, axes: Sequence[int | None], to_front: Callable, broadcast: Callable
) -> tuple[list, tuple[int, ...]]:
    """Merge the mapped axis of vmap with the state axis. Returns (operands (size,) or (N, size), merged axes).

    axes: mapped axis of each operand, or None. to_front: (array, axis) → array; broadcast: (array, shape) → array.
    """
    flat = [x if axis is None else to_front(x, axis) for x, axis in zip(operands, axes, strict=True)]
    outer = [axis is not None for axis in axes]
    inner = [x.ndim - out > 1 for x, out in zip(flat, outer, strict=True)]  # operand has a state axis
    count = next(len(x) for x, out in zip(flat, outer, strict=True) if out)
    if not any(inner):
        return flat, (count,)
    lead = (count, next(x.shape[-2] for x, many in zip(flat, inner, strict=True) if many))
    for k, (x, out, many) in enumerate(zip(flat, outer, inner, strict=True)):
        if out or many:
            x = x if many else x[:, None, :]
            x = broadcast(x if out else x[None], (*lead, x.shape[-1]))
            flat[k] = x.reshape((lead[0] * lead[1], x.shape[-1]))
    return flat, lead
