"""The table of scalar operations that graphs, programs and back ends read, their counts, and bits of the status.

A new operation is one entry. Only three special cases are written elsewhere: graphs fold sums and products
(`sysdyn.program.graph`), programs wrap angles, and the sine and cosine of one angle are computed together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.program import reproducible

# Kinds of nodes of a graph: inputs and constants are leaves, an OPAQUE node has the value of its operand. Stored
# programs hold these numbers, so a new kind takes the next one.
INPUT, CONST, ADD, SUB, MUL, DIV, NEG, SIN, COS, SQRT, OPAQUE, COPYSIGN, WRAP = range(13)

ANGULAR = (SIN, COS)  # Kinds that are computed together: sine and cosine of one angle count as one pair.

# Bits of the status that a run reports for each state: an input is not finite; a pivot vanishes; an output is not
# finite; a pivot is near zero; an input is outside the range for which the program was checked.
BAD_INPUT, BAD_PIVOT, BAD_OUTPUT, WEAK_PIVOT, OUT_OF_RANGE = 1, 2, 4, 8, 16
# Bit that a solver adds if digits are lost to covariances far from the declared ones.
LOST_DIGITS = 32


@dataclass(frozen=True)
class Operation:
    """One kind of operation.

    name       name in messages
    arity      number of operands, 1 or 2
    number     value at floats, arrays (a batch) or symbols; floats raise the errors of `math`
    numpy      value at floats or arrays, inf or NaN instead of errors; None where the interpreter has a function
    partials   (value, operand, …) → partial derivatives by the operands, of the type that `number` takes
    c          C99 of the value, a format of the operands; {f} is the suffix of math.h for their type
    llvm       LLVM instruction, or intrinsic with a leading @; "" where the emitter has a function
    casadi     name in CasADi; "" if `number` takes its symbols
    symbol     operator in messages
    counted    the count of `Flops` to which it adds; "" if it is executed and not counted
    parity     1 if even in the last operand, −1 if odd, else 0
    commutes   True if a ∘ b = b ∘ a
    executed   True if programs hold it
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
    """A function of floats, arrays or symbols, which have a method `apply_operation(kind, operand, …)`."""

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
        "copysign", 2, _copysign, np.copysign, lambda y, a, b: (_copysign(_copysign(1.0, a), b), 0.0),
        "copysign{f}({}, {})", "@llvm.copysign", casadi="copysign", parity=-1,
    ),
    # Not counted, as it does the argument reduction of a sine or cosine in advance, see `wrap_angle_sums`.
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
        Sine and cosine pairs, one for each angle.

    Notes
    -----
    Changes of sign (NEG, COPYSIGN), the argument reduction of angles (WRAP) and the checks of pivots are executed, but
    not counted.
    """

    mul: int = 0
    add: int = 0
    div: int = 0
    sqrt: int = 0
    trig: int = 0

    @staticmethod
    def of(kinds: np.ndarray, lhs: np.ndarray) -> Flops:
        """Counts of operations with these kinds (n,) and numbers of first operands (n,)."""
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
