"""Tables of the input and output spans that the driver of a kernel gathers and scatters."""

from __future__ import annotations

import numpy as np

from sysdyn.program.program import Program

# Shortest run of constant zeros that is written separately from its neighbouring outputs (chosen).
LEAST_GAP = 4


def input_spans(program: Program) -> np.ndarray:
    """(k, 5): structs Span (native/driver.h) of the inputs that the program reads.

    Unread inputs are neither copied nor checked.
    """
    spans, word = [], 2
    for part in program.inputs.slices.values():
        spans += [(word, a, b - a, part.start + a, 0) for a, b in _intervals(program.used_inputs[part])]
        word += 2
    return np.array(spans, dtype=np.int64).reshape(-1, 5)


def output_spans(program: Program) -> np.ndarray:
    """(k, 5): structs Span (native/driver.h) of all outputs. Spans of constant zeros come last."""
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
