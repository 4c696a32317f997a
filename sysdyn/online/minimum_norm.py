"""Minimum-norm solutions of equations that leave unknowns undetermined: `least_norm`, and redundant constraints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.null_space import MotionElimination, involved
from sysdyn.equations.problem_system import assemble
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import InvalidInput, ProblemError, check_among, few
from sysdyn.measurements.problem import Problem
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.calls import Result, copied
from sysdyn.online.solution import Solution, SolutionContext
from sysdyn.program.arrays import float_array
from sysdyn.program.groups import Group

# Residual of an equation, relative to its terms, above which it contradicts others (half of the digits).
AGREEMENT = 1e-8
# Least size of the terms of an equation, relative to the greatest |b|, in the test of its residual (chosen).
LEAST_TERMS = 1e-4
# Rounding error of an equation, relative to its terms: 45 rounding units.
ROUNDING_SHARE = 1e-14
# Coefficients below this, of terms near 1, may be rounding errors: sin(π) is 1.2e-16, and limbs have many joints.
ROUNDED_SINE = 1e-13
# Relative singular value of W N below which a direction has no weight: natural sizes decide (chosen).
WEIGHTLESS = 1e-10


class MinimumNorm:
    """Minimum-norm solutions of exact equations, state by state; W (unknowns,): diagonal weights, default zero."""

    def __init__(self, system: BlockSystem, W: np.ndarray | None = None):
        self.system, self._elimination = system, MotionElimination(system)
        self._weights = np.zeros(system.layout.n) if W is None else W
        # natural weights: 1 for q̈, 1 / M for fx, w and further loads, 0 for all unknowns that follow from them
        load = 1.0 / (system.model.mass or 1.0)
        sizes = {"qdd": 1.0, **dict.fromkeys(("fx", "w", *system.layout.further), load)}
        self._natural = np.array([sizes.get(quantity, 0.0) for quantity, _ in system.col_blocks])

    def at(
        self, entries: np.ndarray, b: np.ndarray, tolerance: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Solve D d + b = 0 at one state for the d of minimum norm.

        Returns d (unknowns,), the mask of undetermined unknowns, and the mask of equations that contradict each other;
        if some do, d is a least-squares solution. entries: nonzeros of D. tolerance: see `NullSpaces`.
        """
        rows, columns = self.system.scaling
        spaces = self._elimination.at(entries, tolerance)
        x, misfit = spaces.solve(b * rows)
        d, undetermined, contradicting = x * columns, involved(spaces.right), misfit > AGREEMENT
        if contradicting.any():
            dependent = involved(spaces.left) & contradicting
            return d, undetermined, dependent if dependent.any() else contradicting
        return self._least(d, spaces.right * columns[:, None]), undetermined, contradicting

    def _least(self, d: np.ndarray, N: np.ndarray) -> np.ndarray:
        """Solution d + N z of minimum ‖W (d + N z)‖, and of minimum norm in natural weights among those.

        N (unknowns, k): null-space basis. Natural weights: `_natural`.
        """
        if not N.shape[1]:
            return d
        Q, R = np.linalg.qr(self._natural[:, None] * N)
        N = np.linalg.solve(R.T, N.T).T  # orthonormal in natural weights
        d = d - N @ (Q.T @ (self._natural * d))
        if self._weights.any():
            W = self._weights
            d = d - N @ np.linalg.lstsq(W[:, None] * N, W * d, rcond=WEIGHTLESS)[0]
        return d


class LeastWrenches(NamedTuple):
    """Solution d (unknowns,) with minimum-norm constraint wrenches at a state; masks of its unknowns and equations."""

    d: np.ndarray
    undetermined: np.ndarray
    contradicting: np.ndarray
    solved: bool


class ConstraintWrenches:
    """Minimum-norm wrenches at states with redundant constraints, for problems without noise."""

    def __init__(self, problem: Problem):
        self._system = assemble(problem).plain
        self._minimum_norm = MinimumNorm(self._system)

    def at(self, inputs: dict[str, np.ndarray]) -> LeastWrenches:
        """Solve at one state; inputs {group: (size,)}.

        `solved` is True if some unknowns but no accelerations are undetermined, no constraints contradict each other,
        and d satisfies the equations. Near a singular state d violates them, because all digits are lost.
        """
        system = self._system
        entries, b = (x.high for x in system.values_double_double(inputs))
        d, undetermined, contradicting = self._minimum_norm.at(entries, b, ROUNDED_SINE)
        D = system.matrix(entries)
        terms, known = abs(D) @ np.abs(d) + np.abs(b), np.abs(b).max(initial=0.0)
        allowed = AGREEMENT * np.maximum(np.minimum(terms, known), LEAST_TERMS * known) + ROUNDING_SHARE * terms
        violated = np.abs(D @ d + b) > allowed
        moving = undetermined[system.layout.quantity_columns("qdd")]
        solved = undetermined.any() and not (contradicting.any() or violated.any() or moving.any())
        return LeastWrenches(d, undetermined, contradicting, bool(solved))


