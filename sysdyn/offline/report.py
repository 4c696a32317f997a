"""The report of a check: sampled states, errors, pivots, and whether they are acceptable."""

from __future__ import annotations

from dataclasses import dataclass

from sysdyn.offline.sampling import FARTHEST

# Greatest backward error and difference from a pivoted solve of an acceptable program (a hundredth of online limits).
BACKWARD_ERROR, DIFFERENCE = 1e-9, 3e-10
# Multiple of the errors of pivoted solves that an acceptable program may have: two digits.
PIVOTED_RATIO = 1e2
# Backward error of a good program (trial and error).
GOOD_ERROR = 1e-11
# Greatest shares of the regular states that a good and an acceptable program leave to the fallback (gimbals: 0.25).
FEW_FALLBACKS, MOST_FALLBACKS = 0.08, 0.3
# Difference from a pivoted solve beyond which compiling warns: single precision.
INACCURATE = 1e-6


@dataclass(frozen=True, kw_only=True)
class StabilityReport:
    """Errors and pivots of a program over sampled states.

    Attributes
    ----------
    states, compared : int
        Number of the states whose errors count, and of those that were compared with a pivoted solve.
    singular, fallback : int
        Number of other states: those at which the system itself is singular, and those at which a pivot is below its
        threshold, so that calls use the fallback. Estimated from a sample if they are many.
    backward_error : float
        Greatest backward error, row by row; see `sysdyn.equations.backward_error.Residual`.
    difference : float
        Greatest relative difference of a quantity (∞-norm) from a pivoted solve with iterative refinement.
    pivoted_backward_error, pivoted_difference : float
        The same errors of a pivoted solve with and without refinement. They are large if the system is ill-conditioned.
    least_pivot : float
        Least |pivot| over its typical size at any regular state; least_pivot_name: its equation and unknown.
    sign_changes : int
        Number of pivots that take both signs and so vanish in between, without the one that the determinant explains.
    verified_range : float
        Length up to which joints without limits were checked, m. Calls solve states beyond with pivoting.
    single_error, single_median, single_loss : float
        Of a program in single precision: greatest and median error as a fraction of the greatest entry of an output,
        and the greatest error over the effect of rounded inputs; see `sysdyn.offline.single`. 0 in double precision.
    """

    states: int
    compared: int
    backward_error: float
    difference: float
    pivoted_backward_error: float
    pivoted_difference: float
    least_pivot: float
    least_pivot_name: str
    sign_changes: int = 0
    singular: int = 0
    fallback: int = 0
    verified_range: float = FARTHEST
    single_error: float = 0.0
    single_median: float = 0.0
    single_loss: float = 0.0

    @property
    def backward_stable(self) -> bool:
        """True if most results solve a system whose entries are nearly the given ones, without the fallback."""
        limit = max(BACKWARD_ERROR, PIVOTED_RATIO * self.pivoted_backward_error)
        return self.states > 0 and self.backward_error <= limit and self.fallback_share <= MOST_FALLBACKS

    @property
    def acceptable(self) -> bool:
        """True if results are backward stable and at most two digits less accurate than those of a pivoted solve."""
        return self.backward_stable and self.difference <= max(DIFFERENCE, PIVOTED_RATIO * self.pivoted_difference)

    @property
    def good(self) -> bool:
        """True if the search for an order may end: acceptable without a flaw."""
        return self.acceptable and not self.flaws

    @property
    def flaws(self) -> int:
        """Number of flaws among large errors, few digits to spare, many fallbacks, sign changes."""
        few_digits = self.backward_error > max(GOOD_ERROR, PIVOTED_RATIO * self.pivoted_backward_error)
        return sum((self.inaccurate, few_digits, self.often_falls_back, self.sign_changes > 0))

    @property
    def inaccurate(self) -> bool:
        """True if results may be wrong by more than single precision, even if those of a pivoted solve may, too."""
        return not (self.backward_error <= BACKWARD_ERROR and self.difference <= INACCURATE)

    @property
    def often_falls_back(self) -> bool:
        """True if calls use the fallback at many of the regular states."""
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
