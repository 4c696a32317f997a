"""Stances that stand by conditions on what is measured, row by row of a log."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from sysdyn.measurements.statement import Statement


class Standing:
    """Switches of the stances of a problem by their conditions, over successive rows.

    A value that is compared holds until the next one is measured; before the first one a stance is off.
    """

    def __init__(self, problem: Statement):
        self._conditions = problem.conditions
        self._groups = {**problem.values, **problem.state_values}
        self._labels = {name: group.labels for name, group in self._groups.items()}
        self._held: dict[str, np.ndarray] = {}

    def switch(
        self, y: Mapping[str, np.ndarray], active: dict[str, np.ndarray], others: Collection[str], n: int
    ) -> None:  # fmt: skip
        """Write the switches of n rows into `active`, but of stances among `others`, which something else switches.

        y {measurement: (n, m)}; active {measurement: (n, m) bool}: where they are measured.
        """
        asked = {name: when for name, when in self._conditions.items() if name not in others}
        held: dict[str, np.ndarray] = {}
        for source in dict.fromkeys(x for when in asked.values() for x in when.measurements):
            group = self._groups[source]
            nothing = np.full(group.size, np.nan) if group.default is None else group.default
            x = np.where(active.get(source, True), y.get(source, np.broadcast_to(nothing, (n, group.size))), np.nan)
            x = np.vstack([self._held.get(source, np.full(group.size, np.nan)), x])
            last = np.maximum.accumulate(np.where(np.isnan(x), 0, np.arange(n + 1)[:, None]), axis=0)
            x = np.take_along_axis(x, last, axis=0)
            self._held[source], held[source] = x[-1], x[1:]
        for name, when in asked.items():
            stands = np.broadcast_to(when.holds(held, self._labels)[:, None], (n, self._groups[name].size))
            active[name] = stands & active.get(name, True)
