"""The offline phase.

From a problem to a program with a fixed elimination order, chosen by exact count and proven safe by sampling.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.diagnosis.structure import structure
from sysdyn.equations.block_system import BlockSystem
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import BackendUnavailable, NoSafeOrdering, ProblemError, SingularState
from sysdyn.offline import recursion
from sysdyn.offline.allowance import Allowance
from sysdyn.offline.elimination import Choice, Elimination, solve_scope
from sysdyn.offline.options import Options
from sysdyn.offline.orders import AUTO_LIMIT, FAST_STARTS, Order, candidates, streams
from sysdyn.offline.safety import LEAST_PIVOT, WORSE_THAN_PIVOTED, Safety, relative_difference
from sysdyn.offline.sampling import is_singular, order_samples, pivoted_solve, sample_matrix, sample_states, stacked
from sysdyn.offline.search import Search
from sysdyn.passes import PAPER
from sysdyn.problem import Problem
from sysdyn.program.program import Program
from sysdyn.sparse.sampled import Permutations

ORDER_SAMPLES = 48
RETRY_SAMPLES = 512  # where the first search found no safe order
AUTO_CAP = 2.0  # an order is given up where it costs this many times the cheapest one known
VERIFIED = 16  # states at which passes are seen to leave the outputs
UNCHANGED = 1e-9  # as they are, relative to the greatest entry of a quantity
ATTEMPTS = 4  # searches, each with the states at which the last one failed

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Compiled:
    """What the offline phase leaves behind."""

    choice: Choice
    program: Program
    considered: tuple[tuple[str, str], ...]  # (ordering, cost or why not)
    seconds: float


def eliminated_system(problem: Problem, options: Options, passes: Sequence[str]) -> BlockSystem:
    """What is permuted: the recursive orders are of D as it stands, others are found with joints turned."""
    turn = options.ordering not in RECURSIVE
    return problem.system(options.layout, options.known, turn, passes, options.outputs)


def build(problem: Problem, options: Options, progress: Progress | None = None) -> Compiled:
    """problem → system → pattern → structure → order → elimination → program. See `sysdyn.compile`."""
    allowance = Allowance(options.seconds, progress)
    say = allowance.say
    # a long search leaves more behind than there is memory for
    with _no_collection() if options.seconds is None else contextlib.nullcontext():
        auto = options.formulation == "auto" and options.usual
        compiled: Compiled | None = None
        if options.formulation == "recursive" or (auto and set(options.outputs) <= {"tau", "qdd"}):
            compiled = _recursive(problem, options, allowance)
        if compiled is None and auto:
            compiled = _shortened(problem, options, say)
        if compiled is None and options.formulation == "recursive":
            raise ProblemError(
                "formulation='recursive' is for inverse, forward and hybrid dynamics, τ or q̈ of each freedom and all "
                "external wrenches known, of robots whose joints all move inertia: use formulation='auto'"
            )
        passes = options.passes
        if options.formulation != "elimination":
            passes = tuple(x for x in passes if x in PAPER)
        compiled = compiled or _build(problem, options, passes, say)
        return _searched(problem, options, compiled, allowance) if allowance.left() else compiled


def _recursive(problem: Problem, options: Options, allowance: Allowance) -> Compiled | None:
    """Inverse, forward or hybrid dynamics by recursions; None for other problems, and where not safe."""
    if not options.usual:
        raise ProblemError(
            "formulation='recursive' has no ordering, layout or treatment of known quantities to choose: leave them out"
        )
    if recursion.applies(problem) is None:
        return None
    began = time.perf_counter()
    allowance.say("writing recursions")
    effort = options.effort if options.level == "best" else 0.0
    try:
        written = recursion.write(
            problem, options.outputs, options.wrenches, effort, options.passes, allowance.left, options.seed
        )
    except SingularState:
        return None  # the search for an order says what is not determined
    allowance.say(f"checking {written.method}", 0.7)
    choice, program = recursion.build(problem, written, options.outputs, options.wrenches, passes=options.passes)
    if not choice.safety.ok:
        return None
    considered = tuple((name, f"{total} operations") for name, total in written.considered)
    return Compiled(choice, program, considered, time.perf_counter() - began)


def _shortened(problem: Problem, options: Options, say: Progress) -> Compiled | None:
    """The problem eliminated with the passes that apply; None where they save nothing, or no order is safe."""
    plain = tuple(x for x in options.passes if x in PAPER)
    if set(eliminated_system(problem, options, options.passes).passes) <= set(plain):
        return None
    try:
        compiled = _build(problem, options, options.passes, say)
    except NoSafeOrdering:
        return None
    choice, total = compiled.choice, compiled.choice.end_to_end.total
    if problem.noisy:  # its pairs of pivots are of rows and columns whose numbers depend on the frames
        try:
            return _better(compiled, _build(problem, options, plain, say))
        except NoSafeOrdering:
            return compiled
    try:
        system = eliminated_system(problem, options, plain)
        elimination = Elimination(system, choice.row_perm, choice.col_perm, cap=2 * total)
        before = elimination.choice(choice.ordering, options.outputs).end_to_end.total
    except (NoSafeOrdering, SingularState):
        return compiled
    considered = (*compiled.considered, (f"{choice.ordering}, without passes", f"{before} operations"))
    return replace(compiled, considered=considered) if total < before else None


def _better(passed: Compiled, plain: Compiled) -> Compiled:
    """The safer of an estimation with passes and one without them, or the one of fewer operations."""
    found = [(plain, "without passes"), (passed, "with passes")]
    (best, _), (other, how) = sorted(found, key=lambda x: (not x[0].choice.safety.ok, x[0].choice.total))
    considered = (*best.considered, (f"{other.choice.ordering}, {how}", f"{other.choice.total} operations"))
    return replace(best, considered=considered, seconds=plain.seconds + passed.seconds)


@contextlib.contextmanager
def _no_collection():
    """Cyclic garbage collection off: it would walk millions of graph entries that all stay alive."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _build(problem: Problem, options: Options, passes: Sequence[str], say: Progress) -> Compiled:
    began = time.perf_counter()
    ordering, outputs, level = options.ordering, options.outputs, options.level
    say("assembling", 0.0)
    system = eliminated_system(problem, options, passes)
    simple = not system.layout.turned and set(system.passes) <= set(PAPER)
    structure(system if simple else problem.system(options.layout, options.known)).require_solvable()
    sampled = order_samples(system, ORDER_SAMPLES)
    singular: dict[int, bool] = {}
    considered: list[tuple[str, str]] = []
    stable: Choice | None = None  # backward stable, though near singular states it loses digits that pivoting keeps
    accepted: Choice | None = None
    for attempt in range(ATTEMPTS):
        most = FAST_STARTS if level == "fast" and (attempt == 0 or accepted) else None
        orders = candidates(system, sampled, options, plain=attempt == 0, most=most)
        choices, best = _search(system, orders, ordering, outputs, considered, say)
        failing = []
        queue = sorted(choices, key=attrgetter("total"), reverse=True)
        while queue:
            choice = queue.pop()
            say(f"checking {choice.ordering}", 0.7)
            elimination = best or Elimination(system, choice.row_perm, choice.col_perm, refined=choice.refined)
            best = None
            safety, worst = elimination.assess(sampled.scaling, singular=singular, strict=True)
            # the residual of an estimate may be small beside its variances and not beside its unknowns
            if not choice.refined and (safety.improvable or (sampled.tree and safety.stable and not safety.ok)):
                considered.append((choice.ordering, f"to be refined: {safety}"))
                best = Elimination(system, choice.row_perm, choice.col_perm, refined=True)
                queue.append(best.choice(choice.ordering, outputs))
                if sampled.tree and len(queue) > 1:  # another order may cost less than a step of refinement
                    queue, best = sorted(queue, key=attrgetter("total"), reverse=True), None
                continue
            choice = replace(choice, safety=safety)
            if safety.stable and (stable is None or safety.difference < stable.safety.difference):
                stable = choice
            if safety.ok and (accepted is None or _firmness(safety) > _firmness(accepted.safety)):
                accepted = choice
            # pivots as good as any: covariances change the size of those of an estimate, singular constraints theirs
            definite = sampled.tree or (problem.constraints and choice.ordering in RECURSIVE)
            if safety.firm or (definite and safety.ok and safety.exact and not safety.crossing):
                break
            considered.append((choice.ordering, f"{'a pivot may vanish' if safety.ok else 'not safe'}: {safety}"))
            if safety.crossing or not safety.ok:
                failing.append(worst)
        if (choices and not failing) or ordering in (*RECURSIVE, "mixed"):
            break
        if accepted and (attempt or not accepted.safety.crossing):
            break
        # more states, and those at which these orders failed, guide the next search
        if len(sampled.values) < RETRY_SAMPLES and sampled.n <= AUTO_LIMIT:
            sampled = order_samples(system, RETRY_SAMPLES)
        if failing:
            sampled = sampled.with_values(sample_matrix(system, stacked(failing)).values)
    accepted = accepted or stable
    if accepted is None:
        raise NoSafeOrdering(_failure(problem, considered))
    say("writing the program", 0.9)
    if accepted is not choice:
        elimination = Elimination(system, accepted.row_perm, accepted.col_perm, refined=accepted.refined)
        safety, _ = elimination.assess(sampled.scaling, singular=singular)
        accepted = replace(accepted, safety=safety)
    accepted, program = _written(system, elimination, accepted, outputs)
    return Compiled(accepted, program, tuple(considered), time.perf_counter() - began)


