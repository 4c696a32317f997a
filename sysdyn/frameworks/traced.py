"""Programs as frameworks take them that trace, differentiate and batch functions: JAX and PyTorch.

Their derivatives by forward and reverse mode are programs, too, made when they are first asked for, and so on to any
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.program.derivatives import ByProgram
from sysdyn.program.groups import Groups, common
from sysdyn.program.program import Program
from sysdyn.runtime.backend import Arrays
from sysdyn.runtime.real import DOUBLE, Real
from sysdyn.runtime.runner import Runner

# Gets a program, and its inputs, outputs and status of states some of which failed; see `Traced`.
Settle = Callable[[Program, Arrays, Arrays, np.ndarray], None]


class Traced(NamedTuple):
    """A program, its arguments and its results.

    program: unit quaternions are made in it. groups: its inputs. collected: gives {group: value} of the arguments of a
    call, whose values have shapes and no numbers. shapes: of the results at one state, by group; shown: gives what a
    call gives, of results by group. settle: takes inputs, outputs and status (N,) of states some of which failed, and
    writes results that are found another way, or not-a-number; it raises SysdynError to let the call fail.
    settle_derived: the same for derivatives of any order. product: gives the program of a first derivative, by its kind
    and the groups to differentiate by. direct: gives what a call gives, of arrays with numbers. about: of what a call
    does at singular states. real: type of the numbers of the program and its derivatives.
    """

    name: str
    program: Program
    groups: Groups
    collected: Callable[..., Mapping[str, Any]]
    shapes: Mapping[str, tuple[int, ...]]
    shown: Callable[[dict[str, Any]], Any]
    settle: Settle
    settle_derived: Settle
    direct: Callable[..., Any]
    product: Callable[[str, tuple[str, ...]], Program] | None = None
    about: str = ""
    level: int = 2
    real: Real = DOUBLE

    def arranged(
        self, args: tuple, kwargs: Mapping[str, Any], convert: Callable[[str, Any], Any], broadcast: Callable
    ) -> tuple[list, tuple[int, ...]]:
        """(inputs (size,) or (N, size) by group, batch axes) of a call.

        convert: gives an array of this type of numbers of an argument, by its name; broadcast: brings one to a shape.
        Raises InvalidInput for values that are missing or of other shapes.
        """
        collected = self.collected(*args, **kwargs)
        values, leads = {}, {}
        for name, group in self.groups.items():
            x = convert(group.shown, collected[name] if name in collected else group.required())
            values[name] = x, group.leading(x)
            if values[name][1]:
                leads[group.shown] = values[name][1]
        lead = common(leads) if leads else ()
        found = []
        for name, group in self.groups.items():
            x, own = values[name]
            x = x.reshape((*own, group.size))
            found.append(broadcast(x, (*lead, group.size)).reshape((math.prod(lead), group.size)) if own else x)
        return found, lead

    def results(self, outputs: Any, lead: tuple[int, ...]) -> Any:
        """The results of a call, of the outputs of the program in their order."""
        named = zip(self.program.outputs, outputs, strict=True)
        return self.shown({name: x.reshape(lead + self.shapes[name]) for name, x in named})


class Node:
    """A program in traced functions.

    parent: the one that it is a derivative of, of this kind ("jvp" or "vjp") and by these groups.
    """

    def __init__(
        self, traced: Traced, program: Program, settle: Settle, parent: Self | None = None, kind: str = "",
        wrt: tuple[str, ...] = (),
    ):  # fmt: skip
        self.traced, self.program, self.settle = traced, program, settle
        self.parent, self.kind, self.wrt = parent, kind, wrt
        self.inputs = tuple(program.inputs)
        self._derived: dict[tuple[str, tuple[str, ...]], Self] = {}

    def derived(self, kind: str, wrt: tuple[str, ...]) -> Self:
        """The node of J v (jvp) or w^T J (vjp) by these groups of inputs: its further inputs are v or w."""
        if (kind, wrt) not in self._derived:
            first = self.traced.product if self.parent is None else None
            outputs = list(self.program.outputs)
            program = first(kind, wrt) if first else ByProgram(self.program, outputs, wrt).product(kind)
            self._derived[kind, wrt] = type(self)(self.traced, program, self.traced.settle_derived, self, kind, wrt)
        return self._derived[kind, wrt]

    @cached_property
    def machine_code(self) -> MachineCode:
        return MachineCode(self.program, self.traced.level, real=self.traced.real)

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Outputs (size,) or (N, size) of inputs of these shapes, in order. Raises SysdynError as `settle` does."""
        n = next((len(x) for x in arrays if x.ndim > 1), None)
        inputs = dict(zip(self.inputs, arrays, strict=True))
        outputs, status = Runner(self.machine_code).results(inputs, 1 if n is None else n)
        if status.any():
            self.settle(self.program, inputs, outputs, status)
        return [x[0] if n is None else x for x in outputs.values()]


def left_out(outputs: Arrays, failed: Any) -> None:
    """Make not-a-number of the results of failed states, by a mask (N,) or by number (or `...`: of all)."""
    for x in outputs.values():
        x[failed] = np.nan


def mapped(
    operands: Sequence, axes: Sequence[int | None], moved: Callable, broadcast: Callable
) -> tuple[list, tuple[int, ...]]:
    """(operands (size,) or (N, size) of operands with a further axis that is mapped, the axes that N stands for).

    axes: the mapped one of each operand, None if there is none. moved: gives an array with an axis moved to the front;
    broadcast: brings one to a shape.
    """
    found = [x if axis is None else moved(x, axis) for x, axis in zip(operands, axes, strict=True)]
    outer = [axis is not None for axis in axes]
    inner = [x.ndim - out > 1 for x, out in zip(found, outer, strict=True)]  # has states within it, as before
    count = next(len(x) for x, out in zip(found, outer, strict=True) if out)
    if not any(inner):
        return found, (count,)
    lead = (count, next(x.shape[-2] for x, many in zip(found, inner, strict=True) if many))
    for k, (x, out, many) in enumerate(zip(found, outer, inner, strict=True)):
        if out or many:
            x = x if many else x[:, None, :]
            x = broadcast(x if out else x[None], (*lead, x.shape[-1]))
            found[k] = x.reshape((lead[0] * lead[1], x.shape[-1]))
    return found, lead
