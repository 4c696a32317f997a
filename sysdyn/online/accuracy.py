"""Forward errors of solved quantities, estimated by one pivoted and refined solve per state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy  # loads scipy.sparse at first use

from sysdyn.equations.system import System
from sysdyn.offline.pivoted_lu import PivotedSolution, solve_pivoted
from sysdyn.sparse.condition import inverse_norm

# Rounding errors of each term of D d + b: coefficients are sums of a few products, four rounding units.
ROUNDINGS = 4.0 * 2.0**-53


def forward_errors(
    system: System, inputs: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Relative forward errors {output: (N,)} of values x (N, m): estimates of max |x − x̂| / max |x̂|, x̂ exact.

    An error is the difference from a pivoted, refined solution plus a bound on the rounding error of that solution,

        max |P D⁻¹| 4 u (|D| |d| + |b|),   u the rounding unit, P the rows of the output,

    whose norm is estimated as in LAPACK. If x̂ is zero up to rounding, errors are relative to the greatest unknown, in
    the unit of the output. inf at singular states, NaN for values that are not finite. Higham (2002), sections 7.2 and
    15.
    """
    n = max((len(x) for x in values.values()), default=0)
    inputs = {name: np.broadcast_to(x, (n, x.shape[-1])) for name, x in inputs.items()}
    errors = {name: np.full(n, math.nan) for name in values}
    place = {c: k for k, c in enumerate(system.columns)}
    for k in range(n):
        finite = [name for name, x in values.items() if np.isfinite(x[k]).all()]
        if not finite:
            continue
        solution = solve_pivoted(system, {name: x[k] for name, x in inputs.items()})
        measured = system.output_rows({name: x[k : k + 1] for name, x in inputs.items()})
        for name in finite:
            if name in measured:
                rows = [{c: np.ravel(y)[0] for c, y in row.items()} for row in measured[name].rows]
                bias = np.array([np.ravel(y)[0] for y in measured[name].b])
            else:
                rows = [{place[c]: 1.0} for c in system.layout.quantity_columns(name)]
                bias = np.zeros(len(rows))
            errors[name][k] = math.inf if solution is None else _error(solution, rows, bias, values[name][k])
    return errors


def _error(solution: PivotedSolution, rows: list[dict[int, float]], bias: np.ndarray, x: np.ndarray) -> float:
    """Relative forward error of an output x = Y d + b_Y; rows of Y are {column: coefficient}."""
    system, d, b, factorisation = solution
    if not rows or factorisation is None:
        return math.inf if rows else 0.0
    (m, n), D = system.shape, factorisation.D
    rounding = ROUNDINGS * (abs(D) @ np.abs(d) + np.abs(b))
    places = [(i, c, y) for i, row in enumerate(rows) for c, y in row.items()]
    i, c, y = (np.array(part) for part in zip(*places, strict=True)) if places else (np.zeros(0, int),) * 3
    Y = scipy.sparse.csr_matrix((y.astype(float), (i, c)), shape=(max(len(rows), m), n))

    def solve(v: np.ndarray, side: str) -> np.ndarray:
        """Y D⁻¹ diag(rounding) v, or the transposed matrix times v."""
        if side == "N":
            return Y @ factorisation.solve(rounding * v[:m])
        product = np.zeros(len(v))
        product[:m] = rounding * factorisation.solve_transposed(Y.T @ v)
        return product

    exact, terms = (Y @ d)[: len(rows)] + bias, (abs(Y) @ np.abs(d))[: len(rows)] + np.abs(bias)
    units = factorisation.columns
    natural = (abs(Y) @ units).max() * np.abs(d / units).max(initial=0.0)  # greatest unknown in the unit of x
    off = np.abs(x - exact).max() + ROUNDINGS * terms.max() + inverse_norm(solve, Y.shape[0], of="T")
    size = np.abs(exact).max()
    size = natural if size <= ROUNDINGS * natural else size  # x is zero up to rounding
    return float(off / size) if size > 0.0 else 0.0
