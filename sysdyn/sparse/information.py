"""What a least-squares solution is worth, from its factors: sums of squares, whatever the weights.

With exact rows eliminated, whitened noisy rows W d + w become R d + r = 0 and what is left, Q^T (W d + w) = (0, left).
Then Cov(c^T d) = |R^-T c|², residuals are Q₂ left and their covariance is Q₂ Q₂^T, Q = (Q₁ Q₂). Golub (1965); Bierman
(1977).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sysdyn.program.expr import is_zero
from sysdyn.program.scalar import Scalar
from sysdyn.sparse.lu import Factors, Row, divider


class Information:
    """Deviations and residuals over the scalars of the factors. noisy: the rows that are not exact."""

    def __init__(self, factors: Factors, noisy: Collection[int]):
        self._factors, self._noisy = factors, noisy
        self._left = [i for i in factors.left if i in noisy]

    def deviations(self, terms: Mapping[int, Scalar]) -> Row:
        """{pivot: z}: the errors of Σ c_j d_j, {j: c_j}, in terms of independent errors of variance 1; z = R^-T c."""
        f, r = self._factors, dict(terms)
        z: Row = {}
        for k, (row, column) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            x = r.pop(column, 0.0)
            if is_zero(x):
                continue
            divide = divider(f.pivots[k], 2)
            if not f.scaled[k]:
                x = divide(x)
            for j, u in f.upper[k].items():
                r[j] = r.get(j, 0.0) - u * x
            if row in self._noisy:
                z[k] = divide(x) if f.scaled[k] else x
        return z

    def residuals(self) -> Row:
        """{noisy row: W d + w} at the solution."""
        return self._turned_back({i: self._factors.left[i] for i in self._left})

    def free(self) -> list[Row]:
        """Columns of Q₂, {noisy row: entry}: how errors of variance 1 show in residuals, one for each row left."""
        return [self._turned_back({i: 1.0}) for i in self._left]

    def _turned_back(self, y: Row) -> Row:
        for k in reversed(sorted(self._factors.turns)):
            for turned in reversed(self._factors.turns[k]):
                if turned.rows[0] in self._noisy:
                    turned.apply_transposed(y)
        return y


def product(x: Row, y: Row) -> Scalar:
    """Σ x_k y_k."""
    total: Scalar = 0.0
    for k, value in x.items():
        if k in y:
            total = total + value * y[k]
    return total
