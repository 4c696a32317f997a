"""Names and places of the unknowns: a, (fB,) f, τ, fx, q̈ of every body.

Nori section III-A. Per body i: a_i (6) proper spatial acceleration, f_i (6) wrench transmitted to body i across joint
i, τ_i (n_i), fx_i (6) external wrench, q̈_i (n_i), all in coordinates of body i, angular part first. The layout of the
paper's published code has the net force fB_i = I_i a_i + ν_i (6) as one more. A constraint (`Constraint`) has a block
of its own, w: the components of its wrench. X_i a_λ(i) and X_i^T f_i are unknowns, too, where
`sysdyn.equations.turned_joints` asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sysdyn.errors import UnknownName
from sysdyn.model import Model

# The components of a wrench have these names.
WRENCH = ("nx", "ny", "nz", "fx", "fy", "fz")
# The components of a spatial acceleration have these names.
ACCELERATION = ("alpha_x", "alpha_y", "alpha_z", "a_x", "a_y", "a_z")
# Six numbers of a body have these names, by quantity; the other quantities have the freedoms of the joints.
COMPONENTS = {"a": ACCELERATION, "fB": WRENCH, "f": WRENCH, "fx": WRENCH, "Xa": ACCELERATION, "Xf": WRENCH}
# A user can know or ask for these quantities.
QUANTITIES = ("tau", "qdd", "fx", "a", "f")
# These quantities are arrays (nb, 6); τ and q̈ are arrays (nv,).
WRENCHES = ("fx", "a", "f")
# The angular and the linear part of each quantity, and of the state, have these units.
PARTS = {
    "q": ("rad", "m"), "qd": ("rad/s", "m/s"),
    **dict.fromkeys(("qdd", "a", "Xa"), ("rad/s²", "m/s²")),
    **dict.fromkeys(("tau", "fx", "f", "fB", "Xf", "w"), ("N m", "N")),
}  # fmt: skip
# Scalars of a quantity have one of these units: those of a joint the one that its freedoms have.
UNITS = {x: PARTS[x] if x in WRENCHES else (" or ".join(PARTS[x]),) for x in QUANTITIES}
# The component of this name has this unit.
UNIT_OF = {c: PARTS[x][k // 3] for x in ("f", "a") for k, c in enumerate(COMPONENTS[x])}
# The unknowns can be laid out in these ways.
LAYOUTS = ("paper", "net_force")


def freedom_units(model: Model, quantity: str) -> list[str]:
    """Unit of each freedom (nv) of qd, qdd or tau: whether it is a turn or a slide."""
    angular, straight = PARTS[quantity]
    return [angular if np.any(joint.S[:3, k]) else straight for joint in model.joints for k in range(joint.nv)]


def flat_place(model: Model, quantity: str, body: int, component: int) -> int:
    """Place of a scalar in the flat array of its quantity."""
    return 6 * body + component if quantity in WRENCHES else model.v_slice(body).start + component


@dataclass(frozen=True)
class Layout:
    """Columns of D.

    `[a, (fB,) f, τ]` body by body, then `[fx, q̈]` body by body (the order of the published experiments), then w
    constraint by constraint, then what is turned, then the multipliers of an estimation problem's equations.

    constraints: (name, components of its wrench) of each. Its block is ("w", its number).
    turned: blocks ("Xa", i) of X_i a_λ(i) and ("Xf", i) of X_i^T f_i.
    multipliers: how many there are; they have no block.
    """

    model: Model
    name: str = "paper"
    constraints: tuple[tuple[str, tuple[str, ...]], ...] = ()
    turned: tuple[tuple[str, int], ...] = ()
    multipliers: int = 0

    def __post_init__(self):
        if self.name not in LAYOUTS:
            raise UnknownName("layout", self.name, LAYOUTS)

    @cached_property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """(quantity, body) of each block column, in order; ("w", number of the constraint)."""
        inner = ("a", "fB", "f", "tau") if self.name == "net_force" else ("a", "f", "tau")
        bodies = range(self.model.nb)
        outer = tuple((x, i) for i in bodies for x in ("fx", "qdd"))
        return tuple((x, i) for i in bodies for x in inner) + outer + self._blocks_of("w") + self.turned

    def _blocks_of(self, quantity: str) -> tuple[tuple[str, int], ...]:
        n = len(self.constraints) if quantity == "w" else self.model.nb
        return tuple((quantity, i) for i in range(n))

    @cached_property
    def _start(self) -> dict[tuple[str, int], int]:
        start, at = {}, 0
        for block in self.blocks:
            start[block] = at
            at += self.size(*block)
        return start

    def size(self, quantity: str, body: int) -> int:
        if quantity == "w":
            return len(self.constraints[body][1])
        return self.model.joints[body].nv if quantity in ("tau", "qdd") else 6

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
        """(quantity, body) of the block known under that name. Raises UnknownName."""
        if quantity == "w":
            names = [name for name, _ in self.constraints]
            if owner not in names:
                raise UnknownName("constraint", owner, names)
            return quantity, names.index(owner)
        find = self.model.joint_index if quantity in ("tau", "qdd") else self.model.body_index
        return quantity, find(owner)

    def owner(self, quantity: str, body: int) -> str:
        """Name under which the block is known: the joint's for τ and q̈, the constraint's for w, else the body's."""
        if quantity == "w":
            return self.constraints[body][0]
        return (self.model.joint_names if quantity in ("tau", "qdd") else self.model.body_names)[body]

    def scalar_names(self, quantity: str, body: int) -> list[str]:
        owner, size = self.owner(quantity, body), self.size(quantity, body)
        if quantity == "w":
            return [f"w({owner}).{c}" for c in self.constraints[body][1]]
        if quantity in COMPONENTS:
            return [f"{quantity}({owner}).{c}" for c in COMPONENTS[quantity]]
        return [f"{quantity}({owner})"] if size == 1 else [f"{quantity}({owner})[{k}]" for k in range(size)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each scalar unknown, such as `f(l_foot).nz` or `tau(l_knee)`."""
        return tuple(name for block in self.blocks for name in self.scalar_names(*block))
