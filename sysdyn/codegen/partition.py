"""Partition of a program into segments, and workspace slots for values that several segments use.

Four passes over the pieces between the cuts of the program: split long pieces; pack independent pieces of the same
template into the lanes of one segment; outline templates that occur several times; merge the remaining neighbours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sysdyn.program.opcodes import ANGULAR, OPERATIONS
from sysdyn.program.program import Program

# Largest number of operations in a segment: LLVM takes 22 s instead of 4.4 s if 42,000 are in one (measured).
MAX_OPS = 1000
# Least operations in an outlined piece, in a packed piece, and least pieces per template (chosen).
MIN_OUTLINED_OPS, MIN_PACKED_OPS, MIN_REPEATS = 24, 8, 3
# Least fraction of operations in repeated pieces; below it, cuts cost more than they save (measured: legged robots).
MIN_REPEATED = 0.25

# Kinds of operands of a segment: a result of the segment, a constant, or a value from outside.
LOCAL, CONSTANT, EXTERNAL = 0, 1, 2

SegmentKind = Literal["inline", "outlined", "trig", "packed"]


@dataclass(frozen=True)
class SegmentTemplate:
    """The operations of a segment. Constants and values from outside (external values) are numbered parameters.

    Segments with equal templates can share code. kind: opcode of each operation. lhs, rhs: operands of each operation
    as 4 k + LOCAL (result of operation k), 4 k + CONSTANT (k-th constant) or 4 k + EXTERNAL (k-th external value); −1
    for no operand. exported: operations whose results are outputs or are read by other segments. guards: pivot checks,
    each as (operation that computes the pivot, index of the constant `Guard.threshold`, index of `Guard.weak`).
    """

    kind: bytes
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    exported: tuple[int, ...]
    guards: tuple[tuple[int, int, int], ...]

    @property
    def is_trig(self) -> bool:
        """True if all operations are sines and cosines of external values."""
        return set(self.kind) <= set(ANGULAR) and all(code % 4 == EXTERNAL for code in self.lhs) and not self.guards


@dataclass
class Segment:
    """Operations start … end − 1 of a program, as a template with its parameters.

    constants: constants of the template. reads, writes: value numbers of its external values and exported results.
    kind: "inline": the segment has a function of its own; "outlined": all segments of the template share a function;
    "trig": only sines and cosines; "packed": one function computes this segment and those of `packed_with`, one segment
    per lane.
    """

    start: int
    end: int
    template: SegmentTemplate
    constants: list[float]
    reads: list[int]
    writes: list[int]
    kind: SegmentKind = "inline"
    packed_with: tuple[Segment, ...] = ()

    @property
    def instances(self) -> tuple[Segment, ...]:
        """Segments that one function computes: this segment and those packed with it, one per lane."""
        return (self, *self.packed_with)


@dataclass
class Partition:
    """Segments in execution order, and the workspace slot of each value.

    workspace_slot: slot of each value; −1 for constants and for results that no other segment reads. n_slots: number of
    slots: inputs, then outputs, then intermediate values. output_copies: (slot, value number) of outputs that no
    segment writes: they are copies of inputs, constants or other outputs.
    """

    segments: list[Segment]
    workspace_slot: np.ndarray
    n_slots: int
    output_copies: list[tuple[int, int]]


def partition(program: Program, lanes: int = 1, max_ops: int = MAX_OPS) -> Partition:
    """Partition a program. lanes: most pieces per packed segment. max_ops: most operations per segment."""
    guards = _thresholds(program)
    bounds = _cut(program, max_ops)
    exported = _exported(program, bounds)
    pieces = [_segment(program, a, b, exported, guards) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    followers = _pack(pieces, lanes)
    _outline(pieces)
    repeated = sum(piece.end - piece.start for piece in pieces if piece.kind in ("packed", "outlined"))
    if repeated < MIN_REPEATED * len(program):
        followers = set()
        for piece in pieces:
            if piece.kind != "trig":
                piece.kind, piece.packed_with = "inline", ()
    runs = _merge(pieces, max_ops)
    exported = _exported(program, [run[0].start for run in runs] + bounds[-1:])
    segments = [
        _segment(program, run[0].start, run[-1].end, exported, guards) if run[0].kind == "inline" else run[0]
        for run in runs
        if run[0].start not in followers
    ]
    return Partition(segments, *_allocate(program, segments))


# ---- passes --------------------------------------------------------------------------------------------------------


def _cut(program: Program, max_ops: int) -> list[int]:
    """Cut the program into pieces of at most `max_ops` operations. Returns the bounds: piece k is bounds[k:k + 2]."""
    marks = [0, *program.cuts.tolist(), len(program)]
    bounds = [0]
    for a, b in zip(marks[:-1], marks[1:], strict=True):
        parts = -(-(b - a) // max_ops)
        bounds.extend(a + (b - a) * k // parts for k in range(1, parts + 1))
    return bounds


def _pack(pieces: list[Segment], lanes: int) -> set[int]:
    """Pack independent pieces of the same template into segments of at most `lanes` pieces.

    A pack is computed at the position of its first piece. A later piece can be added to it if the pack follows all
    operands of the piece; of several such packs, it is added to the one with the most shared operands. Pieces
    of packs with fewer than MIN_REPEATS pieces are excluded and the pass is repeated. Returns the first operation of
    each piece that moved to an earlier position: all but the first piece of each pack.
    """
    excluded: set[int] = set()
    while lanes > 1:
        head_of: dict[int, int] = {}  # value → index of the piece that computes it: the first one of a pack
        packs: dict[int, list[int]] = {}
        common: dict[int, set[int]] = {}  # indices of the operands that all pieces of a pack share
        heads: dict[SegmentTemplate, list[int]] = {}
        for k, piece in enumerate(pieces):
            head = k
            if k not in excluded and _is_packable(piece.template):
                after = max((head_of[v] for v in piece.reads if v in head_of), default=-1)
                open_packs = [h for h in heads.get(piece.template, ()) if h > after and len(packs[h]) < lanes]
                shared = {h: {r for r in common[h] if piece.reads[r] == pieces[h].reads[r]} for h in open_packs}
                best = max(open_packs, key=lambda h: len(shared[h]), default=k)
                moved = len(piece.reads) - len(shared.get(best, ())) + len(piece.writes)  # lane inserts and extracts
                if best != k and piece.end - piece.start >= moved:
                    head, common[best] = best, shared[best]
                else:
                    common[k] = set(range(len(piece.reads)))
                    heads.setdefault(piece.template, []).append(k)
                packs.setdefault(head, []).append(k)
            head_of.update(dict.fromkeys(piece.writes, head))
        too_small = {k for pack in packs.values() if len(pack) < MIN_REPEATS for k in pack}
        if not too_small:
            for pack in packs.values():
                for k in pack:
                    pieces[k].kind = "packed"
                pieces[pack[0]].packed_with = tuple(pieces[k] for k in pack[1:])
            return {pieces[k].start for pack in packs.values() for k in pack[1:]}
        excluded |= too_small
    return set()


def _is_packable(template: SegmentTemplate) -> bool:
    return len(template.kind) >= MIN_PACKED_OPS and not template.guards and not set(ANGULAR) & set(template.kind)


def _outline(pieces: list[Segment]) -> None:
    """Set the kind "trig" for pieces that only have sines and cosines, "outlined" for those of frequent templates."""
    repeats = Counter(piece.template for piece in pieces if piece.kind == "inline")
    for piece in pieces:
        if piece.template.is_trig:
            piece.kind = "trig"
        elif repeats[piece.template] >= MIN_REPEATS and len(piece.template.kind) >= MIN_OUTLINED_OPS:
            piece.kind = "outlined" if piece.kind == "inline" else piece.kind


def _merge(pieces: list[Segment], max_ops: int) -> list[list[Segment]]:
    """Merge neighbouring inline pieces up to `max_ops` operations; returns the pieces of each segment."""
    runs: list[list[Segment]] = []
    for piece in pieces:
        last = runs[-1] if runs else None
        if last and last[0].kind == piece.kind == "inline" and piece.end - last[0].start <= max_ops:
            last.append(piece)
        else:
            runs.append([piece])
    return runs


# ---- segments ------------------------------------------------------------------------------------------------------


def _thresholds(program: Program) -> dict[int, tuple[float, float]]:
    """{operation that computes a checked pivot: thresholds (`Guard.threshold`, `Guard.weak`)}; the largest of each."""
    thresholds: dict[int, tuple[float, float]] = {}
    for guard in program.guards:
        if guard.value >= program.first_op:
            limit, weak = thresholds.get(guard.value - program.first_op, (0.0, 0.0))
            thresholds[guard.value - program.first_op] = max(limit, guard.threshold), max(weak, guard.weak)
    return thresholds


def _exported(program: Program, bounds: list[int]) -> np.ndarray:
    """(n,) bool by operation: True if another segment reads its result, or if the result is an output."""
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
    constants: dict[float, int] = {}
    reads: dict[int, int] = {}

    def code(value: int) -> int:
        if value >= first + a:
            return (value - first - a) * 4 + LOCAL
        if n_in <= value < first:
            return constants.setdefault(float(program.constants[value - n_in]), len(constants)) * 4 + CONSTANT
        return -1 if value < 0 else reads.setdefault(value, len(reads)) * 4 + EXTERNAL

    lhs, rhs = [], []
    for kind, x, y in zip(*(part[a:b].tolist() for part in (program.kind, program.lhs, program.rhs)), strict=True):
        if OPERATIONS[kind].commutes and n_in <= x < first:  # canonical order: a constant is the second operand
            x, y = y, x
        lhs.append(code(x))
        rhs.append(code(y))
    local = np.flatnonzero(exported[a:b]).tolist()
    guarded: list[tuple[int, int, int]] = []
    for k in range(a, b) if guards else ():
        if k in guards:
            limit, weak = (constants.setdefault(x, len(constants)) for x in guards[k])
            guarded.append((k - a, limit, weak))
    template = SegmentTemplate(program.kind[a:b].tobytes(), tuple(lhs), tuple(rhs), tuple(local), tuple(guarded))
    return Segment(a, b, template, list(constants), list(reads), [first + a + k for k in local])


# ---- workspace -----------------------------------------------------------------------------------------------------


def _allocate(program: Program, segments: list[Segment]) -> tuple[np.ndarray, int, list[tuple[int, int]]]:
    """Allocate workspace slots by linear scan.

    A slot is free after the last segment that reads it. Values in adjacent lanes get adjacent slots. Returns (slot of
    each value, number of slots, output copies), see `Partition`.
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
    last_read = {v: s for s, segment in enumerate(segments) for lane in segment.instances for v in lane.reads}
    adjacent = _adjacent(segments, slot, first)
    n_slots = n_in + program.n_outputs
    free: dict[int, list[int]] = {}  # {length: first slots of free runs}
    expiring: list[list[tuple[int, int]]] = [[] for _ in segments]
    for s, segment in enumerate(segments):
        for value in (v for lane in segment.instances for v in lane.writes):
            if slot[value] < 0:
                run = adjacent.get(value, (value,))
                size = 1 << (len(run) - 1).bit_length()
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


def _adjacent(segments: list[Segment], slot: np.ndarray, first: int) -> dict[int, tuple[int, ...]]:
    """{value: run of values that get adjacent slots}: the same operand or result in all lanes of a packed segment."""
    runs: dict[int, tuple[int, ...]] = {}
    for segment in segments:
        if segment.packed_with:
            for values in zip(*([*lane.reads, *lane.writes] for lane in segment.instances), strict=True):
                fresh = all(v >= first and slot[v] < 0 and v not in runs for v in values)
                if fresh and len(set(values)) == len(values):
                    runs.update(dict.fromkeys(values, values))
    return runs
