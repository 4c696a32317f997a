"""Inverse, forward and hybrid dynamics by a recursion instead of an elimination.

Recursions are checked like eliminations: residual of the system at sampled states, and pivoted solves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.backward_error import residual_at
from sysdyn.equations.formulation import blocks_of
from sysdyn.equations.measurement_rows import measurement_row_name
from sysdyn.equations.problem_system import assemble
from sysdyn.equations.system import System
from sysdyn.errors import NoSafeOrdering, SingularState
from sysdyn.measurements.classical import is_classical, torque_freedoms
from sysdyn.measurements.measurement import Context, Measurement
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.variables import Layout
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.check import (
    Check,
    CheckedProgram,
    Results,
    SampledStates,
    StateArrays,
    check,
    chunk_of,
    relative_difference,
)
from sysdyn.offline.options import Options
from sysdyn.offline.recursion_constraints import acceleration_rows, load_matrices, measured_rows
from sysdyn.offline.report import BACKWARD_ERROR, GOOD_ERROR, Choice
from sysdyn.offline.sampling import PASSES_SEED, VERIFIED_STATES, sample_states
from sysdyn.program.autodiff import to_graph
from sysdyn.program.graph import SHARING, Graph, strip_sign
from sysdyn.program.program import Program
from sysdyn.recursions.generate import ROWS, GeneratedDynamics, generate
from sysdyn.reference.aba import articulated_bodies
from sysdyn.reference.rnea import newton_euler

# Search budget at effort 1: operations of all recursions that are generated (CPU time).
BUDGET = 40_000
# Group of a checked program that holds its pivots.
PIVOTS = "pivots"
# Output groups of the wrenches on bodies and joint torques of constraints.
LOADS = ("wrenches on bodies", "torques on joints")


def torque_driven(problem: Problem) -> frozenset[int] | None:
    """Torque-driven degrees of freedom of a problem that recursions can solve; None for other problems.

    The other degrees of freedom have known q̈, and all fx are known. Constraints require at least one torque-driven
    degree of freedom.
    """
    if is_classical(problem):
        return torque_freedoms(problem)
    if problem.noisy or problem.parameters or set(problem.custom) != set(problem.constraints):
        return None
    return (torque_freedoms(problem) or None) if acceleration_rows(problem) is not None else None


def computes_outputs(problem: Problem, options: Options) -> bool:
    """True if a recursion can compute all outputs: τ, q̈, w, and measurements of a and q̈."""
    names = {x for x in options.outputs if isinstance(x, str)}
    return names <= {"tau", "qdd", problem.wrenches.name} and measured_rows(problem, options.measured) is not None


def budget(options: Options) -> float:
    """Search budget: operations of all recursions that may be generated."""
    return BUDGET * options.effort if options.level == "best" else 0.0


def generate_dynamics(problem: Problem, options: Options) -> GeneratedDynamics:
    """The cheapest recursion that the search finds. `torque_driven(problem)` must not be None."""
    free = torque_driven(problem)
    assert free is not None
    measured = (measured_rows(problem, options.measured) if computes_outputs(problem, options) else None) or ()
    other = () if measured else options.measured  # evaluated from quantities by their rows
    # the check needs q̈; the program omits it if it is not an output
    needed = {x for x, _ in blocks_of(problem.model, other)} | set(options.output_names)
    every = [x for x in QUANTITIES if x in needed or (x == "qdd" and free)]
    every += [problem.wrenches.name] if problem.constraints else []
    return generate(
        problem.model, free, [*every, *(x.name for x in measured)], options.external_wrenches, budget=budget(options),
        passes=options.passes, constraints=acceleration_rows(problem) or (), measured=measured,
    )  # fmt: skip


def generate_inverse(problem: Problem, options: Options) -> GeneratedDynamics:
    """Inverse dynamics of the robot of a problem, with the rows of its constraints."""
    outputs, constraints = ("tau", ROWS) if problem.constraints else ("tau",), acceleration_rows(problem) or ()
    return generate(
        problem.model, frozenset(), outputs, options.external_wrenches, budget=budget(options), passes=options.passes,
        constraints=constraints,
    )  # fmt: skip


def compile_recursion(
    problem: Problem, dynamics: GeneratedDynamics, options: Options, states: int | None = None
) -> tuple[Choice, Program]:
    """Compile a recursion; returns (its costs and the report of its check, the program with guards).

    It is checked like an elimination of the system. The check computes all unknowns from the program's q̈ (or the known
    one) by division-free recursions, so that the residual measures the error of q̈. Unknowns that the program outputs
    are taken from the program instead. states: number of sampled states, see `SampledStates.of`.
    """
    pivots = [strip_sign(x) for x, _ in dynamics.pivots]
    labels = pivot_labels(problem, [k for _, k in dynamics.pivots])
    program = _program(
        problem,
        dynamics,
        [*dynamics.outputs.items(), (PIVOTS, pivots), *loads(problem, dynamics.graph, dynamics.outputs.get("w", ()))],
    )
    checked = check_recursion(problem, program, labels, options.external_wrenches, states)
    _require_outputs(problem, program, options)
    guards = [(x, zero, label, weak) for x, label, (zero, weak) in zip(pivots, labels, checked.thresholds, strict=True)]
    with dynamics.graph:
        outputs = [(x, dynamics.outputs[x]) for x in options.outputs if isinstance(x, str)]
        outputs += _measured_outputs(problem, dynamics, options.measured)
        program = _program(problem, dynamics, outputs, guards)
    choice = Choice(
        ordering=dynamics.method, row_perm=(), col_perm=(), end_to_end=program.flops,
        solve=dynamics.flops_given_kinematics, fill_in=0,
        triangular=not dynamics.pivots, stability=checked.report, passes=tuple(options.passes),
    )  # fmt: skip
    return choice, program


def _require_outputs(problem: Problem, program: Program, options: Options) -> None:
    """Raise NoSafeOrdering if measured outputs of a program differ from Y d + b_Y at sampled states."""
    measured = [m for m in options.measured if m.name in program.outputs]
    if not measured:
        return
    system = assemble(problem, outputs=(*QUANTITIES, *measured))
    inputs = sample_states(problem, VERIFIED_STATES, PASSES_SEED)
    values = interpreter.run_groups(program, inputs)
    d, error = _unknowns(system, inputs, values)
    compared = error < GOOD_ERROR
    if not compared.any():
        raise NoSafeOrdering(
            f"measurements computed by a recursion cannot be checked: its backward error is {np.min(error):.1e} or "
            f"more at all of {VERIFIED_STATES} sampled states"
        )
    shown = system.output_values(inputs, d)
    for m in measured:
        y, size = shown[m.name]
        off = relative_difference(values[m.name], y, size.max(axis=1))
        if not (worst := float(np.max(off[compared]))) <= BACKWARD_ERROR:
            raise NoSafeOrdering(f"a recursion computes measurement {m.name!r} with an error of {worst:.1e}")


def pivot_labels(problem: Problem, freedoms: Sequence[int]) -> list[str]:
    """Label (equation → unknown) of each pivot. freedoms: degree of freedom, or nv + component of the constraints."""
    model = problem.model
    labels = [f"c:tau({name}) → qdd({name})" for name in model.dof_names]
    for m in problem.constraints:
        labels += [
            f"{measurement_row_name(m, x)} → w({m.name}: {y})"
            for x, y in zip(m.components(model), m.wrench(model), strict=True)
        ]
    return [labels[k] for k in freedoms]


def check_recursion(
    problem: Problem, program: Program, labels: Sequence[str], wrenches: bool, states: int | None
) -> Check:
    """Check the residuals and pivots of a recursion at sampled states; returns the report and pivot thresholds.

    program: has the outputs PIVOTS, q̈ unless it is known, and possibly other quantities. labels: of the pivots.
    wrenches: True if external wrenches are inputs, else they are zero. states: number, see `SampledStates.of`.
    """

    def run(part: StateArrays) -> Results:
        values = interpreter.run_groups(program, part)
        with np.errstate(all="ignore"):
            d, error = _unknowns(sampled.system, part, values)
        return Results(d, values[PIVOTS], error)

    sampled = SampledStates.of(assemble(problem), states, wrenches)
    return check(CheckedProgram(run=run, labels=labels, chunk=chunk_of(program)), sampled)


def _measured_outputs(
    problem: Problem, dynamics: GeneratedDynamics, measured: Sequence[Measurement]
) -> list[tuple[str, list]]:
    """(name, scalars) of each measured output: an output of the recursion, or Y d + b_Y with its outputs as d."""
    if all(m.name in dynamics.outputs for m in measured):
        return [(m.name, dynamics.outputs[m.name]) for m in measured]
    model, layout, graph = problem.model, Layout(problem.model), dynamics.graph
    q, qd = graph.inputs("q", model.nq), graph.inputs("qd", model.nv)
    X = joint_transforms(model, q)
    ctx = Context(model, X, velocities(model, X, qd)[0], q, qd)
    groups = []
    for m in measured:
        y = np.asarray(m.bias(ctx)).astype(object)
        for (quantity, owner), block in m.rows(ctx).items():
            _, i = layout.block(quantity, owner)
            start = layout.quantity_columns(quantity).index(layout.columns(quantity, i).start)
            x = dynamics.outputs[quantity][start : start + layout.size(quantity, i)]
            y = y + np.asarray(block).astype(object) @ np.array(x, dtype=object)
        groups.append((m.name, list(y)))
    return groups


def loads(problem: Problem, graph: Graph, w: Sequence) -> list[tuple[str, list]]:
    """Total constraint wrenches on bodies (6 nb) and torques (nv), as output groups LOADS; none if unconstrained."""
    if not problem.constraints:
        return []
    model, wrenches = problem.model, np.array([*w, None], dtype=object)[:-1]
    context = Context.at(model, graph.inputs("q", model.nq), graph.inputs("qd", model.nv))
    matrices, torques = load_matrices(problem, context)
    bodies = np.full((model.nb, 6), 0.0, dtype=object)
    for i, L in matrices.items():
        bodies[i] = L @ wrenches
    joints = torques @ wrenches
    return list(zip(LOADS, (list(bodies.flat), list(joints)), strict=True))


def _program(problem: Problem, dynamics: GeneratedDynamics, groups: Sequence, guards: Sequence = ()) -> Program:
    inputs = [(name, list(dynamics.graph.inputs(name, size))) for name, size in problem.input_sizes]
    return with_couplings(problem, Program.from_graph(dynamics.graph, inputs, groups, guards))


def with_couplings(problem: Problem, program: Program) -> Program:
    """The program of a tree with couplings added: q and q̇ of followers are computed from their leaders."""
    if not problem.couplings:
        return program
    graph, sizes = Graph(SHARING), program.inputs.sizes
    q, qd = problem.imposed(*(graph.inputs(name, sizes[name]) for name in ("q", "qd")))
    symbolic = to_graph(program, graph, {"q": list(q), "qd": list(qd)})
    return symbolic.to_program({}, symbolic.outputs, program.ranges, simplified=False)


def _unknowns(system: System, inputs: StateArrays, values: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(d (N, full layout) from the program's outputs, its backward error (N,)).

    a and f are computed from q̈, which magnifies rounding errors of q̈ in a long chain. If the residual is large, a and
    f of the articulated-body algorithm replace them if their residual is less.
    """
    model = system.model
    n = len(inputs["q"])
    qdd = values["qdd"] if "qdd" in values else inputs["qdd"]
    fx = inputs["fx"].reshape(n, model.nb, 6)
    wrenches, torques = (np.nan_to_num(values[x]) if x in values else np.zeros((n, 1)) for x in LOADS)
    acting = fx + (wrenches.reshape(n, -1, 6) if LOADS[0] in values else 0.0)
    motion = newton_euler(model, inputs["q"], inputs["qd"], np.nan_to_num(qdd), acting)
    free = torque_driven(system.problem) or frozenset()
    known = np.isin(np.arange(model.nv), sorted(free))
    tau = np.where(known, inputs.get("tau", 0.0), motion.tau - torques)
    quantities = motion.quantities(qdd, fx) | {"tau": tau} | values
    d = np.zeros((n, system.layout.n))
    _fill(system.layout, d, {name: quantities[name] for name in system.problem.quantities})
    error = residual_at(system, inputs, d).backward_error
    inaccurate = np.flatnonzero(error > GOOD_ERROR)
    if len(inaccurate) and len(free) == model.nv and not {"a", "f"} & set(values):
        part = {name: x[inaccurate] for name, x in inputs.items()}
        driven = part["tau"] + torques[inaccurate]
        with contextlib.suppress(SingularState):
            tree = model.replace(closures=())  # `driven` includes the torques of couplings
            textbook = articulated_bodies(tree, part["q"], part["qd"], driven, acting[inaccurate])
            other = d[inaccurate]
            _fill(system.layout, other, {"a": textbook.a, "f": textbook.f})
            other_error = residual_at(system, part, other).backward_error
            better = other_error < error[inaccurate]
            d[inaccurate[better]], error[inaccurate[better]] = other[better], other_error[better]
    return d, error


def _fill(layout: Layout, d: np.ndarray, values: dict[str, np.ndarray]) -> None:
    """Write quantities into d (N, full layout)."""
    for name, x in values.items():
        columns = layout.quantity_columns(name)
        d[:, columns] = x.reshape(len(d), len(columns))
