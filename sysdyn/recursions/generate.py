"""Generate inverse, forward and hybrid dynamics with the fewest operations, by search over methods and plans.

Each method is generated with a few initial plans. A greedy search improves the best plan. The search is deterministic:
its budget counts operations, not time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from sysdyn.errors import ProblemError
from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.passes import ALL
from sysdyn.program.simplify import MAX_OPS, simplify
from sysdyn.recursions import formulations
from sysdyn.recursions.constraints import AccelerationRows
from sysdyn.recursions.formulations import (
    OPERATIONAL_SPACE,
    ROWS,
    AllUnknowns,
    ChoiceKey,
    GeneratedDynamics,
    Plan,
    TauQdd,
)

METHODS = {"qdd": ("newton-euler",), "tau": (*formulations.METHODS,)}  # by the known quantity
MAX_COMPOSITE_FREEDOMS = 60  # largest nv at which the O(n³) method is tried in addition to the O(n) one: chosen
# A method with more than this ratio of the fewest operations is pruned: chosen, plans differ by 1 to 5 %.
PRUNE_RATIO = 1.5
# A program is simplified if its operations, before simplification, are within this ratio of the best: chosen.
SIMPLIFY_RATIO = 1.02
TRANSFER_DEPTH = 4  # largest depth of transfer bodies in the initial plans: chosen


def generate(
    model: Model, known: str | Collection[int], outputs: Sequence[str], external_wrenches: bool = True,
    method: str = "auto", *, budget: float = 0.0, passes: Sequence[str] = ALL,
    constraints: Sequence[AccelerationRows] = (), measured: Sequence[AccelerationRows] = (),
) -> GeneratedDynamics:  # fmt: skip
    """Generate expressions of `outputs` with the fewest operations.

    Parameters
    ----------
    model : Model
        Robot model; its closures are ignored.
    known : "tau", "qdd", or collection of int
        The known quantity, or the degrees of freedom with known τ; the others have known q̈. The inputs are called q,
        qd, tau, qdd and fx, see `Graph.inputs`.
    outputs : sequence of str
        Without constraints: tau, qdd, fx, a, f. With constraints: tau, qdd, fx, w, or names of OPERATIONAL_SPACE; if no
        τ is known, w is an input and ROWS may be an output. Also names of `measured`.
    external_wrenches : bool
        Whether external wrenches are inputs; else they are zero.
    method : str
        One of METHODS, or "auto": the one of fewest operations.
    budget : float
        Total number of operations that the greedy search may generate.
    passes : sequence of str
        Names of `sysdyn.passes` that apply.
    constraints, measured : sequence of AccelerationRows
        Constraints with workless wrenches w, and measurements.

    Returns
    -------
    GeneratedDynamics
        Expressions, pivots, and the operations of each method.

    Raises
    ------
    ProblemError
        If a or f is an output of a problem with constraints or measurements.
    SingularState
        If a degree of freedom moves no inertia at any state.
    """
    known = {"tau": range(model.nv), "qdd": ()}[known] if isinstance(known, str) else known
    free = frozenset(known)
    methods = METHODS["tau" if free else "qdd"] if method == "auto" else (method,)
    if method == "auto" and free and model.nv > MAX_COMPOSITE_FREEDOMS:
        methods = ("articulated",)
    formulation: TauQdd | AllUnknowns
    if {"a", "f"} & set(outputs):
        if constraints or measured:
            raise ProblemError("recursions with constraints or measurements give tau, qdd and w, but neither a nor f")
        formulation = AllUnknowns(model, free, external_wrenches, frozenset(passes))
    else:
        formulation = TauQdd(model, free, external_wrenches, frozenset(passes), constraints, measured)
    search = _PlanSearch(formulation, outputs, "rewriting" in passes)
    search.start({name: _initial_plans(model, name) for name in methods})
    search.improve(budget)
    best = search.best
    reduced = formulation.given_kinematics(best.method, outputs, search.plan.choose)
    if reduced and "rewriting" in passes:
        reduced = simplified(reduced)
    considered = sorted(search.fewest.items(), key=lambda x: x[0] != best.method)
    return replace(best, flops_given_kinematics=reduced.flops if reduced else None, considered=tuple(considered))


class _PlanSearch:
    """Search for the program with the fewest operations.

    best: best program so far. plan: choices of `best`. fewest: {method: fewest operations so far}.
    """

    best: GeneratedDynamics

    def __init__(self, formulation: TauQdd | AllUnknowns, outputs: Sequence[str], simplify: bool):
        self.fewest: dict[str, int] = {}
        self.plan = Plan()
        self._formulation, self._outputs, self._simplify = formulation, outputs, simplify
        self._unsimplified = math.inf  # operations of the best program before it was simplified

    def start(self, plans: dict[str, list[Plan]]) -> None:
        """Try the initial plans of each method; a method whose first plan exceeds PRUNE_RATIO gets no further plans."""
        first = {method: self._write(method, initial[0]) for method, initial in plans.items()}
        limit = PRUNE_RATIO * min(program.total for program in first.values())
        programs = [(first[method], initial[0]) for method, initial in plans.items()]
        programs += [
            (self._write(method, plan), plan)
            for method, initial in plans.items() if first[method].total <= limit for plan in initial[1:]
        ]  # fmt: skip
        for program, plan in sorted(programs, key=lambda x: x[0].total):
            self._compare(program, plan, SIMPLIFY_RATIO)

    def improve(self, budget: float) -> None:
        """Greedy search: change one choice at a time while that saves operations and budget remains."""
        improved = True
        while improved:
            improved = False
            for key, count in self.plan.available.items():
                for form in range(count):
                    if form == self.plan.choices.get(key, 0):
                        continue
                    budget -= self.best.total
                    if budget < 0:
                        return
                    plan = Plan({**self.plan.choices, key: form})
                    improved |= self._compare(self._write(self.best.method, plan), plan)

    def _write(self, method: str, plan: Plan) -> GeneratedDynamics:
        return self._formulation.write(method, self._outputs, plan.choose)

    def _compare(self, program: GeneratedDynamics, plan: Plan, ratio: float = 1.0) -> bool:
        """Simplify the program if its operations are within `ratio` of the best; keep the best."""
        unsimplified = program.total
        if self._simplify and unsimplified <= ratio * self._unsimplified:
            program = simplified(program)
        better = program.total < min(self.fewest.values(), default=math.inf)
        self.fewest[program.method] = min(program.total, self.fewest.get(program.method, program.total))
        if better:
            self.best, self.plan, self._unsimplified = program, plan, unsimplified
        return better


def simplified(program: GeneratedDynamics) -> GeneratedDynamics:
    """The program after algebraic simplification, if that saves operations; else unchanged."""
    if program.total > MAX_OPS:
        return program
    graph, new = simplify(program.graph, [*program.scalars, *(D for D, _ in program.pivots)])
    values = iter(new)
    outputs = {name: [next(values) for _ in x] for name, x in program.outputs.items()}
    pivots = [(next(values), k) for _, k in program.pivots]
    shorter = replace(program, graph=graph, outputs=outputs, pivots=pivots)
    better, worse = (shorter, program) if shorter.total <= program.total else (program, shorter)
    worse.graph.close()
    return better


def _initial_plans(model: Model, method: str) -> list[Plan]:
    """Initial plans: default forms, all rotations absorbed, and for "composite" transfer bodies at one depth."""
    absorb: dict[ChoiceKey, int] = {("absorb rotation", i): 1 for i in range(model.nb)}
    plans = [Plan(), Plan(absorb)] if model.nv <= MAX_COMPOSITE_FREEDOMS else [Plan(absorb)]
    if method == "composite":
        deepest = max((len(path(model, i)) for i in range(model.nb)), default=1)
        for depth in range(1, min(deepest, TRANSFER_DEPTH + 1)):
            plans.append(Plan(absorb | {("transfer body", j): depth for j in range(model.nb)}))
    return plans


__all__ = ["METHODS", "OPERATIONAL_SPACE", "ROWS", "GeneratedDynamics", "Plan", "generate", "simplified"]
