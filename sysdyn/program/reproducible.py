"""Bitwise reproducible arithmetic: sums, products, quotients and roots in a fixed order.

BLAS, NumPy and libm round differently on different processors: they change the order of summation or use fused
multiply-adds. The functions below compute the constants of programs and the decisions at sampled states, so a problem
has the same program on every machine.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np

# Largest angle [rad] of sine and cosine, where doubles are 1.2e-7 rad apart. Beyond it both are NaN.
LARGEST_ANGLE = 1e9
# π/2 in parts of 23 bits. Their products with integers of up to 30 bits are exact, so angles up to LARGEST_ANGLE are
# reduced without loss. Cody & Waite (1980).
HALF_PI = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820036682434026e-22,
           -1.2536989931632848e-29, -2.7529963439986386e-37)  # fmt: skip
# π/2 in parts of 53 bits, for fused multiply-adds with exact products.
HALF_PI_FMA = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# Minimax polynomials on [−π/4, π/4] with errors below 1 ulp, coefficients from the second term on. From k_sin.c and
# k_cos.c of fdlibm, Sun Microsystems 1993.
SIN = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
       2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip
COS = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
       -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
# 1.5 · 2^52. Adding and subtracting it rounds to the nearest integer.
_ROUND = 6755399441055744.0


def matmul(*factors: np.ndarray) -> np.ndarray:
    """Matrix product A @ B @ … of (…, m, n) or (n,) arrays, from the left, with a fixed order of summation.

    Object arrays use `@`, which has this order.
    """
    result = factors[0]
    for factor in factors[1:]:
        result = _matmul(result, factor)
    return result


def _matmul(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    if A.dtype == object or B.dtype == object:
        return A @ B
    rows, columns = (A if A.ndim > 1 else A[None]), (B if B.ndim > 1 else B[:, None])
    if rows.shape[-1] != columns.shape[-2]:
        raise ValueError(f"the shapes {A.shape} and {B.shape} do not fit a product")
    lead = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]) if rows.ndim + columns.ndim > 4 else ()
    total = np.zeros((*lead, rows.shape[-2], columns.shape[-1]))
    for k in range(rows.shape[-1]):
        total += rows[..., :, k, None] * columns[..., k, None, :]
    total = total if B.ndim > 1 else total[..., 0]
    return total if A.ndim > 1 else total[..., 0, :] if B.ndim > 1 else total[..., 0]


def dot(a: np.ndarray, b: np.ndarray) -> Any:
    """Σ_k a_k b_k over the last axis, in order of k."""
    terms = a * b
    total = np.zeros(terms.shape[:-1])
    for k in range(terms.shape[-1]):
        total = total + terms[..., k]
    return total


def norm(x: np.ndarray) -> Any:
    """Euclidean norm over the last axis."""
    return np.sqrt(dot(x, x))


def sin(x: Any) -> Any:
    """Sine of a float or array [rad], within 1 ulp. libm computes it beyond LARGEST_ANGLE; NaN for infinite x."""
    return sincos(x)[0]


def cos(x: Any) -> Any:
    """Cosine of a float or array [rad], see `sin`."""
    return sincos(x)[1]


def sincos(x: Any) -> tuple[Any, Any]:
    """(sine, cosine) of a float or array [rad].

    Argument reduction x = k π/2 + r, then polynomials in r; k mod 4 selects the signs and swaps sine and cosine.
    """
    dtype = np.result_type(x)
    if dtype.kind == "c" or dtype.itemsize > 8:  # complex steps, long doubles
        return np.sin(x), np.cos(x)
    if _is_below_double(dtype):
        sine, cosine = sincos(np.asarray(x, dtype=float))
        return sine.astype(dtype), cosine.astype(dtype)
    if isinstance(x, np.ndarray):
        in_range = np.abs(x) <= LARGEST_ANGLE
        s, c, k = _sincos_of_remainder(np.where(in_range, x, 0.0))
        quadrant = k % 4.0
        odd, low, left = quadrant % 2.0 == 1.0, quadrant >= 2.0, (quadrant == 1.0) | (quadrant == 2.0)
        first, second = np.where(odd, c, s), np.where(odd, s, c)
        sine, cosine = np.where(low, -first, first), np.where(left, -second, second)
        with np.errstate(invalid="ignore"):
            if in_range.all():
                return sine, cosine
            return np.where(in_range, sine, np.sin(x)), np.where(in_range, cosine, np.cos(x))
    if not abs(x) <= LARGEST_ANGLE:
        return (math.sin(x), math.cos(x)) if math.isfinite(x) else (math.nan, math.nan)
    s, c, k = _sincos_of_remainder(float(x))
    return ((s, c), (c, -s), (-s, -c), (-c, s))[int(k) % 4]


def _is_below_double(dtype: np.dtype) -> bool:
    """True for floating-point types shorter than double, in which the argument reduction loses digits."""
    return dtype.kind == "f" and dtype.itemsize < 8


def _sincos_of_remainder(x: Any) -> tuple[Any, Any, Any]:
    """(sin r, cos r, k) with x = k π/2 + r and |r| ≤ π/4."""
    k = (x * (2.0 / math.pi) + _ROUND) - _ROUND
    r, error = x, 0.0 * x
    for part in HALF_PI:
        before, turned = r, k * part
        r = before - turned
        error = error + ((before - r) - turned)
    z = r * r
    s, c = SIN[-1], COS[-1]
    for a, b in zip(SIN[-2::-1], COS[-2::-1], strict=True):
        s, c = s * z + a, c * z + b
    half = 0.5 * z
    w = 1.0 - half
    return r + (r * z * s + error), w + (((1.0 - w) - half) + (z * z * c - r * error)), k


def wrap_angle(x: Any) -> Any:
    """Wrap a float or array [rad] to [−π, π], within 4e-16.

    x is unchanged if |x| ≤ π; the result is NaN beyond LARGEST_ANGLE. Symbols are returned unchanged.
    """
    if isinstance(x, (np.ndarray, np.floating)) and _is_below_double(x.dtype):
        return wrap_angle(np.asarray(x, dtype=float)).astype(x.dtype)
    if not isinstance(x, (float, np.ndarray)):
        return x
    k = (x * (0.5 / math.pi) + _ROUND) - _ROUND
    r = x
    for part in HALF_PI:
        r = r - k * (4.0 * part)
    if isinstance(x, np.ndarray):
        return np.where(np.abs(x) <= LARGEST_ANGLE, r, np.nan)
    return r if abs(x) <= LARGEST_ANGLE else math.nan


@lru_cache(maxsize=4096)  # constant angles recur
def atan2(y: float, x: float) -> float:
    """Angle [rad] of the point (x, y) in (−π, π], correctly rounded. 0 for (0, 0), NaN for arguments not finite."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return math.nan
    with localcontext(Context(prec=40)):  # more than twice the digits of a double
        long, short = Decimal(max(abs(x), abs(y))), Decimal(min(abs(x), abs(y)))
        if not long:
            return 0.0
        pi = 4 * _arctan(Decimal(1))
        angle = _arctan(short / long)
        if abs(y) > abs(x):
            angle = pi / 2 - angle
        if x < 0.0:
            angle = pi - angle
    return math.copysign(float(angle), y) if angle else 0.0


