"""Classical algorithms as elimination orders: RNEA, CRBA + LTDL and ABA as permutations of D.

Each is a sequence of pivots (row, column). The pivots of c(a_i), c(f_i) and known rows are ±1. c(τ_i) gives τ_i if it
is unknown. If τ_i is known, it gives q̈_i, and its pivot is the remaining joint-space inertia, positive at every state.
The rows of constraints come last and give their wrenches. Their pivots factor A H⁻¹ A^T, which is positive definite if
the constraints are independent.
"""

from __future__ import annotations

from collections.abc import Callable

from sysdyn.equations.system import System
from sysdyn.errors import ProblemError
from sysdyn.measurements.classical import torque_freedoms

# An order: the rows and the columns of its pivots, one after the other.
Permutations = tuple[list[int], list[int]]


class PivotRecorder:
    """Records pivots of an exact system by block, for an order called `name`. Raises ProblemError for other systems."""

    def __init__(self, system: System, name: str):
        self.system, self.nb = system, system.model.nb
        self.row_perm: list[int] = []
        self.col_perm: list[int] = []
        self.known = {x: system.problem.knows(x) for x in ("tau", "qdd")}
        problem = system.problem
        sensors = problem.noisy or len(problem.custom) > len(problem.constraints)
        if sensors or system.layout.propagated or torque_freedoms(problem) is None:
            raise ProblemError(
                f"ordering {name!r} needs exact values of all external wrenches and of either the torque or the "
                "acceleration of each joint, no sensors but constraints, and no propagated unknowns: use 'auto' or "
                "'markowitz'"
            )
        self._rows: dict[tuple[str, int], list[int]] = {}
        for r, block in enumerate(system.row_blocks):
            self._rows.setdefault(block, []).append(r)
        self._column = {number: c for c, number in enumerate(system.columns)}  # by the number in the layout
        self._row_of_known: dict[int, int] = {}  # {column: row} of the scalars that are known by a row
        for r in (r for k in range(len(problem.raw)) for r in self._rows.get(("y", k), ())):
            if len(system.assembly.rows[r]) > 1:
                raise ProblemError(
                    f"ordering {name!r} needs wrenches stated whole in canonical frames: use formulation='paper', or "
                    "'auto' for the order"
                )
            self._row_of_known[next(iter(system.assembly.rows[r]))] = r

    def add(self, row: int, column: int) -> None:
        self.row_perm.append(row)
        self.col_perm.append(column)

    def add_known(self) -> None:
        """Append the pivots of the rows x = y that state known scalars."""
        for i in range(self.nb):
            for quantity in ("fx", "tau", "qdd"):
                for number in self.system.layout.columns(quantity, i):
                    column = self._column.get(number, -1)
                    if column in self._row_of_known:
                        self.add(self._row_of_known[column], column)

    def add_block(self, quantity: str, i: int, equation: tuple[str, int] | None = None) -> None:
        """Append the pivots of the row block `equation` (default c(quantity_i)) and the column block quantity_i."""
        numbers = self.system.layout.columns(quantity, i)
        for r, number in zip(self._rows[equation or (quantity, i)], numbers, strict=True):
            self.add(r, self._column[number])

    def add_net_wrench(self, i: int) -> None:
        if self.system.layout.name == "net_force":
            self.add_block("fB", i)

    def add_torques(self, i: int, unknown: str) -> None:
        """Append the pivots of the rows c(τ_i) in the columns of their unknown, τ_i or q̈_i."""
        for k, number in enumerate(self.system.layout.columns(unknown, i)):
            if (i, k) not in self.known[unknown]:
                self.add(self._rows["tau", i][k], self._column[number])

    def finish(self) -> Permutations:
        """Append the pivots of the constraints and return the complete order. Their unknowns are their wrenches."""
        for k in range(len(self.system.problem.constraints)):
            self.add_block("w", k, ("y", len(self.system.problem.raw) + k))
        return self.row_perm, self.col_perm


def rnea(system: System) -> Permutations:
    """Recursive Newton-Euler algorithm: D of inverse dynamics becomes lower triangular. Nori eqs. (11), (12)."""
    p = PivotRecorder(system, "rnea")
    if p.known["tau"] or system.problem.constraints:
        raise ProblemError(
            "ordering 'rnea' is for inverse dynamics (all joint accelerations known): use 'aba' or 'auto'"
        )
    p.add_known()
    for i in range(p.nb):
        p.add_block("a", i)
        p.add_net_wrench(i)
    for i in reversed(range(p.nb)):
        p.add_block("f", i)
        p.add_torques(i, "tau")
    return p.finish()


def aba(system: System) -> Permutations:
    """The articulated-body algorithm: per body from the leaves, f_i, a_i, then q̈_i.

    Nori eqs. (34), (35) order the matrix W^L D W^R, to which the pivots of D have been applied. Here each body's pivots
    are applied to D together, so that I^A and p^A (eq. 13) remain for the parent.
    """
    p = PivotRecorder(system, "aba")
    p.add_known()
    for i in reversed(range(p.nb)):
        p.add_net_wrench(i)
        p.add_block("f", i)
        p.add_torques(i, "tau")
        p.add_block("a", i)
        p.add_torques(i, "qdd")
    return p.finish()


def crba(system: System) -> Permutations:
    """Composite rigid bodies, then LTDL: pivots f_i, a_i from the leaves, then q̈_n … q̈_1 of H q̈ + C = τ."""
    p = PivotRecorder(system, "crba")
    p.add_known()
    for i in reversed(range(p.nb)):
        p.add_net_wrench(i)
        p.add_block("f", i)
        p.add_torques(i, "tau")
        p.add_block("a", i)
    for i in reversed(range(p.nb)):
        p.add_torques(i, "qdd")
    return p.finish()


# Elimination orders by the name of the classical algorithm.
RECURSIVE: dict[str, Callable[[System], Permutations]] = {"rnea": rnea, "aba": aba, "crba": crba}
