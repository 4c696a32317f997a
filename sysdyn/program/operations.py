"""Kinds of scalar operations, and counts of them."""

from __future__ import annotations

from dataclasses import dataclass

# Node kinds. INPUT and CONST are leaves, OPAQUE another name for its operand. Their order is part of the file format.
INPUT, CONST, ADD, SUB, MUL, DIV, NEG, SIN, COS, SQRT, OPAQUE = range(11)
KIND_NAMES = ("input", "const", "add", "sub", "mul", "div", "neg", "sin", "cos", "sqrt", "opaque")


@dataclass(frozen=True)
class Flops:
    """Exact operation counts: mul, add (subtractions too), div, sqrt; `trig`: sin/cos pairs, counted apart."""

    mul: int = 0
    add: int = 0
    div: int = 0
    sqrt: int = 0
    trig: int = 0

    @property
    def total(self) -> int:
        """mul + add + div + sqrt; `trig` is counted apart."""
        return self.mul + self.add + self.div + self.sqrt

    def __repr__(self) -> str:
        root = f" + {self.sqrt} sqrt" if self.sqrt else ""
        return f"{self.mul} mul + {self.add} add + {self.div} div{root} = {self.total} (and {self.trig} sin/cos pairs)"
