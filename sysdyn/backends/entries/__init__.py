"""Calls of kernels by arrays of a caller."""
