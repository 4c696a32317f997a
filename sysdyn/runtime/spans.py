"""Which inputs and outputs of a program a kernel copies: the table of spans that its driver gathers and scatters."""

from __future__ import annotations

import numpy as np

from sysdyn.program.program import Program

# Distance, in numbers, from which two outputs are written separately, without the constant zeros in between (chosen).
LEAST_GAP = 4


def input_spans(program: Program) -> np.ndarray:
    """(k, 5): the numbers of the struct Span of native/driver.h, for the inputs that the program reads.

    The others are neither copied nor checked.
    """
    spans, word = [], 2
    for part in program.inputs.slices.values():
        spans += [(word, a, b - a, part.start + a, 0) for a, b in _intervals(program.used_inputs[part])]
        word += 2
    return np.array(spans, dtype=np.int64).reshape(-1, 5)


def output_spans(program: Program) -> np.ndarray:
    """(k, 5): the same for all outputs. Long runs of constant zeros have spans of their own, which come last."""
    spans, word = [], 2 + 2 * len(program.inputs)
    for part in program.outputs.slices.values():
        zero = program.zero_outputs[part].copy()
        for a, b in _intervals(zero):
            zero[a:b] = b - a >= LEAST_GAP
        for constant in (False, True):
            places = _intervals(zero == constant)
            spans += [(word, a, b - a, program.n_inputs + part.start + a, constant) for a, b in places]
        word += 2
    return np.array(sorted(spans, key=lambda span: span[4]), dtype=np.int64).reshape(-1, 5)


def _intervals(chosen: np.ndarray) -> list[tuple[int, int]]:
    """(begin, end) of the runs of true values."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in ends.reshape(-1, 2)]
