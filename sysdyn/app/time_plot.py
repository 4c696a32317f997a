"""Plots of estimates over time, with bands of two standard deviations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sysdyn.data.sensor_log import Estimates
from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, Freedoms

# Most points of a curve (chosen).
POINTS = 2000
# Most panels of a picture by default (chosen).
PANELS = 12
# Colours of curves and bands, of Okabe and Ito's palette.
LINE, BAND = "#0072B2", "#E69F00"


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

    def figure(self, joints: Sequence[str] | None = None, title: str = "") -> Figure:
        """One panel for each joint: the estimate and ±2 σ.

        joints: names, default the `PANELS` whose values change most, without those that are known and stay what they
        are. Raises InvalidInput if there is nothing to draw.
        """
        if not self._kept:
            raise InvalidInput("there is no state to draw")
        x, nv = np.vstack(self._parts), self.model.nv
        t, values, std = x[:, 0], x[:, 1 : 1 + nv], x[:, 1 + nv :]
        shown = self._chosen(values, std, joints)
        across = len(shown) if len(shown) < 4 else 2 if len(shown) == 4 else 3
        down = -(-len(shown) // across)
        figure = Figure(figsize=(3.6 * across, 1.9 * down + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        units = QUANTITY[self.quantity].units(self.model)
        axes = figure.subplots(down, across, squeeze=False, sharex=True)
        noisy = bool(np.isfinite(std).any())
        for axis, k in zip(axes.flat, shown, strict=False):
            if noisy:
                low, high = values[:, k] - 2.0 * std[:, k], values[:, k] + 2.0 * std[:, k]
                axis.fill_between(t, low, high, color=BAND, alpha=0.6, linewidth=0.0, label="±2 σ")
            axis.plot(t, values[:, k], color=LINE, linewidth=0.6, label="estimate")
            axis.set_title(self.model.dof_names[k], fontsize=9)
            axis.set_ylabel(f"{QUANTITY[self.quantity].symbol} [{units[k]}]", fontsize=8)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.25, linewidth=0.5)
        for axis in list(axes.flat)[len(shown) :]:
            axis.set_visible(False)
        for column in range(across):
            last = max(r for r in range(down) if r * across + column < len(shown))
            axes[last, column].set_xlabel("t [s]", fontsize=8)
            axes[last, column].tick_params(labelbottom=True)
        rest = f"{len(shown)} of {nv} shown" if len(shown) < nv else ""
        figure.suptitle(", ".join(part for part in (title, rest) if part), fontsize=10)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        return figure

    def _chosen(self, values: np.ndarray, std: np.ndarray, joints: Sequence[str] | None) -> list[int]:
        if joints is not None:
            return [
                k for name in joints for k in range(*self.model.v_slice(self.model.joint_index(name)).indices(10**9))
            ]
        spread = np.nan_to_num(np.nanmax(values, axis=0) - np.nanmin(values, axis=0))
        order = np.argsort(-spread, kind="stable")
        open_ = (spread > 0.0) | np.any(std > 0.0, axis=0)
        return sorted((order[open_[order]] if open_.any() else order)[:PANELS].tolist())
