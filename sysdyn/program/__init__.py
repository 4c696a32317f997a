"""Scalar expression graphs and straight-line programs."""
