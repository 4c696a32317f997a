"""Diagnosis of a problem: undetermined unknowns, redundant equations, and remedies, by name.

The structure is diagnosed by the Dulmage-Mendelsohn blocks of the worst-case pattern, the values by the null spaces of
the system at sampled states, because equations can be dependent by value at some or all states.

A problem is well posed if all equations together have full column rank and the exact ones full row rank. Without noise
it then has as many equations as unknowns; with noise it may have more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.directions import null_directions
from sysdyn.diagnosis.null_space import ZERO, MotionElimination, NullSpaces, involved
from sysdyn.diagnosis.remedies import (
    Candidate,
    additions,
    as_code,
    cause_advice,
    example_to_state,
    greedy_basis,
    removal_advice,
    removals,
    restricted,
    statement_advice,
)
from sysdyn.diagnosis.report import Diagnosis, StateDiagnosis
from sysdyn.diagnosis.structure import Structure, equation_names, structure, unknown_names
from sysdyn.equations.formulation import formulate
from sysdyn.equations.system import BlockSystem, System
from sysdyn.errors import InvalidInput, ProblemError, StructurallySingular, check_among, few
from sysdyn.measurements.input_names import SWITCH, group_of
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.noise import ModelNoise
from sysdyn.measurements.problem import Problem, switches
from sysdyn.model import Model
from sysdyn.model.massless import without_inertia
from sysdyn.sparse.condition import skeel_condition
from sysdyn.sparse.dulmage import maximum_matching

# Least component of a null direction, relative to the greatest, whose unknown or measurement is named at one state.
NAMED = 1e-3
# Null spaces are computed up to this number of unknowns q̈, fx and w: the singular values of longer stretched chains
# spread over more than ten decades.
MAX_UNKNOWNS = 300


def diagnose(
    problem: Problem, available: Sequence[Measurement] = (), active: Mapping[str, ArrayLike] | None = None
) -> Diagnosis:
    """Check whether the problem is well posed at a known state; `sysdyn.observability` checks a log.

    Parameters
    ----------
    problem : Problem
        The model and its measurements.
    available : sequence of Measurement
        Sensors that could be added if measurements are missing.
    active : mapping of str to bool or (m,) bool, optional
        On (True) or off for Switchable measurements, as in a call of a Solver. The equations of a measurement that
        is off do not count.

    Returns
    -------
    Diagnosis
        Undetermined unknowns, redundant measurements and remedies, by name.

    Raises
    ------
    InvalidInput
        If `available` has members that cannot be added.
    UnknownName
        If `active` names something that is not Switchable.
    """
    sensors = {m.name for m in problem.switchable}
    modes = {name: on for name, on in switches(active) if problem.switchable_constraints and name not in sensors}
    others = {name: on for name, on in switches(active) if name not in modes}
    diagnosis = _diagnosis(problem.mode(modes), available, others)
    if problem.state_sensors and diagnosis.missing:
        more = "sensors of the state measure q, q̇ and q̈ along a trajectory: sysdyn.observability diagnoses a log"
        diagnosis = replace(diagnosis, suggestions=(*diagnosis.suggestions, more))
    return diagnosis


def _diagnosis(problem: Problem, available: Sequence[Measurement], active: Mapping[str, ArrayLike] | None) -> Diagnosis:
    """Diagnose a problem by its pattern, its null spaces at sampled states, and the measurements in `available`."""
    candidates = _checked(available)
    system = BlockSystem(formulate(problem + candidates if candidates else problem))
    n_measurements = len(problem.raw) + len(problem.custom)  # those with a higher number are candidates
    rows = np.array([kind != "y" or number < n_measurements for kind, number in system.row_blocks], dtype=bool)
    off = np.flatnonzero(~_switched_on(system, _switches(problem, active)))
    rows[off] = False
    elimination = MotionElimination(system, rows)
    if len(elimination.columns) > MAX_UNKNOWNS:
        return _by_pattern(elimination, off)
    exact = MotionElimination(system, rows & ~system.noisy_mask) if system.noise_by_row else elimination
    kinds, q, qd = sampled_states(system.model)
    entries, _ = system.values_at({"q": q, "qd": qd}, len(q))
    spaces = [elimination.at(x) for x in entries]
    dependencies = [x.left for x in (spaces if exact is elimination else map(exact.at, entries))]
    missing_at = np.array([x.right.shape[1] for x in spaces])
    excess_at = np.array([x.shape[1] for x in dependencies])
    random = [k for k, kind in enumerate(kinds) if kind == "random"]
    reference = min(random, key=lambda k: (missing_at[k], excess_at[k]))  # represents almost every state
    missing, excess = int(missing_at[reference]), int(excess_at[reference])

    # undetermined unknowns; rounding errors can hide one at some states, so that it is not in all masks
    masks = np.array([involved(x.right) for x in spaces])
    in_all = np.asarray(masks[[k for k in random if missing_at[k] == missing]].all(axis=0))
    columns, determined = np.flatnonzero(in_all).tolist(), np.asarray(~masks.any(axis=0))
    redundant = equation_names(system, np.flatnonzero(involved(dependencies[reference])).tolist())
    order, regular = _last_first(problem, system), np.flatnonzero((missing_at == 0) & (excess_at == excess)).tolist()
    if regular:  # a solver omits the same rows at every state
        superfluous = removals([dependencies[k] for k in regular], order)
    else:
        superfluous = greedy_basis(dependencies[reference], order)
    removed_names = tuple(system.row_names[r] for r in superfluous)
    directions = {
        k: null_directions(system.layout, spaces[k].right, system.scaling[1])
        for k in {reference, *np.flatnonzero(missing_at > missing).tolist()}
    }
    terms = {term.name for direction in directions[reference] for term in direction.terms}
    example = example_to_state(system, spaces[reference].right, terms) if missing else ""
    pattern = structure(system, rows)
    summary = _summary(elimination, off, pattern, missing, excess, columns, redundant, removed_names, example)
    suggestions = list(summary.suggestions)
    sensors: tuple[Measurement, ...] | None = ()
    if available and missing:
        sensors, sentence = _additions(problem, available, elimination, spaces[reference])
        suggestions.append(sentence)
    if names := _measurement_names(system, off, _observing_rows(off, spaces[reference], spaces[reference].right)):
        suggestions.append(f"switch on some of: {', '.join(map(repr, names))}")

    def unknowns(mask: np.ndarray) -> tuple[str, ...]:
        return unknown_names(system, np.flatnonzero(mask).tolist())

    return replace(
        summary, undetermined_at_some_states=unknowns(~in_all & ~determined), determined=unknowns(determined),
        directions=directions[reference], suggestions=tuple(suggestions), additions=sensors,
        states=tuple(
            StateDiagnosis(kind, q[k], qd[k], int(missing_at[k]), int(excess_at[k]), unknowns(masks[k]),
                           directions.get(k, ()))
            for k, kind in enumerate(kinds)
        ),
    )  # fmt: skip


def _by_pattern(elimination: MotionElimination, off: np.ndarray) -> Diagnosis:
    """Diagnose a large problem by its pattern, without null spaces.

    A maximum matching selects a square submatrix. If it is singular at a random state, the rank is less than the
    structural rank, and at least one more unknown is undetermined.
    """
    system, active = elimination.system, elimination.active
    q, qd, _ = system.model.random_state(seed=3)
    A = system.scaled(system.drop_rounding(system.values({"q": q, "qd": qd})[0][0]))[np.flatnonzero(active)]
    matching = maximum_matching(A)
    columns = np.flatnonzero(matching >= 0)
    by_value = len(columns) > 0 and skeel_condition(A[matching[columns]][:, columns]) >= 1.0 / ZERO
    pattern = structure(system, active)
    missing, excess = pattern.missing + by_value, pattern.excess + by_value
    redundant = equation_names(system, [r for r in pattern.redundant if system.row_blocks[r][0] == "y"])
    summary = _summary(elimination, off, pattern, missing, excess, pattern.undetermined, redundant)
    if missing or excess:
        note = "there are equations that repeat others, or nearly so" if by_value else "only the structure is known"
        note = f"{len(elimination.columns)} unknown q̈, fx and w are too many for null spaces: {note}"
        summary = replace(summary, suggestions=(note, *summary.suggestions))
    others = set() if by_value else set(range(system.shape[1])) - set(pattern.undetermined)
    return replace(summary, determined=unknown_names(system, others))


def _summary(
    elimination: MotionElimination, off: np.ndarray, pattern: Structure, missing: int, excess: int,
    columns: Sequence[int], redundant: tuple[str, ...], removals: tuple[str, ...] = (), example: str = "",
) -> Diagnosis:  # fmt: skip
    """The counts and names of a diagnosis, with suggestions. columns: the undetermined unknowns.

    off: equations that are switched off. example: measurements to add, as code.
    """
    system, suggestions = elimination.system, list[str]()
    if missing:
        suggestions.append(statement_advice(system, columns, missing, pattern.missing, example))
    suggestions += cause_advice(system, columns)
    if excess:
        suggestions.append(removal_advice(redundant, removals, excess))
    return Diagnosis(
        equations=int(elimination.active.sum()), unknowns=system.shape[1], missing=missing, excess=excess,
        by_structure=(pattern.missing, pattern.excess), undetermined=unknown_names(system, columns), determined=(),
        redundant=redundant, suggestions=tuple(suggestions), removals=removals,
        switched_off=_measurement_names(system, off, off),
    )  # fmt: skip


def require_sound_structure(system: System) -> None:
    """Check that the pattern of a system is well posed; errors contain the diagnosis of the problem.

    Raises StructurallySingular if unknowns are undetermined, ProblemError if there are too many equations.
    """
    if structure(system).sound:
        return
    diagnosis = diagnose(system.problem)
    if not diagnosis.missing:
        raise ProblemError(f"too many equations: {diagnosis}")
    cause = "too few equations" if diagnosis.equations < diagnosis.unknowns else "structurally singular"
    raise StructurallySingular(f"{cause}: {diagnosis}", diagnosis.undetermined, diagnosis.redundant)


def undetermined_at(system: System, inputs: Mapping[str, np.ndarray]) -> str:
    """Sentence with the names of (nearly) undetermined unknowns q̈, fx and w at one state; "" for a large problem.

    It also names bodies without inertia, and inactive measurements that would determine the unknowns. inputs: (1, size)
    by group.
    """
    plain = system.plain
    active = _switched_on(
        plain, {group_of(name).name: x[0] != 0.0 for name, x in inputs.items() if group_of(name).role == SWITCH}
    )
    elimination = MotionElimination(plain, active)
    if len(elimination.columns) > MAX_UNKNOWNS:
        return ""
    spaces = elimination.at(plain.values(inputs)[0][0])
    directions = spaces.right if spaces.right.shape[1] else spaces.least_singular_vector[:, None]
    share = np.linalg.norm(directions[elimination.columns], axis=1)
    columns = elimination.columns[share > NAMED * share.max(initial=0.0)].tolist()
    independent = [noise for noise, _ in plain.noise_rows if not noise.full]
    exact = [x.name for x in independent if not np.all(inputs.get(x.group, x.declared))]
    if not columns and exact:
        return f"{few([*map(repr, exact)])} with variance zero and other exact equations depend on each other"
    text, off = f"nothing determines {few(unknown_names(plain, columns))}", np.flatnonzero(~active)
    if names := _measurement_names(plain, off, _observing_rows(off, spaces, directions)):
        text += f" with {', '.join(map(repr, names))} switched off"
    bodies = sorted({i for quantity, i in (plain.col_blocks[c] for c in columns) if quantity == "qdd"})
    massless = tuple(plain.model.body_names[i] for i in bodies if not plain.model.inertias[i].any())
    return f"{text}: {without_inertia(massless)}" if massless else text


def contradicting(system: BlockSystem, inputs: Mapping[str, np.ndarray], row: str) -> tuple[str, ...]:
    """Names of the exact measurements that imply the value of a redundant row at one state.

    inputs: (1, size) by group. row: its name in `row_names`.
    """
    basis = MotionElimination(system, ~system.noisy_mask).at(system.values(inputs)[0][0]).left
    r = system.row_names.index(row)
    combination = np.abs(basis @ basis[r])  # projection of the row's unit vector to the left null space
    members = [*np.flatnonzero(combination > NAMED * combination.max()).tolist(), r]
    names = [m.name for m in (_measurement(system, k) for k in members) if m]
    return tuple(dict.fromkeys(name for name in names if name != names[-1]))


def sampled_states(model: Model) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(kinds, q (N, nq), q̇ (N, nv)): random states, the neutral one at rest, joints at multiples of π/2."""
    rng, angles = np.random.default_rng(3), ("π/2", "π", "3π/2")
    kinds = ["random"] * 4 + ["neutral"] + [f"every joint at {x}" for x in angles] + ["joints at multiples of π/2"] * 4
    q, qd, _ = model.random_state(seed=3, batch=len(kinds))
    q[4], qd[4] = model.neutral(), 0.0
    same = np.outer([1, 2, 3], np.ones(model.nv))
    quarters = np.concatenate([same, rng.integers(0, 4, size=(4, model.nv))]) * (math.pi / 2)
    q[5:] = model.integrate(model.neutral(), quarters)
    return kinds, q, qd


