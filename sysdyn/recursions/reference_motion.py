"""Newton-Euler recursions: acceleration and net wrench of each body from q, q̇, q̈.

Classical accelerations: a point ρ of body i has the acceleration V̇_i + U_i ρ with U = ω̇× + ω×ω×. The net wrench
follows from the pseudo-inertia [Σ h; h^T m] without linear velocities:

    f_i = m V̇ + U h,    n_i = vee(U Σ − Σ U^T) + h × V̇

Luh, Walker & Paul (1980), Khalil & Kleinfinger (1987); U Σ after Atkeson, An & Hollerbach (1986).

Spatial accelerations: Nori eqs. (3a), (3f),

    a_i = X_i a_λ(i) + S_i q̈_i + c_i,    f_i = I_i a_i + ν_i − fx_i + Σ_{j∈μ(i)} X_j^T f_j
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sysdyn.program.graph import is_zero
from sysdyn.recursions.transforms import (
    LinkTree,
    Matrix,
    Scalar,
    Vector,
    add,
    cross,
    dot,
    scale,
    subtract,
    unit_entry_index,
)


class ReferenceMotion(NamedTuple):
    """A motion with accelerations q̈ (nv), in link coordinates.

    wrenches: net wrench minus external wrench, (6) of each body. a: acceleration (6) of each body, minus gravity;
    classical if the angular velocities w (3) are present, else spatial.
    """

    qdd: Vector
    wrenches: list[Vector]
    a: Sequence[Vector]
    w: Sequence[Vector] | None = None


class AngularMotionMatrix:
    """U = ω̇× + ω×ω× (3, 3) of angular velocity w and acceleration dw; entries are computed on demand."""

    def __init__(self, w: Vector, dw: Vector):
        self.w, self.dw = w, dw
        self._products: dict[tuple[int, int], Scalar] = {}

    def ww(self, i: int, j: int) -> Scalar:
        """ω_i ω_j, computed once."""
        key = (min(i, j), max(i, j))
        if key not in self._products:
            self._products[key] = self.w[i] * self.w[j]
        return self._products[key]

    def entry(self, i: int, j: int) -> Scalar:
        """U_ij."""
        if i == j:
            a, b = (k for k in range(3) if k != i)
            return -(self.ww(a, a) + self.ww(b, b))
        k = 3 - i - j
        return self.ww(i, j) + self.dw[k] if (i - j) % 3 == 1 else self.ww(i, j) - self.dw[k]

    def times(self, x: Vector) -> Vector:
        """U x."""
        return [dot([0.0 if is_zero(x[j]) else self.entry(i, j) for j in range(3)], x) for i in range(3)]

    def moment(self, S: Matrix) -> Vector:
        """vee(U Σ − Σ U^T) = J ω̇ + ω × J ω."""
        n: Vector = []
        for i in range(3):
            a, b = (i + 1) % 3, (i + 2) % 3
            # Σ_k U_bk Σ_ka − U_ak Σ_kb, with U_bb − U_aa = ω_b² − ω_a²
            total = S[i][a] * self.entry(b, i) - S[i][b] * self.entry(a, i)
            if not is_zero(S[a][b]):
                total = total + S[a][b] * (self.ww(b, b) - self.ww(a, a))
            if is_zero(S[a][a] - S[b][b]):
                total = total + (S[a][a] + S[a][a]) * self.dw[i]
            elif is_zero(S[a][a] + S[b][b]):
                total = total + (S[a][a] - S[b][b]) * self.ww(a, b)
            else:
                total = total + S[a][a] * self.entry(b, a) - S[b][b] * self.entry(a, b)
            n.append(total)
        return n


def classical_motion(
    tree: LinkTree, qd: Vector, qdd: Vector, fx: list[Vector] | None, free: Collection[int]
) -> ReferenceMotion:
    """Reference motion by classical accelerations.

    fx: external wrench (6) on each body. free: degrees of freedom with arbitrary reference q̈; if such an axis is a unit
    vector, q̈ is chosen so that this component of [ω̇; V̇] is zero.
    """
    spins: list[AngularMotionMatrix] = []
    accelerations: list[Vector] = []
    wrenches: list[Vector] = []
    model, qdd = tree.model, list(qdd)
    base = AngularMotionMatrix([0.0] * 3, [0.0] * 3), [-float(g) for g in model.gravity]
    for i, (link, parent) in enumerate(zip(tree.links, model.parent, strict=True)):
        tree.start_body()
        spin, A = base if parent < 0 else (spins[parent], accelerations[parent])
        rate, acceleration = tree.joint_motion(i, qd), tree.joint_motion(i, qdd)
        w_J, v_J = rate[:3], rate[3:]
        w, dw = spin.w, spin.dw
        after_joint = False
        for step in link.steps:
            if isinstance(step, list):
                if after_joint:  # U of the body, computed anyway, equals U before the joint along the axis
                    spin = AngularMotionMatrix(add(w, w_J), add(add(dw, acceleration[:3]), cross(w, w_J)))
                A = add(A, spin.times(step))
                continue
            w, dw, A = step.apply(w), step.apply(dw), step.apply(A)
            after_joint = after_joint or step is link.joint_rotation
            spin = AngularMotionMatrix(w, dw)
        # motion of the origin relative to the parent: Coriolis acceleration 2 ω × v_J + relative acceleration
        relative = add(acceleration[3:], cross(w_J, v_J))
        A = add(add(A, cross(w, [x + x for x in v_J])), relative)
        a = add(add(dw, acceleration[:3]), cross(w, w_J)) + A
        for k, s in tree.columns(i):
            if k in free and (component := unit_entry_index(s)) is not None:
                qdd[k], a[component] = -a[component], 0.0
        spins.append(AngularMotionMatrix(add(w, w_J), a[:3]))
        accelerations.append(a[3:])
        I = link.inertia()
        force = add(spins[i].times(I.h), scale(I.m, accelerations[i]))
        wrench = add(spins[i].moment(I.S), cross(I.h, accelerations[i])) + force
        wrenches.append(wrench if fx is None else subtract(wrench, fx[i]))
    a = [spin.dw + A for spin, A in zip(spins, accelerations, strict=True)]
    return ReferenceMotion(qdd, wrenches, a, [spin.w for spin in spins])


def velocity_terms(tree: LinkTree, qd: Vector) -> tuple[list[Vector], list[Vector]]:
    """(c_i = v_i × S_i q̇_i, ν_i = v_i ×* I_i v_i) of each body."""
    v: list[Vector] = []
    c: list[Vector] = []
    nu: list[Vector] = []
    for i, (link, parent) in enumerate(zip(tree.links, tree.model.parent, strict=True)):
        tree.start_body()
        rate = tree.joint_motion(i, qd)
        above = [0.0] * 6 if parent < 0 else link.to_child(v[parent])
        v.append(add(above, rate))
        w, u = v[i][:3], v[i][3:]
        c.append(cross(above[:3], rate[:3]) + add(cross(w, rate[3:]), cross(u, rate[:3])))
        momentum = link.inertia().times(v[i])
        nu.append(add(cross(w, momentum[:3]), cross(u, momentum[3:])) + cross(w, momentum[3:]))
    return c, nu


def spatial_motion(
    tree: LinkTree, qdd: Vector, fx: list[Vector] | None, c: list[Vector], nu: list[Vector]
) -> ReferenceMotion:
    """Reference motion by spatial accelerations, minus gravity; c, ν as in `velocity_terms`."""
    a: list[Vector] = []
    base = [0.0] * 3 + [-float(g) for g in tree.model.gravity]
    for i, (link, parent) in enumerate(zip(tree.links, tree.model.parent, strict=True)):
        tree.start_body()
        above = link.to_child(base if parent < 0 else a[parent])
        a.append(add(add(above, tree.joint_motion(i, qdd)), c[i]))
    f = [add(link.inertia().times(a[i]), nu[i]) for i, link in enumerate(tree.links)]
    return ReferenceMotion(qdd, f if fx is None else [subtract(*pair) for pair in zip(f, fx, strict=True)], a)


def accumulate(tree: LinkTree, wrenches: list[Vector]) -> list[Vector]:
    """f_i = wrenches_i + Σ_{j∈μ(i)} X_j^T f_j (6) of each body."""
    f = list(wrenches)
    for i, link in reversed(list(enumerate(tree.links))):
        tree.start_body()
        if (parent := tree.model.parent[i]) >= 0:
            f[parent] = add(f[parent], link.to_parent(f[i]))
    return f


def joint_torques(tree: LinkTree, f: list[Vector], qdd: Vector) -> Vector:
    """τ (nv) = S^T f + armature q̈."""
    armature = tree.model.armature
    return [dot(s, f[i]) + float(armature[k]) * qdd[k] for i in range(tree.model.nb) for k, s in tree.columns(i)]
