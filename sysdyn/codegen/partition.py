"""Cut a program into segments, find those of equal shape, and give each value that crosses a cut a place in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sysdyn.program.opcodes import ANGULAR, OPERATIONS
from sysdyn.program.program import Program

# Most operations of a function, as compile time grows faster than linearly (chosen).
MAX_OPS = 1000
# Fewest operations of a piece that is called; shorter ones are cheaper inline (chosen).
MIN_SHARED = 24
# Fewest equal pieces that are computed side by side (chosen).
MIN_BESIDE = 3
# Fewest operations of pieces that are computed side by side (chosen).
MIN_PACKED = 24

# An operand of a segment is a result of its own, a constant, or a value from outside.
LOCAL, CONSTANT, EXTERNAL = 0, 1, 2


@dataclass(frozen=True)
class Shape:
    """The computation of a segment, with its constants and outside values as numbered parameters.

    kind: operation kinds; lhs, rhs: (operand kind, number) codes as number·4 + kind, −1 for none;
    exported: local numbers of results that others read; guards: (local number, constant numbers of its two
    thresholds).
    """

    kind: bytes
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    exported: tuple[int, ...]
    guards: tuple[tuple[int, int, int], ...]

    @property
    def angles(self) -> bool:
        """True if it is nothing but sines and cosines of values from outside."""
        return set(self.kind) <= set(ANGULAR) and all(code % 4 == EXTERNAL for code in self.lhs) and not self.guards


@dataclass
class Segment:
    """One call: a shape, the constants and the value numbers it reads, and the value numbers it leaves.

    beside: others of the same shape that are computed by the same call, each in a lane of its own.
    """

    shape: Shape
    constants: list[float]
    reads: list[int]
    writes: list[int]
    shared: bool = False
    beside: tuple[Segment, ...] = ()

    @property
    def lanes(self) -> tuple[Segment, ...]:
        return (self, *self.beside)


@dataclass
class Schedule:
    """segments in order; slot[value] = place in the workspace (−1: never in memory); n_slots places in all.

    Places 0 … n_inputs−1 hold the inputs, the next n_outputs the outputs. `copies` are outputs that are inputs or
    constants, or repeat another output: (place, value number).
    """

    segments: list[Segment]
    slot: np.ndarray
    n_slots: int
    copies: list[tuple[int, int]]


def schedule(program: Program, lanes: int = 1, most: int = MAX_OPS) -> Schedule:
    """Segments of a program and places of its values. lanes: most equal pieces, independent of one another, that are
    computed side by side. most: operations of a segment.
    """
    first = program.first_op
    bounds = _piece_bounds(program, most)
    exported = _exported(program, bounds)
    guards: dict[int, tuple[float, float]] = {}
    for g in program.guards:
        if g.value >= first:  # one value may be the pivot of several rows: the strictest limits count
            limit, weak = guards.get(g.value - first, (0.0, 0.0))
            guards[g.value - first] = max(limit, g.threshold), max(weak, g.weak)
    pieces = [_segment(program, a, b, exported, guards) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    packs = _packs(pieces, lanes)
    packed = {k for pack in packs.values() for k in pack}
    times = Counter(piece.shape for k, piece in enumerate(pieces) if k not in packed)
    angles = [p.shape.angles for p in pieces]
    shared = [
        k not in packed and times[p.shape] >= 3 and len(p.shape.kind) >= MIN_SHARED and not angles[k]
        for k, p in enumerate(pieces)
    ]
    merged = _merge(bounds, [shared[k] or angles[k] or k in packed for k in range(len(pieces))], most)
    if len(merged) - 1 < len(pieces):
        exported = _exported(program, merged)
    number = {a: k for k, a in enumerate(bounds[:-1])}
    segments = []
    for a, b in zip(merged[:-1], merged[1:], strict=True):
        k = number[a]
        if k in packed:
            if k in packs:
                pieces[k].beside = tuple(pieces[n] for n in packs[k][1:])
                segments.append(pieces[k])
            continue
        piece = pieces[k]
        if not shared[k]:
            piece = _segment(program, a, b, exported, guards)
        piece.shared = shared[k]
        segments.append(piece)
    slot, n_slots, copies = _places(program, segments)
    return Schedule(segments, slot, n_slots, copies)


def _packs(pieces: list[Segment], lanes: int) -> dict[int, list[int]]:
    """{first piece: pieces} that are computed side by side, at the place of the first.

    A piece joins others of its shape that come after all that it reads, with which most operands stay the same
    in all lanes.
    """
    given_up: set[int] = set()
    while True:
        made: dict[int, int] = {}  # value → the piece at whose place it is computed
        packs: dict[int, list[int]] = {}
        same: dict[int, set[int]] = {}  # numbers of the operands that are
        heads: dict[Shape, list[int]] = {}
        for k, piece in enumerate(pieces):
            at = k
            if lanes > 1 and k not in given_up and _may_be_packed(piece.shape):
                after = max((made[v] for v in piece.reads if v in made), default=-1)
                open_ = [h for h in heads.get(piece.shape, ()) if h > after and len(packs[h]) < lanes]
                kept = [{r for r in same[h] if piece.reads[r] == pieces[h].reads[r]} for h in open_]
                n = max(range(len(open_)), key=lambda n: len(kept[n]), default=-1)
                if n >= 0 and _worth_it(piece, len(kept[n])):
                    at = open_[n]
                    same[at] = kept[n]
                else:
                    same[k] = set(range(len(piece.reads)))
                    heads.setdefault(piece.shape, []).append(k)
                packs.setdefault(at, []).append(k)
            made.update(dict.fromkeys(piece.writes, at))
        poor = {k for pack in packs.values() if len(pack) < MIN_BESIDE for k in pack}
        if not poor:
            return packs
        given_up |= poor


def _worth_it(piece: Segment, same: int) -> bool:
    """True if there is enough to compute for the values moved to and from single lanes."""
    moved = len(piece.reads) - same + len(piece.writes)
    return len(piece.shape.kind) >= moved


def _may_be_packed(shape: Shape) -> bool:
    return len(shape.kind) >= MIN_PACKED and not shape.guards and not set(ANGULAR) & set(shape.kind)


def _piece_bounds(program: Program, most: int) -> list[int]:
    """Operation numbers at which pieces of at most `most` operations begin, and the end."""
    marks = [0, *program.cuts.tolist(), len(program)]
    bounds = [0]
    for a, b in zip(marks[:-1], marks[1:], strict=True):
        parts = -(-(b - a) // most)
        bounds.extend(a + (b - a) * k // parts for k in range(1, parts + 1))
    return bounds


def _merge(bounds: list[int], alone: list[bool], most: int) -> list[int]:
    """Drop cuts between neighbours that need not be alone, as long as the result has at most `most` operations."""
    merged, previous_alone = [bounds[0]], True
    for k, is_alone in enumerate(alone):
        a, b = bounds[k], bounds[k + 1]
        if not (k == 0 or is_alone or previous_alone or b - merged[-1] > most):
            pass  # goes on in the segment that began at merged[-1]
        elif a != merged[-1]:
            merged.append(a)
        previous_alone = is_alone
    if bounds[-1] != merged[-1]:
        merged.append(bounds[-1])
    return merged


def _exported(program: Program, bounds: list[int]) -> np.ndarray:
    """(n) bool: the result is read by another segment or is an output."""
    first, n = program.first_op, len(program)
    segment = np.zeros(n, dtype=np.int64)
    segment[np.asarray(bounds[1:-1], dtype=np.int64)] = 1
    segment = np.cumsum(segment)
    exported = np.zeros(first + n, dtype=bool)
    for operand in (program.lhs, program.rhs):
        outside = operand >= first
        crosses = outside.copy()
        crosses[outside] = segment[operand[outside] - first] != segment[outside]
        exported[operand[crosses]] = True
    exported[program.output_values] = True
    return exported[first:]


def _segment(program: Program, a: int, b: int, exported: np.ndarray, guards: dict[int, tuple[float, float]]) -> Segment:
    first, n_in = program.first_op, program.n_inputs
    start = first + a
    constants: dict[float, int] = {}
    reads: dict[int, int] = {}
    values = program.constants

    def code(value: int) -> int:
        if value >= start:
            return (value - start) * 4 + LOCAL
        if n_in <= value < first:
            return constants.setdefault(float(values[value - n_in]), len(constants)) * 4 + CONSTANT
        if value < 0:
            return -1
        return reads.setdefault(value, len(reads)) * 4 + EXTERNAL

    lhs, rhs = [], []
    operands = zip(program.kind[a:b].tolist(), program.lhs[a:b].tolist(), program.rhs[a:b].tolist(), strict=True)
    for kind, x, y in operands:
        if OPERATIONS[kind].commutes and n_in <= x < first:  # a constant comes second, whenever it was first used
            x, y = y, x
        lhs.append(code(x))
        rhs.append(code(y))
    local = np.flatnonzero(exported[a:b]).tolist()
    watched: list[tuple[int, int, int]] = []
    if guards:
        for k in range(a, b):
            if k in guards:
                limit, weak = (constants.setdefault(x, len(constants)) for x in guards[k])
                watched.append((k - a, limit, weak))
    shape = Shape(program.kind[a:b].tobytes(), tuple(lhs), tuple(rhs), tuple(local), tuple(watched))
    return Segment(shape, list(constants), list(reads), [start + k for k in local])


def _places(program: Program, segments: list[Segment]) -> tuple[np.ndarray, int, list[tuple[int, int]]]:
    """Linear scan over the segments: a place is free again after the last segment that reads it.

    Values that are in neighbouring lanes of a segment get neighbouring places.
    """
    n_in, first = program.n_inputs, program.first_op
    slot = np.full(first + len(program), -1, dtype=np.int64)
    slot[:n_in] = np.arange(n_in)
    copies = []
    for place, value in enumerate(program.output_values.tolist(), start=n_in):
        if value >= first and slot[value] < 0:
            slot[value] = place
        else:
            copies.append((place, value))
    last_read: dict[int, int] = {}
    for s, segment in enumerate(segments):
        for lane in segment.lanes:
            last_read.update(dict.fromkeys(lane.reads, s))
    together = _together(segments, slot, first)
    n_slots = n_in + program.n_outputs
    free: dict[int, list[int]] = {}  # first places of runs by length
    expiring: list[list[tuple[int, int]]] = [[] for _ in segments]
    for s, segment in enumerate(segments):
        for value in (v for lane in segment.lanes for v in lane.writes):
            if slot[value] < 0:
                run = together.get(value, (value,))
                size = _power_of_two(len(run))
                places = free.setdefault(size, [])
                if places:
                    start = places.pop()
                else:
                    start = -(-n_slots // size) * size
                    n_slots = start + size
                slot[list(run)] = np.arange(start, start + len(run))
                expiring[max(last_read[v] for v in run)].append((size, start))
        for size, start in expiring[s]:
            free[size].append(start)
    return slot, n_slots, copies


def _together(segments: list[Segment], slot: np.ndarray, first: int) -> dict[int, tuple[int, ...]]:
    """{value: the values with which it shares a run of places, one a lane}."""
    found: dict[int, tuple[int, ...]] = {}
    for segment in segments:
        if segment.beside:
            lanes = segment.lanes
            for values in zip(*([*lane.reads, *lane.writes] for lane in lanes), strict=True):
                fresh = all(v >= first and slot[v] < 0 and v not in found for v in values)
                if fresh and len(set(values)) == len(values):
                    found.update(dict.fromkeys(values, values))
    return found


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
