"""Plots of estimates over time with ±2 σ bands."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, JointQuantity
from sysdyn.views.curves import POINTS, Panel, bands, most_changing


class Bands:
    """Collects a joint quantity over a log of any length. It stores every 2^k-th state, at most `POINTS` states."""

    def __init__(self, model: Model, quantity: str):
        if not isinstance(QUANTITY.get(quantity), JointQuantity):
            raise InvalidInput(f"{quantity} cannot be drawn over time: choose tau or qdd")
        self.model, self.quantity = model, quantity
        self.clear()

    def clear(self) -> None:
        """Remove all states."""
        self._points = np.empty((0, 1 + 2 * self.model.nv))  # t, values, standard deviations
        self._step, self._count = 1, 0

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Append states. arrays: t (N,), the quantity (N, nv) and, if noisy, std:QUANTITY (N, nv)."""
        t, values = arrays["t"], arrays[self.quantity]
        std = arrays.get(f"std:{self.quantity}", np.full_like(values, np.nan))
        first = -self._count % self._step
        self._points = np.vstack([self._points, np.hstack([t[:, None], values, std])[first :: self._step]])
        self._count += len(t)
        while len(self._points) > POINTS:
            self._points, self._step = self._points[::2], 2 * self._step

    def figure(self, title: str = "") -> Figure:
        """Plot the estimates with ±2 σ bands, one panel per joint, for the joints that change most.

        Joints with a known constant value are omitted. Raises InvalidInput if there are no states.
        """
        if not len(self._points):
            raise InvalidInput("there is no state to draw")
        nv, quantity = self.model.nv, QUANTITY[self.quantity]
        t, values, std = self._points[:, 0], self._points[:, 1 : 1 + nv], self._points[:, 1 + nv :]
        columns = most_changing(values, std)
        units, noisy = quantity.units(self.model), bool(np.isfinite(std).any())
        panels = [
            Panel(
                self.model.dof_names[k], f"{quantity.symbol} [{units[k]}]", values[:, k], std[:, k] if noisy else None
            )
            for k in columns
        ]
        rest = f"{len(columns)} of {nv} shown" if len(columns) < nv else ""
        return bands(t, panels, ", ".join(part for part in (title, rest) if part))
