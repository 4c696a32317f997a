"""Forward dynamics with few operations: corrections to a known motion, by composite or articulated bodies.

Of a motion with accelerations q̈° the torques τ° are those of `inverse_dynamics`; then H (q̈ − q̈°) = τ − τ°.

Composite bodies: H_ij = s_i · F_j, F_j = I^c_j S_j, in any frame between those of i and j: F_j is carried towards the
base up to a body of the plan's choice, and from there on the s_i are carried to it (Featherstone's CRBA carries only
F_j; Walker & Orin's method 3). Then H = L^T D L, with the zeros of the tree.

Articulated bodies: the ABA for what the accelerations of the bodies are beyond those of the motion. The bias forces
begin with what each body on its own needs in it, so that τ° is not formed: in long chains its terms nearly cancel.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from sysdyn.errors import SingularState
from sysdyn.model.kinematics import path
from sysdyn.program.graph import is_zero
from sysdyn.recursions.links import Link, Rotation, Scalar, Tree, Turn, Vector, cross, dot, of_joint, only, plus, scaled
from sysdyn.recursions.rows import NO_ROWS, Carried, Rows
from sysdyn.sparse.active_submatrix import ActiveSubmatrix

# ---- composite bodies --------------------------------------------------------------------------------------------


class Composite:
    """A rigid body by its pseudo-inertia [Σ h; h^T m]."""

    def __init__(self, S: list[Vector], h: Vector, m: Scalar):
        self.S, self.h, self.m = S, h, m

    def __add__(self, other: Composite) -> Composite:
        S = [plus(a, b) for a, b in zip(self.S, other.S, strict=True)]
        return Composite(S, plus(self.h, other.h), self.m + other.m)

    def turned(self, turn: Turn | Rotation, double_angle: bool) -> Composite:
        """The body in coordinates before the turn: E^T Σ E, E^T h."""
        return Composite(turn.matrix_back(self.S, double_angle), turn.back(self.h), self.m)

    def moved(self, p: Vector) -> Composite:
        """About an origin from which this one is at p: h' = h + m p, Σ' = Σ + p h^T + h' p^T."""
        h = plus(self.h, scaled(self.m, p))
        S = [list(row) for row in self.S]
        for i in range(3):
            S[i][i] = S[i][i] + p[i] * (self.h[i] + h[i])
            for j in range(i):
                S[i][j] = S[j][i] = S[i][j] + p[i] * self.h[j] + h[i] * p[j]
        return Composite(S, h, self.m)

    def times(self, s: Vector) -> Vector:
        """I s (6): [J ω + h × v; m v − h × ω], J = tr(Σ) 1 − Σ."""
        S, w, v = self.S, s[:3], s[3:]
        n: Vector = []
        for i in range(3):
            J = [-S[i][j] for j in range(3)]
            J[i] = 0.0 if is_zero(w[i]) else S[i - 1][i - 1] + S[i - 2][i - 2]
            n.append(dot(J, w))
        return plus(n, cross(self.h, v)) + plus(scaled(self.m, v), cross(w, self.h))


def _before(link: Link, inertia):
    """X^T I X: a composite or articulated inertia of the body in the frame of its parent."""
    for step in reversed(link.steps):
        inertia = inertia.moved(step) if isinstance(step, list) else inertia.turned(step, link.double_angle)
    return inertia


