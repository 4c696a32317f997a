"""Forward errors: distances of solved quantities from the exact ones, estimated by one pivoted solve a state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.system import System
from sysdyn.offline.pivoted_solves import REFINED, OrthogonalColumns, PivotedLU, solutions
from sysdyn.sparse.condition import inverse_norm

# Rounding units of error in each term of D d + b, whose factors are sums of a few rounded products (chosen).
ROUNDINGS = 4.0
# The rounding unit.
UNIT = 2.0**-53


def forward_errors(
    system: System, inputs: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Errors {output: (N,)}: estimates of max |x − x̂| / max |x̂| for values x (N, m) at N states, x̂ the exact ones.

    The difference to a pivoted, refined solve, and that solve's own error: with residual r,

        max |P D⁻¹| (|r| + 4 u (|D| |d| + |b|)),   u the rounding unit, P the rows of the output,

    its norm estimated as in LAPACK. Values that are nothing but rounding are compared with unknowns of their unit. inf
    if the matrix is exactly singular, NaN for values that are not finite. Higham (2002), sections 7.2 and 15.
    """
    n = max((len(x) for x in values.values()), default=0)
    entries, b = system.values_at(inputs, n)
    shown = system.output_rows(inputs)
    found = {name: np.full(n, math.nan) for name in values}
    place = {c: k for k, c in enumerate(system.columns)}
    for k in range(n):
        solved = _Solved(system, entries[k], b[k])
        for name, x in values.items():
            if not np.isfinite(x[k]).all():
                continue
            if name in shown:
                rows = [{c: _at(y, k) for c, y in row.items()} for row in shown[name].rows]
                bias = np.array([_at(y, k) for y in shown[name].b])
            else:
                rows = [{place[c]: 1.0} for c in system.layout.quantity_columns(name)]
                bias = np.zeros(len(rows))
            found[name][k] = solved.error(rows, bias, x[k])
    return found


class _Solved:
    """The equations at one state, D d + b = 0, factored, solved and refined. off: how far D d + b may be from 0."""

    def __init__(self, system: System, entries: np.ndarray, b: np.ndarray):
        (self.m, self.n), self.lu = system.shape, _factors(system, entries, b)
        if self.lu is None:
            return
        D, units = self.lu.D, self.lu.columns
        self.d = d = solutions(self.lu, b, REFINED)[1]
        self.off = np.abs(D @ d + b) + ROUNDINGS * UNIT * (np.abs(D) @ np.abs(d) + np.abs(b))
        self.natural = units * np.abs(d / units).max(initial=0.0)  # a size for each unknown, by its unit

    def error(self, rows: list[dict[int, float]], bias: np.ndarray, x: np.ndarray) -> float:
        """Relative error of x = Y d + b_Y, with the rows of Y."""
        lu = self.lu
        if lu is None:
            return math.inf
        if not len(rows):
            return 0.0
        place = [(i, c, y) for i, row in enumerate(rows) for c, y in row.items()]
        i, c, y = (np.array(part) for part in zip(*place, strict=True)) if place else (np.zeros(0, int),) * 3
        Y = scipy.sparse.csr_matrix((y.astype(float), (i, c)), shape=(max(len(rows), self.m), self.n))

        def solve(v: np.ndarray, side: str) -> np.ndarray:
            """Product Y D⁻¹ diag(off) v, or of the transpose with v."""
            if side == "N":
                return Y @ lu.solve(self.off * v[: self.m])
            found = np.zeros(len(v))
            found[: self.m] = self.off * lu.solve_transposed(Y.T @ v)
            return found

        right = (Y @ self.d)[: len(rows)] + bias
        own = ROUNDINGS * UNIT * ((np.abs(Y) @ np.abs(self.d))[: len(rows)] + np.abs(bias))
        off = np.abs(x - right).max() + own.max() + inverse_norm(solve, Y.shape[0], of="T")
        size, natural = np.abs(right).max(), (np.abs(Y) @ self.natural).max()
        if size <= ROUNDINGS * UNIT * natural:  # rounding errors: nothing is there to be relative to
            size = natural
        return float(off / size) if size > 0.0 else 0.0


def _factors(system: System, entries: np.ndarray, b: np.ndarray) -> PivotedLU | OrthogonalColumns | None:
    """The matrix at one state, factored; of more equations than unknowns by orthogonal columns. None if singular."""
    if system.shape[0] > system.shape[1]:
        return OrthogonalColumns.of(system, entries, b)
    return PivotedLU.of(system, entries, system.scaling)


def _at(x, k: int) -> float:
    """The entry for state k of a value that may be the same in all states."""
    array = np.atleast_1d(x)
    return float(array[k if len(array) > 1 else 0])
