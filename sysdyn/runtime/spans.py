"""Tables of the input and output spans that the driver of a kernel gathers and scatters."""

from __future__ import annotations

import numpy as np

from sysdyn.program.program import Program

# Shortest run of constant zeros that is written separately from its neighbouring outputs (chosen).
LEAST_GAP = 4


def input_spans(program: Program) -> np.ndarray:
    """Runs of consecutive inputs that the driver copies to the workspace: (k, 5), a struct Span (native/driver.h) each.

    Columns: index of the address of the group in `words`, first index in the group, length, workspace slot, 0. Inputs
    that the program does not read are neither copied nor checked.
    """
    spans, word = [], 2
    for part in program.inputs.slices.values():
        spans += [(word, a, b - a, part.start + a, 0) for a, b in _intervals(program.used_inputs[part])]
        word += 2
    return np.array(spans, dtype=np.int64).reshape(-1, 5)


def output_spans(program: Program) -> np.ndarray:
    """Runs of consecutive outputs that the driver copies from the workspace: (k, 5), a struct Span each.

    Columns as for inputs; the last one is 1 for runs of constant zeros, which are written without a copy. They come
    last.
    """
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
    """(first index, index after the last) of each run of true values in a bool array."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in ends.reshape(-1, 2)]
