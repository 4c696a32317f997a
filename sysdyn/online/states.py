"""States of a call, at which results are asked for later: their inputs by group, or in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from sysdyn.program.groups import Groups

# Inputs or results by name, arrays (size,) or (n, size).
Arrays: TypeAlias = Mapping[str, np.ndarray]


class Row(NamedTuple):
    """All inputs of one state, values[begin:] and then rest, which nobody changes."""

    values: np.ndarray
    groups: Groups
    begin: int = 0
    rest: np.ndarray = np.zeros(0)

    def whole(self) -> Row:
        """The same, all of them one after the other in `values`."""
        if not self.begin and not len(self.rest):
            return self
        return Row(np.concatenate([self.values[self.begin :], self.rest]), self.groups)


class States:
    """n states, whose inputs nobody changes.

    given: inputs {group: (size,) or (n, size)}, or a row of one state. refuse: lost digits raise LostDigits, else they
    are NaN. solved (n,) bool: True for states that have an estimate, None for all. Results of the others are NaN.
    again (n,) bool: True for states whose mean was solved with pivoting, as all results of them are; None for none.
    """

    def __init__(
        self, given: Arrays | Row, n: int, refuse: bool, solved: np.ndarray | None = None,
        again: np.ndarray | None = None,
    ):  # fmt: skip
        self.n, self.refuse, self.solved, self.again = n, refuse, solved, again
        self._row = given if isinstance(given, Row) else None
        if self._row is None:
            self.__dict__["inputs"] = given

    @cached_property
    def inputs(self) -> Arrays:
        """Inputs {group: (size,) or (n, size)}."""
        row = self._whole
        return {name: row.values[part] for name, part in row.groups.slices.items()}

    @cached_property
    def _whole(self) -> Row:
        assert self._row is not None
        return self._row.whole()

    def row(self, groups: Groups) -> Row:
        """The inputs of one state in a row, of these groups unless there is one, the same at each call."""
        if self._row is None:
            self._row = Row(np.concatenate([self.inputs[name].reshape(-1) for name in groups]), groups)
        return self._row

    def beside(self, groups: tuple[str, ...]) -> np.ndarray:
        """Groups as columns (n or 1, m)."""
        if self._row is not None:
            return self._whole.values[self._whole.groups.columns(groups)][None]
        return beside([self.inputs[x] for x in groups])

    def group(self, name: str) -> np.ndarray:
        """Inputs (size,) or (n, size) of one group."""
        return self.inputs[name] if self._row is None else self._whole.values[self._whole.groups.slices[name]]

    def at(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs {group: (k, size)} of some of the states, by number."""
        return {name: np.broadcast_to(x, (self.n, x.shape[-1]))[chosen] for name, x in self.inputs.items()}


def beside(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays (size,) or (n, size) as columns of one, (n or 1, m)."""
    n = max((len(x) for x in parts if x.ndim == 2), default=1)
    if n == 1:  # several times faster
        return np.concatenate([x.reshape(-1) for x in parts])[None]
    return np.concatenate([np.broadcast_to(x, (n, x.shape[-1])) for x in parts], axis=1)
