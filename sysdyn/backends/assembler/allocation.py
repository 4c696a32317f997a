"""Where the values of a segment are, in registers or in memory, and the instructions that this takes.

Belady (1966): where registers run out, the value that is needed latest gives way. Operands are read from memory where
they are, so that a value that gave way is loaded again only where an instruction has two of that kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sysdyn.backends.assembler import encoding
from sysdyn.backends.assembler.encoding import FORM_132, FORM_213, FORM_231
from sysdyn.backends.assembler.fusion import SIGN, Node
from sysdyn.backends.assembler.pairs import HIGH, PACK
from sysdyn.backends.schedule import CONSTANT

# A value that is in memory anyway gives way to one that is not, needed this many times as late.
STORED = 1.25
# Values that are needed for more instructions than this get registers of high numbers, whose instructions are longer.
LONG = 24
_NEVER = 1 << 40


class Step(NamedTuple):
    """An instruction of the encoder whose last operand may be in memory: a place of the workspace, or a constant."""

    name: str
    lanes: int
    arguments: tuple
    place: int | None = None
    constant: int | None = None  # its code


def _is_constant(x: int) -> bool:
    return x % 4 == CONSTANT


class Allocation:
    """The steps that compute the nodes in their order, in so many registers.

    memory: {value: its place, the first of two}; stores: {value: (lane, place) where results go}; end: the first place
    that nothing needs.
    """

    def __init__(self, nodes: list[Node], free: int, registers: int):
        self.nodes = nodes
        self.steps: list[Step] = []
        self.memory: dict[int, int] = {}
        self.stores: dict[int, list[tuple[int, int]]] = {}
        self.end = free
        self._places: dict[int, list[int]] = {1: [], 2: []}  # of spilled values that are over, by their lanes
        self._lanes = {node.result: node.lanes for node in nodes}
        self._spilled: set[int] = set()
        self._register: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._free = set(range(registers))
        self._uses: dict[int, list[int]] = defaultdict(list)  # upcoming ones, the next one last
        for k in reversed(range(len(nodes))):
            for x in set(nodes[k].operands):
                self._uses[x].append(k)

    def run(self) -> None:
        for k, node in enumerate(self.nodes):
            operands = set(node.operands)
            for x in operands:
                self._uses[x].pop()
            uses = self._uses[node.result]
            long = bool(uses) and uses[0] - k > LONG
            register = self._how(node.kind)(node, long)
            for x in operands:
                if not self._uses[x]:
                    self._over(x)
            self._hold(node.result, register)
            for lane, place in self.stores.get(node.result, ()):
                self.steps.append(Step("store_high" if lane else "store", 1, (register,), place))
                if node.lanes == 1:
                    self.memory[node.result] = place
            if not uses:
                self._release(node.result)

    def _how(self, kind: int | str) -> Callable[[Node, bool], int]:
        """What makes the instructions of this kind of node, and gives the register of its result."""
        if isinstance(kind, int):
            return self._plain
        return {PACK: self._pack, HIGH: self._high, SIGN: self._sign}.get(kind, self._fused)

    # ---- instructions ----------------------------------------------------------------------------------------------

    def _plain(self, node: Node, long: bool) -> int:
        """The register of a sum, difference, product, quotient or root."""
        *first, second = node.operands
        if node.kind in (encoding.ADD, encoding.MUL) and self._comes_second(first[0], second):
            first, second = [second], first[0]
        kept = self._registers(node)
        registers = [self._loaded(x, kept, node.lanes) for x in first]
        there = self._register.get(second)
        for x in {*first, second}:
            if not self._uses[x]:
                self._release(x)
        to = self._new(long)
        one = registers[0] if registers else to
        if there is not None and node.kind in (encoding.ADD, encoding.MUL) and there > 7 >= one:
            one, there = there, one  # the second one takes a byte more if it is high
        self._add("arithmetic", node.lanes, node.kind, to, one, there, operand=None if there is not None else second)
        return to

    def _sign(self, node: Node, long: bool) -> int:
        """The register of a value with the sign of another."""
        kept = self._registers(node)
        size, sign, mask = (self._loaded(x, kept, node.lanes) for x in node.operands)
        rest = self._new(False, kept)
        to = self._new(long, kept | {rest})
        self._add("bitwise", node.lanes, encoding.AND_NOT, rest, mask, size)
        self._add("bitwise", node.lanes, encoding.AND, to, mask, sign)
        self._add("bitwise", node.lanes, encoding.OR, to, to, rest)
        self._free.add(rest)
        return to

    def _pack(self, node: Node, long: bool) -> int:
        """The register of two values."""
        x, y = node.operands
        kept = self._registers(node)
        if x == y:
            there = self._register.get(x)
            if not self._uses[x]:
                self._release(x)
            to = self._new(long)
            self._add("twice", 2, to, there, operand=None if there is not None else x)
            return to
        first, second = self._loaded(x, kept), self._register.get(y)
        for v in (x, y):
            if not self._uses[v]:
                self._release(v)
        to = self._new(long)
        if second is None:
            self._add("load_high", 2, to, first, operand=y)
        else:
            self._add("low", 2, to, first, second)
        return to

    def _high(self, node: Node, long: bool) -> int:
        """The register of the second value of a pair."""
        (x,) = node.operands
        there = self._register.get(x)
        if not self._uses[x]:
            self._release(x)
        to = self._new(long)
        if there is None:
            self.steps.append(Step("load", 1, (to,), self.memory[x] + 1))
        else:
            self._add("high", 2, to, there)
        return to

    def _comes_second(self, first: int, second: int) -> bool:
        """Whether two operands are to be exchanged: the one that is read from memory is the second."""
        if first in self._register:
            return False
        return second in self._register or _is_constant(first)

    def _fused(self, node: Node, long: bool) -> int:
        """The register of ±a·b ± c, which is that of an operand before: of one that is over, or of a copy."""
        a, b, c = node.operands
        kept = self._registers(node)
        away = [x for x in dict.fromkeys(node.operands) if x not in self._register]
        while len(away) > 1 or (away and node.operands.count(away[0]) > 1):
            x = min(away, key=lambda x: (_is_constant(x), self._next(x)))
            self._loaded(x, kept, node.lanes)
            away.remove(x)
        single = [x for x in (c, a, b) if node.operands.count(x) == 1]
        over = [x for x in single if x in self._register and not self._uses[x]]
        if over:
            replaced = over[0]
            to = self._register.pop(replaced)
            del self._held[to]
        elif away:
            replaced = away.pop()
            to = self._new(long, kept)
            self._add("load", node.lanes, to, operand=replaced)
        else:
            replaced = single[0] if single else c
            to = self._new(long, kept)
            self._add("copy", node.lanes, to, self._register[replaced])
        other, third = (a, b) if replaced == c else (b if replaced == a else a, c)
        form = FORM_231 if replaced == c else FORM_213
        if other in away:
            form, other, third = (form if replaced == c else FORM_132), third, other
        there = None if third in away else self._register[third]
        operand = third if third in away else None
        self._add("fused", node.lanes, form, node.kind, to, self._register[other], there, operand=operand)
        return to

    def _add(self, name: str, lanes: int, *arguments: object, operand: int | None = None) -> None:
        """A step; operand: a value that is read from memory."""
        place = None if operand is None or _is_constant(operand) else self.memory[operand]
        constant = operand if place is None else None
        self.steps.append(Step(name, lanes, tuple(x for x in arguments if x is not None), place, constant))

    # ---- registers and places --------------------------------------------------------------------------------------

    def _registers(self, node: Node) -> set[int]:
        """Those of its operands."""
        return {self._register[x] for x in node.operands if x in self._register}

    def _next(self, x: int) -> int:
        uses = self._uses[x]
        return uses[-1] if uses else _NEVER

    def _loaded(self, x: int, kept: set[int], lanes: int = 1) -> int:
        """The register of an operand; those that are kept stay as they are, and this one joins them.

        lanes: those of a constant.
        """
        if x not in self._register:
            register = self._new(False, kept)
            self._add("load", self._lanes.get(x, lanes), register, operand=x)
            self._hold(x, register)
        kept.add(self._register[x])
        return self._register[x]

    def _hold(self, x: int, register: int) -> None:
        self._register[x] = register
        self._held[register] = x

    def _release(self, x: int) -> None:
        if x in self._register:
            register = self._register.pop(x)
            del self._held[register]
            self._free.add(register)

    def _over(self, x: int) -> None:
        """Nothing needs the operand any more."""
        self._release(x)
        if x in self._spilled:
            self._spilled.remove(x)
            self._places[self._lanes[x]].append(self.memory.pop(x))

    def _new(self, long: bool, kept: Sequence[int] | set[int] = ()) -> int:
        """A register for a new value, which one that is needed latest gives way to; none of those that are kept."""
        if not self._free:
            self._spill(max((r for r in self._held if r not in kept), key=self._lateness))
        register = max(self._free) if long else min(self._free)
        self._free.remove(register)
        return register

    def _lateness(self, register: int) -> float:
        x = self._held[register]
        return self._next(x) * (STORED if x in self.memory or _is_constant(x) else 1.0)

    def _spill(self, register: int) -> None:
        x = self._held[register]
        if x not in self.memory and not _is_constant(x):
            lanes = self._lanes[x]
            if self._places[lanes]:
                place = self._places[lanes].pop()
            else:
                place, self.end = self.end, self.end + lanes
            self._spilled.add(x)
            self.memory[x] = place
            self.steps.append(Step("store", lanes, (register,), place))
        self._release(x)
