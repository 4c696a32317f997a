"""Results of the offline phase: the elimination order with its cost and check, and its program."""

from __future__ import annotations

from dataclasses import dataclass

from sysdyn.offline.report import StabilityReport
from sysdyn.passes import PAPER
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.sparse.lu import Pivots


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One elimination order with its cost and the report of its check.

    ordering: its name. row_perm, col_perm: row and column of each pivot; () for a recursion.
    end_to_end: operations from q, q̇ on.
    solve: operations with X, v, c, ν given; None if a recursion does not use them, or if they were not counted (at the
        fast level).
    fill_in: entries of L and U that are structural zeros of the matrix. triangular: True if the permuted matrix is.
    stability: the report of its check; None before the check.
    refined: True if the program includes a step of iterative refinement.
    passes: applied passes, from `sysdyn.PASSES`.
    rotated_with: (k, rows that are rotated with row row_perm[k]) of each orthogonal column, see `sysdyn.sparse.lu`.
    """

    ordering: str
    row_perm: tuple[int, ...]
    col_perm: tuple[int, ...]
    end_to_end: Flops
    solve: Flops | None
    fill_in: int
    triangular: bool
    stability: StabilityReport | None = None
    refined: bool = False
    passes: tuple[str, ...] = PAPER
    rotated_with: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def pivots(self) -> Pivots:
        """Row and column of each pivot, and the rows to rotate before it: the arguments of `eliminate`."""
        return Pivots(self.row_perm, self.col_perm, dict(self.rotated_with))

    @property
    def is_recursion(self) -> bool:
        """True if the program is a recursion instead of an elimination."""
        return not self.row_perm

    @property
    def total(self) -> int:
        """Operations end to end."""
        return self.end_to_end.total

    @property
    def report(self) -> StabilityReport:
        """The report of the check, which must have been run."""
        assert self.stability is not None
        return self.stability


@dataclass(frozen=True)
class Compiled:
    """Result of the offline phase.

    considered: (ordering, cost or reason of rejection) of each candidate. stages: (name, seconds) of each stage.
    """

    choice: Choice
    program: Program
    considered: tuple[tuple[str, str], ...]
    seconds: float
    stages: tuple[tuple[str, float], ...] = ()
