"""A float that counts what is done with it: the oracle of every operation count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import ADD, COPYSIGN, COS, DIV, MUL, SIN, SQRT, SUB, Flops

_COUNTED = ("mul", "add", "div", "sqrt", "trig")


class Counted:
    """A number that counts what is done with it, and remembers what it was made from.

    Free are, as in the project's rules, products with the constants 0 and ±1, additions of the constant 0, sign
    changes, and x − x and x / x of one and the same number (or its negative). Constants are plain floats. A sine or
    cosine of one angle is computed once. (A computed number that happens to be 0, as ω_y I ω_z − ω_z I ω_y of a
    symmetric body, is no constant: that is what sharing="algebraic" is for.)
    """

    log: ClassVar[list[Counted]] = []  # all that were executed

    def __init__(self, value: float, operation: str = "", *operands):
        self.value, self.operation = value, operation
        self.operands = [x for x in operands if isinstance(x, Counted)]
        self.unsigned, self.sign = self, 1.0
        self.pair: dict[str, Counted] = {}
        if operation in _COUNTED:
            Counted.log.append(self)

    def __neg__(self):
        if self.unsigned is not self:
            return self.unsigned
        negative = Counted(-self.value, "neg", self)
        negative.unsigned, negative.sign = self, -1.0
        return negative

    def __pos__(self):
        return self

    def __add__(self, other):
        if isinstance(other, Counted):
            cancels = self.unsigned is other.unsigned and self.sign != other.sign
            return 0.0 if cancels else Counted(self.value + other.value, "add", self, other)
        return self if other == 0.0 else Counted(self.value + other, "add", self)

    __radd__ = __add__

    def __sub__(self, other):
        return self + (-other)

    def __rsub__(self, constant):
        return -self + constant

    def __mul__(self, other):
        if isinstance(other, Counted):
            return Counted(self.value * other.value, "mul", self, other)
        if other in (0.0, 1.0, -1.0):
            return (0.0, self, -self)[int(other)]
        return Counted(self.value * other, "mul", self)

    __rmul__ = __mul__

    def __truediv__(self, other):
        if isinstance(other, Counted):
            if self.unsigned is other.unsigned:
                return self.sign * other.sign
            return Counted(self.value / other.value, "div", self, other)
        if other in (1.0, -1.0):
            return self if other == 1.0 else -self
        return Counted(self.value / other, "div", self)

    def __rtruediv__(self, constant):
        return 0.0 if constant == 0.0 else Counted(constant / self.value, "div", self)

    # Methods as of `Expr`, and what functions of the package call.
    def sin(self):
        sine = self._of_angle("sin", math.sin)
        return sine if self.sign > 0.0 else -sine

    def cos(self):
        return self._of_angle("cos", math.cos)

    def sqrt(self):
        return Counted(math.sqrt(self.value), "sqrt", self)

    def apply_operation(self, kind: int, *operands):
        if kind in (SIN, COS, SQRT):
            return {SIN: self.sin, COS: self.cos, SQRT: self.sqrt}[kind]()
        assert kind == COPYSIGN, kind
        size, sign = operands
        return Counted(math.copysign(float(size), float(sign)), "copysign", size, sign)

    def __float__(self) -> float:
        return self.value

    def _of_angle(self, name: str, function) -> Counted:
        angle = self.unsigned
        if name not in angle.pair:
            angle.pair[name] = Counted(function(angle.value), "trig", angle)
        return angle.pair[name]


def live(outputs: Iterable) -> list[Counted]:
    """The counted numbers that `outputs` were made from."""
    seen: dict[int, Counted] = {}
    stack = [x for x in outputs if isinstance(x, Counted)]
    while stack:
        x = stack.pop()
        if id(x) not in seen:
            seen[id(x)] = x
            stack.extend(x.operands)
    return list(seen.values())


def counted(numbers: Iterable[Counted]) -> Flops:
    """How many of each kind; sines and cosines by pairs of one angle."""
    numbers = list(numbers)
    kinds = [x.operation for x in numbers]
    angles = {id(x.operands[0]) for x in numbers if x.operation == "trig"}
    return Flops(*(kinds.count(kind) for kind in ("mul", "add", "div", "sqrt")), len(angles))


def all_nodes(graph: Graph) -> Flops:
    """What the graph holds, dead or alive."""
    count = [graph.kind.count(kind) for kind in range(10)]
    angles = {a for kind, a in zip(graph.kind, graph.lhs, strict=True) if kind in (SIN, COS)}
    return Flops(count[MUL], count[ADD] + count[SUB], count[DIV], count[SQRT], len(angles))
