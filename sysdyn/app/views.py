"""Views of a model and of a solution on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.app.terminal import new_table, output
from sysdyn.files.html import TextTable
from sysdyn.model import Model
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver


def print_model(model: Model) -> None:
    """Print the bodies of a model with their joints, then its frames and sensors."""
    output().print(str(model))
    output().print()
    _print_table(model.table())
    _print_attached(model)


def print_tables(tables: Sequence[TextTable]) -> None:
    """Print tables, each below its title."""
    for table in tables:
        output().print()
        output().print(table.title, style="bold")
        _print_table(table)


def _print_table(table: TextTable) -> None:
    shown = new_table(*table.columns, left=table.left)
    for row in table.rows:
        shown.add_row(*row)
    output().print(shown)


def _print_attached(model: Model) -> None:
    """Print the frames beside those of the bodies themselves, and sensors, by the body or link that carries them."""
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
                table.add_row(owner, ", ".join(names))
            console.print()
            console.print(table)


def print_solution(solver: Solver, solution: Solution) -> None:
    """Print the values of one state; of several the range of each quantity, and the residual if all was computed."""
    output().print(repr(solver), soft_wrap=True)
    for table in solution.tables():
        _print_table(table)
    if solution.ok.size > 1 and set(solver.outputs) == set(solver.problem.quantities):
        error = solution.backward_error()
        if np.isfinite(error).any():
            output().print(f"largest backward error {np.nanmax(error):.1e}")
