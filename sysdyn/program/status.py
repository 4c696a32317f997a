"""Bits of the status that a program reports for each state."""

from __future__ import annotations

# Status bits of a state
BAD_INPUT, BAD_PIVOT, BAD_OUTPUT, WEAK_PIVOT = 1, 2, 4, 8
LARGEST_ANGLE = 1e9  # beyond it neither the reduction nor the meaning of a double angle is good: not a number
