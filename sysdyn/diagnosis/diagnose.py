"""Well-posedness in names: unknowns that cannot be found, the equations they occur in, and remedies.

Structure first: the Dulmage-Mendelsohn blocks of the worst-case pattern. Then values: the null spaces of the system at
sampled states, because equations can depend on each other by value, at every state or at some.

A problem is well posed if all equations together have full column rank, and the exact ones full row rank: without noise
there are as many equations as unknowns then, with noise there may be more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.directions import Direction, directions
from sysdyn.diagnosis.reduction import DENSE, PART, RELATIVE_RANK, Reduced, Reduction, involved
from sysdyn.diagnosis.remedy import Candidate, additions, independent_rows, removals, restricted, written
from sysdyn.diagnosis.structure import Structure, structure
from sysdyn.diagnosis.words import (
    JOINT_AND_CONTACT,
    held_twice,
    idle_among,
    joints_first,
    kind_of_state,
    listed,
    stated,
)
from sysdyn.equations.formulation import formulate
from sysdyn.equations.system import BlockSystem, System
from sysdyn.errors import InvalidInput, check_among, few
from sysdyn.files import html
from sysdyn.measurements.groups import SWITCH, group_of
from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.noise import ModelNoise
from sysdyn.measurements.raw import RawMeasurement, known
from sysdyn.measurements.statement import Statement, switches
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITIES
from sysdyn.sparse.condition import condition
from sysdyn.sparse.dulmage import dulmage_mendelsohn

# Least share of the greatest part, in an undetermined direction at one state, at which an unknown is named; chosen.
LEAST_SHARE = 1e-3
# Degrees of freedom beyond which undetermined unknowns at one state are not looked for (chosen).
MOST_FREEDOMS = 3000
MOST_NAMED = 500  # Directions and dependencies that are named; more are counted (chosen).


# ---- by value --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AtState:
    """Results at one sampled state.

    kind: "random", "neutral" (every joint at zero, at rest), or which multiples of π/2 the joints stand at; missing:
    directions that no equation sees; excess: exact equations that follow from others; undetermined: names of unknowns;
    directions: given if more are missing than at almost every state.
    """

    kind: str
    q: np.ndarray
    qd: np.ndarray
    missing: int
    excess: int
    undetermined: tuple[str, ...]
    directions: tuple[Direction, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """Well-posedness of a problem, one solution at almost every state; if it lacks that, the obstacles and remedies.

    rank            at random states (None: not computed, the problem is too large)
    undetermined    unknowns that cannot be found at almost every state: they are part of a direction no equation sees
    sometimes       unknowns that cannot be found at some of the sampled states
    determined      unknowns that are found at every sampled state, whatever else is missing; their values: `least_norm`
    redundant       measurements that are combinations of other exact equations, or contradict them
    missing, excess: how many directions are not seen, and how many exact equations are too many, at almost every state
    by_structure    how many of these the pattern alone shows
    directions      the combinations of unknowns that no equation sees, at the first random state
    states          what is found at each sampled state
    suggestions     what to state or to leave out
    additions       of the available measurements those that make the problem well posed, none of which can be left out;
                    None if all of them are not enough; () if nothing is missing or none were given
    switched_off    Switchable measurements, or components of them, whose equations do not count
    removals        equations to leave out until none is redundant, none of which can be kept
    structural      the pattern alone is not sound
    """

    equations: int
    unknowns: int
    rank: int | None
    undetermined: tuple[str, ...]
    redundant: tuple[str, ...]
    suggestions: tuple[str, ...]
    structural: bool
    missing: int = 0
    excess: int = 0
    sometimes: tuple[str, ...] = ()
    determined: tuple[str, ...] = ()
    directions: tuple[Direction, ...] = ()
    states: tuple[AtState, ...] = field(default=(), compare=False)
    additions: tuple[Measurement, ...] | None = ()
    removals: tuple[str, ...] = ()
    switched_off: tuple[str, ...] = ()
    by_structure: tuple[int, int] = (0, 0)  # the part of `missing` and `excess` that the pattern shows

    @property
    def well_posed(self) -> bool:
        return self.missing == 0 and self.excess == 0

    @property
    def worse_states(self) -> tuple[int, ...]:
        """Numbers of the sampled states at which more is missing, or too much, than at almost every state."""
        worse = (k for k, s in enumerate(self.states) if s.missing > self.missing or s.excess > self.excess)
        return tuple(worse)

    def __str__(self) -> str:
        lines = [
            f"{'well posed' if self.well_posed else 'ill posed'}: {self.equations} equations, {self.unknowns} unknowns"
        ]
        if self.rank is not None:
            lines[0] += f", rank {self.rank}"
        if self.switched_off:
            lines.append(f"switched off: {', '.join(map(repr, self.switched_off))}")
        if self.undetermined:
            kind = kind_of_state(self.missing, self.by_structure[0])
            lines.append(f"undetermined ({kind}): {few(joints_first(self.undetermined), 12)}")
            lines += listed(f"{self.missing} direction(s) that no equation sees", self.directions)
        if self.redundant:
            kind = kind_of_state(self.excess, self.by_structure[1])
            shown = stated(self.redundant) or self.redundant
            lines.append(f"redundant or contradictory ({kind}): {few(shown, 12)}")
        lines += self._at_some_states()
        if self.determined and len(self.determined) < self.unknowns:
            shown = tuple(x for x in self.determined if x.startswith(JOINT_AND_CONTACT))
            lines.append(
                f"determined at every sampled state: {len(self.determined)} of {self.unknowns} unknowns"
                + (f", among them {few(shown, 8)}" if shown else "")
            )
        lines.extend(f"suggestion: {s}" for s in self.suggestions)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.fragment(html.text(str(self), html.GOOD if self.well_posed else html.BAD))

    def _at_some_states(self) -> list[str]:
        if not self.worse_states:
            return []
        where = dict.fromkeys(f"{self.states[k].kind}" for k in self.worse_states)
        shown = max(self.worse_states, key=lambda k: (self.states[k].kind == "neutral", self.states[k].missing))
        worst = self.states[shown]
        what = "singular" if self.well_posed else "worse"
        lines = [f"{what} at {len(self.worse_states)} of {len(self.states)} sampled states: {', '.join(where)}"]
        if worst.missing > self.missing:
            told = [term.name for direction in worst.directions for term in direction.terms]
            names = dict.fromkeys((*told, *joints_first(worst.undetermined)))
            lines[0] += f"; undetermined there: {few(names, 8)}"
            lines += listed(f"{worst.missing} direction(s) that no equation sees ({worst.kind})", worst.directions)
        return lines


def diagnose(
    problem: Statement, available: Sequence[Measurement] = (), active: Mapping[str, ArrayLike] | None = None
) -> Diagnosis:
    """Structure of the problem's system, its null spaces at sampled states, and helpful measurements of `available`.

    active: {name: bool or (m,) bool} of what is Switchable; equations that are switched off do not count.

    Raises InvalidInput, UnknownName.
    """
    sensors = _checked(available)
    system = BlockSystem(formulate(problem + sensors if sensors else problem))
    there = len(problem.raw) + len(problem.custom)  # measurements with a higher number are candidates
    counted = np.array([kind != "y" or number < there for kind, number in system.row_blocks], dtype=bool)
    off = np.flatnonzero(~_on(system, _switches(problem, active)))
    counted[off] = False
    reduction = Reduction(system, system.noisy_mask, counted)
    found = structure(system, counted)
    kinds, q, qd = sampled_states(system.model, few=len(reduction.loose) > DENSE)
    entries, _ = system.values({"q": q, "qd": qd})
    reduced = [reduction.at(x) for x in np.broadcast_to(entries, (len(q), entries.shape[1]))]
    told = [k for k, x in enumerate(reduced) if x.resolved] if max(found.free, found.excess) <= MOST_NAMED else []
    if not any(kinds[k] == "random" for k in told):
        return replace(_by_blocks(found, reduced[0]), switched_off=_named(system, off))
    kinds, q, qd, reduced = [kinds[k] for k in told], q[told], qd[told], [reduced[k] for k in told]
    missing = np.array([x.free.shape[1] for x in reduced])
    excess = np.array([x.dependent.shape[1] for x in reduced])
    random = [k for k, kind in enumerate(kinds) if kind == "random"]
    usual = min(random, key=lambda k: (missing[k], excess[k]))
    generic = [k for k in random if missing[k] == missing[usual]]

    # Unknowns with a part in a null space; if rounding leaves that open, they have one at some states only.
    part = np.array([involved(x.free) for x in reduced])
    always, never = part[generic].all(axis=0), ~part.any(axis=0)
    unknowns, equations = np.array(system.col_names), np.array(system.row_names)
    undetermined = tuple(unknowns[always].tolist())
    redundant = tuple(equations[involved(reduced[usual].dependent)].tolist())
    order, alike = _last_first(problem, system), np.flatnonzero((missing == 0) & (excess == excess[usual]))
    if len(alike):  # the choice is for solvers, at every state
        leave = removals([reduced[k].dependent for k in alike.tolist()], order)
    else:
        leave = independent_rows(reduced[usual].dependent, order)

    described = {}
    for k in {usual, *np.flatnonzero(missing > missing[usual]).tolist()}:
        described[k] = directions(system.layout, reduced[k].free, reduction.scaling[1], q[k])
    states = tuple(
        AtState(kind, q[k], qd[k], int(missing[k]), int(excess[k]), tuple(unknowns[part[k]].tolist()),
                described.get(k, ()))
        for k, kind in enumerate(kinds)
    )  # fmt: skip
    added, unseen = _additions(problem, available, reduction, reduced[usual])
    diagnosis = Diagnosis(
        equations=found.equations, unknowns=found.unknowns, rank=found.unknowns - int(missing[usual]),
        undetermined=undetermined, redundant=redundant, suggestions=(), structural=not found.sound,
        missing=int(missing[usual]), excess=int(excess[usual]), determined=tuple(unknowns[never].tolist()),
        sometimes=tuple(unknowns[~always & ~never].tolist()), directions=described[usual], states=states,
        additions=added, removals=tuple(equations[leave].tolist()), switched_off=_named(system, off),
        by_structure=(found.free, found.excess),
    )  # fmt: skip
    useful = _named(system, off, _seeing(off, reduced[usual], reduced[usual].free))
    suggestions = _suggestions(diagnosis, reduction, reduced[usual], bool(available), unseen)
    if useful:
        suggestions += (f"switch on some of: {', '.join(map(repr, useful))}",)
    return replace(diagnosis, suggestions=suggestions)


class Undetermined(NamedTuple):
    """Unknowns that no equation determines at one state.

    names: of accelerations q̈ and wrenches fx, w; switched_off: measurements, or parts of them, that would see these.
    """

    names: tuple[str, ...]
    switched_off: tuple[str, ...]

    def __str__(self) -> str:
        if not self.switched_off:
            return f"nothing determines {few(self.names)}"
        off = ", ".join(map(repr, self.switched_off))
        return f"nothing determines {few(self.names)} with {off} switched off"


def undetermined_at(system: System, inputs: Mapping[str, np.ndarray]) -> Undetermined | None:
    """The unknowns that cannot be found at one state, or hardly; None if they are too many to tell.

    inputs: (1, size) by group; equations that are switched off there do not count.
    """
    plain = system.plain
    on = {group_of(name).name: x[0] != 0.0 for name, x in inputs.items() if group_of(name).role == SWITCH}
    counted = _on(plain, on)
    reduction = Reduction(plain, plain.noisy_mask, counted)
    if len(reduction.freedoms) > MOST_FREEDOMS:
        return None
    reduced = reduction.at(plain.values(inputs)[0][0])
    free = reduced.free if reduced.free.shape[1] else reduced.weakest[:, None]
    share = np.linalg.norm(free[reduction.freedoms], axis=1)
    taken = reduction.freedoms[share > LEAST_SHARE * share.max(initial=0.0)]
    names = tuple(plain.col_names[k] for k in taken.tolist())
    off = np.flatnonzero(~counted)
    return Undetermined(joints_first(names), _named(plain, off, _seeing(off, reduced, free)))


def contradicting(system: BlockSystem, inputs: Mapping[str, np.ndarray], row: str) -> tuple[str, ...]:
    """Other exact measurements, by name, of which a redundant row is a combination at one state.

    inputs: (1, size) by group; row: as in `row_names`.
    """
    reduced = Reduction(system, system.noisy_mask).at(system.values(inputs)[0][0])
    r, basis = system.row_names.index(row), reduced.dependent
    combination = basis @ basis[r]  # the part of the row in the combinations that vanish
    numbered = (*system.problem.raw, *system.problem.custom)
    taken = np.flatnonzero(np.abs(combination) > LEAST_SHARE * np.abs(combination).max())
    names = (numbered[k].name for kind, k in (system.row_blocks[x] for x in taken.tolist()) if kind == "y")
    own = numbered[system.row_blocks[r][1]].name
    return tuple(dict.fromkeys(name for name in names if name != own))


def _on(system: BlockSystem, active: Mapping[str, np.ndarray]) -> np.ndarray:
    """(equations,) bool: True unless of a component that is switched off; active: (m,) bool by measurement."""
    on = np.ones(system.shape[0], dtype=bool)
    for r, (noise, component) in system.noise_by_row.items():
        on[r] = noise.name not in active or active[noise.name][component]
    return on


def _named(system: BlockSystem, off: np.ndarray, seen: np.ndarray | None = None) -> tuple[str, ...]:
    """Measurements of the noisy rows `off`, by name; with the components in `off` if others are on.

    seen: only of these rows.
    """
    all_off = Counter(system.noise_by_row[r][0].name for r in off.tolist())
    chosen: dict[str, list[int]] = {}
    for r in (off if seen is None else seen).tolist():
        noise, component = system.noise_by_row[r]
        chosen.setdefault(noise.name, []).append(component)
    components = {m.name: m.components(system.model) for m in system.problem.noisy}
    return tuple(
        name if all_off[name] == len(components[name]) else f"{name}: {', '.join(components[name][x] for x in k)}"
        for name, k in chosen.items()
    )


def _seeing(rows: np.ndarray, reduced: Reduced, directions: np.ndarray) -> np.ndarray:
    """The members of `rows` that see some of the directions (unknowns, k)."""
    return rows[np.abs(reduced.matrix[rows] @ directions).max(axis=1, initial=0.0) > LEAST_SHARE]


def _switches(problem: Statement, active: Mapping[str, ArrayLike] | None) -> dict[str, np.ndarray]:
    """(m,) bool by measurement. Raises InvalidInput, UnknownName."""
    sizes = {m.name: len(m.components(problem.model)) for m in problem.switchable}
    found = {}
    for name, value in switches(active):
        check_among("switchable measurement", name, sizes)
        x = np.asarray(value)
        if x.dtype.kind not in "biuf" or not np.isin(x, (0, 1)).all() or x.shape not in ((), (sizes[name],)):
            raise InvalidInput(f"active[{name!r}] must be true or false, or {sizes[name]} of them, not {value!r}")
        found[name] = np.broadcast_to(x != 0, sizes[name])
    return found


def sampled_states(model: Model, few: bool = False) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(kinds, q (N, nq), q̇ (N, nv)): random states, the neutral one at rest, joints at multiples of π/2."""
    rng = np.random.default_rng(3)
    random, mixed, angles = (2, 1, ("π/2",)) if few else (4, 4, ("π/2", "π", "3π/2"))
    kinds = ["random"] * random + ["neutral"] + [f"every joint at {x}" for x in angles]
    kinds += ["joints at multiples of π/2"] * mixed
    q, qd, _ = model.random_state(seed=3, batch=len(kinds))
    q[random], qd[random] = model.neutral(), 0.0
    same = np.outer(np.arange(1, len(angles) + 1), np.ones(model.nv))
    quarters = np.concatenate([same, rng.integers(0, 4, size=(mixed, model.nv))]) * (math.pi / 2)
    q[random + 1 :] = model.integrate(model.neutral(), quarters)
    return kinds, q, qd


