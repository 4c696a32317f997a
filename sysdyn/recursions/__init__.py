"""Inverse, forward and hybrid dynamics as recursions with few operations."""
