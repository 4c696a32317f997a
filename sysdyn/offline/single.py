"""Check of a program in single precision: its error compared with the effect of inputs rounded to single precision.

Programs are chosen and checked in double precision. At a sampled state let f be the result in double precision, f₃₂ the
result in single precision, and f' the result in double precision for inputs perturbed by single rounding. The loss

    max |f₃₂ − f| / (max |f' − f| + ε max |f|),   ε the distance of 1 from the next single number,

compares the error with the unavoidable one: it is about 1 if the program is backward stable, whatever the condition
number of the state. The interpreter computes f₃₂, so that the check has the same result on every processor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.problem_system import assemble
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.problem import Problem
from sysdyn.offline.check import SampledStates, StateArrays, relative_difference, with_ranges
from sysdyn.offline.options import Options
from sysdyn.offline.report import GREATEST_LOSS, Compiled
from sysdyn.offline.sampling import NEAR
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE

# Random perturbations of the inputs; the greatest effect counts, because a single one may hardly change the results.
DRAWS = 4
# Errors are relative to at least this share of the typical size of a quantity (units differ).
SMALL_SHARE = 1e-3


def check_single(problem: Problem, compiled: Compiled, options: Options) -> Compiled:
    """Check a compiled problem in the precision of `options.real`; add errors to its report, and adapt its ranges.

    Raises NoSafeOrdering if no state can be compared.
    """
    program, real, report = compiled.program, options.kernel_real, compiled.choice.report
    states = SampledStates.of(assemble(problem), external_wrenches=options.external_wrenches)
    inputs = {x: y.reshape(states.n, -1) for x, y in states.inputs.items()}
    with np.errstate(all="ignore"):
        exact, single = (interpreter.run_groups(program, inputs, real=x) for x in (DOUBLE, real))
        sizes = np.abs(interpreter.guarded(program, inputs))
        loss = _losses(program, inputs, exact, single, real.rounding)
        error = np.max([relative_difference(single[x], y, vanishing=SMALL_SHARE) for x, y in exact.items()], axis=0)
    regular = np.isfinite(error) & (sizes >= [guard.weak for guard in program.guards]).all(axis=1)
    regular &= states.lengths <= report.verified_range
    near = states.lengths <= NEAR
    if (loss[regular & ~near] > GREATEST_LOSS).any():
        report = replace(report, verified_range=NEAR)
        regular &= near
    if not regular.any():
        raise NoSafeOrdering(
            f"single precision fails at all of {states.n} sampled states: at {int((~np.isfinite(error)).sum())} "
            "results are not finite, at the others pivots are too small. Choose units in which inertias and lengths "
            "are near 1, or leave real= out"
        )
    report = replace(
        report, single_loss=float(loss[regular].max()), single_error=float(error[regular].max()),
        single_median=float(np.median(error[regular])),
    )  # fmt: skip
    choice = replace(compiled.choice, stability=report)
    return replace(compiled, program=with_ranges(program, problem.model, report), choice=choice)


def _losses(
    program: Program, inputs: StateArrays, exact: StateArrays, single: StateArrays, rounding: float
) -> np.ndarray:
    """(n,): the loss in single precision (see the module), greatest over output groups, at each state."""
    rng, loss = np.random.default_rng(0), np.zeros(len(inputs["q"]))
    perturbed = [
        interpreter.run_groups(
            program, {x: y * (1.0 + 0.5 * rounding * rng.choice((-1.0, 1.0), y.shape)) for x, y in inputs.items()}
        )
        for _ in range(DRAWS)
    ]
    for name, x in exact.items():
        if x.shape[1]:
            effect = np.max([np.abs(y[name] - x).max(axis=1) for y in perturbed], axis=0)
            effect += rounding * np.abs(x).max(axis=1)
            loss = np.maximum(loss, relative_difference(single[name], x, effect, 0.0))
    return loss
