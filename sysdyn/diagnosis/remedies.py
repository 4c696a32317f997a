"""Minimal sets of measurements to add or remove so that a problem has one solution, and advice in sentences.

Independent rows form a matroid, so a greedy selection of independent rows is a basis: none of its rows can be omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.diagnosis.null_space import INDEPENDENT, ZERO
from sysdyn.diagnosis.structure import LEADING, unknown_names
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import few
from sysdyn.measurements.known_quantities import Known, RawMeasurement, known
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.massless import inertialess_joints
from sysdyn.model.quantities import QUANTITIES

# Least component of a removed row relative to the greatest candidate. The condition number grows by at most 2e4 (200
# states of four sensor problems).
REMOVABLE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A measurement that could be added.

    responses (components, directions): rows of the measurement times the null directions. divisible: single components
    can be added.
    """

    measurement: Measurement
    responses: np.ndarray
    divisible: bool

    @property
    def exact(self) -> bool:
        return self.measurement.noise is None


def greedy_basis(rows: np.ndarray, order: Sequence[int], initial: np.ndarray | None = None) -> list[int]:
    """Indices of rows that are independent of each other and of the rows `initial`, selected greedily in `order`.

    Nearly dependent rows are used only if the others do not suffice.
    """
    basis = np.zeros((0, rows.shape[1])) if initial is None else np.linalg.qr(initial.T)[0].T
    numbers: list[int] = []
    for least in INDEPENDENT:
        for r in order:
            if len(basis) == rows.shape[1]:
                return numbers
            if r in numbers:
                continue
            orthogonal = rows[r]
            for _ in range(2):  # the second time against rounding errors
                orthogonal = orthogonal - basis.T @ (basis @ orthogonal)
            size = float(np.linalg.norm(orthogonal))
            if size > max(least * float(np.linalg.norm(rows[r])), ZERO):
                basis = np.vstack([basis, orthogonal / size])
                numbers.append(r)
    return numbers


def rank(rows: np.ndarray) -> int:
    """Numerical rank with the thresholds of `greedy_basis`."""
    return len(greedy_basis(rows, range(len(rows))))


def additions(candidates: Sequence[Candidate], missing: int) -> list[tuple[Candidate, list[int]]] | None:
    """Minimal set [(candidate, components)] that observes all `missing` directions; None if there is none.

    Greedy: candidates whose components are all independent come first, then those with the most independent
    components. All components of an indivisible exact measurement have to be independent, because dependent exact
    equations are redundant.
    """
    selection: list[tuple[Candidate, list[int]]] = []
    remaining, basis = list(candidates), np.zeros((0, missing))
    while rank(basis) < missing:
        offers = []  # (True if all components are new, number of new ones, −place of the candidate, new ones)
        for place, c in enumerate(remaining):
            rows = greedy_basis(c.responses, range(len(c.responses)), basis)
            if rows and (len(rows) == len(c.responses) or c.divisible or not c.exact):
                offers.append((len(rows) == len(c.responses), len(rows), -place, sorted(rows)))
        if not offers:
            return None
        _, _, place, rows = max(offers)
        candidate = remaining.pop(-place)
        basis = np.vstack([basis, candidate.responses[rows]])
        components = rows if candidate.exact or candidate.divisible else list(range(len(candidate.responses)))
        selection.append((candidate, components))
    for member in reversed(selection):
        others = [x for x in selection if x is not member]
        if others and rank(np.vstack([c.responses[k] for c, k in others])) == missing:
            selection = others
    return selection


def removals(dependent: Sequence[np.ndarray], order: Sequence[int]) -> list[int]:
    """Rows to remove so that the remaining ones are independent, one for each dependency; earlier in `order` first.

    dependent: orthonormal bases (equations, k) of the left null space, at one or more states. The condition number of
    the remaining rows is at most that of all rows divided by the least singular value of the basis at the removed rows.
    So a row is removed only if, at every state, its component orthogonal to previously removed rows is at least
    `REMOVABLE` times the greatest such component.
    """
    bases, rows = [basis[list(order)] for basis in dependent], list(order)
    numbers: list[int] = []
    for _ in range(bases[0].shape[1]):
        sizes = np.array([np.linalg.norm(basis, axis=1) for basis in bases])
        share = sizes.min(axis=0) if sizes.min(axis=0).max() > ZERO else sizes[0]
        k = int(np.argmax(share >= REMOVABLE * share.max()))
        numbers.append(rows[k])
        for basis, size in zip(bases, sizes[:, k], strict=True):
            direction = basis[k] / (size or 1.0)
            basis -= np.outer(basis @ direction, direction)
    return numbers


def restricted(m: Measurement, components: Sequence[int], model: Model) -> list[Measurement]:
    """Measurements of only these components; a known quantity of several bodies may be split into several."""
    if len(components) == len(m.components(model)):
        return [m]
    if not isinstance(m, RawMeasurement):
        return [m.select(components)]
    layout, pairs = Layout(model), m.pairs(model)
    if m.noise is not None:
        return [m.select(components)]
    by_body: dict[int, list[int]] = {}
    for k in components:
        by_body.setdefault(pairs[k][0], []).append(pairs[k][1])
    owners: dict[str | tuple, list[str]] = {}  # by the names of their components
    for i, numbers in by_body.items():
        names = m.stated.components(model, i)
        key = "all" if len(numbers) == layout.size(m.quantity, i) else tuple(names[n] for n in sorted(numbers))
        owners.setdefault(key, []).append(layout.owner(m.quantity, i))
    return [known(m.quantity, tuple(targets), key) for key, targets in owners.items()]


def as_code(m: Measurement, model: Model) -> str:
    """The measurement as Python code if that is short, else its name and components."""
    if isinstance(m, RawMeasurement) and m.selectable and m.selection is None:
        owners = m.targets if isinstance(m.targets, str) or len(m.targets) > 1 else m.targets[0]
        parts = "" if m.chosen == "all" else f", {list(m.chosen)!r}"
        quantity = f"{m.quantity!r}, " if isinstance(m, Known) else ""
        return f"{type(m).__name__}({quantity}{owners!r}{parts})"
    names = m.components(model)
    return m.name if len(names) == 1 and names[0] in m.name else f"{m.name}: {', '.join(names)}"


# ---- sentences -------------------------------------------------------------------------------------------------------


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
