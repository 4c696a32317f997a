"""Constraint rows, propagated like forces from the constrained bodies to the base.

The rows Σ C_i Δa_i + Σ c_k Δq̈_k = r are written for corrections Δa, Δq̈ to a reference motion. A degree of freedom with
axis s, U = I s and D = s^T U (RBDA Table 7.1) changes row e by κ_e = C_e s. Its elimination updates the rows by

    C_e ← C_e − κ_e U^T / D,    r_e ← r_e − κ_e u / D,    Ω ← Ω + κ κ^T / D

At the base Ω w = r gives the multipliers w, with Ω = J H⁻¹ J^T. This is PV-OSIM of Sathya and Carpentier, Constrained
Articulated Body Dynamics Algorithms (2024).

Early elimination, as in that paper but with constant pivots only: if κ_e is constant and not small, row e eliminates
the degree of freedom and has no row in Ω. With K = C_e / κ_e and t = r_e / κ_e

    q̈ = t − K a,    κ_e w_e = U a + D q̈ − u,    I ← P^T I P with P = 1 − s K,    p ← p + K u + (U − D K) t
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sysdyn.model.se3 import translation
from sysdyn.program.graph import Expr, constant_value, is_zero
from sysdyn.recursions.transforms import (
    AxisRotation,
    LinkTree,
    Scalar,
    Vector,
    add,
    dot,
    force_to_parent,
    scale,
    subtract,
)

# Smallest pivot of early elimination relative to the largest coefficient of its row: chosen, smaller ones lose digits.
PIVOT_SHARE = 0.1


@dataclass(frozen=True)
class LinkRows:
    """Constraint rows Σ C_i Δa_i + Σ c_k Δq̈_k = r at the links of a tree.

    bodies: {body: {row: C_i (6)}}. freedoms: {degree of freedom k: {row: c_k}}. targets: r of each row. combinations:
    T (m, m) of each constraint; its rows are premultiplied by T.
    """

    bodies: dict[int, dict[int, Vector]] = field(default_factory=dict)
    freedoms: dict[int, dict[int, Scalar]] = field(default_factory=dict)
    targets: list[Scalar] = field(default_factory=list)
    combinations: list[np.ndarray] = field(default_factory=list)

    def constraint_wrenches(self, w: Vector) -> Vector:
        """Wrench components of all constraints from the multipliers of the rows: T^T w."""
        components, start = [], 0
        for T in self.combinations:
            components += [dot(column, w[start : start + len(T)]) for column in T.T.tolist()]
            start += len(T)
        return components


NO_ROWS = LinkRows()


@dataclass(frozen=True)
class RowPivot:
    """Constraint row that eliminates a degree of freedom: e, κ_e, K, t, and {f: κ_f / κ_e} of the other rows f."""

    row: int
    coefficient: float
    K: Vector
    t: Scalar
    others: dict[int, Scalar]


class RowPropagator:
    """Propagates constraint rows from the tips to the base during a backward pass, and accumulates Ω and r.

    omega: upper triangle of Ω, {(row, column): entry}. residuals: r (m). early: if True, rows may eliminate a degree of
    freedom by early elimination, see the docstring of the module.
    """

    def __init__(self, tree: LinkTree, rows: LinkRows, early: bool = False):
        self._tree, self._freedoms = tree, rows.freedoms
        self._rows = [dict(rows.bodies.get(i, {})) for i in range(tree.model.nb)]
        self._rotated: list[list[tuple[int, int, AxisRotation]]] = [[] for _ in self._rows]
        self.omega: dict[tuple[int, int], Scalar] = {}
        self.residuals = list(rows.targets)
        # rows of a single body or degree of freedom, without an entry of Ω so far
        places = Counter(e for group in (rows.bodies, rows.freedoms) for block in group.values() for e in block)
        self._single = {e for e, count in places.items() if count == 1 and early}
        # lever arm [m] that converts linear to angular coefficients
        self._reach = max((float(np.abs(translation(X)).max()) for X in tree.model.X_tree), default=0.0)

    def coefficients(self, i: int, k: int, s: Vector) -> dict[int, Scalar]:
        """Coefficients κ_e = C_e s + c_k of q̈_k in all rows: {row e: κ_e} without zeros; s (6): axis of k on body i."""
        direct, rows = self._freedoms.get(k, {}), self._rows[i]
        products = {e: direct.get(e, 0.0) + dot(s, row) for e, row in rows.items()}
        products |= {e: x for e, x in direct.items() if e not in rows}
        return {e: x for e, x in products.items() if not is_zero(x)}

    def pivot_row(self, i: int, coefficients: dict[int, Scalar]) -> RowPivot | None:
        """Early elimination of a one-freedom joint by the row with the largest constant κ; None if κ is too small."""
        rows = self._rows[i]
        constant = {
            e: abs(x) for e, x in coefficients.items()
            if e in self._single and isinstance(x, float) and abs(x) >= PIVOT_SHARE * self._size(rows.get(e, [0.0] * 6))
        }  # fmt: skip
        if not constant:
            return None
        e = max(constant, key=constant.__getitem__)
        pivot, row = constant_value(coefficients[e]), rows.pop(e, [0.0] * 6)
        others = {f: x * (1.0 / pivot) for f, x in coefficients.items() if f != e}
        for f, x in others.items():
            rows[f] = subtract(rows.get(f, [0.0] * 6), scale(x, row))
            self.residuals[f] = self.residuals[f] - x * self.residuals[e]
        return RowPivot(e, pivot, scale(1.0 / pivot, row), self.residuals[e] * (1.0 / pivot), others)

    def eliminate_freedom(self, i: int, coefficients: dict[int, Scalar], W: Vector, u: Scalar, inverse: Scalar) -> None:
        """Update rows, residuals and Ω for an eliminated degree of freedom of body i.

        coefficients: {row e: κ_e}. W = U / D (6), inverse = 1 / D.
        """
        rows = self._rows[i]
        self._single -= set(coefficients)
        for e, x in coefficients.items():
            share = inverse * x
            self.residuals[e] = self.residuals[e] - share * u
            for r, y in coefficients.items():
                if r <= e:
                    self.omega[r, e] = self.omega.get((r, e), 0.0) + share * y
            rows[e] = subtract(rows.get(e, [0.0] * 6), scale(x, W))

    def to_parent(self, i: int) -> None:
        """Transform the rows of body i to its parent and add them to the rows there.

        If a rotation mixes two constant rows, it is applied to their residuals, and the rows stay constant.
        """
        parent, rows = self._tree.model.parent[i], self._rows[i]
        if parent < 0:
            return
        for step in reversed(self._tree.links[i].steps):
            pairs = self._rotated_pairs(rows, step) if isinstance(step, AxisRotation) else []
            for e, f, E in pairs:
                self.residuals[e], self.residuals[f] = _rotate_pair(E, self.residuals[e], self.residuals[f])
            self._rotated[i] += pairs
            constant = {e for pair in pairs for e in pair[:2]}
            rows = {e: row if e in constant else force_to_parent([step], row) for e, row in rows.items()}
        above = self._rows[parent]
        for e, row in rows.items():
            above[e] = add(above[e], row) if e in above else row

    def _rotated_pairs(self, rows: dict[int, Vector], E: AxisRotation) -> list[tuple[int, int, AxisRotation]]:
        """Disjoint pairs of constant rows perpendicular to the axis; row f is row e rotated by 90°."""
        if _is_constant([E.c, E.s]):
            return []
        pairs: list[tuple[int, int, AxisRotation]] = []
        paired: set[int] = set()
        candidates = {e: row for e, row in rows.items() if e in self._single and _is_constant(row)}
        for e, row in candidates.items():
            if e not in paired and is_zero(row[E.axis]) and is_zero(row[3 + E.axis]):
                image = force_to_parent([AxisRotation(E.axis, 0.0, 1.0)], row)
                f = next((f for f, x in candidates.items() if f not in {e, *paired} and x == image), None)
                if f is not None:
                    pairs.append((e, f, E))
                    paired |= {e, f}
        return pairs

    def rotate_multipliers_back(self, i: int, w: Vector) -> None:
        """Rotate the multipliers of row pairs from the axes of the parent to those of body i."""
        for e, f, E in reversed(self._rotated[i]):
            w[e], w[f] = _rotate_pair(E.inverse(), w[e], w[f])

    def _size(self, row: Sequence[Scalar]) -> float:
        """Largest coefficient of a constant row; ∞ if the row depends on the state."""
        if not _is_constant(row):
            return math.inf
        sizes = [abs(constant_value(x)) for x in row]
        return max(*sizes[:3], *(self._reach * x for x in sizes[3:]))


def _rotate_pair(E: AxisRotation, x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    return E.c * x - E.s * y, E.s * x + E.c * y


def _is_constant(row: Sequence[Scalar]) -> bool:
    return not any(type(x) is Expr for x in row)