# ---- rows and names --------------------------------------------------------------------------------------------------


def _measurement(system: BlockSystem, row: int) -> Measurement | None:
    """The measurement of a row; None for other equations."""
    kind, number = system.row_blocks[row]
    return (*system.problem.raw, *system.problem.custom)[number] if kind == "y" else None


def _switched_on(system: BlockSystem, active: Mapping[str, np.ndarray]) -> np.ndarray:
    """(equations,) bool: False for components that are switched off; active: {measurement: (m,) bool}."""
    on = np.ones(system.shape[0], dtype=bool)
    for r, (noise, component) in system.noise_by_row.items():
        on[r] = noise.name not in active or active[noise.name][component]
    return on


def _measurement_names(system: BlockSystem, off: np.ndarray, rows: np.ndarray) -> tuple[str, ...]:
    """Names of the measurements to which the equations `rows` belong. off: all equations that are switched off.

    If only some components of a measurement are off, its name is followed by its components in `rows`.
    """
    n_off = Counter(system.noise_by_row[r][0].name for r in off.tolist())
    numbers: dict[str, list[int]] = {}
    for noise, component in (system.noise_by_row[r] for r in rows.tolist()):
        numbers.setdefault(noise.name, []).append(component)
    components = {m.name: m.components(system.model) for m in system.problem.noisy}
    return tuple(
        name if n_off[name] == len(components[name]) else f"{name}: {', '.join(components[name][x] for x in k)}"
        for name, k in numbers.items()
    )


