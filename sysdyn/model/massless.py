"""Joints that move no inertia at any state, so that no torque determines their accelerations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.errors import ModelError, PlausibilityWarning, few, warn
from sysdyn.model.closures import Coupling
from sysdyn.model.kinematics import joint_transforms
from sysdyn.model.model import Model

# Fraction of the inertia that a joint carries below which the inertia that it moves counts as nothing (chosen).
NOTHING = 1e-10
# Number of random states at which joints are looked at, and their seed (chosen).
STATES, SEED = 3, 11


@dataclass(frozen=True)
class Idle:
    """A joint with degrees of freedom that move no inertia at any state.

    body: that it moves; massless: the bodies from there on if none of them has an
    inertia, or that one alone; carrying: some inertia would move with the joint if those beyond it stood still.
    """

    joint: str
    body: str
    massless: tuple[str, ...]
    carrying: bool

    def __str__(self) -> str:
        if self.carrying:
            leading = f"{without_inertia(self.massless)}, and " if self.massless else ""
            return f"{leading}joints beyond joint {self.joint!r} can leave in place all that it moves"
        if self.massless:
            return f"{without_inertia(self.massless)}, joint {self.joint!r} moves nothing else"
        return f"joint {self.joint!r} moves no inertia: body {self.body!r} and what it carries have none about its axis"


def without_inertia(bodies: tuple[str, ...]) -> str:
    """The statement, in words, that these bodies have no inertia."""
    names = few(map(repr, bodies))
    return f"body {names} has no inertia" if len(bodies) == 1 else f"bodies {names} have no inertia"


def idle_joints(model: Model) -> tuple[Idle, ...]:
    """The joints that move no inertia at any state, by their articulated inertias S^T I^A S + A. RBDA section 7.2.

    Massless links are harmless where their joint moves inertia beyond them, whatever the joints there do.
    """
    least = np.linalg.eigvalsh(model.inertias)[:, 0]
    if np.all(least > NOTHING * np.abs(model.inertias).max(axis=(1, 2))):
        return ()
    q, _, _ = model.random_state(seed=SEED, batch=STATES)
    found = [_idle_freedoms(model, x) for x in q]
    result = []
    carried = _carried(model, [all(idle[i].all() for idle, _ in found) for i in range(model.nb)])
    for i in range(model.nb):
        if i in carried:
            continue
        freedoms = np.all([idle[i] for idle, _ in found], axis=0)
        if not freedoms.any():
            continue
        beyond = _subtree(model, i)
        none = beyond if not model.inertias[beyond].any() else beyond[:1] if not model.inertias[i].any() else []
        carrying = bool(found[0][1][i][freedoms].any())
        massless = tuple(model.body_names[j] for j in none)
        result.append(Idle(model.joint_names[i], model.body_names[i], massless, carrying))
    return tuple(result)


def _carried(model: Model, idle: list[bool]) -> set[int]:
    """Coupled joints with a partner that moves inertia, so that all of them do."""
    group: dict[int, set[int]] = {}
    for c in model.closures:
        if isinstance(c, Coupling):
            ends = [model.joint_index(joint) for joint in (c.joint, c.leader) if joint is not None]
            joined = set(ends).union(*(group.get(i, ()) for i in ends))
            group |= dict.fromkeys(joined, joined)
            if c.leader is None:
                idle[ends[0]] = False  # it stands still
    return {i for i, others in group.items() if not all(idle[j] for j in others)}


def warn_of_idle_joints(model: Model, strict: bool) -> None:
    """Warn with PlausibilityWarning of joints that move no inertia; strict: raise ModelError instead."""
    found = idle_joints(model) if model.inertias.any() else ()  # a robot without any is there for its kinematics
    if not found:
        return
    shown = few(found, between="; ")
    message = f"model {model.name!r}: {shown}: no torque determines the acceleration of such a joint"
    help = "Give the body an inertia or the joint an armature, or make the joint fixed"
    if strict:
        raise ModelError(f"{message}. {help}; with strict=False the model is used as it is.")
    warn(f"{message}. {help}.", PlausibilityWarning)


def _subtree(model: Model, i: int) -> list[int]:
    """Body i and the bodies that it carries."""
    found = {i}
    for j in range(i + 1, model.nb):
        if model.parent[j] in found:
            found.add(j)
    return sorted(found)


def _idle_freedoms(model: Model, q: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each joint (nv_i,) bool: the degree of freedom has a part in a motion that moves no inertia at this state;
    and it would move some if the joints beyond it stood still.
    """
    X, I, composite = joint_transforms(model, q), model.inertias.copy(), model.inertias.copy()
    idle: list[np.ndarray] = [np.zeros(0, dtype=bool)] * model.nb
    carrying = idle.copy()
    for i in reversed(range(model.nb)):
        S, A, parent = model.joints[i].S, np.diag(model.armature[model.v_slice(i)]), model.parent[i]
        U = I[i] @ S
        size = np.sqrt(np.maximum(np.diag(S.T @ composite[i] @ S + A), 0.0))
        carrying[i] = size > 0.0
        scale = 1.0 / np.where(carrying[i], size, 1.0)
        d, V = np.linalg.eigh(scale[:, None] * (S.T @ U + A) * scale) if len(A) else (np.zeros(0), A)
        null = d <= NOTHING
        idle[i] = np.asarray((np.abs(V[:, null]) > NOTHING).any(axis=1))
        if parent >= 0:
            V = scale[:, None] * V[:, ~null]
            W = V.T @ U.T
            I[parent] += X[i].T @ (I[i] - W.T @ (W / d[~null, None])) @ X[i]
            composite[parent] += X[i].T @ composite[i] @ X[i]
    return idle, carrying
