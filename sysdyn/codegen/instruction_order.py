"""Orders of the operations of a program, and the moves between registers and memory that these take."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sysdyn.codegen.partition import schedule
from sysdyn.program.opcodes import ANGULAR
from sysdyn.program.program import Program

# Registers for values that are no constants, of the 32 of AVX-512 and of ARM (chosen).
REGISTERS = 30
# Programs of more operations keep the given order, as trying others takes long (chosen).
LONGEST_ARRANGED = 20_000


def reordered(program: Program, order: np.ndarray, cuts: np.ndarray) -> Program:
    """The program that does operation order[k] as its k-th. cuts: of the new program."""
    first = program.first_op
    number = np.arange(-1, first + len(program))  # new number of value v at v + 1, so that −1 stays
    number[1 + first + order] = first + np.arange(len(program))

    def renumbered(values: np.ndarray) -> np.ndarray:
        return number[values + 1].astype(np.int32)

    return replace(
        program, kind=program.kind[order], lhs=renumbered(program.lhs[order]), rhs=renumbered(program.rhs[order]),
        output_values=renumbered(program.output_values), cuts=np.asarray(cuts, dtype=np.int32),
        guards=tuple(replace(g, value=int(number[g.value + 1])) for g in program.guards),
    )  # fmt: skip


def _operands(program: Program, end: int | None = None) -> list[list[int]]:
    """Operation numbers of the distinct operands of each operation up to `end`, without inputs and constants."""
    first = program.first_op
    pairs = zip((program.lhs[:end] - first).tolist(), (program.rhs[:end] - first).tolist(), strict=True)
    return [[a] * (a >= 0) + [b] * (b >= 0 and b != a) for a, b in pairs]


def angles_first(program: Program) -> tuple[Program, int]:
    """(program, begin of the rest): first all that leads to sines and cosines, then these in one piece, then the rest.

    There, a kernel of one state takes as many angles at a time as a register holds, and one of many states has its
    registers to itself in between.
    """
    is_angle = np.isin(program.kind, ANGULAR)
    if not is_angle.any():
        return program, 0
    n, last = len(program), int(np.flatnonzero(is_angle)[-1])  # whatever comes after that leads to none
    operands = _operands(program, last + 1)
    after = is_angle.tolist()  # is a sine or cosine, or needs one
    angle, feeds = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for k, xs in enumerate(operands):
        needs = any(after[x] for x in xs)
        angle[k] = after[k] and not needs
        after[k] = after[k] or needs
    for k in reversed(range(last + 1)):
        if angle[k] or feeds[k]:
            feeds[operands[k]] = True
    rest = ~(feeds | angle)
    order = np.concatenate([np.flatnonzero(part) for part in (feeds, angle, rest)])
    begin = int(feeds.sum())
    end = begin + int(angle.sum())
    before = np.concatenate([[0], np.cumsum(rest)])  # how much of the rest comes before an operation
    cuts = np.unique([begin, end, *(end + before[program.cuts])])
    return reordered(program, order, cuts[(cuts > 0) & (cuts < n)]), end


@lru_cache(maxsize=2)
def arranged(program: Program, registers: int = REGISTERS) -> Program:
    """Angles first, and the rest in the one of a few orders that moves least between registers and memory.

    A program with pieces that share their code keeps its order.
    """
    program, start = angles_first(program)
    if not 0 < len(program) <= LONGEST_ARRANGED or any(segment.shared for segment in schedule(program).segments):
        return program
    operands = _operands(program)
    given = list(range(len(program)))
    deep = _depth_first(program, operands)
    tried = (given, deep, _bottom_up(operands, given, registers), _bottom_up(operands, deep, registers))
    orders = [[*range(start), *(k for k in order if k >= start)] for order in tried]
    best = min(orders, key=lambda order: traffic(program, order, registers))
    return reordered(program, np.array(best), program.cuts[program.cuts <= start])


def _depth_first(program: Program, operands: list[list[int]]) -> list[int]:
    """Each output after its operands, from the last output on; of two operands the one of greater need first.

    The need is that of Sethi and Ullman (1970): registers that suffice if nothing is used twice.
    """
    need: list[int] = []
    for xs in operands:
        needs = sorted((need[x] for x in xs), reverse=True)
        need.append(max([1, *(x + k for k, x in enumerate(needs))]))
    done, order = [False] * len(operands), []
    last_first = [v - program.first_op for v in reversed(program.output_values.tolist()) if v >= program.first_op]
    for root in (*last_first, *range(len(operands))):
        stack = [(root, False)]
        while stack:
            k, ready = stack.pop()
            if done[k]:
                continue
            if ready:
                done[k] = True
                order.append(k)
                continue
            stack.append((k, True))
            stack.extend((x, False) for x in sorted(operands[k], key=need.__getitem__) if not done[x])
    return order


def _bottom_up(operands: list[list[int]], base: list[int], registers: int) -> list[int]:
    """From the last operation back: the one that makes the fewest values wait, else the latest one in `base`.

    While fewer values wait than there are registers only the latter counts.
    """
    ready = _Ready(operands, base)
    order: list[int] = []
    while len(order) < len(operands):
        order.append(ready.next(registers))
        ready.done(order[-1])
    return order[::-1]


class _Ready:
    """Operations all of whose users are done, by the number of values that each would make wait."""

    def __init__(self, operands: list[list[int]], base: list[int]):
        n = len(operands)
        self.operands = operands
        self.place = [0] * n
        for k, i in enumerate(base):
            self.place[i] = k
        self.users: list[list[int]] = [[] for _ in range(n)]
        for i, xs in enumerate(operands):
            for x in xs:
                self.users[x].append(i)
        self.left = [len(u) for u in self.users]
        self.over, self.waiting = [False] * n, [False] * n
        self.n_waiting = 0
        # one heap by place for each number of values that would wait more; entries out of date are put right when met
        self.more = [len(xs) - bool(self.users[i]) for i, xs in enumerate(operands)]
        self.heaps: dict[int, list[tuple[int, int]]] = {k: [] for k in range(-1, 3)}
        for i in range(n):
            if not self.left[i]:
                self._offer(i)

    def _offer(self, i: int) -> None:
        heapq.heappush(self.heaps[self.more[i]], (-self.place[i], i))

    def next(self, registers: int) -> int:
        found: list[tuple[int, int]] = []
        for k, heap in self.heaps.items():
            while heap and (self.over[heap[0][1]] or self.more[heap[0][1]] != k):
                heapq.heappop(heap)
            if heap:
                found.append(heap[0])
        return (min(found) if self.n_waiting < registers else found[0])[1]

    def done(self, i: int) -> None:
        self.over[i] = True
        self.n_waiting -= self.waiting[i]
        for x in self.operands[i]:
            if not self.waiting[x]:
                self._wait(x)
            self.left[x] -= 1
            if not self.left[x]:
                self._offer(x)

    def _wait(self, x: int) -> None:
        """A value is needed from here on, so that its other users make one value less wait."""
        self.waiting[x] = True
        self.n_waiting += 1
        for user in self.users[x]:
            self.more[user] -= 1
            if not (self.left[user] or self.over[user]):
                self._offer(user)


def traffic(program: Program, order: list[int], registers: int = REGISTERS) -> int:
    """Loads, and stores of values that are no outputs, of a program in this order."""
    steps = _steps(program)
    loads, stores = moves([steps[k] for k in order], registers)
    return sum(map(len, loads)) + len(stores.difference(program.output_values.tolist()))


@lru_cache(maxsize=1)
def _steps(program: Program) -> list[tuple[int, list[int]]]:
    """(result, operands that are no constants) of each operation."""
    first, n_in = program.first_op, program.n_inputs
    pairs = zip(program.lhs.tolist(), program.rhs.tolist(), strict=True)
    return [(k, [v for v in {*pair} if 0 <= v < n_in or v >= first]) for k, pair in enumerate(pairs, first)]


def moves(steps: Sequence[tuple[int, Sequence[int]]], registers: int) -> tuple[list[list[int]], set[int]]:
    """(operands to be loaded at each step, results to be stored) of steps (result, operands).

    The value needed latest gives way (Belady 1966). One operand a step is read from memory without a register of its
    own. Operands that are no results are in memory.
    """
    end = len(steps)
    upcoming: dict[int, int] = {}
    uses = []  # of the result and of the operands of each step, the next ones
    for t in reversed(range(end)):
        result, operands = steps[t]
        uses.append((upcoming.get(result, end), [upcoming.get(x, end) for x in operands]))
        upcoming.update(dict.fromkeys(operands, t))
    loads: list[list[int]] = []
    results: set[int] = set()
    stores: set[int] = set()
    held: dict[int, int] = {}  # values in registers, and their next uses
    for (result, operands), (next_use, next_uses) in zip(steps, reversed(uses), strict=True):
        missing = [x for x in operands if x not in held]
        loads.append(missing)
        results.add(result)
        held.update(zip(operands, next_uses, strict=True))
        held[result] = next_use
        if missing:
            held[max(missing, key=held.__getitem__)] = end
        for x in (*operands, result):
            if held[x] == end:
                del held[x]
        while len(held) > registers:
            x = max(held, key=held.__getitem__)
            if x in results:
                stores.add(x)
            del held[x]
    return loads, stores
