"""LLVM IR text of the types of a width, and of constants."""

from __future__ import annotations

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
