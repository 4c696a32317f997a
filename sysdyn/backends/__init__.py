"""Ways to run a Program: `llvm` (machine code) and `python` (NumPy, the oracle)."""
