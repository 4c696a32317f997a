"""Products fused with the sums that they are terms of, as instructions have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from sysdyn.codegen.slp import Operation
from sysdyn.program.opcodes import ADD, MUL, SUB

# Kinds of operations on a, b and c: a b + c, a b − c and c − a b.
FUSED = ("+", "-", "~")


def fused(operations: Sequence[Operation], kept: Collection[int]) -> list[Operation]:
    """The operations in their order, without products that one sum alone needs: these are operands of its own.

    kept: operations of the segment whose results are needed elsewhere.
    """
    uses = Counter(x for operation in operations for x in operation.operands)
    depth: dict[int, int] = {}
    products: dict[int, Operation] = {}
    found: dict[int, Operation] = {}
    for operation in operations:
        result, kind, operands, lanes, done = operation
        depth[result] = 1 + max((depth.get(x, 0) for x in operands), default=0)
        terms = [n for n, x in enumerate(operands) if x in products and products[x].lanes == lanes]
        if kind in (ADD, SUB) and terms:
            n = max(terms, key=lambda n: depth[operands[n]])  # the other product is ready first
            product = found.pop(operands[n])
            sign = "+" if kind == ADD else "-" if n == 0 else "~"
            operation = operation._replace(kind=sign, operands=(*product.operands, operands[1 - n]))
        elif kind == MUL and uses[result] == 1 and not any(k in kept for k in done):
            products[result] = operation
        found[result] = operation
    return list(found.values())
