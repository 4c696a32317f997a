"""Inverse of the joint-space inertia matrix: accelerations of a tree due to generalised forces and constraints.

H x = f + Jᵀ μ and J x = κ, with the inertia matrix H of a tree and the constraint Jacobian J. H = Lᵀ D L has no
fill-in, nor has W = L⁻¹ (RBDA section 6.5). Without constraints x = W z, where z = D⁻¹ Wᵀ f. With constraints,

    x = W (z + D⁻¹ Qᵀ μ)        μ = A⁻¹ (κ − Q z)        Q = J W, A = J H⁻¹ Jᵀ = Q D⁻¹ Qᵀ

Most forces act within one limb and on its path to the base. All other joints then depend on few scalars: on z of the
joints on the path or, if these are six or more, on the wrench p = w − Σ U_k z_k on the body at the root of the limb. w
is the wrench that exerts the forces, and U = L⁻ᵀ I S are articulated momenta of the limb. Then x = Y p + W z, with z of
the limb only and the response Y to unit wrenches on the body at its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.model.constants import clean
from sysdyn.program.graph import Expr, is_zero
from sysdyn.reference.generic import mark_block

# Components of a wrench.
SPACE = 6

Ancestors = Sequence[Sequence[int]]  # Ancestors of each row, the nearest first.


class Load(NamedTuple):
    """A right-hand side f (n), and κ (m), None for zero.

    joint: a degree of freedom; f acts only on its subtree and its path to the base. None: f may act on all joints.
    wrench (6): the forces on the path are S·wrench; None if no wrench exerts them.
    """

    forces: np.ndarray
    joint: int | None = None
    wrench: np.ndarray | None = None
    kappa: np.ndarray | None = None


class LTDLFactors(NamedTuple):
    """H = Lᵀ D L: L, 1 / D, W = L⁻¹, and the pivots D."""

    L: np.ndarray
    reciprocals: np.ndarray
    W: np.ndarray
    pivots: list


def ltdl(H: np.ndarray, paths: Ancestors) -> LTDLFactors:
    """Factors of a symmetric matrix (n, n) with the zeros of a tree (RBDA Table 6.3)."""
    n = len(H)
    L, W, reciprocals, pivots = H.copy(), np.full((n, n), 0.0, dtype=object), np.empty(n, dtype=object), [None] * n
    for k in reversed(range(n)):
        pivots[k], reciprocals[k] = L[k, k], 1.0 / L[k, k]
        for i in paths[k]:
            multiplier = L[k, i] * reciprocals[k]
            for j in (i, *paths[i]):
                L[i, j] = L[i, j] - multiplier * L[k, j]
            L[k, i] = multiplier
    for k, path in enumerate(paths):
        W[k, k] = 1.0
        for depth, j in enumerate(path):
            W[k, j] = -sum((L[k, i] * W[i, j] for i in path[:depth]), L[k, j])
    L, reciprocals, W = mark_block(L, reciprocals, W)
    return LTDLFactors(L, reciprocals, W, pivots)


class InverseInertia:
    """Solutions x (n) and μ (m) of a tree with inertia matrix H (n, n) and constraints J (m, n).

    paths: ancestors of each degree of freedom, nearest first. S (n, 6): motion subspace of each degree of freedom.
    IS (n, 6): momentum of its subtree at unit velocity. hinges (n): True for one-degree-of-freedom joints without
    armature.
    """

    def __init__(
        self, H: np.ndarray, J: np.ndarray, paths: Ancestors, S: np.ndarray, IS: np.ndarray, hinges: Sequence[bool]
    ):
        self.n, self.m, self._J, self._paths, self._S, self._IS = len(H), len(J), J, paths, S, IS
        self._hinges = hinges
        self._L, self._reciprocals, self._W, self.pivots = ltdl(H, paths)
        branches = [sum(path[:1] == (k,) for path in map(tuple, paths)) for k in range(self.n)]
        self._limb_of: list[int] = []  # first degree of freedom of each one's limb, after a branch or at the base
        self._limbs: dict[int, list[int]] = {}
        for k, path in enumerate(paths):
            self._limb_of.append(self._limb_of[path[0]] if path and branches[path[0]] == 1 else k)
            self._limbs.setdefault(self._limb_of[k], []).append(k)
        if self.m:
            self._Q = J @ self._W
            self._QD = self._Q * self._reciprocals
            factors = ltdl(self._QD @ self._Q.T, [range(e)[::-1] for e in range(self.m)])
            self.pivots = [*self.pivots, *factors.pivots]
            self._A_inverse = factors.W * factors.reciprocals @ factors.W.T
            self._pull = self._QD.T @ self._A_inverse

    def solve(self, loads: Sequence[Load]) -> np.ndarray:
        """(n + m, loads) x and μ of each load."""
        result = np.empty((self.n + self.m, len(loads)), dtype=object)
        groups: dict[int | None, list[int]] = {}
        for c, load in enumerate(loads):
            groups.setdefault(self._limb(load), []).append(c)
        for limb, columns in groups.items():
            some = [loads[c] for c in columns]
            result[:, columns] = self._solve_all(some) if limb is None else self._solve_limb(limb, some)
        return result

    @cached_property
    def response(self) -> np.ndarray:
        """(n + m, n) responses x and μ to unit forces; x is exactly symmetric."""
        left = self._W * self._reciprocals
        if self.m:
            left = left - (self._W @ self._pull) @ self._QD
        x = np.empty((self.n, self.n), dtype=object)
        limbs = [*self._limbs.values()]
        for number, limb in enumerate(limbs):
            for other in limbs[:number]:
                for i in limb:
                    W, row = mark_block(self._W[other], left[i])
                    x[i, other] = x[other, i] = W @ row
            W, rows = mark_block(self._W[limb], left[limb])
            for place, i in enumerate(limb):
                x[i, limb[: place + 1]] = x[limb[: place + 1], i] = W[: place + 1] @ rows[place]
        return np.concatenate([x, -(self._W @ self._pull).T]) if self.m else x

    def _limb(self, load: Load) -> int | None:
        """The limb of a load if the limb method is applicable; None for the general method."""
        if load.joint is None or load.kappa is not None:
            return None
        limb = self._limb_of[load.joint]
        free = not self.m or self._is_deep(limb) and all(map(is_zero, self._J[:, self._beyond(limb)].flat))
        return limb if free and not (self._is_deep(limb) and load.wrench is None) else None

    def _is_deep(self, limb: int) -> bool:
        return len(self._paths[limb]) >= SPACE

    def _beyond(self, k: int) -> list[int]:
        """k and the degrees of freedom of its subtree."""
        return [i for i, path in enumerate(self._paths) if i == k or k in path]

    def _solve_all(self, loads: Sequence[Load]) -> np.ndarray:
        result, every = np.empty((self.n + self.m, len(loads)), dtype=object), range(self.n)
        for c, load in enumerate(loads):
            (forces,) = mark_block(load.forces)
            z = self._scaled(forces, every)
            if self.m:
                gap = (0.0 if load.kappa is None else load.kappa) - self._Q @ z
                z = z + self._pull @ gap
                result[self.n :, c] = self._A_inverse @ gap
            result[: self.n, c] = self._spread(z, every)
        return result

    def _solve_limb(self, limb: int, loads: Sequence[Load]) -> np.ndarray:
        beyond, path, deep = self._beyond(limb), [*self._paths[limb]], self._is_deep(limb)
        result = np.full((self.n + self.m, len(loads)), 0.0, dtype=object)
        response = self._response_to_wrench(limb) if deep else self._W[:, path]
        P = np.empty((response.shape[1], len(loads)), dtype=object)
        for c, load in enumerate(loads):
            (forces,) = mark_block(load.forces)
            z = self._scaled(forces, beyond if deep else [*path[::-1], *beyond])
            result[beyond, c] = self._spread(z, beyond)
            P[:, c] = load.wrench - z[beyond] @ self._U[beyond] if deep else z[path]
        for i in range(len(response)):
            x, row, p = mark_block(result[i], response[i], P)
            result[i] = x + row @ p
        return result

    def _scaled(self, forces: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """z = D⁻¹ Wᵀ f (n), restricted to `rows`; zero in other rows."""
        z, inside = np.full(self.n, 0.0, dtype=object), {*rows}
        z[rows] = forces[rows]
        for k in reversed(rows):
            if not is_zero(z[k]):
                for j in inside.intersection(self._paths[k]):
                    z[j] = z[j] - self._L[k, j] * z[k]
                z[k] = z[k] * self._reciprocals[k]
        return z

    def _spread(self, z: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """W z (rows), restricted to `rows` of W and z."""
        inside = {*rows}
        columns = [[j for j in (i, *self._paths[i]) if j in inside] for i in rows]
        return np.array([self._W[i, js] @ z[js] for i, js in zip(rows, columns, strict=True)], dtype=object)

    @cached_property
    def _U(self) -> np.ndarray:
        """(n, 6) articulated momenta L⁻ᵀ I S."""
        U = self._IS.copy()
        for k in reversed(range(self.n)):
            for j in self._paths[k]:
                U[j] = U[j] - self._L[k, j] * U[k]
        return mark_block(U)[0]

    def _response_to_wrench(self, limb: int) -> np.ndarray:
        """(n + m, 6) responses x and μ to unit wrenches that a limb exerts on its supporting body.

        If the first joint is a hinge whose axis s is fixed in that body, it transmits no moment about s: s·p = 0
        eliminates one component of p.
        """
        path, s = [*self._paths[limb]], self._S[limb]
        Y = self.response[:, path] @ self._S[path]
        if self._hinges[limb] and not any(isinstance(x, Expr) for x in s):
            component = np.argmax(np.abs(s.astype(float)))
            Y = Y - np.outer(Y[:, component], clean((s / s[component]).astype(float)))
        return Y
