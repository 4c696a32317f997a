"""SLP vectorisation (Larsen and Amarasinghe 2000): isomorphic halves of a segment share two-lane operations.

The high lane may store the negative of its value. If one limb mirrors the other, a sum in one half is a difference in
the other; sign flips in the high lane make both the same operation. The signs are unknowns over GF(2), and each
operation is a linear equation. If an equation contradicts earlier ones, an operand is multiplied by (1, −1).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from sysdyn.codegen.isomorphism import IsomorphicHalves
from sysdyn.codegen.partition import CONSTANT, LOCAL, Segment, SegmentTemplate
from sysdyn.program.opcodes import ADD, ANGULAR, COPYSIGN, DIV, MUL, NEG, SQRT, SUB, WRAP

# Additional kinds of operations: pack two scalars into a register, and extract the high lane.
INSERT, EXTRACT_HIGH = "insert", "extract high"
# Largest cost of a pair [operations]: 1/n for each packed operand that n pairs share, and 1 if a scalar operation reads
# the high lane (chosen).
MAX_PACK_COST = 1.5

LaneConstant = float | tuple[float, float]  # one lane, or (low lane, high lane)


class LaneOperation(NamedTuple):
    """An operation on `lanes` lanes. result, operands: codes as in `SegmentTemplate`.

    defines: by lane, the operation of the segment that the lane computes; −1 if it computes none.
    """

    result: int
    kind: int | str
    operands: tuple[int, ...]
    lanes: int = 1
    defines: tuple[int, ...] = ()


def scalar_operations(template: SegmentTemplate) -> list[LaneOperation]:
    """The operations of a template, each in one lane."""
    return [
        LaneOperation(k * 4 + LOCAL, kind, tuple(x for x in pair if x >= 0), 1, (k,))
        for k, (kind, *pair) in enumerate(zip(template.kind, template.lhs, template.rhs, strict=True))
    ]


def slp_vectorise(segment: Segment) -> tuple[list[LaneOperation], list[LaneConstant]] | None:
    """(two-lane operations, their constants); None if the segment has no isomorphic halves."""
    pairs = TwinPairs(segment.template, IsomorphicHalves(segment.template).mapping)
    pairs.drop_expensive()
    pairs.drop_cyclic()
    return _Vectoriser(segment, pairs).run() if pairs.second else None


# ---- pairs ---------------------------------------------------------------------------------------------------------


class TwinPairs:
    """Pairs of isomorphic operations, each to be computed by one two-lane operation.

    second: {first operation of a pair, in the low lane: second operation, in the high lane}. local: operand codes of
    each operation. Methods take a pair by its first operation u.
    """

    def __init__(self, template: SegmentTemplate, mapping: dict[int, int]):
        self.template = template
        self.local = [tuple(x for x in pair if x >= 0) for pair in zip(template.lhs, template.rhs, strict=True)]
        self.second = {u: w for u, w in mapping.items() if self._is_compatible(template.kind[u], template.kind[w])}

    @staticmethod
    def _is_compatible(kind: int, other: int) -> bool:
        return (kind == other and kind not in (*ANGULAR, WRAP)) or {kind, other} == {ADD, SUB}

    def matches(self, x: int, y: int) -> bool:
        """True if the operands x (low lane) and y (high lane) need no packing: constants, or the results of a pair."""
        if x % 4 == CONSTANT or y % 4 == CONSTANT:
            return x % 4 == y % 4
        return x % 4 == LOCAL and self.second.get(x // 4, -1) * 4 + LOCAL == y

    def are_exchanged(self, u: int) -> bool:
        """True if more operands of the pair match after the operands of its second operation are exchanged."""
        if self.template.kind[u] in (DIV, NEG, SQRT, COPYSIGN):
            return False
        (a, b), (c, d) = self.local[u], self.local[self.second[u]]
        return self.matches(a, d) + self.matches(b, c) > self.matches(a, c) + self.matches(b, d)

    def operands(self, u: int) -> list[tuple[int, int]]:
        """Operand codes of a pair: (low lane, high lane) for each operand."""
        second = self.local[self.second[u]]
        return list(zip(self.local[u], second[::-1] if self.are_exchanged(u) else second, strict=True))

    def drop_expensive(self) -> None:
        """Drop pairs whose packing cost exceeds MAX_PACK_COST."""
        users: dict[int, list[int]] = defaultdict(list)
        for k, operands in enumerate(self.local):
            for x in set(operands):
                users[x].append(k)
        paired = {*self.second, *self.second.values()}
        packs: dict[tuple[int, int], list[int]] = defaultdict(list)
        cost: dict[int, float] = {}
        for u, w in self.second.items():
            cost[u] = float(any(k not in paired for k in users[w * 4 + LOCAL]))
            for pair in self.operands(u):
                if not self.matches(*pair):
                    packs[pair].append(u)
        for pack_users in packs.values():
            for u in pack_users:
                cost[u] += 1.0 / len(pack_users)
        self.second = {u: w for u, w in self.second.items() if cost[u] <= MAX_PACK_COST}

    def drop_cyclic(self) -> None:
        """Break dependency cycles between pairs: drop the pairs whose operations differ most in depth."""
        depth: list[int] = []
        for operands in self.local:
            depth.append(1 + max((depth[x // 4] for x in operands if x % 4 == LOCAL), default=0))
        while cyclic := sorted(self._cyclic() & self.second.keys()):
            difference = {u: abs(depth[u] - depth[self.second[u]]) for u in cyclic}
            most = max(difference.values())
            for u in [u for u in cyclic if 2 * difference[u] >= most] if most else cyclic[: 1 + len(cyclic) // 8]:
                del self.second[u]

    def _dependencies(self) -> tuple[list[set[int]], list[set[int]]]:
        """(operands, users) of each unit. A unit is an unpaired operation, or a pair, named by its first operation."""
        unit = list(range(len(self.local)))
        for u, w in self.second.items():
            unit[w] = u
        needs: list[set[int]] = [set() for _ in unit]
        users: list[set[int]] = [set() for _ in unit]
        for k, operands in enumerate(self.local):
            for x in operands:
                if x % 4 == LOCAL:
                    needs[unit[k]].add(unit[x // 4])
                    users[unit[x // 4]].add(unit[k])
        return needs, users

    def _cyclic(self) -> set[int]:
        """Units in or between dependency cycles: those that remain after repeated removal of sources and sinks."""
        needs, users = self._dependencies()
        left = set(range(len(needs)))
        for before, after in ((needs, users), (users, needs)):
            missing = {k: len(before[k] & left) for k in left}
            ready = [k for k in left if not missing[k]]
            while ready:
                k = ready.pop()
                left.remove(k)
                for x in after[k] & left:
                    missing[x] -= 1
                    if not missing[x]:
                        ready.append(x)
        return left

    def order(self) -> list[int]:
        """Topological order of the units, close to the order of the segment."""
        needs, users = self._dependencies()
        seconds = set(self.second.values())
        missing = [len(xs) for xs in needs]
        place = [min(k, self.second.get(k, k)) for k in range(len(needs))]
        ready = [(place[k], k) for k, xs in enumerate(needs) if not xs and k not in seconds]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, k = heapq.heappop(ready)
            order.append(k)
            for user in users[k]:
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, (place[user], user))
        return order


# ---- signs ---------------------------------------------------------------------------------------------------------


def _sum_signs(pairs: TwinPairs, u: int) -> tuple[int, int]:
    """Sign conditions for a pair of sums, x + β y in the low lane and γ x' + δ y' in the high lane, all signs ±1.

    The high lane stores s x' and t y' with signs s and t. One two-lane operation computes both sums if s t = β γ δ; the
    high lane of the result then stores γ s times its value. Returns β γ δ and γ as bits, 1 for −1.
    """
    beta, minus = pairs.template.kind[u] == SUB, pairs.template.kind[pairs.second[u]] == SUB
    gamma = minus and pairs.are_exchanged(u)
    return beta ^ minus, int(gamma)  # γ δ is the sign of the second operation: γ or δ is 1


def _solve_signs(pairs: TwinPairs, order: list[int], stored: set[int]) -> dict[tuple[int, int], int]:
    """Choose the signs of the two-lane constants by elimination over GF(2).

    Returns {(first operation of a pair, operand index): sign bit of the constant in the high lane}. During the
    elimination, a sign is an affine form in the unknown bits, stored as an integer: bit 0 is the constant term, each
    higher bit an unknown. stored: operations whose results must have a positive sign.
    """
    names: list[tuple[int, int]] = []
    solution: dict[int, int] = {}  # unknown → affine form in lower unknowns
    sign: dict[int, int] = {}  # second operation of a pair → sign of its high lane

    def reduced(x: int) -> int:
        rest = x
        while rest > 1:
            bit = 1 << (rest.bit_length() - 1)
            rest ^= bit
            if bit in solution:
                x ^= bit ^ solution[bit]
                rest ^= solution[bit]
        return x

    def require_positive(x: int) -> None:
        if (x := reduced(x)) > 1:
            bit = 1 << (x.bit_length() - 1)
            solution[bit] = x ^ bit

    def unknown(u: int, k: int) -> int:
        names.append((u, k))
        return 1 << len(names)

    def require_scalar(x: int) -> None:
        if x % 4 == LOCAL and x // 4 in sign:
            require_positive(sign[x // 4])

    def operand_signs(u: int) -> Iterator[int]:
        for k, (x, y) in enumerate(pairs.operands(u)):
            if x % 4 == y % 4 == CONSTANT:
                yield unknown(u, k)
            elif pairs.matches(x, y):
                yield sign[y // 4]
            else:
                require_scalar(x)
                require_scalar(y)
                yield 0

    for u in order:
        if u not in pairs.second:
            for x in pairs.local[u]:
                require_scalar(x)
            continue
        kind, w, signs = pairs.template.kind[u], pairs.second[u], list(operand_signs(u))
        if kind in (ADD, SUB):
            difference, change = _sum_signs(pairs, u)
            require_positive(signs[0] ^ signs[1] ^ difference)
            sign[w] = signs[0] ^ change
        elif kind == SQRT:
            require_positive(signs[0])
            sign[w] = 0
        elif kind == NEG:
            sign[w] = signs[0] ^ unknown(u, 1)
        else:
            sign[w] = signs[1] if kind == COPYSIGN else signs[0] ^ signs[1]
        if w in stored:
            require_positive(sign[w])
    return {name: reduced(2 << k) & 1 for k, name in enumerate(names)}


# ---- operations ----------------------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A scalar or two-lane value: its code and number of lanes. sign: 1 if the high lane stores the negated value."""

    code: int
    lanes: int = 1
    sign: int = 0


