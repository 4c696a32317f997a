"""Bits of the status that a program reports for each state."""

from __future__ import annotations

# The status of a state has these bits: an input is not finite, a pivot vanishes, an output is not finite, a pivot comes
# near zero, an input is beyond the range that the program was judged for.
BAD_INPUT, BAD_PIVOT, BAD_OUTPUT, WEAK_PIVOT, OUT_OF_RANGE = 1, 2, 4, 8, 16
# Bit that a solver adds if digits are lost to covariances far from the declared ones.
LOST_DIGITS = 32
# Largest angle [rad] with a sine and a cosine; both are NaN beyond it, as doubles are 1.2e-7 rad apart there.
LARGEST_ANGLE = 1e9
