"""Pivoted solutions at single states, refined, with the factors of their matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.system import SINGULAR, System
from sysdyn.offline.covariance import DenseEstimate
from sysdyn.offline.pivoted_solves import OrthogonalColumns, PivotedLU, refine
from sysdyn.sparse.double_double import DoubleDouble, iterative_refinement


class PivotedSolution(NamedTuple):
    """Solution of D d + b = 0 at one state: unknowns (columns,), and the factors of D or None."""

    system: System
    unknowns: np.ndarray
    b: np.ndarray
    factorisation: PivotedLU | OrthogonalColumns | None

    @property
    def d(self) -> np.ndarray:
        """Unknowns (layout.n,) in the full layout."""
        d = np.zeros(self.system.layout.n)
        d[self.system.columns] = self.unknowns
        return d


def solve_pivoted(system: System, inputs: Mapping[str, np.ndarray]) -> PivotedSolution | None:
    """Solve at one state to double precision; None at singular states, or if the refinement does not converge.

    LU with partial pivoting, its condition number, and iterative refinement with double-double residuals. Orthogonal
    factors solve systems with more equations than unknowns. inputs: {group: (size,)}.
    """
    entries, b = system.values_double_double(inputs)
    if system.shape[0] > system.shape[1]:
        orthogonal = OrthogonalColumns.of(system, entries.high, b.high)
        return orthogonal and PivotedSolution(system, refine(orthogonal, b.high), b.high, orthogonal)
    clean = system.drop_rounding(entries.high)
    lu = PivotedLU.of(system, clean, system.scaling)
    if lu is None or not lu.reciprocal_condition >= SINGULAR:
        if not system.solvability(entries.high, SINGULAR) >= SINGULAR:
            return None
        lu = PivotedLU.of(system, clean, system.scaling_at(clean))  # in the units of this state
    unknowns = None
    if lu is not None:
        right = DoubleDouble(b.high[:, None], b.low[:, None])
        unknowns = iterative_refinement(lu.solve, *system.coordinates, entries, right, lu.columns)
    if unknowns is not None:
        return PivotedSolution(system, unknowns[:, 0], b.high, lu)
    if isinstance(system, AugmentedSystem):  # multipliers square the condition number
        estimate = DenseEstimate(system, inputs)
        return PivotedSolution(system, estimate.solution, b.high, lu) if estimate.converged else None
    return None
