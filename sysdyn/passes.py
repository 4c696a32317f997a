"""Passes: ways to write the equations of a problem with fewer operations that leave the requested outputs unchanged.

Each is optional and goes with every other. Recursions (`sysdyn.recursions`) know all of them, eliminations those
in ELIMINATION.
"""

from __future__ import annotations

from collections.abc import Sequence

from sysdyn.errors import InvalidInput, UnknownName

PASSES = {
    "canonical_frames": "joints move along z, what is constant between two axes is a screw, and frames are slid and "
    "turned along their axes to where it is short",
    "base_parameters": "inertial parameters that no joint feels are moved to the parent, in the unit of length that "
    "saves most; where no f is asked for or measured",
    "classical_accelerations": "accelerations of the origins of bodies, whose bias needs no linear velocities; where "
    "a is neither asked for nor known",
    "symmetric_elimination": "symmetric matrices are eliminated as L D Lᵀ: expressions equal by value are one",
    "double_angle": "symmetric blocks are turned with 4 multiplications across the axis instead of 16",
    "parallel_axes": "turns about consecutive parallel axes by the sum of their angles; tips are not turned at all",
    "rewriting": "sums and products re-associated and distributed, divisions by one reciprocal",
}
ALL = tuple(PASSES)
ELIMINATION = ("canonical_frames", "base_parameters", "classical_accelerations", "symmetric_elimination")
PAPER = ("symmetric_elimination",)  # the paper's own system


def named_passes(passes: str | Sequence[str]) -> tuple[str, ...]:
    """The passes in the order of PASSES; "all" of them. Raises UnknownName, InvalidInput."""
    if passes is None:
        raise InvalidInput(f"passes is None: give 'all', or a list of some of {', '.join(PASSES)}, or an empty one")
    names = ALL if passes == "all" else (passes,) if isinstance(passes, str) else tuple(passes)
    for name in names:
        if name not in PASSES:
            raise UnknownName("pass", name, ("all", *PASSES))
    return tuple(name for name in PASSES if name in names)
