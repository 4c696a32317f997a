"""Transform the rows of constraints and measurements from bodies of the original model to links of the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sysdyn.model.constants import clean
from sysdyn.model.kinematics import path
from sysdyn.model.se3 import X_motion, rotation, skew, translation
from sysdyn.program.graph import Graph, constant_value, is_constant
from sysdyn.program.reproducible import matmul
from sysdyn.recursions.reference_motion import ReferenceMotion
from sysdyn.recursions.row_propagation import LinkRows
from sysdyn.recursions.transforms import (
    LinkTree,
    Scalar,
    Vector,
    add,
    constant_steps,
    cross,
    dot,
    force_to_parent,
    rotate,
    scalars,
    subtract,
)

# Smallest pivot in the reduction of constant constraint rows: chosen, smaller pivots lose digits.
LEAST_PIVOT = 1e-3


@dataclass(frozen=True)
class RowBlocks:
    """m rows Σ C_i a_i + Σ c_k q̈_k = κ at one state.

    bodies: {i: C_i (m, 6)}, with a_i in the frame of body i. freedoms: {k: c_k (m)}. target: κ (m).
    """

    bodies: Mapping[int, np.ndarray]
    freedoms: Mapping[int, np.ndarray]
    target: Sequence[Scalar]


@dataclass(frozen=True)
class AccelerationRows:
    """A constraint or a measurement that is linear in accelerations, with m = `size` rows.

    bodies: bodies i with a block C_i. classical: the a_i are classical accelerations, and the rows do not depend on
    linear velocities; else the a_i are spatial. write: returns the rows as expressions of a graph.
    """

    name: str
    bodies: tuple[int, ...]
    size: int
    classical: bool
    write: Callable[[Graph, OriginalBodies], RowBlocks]


class OriginalBodies:
    """Velocities and accelerations of the original bodies, in their own frames, from those of the links.

    places: {original body: (link j, −1 for the base, X (6, 6) from the frame of link j to that of the body)}.
    """

    def __init__(
        self, tree: LinkTree, places: Mapping[int, tuple[int, np.ndarray]], qd: Vector, motion: ReferenceMotion
    ):
        self.tree, self._places, self._qd, self.motion = tree, places, qd, motion
        self.link_velocity, self._axis = cache(self._link_velocity), cache(self._base_axis)

    def velocity(self, i: int, classical: bool) -> np.ndarray:
        """v (6) of body i; if `classical`, relative to the velocity of the origin of the link that carries it."""
        j, _ = self._places[i]
        if j < 0:
            return np.zeros(6).astype(object)
        w = self.motion.w
        return self._in_body(i, [*w[j], 0.0, 0.0, 0.0] if classical and w is not None else self.link_velocity(j))

    def acceleration(self, j: int, classical: bool) -> Vector:
        """Acceleration (6) of link j in the reference motion, minus gravity; j = −1 is the base."""
        if j < 0:
            return [0.0] * 3 + [-float(g) for g in self.tree.model.gravity]
        a = self.motion.a[j]
        if classical or self.motion.w is None:
            return a
        v = self.link_velocity(j)
        return add(a, [0.0] * 3 + cross(v[3:], v[:3]))

    def evaluate(self, rows: AccelerationRows, graph: Graph, corrections: Sequence[Vector], qdd: Vector) -> Vector:
        """Residual Σ C_i a_i + Σ c_k q̈_k − κ of each row.

        corrections: Δa (6) of each link. qdd (nv): corrected q̈.
        """
        blocks = rows.write(graph, self)
        values = [-x for x in blocks.target]
        for i, block in blocks.bodies.items():
            j, _ = self._places[i]
            a = self.acceleration(j, rows.classical)
            a = self._in_body(i, a if j < 0 else add(a, corrections[j])).tolist()
            values = [x + dot(scalars(row), a) for x, row in zip(values, block, strict=True)]
        for k, column in blocks.freedoms.items():
            values = [x + c * qdd[k] for x, c in zip(values, scalars(column), strict=True)]
        return values

    def rotation(self, i: int) -> np.ndarray:
        """E (3, 3) from the axes of the base to those of body i."""
        j, X = self._places[i]
        axes = np.eye(3).tolist()
        columns = axes if j < 0 else [self.tree.links[j].in_body(self._axis(j, k)) for k in range(3)]
        return rotation(X).astype(object) @ np.array(columns, dtype=object).T

    def between(self, a: tuple[int, np.ndarray], b: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(E, p×): rotation from the axes of frame b to those of a, and position p of b from a in the axes of a.

        A frame is (body, X (6, 6) from the body). Two axes and the origin of b are transformed link by link, through
        the closest common ancestor, to a.
        """
        (i, X_i), (j, X_j) = (self._placed(*frame) for frame in (a, b))
        up, down = (path(self.tree.model, k) if k >= 0 else [] for k in (j, i))
        links = self.tree.links
        axes, p = rotation(X_j).tolist()[:2], translation(X_j).tolist()
        if j >= 0:
            *axes, p = (links[j].from_body(x) for x in (*axes, p))
        for k in (k for k in up if k not in down):
            for step in reversed(links[k].steps):
                axes = axes if isinstance(step, list) else [step.apply_T(x) for x in axes]
                p = add(p, step) if isinstance(step, list) else step.apply_T(p)
        for k in (k for k in reversed(down) if k not in up):
            axes = [rotate(links[k].steps, x) for x in axes]
            for step in links[k].steps:
                p = subtract(p, step) if isinstance(step, list) else step.apply(p)
        if i >= 0:
            *axes, p = (links[i].in_body(x) for x in (*axes, p))
        frame = constant_steps(X_i)[1:]
        x, y, p = (rotate(frame, v) for v in (*axes, subtract(p, translation(X_i).tolist())))
        return _array([*x, *y, *cross(x, y)]).reshape(3, 3).T, skew(_array(p))

    def _placed(self, i: int, X: np.ndarray) -> tuple[int, np.ndarray]:
        """(link j that carries body i, X from the frame of j), for X from the frame of body i."""
        if i < 0:
            return i, X
        j, carrier = self._places[i]
        both = matmul(X, carrier)
        return j, X_motion(clean(rotation(both)), clean(translation(both)))

    def pull_back_row(self, i: int, row: Sequence) -> tuple[int, Vector]:
        """(link j that carries body i, row (6) on the acceleration of j), for a row (6) on the acceleration of i."""
        j, X = self._places[i]
        return j, force_to_parent(constant_steps(X), list(row))

    def _in_body(self, i: int, v: Vector) -> np.ndarray:
        """Transform v (6) from the coordinates of the link that carries body i to the frame of body i."""
        j, X = self._places[i]
        return X.astype(object) @ _array(v if j < 0 else self.tree.links[j].in_body(v))

    def _link_velocity(self, j: int) -> Vector:
        """v (6) of link j."""
        joint, parent = self.tree.joint_motion(j, self._qd), self.tree.model.parent[j]
        return joint if parent < 0 else add(self.tree.links[j].to_child(self.link_velocity(parent)), joint)

    def _base_axis(self, j: int, k: int) -> Vector:
        """Axis k of the base in the coordinates of link j, (3)."""
        parent = self.tree.model.parent[j]
        return rotate(self.tree.links[j].steps, np.eye(3)[k].tolist() if parent < 0 else self._axis(parent, k))


