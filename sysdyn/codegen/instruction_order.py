"""Instruction scheduling by critical path or memory traffic, hoisting of sines and cosines, and spills."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.codegen.partition import CONSTANT, LOCAL
from sysdyn.codegen.slp import LaneOperation
from sysdyn.program.opcodes import ADD, ANGULAR, COS, DIV, MUL, SIN, SQRT, SUB
from sysdyn.program.program import Program

# Latency in cycles on recent x86 cores; all other kinds have the latency of an addition.
LATENCY: dict[int | str, int] = {DIV: 14, SQRT: 18, SIN: 40, COS: 40}
ADDITION = 4
# Bytes of machine code per instruction (mean of kernels for AVX-512).
INSTRUCTION_BYTES = 7.5


def hoist_trig(program: Program) -> Program:
    """Reorder the program: the angles first, then their sines and cosines, then all other operations.

    A kernel of one state then computes the sines and cosines of a whole register of angles at a time. A sine or cosine
    that depends on another one stays with the other operations.
    """
    n, first = len(program), program.first_op
    is_trig = np.isin(program.kind, ANGULAR)
    if not is_trig.any():
        return program
    end = int(np.flatnonzero(is_trig)[-1]) + 1  # no later operation computes an angle of a hoisted sine or cosine
    lhs, rhs = ((x[:end] - first).tolist() for x in (program.lhs, program.rhs))
    operands = [[x for x in pair if x >= 0] for pair in zip(lhs, rhs, strict=True)]
    depends = is_trig.tolist()  # is a sine or cosine, or depends on one
    hoisted, leads = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for k, xs in enumerate(operands):
        inner = any(depends[x] for x in xs)
        hoisted[k] = depends[k] and not inner
        depends[k] = depends[k] or inner
    for k in reversed(range(end)):
        if hoisted[k] or leads[k]:
            leads[operands[k]] = True
    rest = ~(leads | hoisted)
    order = np.concatenate([np.flatnonzero(part) for part in (leads, hoisted, rest)])
    begin, end = np.cumsum([leads.sum(), hoisted.sum()])
    rest_before = np.concatenate([[0], np.cumsum(rest)])
    cuts = np.unique([begin, end, *(end + rest_before[program.cuts])])
    return _permuted(program, order, cuts[(cuts > 0) & (cuts < n)])


def _permuted(program: Program, order: np.ndarray, cuts: np.ndarray) -> Program:
    """Permute the operations: the new k-th one is the old order[k]. cuts: cuts of the new program."""
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


class Instruction(NamedTuple):
    """An operation, or a product and a sum that LLVM contracts to a fused multiply-add.

    reads: distinct non-constant operands; writes: True if other segments read the result.
    """

    operations: tuple[LaneOperation, ...]
    reads: tuple[int, ...]
    writes: bool

    @property
    def result(self) -> int:
        return self.operations[-1].result


def contract(operations: Iterable[LaneOperation], exported: Collection[int]) -> list[Instruction]:
    """Instructions in the order of the operations. exported: operations whose results other segments read.

    If both operands of a sum are products without other users, the one with the longer dependency chain is contracted:
    the other product is ready earlier.
    """
    operations = list(operations)
    uses = Counter(x for operation in operations for x in operation.operands)
    depth: dict[int, int] = {}
    products: dict[int, LaneOperation] = {}
    parts: dict[int, tuple[LaneOperation, ...]] = {}
    for operation in operations:
        result, kind, operands, lanes, defines = operation
        depth[result] = 1 + max((depth.get(x, 0) for x in operands), default=0)
        parts[result] = (operation,)
        terms = [x for x in operands if x in products and products[x].lanes == lanes]
        if kind in (ADD, SUB) and terms:
            product = max(terms, key=depth.__getitem__)
            del parts[product]
            if kind == ADD and operands[0] != product:
                operation = operation._replace(operands=operands[::-1])  # LLVM contracts the first of two products
            parts[result] = (products[product], operation)
        elif kind == MUL and uses[result] == 1 and not any(k in exported for k in defines):
            products[result] = operation
    return [_instruction(part, exported) for part in parts.values()]


def _instruction(operations: tuple[LaneOperation, ...], exported: Collection[int]) -> Instruction:
    inner = {operation.result for operation in operations[:-1]}
    reads = dict.fromkeys(x for operation in operations for x in operation.operands if x % 4 != CONSTANT)
    return Instruction(
        operations, tuple(x for x in reads if x not in inner), any(k in exported for k in operations[-1].defines)
    )


def schedule_instructions(
    instructions: Sequence[Instruction], registers: int, code_cache: int = 0
) -> list[Instruction]:  # fmt: skip
    """Schedule instructions by critical path, or by memory traffic.

    registers: number of registers for values. code_cache: bytes of the instruction cache for a kernel of one state, 0
    for batches. A kernel of one state that fits into the instruction cache is limited by its critical path. A larger
    kernel, and a kernel for batches, is limited by loads and stores.
    """
    number = {instruction.result: k for k, instruction in enumerate(instructions)}
    operands = [[number[x] for x in instruction.reads if x % 4 == LOCAL] for instruction in instructions]
    users: list[list[int]] = [[] for _ in operands]
    for k, xs in enumerate(operands):
        for x in xs:
            users[x].append(k)

    def ordered(order: Iterable[int]) -> list[Instruction]:
        return [instructions[k] for k in order]

    given = range(len(instructions))
    if code_cache:
        middle = _midpoints(instructions, operands, users)
        order = ordered(_bottom_up(operands, users, sorted(given, key=middle.__getitem__), registers))
        if (len(order) + memory_traffic(order, registers)) * INSTRUCTION_BYTES <= code_cache:
            return order
    roots = [k for k in given if not users[k]]
    bases: list[Sequence[int]] = [given, _depth_first(operands, roots), _depth_first(operands, roots[::-1])]
    orders: list[Sequence[int]] = [_bottom_up(operands, users, base, registers) for base in bases]
    if code_cache:
        orders += bases  # less parallelism, but sometimes less code
    return min(map(ordered, orders), key=lambda order: memory_traffic(order, registers))


def _midpoints(
    instructions: Sequence[Instruction], operands: list[list[int]], users: list[list[int]]
) -> list[int]:  # fmt: skip
    """Critical-path priority of each instruction [cycles]: earliest plus latest start, up to a common constant."""
    cycles = [LATENCY.get(x.operations[-1].kind, ADDITION) for x in instructions]
    earliest, to_end = [0] * len(cycles), list(cycles)
    for k, xs in enumerate(operands):
        earliest[k] = max((earliest[x] + cycles[x] for x in xs), default=0)
    for k in reversed(range(len(cycles))):
        to_end[k] += max((to_end[user] for user in users[k]), default=0)
    return [a - b for a, b in zip(earliest, to_end, strict=True)]


def _bottom_up(operands: list[list[int]], users: list[list[int]], base: Sequence[int], registers: int) -> list[int]:
    """List scheduling from the last instruction backwards.

    Each step takes, among the instructions whose users are all scheduled, the last one in the order `base`. If the live
    values fill the registers, it takes the instruction that adds the fewest live values instead.
    """
    n, n_live = len(operands), 0
    place = [0] * n
    for k, i in enumerate(base):
        place[i] = k
    pending = [len(x) for x in users]
    scheduled, live = [False] * n, [False] * n
    live_delta = [len(xs) - bool(users[i]) for i, xs in enumerate(operands)]
    ready: list[list[tuple[int, int]]] = [[] for _ in range(5)]  # heaps by live_delta + 1; may contain outdated entries

    def offer(i: int) -> None:
        heapq.heappush(ready[live_delta[i] + 1], (-place[i], i))

    for i in range(n):
        if not pending[i]:
            offer(i)
    order: list[int] = []
    while len(order) < n:
        heads = []
        for delta, heap in enumerate(ready, -1):
            while heap and (scheduled[heap[0][1]] or live_delta[heap[0][1]] != delta):
                heapq.heappop(heap)
            if heap:
                heads.append(heap[0])
        i = (min(heads) if n_live < registers else heads[0])[1]
        order.append(i)
        scheduled[i] = True
        n_live += live_delta[i]
        for x in operands[i]:
            pending[x] -= 1
            if not live[x]:
                live[x] = True
                for user in users[x]:
                    live_delta[user] -= 1
                    if not (pending[user] or scheduled[user]):
                        offer(user)
            if not pending[x]:
                offer(x)
    return order[::-1]


def _depth_first(operands: list[list[int]], roots: Sequence[int]) -> list[int]:
    """Depth-first order from the roots, the instructions without users.

    Operands precede their user, in descending order of their Sethi-Ullman number (1970): the registers that an
    expression needs if each result is used once.
    """
    need: list[int] = []
    for xs in operands:
        needs = sorted((need[x] for x in xs), reverse=True)
        need.append(max([1, *(x + k for k, x in enumerate(needs))]))
    done, order = [False] * len(operands), []
    stack = [(k, False) for k in reversed(roots)]
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


def memory_traffic(instructions: Sequence[Instruction], registers: int) -> int:
    """Number of loads and spill stores of instructions in execution order, without stores of exported results."""
    loads, stores = belady_spills(instructions, registers)
    return sum(map(len, loads)) + sum(x.result in stores and not x.writes for x in instructions)


def belady_spills(instructions: Sequence[Instruction], registers: int) -> tuple[list[list[int]], set[int]]:
    """(operands to load at each instruction, results to store). Spills the value with the latest next use.

    An instruction can read one operand from memory without a register for it. Operands from outside the segment are in
    memory. Belady 1966.
    """
    end = len(instructions)
    upcoming: dict[int, int] = {}
    uses = []  # next use of the result and of each operand, by instruction
    for t in reversed(range(end)):
        result, operands = instructions[t].result, instructions[t].reads
        uses.append((upcoming.get(result, end), [upcoming.get(x, end) for x in operands]))
        upcoming.update(dict.fromkeys(operands, t))
    loads: list[list[int]] = []
    results: set[int] = set()
    stores: set[int] = set()
    next_use: dict[int, int] = {}  # of the values in registers
    for instruction, (use_of_result, uses_of_operands) in zip(instructions, reversed(uses), strict=True):
        result, operands = instruction.result, instruction.reads
        missing = [x for x in operands if x not in next_use]
        loads.append(missing)
        results.add(result)
        next_use.update(zip(operands, uses_of_operands, strict=True))
        next_use[result] = use_of_result
        if missing:
            next_use[max(missing, key=next_use.__getitem__)] = end
        for x in (*operands, result):
            if next_use[x] == end:
                del next_use[x]
        while len(next_use) > registers:
            x = max(next_use, key=next_use.__getitem__)
            if x in results:
                stores.add(x)
            del next_use[x]
    return loads, stores
