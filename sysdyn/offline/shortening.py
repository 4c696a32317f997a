"""Eliminations with sums and products of their programs rewritten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.offline.choice import Compiled
from sysdyn.offline.elimination import solve_scope
from sysdyn.offline.formulations import ordered_system
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import SAFETY_SEED, sample_states
from sysdyn.offline.single import relative_errors
from sysdyn.offline.writing import differences
from sysdyn.passes import named_passes
from sysdyn.problem import Problem
from sysdyn.program.autodiff import to_graph
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.program import Program
from sysdyn.program.simplify import MAX_OPS

# The pass that this is.
REWRITING = "rewriting"
# Number of sampled states at which both programs are compared, and of those of the greatest differences that are solved
# with pivoting (chosen).
BOTH_RUN, BOTH_HELD = 256, 8
# Multiple of the errors of a program that the rewritten one may have (chosen).
LESS_EXACT = 10.0
# Difference of outputs that is rounding, as a share of the greatest entry (chosen).
AGREEING = 1e-11


def shortened(problem: Problem, compiled: Compiled, options: Options) -> Compiled:
    """The compiled problem with sums and products rewritten, if it is an elimination and this saves operations.

    Outputs have to stay as they are at sampled states, or as near to those of a refined pivoted solve but for a factor
    LESS_EXACT. Programs with a step of refinement are left alone: the rest of a residual is rounding.
    """
    choice, program = compiled.choice, compiled.program
    if REWRITING not in options.passes or choice.is_recursion or choice.refined or len(program) > MAX_OPS:
        return compiled
    own = to_graph(program, Graph(SHARING))
    shorter = own.to_program({}, own.outputs, program.ranges)
    if shorter.flops.total >= program.flops.total or not _as_exact(problem, program, shorter, options):
        return compiled
    system = ordered_system(problem, options, choice)
    choice = replace(
        choice, end_to_end=shorter.flops, passes=named_passes((*choice.passes, REWRITING)),
        solve=choice.solve and solve_scope(system, choice, options.outputs, rewriting=True),
    )  # fmt: skip
    considered = (*compiled.considered, (f"{choice.ordering}, rewritten", f"{shorter.flops.total} operations"))
    return replace(compiled, choice=choice, program=shorter, considered=considered)


def _as_exact(problem: Problem, program: Program, other: Program, options: Options) -> bool:
    """True if the other program is as exact as this one at sampled states at which no guard is met."""
    inputs = {x: y.reshape(BOTH_RUN, -1) for x, y in sample_states(problem, BOTH_RUN, SAFETY_SEED, ranges=True).items()}
    weak = np.array([guard.weak for guard in program.guards])
    with np.errstate(all="ignore"):
        firm = (np.abs(interpreter.guarded(program, inputs)) >= weak).all(axis=1) & np.ones(BOTH_RUN, dtype=bool)
        inputs = {name: x[firm] for name, x in inputs.items()}
        if not firm.any():
            return False
        off = relative_errors(*(interpreter.run_groups(x, inputs) for x in (program, other)))
    if not np.isfinite(off).all():
        return False
    worst = np.argsort(off)[-BOTH_HELD:]
    if off[worst].max(initial=0.0) <= AGREEING:
        return True
    inputs = {name: x[worst] for name, x in inputs.items()}
    before, after = (differences(problem, x, options.outputs, inputs)[0] for x in (program, other))
    return after <= LESS_EXACT * max(before, AGREEING)
