"""Closures of a tree: joint couplings and kinematic loops; passive joint torques.

A coupling makes the position of its joint (the follower) a function of the position of another joint (the leader). With
G = ∂q̇/∂q̇_independent, q̇ = G q̇_independent and τ_independent = G^T τ: the torque of a follower acts on its leader,
scaled by the ratio. Problems impose couplings and loops; algorithms for trees (RNEA, ABA …) ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sysdyn.errors import ModelError, check_among
from sysdyn.program.graph import sqrt

LOOP_KINDS = ("fixed", "spherical")


@dataclass(frozen=True)
class Coupling:
    """Joint coupling: q = Σ_k coefficients[k] q_leader^k.

    Parameters
    ----------
    joint : str
        Name of the follower, a joint with one degree of freedom.
    leader : str or None
        Name of the leader, a joint with one degree of freedom. None fixes the follower at coefficients[0].
    coefficients : sequence of float
        By ascending power, in rad or m per power of the leader's unit. A URDF `<mimic>` is (offset, multiplier).
    """

    joint: str
    leader: str | None
    coefficients: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))

    def derivatives(self, x: Any) -> tuple[Any, Any, Any]:
        """Value, first and second derivative of the polynomial at the leader position x."""
        value, first, second = 0.0, 0.0, 0.0
        for c in reversed(self.coefficients):
            second = second * x + (first + first)
            first = first * x + value
            value = value * x + c
        return value, first, second


@dataclass(frozen=True)
class Loop:
    """Kinematic loop: a constraint between two frames of the model.

    Parameters
    ----------
    name : str
        Name of the constraint in problems.
    frame_a, frame_b : str
        Names of the frames.
    kind : {"fixed", "spherical"}
        "fixed": the poses coincide. "spherical": the origins coincide.
    """

    name: str
    frame_a: str
    frame_b: str
    kind: str


Closure = Coupling | Loop


class CoupledJoint(NamedTuple):
    """A coupling with the indices of its joint and its leader in q and q̇. Without a leader they are −1."""

    coupling: Coupling
    q: int
    v: int
    leader_q: int = -1
    leader_v: int = -1


def closure_from_dict(data: Mapping[str, Any]) -> Closure:
    """Create a closure from its fields."""
    return Coupling(**data) if "joint" in data else Loop(**data)


def check_closures(model: Any) -> None:
    """Check the closures of a model. Raises UnknownName for unknown joints and frames, else ModelError."""
    followers: set[str] = set()
    for c in model.closures:
        if isinstance(c, Loop):
            for frame in (c.frame_a, c.frame_b):
                model.frame(frame)
            check_among(f"kind of loop {c.name!r}", c.kind, LOOP_KINDS)
            continue
        for joint in (c.joint, *([] if c.leader is None else [c.leader])):
            i = model.joint_index(joint)
            if model.joints[i].nv != 1 or model.joints[i].nq != 1:
                raise ModelError(
                    f"joint {joint!r} has {model.joints[i].nv} degrees of freedom: a coupled joint needs exactly one"
                )
        if c.joint in followers:
            raise ModelError(f"joint {c.joint!r} is coupled twice")
        if not c.coefficients or not np.isfinite(c.coefficients).all():
            raise ModelError(f"the coupling of joint {c.joint!r} has coefficients {c.coefficients}, not finite numbers")
        followers.add(c.joint)


def coupled_joints(model: Any) -> tuple[CoupledJoint, ...]:
    """Couplings of a model, sorted so that leaders precede followers. Raises ModelError for a cycle."""
    by_joint = {c.joint: c for c in model.closures if isinstance(c, Coupling)}
    coupled: dict[str, CoupledJoint] = {}
    for joint in by_joint:
        path: list[str] = []
        while joint in by_joint and joint not in coupled:
            if joint in path:
                raise ModelError(f"couplings form a cycle: {' → '.join([*path[path.index(joint) :], joint])}")
            path.append(joint)
            joint = by_joint[joint].leader or ""
        for name in reversed(path):
            ends = [model.joint_index(end) for end in (name, by_joint[name].leader) if end is not None]
            indices = [part(i).start for i in ends for part in (model.q_slice, model.v_slice)]
            coupled[name] = CoupledJoint(by_joint[name], *indices)
    return tuple(coupled.values())


def coupling_matrix(coupled: Sequence[CoupledJoint], nv: int, q: np.ndarray) -> np.ndarray:
    """G (nv, independent degrees of freedom) at q (nq,), with the dtype of q."""
    independent = np.setdiff1d(np.arange(nv), [joint.v for joint in coupled])
    G = np.full((nv, len(independent)), 0.0, dtype=q.dtype)
    G[independent, np.arange(len(independent))] = 1.0
    for joint in coupled:
        if joint.leader_v >= 0:
            _, first, _ = joint.coupling.derivatives(q[joint.leader_q])
            G[joint.v] = [x if isinstance(x, float) and x == 0.0 else first * x for x in G[joint.leader_v]]
    return G


def coupling_bias(coupled: Sequence[CoupledJoint], q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """Bias γ (nv,) in q̈ = G q̈_independent + γ at q (nq,), q̇ (nv,), with the dtype of q̇."""
    gamma = np.full(len(qd), 0.0, dtype=qd.dtype)
    for joint in coupled:
        if joint.leader_v >= 0:
            _, first, second = joint.coupling.derivatives(q[joint.leader_q])
            gamma[joint.v] = first * gamma[joint.leader_v] + second * qd[joint.leader_v] * qd[joint.leader_v]
    return gamma


def impose(
    coupled: Sequence[CoupledJoint], q: np.ndarray, qd: np.ndarray, qdd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copies of q (…, nq), q̇ and q̈ (…, nv) in which followers satisfy their couplings."""
    q, qd, qdd = q.copy(), qd.copy(), qdd.copy()
    for joint in coupled:
        if joint.leader_v < 0:
            q[..., joint.q], qd[..., joint.v], qdd[..., joint.v] = joint.coupling.coefficients[0], 0.0, 0.0
            continue
        value, first, second = joint.coupling.derivatives(q[..., joint.leader_q])
        rate = qd[..., joint.leader_v]
        q[..., joint.q], qd[..., joint.v] = value, first * rate
        qdd[..., joint.v] = first * qdd[..., joint.leader_v] + second * rate * rate
    return q, qd, qdd


def friction_torque(damping: np.ndarray, friction: np.ndarray, qd: np.ndarray, slip: float) -> np.ndarray:
    """Friction torque damping·q̇ + friction·q̇/√(q̇² + slip²) (…, nv) at q̇ (…, nv). Zero coefficients add no terms."""
    total = np.full(qd.shape, 0.0, dtype=qd.dtype)
    for k in range(len(damping)):
        v = qd[..., k]
        if damping[k]:
            total[..., k] = total[..., k] + float(damping[k]) * v
        if friction[k]:
            root = np.sqrt(v * v + slip * slip) if qd.dtype != object else sqrt(v * v + slip * slip)
            total[..., k] = total[..., k] + float(friction[k]) * v / root
    return total
