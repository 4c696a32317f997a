"""A solution as tables: the values of one state by name, or the ranges of several; of estimates with deviations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.files.html import TextTable
from sysdyn.model.quantities import QUANTITY, WRENCHES
from sysdyn.program.groups import Group, Groups

# Standard deviations by output, or none of an exact solution.
Deviations = Mapping[str, np.ndarray]


def values(outputs: Groups, found: Mapping[str, np.ndarray], std: Deviations) -> list[TextTable]:
    """Values of one state: a table of each output, with a row for each joint, body or component."""
    return [_table(outputs[name], x, std.get(name)) for name, x in found.items()]


def _table(group: Group, x: np.ndarray, std: np.ndarray | None) -> TextTable:
    title = f"{group.name} ({_units(group)})"
    names = [label.removeprefix(f"{group.name}:").strip() for label in group.labels]
    if len(group.shape) > 1:  # a row for each body
        heads = [name.rpartition(".")[2].replace("alpha_", "α").replace("_", "") for name in names[:6]]
        bodies = [name.rpartition(".")[0] for name in names[::6]]
        cells = [f"{value:.5g}" for value in np.reshape(x, -1)]
        if std is not None:
            cells = [f"{cell} ± {sigma:.2g}" for cell, sigma in zip(cells, np.reshape(std, -1), strict=True)]
        return TextTable(title, (title, *heads), [(body, *cells[6 * k : 6 * k + 6]) for k, body in enumerate(bodies)])
    columns = [[f"{value:.9g}" for value in np.reshape(x, -1)]]
    columns += [] if std is None else [[f"{sigma:.3g}" for sigma in np.reshape(std, -1)]]
    sigma = () if std is None else ("σ",)
    known = {**QUANTITY, WRENCHES.name: WRENCHES}.get(group.name)
    if known is not None:
        return TextTable(title, (known.owner, title, *sigma), [*zip(names, *columns, strict=True)])
    rows = [*zip(names, *columns, group.units, strict=True)]
    return TextTable(group.name, (group.name, "value", *sigma, "unit"), rows)


def ranges(outputs: Groups, found: Mapping[str, np.ndarray], std: Deviations) -> TextTable:
    """Ranges over several states: the least and the greatest entry of each output."""
    rows = []
    for name, x in found.items():
        finite = x[np.isfinite(x)]
        least, most = (f"{finite.min():.6g}", f"{finite.max():.6g}") if finite.size else ("–", "–")
        sigma: tuple[str, ...] = ()
        if name in std:
            known = std[name][np.isfinite(std[name])]
            sigma = (f"{np.median(known):.3g}", f"{known.max():.3g}") if known.size else ("–", "–")
        rows.append((name, str(x.shape), least, most, *sigma, _units(outputs[name])))
    spread = ("median σ", "greatest σ") if std else ()
    return TextTable("values", ("quantity", "shape", "least", "greatest", *spread, "unit"), rows, 2)


def spreads(outputs: Groups, std: Deviations) -> list[str]:
    """Range of the standard deviations of each output, a line each, by unit."""
    lines = []
    for name, x in std.items():
        flat, parts = np.reshape(x, (-1, outputs[name].size)), []
        for unit in dict.fromkeys(outputs[name].units):
            part = flat[:, [u == unit for u in outputs[name].units]]
            known = part[np.isfinite(part)]
            parts += [f"{known.min():.3g} … {known.max():.3g} {unit}"] if known.size else []
        lines.append(f"  σ of {name}: {', '.join(parts) or 'unknown'}")
    return lines


def _units(group: Group) -> str:
    return ", ".join(dict.fromkeys(group.units))
