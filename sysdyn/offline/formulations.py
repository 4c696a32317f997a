"""Formulations of a problem: a recursion, an elimination with passes, or the paper's own system."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sysdyn.diagnosis.diagnose import require_sound_structure
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import FileError, NoSafeOrdering, ProblemError, SingularState
from sysdyn.measurements.problem_class import torque_freedoms
from sysdyn.offline import recursion
from sysdyn.offline.choice import Choice, Compiled
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import CUSTOM, Options
from sysdyn.offline.order_selection import OrderSelection
from sysdyn.offline.orders import FEW_LIMIT
from sysdyn.offline.stages import Stages
from sysdyn.offline.writing import written
from sysdyn.passes import PAPER
from sysdyn.problem import Problem


def recursive(problem: Problem, options: Options, stages: Stages) -> Compiled | None:
    """Inverse, forward or hybrid dynamics as a recursion; None if no recursion applies or passes its check.

    Raises ProblemError if a recursion is requested with options that it does not support, NoSafeOrdering if it is
    requested and none passes its check.
    """
    requested = options.formulation == "recursive"
    if requested and not options.is_default:
        raise ProblemError(
            "formulation='recursive' has no ordering, layout or treatment of known quantities to choose: leave them out"
        )
    supported = recursion.gives(problem, options)
    automatic = options.formulation == "auto" and options.is_default and supported
    if not (requested or automatic) or (problem.constraints and not supported) or recursion.applies(problem) is None:
        return None
    began = time.perf_counter()
    stages.report("writing recursions")
    try:
        with stages.stage("candidates"):
            written = recursion.write(problem, options)
        stages.report(f"checking {written.method}", 0.7)
        with stages.stage("check"):
            choice, program = recursion.build(problem, written, options)
        if not choice.report.acceptable:
            raise NoSafeOrdering(
                f"no recursion is accurate enough at every state: that of fewest operations, {written.method!r}, has a "
                f"backward error of {choice.report.backward_error:.1e} at one of {choice.report.states} sampled "
                "states; use formulation='auto'"
            )
    except SingularState:
        return None  # the search for an order names the undetermined unknowns
    except NoSafeOrdering:
        if requested:
            raise
        return None
    considered = tuple((name, f"{total} operations") for name, total in written.considered)
    return Compiled(choice, program, considered, time.perf_counter() - began)


def reduced_elimination(problem: Problem, options: Options, stages: Stages) -> Compiled | None:
    """Elimination of the system after all applicable passes; None if they save no operations."""
    passes = paper_passes(options)
    if options.formulation != "auto" or not options.is_default:
        return None
    if set(eliminated_system(problem, options, options.passes).passes) <= set(passes):
        return None
    try:
        compiled = eliminated(problem, options, options.passes, stages)
    except NoSafeOrdering:
        return None
    # transforming sensors and measured outputs to body frames may cost more than the passes save
    in_body_frames = problem.noisy or options.measured or torque_freedoms(problem) is None
    if in_body_frames and not (problem.noisy and len(compiled.choice.row_perm) > FEW_LIMIT):
        try:
            return _better(compiled, eliminated(problem, options, passes, stages))
        except NoSafeOrdering:
            return compiled
    choice = compiled.choice
    try:
        with stages.stage("candidates"):
            system = eliminated_system(problem, options, passes)
            plain = Elimination(system, *choice.pivots, cap=2 * choice.total)
            with plain.graph:
                total = plain.choice(choice.ordering, options.outputs).total
    except (NoSafeOrdering, SingularState):
        return compiled
    considered = (*compiled.considered, (f"{choice.ordering}, without passes", f"{total} operations"))
    return replace(compiled, considered=considered) if choice.total < total else None


def elimination(problem: Problem, options: Options, stages: Stages) -> Compiled | None:
    """Elimination of the paper's system, or of the system after the passes if formulation="elimination"."""
    if options.formulation == "recursive":
        return None
    if options.ordering == CUSTOM and options.formulation not in ("auto", "paper"):
        raise ProblemError("an order of your own is one of problem.system(): leave formulation= out")
    passes = options.passes if options.formulation == "elimination" else paper_passes(options)
    return eliminated(problem, options, passes, stages)


# In order of preference: the first that does not return None is used.
CANDIDATES = (recursive, reduced_elimination, elimination)


def paper_passes(options: Options) -> tuple[str, ...]:
    """The requested passes that apply to the paper's own system."""
    return tuple(x for x in options.passes if x in PAPER)


def eliminated_system(problem: Problem, options: Options, passes: Sequence[str]) -> System:
    """The system to eliminate, with propagated unknowns unless the order is recursive or custom."""
    propagate = options.ordering not in (*RECURSIVE, CUSTOM)
    return problem.system(options.equations.layout, options.equations.known, propagate, passes, options.outputs)


def ordered_system(problem: Problem, options: Options, choice: Choice) -> System:
    """The system of a choice's order. Raises FileError if the order does not fit, because a file may be corrupt."""
    system = eliminated_system(problem, options, choice.passes)
    equations, unknowns = system.shape
    rows = {*choice.row_perm, *(row for _, rotated in choice.rotated_with for row in rotated)}
    if len(choice.col_perm) != unknowns or not rows <= set(range(equations)):
        raise FileError(
            f"the solver's order has {len(choice.col_perm)} pivots, which are not those of its system of {equations} "
            f"equations for {unknowns} unknowns: its file was changed"
        )
    return system


def eliminated(problem: Problem, options: Options, passes: Sequence[str], stages: Stages) -> Compiled:
    """Eliminate: equations → structure → cheapest order that passes its check → program. Raises NoSafeOrdering."""
    began = time.perf_counter()
    stages.report("assembling", 0.0)
    with stages.stage("equations"):
        system = eliminated_system(problem, options, passes)
        simple = not system.layout.propagated and set(system.passes) <= set(PAPER)
        stated = system if simple else problem.system(options.equations.layout, options.equations.known)
    with stages.stage("structure"):
        require_sound_structure(stated)
    selection = OrderSelection(system, options, stages)
    choice, factors = selection.run()
    stages.report("writing the program", 0.9)
    with stages.stage("program"), factors.graph:
        choice, program = written(problem, system, factors, choice, options)
    return Compiled(choice, program, tuple(selection.considered), time.perf_counter() - began)


def _better(reduced: Compiled, plain: Compiled) -> Compiled:
    """The better of two eliminations: an acceptable one before others, then fewer operations."""
    forms = [(plain, "without passes"), (reduced, "with passes")]
    (best, _), (other, how) = sorted(forms, key=lambda x: (not x[0].choice.report.acceptable, x[0].choice.total))
    considered = (*best.considered, (f"{other.choice.ordering}, {how}", f"{other.choice.total} operations"))
    return replace(best, considered=considered, seconds=plain.seconds + reduced.seconds)
