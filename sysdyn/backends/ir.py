"""Pieces of LLVM IR text: the types of a width, constants, and sin and cos in line."""

from __future__ import annotations

import math
import struct


def double(x: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"


class Types:
    """IR type names and constants for values of `width` states."""

    def __init__(self, width: int):
        self.width = width
        self.vec = "double" if width == 1 else f"<{width} x double>"
        self.ints = "i64" if width == 1 else f"<{width} x i64>"
        self.bits = "i1" if width == 1 else f"<{width} x i1>"
        self.align = 8 * width
        self.suffix = "f64" if width == 1 else f"v{width}f64"

    def constant(self, x: float) -> str:
        return double(x) if self.width == 1 else f"splat (double {double(x)})"

    def integer(self, k: int) -> str:
        return str(k) if self.width == 1 else f"splat (i64 {k})"


# Cody-Waite reduction by three parts of π/2, then the minimax polynomials of fdlibm's kernel_sin and kernel_cos
# (k_sin.c, k_cos.c, Sun Microsystems 1993; coefficients only). Below 1 ulp on [−π/4, π/4].
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_SIN = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
        2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip
_COS = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
        -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
_MAGIC = 6755399441055744.0  # 1.5·2^52: adding it rounds to the nearest integer, kept in the low bits
LARGEST_ANGLE = 1e9  # beyond it neither the reduction nor the meaning of a double angle is good: not a number


def sincos_function(types: Types) -> str:
    """{sin x, cos x}: x = k π/2 + r, polynomials of r, exchanged and signed by k mod 4."""
    vec, ints, c, i = types.vec, types.ints, types.constant, types.integer
    lines: list[str] = []
    count = 0

    def new(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %s{count} = {text}")
        return f"%s{count}"

    def fma(x: str, y: str, z: str) -> str:
        return new(f"call {vec} @llvm.fma.{types.suffix}({vec} {x}, {vec} {y}, {vec} {z})")

    def polynomial(x: str, coefficients: tuple[float, ...]) -> str:
        value = c(coefficients[-1])
        for a in reversed(coefficients[:-1]):
            value = fma(value, x, c(a))
        return value

    size = new(f"call {vec} @llvm.fabs.{types.suffix}({vec} %x)")
    fits = new(f"fcmp ole {vec} {size}, {c(LARGEST_ANGLE)}")
    x = new(f"select {types.bits} {fits}, {vec} %x, {vec} {c(math.nan)}")
    shifted = fma(x, c(2.0 / math.pi), c(_MAGIC))
    quadrant = new(f"bitcast {vec} {shifted} to {ints}")
    k = new(f"fsub {vec} {shifted}, {c(_MAGIC)}")
    minus_k = new(f"fneg {vec} {k}")
    r = x
    for part in _HALF_PI:
        r = fma(minus_k, c(part), r)
    z = new(f"fmul {vec} {r}, {r}")
    rz = new(f"fmul {vec} {r}, {z}")
    s = fma(rz, polynomial(z, _SIN), r)
    zz = new(f"fmul {vec} {z}, {z}")
    half = fma(z, c(-0.5), c(1.0))
    # 1 − z/2 rounds; what it lost goes back in before the small terms
    lost = new(f"fsub {vec} {c(1.0)}, {half}")
    lost = fma(z, c(-0.5), lost)
    co = new(f"fadd {vec} {half}, {fma(zz, polynomial(z, _COS), lost)}")
    odd = new(f"and {ints} {quadrant}, {i(1)}")
    swap = new(f"icmp ne {ints} {odd}, {i(0)}")
    sine = new(f"select {types.bits} {swap}, {vec} {co}, {vec} {s}")
    cosine = new(f"select {types.bits} {swap}, {vec} {s}, {vec} {co}")
    sign = new(f"shl {ints} {new(f'and {ints} {quadrant}, {i(2)}')}, {i(62)}")
    next_quadrant = new(f"add {ints} {quadrant}, {i(1)}")
    cosign = new(f"shl {ints} {new(f'and {ints} {next_quadrant}, {i(2)}')}, {i(62)}")
    results = []
    for value, flip in ((sine, sign), (cosine, cosign)):
        flipped = new(f"xor {ints} {new(f'bitcast {vec} {value} to {ints}')}, {flip}")
        results.append(new(f"bitcast {ints} {flipped} to {vec}"))
    pair = f"{{ {vec}, {vec} }}"
    lines.append(f"  %first = insertvalue {pair} poison, {vec} {results[0]}, 0")
    lines.append(f"  %both = insertvalue {pair} %first, {vec} {results[1]}, 1")
    return "\n".join([f"define internal {pair} @sincos({vec} %x) noinline #0 {{", *lines, f"  ret {pair} %both", "}"])
