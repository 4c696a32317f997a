"""Least-norm solutions of equations that leave some unknowns undetermined at a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sysdyn.diagnosis.null_space import ZERO, MotionElimination, involved
from sysdyn.diagnosis.structure import structure
from sysdyn.equations.system import BlockSystem
from sysdyn.offline.sampling import is_singular
from sysdyn.problem import Problem

# Share of an equation's terms left over above which it contradicts others (chosen).
AGREEMENT = 1e-8
# Share of the greatest known term of all equations below which those of one are rounding errors of the others (chosen).
LEAST_TERMS = 1e-4
# Share of an equation's terms that rounding leaves, however large compared with known terms: 45 units (chosen).
ROUNDED_TERMS = 1e-14
# Coefficients below this, of terms near 1, may be rounding errors: sin(π) is 1.2e-16, limbs have many joints, and fewer
# than three digits are too few for a refinement to begin with.
ROUNDED_SINE = 1e-13
# Share of the greatest weighted size below which a direction has no weight: the natural sizes decide (chosen).
WEIGHTLESS = 1e-10


class Smallest:
    """Least-norm solutions of exact equations, state by state; W (unknowns,): weights, none by default."""

    def __init__(self, system: BlockSystem, W: np.ndarray | None = None):
        self._elimination = MotionElimination(system)
        self._natural = _natural_weights(system)
        self._weights = np.zeros(system.layout.n) if W is None else W

    def at(
        self, entries: np.ndarray, b: np.ndarray, tolerance: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(d (unknowns,), mask of undetermined unknowns, mask of equations that contradict each other).

        If equations contradict each other, d is a least-squares solution. tolerance: see `NullSpaces`.
        """
        rows, columns = self._elimination.system.scaling
        spaces = self._elimination.at(entries, tolerance)
        x, misfit = spaces.solve(b * rows)
        against = misfit > AGREEMENT
        if against.any():
            dependent = involved(spaces.left) & against
            return x * columns, involved(spaces.right), dependent if dependent.any() else against
        d = _smallest(x * columns, spaces.right * columns[:, None], self._natural, self._weights)
        return d, involved(spaces.right), against


class Held(NamedTuple):
    """Solutions d (N, unknowns) of least forces; open (N, unknowns) bool: True for undetermined unknowns.

    d is NaN at states that have none. against (N, equations) bool: equations that contradict each other.
    """

    d: np.ndarray
    open: np.ndarray
    against: np.ndarray


def smallest_held(
    problem: Problem, inputs: dict[str, np.ndarray], near: Callable[[dict[str, np.ndarray]], np.ndarray]
) -> Held:
    """Solutions at singular states: by `held`; else by `near`, if constraints differ by more than rounding errors.

    If some constraints are redundant and others differ from redundant ones by little more than rounding errors, `near`
    fails, too; all of these then count as redundant. near(inputs): d (N, unknowns), NaN without a solution.
    """
    found = held(problem, inputs)
    if len(left := _unsolved(found)):
        found.d[left] = near(_some(inputs, left))
    if len(left := _unsolved(found)):  # nearly redundant constraints count as redundant
        again = held(problem, _some(inputs, left), ZERO)
        found.d[left], found.open[left] = again.d, again.open
    return found


def _unsolved(found: Held) -> np.ndarray:
    """Numbers of the states that have neither a solution nor undetermined unknowns."""
    return np.flatnonzero(~(np.isfinite(found.d).all(axis=1) | found.open.any(axis=1)))


def _some(inputs: dict[str, np.ndarray], states: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs (k, size) of k states."""
    n = max(len(x) for x in inputs.values())
    return {name: np.broadcast_to(x, (n, x.shape[1]))[states] for name, x in inputs.items()}


def held(problem: Problem, inputs: dict[str, np.ndarray], tolerance: float = ROUNDED_SINE) -> Held:
    """Solutions of least constraint wrenches at states where constraints are redundant up to rounding errors.

    d is NaN at a state where constraints contradict each other, where all unknowns are determined, or where
    accelerations are undetermined. A state at which d would violate the equations counts as determined. inputs:
    (N, size) by group, of a problem without noise. tolerance: see `NullSpaces`.
    """
    system = problem.system().plain
    smallest, motion = Smallest(system), system.layout.quantity_columns("qdd")
    n = max(len(x) for x in inputs.values())
    entries, b = (np.broadcast_to(x, (n, x.shape[-1])) for x in system.values(inputs))
    found = Held(
        np.full((n, system.layout.n), np.nan), np.zeros((n, system.layout.n), dtype=bool),
        np.zeros((n, len(system.row_names)), dtype=bool),
    )  # fmt: skip
    for k in range(n):
        d, found.open[k], found.against[k] = smallest.at(entries[k], b[k], tolerance)
        D = system.matrix(entries[k])
        terms, known = abs(D) @ np.abs(d) + np.abs(b[k]), np.abs(b[k]).max(initial=0.0)
        counted = np.maximum(np.minimum(terms, known), LEAST_TERMS * known)
        if (np.abs(D @ d + b[k]) > AGREEMENT * counted + ROUNDED_TERMS * terms).any():
            found.open[k] &= found.against[k].any()  # near singular, as a limb bent by 6e-14 rad: all digits are lost
        if found.open[k].any() and not (found.against[k].any() or found.open[k][motion].any()):
            found.d[k] = d
    return found


def moves_freely(problem: Problem, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """(N,) bool: without its constraints the problem is regular, so that these alone make a state singular.

    inputs: (N, size) by group. False for problems without constraints, and with noise.
    """
    n = max(len(x) for x in inputs.values())
    if problem.noisy or not problem.constraints:
        return np.zeros(n, dtype=bool)

    def made() -> Problem:
        kept = [m for m in problem.measurements if m not in problem.constraints]
        return Problem(problem.model, kept, [p.name for p in problem.parameters])

    system = problem.cached("without constraints", made).system()
    if system.shape[0] != system.shape[1] or not structure(system).sound:
        return np.zeros(n, dtype=bool)
    given = {name: inputs[name] for name in system.program.inputs}
    return ~is_singular(system, given)


def _smallest(d: np.ndarray, N: np.ndarray, natural: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """d + N z with ‖W (d + N z)‖ least, and among those the least in natural weights.

    d (unknowns,): a solution; N (unknowns, k): basis of what can be added; both weights (unknowns,).
    """
    if not N.shape[1]:
        return d
    Q, R = np.linalg.qr(natural[:, None] * N)
    N = np.linalg.solve(R.T, N.T).T  # orthonormal in natural weights
    d = d - N @ (Q.T @ (natural * d))
    if weights.any():
        d = d - N @ np.linalg.lstsq(weights[:, None] * N, weights * d, rcond=WEIGHTLESS)[0]
    return d


def _natural_weights(system: BlockSystem) -> np.ndarray:
    """(unknowns,) 1 for q̈, 1 / M for fx, w and further loads, 0 for all that follows from them."""
    loads = dict.fromkeys(("fx", "w", *system.layout.further), 1.0 / (system.model.mass or 1.0))
    size = {"qdd": 1.0, **loads}
    return np.array([size.get(quantity, 0.0) for quantity, _ in system.col_blocks])
