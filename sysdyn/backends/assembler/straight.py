"""Machine code of a segment: the shortest that is found, with pointers that reach its memory by one byte."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sysdyn.backends.assembler import encoding
from sysdyn.backends.assembler.allocation import Allocation, Step
from sysdyn.backends.assembler.encoding import Encoder, Memory
from sysdyn.backends.assembler.fusion import KINDS, fused
from sysdyn.backends.assembler.pairs import Constant, Operations, paired, single
from sysdyn.backends.schedule import EXTERNAL, Segment, Shape
from sysdyn.program.operations import COPYSIGN, NEG

# In longer segments no twins are looked for, as that takes long.
LARGEST = 20_000


def assembles(shape: Shape) -> bool:
    """Whether there are instructions for all that a segment of this shape computes."""
    return set(shape.kind) <= {*KINDS, NEG, COPYSIGN}


class Straight(NamedTuple):
    """code: of a function (workspace, constants). spilled: places of the workspace that it needs for itself."""

    code: bytes
    constants: list[float]
    spilled: int


def straight(
    segment: Segment, reads: Sequence[int], writes: Sequence[int], guards: Sequence[int], free: int, encoder: Encoder,
    twins: bool = True,
) -> Straight:  # fmt: skip
    """Code of a segment without sines and cosines: of one state the shorter one with twins side by side or each alone.

    reads, writes, guards: places in the workspace of values from outside, of results, and of values that are watched.
    free: the first place that it may use for itself. twins: they are looked for.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for k, place in (
        *zip(segment.shape.exported, writes, strict=True),
        *zip((k for k, *_ in segment.shape.guards), guards, strict=True),
    ):
        places[k].append(place)
    ways = [single(segment)]
    if twins and encoder.width == 1 and len(segment.shape.kind) <= LARGEST and (both := paired(segment)):
        ways.append(both)
    return min((_made(way, reads, places, free, encoder) for way in ways), key=lambda x: len(x.code))


def _made(
    what: Operations, reads: Sequence[int], places: dict[int, list[int]], free: int, encoder: Encoder
) -> Straight:  # fmt: skip
    nodes, constants = fused(what)
    allocation = Allocation(nodes, free, encoder.registers)
    allocation.memory.update((k * 4 + EXTERNAL, place) for k, place in enumerate(reads))
    for value, lanes in what.kept.items():
        allocation.stores[value] = [(lane, place) for lane, k in enumerate(lanes) for place in places.get(k, ())]
    allocation.run()
    code, table = _encoded(allocation.steps, constants, encoder)
    return Straight(code, table, allocation.end - free)


# ---- bytes ---------------------------------------------------------------------------------------------------------


def _encoded(steps: list[Step], constants: Sequence[Constant], encoder: Encoder) -> tuple[bytes, list[float]]:
    """(code, constants in the order in which it reads them)."""
    windows, table = _Windows(steps, encoder), _Table(encoder)
    code = [windows.begin(), table.begin()]
    encoders = {1: encoder, 2: Encoder(2, encoder.evex)}
    for name, lanes, arguments, place, constant in steps:
        memory: tuple[Memory, ...] = ()
        if constant is not None:
            move, there = table.at(constants[constant // 4])
            code.append(move)
            memory = (there,)
        elif place is not None:
            memory = (windows.at(place),)
        code.append(getattr(encoders[lanes], name)(*arguments, *memory))
    if encoder.width > 1:
        code.append(encoding.CLEAR)
    code.append(encoding.RETURN)
    return b"".join(code), table.values


class _Windows:
    """Pointers into the workspace: each reaches the places around it, those that are used most."""

    def __init__(self, steps: list[Step], encoder: Encoder):
        self._bytes = encoder.bytes
        self._size = 256 if encoder.width == 8 else 256 // encoder.bytes  # places that one byte of offset reaches
        used = Counter(step.place // self._size for step in steps if step.place is not None)
        registers = (encoding.RDI, *encoding.FREE)
        self._pointer = {block: register for (block, _), register in zip(used.most_common(), registers, strict=False)}

    def _middle(self, block: int) -> int:
        return (block * self._size + self._size // 2) * self._bytes

    def begin(self) -> bytes:
        """The pointers from the one to the workspace, which changes last."""
        return b"".join(
            Encoder.pointer(register, encoding.RDI, self._middle(block))
            for block, register in reversed(self._pointer.items())
        )

    def at(self, place: int) -> Memory:
        block = place // self._size
        if block not in self._pointer:
            block = min(self._pointer, key=lambda x: abs(x - block))
        return Memory(self._pointer[block], place * self._bytes - self._middle(block))


class _Table:
    """A table of constants in the order of their use, and a pointer that moves along it."""

    def __init__(self, encoder: Encoder):
        self.values: list[float] = []
        self._copies = 1 if encoder.evex else encoder.width
        self._broadcast = encoder.evex and encoder.width > 1
        # broadcast operands are 8 bytes, which EVEX scales offsets by
        self._reach = 1024 if self._broadcast else 128
        self._pointer = self._reach
        self._place: dict[bytes, int] = {}

    def begin(self) -> bytes:
        return Encoder.pointer(encoding.RSI, encoding.RSI, self._reach)

    def at(self, value: Constant) -> tuple[bytes, Memory]:
        """(moves of the pointer, the operand); what the pointer has passed is put down again."""
        numbers = list(value) if isinstance(value, tuple) else [value] * self._copies
        key = struct.pack(f"<{len(numbers)}d", *numbers)
        if self._place.get(key, -1) < self._pointer - self._reach:
            self._place[key] = 8 * len(self.values)
            self.values += numbers
        place, moves = self._place[key], 0
        while place >= self._pointer + self._reach:
            self._pointer += encoding.STEP
            moves += 1
        return Encoder.forward(encoding.RSI) * moves, Memory(encoding.RSI, place - self._pointer, self._broadcast)
