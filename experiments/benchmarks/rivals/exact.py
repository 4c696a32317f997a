"""Inverse and forward dynamics with 50 digits: the Newton-Euler recursion in decimal numbers, which no library shares.

The doubles of the model are taken as exact.
"""

from __future__ import annotations

from decimal import Decimal, getcontext

import numpy as np

import sysdyn as sd

# All arithmetic has so many digits: fifty remain.
getcontext().prec = 60


def sin(x: Decimal) -> Decimal:
    return _series(x, x, 1)


def cos(x: Decimal) -> Decimal:
    return _series(x, Decimal(1), 0)


def _series(x: Decimal, term: Decimal, k: int) -> Decimal:
    """term − term x²/((k + 1)(k + 2)) + …, to the last digit."""
    total, before = term, None
    while total != before:
        before, k = total, k + 2
        term = -term * x * x / (k * (k - 1))
        total += term
    return total


def inverse(model: sd.Model, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
    """τ (nv,) of one state of a robot on a fixed base with joints of one degree of freedom, RBDA Table 5.1."""
    return _rnea(model, _transforms(model, q), _exact(qd), _exact(qdd))


def forward(model: sd.Model, q: np.ndarray, qd: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """q̈ (nv,): H q̈ = τ − C with H and C by the recursion, RBDA ch. 6.1, and Gaussian elimination."""
    X, zero = _transforms(model, q), _exact(np.zeros(model.nv))
    bias = _rnea(model, X, _exact(qd), zero)
    still = _rnea(model, X, zero, zero)
    H = np.array([_rnea(model, X, zero, _exact(unit)) - still for unit in np.eye(model.nv)])
    b = _exact(tau) - bias
    for k in range(model.nv):
        for i in range(k + 1, model.nv):
            factor = H[i, k] / H[k, k]
            H[i, k:] -= factor * H[k, k:]
            b[i] -= factor * b[k]
    for k in reversed(range(model.nv)):
        b[k] = (b[k] - H[k, k + 1 :] @ b[k + 1 :]) / H[k, k]
    return b


def _exact(x: np.ndarray) -> np.ndarray:
    numbers = [y if isinstance(y, Decimal) else Decimal(float(y)) for y in np.ravel(x)]
    return np.array(numbers, dtype=object).reshape(np.shape(x))


def _transforms(model: sd.Model, q: np.ndarray) -> list[np.ndarray]:
    """X[i] of each body: E = c + (1 − c) s sᵀ − sin(q) s× and p = q l about and along the joint's S = [s; l]."""
    found = []
    for i in range(model.nb):
        (angle,), S = _exact(q[model.q_slice(i)]), _exact(model.joints[i].S[:, 0])
        axis, c = S[:3], cos(angle)
        E, X = _exact(np.eye(3)), _exact(np.zeros((6, 6)))
        if axis.any():
            E = c * E + (1 - c) * np.outer(axis, axis) - sin(angle) * _cross(axis)
        X[:3, :3] = X[3:, 3:] = E
        X[3:, :3] = -E @ _cross(angle * S[3:])
        found.append(X @ _exact(model.X_tree[i]))
    return found


def _rnea(model: sd.Model, X: list[np.ndarray], qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
    ground = _exact(np.zeros(6)), _exact(np.concatenate([np.zeros(3), -model.gravity]))
    v, a, f = [], [], []
    for i in range(model.nb):
        S, part, parent = _exact(model.joints[i].S), model.v_slice(i), model.parent[i]
        v_parent, a_parent = (v[parent], a[parent]) if parent >= 0 else ground
        across, inertia = S @ qd[part], _exact(model.inertias[i])
        v.append(X[i] @ v_parent + across)
        crm = _exact(np.zeros((6, 6)))
        crm[:3, :3] = crm[3:, 3:] = _cross(v[i][:3])
        crm[3:, :3] = _cross(v[i][3:])
        a.append(X[i] @ a_parent + S @ qdd[part] + crm @ across)
        f.append(inertia @ a[i] - crm.T @ (inertia @ v[i]))
    tau = _exact(np.zeros(model.nv))
    for i in reversed(range(model.nb)):
        tau[model.v_slice(i)] = _exact(model.joints[i].S).T @ f[i]
        if model.parent[i] >= 0:
            f[model.parent[i]] = f[model.parent[i]] + X[i].T @ f[i]
    return tau


def _cross(x: np.ndarray) -> np.ndarray:
    o = Decimal(0)
    return np.array([[o, -x[2], x[1]], [x[2], o, -x[0]], [-x[1], x[0], o]], dtype=object)