def _arctan(t: Decimal) -> Decimal:
    """arctan t for 0 ≤ t ≤ 1: six halvings tan(θ/2) = t/(1 + √(1 + t²)), then the series, error < 1e-38."""
    for _ in range(6):
        t = t / (1 + (1 + t * t).sqrt())
    square, total = t * t, Decimal(0)
    for n in reversed(range(12)):
        total = 1 / Decimal(2 * n + 1) - square * total
    return 64 * t * total


def log(x: np.ndarray) -> np.ndarray:
    """ln x for x > 0, to a few ulp of 1: x = m 2^k, ln m = ln 0.7 + 2 artanh z, series in z with |z| ≤ 0.18."""
    m, k = np.frexp(x)
    z = (m - 0.7) / (m + 0.7)
    square, total = z * z, np.zeros_like(z)
    for n in reversed(range(12)):
        total = 1.0 / (2 * n + 1) + square * total
    return 2.0 * z * total + (k * math.log(2.0) + math.log(0.7))


def exp(x: np.ndarray) -> np.ndarray:
    """e^x for moderate x, to a few ulp: x = k ln 2 + r, then the series in r, error < 1e-24."""
    k = np.rint(x / math.log(2.0))
    r = x - k * math.log(2.0)
    total = np.ones_like(r)
    for n in range(18, 0, -1):
        total = 1.0 + r * total / n
    return np.ldexp(total, k.astype(int))
