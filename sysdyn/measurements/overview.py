"""Tables of a problem: its unknowns, and its equations with their noise."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from sysdyn.files.html import TextTable
from sysdyn.measurements.input_names import value_of
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import ModelNoise, noise_of
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY

# Meaning of the equations of motion, by their quantity.
_MOTION = {
    "a": "accelerations along the tree", "f": "Newton-Euler: wrenches on each body", "tau": "torques out of wrenches",
}  # fmt: skip


def unknowns(layout: Layout) -> TextTable:
    """Table of the unknowns: each quantity, its meaning, number of scalars and units."""
    model, rows = layout.model, []
    for x in dict.fromkeys(x for x, _ in layout.blocks):
        quantity = layout.of(x)
        rows.append((x, quantity.meaning, f"{math.prod(quantity.shape(model)):,}", ", ".join(quantity.component_units)))
    return TextTable(f"{layout.n:,} unknowns", ("unknown", "meaning", "scalars", "unit"), rows, 2)


def equations(model: Model, measurements: Iterable[Measurement]) -> TextTable:
    """Table of the equations of motion and the measurements: kind, components, their units and noise."""
    rows = [
        (f"c({x})", what, f"{_size(model, x):,}", ", ".join(QUANTITY[x].component_units), "exact")
        for x, what in _MOTION.items()
    ]
    count = sum(_size(model, x) for x in _MOTION)
    for m in measurements:
        names = m.components(model)
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        kind = type(m).__name__
        units = ", ".join(dict.fromkeys(value_of(m, model).units))
        rows.append((m.name, f"{kind}: {shown}", f"{len(names):,}", units, _noise(m, model)))
        # noise of the model makes equations of motion inexact; the state is given
        count += 0 if isinstance(m, ModelNoise) or m.of_state else len(names)
    return TextTable(f"{count:,} equations", ("equations", "of", "scalars", "unit", "noise"), rows, 2)


def _size(model: Model, quantity: str) -> int:
    return math.prod(QUANTITY[quantity].shape(model))


def _noise(m: Measurement, model: Model) -> str:
    """Standard deviations of a measurement as text; "exact" without noise."""
    switched = ", switchable" if m.switchable else ""
    if m.noise is None:
        return f"exact{switched}"
    noise = noise_of(m, model)
    std = np.sqrt(np.diagonal(noise.matrix(noise.declared)))
    said = f"{std.min():.3g}" + (f" to {std.max():.3g}" if std.max() > std.min() else "")
    return f"σ {said}{', correlated' if noise.full else ''}{switched}"
