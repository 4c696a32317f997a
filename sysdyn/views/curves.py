"""Matplotlib figures of quantities over time with ±2 σ bands, of intervals, and of outliers."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Largest number of points of a curve, and of panels of a figure (chosen).
POINTS, PANELS = 2000, 12
# Colours of curves and bands (Okabe and Ito's palette).
LINE, BAND = "#0072B2", "#E69F00"
# Width of a figure and height of a line of bars [inches] (chosen).
WIDTH, BAR = 10.8, 0.32


class Panel(NamedTuple):
    """A curve: title, axis label, values (N,), and their standard deviations (N,) or None."""

    title: str
    label: str
    values: np.ndarray
    std: np.ndarray | None = None


def bands(t: np.ndarray, panels: Sequence[Panel], title: str = "") -> Figure:
    """Panels of estimates with ±2 σ bands over t (N,) [s]."""
    across = len(panels) if len(panels) < 4 else 2 if len(panels) == 4 else 3
    down = -(-len(panels) // across)
    figure = _figure(WIDTH / 3 * across, 1.9 * down + 0.8)
    axes = figure.subplots(down, across, squeeze=False, sharex=True)
    for axis, panel in zip(axes.flat, panels, strict=False):
        if panel.std is not None:
            low, high = panel.values - 2.0 * panel.std, panel.values + 2.0 * panel.std
            axis.fill_between(t, low, high, color=BAND, alpha=0.6, linewidth=0.0, label="±2 σ")
        axis.plot(t, panel.values, color=LINE, linewidth=0.6, label="estimate")
        axis.set_title(panel.title, fontsize=9)
        axis.set_ylabel(panel.label, fontsize=8)
        _styled(axis)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    for column in range(across):
        last = max(r for r in range(down) if r * across + column < len(panels))
        axes[last, column].set_xlabel("t [s]", fontsize=8)
        axes[last, column].tick_params(labelbottom=True)
    if title:
        figure.suptitle(title, fontsize=10)
    handles = {label: x for axis in axes.flat for x, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    order = sorted(handles, reverse=True)  # the band first
    figure.legend([handles[x] for x in order], order, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def bars(t: np.ndarray, on: Mapping[str, np.ndarray]) -> Figure:
    """A line of bars for each name where `on` (N,) bool is True, over t (N,) [s]; a value holds until the next time."""
    figure = _figure(WIDTH, BAR * len(on) + 0.7)
    axis = figure.subplots()
    for k, x in enumerate(on.values()):
        parts = [(t[a], t[min(b, len(t) - 1)] - t[a]) for a, b in intervals(x)]
        axis.broken_barh(parts, (k - 0.35, 0.7), facecolors=LINE, edgecolors="none")
    axis.set_yticks(range(len(on)), list(on), fontsize=8)
    axis.set(xlim=_wide(float(t[0]), float(t[-1])), ylim=(len(on) - 0.5, -0.5))
    axis.set_xlabel("t [s]", fontsize=8)
    _styled(axis)
    return figure


def marks(points: Mapping[str, tuple[np.ndarray, np.ndarray]], label: str, span: tuple[float, float]) -> Figure:
    """Points (times, positive values) by name over a time span [s], on a logarithmic axis."""
    figure = _figure(WIDTH, 2.8)
    axis = figure.subplots()
    for name, (t, values) in points.items():
        axis.plot(t, values, ".", markersize=4, label=name)
    axis.set_yscale("log")
    axis.set_xlim(*_wide(*span))
    axis.set_xlabel("t [s]", fontsize=8)
    axis.set_ylabel(label, fontsize=8)
    _styled(axis)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return figure


def intervals(on: np.ndarray) -> list[tuple[int, int]]:
    """(first, last + 1) of each run of True in (N,) bool."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], on, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def most_changing(values: np.ndarray, std: np.ndarray) -> list[int]:
    """Columns of values (N, m) that change most, in their order, without the ones that are known and stay the same."""
    spread = np.nan_to_num(np.nanmax(values, axis=0) - np.nanmin(values, axis=0))
    order = np.argsort(-spread, kind="stable")
    open_ = (spread > 0.0) | np.any(std > 0.0, axis=0)
    return sorted((order[open_[order]] if open_.any() else order)[:PANELS].tolist())


def svg(figure: Figure) -> str:
    """The figure as HTML that loads nothing."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return f'<figure class="wide">{text}</figure>'


def _wide(begin: float, end: float) -> tuple[float, float]:
    """Limits of an axis of time, a second for a single instant."""
    return (begin, end) if end > begin else (begin - 0.5, begin + 0.5)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _styled(axis: Axes) -> None:
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25, linewidth=0.5)
