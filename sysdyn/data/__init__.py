"""States and sensor logs as files."""
