"""Back ends: NumPy, machine code, double-double arithmetic, and export to C99."""
