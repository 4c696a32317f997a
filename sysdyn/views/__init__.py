"""Robots in three dimensions: their shapes, and pages that show them; curves over time."""
