"""Sparse matrices of scalars and their elimination orders, independent of robots."""
