"""Rows of constraints and measurements for recursions, load matrices of constraints, and derivatives of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sysdyn.equations.formulation import galilean_invariant
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.measurement import Context, FrameRef, Measurement, find_frame
from sysdyn.measurements.problem import Problem
from sysdyn.model.kinematics import joint_transform
from sysdyn.model.quantities import tangents
from sysdyn.model.se3 import rotation
from sysdyn.program.autodiff import derivative, evaluate
from sysdyn.program.graph import Graph, is_zero
from sysdyn.recursions.constraints import AccelerationRows, OriginalBodies, RowBlocks
from sysdyn.recursions.generate import ROWS, generate

# Seed of the random state at which loads are compared with rows, and tolerance (rounding errors).
LOADS_SEED, LOADS_TOLERANCE = 5, 1e-9


def acceleration_rows(problem: Problem, with_inputs: bool = True) -> tuple[AccelerationRows, ...] | None:
    """Rows of the constraints of a problem; None if a constraint does work (its loads are not its transposed rows).

    with_inputs: True if the accelerations y of the constraints are inputs; else they are zero.
    """
    return problem.cached(("acceleration rows", with_inputs), lambda: (_acceleration_rows(problem, with_inputs),))[0]


def _acceleration_rows(problem: Problem, with_inputs: bool) -> tuple[AccelerationRows, ...] | None:
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
        constraints.append(_rows(problem, m, rows, with_inputs))
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
        measurements.append(_rows(problem, m, rows, with_inputs=False))
    return tuple(measurements)


def _rows(problem: Problem, m: Measurement, blocks: Iterable[tuple[str, str]], with_inputs: bool) -> AccelerationRows:
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
        y = graph.inputs(value_group(m.name), size) if with_inputs else np.zeros(size)
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
    """State and kinematics for the rows of a measurement, with body rotations from the expressions of a recursion.

    bodies: the bodies of the model in the recursion. Sharing their rotations saves operations.
    """

    bodies: OriginalBodies

    def R(self, frame: FrameRef) -> np.ndarray:
        place = find_frame(self.model, frame)
        E = rotation(place.X).astype(object)
        return (E if place.body < 0 else E @ self.bodies.rotation(place.body)).T

    def between(self, a: FrameRef, b: FrameRef) -> tuple[np.ndarray, np.ndarray]:
        first, second = (find_frame(self.model, frame) for frame in (a, b))
        return self.bodies.between((first.body, first.X), (second.body, second.X))


class ConstraintRows:
    """The m rows J q̈ + b − y = 0 of constraints that act by torques J^T w.

    names: {input group y: its rows}. m: number of rows.
    """

    def __init__(self, problem: Problem):
        model = self._model = problem.model
        self._rows = generate(model, frozenset(), (ROWS,), False, constraints=acceleration_rows(problem) or ())
        self._load_graph = Graph("structural")
        self._q, qd = (self._load_graph.inputs(x, n) for x, n in (("q", model.nq), ("qd", model.nv)))
        self.m = len(self._rows.outputs[ROWS])
        self.names: dict[str, range] = {}
        start = 0
        for constraint in problem.constraints:
            self.names[value_group(constraint.name)] = range(start, start := start + len(constraint.wrench(model)))
        self._bodies, self._joints = load_matrices(problem, Context.at(model, self._q, qd))

    def loads(self, values: Mapping[str, object]) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """({body: (6, m) wrenches on the body, in its frame}, torques (nv, m)) per unit of each w.

        values: {name of a scalar input: value}.
        """
        return {i: self._at(x, values) for i, x in self._bodies.items()}, self._at(self._joints, values)

    def load_rates(self, values: Mapping[str, object], w: np.ndarray) -> list[tuple[dict[int, np.ndarray], np.ndarray]]:
        """Derivatives of the loads ({body: wrench (6)}, torques (nv)) along each direction of q, at fixed w."""
        along = []
        names = {f"w[{e}]": x for e, x in enumerate(w)}
        w_inputs = self._load_graph.inputs("w", self.m)
        acting = [*(x for block in self._bodies.values() for x in block @ w_inputs), *(self._joints @ w_inputs)]
        for direction in tangents(self._model, "q", self._q):
            rate = self._at(np.array([*derivative(acting, direction), None], dtype=object)[:-1], {**values, **names})
            bodies = {i: rate[6 * n : 6 * n + 6] for n, i in enumerate(self._bodies)}
            along.append((
                {i: x for i, x in bodies.items() if not all(map(is_zero, x))}, rate[6 * len(bodies) :],
            ))  # fmt: skip
        return along

    def residual(self, values: Mapping[str, object]) -> np.ndarray:
        """J q̈ + b − y (m)."""
        return self._at(np.array(self._rows.outputs[ROWS], dtype=object), values)

    def rates(self, name: str, values: Mapping[str, object]) -> list[np.ndarray | None]:
        """Derivatives (m) of the residual along each direction of q or q̇; None for a zero derivative."""
        rows = self._rows.outputs[ROWS]
        size = self._model.nq if name == "q" else self._model.nv
        residual_rates: list[np.ndarray | None] = []
        for direction in tangents(self._model, name, self._rows.graph.inputs(name, size)):
            rate = self._at(np.array(derivative(rows, direction), dtype=object), values)
            residual_rates.append(None if all(map(is_zero, rate)) else rate)
        return residual_rates

    @staticmethod
    def _at(x: np.ndarray, values: Mapping[str, object]) -> np.ndarray:
        return np.asarray(evaluate(x, values)).astype(object)