def _observing_rows(rows: np.ndarray, spaces: NullSpaces, directions: np.ndarray) -> np.ndarray:
    """The subset of `rows` that observes any of the `directions` (unknowns, k): its products with them are nonzero."""
    return rows[np.abs(spaces.matrix[rows] @ directions).max(axis=1, initial=0.0) > NAMED]


def _switches(problem: Problem, active: Mapping[str, ArrayLike] | None) -> dict[str, np.ndarray]:
    """Validate the argument `active` and return it as {measurement: (m,) bool}. Raises InvalidInput, UnknownName."""
    sizes = {m.name: len(m.components(problem.model)) for m in problem.switchable}
    masks = {}
    for name, value in switches(active):
        check_among("switchable measurement", name, sizes)
        x = np.asarray(value)
        if x.dtype.kind not in "biuf" or not np.isin(x, (0, 1)).all() or x.shape not in ((), (sizes[name],)):
            raise InvalidInput(f"active[{name!r}] must be true or false, or {sizes[name]} of them, not {value!r}")
        masks[name] = np.broadcast_to(x != 0, sizes[name])
    return masks


def _last_first(problem: Problem, system: BlockSystem) -> list[int]:
    """Rows of the problem's measurements, last stated first, because the last are most likely to be redundant.

    Rows of constraints come after all others: removing a constraint can leave its wrench undetermined, removing another
    measurement cannot.
    """
    place = {m.name: (not isinstance(m, Constraint), k) for k, m in enumerate(problem.measurements)}
    rows = [(r, m) for r in range(system.shape[0]) if (m := _measurement(system, r)) and m.name in place]
    return [r for r, _ in sorted(rows, key=lambda row: (place[row[1].name], row[0]), reverse=True)]


