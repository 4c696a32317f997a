"""Solved states of a call whose statistics are requested later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sysdyn.offline.dense_estimate import DenseEstimate
from sysdyn.program.groups import Arrays, Groups


class SolvedStates:
    """Inputs of n states of a call, read-only, and statistics that were computed for them.

    inputs: {group: (size,) or (n, size)}, or a function that returns it. refuse: if True, states without results raise
    SingularState; else they give NaN. solved (n,) bool: True for states that have an estimate; None if all have.
    vector: all inputs of a single state, in the order of the program; None if they are to be concatenated.

    dense: {state: its estimate by dense matrices, or None if these fail}. variances: {quantity: (n, size)}.
    """

    def __init__(
        self, inputs: Arrays | Callable[[], Arrays], n: int, refuse: bool, solved: np.ndarray | None = None,
        vector: np.ndarray | None = None,
    ):  # fmt: skip
        self._inputs, self.n, self.refuse, self.solved, self._vector = inputs, n, refuse, solved, vector
        self.dense: dict[int, DenseEstimate | None] = {}
        self.variances: dict[str, np.ndarray] = {}

    @property
    def inputs(self) -> Arrays:
        if callable(self._inputs):
            self._inputs = self._inputs()
        return self._inputs

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inputs": self.inputs}

    def input_vector(self, groups: Groups) -> np.ndarray:
        """The inputs (size,) of a single state (n = 1), concatenated in the order of `groups`."""
        if self._vector is None:
            self._vector = np.concatenate([self.inputs[name].reshape(-1) for name in groups])
        return self._vector

    def columns(self, groups: tuple[str, ...]) -> np.ndarray:
        """Inputs of these groups, concatenated: (n or 1, m)."""
        return as_columns([self.inputs[x] for x in groups])

    def at(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs {group: (k, size)} of some of the states, by number."""
        return {name: np.broadcast_to(x, (self.n, x.shape[-1]))[chosen] for name, x in self.inputs.items()}


def as_columns(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays (size,) or (n, size), concatenated along the last axis: (n or 1, m)."""
    n = max((len(x) for x in parts if x.ndim == 2), default=1)
    if n == 1:  # several times faster
        return np.concatenate([x.reshape(-1) for x in parts])[None]
    return np.concatenate([np.broadcast_to(x, (n, x.shape[-1])) for x in parts], axis=1)
