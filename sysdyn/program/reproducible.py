"""Arithmetic with the same bits on every processor: plain sums, products, quotients and roots in one order.

BLAS, NumPy's sines and the functions of libm differ from processor to processor in their last bits, as they add up in
another order or fuse a product with a sum. Programs follow from constants, and choices from sampled values: both are
computed with these functions, so that a problem has one program everywhere.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np

# Largest angle [rad] with a sine and a cosine; both are NaN beyond it, where doubles are 1.2e-7 rad apart.
LARGEST_ANGLE = 1e9
# π/2 in parts of 23 bits, whose products with integers of up to 30 bits are exact, so that angles up to LARGEST_ANGLE
# are reduced without loss. Cody & Waite (1980).
HALF_PI = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820036682434026e-22,
           -1.2536989931632848e-29, -2.7529963439986386e-37)  # fmt: skip
# π/2 in parts of 53 bits, for fused multiply-adds, whose products are exact.
HALF_PI_FMA = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# Minimax polynomials of fdlibm's kernel_sin and kernel_cos, from the second term on (k_sin.c, k_cos.c, Sun Microsystems
# 1993; coefficients only). Below 1 ulp on [−π/4, π/4].
SIN = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
       2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip
COS = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
       -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
# 1.5 · 2^52: added and subtracted, it rounds a number to the nearest integer.
_MAGIC = 6755399441055744.0
_DIGITS = Context(prec=40)  # Decimal digits of the arc tangent, more than twice those of its result.
_HALVINGS = 6  # Halvings of the angle before the series of the arc tangent: it comes below π/128.
_TERMS = 12  # Terms of that series: (π/128)^24 is below 1e-38.
_LOG_TERMS = 12  # Terms of the series of the logarithm: |z| ≤ 0.18, and 0.18^24 is below 1e-17.
_EXP_TERMS = 18  # Terms of the exponential series: (½ ln 2)^18 / 18! is below 1e-24.


def matmul(*factors: np.ndarray) -> np.ndarray:
    """A @ B @ …, from the left, each entry the sum of its terms in order.

    factors (…, m, n) or (n,): as for `@`. Arrays of objects are multiplied by `@` itself, which has that order.
    """
    result = factors[0]
    for factor in factors[1:]:
        result = _product(result, factor)
    return result


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    if A.dtype == object or B.dtype == object:
        return A @ B
    rows, columns = (A if A.ndim > 1 else A[None]), (B if B.ndim > 1 else B[:, None])
    if rows.shape[-1] != columns.shape[-2]:
        raise ValueError(f"the shapes {A.shape} and {B.shape} do not fit a product")
    total = np.zeros((*np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]), rows.shape[-2], columns.shape[-1]))
    for k in range(rows.shape[-1]):
        total += rows[..., :, k, None] * columns[..., k, None, :]
    total = total if B.ndim > 1 else total[..., 0]
    return total if A.ndim > 1 else total[..., 0, :] if B.ndim > 1 else total[..., 0]


def dot(a: np.ndarray, b: np.ndarray) -> Any:
    """Σ a_k b_k over the last axis (…, n), in order."""
    terms = a * b
    total = np.zeros(terms.shape[:-1])
    for k in range(terms.shape[-1]):
        total = total + terms[..., k]
    return total


def norm(x: np.ndarray) -> Any:
    """|x| over the last axis (…, n)."""
    return np.sqrt(dot(x, x))


def sin(x: Any) -> Any:
    """sin x of a float or an array [rad], within 1 ulp; beyond LARGEST_ANGLE that of libm, NaN for infinite x."""
    return sincos(x)[0]


def cos(x: Any) -> Any:
    """cos x, as `sin`."""
    return sincos(x)[1]


def sincos(x: Any) -> tuple[Any, Any]:
    """(sin x, cos x) of a float or an array [rad]: x = k π/2 + r, polynomials of r, exchanged and signed by k mod 4."""
    kind = np.result_type(x)
    if kind.kind == "c" or kind.itemsize > 8:  # complex steps, more digits
        return np.sin(x), np.cos(x)
    if _is_short(kind):
        sine, cosine = sincos(np.asarray(x, dtype=float))
        return sine.astype(kind), cosine.astype(kind)
    if isinstance(x, np.ndarray):
        usual = np.abs(x) <= LARGEST_ANGLE
        s, c, k = _octant(np.where(usual, x, 0.0))
        quadrant = k % 4.0
        odd, low, left = quadrant % 2.0 == 1.0, quadrant >= 2.0, (quadrant == 1.0) | (quadrant == 2.0)
        first, second = np.where(odd, c, s), np.where(odd, s, c)
        sine, cosine = np.where(low, -first, first), np.where(left, -second, second)
        with np.errstate(invalid="ignore"):
            if usual.all():
                return sine, cosine
            return np.where(usual, sine, np.sin(x)), np.where(usual, cosine, np.cos(x))
    if not abs(x) <= LARGEST_ANGLE:
        return (math.sin(x), math.cos(x)) if math.isfinite(x) else (math.nan, math.nan)
    s, c, k = _octant(float(x))
    return ((s, c), (c, -s), (-s, -c), (-c, s))[int(k) % 4]


def _is_short(kind: np.dtype) -> bool:
    """True for floating-point numbers of fewer digits than doubles, in which angles would lose theirs."""
    return kind.kind == "f" and kind.itemsize < 8


def _octant(x: Any) -> tuple[Any, Any, Any]:
    """(sin r, cos r, k) of x = k π/2 + r, |r| ≤ π/4."""
    k = (x * (2.0 / math.pi) + _MAGIC) - _MAGIC
    r, lost = x, 0.0 * x
    for part in HALF_PI:
        whole, turned = r, k * part
        r = whole - turned
        lost = lost + ((whole - r) - turned)
    z = r * r
    s, c = SIN[-1], COS[-1]
    for a, b in zip(SIN[-2::-1], COS[-2::-1], strict=True):
        s, c = s * z + a, c * z + b
    half = 0.5 * z
    w = 1.0 - half
    return r + (r * z * s + lost), w + (((1.0 - w) - half) + (z * z * c - r * lost)), k


def wrap_angle(x: Any) -> Any:
    """x − 2π k in [−π, π] of a float or an array [rad], within 4e-16; x itself if |x| ≤ π, NaN beyond LARGEST_ANGLE.

    Symbols stay as they are: the angle is the same.
    """
    if isinstance(x, (np.ndarray, np.floating)) and _is_short(x.dtype):
        return wrap_angle(np.asarray(x, dtype=float)).astype(x.dtype)
    if not isinstance(x, (float, np.ndarray)):
        return x
    k = (x * (0.5 / math.pi) + _MAGIC) - _MAGIC
    r = x
    for part in HALF_PI:
        r = r - k * (4.0 * part)
    if isinstance(x, np.ndarray):
        return np.where(np.abs(x) <= LARGEST_ANGLE, r, np.nan)
    return r if abs(x) <= LARGEST_ANGLE else math.nan


@lru_cache(maxsize=4096)  # the same constant angles are asked for by one plan after the other
def atan2(y: float, x: float) -> float:
    """The angle [rad] of (x, y), correctly rounded, in (−π, π]; 0 for (0, 0)."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return math.nan
    c = _DIGITS
    long, short = Decimal(max(abs(x), abs(y))), Decimal(min(abs(x), abs(y)))
    if not long:
        return 0.0
    t = _arctan(c.divide(short, long))
    half_pi = c.multiply(Decimal(4), _arctan(Decimal(1)))
    half_pi = c.divide(half_pi, Decimal(2))
    angle = t if abs(y) <= abs(x) else c.subtract(half_pi, t)
    if x < 0.0:
        angle = c.subtract(c.multiply(Decimal(2), half_pi), angle)
    return math.copysign(float(angle), y) if angle else 0.0


