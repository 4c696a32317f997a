"""Programs as machine code, by LLVM."""
