"""Problems that are not well posed: their smallest solution, and the determined parts of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.equations.system import BlockSystem
from sysdyn.errors import InvalidInput, ProblemError, check_among, few
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.calls import Result, copied
from sysdyn.online.smallest import Smallest
from sysdyn.online.solution import About, Solution
from sysdyn.problem import Problem
from sysdyn.program.arrays import float_array
from sysdyn.program.groups import Group


class LeastNormSolution(Solution):
    """The smallest of many solutions; `determined` marks the values that are the same in all of them.

    determined: {quantity: bool array of its shape}; np.where(solution.determined["fx"], solution.fx, np.nan) hides what
    is not. undetermined: names of the unknowns that are not at some of the states, in the order of the system.
    """

    determined: dict[str, np.ndarray]
    undetermined: tuple[str, ...]


def least_norm(
    problem: Problem, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    weights: Named | None = None, **quantities: ArrayLike,
) -> LeastNormSolution:  # fmt: skip
    """The smallest solution of a problem that has many, state by state, with masks of the determined values.

        min ‖W d‖   subject to   D d + b = 0

    q (…, nq), qd (…, nv), and the known quantities and values of measurements as for a Solver, in
    tau=, qdd=, fx=, a=, f= or y={name: …}. Redundant equations are welcome as long as they agree. Dense matrices of the
    degrees of freedom that are not known, so slower than a Solver.

    weights: {quantity: number, or array of its shape at one state, ≥ 0} of tau, qdd, fx, a, f, w: W is diagonal, zero
        where nothing is given; a standard deviation σ is the weight 1/σ. Among solutions that weigh the same, and
        without weights, q̈, fx and w are smallest in natural sizes: 1 rad/s² and 1 m/s² count as much as a force of M N
        and a moment of M N m, M [kg] the mass of the robot (1 if it has none).

    Raises ProblemError if equations contradict each other or are noisy, InvalidInput, UnknownName.
    """
    if problem.noisy:
        raise ProblemError(
            "least_norm takes equations as exact, but this problem has noisy ones: compile it to estimate, "
            "or leave out noise="
        )
    inputs = Inputs(problem)
    arrays, lead = inputs.checked(Arguments(q, qd, known, quantities, y))
    inputs.groups.reject_not_finite(arrays)
    system = problem.system().plain
    n = math.prod(lead)
    smallest = Smallest(system, _weights(system, {} if weights is None else weights))
    entries, b = (np.broadcast_to(x, (n, x.shape[-1])) for x in system.values(arrays))
    d, free = np.empty((n, system.layout.n)), np.empty((n, system.layout.n), dtype=bool)
    for k in range(n):
        d[k], free[k], against = smallest.at(entries[k], b[k])
        if against.any():
            residual = np.abs(system.matrix(entries[k]) @ d[k] + b[k])
            raise ProblemError(_contradiction(system, against, residual, k))
    outputs = problem.outputs(problem.quantities)
    values = {x: _shaped(system, d, group, lead) for x, group in outputs.items()}
    results = Result(copied(arrays), lead, values, np.zeros(n, dtype=np.int64))
    solution = LeastNormSolution(About(problem, outputs), results)
    solution.determined = {x: ~_shaped(system, free, group, lead) for x, group in outputs.items()}
    solution.undetermined = tuple(np.array(system.col_names)[free.any(axis=0)].tolist())
    return solution


def _weights(system: BlockSystem, given: Mapping[str, ArrayLike]) -> np.ndarray:
    """(unknowns,) the weights of a call. Raises InvalidInput, UnknownName."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"weights is {{quantity: number or array}}, not {given!r}")
    found, names = np.zeros(system.layout.n), system.problem.quantities
    outputs = system.problem.outputs(names)
    for quantity, value in given.items():
        check_among("quantity with a weight", quantity, names)
        chosen = system.layout.quantity_columns(quantity)
        shape = outputs[quantity].shape
        x = float_array(f"weights[{quantity!r}]", value)
        try:
            x = np.broadcast_to(x, shape)
        except ValueError:
            raise InvalidInput(
                f"weights[{quantity!r}] has shape {x.shape}, but a number or an array of shape {shape} is needed"
            ) from None
        if not (np.isfinite(x) & (x >= 0.0)).all():
            raise InvalidInput(f"weights[{quantity!r}] must be finite and ≥ 0")
        found[chosen] = x.reshape(-1)
    return found


def _shaped(system: BlockSystem, x: np.ndarray, group: Group, lead: tuple[int, ...]) -> np.ndarray:
    """The part of x (n, unknowns) that is of a quantity, in the shape of the quantity."""
    return x[:, system.layout.quantity_columns(group.name)].reshape(*lead, *group.shape)


def _contradiction(system: BlockSystem, involved_rows: np.ndarray, residual: np.ndarray, state: int) -> str:
    """The equations that contradict each other, in words, and their errors."""
    worst = np.flatnonzero(involved_rows)
    worst = worst[np.argsort(-residual[worst])]
    named = few([f"{system.row_names[r]} (off by {residual[r]:.3g})" for r in worst.tolist()])
    return (
        f"equations contradict each other at state {state}: the nearest solution does not meet {named}; "
        "correct their values, or leave some out: problem.diagnose().removals"
    )
