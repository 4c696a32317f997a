"""Table of the scalar operations for graphs, programs and back ends; operation counts and status bits.

A new operation is one new entry. Three special cases are implemented elsewhere: graphs fold sums and products
(`sysdyn.program.graph`), programs wrap angles, and back ends compute the sine and cosine of an angle together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.program import reproducible

# Node kinds. Inputs and constants are leaves. An OPAQUE node has the value of its operand. Stored programs contain
# these numbers, so a new kind gets the next number.
INPUT, CONST, ADD, SUB, MUL, DIV, NEG, SIN, COS, SQRT, OPAQUE, COPYSIGN, WRAP = range(13)

ANGULAR = (SIN, COS)  # The sine and cosine of an angle are computed together and count as one pair.

# Status bits of a state: input not finite; zero pivot; output not finite; pivot near zero; input outside the range for
# which the program was checked.
BAD_INPUT, BAD_PIVOT, BAD_OUTPUT, WEAK_PIVOT, OUT_OF_RANGE = 1, 2, 4, 8, 16


@dataclass(frozen=True)
class Operation:
    """A scalar operation.

    Attributes
    ----------
    name : str
        Name in messages.
    arity : int
        Number of operands, 1 or 2.
    number : callable
        Value for floats, arrays (a batch) or symbols. Floats raise the errors of `math`.
    numpy : callable or None
        Value for floats or arrays, with inf or NaN instead of errors. None if the interpreter implements it.
    partials : callable
        (value, operand, …) → partial derivatives with respect to the operands, of the types that `number` accepts.
    c : str
        C99 expression, a format string of the operands; {f} is the math.h suffix of their type.
    llvm : str
        LLVM instruction, or intrinsic with a leading @. "" if the emitter implements it.
    casadi : str
        Name in CasADi; "" if `number` accepts CasADi symbols.
    symbol : str
        Operator in messages.
    counted : str
        Field of `Flops` that counts it; "" for an operation that is not counted.
    parity : int
        1 if even in the last operand, −1 if odd, else 0.
    commutes : bool
        True if a ∘ b = b ∘ a.
    executed : bool
        True if it occurs in programs.
    """

    name: str
    arity: int
    number: Callable[..., Any]
    numpy: Callable[..., Any] | None
    partials: Callable[..., tuple]
    c: str
    llvm: str
    casadi: str = ""
    symbol: str = ""
    counted: str = ""
    parity: int = 0
    commutes: bool = False
    executed: bool = True


def scalar_function(kind: int, of_floats: Callable[..., float], of_arrays: Callable[..., Any]) -> Callable[..., Any]:
    """A function of floats, arrays or symbols. Symbols have a method `apply_operation(kind, operand, …)`."""

    def number(*operands: Any) -> Any:
        for x in operands:
            if hasattr(x, "apply_operation"):
                return x.apply_operation(kind, *operands)
        return (of_arrays if any(isinstance(x, np.ndarray) for x in operands) else of_floats)(*operands)

    return number


_sin = scalar_function(SIN, reproducible.sin, reproducible.sin)
_cos = scalar_function(COS, reproducible.cos, reproducible.cos)
_sqrt = scalar_function(SQRT, math.sqrt, np.sqrt)
_copysign = scalar_function(COPYSIGN, math.copysign, np.copysign)


OPERATIONS: dict[int, Operation] = {
    ADD: Operation(
        "add", 2, operator.add, np.add, lambda y, a, b: (1.0, 1.0), "{} + {}", "fadd contract",
        symbol="+", counted="add", commutes=True,
    ),
    SUB: Operation(
        "sub", 2, operator.sub, np.subtract, lambda y, a, b: (1.0, -1.0), "{} - {}", "fsub contract",
        symbol="-", counted="add",
    ),
    MUL: Operation(
        "mul", 2, operator.mul, np.multiply, lambda y, a, b: (b, a), "{} * {}", "fmul contract",
        symbol="*", counted="mul", commutes=True,
    ),
    DIV: Operation(
        "div", 2, operator.truediv, np.divide, lambda y, a, b: (1.0 / b, -(y / b)), "{} / {}", "fdiv",
        symbol="/", counted="div",
    ),
    NEG: Operation(
        "neg", 1, operator.neg, np.negative, lambda y, a: (-1.0,), "-{}", "fneg",
        symbol="-", parity=-1,
    ),
    SIN: Operation(
        "sin", 1, _sin, None, lambda y, a: (_cos(a),), "sine({})", "",
        casadi="sin", counted="trig", parity=-1,
    ),
    COS: Operation(
        "cos", 1, _cos, None, lambda y, a: (-_sin(a),), "cosine({})", "",
        casadi="cos", counted="trig", parity=1,
    ),
    SQRT: Operation(
        "sqrt", 1, _sqrt, np.sqrt, lambda y, a: (0.5 / y,), "sqrt{f}({})", "@llvm.sqrt",
        casadi="sqrt", counted="sqrt",
    ),
    OPAQUE: Operation(
        "opaque", 1, lambda a: a, np.positive, lambda y, a: (1.0,), "{}", "",
        executed=False,
    ),
    COPYSIGN: Operation(
        "copysign", 2, _copysign, np.copysign, lambda y, a, b: (_copysign(1.0, a) * _copysign(1.0, b), 0.0),
        "copysign{f}({}, {})", "@llvm.copysign", casadi="copysign", parity=-1,
    ),
    # Not counted: part of the argument reduction of a sine or cosine, see `_wrap_angle_sums`.
    WRAP: Operation(
        "wrap", 1, reproducible.wrap_angle, reproducible.wrap_angle, lambda y, a: (1.0,), "wrapped({})", "@wrapped",
        parity=-1,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Flops:
    """Exact operation counts of a program.

    Attributes
    ----------
    mul, add, div, sqrt : int
        Products, sums and differences, quotients, square roots.
    trig : int
        Sine and cosine pairs, one per angle.

    Notes
    -----
    Sign changes (NEG, COPYSIGN), argument reduction of angles (WRAP) and pivot checks are executed but not counted.
    """

    mul: int = 0
    add: int = 0
    div: int = 0
    sqrt: int = 0
    trig: int = 0

    @staticmethod
    def of(kinds: np.ndarray, lhs: np.ndarray) -> Flops:
        """Operation counts. kinds: (n,) node kinds; lhs: (n,) value numbers of the first operands."""
        numbers = np.bincount(kinds, minlength=max(OPERATIONS) + 1)
        counts = {
            name: sum(int(numbers[kind]) for kind, operation in OPERATIONS.items() if operation.counted == name)
            for name in ("mul", "add", "div", "sqrt")
        }
        return Flops(**counts, trig=len(np.unique(lhs[np.isin(kinds, ANGULAR)])))

    @property
    def total(self) -> int:
        """mul + add + div + sqrt, without `trig`."""
        return self.mul + self.add + self.div + self.sqrt

    def __repr__(self) -> str:
        root = f" + {self.sqrt} sqrt" if self.sqrt else ""
        return f"{self.mul} mul + {self.add} add + {self.div} div{root} = {self.total} (and {self.trig} sin/cos pairs)"