def place_rows(
    graph: Graph, constraints: Sequence[AccelerationRows], bodies: OriginalBodies, reduce: bool = True
) -> LinkRows:
    """Constraint rows on the corrections Δa, Δq̈ to the reference motion.

    reduce: constant rows C (m, 6) of a single body are replaced by T C, whose last m columns are the identity.
    """
    links = LinkRows()
    for constraint in constraints:
        blocks = constraint.write(graph, bodies)
        m, first = len(blocks.target), len(links.targets)
        T, target = np.eye(m), list(blocks.target)
        placed: list[tuple[int, list[Vector]]] = []
        for i, block in blocks.bodies.items():
            pulled = [bodies.pull_back_row(i, row) for row in block]
            placed.append((pulled[0][0], [row for _, row in pulled]))
        if reduce and len(placed) == 1 and not blocks.freedoms and (reduced := _reduce(placed[0][1])) is not None:
            T, rows = reduced
            placed, target = [(placed[0][0], rows)], [dot(row, target) for row in T.tolist()]
        for j, rows in placed:
            rows = rows if j < 0 else [bodies.tree.links[j].from_body(row) for row in rows]
            a = bodies.acceleration(j, constraint.classical)
            target = [x - dot(row, a) for x, row in zip(target, rows, strict=True)]
            if j >= 0:
                at_link = links.bodies.setdefault(j, {})
                for e, row in enumerate(rows, start=first):
                    at_link[e] = add(at_link[e], row) if e in at_link else row
        for k, column in blocks.freedoms.items():
            target = [x - c * bodies.motion.qdd[k] for x, c in zip(target, column, strict=True)]
            links.freedoms.setdefault(k, {}).update(enumerate(column, start=first))
        links.targets.extend(target)
        links.combinations.append(T)
    return links


def _reduce(rows: list[Vector]) -> tuple[np.ndarray, list[Vector]] | None:
    """(T, T C) for constant rows C (m, 6), T the inverse of their last m columns; None if a pivot is too small.

    Gauss-Jordan with a fixed order of operations: bitwise reproducible on every processor.
    """
    m = len(rows)
    if not all(is_constant(x) for row in rows for x in row):
        return None
    C = np.array([[float(constant_value(x)) for x in row] for row in rows])
    M = np.hstack([C[:, -m:], np.eye(m)])
    for c in range(m):
        p = c + int(np.argmax(np.abs(M[c:, c])))
        if abs(M[p, c]) < LEAST_PIVOT:
            return None
        M[[c, p]] = M[[p, c]]
        M[c] = M[c] / M[c, c]
        for r in range(m):
            if r != c:
                M[r] = M[r] - M[r, c] * M[c]
    T = clean(M[:, m:])
    return T, clean(matmul(T, C)).tolist()


def _array(v: Vector) -> np.ndarray:
    return np.array([*v, None], dtype=object)[:-1]