class _Vectoriser:
    """Emit the operations of a segment in execution order, pairs in two lanes."""

    def __init__(self, segment: Segment, pairs: TwinPairs):
        template = segment.template
        self._pairs, self._scalars, self._constants = pairs, segment.constants, list[LaneConstant](segment.constants)
        self._stored = {*template.exported, *(k for k, *_ in template.guards)}
        self._order = pairs.order()
        self._signs = _solve_signs(pairs, self._order, self._stored)
        self._operations: dict[int, LaneOperation] = {}  # by result code
        self._next = len(template.kind)  # index of the next auxiliary value
        self._pair_of: dict[int, Value] = {}  # by operation, of either lane
        self._packed: dict[tuple[int, int], Value] = {}
        self._extracted: dict[int, int] = {}  # scalar copies of high lanes

    def run(self) -> tuple[list[LaneOperation], list[LaneConstant]]:
        for u in self._order:
            if u in self._pairs.second:
                self._add_pair(u, self._pairs.second[u])
            else:
                operands, code = tuple(self._scalar(x) for x in self._pairs.local[u]), u * 4 + LOCAL
                self._operations[code] = LaneOperation(code, self._pairs.template.kind[u], operands, 1, (u,))
        return list(self._operations.values()), self._constants

    def _add(self, kind: int | str, operands: tuple[int, ...], lanes: int, sign: int = 0) -> Value:
        code = self._next * 4 + LOCAL
        self._next += 1
        self._operations[code] = LaneOperation(code, kind, operands, lanes)
        return Value(code, lanes, sign)

    def _constant(self, a: float, b: float, sign: int) -> Value:
        """Two-lane constant (a, b), or (a, −b) if `sign` is 1."""
        self._constants.append((a, -b if sign else b))
        return Value((len(self._constants) - 1) * 4 + CONSTANT, 2, sign)

    def _true_sign(self, pair: Value) -> Value:
        return self._flip_high(pair) if pair.sign else pair

    def _flip_high(self, pair: Value) -> Value:
        """Negate the high lane of a pair, by an additional operation."""
        return self._add(MUL, (pair.code, self._constant(1.0, -1.0, 0).code), 2, pair.sign ^ 1)

    def _scalar(self, x: int) -> int:
        """Code under which a scalar operation reads operand x.

        If x is in the low lane of a pair, this is the code of the pair. A high lane is extracted once.
        """
        if x % 4 != LOCAL or x // 4 not in self._pair_of:
            return x
        pair = self._pair_of[x // 4]
        if x // 4 in self._pairs.second:
            return pair.code
        if x not in self._extracted:
            self._extracted[x] = self._add(EXTRACT_HIGH, (self._true_sign(pair).code,), 1).code
        return self._extracted[x]

    def _vector(self, u: int, k: int, x: int, y: int) -> Value:
        """Two-lane value of operand k of the pair u: x in the low lane, y in the high lane. Packed if necessary."""
        if x % 4 == y % 4 == CONSTANT:
            return self._constant(self._scalars[x // 4], self._scalars[y // 4], self._signs[u, k])
        if self._pairs.matches(x, y):
            return self._pair_of[x // 4]
        if (x, y) not in self._packed:
            self._packed[x, y] = self._add(INSERT, (self._scalar(x), self._scalar(y)), 2)
        return self._packed[x, y]

    def _add_pair(self, u: int, w: int) -> None:
        kind = self._pairs.template.kind[u]
        operands = [self._vector(u, k, x, y) for k, (x, y) in enumerate(self._pairs.operands(u))]
        x, y = operands[0], operands[-1]
        if kind in (ADD, SUB):
            difference, change = _sum_signs(self._pairs, u)
            if x.sign ^ y.sign ^ difference:
                y = self._flip_high(y)
            pair = self._add(kind, (x.code, y.code), 2, x.sign ^ change)
        elif kind == SQRT:
            pair = self._add(SQRT, (self._true_sign(x).code,), 2)
        elif kind == NEG:
            minus = self._constant(-1.0, -1.0, self._signs[u, 1])
            pair = self._add(MUL, (x.code, minus.code), 2, x.sign ^ minus.sign)
        else:
            pair = self._add(kind, (x.code, y.code), 2, y.sign if kind == COPYSIGN else x.sign ^ y.sign)
        self._pair_of[u] = self._pair_of[w] = pair
        self._define(pair, u)
        if w in self._stored:
            self._define(stored := self._true_sign(pair), u if stored == pair else -1, w)

    def _define(self, pair: Value, *operations: int) -> None:
        self._operations[pair.code] = self._operations[pair.code]._replace(defines=operations)
