"""The command line, problem files, and pictures."""
