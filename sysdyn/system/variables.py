"""Names and places of the unknowns: a, (fB,) f, τ, fx, q̈ of every body.

Nori section III-A. Per body i: a_i (6) proper spatial acceleration, f_i (6) wrench transmitted to body i across joint
i, τ_i (n_i), fx_i (6) external wrench, q̈_i (n_i), all in coordinates of body i, angular part first. The layout of the
paper's published code has the net force fB_i = I_i a_i + ν_i (6) as one more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sysdyn.errors import UnknownName
from sysdyn.model import Model

WRENCH = ("nx", "ny", "nz", "fx", "fy", "fz")
ACCELERATION = ("alpha_x", "alpha_y", "alpha_z", "a_x", "a_y", "a_z")
COMPONENTS = {"a": ACCELERATION, "fB": WRENCH, "f": WRENCH, "fx": WRENCH}
UNITS = {
    "a": ("rad/s²", "m/s²"),
    "f": ("N m", "N"),
    "fx": ("N m", "N"),
    "tau": ("N m or N",),
    "qdd": ("rad/s² or m/s²",),
}
QUANTITIES = ("tau", "qdd", "fx", "a", "f")  # those a user can know or ask for
LAYOUTS = ("paper", "net_force")


@dataclass(frozen=True)
class Layout:
    """Columns of D.

    `[a, (fB,) f, τ]` body by body, then `[fx, q̈]` body by body (the order of the published experiments).
    """

    model: Model
    name: str = "paper"

    def __post_init__(self):
        if self.name not in LAYOUTS:
            raise UnknownName("layout", self.name, LAYOUTS)

    @cached_property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """(quantity, body) of each block column, in order."""
        inner = ("a", "fB", "f", "tau") if self.name == "net_force" else ("a", "f", "tau")
        bodies = range(self.model.nb)
        return tuple((x, i) for i in bodies for x in inner) + tuple((x, i) for i in bodies for x in ("fx", "qdd"))

    @cached_property
    def _start(self) -> dict[tuple[str, int], int]:
        start, at = {}, 0
        for block in self.blocks:
            start[block] = at
            at += self.size(*block)
        return start

    def size(self, quantity: str, body: int) -> int:
        return self.model.joints[body].nv if quantity in ("tau", "qdd") else 6

    def columns(self, quantity: str, body: int) -> range:
        """Column numbers of a block."""
        start = self._start[quantity, body]
        return range(start, start + self.size(quantity, body))

    def quantity_columns(self, quantity: str) -> list[int]:
        """Columns of a quantity over all bodies, in the order of its full-size array."""
        return [c for i in range(self.model.nb) for c in self.columns(quantity, i)]

    @property
    def n(self) -> int:
        return sum(self.size(*block) for block in self.blocks)

    def owner(self, quantity: str, body: int) -> str:
        """Name under which the block is known: the joint's for τ and q̈, else the body's."""
        return (self.model.joint_names if quantity in ("tau", "qdd") else self.model.body_names)[body]

    def scalar_names(self, quantity: str, body: int) -> list[str]:
        owner, size = self.owner(quantity, body), self.size(quantity, body)
        if quantity in COMPONENTS:
            return [f"{quantity}({owner}).{c}" for c in COMPONENTS[quantity]]
        return [f"{quantity}({owner})"] if size == 1 else [f"{quantity}({owner})[{k}]" for k in range(size)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each scalar unknown, such as `f(l_foot).nz` or `tau(l_knee)`."""
        return tuple(name for block in self.blocks for name in self.scalar_names(*block))
