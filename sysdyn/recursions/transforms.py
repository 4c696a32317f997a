"""Joint transforms as sequences of cheap steps: rotations about one coordinate axis and translations.

A scalar is a float or an Expr, a vector a list of three scalars, a spatial vector a list of six (angular part first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.model import Model
from sysdyn.model.constants import clean
from sysdyn.model.inertia import pseudo_inertia
from sysdyn.model.joints import Revolute
from sysdyn.model.normal_form import Placement, is_along_z, placements
from sysdyn.model.se3 import rotation, translation
from sysdyn.program.graph import Expr, Scalar, cos, is_zero, sin
from sysdyn.program.reproducible import atan2

Vector = list
Matrix = list[Vector]  # (3, 3), by rows
Choose = Callable[..., int]  # choose(*key, of=2): a choice among equivalent forms, see `Plan.choose`


def scalars(values) -> Vector:
    """The entries of an array as Expr and Python floats."""
    return [x if type(x) is Expr else float(x) for x in np.asarray(values, dtype=object).flat]


def add(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def subtract(a: Vector, b: Vector) -> Vector:
    return [x - y for x, y in zip(a, b, strict=True)]


def scale(x: Scalar, a: Vector) -> Vector:
    return [x * y for y in a]


def dot(a: Sequence, b: Sequence) -> Scalar:
    total: Scalar = 0.0
    for x, y in zip(a, b, strict=True):
        if not (is_zero(x) or is_zero(y)):
            total = total + x * y
    return total


def cross(a: Vector, b: Vector) -> Vector:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def unit_entry_index(s: Vector) -> int | None:
    """k if s is the unit vector e_k, else None."""
    return s.index(1.0) if s.count(0.0) == len(s) - 1 and 1.0 in s else None


# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AxisRotation:
    """Rotation matrix E (3, 3) about a coordinate axis, stored as cosine and sine."""

    axis: int
    c: Scalar
    s: Scalar

    def apply(self, x: Vector) -> Vector:
        """E x."""
        i, j = (self.axis + 1) % 3, (self.axis + 2) % 3
        y = list(x)
        y[i], y[j] = self.c * x[i] + self.s * x[j], self.c * x[j] - self.s * x[i]
        return y

    def apply_T(self, x: Vector) -> Vector:
        """E^T x."""
        return self.inverse().apply(x)

    def inverse(self) -> AxisRotation:
        return AxisRotation(self.axis, self.c, -self.s)

    def congruence(self, A: Matrix, double_angle: bool) -> Matrix:
        """E^T A E.

        If `double_angle`, the block A = [a b; d e] across the axis becomes, with k = s (e − a) − c (b + d),

            [a + s k, −(d + c k); −(b + c k), e − s k]

        by 4 multiplications instead of 16.
        """
        c, s, n = self.c, self.s, self.axis
        if is_zero(s) and type(c) is not Expr and c == 1.0:
            return A
        if not double_angle:
            return _congruence(self, A)
        i, j = (n + 1) % 3, (n + 2) % 3
        b, d = A[i][j], A[j][i]
        both = (c + c) * b if type(b) is Expr and is_zero(b - d) else c * (b + d)  # other blocks share 2 c
        k = s * (A[j][j] - A[i][i]) - both
        sk, ck = s * k, c * k
        B = [list(row) for row in A]
        B[i][i], B[j][j] = A[i][i] + sk, A[j][j] - sk
        B[i][j], B[j][i] = -(A[j][i] + ck), -(A[i][j] + ck)
        B[i][n], B[j][n] = c * A[i][n] - s * A[j][n], s * A[i][n] + c * A[j][n]
        B[n][i], B[n][j] = c * A[n][i] - s * A[n][j], s * A[n][i] + c * A[n][j]
        return B


@dataclass(frozen=True)
class GeneralRotation:
    """Rotation matrix E (3, 3) about any axis, stored by rows."""

    E: Matrix

    def apply(self, x: Vector) -> Vector:
        """E x."""
        return [dot(row, x) for row in self.E]

    def apply_T(self, x: Vector) -> Vector:
        """E^T x."""
        return [dot([row[k] for row in self.E], x) for k in range(3)]

    def congruence(self, A: Matrix, double_angle: bool) -> Matrix:
        """E^T A E; `double_angle` has no effect on a general rotation."""
        return _congruence(self, A)


def _congruence(E: AxisRotation | GeneralRotation, A: Matrix) -> Matrix:
    half = [E.apply_T(row) for row in A]  # A E, for (E^T a)^T = a^T E
    columns = [E.apply_T([row[k] for row in half]) for k in range(3)]
    return [[columns[k][r] for k in range(3)] for r in range(3)]


Step = AxisRotation | GeneralRotation | Vector  # a vector is a translation, in the coordinates before the step


def constant_steps(X: np.ndarray) -> list[Step]:
    """Steps of a constant Plücker transform X (6, 6)."""
    return [clean(translation(X)).tolist(), GeneralRotation(rotation(X).tolist())]


def rotate(steps: Sequence[Step], x: Vector) -> Vector:
    """E x (3): rotate a vector from the parent's to the child's axes."""
    for step in steps:
        x = x if isinstance(step, list) else step.apply(x)
    return x


def motion_to_child(steps: Sequence[Step], s: Vector) -> Vector:
    """X s (6): motion vector from parent to child coordinates."""
    w, v = s[:3], s[3:]
    for step in steps:
        if isinstance(step, list):
            v = add(v, cross(w, step))
        else:
            w, v = step.apply(w), step.apply(v)
    return w + v


def motion_to_parent(steps: Sequence[Step], s: Vector) -> Vector:
    """X⁻¹ s (6): motion vector from child to parent coordinates."""
    w, v = s[:3], s[3:]
    for step in reversed(steps):
        if isinstance(step, list):
            v = subtract(v, cross(w, step))
        else:
            w, v = step.apply_T(w), step.apply_T(v)
    return w + v


def force_to_child(steps: Sequence[Step], F: Vector) -> Vector:
    """X^−T F (6): force vector from parent to child coordinates; [f; n] transforms like a motion vector."""
    return _exchange(motion_to_child(steps, _exchange(F)))


def force_to_parent(steps: Sequence[Step], F: Vector) -> Vector:
    """X^T F (6): force vector from child to parent coordinates."""
    return _exchange(motion_to_parent(steps, _exchange(F)))


def _exchange(s: Vector) -> Vector:
    """[f; n] from [n; f], and back."""
    return s[3:] + s[:3]


# ---- links -----------------------------------------------------------------------------------------------------------


class RigidInertia:
    """Inertia of a rigid or composite body, stored as pseudo-inertia [Σ h; h^T m]."""

    def __init__(self, S: Matrix, h: Vector, m: Scalar):
        self.S, self.h, self.m = S, h, m

    def __add__(self, other: RigidInertia) -> RigidInertia:
        S = [add(a, b) for a, b in zip(self.S, other.S, strict=True)]
        return RigidInertia(S, add(self.h, other.h), self.m + other.m)

    def rotate_back(self, E: AxisRotation | GeneralRotation, double_angle: bool) -> RigidInertia:
        """Rotate to the axes before the rotation E: Σ' = E^T Σ E, h' = E^T h, m' = m.

        double_angle: evaluate E^T Σ E with fewer multiplications, see `AxisRotation.congruence`.
        """
        return RigidInertia(E.congruence(self.S, double_angle), E.apply_T(self.h), self.m)

    def displace(self, p: Vector) -> RigidInertia:
        """Shift the reference point by −p (parallel axes): h' = h + m p, Σ' = Σ + p h^T + h' p^T."""
        h = add(self.h, scale(self.m, p))
        S = [list(row) for row in self.S]
        for i in range(3):
            S[i][i] = S[i][i] + p[i] * (self.h[i] + h[i])
            for j in range(i):
                S[i][j] = S[j][i] = S[i][j] + p[i] * self.h[j] + h[i] * p[j]
        return RigidInertia(S, h, self.m)

    def times(self, s: Vector) -> Vector:
        """I s (6): [J ω + h × v; m v − h × ω] with J = tr(Σ) 1 − Σ."""
        S, w, v = self.S, s[:3], s[3:]
        n: Vector = []
        for i in range(3):
            J = [-S[i][j] for j in range(3)]
            J[i] = 0.0 if is_zero(w[i]) else S[i - 1][i - 1] + S[i - 2][i - 2]
            n.append(dot(J, w))
        return add(n, cross(self.h, v)) + add(scale(self.m, v), cross(w, self.h))


