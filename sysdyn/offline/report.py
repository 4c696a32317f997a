"""Results of the offline phase: the elimination order with its cost, the report of its check, and the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sysdyn.passes import PAPER
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program

if TYPE_CHECKING:
    from sysdyn.sparse.lu import Pivots

# Limits of an acceptable program: backward error, difference from a pivoted solve (a hundredth of online limits).
BACKWARD_ERROR, DIFFERENCE = 1e-9, 3e-10
# An acceptable program's errors are at most this multiple of those of pivoted solves: two digits.
PIVOTED_RATIO = 1e2
# Limit on the backward error of a good program (trial and error).
GOOD_ERROR = 1e-11
# Greatest share of regular states with fallback for a good and for an acceptable program (gimbals: 0.25).
FEW_FALLBACKS, MOST_FALLBACKS = 0.08, 0.3
# Difference from a pivoted solve beyond which compilation warns: single precision.
INACCURATE = 1e-6
# Loss in single precision beyond which a state needs double precision: three of seven digits.
GREATEST_LOSS = 1e3


@dataclass(frozen=True, kw_only=True)
class StabilityReport:
    """Errors and pivots of a program over sampled states.

    Attributes
    ----------
    states, compared : int
        Number of states whose errors count, and of states that were compared with a pivoted solve.
    singular, fallback : int
        Number of states at which the system is singular, and of regular states at which calls use the fallback because
        a pivot is below its threshold. Their errors do not count. Large numbers are estimated from a sample.
    backward_error : float
        Greatest componentwise backward error; see `sysdyn.equations.backward_error.Residual`.
    difference : float
        Greatest relative difference of a quantity (∞-norm) from a pivoted solve with iterative refinement.
    pivoted_backward_error, pivoted_difference : float
        The same errors of a pivoted solve, the first with and the second without refinement. They are large if the
        system is ill-conditioned.
    least_pivot : float
        Least ratio of |pivot| to its typical size at any regular state; least_pivot_name: its equation and unknown.
    sign_changes : int
        Number of sign-changing pivots, which vanish in between. One is not counted if the determinant changes its sign.
    verified_range : float
        Length up to which joints without limits were checked, m. Calls solve states beyond it with pivoting.
    single_error, single_median, single_loss : float
        For single precision: greatest and median error relative to the greatest entry of an output, and greatest ratio
        of the error to the effect of rounded inputs; see `sysdyn.offline.single`. 0 in double precision.
    """

    states: int
    compared: int
    backward_error: float
    difference: float
    pivoted_backward_error: float
    pivoted_difference: float
    least_pivot: float
    least_pivot_name: str
    verified_range: float
    sign_changes: int = 0
    singular: int = 0
    fallback: int = 0
    single_error: float = 0.0
    single_median: float = 0.0
    single_loss: float = 0.0

    @property
    def backward_stable(self) -> bool:
        """True if the backward error is small and not too many states need the fallback."""
        limit = max(BACKWARD_ERROR, PIVOTED_RATIO * self.pivoted_backward_error)
        return self.states > 0 and self.backward_error <= limit and self.fallback_share <= MOST_FALLBACKS

    @property
    def acceptable(self) -> bool:
        """True if backward stable and at most two digits less accurate than a pivoted solve."""
        return self.backward_stable and self.difference <= max(DIFFERENCE, PIVOTED_RATIO * self.pivoted_difference)

    @property
    def good(self) -> bool:
        """True if acceptable without flaws, which ends the search for an order."""
        return self.acceptable and not self.flaws

    @property
    def flaws(self) -> int:
        """Number of flaws among: inaccurate, small margin of the backward error, many fallbacks, sign changes."""
        few_digits = self.backward_error > max(GOOD_ERROR, PIVOTED_RATIO * self.pivoted_backward_error)
        return sum((self.inaccurate, few_digits, self.often_falls_back, self.sign_changes > 0))

    @property
    def inaccurate(self) -> bool:
        """True if errors exceed single precision, regardless of the errors of a pivoted solve."""
        return not (self.backward_error <= BACKWARD_ERROR and self.difference <= INACCURATE)

    @property
    def often_falls_back(self) -> bool:
        """True if calls use the fallback at more than `FEW_FALLBACKS` of the regular states."""
        return self.fallback_share > FEW_FALLBACKS

    @property
    def fallback_share(self) -> float:
        """Share of the regular states at which calls use the fallback."""
        return self.fallback / max(1, self.states + self.fallback)

    def __str__(self) -> str:
        parts = [f"{self.sign_changes} pivots change their sign"] if self.sign_changes else []
        parts += [f"{self.fallback} states need the fallback"] if self.fallback else []
        return ", ".join([
            *parts, f"backward error {self.backward_error:.1e}",
            f"difference from a pivoted solve {self.difference:.1e}",
            f"least pivot {self.least_pivot:.1e} ({self.least_pivot_name})",
        ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One elimination order with its cost and the report of its check.

    ordering: its name. row_perm, col_perm: row and column of each pivot; () for a recursion.
    end_to_end: operations from q, q̇ on.
    solve: operations with X, v, c, ν given; None if a recursion does not use them, or if they were not counted (at the
        fast level).
    fill_in: entries of L and U that are structural zeros of the matrix. triangular: True if the permuted matrix is.
    stability: the report of its check; None before the check.
    refined: True if the program includes a step of iterative refinement.
    passes: applied passes, from `sysdyn.PASSES`.
    rotated_with: (k, rows that are rotated with row row_perm[k]) of each orthogonal column, see `sysdyn.sparse.lu`.
    """

    ordering: str
    row_perm: tuple[int, ...]
    col_perm: tuple[int, ...]
    end_to_end: Flops
    solve: Flops | None
    fill_in: int
    triangular: bool
    stability: StabilityReport | None = None
    refined: bool = False
    passes: tuple[str, ...] = PAPER
    rotated_with: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def pivots(self) -> Pivots:
        """Row and column of each pivot, and the rows to rotate before it: the arguments of `eliminate`."""
        from sysdyn.sparse.lu import Pivots

        return Pivots(self.row_perm, self.col_perm, dict(self.rotated_with))

    @property
    def is_recursion(self) -> bool:
        """True if the program is a recursion instead of an elimination."""
        return not self.row_perm

    @property
    def total(self) -> int:
        """Number of all operations from q, q̇ to the outputs, which is the cost of the order."""
        return self.end_to_end.total

    @property
    def report(self) -> StabilityReport:
        """The report of the check, which must have been run."""
        assert self.stability is not None
        return self.stability


@dataclass(frozen=True)
class Compiled:
    """Result of the offline phase.

    considered: (ordering, cost or reason of rejection) of each candidate. stages: (name, seconds) of each stage.
    """

    choice: Choice
    program: Program
    considered: tuple[tuple[str, str], ...]
    seconds: float
    stages: tuple[tuple[str, float], ...] = ()
