"""Data: states and sensor logs as files."""
