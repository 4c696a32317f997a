"""Floating-point types of programs: their names in C, LLVM and NumPy, and constants that depend on the precision."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

import numpy as np

from sysdyn.errors import check_among
from sysdyn.program.reproducible import HALF_PI, HALF_PI_FMA, LARGEST_ANGLE


@dataclass(frozen=True)
class Real:
    """A floating-point type.

    name: type name in C and in LLVM IR. half_pi: Cody-Waite splittings of π/2 without FMA (products must be exact), and
    with FMA. largest_angle [rad]: sine and cosine of larger angles are NaN. suffix: suffix of literals and math.h
    functions in C.
    """

    name: str
    dtype: np.dtype
    half_pi: tuple[tuple[float, ...], tuple[float, ...]]
    largest_angle: float
    suffix: str = ""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.dtype.itemsize

    @property
    def bits(self) -> int:
        return 8 * self.size

    @property
    def rounding(self) -> float:
        """Machine epsilon."""
        return float(np.finfo(self.dtype).eps)

    @property
    def rint_magic(self) -> float:
        """1.5 · 2^(digits − 1): x + rint_magic has the nearest integer to x in its low bits."""
        return 1.5 * 2.0 ** np.finfo(self.dtype).nmant

    def literal(self, x: float) -> str:
        """C literal of a number, rounded to this type."""
        x = float(self.dtype.type(x))
        if not math.isfinite(x):
            return "NAN" if math.isnan(x) else "INFINITY" if x > 0 else "(-INFINITY)"
        return f"{x!r}{self.suffix}" if math.copysign(1.0, x) > 0 else f"({x!r}{self.suffix})"

    def literals(self, x: np.ndarray) -> str:
        """C literals of an array, separated by commas."""
        return ", ".join(map(self.literal, np.asarray(x, dtype=float).reshape(-1).tolist()))

    def specialise_c_source(self, text: str) -> str:
        """Convert C source from double to this type: type names, floating-point literals and math.h functions."""
        text = re.sub(r"\bdouble\b", self.name, text)
        text = re.sub(r"(?<![\w.])\d+\.\d+(?![\w.])", rf"\g<0>{self.suffix}", text)
        return re.sub(r"\b(sqrt|fabs|exp|expm1|fmax|rint)\(", rf"\1{self.suffix}(", text)

    def llvm_literal(self, x: float) -> str:
        """LLVM literal of a number; LLVM writes float literals with the bits of a double, too."""
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(self.dtype.type(x))))[0]:016X}"


DOUBLE = Real("double", np.dtype(np.float64), (HALF_PI, HALF_PI_FMA), LARGEST_ANGLE)
# π/2 in three parts of 12 bits, or of 24. Above 4000 rad adjacent floats differ by more than 2e-4 rad.
SINGLE = Real(
    "float", np.dtype(np.float32),
    ((1.57080078125, -4.453584551811218e-06, -8.706138032721356e-10),
     (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)), 4000.0, "f",
)  # fmt: skip
REALS = {x.dtype.name: x for x in (DOUBLE, SINGLE)}


def real_of(dtype: str | type | np.dtype) -> Real:
    """The type with NumPy name or dtype `dtype`. Raises UnknownName."""
    name = np.dtype(dtype).name if isinstance(dtype, (type, np.dtype)) else str(dtype)
    check_among("type of numbers", name, REALS)
    return REALS[name]
