"""Switches that leave something undetermined: directions seen by switchable sensors alone, and by those that are on.

The directions that no other equation sees are found once, at random states. Thousands of
combinations of switches are then tested at a time for seeing all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.diagnosis.diagnose import sampled_states
from sysdyn.diagnosis.reduction import PART, RELATIVE_RANK, Reduction
from sysdyn.equations.system import System
from sysdyn.measurements.groups import switch_group


class Switches:
    """The switches of a problem with noise."""

    def __init__(self, system: System):
        plain = system.plain
        names = {m.name for m in plain.problem.switchable}
        placed = [(r, switch_group(x.name), k) for r, (x, k) in plain.noise_by_row.items() if x.name in names]
        rows = np.array([r for r, _, _ in placed], dtype=int)
        self._places = [(group, component) for _, group, component in placed]
        self.groups = tuple(dict.fromkeys(group for group, _ in self._places))
        kinds, q, qd = sampled_states(plain.model, few=True)
        chosen = [k for k, kind in enumerate(kinds) if kind == "random"]
        entries, _ = plain.values({"q": q[chosen], "qd": qd[chosen]})
        reduction = Reduction(plain, plain.noisy_mask, np.isin(np.arange(plain.shape[0]), rows, invert=True))
        self._seen = []  # at each state (rows, directions): the part that each row sees, by unit rows
        for x in np.broadcast_to(entries, (len(chosen), entries.shape[1])):
            reduced = reduction.at(x)
            seen = reduced.matrix[rows] @ reduced.free
            size = np.linalg.norm(seen, axis=1, keepdims=True)
            self._seen.append(np.where(size > PART, seen / np.where(size > PART, size, 1.0), 0.0))

    def lacking(self, inputs: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        """(n,) bool: sensors that are on leave something undetermined at almost every state. inputs: (…, size)."""
        missing = np.zeros(n, dtype=bool)
        if all(inputs[group].all() for group in self.groups) or not self._seen[0].shape[1]:
            return missing
        on = np.stack([np.broadcast_to(inputs[group][..., k] != 0.0, n) for group, k in self._places], axis=1)
        combinations, number = np.unique(on, axis=0, return_inverse=True)
        lacking = np.ones(len(combinations), dtype=bool)
        for seen in self._seen:
            sizes = np.linalg.svd(combinations[:, :, None] * seen, compute_uv=False)
            full = sizes.shape[1] == seen.shape[1]
            lacking &= ~(sizes[:, -1] > RELATIVE_RANK) if full else True
        return lacking[number.reshape(-1)]
