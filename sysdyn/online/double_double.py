"""Double-double rerun of flagged states: the same program in double-double arithmetic.

A pivot that loses 11 digits leaves 21 of 32. Each state runs twice; the second run perturbs positions and constants by
a rounding unit. The rerun is accepted if both runs agree to the tolerance in every guarded pivot and output. Then the
result is more accurate than in double precision, and no singular state is close: near a singular state some pivot is a
difference of nearly equal numbers, which the perturbation changes.

Changes of accelerations and forces are relative to the greatest acceleration or force among the outputs, because a
wrench of zero is a rounding error of torques. Changes of other outputs are relative to the output itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from sysdyn.codegen.double_double import perturb_one_ulp
from sysdyn.model.quantities import QUANTITY, WRENCHES
from sysdyn.offline.check import VANISHING
from sysdyn.program.opcodes import BAD_PIVOT, WEAK_PIVOT
from sysdyn.program.program import Program
from sysdyn.runtime.native_calls import AcceptanceTest, rerun

# Status bits of states that are rerun. Far-out states are not: their digits are lost in the inputs.
RECOVERABLE_STATUS = BAD_PIVOT | WEAK_PIVOT
# Greatest relative change of a pivot or an output between both runs: a condition number of 1e5 (chosen).
TOLERANCE = 1e-11
# A pivot counts as zero below this share of its threshold, 1e-16 of its typical size: entries that cancel exactly leave
# their rounding errors, the same ones in both runs.
ZERO_PIVOT = 1e-5
# Constants below this, absolutely and relative to the greatest, may be rounding errors: 45 rounding units of sines.
# Rounding errors of inertias have no such bound, because true entries may be as small.
ROUNDING_RESIDUE = 1e-14
# Units of the angular and the linear part of quantities.
UNITS = {x.name: x.component_units for x in (*QUANTITY.values(), WRENCHES)}


class DoubleDoubleFallback:
    """Double-double rerun of the program of a solver, of its derivatives, or of a result of an estimate.

    recoverable: status bits of states that are rerun.
    """

    def __init__(self, program: Program, tolerance: float = TOLERANCE, recoverable: int = RECOVERABLE_STATUS):
        self._program, self._tolerance, self._recoverable = program, tolerance, recoverable

    def solve(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], status: np.ndarray,
        states: np.ndarray,
    ) -> None:  # fmt: skip
        """Rerun n states of N. Accepted states get new outputs and status 0.

        inputs {group: (n, size)}: inputs of the states with numbers `states` (n,). outputs {group: (N, size)} and
        status (N,): results of the run in double precision, updated in place.
        """
        if not len(states):
            return
        rows = np.concatenate([inputs[name] for name in self._program.inputs], axis=1)
        with np.errstate(all="ignore"):  # states with non-finite inputs are not rerun
            perturbed = rows + self._change * np.maximum(np.abs(rows), 1.0)
        outputs = {name: outputs[name] for name in self._program.outputs}
        rerun(self._program, self._test, self._recoverable, rows, perturbed, states, outputs, status)

    @cached_property
    def _change(self) -> np.ndarray:
        """Perturbation of each input relative to max(|input|, 1): one to four rounding units for positions, else 0."""
        change, q = np.zeros(self._program.n_inputs), self._program.inputs.slices["q"]
        rng = np.random.default_rng(0)  # reproducible, and different for each joint
        size = q.stop - q.start
        change[q] = np.finfo(float).eps * rng.uniform(1.0, 4.0, size) * rng.choice((-1.0, 1.0), size)
        return change

    @cached_property
    def _test(self) -> AcceptanceTest:
        program, groups = self._program, dict[object, int]()
        guards = np.array([x.value for x in program.guards], dtype=np.int32)
        zeros = np.array([ZERO_PIVOT * x.threshold for x in program.guards], dtype=float)
        ends = np.array([x.stop for x in program.outputs.slices.values()], dtype=np.int64)
        units = [groups.setdefault(UNITS.get(name, name), len(groups)) for name in program.outputs]
        sizes = [*program.outputs.sizes.values()]
        return AcceptanceTest(
            perturbed_constants(program.constants), guards, zeros, ends, np.repeat(units, sizes).astype(np.int64),
            self._tolerance, VANISHING,
        )  # fmt: skip


def perturbed_constants(constants: np.ndarray) -> np.ndarray:
    """Constants changed by one ulp, or set to 0 if they may be rounding errors; integers are unchanged."""
    residue = np.abs(constants) < ROUNDING_RESIDUE * min(1.0, np.abs(constants).max(initial=0.0))
    return np.where(residue, 0.0, perturb_one_ulp(constants))
