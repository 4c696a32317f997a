"""Forward dynamics by articulated bodies (RBDA Table 7.1), with constraint rows propagated to the base.

The unknowns are corrections Δa, Δq̈ to a reference motion, which has the known q̈. The bias forces are the net wrenches
of this motion. Its joint torques are never formed, because their terms nearly cancel in long chains.

The backward pass appends one record for each degree of freedom, the forward pass evaluates them in reverse.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sysdyn.recursions.crba import ForwardDynamics, JointPivots, reciprocal, solve
from sysdyn.recursions.reference_motion import ReferenceMotion
from sysdyn.recursions.row_propagation import LinkRows, RowPivot, RowPropagator
from sysdyn.recursions.transforms import (
    AxisRotation,
    GeneralRotation,
    LinkTree,
    Matrix,
    RigidInertia,
    Scalar,
    Vector,
    add,
    cross,
    dot,
    scale,
    subtract,
    unit_entry_index,
)


class ArticulatedInertia:
    """A symmetric (6, 6) inertia [J H; H^T M] by blocks."""

    def __init__(self, J: Matrix, H: Matrix, M: Matrix):
        self.J, self.H, self.M = J, H, M

    @staticmethod
    def rigid(I: RigidInertia) -> ArticulatedInertia:
        S, h = I.S, I.h
        J = [[-x for x in row] for row in S]
        for i in range(3):
            J[i][i] = S[i - 1][i - 1] + S[i - 2][i - 2]
        H = [[0.0, -h[2], h[1]], [h[2], 0.0, -h[0]], [-h[1], h[0], 0.0]]
        return ArticulatedInertia(J, H, [[I.m if i == j else 0.0 for j in range(3)] for i in range(3)])

    def __add__(self, other: ArticulatedInertia) -> ArticulatedInertia:
        blocks = zip((self.J, self.H, self.M), (other.J, other.H, other.M), strict=True)
        return ArticulatedInertia(*([add(a, b) for a, b in zip(A, B, strict=True)] for A, B in blocks))

    def times(self, s: Vector) -> Vector:
        """I s: force vector (6) from a motion vector (6)."""
        n = [dot(self.J[i], s[:3]) + dot(self.H[i], s[3:]) for i in range(3)]
        f = [dot([row[i] for row in self.H], s[:3]) + dot(self.M[i], s[3:]) for i in range(3)]
        return n + f

    def rank_update(self, *pairs: tuple[Vector, Vector]) -> ArticulatedInertia:
        """I − Σ U W^T; the sum over the pairs (U, W) is symmetric."""

        def block(A: Matrix, a: int, b: int) -> Matrix:
            B = [list(row) for row in A]
            for i in range(3):
                for j in range(i if a == b else 0, 3):
                    for U, W in pairs:
                        B[i][j] = B[i][j] - U[a + i] * W[b + j]
                    if a == b:
                        B[j][i] = B[i][j]
            return B

        return ArticulatedInertia(block(self.J, 0, 0), block(self.H, 0, 3), block(self.M, 3, 3))

    def rotate_back(self, E: AxisRotation | GeneralRotation, double_angle: bool) -> ArticulatedInertia:
        """Rotate to the axes before the rotation E: E^T I E, block by block.

        double_angle: see `AxisRotation.congruence`.
        """
        return ArticulatedInertia(*(E.congruence(A, double_angle) for A in (self.J, self.H, self.M)))

    def displace(self, p: Vector) -> ArticulatedInertia:
        """Shift the reference point by −p (parallel axes): H' = H + p× M, J' = J + p× H^T − H' p×."""
        H = [add(*rows) for rows in zip(self.H, _cross_columns(p, self.M), strict=True)]
        first = _cross_columns(p, _transpose(self.H))  # p× H^T
        second = _cross_columns(p, _transpose(H))  # p× H'^T = (−H' p×)^T
        J = [list(row) for row in self.J]
        for i in range(3):
            for j in range(i + 1):
                J[i][j] = J[j][i] = self.J[i][j] + (first[i][j] + second[j][i])
        return ArticulatedInertia(J, H, self.M)


def _transpose(A: Matrix) -> Matrix:
    return [list(column) for column in zip(*A, strict=True)]


def _cross_columns(p: Vector, A: Matrix) -> Matrix:
    """p× A (3, 3)."""
    return _transpose([cross(p, column) for column in _transpose(A)])


@dataclass(frozen=True)
class FreeJoint:
    """Degree of freedom k eliminated by its own equation: q̈ = (u + κ w) / D − W a with W = U / D; coefficients: κ."""

    k: int
    s: Vector
    W: Vector
    x: Scalar  # u / D
    inverse: Scalar  # 1 / D
    coefficients: dict[int, Scalar]


@dataclass(frozen=True)
class RowJoint:
    """Degree of freedom k eliminated by a row: q̈ = t − K a; its own equation gives the multiplier of the row."""

    k: int
    s: Vector
    U: Vector
    D: Scalar
    u: Scalar
    pivot: RowPivot


@dataclass(frozen=True)
class DrivenJoint:
    """Degree of freedom k with known q̈: τ = U a + p − κ w; p is the torque of the bias force and the armature."""

    k: int
    U: Vector
    p: Scalar
    coefficients: dict[int, Scalar]


Record = FreeJoint | RowJoint | DrivenJoint


