"""Newton-Euler equations as rows of D and b: Nori eqs. (3), (5), (6).

    c(a_i)   −a_i + X_i a_λ(i) + S_i q̈_i + c_i = 0          (X_i a_0 instead of X_i a_λ(i) at a root)
    c(f_i)   −f_i + I_i a_i − fx_i + Σ_{j∈μ(i)} X_j^T f_j + ν_i = 0
    c(τ_i)   −τ_i + S_i^T f_i + A_i q̈_i = 0                  (A_i: armature, not in the paper)

A propagated unknown Xa_i or Xf_j replaces the product X_i a_λ(i) or X_j^T f_j. A further equation gives the factor:

    c(Xa_i)  −a_λ(i) + X_i⁻¹ Xa_i = 0
    c(Xf_j)  −f_j + X_j^{−T} Xf_j = 0

If the net force fB is an unknown, c(fB_i) is −fB_i + I_i a_i + ν_i = 0, and fB_i replaces I_i a_i + ν_i in c(f_i).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sysdyn.equations.assembly import Block
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.inertia import first_moment
from sysdyn.model.kinematics import joint_placement, joint_transforms, velocities
from sysdyn.model.se3 import X_inverse, cross, cross_force
from sysdyn.program.graph import is_zero


@dataclass
class EquationRows:
    """Sparse rows of A d + b = 0 with the block (kind, body) and the name of each."""

    entries: list[dict[int, object]] = field(default_factory=list)
    b: list = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, block: Block, names: Sequence[str], parts: Sequence[tuple[range, np.ndarray]], b) -> None:
        """Add a block row; parts: (columns, matrix)."""
        for k, name in enumerate(names):
            row = {c: x for columns, A in parts for c, x in zip(columns, A[k], strict=True) if not is_zero(x)}
            self.entries.append(row)
            self.b.append(b[k])
            self.blocks.append(block)
            self.names.append(name)

    def extend(self, block: Block, columns: range, matrix: np.ndarray) -> None:
        """Add the entries of a matrix to all rows of a block."""
        for k, row in enumerate(r for r, b in enumerate(self.blocks) if b == block):
            self.entries[row] |= {c: x for c, x in zip(columns, matrix[k], strict=True) if not is_zero(x)}


def newton_euler(
    model: Model, layout: Layout, q: np.ndarray, qd: np.ndarray, begin: Callable[[int], None] | None = None,
    classical: bool = False, fx_frames: Mapping[int, np.ndarray] | None = None,
) -> tuple[EquationRows, list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """(rows, X, v) at q (nq,) and qd (nv,), arrays of floats or objects (Expr).

    rows: the equations of motion. X, v: joint transforms (6, 6) and velocities (6,) of the bodies.

    begin(i) is called before the expressions of body i are written. classical: a is the classical acceleration of the
    origins of bodies, a + [0; ω × v], instead of the spatial one. fx_frames: {i: (6, 6)} from the frame of fx_i to that
    of c(f_i), if they differ.
    """
    X = joint_transforms(model, q, begin)
    v, c = velocities(model, X, qd, begin)
    rows, zero = EquationRows(), [0.0] * 6
    minus = np.array([[-1.0 if i == j else 0.0 for j in range(6)] for i in range(6)], dtype=object)

    def add(quantity: str, i: int, parts: list[tuple[str, int, np.ndarray]], b) -> None:
        names = [f"c:{name}" for name in layout.scalar_names(quantity, i)]
        rows.add((quantity, i), names, [(layout.columns(x, k), A) for x, k, A in parts], b)

    for i, joint in enumerate(model.joints):
        if begin:
            begin(i)
        inertia, S, parent = model.inertias[i].astype(object), joint.S.astype(object), model.parent[i]
        if classical:
            c[i], nu = _classical_bias(model, i, q, qd, v, inertia)
        else:
            nu = cross_force(v[i], inertia @ v[i])
        acceleration, bias = [("a", i, minus), ("qdd", i, S)], c[i]
        if parent < 0:
            bias = bias + X[i] @ model.a0.astype(object)
        elif ("Xa", i) in layout.propagated:
            acceleration.append(("Xa", i, -minus))
            add("Xa", i, [("a", parent, minus), ("Xa", i, X_inverse(X[i]))], zero)
        else:
            acceleration.append(("a", parent, X[i]))
        add("a", i, acceleration, bias)
        force = [("f", i, minus), ("fx", i, -fx_frames[i] if fx_frames and i in fx_frames else minus)]
        for j in model.children[i]:
            force.append(("Xf", j, -minus) if ("Xf", j) in layout.propagated else ("f", j, X[j].T))
        if ("Xf", i) in layout.propagated:
            add("Xf", i, [("f", i, minus), ("Xf", i, X_inverse(X[i]).T)], zero)
        if layout.name == "net_force":
            add("fB", i, [("fB", i, minus), ("a", i, inertia)], nu)
            add("f", i, [*force, ("fB", i, -minus)], zero)
        else:
            add("f", i, [*force, ("a", i, inertia)], nu)
        n = joint.nv
        armature = np.diag(model.armature[model.v_slice(i)]).astype(object)
        add("tau", i, [("tau", i, minus[:n, :n]), ("f", i, S.T), ("qdd", i, armature)], [0.0] * n)
    return rows, X, v


def _classical_bias(
    model: Model, i: int, q: np.ndarray, qd: np.ndarray, v: list[np.ndarray], inertia: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Velocity terms c_i of equation c(a_i) and ν_i of c(f_i), each (6,), if a is the classical acceleration.

    They depend on angular velocities ω and on no other linear velocity than that of the joint, v_J. v: body velocities.

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
