"""Constraints of a problem as recursions take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sysdyn.equations.formulation import galilean_invariant
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.measurement import Context, Measurement, Place, find_frame
from sysdyn.measurements.statement import Statement
from sysdyn.model.kinematics import joint_transform
from sysdyn.model.se3 import rotation
from sysdyn.program.graph import Graph
from sysdyn.recursions.constraints import Blocks, Constraint, Seen

# Seed of the state at which loads are compared with rows, and the greatest difference of the two (chosen).
LOADED_SEED, LOADED = 5, 1e-9


def carried(problem: Statement, valued: bool = True) -> tuple[Constraint, ...] | None:
    """The constraints of a problem; None if one of them does work, as its loads are not the transpose of its rows.

    valued: their accelerations y are inputs; else zero.
    """
    return problem.cached(("carried", valued), lambda: (_carried(problem, valued),))[0]


def _carried(problem: Statement, valued: bool) -> tuple[Constraint, ...] | None:
    model = problem.model
    context = Context.at(model, *model.random_state(seed=LOADED_SEED)[:2])
    found = []
    for m in problem.constraints:
        rows = m.rows(context)
        if not {quantity for quantity, _ in rows} <= {"a", "qdd"}:
            return None
        loads = {("a", name): L for name, L in m.loads(context).items()}
        loads |= {("qdd", name): L for name, L in m.torques(context).items()}
        if set(loads) != set(rows) or any(np.abs(rows[key].T - L).max() > LOADED for key, L in loads.items()):
            return None
        found.append(_constraint(problem, m, rows, valued))
    return tuple(found)


def load_matrices(problem: Statement, context: Context) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """({body: wrenches (6, m) on it, in its frame}, torques (nv, m)) by a unit of each wrench w of the constraints."""
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


def read(problem: Statement, measured: Sequence[Measurement]) -> tuple[Constraint, ...] | None:
    """Measurements among the outputs as readings of a recursion; None if one is of more than a and q̈."""
    context = Context.at(problem.model, *problem.model.random_state(seed=LOADED_SEED)[:2])
    found = []
    for m in measured:
        rows = m.rows(context)
        if not {quantity for quantity, _ in rows} <= {"a", "qdd"}:
            return None
        found.append(_constraint(problem, m, rows, valued=False))
    return tuple(found)


def _constraint(
    problem: Statement, m: Measurement, rows: Iterable[tuple[str, str]], valued: bool
) -> Constraint:  # fmt: skip
    """rows: (quantity, owner) of all blocks."""
    model, uniform = problem.model, galilean_invariant(problem.model, m)
    bodies = tuple(model.body_index(owner) for quantity, owner in rows if quantity == "a")
    joints = tuple(model.joint_index(owner) for quantity, owner in rows if quantity == "qdd")
    size = len(m.components(model))

    def write(graph: Graph, seen: Seen) -> Blocks:
        q, qd = graph.inputs("q", model.nq), graph.inputs("qd", model.nv)
        transforms = _Each(model.nb, lambda i: joint_transform(model, i, q))
        context = _Carried(model, transforms, _Each(model.nb, lambda i: seen.velocity(i, uniform)), q, qd, seen=seen)
        blocks: dict[str, dict[int, np.ndarray]] = {"a": {}, "qdd": {}}
        for (quantity, owner), block in m.rows(context).items():
            if quantity == "a":
                blocks["a"][model.body_index(owner)] = block
            else:
                first = model.v_slice(model.joint_index(owner)).start
                blocks["qdd"].update({first + k: block[:, k] for k in range(block.shape[1])})
        y = graph.inputs(value_group(m.name), size) if valued else np.zeros(size)
        return Blocks(blocks["a"], blocks["qdd"], list(y - m.bias(context)))

    return Constraint(m.name, bodies, joints, size, uniform, write)


class _Each(Sequence):
    """The values of a function by number, each made when it is first asked for."""

    def __init__(self, size: int, make: Callable[[int], np.ndarray]):
        self._size, self._make = size, cache(make)

    def __getitem__(self, i):
        return self._make(i)

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True, kw_only=True)
class _Carried(Context):
    """A context whose attitudes a recursion has turned, axis by axis."""

    seen: Seen

    def R(self, frame: Place) -> np.ndarray:
        found = find_frame(self.model, frame)
        E = rotation(found.X).astype(object)
        return (E if found.body < 0 else E @ self.seen.rotation(found.body)).T

    def between(self, a: Place, b: Place) -> tuple[np.ndarray, np.ndarray]:
        first, second = (find_frame(self.model, frame) for frame in (a, b))
        return self.seen.between((first.body, first.X), (second.body, second.X))
