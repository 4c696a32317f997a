"""Plots of estimates over time, with bands of two standard deviations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from sysdyn.data.sensor_log import Estimates
from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, Freedoms
from sysdyn.trajectories.run import Run
from sysdyn.views.curves import POINTS, Panel, bands, most_changing


class Bands:
    """Gathers one quantity by joint of a log of any length: every 2^k-th state, so that at most `POINTS` are kept.

    It is told of chunks of estimates (`estimate_log(…, seen=bands)`), then draws.
    """

    def __init__(self, model: Model, quantity: str):
        if not isinstance(QUANTITY.get(quantity), Freedoms):
            raise InvalidInput(f"{quantity} cannot be drawn over time: choose tau or qdd")
        self.model, self.quantity = model, quantity
        self._parts: list[np.ndarray] = []  # (n, 1 + 2 nv): t, values, standard deviations
        self._step, self._next, self._seen, self._kept = 1, 0, 0, 0

    def __call__(self, x: Estimates) -> None:
        values = x.values[self.quantity]
        std = x.std.get(self.quantity, np.full_like(values, np.nan))
        rows = np.arange(self._next - self._seen, len(x.t), self._step)
        if len(rows):
            self._parts.append(np.hstack([x.t[rows, None], values[rows], std[rows]]))
            self._kept += len(rows)
            self._next = self._seen + int(rows[-1]) + self._step
        self._seen += len(x.t)
        while self._kept > POINTS:
            whole = np.vstack(self._parts)
            self._next += 0 if len(whole) % 2 == 0 else self._step  # the next to come is an even one again
            self._parts, self._kept, self._step = [whole[::2]], len(whole[::2]), 2 * self._step

    def told(self, run: Run) -> Bands:
        """The same, after all instants of a run."""
        self.told_arrays(run.arrays())
        return self

    def told_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take successive instants of a run, as of `Run.arrays`."""
        t, x = arrays["t"], self.quantity
        ok = np.ones(len(t), dtype=bool)
        self(Estimates("", np.arange(1, len(t) + 1), t, arrays["q"], {x: arrays[x]}, {x: arrays[f"std:{x}"]}, ok))

    def figure(self, title: str = "") -> Figure:
        """One panel for each of the `PANELS` joints whose values change most: the estimate and ±2 σ.

        Joints that are known and stay the same have none. Raises InvalidInput if there is nothing to draw.
        """
        if not self._kept:
            raise InvalidInput("there is no state to draw")
        x, nv = np.vstack(self._parts), self.model.nv
        t, values, std = x[:, 0], x[:, 1 : 1 + nv], x[:, 1 + nv :]
        shown = most_changing(values, std)
        units, symbol = QUANTITY[self.quantity].units(self.model), QUANTITY[self.quantity].symbol
        noisy = bool(np.isfinite(std).any())
        panels = [
            Panel(self.model.dof_names[k], f"{symbol} [{units[k]}]", values[:, k], std[:, k] if noisy else None)
            for k in shown
        ]
        rest = f"{len(shown)} of {nv} shown" if len(shown) < nv else ""
        return bands(t, panels, ", ".join(part for part in (title, rest) if part))
