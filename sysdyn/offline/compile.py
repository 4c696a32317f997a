"""The offline phase: from a problem to a checked program with a cheap, fixed elimination order.

    problem → first formulation that supports it → equations → candidate orders → elimination → check → program

The formulations are a recursion, an elimination after passes, and an elimination of the paper's own system.
`sysdyn.compile` caches the result and compiles it to machine code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sysdyn.diagnosis.diagnose import require_sound_structure
from sysdyn.equations.problem_system import assemble
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import FileError, NoSafeOrdering, ProblemError, SingularState
from sysdyn.measurements.classical import torque_freedoms
from sysdyn.measurements.measurement import Measurement, Output, output_name
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline import recursion
from sysdyn.offline.check import relative_difference, relative_differences, with_ranges
from sysdyn.offline.elimination import Elimination, solve_scope
from sysdyn.offline.options import CUSTOM, Options
from sysdyn.offline.order_selection import FEW_LIMIT, OrderSelection
from sysdyn.offline.pivoted_lu import reference
from sysdyn.offline.report import BACKWARD_ERROR, PIVOTED_RATIO, Choice, Compiled
from sysdyn.offline.sampling import PASSES_SEED, VERIFIED_STATES, is_singular, sample_states
from sysdyn.offline.single import check_single
from sysdyn.offline.stages import Progress, Stages
from sysdyn.passes import PAPER
from sysdyn.program.graph import gc_paused
from sysdyn.program.program import Program
from sysdyn.runtime.native_calls import twice
from sysdyn.runtime.real import DOUBLE


def compile_program(problem: Problem, options: Options, progress: Progress | None = None) -> Compiled:
    """Compile the problem in the first formulation that supports it. Raises ProblemError if there is none."""
    stages = Stages(progress)
    with gc_paused():
        formulations = (_recursive, _reduced, _plain)
        compiled = next((x for formulate in formulations if (x := formulate(problem, options, stages))), None)
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


# ---- formulations --------------------------------------------------------------------------------------------------


def _recursive(problem: Problem, options: Options, stages: Stages) -> Compiled | None:
    """Inverse, forward or hybrid dynamics as a recursion; None if no recursion applies or passes its check.

    Raises ProblemError if a recursion is requested with options that it does not support, NoSafeOrdering if it is
    requested and none passes its check.
    """
    requested = options.formulation == "recursive"
    if requested and not options.is_default:
        raise ProblemError(
            "formulation='recursive' has no ordering, layout or treatment of known quantities to choose: leave them out"
        )
    supported = recursion.computes_outputs(problem, options)
    automatic = options.formulation == "auto" and options.is_default and supported
    if not (requested or automatic) or (problem.constraints and not supported):
        return None
    if recursion.torque_driven(problem) is None:
        return None
    began = time.perf_counter()
    stages.report("writing recursions")
    try:
        with stages.stage("candidates"):
            dynamics = recursion.generate_dynamics(problem, options)
        stages.report(f"checking {dynamics.method}", 0.7)
        with stages.stage("check"):
            choice, program = recursion.compile_recursion(problem, dynamics, options)
        if not choice.report.acceptable:
            raise NoSafeOrdering(
                f"no recursion is accurate enough at every state: that of fewest operations, {dynamics.method!r}, has "
                f"a backward error of {choice.report.backward_error:.1e} at one of {choice.report.states} sampled "
                "states; use formulation='auto'"
            )
    except SingularState:
        return None  # the search for an order names the undetermined unknowns
    except NoSafeOrdering:
        if requested:
            raise
        return None
    considered = tuple((name, f"{total} operations") for name, total in dynamics.considered)
    return Compiled(choice, program, considered, time.perf_counter() - began)


def _reduced(problem: Problem, options: Options, stages: Stages) -> Compiled | None:
    """Elimination of the system after all applicable passes; None if they save no operations."""
    passes = paper_passes(options)
    if options.formulation != "auto" or not options.is_default:
        return None
    if set(eliminated_system(problem, options, options.passes).passes) <= set(passes):
        return None
    try:
        reduced = _eliminated(problem, options, options.passes, stages)
    except NoSafeOrdering:
        return None
    # transforming sensors and measured outputs to body frames may cost more than the passes save
    in_body_frames = problem.noisy or options.measured or torque_freedoms(problem) is None
    if in_body_frames and not (problem.noisy and len(reduced.choice.row_perm) > FEW_LIMIT):
        try:
            return _better(reduced, _eliminated(problem, options, passes, stages))
        except NoSafeOrdering:
            return reduced
    choice = reduced.choice
    try:
        with stages.stage("candidates"):
            system = eliminated_system(problem, options, passes)
            plain = Elimination(system, *choice.pivots, cap=2 * choice.total)
            with plain.graph:
                total = plain.choice(choice.ordering, options.outputs).total
    except (NoSafeOrdering, SingularState):
        return reduced
    considered = (*reduced.considered, (f"{choice.ordering}, without passes", f"{total} operations"))
    return replace(reduced, considered=considered) if choice.total < total else None


def _plain(problem: Problem, options: Options, stages: Stages) -> Compiled | None:
    """Elimination of the paper's system, or of the system after the passes if formulation="elimination"."""
    if options.formulation == "recursive":
        return None
    if options.ordering == CUSTOM and options.formulation not in ("auto", "paper"):
        raise ProblemError("an order of your own is one of sd.assemble(problem): leave formulation= out")
    passes = options.passes if options.formulation == "elimination" else paper_passes(options)
    return _eliminated(problem, options, passes, stages)


