"""Classical algorithms as elimination orders: RNEA, CRBA + LTDL and ABA as permutations of D.

Each is a sequence of pivots (row, column). The pivots of c(a_i), c(f_i) and known rows are ±1; c(τ_i) gives τ_i if it
is unknown, and q̈_i if τ_i is known: then its pivot is the joint-space inertia that is left, positive at every state.
The rows of constraints give their wrenches, last: A H⁻¹ A^T is left for these, positive definite if the constraints are
independent.
"""

from __future__ import annotations

from collections.abc import Callable

from sysdyn.equations.system import System
from sysdyn.errors import ProblemError
from sysdyn.measurements.classical import torque_freedoms

# An order: the rows and the columns of its pivots, one after the other.
Permutations = tuple[list[int], list[int]]


class PivotRecorder:
    """Rows and columns by block, and the pivots chosen so far."""

    def __init__(self, system: System, name: str):
        self.system = system
        self.rows: dict[tuple[str, int], list[int]] = {}
        self.columns: dict[tuple[str, int], list[int]] = {}
        self.row_perm: list[int] = []
        self.col_perm: list[int] = []
        for r, block in enumerate(system.row_blocks):
            self.rows.setdefault(block, []).append(r)
        for c, block in enumerate(system.col_blocks):
            self.columns.setdefault(block, []).append(c)
        if system.problem.noisy:
            raise ProblemError(f"ordering {name!r} is for exact problems: use 'auto' or 'symmetric' for estimation")
        if len(system.problem.custom) > len(system.problem.constraints):
            raise ProblemError(
                f"ordering {name!r} is defined for raw measurements and constraints only; use 'auto' or 'markowitz'"
            )
        if system.layout.propagated:
            raise ProblemError(f"ordering {name!r} does not know propagated unknowns; use 'auto' or 'markowitz'")
        self.nb = system.model.nb
        self.known = {x: system.problem.knows(x) for x in ("tau", "qdd")}
        if torque_freedoms(system.problem) is None:
            raise ProblemError(
                f"ordering {name!r} needs all external wrenches known and either torque or acceleration of each joint: "
                "use 'auto', 'umfpack' or 'markowitz' for this problem"
            )
        # each stated scalar: its measurement row, if known quantities are rows
        self.row_of_known: dict[int, int] = {}
        for r, (kind, number) in enumerate(system.row_blocks):
            if kind == "y" and number < len(system.problem.raw):
                if len(system.assembly.rows[r]) > 1:
                    raise ProblemError(
                        f"ordering {name!r} needs wrenches stated whole in canonical frames: "
                        "use formulation='paper', or 'auto' for the order"
                    )
                (column,) = system.assembly.rows[r]
                self.row_of_known[column] = r

    def add_known(self) -> None:
        for i in range(self.nb):
            for quantity in ("fx", "tau", "qdd"):
                for c in self.columns.get((quantity, i), ()):
                    if c in self.row_of_known:
                        self.add(self.row_of_known[c], c)

    def add(self, row: int, column: int) -> None:
        self.row_perm.append(row)
        self.col_perm.append(column)

    def add_block(self, quantity: str, i: int) -> None:
        """Take pivots of row block c(quantity_i) in column block quantity_i."""
        for r, c in zip(self.rows.get((quantity, i), ()), self.columns.get((quantity, i), ()), strict=True):
            self.add(r, c)

    def add_torques(self, i: int, unknown: str) -> None:
        """Take pivots of rows c(τ_i) in their unknown, τ_i or q̈_i."""
        columns = dict(zip(self._scalars(unknown, i), self.columns.get((unknown, i), ()), strict=True))
        for k, r in enumerate(self.rows.get(("tau", i), ())):
            if (i, k) not in self.known[unknown]:
                self.add(r, columns[k])

    def _scalars(self, quantity: str, i: int) -> list[int]:
        n = self.system.model.joints[i].nv
        if self.system.form.known == "rows":
            return list(range(n))
        return [k for k in range(n) if (i, k) not in self.known[quantity]]

    def add_net_wrench(self, i: int) -> None:
        if self.system.layout.name == "net_force":
            self.add_block("fB", i)

    def permutations(self) -> Permutations:
        for k in range(len(self.system.problem.constraints)):
            number = len(self.system.problem.raw) + k
            for r, c in zip(self.rows["y", number], self.columns["w", k], strict=True):
                self.add(r, c)
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
    return p.permutations()


def aba(system: System) -> Permutations:
    """The articulated-body algorithm: per body from the leaves, f_i, a_i, then q̈_i.

    Nori eqs. (34), (35) order the matrix W^L D W^R, in which the pivots of D have been applied already; applied to D
    itself they are these pivots, each body's taken together, so that I^A and p^A (eq. 13) are left for the parent.
    """
    p = PivotRecorder(system, "aba")
    p.add_known()
    for i in reversed(range(p.nb)):
        p.add_net_wrench(i)
        p.add_block("f", i)
        p.add_torques(i, "tau")
        p.add_block("a", i)
        p.add_torques(i, "qdd")
    return p.permutations()


def crba(system: System) -> Permutations:
    """Composite rigid bodies, then LTDL: f_i, a_i from the leaves leave H q̈ + C = τ, whose pivots are q̈_n … q̈_1."""
    p = PivotRecorder(system, "crba")
    p.add_known()
    for i in reversed(range(p.nb)):
        p.add_net_wrench(i)
        p.add_block("f", i)
        p.add_torques(i, "tau")
        p.add_block("a", i)
    for i in reversed(range(p.nb)):
        p.add_torques(i, "qdd")
    return p.permutations()


# Elimination orders by the name of the classical algorithm.
RECURSIVE: dict[str, Callable[[System], Permutations]] = {"rnea": rnea, "aba": aba, "crba": crba}
