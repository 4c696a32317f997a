"""Formulations of a problem: a recursion, an elimination with passes, the system as the paper states it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from sysdyn.diagnosis.structure import structure
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import FileError, NoSafeOrdering, ProblemError, SingularState
from sysdyn.measurements.classical import torque_freedoms
from sysdyn.offline import recursion
from sysdyn.offline.choice import Choice, Compiled
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import GIVEN, Options
from sysdyn.offline.order_selection import OrderSelection
from sysdyn.offline.orders import FEW_LIMIT
from sysdyn.offline.stages import Stages
from sysdyn.offline.writing import written
from sysdyn.passes import PAPER
from sysdyn.problem import Problem


class Formulation(ABC):
    """A way to write a problem as a program."""

    @abstractmethod
    def accepts(self, problem: Problem, options: Options) -> bool:
        """True if the formulation is for this problem, and the options allow it. Raises ProblemError."""

    @abstractmethod
    def build(self, problem: Problem, options: Options, stages: Stages) -> Compiled | None:
        """The problem in this formulation; None if no program of it is safe, or it saves nothing."""


class Recursion(Formulation):
    """Inverse, forward or hybrid dynamics as a recursion of few operations."""

    def accepts(self, problem: Problem, options: Options) -> bool:
        asked = options.formulation == "recursive"
        if asked and not options.usual:
            raise ProblemError(
                "formulation='recursive' has no ordering, layout or treatment of known quantities to choose: leave "
                "them out"
            )
        few = recursion.gives(problem, options)
        auto = options.formulation == "auto" and options.usual and few
        if problem.constraints and not few:
            return False
        return (asked or auto) and recursion.applies(problem) is not None

    def build(self, problem: Problem, options: Options, stages: Stages) -> Compiled | None:
        began = time.perf_counter()
        stages.say("writing recursions")
        try:
            with stages.stage("candidates"):
                found = recursion.write(problem, options)
        except SingularState:
            return None  # the search for an order names the undetermined unknowns
        stages.say(f"checking {found.method}", 0.7)
        try:
            with stages.stage("check"):
                choice, program = recursion.build(problem, found, options)
        except NoSafeOrdering:
            if options.formulation == "recursive":
                raise
            return None
        if not choice.report.acceptable:
            if options.formulation == "recursive":
                raise NoSafeOrdering(
                    f"no recursion is accurate enough at every state: that of fewest operations, {found.method!r}, has "
                    f"a backward error of {choice.report.backward_error:.1e} at one of {choice.report.states} sampled "
                    "states; use formulation='auto'"
                )
            return None
        considered = tuple((name, f"{total} operations") for name, total in found.considered)
        return Compiled(choice, program, considered, time.perf_counter() - began)


class WithPasses(Formulation):
    """The system eliminated with every pass that applies, if this saves operations."""

    def accepts(self, problem: Problem, options: Options) -> bool:
        return options.formulation == "auto" and options.usual

    def build(self, problem: Problem, options: Options, stages: Stages) -> Compiled | None:
        plain = paper_passes(options)
        if set(eliminated_system(problem, options, options.passes).passes) <= set(plain):
            return None
        try:
            compiled = eliminated(problem, options, options.passes, stages)
        except NoSafeOrdering:
            return None
        # sensors and measured outputs speak of the frames of bodies, which may cost more than the passes save
        spoken = problem.noisy or options.measured or torque_freedoms(problem) is None
        if spoken and not (problem.noisy and len(compiled.choice.row_perm) > FEW_LIMIT):
            try:
                return _better(compiled, eliminated(problem, options, plain, stages))
            except NoSafeOrdering:
                return compiled
        choice = compiled.choice
        try:
            with stages.stage("candidates"):
                system = eliminated_system(problem, options, plain)
                elimination = Elimination(system, *choice.pivots, cap=2 * choice.total)
                with elimination.graph:
                    before = elimination.choice(choice.ordering, options.outputs).total
        except (NoSafeOrdering, SingularState):
            return compiled
        considered = (*compiled.considered, (f"{choice.ordering}, without passes", f"{before} operations"))
        return replace(compiled, considered=considered) if choice.total < before else None


class AsStated(Formulation):
    """The system eliminated as the paper states it; with passes if an elimination is asked for by name."""

    def accepts(self, problem: Problem, options: Options) -> bool:
        return options.formulation != "recursive"

    def build(self, problem: Problem, options: Options, stages: Stages) -> Compiled:
        if options.ordering == GIVEN and options.formulation not in ("auto", "paper"):
            raise ProblemError("an order of your own is one of problem.system(): leave formulation= out")
        passes = options.passes if options.formulation == "elimination" else paper_passes(options)
        return eliminated(problem, options, passes, stages, falls_back=True)


# Formulations in order of preference: the first that accepts a problem and can be built is taken.
CANDIDATES: tuple[Formulation, ...] = (Recursion(), WithPasses(), AsStated())


def paper_passes(options: Options) -> tuple[str, ...]:
    """The requested passes that the paper's own system has."""
    return tuple(x for x in options.passes if x in PAPER)


def eliminated_system(problem: Problem, options: Options, passes: Sequence[str]) -> System:
    """The system that is permuted, with propagated unknowns unless the order is recursive or given."""
    propagate = options.ordering not in (*RECURSIVE, GIVEN)
    return problem.system(options.equations.layout, options.equations.known, propagate, passes, options.outputs)


def ordered_system(problem: Problem, options: Options, choice: Choice) -> System:
    """The system of the choice's order. Raises FileError if the order is not one of it, as a file can say anything."""
    system = eliminated_system(problem, options, choice.passes)
    equations, unknowns = system.shape
    rows = {*choice.row_perm, *(row for _, turned in choice.joined for row in turned)}
    if len(choice.col_perm) != unknowns or not rows <= set(range(equations)):
        raise FileError(
            f"the solver's order has {len(choice.col_perm)} pivots, which are not those of its system of {equations} "
            f"equations for {unknowns} unknowns: its file was changed"
        )
    return system


def eliminated(
    problem: Problem, options: Options, passes: Sequence[str], stages: Stages, falls_back: bool = False
) -> Compiled:
    """Eliminate: equations → structure → cheapest order that passes its check → program. Raises NoSafeOrdering.

    falls_back: see `OrderSelection`.
    """
    began = time.perf_counter()
    stages.say("assembling", 0.0)
    with stages.stage("equations"):
        system = eliminated_system(problem, options, passes)
        simple = not system.layout.propagated and set(system.passes) <= set(PAPER)
        stated = system if simple else problem.system(options.equations.layout, options.equations.known)
    with stages.stage("structure"):
        structure(stated).require_solvable()
    selection = OrderSelection(system, options, stages, falls_back)
    choice, elimination = selection.run()
    stages.say("writing the program", 0.9)
    with stages.stage("program"), elimination.graph:
        choice, program = written(problem, system, elimination, choice, options)
    return Compiled(choice, program, tuple(selection.considered), time.perf_counter() - began)


def _better(passed: Compiled, plain: Compiled) -> Compiled:
    """The safer of an elimination with passes and one without them, or the one of fewer operations."""
    found = [(plain, "without passes"), (passed, "with passes")]
    (best, _), (other, how) = sorted(found, key=lambda x: (not x[0].choice.report.acceptable, x[0].choice.total))
    considered = (*best.considered, (f"{other.choice.ordering}, {how}", f"{other.choice.total} operations"))
    return replace(best, considered=considered, seconds=plain.seconds + passed.seconds)