def mass_matrix(tree: Tree) -> dict[tuple[int, int], Scalar]:
    """H_rc by (r, c), r ≤ c, for joints r on the way from c to the base."""
    model, links = tree.model, tree.links
    bodies = [Composite(*link.parameters()) for link in links]
    for i in reversed(range(model.nb)):
        links[i].begin()
        if (parent := model.parent[i]) >= 0:
            bodies[parent] = bodies[parent] + _before(links[i], bodies[i])

    @cache
    def force(j: int, column: int, k: int) -> Vector:
        """F_j in the frame of body k, an ancestor."""
        if k == j:
            return bodies[j].times(links[j].S[column])
        child = next(c for c in ways[j] if model.parent[c] == k)
        return links[child].force(force(j, column, child))

    @cache
    def axis(i: int, column: int, k: int) -> Vector:
        """s_i in the frame of body k, a descendant."""
        return links[i].S[column] if k == i else links[k].motion(axis(i, column, model.parent[k]))

    ways = [path(model, j) for j in range(model.nb)]
    H: dict[tuple[int, int], Scalar] = {}
    for j, way in enumerate(ways):
        links[j].begin()
        meeting = way[::-1][tree.plan.pick("meeting", j, of=len(way))]
        for c in range(len(links[j].S)):
            col = model.v_slice(j).start + c
            for i in way:
                k = max(i, meeting)
                for r in range(len(links[i].S)):
                    row = model.v_slice(i).start + r
                    if row <= col:
                        H[row, col] = dot(axis(i, r, k), force(j, c, k))
            H[col, col] = H[col, col] + float(model.armature[col])
    return H


def solve(
    H: dict[tuple[int, int], Scalar], u: Vector, free: Collection[int], pivots: list[tuple[Scalar, int]],
    symmetric: bool = True,
) -> Vector:  # fmt: skip
    """H⁻¹ u by H = L^T D L, from the last degree of freedom to the first: no entry fills in. RBDA Table 6.3.

    free: degrees of freedom that are solved for; the others are 0. symmetric: the lower triangle, which H does not
    hold, follows from the upper one; else it is eliminated as any other entry.
    """
    u = [x if k in free else 0.0 for k, x in enumerate(u)]
    left = _left(H, len(u), free, symmetric)
    lower = _eliminate(left, free, u, pivots, symmetric)
    for c in sorted(free):
        for r, x in lower[c].items():
            u[c] = u[c] - x * u[r]
    return u


def delassus(
    H: dict[tuple[int, int], Scalar], J: dict[int, dict[int, Scalar]], m: int, n: int, free: Collection[int],
    symmetric: bool = True,
) -> dict[tuple[int, int], Scalar]:  # fmt: skip
    """J H⁻¹ J^T by (row, column), row ≤ column, for m rows and n degrees of freedom; as by `solve`."""
    left = _left(_bordered(H, J, m, free), m + n, {*range(m), *(m + k for k in free)}, symmetric)
    _eliminate(left, {m + k for k in free}, [0.0] * (m + n), [], symmetric)
    return {(r, c): -x for c in range(m) for r, x in left.rows[c].items() if r <= c}


def _left(H: dict[tuple[int, int], Scalar], n: int, kept: Collection[int], symmetric: bool) -> ActiveSubmatrix:
    """The columns of H (n, n) that are kept, to be eliminated."""
    columns: list[dict[int, Scalar]] = [{} for _ in range(n)]
    for (r, c), x in sorted(H.items()):
        if r in kept and c in kept and not is_zero(x):
            columns[c][r] = x
            if not symmetric:
                columns[r][c] = x
    return ActiveSubmatrix(columns, n)


def _eliminate(
    left: ActiveSubmatrix, free: Collection[int], u: Vector, pivots: list[tuple[Scalar, int]], symmetric: bool
) -> dict[int, dict[int, Scalar]]:
    """The rows of L, with u ← D⁻¹ L^-T u; see `solve`."""
    lower: dict[int, dict[int, Scalar]] = {}
    for c in sorted(free, reverse=True):
        pivot, above, beside = left.pivot(c, c)
        pivots.append((pivot, c))
        inverse = _reciprocal(pivot, c)
        lower[c] = {}
        above = dict(sorted(above.items()))
        for r, x in above.items():
            x = x * inverse
            lower[c][r] = x if symmetric else beside[r] * inverse
            u[r] = u[r] - x * u[c]
            left.rank_one_update({r: lower[c][r]}, {s: y for s, y in above.items() if s <= r or not symmetric})
        u[c] = u[c] * inverse
    return lower