def _searched(problem: Problem, options: Options, compiled: Compiled, allowance: Allowance) -> Compiled:
    """The cheapest order that is found in the time that is left. A triangular order has nothing to save."""
    began, choice, outputs = time.perf_counter(), compiled.choice, options.outputs
    if choice.triangular or not choice.row_perm:
        return compiled
    system = eliminated_system(problem, options, choice.passes)
    sampled = order_samples(system, ORDER_SAMPLES)
    search = Search(system, sampled, outputs, streams(options.ordering, sampled), allowance, options.seed)
    choice, program = search.improve(choice), compiled.program
    considered = [*compiled.considered, *search.considered]
    if search.elimination:
        allowance.say("writing the program", 0.9)
        try:
            choice, program = _written(system, search.elimination, choice, outputs)
        except NoSafeOrdering as error:
            considered.append((choice.ordering, str(error)))
            choice = compiled.choice
    return Compiled(choice, program, tuple(considered), compiled.seconds + time.perf_counter() - began)


def _written(
    system: BlockSystem, elimination: Elimination, choice: Choice, outputs: Sequence[str]
) -> tuple[Choice, Program]:
    """(the order with its cost in both scopes, the program), seen to leave the outputs as they are in the paper."""
    choice = replace(choice, solve=solve_scope(system, choice, outputs))
    program = elimination.program(outputs)
    if not set(system.passes) <= set(PAPER):
        _require_unchanged(system.problem, program, outputs, system.passes)
    return choice, program


