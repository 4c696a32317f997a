"""Forward dynamics by the composite-rigid-body algorithm; H is factored together with the bordering constraint rows.

The unknown is q̈ − q̈° with the reference accelerations q̈° and their torques τ°: H (q̈ − q̈°) = τ − τ°.

H_ij = s_i · F_j with F_j = I^c_j S_j. The product may be formed in any body between i and j, the transfer body: F_j is
propagated up to it, s_i down to it. RBDA Table 6.2 propagates only F_j, method 3 of Walker & Orin (1982) only s_i.
H = L^T D L has no fill-in.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from sysdyn.errors import SingularState
from sysdyn.model.kinematics import path
from sysdyn.program.graph import is_zero
from sysdyn.recursions.reference_motion import ReferenceMotion, accumulate, joint_torques
from sysdyn.recursions.row_propagation import LinkRows, RowPropagator
from sysdyn.recursions.transforms import LinkTree, Scalar, Vector, add, dot
from sysdyn.sparse.active_submatrix import ActiveSubmatrix

SparseMatrix = dict[tuple[int, int], Scalar]  # entries by (row, column)
JointPivots = list[tuple[Scalar, int]]  # (D, degree of freedom or nv + row), in order of elimination


class ForwardDynamics(NamedTuple):
    """Result of forward or hybrid dynamics with m constraint rows.

    tau, qdd (nv): all joint torques and accelerations, known and computed. w (m): multipliers of the constraint rows.
    corrections: Δa_i (6) of each body, its acceleration minus that of the reference motion.
    """

    tau: Vector
    qdd: Vector
    w: Vector
    corrections: list[Vector]
    pivots: JointPivots


def composite_dynamics(
    tree: LinkTree, motion: ReferenceMotion, tau: Vector, free: Collection[int], rows: LinkRows, symmetric: bool
) -> ForwardDynamics:
    """Hybrid dynamics: solve for q̈ of the `free` degrees of freedom, τ of the others, and multipliers of the rows.

    tau (nv): τ of the `free` degrees of freedom; the others have the q̈ of `motion`. rows: constraints. symmetric:
    factor H as L^T D L, else as L U.
    """
    pivots: JointPivots = []
    bias = joint_torques(tree, accumulate(tree, motion.wrenches), motion.qdd)
    H, J = mass_matrix(tree), jacobian(tree, rows) if rows.targets else {}
    rest = [tau[k] - x if k in free else 0.0 for k, x in enumerate(bias)]
    change, w = _solve_bordered(H, J, rest, rows.targets, free, pivots, symmetric)
    tau = [tau[k] if k in free else x for k, x in enumerate(bias)]
    for (r, c), h in H.items():
        if (r in free) != (c in free):
            k, j = (c, r) if r in free else (r, c)
            tau[k] = tau[k] + h * change[j]
    for k in set(J) - set(free):
        tau[k] = tau[k] - dot([*J[k].values()], [w[e] for e in J[k]])
    corrections: list[Vector] = []
    for i, parent in enumerate(tree.model.parent):
        joint = tree.joint_motion(i, change)
        corrections.append(joint if parent < 0 else add(tree.links[i].to_child(corrections[parent]), joint))
    return ForwardDynamics(tau, add(motion.qdd, change), w, corrections, pivots)


def mass_matrix(tree: LinkTree) -> SparseMatrix:
    """Upper triangle {(r, c): H_rc}, r ≤ c, for each r on the path from c to the base."""
    model, links = tree.model, tree.links
    bodies = [link.inertia() for link in links]
    for i in reversed(range(model.nb)):
        tree.start_body()
        if (parent := model.parent[i]) >= 0:
            bodies[parent] = bodies[parent] + links[i].inertia_to_parent(bodies[i])

    @cache
    def force(j: int, column: int, k: int) -> Vector:
        """Column of F_j = I^c_j S_j in the coordinates of body k; k is j or an ancestor of j."""
        if k == j:
            return bodies[j].times(links[j].S[column])
        child = next(c for c in paths[j] if model.parent[c] == k)
        return links[child].to_parent(force(j, column, child))

    @cache
    def axis(i: int, column: int, k: int) -> Vector:
        """Column of S_i in the coordinates of body k; k is i or a descendant of i."""
        return links[i].S[column] if k == i else links[k].to_child(axis(i, column, model.parent[k]))

    paths = [path(model, j) for j in range(model.nb)]
    H: SparseMatrix = {}
    for j, ancestors in enumerate(paths):
        tree.start_body()
        transfer = ancestors[::-1][tree.choose("transfer body", j, of=len(ancestors))]
        for c, (col, _) in enumerate(tree.columns(j)):
            for i in ancestors:
                k = max(i, transfer)
                for r, (row, _) in enumerate(tree.columns(i)):
                    if row <= col:
                        H[row, col] = dot(axis(i, r, k), force(j, c, k))
            H[col, col] = H[col, col] + float(model.armature[col])
    return H


def jacobian(tree: LinkTree, rows: LinkRows) -> dict[int, dict[int, Scalar]]:
    """Constraint Jacobian by columns: {degree of freedom: {row: coefficient of q̈}}."""
    propagator, J = RowPropagator(tree, rows), {}
    for i in reversed(range(tree.model.nb)):
        tree.start_body()
        for k, s in tree.columns(i):
            J[k] = propagator.coefficients(i, k, s)
        propagator.to_parent(i)
    return J


def delassus(
    H: SparseMatrix, J: dict[int, dict[int, Scalar]], m: int, n: int, free: Collection[int], symmetric: bool
) -> tuple[SparseMatrix, JointPivots]:
    """Delassus matrix Ω = J H⁻¹ J^T (m, m), upper triangle, and the pivots of H (n, n)."""
    pivots: JointPivots = []
    bordered = _active(_border(H, J, m, free), m + n, {*range(m), *(m + k for k in free)}, symmetric)
    _eliminate(bordered, {m + k for k in free}, [0.0] * (m + n), pivots, symmetric)
    return {(r, c): -x for c in range(m) for r, x in bordered.rows[c].items() if r <= c}, pivots


def solve(H: SparseMatrix, u: Vector, free: Collection[int], pivots: JointPivots, symmetric: bool) -> Vector:
    """Solve H x = u by H = L^T D L, last row first, without fill-in. RBDA Table 6.3.

    free: indices of the unknowns; the other x are 0. H: upper triangle. pivots: the diagonal of D is appended to it.
    symmetric: if False, both triangles are eliminated, as in L U.
    """
    u = [x if k in free else 0.0 for k, x in enumerate(u)]
    lower = _eliminate(_active(H, len(u), free, symmetric), free, u, pivots, symmetric)
    for c in sorted(free):
        for r, x in lower[c].items():
            u[c] = u[c] - x * u[r]
    return u


def _solve_bordered(
    H: SparseMatrix, J: dict[int, dict[int, Scalar]], u: Vector, targets: Vector, free: Collection[int],
    pivots: JointPivots, symmetric: bool,
) -> tuple[Vector, Vector]:  # fmt: skip
    """Solve H x − J^T w = u, J x = targets for x (nv), w (m); joints are eliminated before the rows."""
    m, nv = len(targets), len(u)
    bordered: JointPivots = []
    x = solve(_border(H, J, m, free), [*targets, *u], {*range(m), *(m + k for k in free)}, bordered, symmetric)
    pivots.extend((D, k - m if k >= m else nv + k) for D, k in bordered)
    return x[m:], [-y for y in x[:m]]


def _border(H: SparseMatrix, J: dict[int, dict[int, Scalar]], m: int, free: Collection[int]) -> SparseMatrix:
    """Upper triangle of [0 J; J^T H], J (m, nv); columns of J outside `free` are omitted."""
    border = {(e, m + k): x for k, column in J.items() if k in free for e, x in column.items()}
    return {(m + r, m + c): x for (r, c), x in H.items()} | border


def _active(H: SparseMatrix, n: int, numbers: Collection[int], symmetric: bool) -> ActiveSubmatrix:
    """Submatrix of H (n, n) with the rows and columns `numbers`, stored by columns."""
    columns: list[dict[int, Scalar]] = [{} for _ in range(n)]
    for (r, c), x in sorted(H.items()):
        if r in numbers and c in numbers and not is_zero(x):
            columns[c][r] = x
            if not symmetric:
                columns[r][c] = x
    return ActiveSubmatrix(columns, n)


def _eliminate(
    active: ActiveSubmatrix, numbers: Collection[int], u: Vector, pivots: JointPivots, symmetric: bool
) -> dict[int, dict[int, Scalar]]:
    """Factor a matrix as L^T D L: returns the rows of L, appends D to `pivots`, overwrites u by D⁻¹ L^−T u."""
    lower: dict[int, dict[int, Scalar]] = {}
    for c in sorted(numbers, reverse=True):
        pivot, row, column = active.pivot(c, c)
        pivots.append((pivot, c))
        inverse = reciprocal(pivot, c)
        row = dict(sorted(row.items()))
        lower[c] = {}
        for r, x in row.items():
            x = x * inverse
            lower[c][r] = x if symmetric else column[r] * inverse
            u[r] = u[r] - x * u[c]
            active.rank_one_update({r: lower[c][r]}, {s: y for s, y in row.items() if s <= r or not symmetric})
        u[c] = u[c] * inverse
    return lower


def reciprocal(pivot: Scalar, freedom: int) -> Scalar:
    """1 / pivot. Raises SingularState if the pivot is identically zero."""
    if is_zero(pivot):
        raise SingularState(f"degree of freedom {freedom} moves no inertia, so its acceleration is not determined")
    return 1.0 / pivot