def jacobian(tree: Tree, constraints: Rows) -> dict[int, dict[int, Scalar]]:
    """{degree of freedom: {row: coefficient of its q̈}} of constraints, whose rows are carried as forces are."""
    model, rows = tree.model, Carried(tree, constraints)
    for i in reversed(range(model.nb)):
        tree.links[i].begin()
        for k, s in enumerate(tree.links[i].S, start=model.v_slice(i).start):
            rows.effect(i, k, s)
        rows.hand_over(i)
    return rows.effects


def constrained(
    H: dict[tuple[int, int], Scalar], J: dict[int, dict[int, Scalar]], u: Vector, targets: Vector,
    free: Collection[int], pivots: list[tuple[Scalar, int]], symmetric: bool = True,
) -> tuple[Vector, Vector]:  # fmt: skip
    """(x (nv), w) of H x − J^T w = u, J x = targets: [0 J; J^T H] is eliminated from the last degree of freedom on.

    As by `solve`; pivots of rows are numbered from nv on.
    """
    m, nv = len(targets), len(u)
    own: list[tuple[Scalar, int]] = []
    found = solve(_bordered(H, J, m, free), [*targets, *u], {*range(m), *(m + k for k in free)}, own, symmetric)
    pivots.extend((x, k - m if k >= m else nv + k) for x, k in own)
    return found[m:], [-x for x in found[:m]]


def _bordered(
    H: dict[tuple[int, int], Scalar], J: dict[int, dict[int, Scalar]], m: int, free: Collection[int]
) -> dict[tuple[int, int], Scalar]:
    """[0 J; J^T H] for m rows, of J in the degrees of freedom that are free."""
    border = {(e, m + k): x for k, column in J.items() if k in free for e, x in column.items()}
    return {(m + r, m + c): x for (r, c), x in H.items()} | border


def reaction(H: dict[tuple[int, int], Scalar], x: Vector, free: Collection[int]) -> Vector:
    """H x in the degrees of freedom that are not free, for x that is 0 in these."""
    found: Vector = [0.0] * len(x)
    for (r, c), h in H.items():
        if (r in free) != (c in free):
            k, j = (c, r) if r in free else (r, c)
            found[k] = found[k] + h * x[j]
    return found


def _reciprocal(pivot: Scalar, freedom: int) -> Scalar:
    """1 / pivot. Raises SingularState if the pivot is 0 at every state."""
    if is_zero(pivot):
        raise SingularState(f"degree of freedom {freedom} moves no inertia, so its acceleration is not determined")
    return 1.0 / pivot


def spread(tree: Tree, qdd: Vector) -> list[Vector]:
    """Accelerations (6) of the bodies of a tree at rest by q̈ (nv), without gravity."""
    found: list[Vector] = []
    for i, (link, parent) in enumerate(zip(tree.links, tree.model.parent, strict=True)):
        own = of_joint(link, qdd[tree.model.v_slice(i)])
        found.append(own if parent < 0 else plus(link.motion(found[parent]), own))
    return found


# ---- articulated bodies ------------------------------------------------------------------------------------------


