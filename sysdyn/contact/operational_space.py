"""Constraints as a robot feels them: their Jacobian, Delassus matrix and operational-space inertia, compiled.

For m rows J q̈ + J̇ q̇ of contacts, loops and couplings, and the joint-space inertia H with its armature:

    Ω = J H⁻¹ J^T,    Λ = Ω⁻¹,    J̄ = H⁻¹ J^T Λ,    N = 1 − J̄ J

Ω turns wrenches into accelerations of the rows, N q̇ is the part of a motion that the constraints leave alone, and N^T τ
the torques that exert nothing on them. Khatib, A unified approach for motion and force control of robot manipulators
(1987); Ω is gathered on the way of the articulated bodies to the base as by Sathya and Carpentier (2024), or by an
elimination of H, whichever takes fewer operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.codegen.interpreter import run_groups
from sysdyn.codegen.registry import backend_named
from sysdyn.errors import InvalidInput, ProblemError, SingularState, check_among
from sysdyn.frameworks.function import Function
from sysdyn.measurements.constraints import Contact, closures
from sysdyn.measurements.measurement import Constraint
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.offline.constrained import carried
from sysdyn.offline.recursion import BUDGET
from sysdyn.problem import Problem, forward_dynamics
from sysdyn.program.graph import Expr, Scalar
from sysdyn.program.groups import Groups
from sysdyn.program.program import Program
from sysdyn.recursions.write import Written, write
from sysdyn.reference.robot_functions import Kinematics, Result
from sysdyn.runtime.native_calls import ResultLayout

# Share of its usual size below which a pivot counts as zero: a result keeps some 7 digits there (chosen).
NO_INVERSE = 1e-9
# States at which the sizes of pivots are told, and their seed (chosen).
SAMPLED, SAMPLE_SEED = 256, 7
_STATE = ("q", "qd")
_OF_OMEGA = ("inertia", "inverse", "projection")  # Results that the inverse of Ω is part of.


def _results(m: int) -> dict[str, Result]:
    """The results that `operational_space` knows, of m rows."""
    return {
        "jacobian": Result("J of the rows J q̈ + J̇ q̇", ("q",), (m, "nv")),
        "delassus": Result("Ω = J H⁻¹ J^T: accelerations of the rows by unit wrenches", ("q",), (m, m)),
        "inertia": Result("Λ = Ω⁻¹, the operational-space inertia", ("q",), (m, m)),
        "inverse": Result("J̄ = H⁻¹ J^T Λ, the dynamically consistent inverse of J", ("q",), ("nv", m)),
        "projection": Result("N = 1 − J̄ J: N q̇ is the motion that the constraints leave", ("q",), ("nv", "nv")),
        "velocity": Result("J q̇ of the rows", _STATE, (m,)),
        "acceleration": Result("J q̈ + J̇ q̇ of the rows if the constraints exert nothing", (*_STATE, "tau"), (m,)),
    }


def delassus(model: Model, constraints: Constraint | str | Sequence[Constraint | str]) -> Kinematics:
    """Ω(q) = J H⁻¹ J^T (m, m), compiled: `operational_space(model, constraints, "delassus")`."""
    return operational_space(model, constraints, "delassus")


def operational_space_inertia(model: Model, constraints: Constraint | str | Sequence[Constraint | str]) -> Kinematics:
    """Λ(q) = (J H⁻¹ J^T)⁻¹ (m, m), compiled: `operational_space(model, constraints, "inertia")`."""
    return operational_space(model, constraints, "inertia")


def operational_space(
    model: Model,
    constraints: Constraint | str | Sequence[Constraint | str],
    outputs: str | Sequence[str],
    *,
    level: int = 2,
    backend: str = "llvm",
) -> Kinematics:
    """Functions of the m rows J q̈ + J̇ q̇ of constraints, compiled into one program.

        space = sd.operational_space(model, ["l_foot", sd.Contact("r_foot", "point")], ["delassus", "projection"])
        space(q)["delassus"]                                    # (…, 9, 9); leading axes are batch axes

    constraints: contacts, loops and couplings (`sd.closures(model)` has those of the model), or names of frames, of
    which all six components count as `Contact` has them: [ω̇, v̇] in the axes of the frame. Rows are in their order,
    in rad/s² and m/s², and wrenches in the same axes in N m and N. outputs:

        jacobian (m, nv)         J
        delassus (m, m)          Ω = J H⁻¹ J^T, H with the armature; positive semidefinite
        inertia (m, m)           Λ = Ω⁻¹, the operational-space inertia
        inverse (nv, m)          J̄ = H⁻¹ J^T Λ, the dynamically consistent inverse: J J̄ = 1
        projection (nv, nv)      N = 1 − J̄ J: N q̇ is the motion that the constraints leave, and torques N^T τ exert
                                 nothing on them
        velocity (m)             J q̇, of q and q̇
        acceleration (m)         J q̈ + J̇ q̇ − κ of q, q̇ and τ if the constraints exert nothing, gravity included; κ is
                                 what `stabilise=` asks for, else 0. Ω w = −acceleration are the wrenches that hold

    A single name gives its array alone. level, backend: as for `compile_function`.

    A call raises SingularState, naming a component, where Ω has no inverse and one is asked for: where rows follow
    from others, as those of a stretched leg do, or where a joint moves no inertia. Raises ProblemError if that is so
    at every state, or if the model has loops or couplings that are not among the constraints; UnknownName,
    InvalidInput.
    """
    problem = forward_dynamics(model.replace(closures=())) + _constraints(constraints)
    names = [x.name for x in problem.constraints]
    if open_ones := [x.name for x in closures(model) if x.name not in names]:
        raise ProblemError(
            f"{model.name!r} has {', '.join(open_ones)}, which its inertia follows: add *sysdyn.closures(model) to the "
            "constraints, or leave them open by model.replace(closures=())"
        )
    held = carried(problem, valued=False)
    if held is None:
        raise ProblemError("a constraint whose wrench does work has no Delassus matrix: its loads are not its rows")
    rows = sum(x.size for x in held)
    known = _results(rows)
    wanted = (outputs,) if isinstance(outputs, str) else tuple(dict.fromkeys(outputs))
    for name in wanted or ("",):
        check_among("output", name, known)
    inverted = bool({*_OF_OMEGA} & {*wanted})
    asked = [*wanted, *(["delassus"] if inverted and "delassus" not in wanted else [])]
    try:
        written = write(model, "tau", asked, external_wrenches=False, budget=BUDGET, constraints=held)
    except SingularState as error:
        raise ProblemError(
            f"Ω has no inverse at any state: the {rows} rows of {', '.join(x.name for x in held)} follow from each "
            "other, or a joint moves no inertia. Leave components out, or ask for 'delassus' and 'jacobian' alone"
        ) from error
    needed = {x for name in wanted for x in known[name].needs}
    groups = [QUANTITY[x].group(model) for x in QUANTITY if x in needed]
    inputs = [(group.name, list(written.graph.inputs(group.name, group.size))) for group in groups]
    values = [(name, written.outputs[name]) for name in wanted]
    pivots = {x.node: (x, k) for x, k in reversed(written.pivots) if type(x) is Expr}
    guards = _guards(problem, written, list(pivots.values()))
    program = Program.from_graph(written.graph, inputs, values, guards)
    make = np.ndarray if isinstance(outputs, str) else dict
    layout = ResultLayout(make, wanted, tuple(known[name].sizes(model) for name in wanted))
    function = Function("operational_space", backend_named(backend)(program, level), Groups(groups), layout)
    return Kinematics(model, function, {name: (name, known[name]) for name in wanted})


def _constraints(given: Constraint | str | Sequence[Constraint | str]) -> list[Constraint]:
    """Constraints, contacts for names of frames. Raises InvalidInput."""
    every = [given] if isinstance(given, (str, Constraint)) else list(given)
    for x in every:
        if not isinstance(x, (str, Constraint)):
            raise InvalidInput(f"{x!r} is no constraint: give sysdyn.Contact(…), a LoopJoint or the name of a frame")
    if not every:
        raise InvalidInput("there are no constraints: give sysdyn.Contact(…), a LoopJoint or the name of a frame")
    return [Contact(x, name=x) if isinstance(x, str) else x for x in every]


def _guards(
    problem: Problem, written: Written, pivots: list[tuple[Scalar, int]]
) -> list[tuple[Scalar, float, str, float]]:
    """(pivot, limit, message, limit) of each pivot. Raises ProblemError for rows that repeat.

    The size of a pivot is told by what it is the difference of: Ω_ee of row e, and D itself of a degree of freedom.
    """
    model, nv = problem.model, problem.model.nv
    rows = [(m.name, x) for m in problem.constraints for x in m.components(model)]
    inputs = [(x, list(written.graph.inputs(x, n))) for x, n in (("q", model.nq), ("qd", nv), ("tau", nv))]
    omega = written.outputs.get("delassus", [])[:: len(rows) + 1]
    program = Program.from_graph(written.graph, inputs, [("pivots", [x for x, _ in pivots]), ("omega", omega)])
    q, qd, tau = model.random_state(seed=SAMPLE_SEED, batch=SAMPLED)
    found = run_groups(program, {"q": q, "qd": qd, "tau": tau})
    sizes, of_rows = np.abs(found["pivots"]), np.median(np.abs(found["omega"]), axis=0)
    guards = []
    for (x, k), size in zip(pivots, sizes.T, strict=True):
        if k < nv:
            says = f"joint {model.dof_names[k]} moves no inertia there"
            limit = NO_INVERSE * float(np.median(size))
        else:
            name, component = rows[k - nv]
            says = f"{component} of {name!r} follows from the other rows there, so that Ω has no inverse"
            limit = NO_INVERSE * float(of_rows[k - nv])
            if np.all(size < limit):
                raise ProblemError(
                    f"{component} of {name!r} follows from the other rows at every state, so that Ω has no inverse. "
                    "Leave it out, or ask for 'delassus' and 'jacobian' alone"
                )
        limit = float(f"{limit:.1e}")  # the same on every processor
        guards.append((x, limit, says, limit))
    return guards
