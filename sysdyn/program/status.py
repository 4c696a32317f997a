"""Bits of the status that a program reports for each state."""

from __future__ import annotations

# The status of a state is a sum of these bits: an input that is not finite, a pivot that vanishes, an output that is not
# finite, a pivot that comes near zero.
BAD_INPUT, BAD_PIVOT, BAD_OUTPUT, WEAK_PIVOT = 1, 2, 4, 8
# Sines and cosines of angles beyond this one [rad] are not numbers: a double has lost what it means there.
LARGEST_ANGLE = 1e9
