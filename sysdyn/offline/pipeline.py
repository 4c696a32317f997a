"""The offline phase: from a problem to a program with a fixed elimination order, cheap by exact count and judged safe.

    problem → the first formulation that is for it: equations → structure → candidate orders → judge → program
            → a longer search, if there is time for one

`sysdyn.compile` keeps the result in the cache and makes machine code of it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from sysdyn.errors import NoSafeOrdering, ProblemError
from sysdyn.offline.accepted import ORDER_SAMPLES
from sysdyn.offline.choice import Compiled
from sysdyn.offline.formulations import CANDIDATES, eliminated_system
from sysdyn.offline.options import Options
from sysdyn.offline.orders import streams
from sysdyn.offline.safety import ranged
from sysdyn.offline.sampling import order_samples
from sysdyn.offline.search import Search
from sysdyn.offline.shortening import shortened
from sysdyn.offline.single import judged_single
from sysdyn.offline.stages import Progress, Stages
from sysdyn.offline.writing import written
from sysdyn.problem import Problem
from sysdyn.program.graph import gc_paused
from sysdyn.runtime.real import DOUBLE


def build(problem: Problem, options: Options, progress: Progress | None = None) -> Compiled:
    """The problem in the first formulation that is for it, or in a cheaper order that a longer search finds."""
    stages = Stages(options.budget.seconds, progress)
    # a long search leaves more behind than there is memory for
    with gc_paused() if options.budget.seconds is None else contextlib.nullcontext():
        compiled = first_formulation(problem, options, stages)
        if stages.left():
            compiled = searched(problem, options, compiled, stages)
    if options.budget.effort > 1.0:
        with stages.stage("rewriting"):
            compiled = shortened(problem, compiled, options)
    program = ranged(compiled.program, problem.model, compiled.choice.judged)
    compiled = replace(compiled, program=program)
    if options.numbers is not DOUBLE:
        with stages.stage(options.real):
            compiled = judged_single(problem, compiled, options)
    return replace(compiled, stages=stages.spent)


def first_formulation(problem: Problem, options: Options, stages: Stages) -> Compiled:
    """The problem in the first formulation that is for it and can be built. Raises ProblemError if there is none."""
    for candidate in CANDIDATES:
        if candidate.accepts(problem, options) and (compiled := candidate.build(problem, options, stages)):
            return compiled
    raise ProblemError(
        "formulation='recursive' is for inverse, forward and hybrid dynamics, τ or q̈ of each degree of freedom and all "
        "external wrenches known, of robots whose joints all move inertia; with contacts and loops the outputs are "
        "tau, qdd, w and measurements of these and of a: use formulation='auto'"
    )


def searched(problem: Problem, options: Options, compiled: Compiled, stages: Stages) -> Compiled:
    """The problem in the cheapest order found in the time that is left. A triangular order has nothing to save."""
    began, choice, outputs = time.perf_counter(), compiled.choice, options.outputs
    if choice.triangular or choice.is_recursion:
        return compiled
    with stages.stage("search"):
        system = eliminated_system(problem, options, choice.passes)
        sampled = order_samples(system, ORDER_SAMPLES)
        search = Search(system, sampled, outputs, streams(options.ordering, sampled), stages, options.budget.seed)
        choice, program = search.improve(choice), compiled.program
    considered = [*compiled.considered, *search.considered]
    if search.elimination:
        stages.say("writing the program", 0.9)
        try:
            with stages.stage("program"):
                choice, program = written(system, search.elimination, choice, options)
        except NoSafeOrdering as error:
            considered.append((choice.ordering, str(error)))
            choice = compiled.choice
    return Compiled(choice, program, tuple(considered), compiled.seconds + time.perf_counter() - began)
