"""Vectors across a joint, in steps that cost little: turns about z and x by their cosine and sine, and displacements.

Scalars are floats or Expr, vectors lists of three of them, spatial vectors lists of six (angular first).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sysdyn.expr import Expr, cos, sin
from sysdyn.formulation.plan import Plan
from sysdyn.model import Model
from sysdyn.model.canonical import is_along_z, placement
from sysdyn.model.joints import Revolute
from sysdyn.spatial import rotation, translation

Scalar = float | Expr
Vector = list


def is_zero(x: Scalar) -> bool:
    return type(x) is not Expr and x == 0.0


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

    def to(self, x: Vector) -> Vector:
        """E x."""
        i, j = (self.axis + 1) % 3, (self.axis + 2) % 3
        y = list(x)
        y[i], y[j] = self.c * x[i] + self.s * x[j], self.c * x[j] - self.s * x[i]
        return y

    def back(self, x: Vector) -> Vector:
        """E^T x."""
        return Turn(self.axis, self.c, -self.s).to(x)

    def matrix_back(self, A: list[Vector]) -> list[Vector]:
        """E^T A E (3, 3). Across the axis, A = [a b; d e], by the double angle: with k = s (e − a) − c (b + d)

            [a + s k, −(d + c k); −(b + c k), e − s k],

        4 multiplications instead of 16.
        """
        c, s, n = self.c, self.s, self.axis
        i, j = (n + 1) % 3, (n + 2) % 3
        k = s * (A[j][j] - A[i][i]) - c * (A[i][j] + A[j][i])
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

    def matrix_back(self, A: list[Vector]) -> list[Vector]:
        """E^T A E."""
        half = [self.back(row) for row in A]  # A E, for (E^T a)^T = a^T E
        columns = [self.back([half[r][k] for r in range(3)]) for k in range(3)]
        return [[columns[k][r] for k in range(3)] for r in range(3)]


Step = Turn | Rotation | Vector


class Link:
    """What is between the frames of body i and of its parent, as steps from the parent: turns, and displacements.

    A displacement is a vector in the coordinates reached so far. For a joint about or along z the displacement along z
    commutes with the turn about z; the plan says, for each use, on which side of it. `begin()` is called before each
    piece of work for the body.
    """

    def __init__(self, model: Model, i: int, q: Vector, plan: Plan, begin: Callable[[], None] = lambda: None):
        joint, self.plan, self.number, self.begin = model.joints[i], plan, i, begin
        self.S = [[float(x) for x in column] for column in joint.S.T]
        self.axial = is_along_z(model, i)
        if not self.axial:
            E_J, r_J = joint.transform(np.array([*q, None], dtype=object)[:-1])
            self.before: list[Step] = [
                translation(model.X_tree[i]).tolist(),
                Rotation(rotation(model.X_tree[i]).tolist()),
                list(r_J),
            ]
            self.turn: Turn | Rotation = Rotation([list(row) for row in E_J])
            return
        place = placement(model.X_tree[i])
        self.before = [list(place.p), Turn(2, *place.gamma), Turn(0, *place.alpha)]
        c, s = place.theta
        r: Scalar = place.r
        if not isinstance(joint, Revolute):
            r = q[0] + r
        elif 0.0 in (c, s):  # (c + i s) (cos q + i sin q), a permutation
            c, s = c * cos(q[0]) - s * sin(q[0]), s * cos(q[0]) + c * sin(q[0])
        else:
            c, s = cos(q[0] + place.offset), sin(q[0] + place.offset)
        self.turn, self.r = Turn(2, c, s), [0.0, 0.0, r]

    def steps(self, use: str) -> list[Step]:
        """The steps from the parent, for a use of the plan."""
        if not self.axial:
            return [*self.before, self.turn]
        if is_zero(self.r[2]) or self.plan.pick(use, self.number):
            return [*self.before, self.r, self.turn]
        return [*self.before, self.turn, self.r]

    def motion(self, s: Vector) -> Vector:
        """X s (6): a motion vector of the parent's frame in the body's."""
        w, v = s[:3], s[3:]
        for step in self.steps("motion"):
            if isinstance(step, list):
                v = plus(v, cross(w, step))
            else:
                w, v = step.to(w), step.to(v)
        return w + v

    def force(self, F: Vector) -> Vector:
        """X^T F (6): a force vector of the body's frame in the parent's."""
        n, f = F[:3], F[3:]
        for step in reversed(self.steps("force")):
            if isinstance(step, list):
                n = plus(n, cross(step, f))
            else:
                n, f = step.back(n), step.back(f)
        return n + f


def of_joint(link: Link, rate: Vector) -> Vector:
    """S q̇ (6)."""
    total: Vector = [0.0] * 6
    for column, x in zip(link.S, rate, strict=True):
        total = plus(total, [s * x for s in column])
    return total
