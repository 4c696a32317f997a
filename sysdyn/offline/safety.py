"""Whether a program is safe: how it behaves at sampled states, against a pivoted solve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sysdyn.equations.block_system import BlockSystem

SAFETY_SAMPLES = 2048
BACKWARD_ERROR = 1e-11  # accepted; a larger one only where a pivoted solve does no better
FIRM_ERROR = 1e-12  # likewise, where the search need not go on
DIFFERENCE = 3e-10  # likewise, of the difference to a pivoted solve
WORSE_THAN_PIVOTED = 1e2
LEAST_PIVOT = 1e-4  # below this fraction of its size at some state, a pivot may vanish at another
VANISHING = 1e-6  # size of a quantity, relative to the other unknowns and states, below which it counts as zero
JUDGED_UNKNOWNS = 10_000  # unknowns for which a pivoted solve is made
HOPELESS = 1e-6  # backward error that ends the check of an order
WORST_STATES = 6
SUSPECT = 1e-8  # a state is looked at that closely where a pivot falls below this fraction of its greatest value
GUARD = 1e-11  # fraction of its sampled size below which a pivot counts as zero online
WEAK = 1e-3  # likewise, below which digits are lost,
HARMLESS = 0.1  # unless pivots not this much smaller were seen to be harmless offline


@dataclass(frozen=True)
class Safety:
    """How a fixed order behaved over sampled states.

    backward_error: greatest |D d + b|∞ / (|D|∞ |d|∞ + |b|∞); pivoted: the same of a pivoted solve at the worst of
    them; difference: greatest relative difference of a quantity (∞-norms) to a pivoted solve with iterative refinement
    there; pivoted_difference: the same of the pivoted solve without it, large where the system is ill-conditioned;
    growth: greatest entry of D U over the greatest of D, both equilibrated; least_pivot: least |pivot| over its
    greatest value at any state; crossing: how many pivots take both signs and so vanish somewhere in between, 0 where
    the determinant takes both signs itself. Only states at which the system is regular count; singular: how many of
    those drawn were not.
    """

    states: int
    backward_error: float
    pivoted: float
    difference: float
    pivoted_difference: float
    growth: float
    least_pivot: float
    least_pivot_name: str
    crossing: int
    singular: int = 0

    @property
    def ok(self) -> bool:
        """As accurate as a pivoted solve can be expected to be."""
        return self.stable and self.difference <= max(DIFFERENCE, WORSE_THAN_PIVOTED * self.pivoted_difference)

    @property
    def stable(self) -> bool:
        """Backward stable: the exact solution of a system that is nearly the given one."""
        small = self.backward_error <= max(BACKWARD_ERROR, WORSE_THAN_PIVOTED * self.pivoted)
        return math.isfinite(self.growth) and small and self.least_pivot > 0.0

    @property
    def firm(self) -> bool:
        """Safe with digits to spare, and no pivot came near zero or passed through it."""
        return self.ok and self.exact and self.least_pivot >= LEAST_PIVOT and not self.crossing

    @property
    def exact(self) -> bool:
        """Backward stable with digits to spare."""
        return self.backward_error <= max(FIRM_ERROR, WORSE_THAN_PIVOTED * self.pivoted)

    @property
    def improvable(self) -> bool:
        """Not exact though no pivot failed: iterative refinement will help."""
        return not self.exact and not self.crossing and self.backward_error <= HOPELESS

    def __str__(self) -> str:
        through = f"{self.crossing} pivots pass through zero, " if self.crossing else ""
        return (
            f"{through}backward error {self.backward_error:.1e}, difference to a pivoted solve {self.difference:.1e}, "
            f"growth {self.growth:.1e}, least pivot {self.least_pivot:.1e} ({self.least_pivot_name})"
        )


def relative_difference(system: BlockSystem, d: np.ndarray, reference: np.ndarray) -> float:
    """Greatest relative difference of an unknown quantity (∞-norms) at any of the states; d (N, full layout)."""
    worst = 0.0
    for quantity in system.problem.quantities:
        columns = system.layout.quantity_columns(quantity)
        if len(columns) > len(system.problem.knows(quantity)):
            size = np.abs(reference[:, columns]).max(axis=1)
            difference = np.abs(d[:, columns] - reference[:, columns]).max(axis=1)
            # where a quantity vanishes, its rounding errors are no error of the order
            size = np.maximum(size, VANISHING * np.maximum(size.max(), np.abs(reference).max(axis=1)))
            worst = max(worst, float(np.max(difference / np.where(size > 0.0, size, 1.0))))
    return worst if math.isfinite(worst) else math.inf


def crossing(pivots: np.ndarray) -> tuple[int, np.ndarray]:
    """(pivots that take both signs, for each of them the state at which it is farthest on its rarer side).

    pivots: (states, pivots). None counts where their product, the determinant but for a constant, takes both signs.
    """
    if passes_through_zero(np.prod(np.sign(pivots), axis=1)):
        return 0, np.array([], dtype=int)
    both = pivots[:, passes_through_zero(pivots)]
    rarer = np.where((both < 0.0).sum(axis=0) < (both > 0.0).sum(axis=0), -1.0, 1.0)
    return both.shape[1], np.argmax(both * rarer, axis=0)


def passes_through_zero(values: np.ndarray) -> np.ndarray:
    """Whether values (states, …) take both signs: then they pass through zero in between."""
    return (values < 0.0).any(axis=0) & (values > 0.0).any(axis=0)
