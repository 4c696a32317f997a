"""Forward dynamics by the articulated-body algorithm (RBDA Table 7.1, in body coordinates)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.se3 import cross_force
from sysdyn.reference.crba import composite_inertias, inertia_to_parent, no_inertia
from sysdyn.reference.generic import is_number, run, symmetric
from sysdyn.reference.ltdl import ldl_solve


def aba(model: Model, q: ArrayLike, qd: ArrayLike, tau: ArrayLike, fx: ArrayLike | None = None) -> np.ndarray:
    """Joint accelerations q̈ under the joint forces τ.

    Parameters
    ----------
    q, qd, tau : (…, nq), (…, nv), (…, nv) array
        State and joint forces; leading axes are batch axes. Arrays of Expr give Expr.
    fx : (…, nb, 6) array, N m and N, optional
        External wrench on each body, at its origin and in its coordinates.

    Returns
    -------
    (…, nv) array, rad/s² and m/s²

    Raises
    ------
    InvalidInput
        Also for coupled joints, which `forward_dynamics_crba` takes.
    SingularState
        Naming a joint that moves no inertia.

    Notes
    -----
    With the articulated inertia I^A_i and bias force p^A_i of body i, f_i = I^A_i a_i + p^A_i:

        D_i = S_i^T I^A_i S_i + A_i,    q̈_i = D_i⁻¹ (τ_i − S_i^T p^A_i − S_i^T I^A_i (X_i a_λ(i) + c_i))

    References
    ----------
    RBDA Table 7.1; the armature A_i is not in the book.
    """
    return articulated_bodies(model, q, qd, tau, fx).qdd


class ArticulatedBodies(NamedTuple):
    """Results of the articulated-body algorithm; units and frames as in `NewtonEuler`."""

    qdd: np.ndarray  # (…, nv) [rad/s², m/s²] joint accelerations
    a: np.ndarray  # (…, nb, 6) [rad/s², m/s²] body: proper spatial acceleration (gravity folded in)
    f: np.ndarray  # (…, nb, 6) [N m, N] body: wrench transmitted to the body across its joint, I^A_i a_i + p^A_i


def articulated_bodies(
    model: Model, q: ArrayLike, qd: ArrayLike, tau: ArrayLike, fx: ArrayLike | None = None
) -> ArticulatedBodies:
    """(q̈, a, f): as `aba`, with the acceleration and the wrench of every body. Raises as `aba`."""
    if model.couplings:
        raise InvalidInput(
            f"aba is for trees, and joints of {model.name!r} are coupled: {', '.join(map(repr, model.followers))}; use "
            "forward_dynamics_crba or compile(forward_dynamics(model)), or uncouple them by model.replace(closures=())"
        )
    return ArticulatedBodies(*run(recursion, model, {"q": q, "qd": qd, "tau": tau, "fx": fx}))


def recursion(model: Model, q, qd, tau, fx) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(q̈ (nv,), a (nb, 6), f (nb, 6)) at one state."""
    dtype = np.result_type(q, qd, tau)
    S = [joint.S.astype(dtype) for joint in model.joints]
    a0 = model.a0.astype(dtype)

    # Forward: velocities, rigid-body inertias and bias forces.
    X = joint_transforms(model, q)
    v, c = velocities(model, X, qd)
    IA = list(model.inertias.astype(dtype))
    pA = [cross_force(v[i], IA[i] @ v[i]) for i in range(model.nb)]  # v_i ×* I_i v_i
    if fx is not None:
        pA = [pA[i] - fx[i] for i in range(model.nb)]

    # Backward: articulated inertias and bias forces; W = D⁻¹ U^T, y = D⁻¹ u.
    W: dict[int, np.ndarray] = {}
    y: dict[int, np.ndarray] = {}
    scales = _pivot_scales(model, X)
    for i in reversed(range(model.nb)):
        part, parent = model.v_slice(i), model.parent[i]
        U = IA[i] @ S[i]
        D = S[i].T @ U + np.diag(model.armature[part])
        u = tau[part] - S[i].T @ pA[i]
        scale = None if scales is None else scales[i]
        solution = ldl_solve(D, np.column_stack([U.T, u]), partial(no_inertia, model, i), scale)
        W[i], y[i] = solution[:, :6], solution[:, 6]
        if parent >= 0:
            Ia = without_joint(IA[i], S[i], U, W[i])
            pa = pA[i] + Ia @ c[i] + W[i].T @ u  # p^A + I^a c + U D⁻¹ u
            IA[parent] = IA[parent] + inertia_to_parent(Ia, X[i])
            pA[parent] = pA[parent] + X[i].T @ pa

    # Forward: accelerations.
    a: list[np.ndarray] = []
    qdd = np.empty(model.nv, dtype=dtype)
    for i, parent in enumerate(model.parent):
        part = model.v_slice(i)
        a_free = X[i] @ (a0 if parent < 0 else a[parent]) + c[i]  # a' = X_i a_λ + c_i
        qdd[part] = y[i] - W[i] @ a_free  # D⁻¹ (u − U^T a')
        a.append(a_free + S[i] @ qdd[part])
    return qdd, np.stack(a), np.stack([I @ x + p for I, x, p in zip(IA, a, pA, strict=True)])


def _pivot_scales(model: Model, X: list[np.ndarray]) -> list[np.ndarray] | None:
    """Diagonal of S^T I^c S + A of each joint, the scale of its pivots; None for symbolic states."""
    if not all(is_number(x) for placement in X for x in placement.flat):
        return None
    inertias = zip(model.joints, composite_inertias(model, X), strict=True)
    return [
        np.diag(joint.S.T @ I @ joint.S) + model.armature[model.v_slice(i)] for i, (joint, I) in enumerate(inertias)
    ]


def without_joint(IA: np.ndarray, S: np.ndarray, U: np.ndarray, W: np.ndarray) -> np.ndarray:
    """I^a = I^A − U D⁻¹ U^T (6, 6) with W = D⁻¹ U^T.

    U D⁻¹ U^T is evaluated so that I^a S = 0 exactly if S is a coordinate axis.
    """
    along = np.any(S != 0.0, axis=1)
    return symmetric(6, IA.dtype, lambda r, s: IA[r, s] - (W[:, r] @ U[s] if along[r] else U[r] @ W[:, s]))
