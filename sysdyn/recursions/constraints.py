"""Constraints as recursions take them: rows at the links of a tree, as simple as they can be, and their wrenches.

The rows are a measurement's, written for the accelerations of bodies in their own frames; see `articulated` for what a
recursion does with them.
"""

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
from sysdyn.recursions.frames import wrench_back
from sysdyn.recursions.inverse_dynamics import Motion
from sysdyn.recursions.links import Link, Scalar, Tree, Vector, cross, dot, of_joint, plus, scalars
from sysdyn.recursions.rows import Rows

# Least pivot of the constant matrix by which the rows of a constraint are made simpler (chosen).
REGULAR = 1e-3


@dataclass(frozen=True)
class Blocks:
    """m rows Σ C_i a_i + Σ c_k q̈_k = κ of a constraint.

    bodies: C_i (m, 6) for the acceleration of body i, in its frame. freedoms: c_k (m). target: κ (m).
    """

    bodies: Mapping[int, np.ndarray]
    freedoms: Mapping[int, np.ndarray]
    target: Sequence[Scalar]


@dataclass(frozen=True)
class Constraint:
    """A constraint, or a reading, as a recursion takes it: rows, which a constraint holds at κ.

    bodies, joints: all that its rows speak of. uniform: they do not depend on linear velocities, a being classical.
    write: its rows at what is `Seen`, over a graph. size: their number.
    """

    name: str
    bodies: tuple[int, ...]
    joints: tuple[int, ...]
    size: int
    uniform: bool
    write: Callable[[Graph, Seen], Blocks]