class Articulated:
    """A symmetric (6, 6) inertia [J H; H^T M] by blocks."""

    def __init__(self, J: list[Vector], H: list[Vector], M: list[Vector]):
        self.J, self.H, self.M = J, H, M

    @staticmethod
    def rigid(S: list[Vector], h: Vector, m: Scalar) -> Articulated:
        J = [[-x for x in row] for row in S]
        for i in range(3):
            J[i][i] = S[i - 1][i - 1] + S[i - 2][i - 2]
        H = [[0.0, -h[2], h[1]], [h[2], 0.0, -h[0]], [-h[1], h[0], 0.0]]
        return Articulated(J, H, [[m if i == j else 0.0 for j in range(3)] for i in range(3)])

    def __add__(self, other: Articulated) -> Articulated:
        def total(A, B):
            return [plus(a, b) for a, b in zip(A, B, strict=True)]

        return Articulated(total(self.J, other.J), total(self.H, other.H), total(self.M, other.M))

    def times(self, s: Vector) -> Vector:
        n = [dot(self.J[i], s[:3]) + dot(self.H[i], s[3:]) for i in range(3)]
        f = [dot([self.H[j][i] for j in range(3)], s[:3]) + dot(self.M[i], s[3:]) for i in range(3)]
        return n + f

    def less(self, *pairs: tuple[Vector, Vector]) -> Articulated:
        """I − Σ U W^T for pairs (U, W) of which the sum is symmetric."""

        def block(A, a, b, symmetric):
            B = [list(row) for row in A]
            for i in range(3):
                for j in range(i if symmetric else 0, 3):
                    for U, W in pairs:
                        B[i][j] = B[i][j] - U[a + i] * W[b + j]
                    if symmetric:
                        B[j][i] = B[i][j]
            return B

        return Articulated(block(self.J, 0, 0, True), block(self.H, 0, 3, False), block(self.M, 3, 3, True))

    def turned(self, turn: Turn | Rotation, double_angle: bool) -> Articulated:
        return Articulated(*(turn.matrix_back(A, double_angle) for A in (self.J, self.H, self.M)))

    def moved(self, p: Vector) -> Articulated:
        """About an origin from which this one is at p: H' = H + p× M, J' = J + p× H^T − H' p×."""
        H = [[self.H[i][j] + x for j, x in enumerate(row)] for i, row in enumerate(_cross_columns(p, self.M))]
        left = _cross_columns(p, [[self.H[j][i] for j in range(3)] for i in range(3)])  # p× H^T
        right = _cross_columns(p, [[H[j][i] for j in range(3)] for i in range(3)])  # p× H'^T = (−H' p×)^T
        J = [list(row) for row in self.J]
        for i in range(3):
            for j in range(i + 1):
                J[i][j] = J[j][i] = self.J[i][j] + (left[i][j] + right[j][i])
        return Articulated(J, H, self.M)


def _cross_columns(p: Vector, A: list[Vector]) -> list[Vector]:
    """p× A (3, 3)."""
    columns = [cross(p, [A[i][j] for i in range(3)]) for j in range(3)]
    return [[columns[j][i] for j in range(3)] for i in range(3)]


class Solved(NamedTuple):
    """τ (nv), q̈ (nv), what is missing to the accelerations of the known motion (6 a body), and w of each row."""

    tau: Vector
    qdd: Vector
    missing: list[Vector]
    w: Vector


class Inward(NamedTuple):
    """The sweep of articulated bodies to the base.

    bodies, forces: inertia of each articulated body, and its wrench. found: (k, s, U / D, u / D, 1 / D) of the free
    degrees of freedom of each body that meet no row. rows: with their Ω.
    """

    bodies: list[Articulated]
    forces: list[Vector]
    found: list[list[tuple[int, Vector, Vector, Scalar, Scalar]]]
    rows: Carried


def articulated(
    tree: Tree, tau: Vector, qdd: Vector, own: list[Vector], free: Collection[int], pivots: list[tuple[Scalar, int]],
    constraints: Rows = NO_ROWS, symmetric: bool = True,
) -> Solved:  # fmt: skip
    """Dynamics, given τ in the free degrees of freedom and q̈ in the others.

    qdd (nv), own (6 a body): a motion with the q̈ that are given, and the wrench of each body on its own in it.
    RBDA Table 7.1 with v = 0, a_0 = 0 and p = own for what is missing to that motion, and section 9.2 for the others.

    Rows of constraints are carried towards the base, see `rows`; then Ω w = κ − (the rows with w = 0), and w enters the
    sweep outwards. Their pivots have numbers from nv on; for `symmetric` see `solve`.
    """
    model, links = tree.model, tree.links
    tau, qdd = list(tau), list(qdd)
    bodies, forces, found, rows = inward(tree, tau, qdd, own, free, pivots, constraints)
    w = _constraint_wrenches(rows, model.nv, pivots, symmetric)
    accelerations: list[Vector] = []
    for i, parent in enumerate(model.parent):
        links[i].begin()
        a = [0.0] * 6 if parent < 0 else links[i].motion(accelerations[parent])
        rows.turn_back(i, w)
        for k, s in enumerate(links[i].S, start=model.v_slice(i).start):
            if k not in free:
                load = dot([*rows.effects[k].values()], [w[e] for e in rows.effects[k]])
                tau[k] = dot(bodies[i].times(s), a) + dot(s, forces[i]) + float(model.armature[k]) * qdd[k] - load
            elif (met := rows.met.get(k)) is not None:
                before = a
                a, missing = _moved(a, s, met.K, met.t)
                w[met.row] = met.wrench(before, missing, w)
                qdd[k] = qdd[k] + missing
        for k, s, W, x, inverse in reversed(found[i]):  # the degree of freedom eliminated last is free of the others
            if effect := rows.effects[k]:
                x = x + inverse * dot([*effect.values()], [w[e] for e in effect])
            a, missing = _moved(a, s, W, x)
            qdd[k] = qdd[k] + missing
        accelerations.append(a)
    return Solved(tau, qdd, accelerations, w)