def _require_unchanged(problem: Problem, program: Program, outputs: Sequence[str], passes: Sequence[str]) -> None:
    """Raises NoSafeOrdering where outputs differ from the solution of the paper's own system at sampled states."""
    system = problem.system()
    inputs = sample_states(problem, VERIFIED, seed=3)
    inputs = {name: x[~is_singular(system, inputs)] for name, x in inputs.items()}
    if not len(inputs["q"]):
        return
    found = interpreter.run_groups(program, inputs)
    with np.errstate(all="ignore"):
        plain, refined = (pivoted_solve(system, inputs, refine=k) for k in (0, 2))
    d = refined.copy()
    for name in outputs:
        d[:, system.layout.quantity_columns(name)] = found[name]
    changed, limit = (relative_difference(system, x, refined) for x in (d, plain))
    if not changed <= max(UNCHANGED, WORSE_THAN_PIVOTED * limit):
        raise NoSafeOrdering(
            f"{', '.join(passes)} change {', '.join(outputs)} by {changed:.1e}: leave out some of these passes"
        )


def _search(
    system: BlockSystem,
    orders: Iterator[tuple[str, Order]],
    ordering: str,
    outputs: Sequence[str],
    considered: list[tuple[str, str]],
    say: Progress,
) -> tuple[list[Choice], Elimination | None]:
    """(every order that can be eliminated, with its cost; the elimination of the cheapest of them)."""
    choices: list[Choice] = []
    best: Elimination | None = None
    seen: list[Permutations] = []
    for name, order in orders:
        say(f"ordering {name}", min(0.6, 0.1 + 0.04 * len(considered)))
        least = min((c.end_to_end.total for c in choices), default=math.inf)
        try:
            permutations = order(AUTO_CAP * least)
            if permutations in seen:
                continue
            seen.append(permutations)
            elimination = Elimination(system, *permutations, cap=AUTO_CAP * least)
        except (NoSafeOrdering, SingularState, BackendUnavailable) as error:
            if isinstance(error, BackendUnavailable) and ordering != "auto":
                raise
            considered.append((name, str(error)))
            continue
        choice = elimination.choice(name, outputs)
        considered.append((name, f"{choice.end_to_end.total} operations"))
        choices.append(choice)
        if choice.end_to_end.total < least:
            best = elimination
    return choices, best


def _firmness(safety: Safety) -> tuple[int, float, float]:
    """Of two orders that are accurate at every sampled state, the greater is farther from zero pivots, or errors."""
    return -safety.crossing, min(safety.least_pivot, LEAST_PIVOT), -safety.backward_error


def _failure(problem: Problem, considered: list[tuple[str, str]]) -> str:
    tried = "\n".join(f"  {name}: {what}" for name, what in considered)
    diagnosis = problem.diagnose()
    why = "" if diagnosis.well_posed else f"\n{diagnosis}"
    return f"no elimination order is safe at every sampled state:\n{tried}{why}"
