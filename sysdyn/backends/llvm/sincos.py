"""Sine and cosine as LLVM IR, for one state or a register of them."""

from __future__ import annotations

import math

from sysdyn.backends.llvm.types import Types
from sysdyn.program.plain import COS, HALF_PI, SIN
from sysdyn.program.status import LARGEST_ANGLE

# π/2 in three doubles, for products that are not rounded before they are added. Cody & Waite (1980).
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
# Adding 1.5·2^52 rounds to the nearest integer, which the low bits of the sum hold.
_MAGIC = 6755399441055744.0


def sincos_lines(types: Types, x: str, fuses: bool) -> tuple[list[str], str, str]:
    """(lines, sin, cos) of the value named x: x = k π/2 + r, polynomials of r, exchanged and signed by k mod 4.

    fuses: the processor multiplies and adds with one rounding.
    """
    vec, ints, c, i = types.vec, types.ints, types.constant, types.integer
    lines: list[str] = []

    def new(text: str) -> str:
        lines.append(f"  %s{len(lines)} = {text}")
        return f"%s{len(lines) - 1}"

    def fma(x: str, y: str, z: str) -> str:
        return new(f"call {vec} @llvm.fmuladd.{types.suffix}({vec} {x}, {vec} {y}, {vec} {z})")

    def polynomial(x: str, coefficients: tuple[float, ...]) -> str:
        value = c(coefficients[-1])
        for a in reversed(coefficients[:-1]):
            value = fma(value, x, c(a))
        return value

    def signed(value: str, quadrant: str) -> str:
        turned = new(f"shl {ints} {quadrant}, {i(62)}")
        sign = new(f"and {ints} {turned}, {i(-(2**63))}")
        bits = new(f"bitcast {vec} {value} to {ints}")
        flipped = new(f"xor {ints} {bits}, {sign}")
        return new(f"bitcast {ints} {flipped} to {vec}")

    size = new(f"call {vec} @llvm.fabs.{types.suffix}({vec} {x})")
    fits = new(f"fcmp ole {vec} {size}, {c(LARGEST_ANGLE)}")
    x = new(f"select {types.bits} {fits}, {vec} {x}, {vec} {c(math.nan)}")
    shifted = fma(x, c(2.0 / math.pi), c(_MAGIC))
    quadrant = new(f"bitcast {vec} {shifted} to {ints}")
    k = new(f"fsub {vec} {shifted}, {c(_MAGIC)}")
    r = x
    for part in _HALF_PI if fuses else HALF_PI:
        r = fma(k, c(-part), r)
    z = new(f"fmul {vec} {r}, {r}")
    s = fma(new(f"fmul {vec} {r}, {z}"), polynomial(z, SIN), r)
    co = fma(new(f"fmul {vec} {z}, {z}"), polynomial(z, COS), fma(z, c(-0.5), c(1.0)))
    odd = new(f"icmp ne {ints} {new(f'and {ints} {quadrant}, {i(1)}')}, {i(0)}")
    sine = new(f"select {types.bits} {odd}, {vec} {co}, {vec} {s}")
    cosine = new(f"select {types.bits} {odd}, {vec} {s}, {vec} {co}")
    return lines, signed(sine, quadrant), signed(cosine, new(f"add {ints} {quadrant}, {i(1)}"))


def sincos_function(types: Types, fuses: bool) -> str:
    """@sincos_…: {sin x, cos x}."""
    lines, sine, cosine = sincos_lines(types, "%x", fuses)
    pair = f"{{ {types.vec}, {types.vec} }}"
    return "\n".join([
        f"define internal {pair} @sincos_{types.suffix}({types.vec} %x) noinline #0 {{", *lines,
        f"  %first = insertvalue {pair} poison, {types.vec} {sine}, 0",
        f"  %both = insertvalue {pair} %first, {types.vec} {cosine}, 1",
        f"  ret {pair} %both", "}",
    ])  # fmt: skip
