"""Closures of robot files: joints coupled to others, and pairs of frames held together; and the dissipation of joints.

A tree has a coordinate for each of its joints. Couplings make those of followers functions of their leaders', with
G = ∂q̇/∂q̇_independent: q̇ = G q̇_independent and τ_independent = G^T τ, so that the torque of a follower acts on its
leader through the ratio. Problems impose couplings and loops (`sysdyn.closures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sysdyn.errors import ModelError, check_among
from sysdyn.files import toml
from sysdyn.program.graph import sqrt


@dataclass(frozen=True)
class Coupling:
    """q of a joint is Σ_k coefficients[k] q_leader^k, or coefficients[0] if it has no leader.

    URDF `<mimic>`: (offset, multiplier). Both joints have one degree of freedom.
    """

    joint: str
    leader: str | None
    coefficients: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))

    def derivatives(self, x: Any) -> tuple[Any, Any, Any]:
        """(p, dp/dx, d²p/dx²) of the polynomial at the leader's position."""
        value, slope, curve = 0.0, 0.0, 0.0
        for c in reversed(self.coefficients):
            curve = curve * x + (slope + slope)
            slope = slope * x + value
            value = value * x + c
        return value, slope, curve


@dataclass(frozen=True)
class Loop:
    """Two frames of the model that are held together: kind "fixed" (all of them) or "spherical" (their origins)."""

    name: str
    frame_a: str
    frame_b: str
    kind: str


Closure = Coupling | Loop

# The kinds of loops.
KINDS = ("fixed", "spherical")


class Link(NamedTuple):
    """A coupling with the places of its joints in q and in q̇; −1 if it has no leader."""

    coupling: Coupling
    q: int
    v: int
    leader_q: int = -1
    leader_v: int = -1


def stored(closure: Closure) -> dict[str, Any]:
    """The closure as JSON objects."""
    return {key: toml.to_plain(x) for key, x in vars(closure).items()}


def restored(data: Mapping[str, Any]) -> Closure:
    """Inverse of `stored`."""
    return Coupling(**data) if "joint" in data else Loop(**data)


def check_closures(model: Any) -> None:
    """Raises UnknownName and ModelError for closures of parts that the model does not have, and for contradictions."""
    followers: set[str] = set()
    for c in model.closures:
        if isinstance(c, Loop):
            for frame in (c.frame_a, c.frame_b):
                model.frame(frame)
            check_among(f"kind of loop {c.name!r}", c.kind, KINDS)
            continue
        for joint in (c.joint, *([] if c.leader is None else [c.leader])):
            i = model.joint_index(joint)
            if model.joints[i].nv != 1 or model.joints[i].nq != 1:
                freedoms = f"{model.joints[i].nv} degrees of freedom"
                raise ModelError(f"joint {joint!r} has {freedoms}: couplings are of joints with one")
        if c.joint in followers:
            raise ModelError(f"joint {c.joint!r} is coupled twice")
        if not c.coefficients or not np.isfinite(c.coefficients).all():
            raise ModelError(f"the coupling of joint {c.joint!r} has coefficients {c.coefficients}, not finite numbers")
        followers.add(c.joint)


def ordered(model: Any) -> tuple[Link, ...]:
    """The couplings, leaders first. Raises ModelError if they form a cycle."""
    by_joint = {c.joint: c for c in model.closures if isinstance(c, Coupling)}
    links: dict[str, Link] = {}
    for joint in by_joint:
        way: list[str] = []
        while joint in by_joint and joint not in links:
            if joint in way:
                raise ModelError(f"couplings form a cycle: {' → '.join([*way[way.index(joint) :], joint])}")
            way.append(joint)
            joint = by_joint[joint].leader or ""
        for name in reversed(way):
            ends = [model.joint_index(end) for end in (name, by_joint[name].leader) if end is not None]
            places = [part(i).start for i in ends for part in (model.q_slice, model.v_slice)]
            links[name] = Link(by_joint[name], *places)
    return tuple(links.values())


def matrix(links: Sequence[Link], nv: int, q: np.ndarray) -> np.ndarray:
    """G (nv, independent degrees of freedom) at q, of the dtype of q."""
    independent = np.setdiff1d(np.arange(nv), [link.v for link in links])
    G = np.full((nv, len(independent)), 0.0, dtype=q.dtype)
    G[independent, np.arange(len(independent))] = 1.0
    for link in links:
        if link.leader_v >= 0:
            slope = link.coupling.derivatives(q[link.leader_q])[1]
            G[link.v] = [x if isinstance(x, float) and x == 0.0 else slope * x for x in G[link.leader_v]]
    return G


def bias(links: Sequence[Link], q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """γ (nv,) at q (nq,), q̇ (nv,): q̈ = G q̈_independent + γ, of the dtype of q̇."""
    gamma = np.full(len(qd), 0.0, dtype=qd.dtype)
    for link in links:
        if link.leader_v >= 0:
            _, slope, curve = link.coupling.derivatives(q[link.leader_q])
            gamma[link.v] = slope * gamma[link.leader_v] + curve * qd[link.leader_v] * qd[link.leader_v]
    return gamma


def impose(
    links: Sequence[Link], q: np.ndarray, qd: np.ndarray, qdd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copies of q (…, nq), q̇ and q̈ (…, nv) with the entries of followers as their leaders' demand."""
    q, qd, qdd = q.copy(), qd.copy(), qdd.copy()
    for link in links:
        if link.leader_v < 0:
            q[..., link.q], qd[..., link.v], qdd[..., link.v] = link.coupling.coefficients[0], 0.0, 0.0
            continue
        value, slope, curve = link.coupling.derivatives(q[..., link.leader_q])
        rate = qd[..., link.leader_v]
        q[..., link.q], qd[..., link.v] = value, slope * rate
        qdd[..., link.v] = slope * qdd[..., link.leader_v] + curve * rate * rate
    return q, qd, qdd


def dissipated(damping: np.ndarray, friction: np.ndarray, qd: np.ndarray, slip: float) -> np.ndarray:
    """damping q̇ + friction q̇/√(q̇² + slip²) (…, nv): the torque of motors beyond τ; zero terms are left out."""
    total = np.full(qd.shape, 0.0, dtype=qd.dtype)
    for k in range(len(damping)):
        v = qd[..., k]
        if damping[k]:
            total[..., k] = total[..., k] + float(damping[k]) * v
        if friction[k]:
            root = np.sqrt(v * v + slip * slip) if qd.dtype != object else sqrt(v * v + slip * slip)
            total[..., k] = total[..., k] + float(friction[k]) * v / root
    return total