def _by_blocks(found: Structure, reduced: Reduced) -> Diagnosis:
    """Diagnosis of a system too large for null spaces: irreducible blocks of its pattern that are singular by value.

    Names are those of whole blocks and of the parts that the pattern shows to be ill posed.
    """
    reduction = reduced.reduction
    system, matrix = reduction.system, reduced.matrix[reduction.counted]
    blocks = dulmage_mendelsohn(system.pattern()[reduction.counted]).square
    singular = [b for b in blocks if condition(matrix[list(b.rows)][:, list(b.columns)]) >= 1.0 / RELATIVE_RANK]
    unknowns, equations = np.array(system.col_names), np.array(system.row_names)[reduction.counted]
    undetermined = (*found.undetermined, *(x for b in singular for x in unknowns[list(b.columns)].tolist()))
    redundant = (*found.redundant, *(x for b in singular for x in equations[list(b.rows)].tolist()))
    note = f"{len(reduction.freedoms)} free q̈ and fx are too many to tell directions; what is named are whole blocks"
    return Diagnosis(
        equations=found.equations, unknowns=found.unknowns, rank=None, undetermined=undetermined, redundant=redundant,
        suggestions=(note, *_inertias(system.model, undetermined)), structural=not found.sound,
        missing=found.free + len(singular), excess=found.excess + len(singular),
        by_structure=(found.free, found.excess),
    )  # fmt: skip


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
    problem: Statement, available: Sequence[Measurement], reduction: Reduction, usual: Reduced
) -> tuple[tuple[Measurement, ...] | None, tuple[str, ...]]:
    """(measurements to add, None if all are not enough; unknowns that stay undetermined with all of them)."""
    system, model, missing = reduction.system, problem.model, usual.free.shape[1]
    if not available or not missing:
        return (), ()
    numbered = (*system.problem.raw, *system.problem.custom)
    rows: dict[str, list[int]] = {}  # of the candidates, by the name of the measurement
    for r in np.flatnonzero(~reduction.counted).tolist():
        rows.setdefault(numbered[system.row_blocks[r][1]].name, []).append(r)
    candidates = []
    stated = {(m.quantity, *pair) for m in problem.raw for pair in m.pairs(model)}
    for m in available:
        if m.name in rows or not isinstance(m, RawMeasurement):
            seen = usual.matrix[rows[m.name]] @ usual.free
        else:
            pairs = m.pairs(model)
            seen = usual.free[[system.layout.columns(m.quantity, i)[k] for i, k in pairs]]
            seen = seen * [[(m.quantity, *pair) not in stated] for pair in pairs]
            stated |= {(m.quantity, *pair) for pair in pairs}
        candidates.append(Candidate(m, seen, m.divisible and (m.noise is None or isinstance(m, RawMeasurement))))
    chosen = additions(candidates, missing)
    if chosen is not None:
        return tuple(x for c, components in chosen for x in restricted(c.measurement, components, model)), ()
    left = np.linalg.svd(np.vstack([c.seen for c in candidates]))
    rank = int(np.sum(left[1] > PART))
    return None, tuple(np.array(system.col_names)[involved(usual.free @ left[2][rank:].T)].tolist())


