"""Contact schedule along a log: switches of stances by conditions on measured values, and of swing measurements."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from sysdyn.measurements.problem import Problem


class Standing:
    """Evaluates the conditions that switch the stances of a problem on and off, over successive samples of a log.

    Conditions compare measured values. A missing value is replaced by the last one measured; before the first one the
    stance is off. A stance that begins is active only after its settling time.
    """

    def __init__(self, problem: Problem):
        self._conditions, self._opposites = problem.conditions, problem.swing_measurements
        self._groups = {**problem.values, **problem.state_values}
        self._labels = {name: group.labels for name, group in self._groups.items()}
        self._held: dict[str, np.ndarray] = {}
        self._settling = Settling(problem)

    @property
    def used(self) -> bool:
        """True if some stance is switched here."""
        return bool(self._conditions or self._opposites) or self._settling.used

    def switch(
        self, y: Mapping[str, np.ndarray], active: dict[str, np.ndarray], others: Collection[str], t: np.ndarray
    ) -> None:  # fmt: skip
        """Write the switches of rows at t (n,) into `active`, but of those among `others`, which something else does.

        y {measurement: (n, m)}; active {measurement: (n, m) bool}: where they are measured.
        """
        n = len(t)
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
            on = when.holds(held, self._labels)
            stands = np.broadcast_to(on[:, None], (n, self._groups[name].size))
            active[name] = stands & active.get(name, True)
        for name, foot in self._opposites.items():
            if name not in others:  # on while the stance is known to be inactive
                off = np.asarray(~active[foot].any(axis=1) if foot in active else np.zeros(n, dtype=bool))
                if foot in asked:
                    off = off & asked[foot].is_measured(held, self._labels)
                active[name] = np.repeat(off[:, None], self._groups[name].size, axis=1)
        self._settling.switch(active, t)


class Settling:
    """Stances that begin count once they have settled, over successive rows; feet that stand at the begin have."""

    def __init__(self, problem: Problem):
        found = {m.name: getattr(m, "settle", 0.0) for m in problem.state_sensors}
        self._seconds = {name: x for name, x in found.items() if x}
        self._last: dict[str, tuple[bool, float]] = {}  # on, and since when

    @property
    def used(self) -> bool:
        """True if some stance has to settle."""
        return bool(self._seconds)

    def switch(self, active: dict[str, np.ndarray], t: np.ndarray) -> None:
        """Switch stances at rows t (n,) off in `active` {measurement: (n, m) bool} while they settle."""
        for name, seconds in self._seconds.items():
            if name not in active or not len(t):
                continue
            on = np.asarray(active[name].any(axis=1))
            was, since = self._last.get(name, (bool(on[0]), -np.inf))
            begins = on & ~np.concatenate([[was], on[:-1]])
            began = np.maximum.accumulate(np.concatenate([[since], np.where(begins, t, -np.inf)]))[1:]
            self._last[name] = bool(on[-1]), float(began[-1])
            rounding = 2.0 * np.spacing(np.abs(t))  # of differences of times
            active[name] = active[name] & (t - began + rounding >= seconds)[:, None]
