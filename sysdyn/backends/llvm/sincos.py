"""Sine and cosine as LLVM IR, for one state or a register of them."""

from __future__ import annotations

import math

from sysdyn.backends.llvm.types import Types
from sysdyn.program.status import LARGEST_ANGLE

# Cody-Waite reduction by parts of π/2, then the minimax polynomials of fdlibm's kernel_sin and kernel_cos
# (k_sin.c, k_cos.c, Sun Microsystems 1993; coefficients only). Below 1 ulp on [−π/4, π/4].
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
# The same in parts of 23 bits: products with the 30 bits of k are exact, where they are rounded before they are added.
_HALF_PI_SHORT = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820036682434026e-22,
                  -1.2536989931632848e-29, -2.7529963439986386e-37)  # fmt: skip
_SIN = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
        2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip
_COS = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
        -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
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
    for part in _HALF_PI if fuses else _HALF_PI_SHORT:
        r = fma(k, c(-part), r)
    z = new(f"fmul {vec} {r}, {r}")
    s = fma(new(f"fmul {vec} {r}, {z}"), polynomial(z, _SIN), r)
    co = fma(new(f"fmul {vec} {z}, {z}"), polynomial(z, _COS), fma(z, c(-0.5), c(1.0)))
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
