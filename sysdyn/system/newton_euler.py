"""Rows of D and b that are the Newton-Euler equations: Nori eqs. (3), (5), (6).

    c(a_i)   −a_i + X_i a_λ(i) + S_i q̈_i + c_i = 0          (X_i a_0 instead of X_i a_λ(i) at a root)
    c(f_i)   −f_i + I_i a_i − fx_i + Σ_{j∈μ(i)} X_j^T f_j + ν_i = 0
    c(τ_i)   −τ_i + S_i^T f_i + A_i q̈_i = 0                  (A_i: armature, not in the paper)

With the net force as a variable: c(fB_i): −fB_i + I_i a_i + ν_i = 0 and fB_i in place of I_i a_i + ν_i in c(f_i).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sysdyn.expr import is_zero
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.spatial import cross_force
from sysdyn.system.variables import Layout


@dataclass
class Rows:
    """Sparse rows of A d + b = 0 with the block (kind, body) and the name of each."""

    entries: list[dict[int, object]] = field(default_factory=list)
    b: list = field(default_factory=list)
    blocks: list[tuple[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, block: tuple[str, int], names: list[str], parts: list[tuple[range, np.ndarray]], b) -> None:
        """One block row: parts are (columns, matrix)."""
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


def newton_euler(
    model: Model, layout: Layout, q: np.ndarray, qd: np.ndarray, begin: Callable[[], None] | None = None
) -> tuple[Rows, list[np.ndarray], list[np.ndarray]]:
    """(rows, X, v) at q (nq,) and qd (nv,), arrays of floats or objects (Expr).

    `begin()` is called before each body's work.
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
        nu = cross_force(v[i], inertia @ v[i])
        a, f, tau, fx, qdd = (layout.columns(x, i) for x in ("a", "f", "tau", "fx", "qdd"))
        acceleration = [(a, minus_one), (qdd, S)]
        bias = c[i]
        if parent < 0:
            bias = bias + X[i] @ a0
        else:
            acceleration.append((layout.columns("a", parent), X[i]))
        rows.add(("a", i), _names(layout, "a", i), acceleration, bias)
        force = [(f, minus_one), (fx, minus_one)]
        force += [(layout.columns("f", j), X[j].T) for j in model.children[i]]
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


def _names(layout: Layout, quantity: str, body: int) -> list[str]:
    return ["c:" + name for name in layout.scalar_names(quantity, body)]
