"""Inverse, forward and hybrid dynamics as recursions of few operations."""
