"""Newton-Euler equations as rows of D and b: Nori eqs. (3), (5), (6).

    c(a_i)   −a_i + X_i a_λ(i) + S_i q̈_i + c_i = 0          (X_i a_0 instead of X_i a_λ(i) at a root)
    c(f_i)   −f_i + I_i a_i − fx_i + Σ_{j∈μ(i)} X_j^T f_j + ν_i = 0
    c(τ_i)   −τ_i + S_i^T f_i + A_i q̈_i = 0                  (A_i: armature, not in the paper)

If X_i a_λ(i) or X_j^T f_j is an unknown of its own, it takes the place of the product, and gives its factor:

    c(Xa_i)  −a_λ(i) + X_i⁻¹ Xa_i = 0
    c(Xf_j)  −f_j + X_j^{−T} Xf_j = 0

With the net force as a variable: c(fB_i): −fB_i + I_i a_i + ν_i = 0 and fB_i in place of I_i a_i + ν_i in c(f_i).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.inertia import first_moment
from sysdyn.model.kinematics import joint_placement, joint_transforms, velocities
from sysdyn.model.se3 import X_inverse, cross, cross_force
from sysdyn.program.graph import is_zero


@dataclass
class Rows:
    """Sparse rows of A d + b = 0 with the block (kind, body) and the name of each."""

    entries: list[dict[int, object]] = field(default_factory=list)
    b: list = field(default_factory=list)
    blocks: list[tuple[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, block: tuple[str, int], names: list[str], parts: list[tuple[range, np.ndarray]], b) -> None:
        """Add a block row; parts: (columns, matrix)."""
        for k, name in enumerate(names):
            row: dict[int, object] = {}
            for columns, matrix in parts:
                for column, x in zip(columns, matrix[k], strict=True):
                    if not is_zero(x):
                        row[column] = x
            self.entries.append(row)
            self.b.append(b[k])
            self.blocks.append(block)
            self.names.append(name)

    def extend(self, block: tuple[str, int], columns: range, matrix: np.ndarray) -> None:
        """Add one part to the block row of that name; matrix has a row for each of its rows."""
        for k, row in enumerate(r for r, b in enumerate(self.blocks) if b == block):
            self.entries[row] |= {c: x for c, x in zip(columns, matrix[k], strict=True) if not is_zero(x)}


def newton_euler(
    model: Model, layout: Layout, q: np.ndarray, qd: np.ndarray, begin: Callable[[], None] | None = None,
    classical: bool = False, wrenches: Mapping[int, np.ndarray] | None = None,
) -> tuple[Rows, list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """(rows, X, v) at q (nq,) and qd (nv,), arrays of floats or objects (Expr).

    `begin()` is called before each body's work. classical: with classical accelerations of the origins of bodies, that
    is a + [0; ω × v], instead of spatial ones. wrenches: {i: (6, 6)} from the frame of fx_i to the frame of c(f_i), if
    they differ.
    """
    mark = (lambda i: begin()) if begin else None
    X = joint_transforms(model, q, mark)
    v, c = velocities(model, X, qd, mark)
    rows = Rows()
    minus_one = np.array([[-1.0 if i == j else 0.0 for j in range(6)] for i in range(6)], dtype=object)
    a0 = model.a0.astype(object)
    for i, joint in enumerate(model.joints):
        if begin:
            begin()
        inertia = model.inertias[i].astype(object)
        S = joint.S.astype(object)
        parent = model.parent[i]
        if classical:
            c[i], nu = _classical_bias(model, i, q, qd, v, inertia)
        else:
            nu = cross_force(v[i], inertia @ v[i])
        a, f, tau, fx, qdd = (layout.columns(x, i) for x in ("a", "f", "tau", "fx", "qdd"))
        acceleration = [(a, minus_one), (qdd, S)]
        bias = c[i]
        if parent < 0:
            bias = bias + X[i] @ a0
        elif ("Xa", i) in layout.propagated:
            product = layout.columns("Xa", i)
            acceleration.append((product, -minus_one))
            parts = [(layout.columns("a", parent), minus_one), (product, X_inverse(X[i]))]
            rows.add(("Xa", i), _names(layout, "Xa", i), parts, [0.0] * 6)
        else:
            acceleration.append((layout.columns("a", parent), X[i]))
        rows.add(("a", i), _names(layout, "a", i), acceleration, bias)
        force = [(f, minus_one), (fx, -wrenches[i] if wrenches and i in wrenches else minus_one)]
        for j in model.children[i]:
            propagated = ("Xf", j) in layout.propagated
            force.append((layout.columns("Xf", j), -minus_one) if propagated else (layout.columns("f", j), X[j].T))
        if ("Xf", i) in layout.propagated:
            parts = [(f, minus_one), (layout.columns("Xf", i), X_inverse(X[i]).T)]
            rows.add(("Xf", i), _names(layout, "Xf", i), parts, [0.0] * 6)
        if layout.name == "net_force":
            net = layout.columns("fB", i)
            rows.add(("fB", i), _names(layout, "fB", i), [(net, minus_one), (a, inertia)], nu)
            rows.add(("f", i), _names(layout, "f", i), [*force, (net, -minus_one)], [0.0] * 6)
        else:
            rows.add(("f", i), _names(layout, "f", i), [*force, (a, inertia)], nu)
        n = joint.nv
        armature = np.diag(model.armature[model.v_slice(i)]).astype(object)
        torque = [(tau, minus_one[:n, :n]), (f, S.T), (qdd, armature)]
        rows.add(("tau", i), _names(layout, "tau", i), torque, [0.0] * n)
    return rows, X, v


def _classical_bias(
    model: Model, i: int, q: np.ndarray, qd: np.ndarray, v: list[np.ndarray], inertia: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """c_i and ν_i of classical accelerations, free of linear velocities but the joint's own.

    c = [ω_i × ω_J;  E (ω_λ × (ω_λ × r)) + 2 E ω_λ × v_J + ω_J × v_J],    ν = [ω × J ω;  ω × (ω × h)]
    """
    w, parent = v[i][:3], model.parent[i]
    nu = np.concatenate([cross(w, inertia[:3, :3] @ w), cross(w, cross(w, first_moment(inertia)))])
    v_J = model.joints[i].S.astype(object) @ qd[model.v_slice(i)]
    w_J, u_J = v_J[:3], v_J[3:]
    linear = cross(w_J, u_J)
    if parent >= 0:
        E, r = joint_placement(model, i, q)
        w_p = v[parent][:3]
        linear = linear + E @ cross(w_p, cross(w_p, r)) + cross(E @ (w_p + w_p), u_J)
    return np.concatenate([cross(w, w_J), linear]), nu


def _names(layout: Layout, quantity: str, body: int) -> list[str]:
    return ["c:" + name for name in layout.scalar_names(quantity, body)]