def _moved(a: Vector, s: Vector, W: Vector, x: Scalar) -> tuple[Vector, Scalar]:
    """(a + s q̈, q̈ = x − W a): if W is 1 where s is, that entry of a + s q̈ is found without that of a."""
    k = only(s)
    if k is None or W[k] != 1.0:
        missing = x - dot(W, a)
        return plus(a, scaled(missing, s)), missing
    total = x - dot(W[:k] + W[k + 1 :], a[:k] + a[k + 1 :])
    return [*a[:k], total, *a[k + 1 :]], total - a[k]


def inward(
    tree: Tree, tau: Vector, qdd: Vector, own: list[Vector], free: Collection[int], pivots: list[tuple[Scalar, int]],
    constraints: Rows = NO_ROWS, meeting: bool = True,
) -> Inward:  # fmt: skip
    """The sweep to the base of `articulated`. meeting: rows may be met at once, else Ω has all of them."""
    model, links = tree.model, tree.links
    forces = list(own)
    bodies = [Articulated.rigid(*link.parameters()) for link in links]
    rows = Carried(tree, constraints, meeting)
    found: list[list[tuple[int, Vector, Vector, Scalar, Scalar]]] = [[] for _ in bodies]
    for i in reversed(range(model.nb)):
        links[i].begin()
        columns = list(enumerate(links[i].S, start=model.v_slice(i).start))
        for k, s in reversed([(k, s) for k, s in columns if k in free]):
            rows.effect(i, k, s)
            U, armature = bodies[i].times(s), float(model.armature[k])
            D = dot(s, U) + armature
            rest = tau[k] - dot(s, forces[i]) - armature * qdd[k]
            if len(columns) == 1 and (met := rows.meet(i, k, U, D, rest)):
                bodies[i] = bodies[i].less((met.K, met.U), (met.V, met.K))
                forces[i] = plus(plus(forces[i], scaled(rest, met.K)), scaled(met.t, met.V))
                continue
            pivots.append((D, k))
            inverse = _reciprocal(D, k)
            W = scaled(inverse, U)
            if not armature and (moved := only(s)) is not None:
                W[moved] = 1.0
            found[i].append((k, s, W, rest * inverse, inverse))
            bodies[i] = bodies[i].less((U, W))
            forces[i] = plus(forces[i], scaled(rest, W))
            rows.share(i, k, W, rest, inverse)
        for k, s in columns:
            if k not in free:
                rows.effect(i, k, s)
        if (parent := model.parent[i]) >= 0:
            bodies[parent] = bodies[parent] + _before(links[i], bodies[i])
            forces[parent] = plus(forces[parent], links[i].force(forces[i]))
        rows.hand_over(i)
    return Inward(bodies, forces, found, rows)


def _constraint_wrenches(rows: Carried, first: int, pivots: list[tuple[Scalar, int]], symmetric: bool) -> Vector:
    """w of Ω w = left, 0 of the rows that are met; its pivots are numbered from `first` on."""
    own: list[tuple[Scalar, int]] = []
    w = solve(rows.omega, rows.left, set(range(len(rows.left))) - {x.row for x in rows.met.values()}, own, symmetric)
    pivots.extend((x, first + e) for x, e in own)
    return w
