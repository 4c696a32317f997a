"""Structural well-posedness by the Dulmage-Mendelsohn blocks of the worst-case pattern, and names of unknowns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sysdyn.equations.system import BlockSystem, System
from sysdyn.sparse.dulmage import dulmage_mendelsohn

# Quantities that users state most often; they are named first.
LEADING = ("w", "fx", "qdd", "tau")


class Structure(NamedTuple):
    """Structural rank deficiency (by the pattern alone).

    missing: number of equations that the under-determined part lacks; undetermined: the columns of this part. excess:
    number of surplus exact equations in the over-determined part; redundant: the rows of this part.
    """

    missing: int
    excess: int
    undetermined: tuple[int, ...]
    redundant: tuple[int, ...]

    @property
    def sound(self) -> bool:
        return self.missing == 0 and self.excess == 0


def structure(system: System, active: np.ndarray | None = None) -> Structure:
    """The structure of the active equations of a problem.

    active (equations,) bool: equations that count; None: all.
    """
    plain = system.plain
    rows = np.arange(plain.shape[0]) if active is None else np.flatnonzero(active)
    exact = rows[~plain.noisy_mask[rows]]
    pattern = plain.pattern()
    blocks = dulmage_mendelsohn(pattern[rows])
    of_exact = blocks if len(exact) == len(rows) else dulmage_mendelsohn(pattern[exact])
    redundant = exact[list(of_exact.over.rows)].tolist()
    return Structure(blocks.missing, of_exact.excess, tuple(blocks.under.columns), tuple(redundant))


def unknown_names(system: BlockSystem, columns: Iterable[int]) -> tuple[str, ...]:
    """Names of unknowns, those of `LEADING` quantities first."""
    rank = {quantity: k for k, quantity in enumerate(LEADING)}
    order = sorted(columns, key=lambda c: (rank.get(system.col_blocks[c][0], len(rank)), c))
    return tuple(system.col_names[c] for c in order)


def equation_names(system: BlockSystem, rows: Iterable[int]) -> tuple[str, ...]:
    """Names of equations: measurements first, the last stated first, because it is most likely redundant."""
    order = sorted(rows, key=lambda r: (system.row_blocks[r][0] != "y", -r))
    return tuple(system.row_names[r] for r in order)
