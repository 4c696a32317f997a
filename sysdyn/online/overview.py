"""What a solution says, as tables: the values of one state by name, of several their ranges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.files.html import Table
from sysdyn.measurements import variables
from sysdyn.measurements.columns import column_names
from sysdyn.measurements.variables import WRENCHES
from sysdyn.problem import Problem

# Units of a quantity in words; w, the wrenches of constraints, has those of every wrench.
UNITS = {quantity: ", ".join(units) for quantity, units in (*variables.UNITS.items(), ("w", variables.UNITS["f"]))}

# {name of a measured output: {component: unit}}.
Components = Mapping[str, Mapping[str, str]]


def values(problem: Problem, found: Mapping[str, np.ndarray], components: Components) -> list[Table]:
    """Of one state: a table of each output, with a row for each joint, body or component."""
    model, tables = problem.model, []
    for name, x in found.items():
        if name in components:
            rows = [
                (component, f"{value:.9g}", unit)
                for (component, unit), value in zip(components[name].items(), np.reshape(x, -1), strict=True)
            ]
            tables.append(Table(name, (name, "value", "unit"), rows))
            continue
        title = f"{name} ({UNITS[name]})"
        if name in WRENCHES:
            heads = "αx αy αz ax ay az" if name == "a" else "nx ny nz fx fy fz"
            wrenches = zip(model.body_names, np.reshape(x, (-1, 6)), strict=True)
            rows6 = [(body, *(f"{value:.5g}" for value in row)) for body, row in wrenches]
            tables.append(Table(title, (title, *heads.split()), rows6))
        else:
            columns = (column.partition(":")[2] for column in column_names(model, name, problem.constraints))
            rows2 = [(column, f"{value:.9g}") for column, value in zip(columns, np.reshape(x, -1), strict=True)]
            tables.append(Table(title, ("wrench" if name == "w" else "joint", title), rows2))
    return tables


def ranges(found: Mapping[str, np.ndarray], components: Components) -> Table:
    """Of several states: the least and the greatest entry of each output."""
    rows = []
    for name, x in found.items():
        finite = x[np.isfinite(x)]
        least, most = (f"{finite.min():.6g}", f"{finite.max():.6g}") if finite.size else ("–", "–")
        unit = ", ".join(dict.fromkeys(components[name].values())) if name in components else UNITS[name]
        rows.append((name, str(x.shape), least, most, unit))
    return Table("values", ("quantity", "shape", "least", "greatest", "unit"), rows, 2)
