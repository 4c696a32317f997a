"""Elimination orders of the paper's experiments: articulated bodies, and tearing for load cells."""

from __future__ import annotations

from collections.abc import Sequence

from sysdyn.equations.recursive_orders import Permutations, PivotRecorder
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import ProblemError


def articulated(system: BlockSystem) -> Permutations:
    """Nori eqs. (34), (35) of Property 2: permutations that make W^L D W^R (not D) lower triangular.

    Eq. (35) is corrected: as printed it swaps rows c(τ_i) and known torques, and names a row that does not exist. If
    fB_i is an unknown, it precedes the f_i.
    """
    p = PivotRecorder(system, "articulated")
    if p.known["qdd"] or system.problem.constraints:
        raise ProblemError(
            "the matrices of Property 2 are for forward dynamics: all joint torques known, no constraint"
        )
    p.add_known()
    bodies = range(p.nb)
    for i in reversed(bodies):
        p.add_net_wrench(i)
    for i in reversed(bodies):
        p.add_block("f", i)
    for i in bodies:
        p.add_block("a", i)
    for i in bodies:
        p.add_torques(i, "qdd")
    return p.finish()


def torn(system: BlockSystem) -> tuple[Permutations, Permutations]:
    """Tearing: ((rows, columns) of the ±1 pivots, (rows, columns) of the border).

    For any raw measurements. Pivot order: known fx, τ and q̈; a_i in rows c(a_i) from the base to the leaves; f_i in
    rows c(f_i) and unknown τ_i in rows c(τ_i) from the leaves to the base. This part is triangular. The border has the
    unknown fx and q̈ as columns, and the remaining rows: measured a and f, and c(τ_i) of known τ. Only pivots of the
    border depend on the state; the caller orders them. Border columns are propagated along the tree like right-hand
    sides, so the border should be small. Raises ProblemError for a custom measurement.

    Kron, Diakoptics (1963).
    """
    if system.problem.custom:
        raise ProblemError("ordering 'tearing' is defined for raw measurements only; use 'auto' or 'markowitz'")
    row_of = {name: r for r, name in enumerate(system.row_names)}
    measured, bodies = _measured(system), range(system.model.nb)
    pairs: dict[int, int] = {}  # column → row
    known = _columns(system, [(x, i) for i in bodies for x in ("fx", "tau", "qdd")])
    pairs |= {c: measured[c] for c in known if c in measured}
    out = [(x, i) for i in bodies for x in ("a", "fB")]
    back = [(x, i) for i in reversed(bodies) for x in ("f", "tau")]
    found = _columns(system, [*out, *back])
    pairs |= {c: row_of[f"c:{system.col_names[c]}"] for c in found if c not in pairs}
    used = set(pairs.values())
    rows_left = [r for r in range(system.shape[0]) if r not in used]
    columns_left = [c for c in range(system.shape[1]) if c not in pairs]
    return (list(pairs.values()), list(pairs)), (rows_left, columns_left)


def _measured(system: BlockSystem) -> dict[int, int]:
    """{column of the measured unknown: row of the measurement}."""
    found = {}
    for r, block in enumerate(system.row_blocks):
        if block[0] == "y":
            (column,) = system.assembly.rows[r]
            found[column] = r
    return found


def _columns(system: BlockSystem, blocks: Sequence[tuple[str, int]]) -> list[int]:
    """Columns of `blocks`, in that order; blocks absent from the layout are skipped."""
    columns: dict[tuple[str, int], list[int]] = {}
    for c, block in enumerate(system.col_blocks):
        columns.setdefault(block, []).append(c)
    return [c for block in blocks for c in columns.get(block, ())]
