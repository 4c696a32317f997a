"""Textbook algorithms, written as in the book, generic over float, Expr and batches: what solvers are judged by."""

from sysdyn.reference.aba import aba
from sysdyn.reference.rnea import NewtonEuler, newton_euler, rnea

__all__ = ["NewtonEuler", "aba", "newton_euler", "rnea"]
