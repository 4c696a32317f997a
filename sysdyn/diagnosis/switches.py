"""Test whether the sensors that are switched on determine all unknowns.

Null directions of the other equations are computed once, at random states. Each combination of switches is then tested:
its active sensors have to observe all these directions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.diagnosis.null_space import ZERO, MotionElimination
from sysdyn.equations.system import System
from sysdyn.measurements.input_names import switch_group

STATES = 2  # random states: a combination of switches is deficient only if it is at all of them


class Switches:
    """The switchable measurements of a problem with noise, and the directions that only they observe."""

    def __init__(self, system: System):
        plain = system.plain
        names = {m.name for m in plain.problem.switchable}
        places = {r: (switch_group(x.name), k) for r, (x, k) in plain.noise_by_row.items() if x.name in names}
        rows, self._places = np.array(list(places), dtype=int), list(places.values())
        self.groups = tuple(dict.fromkeys(group for group, _ in self._places))
        q, qd, _ = plain.model.random_state(seed=3, batch=STATES)
        entries, _ = plain.values_at({"q": q, "qd": qd}, STATES)
        elimination = MotionElimination(plain, np.isin(np.arange(plain.shape[0]), rows, invert=True))
        self._responses = []  # at each state (rows, directions): unit rows, zero for rows that observe nothing
        for spaces in map(elimination.at, entries):
            responses = spaces.matrix[rows] @ spaces.right
            size = np.linalg.norm(responses, axis=1, keepdims=True)
            self._responses.append(np.where(size > ZERO, responses / np.where(size > ZERO, size, 1.0), 0.0))

    def undetermined_mask(self, inputs: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        """(n,) bool: True for states at which unknowns are undetermined. inputs: (1 or n, size) by group."""
        if all(inputs[group].all() for group in self.groups) or not self._responses[0].shape[1]:
            return np.zeros(n, dtype=bool)
        on = np.stack([np.broadcast_to(inputs[group][..., k] != 0.0, n) for group, k in self._places], axis=1)
        combinations, number = np.unique(on, axis=0, return_inverse=True)
        deficient = np.ones(len(combinations), dtype=bool)
        for responses in self._responses:
            sizes = np.linalg.svd(combinations[:, :, None] * responses, compute_uv=False)
            full = sizes.shape[1] == responses.shape[1]
            deficient &= ~(sizes[:, -1] > ZERO) if full else True
        return deficient[number.reshape(-1)]
