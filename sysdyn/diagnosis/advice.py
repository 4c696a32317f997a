"""Advice in words for problems that are not well posed."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import numpy as np

from sysdyn.errors import few
from sysdyn.measurements.constraints import Contact, FrameConstraint
from sysdyn.measurements.measurement import find_frame
from sysdyn.measurements.statement import Statement
from sysdyn.model import Model
from sysdyn.model.massless import inertialess_joints, without_inertia

Blocks = Collection[tuple[str, int]]  # (quantity, number of the body or constraint) of unknowns


def inertialess_among(model: Model, undetermined: Blocks) -> tuple[str, ...]:
    """Sentences about joints with undetermined q̈ that move no inertia at any state."""
    joints = {model.joint_names[i] for quantity, i in undetermined if quantity == "qdd"}
    return tuple(str(x) for x in inertialess_joints(model) if x.joint in joints) if joints else ()


def massless_among(model: Model, undetermined: Blocks) -> str:
    """Sentence about bodies without inertia on joints with undetermined q̈; "" if there are none."""
    numbers = sorted(i for quantity, i in undetermined if quantity == "qdd" and not model.inertias[i].any())
    return without_inertia(tuple(model.body_names[i] for i in numbers)) if numbers else ""


def duplicate_constraints(problem: Statement) -> tuple[str, ...]:
    """Sentences about pairs of constraints that fix the same motion of the same bodies."""
    model, names = problem.model, problem.model.body_names
    placed = []
    for m in problem.constraints:
        if isinstance(m, FrameConstraint):
            frames = [find_frame(model, place) for place in m.places]
            placed.append((m, {f.body for f in frames}, np.concatenate([f.X for f in frames])))
    sentences = []
    for (a, bodies, X), (b, others, Y) in itertools.combinations(placed, 2):
        common = set(a.chosen) & set(b.chosen) if X.shape == Y.shape and np.allclose(X, Y) else ()
        if bodies == others and (common or len(a.chosen) + len(b.chosen) > 6):
            owners = " and ".join(names[i] if i >= 0 else "the world" for i in sorted(bodies, reverse=True))
            sentences.append(
                f"{a.name!r} and {b.name!r} fix the same motion of {owners}"
                + (f" ({', '.join(c for c in a.chosen if c in common)})" if common else "")
                + ": leave one of them out, or let it fix fewer components"
            )
    return tuple(sentences)


def share_of_load(problem: Statement, undetermined: Blocks) -> str:
    """Advice if prescribed accelerations leave wrenches of constraints and torques undetermined; else ""."""
    model, torques = problem.model, {i for quantity, i in undetermined if quantity == "tau"}
    moved = sorted({i for i, _ in problem.knows("qdd") if i in torques})
    loaded = [m for k, m in enumerate(problem.constraints) if ("w", k) in undetermined]
    if not (moved and loaded):
        return ""
    if all(isinstance(m, Contact) for m in problem.constraints) and any(model.joints[i].nv == 6 for i in moved):
        smallest = "sysdyn.inverse_dynamics(model, contacts=[…]) shares the load between all contacts"
    else:
        smallest = "sysdyn.least_norm(problem, q, qd, …) gives the smallest wrenches"
    joints, constraints = few([repr(model.joint_names[i]) for i in moved]), few([repr(m.name) for m in loaded])
    text = (
        f"the motion is known, but not how {constraints} and the motors of {joints} share the load. State torques in "
        f"place of accelerations of these joints, or of some of them; or {smallest}"
    )
    return "; ".join((text, *duplicate_constraints(problem)))
