"""Chosen entries of the inverse of a factorised matrix, without the rest of it.

With A = L D U and Z = A⁻¹, U Z = D⁻¹ L⁻¹ and Z L = U⁻¹ D⁻¹ give each entry from entries that come later:

    Z_ij = [i = j] / D_i − Σ_{k>i} U_ik Z_kj   (i ≤ j),      Z_ij = −Σ_{k>j} Z_ik L_kj   (i > j)

Those within the pattern of L + U need no others. Takahashi, Fagan and Chin (1973); Erisman and Tinney (1975).
"""

from __future__ import annotations

from sysdyn.program.expr import is_zero
from sysdyn.program.scalar import Scalar
from sysdyn.sparse.lu import Factors, Row, divider


class Inverse:
    """Entries of A⁻¹ over the scalars of the factors, each computed when it is asked for, once."""

    def __init__(self, factors: Factors):
        self._row = {r: k for k, r in enumerate(factors.row_perm)}
        self._column = {c: k for k, c in enumerate(factors.col_perm)}
        self._divide = [divider(pivot, 2) for pivot in factors.pivots]
        self._upper: list[Row] = []
        self._lower: list[Row] = []
        for k, divide in enumerate(self._divide):
            scaled = factors.scaled[k]
            upper = {self._column[j]: u if scaled else divide(u) for j, u in factors.upper[k].items()}
            lower = {self._row[i]: divide(l) if scaled else l for i, l in factors.lower[k].items()}
            self._upper.append(upper)
            self._lower.append(lower)
        self._known: dict[tuple[int, int], Scalar] = {}

    def entry(self, column: int, row: int):
        """(A⁻¹) at unknown `column`, equation `row`: how the unknown moves with the right-hand side."""
        wanted = self._column[column], self._row[row]
        stack = [wanted]  # recursion by hand: it is as deep as the matrix is large
        while stack:
            place = stack[-1]
            if place in self._known:
                stack.pop()
                continue
            i, j = place
            needed = [(k, j) for k in self._upper[i]] if i <= j else [(i, k) for k in self._lower[j]]
            missing = [x for x in needed if x not in self._known]
            if missing:
                stack.extend(missing)
                continue
            factors = self._upper[i] if i <= j else self._lower[j]
            total = self._divide[i](1.0) if i == j else 0.0
            for x, f in zip(needed, factors.values(), strict=True):
                z = self._known[x]
                if not is_zero(z):
                    total = total - f * z
            self._known[place] = total
            stack.pop()
        return self._known[wanted]
