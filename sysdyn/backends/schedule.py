"""Cut a program into segments, find those of equal shape, and give each value that crosses a cut a place in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.expr import COS, SIN
from sysdyn.sparse.program import Program

MAX_OPS = 1000  # longest function: compile time grows faster than linearly beyond
MIN_SHARED = 24  # shorter pieces are cheaper inline than called

LOCAL, CONSTANT, EXTERNAL = 0, 1, 2  # operand kinds of a segment


@dataclass(frozen=True)
class Shape:
    """What a segment computes, with its constants and outside values as numbered parameters.

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
        """It is nothing but sines and cosines of what is read from outside."""
        return set(self.kind) <= {SIN, COS} and all(code % 4 == EXTERNAL for code in self.lhs) and not self.guards


@dataclass
class Segment:
    """One call: a shape, the constants and the value numbers it reads, and the value numbers it leaves."""

    shape: Shape
    constants: list[float]
    reads: list[int]
    writes: list[int]
    shared: bool = False


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


def schedule(program: Program) -> Schedule:
    first = program.first_op
    bounds = _piece_bounds(program)
    exported = _exported(program, bounds)
    guards: dict[int, tuple[float, float]] = {}
    for g in program.guards:
        if g.value >= first:  # one value may be the pivot of several rows: the strictest limits count
            limit, weak = guards.get(g.value - first, (0.0, 0.0))
            guards[g.value - first] = max(limit, g.threshold), max(weak, g.weak)
    pieces = [_segment(program, a, b, exported, guards) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    times: dict[Shape, int] = {}
    for piece in pieces:
        times[piece.shape] = times.get(piece.shape, 0) + 1
    angles = [p.shape.angles for p in pieces]
    shared = [
        times[p.shape] >= 3 and len(p.shape.kind) >= MIN_SHARED and not alone
        for p, alone in zip(pieces, angles, strict=True)
    ]
    merged = _merge(bounds, [a or b for a, b in zip(shared, angles, strict=True)])
    if len(merged) - 1 < len(pieces):
        exported = _exported(program, merged)
    by_start = {a: (p, s) for a, p, s in zip(bounds[:-1], pieces, shared, strict=True)}
    segments = []
    for a, b in zip(merged[:-1], merged[1:], strict=True):
        piece, is_shared = by_start[a]
        if not is_shared:
            piece = _segment(program, a, b, exported, guards)
        piece.shared = is_shared
        segments.append(piece)
    slot, n_slots, copies = _places(program, segments)
    return Schedule(segments, slot, n_slots, copies)


def _piece_bounds(program: Program) -> list[int]:
    """Operation numbers at which pieces begin, and the end; pieces of at most MAX_OPS."""
    marks = [0, *program.cuts.tolist(), len(program)]
    bounds = [0]
    for a, b in zip(marks[:-1], marks[1:], strict=True):
        parts = -(-(b - a) // MAX_OPS)
        bounds.extend(a + (b - a) * k // parts for k in range(1, parts + 1))
    return bounds


def _merge(bounds: list[int], alone: list[bool]) -> list[int]:
    """Drop cuts between neighbours that need not be alone, as long as the result has at most MAX_OPS."""
    merged, previous_alone = [bounds[0]], True
    for k, is_alone in enumerate(alone):
        a, b = bounds[k], bounds[k + 1]
        if not (k == 0 or is_alone or previous_alone or b - merged[-1] > MAX_OPS):
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
    exported[program.outputs] = True
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
    for x, y in zip(program.lhs[a:b].tolist(), program.rhs[a:b].tolist(), strict=True):
        lhs.append(code(x))
        rhs.append(code(y))
    local = np.flatnonzero(exported[a:b]).tolist()
    watched = []
    if guards:
        for k in range(a, b):
            if k in guards:
                watched.append((k - a, *(constants.setdefault(limit, len(constants)) for limit in guards[k])))
    shape = Shape(program.kind[a:b].tobytes(), tuple(lhs), tuple(rhs), tuple(local), tuple(watched))
    return Segment(shape, list(constants), list(reads), [start + k for k in local])


def _places(program: Program, segments: list[Segment]) -> tuple[np.ndarray, int, list[tuple[int, int]]]:
    """Linear scan over the segments: a place is free again after the last segment that reads it."""
    n_in, first = program.n_inputs, program.first_op
    slot = np.full(first + len(program), -1, dtype=np.int64)
    slot[:n_in] = np.arange(n_in)
    copies = []
    for place, value in enumerate(program.outputs.tolist(), start=n_in):
        if value >= first and slot[value] < 0:
            slot[value] = place
        else:
            copies.append((place, value))
    last_read: dict[int, int] = {}
    for s, segment in enumerate(segments):
        for value in segment.reads:
            last_read[value] = s
    n_slots = n_in + program.n_outputs
    free: list[int] = []
    expiring: list[list[int]] = [[] for _ in segments]
    for s, segment in enumerate(segments):
        for value in segment.writes:
            if slot[value] < 0:
                if free:
                    slot[value] = free.pop()
                else:
                    slot[value] = n_slots
                    n_slots += 1
                expiring[last_read[value]].append(int(slot[value]))
        free.extend(expiring[s])
    return slot, n_slots, copies
