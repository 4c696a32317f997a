"""Operational space of constraints: Jacobian, Delassus matrix, operational-space inertia and projection, compiled.

For m rows J q̈ + J̇ q̇ of contacts, loops and couplings, and the joint-space inertia H with armature:

    Ω = J H⁻¹ J^T,    Λ = Ω⁻¹,    J̄ = H⁻¹ J^T Λ,    N = 1 − J̄ J

Khatib, A unified approach for motion and force control of robot manipulators (1987). Ω is accumulated in the backward
pass of the articulated-body algorithm, Sathya and Carpentier (2024), or follows from a factorisation of H, whichever
needs fewer operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.codegen.interpreter import run_groups
from sysdyn.codegen.registry import backend_named
from sysdyn.errors import InvalidInput, ProblemError, SingularState, check_among
from sysdyn.frameworks.function import Function
from sysdyn.measurements.classical import forward_dynamics
from sysdyn.measurements.constraints import Contact, closures
from sysdyn.measurements.measurement import Constraint
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.offline.recursion import BUDGET
from sysdyn.offline.recursion_constraints import acceleration_rows
from sysdyn.online.robot_functions import Kinematics, ResultDescription
from sysdyn.program.graph import Expr
from sysdyn.program.groups import Groups
from sysdyn.program.program import Program
from sysdyn.recursions.generate import GeneratedDynamics, generate
from sysdyn.runtime.native_calls import ResultLayout

# Share of its typical size below which a pivot counts as zero: results keep about 7 digits there (chosen).
PIVOT_TOL = 1e-9
# States from which the typical sizes of pivots are estimated, and their seed (chosen).
SAMPLES, SEED = 256, 7
_STATE = ("q", "qd")
_NEED_INVERSE = {"inertia", "inverse", "projection"}


def _results(m: int) -> dict[str, ResultDescription]:
    """{name: description, arguments and shape} of each output of `operational_space`, for m constraint rows."""
    return {
        "jacobian": ResultDescription("J of the rows J q̈ + J̇ q̇", ("q",), (m, "nv")),
        "delassus": ResultDescription("Ω = J H⁻¹ J^T: accelerations of the rows per unit wrench", ("q",), (m, m)),
        "inertia": ResultDescription("Λ = Ω⁻¹, the operational-space inertia", ("q",), (m, m)),
        "inverse": ResultDescription("J̄ = H⁻¹ J^T Λ, the dynamically consistent inverse of J", ("q",), ("nv", m)),
        "projection": ResultDescription(
            "N = 1 − J̄ J: projection onto motions in the null space of J", ("q",), ("nv", "nv")
        ),
        "velocity": ResultDescription("J q̇ of the rows", _STATE, (m,)),
        "acceleration": ResultDescription("J q̈ + J̇ q̇ of the rows without constraint forces", (*_STATE, "tau"), (m,)),
    }


def delassus(model: Model, constraints: Constraint | str | Sequence[Constraint | str]) -> Kinematics:
    """Compile Ω(q) = J H⁻¹ J^T (m, m): `operational_space(model, constraints, "delassus")`."""
    return operational_space(model, constraints, "delassus")


def operational_space_inertia(model: Model, constraints: Constraint | str | Sequence[Constraint | str]) -> Kinematics:
    """Compile Λ(q) = (J H⁻¹ J^T)⁻¹ (m, m): `operational_space(model, constraints, "inertia")`."""
    return operational_space(model, constraints, "inertia")


def operational_space(
    model: Model,
    constraints: Constraint | str | Sequence[Constraint | str],
    outputs: str | Sequence[str],
    *,
    level: int = 2,
    backend: str = "llvm",
) -> Kinematics:
    """Compile functions of the m rows J q̈ + J̇ q̇ of constraints into one program.

        space = sd.operational_space(model, ["l_foot", sd.Contact("r_foot", "point")], ["delassus", "projection"])
        space(q)["delassus"]                                    # (…, 9, 9); leading axes are batch axes

    Parameters
    ----------
    constraints
        Contacts, loops and couplings (`sd.closures(model)` has those of the model), or names of frames: all six
        components [ω̇, v̇] in the axes of the frame. Rows are in this order, in rad/s² and m/s²; wrenches are in the same
        axes, in N m and N.
    outputs
        Names of results; a single name gives its array instead of a dict.

        - "jacobian" (m, nv): J
        - "delassus" (m, m): Ω = J H⁻¹ J^T, positive semidefinite
        - "inertia" (m, m): Λ = Ω⁻¹, the operational-space inertia
        - "inverse" (nv, m): J̄ = H⁻¹ J^T Λ, the dynamically consistent inverse: J J̄ = 1
        - "projection" (nv, nv): N = 1 − J̄ J. N q̇ is in the null space of J; torques N^T τ do not accelerate the rows
        - "velocity" (m): J q̇ of q, q̇
        - "acceleration" (m): J q̈ + J̇ q̇ − κ of q, q̇ and τ without constraint forces, gravity included; κ is the
          stabilisation, else 0. The constraint wrenches solve Ω w = −acceleration
    level, backend
        As for `compile_function`.

    Raises
    ------
    ProblemError
        If Ω has no inverse at any state and a result needs it, or if the model has loops or couplings that are not
        among the constraints.
    UnknownName, InvalidInput

    Notes
    -----
    A call raises SingularState, which names a component, if a result needs Ω⁻¹ and rows are linearly dependent, as at a
    stretched leg. It also raises SingularState if a joint moves no inertia.
    """
    problem = forward_dynamics(model.replace(closures=())) + _as_constraints(constraints)
    names = [x.name for x in problem.constraints]
    if missing := [x.name for x in closures(model) if x.name not in names]:
        raise ProblemError(
            f"{model.name!r} has {', '.join(missing)}, which its inertia follows: add *sysdyn.closures(model) to the "
            "constraints, or leave them open by model.replace(closures=())"
        )
    rows = acceleration_rows(problem, with_inputs=False)
    if rows is None:
        raise ProblemError("a constraint whose wrench does work has no Delassus matrix: its loads are not its rows")
    m = sum(x.size for x in rows)
    results = _results(m)
    selected = (outputs,) if isinstance(outputs, str) else tuple(dict.fromkeys(outputs))
    for name in selected or ("",):
        check_among("output", name, results)
    expressions = [*selected, *(["delassus"] if _NEED_INVERSE & {*selected} and "delassus" not in selected else [])]
    try:
        written = generate(model, "tau", expressions, external_wrenches=False, budget=BUDGET, constraints=rows)
    except SingularState as error:
        raise ProblemError(
            f"Ω has no inverse at any state: the {m} rows of {', '.join(names)} follow from each other, or a joint "
            "moves no inertia. Leave components out, or ask for 'delassus' and 'jacobian' alone"
        ) from error
    needed = {x for name in selected for x in results[name].inputs}
    groups = [QUANTITY[x].group(model) for x in QUANTITY if x in needed]
    inputs = [(group.name, list(written.graph.inputs(group.name, group.size))) for group in groups]
    values = [(name, written.outputs[name]) for name in selected]
    program = Program.from_graph(written.graph, inputs, values, _guards(problem, written))
    layout = ResultLayout(
        np.ndarray if isinstance(outputs, str) else dict, selected, tuple(results[x].sizes(model) for x in selected)
    )
    function = Function("operational_space", backend_named(backend)(program, level), Groups(groups), layout)
    return Kinematics(model, function, {name: (name, results[name]) for name in selected})


def _as_constraints(constraints: Constraint | str | Sequence[Constraint | str]) -> list[Constraint]:
    """Constraints; names of frames become contacts. Raises InvalidInput."""
    items = [constraints] if isinstance(constraints, (str, Constraint)) else list(constraints)
    wrong = [f"{x!r} is no constraint" for x in items if not isinstance(x, (str, Constraint))]
    if wrong or not items:
        raise InvalidInput(
            f"{[*wrong, 'there are no constraints'][0]}: give sysdyn.Contact(…), a LoopJoint or the name of a frame"
        )
    return [Contact(x, name=x) if isinstance(x, str) else x for x in items]


def _guards(problem: Problem, written: GeneratedDynamics) -> list[tuple[Expr, float, str, float]]:
    """Guard of each pivot. Raises ProblemError for rows that are dependent at all sampled states.

    The pivot of row e is Ω_ee minus other terms, so its threshold is relative to the typical size of Ω_ee.
    """
    model, nv = problem.model, problem.model.nv
    rows = [(m.name, x) for m in problem.constraints for x in m.components(model)]
    pivots = {x.node: (x, k) for x, k in reversed(written.pivots) if type(x) is Expr}.values()
    inputs = [(x, list(written.graph.inputs(x, n))) for x, n in (("q", model.nq), ("qd", nv), ("tau", nv))]
    omega = written.outputs.get("delassus", [])[:: len(rows) + 1]
    program = Program.from_graph(written.graph, inputs, [("pivots", [x for x, _ in pivots]), ("omega", omega)])
    q, qd, tau = model.random_state(seed=SEED, batch=SAMPLES)
    samples = {name: np.abs(x) for name, x in run_groups(program, {"q": q, "qd": qd, "tau": tau}).items()}
    typical = {name: np.median(x, axis=0) for name, x in samples.items()}
    guards = []
    for j, (x, k) in enumerate(pivots):
        size = typical["pivots"][j] if k < nv else typical["omega"][k - nv]
        threshold = float(f"{PIVOT_TOL * size:.1e}")  # the same on every processor
        label = f"joint {model.dof_names[k]} moves no inertia there" if k < nv else ""
        if k >= nv:
            name, component = rows[k - nv]
            label = f"{component} of {name!r} follows from the other rows there, so that Ω has no inverse"
            if np.all(samples["pivots"][:, j] < PIVOT_TOL * size):
                raise ProblemError(
                    f"{component} of {name!r} follows from the other rows at every state, so that Ω has no inverse. "
                    "Leave it out, or ask for 'delassus' and 'jacobian' alone"
                )
        guards.append((x, threshold, label, threshold))
    return guards
