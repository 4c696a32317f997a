"""Scalar expressions, and the straight-line programs that they become."""
