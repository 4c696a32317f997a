"""Gauge freedom: unobservable coordinates, shifts and rotations of the world that leave every equation unchanged.

Only sensors fixed in the world observe the position and the heading of a free base. A direction is unobservable if no
sum of squares of a measurement changes along it, at random states with random readings. Single rows may change: those
that rotate with the robot do, but their sum of squares does not depend on the heading.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sysdyn.estimation.lie_jacobians import evaluated, machine_code
from sysdyn.estimation.residuals import DynamicsResiduals, MeasurementData, StateResiduals
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.model import Model
from sysdyn.model.joints import Free
from sysdyn.model.se3 import quaternion_product, rotate, rotation, translation
from sysdyn.program.graph import SHARING, Graph, cos, sin
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner

# Largest change of a sum of squares along an unobservable direction, relative to the bound by the sizes of its rows,
# and number of random states at which it is evaluated (chosen).
UNSEEN, SEEN_AT = 1e-9, 4
# Seed of these random states.
UNSEEN_SEED = 11


@dataclass(frozen=True)
class WorldMotion:
    """Tangent of a rigid motion of the world, a rotation `turn` and a translation `shift`, in a free joint's frame.

    q, v: slices of the joint in q and q̇.
    """

    nv: int
    q: slice
    v: slice
    turn: np.ndarray
    shift: np.ndarray

    def __call__(self, q: np.ndarray) -> np.ndarray:
        p, quaternion = np.split(q[:, self.q], [3], axis=1)
        back = quaternion * (-1.0, -1.0, -1.0, 1.0)
        shift = self.shift + np.cross(self.turn, p)
        tangent = np.zeros((len(q), self.nv))
        turned = (rotate(back, np.broadcast_to(x, p.shape)) for x in (self.turn, shift))
        tangent[:, self.v] = np.concatenate([*turned], axis=1)
        return tangent


class Unseen(NamedTuple):
    """An unobservable direction: its name, and its tangent (N, nv) as a function of positions q (N, nq)."""

    name: str
    tangent: WorldMotion


def unseen(
    sources: Sequence[StateResiduals | DynamicsResiduals], layout: StateLayout, readings: MeasurementData
) -> list[Unseen]:
    """Unobservable shifts and rotations of free bases; readings: of any `SEEN_AT` time steps."""
    return [x for x in _motions(layout.model) if not any(_tells(source, layout, readings, x) for source in sources)]


def _motions(model: Model) -> Iterator[Unseen]:
    """Candidates: shifts of the world, and its rotation about the vertical, for each free joint at the base."""
    size = np.linalg.norm(model.gravity)
    up = -model.gravity / size if size > 0.0 else np.array([0.0, 0.0, 1.0])
    for i, joint in enumerate(model.joints):
        if isinstance(joint, Free) and model.parent[i] < 0:
            name, q, v = model.joint_names[i], model.q_slice(i), model.v_slice(i)
            E, place = rotation(model.X_tree[i]), translation(model.X_tree[i])  # of the joint's frame in the world
            for letter, axis in zip("xyz", E.T, strict=True):
                yield Unseen(f"{name} position {letter}", WorldMotion(model.nv, q, v, np.zeros(3), axis))
            turn = E @ up
            yield Unseen(f"{name} yaw", WorldMotion(model.nv, q, v, turn, np.cross(turn, E @ place)))


def _tells(
    source: StateResiduals | DynamicsResiduals, layout: StateLayout, readings: MeasurementData, x: Unseen
) -> bool:
    model, n = layout.model, len(readings.t)
    q, qd, qdd = model.random_state(seed=UNSEEN_SEED, batch=n)
    rates = np.zeros((n, layout.motion.order - 1, model.nv))
    rates[:, 0], rates[:, 1] = qd, qdd
    path = StateTrajectory(layout, readings.t, q, rates, np.zeros((n, layout.n_biases)))
    lines = source.linearize(path, readings)
    along = np.einsum("nij,nj->ni", lines.J[:, :, : model.nv], x.tangent(q))
    size = np.abs(lines.J).sum(axis=2) * np.abs(lines.r)
    for name in dict.fromkeys(name for name, _ in lines.names):
        rows = [k for k, (owner, _) in enumerate(lines.names) if owner == name]
        change = np.abs((along[:, rows] * lines.r[:, rows]).sum(axis=1))
        if (change > UNSEEN * size[:, rows].sum(axis=1)).any():
            return True
    return False


def settled(gone: Sequence[Unseen], path: StateTrajectory, wanted: np.ndarray, density: np.ndarray) -> StateTrajectory:
    """Move the free bases of a path along unobservable directions, so that its process errors come close to `wanted`.

    A large Gauss-Newton step changes the process errors of a base nonlinearly. Here each base is shifted and rotated in
    the world at each time step, which changes no residual of a measurement, until its process errors of position are
    those that the linearisation predicted, wanted (N − 1, nv), to second order in the errors. Least squares over the
    unobservable directions, with errors weighted by density (nv,), the density of the process noise.

    A base with an observable shift and an unobservable heading is unchanged, because rotations would shift it.
    """
    for start in dict.fromkeys(x.tangent.v.start for x in gone):
        motions = [x.tangent for x in gone if x.tangent.v.start == start]
        turns = [x.turn for x in motions if x.turn.any()]
        if turns and len(motions) < 4:
            continue  # rotations would shift it along an observable direction
        own, place, v = path.layout, motions[0].q, motions[0].v
        count = len(motions) - len(turns)
        axes = np.array([x.shift for x in motions[:count]]).reshape(-1)
        known = {"axes": axes, "turn": motions[-1].turn, "about": motions[-1].shift} if turns else {"axes": axes}
        error = wanted[:, v] - own.process_errors(path)[:, v]
        given = {"q": path.q[1:, place], "error": error, "scale": 1.0 / density[v]}
        share = evaluated(_shares(count, bool(turns)), len(error), **given, **known)["share"]
        first = np.zeros((1, count))
        shares, q, angle = np.concatenate([first, share[:, :count]]), path.q[:, place], np.zeros((len(path), 1))
        if turns:
            angle = _summed(share[:, count:])
        given = {"q": q, "angle": angle, "earlier": np.concatenate([angle[:1], angle[:-1]]), "share": shares}
        found = evaluated(_turned(count, bool(turns)), len(q), **given, **known)
        found["q"][:, :3] += np.cumsum(found["shift"], axis=0)
        q = path.q.copy()
        q[:, place] = found["q"]
        path = replace(path, q=q)
    return path


def _world(graph: Graph, shifts: int, turns: bool) -> dict[str, np.ndarray]:
    """Inputs of both programs: q of a free joint, axes of shifts, and the axis of a rotation with its shift."""
    sizes = {"q": 7, "axes": 3 * shifts} | ({"turn": 3, "about": 3} if turns else {})
    return {name: graph.inputs(name, size) for name, size in sizes.items()}


@functools.cache
def _shares(shifts: int, turns: bool) -> Runner:
    """Program that fits a process error by shifts and a rotation of the world, by least squares."""
    graph = Graph(SHARING)
    x = _world(graph, shifts, turns) | {name: graph.inputs(name, 6) for name in ("error", "scale")}
    p, back, none = x["q"][:3], x["q"][3:] * np.array([-1.0, -1.0, -1.0, 1.0]), np.zeros(3)
    tangents = [np.concatenate([none, rotate(back, a)]) for a in x["axes"].reshape(-1, 3)]
    if turns:
        tangents.append(np.concatenate([rotate(back, x["turn"]), rotate(back, x["about"] + np.cross(x["turn"], p))]))
    T, e = [y * x["scale"] for y in tangents], x["error"] * x["scale"]
    rows = [np.array([*(a @ b for b in T), a @ e], dtype=object) for a in T]
    for k, row in enumerate(rows):
        for i in range(k + 1, len(rows)):
            rows[i] = rows[i] - row * (rows[i][k] / row[k])
    share: list = [0.0] * len(rows)
    for k in reversed(range(len(rows))):
        known = sum((rows[k][i] * share[i] for i in range(k + 1, len(rows))), 0.0)
        share[k] = (rows[k][-1] - known) / rows[k][k]
    return machine_code(Program.from_graph(graph, tuple(x.items()), [("share", share)]))


@functools.cache
def _turned(shifts: int, turns: bool) -> Runner:
    """Program of q of a free joint after a rotation of the world by `angle`, and of its shift (3,) in the world.

    The shift is rotated by `earlier`, the angle at the time step before.
    """
    graph = Graph(SHARING)
    sizes = {"angle": 1, "earlier": 1, "share": shifts}
    x = _world(graph, shifts, turns) | {name: graph.inputs(name, size) for name, size in sizes.items()}
    q, shift = x["q"], x["share"] @ x["axes"].reshape(-1, 3)
    if turns:
        now, before = (np.array([*(sin(0.5 * y) * x["turn"]), cos(0.5 * y)], dtype=object)
                       for y in (x["angle"][0], x["earlier"][0]))  # fmt: skip
        away = np.cross(x["about"], x["turn"])  # the axis is there, from −p
        q = np.concatenate([rotate(now, q[:3] + away) - away, quaternion_product(now, q[3:])])
        shift = rotate(before, shift)
    return machine_code(Program.from_graph(graph, tuple(x.items()), [("q", list(q)), ("shift", list(shift))]))


def _summed(x: np.ndarray) -> np.ndarray:
    """Cumulative sums (N, m) of steps x (N − 1, m), from 0."""
    return np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)])
