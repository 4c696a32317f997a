"""Operations as instructions have them: products are fused with the sums that they are terms of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from sysdyn.backends.assembler import encoding
from sysdyn.backends.assembler.pairs import Constant, Operations
from sysdyn.backends.schedule import CONSTANT
from sysdyn.program.operations import ADD, COPYSIGN, DIV, MUL, NEG, SQRT, SUB

# Kinds of nodes that are several instructions.
SIGN = "sign"
# What instructions there are for.
KINDS = {ADD: encoding.ADD, SUB: encoding.SUB, MUL: encoding.MUL, DIV: encoding.DIV, SQRT: encoding.SQRT}


class Node(NamedTuple):
    """One instruction: an opcode of `encoding`, a kind of FUSED with operands a, b and c, one of `pairs`, or a SIGN.

    A SIGN has the size of its first operand, the sign of the second one, and third the constant −0.
    """

    result: int
    kind: int | str
    operands: tuple[int, ...]
    lanes: int


def fused(what: Operations) -> tuple[list[Node], list[Constant]]:
    """(the operations in their order, but for products that nothing else than one sum needs; all constants)."""
    constants = [*what.constants, -1.0, -0.0, (-0.0, -0.0)]
    minus_one, *minus_zero = (k * 4 + CONSTANT for k in range(len(what.constants), len(what.constants) + 3))
    uses = Counter(x for operation in what.operations for x in operation.operands)
    products: dict[int, Node] = {}
    depth: dict[int, int] = {}
    found: dict[int, Node] = {}
    for result, kind, operands, lanes in what.operations:
        depth[result] = 1 + max(depth.get(x, 0) for x in operands)
        if kind == NEG:
            node = Node(result, encoding.MUL, (*operands, minus_one), lanes)
        elif kind == COPYSIGN:
            node = Node(result, SIGN, (*operands, minus_zero[lanes - 1]), lanes)
        elif kind in (ADD, SUB) and (terms := _products(operands, lanes, products)):
            n = max(terms, key=lambda n: depth[operands[n]])  # the other product is ready first
            name = "+" if kind == ADD else "-" if n == 0 else "~"
            node = Node(result, name, (*products[operands[n]].operands, operands[1 - n]), lanes)
            del found[operands[n]]
        else:
            node = Node(result, KINDS[kind] if isinstance(kind, int) else kind, operands, lanes)
            if kind == MUL and uses[result] == 1 and result not in what.kept:
                products[result] = node
        found[result] = node
    return list(found.values()), constants


def _products(operands: Collection[int], lanes: int, products: dict[int, Node]) -> list[int]:
    """Numbers of the operands that are products on as many lanes."""
    return [n for n, x in enumerate(operands) if x in products and products[x].lanes == lanes]
