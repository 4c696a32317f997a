"""Well-posedness in names: undetermined unknowns, redundant equations, and remedies.

First the structure: Dulmage-Mendelsohn blocks of the worst-case pattern. Then values: the null spaces of the system at
sampled states, because equations can depend on each other by value, at every state or at some.

A problem is well posed if all equations together have full column rank and the exact ones full row rank: without noise
it has as many equations as unknowns then, with noise it may have more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.advice import duplicate_constraints, inertialess_among
from sysdyn.diagnosis.directions import null_directions
from sysdyn.diagnosis.null_space import ZERO, MotionElimination, NullSpaces, involved
from sysdyn.diagnosis.remedies import Candidate, additions, as_code, greedy_basis, removals, restricted
from sysdyn.diagnosis.report import Diagnosis, StateDiagnosis
from sysdyn.diagnosis.structure import LEADING, Structure, equation_names, structure, unknown_names
from sysdyn.equations.formulation import formulate
from sysdyn.equations.system import BlockSystem, System
from sysdyn.errors import InvalidInput, check_among, few
from sysdyn.measurements.groups import SWITCH, group_of
from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.noise import ModelNoise
from sysdyn.measurements.raw import RawMeasurement, known
from sysdyn.measurements.statement import Statement, switches
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITIES
from sysdyn.sparse.condition import skeel_condition
from sysdyn.sparse.dulmage import maximum_matching

# Part of a null direction, relative to the greatest, from which an unknown or a measurement is named at one state.
NAMED = 1e-3
# Unknowns q̈, fx and w up to which null spaces are computed: singular values of longer chains, stretched, spread over
# more than ten decades.
MAX_UNKNOWNS = 300


def diagnose(
    problem: Statement, available: Sequence[Measurement] = (), active: Mapping[str, ArrayLike] | None = None
) -> Diagnosis:
    """Structure of the problem's system, its null spaces at sampled states, and helpful measurements of `available`.

    active: {name: bool or (m,) bool} of Switchable measurements; equations that are switched off do not count.

    Raises InvalidInput, UnknownName.
    """
    candidates = _checked(available)
    system = BlockSystem(formulate(problem + candidates if candidates else problem))
    stated = len(problem.raw) + len(problem.custom)  # measurements with a higher number are candidates
    counted = np.array([kind != "y" or number < stated for kind, number in system.row_blocks], dtype=bool)
    off = np.flatnonzero(~_switched_on(system, _switches(problem, active)))
    counted[off] = False
    elimination, blocks = MotionElimination(system, counted), structure(system, counted)
    kinds, q, qd = sampled_states(system.model)
    if len(elimination.columns_of_exact) > MAX_UNKNOWNS:
        entries, _ = system.values({"q": q[:1], "qd": qd[:1]})
        return replace(_by_pattern(blocks, elimination, entries[0]), switched_off=_measurement_names(system, off))
    entries, _ = system.values({"q": q, "qd": qd})
    spaces = [elimination.at(x) for x in np.broadcast_to(entries, (len(q), entries.shape[1]))]
    missing = np.array([x.right.shape[1] for x in spaces])
    excess = np.array([x.left.shape[1] for x in spaces])
    random = [k for k, kind in enumerate(kinds) if kind == "random"]
    reference = min(random, key=lambda k: (missing[k], excess[k]))  # as almost every state
    generic = [k for k in random if missing[k] == missing[reference]]
    spaces_there = spaces[reference]

    # unknowns that take part in a null space; if rounding leaves that open, they do at some states only
    part = np.array([involved(x.right) for x in spaces])
    always, never = np.asarray(part[generic].all(axis=0)), np.asarray(~part.any(axis=0))
    order, alike = _last_first(problem, system), np.flatnonzero((missing == 0) & (excess == excess[reference]))
    if len(alike):  # a solver leaves the rows out at every state
        removed = removals([spaces[k].left for k in alike.tolist()], order)
    else:
        removed = greedy_basis(spaces_there.left, order)

    described = {
        k: null_directions(system.layout, spaces[k].right, system.scaling[1])
        for k in {reference, *np.flatnonzero(missing > missing[reference]).tolist()}
    }
    added, unobserved = _additions(problem, available, elimination, spaces_there)
    diagnosis = Diagnosis(
        equations=blocks.equations, unknowns=blocks.unknowns, rank=blocks.unknowns - int(missing[reference]),
        missing=int(missing[reference]), excess=int(excess[reference]), by_structure=(blocks.missing, blocks.excess),
        structural=not blocks.sound, directions=described[reference], suggestions=(), additions=added,
        undetermined=_names_where(system, always), undetermined_blocks=_blocks_where(system, always),
        undetermined_at_some_states=_names_where(system, ~always & ~never), determined=_names_where(system, never),
        redundant=equation_names(system, np.flatnonzero(involved(spaces_there.left))),
        removals=tuple(system.row_names[r] for r in removed), switched_off=_measurement_names(system, off),
        states=tuple(
            StateDiagnosis(kind, q[k], qd[k], int(missing[k]), int(excess[k]), _names_where(system, part[k]),
                           described.get(k, ()))
            for k, kind in enumerate(kinds)
        ),
    )  # fmt: skip
    suggestions = _suggestions(diagnosis, system, spaces_there, bool(available), unobserved)
    if useful := _measurement_names(system, off, _observing_rows(off, spaces_there, spaces_there.right)):
        suggestions += (f"switch on some of: {', '.join(map(repr, useful))}",)
    return replace(diagnosis, suggestions=suggestions)


def _by_pattern(blocks: Structure, elimination: MotionElimination, entries: np.ndarray) -> Diagnosis:
    """Structural diagnosis of a problem with too many unknowns for null spaces, and a numerical test of its rank.

    The rank is structural if a maximum matching selects a regular square submatrix at a random state.
    """
    system, active = elimination.system, elimination.active
    matrix, ranks = system.scaled(system.drop_rounding(entries)), []
    for rows in {tuple(np.flatnonzero(active)), tuple(np.flatnonzero(active & ~elimination.noisy))}:
        A = matrix[list(rows)]
        row_of = maximum_matching(A)
        columns = np.flatnonzero(row_of >= 0)
        ranks.append(not len(columns) or skeel_condition(A[row_of[columns]][:, columns]) < 1.0 / ZERO)
    generic = all(ranks)
    undetermined = set(blocks.undetermined)
    measured = {name for name, block in zip(system.row_names, system.row_blocks, strict=True) if block[0] == "y"}
    diagnosis = Diagnosis(
        equations=blocks.equations, unknowns=blocks.unknowns, structural=not blocks.sound, suggestions=(),
        rank=blocks.unknowns - blocks.missing if generic else None,
        missing=blocks.missing + (not generic), excess=blocks.excess + (not generic),
        by_structure=(blocks.missing, blocks.excess), undetermined=blocks.undetermined,
        undetermined_blocks=blocks.undetermined_blocks,
        redundant=tuple(x for x in blocks.redundant if x in measured),
        determined=tuple(x for x in system.col_names if x not in undetermined) if generic else (),
    )  # fmt: skip
    if generic and blocks.sound:
        return diagnosis
    examined = "only the structure was examined" if generic else "there are equations that repeat others, or nearly so"
    note = f"{len(elimination.columns)} unknown q̈, fx and w are too many for null spaces: {examined}"
    return replace(diagnosis, suggestions=(note, *_suggestions(diagnosis, system, None, False, ())))


class Undetermined(NamedTuple):
    """Unknowns q̈, fx and w that no equation determines at one state.

    blocks: (quantity, number of the body or constraint) of each; switched_off: measurements, or parts of them, that
    would observe them.
    """

    names: tuple[str, ...]
    blocks: tuple[tuple[str, int], ...]
    switched_off: tuple[str, ...]

    def __str__(self) -> str:
        if not self.switched_off:
            return f"nothing determines {few(self.names)}"
        off = ", ".join(map(repr, self.switched_off))
        return f"nothing determines {few(self.names)} with {off} switched off"


def undetermined_at(system: System, inputs: Mapping[str, np.ndarray]) -> Undetermined | None:
    """The undetermined or nearly undetermined unknowns at one state; None if there are too many unknowns.

    inputs: (1, size) by group; equations that are switched off there do not count.
    """
    plain = system.plain
    on = {group_of(name).name: x[0] != 0.0 for name, x in inputs.items() if group_of(name).role == SWITCH}
    active = _switched_on(plain, on)
    elimination = MotionElimination(plain, active)
    if len(elimination.columns) > MAX_UNKNOWNS:
        return None
    spaces = elimination.at(plain.values(inputs)[0][0])
    directions = spaces.right if spaces.right.shape[1] else spaces.least_singular_vector[:, None]
    share = np.linalg.norm(directions[elimination.columns], axis=1)
    named = elimination.columns[share > NAMED * share.max(initial=0.0)].tolist()
    off = np.flatnonzero(~active)
    blocks = tuple(dict.fromkeys(plain.col_blocks[k] for k in named))
    return Undetermined(
        unknown_names(plain, named), blocks, _measurement_names(plain, off, _observing_rows(off, spaces, directions))
    )


def contradicting(system: BlockSystem, inputs: Mapping[str, np.ndarray], row: str) -> tuple[str, ...]:
    """Names of the other exact measurements that a redundant row is a combination of at one state.

    inputs: (1, size) by group; row: as in `row_names`.
    """
    basis = MotionElimination(system).at(system.values(inputs)[0][0]).left
    r = system.row_names.index(row)
    combination = np.abs(basis @ basis[r])  # the part of the row in the combinations that vanish
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


def _names_where(system: BlockSystem, mask: np.ndarray) -> tuple[str, ...]:
    return unknown_names(system, np.flatnonzero(mask).tolist())


def _blocks_where(system: BlockSystem, mask: np.ndarray) -> frozenset[tuple[str, int]]:
    return frozenset(system.col_blocks[c] for c in np.flatnonzero(mask).tolist())


def _measurement(system: BlockSystem, row: int) -> Measurement | None:
    """The measurement of a row; None for other equations."""
    kind, number = system.row_blocks[row]
    return (*system.problem.raw, *system.problem.custom)[number] if kind == "y" else None


def _switched_on(system: BlockSystem, active: Mapping[str, np.ndarray]) -> np.ndarray:
    """(equations,) bool: False for components that are switched off; active: (m,) bool by measurement."""
    on = np.ones(system.shape[0], dtype=bool)
    for r, (noise, component) in system.noise_by_row.items():
        on[r] = noise.name not in active or active[noise.name][component]
    return on


def _measurement_names(system: BlockSystem, off: np.ndarray, rows: np.ndarray | None = None) -> tuple[str, ...]:
    """Names of the switched-off measurements with these rows, a subset of `off`; None: all rows of `off`.

    A measurement that is only partly switched off is named with its components in `rows`.
    """
    all_off = Counter(system.noise_by_row[r][0].name for r in off.tolist())
    chosen: dict[str, list[int]] = {}
    for r in (off if rows is None else rows).tolist():
        noise, component = system.noise_by_row[r]
        chosen.setdefault(noise.name, []).append(component)
    components = {m.name: m.components(system.model) for m in system.problem.noisy}
    return tuple(
        name if all_off[name] == len(components[name]) else f"{name}: {', '.join(components[name][x] for x in k)}"
        for name, k in chosen.items()
    )


def _observing_rows(rows: np.ndarray, spaces: NullSpaces, directions: np.ndarray) -> np.ndarray:
    """Those of `rows` that are not orthogonal to all `directions` (unknowns, k), and so observe some of them."""
    return rows[np.abs(spaces.matrix[rows] @ directions).max(axis=1, initial=0.0) > NAMED]


def _switches(problem: Statement, active: Mapping[str, ArrayLike] | None) -> dict[str, np.ndarray]:
    """(m,) bool by measurement. Raises InvalidInput, UnknownName."""
    sizes = {m.name: len(m.components(problem.model)) for m in problem.switchable}
    masks = {}
    for name, value in switches(active):
        check_among("switchable measurement", name, sizes)
        x = np.asarray(value)
        if x.dtype.kind not in "biuf" or not np.isin(x, (0, 1)).all() or x.shape not in ((), (sizes[name],)):
            raise InvalidInput(f"active[{name!r}] must be true or false, or {sizes[name]} of them, not {value!r}")
        masks[name] = np.broadcast_to(x != 0, sizes[name])
    return masks


# ---- remedies --------------------------------------------------------------------------------------------------------


def _checked(available: Sequence[Measurement]) -> list[Measurement]:
    """The available measurements with equations of their own. Raises InvalidInput."""
    if isinstance(available, Measurement):
        raise InvalidInput(f"available measurements are a list: [{type(available).__name__}(…), …]")
    for m in available:
        if not isinstance(m, Measurement) or isinstance(m, (ModelNoise, Constraint)):
            raise InvalidInput(f"not a measurement that could be added: {m!r}; for example use JointTorque('all')")
    return [m for m in available if not isinstance(m, RawMeasurement) or m.noise is not None]


def _additions(
    problem: Statement, available: Sequence[Measurement], elimination: MotionElimination, spaces: NullSpaces
) -> tuple[tuple[Measurement, ...] | None, tuple[str, ...]]:
    """(measurements to add, None if all do not suffice; unknowns that stay undetermined with all of them)."""
    system, model, missing = elimination.system, problem.model, spaces.right.shape[1]
    if not available or not missing:
        return (), ()
    rows: dict[str, list[int]] = {}  # of the candidates, by the name of the measurement
    for r in np.flatnonzero(~elimination.active).tolist():
        if m := _measurement(system, r):
            rows.setdefault(m.name, []).append(r)
    candidates = []
    stated = {(m.quantity, *pair) for m in problem.raw for pair in m.pairs(model)}
    for m in available:
        if m.name in rows or not isinstance(m, RawMeasurement):
            observed = spaces.matrix[rows[m.name]] @ spaces.right
        else:
            pairs = m.pairs(model)
            observed = spaces.right[[system.layout.columns(m.quantity, i)[k] for i, k in pairs]]
            observed = observed * [[(m.quantity, *pair) not in stated] for pair in pairs]
            stated |= {(m.quantity, *pair) for pair in pairs}
        divisible = m.divisible and (m.noise is None or isinstance(m, RawMeasurement))
        candidates.append(Candidate(m, observed, divisible))
    chosen = additions(candidates, missing)
    if chosen is not None:
        return tuple(x for c, components in chosen for x in restricted(c.measurement, components, model)), ()
    _, sizes, Vt = np.linalg.svd(np.vstack([c.observed for c in candidates]))
    return None, _names_where(system, involved(spaces.right @ Vt[int(np.sum(sizes > ZERO)) :].T))


def _last_first(problem: Statement, system: BlockSystem) -> list[int]:
    """Rows of measurements of the problem, the last stated first, because these are the likeliest to be redundant.

    Rows of constraints come after all others: removing a measurement never leaves a constraint's wrench undetermined,
    removing a constraint may.
    """
    place = {m.name: (not isinstance(m, Constraint), k) for k, m in enumerate(problem.measurements)}
    rows = [(r, m) for r in range(system.shape[0]) if (m := _measurement(system, r)) and m.name in place]
    return [r for r, _ in sorted(rows, key=lambda row: (place[row[1].name], row[0]), reverse=True)]


def _suggestions(
    diagnosis: Diagnosis, system: BlockSystem, spaces: NullSpaces | None, asked: bool, unobserved: tuple[str, ...]
) -> tuple[str, ...]:
    """Advice on quantities to state and to leave out, with examples that suffice."""
    suggestions = [_what_to_state(diagnosis, system, spaces)] if diagnosis.missing else []
    suggestions += _inertias(system.model, diagnosis.undetermined_blocks)
    if diagnosis.excess:
        text = f"leave out {diagnosis.excess} of: {few(diagnosis.redundant, 8)}"
        if diagnosis.removals and len(diagnosis.redundant) > diagnosis.excess:
            text += f"; for example {few(diagnosis.removals)}"
        if diagnosis.missing and not diagnosis.structural:
            suggestions[0] += f"; then {text}"
        else:
            suggestions.append(text)
    if diagnosis.additions is None:
        rest = f"{few(unobserved, 8)} {'stays' if len(unobserved) == 1 else 'stay'} undetermined"
        suggestions.append(f"the available measurements are not enough: with all of them {rest}")
    elif diagnosis.additions:
        suggestions.append(f"add {'; '.join(as_code(m, system.model) for m in diagnosis.additions)}")
    elif asked and not diagnosis.missing:
        suggestions.append("none of the available measurements is needed")
    return tuple(suggestions)


def _inertias(model: Model, undetermined) -> list[str]:
    """Advice on bodies without inertia that leave accelerations undetermined."""
    return [f"{x}; give the body an inertia or the joint an armature" for x in inertialess_among(model, undetermined)]


def _what_to_state(diagnosis: Diagnosis, system: BlockSystem, spaces: NullSpaces | None) -> str:
    """Advice on quantities to state until no direction is missing, with an example."""
    undetermined, quantity = set(diagnosis.undetermined), [block[0] for block in system.col_blocks]
    columns = [c for c, name in enumerate(system.col_names) if name in undetermined]
    possible = [c for c in columns if quantity[c] != "w"]  # a constraint's wrench is no input
    names = unknown_names(system, [c for c in possible if quantity[c] in LEADING] or possible)
    if not names:
        text = f"leave out constraints that fix the same motion twice, with {few(unknown_names(system, columns), 8)}"
        text = "; ".join((text, *duplicate_constraints(system.problem)))
    elif diagnosis.missing == diagnosis.by_structure[0]:
        text = f"state {diagnosis.missing} of: {few(names, 8)}"
    else:
        text = f"state one of {few(names, 8)} for each direction that is missing ({diagnosis.missing})"
    example = _example(diagnosis, system, spaces) if spaces else ""
    return f"{text}; for example {example}" if example else text


def _example(diagnosis: Diagnosis, system: BlockSystem, spaces: NullSpaces) -> str:
    """Measurements of scalars that observe all missing directions; those that describe the directions come first."""
    layout = system.layout
    terms = {term.name for direction in diagnosis.directions for term in direction.terms}
    quantities = (*QUANTITIES, *layout.further)
    columns = {x: layout.quantity_columns(x) for x in quantities}
    order = sorted(
        ((c, x) for x in quantities for c in columns[x]),
        key=lambda place: (layout.names[place[0]] not in terms, place[1] not in LEADING),
    )
    chosen = set(greedy_basis(spaces.right, [c for c, _ in order]))
    if len(chosen) < diagnosis.missing:
        return ""
    examples = []
    for x in quantities:
        if components := [k for k, c in enumerate(columns[x]) if c in chosen]:
            examples += restricted(known(x), components, system.model)
    return few([as_code(m, system.model) for m in examples])
