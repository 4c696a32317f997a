"""Straight-line code for x86-64: fused operations, registers by what is needed latest, instructions byte by byte."""