class LeastNormSolution(Solution):
    """Minimum-norm solution; `determined` flags the values that are the same in all solutions.

    determined: {quantity: bool array of its shape}; np.where(solution.determined["fx"], solution.fx, np.nan) hides the
    others. undetermined: names of the unknowns that are undetermined at some states, in the order of the system.
    """

    determined: dict[str, np.ndarray]
    undetermined: tuple[str, ...]


def least_norm(
    problem: Problem, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    weights: Named | None = None, **quantities: ArrayLike,
) -> LeastNormSolution:  # fmt: skip
    """Minimum-norm solution of an underdetermined problem, state by state, with masks of the determined values.

        min ‖W d‖   subject to   D d + b = 0

    q (…, nq), qd (…, nv); known quantities and measurements as for a Solver: tau=, qdd=, fx=, a=, f=, y={name: …}.
    Redundant equations must agree. It factorises dense matrices of the unknown motions, so it is slower than a Solver.

    weights: {quantity: number, or array of its shape at one state, ≥ 0} of tau, qdd, fx, a, f, w: W is diagonal, zero
        by default; the weight of a standard deviation σ is 1/σ. Among solutions of equal ‖W d‖, q̈, fx and w have
        minimum norm in natural sizes: 1 rad/s² or 1 m/s² counts as much as a force of M N or a moment of M N m, with
        the mass M [kg] of the robot (1 if it has none).

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
    system = assemble(problem).plain
    n = math.prod(lead)
    minimum_norm = MinimumNorm(system, _weights(system, {} if weights is None else weights))
    entries, b = (np.broadcast_to(x, (n, x.shape[-1])) for x in system.values(arrays))
    d, free = np.empty((n, system.layout.n)), np.empty((n, system.layout.n), dtype=bool)
    for k in range(n):
        d[k], free[k], against = minimum_norm.at(entries[k], b[k])
        if against.any():
            residual = np.abs(system.matrix(entries[k]) @ d[k] + b[k])
            raise ProblemError(_contradiction(system, against, residual, k))
    outputs = problem.outputs(problem.quantities)
    values = {x: _shaped(system, d, group, lead) for x, group in outputs.items()}
    results = Result(copied(arrays), lead, values, np.zeros(n, dtype=np.int64))
    solution = LeastNormSolution(SolutionContext(problem, outputs), results)
    solution.determined = {x: ~_shaped(system, free, group, lead) for x, group in outputs.items()}
    solution.undetermined = tuple(np.array(system.col_names)[free.any(axis=0)].tolist())
    return solution


def _weights(system: BlockSystem, given: Mapping[str, ArrayLike]) -> np.ndarray:
    """Diagonal (unknowns,) of W. Raises InvalidInput, UnknownName."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"weights is {{quantity: number or array}}, not {given!r}")
    weights, names = np.zeros(system.layout.n), system.problem.quantities
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
        weights[chosen] = x.reshape(-1)
    return weights


def _shaped(system: BlockSystem, x: np.ndarray, group: Group, lead: tuple[int, ...]) -> np.ndarray:
    """Entries of one quantity in x (n, unknowns), in the shape of the quantity."""
    return x[:, system.layout.quantity_columns(group.name)].reshape(*lead, *group.shape)


def _contradiction(system: BlockSystem, involved_rows: np.ndarray, residual: np.ndarray, state: int) -> str:
    """Message with the names and residuals of the equations that contradict each other."""
    worst = np.flatnonzero(involved_rows)
    worst = worst[np.argsort(-residual[worst])]
    named = few([f"{system.row_names[r]} (off by {residual[r]:.3g})" for r in worst.tolist()])
    return (
        f"equations contradict each other at state {state}: the nearest solution does not meet {named}; "
        "correct their values, or leave some out: sd.diagnose(problem).removals"
    )
