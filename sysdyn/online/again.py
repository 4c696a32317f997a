"""Double-double rerun of states whose pivots fell below their thresholds.

Pivots that cost 11 digits cost them out of 32. The rerun is accepted if it passes three tests:

- It agrees with the result in double precision to a small relative tolerance. The same operations lose as many of the
  32 digits, so that the rerun is accurate beyond the last bit of a double.
- A rerun with perturbed roundings of the program's constants agrees with it to a smaller tolerance.
- The product of the pivots, the determinant up to a constant factor, is not so small compared with its usual size
  that the state may be singular: it falls as the reciprocal condition number does, or faster. If the product is as
  small, as with several stretched legs, the condition number itself decides, at a millisecond a state.

Tolerances are relative to the greatest acceleration, or force, among the outputs, because a wrench of zero is a
rounding error of torques. Those of other outputs are relative to the output itself.

Rejected states, and those with covariances, switches or parameters that are not the declared ones, are solved with
pivoting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.codegen.double_double import perturb_one_ulp
from sysdyn.equations.system import SINGULAR
from sysdyn.measurements.groups import NOISE, SWITCH, group_of
from sysdyn.model.quantities import QUANTITY, WRENCHES
from sysdyn.offline.check import VANISHING
from sysdyn.problem import Problem
from sysdyn.program.opcodes import BAD_PIVOT, WEAK_PIVOT
from sysdyn.program.program import Program
from sysdyn.runtime.native_calls import Doubt, again, twice

# Status bits of states that are rerun. A state out of range is not: its loss of digits is not known.
MENDED = BAD_PIVOT | WEAK_PIVOT
# Constants below this, and below this share of the greatest, may be rounding errors of others: 45 rounding units of
# sines (chosen). Rounding errors of inertias have no such bound: true entries are as small.
LEFT_OVER = 1e-14
# Number of random states for the usual product of the pivots, number of those for the usual condition number, and
# their seed (chosen).
USUAL_STATES, CONDITIONED, USUAL_SEED = 15, 3, 11
# Units of the angular and the linear part of quantities.
PARTS = {x.name: x.component_units for x in (*QUANTITY.values(), WRENCHES)}


class Limits(NamedTuple):
    """Tolerances of the acceptance test (chosen)."""

    # greatest difference to the result in double precision, as a share: errors are 1e-20 then
    beside_double: float = 1e-4
    # greatest change by other roundings of constants, as a share: answers are off by up to twelve times as much from
    # 50 digits
    firm: float = 1e-11
    # multiple of the product of pivots that singular states have, up to which a state may be one; the product is taken
    # to fall as the reciprocal condition number does (up to 1.4 were seen, at necks without inertia)
    far_from_singular: float = 100.0


class Again:
    """Double-double rerun of the program of a solver of `problem`.

    regular: all states are known to be regular; settings and the product of the pivots are not tested.
    """

    def __init__(
        self, problem: Problem, program: Program, limits: Limits = Limits(), regular: bool = False  # noqa: B008
    ):  # fmt: skip
        self._problem, self._program, self._limits, self._regular_all = problem, program, limits, regular

    def solves(
        self, inputs: np.ndarray, outputs: Mapping[str, np.ndarray], status: np.ndarray, states: np.ndarray
    ) -> bool:
        """Rerun these states. Accepted ones get new outputs and status 0; returns True if all are accepted.

        inputs (n, n_inputs): of the n states, whose numbers are `states` (n,). outputs by group (N, size), status (N,):
        of the run in double precision.
        """
        if not len(states):
            return True
        outputs = {name: outputs[name] for name in self._program.outputs}
        solved = again(self._program, self._doubt, inputs, states, outputs, status)
        if solved == len(states) or self._regular_all:
            return solved == len(states)
        left = np.flatnonzero((status[states] != 0) & (status[states] & ~MENDED == 0))
        left = left[self._regular(inputs[left])]
        if len(left):
            solved += again(self._program, self._regular_doubt, inputs[left], states[left], outputs, status)
        return solved == len(states)

    def _regular(self, inputs: np.ndarray) -> np.ndarray:
        """(n,) bool: True for states with the declared settings at which the system is far from singular."""
        found = (inputs[:, self._settings] == self._declared).all(axis=1)
        system, least = self._problem.system(), self._limits.far_from_singular * SINGULAR
        for k in np.flatnonzero(found).tolist():
            given = {name: inputs[k, place] for name, place in self._program.inputs.slices.items()}
            found[k] = system.solvability(system.values_double_double(given)[0].high, least) >= least
        return found

    @cached_property
    def _groups(self) -> list[str]:
        """Groups of the inputs that are covariances, switches or parameters."""
        if self._regular_all:
            return []
        parameters = {x.name for x in self._problem.parameters}
        return [x for x in self._program.inputs if x in parameters or group_of(x).role in (NOISE, SWITCH)]

    @cached_property
    def _settings(self) -> np.ndarray:
        """Numbers of these inputs."""
        return np.arange(self._program.n_inputs)[self._program.inputs.columns(tuple(self._groups))]

    @cached_property
    def _declared(self) -> np.ndarray:
        """Their declared values."""
        inputs = self._problem.inputs
        return np.concatenate([np.zeros(0), *(np.ravel(inputs[x].require_default()) for x in self._groups)])

    @cached_property
    def _doubt(self) -> Doubt:
        guards = np.array([x.value for x in self._program.guards], dtype=np.int32)
        ends = np.array([x.stop for x in self._program.outputs.slices.values()], dtype=np.int64)
        limits = np.array([VANISHING, self._limits.beside_double, self._limits.firm, self._least(guards)])
        return Doubt(self.others, guards, ends, self._units, self._settings, self._declared, limits, MENDED)

    @cached_property
    def _regular_doubt(self) -> Doubt:
        """The same for states that are known to be regular, whatever the product of the pivots."""
        doubt = self._doubt
        return doubt._replace(limits=np.append(doubt.limits[:-1], -math.inf))

    @property
    def _units(self) -> np.ndarray:
        """Group of each number in a row of outputs: accelerations, forces, or one of the other outputs."""
        groups: dict[object, int] = {}
        found = [np.zeros(0, dtype=np.int64)]
        for name, place in self._program.outputs.slices.items():
            number = groups.setdefault(PARTS.get(name, name), len(groups))
            found.append(np.full(place.stop - place.start, number))
        return np.concatenate(found)

    @property
    def others(self) -> np.ndarray:
        """Constants perturbed by one ulp, or 0 if below LEFT_OVER; whole numbers unchanged; empty if all are whole."""
        x = self._program.constants
        perturbed = perturb_one_ulp(x)
        left = np.abs(x) < LEFT_OVER * min(1.0, np.abs(x).max(initial=0.0))
        return x[:0] if np.array_equal(perturbed, x) else np.where(left, 0.0, perturbed)

    def _least(self, guards: np.ndarray) -> float:
        """Logarithm of the least product of the pivots at a state that is not near a singular one."""
        if not len(guards) or self._regular_all:
            return -math.inf
        rows, system = np.zeros((USUAL_STATES, self._program.n_inputs)), self._problem.system()
        rows[:, self._settings] = self._declared
        q = self._problem.model.random_state(seed=USUAL_SEED, batch=USUAL_STATES)[0]
        rows[:, self._program.inputs.slices["q"]] = q
        pivots = twice(self._program, rows, guards).high
        entries = system.values({"q": q[:CONDITIONED], "qd": np.zeros((CONDITIONED, self._problem.model.nv))})[0]
        usual = np.median([system.solvability(x) for x in entries])
        with np.errstate(all="ignore"):
            product = float(np.median(np.log(np.abs(pivots)).sum(axis=1)))
        return product + math.log(self._limits.far_from_singular * SINGULAR / max(usual, SINGULAR))
