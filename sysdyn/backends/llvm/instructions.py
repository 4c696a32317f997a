"""LLVM IR of single operations, as the table of operations has it."""

from __future__ import annotations

from collections.abc import Sequence

from sysdyn.backends.llvm.types import Types
from sysdyn.program.operations import OPERATIONS


def instruction(kind: int, types: Types, operands: Sequence[str]) -> str:
    """The right-hand side of the IR line for an operation on these names."""
    text = OPERATIONS[kind].llvm
    if not text.startswith("@"):
        return f"{text} {types.vec} {', '.join(operands)}"
    return f"call {types.vec} {text}.{types.suffix}({', '.join(f'{types.vec} {x}' for x in operands)})"


def declared(types: Types) -> list[str]:
    """Declarations of the intrinsics: of the table, and of sines, cosines and guards."""
    table = [(x.llvm, x.arity) for x in OPERATIONS.values() if x.llvm.startswith("@llvm")]
    every = dict([("@llvm.fmuladd", 3), *table, ("@llvm.fabs", 1)])
    return [f"declare {types.vec} {name}.{types.suffix}({', '.join([types.vec] * n)})" for name, n in every.items()]
