"""The system of a problem: its equations with named rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.formulation import formulate
from sysdyn.equations.system import BlockSystem
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITIES
from sysdyn.passes import PAPER, named_passes


def assemble(
    problem: Problem,
    layout: str = "paper",
    known: str = "rows",
    propagate: bool = False,
    passes: Sequence[str] = PAPER,
    outputs: Sequence[Output] = QUANTITIES,
) -> BlockSystem | AugmentedSystem:
    """Assemble the equations D(q) d + b(q, q̇) = 0 of a problem, with named rows and columns.

    Parameters
    ----------
    problem : Problem
        The model and its measurements.
    layout : str
        "paper": a, f, τ, fx and q̈ are unknowns, 20 scalars for a body with one degree of freedom. "net_force":
        also fB = I a + ν, 26 scalars.
    known : str
        "rows": a known quantity is an equation x = y. "substituted": it is moved into b and has no column.
    propagate : bool
        Add unknowns X a and X^T f along the paths by which accelerations and wrenches propagate from sensors. No
        effect on problems with noise.
    passes : sequence of str, or "all"
        Names from `sysdyn.PASSES`; passes that do not apply are skipped. With "canonical_frames" the unknowns a, f
        and fx are not in body frames, but inputs, noise and `output_terms` are.
    outputs : sequence of str and Measurement
        Quantities that keep their meaning under the passes, and measurements whose values are written in terms
        of the unknowns.

    Returns
    -------
    BlockSystem or AugmentedSystem
        An AugmentedSystem if the problem has noise: its solution is the estimate, and its attribute `plain` is the
        BlockSystem of the equations. The problem caches the system, so equal arguments give the same object.
    """
    propagate, names = propagate and not problem.noisy, named_passes(passes)

    def build() -> BlockSystem | AugmentedSystem:
        plain = BlockSystem(formulate(problem, layout, known, propagate, names, outputs))
        return AugmentedSystem(plain) if problem.noisy else plain

    # measurements by identity: the cached system keeps them alive
    keys = tuple(x if isinstance(x, str) else id(x) for x in outputs)
    return problem.cached(("system", layout, known, propagate, names, keys), build)
