"""Sparse matrices of scalars, their elimination orders and the straight-line programs they give. Knows no robots."""