class LinkTree:
    """The links of a model at positions q (nq).

    choose: selects among equivalent forms, see `Plan`. start_body: called before the operations of each body.
    absorb: allow links to absorb their joint rotation, see `Link`. double_angle: see `AxisRotation.congruence`.
    """

    def __init__(
        self, model: Model, q: Vector, choose: Choose, start_body: Callable[[], None], absorb: bool, double_angle: bool
    ):
        self.model, self.choose, self.start_body, self.double_angle = model, choose, start_body, double_angle
        self.links: list[Link] = []
        places = placements(model)
        for i, parent in enumerate(model.parent):
            children = model.children[i]
            saves = not children or any(is_along_z(model, j) and _is_parallel(places[j]) for j in children)
            above = None if parent < 0 else self.links[parent]
            self.links.append(Link(self, i, q[model.q_slice(i)], places[i], above, absorb and saves))

    def joint_motion(self, i: int, rates: Vector) -> Vector:
        """S_i q̇_i (6), from the rates q̇ (nv) of all joints."""
        total: Vector = [0.0] * 6
        for s, x in zip(self.links[i].S, rates[self.model.v_slice(i)], strict=True):
            total = add(total, [y * x for y in s])
        return total

    def columns(self, i: int) -> list[tuple[int, Vector]]:
        """(index, axis s (6)) of each degree of freedom of joint i."""
        return list(enumerate(self.links[i].S, start=self.model.v_slice(i).start))


