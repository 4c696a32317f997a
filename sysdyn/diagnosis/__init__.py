"""Whether a problem has one solution, in names, and what would help if not."""
