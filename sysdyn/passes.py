"""Passes: ways to write the equations of a problem with fewer operations that leave the requested outputs unchanged.

Each is optional and goes with every other. Recursions (`sysdyn.recursions`) know all of them, eliminations those that
`sysdyn.equations.passes` applies to a system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sysdyn.errors import InvalidInput, UnknownName


@dataclass(frozen=True)
class Pass:
    """The effect of a pass, and the way back from its form to the requested outputs."""

    name: str
    says: str
    back: str
    elimination: bool = False  # eliminations know it, too

    def __str__(self) -> str:
        return f"{self.name}: {self.says}; {self.back}"


TABLE = (
    Pass(
        "canonical_frames",
        "joints move along z, what is constant between two axes is a screw, and frames are slid and turned along their "
        "axes to where it is short",
        "a, f and fx are turned back to the frames of the bodies by constant transforms",
        elimination=True,
    ),
    Pass(
        "base_parameters",
        "inertial parameters that no joint feels are moved to the parent, in the unit of length that saves most; where "
        "no f is asked for or measured",
        "τ, q̈ and a are the same",
        elimination=True,
    ),
    Pass(
        "classical_accelerations",
        "accelerations of the origins of bodies, whose bias needs no linear velocities; where a is neither asked for "
        "nor known",
        "τ, q̈, f and fx are the same",
        elimination=True,
    ),
    Pass(
        "symmetric_elimination",
        "symmetric matrices are eliminated as L D Lᵀ: expressions equal by value are one",
        "nothing is changed",
        elimination=True,
    ),
    Pass(
        "double_angle",
        "symmetric blocks are turned with 4 multiplications across the axis instead of 16",
        "nothing is changed",
    ),
    Pass(
        "parallel_axes",
        "turns about consecutive parallel axes by the sum of their angles; tips are not turned at all",
        "τ and q̈ are the same",
    ),
    Pass(
        "rewriting",
        "sums and products re-associated and distributed, divisions by one reciprocal",
        "nothing is changed",
    ),
)
PASSES = {x.name: x.says for x in TABLE}
ALL = tuple(PASSES)
ELIMINATION = tuple(x.name for x in TABLE if x.elimination)
# Passes of the paper's own system: it shares equal expressions, and nothing else.
PAPER = ("symmetric_elimination",)


def named_passes(passes: str | Sequence[str]) -> tuple[str, ...]:
    """The passes in the order of PASSES; "all" of them. Raises UnknownName, InvalidInput."""
    if passes is None:
        raise InvalidInput(f"passes is None: give 'all', or a list of some of {', '.join(PASSES)}, or an empty one")
    names = ALL if passes == "all" else (passes,) if isinstance(passes, str) else tuple(passes)
    for name in names:
        if name not in PASSES:
            raise UnknownName("pass", name, ("all", *PASSES))
    return tuple(name for name in PASSES if name in names)
