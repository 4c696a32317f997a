"""Rows of constraints and measurements for recursions, and the load matrices of constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sysdyn.equations.formulation import galilean_invariant
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.measurement import Context, FrameRef, Measurement, find_frame
from sysdyn.measurements.problem import Problem
from sysdyn.model.kinematics import joint_transform
from sysdyn.model.se3 import rotation
from sysdyn.program.graph import Graph
from sysdyn.recursions.constraints import AccelerationRows, OriginalBodies, RowBlocks

# Seed of the random state at which loads are compared with rows, and tolerance (chosen).
LOADS_SEED, LOADS_TOLERANCE = 5, 1e-9


def acceleration_rows(problem: Problem, valued: bool = True) -> tuple[AccelerationRows, ...] | None:
    """Rows of the constraints of a problem; None if a constraint does work (its loads are not its transposed rows).

    valued: True if the accelerations y of the constraints are inputs; else they are zero.
    """
    return problem.cached(("acceleration rows", valued), lambda: (_acceleration_rows(problem, valued),))[0]


def _acceleration_rows(problem: Problem, valued: bool) -> tuple[AccelerationRows, ...] | None:
    model = problem.model
    context = Context.at(model, *model.random_state(seed=LOADS_SEED)[:2])
    constraints = []
    for m in problem.constraints:
        rows = m.rows(context)
        if not {quantity for quantity, _ in rows} <= {"a", "qdd"}:
            return None
        loads = {("a", name): L for name, L in m.loads(context).items()}
        loads |= {("qdd", name): L for name, L in m.torques(context).items()}
        if set(loads) != set(rows) or any(np.abs(rows[key].T - L).max() > LOADS_TOLERANCE for key, L in loads.items()):
            return None
        constraints.append(_rows(problem, m, rows, valued))
    return tuple(constraints)


def load_matrices(problem: Problem, context: Context) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """({body: (6, m) wrenches on the body, in its frame}, torques (nv, m)) per unit of each constraint wrench w."""
    model, sizes = problem.model, [len(m.wrench(problem.model)) for m in problem.constraints]
    bodies: dict[int, np.ndarray] = {}
    torques, start = np.full((model.nv, sum(sizes)), 0.0, dtype=object), 0
    for m, size in zip(problem.constraints, sizes, strict=True):
        for equation, i, L in m.actions(context):
            if equation == "f":
                block = bodies.setdefault(i, np.full((6, sum(sizes)), 0.0, dtype=object))
            else:
                block = torques[model.v_slice(i)]
            block[:, start : start + size] += L
        start += size
    return bodies, torques


def measured_rows(problem: Problem, measured: Sequence[Measurement]) -> tuple[AccelerationRows, ...] | None:
    """Rows of measurements among the outputs; None if one depends on quantities other than a and q̈."""
    context = Context.at(problem.model, *problem.model.random_state(seed=LOADS_SEED)[:2])
    measurements = []
    for m in measured:
        rows = m.rows(context)
        if not {quantity for quantity, _ in rows} <= {"a", "qdd"}:
            return None
        measurements.append(_rows(problem, m, rows, valued=False))
    return tuple(measurements)


def _rows(problem: Problem, m: Measurement, blocks: Iterable[tuple[str, str]], valued: bool) -> AccelerationRows:
    """Rows of a constraint or measurement. blocks: (quantity, owner) of each of its blocks."""
    model, classical = problem.model, galilean_invariant(problem.model, m)
    accelerated = tuple(model.body_index(owner) for quantity, owner in blocks if quantity == "a")
    size = len(m.components(model))

    def write(graph: Graph, bodies: OriginalBodies) -> RowBlocks:
        q, qd = graph.inputs("q", model.nq), graph.inputs("qd", model.nv)
        transforms = _Each(model.nb, lambda i: joint_transform(model, i, q))
        velocities = _Each(model.nb, lambda i: bodies.velocity(i, classical))
        context = _TreeContext(model, transforms, velocities, q, qd, bodies=bodies)
        rows: dict[str, dict[int, np.ndarray]] = {"a": {}, "qdd": {}}
        for (quantity, owner), block in m.rows(context).items():
            if quantity == "a":
                rows["a"][model.body_index(owner)] = block
            else:
                first = model.v_slice(model.joint_index(owner)).start
                rows["qdd"].update({first + k: block[:, k] for k in range(block.shape[1])})
        y = graph.inputs(value_group(m.name), size) if valued else np.zeros(size)
        return RowBlocks(rows["a"], rows["qdd"], list(y - m.bias(context)))

    return AccelerationRows(m.name, accelerated, size, classical, write)


class _Each(Sequence):
    """Lazy sequence: element i is make(i), computed on demand and cached."""

    def __init__(self, size: int, make: Callable[[int], np.ndarray]):
        self._size, self._make = size, cache(make)

    def __getitem__(self, i):
        return self._make(i)

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True, kw_only=True)
class _TreeContext(Context):
    """A context that reuses the body rotations of a recursion."""

    bodies: OriginalBodies

    def R(self, frame: FrameRef) -> np.ndarray:
        place = find_frame(self.model, frame)
        E = rotation(place.X).astype(object)
        return (E if place.body < 0 else E @ self.bodies.rotation(place.body)).T

    def between(self, a: FrameRef, b: FrameRef) -> tuple[np.ndarray, np.ndarray]:
        first, second = (find_frame(self.model, frame) for frame in (a, b))
        return self.bodies.between((first.body, first.X), (second.body, second.X))
