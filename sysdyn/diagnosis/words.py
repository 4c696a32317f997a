"""Lists of names, short enough to read."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np

from sysdyn.diagnosis.directions import FIRST, Direction
from sysdyn.errors import few
from sysdyn.measurements.constraints import Contact, FrameConstraint
from sysdyn.measurements.groups import VALUE, group_of
from sysdyn.measurements.measurement import find_frame
from sysdyn.measurements.statement import Statement
from sysdyn.model import Model
from sysdyn.model.massless import inertialess_joints, without_inertia

JOINT_AND_CONTACT = tuple(f"{x}(" for x in FIRST)  # Begins of names that are shown first.


# ---- words -----------------------------------------------------------------------------------------------------------


def kind_of_state(count: int, by_structure: int) -> str:
    if count == by_structure:
        return "by structure, whatever the state"
    return f"by {'structure and by ' if by_structure else ''}value, at every sampled state"


def listed(what: str, found: tuple[Direction, ...]) -> list[str]:
    return [f"  {what}:", "  " + few((f"- {x}" for x in found), between="\n  ")] if found else []


def joints_first(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names with those that a user would state first."""
    return tuple(sorted(names, key=lambda name: [not name.startswith(kind) for kind in JOINT_AND_CONTACT]))


def stated(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The measurements among the rows, the one stated last first: it is the likeliest to be one too many."""
    return tuple(row for row in reversed(rows) if group_of(row).role == VALUE)


def at_states(states: Sequence[int] | np.ndarray, n: int) -> str:
    """Numbers out of n states in words: " 3 (and 4 more of 9)"; "" if n is 1."""
    more = f" (and {len(states) - 1} more of {n})" if len(states) > 1 else ""
    return "" if n == 1 else f" {int(states[0])}{more}"


def idle_among(model: Model, unknowns: Sequence[str]) -> tuple[str, ...]:
    """The joints, in words, that move no inertia at any state and whose accelerations are among the unknowns."""
    joints = _joints_of(unknowns)
    return tuple(str(x) for x in inertialess_joints(model) if x.joint in joints) if joints else ()


def massless_among(model: Model, unknowns: Sequence[str]) -> str:
    """The bodies, in words, without inertia whose joints' accelerations are among the unknowns; "" for none."""
    joints = _joints_of(unknowns)
    parts = zip(model.joint_names, model.body_names, model.inertias, strict=True)
    bodies = tuple(body for joint, body, I in parts if joint in joints and not I.any())
    return without_inertia(bodies) if bodies else ""


def held_twice(problem: Statement) -> tuple[str, ...]:
    """Pairs of constraints that hold the same motion of the same bodies, in words."""
    model, names = problem.model, problem.model.body_names
    held = []
    for m in problem.constraints:
        if isinstance(m, FrameConstraint):
            frames = [find_frame(model, place) for place in m.places]
            held.append((m, {f.body for f in frames}, np.concatenate([f.X for f in frames])))
    found = []
    for (a, bodies, X), (b, others, Y) in itertools.combinations(held, 2):
        common = set(a.chosen) & set(b.chosen) if X.shape == Y.shape and np.allclose(X, Y) else ()
        if bodies == others and (common or len(a.chosen) + len(b.chosen) > 6):
            what = " and ".join(names[i] if i >= 0 else "the world" for i in sorted(bodies, reverse=True))
            found.append(
                f"{a.name!r} and {b.name!r} hold the same motion of {what}"
                + (f" ({', '.join(c for c in a.chosen if c in common)})" if common else "")
                + ": leave one of them out, or let it hold fewer components"
            )
    return tuple(found)


def undetermined_by_motion(problem: Statement, undetermined: Collection[str]) -> str:
    """Advice if known accelerations leave wrenches of constraints and torques undetermined; else ""."""
    model, torques = problem.model, _joints_of(undetermined, "tau")
    moved = {i for i, _ in problem.knows("qdd") if model.joint_names[i] in torques}
    open_ = [m for m in problem.constraints if any(x.startswith(f"w({m.name})") for x in undetermined)]
    if not (moved and open_):
        return ""
    if all(isinstance(m, Contact) for m in problem.constraints) and any(model.joints[i].nv == 6 for i in moved):
        smallest = "sysdyn.inverse_dynamics(model, contacts=[…]) shares the load between all contacts"
    else:
        smallest = "sysdyn.least_norm(problem, q, qd, …) gives the smallest wrenches"
    joints, constraints = few([repr(model.joint_names[i]) for i in sorted(moved)]), few([repr(m.name) for m in open_])
    text = (
        f"the motion is known, but not how {constraints} and the motors of {joints} share the load. State torques in "
        f"place of accelerations of these joints, or of some of them; or {smallest}"
    )
    return "; ".join((text, *held_twice(problem)))


def _joints_of(unknowns: Collection[str], quantity: str = "qdd") -> set[str]:
    """Names of the joints that occur in unknowns of this quantity, such as "qdd(knee)"."""
    begin = f"{quantity}("
    return {name[len(begin) :].partition(")")[0] for name in unknowns if name.startswith(begin)}
