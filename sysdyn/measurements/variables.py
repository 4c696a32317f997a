"""Names and places of the unknowns: a, (fB,) f, τ, fx, q̈ of every body, and further quantities.

Nori section III-A. Per body i: a_i (6) proper spatial acceleration, f_i (6) wrench transmitted to body i across joint
i, τ_i (n_i), fx_i (6) external wrench, q̈_i (n_i), all in coordinates of body i, angular part first. The layout of the
paper's published code has the net force fB_i = I_i a_i + ν_i (6) as one more. A constraint (`Constraint`) has a block
of its own, w: the components of its wrench. X_i a_λ(i) and X_i^T f_i are unknowns, too, at the joints of
`sysdyn.equations.propagated_unknowns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sysdyn.errors import check_among
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, WRENCHES, Quantity, WrenchQuantity

# Layouts of the unknowns.
LAYOUTS = ("paper", "net_force")


@dataclass(frozen=True)
class Layout:
    """Order of the unknowns d, the dynamic variables, as columns of the coefficient matrix D (Nori section III-A).

    `[a, (fB,) f, τ]` body by body, then `[fx, q̈]` body by body (the order of the published experiments), then further
    quantities, then w constraint by constraint, then propagated unknowns, then the Lagrange multipliers of the
    equations of an estimation problem. A block is the columns of one quantity of one body, (quantity, index of body).

    wrenches: quantity w of the constraints; the block of constraint k is ("w", k).
    propagated: blocks ("Xa", i) of X_i a_λ(i) and ("Xf", i) of X_i^T f_i.
    multipliers: number of Lagrange multipliers, which have no block. further: names of user-defined quantities.
    """

    model: Model
    name: str = "paper"
    wrenches: WrenchQuantity = WRENCHES
    propagated: tuple[tuple[str, int], ...] = ()
    multipliers: int = 0
    further: tuple[str, ...] = ()

    def __post_init__(self):
        check_among("layout", self.name, LAYOUTS)

    @cached_property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """(quantity, body) of each block column, in order; ("w", number of the constraint)."""
        inner = ("a", "fB", "f", "tau") if self.name == "net_force" else ("a", "f", "tau")
        bodies = range(self.model.nb)
        outer = tuple((x, i) for i in bodies for x in ("fx", "qdd"))
        outer += tuple((x, i) for x in self.further for i in bodies)
        return tuple((x, i) for i in bodies for x in inner) + outer + self._blocks_of("w") + self.propagated

    def _blocks_of(self, quantity: str) -> tuple[tuple[str, int], ...]:
        return tuple((quantity, i) for i in range(len(self.of(quantity).owners(self.model))))

    def of(self, quantity: str) -> Quantity:
        """The quantity of this name."""
        return self.wrenches if quantity == self.wrenches.name else QUANTITY[quantity]

    @cached_property
    def _start(self) -> dict[tuple[str, int], int]:
        start, at = {}, 0
        for block in self.blocks:
            start[block] = at
            at += self.size(*block)
        return start

    def size(self, quantity: str, body: int) -> int:
        return self.of(quantity).size(self.model, body)

    def columns(self, quantity: str, body: int) -> range:
        """Column numbers of a block."""
        start = self._start[quantity, body]
        return range(start, start + self.size(quantity, body))

    def quantity_columns(self, quantity: str) -> list[int]:
        """Columns of a quantity over all bodies, in the order of its full-size array."""
        return [c for block in self._blocks_of(quantity) for c in self.columns(*block)]

    @cached_property
    def n(self) -> int:
        return sum(self.size(*block) for block in self.blocks) + self.multipliers

    def block(self, quantity: str, owner: str) -> tuple[str, int]:
        """(quantity, body) of the block of that owner. Raises UnknownName."""
        return quantity, self.of(quantity).index(self.model, owner)

    def owner(self, quantity: str, body: int) -> str:
        """Name of the block's owner: the joint's for τ and q̈, the constraint's for w, else the body's."""
        return self.of(quantity).owners(self.model)[body]

    def units_at(self, quantity: str, body: int) -> list[str]:
        """Unit of each scalar of a block."""
        return self.of(quantity).units_at(self.model, body)

    def scalar_names(self, quantity: str, body: int) -> list[str]:
        return self.of(quantity).scalar_names(self.model, body)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each scalar unknown, such as `f(l_foot).nz` or `tau(l_knee)`."""
        return tuple(name for block in self.blocks for name in self.scalar_names(*block))
