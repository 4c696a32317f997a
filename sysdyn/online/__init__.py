"""Compiled solvers: calls, solutions, estimates, derivatives, storage, exports."""