class Seen:
    """Bodies of the given model, in their own frames, as the tree of a recursion has them.

    places: {body: (the body of the tree that carries it, X (6, 6) from its frame)}. The base carries bodies with −1.
    """

    def __init__(
        self, tree: Tree, places: Mapping[int, tuple[int, np.ndarray]], qd: Vector, motion: Motion,
    ):  # fmt: skip
        self.tree, self._places, self._qd, self.motion = tree, places, qd, motion
        self.swept = cache(self._sweep)
        self._turned = cache(self._turn)

    def velocity(self, i: int, uniform: bool) -> np.ndarray:
        """v (6) of body i; uniform: for an observer at the origin of the body that carries it, if a is classical."""
        j, _ = self._places[i]
        if j < 0:
            return np.zeros(6).astype(object)
        w = self.motion.w
        return self._in_body(i, [*w[j], 0.0, 0.0, 0.0] if uniform and w is not None else self.swept(j))

    def _in_body(self, i: int, v: Vector) -> np.ndarray:
        """v (6) in the frame of body i, from the coordinates of the link that carries it."""
        j, X = self._places[i]
        v = v if j < 0 else self.tree.links[j].in_body(v[:3]) + self.tree.links[j].in_body(v[3:])
        return X.astype(object) @ _array(v)

    def read(self, reading: Constraint, graph: Graph, missing: Sequence[Vector], qdd: Vector) -> Vector:
        """Rows of a reading less κ: Σ C_i a_i + Σ c_k q̈_k − κ. missing, qdd: of each body and freedom of the tree."""
        blocks = reading.write(graph, self)
        value = [-x for x in blocks.target]
        for i, block in blocks.bodies.items():
            j, _ = self._places[i]
            a = self.acceleration(j, reading.uniform)
            a = self._in_body(i, a if j < 0 else plus(a, missing[j])).tolist()
            value = [x + dot(scalars(row), a) for x, row in zip(value, block, strict=True)]
        for k, column in blocks.freedoms.items():
            value = [x + c * qdd[k] for x, c in zip(value, scalars(column), strict=True)]
        return value

    def rotation(self, i: int) -> np.ndarray:
        """E (3, 3) from the axes of the base to those of body i."""
        j, X = self._places[i]
        axes = np.eye(3).tolist()
        columns = axes if j < 0 else [self.tree.links[j].in_body(self._turned(j, k)) for k in range(3)]
        return rotation(X).astype(object) @ np.array(columns, dtype=object).T

    def between(self, a: tuple[int, np.ndarray], b: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(E from the axes of b to those of a, p×, p from a to b in those), both as (body, X (6, 6) from its frame).

        Two axes and the origin of b go from link to link up to the body of the tree that carries both, and down.
        """
        (i, X_i), (j, X_j) = (self._placed(*x) for x in (a, b))
        up, down = (path(self.tree.model, k) if k >= 0 else [] for k in (j, i))
        links, both = self.tree.links, {*up} & {*down}
        axes, p = rotation(X_j).tolist()[:2], translation(X_j).tolist()
        if j >= 0:
            *axes, p = (links[j].from_body(x) for x in (*axes, p))
        for k in up:
            for step in reversed(links[k].steps) if k not in both else ():
                axes = axes if isinstance(step, list) else [step.back(x) for x in axes]
                p = plus(p, step) if isinstance(step, list) else step.back(p)
        for k in reversed(down):
            for step in links[k].steps if k not in both else ():
                axes = axes if isinstance(step, list) else [step.to(x) for x in axes]
                p = plus(p, [-x for x in step]) if isinstance(step, list) else step.to(p)
        if i >= 0:
            *axes, p = (links[i].in_body(x) for x in (*axes, p))
        rows = rotation(X_i).tolist()
        x, y, p = ([dot(row, v) for row in rows] for v in (*axes, plus(p, (-translation(X_i)).tolist())))
        return _array([*x, *y, *cross(x, y)]).reshape(3, 3).T, skew(_array(p))

    def _placed(self, i: int, X: np.ndarray) -> tuple[int, np.ndarray]:
        """(the body of the tree that carries body i, X (6, 6) from its frame) for X from the frame of body i."""
        if i < 0:
            return i, X
        j, own = self._places[i]
        found = matmul(X, own)
        return j, X_motion(clean(rotation(found)), clean(translation(found)))

    def covector(self, i: int, row: Sequence) -> tuple[int, Vector]:
        """(the body of the tree that carries i, the covector in its frame) for one of the acceleration of i."""
        j, X = self._places[i]
        return j, wrench_back(X, list(row))

    def acceleration(self, j: int, uniform: bool) -> Vector:
        """a (6) of a body of the tree in the known motion, as `velocity` is if it is uniform; else spatial."""
        if j < 0:
            return [0.0] * 3 + [-float(g) for g in self.tree.model.gravity]
        a = self.motion.a[j]
        if uniform or self.motion.w is None:
            return a
        v = self.swept(j)
        return plus(a, [0.0] * 3 + cross(v[3:], v[:3]))

    def _sweep(self, j: int) -> Vector:
        """v (6) of a body of the tree."""
        link, parent = self.tree.links[j], self.tree.model.parent[j]
        own = of_joint(link, self._qd[self.tree.model.v_slice(j)])
        return own if parent < 0 else plus(link.motion(self.swept(parent)), own)

    def _turn(self, j: int, k: int) -> Vector:
        """Axis k of the base in the coordinates of the link of a body of the tree."""
        link, parent = self.tree.links[j], self.tree.model.parent[j]
        return _turned(link, np.eye(3)[k].tolist() if parent < 0 else self._turned(parent, k))


def _turned(link: Link, x: Vector) -> Vector:
    """A vector of the parent's coordinates in those of the link."""
    for step in link.steps:
        x = x if isinstance(step, list) else step.to(x)
    return x


class Held:
    """Constraints written at a tree and a known motion: their rows, and their wrenches from those of the rows.

    simplified: rows may be combined within a constraint, such that they cost less.
    """

    def __init__(self, graph: Graph, constraints: Sequence[Constraint], seen: Seen, simplified: bool = True):
        self.rows, self._simplified = Rows(), simplified
        self._turns: list[np.ndarray] = []  # T (m, m): rows are T times those of the constraint
        for constraint in constraints:
            self._add(constraint.write(graph, seen), constraint.uniform, seen)

    def wrenches(self, w: Vector) -> list[Vector]:
        """Components of the wrench of each constraint, from w of the rows."""
        found, start = [], 0
        for T in self._turns:
            found.append(_times(T.T, w[start : start + len(T)]))
            start += len(T)
        return found

    def _add(self, blocks: Blocks, uniform: bool, seen: Seen) -> None:
        m, first = len(blocks.target), len(self.rows.targets)
        found: list[tuple[int, list[Vector]]] = []
        for i, block in blocks.bodies.items():
            carried = [seen.covector(i, row) for row in block]
            found.append((carried[0][0], [c for _, c in carried]))
        T, target = np.eye(m), list(blocks.target)
        alone = self._simplified and len(found) == 1 and not blocks.freedoms
        if alone and (simpler := _simpler(found[0][1])) is not None:
            T, rows = simpler
            found, target = [(found[0][0], rows)], _times(T, target)
        self._turns.append(T)
        for j, rows in found:
            rows = rows if j < 0 else [seen.tree.links[j].wrench(row) for row in rows]
            a = seen.acceleration(j, uniform)
            target = [x - dot(row, a) for x, row in zip(target, rows, strict=True)]
            if j >= 0:
                own = self.rows.bodies.setdefault(j, {})
                for e, row in enumerate(rows, start=first):
                    own[e] = plus(own[e], row) if e in own else row
        for k, column in blocks.freedoms.items():
            target = [x - c * seen.motion.qdd[k] for x, c in zip(target, column, strict=True)]
            self.rows.freedoms.setdefault(k, {}).update(enumerate(column, start=first))
        self.rows.targets.extend(target)


def _simpler(rows: list[Vector]) -> tuple[np.ndarray, list[Vector]] | None:
    """(T, T C) for constant rows C (m, 6), the last m columns of T C being the identity; None if there is no T."""
    m = len(rows)
    if not all(is_constant(x) for row in rows for x in row):
        return None
    C = np.array([[float(constant_value(x)) for x in row] for row in rows])
    T = _inverse(C[:, -m:])
    return None if T is None else (T, clean(matmul(T, C)).tolist())


def _inverse(A: np.ndarray) -> np.ndarray | None:
    """A⁻¹ by Gauss and Jordan, in an order that gives the same on every processor; None if a pivot is below REGULAR."""
    m = len(A)
    M = np.hstack([A, np.eye(m)])
    for c in range(m):
        p = c + int(np.argmax(np.abs(M[c:, c])))
        if abs(M[p, c]) < REGULAR:
            return None
        M[[c, p]] = M[[p, c]]
        M[c] = M[c] / M[c, c]
        for r in range(m):
            if r != c:
                M[r] = M[r] - M[r, c] * M[c]
    return clean(M[:, m:])


def _times(T: np.ndarray, x: Vector) -> Vector:
    return [dot(row, x) for row in T.tolist()]


def _array(v: Vector) -> np.ndarray:
    return np.array([*v, None], dtype=object)[:-1]
