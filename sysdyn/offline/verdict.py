"""Candidates for a program, how they behave at sampled states, and verdicts on them: safe, firm, or by how much not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sysdyn.equations.system import System
from sysdyn.offline.sampling import FARTHEST

# Greatest backward error of a safe program, unless a pivoted solve with refinement does no better (chosen).
BACKWARD_ERROR = 1e-9
# Backward error beyond which the search for an order goes on (chosen).
FIRM_ERROR = 1e-11
# Greatest difference of a safe program's result to a pivoted solve, unless that solve is no better (chosen).
DIFFERENCE = 3e-10
# Multiple of the loss of a pivoted solve that a program may lose (chosen).
WORSE_THAN_PIVOTED = 1e2
# Share of its greatest size below which a pivot at some state may vanish at another (chosen).
LEAST_PIVOT = 1e-4
# Backward error that ends the check of an order: no refinement mends it (chosen).
HOPELESS = 1e-3
# Share of states with weak pivots beyond which the search for an order goes on (chosen).
RARE = 0.01
# The same beyond which an order is taken only if the search finds no other (chosen: the orders of some 250 problems
# have 3 % at most, those of a humanoid held by two feet 5 %; gimbals whose axes nearly coincide at a quarter of the
# states have 10 to 25 % by every order, and need them: columns turned instead are off by up to 2e-4 there, as rounded
# equations are).
OFTEN = 0.08
# Share of the states beyond whose backward error the search goes on, too, if it is a tenth of FIRM_ERROR: other states
# exceed that, then, though none was sampled (chosen: of a biped's sensors 5 of 10,000, the farthest a hundredfold).
TAIL = 2e-3
# Difference to a pivoted solve beyond which compiling warns of inaccurate results, as of large residuals (chosen).
SMALL_DIFFERENCE = 1e-6
# Most unknowns, of all states together, that are compared with a pivoted solve at a time (chosen).
COMPARED_UNKNOWNS = 10_000

Inputs = dict[str, np.ndarray]  # {group of inputs: (N, size)}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A program to be judged.

    run: its behaviour at some of the states. system: its equations. labels: of the pivots. certain (p,): pivots that
    vanish only if the matrix is singular; their size says nothing against the order; none if left out. again: states
    with weak pivots are solved with pivoting and do not count; False for means of estimates, whose orders do without.
    chunk: states that run at a time, all if left out. compared: most unknowns, of all states together, that a pivoted
    solve is made of at a time.
    """

    run: Callable[[Inputs], Behaviour]
    system: System
    labels: Sequence[str]
    certain: np.ndarray | None = None
    again: bool = True
    chunk: int | None = None
    compared: int = COMPARED_UNKNOWNS

    @property
    def doubtful(self) -> np.ndarray:
        """(p,) bool: True for pivots that may vanish though the matrix is regular."""
        return np.ones(len(self.labels), dtype=bool) if self.certain is None else ~self.certain


class Behaviour(NamedTuple):
    """Results of a program at N states.

    d (N, full layout): all unknowns; pivots (N, p): the ones that are not constant; error (N,): the backward error of
    d, None if it is not known.
    """

    d: np.ndarray
    pivots: np.ndarray
    error: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Safety:
    """Behaviour of a fixed order over sampled states.

    states: number of states that count.
    backward_error: the greatest, row by row, see `sysdyn.equations.backward_error.Residual`.
    pivoted: the same of a pivoted solve with iterative refinement at the worst of the states.
    difference: greatest relative difference of a quantity (∞-norms) to that solve there.
    pivoted_difference: the same of a pivoted solve without refinement, large if the system is ill-conditioned.
    least_pivot, least_pivot_name: least |pivot| over its greatest value at any state, and its equation and unknown.
    crossing: number of pivots that take both signs and so vanish somewhere in between, 0 if the determinant takes both
        signs itself.
    tail: the backward error that the share TAIL of the states exceed, of those without small pivots and without
        lengths beyond 1 m.
    singular: number of singular states among those drawn. Only regular ones count.
    weak: number of states with weak pivots. These do not count, either, as calls solve them with pivoting.
    reach [m]: lengths without limits were judged out to this; calls pivot at states beyond.
    single_error, single_median: greatest and median error of a program in single precision, as a fraction of the
        greatest entry of an output; single_loss: the greatest beside what rounding of the inputs to single precision
        changes, see `sysdyn.offline.single`. 0 in double precision.

    Pivots grow with lengths: for joints that travel far they count at states with all lengths below `NEAR`.
    """

    states: int
    backward_error: float
    pivoted: float
    difference: float
    pivoted_difference: float
    least_pivot: float
    least_pivot_name: str
    crossing: int
    tail: float = 0.0
    singular: int = 0
    weak: int = 0
    reach: float = FARTHEST
    single_error: float = 0.0
    single_median: float = 0.0
    single_loss: float = 0.0

    @property
    def ok(self) -> bool:
        """True if results are as accurate as a pivoted solve can be expected to be."""
        return self.stable and self.difference <= max(DIFFERENCE, WORSE_THAN_PIVOTED * self.pivoted_difference)

    @property
    def stable(self) -> bool:
        """True if backward stable: results solve exactly a system whose entries are nearly the given ones."""
        small = self.backward_error <= max(BACKWARD_ERROR, WORSE_THAN_PIVOTED * self.pivoted)
        return small and self.least_pivot > 0.0

    @property
    def firm(self) -> bool:
        """True if safe with digits to spare, and no pivot came near zero or passed through it."""
        steady = self.least_pivot >= LEAST_PIVOT and self.weak <= RARE * self.states and not self.crossing
        return self.ok and self.small and self.exact and steady

    @property
    def seldom(self) -> bool:
        """True if calls solve few states with pivoting."""
        return self.weak <= OFTEN * (self.states + self.weak)

    @property
    def exact(self) -> bool:
        """True if backward stable with digits to spare, at other states than the sampled ones, too."""
        limit = max(FIRM_ERROR, WORSE_THAN_PIVOTED * self.pivoted)
        return self.backward_error <= limit and self.tail <= 0.1 * limit

    @property
    def small(self) -> bool:
        """True if the judged errors are small, whatever a pivoted solve loses."""
        return self.backward_error <= BACKWARD_ERROR and self.difference <= SMALL_DIFFERENCE

    @property
    def improvable(self) -> bool:
        """True if not exact though no pivot failed: iterative refinement will help."""
        return not self.exact and not self.crossing and self.backward_error <= HOPELESS

    def __str__(self) -> str:
        through = f"{self.crossing} pivots pass through zero, " if self.crossing else ""
        through += f"{self.weak} states to be solved with pivoting, " if self.weak else ""
        return (
            f"{through}backward error {self.backward_error:.1e}, difference to a pivoted solve {self.difference:.1e}, "
            f"least pivot {self.least_pivot:.1e} ({self.least_pivot_name})"
        )


class Verdict(NamedTuple):
    """Safety; (size below which it counts as zero, size below which it loses digits) of each pivot; worst states."""

    safety: Safety
    guards: list[tuple[float, float]]
    worst: Inputs
