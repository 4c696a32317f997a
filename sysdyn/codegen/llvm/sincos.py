"""Sine and cosine as LLVM IR, for one state or a register of them."""

from __future__ import annotations

import math

from sysdyn.codegen.llvm.types import Types
from sysdyn.program.reproducible import COS, SIN

# A kernel of one state wraps only larger angles [rad]: sums of smaller ones have rounding errors below 7e-15.
_NEAR = 64.0


class _IRFunction:
    """Builder of an IR function: its lines, and unique names for its values."""

    def __init__(self, types: Types):
        self.types, self.lines = types, list[str]()

    def new(self, text: str) -> str:
        self.lines.append(f"  %s{len(self.lines)} = {text}")
        return f"%s{len(self.lines) - 1}"

    def fma(self, x: str, y: str, z: str) -> str:
        vec, suffix = self.types.vec, self.types.suffix
        return self.new(f"call {vec} @llvm.fmuladd.{suffix}({vec} {x}, {vec} {y}, {vec} {z})")


def sincos_lines(types: Types, x: str, fuses: bool) -> tuple[list[str], str, str]:
    """Sine and cosine of the register x: (lines, register of sin x, register of cos x).

    Range reduction x = k π/2 + r, polynomials in r, quadrant k mod 4. fuses: True if the processor has fused
    multiply-add.
    """
    vec, ints, c, i = types.vec, types.ints, types.constant, types.integer
    made = _IRFunction(types)
    new, fma = made.new, made.fma

    def polynomial(x: str, coefficients: tuple[float, ...]) -> str:
        value = c(coefficients[-1])
        for a in reversed(coefficients[:-1]):
            value = fma(value, x, c(a))
        return value

    def signed(value: str, quadrant: str) -> str:
        turned = new(f"shl {ints} {quadrant}, {i(types.real.bits - 2)}")
        sign = new(f"and {ints} {turned}, {i(-(2 ** (types.real.bits - 1)))}")
        bits = new(f"bitcast {vec} {value} to {ints}")
        flipped = new(f"xor {ints} {bits}, {sign}")
        return new(f"bitcast {ints} {flipped} to {vec}")

    shifted, r = _reduced(made, x, 1.0, fuses)
    quadrant = new(f"bitcast {vec} {shifted} to {ints}")
    z = new(f"fmul {vec} {r}, {r}")
    s = fma(new(f"fmul {vec} {r}, {z}"), polynomial(z, SIN), r)
    co = fma(new(f"fmul {vec} {z}, {z}"), polynomial(z, COS), fma(z, c(-0.5), c(1.0)))
    odd = new(f"icmp ne {ints} {new(f'and {ints} {quadrant}, {i(1)}')}, {i(0)}")
    sine = new(f"select {types.bits} {odd}, {vec} {co}, {vec} {s}")
    cosine = new(f"select {types.bits} {odd}, {vec} {s}, {vec} {co}")
    return made.lines, signed(sine, quadrant), signed(cosine, new(f"add {ints} {quadrant}, {i(1)}"))


def _reduced(made: _IRFunction, x: str, turn: float, fuses: bool, parts: int | None = None) -> tuple[str, str]:
    """Range reduction x = k p + r with p = turn π/2 and |r| ≤ p/2. Returns the registers of (k + `rint_magic`, r).

    r is NaN if |x| exceeds `largest_angle`. turn: a power of 2. parts: number of terms of the Cody-Waite splitting of
    π/2; None for all.
    """
    types, new, fma = made.types, made.new, made.fma
    vec, c, real = types.vec, types.constant, types.real
    shifted = fma(x, c(2.0 / (turn * math.pi)), c(real.rint_magic))
    k, r = new(f"fsub {vec} {shifted}, {c(real.rint_magic)}"), x
    for part in real.half_pi[fuses][:parts]:
        r = fma(k, c(-turn * part), r)
    size = new(f"call {vec} @llvm.fabs.{types.suffix}({vec} {x})")
    fits = new(f"fcmp ole {vec} {size}, {c(real.largest_angle)}")
    return shifted, new(f"select {types.bits} {fits}, {vec} {r}, {vec} {c(math.nan)}")


def wrapped_function(types: Types, fuses: bool) -> str:
    """IR of the function @wrapped.…: an angle modulo 2π. The scalar version leaves angles up to _NEAR unchanged."""
    vec, made = types.vec, _IRFunction(types)
    _, r = _reduced(made, "%x", 4.0, fuses, 2 if fuses else 4)  # errors of 1e-23 and 1e-19 suffice: r is not near 0
    head = [f"define internal {vec} @wrapped.{types.suffix}({vec} %x) alwaysinline #0 {{"]
    if types.width > 1:
        return "\n".join([*head, *made.lines, f"  ret {vec} {r}", "}"])
    near = [
        f"  %size = call {vec} @llvm.fabs.{types.suffix}({vec} %x)",
        f"  %near = fcmp ole {vec} %size, {types.constant(_NEAR)}",
        "  br i1 %near, label %as_it_is, label %far", "as_it_is:", f"  ret {vec} %x", "far:",
    ]  # fmt: skip
    return "\n".join([*head, *near, *made.lines, f"  ret {vec} {r}", "}"])


def sincos_function(types: Types, fuses: bool) -> str:
    """IR of the function @sincos_…: x → {sin x, cos x}."""
    lines, sine, cosine = sincos_lines(types, "%x", fuses)
    pair = f"{{ {types.vec}, {types.vec} }}"
    return "\n".join([
        f"define internal {pair} @sincos_{types.suffix}({types.vec} %x) noinline #0 {{", *lines,
        f"  %first = insertvalue {pair} poison, {types.vec} {sine}, 0",
        f"  %both = insertvalue {pair} %first, {types.vec} {cosine}, 1",
        f"  ret {pair} %both", "}",
    ])  # fmt: skip
