"""The program of an accepted elimination order; its outputs are verified against the paper's own system."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sysdyn.equations.system import System
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.measurement import Measurement, Output, output_name
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.check import relative_difference, relative_differences
from sysdyn.offline.choice import Choice
from sysdyn.offline.elimination import Elimination, solve_scope
from sysdyn.offline.options import Options
from sysdyn.offline.pivoted_solves import reference
from sysdyn.offline.report import PIVOTED_RATIO
from sysdyn.offline.sampling import PASSES_SEED, is_singular, sample_states
from sysdyn.passes import PAPER
from sysdyn.problem import Problem
from sysdyn.program.program import Program
from sysdyn.runtime.native_calls import twice

# Number of states at which passes are verified (chosen).
VERIFIED = 16
# Difference below which passes leave an output unchanged, relative to the greatest entry of its quantity (chosen).
UNCHANGED = 1e-9


def written(
    problem: Problem, system: System, elimination: Elimination, choice: Choice, options: Options
) -> tuple[Choice, Program]:
    """(choice with its cost in the *solve* scope, program); the fast level does not count that scope.

    Raises NoSafeOrdering if passes change an output.
    """
    outputs = options.outputs
    if options.level != "fast":
        choice = replace(choice, solve=solve_scope(system, choice, outputs))
    program = elimination.program(outputs)
    if not set(system.passes) <= set(PAPER):
        _require_unchanged(problem, program, outputs, system.passes)
    return choice, program


def _require_unchanged(problem: Problem, program: Program, outputs: Sequence[Output], passes: Sequence[str]) -> None:
    """Raise NoSafeOrdering if outputs differ from the solution of the paper's own system at sampled states.

    Near singular states are excluded. If all states are near singular, the tolerance does not depend on the error of
    the plain pivoted solve. The program runs in double-double arithmetic, because its rounding errors are checked with
    its order.
    """
    inputs = sample_states(problem, VERIFIED, PASSES_SEED)
    regular = ~is_singular(problem.system(outputs=_with_measured(outputs)), inputs)
    if regular.any():
        inputs = {name: x[regular] for name, x in inputs.items()}
    changed, limit = differences(problem, program, outputs, inputs)
    if not regular.any():
        limit = 0.0  # plain pivoting loses all digits there
    if not (math.isfinite(changed) and changed <= max(UNCHANGED, PIVOTED_RATIO * limit)):
        names = ", ".join(map(output_name, outputs))
        raise NoSafeOrdering(f"{', '.join(passes)} change {names} by {changed:.1e}: leave out some of these passes")


def _with_measured(outputs: Sequence[Output]) -> tuple[Output, ...]:
    return *QUANTITIES, *(x for x in outputs if isinstance(x, Measurement))


def differences(
    problem: Problem, program: Program, outputs: Sequence[Output], inputs: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """Greatest relative differences of outputs from a refined pivoted solve of the paper's own system.

    Returns (difference of the program, difference of a plain pivoted solve), over the states of `inputs`.
    """
    measured = [x for x in outputs if isinstance(x, Measurement)]
    system, inputs = problem.system(outputs=_with_measured(outputs)), dict(inputs)
    outputs_double_double = _in_double_double(program, inputs)
    with np.errstate(all="ignore"):
        plain, refined, _ = reference(system, inputs)
    d = refined.copy()
    for name in (x for x in outputs if isinstance(x, str)):
        d[:, system.layout.quantity_columns(name)] = outputs_double_double[name]
    changed, limit = (float(relative_differences(system, x, refined).max()) for x in (d, plain))
    expected, usual = (system.output_values(inputs, x) for x in (refined, plain))
    for m in measured:
        y, terms = expected[m.name]
        size = terms.max(axis=1)
        changed = max(changed, float(relative_difference(outputs_double_double[m.name], y, size).max()))
        limit = max(limit, float(relative_difference(usual[m.name][0], y, size).max()))
    return changed, limit


def _in_double_double(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by group (N, size) for inputs by group (N, size), computed in double-double arithmetic."""
    rows = np.concatenate([np.asarray(inputs[name]).reshape(len(inputs["q"]), -1) for name in program.inputs], axis=1)
    values = twice(program, rows, program.output_values).high
    return {name: values[:, part] for name, part in program.outputs.slices.items()}
