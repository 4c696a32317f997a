"""Forward dynamics by the articulated-body algorithm (RBDA Table 7.1, in body coordinates)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.se3 import cross_force
from sysdyn.program.graph import is_constant
from sysdyn.reference.generic import is_number, run
from sysdyn.reference.ltdl import PIVOT_ROUNDING

SMALL = 1e-8  # Share of the largest inertia entry above which pivots are accepted without a closer look (chosen).


def aba(model: Model, q: ArrayLike, qd: ArrayLike, tau: ArrayLike, fx: ArrayLike | None = None) -> np.ndarray:
    """q̈ (…, nv): the accelerations under the joint forces τ.

    With the articulated inertia I^A_i and bias force p^A_i of body i, f_i = I^A_i a_i + p^A_i:

        D_i = S_i^T I^A_i S_i + A_i,    q̈_i = D_i⁻¹ (τ_i − S_i^T p^A_i − S_i^T I^A_i (X_i a_λ(i) + c_i))

    q (…, nq), qd (…, nv), tau (…, nv): the state and the joint forces; leading axes are batch axes.
    fx (…, nb, 6) [N m, N] body i: external wrench on body i, at its origin and in its coordinates; None: none.
    Arrays of Expr give Expr. Raises InvalidInput, also for coupled joints, which move bodies of several branches, and
    SingularState naming a joint that moves no inertia.

    RBDA Table 7.1. The armature A_i is not in the book; our W_i = D_i⁻¹ U_i^T is formed once and used three times.
    """
    (qdd,) = run(_accelerations, _uncoupled(model), {"q": q, "qd": qd, "tau": tau, "fx": fx})
    return qdd


class ArticulatedBodies(NamedTuple):
    """Results of the articulated-body algorithm; units and frames as in `NewtonEuler`."""

    qdd: np.ndarray  # (…, nv) [rad/s², m/s²] joint accelerations
    a: np.ndarray  # (…, nb, 6) [rad/s², m/s²] body: proper spatial acceleration (gravity folded in)
    f: np.ndarray  # (…, nb, 6) [N m, N] body: wrench transmitted to the body across its joint, I^A_i a_i + p^A_i


def articulated_bodies(
    model: Model, q: ArrayLike, qd: ArrayLike, tau: ArrayLike, fx: ArrayLike | None = None
) -> ArticulatedBodies:
    """(q̈, a, f): as `aba`, with the acceleration and the wrench of every body. Raises as `aba`. RBDA Table 7.1."""
    return ArticulatedBodies(*run(_unknowns, _uncoupled(model), {"q": q, "qd": qd, "tau": tau, "fx": fx}))


def _uncoupled(model: Model) -> Model:
    if model.couplings:
        raise InvalidInput(
            f"aba is for trees, and joints of {model.name!r} are coupled: {', '.join(map(repr, model.followers))}; use "
            "forward_dynamics_crba or compile(forward_dynamics(model)), or uncouple them by model.replace(closures=())"
        )
    return model


def _accelerations(model: Model, q, qd, tau, fx) -> tuple[np.ndarray]:
    return (recursion(model, q, qd, tau, fx)[0],)


def _unknowns(model: Model, q, qd, tau, fx) -> tuple[np.ndarray, ...]:
    qdd, a, IA, pA = recursion(model, q, qd, tau, fx)
    return qdd, np.stack(a), np.stack([I @ x + p for I, x, p in zip(IA, a, pA, strict=True)])


def recursion(model: Model, q, qd, tau, fx) -> tuple[np.ndarray, list, list, list]:
    """(q̈, a, I^A, p^A), of each body but q̈."""
    dtype = np.result_type(q, qd, tau)
    S = [joint.S.astype(dtype) for joint in model.joints]
    armature = model.armature.astype(dtype)
    a0 = model.a0.astype(dtype)

    # Forward: velocities, and each body on its own.
    X = joint_transforms(model, q)
    v, c = velocities(model, X, qd)
    IA = list(model.inertias.astype(dtype))
    pA = [cross_force(v[i], IA[i] @ v[i]) for i in range(model.nb)]  # v_i ×* I_i v_i
    if fx is not None:
        pA = [pA[i] - fx[i] for i in range(model.nb)]

    # Backward: articulated inertias and bias forces; `y` is D⁻¹ u.
    W: dict[int, np.ndarray] = {}
    y: dict[int, np.ndarray] = {}
    for i in reversed(range(model.nb)):
        part, parent = model.v_slice(i), model.parent[i]
        U = IA[i] @ S[i]
        D = S[i].T @ U
        for k in range(len(D)):
            D[k, k] = D[k, k] + armature[part][k]
        u = tau[part] - S[i].T @ pA[i]
        solution = _ldl_solve(D, np.column_stack([U.T, u]), partial(_require, model, X, i))
        W[i], y[i] = solution[:, :6], solution[:, 6]
        if parent >= 0:
            Ia = less_product(IA[i], U, W[i])  # I^A − U D⁻¹ U^T
            pa = pA[i] + Ia @ c[i] + W[i].T @ u  # p^A + I^a c + U D⁻¹ u
            IA[parent] = _plus_moved(IA[parent], X[i], Ia)  # I^A_λ + X^T I^a X
            pA[parent] = pA[parent] + X[i].T @ pa

    # Forward: accelerations.
    a: list[np.ndarray] = []
    qdd = np.empty(model.nv, dtype=dtype)
    for i, parent in enumerate(model.parent):
        part = model.v_slice(i)
        a_free = X[i] @ (a0 if parent < 0 else a[parent]) + c[i]  # a' = X_i a_λ + c_i
        qdd[part] = y[i] - W[i] @ a_free  # D⁻¹ (u − U^T a')
        a.append(a_free + S[i] @ qdd[part])
    return qdd, a, IA, pA


def less_product(I: np.ndarray, U: np.ndarray, W: np.ndarray) -> np.ndarray:
    """I − U W (6, 6) for symmetric U W = W^T U^T: along an axis of the joint W is 1, and rounding leaves nothing."""
    exact = [all(_is_zero_or_one(w) for w in column) for column in W.T]

    def entry(r: int, s: int):
        return I[r, s] - (W[:, r] @ U[s] if exact[r] else U[r] @ W[:, s])

    return symmetric(6, I.dtype, entry)


def _is_zero_or_one(w) -> bool:
    """True if x is 0 or 1 in every state."""
    return bool(np.all((w == 0.0) | (w == 1.0))) if is_number(w) else is_constant(w) and w in (0.0, 1.0)


def _plus_moved(I: np.ndarray, X: np.ndarray, J: np.ndarray) -> np.ndarray:
    """I + X^T J X (6, 6) for symmetric I and J."""
    Y = J @ X
    return symmetric(6, I.dtype, lambda r, s: I[r, s] + X[:, r] @ Y[:, s])


def symmetric(n: int, dtype: np.dtype, entry: Callable) -> np.ndarray:
    """The symmetric (n, n) matrix of entry(r, s), computed for r ≥ s and mirrored."""
    M = np.empty((n, n), dtype=dtype)
    for r in range(n):
        for s in range(r + 1):
            M[r, s] = M[s, r] = entry(r, s)
    return M


def _ldl_solve(D: np.ndarray, B: np.ndarray, require: Callable[[int, object], None]) -> np.ndarray:
    """D⁻¹ B by D = L diag(d) L^T, D (n, n) symmetric positive definite; each pivot d_k goes to require(k, d_k)."""
    n = len(D)
    L = np.zeros((n, n), dtype=D.dtype)
    d: list = []
    Y = np.empty_like(B)
    for k in range(n):
        scaled = [L[k, j] * d[j] for j in range(k)]
        d.append(_less(D[k, k], L[k, :k], scaled))
        require(k, d[k])
        for i in range(k + 1, n):
            L[i, k] = _less(D[i, k], L[i, :k], scaled) / d[k]
        Y[k] = B[k] - L[k, :k] @ Y[:k] if k else B[k]
    for k in reversed(range(n)):
        for column in range(B.shape[1]):
            Y[k, column] = _less(Y[k, column] / d[k], L[k + 1 :, k], Y[k + 1 :, column])
    return Y


def _less(x, left, right):
    """x − left · right."""
    for a, b in zip(left, right, strict=True):
        x = x - a * b
    return x


def _require(model: Model, X: list[np.ndarray], i: int, k: int, pivot) -> None:
    """Raise SingularState unless pivot k of D_i is above the rounding of its scale, given below.

    D_i is S^T I^A S + A, and I^A is what the moving joints of the subtree leave of its composite inertia I^c, so the
    scale is S^T I^c S + A = Σ_j s_j^T I_j s_j + A with s_j = X_j s_λ(j) over the subtree, s_i = S.
    """
    if not is_number(pivot) or np.all(np.abs(pivot) > SMALL * np.max(np.abs(model.inertias))):
        return
    s = {i: model.joints[i].S[:, k].astype(X[i].dtype)}
    scale = s[i] @ model.inertias[i] @ s[i] + float(model.armature[model.v_slice(i)][k])
    for j in range(i + 1, model.nb):
        if model.parent[j] in s and all(is_number(x) for x in X[j].flat):  # a symbolic run: the bodies welded to i
            s[j] = X[j] @ s[model.parent[j]]
            scale = scale + s[j] @ model.inertias[j] @ s[j]
    singular = np.abs(pivot) <= PIVOT_ROUNDING * np.abs(scale)
    if not np.any(singular):
        return
    states = tuple(int(state) for state in np.flatnonzero(singular)) if np.ndim(singular) else ()
    raise moves_no_inertia(model, i, k, float(np.min(np.abs(pivot))), states)


def moves_no_inertia(model: Model, i: int, k: int, pivot: float, states: tuple[int, ...]) -> SingularState:
    """The error for degree of freedom k of joint i with the pivot S^T I^A S (the least), in these states."""
    joint = model.joint_names[i]
    freedom = joint if model.joints[i].nv == 1 else f"{joint}[{k}]"
    return SingularState(
        f"joint {freedom!r} moves no inertia{f' in {len(states)} of the states given' if states else ''}: "
        f"S^T I^A S = {pivot:.3g}, so its acceleration is not determined. Give body {model.body_names[i]!r} or what it "
        "carries an inertia about this axis, or the joint an armature.",
        equation=f"tau[{freedom}]",
        unknown=f"qdd[{freedom}]",
        states=states,
    )
