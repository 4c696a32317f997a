"""Vectors across a joint, in steps that cost little: turns about z and x by their cosine and sine, and displacements.

Scalars are floats or Expr, vectors lists of three of them, spatial vectors lists of six (angular first).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sysdyn.model import Model
from sysdyn.model.constants import clean
from sysdyn.model.inertia import pseudo_inertia
from sysdyn.model.joints import Revolute
from sysdyn.model.normal_form import Placement, is_along_z, placements
from sysdyn.model.se3 import rotation, translation
from sysdyn.program.graph import Expr, cos, is_zero, sin
from sysdyn.program.reproducible import atan2
from sysdyn.recursions.plan import Plan

Scalar = float | Expr  # A number of a recursion: a constant, or an expression of the inputs.
Vector = list  # A list of scalars: 3 of a vector in space, 6 of a spatial vector.


def scalars(values) -> Vector:
    """The entries of an array as Expr and Python floats."""
    return [x if type(x) is Expr else float(x) for x in np.asarray(values, dtype=object).flat]


def plus(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def scaled(x: Scalar, a: Vector) -> Vector:
    return [x * y for y in a]


def dot(a: Vector, b: Vector) -> Scalar:
    total: Scalar = 0.0
    for x, y in zip(a, b, strict=True):
        if not (is_zero(x) or is_zero(y)):
            total = total + x * y
    return total


def cross(a: Vector, b: Vector) -> Vector:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


@dataclass(frozen=True)
class Turn:
    """E of a turn about an axis of coordinates, by the cosine and sine of its angle."""

    axis: int
    c: Scalar
    s: Scalar

    @property
    def is_none(self) -> bool:
        return is_zero(self.s) and type(self.c) is not Expr and self.c == 1.0

    def to(self, x: Vector) -> Vector:
        """E x."""
        i, j = (self.axis + 1) % 3, (self.axis + 2) % 3
        y = list(x)
        y[i], y[j] = self.c * x[i] + self.s * x[j], self.c * x[j] - self.s * x[i]
        return y

    def back(self, x: Vector) -> Vector:
        """E^T x."""
        return Turn(self.axis, self.c, -self.s).to(x)

    def matrix_back(self, A: list[Vector], double_angle: bool = True) -> list[Vector]:
        """E^T A E (3, 3).

        Across the axis, A = [a b; d e], by the double angle: with k = s (e − a) − c (b + d)

            [a + s k, −(d + c k); −(b + c k), e − s k],

        4 multiplications instead of 16.
        """
        if self.is_none:
            return A
        if not double_angle:
            return _turned_back(self, A)
        c, s, n = self.c, self.s, self.axis
        i, j = (n + 1) % 3, (n + 2) % 3
        b, d = A[i][j], A[j][i]
        both = (c + c) * b if type(b) is Expr and is_zero(b - d) else c * (b + d)  # 2 c serves the other blocks, too
        k = s * (A[j][j] - A[i][i]) - both
        sk, ck = s * k, c * k
        B = [list(row) for row in A]
        B[i][i], B[j][j] = A[i][i] + sk, A[j][j] - sk
        B[i][j], B[j][i] = -(A[j][i] + ck), -(A[i][j] + ck)
        B[i][n], B[j][n] = c * A[i][n] - s * A[j][n], s * A[i][n] + c * A[j][n]
        B[n][i], B[n][j] = c * A[n][i] - s * A[n][j], s * A[n][i] + c * A[n][j]
        return B


@dataclass(frozen=True)
class Rotation:
    """E (3, 3), rows, of any rotation."""

    E: list[Vector]

    def to(self, x: Vector) -> Vector:
        return [dot(row, x) for row in self.E]

    def back(self, x: Vector) -> Vector:
        return [dot([row[k] for row in self.E], x) for k in range(3)]

    def matrix_back(self, A: list[Vector], double_angle: bool = True) -> list[Vector]:
        """E^T A E."""
        return _turned_back(self, A)


def _turned_back(turn: Turn | Rotation, A: list[Vector]) -> list[Vector]:
    """E^T A E, vector by vector."""
    half = [turn.back(row) for row in A]  # A E, for (E^T a)^T = a^T E
    columns = [turn.back([half[r][k] for r in range(3)]) for k in range(3)]
    return [[columns[k][r] for k in range(3)] for r in range(3)]


Step = Turn | Rotation | Vector  # A part of the way across a joint: a turn, a rotation, or a displacement.
NO_TURN = Turn(2, 1.0, 0.0)  # The turn by the angle 0.


@dataclass(frozen=True)
class Tree:
    """A model, and the link of each of its bodies.

    begin(): called before each piece of work for a body. may_hold: bodies may do without the turn of their joint.
    double_angle: inertias are turned by the double angle.
    """

    model: Model
    plan: Plan
    begin: Callable[[], None]
    may_hold: bool
    double_angle: bool
    links: list[Link] = field(default_factory=list)

    def at(self, q: Vector) -> Tree:
        """The tree with its links at q (nq)."""
        model, places = self.model, placements(self.model)
        for i, parent in enumerate(model.parent):
            children = model.children[i]
            parallel = any(is_along_z(model, j) and _is_parallel(places[j]) for j in children)
            hold = self.may_hold and (not children or parallel)  # at a tip, or before a parallel axis: else no saving
            before = None if parent < 0 else self.links[parent]
            self.links.append(Link(self, i, q[model.q_slice(i)], places[i], before, hold))
        return self


def _is_parallel(place: Placement) -> bool:
    return place.alpha[1] == 0.0


def _sum(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """(cos, sin) of the sum of two constant angles."""
    return a[0] * b[0] - a[1] * b[1], a[1] * b[0] + a[0] * b[1]


def _spun(angle: Scalar, theta: tuple[float, float]) -> Turn:
    """The turn about z by angle + θ."""
    c, s = theta
    if is_zero(angle):
        return Turn(2, c, s)
    if 0.0 not in (c, s):
        angle, c, s = angle + atan2(s, c), 1.0, 0.0
    # (c + i s) (cos + i sin), a permutation
    return Turn(2, c * cos(angle) - s * sin(angle), s * cos(angle) + c * sin(angle))


class Link:
    """The way from the frame of body i's parent to that of body i, as steps: turns, and displacements.

    A displacement is a vector in the coordinates reached so far.

    If the plan says so, a revolute body does without the turn of its joint: its vectors are in the coordinates from
    which the joint turns, its inertial parameters, Σ, h and m by `parameters`, depend on q, and the next joint about a
    parallel axis turns by the sum of the angles. before, turn: the steps of the frames so chosen. held: from their
    coordinates to those of the body, None if these are the same.
    """

    def __init__(self, tree: Tree, i: int, q: Vector, place: Placement, parent: Link | None, may_hold: bool):
        model, self.plan, self.number, self.begin = tree.model, tree.plan, i, tree.begin
        joint, self.double_angle = model.joints[i], tree.double_angle
        self.S = [[float(x) for x in column] for column in joint.S.T]
        self._inertia = model.inertias[i]
        self.axial = is_along_z(model, i)
        self.held: Turn | None = None
        held = None if parent is None else parent.held
        first: list[Step] = [held] if held else []
        if not self.axial:
            E_J, r_J = joint.transform(np.array([*q, None], dtype=object)[:-1])
            self.before: list[Step] = [
                *first,
                translation(model.X_tree[i]).tolist(),
                Rotation(rotation(model.X_tree[i]).tolist()),
                list(r_J),
            ]
            self.turn: Turn | Rotation = Rotation([list(row) for row in E_J])
            self.steps: list[Step] = [*self.before, self.turn]
            return
        revolute = isinstance(joint, Revolute)
        self._angle: Scalar = q[0] if revolute else 0.0
        self.r: Vector = [0.0, 0.0, place.r if revolute else q[0] + place.r]
        theta = place.theta
        p, up = list(place.p), place.alpha[0]
        if held and _is_parallel(place):
            assert parent is not None
            p, first = held.back(p), []
            self._angle = self._angle + up * parent._angle
            theta = _sum(theta, (parent._theta[0], up * parent._theta[1]))
        self.before = [*first, p, Turn(2, *place.gamma), Turn(0, *place.alpha)]
        self._theta: tuple[float, float] = theta
        self.turn = _spun(self._angle, theta)
        if revolute and may_hold and self.plan.pick("turn", i):
            self.held, self.turn = self.turn, NO_TURN
        self.steps = [*self.before, self.turn] if is_zero(self.r[2]) else [*self.before, self.turn, self.r]

    def parameters(self) -> tuple[list[Vector], Vector, float]:
        """(Σ (3, 3), h (3), m) of the body."""
        P = pseudo_inertia(self._inertia)
        P = clean(P, np.abs(P).max()).tolist()
        S, h, m = [row[:3] for row in P[:3]], [row[3] for row in P[:3]], P[3][3]
        return (self.held.matrix_back(S, self.double_angle), self.held.back(h), m) if self.held else (S, h, m)

    def wrench(self, w: Vector) -> Vector:
        """A wrench in the frame of the body in the coordinates used here."""
        return self.from_body(w[:3]) + self.from_body(w[3:])

    def from_body(self, x: Vector) -> Vector:
        """A vector (3) of the frame of the body in the coordinates used here."""
        return self.held.back(x) if self.held else x

    def in_body(self, x: Vector) -> Vector:
        """A vector (3) of the coordinates used here in the frame of the body."""
        return self.held.to(x) if self.held else x

    def motion(self, s: Vector) -> Vector:
        """X s (6): a motion vector of the parent's frame in the body's."""
        w, v = s[:3], s[3:]
        for step in self.steps:
            if isinstance(step, list):
                v = plus(v, cross(w, step))
            else:
                w, v = step.to(w), step.to(v)
        return w + v

    def force(self, F: Vector) -> Vector:
        """X^T F (6): a force vector of the body's frame in the parent's."""
        for step in reversed(self.steps):
            F = force_before(step, F)
        return F


def force_before(step: Step, F: Vector) -> Vector:
    """A force vector (6) in the coordinates before a step."""
    n, f = F[:3], F[3:]
    return plus(n, cross(step, f)) + f if isinstance(step, list) else step.back(n) + step.back(f)


def of_joint(link: Link, rate: Vector) -> Vector:
    """S q̇ (6)."""
    total: Vector = [0.0] * 6
    for column, x in zip(link.S, rate, strict=True):
        total = plus(total, [s * x for s in column])
    return total


def only(s: Vector) -> int | None:
    """The number of the entry of s (6) that is 1, if the others are 0; else None."""
    return s.index(1.0) if s.count(0.0) == 5 and 1.0 in s else None
