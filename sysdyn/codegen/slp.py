"""Operations of a segment, twins side by side: each pair is one operation on registers of two numbers.

The second number of a register may be the negative of its value: where one limb mirrors the other, sums become
differences, and signs that are chosen well make them alike again. They are unknowns over {0, 1}: each operation is a
linear equation, and where it contradicts those before, an operand is multiplied by (1, −1).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

from sysdyn.codegen.isomorphism import Twins
from sysdyn.codegen.partition import CONSTANT, LOCAL, Segment, SegmentTemplate
from sysdyn.program.opcodes import ADD, ANGULAR, COPYSIGN, DIV, MUL, NEG, SQRT, SUB, WRAP

# Kinds of operations beside those of programs: two values in one register, and the second value of a register.
PACK, HIGH = "pack", "high"
# Most operations that a pair may cost: one for an operand that has to be put together, shared by
# the pairs that need it, and one for a second value that is needed by itself (chosen).
DEAR_PAIR = 1.5

Constant = float | tuple[float, float]  # A constant of one lane, or of two.


class Operation(NamedTuple):
    """An operation on `lanes` lanes. Values are codes as in the template of the segment, and new ones of that form.

    defines: the operations of the segment whose results these are, lane by lane; −1 for none.
    """

    result: int
    kind: int | str
    operands: tuple[int, ...]
    lanes: int = 1
    defines: tuple[int, ...] = ()


def single(template: SegmentTemplate) -> list[Operation]:
    """The operations as they are."""
    return [
        Operation(k * 4 + LOCAL, kind, tuple(x for x in pair if x >= 0), 1, (k,))
        for k, (kind, *pair) in enumerate(zip(template.kind, template.lhs, template.rhs, strict=True))
    ]


def paired(segment: Segment) -> tuple[list[Operation], list[Constant]] | None:
    """(operations with twins side by side, their constants); None if there are no twins."""
    twin = _worthwhile(segment, Twins(segment.template).first)
    twin = _acyclic(segment, twin)
    return _Paired(segment, twin).result() if twin else None


# ---- which twins ---------------------------------------------------------------------------------------------------


def _alike(kind: int, other: int) -> bool:
    return (kind == other and kind not in (*ANGULAR, WRAP)) or {kind, other} == {ADD, SUB}


def _exchanged(segment: Segment, u: int, w: int, twin: dict[int, int]) -> bool:
    """True if the operands of w have to be exchanged to match those of u."""
    template = segment.template
    a, b, c, d = template.lhs[u], template.rhs[u], template.lhs[w], template.rhs[w]
    if template.kind[u] in (DIV, NEG, SQRT, COPYSIGN):
        return False
    straight = _fits(a, c, twin) + _fits(b, d, twin)
    return _fits(a, d, twin) + _fits(b, c, twin) > straight


def _fits(x: int, y: int, twin: dict[int, int]) -> bool:
    """True if two operands are both constants, or are twins."""
    if x % 4 == CONSTANT or y % 4 == CONSTANT:
        return x % 4 == y % 4
    return x % 4 == LOCAL and twin.get(x // 4, -1) * 4 + LOCAL == y


def _pairs(segment: Segment, u: int, w: int, twin: dict[int, int]) -> list[tuple[int, int]]:
    """The operands of two operations, lane by lane."""
    template = segment.template
    second = (template.lhs[w], template.rhs[w])
    if _exchanged(segment, u, w, twin):
        second = second[::-1]
    return [(x, y) for x, y in zip((template.lhs[u], template.rhs[u]), second, strict=True) if x >= 0]


def _worthwhile(segment: Segment, twin: dict[int, int]) -> dict[int, int]:
    """`twin` without pairs that cost more than they save."""
    template = segment.template
    twin = {u: w for u, w in twin.items() if _alike(template.kind[u], template.kind[w])}
    users: dict[int, list[int]] = defaultdict(list)
    for k, pair in enumerate(zip(template.lhs, template.rhs, strict=True)):
        for x in set(pair):
            users[x].append(k)
    both = {*twin, *twin.values()}
    packs: dict[tuple[int, int], list[int]] = defaultdict(list)
    cost: dict[int, float] = {}
    for u, w in twin.items():
        cost[u] = float(any(k not in both for k in users[w * 4 + LOCAL]))
        for x, y in _pairs(segment, u, w, twin):
            if not _fits(x, y, twin):
                packs[x, y].append(u)
    for pair_users in packs.values():
        for u in pair_users:
            cost[u] += 1.0 / len(pair_users)
    return {u: w for u, w in twin.items() if cost[u] <= DEAR_PAIR}


def _acyclic(segment: Segment, twin: dict[int, int]) -> dict[int, int]:
    """`twin` without pairs that would need their own results.

    Of those in cycles the ones go whose members are at the most different depths, as they are the least alike.
    """
    depth = _depths(segment)
    while cyclic := sorted(_cyclic(_needs(segment, twin)) & twin.keys()):
        apart = {u: abs(depth[u] - depth[twin[u]]) for u in cyclic}
        most = max(apart.values())
        for u in [u for u in cyclic if 2 * apart[u] >= most] if most else cyclic[: 1 + len(cyclic) // 8]:
            del twin[u]
    return twin


def _cyclic(needs: list[set[int]]) -> set[int]:
    """Units in cycles or between two of them: dropped are, again and again, units that need none or that none needs."""
    users: list[set[int]] = [set() for _ in needs]
    for k, xs in enumerate(needs):
        for x in xs:
            users[x].add(k)
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


def _depths(segment: Segment) -> list[int]:
    """Length of the longest chain of results that each operation ends."""
    depth: list[int] = []
    for pair in zip(segment.template.lhs, segment.template.rhs, strict=True):
        depth.append(1 + max((depth[x // 4] for x in pair if x >= 0 and x % 4 == LOCAL), default=0))
    return depth


def _needs(segment: Segment, twin: dict[int, int]) -> list[set[int]]:
    """The units that each unit needs. A unit, a pair or an operation alone, is known by its first operation."""
    template = segment.template
    unit = list(range(len(template.kind)))
    for u, w in twin.items():
        unit[w] = u
    needs: list[set[int]] = [set() for _ in unit]
    for k, pair in enumerate(zip(template.lhs, template.rhs, strict=True)):
        needs[unit[k]] |= {unit[x // 4] for x in pair if x >= 0 and x % 4 == LOCAL}
    return needs


def _ordered(segment: Segment, twin: dict[int, int]) -> list[int]:
    """The first operations of all units, each after the units that it needs and close to the given order."""
    needs, seconds = _needs(segment, twin), set(twin.values())
    users: list[list[int]] = [[] for _ in needs]
    for k, xs in enumerate(needs):
        for x in xs:
            users[x].append(k)
    missing = [len(xs) for xs in needs]
    ready = [(min(k, twin.get(k, k)), k) for k, xs in enumerate(needs) if not xs and k not in seconds]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, k = heapq.heappop(ready)
        order.append(k)
        for user in users[k]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (min(user, twin.get(user, user)), user))
    return order


# ---- signs ---------------------------------------------------------------------------------------------------------


class _Signs:
    """Unknown signs: sums over {0, 1} of unknowns, each a bit, and of one, bit 0."""

    def __init__(self) -> None:
        self._count = 0
        self._known: dict[int, int] = {}  # unknown → what it is

    def new(self) -> int:
        self._count += 1
        return 1 << self._count

    def reduced(self, sign: int) -> int:
        """The same by unknowns that are not known by others."""
        rest = sign
        while rest > 1:
            bit = 1 << (rest.bit_length() - 1)
            rest ^= bit
            if bit in self._known:  # which is a sum of lower ones
                sign ^= bit ^ self._known[bit]
                rest ^= self._known[bit]
        return sign

    def require(self, sign: int) -> bool:
        """Make the sign 0; False if it cannot be."""
        sign = self.reduced(sign)
        if sign > 1:
            bit = 1 << (sign.bit_length() - 1)
            self._known[bit] = sign ^ bit
            return True
        return not sign

    def value(self, sign: int) -> float:
        """1 or −1; unknowns that are left are 0."""
        return -1.0 if self.reduced(sign) & 1 else 1.0


class _Paired:
    """The operations of a segment with twins {first: second} side by side, in an order in which they can be done.

    _sign: {value of two lanes: sign of its second number}; _lane: {operation: (value of its pair, lane)}. Constants of
    two lanes are two numbers and the sign of the second one.
    """

    def __init__(self, segment: Segment, twin: dict[int, int]):
        self._segment, self._twin = segment, twin
        self._order = _ordered(segment, twin)
        self._new = len(segment.template.kind)  # the next number of a value
        self._signs = _Signs()
        self._done: list[Operation] = []
        self._constants: list[float | tuple[float, float, int]] = list(segment.constants)
        self._sign: dict[int, int] = {}
        self._lane: dict[int, tuple[int, int]] = {}
        self._packed: dict[tuple[int, int], int] = {}
        self._taken: dict[int, int] = {}  # second values of pairs by themselves

    def result(self) -> tuple[list[Operation], list[Constant]]:
        template = self._segment.template
        stored = {*template.exported, *(k for k, *_ in template.guards)}
        done: dict[int, tuple[int, ...]] = {}
        for u in self._order:
            if u in self._twin:
                w = self._twin[u]
                pair = self._pair(u, w)
                done[pair] = (u,)
                if w in stored:
                    right = self._right(pair)
                    done[right] = (u if right == pair else -1, w)
            else:
                operands = tuple(self._alone(x) for x in (template.lhs[u], template.rhs[u]) if x >= 0)
                self._done.append(Operation(u * 4 + LOCAL, template.kind[u], operands, 1, (u,)))
        constants = [c if isinstance(c, float) else (c[0], c[1] * self._signs.value(c[2])) for c in self._constants]
        return [x._replace(defines=done.get(x.result, x.defines)) for x in self._done], constants

    def _add(self, kind: int | str, operands: tuple[int, ...], lanes: int, sign: int = 0) -> int:
        result = self._new * 4 + LOCAL
        self._new += 1
        self._done.append(Operation(result, kind, operands, lanes))
        if lanes == 2:
            self._sign[result] = sign
        return result

    def _constant(self, a: float, b: float, sign: int) -> int:
        """The pair of constants, the second one with a sign."""
        self._constants.append((a, b, sign))
        code = (len(self._constants) - 1) * 4 + CONSTANT
        self._sign[code] = sign
        return code

    def _right(self, pair: int) -> int:
        """The pair with its second value in its own sign."""
        return pair if self._signs.require(self._sign[pair]) else self._turned(pair)

    def _turned(self, pair: int) -> int:
        """The pair with its second value of the other sign."""
        return self._add(MUL, (pair, self._constant(1.0, -1.0, 0)), 2, self._sign[pair] ^ 1)

    def _alone(self, x: int) -> int:
        """An operand of an operation without a twin; the first value of a pair has the code of the pair."""
        if x % 4 != LOCAL or x // 4 not in self._lane:
            return x
        pair, lane = self._lane[x // 4]
        if lane == 0:
            return pair
        if x not in self._taken:
            self._taken[x] = self._add(HIGH, (self._right(pair),), 1)
        return self._taken[x]

    def _both(self, x: int, y: int) -> int:
        """Two operands in one register."""
        constants = self._segment.constants
        if x % 4 == CONSTANT and y % 4 == CONSTANT:
            return self._constant(constants[x // 4], constants[y // 4], self._signs.new())
        if _fits(x, y, self._twin):
            return self._lane[x // 4][0]
        if (x, y) not in self._packed:
            self._packed[x, y] = self._add(PACK, (self._alone(x), self._alone(y)), 2)
        return self._packed[x, y]

    def _pair(self, u: int, w: int) -> int:
        """The operation of two twins."""
        template = self._segment.template
        kind = template.kind[u]
        operands = [self._both(x, y) for x, y in _pairs(self._segment, u, w, self._twin)]
        if kind in (ADD, SUB):
            pair = self._sum(u, w, *operands)
        elif kind == SQRT:
            pair = self._add(SQRT, (self._right(operands[0]),), 2)
        elif kind == NEG:
            minus = self._constant(-1.0, -1.0, self._signs.new())
            pair = self._add(MUL, (operands[0], minus), 2, self._sign[operands[0]] ^ self._sign[minus])
        elif kind == COPYSIGN:
            pair = self._add(COPYSIGN, tuple(operands), 2, self._sign[operands[1]])
        else:
            sign = self._sign[operands[0]] ^ self._sign[operands[1]]
            pair = self._add(kind, tuple(operands), 2, sign)
        self._lane[u], self._lane[w] = (pair, 0), (pair, 1)
        return pair

    def _sum(self, u: int, w: int, x: int, y: int) -> int:
        """x + β y, beside γ x' + δ y': its sign is γ times that of x, and those of x and y must differ by β γ δ."""
        kinds = self._segment.template.kind
        exchanged = _exchanged(self._segment, u, w, self._twin)
        minus = kinds[w] == SUB
        beta, gamma, delta = kinds[u] == SUB, exchanged and minus, minus and not exchanged
        if not self._signs.require(self._sign[x] ^ self._sign[y] ^ beta ^ gamma ^ delta):
            y = self._turned(y)
        return self._add(kinds[u], (x, y), 2, self._sign[x] ^ gamma)
