"""Partition of a program into segments, and places in a workspace for the values that cross from one to another.

Four passes over the pieces between the cuts of the program: cut them to length; pack equal pieces that are independent
of one another; outline templates that occur several times; merge the neighbours that are left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sysdyn.program.opcodes import ANGULAR, OPERATIONS
from sysdyn.program.program import Program

# Most operations of a segment: LLVM takes 22 s instead of 4.4 s if 42,000 are in one (measured).
MAX_OPS = 1000
# Fewest operations of a piece that is outlined, of one that is packed, and fewest pieces of one template (chosen).
MIN_OUTLINED_OPS, MIN_PACKED_OPS, MIN_REPEATS = 24, 8, 3
# Least share of operations in repeated pieces: below it, cuts cost more than they save (measured on legged robots).
MIN_REPEATED = 0.25

# An operand of a segment is one of its results, a constant, or a value from outside.
LOCAL, CONSTANT, EXTERNAL = 0, 1, 2

SegmentKind = Literal["inline", "outlined", "trig", "packed"]


@dataclass(frozen=True)
class SegmentTemplate:
    """The computation of a segment, with its constants and outside values as numbered parameters.

    kind: kinds of the operations; lhs, rhs: operands as codes, number·4 + LOCAL, CONSTANT or EXTERNAL, −1 for none;
    exported: numbers of the results that other segments read; guards: (number of the result, numbers of the constants
    that are its two thresholds).
    """

    kind: bytes
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    exported: tuple[int, ...]
    guards: tuple[tuple[int, int, int], ...]

    @property
    def is_trig(self) -> bool:
        """True for nothing but sines and cosines of values from outside."""
        return set(self.kind) <= set(ANGULAR) and all(code % 4 == EXTERNAL for code in self.lhs) and not self.guards


@dataclass
class Segment:
    """Operations start … end − 1: a template, its constants, the value numbers that it reads and that it writes.

    kind: "inline", a function of its own; "outlined", a function for all segments of its template; "trig", sines and
    cosines alone; "packed", one function for this segment and those in `packed_with`, a lane for each.
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
        """The segments that this one's function computes."""
        return (self, *self.packed_with)


@dataclass
class Partition:
    """segments in order; workspace_slot[value] = place in the workspace (−1: never in memory); n_slots places in all.

    Places 0 … n_inputs − 1 hold the inputs, the next n_outputs the outputs. output_copies: outputs that are inputs or
    constants, or repeat another output, as (place, value number).
    """

    segments: list[Segment]
    workspace_slot: np.ndarray
    n_slots: int
    output_copies: list[tuple[int, int]]


def partition(program: Program, lanes: int = 1, max_ops: int = MAX_OPS) -> Partition:
    """Segments of a program and places of its values.

    lanes: most equal pieces, independent of one another, that one segment computes. max_ops: of a segment.
    """
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
    """Numbers of the operations at which pieces of at most `max_ops` operations begin, and the end."""
    marks = [0, *program.cuts.tolist(), len(program)]
    bounds = [0]
    for a, b in zip(marks[:-1], marks[1:], strict=True):
        parts = -(-(b - a) // max_ops)
        bounds.extend(a + (b - a) * k // parts for k in range(1, parts + 1))
    return bounds


def _pack(pieces: list[Segment], lanes: int) -> set[int]:
    """Make pieces "packed", the first of each pack with the others; the starts of these others.

    A piece joins the pack of its template with the most operands in common, of those that come after all that it reads.
    Packs with too few pieces are dissolved, and the others formed without these pieces.
    """
    excluded: set[int] = set()
    while lanes > 1:
        head_of: dict[int, int] = {}  # value → the piece at whose place it is computed
        packs: dict[int, list[int]] = {}
        common: dict[int, set[int]] = {}  # numbers of the operands that all pieces of a pack share
        heads: dict[SegmentTemplate, list[int]] = {}
        for k, piece in enumerate(pieces):
            head = k
            if k not in excluded and _is_packable(piece.template):
                after = max((head_of[v] for v in piece.reads if v in head_of), default=-1)
                open_packs = [h for h in heads.get(piece.template, ()) if h > after and len(packs[h]) < lanes]
                shared = {h: {r for r in common[h] if piece.reads[r] == pieces[h].reads[r]} for h in open_packs}
                best = max(open_packs, key=lambda h: len(shared[h]), default=k)
                moved = len(piece.reads) - len(shared.get(best, ())) + len(piece.writes)  # to and from single lanes
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
    """Make pieces "trig" or "outlined"."""
    repeats = Counter(piece.template for piece in pieces if piece.kind == "inline")
    for piece in pieces:
        if piece.template.is_trig:
            piece.kind = "trig"
        elif repeats[piece.template] >= MIN_REPEATS and len(piece.template.kind) >= MIN_OUTLINED_OPS:
            piece.kind = "outlined" if piece.kind == "inline" else piece.kind


def _merge(pieces: list[Segment], max_ops: int) -> list[list[Segment]]:
    """Runs of neighbours that become one segment: inline pieces of at most `max_ops` operations together."""
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
    """{operation: its two thresholds} of guards, the strictest where an operation is the pivot of several rows."""
    thresholds: dict[int, tuple[float, float]] = {}
    for guard in program.guards:
        if guard.value >= program.first_op:
            limit, weak = thresholds.get(guard.value - program.first_op, (0.0, 0.0))
            thresholds[guard.value - program.first_op] = max(limit, guard.threshold), max(weak, guard.weak)
    return thresholds


def _exported(program: Program, bounds: list[int]) -> np.ndarray:
    """(n,) bool: another segment reads the result, or it is an output."""
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
        if OPERATIONS[kind].commutes and n_in <= x < first:  # a constant comes second, whenever it was first used
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
    """(place of each value, places in all, copies): a linear scan that frees a place after the last segment reads it.

    Values in neighbouring lanes of a segment get neighbouring places.
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
    free: dict[int, list[int]] = {}  # first places of runs by length
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
    """{value: the values with which it shares a run of places, one of each lane of a packed segment}."""
    runs: dict[int, tuple[int, ...]] = {}
    for segment in segments:
        if segment.packed_with:
            for values in zip(*([*lane.reads, *lane.writes] for lane in segment.instances), strict=True):
                fresh = all(v >= first and slot[v] < 0 and v not in runs for v in values)
                if fresh and len(set(values)) == len(values):
                    runs.update(dict.fromkeys(values, values))
    return runs
