"""Inverse dynamics with few operations: Newton-Euler in classical accelerations of the bodies' origins.

The acceleration of a point ρ of body i is V̇_i + U_i ρ, with U = ω̇× + ω×ω×, and with the pseudo-inertia [Σ h; h^T m]

    f_i = m V̇ + U h,    n_i = vee(U Σ − Σ U^T) + h × V̇

No linear velocity is needed: a frame that moves with the origin of the body is as good an inertial frame as any.
Luh, Walker & Paul (1980), Khalil & Kleinfinger (1987); U Σ after Atkeson, An & Hollerbach (1986).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sysdyn.program.graph import is_zero
from sysdyn.recursions.links import Scalar, Tree, Vector, cross, dot, of_joint, only, plus, scaled


class Spin:
    """U = ω̇× + ω×ω× of angular velocity w and acceleration dw, its entries computed when they are asked for."""

    def __init__(self, w: Vector, dw: Vector):
        self.w, self.dw = w, dw
        self._ww: dict[tuple[int, int], Scalar] = {}

    def ww(self, i: int, j: int) -> Scalar:
        """ω_i ω_j."""
        key = (min(i, j), max(i, j))
        if key not in self._ww:
            self._ww[key] = self.w[i] * self.w[j]
        return self._ww[key]

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

    def moment(self, S: list[Vector]) -> Vector:
        """vee(U Σ − Σ U^T) = J ω̇ + ω × J ω."""
        n: Vector = []
        for i in range(3):
            a, b = (i + 1) % 3, (i + 2) % 3
            # Σ_k U_bk Σ_ka − U_ak Σ_kb, with U_bb − U_aa = ω_b² − ω_a²
            total = S[i][a] * self.entry(b, i) - S[i][b] * self.entry(a, i)
            if not is_zero(S[a][b]):
                total = total + S[a][b] * (self.ww(b, b) - self.ww(a, a))
            if is_zero(S[a][a]) and is_zero(S[b][b]):
                pass
            elif is_zero(S[a][a] - S[b][b]):
                total = total + (S[a][a] + S[a][a]) * self.dw[i]
            elif is_zero(S[a][a] + S[b][b]):
                total = total + (S[a][a] - S[b][b]) * self.ww(a, b) + (S[a][a] + S[b][b]) * self.dw[i]
            else:
                total = total + S[a][a] * self.entry(b, a) - S[b][b] * self.entry(a, b)
            n.append(total)
        return n


class Motion(NamedTuple):
    """A motion with accelerations q̈ (nv), and what it is for each body, in the coordinates of its link.

    own: the wrench (6) that moves it alone. a: [its angular acceleration, the classical acceleration of its origin]
    (6), with its angular velocity w (3); or its spatial acceleration, without w.
    """

    qdd: Vector
    own: list[Vector]
    a: Sequence[Vector]
    w: Sequence[Vector] | None = None


def bodies(tree: Tree, qd: Vector, qdd: Vector, fx: list[Vector] | None = None, free: Collection[int] = ()) -> Motion:
    """A motion with the accelerations q̈.

    fx: external wrench [n, f] on each body, in its coordinates. free: degrees of freedom of which q̈ is chosen, where
    they move one component of [ω̇; V̇]: such that this is 0.
    """
    spins: list[Spin] = []
    accelerations: list[Vector] = []
    own: list[Vector] = []
    still = Spin([0.0] * 3, [0.0] * 3)
    model, qdd = tree.model, list(qdd)
    gravity = [-float(g) for g in model.gravity]

    for i, (link, parent) in enumerate(zip(tree.links, model.parent, strict=True)):
        link.begin()
        spin, A = (still, gravity) if parent < 0 else (spins[parent], accelerations[parent])
        rate, acceleration = of_joint(link, qd[model.v_slice(i)]), of_joint(link, qdd[model.v_slice(i)])
        w_J, v_J = rate[:3], rate[3:]
        w, dw = spin.w, spin.dw
        turned = False
        for step in link.steps:
            if isinstance(step, list):
                if turned:  # along the axis: as well by U of this body, for that leaves U z as it is
                    spin = Spin(plus(w, w_J), plus(plus(dw, acceleration[:3]), cross(w, w_J)))
                A = plus(A, spin.times(step))
                continue
            w, dw, A = step.to(w), step.to(dw), step.to(A)
            turned = turned or step is link.turn
            spin = Spin(w, dw)
        # the origin moves in the parent: 2 ω × v_J (Coriolis), and its own acceleration
        relative = plus(acceleration[3:], cross(w_J, v_J))
        A = plus(plus(A, cross(w, [x + x for x in v_J])), relative)
        a = plus(plus(dw, acceleration[:3]), cross(w, w_J)) + A
        for k, s in enumerate(link.S, start=model.v_slice(i).start):
            if k in free and (moved := only(s)) is not None:
                qdd[k], a[moved] = -a[moved], 0.0
        spins.append(Spin(plus(w, w_J), a[:3]))
        accelerations.append(a[3:])
        S, h, m = link.parameters()
        force = plus(spins[i].times(h), scaled(m, accelerations[i]))
        moment = plus(spins[i].moment(S), cross(h, accelerations[i]))
        own.append(moment + force)
        if fx is not None:
            own[i] = [x - y for x, y in zip(own[i], fx[i], strict=True)]
    a = [spin.dw + A for spin, A in zip(spins, accelerations, strict=True)]
    return Motion(qdd, own, a, [spin.w for spin in spins])


def wrenches(tree: Tree, own: list[Vector]) -> list[Vector]:
    """f (6 a body), for the wrench `own` that moves each body on its own: f_i = own_i + Σ_{j∈μ(i)} X_j^T f_j."""
    f = list(own)
    for i, link in reversed(list(enumerate(tree.links))):
        link.begin()
        if (parent := tree.model.parent[i]) >= 0:
            f[parent] = plus(f[parent], link.force(f[i]))
    return f


def torques(tree: Tree, f: list[Vector], qdd: Vector) -> Vector:
    """τ (nv) = S^T f + A q̈."""
    model = tree.model
    tau: Vector = [0.0] * model.nv
    for i, link in enumerate(tree.links):
        for k, column in enumerate(link.S, start=model.v_slice(i).start):
            tau[k] = dot(column, f[i]) + float(model.armature[k]) * qdd[k]
    return tau
