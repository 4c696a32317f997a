"""Run a program in double-double arithmetic at states where rounding errors of doubles decide the results."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sysdyn.program.program import Program
from sysdyn.runtime import native_calls
from sysdyn.sparse.double_double import DoubleDouble


def run_double_double(
    program: Program, inputs: Mapping[str, np.ndarray], constants: np.ndarray | None = None
) -> dict[str, DoubleDouble]:
    """Outputs {group: (size,)} for inputs {group: (size,)}. constants: used in place of the program's constants."""
    row = np.concatenate([np.ravel(inputs[name]) for name in program.inputs])[None]
    high, low = native_calls.twice(program, row, program.output_values, constants)
    return {name: DoubleDouble(high[0, part], low[0, part]) for name, part in program.outputs.slices.items()}


def perturb_one_ulp(constants: np.ndarray) -> np.ndarray:
    """Perturb the non-integer constants by one ulp, alternately up and down, to measure the effect of their rounding.

    An ulp is twice the largest rounding error. Integers are exact and remain unchanged.
    """
    direction = np.where(np.arange(len(constants)) % 2, math.inf, -math.inf)
    return np.where(constants == np.round(constants), constants, np.nextafter(constants, direction))
