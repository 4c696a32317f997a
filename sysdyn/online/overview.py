"""A solution as tables: the values of one state by name, or the ranges of several."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.files.html import Table
from sysdyn.model.quantities import QUANTITY, WRENCHES
from sysdyn.program.groups import Group, Groups


def values(outputs: Groups, found: Mapping[str, np.ndarray]) -> list[Table]:
    """Values of one state: a table of each output, with a row for each joint, body or component."""
    return [_table(outputs[name], x) for name, x in found.items()]


def _table(group: Group, x: np.ndarray) -> Table:
    title = f"{group.name} ({_units(group)})"
    names = [label.removeprefix(f"{group.name}:").strip() for label in group.labels]
    if len(group.shape) > 1:  # a row for each body
        heads = [name.rpartition(".")[2].replace("alpha_", "α").replace("_", "") for name in names[:6]]
        bodies = [name.rpartition(".")[0] for name in names[::6]]
        found = zip(bodies, np.reshape(x, (-1, 6)), strict=True)
        return Table(title, (title, *heads), [(body, *(f"{value:.5g}" for value in row)) for body, row in found])
    numbers = [f"{value:.9g}" for value in np.reshape(x, -1)]
    known = {**QUANTITY, WRENCHES.name: WRENCHES}.get(group.name)
    if known is not None:
        return Table(title, (known.owner, title), [*zip(names, numbers, strict=True)])
    return Table(group.name, (group.name, "value", "unit"), [*zip(names, numbers, group.units, strict=True)])


def ranges(outputs: Groups, found: Mapping[str, np.ndarray]) -> Table:
    """Ranges over several states: the least and the greatest entry of each output."""
    rows = []
    for name, x in found.items():
        finite = x[np.isfinite(x)]
        least, most = (f"{finite.min():.6g}", f"{finite.max():.6g}") if finite.size else ("–", "–")
        rows.append((name, str(x.shape), least, most, _units(outputs[name])))
    return Table("values", ("quantity", "shape", "least", "greatest", "unit"), rows, 2)


def _units(group: Group) -> str:
    return ", ".join(dict.fromkeys(group.units))
