"""Structural well-posedness in names: Dulmage-Mendelsohn blocks of the worst-case pattern."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sysdyn.diagnosis.advice import Blocks, duplicate_constraints, inertialess_among
from sysdyn.diagnosis.null_space import ZERO
from sysdyn.equations.system import BlockSystem, System
from sysdyn.errors import ProblemError, StructurallySingular, few
from sysdyn.sparse.condition import balance
from sysdyn.sparse.dulmage import dulmage_mendelsohn

# Quantities that a user thinks of and that are named first, with further ones.
LEADING = ("w", "fx", "qdd", "tau")


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Well-posedness by the pattern alone: the unknowns and equations of its under- and over-determined parts.

    undetermined          unknowns of the under-determined part
    from_equations        equations of that part, `missing` fewer than its unknowns
    redundant             exact equations of the over-determined part, measurements first
    over_unknowns         unknowns of that part, `excess` fewer than its equations
    inertialess           sentences about joints that move no inertia, so that their accelerations are undetermined
    duplicates            sentences about constraints that fix the same motion
    undetermined_blocks   (quantity, body or constraint) of the undetermined unknowns
    """

    equations: int
    unknowns: int
    undetermined: tuple[str, ...]
    from_equations: tuple[str, ...]
    missing: int
    redundant: tuple[str, ...]
    over_unknowns: tuple[str, ...]
    excess: int
    inertialess: tuple[str, ...]
    duplicates: tuple[str, ...]
    undetermined_blocks: Blocks
    system: System = field(repr=False, compare=False)

    @property
    def sound(self) -> bool:
        return self.missing == 0 and self.excess == 0

    def __str__(self) -> str:
        parts = [f"{self.equations} equations for {self.unknowns} unknowns"]
        if self.missing:
            parts.append(
                f"{few(self.undetermined)} cannot be determined: {self.missing} equation(s) missing"
                + (f"; only {few(self.from_equations)} contain them" if self.from_equations else "")
                + ". State some of them, for example as JointTorque, JointAcceleration or ExternalWrench"
            )
        if self.excess:
            parts.append(
                f"{few(self.redundant)} are {self.excess} equation(s) too many for {few(self.over_unknowns)}. Remove "
                "measurements (problem − …)"
            )
        return "; ".join((*parts, *self.inertialess, *self.duplicates)) + "."

    def require_solvable(self) -> None:
        """Raise ProblemError for too many equations, StructurallySingular for any other unsound pattern."""
        if self.sound:
            return
        if self.equations < self.unknowns:
            raise StructurallySingular(f"too few equations: {self}", self.undetermined, self.from_equations)
        if self.missing:
            raise StructurallySingular(f"structurally singular: {self}", self.undetermined, self.from_equations)
        if (rank := _rank(self.system)) < self.unknowns:
            raise StructurallySingular(
                f"rank {rank} of {self.unknowns} unknowns by {self.equations} equations: at every state some repeat "
                "others; problem.diagnose() names what none of them observes"
            )
        raise ProblemError(f"too many equations: {self}")


def structure(system: System, active: np.ndarray | None = None) -> Structure:
    """Coarse Dulmage-Mendelsohn blocks of the worst-case pattern of a problem's equations.

    All equations together make the under-determined part, the exact ones the over-determined part. active (equations,)
    bool: equations that count; None: all.
    """
    plain = system.plain
    rows = np.arange(plain.shape[0]) if active is None else np.flatnonzero(active)
    exact = rows[~plain.noisy_mask[rows]]
    pattern = plain.pattern()
    blocks = dulmage_mendelsohn(pattern[rows])
    of_exact = blocks if len(exact) == len(rows) else dulmage_mendelsohn(pattern[exact])
    undetermined = frozenset(plain.col_blocks[c] for c in blocks.under.columns)
    ill_posed = bool(blocks.missing or of_exact.excess)
    return Structure(
        equations=len(rows), unknowns=pattern.shape[1], missing=blocks.missing, excess=of_exact.excess,
        undetermined=unknown_names(plain, blocks.under.columns),
        from_equations=tuple(plain.row_names[rows[r]] for r in blocks.under.rows),
        redundant=equation_names(plain, exact[list(of_exact.over.rows)]),
        over_unknowns=unknown_names(plain, of_exact.over.columns),
        inertialess=inertialess_among(plain.model, undetermined),
        duplicates=duplicate_constraints(plain.problem) if ill_posed else (),
        undetermined_blocks=undetermined, system=system,
    )  # fmt: skip


def unknown_names(system: BlockSystem, columns) -> tuple[str, ...]:
    """Names of unknowns, those that a user would state first."""
    rank = {quantity: k for k, quantity in enumerate(LEADING)}
    order = sorted(columns, key=lambda c: (rank.get(system.col_blocks[c][0], len(rank)), c))
    return tuple(system.col_names[c] for c in order)


def equation_names(system: BlockSystem, rows) -> tuple[str, ...]:
    """Names of equations: measurements, those stated last first since they are likeliest redundant, then the others."""
    order = sorted(rows, key=lambda r: (system.row_blocks[r][0] != "y", -r))
    return tuple(system.row_names[r] for r in order)


def _rank(system: System) -> int:
    """Rank of all equations at a random state, rows and columns balanced."""
    D = system.plain.D(system.plain.model.random_state(seed=0)[0]).toarray()
    R, C = balance(np.abs(D))
    return int(np.linalg.matrix_rank(R[:, None] * D * C, rtol=ZERO))
