"""Every unknown of the paper's system, by recursions over screws: spatial accelerations a and wrenches f.

    a_i = X_i a_λ(i) + S_i q̈_i + c_i,    f_i = I_i a_i + ν_i − fx_i + Σ_{j∈μ(i)} X_j^T f_j

Nori eqs. (3a), (3f). Frames are those of the bodies but for a turn of each joint's axis onto z.
"""

from __future__ import annotations

from sysdyn.recursions.forward_dynamics import Composite
from sysdyn.recursions.links import Tree, Vector, cross, of_joint, plus


def velocity_terms(tree: Tree, qd: Vector) -> tuple[list[Vector], list[Vector]]:
    """(c_i = v_i × S_i q̇_i, ν_i = v_i ×* I_i v_i) of each body."""
    model = tree.model
    v: list[Vector] = []
    c: list[Vector] = []
    nu: list[Vector] = []
    for i, (link, parent) in enumerate(zip(tree.links, model.parent, strict=True)):
        link.begin()
        own = of_joint(link, qd[model.v_slice(i)])
        carried = [0.0] * 6 if parent < 0 else link.motion(v[parent])
        v.append(plus(carried, own))
        w, u = v[i][:3], v[i][3:]
        c.append(cross(carried[:3], own[:3]) + plus(cross(w, own[3:]), cross(u, own[:3])))
        momentum = Composite(*link.parameters()).times(v[i])
        nu.append(plus(cross(w, momentum[:3]), cross(u, momentum[3:])) + cross(w, momentum[3:]))
    return c, nu


def accelerations(tree: Tree, c: list[Vector], qdd: Vector) -> list[Vector]:
    """a_i of each body, with gravity folded in."""
    model = tree.model
    a: list[Vector] = []
    base = [0.0] * 3 + [-float(g) for g in model.gravity]
    for i, (link, parent) in enumerate(zip(tree.links, model.parent, strict=True)):
        link.begin()
        carried = link.motion(base if parent < 0 else a[parent])
        a.append(plus(plus(carried, of_joint(link, qdd[model.v_slice(i)])), c[i]))
    return a


def own_wrenches(tree: Tree, a: list[Vector], nu: list[Vector], fx: list[Vector] | None) -> list[Vector]:
    """I_i a_i + ν_i − fx_i of each body."""
    f = [plus(Composite(*link.parameters()).times(a[i]), nu[i]) for i, link in enumerate(tree.links)]
    return f if fx is None else [[x - y for x, y in zip(*pair, strict=True)] for pair in zip(f, fx, strict=True)]
