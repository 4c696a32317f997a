"""Views of a model and of a solution on a terminal."""

from __future__ import annotations

import numpy as np
from rich.markup import escape

from sysdyn.app.terminal import new_table, output
from sysdyn.measurements import variables
from sysdyn.measurements.columns import column_names, measured_units
from sysdyn.measurements.variables import WRENCHES
from sysdyn.model import Model
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver

# Units of a quantity in words; w, the wrenches of constraints, has those of every wrench.
UNITS = {quantity: ", ".join(units) for quantity, units in (*variables.UNITS.items(), ("w", variables.UNITS["f"]))}


def print_model(model: Model) -> None:
    """Its bodies with their joints, then frames and sensors."""
    console = output()
    console.print(str(model))
    table = new_table("", "body", "joint", "type", "parent", "mass (kg)", "limits", left=5)
    for i, name in enumerate(model.body_names):
        p, part = model.parent[i], model.v_slice(i)
        limits = ""
        if model.joints[i].nv == 1 and np.isfinite([*model.lower[part], *model.upper[part]]).all():
            limits = f"{model.lower[part][0]:.3g} … {model.upper[part][0]:.3g}"
        table.add_row(
            str(i), escape(name), escape(model.joint_names[i]), model.joints[i].kind,
            escape(model.body_names[p]) if p >= 0 else "(base)", f"{model.inertias[i, 5, 5]:.4g}", limits,
        )  # fmt: skip
    console.print()
    console.print(table)
    _print_attached(model)


def _print_attached(model: Model) -> None:
    """Frames beside those of the bodies themselves, and sensors, by the body or link that carries them."""
    carried: dict[str, list[str]] = {}
    sensors = {s.type: [x.name for x in model.sensors if x.type == s.type] for s in model.sensors}
    for frame in model.frames.values():
        if frame.name not in model.body_names:
            carried.setdefault(model.body_names[frame.body] if frame.body >= 0 else "(base)", []).append(frame.name)
    console = output()
    for title, groups in (("frames", carried), ("sensors", sensors)):
        if groups:
            table = new_table("on" if title == "frames" else "type", title, left=2)
            for owner, names in groups.items():
                table.add_row(escape(owner), escape(", ".join(names)))
            console.print()
            console.print(table)


def print_solution(solver: Solver, solution: Solution) -> None:
    """The values of one state; of several, the range of each quantity."""
    output().print(repr(solver), soft_wrap=True)
    if solution.ok.size == 1:
        _print_values(solver, solution)
    else:
        _print_ranges(solver, solution)


def _print_values(solver: Solver, solution: Solution) -> None:
    """A table of each quantity, with a row for each joint, body or component of a constraint's wrench."""
    model = solver.model
    for quantity in (x for x in solver.outputs if x not in solver.measured):
        values, title = np.reshape(solution[quantity], (-1,)), f"{quantity} ({UNITS[quantity]})"
        if quantity in WRENCHES:
            columns = "αx αy αz ax ay az" if quantity == "a" else "nx ny nz fx fy fz"
            table = new_table(title, *columns.split())
            for name, row in zip(model.body_names, values.reshape(-1, 6), strict=True):
                table.add_row(escape(name), *(f"{x:.5g}" for x in row))
        else:
            table = new_table("wrench" if quantity == "w" else "joint", title)
            for name, x in zip(column_names(model, quantity, solver.problem.constraints), values, strict=True):
                table.add_row(escape(name.partition(":")[2]), f"{x:.9g}")
        output().print(table)
    for name, m in solver.measured.items():
        table = new_table(escape(name), "value", "unit", left=1)
        values = np.reshape(solution[name], (-1,))
        for component, x, unit in zip(m.components(model), values, measured_units(m, model), strict=True):
            table.add_row(escape(component), f"{x:.9g}", unit)
        output().print(table)


def _print_ranges(solver: Solver, solution: Solution) -> None:
    """Least and greatest entry of each quantity, and the largest residual where everything was computed."""
    console = output()
    table = new_table("quantity", "shape", "least", "greatest", "unit", left=2)
    for quantity in solver.outputs:
        x = solution[quantity]
        finite = x[np.isfinite(x)]
        least, most = (f"{finite.min():.6g}", f"{finite.max():.6g}") if finite.size else ("–", "–")
        measured = solver.measured.get(quantity)
        unit = ", ".join(dict.fromkeys(measured_units(measured, solver.model))) if measured else UNITS[quantity]
        table.add_row(escape(quantity), str(x.shape), least, most, unit)
    console.print(table)
    if set(solver.outputs) == set(solver.problem.quantities):
        error = solution.backward_error()
        if np.isfinite(error).any():
            console.print(f"largest backward error {np.nanmax(error):.1e}")
