"""Joints with singular articulated inertia at all states; their accelerations are undetermined. RBDA section 7.2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.errors import ModelError, PlausibilityWarning, few, warn
from sysdyn.model.closures import Coupling
from sysdyn.model.kinematics import joint_transforms
from sysdyn.model.model import Model

# Articulated inertia that counts as zero, relative to the composite inertia of the joint: chosen.
RELATIVE_ZERO = 1e-10
# Number and seed of the random states of the test: chosen.
STATES, SEED = 3, 11


@dataclass(frozen=True)
class InertialessJoint:
    """A joint with a degree of freedom that moves no inertia at any state, with the reason as text."""

    joint: str
    reason: str

    def __str__(self) -> str:
        return self.reason


def inertialess_joints(model: Model) -> tuple[InertialessJoint, ...]:
    """The joints whose articulated inertia S^T I^A S + A is singular at all sampled states.

    A joint on a massless link is regular if it moves inertia of descendants and their joints cannot cancel this motion.
    """
    if np.all(np.linalg.eigvalsh(model.inertias)[:, 0] > RELATIVE_ZERO * np.abs(model.inertias).max(axis=(1, 2))):
        return ()
    q, _, _ = model.random_state(seed=SEED, batch=STATES)
    tests = [_singular_freedoms(model, x) for x in q]
    singular = np.all([test[0] for test in tests], axis=0)
    parts = [model.v_slice(i) for i in range(model.nb)]
    coupled = _coupled_to_inertia(model, [bool(singular[part].all()) for part in parts])
    joints = []
    for i, (joint, body) in enumerate(zip(model.joint_names, model.body_names, strict=True)):
        if i in coupled or not singular[parts[i]].any():
            continue
        subtree = _subtree(model, i)
        empty = subtree if not model.inertias[subtree].any() else subtree[:1] if not model.inertias[i].any() else []
        massless = without_inertia(tuple(model.body_names[j] for j in empty)) if empty else ""
        if (tests[0][1] & singular)[parts[i]].any():  # the subtree has inertia if its joints are locked
            reason = f"joints beyond joint {joint!r} can cancel the motion of all bodies that it moves"
            reason = f"{massless}, and {reason}" if massless else reason
        elif massless:
            reason = f"{massless}, joint {joint!r} moves nothing else"
        else:
            reason = f"joint {joint!r} moves no inertia: body {body!r} and what it carries have none about its axis"
        joints.append(InertialessJoint(joint, reason))
    return tuple(joints)


def without_inertia(bodies: tuple[str, ...]) -> str:
    """Message text: `bodies` have no inertia."""
    names = few(map(repr, bodies))
    return f"body {names} has no inertia" if len(bodies) == 1 else f"bodies {names} have no inertia"


def check_inertialess_joints(model: Model, strict: bool) -> None:
    """Report `inertialess_joints`: ModelError if strict, else PlausibilityWarning. Massless models are not checked."""
    joints = inertialess_joints(model) if model.inertias.any() else ()
    if not joints:
        return
    reasons = few(joints, between="; ")
    message = f"model {model.name!r}: {reasons}: no torque determines the acceleration of such a joint"
    advice = "Give the body an inertia or the joint an armature, or make the joint fixed"
    if strict:
        raise ModelError(f"{message}. {advice}; with strict=False the model is used as it is.")
    warn(f"{message}. {advice}.", PlausibilityWarning)


def _coupled_to_inertia(model: Model, singular: list[bool]) -> set[int]:
    """Joints coupled, directly or through other joints, to a joint that moves inertia or is fixed."""
    groups: dict[int, set[int]] = {}
    for c in model.closures:
        if isinstance(c, Coupling):
            ends = [model.joint_index(joint) for joint in (c.joint, c.leader) if joint is not None]
            group = set(ends).union(*(groups.get(i, ()) for i in ends))
            groups |= dict.fromkeys(group, group)
            if c.leader is None:
                singular[ends[0]] = False
    return {i for i, group in groups.items() if not all(singular[j] for j in group)}


def _subtree(model: Model, i: int) -> list[int]:
    """Body i and its descendants."""
    bodies = {i}
    for j in range(i + 1, model.nb):
        if model.parent[j] in bodies:
            bodies.add(j)
    return sorted(bodies)


def _singular_freedoms(model: Model, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two (nv,) bool arrays: True if the articulated inertia is singular; True if the composite inertia is > 0."""
    X, articulated, composite = joint_transforms(model, q), model.inertias.copy(), model.inertias.copy()
    singular, moving = np.zeros(model.nv, dtype=bool), np.zeros(model.nv, dtype=bool)
    for i in reversed(range(model.nb)):
        S, part, parent = model.joints[i].S, model.v_slice(i), model.parent[i]
        A, U = np.diag(model.armature[part]), articulated[i] @ S
        size = np.sqrt(np.maximum(np.diag(S.T @ composite[i] @ S + A), 0.0))
        moving[part] = size > 0.0
        scale = 1.0 / np.where(size > 0.0, size, 1.0)
        d, V = np.linalg.eigh(scale[:, None] * (S.T @ U + A) * scale)
        null = d <= RELATIVE_ZERO
        singular[part] = (np.abs(V[:, null]) > RELATIVE_ZERO).any(axis=1)
        if parent >= 0:
            W = (scale[:, None] * V[:, ~null]).T @ U.T
            articulated[parent] += X[i].T @ (articulated[i] - W.T @ (W / d[~null, None])) @ X[i]
            composite[parent] += X[i].T @ composite[i] @ X[i]
    return singular, moving
