"""Inputs of the states of a call, for requests after the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sysdyn.program.groups import Arrays, Groups

if TYPE_CHECKING:
    from sysdyn.offline.dense_estimate import DenseEstimate


class StateInputs:
    """Inputs {group: (size,) or (n, size)} of n states of a call, or a function that returns them once requested."""

    def __init__(self, inputs: Arrays | Callable[[], Arrays], n: int):
        self._inputs, self.n = inputs, n

    @property
    def inputs(self) -> Arrays:
        if callable(self._inputs):
            self._inputs = self._inputs()
        return self._inputs

    def at(self, states: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs {group: (k, size)} of some of the states, by number."""
        return {name: self.all(name)[states] for name in self.inputs}

    def all(self, name: str) -> np.ndarray:
        """Inputs (n, size) of a group at all states, read-only."""
        return np.broadcast_to(self.inputs[name], (self.n, self.inputs[name].shape[-1]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inputs": self.inputs}


class SolvedStates(StateInputs):
    """Inputs of n states, and statistics that were computed for them.

    refuse: if True, states without results raise SingularState; else they give NaN. solved (n,) bool: True for states
    that have an estimate; None if all have. vector: all inputs of a single state, in the order of the program; None if
    they are to be concatenated.

    dense: {state: its estimate by dense matrices, or None if these fail}. variances: {quantity: (n, size)}.
    """

    def __init__(
        self, inputs: Arrays | Callable[[], Arrays], n: int, refuse: bool, solved: np.ndarray | None = None,
        vector: np.ndarray | None = None,
    ):  # fmt: skip
        super().__init__(inputs, n)
        self.refuse, self.solved, self._vector = refuse, solved, vector
        self.dense: dict[int, DenseEstimate | None] = {}
        self.variances: dict[str, np.ndarray] = {}

    def input_vector(self, groups: Groups) -> np.ndarray:
        """The inputs (size,) of a single state (n = 1), concatenated in the order of `groups`."""
        if self._vector is None:
            self._vector = np.concatenate([self.inputs[name].reshape(-1) for name in groups])
        return self._vector

    def columns(self, groups: tuple[str, ...]) -> np.ndarray:
        """Inputs of these groups, concatenated: (n or 1, m)."""
        return as_columns([self.inputs[x] for x in groups])


def as_columns(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays (size,) or (n, size), concatenated along the last axis: (n or 1, m)."""
    n = max((len(x) for x in parts if x.ndim == 2), default=1)
    if n == 1:  # several times faster
        return np.concatenate([x.reshape(-1) for x in parts])[None]
    return np.concatenate([np.broadcast_to(x, (n, x.shape[-1])) for x in parts], axis=1)
