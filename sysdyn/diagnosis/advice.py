"""Advice sentences for ill-posed problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.diagnosis.remedies import as_code, greedy_basis, restricted
from sysdyn.diagnosis.structure import LEADING, unknown_names
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import few
from sysdyn.measurements.known_quantities import known
from sysdyn.measurements.measurement import Measurement
from sysdyn.model.massless import inertialess_joints
from sysdyn.model.quantities import QUANTITIES


def statement_advice(system: BlockSystem, columns: Sequence[int], missing: int, by_structure: int, example: str) -> str:
    """Sentence with the names of undetermined quantities and the number of them that a user has to state.

    columns: the undetermined unknowns. missing: number of null directions; by_structure: those due to the pattern
    alone. example: measurements that suffice, as Python code.
    """
    quantity = [block[0] for block in system.col_blocks]
    possible = [c for c in columns if quantity[c] != "w"]  # a constraint's wrench is no input
    names = unknown_names(system, [c for c in possible if quantity[c] in LEADING] or possible)
    if not names:
        text = f"leave out constraints that fix the same motion twice, with {few(unknown_names(system, columns), 8)}"
    elif missing == by_structure:
        text = f"state {missing} of: {few(names, 8)}"
    else:
        text = f"state one of {few(names, 8)} for each direction that is missing ({missing})"
    return f"{text}; for example {example}" if example else text


def example_to_state(system: BlockSystem, null_space: np.ndarray, first: set[str]) -> str:
    """Python code of measurements that together observe a null space (unknowns, k); "" if there are none.

    first: names of the unknowns to measure preferably.
    """
    layout = system.layout
    quantities = (*QUANTITIES, *layout.further)
    columns = {x: layout.quantity_columns(x) for x in quantities}
    order = sorted(
        ((c, x) for x in quantities for c in columns[x]),
        key=lambda place: (layout.names[place[0]] not in first, place[1] not in LEADING),
    )
    basis = set(greedy_basis(null_space, [c for c, _ in order]))
    if len(basis) < null_space.shape[1]:
        return ""
    measurements: list[Measurement] = []
    for x in quantities:
        if components := [k for k, c in enumerate(columns[x]) if c in basis]:
            measurements += restricted(known(x), components, system.model)
    return few([as_code(m, system.model) for m in measurements])


def removal_advice(redundant: Sequence[str], removals: Sequence[str], excess: int) -> str:
    """Sentence with the names of redundant equations. removals: a sufficient subset to remove, () if unknown."""
    example = f"; for example {few(removals)}" if removals and len(redundant) > excess else ""
    return f"leave out {excess} of: {few(redundant, 8)}{example}"


def cause_advice(system: BlockSystem, columns: Sequence[int]) -> list[str]:
    """Sentences on two causes of undetermined unknowns: joints without inertia, motors in parallel with contacts."""
    problem, model, blocks = system.problem, system.model, {system.col_blocks[c] for c in columns}
    accelerations = {model.joint_names[i] for quantity, i in blocks if quantity == "qdd"}
    inertialess = [x for x in inertialess_joints(model) if x.joint in accelerations] if accelerations else []
    sentences = [f"{x}; give the body an inertia or the joint an armature" for x in inertialess]
    bodies = sorted({i for i, _ in problem.knows("qdd") if ("tau", i) in blocks})
    constraints = [m.name for k, m in enumerate(problem.constraints) if ("w", k) in blocks]
    if bodies and constraints:
        motors = few([repr(model.joint_names[i]) for i in bodies])
        sentences.append(
            f"the motion is known, but not how {few(map(repr, constraints))} and the motors of {motors} share the "
            "load: state torques in place of accelerations of some of these joints; or take the least wrenches, by "
            "sysdyn.inverse_dynamics(model, contacts=[…]) or sysdyn.least_norm(problem, q, qd, …)"
        )
    return sentences
