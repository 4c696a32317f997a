"""Operations of a segment as instructions have them: products are fused with the sums that they are terms of."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sysdyn.backends.assembler import encoding
from sysdyn.backends.schedule import CONSTANT, LOCAL, Segment
from sysdyn.program.operations import ADD, DIV, MUL, NEG, SQRT, SUB

# What instructions there are for.
KINDS = {ADD: encoding.ADD, SUB: encoding.SUB, MUL: encoding.MUL, DIV: encoding.DIV, SQRT: encoding.SQRT}


class Node(NamedTuple):
    """One instruction: an opcode of `encoding` with one or two operands, or a kind of FUSED with a, b and c.

    Values are codes as in the shape of the segment.
    """

    result: int
    kind: int | str
    operands: tuple[int, ...]


def fused(segment: Segment) -> tuple[list[Node], list[float]]:
    """(the operations of a segment in order, but for products that nothing else than one sum needs; constants)."""
    shape, constants = segment.shape, [*segment.constants, -1.0]
    minus_one = len(segment.constants) * 4 + CONSTANT
    operands = [tuple(x for x in pair if x >= 0) for pair in zip(shape.lhs, shape.rhs, strict=True)]
    uses = Counter(x for pair in operands for x in pair)
    kept = {local * 4 + LOCAL for local in (*shape.exported, *(k for k, *_ in shape.guards))}
    products: dict[int, tuple[int, ...]] = {}
    depth: dict[int, int] = {}
    found: dict[int, Node] = {}
    for k, (kind, pair) in enumerate(zip(shape.kind, operands, strict=True)):
        result = k * 4 + LOCAL
        depth[result] = 1 + max(depth.get(x, 0) for x in pair)
        if kind == NEG:
            node = Node(result, encoding.MUL, (*pair, minus_one))
        elif kind in (ADD, SUB) and (terms := [n for n, x in enumerate(pair) if x in products]):
            n = max(terms, key=lambda n: depth[pair[n]])  # the other product is ready first
            name = "+" if kind == ADD else "-" if n == 0 else "~"
            node = Node(result, name, (*products[pair[n]], pair[1 - n]))
            del found[pair[n]]
        else:
            node = Node(result, KINDS[kind], pair)
            if kind == MUL and uses[result] == 1 and result not in kept:
                products[result] = pair
        found[result] = node
    return list(found.values()), constants