class Link:
    """Transform from the parent of body i to body i, and the inertia of the body.

    A link may absorb the rotation of its revolute joint: link coordinates are then those before the rotation, the
    inertia depends on q, and a child joint about a parallel axis rotates by the sum of the angles. This saves
    operations at the tips of a tree and between parallel axes.

    steps: factors of the transform. joint_rotation: the step that depends on the joint angle. absorbed: rotation from
    link to body coordinates, None if they are equal.
    """

    def __init__(self, tree: LinkTree, i: int, q: Vector, place: Placement, parent: Link | None, may_absorb: bool):
        model, joint = tree.model, tree.model.joints[i]
        self._inertia, self._double_angle = model.inertias[i], tree.double_angle
        self.S: list[Vector] = [[float(x) for x in column] for column in joint.S.T]
        self.absorbed: AxisRotation | None = None
        above = parent.absorbed if parent else None
        begin: list[Step] = [above] if above else []
        if not is_along_z(model, i):
            E, r = joint.transform(np.array([*q, None], dtype=object)[:-1])
            self.joint_rotation: AxisRotation | GeneralRotation = GeneralRotation([list(row) for row in E])
            tree_rotation = GeneralRotation(rotation(model.X_tree[i]).tolist())
            self.steps = [*begin, translation(model.X_tree[i]).tolist(), tree_rotation, list(r), self.joint_rotation]
            return
        revolute = isinstance(joint, Revolute)
        self._angle: Scalar = q[0] if revolute else 0.0
        self._offset: tuple[float, float] = place.theta
        p, up = list(place.p), place.alpha[0]
        if parent and above and _is_parallel(place):
            p, begin = above.apply_T(p), []
            self._angle = self._angle + up * parent._angle
            c, s = parent._offset[0], up * parent._offset[1]
            self._offset = (place.theta[0] * c - place.theta[1] * s, place.theta[1] * c + place.theta[0] * s)
        self.joint_rotation = _rotation_about_z(self._angle, self._offset)
        if revolute and may_absorb and tree.choose("absorb rotation", i):
            self.absorbed, self.joint_rotation = self.joint_rotation, AxisRotation(2, 1.0, 0.0)
        self.steps = [*begin, p, AxisRotation(2, *place.gamma), AxisRotation(0, *place.alpha), self.joint_rotation]
        along = place.r if revolute else q[0] + place.r
        if not is_zero(along):
            self.steps.append([0.0, 0.0, along])

    def inertia(self) -> RigidInertia:
        """Inertia of the body in link coordinates."""
        P = pseudo_inertia(self._inertia)
        P = clean(P, np.abs(P).max()).tolist()
        I = RigidInertia([row[:3] for row in P[:3]], [row[3] for row in P[:3]], P[3][3])
        return I.rotate_back(self.absorbed, self._double_angle) if self.absorbed else I

    def from_body(self, x: Vector) -> Vector:
        """Transform a vector (3) or spatial vector (6) from body to link coordinates."""
        if not self.absorbed:
            return x
        return [y for k in range(0, len(x), 3) for y in self.absorbed.apply_T(x[k : k + 3])]

    def in_body(self, x: Vector) -> Vector:
        """Transform a vector (3) or spatial vector (6) from link to body coordinates."""
        if not self.absorbed:
            return x
        return [y for k in range(0, len(x), 3) for y in self.absorbed.apply(x[k : k + 3])]

    def to_child(self, s: Vector) -> Vector:
        """X s (6): motion vector from parent to link coordinates."""
        return motion_to_child(self.steps, s)

    def to_parent(self, F: Vector) -> Vector:
        """X^T F (6): force vector from link to parent coordinates."""
        return force_to_parent(self.steps, F)

    def inertia_to_parent(self, I):
        """X^T I X of a `RigidInertia` or `ArticulatedInertia`."""
        for step in reversed(self.steps):
            I = I.displace(step) if isinstance(step, list) else I.rotate_back(step, self._double_angle)
        return I


def _is_parallel(place: Placement) -> bool:
    return place.alpha[1] == 0.0


def _rotation_about_z(angle: Scalar, offset: tuple[float, float]) -> AxisRotation:
    """Rotation about z by the angle plus a constant offset given as (cos, sin)."""
    c, s = offset
    if is_zero(angle):
        return AxisRotation(2, c, s)
    if 0.0 not in (c, s):
        angle, c, s = angle + atan2(s, c), 1.0, 0.0
    return AxisRotation(2, c * cos(angle) - s * sin(angle), s * cos(angle) + c * sin(angle))
