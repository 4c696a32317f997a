"""Atomic file writes, the disk cache, table readers and writers, and TOML with line numbers."""
