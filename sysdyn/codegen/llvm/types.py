"""LLVM IR text of vector types, constants, loads, stores and single operations."""

from __future__ import annotations

from collections.abc import Sequence

from sysdyn.program.opcodes import OPERATIONS
from sysdyn.runtime.real import Real


class Types:
    """IR type names and constants for values of `width` states.

    num, int: scalar floating-point type, and integer type of the same size. vec, ints, bits: vectors of floats,
    integers and booleans, with one lane per state. suffix, whole: suffixes in the names of LLVM intrinsics, for float
    vectors and for integer vectors. size: size of a float in bytes. align: alignment in bytes of a vector in the
    workspace, its full size.
    """

    def __init__(self, width: int, real: Real):
        self.width, self.real, self.num, self.size = width, real, real.name, real.size
        self.int = f"i{real.bits}"
        lanes = (lambda x: x) if width == 1 else f"<{width} x {{}}>".format
        self.vec, self.ints, self.bits = lanes(self.num), lanes(self.int), lanes("i1")
        self.align = real.size * width
        self.suffix, self.whole = (f"{'' if width == 1 else f'v{width}'}{x}{real.bits}" for x in "fi")

    def of(self, width: int) -> Types:
        """The same scalar type with another vector width."""
        return Types(width, self.real)

    def address(self, at: str, place: int) -> str:
        """Line that assigns the address of a workspace offset to `at`."""
        return f"  {at} = getelementptr {self.num}, ptr %work, i64 {place}"

    def load(self, to: str, at: str, place: int, align: int = 0) -> list[str]:
        """Lines that load the value at a workspace offset; `at` receives its address."""
        return [self.address(at, place), f"  {to} = load {self.vec}, ptr {at}, align {align or self.align}"]

    def store(self, what: str, at: str, place: int, align: int = 0) -> list[str]:
        """Lines that store a value at a workspace offset; `at` receives its address."""
        return [self.address(at, place), f"  store {self.vec} {what}, ptr {at}, align {align or self.align}"]

    def constant(self, x: float) -> str:
        return self.real.llvm_literal(x) if self.width == 1 else f"splat ({self.num} {self.real.llvm_literal(x)})"

    def integer(self, k: int) -> str:
        return str(k) if self.width == 1 else f"splat ({self.int} {k})"

    def instruction(self, kind: int, operands: Sequence[str]) -> str:
        """Right-hand side of the instruction for an operation on the named operands."""
        text = OPERATIONS[kind].llvm
        if not text.startswith("@"):
            return f"{text} {self.vec} {', '.join(operands)}"
        return f"call {self.vec} {text}.{self.suffix}({', '.join(f'{self.vec} {x}' for x in operands)})"

    def declarations(self) -> list[str]:
        """Declarations of the LLVM intrinsics that operations, sines, cosines and pivot checks use."""
        table = [(x.llvm, x.arity) for x in OPERATIONS.values() if x.llvm.startswith("@llvm")]
        every = dict([("@llvm.fmuladd", 3), *table, ("@llvm.fabs", 1)])
        return [f"declare {self.vec} {name}.{self.suffix}({', '.join([self.vec] * n)})" for name, n in every.items()]
