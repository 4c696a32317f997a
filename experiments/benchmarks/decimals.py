"""Run a program in 50 decimal digits at one state: the reference of results near singular states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Context, Decimal, localcontext
from functools import lru_cache

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.program.opcodes import ADD, COPYSIGN, COS, DIV, MUL, NEG, SIN, SQRT, SUB, WRAP
from sysdyn.program.program import Program

# Undefined results are NaN.
DIGITS = Context(prec=50, traps=[])
# π/2 to more digits than an angle of 1e9 rad loses.
_HALF_PI = Decimal("1.570796326794896619231321691639751442098584699687552910487472296153908203143104499314")


def run(program: Program, inputs: Mapping[str, np.ndarray]) -> list[Decimal]:
    """The outputs for inputs (size,) by group. Constants of the program count as exact."""
    flat = [Decimal(x) for name in program.inputs for x in np.ravel(inputs[name]).tolist()]
    with localcontext(DIGITS):
        return interpreter.run(program, flat, FUNCTIONS, constant=Decimal)


@lru_cache(maxsize=256)
def _sincos(x: Decimal) -> tuple[Decimal, Decimal]:
    """(sin x, cos x) by their series, after reduction by quarter turns."""
    if not x.is_finite():
        return Decimal("NaN"), Decimal("NaN")
    with localcontext(DIGITS) as context:
        context.prec += 15
        k = (x / _HALF_PI).to_integral_value()
        r = x - k * _HALF_PI
        square, sums = r * r, [r, Decimal(1)]
        for start, term in enumerate(sums[::-1]):  # 1, r²/2, …; r, r³/6, …
            n, total = start, Decimal(0)
            while total + term != total:
                total += term
                term *= -square / ((n + 1) * (n + 2))
                n += 2
            sums[1 - start] = total
        s, c = sums
        return ((s, c), (c, -s), (-s, -c), (-c, s))[int(k) % 4]


# By opcode.
FUNCTIONS: dict[int, Callable[..., Decimal]] = {
    ADD: lambda a, b: a + b, SUB: lambda a, b: a - b, MUL: lambda a, b: a * b, DIV: lambda a, b: a / b,
    NEG: lambda a: -a, SIN: lambda a: _sincos(a)[0], COS: lambda a: _sincos(a)[1], SQRT: lambda a: a.sqrt(),
    COPYSIGN: lambda a, b: a.copy_abs().copy_sign(b), WRAP: lambda a: a,
}  # fmt: skip
