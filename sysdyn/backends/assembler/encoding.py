"""Instructions of x86-64 on vector registers, in the shorter of two encodings, VEX and EVEX (Intel SDM 2, 2.3 and 2.7).

Code is short where memory is within the reach of one byte of a pointer: of ±128 bytes, or of ±128 operands with EVEX.
"""

from __future__ import annotations

from typing import NamedTuple

# General registers by number; the first two hold the arguments of a function.
RDI, RSI = 7, 6
# The others that a function may change.
FREE = (0, 1, 2, 8, 9, 10, 11)
# Pointers are moved by steps of so many bytes, the most for which the instruction is short.
STEP = 128
RETURN = b"\xc3"
# Clears the upper parts of the registers, as code of narrower ones expects.
CLEAR = b"\xc5\xf8\x77"

# The opcodes of sums, differences, products, quotients and roots, and of loads and stores.
ADD, MUL, SUB, DIV, SQRT, LOAD, STORE = 0x58, 0x59, 0x5C, 0x5E, 0x51, 0x10, 0x11
# A copy of a register, whatever its type.
COPY = 0x28
# Of two values in a register: both of one, the second of one; a load and a store of the second one.
TWICE, LOW, HIGH, LOAD_HIGH, STORE_HIGH = 0x12, 0x14, 0x15, 0x16, 0x17
# Bit by bit: and, not … and, or.
AND, AND_NOT, OR = 0x54, 0x55, 0x56
# The last digit of the opcodes of a·b + c, a·b − c and c − a·b; the first one says which operand is replaced.
FUSED = {"+": 0x8, "-": 0xA, "~": 0xC}
# d = d·m + v, d = v·d + m, d = v·m + d.
FORM_132, FORM_213, FORM_231 = 0x90, 0xA0, 0xB0


class Memory(NamedTuple):
    """An operand at `offset` bytes from a general register; the same for all lanes where `broadcast`."""

    base: int
    offset: int
    broadcast: bool = False


class Encoder:
    """Instructions for registers of `width` doubles, 1, 2, 4 or 8; evex: there are 32 of them, else 16."""

    def __init__(self, width: int, evex: bool):
        self.width, self.evex = width, evex
        self.registers = 32 if evex else 16
        self.bytes = 8 * width

    def arithmetic(self, opcode: int, to: int, first: int, second: int | Memory) -> bytes:
        """to = first ∘ second. A root has one operand, the second."""
        if opcode == SQRT and self.width > 1:
            first = 0
        return self._vector(1, 3 if self.width == 1 else 1, opcode, to, first, second)

    def bitwise(self, opcode: int, to: int, first: int, second: int) -> bytes:
        return self._vector(1, 1, opcode, to, first, second)

    def fused(self, form: int, kind: str, to: int, second: int, third: int | Memory) -> bytes:
        return self._vector(2, 1, (form | FUSED[kind]) + (self.width == 1), to, second, third)

    def load(self, to: int, what: Memory) -> bytes:
        if what.broadcast:
            return self._vector(2, 1, 0x19, to, 0, what)
        return self._vector(1, 3 if self.width == 1 else 1, LOAD, to, 0, what)

    def store(self, what: int, to: Memory) -> bytes:
        return self._vector(1, 3 if self.width == 1 else 1, STORE, what, 0, to)

    def copy(self, to: int, what: int) -> bytes:
        return self._vector(1, 0, COPY, to, 0, what)

    def twice(self, to: int, what: int | Memory) -> bytes:
        return self._vector(1, 3, TWICE, to, 0, what)

    def low(self, to: int, first: int, second: int) -> bytes:
        """The first values of two registers."""
        return self._vector(1, 1, LOW, to, first, second)

    def high(self, to: int, what: int) -> bytes:
        """The second value of a register, twice."""
        return self._vector(1, 1, HIGH, to, what, what)

    def load_high(self, to: int, first: int, second: Memory) -> bytes:
        """The first value of a register, and one in memory."""
        return self._vector(1, 1, LOAD_HIGH, to, first, second)

    def store_high(self, what: int, to: Memory) -> bytes:
        return self._vector(1, 1, STORE_HIGH, what, 0, to)

    @staticmethod
    def pointer(to: int, base: int, offset: int) -> bytes:
        """to = base + offset."""
        prefix = 0x48 | to >> 3 << 2 | base >> 3
        return bytes([prefix, 0x8D, 0x80 | (to & 7) << 3 | base & 7]) + offset.to_bytes(4, "little", signed=True)

    @staticmethod
    def forward(pointer: int) -> bytes:
        """pointer += STEP, as −= −STEP, which needs one byte."""
        return bytes([0x48 | pointer >> 3, 0x83, 0xE8 | pointer & 7, -STEP & 0xFF])

    def _vector(self, table: int, prefix: int, opcode: int, to: int, first: int, second: int | Memory) -> bytes:
        """The instruction of an opcode table and prefix, with the registers that it names reg, vvvv and rm."""
        high = max(to, first, second if isinstance(second, int) else 0) > 15
        if not (high or self.width == 8):
            code = self._vex(table, prefix, opcode, to, first, second)
            if len(code) <= 7 or not self.evex:
                return code
            return min(code, self._evex(table, prefix, opcode, to, first, second), key=len)
        return self._evex(table, prefix, opcode, to, first, second)

    def _vex(self, table: int, prefix: int, opcode: int, to: int, first: int, second: int | Memory) -> bytes:
        if isinstance(second, int):
            b, operand = second >> 3, bytes([0xC0 | (to & 7) << 3 | second & 7])
        else:
            b, operand = second.base >> 3, _operand(to, second, 1)
        last = (~first & 15) << 3 | (self.width > 2) << 2 | prefix
        if table == 1 and not b:
            return bytes([0xC5, (~to >> 3 & 1) << 7 | last, opcode]) + operand
        second_byte = (~to >> 3 & 1) << 7 | 0x40 | (b ^ 1) << 5 | table
        return bytes([0xC4, second_byte, (table == 2 and opcode != 0x19) << 7 | last, opcode]) + operand

    def _evex(self, table: int, prefix: int, opcode: int, to: int, first: int, second: int | Memory) -> bytes:
        broadcast, x = False, 0
        if isinstance(second, int):
            b, x, operand = second >> 3 & 1, second >> 4, bytes([0xC0 | (to & 7) << 3 | second & 7])
        else:
            broadcast = second.broadcast and opcode != 0x19
            narrow = second.broadcast or opcode in (TWICE, LOAD_HIGH, STORE_HIGH)
            scale = 8 if narrow else self.bytes
            b, operand = second.base >> 3, _operand(to, second, scale)
        one = (~to >> 3 & 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (~to >> 4 & 1) << 4 | table
        two = (prefix != 0) << 7 | (~first & 15) << 3 | 4 | prefix
        three = {1: 0, 2: 0, 4: 0x20, 8: 0x40}[self.width] | broadcast << 4 | (~first >> 4 & 1) << 3
        return bytes([0x62, one, two, three, opcode]) + operand


def _operand(reg: int, memory: Memory, scale: int) -> bytes:
    """The bytes of an operand in memory; an offset that is a small multiple of `scale` takes one."""
    base, offset = memory.base & 7, memory.offset
    many, rest = divmod(offset, scale)
    if rest or not -128 <= many <= 127:
        return bytes([0x80 | (reg & 7) << 3 | base]) + offset.to_bytes(4, "little", signed=True)
    if offset == 0 and base != 5:
        return bytes([(reg & 7) << 3 | base])
    return bytes([0x40 | (reg & 7) << 3 | base, many & 0xFF])