def paper_passes(options: Options) -> tuple[str, ...]:
    """The requested passes that apply to the paper's own system."""
    return tuple(x for x in options.passes if x in PAPER)


def eliminated_system(problem: Problem, options: Options, passes: Sequence[str]) -> System:
    """The system to eliminate, with propagated unknowns unless the order is recursive or custom."""
    propagate = options.ordering not in (*RECURSIVE, CUSTOM)
    return assemble(problem, options.equations.layout, options.equations.known, propagate, passes, options.outputs)


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


def _better(reduced: Compiled, plain: Compiled) -> Compiled:
    """The better of two eliminations: an acceptable one before others, then fewer operations."""
    forms = [(plain, "without passes"), (reduced, "with passes")]
    (best, _), (other, how) = sorted(forms, key=lambda x: (not x[0].choice.report.acceptable, x[0].choice.total))
    considered = (*best.considered, (f"{other.choice.ordering}, {how}", f"{other.choice.total} operations"))
    return replace(best, considered=considered, seconds=plain.seconds + reduced.seconds)


# ---- elimination ---------------------------------------------------------------------------------------------------


def _eliminated(problem: Problem, options: Options, passes: Sequence[str], stages: Stages) -> Compiled:
    """Eliminate: equations → structure → cheapest order that passes its check → program.

    The fast level does not count the operations of the *solve* scope. Raises NoSafeOrdering.
    """
    began, outputs = time.perf_counter(), options.outputs
    stages.report("assembling", 0.0)
    with stages.stage("equations"):
        system = eliminated_system(problem, options, passes)
        simple = not system.layout.propagated and set(system.passes) <= set(PAPER)
        stated = system if simple else assemble(problem, options.equations.layout, options.equations.known)
    with stages.stage("structure"):
        require_sound_structure(stated)
    selection = OrderSelection(system, options, stages)
    choice, elimination = selection.run()
    stages.report("writing the program", 0.9)
    with stages.stage("program"), elimination.graph:
        if options.level != "fast":
            choice = replace(choice, solve=solve_scope(system, choice, outputs))
        program = elimination.program(outputs)
        if not set(system.passes) <= set(PAPER):
            _require_unchanged(problem, program, outputs, system.passes)
    return Compiled(choice, program, tuple(selection.considered), time.perf_counter() - began)


def _require_unchanged(problem: Problem, program: Program, outputs: Sequence[Output], passes: Sequence[str]) -> None:
    """Raise NoSafeOrdering if outputs differ from the solution of the paper's own system at sampled states.

    Near singular states are excluded. If all states are near singular, the tolerance does not depend on the error of
    the plain pivoted solve. The program runs in double-double arithmetic, because its rounding errors are checked with
    its order.
    """
    measured = [x for x in outputs if isinstance(x, Measurement)]
    system = assemble(problem, outputs=(*QUANTITIES, *measured))
    inputs = sample_states(problem, VERIFIED_STATES, PASSES_SEED)
    regular = ~is_singular(system, inputs)
    if regular.any():
        inputs = {name: x[regular] for name, x in inputs.items()}
    change, pivoted_error = _change_of_outputs(system, program, outputs, inputs)
    limit = max(BACKWARD_ERROR, PIVOTED_RATIO * pivoted_error) if regular.any() else BACKWARD_ERROR
    if not (math.isfinite(change) and change <= limit):
        names = ", ".join(map(output_name, outputs))
        raise NoSafeOrdering(f"{', '.join(passes)} change {names} by {change:.1e}: leave out some of these passes")


def _change_of_outputs(
    system: System, program: Program, outputs: Sequence[Output], inputs: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """Greatest relative differences of outputs from a refined pivoted solve of the paper's own system.

    Returns (difference of the program, difference of a plain pivoted solve), over the states of `inputs`.
    """
    rows = np.concatenate([np.asarray(inputs[name]).reshape(len(inputs["q"]), -1) for name in program.inputs], axis=1)
    run = twice(program, rows, program.output_values).high
    values = {name: run[:, part] for name, part in program.outputs.slices.items()}
    with np.errstate(all="ignore"):
        plain, refined, _ = reference(system, dict(inputs))
    d = refined.copy()
    for name in (x for x in outputs if isinstance(x, str)):
        d[:, system.layout.quantity_columns(name)] = values[name]
    change, pivoted_error = (float(relative_differences(system, x, refined).max()) for x in (d, plain))
    expected, usual = (system.output_values(inputs, x) for x in (refined, plain))
    for name, (y, terms) in expected.items():
        size = terms.max(axis=1)
        change = max(change, float(relative_difference(values[name], y, size).max()))
        pivoted_error = max(pivoted_error, float(relative_difference(usual[name][0], y, size).max()))
    return change, pivoted_error