def _last_first(problem: Statement, system: BlockSystem) -> list[int]:
    """Rows of exact measurements, the last stated first, because these are the likeliest to be redundant.

    Rows of constraints come after all others: removing a measurement never leaves a constraint's wrench
    undetermined, removing a constraint may.
    """
    numbered = (*problem.raw, *problem.custom)
    place = {m.name: (not isinstance(m, Constraint), k) for k, m in enumerate(problem.measurements)}
    rows = [r for r, (kind, k) in enumerate(system.row_blocks) if kind == "y" and k < len(numbered)]
    return sorted(rows, key=lambda r: (place[numbered[system.row_blocks[r][1]].name], r), reverse=True)


def _suggestions(
    found: Diagnosis, reduction: Reduction, usual: Reduced, asked: bool, unseen: tuple[str, ...]
) -> tuple[str, ...]:
    """Advice on quantities to state and to leave out, in words, with examples that are enough."""
    suggestions = [_to_state(found, reduction, usual)] if found.missing else []
    suggestions += _inertias(reduction.system.model, found.undetermined)
    if found.excess:
        text = f"leave out {found.excess} of: {few(stated(found.redundant), 8)}"
        if len(found.redundant) > found.excess:
            text += f"; for example {few(found.removals)}"
        if found.missing and not found.structural:
            suggestions[0] += f"; then {text}"
        else:
            suggestions.append(text)
    if found.additions is None:
        left = f"{few(joints_first(unseen), 8)} {'stays' if len(unseen) == 1 else 'stay'} undetermined"
        suggestions.append(f"the available measurements are not enough: with all of them {left}")
    elif found.additions:
        suggestions.append(f"add {'; '.join(written(m, reduction.system.model) for m in found.additions)}")
    elif asked and not found.missing:
        suggestions.append("none of the available measurements is needed")
    return tuple(suggestions)


