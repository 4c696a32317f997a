"""Problems that are not well posed: the values that are determined all the same."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.reduction import Reduction, involved
from sysdyn.equations.block_system import BlockSystem
from sysdyn.errors import ProblemError
from sysdyn.measurements.variables import WRENCHES
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.solution import Solution
from sysdyn.problem import Problem

# An equation contradicts others where more than this share of its terms is left.
AGREEMENT = 1e-8


def least_norm(
    problem: Problem, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    **quantities: ArrayLike,
) -> Solution:  # fmt: skip
    """Solve what can be solved of a problem, state by state: NaN stands for each unknown that is not determined.

    D d + b = 0 by the solution whose q̈, fx and w are smallest, in scaled units; of it only those components are kept
    that are the same in every solution. Redundant equations are welcome as long as they agree.

    q (…, nq), qd (…, nv), and the known quantities and values of measurements as for a Solver: by position, as tau,
    qdd, fx, a, f, or as y={name: …}. Dense matrices of the freedoms that are not known, so slower than a Solver.

    Raises ProblemError where equations contradict each other or are noisy, InvalidInput.
    """
    if any(m.noise is not None for m in problem.measurements):
        raise ProblemError(
            "least_norm takes equations as exact, but this problem has noisy ones: compile it to estimate, "
            "or leave out noise="
        )
    inputs = Inputs(problem)
    arrays, lead = inputs.checked(Arguments(q, qd, known, quantities, y))
    inputs.reject_not_finite(arrays)
    system = problem.system().plain
    reduction = Reduction(system, system.noisy_mask)
    n = math.prod(lead)
    entries, b = (np.broadcast_to(x, (n, x.shape[-1])) for x in system.values(arrays))
    rows, columns = reduction.scaling
    d = np.empty((n, system.layout.n))
    for k in range(n):
        reduced = reduction.at(entries[k])
        x, misfit = reduced.solve(b[k] * rows)
        if misfit.max(initial=0.0) > AGREEMENT:
            residual = np.abs(system.matrix(entries[k]) @ (x * columns) + b[k])
            raise ProblemError(_contradiction(system, involved(reduced.dependent) & (misfit > AGREEMENT), residual, k))
        d[k] = np.where(involved(reduced.free), np.nan, x * columns)
    values = {}
    for quantity in problem.quantities:
        chosen = system.layout.quantity_columns(quantity)
        values[quantity] = d[:, chosen].reshape(*lead, *((-1, 6) if quantity in WRENCHES else (len(chosen),)))
    return Solution(problem, arrays, lead, values, np.ones(lead, dtype=bool))


def _contradiction(system: BlockSystem, involved_rows: np.ndarray, residual: np.ndarray, state: int) -> str:
    """Which equations do not agree, and by how much."""
    worst = np.flatnonzero(involved_rows)
    worst = worst[np.argsort(-residual[worst])]
    named = ", ".join(f"{system.row_names[r]} (off by {residual[r]:.3g})" for r in worst[:6].tolist())
    more = f", … ({len(worst)} in all)" if len(worst) > 6 else ""
    return (
        f"equations contradict each other at state {state}: the nearest solution does not meet {named}{more}; "
        "correct their values, or leave some out: problem.diagnose().removals"
    )
