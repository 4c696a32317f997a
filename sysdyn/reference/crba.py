"""The joint-space inertia matrix by the composite-rigid-body algorithm, and forward dynamics with it (RBDA ch. 6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import SingularState
from sysdyn.model import Model
from sysdyn.model.closures import coupling_bias, coupling_matrix
from sysdyn.model.kinematics import joint_transforms
from sysdyn.reference.generic import run, run_arrays, symmetric
from sysdyn.reference.ltdl import expanded_parent, ltdl
from sysdyn.reference.rnea import rnea


def crba(model: Model, q: ArrayLike) -> np.ndarray:
    """Joint-space inertia matrix H, of H q̈ + C = τ and of the kinetic energy ½ q̇^T H q̇.

    Parameters
    ----------
    q : (…, nq) array
        Joint positions; leading axes are batch axes. Arrays of Expr give Expr.

    Returns
    -------
    (…, nv, nv) array
        H_ij = 0.0 if neither of i and j is an ancestor of the other (see `sparsity`).

    Raises
    ------
    InvalidInput

    Notes
    -----
    With the composite inertia I^c_i of the bodies that joint i carries:

        I^c_i = I_i + Σ_{j∈μ(i)} X_j^T I^c_j X_j
        H_ii = S_i^T I^c_i S_i + A_i,    H_ij = F^T S_j for each ancestor j of i, F = I^c_i S_i in coordinates of j

    References
    ----------
    RBDA Table 6.2; the armature A_i is not in the book.
    """
    (H,) = run(recursion, model, {"q": q})
    return H


def recursion(model: Model, q) -> tuple[np.ndarray]:
    """(H (nv, nv),) at one state."""
    S = [joint.S.astype(q.dtype) for joint in model.joints]
    X = joint_transforms(model, q)
    H = np.full((model.nv, model.nv), 0.0, dtype=q.dtype)
    for i, Ic in enumerate(composite_inertias(model, X)):
        part, j = model.v_slice(i), i
        F = Ic @ S[i]
        inertia = symmetric(model.joints[i].nv, q.dtype, lambda r, s, F=F, S=S[i]: S[:, r] @ F[:, s])
        H[part, part] = inertia + np.diag(model.armature[part])
        while model.parent[j] >= 0:
            F = X[j].T @ F
            j = model.parent[j]
            H[part, model.v_slice(j)] = F.T @ S[j]
            H[model.v_slice(j), part] = H[part, model.v_slice(j)].T
    return (H,)


def composite_inertias(model: Model, X: list[np.ndarray]) -> list[np.ndarray]:
    """Composite inertias I^c_i = I_i + Σ_{j∈μ(i)} X_j^T I^c_j X_j (6, 6); X (nb) of (6, 6)."""
    dtype = np.result_type(*X) if X else np.dtype(float)
    Ic = list(model.inertias.astype(dtype))
    for i in reversed(range(model.nb)):
        if model.parent[i] >= 0:
            Ic[model.parent[i]] = Ic[model.parent[i]] + inertia_to_parent(Ic[i], X[i])
    return Ic


def inertia_to_parent(I: np.ndarray, X: np.ndarray) -> np.ndarray:
    """X^T I X (6, 6): a symmetric inertia from child to parent coordinates."""
    Y = I @ X
    return symmetric(6, Y.dtype, lambda r, s: X[:, r] @ Y[:, s])


def forward_dynamics_crba(
    model: Model, q: ArrayLike, qd: ArrayLike, tau: ArrayLike, fx: ArrayLike | None = None
) -> np.ndarray:
    """Joint accelerations q̈ under the joint forces τ, by H q̈ = τ − C and H = L^T D L.

    Parameters
    ----------
    q, qd, tau : (…, nq), (…, nv), (…, nv) array
        State and joint forces; leading axes are batch axes. Arrays of Expr give Expr. q and q̇ should satisfy the
        couplings, see `Model.imposed`.
    fx : (…, nb, 6) array, N m and N, optional
        External wrench on each body, at its origin and in its coordinates.

    Returns
    -------
    (…, nv) array, rad/s² and m/s²

    Raises
    ------
    InvalidInput
    SingularState
        Naming a joint that moves no inertia.

    Notes
    -----
    C = ID(q, q̇, 0, fx) by `rnea`, H by `crba`, L and D by `ltdl`. The cost is O(nb d²) for a tree of depth d, that of
    `aba` O(nb). Coupled joints satisfy q̈ = G q̈_r + γ with (G^T H G) q̈_r = G^T (τ − C − H γ), `Model.coupling_matrix`;
    loops are ignored.

    References
    ----------
    RBDA section 6.1; FDcrb of spatial_v2.
    """
    nv = model.nv
    C = rnea(model, q, qd, np.zeros(nv), fx)
    (b,) = run_arrays(lambda tau, C: (tau - C,), {"tau": (tau, (nv,)), "C(q, qd, fx)": (C, (nv,))})
    H, G, parent, independent = crba(model, q), None, expanded_parent(model), list(range(nv))
    if model.couplings:
        G, gamma = run(_coupling, model, {"q": q, "qd": qd})
        n = G.shape[-1]
        arguments = {"G": (G, (nv, n)), "H(q)": (H, (nv, nv)), "tau": (b, (nv,)), "gamma": (gamma, (nv,))}
        H, b = run_arrays(lambda G, H, b, gamma: (G.T @ H @ G, G.T @ (b - H @ gamma)), arguments)
        parent, driven = tuple(range(-1, n - 1)), {joint.v for joint in model.couplings}
        independent = [k for k in independent if k not in driven]

    def on_failure(row: int, pivot: float, states: tuple[int, ...]) -> SingularState:
        k = independent[row]
        i = next(i for i in range(model.nb) if k < model.v_slice(i).stop)
        return no_inertia(model, i, k - model.v_slice(i).start, pivot, states)

    qdd = ltdl(H, parent, on_failure).solve(b)
    if G is not None:
        arguments = {"G": (G, (nv, n)), "qdd": (qdd, (n,)), "gamma": (gamma, (nv,))}
        (qdd,) = run_arrays(lambda G, x, gamma: (G @ x + gamma,), arguments)
    return qdd


def _coupling(model: Model, q, qd) -> tuple[np.ndarray, np.ndarray]:
    """(G, γ) with q̈ = G q̈_independent + γ."""
    return coupling_matrix(model.couplings, model.nv, q), coupling_bias(model.couplings, q, qd)


def no_inertia(model: Model, i: int, k: int, pivot: float, states: tuple[int, ...]) -> SingularState:
    """SingularState for a zero pivot S^T I^A S of degree of freedom k of joint i, in `states` of a batch."""
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
