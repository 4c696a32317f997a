"""Inverse, forward and hybrid dynamics by a formulation of few operations instead of an elimination.

The system stays what the result is judged by: its residual at sampled states, and a pivoted solve.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.equations.block_system import BlockSystem
from sysdyn.measurements.variables import QUANTITIES
from sysdyn.offline.elimination import Choice
from sysdyn.offline.safety import (
    BACKWARD_ERROR,
    GUARD,
    HARMLESS,
    JUDGED_UNKNOWNS,
    SAFETY_SAMPLES,
    WEAK,
    WORST_STATES,
    Safety,
    relative_difference,
)
from sysdyn.offline.sampling import is_singular, pivoted_solve, sample_states
from sysdyn.passes import ALL
from sysdyn.problem import Problem
from sysdyn.program.program import Program
from sysdyn.recursions import write as recursions
from sysdyn.recursions.plan import More
from sysdyn.recursions.write import Written
from sysdyn.reference.rnea import newton_euler

BUDGET = 100_000  # operations written in search of fewer, at effort 1
SAMPLED_OPERATIONS = 100_000_000  # in all, to judge safety


def applies(problem: Problem) -> frozenset[int] | None:
    """The freedoms of which τ is known where q̈ is of all others, and all fx; None where the problem is another one."""
    model = problem.model
    if problem.custom or problem.noisy or problem.parameters or problem.knows("a") or problem.knows("f"):
        return None
    tau, qdd = ({model.v_slice(i).start + k for i, k in problem.knows(x)} for x in ("tau", "qdd"))
    every = len(tau) + len(qdd) == model.nv and not tau & qdd and len(problem.knows("fx")) == 6 * model.nb
    return frozenset(tau) if every else None


def write(
    problem: Problem, outputs: Sequence[str], wrenches: bool, effort: float, passes: Sequence[str] = ALL,
    more: More | None = None, seed: int = 0,
) -> Written:  # fmt: skip
    """The formulation of fewest operations that is found. The problem is one that `applies`.

    more, seed: of the search beyond what `effort` says, as in `formulation.write`.
    """
    free = applies(problem)
    assert free is not None
    # the accelerations, too: what is not asked for is left out of the program, but safety is judged by them
    every = tuple(x for x in QUANTITIES if x in outputs or (x == "qdd" and free))
    return recursions.write(problem.model, free, every, wrenches, "auto", BUDGET * effort, passes, more, seed)


def build(
    problem: Problem, written: Written, outputs: Sequence[str], wrenches: bool, states: int | None = None,
    passes: Sequence[str] = ALL,
) -> tuple[Choice, Program]:  # fmt: skip
    """(choice, program) of what was written, its safety sampled; wrenches: whether external ones are not zero.

    states: at how many; None for SAFETY_SAMPLES, or what SAMPLED_OPERATIONS suffice for.
    """
    if states is None:
        states = min(SAFETY_SAMPLES, SAMPLED_OPERATIONS // max(1, written.total))
    inputs = sample_states(problem, states, seed=1)
    if not wrenches:
        inputs["fx"] = np.zeros_like(inputs["fx"])
    program, safety = _assessed(problem.system(), written, outputs, inputs)
    choice = Choice(
        written.method, (), (), program.flops, written.given, fill_in=0, triangular=not written.pivots, safety=safety,
        passes=tuple(passes),
    )  # fmt: skip
    return choice, program


def _program(problem: Problem, written: Written, groups, guards=()) -> Program:
    inputs = [(name, list(written.graph.inputs(name, size))) for name, size in problem.input_sizes]
    return Program.from_graph(written.graph, inputs, groups, guards)


def _assessed(
    system: BlockSystem, written: Written, outputs: Sequence[str], inputs: dict[str, np.ndarray]
) -> tuple[Program, Safety]:
    """(the guarded program, how it behaves at these inputs).

    From the program's q̈ (or the known one) the other unknowns follow without any division, so that the residual of all
    of them is that of q̈; what else was asked for takes the place of what follows.
    """
    problem, model = system.problem, system.model
    groups = list(written.outputs.items())
    pivots = [x for x, _ in written.pivots]
    values = interpreter.run_groups(_program(problem, written, [*groups, ("pivots", pivots)]), inputs)
    d = _unknowns(system, inputs, values)
    with np.errstate(all="ignore"):
        _, error, component = system.residual(inputs, d)
    error, component = (np.where(np.isfinite(x), x, np.inf) for x in (error, component))
    size = np.abs(np.nan_to_num(values["pivots"], nan=0.0))
    largest, least = size.max(axis=0), size.min(axis=0)
    names = [f"c:tau({model.dof_names[k]}) → qdd({model.dof_names[k]})" for _, k in written.pivots]
    suspects = np.flatnonzero(error > BACKWARD_ERROR)
    regular = np.ones(len(error), dtype=bool)
    if len(suspects):
        regular[suspects] = ~is_singular(system, {name: x[suspects] for name, x in inputs.items()})
    few = max(1, min(WORST_STATES, JUDGED_UNKNOWNS // max(1, system.layout.n)))
    judged = np.union1d(np.argsort(error * regular)[-few:], np.argsort(component * regular)[-few:])
    part = {name: x[judged] for name, x in inputs.items()}
    with np.errstate(all="ignore"):
        plain, refined = (pivoted_solve(system, part, refine=k) for k in (0, 2))
        pivoted = float(np.max(system.residual(part, plain).backward_error))
    ratio = least / np.where(largest > 0.0, largest, 1.0)
    worst = int(np.argmin(ratio)) if names else 0
    safety = Safety(
        int(regular.sum()), float(error[regular].max(initial=0.0)), pivoted,
        relative_difference(system, d[judged], refined), relative_difference(system, plain, refined), 1.0,
        float(ratio[worst]) if names else 1.0, names[worst] if names else "every pivot is constant", 0,
        int((~regular).sum()),
    )  # fmt: skip
    weak = np.minimum(WEAK * largest, HARMLESS * least)
    guards = list(zip(pivots, (GUARD * largest).tolist(), names, weak.tolist(), strict=True))
    return _program(problem, written, [(x, written.outputs[x]) for x in outputs], guards), safety


def _unknowns(system: BlockSystem, inputs: dict[str, np.ndarray], values: dict[str, np.ndarray]) -> np.ndarray:
    """d (N, full layout) that the program's outputs give."""
    model, layout = system.model, system.layout
    n = len(inputs["q"])
    qdd = values.get("qdd", inputs.get("qdd"))
    fx = inputs["fx"].reshape(n, model.nb, 6)
    motion = newton_euler(model, inputs["q"], inputs["qd"], np.nan_to_num(qdd), fx)
    known = np.isin(np.arange(model.nv), sorted(applies(system.problem) or ()))
    tau = np.where(known, inputs.get("tau", 0.0), motion.tau)
    found = {"tau": tau, "qdd": qdd, "fx": fx, "a": motion.a, "f": motion.f}
    d = np.zeros((n, layout.n))
    for name in QUANTITIES:
        columns = layout.quantity_columns(name)
        d[:, columns] = values[name] if name in values else found[name].reshape(n, len(columns))
    return d
