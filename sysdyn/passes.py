"""Passes: reductions of the operation count that leave the requested outputs unchanged.

Passes are optional and can be combined. Recursions (`sysdyn.recursions`) support all passes, eliminations only those in
ELIMINATION (`sysdyn.equations.formulation`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sysdyn.errors import InvalidInput, UnknownName

# Names and descriptions.
PASSES = {
    "canonical_frames": "body frames are moved to modified Denavit-Hartenberg-like frames: z is the joint axis, and "
    "the fixed transform to the child has as few entries as possible",
    "base_parameters": "inertial parameters that no joint feels are moved to the parent; "
    "applies unless f is an output or measured",
    "classical_accelerations": "a is the classical acceleration of the origin of a body, whose bias needs no linear "
    "velocity; applies unless a is an output or known",
    "symmetric_elimination": "symmetric matrices are eliminated as L D Lᵀ: equal expressions are computed once",
    "double_angle": "symmetric blocks are rotated with 4 multiplications across the axis instead of 16",
    "parallel_axes": "rotations about consecutive parallel axes are replaced by one about the sum of their angles; "
    "tips are not rotated at all",
    "rewriting": "sums and products are re-associated and distributed, several divisions become one reciprocal",
}
ALL = tuple(PASSES)
# Passes that eliminations support.
ELIMINATION = ("canonical_frames", "base_parameters", "classical_accelerations", "symmetric_elimination")
# Passes of the paper's own system: equal expressions are computed once.
PAPER = ("symmetric_elimination",)


def named_passes(passes: str | Sequence[str]) -> tuple[str, ...]:
    """Validated names in the order of PASSES; "all" stands for every pass. Raises UnknownName, InvalidInput."""
    if passes is None:
        raise InvalidInput(f"passes is None: give 'all', or a list of some of {', '.join(PASSES)}, or an empty one")
    names = ALL if passes == "all" else (passes,) if isinstance(passes, str) else tuple(passes)
    for name in names:
        if name not in PASSES:
            raise UnknownName("pass", name, ("all", *PASSES))
    return tuple(name for name in PASSES if name in names)
