"""Structural well-posedness in names: blocks of Dulmage and Mendelsohn of the worst-case pattern."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sysdyn.diagnosis.reduction import RELATIVE_RANK
from sysdyn.diagnosis.words import held_twice, idle_among, joints_first, stated
from sysdyn.equations.system import System
from sysdyn.errors import ProblemError, StructurallySingular, few
from sysdyn.sparse.condition import balance
from sysdyn.sparse.dulmage import dulmage_mendelsohn

# ---- by structure ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Well-posedness by the pattern alone: the unknowns and equations of its under- and over-determined parts."""

    equations: int
    unknowns: int
    undetermined: tuple[str, ...]  # unknowns of the under-determined part
    from_equations: tuple[str, ...]  # and the equations they occur in
    free: int  # number of equations that are missing there
    redundant: tuple[str, ...]  # exact equations of the over-determined part
    over_unknowns: tuple[str, ...]
    excess: int
    idle: tuple[str, ...] = ()  # joints that move no inertia, which makes their accelerations free, in words
    twice: tuple[str, ...] = ()  # constraints that fix the same motion, in words
    system: System = field(repr=False, compare=False)

    @property
    def sound(self) -> bool:
        return self.free == 0 and self.excess == 0

    def __str__(self) -> str:
        parts = [f"{self.equations} equations for {self.unknowns} unknowns"]
        if self.free:
            parts.append(
                f"{few(joints_first(self.undetermined))} cannot be found: {self.free} equation(s) missing"
                + (f"; only {few(self.from_equations)} speak of them" if self.from_equations else "")
                + ". State some of them, for example as JointTorque, JointAcceleration or ExternalWrench"
            )
        if self.excess:
            parts.append(
                f"{few(stated(self.redundant) or self.redundant)} are {self.excess} equation(s) too many for "
                f"{few(joints_first(self.over_unknowns))}. Remove measurements (problem − …)"
            )
        parts += (*self.idle, *self.twice)
        return "; ".join(parts) + "."

    def require_solvable(self) -> None:
        """Raise ProblemError for too many equations, StructurallySingular for any other unsound pattern."""
        if self.sound:
            return
        if self.equations < self.unknowns:
            raise StructurallySingular(f"too few equations: {self}", self.undetermined, self.from_equations)
        if not self.free:
            if (rank := _rank(self.system)) < self.unknowns:
                raise StructurallySingular(
                    f"rank {rank} of {self.unknowns} unknowns by {self.equations} equations: some of them say the "
                    "same, and no state makes them tell more; problem.diagnose() names what none of them sees"
                )
            raise ProblemError(f"too many equations: {self}")
        raise StructurallySingular(f"structurally singular: {self}", self.undetermined, self.from_equations)


def structure(system: System, counted: np.ndarray | None = None) -> Structure:
    """Coarse Dulmage-Mendelsohn blocks of the worst-case pattern of a problem's equations.

    The under-determined part is so by all equations, the over-determined one by the exact ones. counted (equations,)
    bool: the equations that are there; None: all.
    """
    plain = system.plain
    there = np.arange(plain.shape[0]) if counted is None else np.flatnonzero(counted)
    exact = there[~plain.noisy_mask[there]]
    pattern = plain.pattern()
    found = dulmage_mendelsohn(pattern[there])
    strict = found if len(exact) == len(there) else dulmage_mendelsohn(pattern[exact])
    equations, unknowns = len(there), pattern.shape[1]
    undetermined = tuple(plain.col_names[c] for c in found.under.columns)
    redundant = tuple(plain.row_names[exact[r]] for r in strict.over.rows)
    twice = held_twice(plain.problem) if found.missing or strict.excess else ()
    return Structure(
        equations=equations, unknowns=unknowns, undetermined=undetermined, free=found.missing, excess=strict.excess,
        from_equations=tuple(plain.row_names[there[r]] for r in found.under.rows),
        redundant=redundant,
        over_unknowns=tuple(plain.col_names[c] for c in strict.over.columns),
        idle=idle_among(plain.model, undetermined),
        twice=twice, system=system,
    )  # fmt: skip


def _rank(system: System) -> int:
    """Rank of the exact and noisy equations together at a random state, rows and columns scaled to one size."""
    D = system.plain.D(system.plain.model.random_state(seed=0)[0]).toarray()
    R, C = balance(np.abs(D))
    return int(np.linalg.matrix_rank(R[:, None] * D * C, rtol=RELATIVE_RANK))
