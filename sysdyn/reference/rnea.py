"""Inverse dynamics by the recursive Newton-Euler algorithm (RBDA Table 5.1, in body coordinates)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.se3 import cross_force
from sysdyn.reference.generic import run


class NewtonEuler(NamedTuple):
    """Results of the recursive Newton-Euler algorithm: joint forces and intermediate quantities."""

    tau: np.ndarray  # (…, nv) [N m, N] joint forces
    a: np.ndarray  # (…, nb, 6) [rad/s², m/s²] body: proper spatial acceleration (gravity folded in)
    f: np.ndarray  # (…, nb, 6) [N m, N] body: wrench transmitted to the body across its joint
    v: np.ndarray  # (…, nb, 6) [rad/s, m/s] body: spatial velocity

    def quantities(self, qdd: ArrayLike, fx: ArrayLike) -> dict[str, np.ndarray]:
        """Values of tau, qdd, fx, a and f by name; qdd and fx are the arguments of the recursion."""
        return {"tau": self.tau, "qdd": np.asarray(qdd), "fx": np.asarray(fx), "a": self.a, "f": self.f}


def rnea(model: Model, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike, fx: ArrayLike | None = None) -> np.ndarray:
    """Joint forces tau (…, nv) for the accelerations q̈ (inverse dynamics).

    q (…, nq), qd (…, nv), qdd (…, nv): the state and its acceleration; leading axes are batch axes.
    fx (…, nb, 6) [N m, N] body i: external wrench on body i, at its origin and in its coordinates; None: none.
    Arrays of Expr give Expr. Raises InvalidInput.

    RBDA Table 5.1.
    """
    return newton_euler(model, q, qd, qdd, fx).tau


def newton_euler(model: Model, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike, fx: ArrayLike | None = None) -> NewtonEuler:
    """(tau, a, f, v): as `rnea`, plus the acceleration, transmitted force and velocity of every body.

        a_i = X_i a_λ(i) + S_i q̈_i + c_i
        f_i = I_i a_i + ν_i − fx_i + Σ_{j∈μ(i)} X_j^T f_j
        τ_i = S_i^T f_i + A_i q̈_i

    with a_0 = −gravity, c_i = v_i × S_i q̇_i and ν_i = v_i ×* I_i v_i. The armature A_i is not in the book.

    RBDA Table 5.1; Nori eq. (2), (3a), (3f), (3τ).
    """
    return NewtonEuler(*run(recursion, model, {"q": q, "qd": qd, "qdd": qdd, "fx": fx}))


def recursion(model: Model, q, qd, qdd, fx) -> tuple[np.ndarray, ...]:
    dtype = np.result_type(q, qd, qdd)
    S = [joint.S.astype(dtype) for joint in model.joints]
    I = model.inertias.astype(dtype)
    a0 = model.a0.astype(dtype)

    # Forward: velocities, accelerations and net forces.
    X = joint_transforms(model, q)
    v, c = velocities(model, X, qd)  # Nori (2): v_i = X_i v_λ + S_i q̇_i;  c_i = v_i × S_i q̇_i
    a: list[np.ndarray] = []
    f: list[np.ndarray] = []
    for i, parent in enumerate(model.parent):
        a_parent = a0 if parent < 0 else a[parent]
        a.append(X[i] @ a_parent + S[i] @ qdd[model.v_slice(i)] + c[i])  # Nori (3a)
        f.append(I[i] @ a[i] + cross_force(v[i], I[i] @ v[i]))  # I_i a_i + v_i ×* I_i v_i
        if fx is not None:
            f[i] = f[i] - fx[i]

    # Backward: accumulate forces toward the base.
    tau = np.empty(model.nv, dtype=dtype)
    for i in reversed(range(model.nb)):
        part = model.v_slice(i)
        tau[part] = S[i].T @ f[i] + model.armature[part].astype(dtype) * qdd[part]  # Nori (3τ)
        if model.parent[i] >= 0:
            f[model.parent[i]] = f[model.parent[i]] + X[i].T @ f[i]  # Nori (3f)
    return tau, _rows(a), _rows(f), _rows(v)


def _rows(vectors: list[np.ndarray]) -> np.ndarray:
    return np.stack(vectors) if vectors else np.empty((0, 6))