# ---- measurements to add ---------------------------------------------------------------------------------------------


def _checked(available: Iterable[Measurement]) -> list[Measurement]:
    """The available measurements that add rows: all but exact values of unknowns. Raises InvalidInput."""
    if not isinstance(available, (list, tuple)):
        raise InvalidInput(
            f"available measurements are a list, not {available!r}; a log is diagnosed by sysdyn.observability"
        )
    for m in available:
        if not isinstance(m, Measurement) or isinstance(m, (ModelNoise, Constraint)):
            raise InvalidInput(f"not a measurement that could be added: {m!r}; for example use JointTorque('all')")
    return [m for m in available if not isinstance(m, RawMeasurement) or m.noise is not None]


def _additions(
    problem: Problem, available: Sequence[Measurement], elimination: MotionElimination, spaces: NullSpaces
) -> tuple[tuple[Measurement, ...] | None, str]:
    """(measurements to add, sentence about them); (None, sentence about what stays undetermined) if all are too few."""
    system, model = elimination.system, problem.model
    rows: dict[str, list[int]] = {}  # of the candidates, by the name of the measurement
    for r in np.flatnonzero(~elimination.active).tolist():
        if m := _measurement(system, r):
            rows.setdefault(m.name, []).append(r)
    candidates = []
    scalars = {(m.quantity, *pair) for m in problem.raw for pair in m.pairs(model)}
    for m in available:
        if m.name in rows or not isinstance(m, RawMeasurement):
            responses = spaces.matrix[rows[m.name]] @ spaces.right
        else:
            pairs = m.pairs(model)
            responses = spaces.right[[system.layout.columns(m.quantity, i)[k] for i, k in pairs]]
            responses = responses * [[(m.quantity, *pair) not in scalars] for pair in pairs]
            scalars |= {(m.quantity, *pair) for pair in pairs}
        divisible = m.selectable and (m.noise is None or isinstance(m, RawMeasurement))
        candidates.append(Candidate(m, responses, divisible))
    parts = additions(candidates, spaces.right.shape[1])
    if parts is not None:
        sensors = tuple(x for c, components in parts for x in restricted(c.measurement, components, model))
        return sensors, f"add {'; '.join(as_code(m, model) for m in sensors)}"
    _, sizes, Vt = np.linalg.svd(np.vstack([c.responses for c in candidates]))
    mask = involved(spaces.right @ Vt[int(np.sum(sizes > ZERO)) :].T)
    names = unknown_names(system, np.flatnonzero(mask).tolist())
    verb = "stays" if len(names) == 1 else "stay"
    return None, f"the available measurements are not enough: with all of them {few(names, 8)} {verb} undetermined"