def _arctan(t: Decimal) -> Decimal:
    """arctan t for 0 ≤ t ≤ 1, by tan(θ/2) = t/(1 + √(1 + t²)) and the series of small angles."""
    c = _DIGITS
    for _ in range(_HALVINGS):
        t = c.divide(t, c.add(Decimal(1), c.sqrt(c.add(Decimal(1), c.multiply(t, t)))))
    square, total = c.multiply(t, t), Decimal(0)
    for n in reversed(range(_TERMS)):
        total = c.subtract(c.divide(Decimal(1), Decimal(2 * n + 1)), c.multiply(square, total))
    return c.multiply(c.multiply(t, total), Decimal(2**_HALVINGS))


def log(x: np.ndarray) -> np.ndarray:
    """ln x of positive x, to a few ulp of 1: x = m 2^k, and the series of ln m = 2 artanh((m − 1)/(m + 1))."""
    m, k = np.frexp(x)
    z = (m - 0.7) / (m + 0.7)
    square, total = z * z, np.zeros_like(z)
    for n in reversed(range(_LOG_TERMS)):
        total = 1.0 / (2 * n + 1) + square * total
    return 2.0 * z * total + (k * math.log(2.0) + math.log(0.7))


def exp(x: np.ndarray) -> np.ndarray:
    """e^x of moderate x, to a few ulp: x = k ln 2 + r, and the series of r."""
    k = np.rint(x / math.log(2.0))
    r = x - k * math.log(2.0)
    total = np.ones_like(r)
    for n in range(_EXP_TERMS, 0, -1):
        total = 1.0 + r * total / n
    return np.ldexp(total, k.astype(int))
