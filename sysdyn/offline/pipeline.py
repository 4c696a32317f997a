"""The offline phase: from a problem to a checked program with a cheap, fixed elimination order.

    problem → the first formulation that supports it: equations → structure → candidate orders → check → program

`sysdyn.compile` caches the result and compiles it to machine code.
"""

from __future__ import annotations

from dataclasses import replace

from sysdyn.errors import ProblemError
from sysdyn.offline.check import with_ranges
from sysdyn.offline.choice import Compiled
from sysdyn.offline.formulations import CANDIDATES
from sysdyn.offline.options import Options
from sysdyn.offline.single import check_single
from sysdyn.offline.stages import Progress, Stages
from sysdyn.problem import Problem
from sysdyn.program.graph import gc_paused
from sysdyn.runtime.real import DOUBLE


def build(problem: Problem, options: Options, progress: Progress | None = None) -> Compiled:
    """Compile the problem in the first formulation that supports it. Raises ProblemError if there is none."""
    stages = Stages(progress)
    with gc_paused():
        compiled = next((x for make in CANDIDATES if (x := make(problem, options, stages))), None)
    if compiled is None:
        raise ProblemError(
            "formulation='recursive' is for inverse, forward and hybrid dynamics, τ or q̈ of each degree of freedom and "
            "all external wrenches known, of robots whose joints all move inertia; with contacts and loops the outputs "
            "are tau, qdd, w and measurements of these and of a: use formulation='auto'"
        )
    program = with_ranges(compiled.program, problem.model, compiled.choice.report)
    compiled = replace(compiled, program=program)
    if options.kernel_real is not DOUBLE:
        with stages.stage(options.real):
            compiled = check_single(problem, compiled, options)
    return replace(compiled, stages=stages.timings)