def _inertias(model: Model, undetermined: Sequence[str]) -> list[str]:
    """Advice for bodies without inertia, if that leaves accelerations undetermined."""
    return [f"{x}; give the body an inertia or the joint an armature" for x in idle_among(model, undetermined)]


def _to_state(found: Diagnosis, reduction: Reduction, usual: Reduced) -> str:
    """Advice on quantities to state until no direction is missing, in words, with an example."""
    possible = tuple(x for x in found.undetermined if not x.startswith("w("))  # a constraint's wrench is no input
    names = joints_first(tuple(x for x in possible if x.startswith(JOINT_AND_CONTACT)) or possible)
    if not names:
        wrenches = few([x for x in found.undetermined if x.startswith("w(")], 8)
        text = f"leave out constraints that hold the same motion twice, with {wrenches}"
        text = "; ".join((text, *held_twice(reduction.system.problem)))
    elif found.missing == found.by_structure[0]:
        text = f"state {found.missing} of: {few(names, 8)}"
    else:
        text = f"state one of {few(names, 8)} for each direction that is missing ({found.missing})"
    example = _example(found, reduction, usual)
    return f"{text}; for example {example}" if example else text


def _example(found: Diagnosis, reduction: Reduction, usual: Reduced) -> str:
    """Scalars that see all missing directions, as measurements; those that describe the directions come first."""
    layout, model = reduction.system.layout, reduction.system.model
    leading = {term.name for direction in found.directions for term in direction.terms}
    names = (*QUANTITIES, *layout.further)
    stated = [c for x in names for c in layout.quantity_columns(x)]
    order = sorted(
        stated, key=lambda c: (layout.names[c] not in leading, not layout.names[c].startswith(JOINT_AND_CONTACT))
    )
    chosen = set(independent_rows(usual.free, order))
    if len(chosen) < found.missing:
        return ""
    examples = []
    for quantity in names:
        places = [k for k, c in enumerate(layout.quantity_columns(quantity)) if c in chosen]
        if places:
            examples += restricted(known(quantity), places, model)
    return few([written(m, model) for m in examples])
