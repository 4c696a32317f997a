"""Other orders of the operations of a program, with the same results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sysdyn.expr import COS, SIN
from sysdyn.sparse.program import Program


def reordered(program: Program, order: np.ndarray, cuts: np.ndarray) -> Program:
    """The program that does operation order[k] as its k-th. cuts: those of the new program."""
    first = program.first_op
    number = np.arange(-1, first + len(program))  # new number of value v at v + 1, so that −1 stays
    number[1 + first + order] = first + np.arange(len(program))

    def renumbered(values: np.ndarray) -> np.ndarray:
        return number[values + 1].astype(np.int32)

    return replace(
        program, kind=program.kind[order], lhs=renumbered(program.lhs[order]), rhs=renumbered(program.rhs[order]),
        outputs=renumbered(program.outputs), cuts=np.asarray(cuts, dtype=np.int32),
        guards=tuple(replace(g, value=int(number[g.value + 1])) for g in program.guards),
    )  # fmt: skip


def angles_first(program: Program) -> Program:
    """Sines and cosines before what does not lead to them, in pieces of their own.

    There a kernel of one state takes as many angles at a time as a register holds, and one of many states has its
    registers to itself in between.
    """
    first, n = program.first_op, len(program)
    is_angle = np.isin(program.kind, (SIN, COS))
    if not is_angle.any():
        return program
    operands = [
        [x for x in pair if x >= 0] for pair in zip((program.lhs - first).tolist(), (program.rhs - first).tolist())
    ]
    after = is_angle.tolist()  # is a sine or cosine, or needs one
    angle, feeds = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for k, xs in enumerate(operands):
        needs = any(after[x] for x in xs)
        angle[k] = after[k] and not needs
        after[k] = after[k] or needs
    for k in reversed(range(n)):
        if angle[k] or feeds[k]:
            feeds[operands[k]] = True
    rest = ~(feeds | angle)
    order = np.concatenate([np.flatnonzero(part) for part in (feeds, angle, rest)])
    begin = int(feeds.sum())
    end = begin + int(angle.sum())
    before = np.concatenate([[0], np.cumsum(rest)])  # how much of the rest comes before an operation
    cuts = np.unique([begin, end, *(end + before[program.cuts])])
    return reordered(program, order, cuts[(cuts > 0) & (cuts < n)])
