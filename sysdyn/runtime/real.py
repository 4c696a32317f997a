"""The type of the numbers of a target: its names in compilers, its size, and limits that follow from its digits."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

import numpy as np

from sysdyn.errors import check_among
from sysdyn.program.reproducible import HALF_PI
from sysdyn.program.status import LARGEST_ANGLE


@dataclass(frozen=True)
class Real:
    """A type of floating-point numbers.

    name: in C and in LLVM's language. dtype: of arrays. half_pi: π/2 in parts, for products that are rounded before
    they are added, which have to be exact, and for others. largest_angle [rad]: sines of greater ones are not numbers.
    suffix: of constants in C, and of functions of math.h.
    """

    name: str
    dtype: np.dtype
    half_pi: tuple[tuple[float, ...], tuple[float, ...]]
    largest_angle: float
    suffix: str = ""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.dtype.itemsize

    @property
    def bits(self) -> int:
        return 8 * self.size

    @property
    def rounding(self) -> float:
        """Distance of 1 from the next number."""
        return float(np.finfo(self.dtype).eps)

    @property
    def to_integer(self) -> float:
        """1.5 · 2^(digits − 1): added, it rounds to the nearest integer, which the low bits of the sum hold."""
        return 1.5 * 2.0 ** np.finfo(self.dtype).nmant

    def literal(self, x: float) -> str:
        """The number in C, rounded to this type."""
        x = float(self.dtype.type(x))
        if not math.isfinite(x):
            return "NAN" if math.isnan(x) else "INFINITY" if x > 0 else "(-INFINITY)"
        return f"{x!r}{self.suffix}" if math.copysign(1.0, x) > 0 else f"({x!r}{self.suffix})"

    def literals(self, x: np.ndarray) -> str:
        """Numbers of an array as C writes them, with commas."""
        return ", ".join(map(self.literal, np.asarray(x, dtype=float).reshape(-1).tolist()))

    def in_c(self, text: str) -> str:
        """C that is written for double, in this type: its name, constants with a point, and functions of math.h."""
        text = re.sub(r"\bdouble\b", self.name, text)
        text = re.sub(r"(?<![\w.])\d+\.\d+(?![\w.])", rf"\g<0>{self.suffix}", text)
        return re.sub(r"\b(sqrt|fabs|exp|expm1|fmax|rint)\(", rf"\1{self.suffix}(", text)

    def text(self, x: float) -> str:
        """The number as LLVM's language has it, whatever its type: with the bits of a double."""
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(self.dtype.type(x))))[0]:016X}"


# The type of programs unless a user asks for another. Three parts of π/2 are of 53 bits each: Cody & Waite (1980).
DOUBLE = Real(
    "double", np.dtype(np.float64),
    (HALF_PI, (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)), LARGEST_ANGLE,
)  # fmt: skip
# Three parts of 12 bits, and three of 24; beyond 4000 rad neighbours are more than 2e-4 rad apart.
SINGLE = Real(
    "float", np.dtype(np.float32),
    ((1.57080078125, -4.453584551811218e-06, -8.706138032721356e-10),
     (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)), 4000.0, "f",
)  # fmt: skip
# Types of numbers by their name in C, and in NumPy.
REALS = {x.name: x for x in (DOUBLE, SINGLE)}
DTYPES = {x.dtype.name: x for x in (DOUBLE, SINGLE)}


def real_of(what: str | type | np.dtype) -> Real:
    """The type of numbers of this name in NumPy, or of a type of NumPy. Raises UnknownName."""
    name = what if isinstance(what, str) else np.dtype(what).name if isinstance(what, (type, np.dtype)) else repr(what)
    check_among("type of numbers", name, DTYPES)
    return DTYPES[name]