def articulated_dynamics(
    tree: LinkTree, motion: ReferenceMotion, tau: Vector, free: Collection[int], rows: LinkRows, symmetric: bool
) -> ForwardDynamics:
    """Hybrid dynamics: solve for q̈ of the `free` degrees of freedom, τ of the others, and multipliers of the rows.

    tau (nv): τ of the `free` degrees of freedom; the others have the q̈ of `motion`. rows: constraints. symmetric:
    factor Ω as L^T D L, else as L U.
    """
    records, propagator, pivots = backward_pass(tree, motion, tau, free, rows, early=True)
    m, nv = len(rows.targets), tree.model.nv
    tau, qdd = list(tau), list(motion.qdd)
    eliminated = {x.pivot.row for body in records for x in body if isinstance(x, RowJoint)}
    row_pivots: JointPivots = []
    w = solve(propagator.omega, propagator.residuals, set(range(m)) - eliminated, row_pivots, symmetric)
    pivots += [(D, nv + e) for D, e in row_pivots]

    corrections: list[Vector] = []
    for i, parent in enumerate(tree.model.parent):
        tree.start_body()
        a = [0.0] * 6 if parent < 0 else tree.links[i].to_child(corrections[parent])
        propagator.rotate_multipliers_back(i, w)
        for record in reversed(records[i]):
            k = record.k
            match record:
                case DrivenJoint(_, U, p, coefficients):
                    tau[k] = dot(U, a) + p - _times_multipliers(coefficients, w)
                case RowJoint(_, s, U, D, u, pivot):
                    new, change = _accelerate(a, s, pivot.K, pivot.t)
                    load = dot(U, a) + D * change - u
                    w[pivot.row] = load * (1.0 / pivot.coefficient) - _times_multipliers(pivot.others, w)
                    a, qdd[k] = new, qdd[k] + change
                case FreeJoint(_, s, W, x, inverse, coefficients):
                    if coefficients:
                        x = x + inverse * _times_multipliers(coefficients, w)
                    a, change = _accelerate(a, s, W, x)
                    qdd[k] = qdd[k] + change
        corrections.append(a)
    return ForwardDynamics(tau, qdd, w, corrections, pivots)


def backward_pass(
    tree: LinkTree, motion: ReferenceMotion, tau: Vector, free: Collection[int], rows: LinkRows, early: bool
) -> tuple[list[list[Record]], RowPropagator, JointPivots]:
    """Backward pass of the ABA: (elimination records of each body, propagated rows, pivots).

    early: constraint rows may eliminate degrees of freedom, see `row_propagation`.
    """
    model, links = tree.model, tree.links
    forces = list(motion.wrenches)
    bodies = [ArticulatedInertia.rigid(link.inertia()) for link in links]
    propagator = RowPropagator(tree, rows, early)
    records: list[list[Record]] = [[] for _ in bodies]
    pivots: JointPivots = []
    for i in reversed(range(model.nb)):
        tree.start_body()
        columns = tree.columns(i)
        for k, s in reversed([(k, s) for k, s in columns if k in free]):
            coefficients = propagator.coefficients(i, k, s)
            U, armature = bodies[i].times(s), float(model.armature[k])
            D = dot(s, U) + armature
            u = tau[k] - dot(s, forces[i]) - armature * motion.qdd[k]
            pivot = propagator.pivot_row(i, coefficients) if len(columns) == 1 else None
            if pivot is not None:
                V = subtract(U, scale(D, pivot.K))
                bodies[i] = bodies[i].rank_update((pivot.K, U), (V, pivot.K))
                forces[i] = add(add(forces[i], scale(u, pivot.K)), scale(pivot.t, V))
                records[i].append(RowJoint(k, s, U, D, u, pivot))
                continue
            pivots.append((D, k))
            inverse = reciprocal(D, k)
            W = scale(inverse, U)
            if not armature and (component := unit_entry_index(s)) is not None:
                W[component] = 1.0
            bodies[i] = bodies[i].rank_update((U, W))
            forces[i] = add(forces[i], scale(u, W))
            propagator.eliminate_freedom(i, coefficients, W, u, inverse)
            records[i].append(FreeJoint(k, s, W, u * inverse, inverse, coefficients))
        for k, s in columns:
            if k not in free:
                p = dot(s, forces[i]) + float(model.armature[k]) * motion.qdd[k]
                records[i].append(DrivenJoint(k, bodies[i].times(s), p, propagator.coefficients(i, k, s)))
        if (parent := model.parent[i]) >= 0:
            bodies[parent] = bodies[parent] + links[i].inertia_to_parent(bodies[i])
            forces[parent] = add(forces[parent], links[i].to_parent(forces[i]))
        propagator.to_parent(i)
    return records, propagator, pivots


def _times_multipliers(coefficients: dict[int, Scalar], w: Vector) -> Scalar:
    return dot([*coefficients.values()], [w[e] for e in coefficients])


def _accelerate(a: Vector, s: Vector, W: Vector, x: Scalar) -> tuple[Vector, Scalar]:
    """(a + s q̈, q̈) with q̈ = x − W a; if s = e_k and W_k = 1, a_k cancels and is omitted from component k."""
    k = unit_entry_index(s)
    if k is None or W[k] != 1.0:
        change = x - dot(W, a)
        return add(a, scale(change, s)), change
    total = x - dot(W[:k] + W[k + 1 :], a[:k] + a[k + 1 :])
    return [*a[:k], total, *a[k + 1 :]], total - a[k]
