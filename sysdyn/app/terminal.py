"""Terminal output: consoles, exit codes, and printing of tables, models and solutions."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sysdyn.files.html import TextTable
from sysdyn.model import Model
from sysdyn.online.estimate import Estimate
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver
from sysdyn.program.opcodes import Flops

# Exit codes: unsolved states; invalid input; closed output pipe (as for SIGPIPE).
NOT_SOLVED, WRONG, UNREAD = 1, 2, 141
# Width [characters] of output to files and pipes: tuned.
_PIPED_WIDTH = 120


class _Console(Console):
    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(UNREAD) from None


def output(stderr: bool = False) -> Console:
    """Console for the current standard output or standard error. Text is printed verbatim, without markup."""
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def print_labelled(label: str, style: str, text: object) -> None:
    """Print a line with a styled label, such as "error:", on standard error."""
    output(stderr=True).print(Text.assemble((label, style), f" {text}"), soft_wrap=True)


def new_table(*columns: str, left: int = 1) -> Table:
    """A table without rules. The first `left` columns are left-aligned, the others right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k < left else "right", overflow="fold")
    return table


def print_table(table: TextTable, titled: bool = True) -> None:
    """Print a table. titled: print its title, too."""
    if titled:
        output().print(f"\n{table.title}", style="bold")
    rows = new_table(*table.columns, left=table.left)
    for row in table.rows:
        rows.add_row(*row)
    output().print(rows)


def count_cells(flops: Flops | None) -> list[str]:
    """Table cells for mul, add, div, total and sin/cos pairs; dashes for None."""
    if flops is None:
        return ["–"] * 5
    div = f"{flops.div:,}" + (f" + {flops.sqrt:,} sqrt" if flops.sqrt else "")
    return [f"{flops.mul:,}", f"{flops.add:,}", div, f"{flops.total:,}", f"{flops.trig:,}"]


def print_model(model: Model) -> None:
    """Print the bodies and joints of a model, then frames by body and sensors by type."""
    output().print(f"{model}\n")
    print_table(model.table(), titled=False)
    frames: dict[str, list[str]] = {}
    for frame in model.frames.values():
        if frame.name not in model.body_names:
            frames.setdefault(model.body_names[frame.body] if frame.body >= 0 else "(base)", []).append(frame.name)
    sensors: dict[str, list[str]] = {}
    for sensor in model.sensors:
        sensors.setdefault(sensor.type, []).append(sensor.name)
    for columns, groups in ((("on", "frames"), frames), (("type", "sensors"), sensors)):
        if groups:
            output().print()
            rows = [(owner, ", ".join(names)) for owner, names in groups.items()]
            print_table(TextTable("", columns, rows, 2), titled=False)


def print_solution(solver: Solver, solution: Solution) -> None:
    """Print a solution: values of a single state, or ranges of several states with the largest backward error."""
    output().print(repr(solver), soft_wrap=True)
    if isinstance(solution, Estimate):
        for name in solution.keys():
            solution.std(name)  # compiles its program, so that the tables include it
    for table in solution.tables():
        print_table(table, titled=False)
    if solution.ok.size > 1 and set(solver.outputs) == set(solver.problem.quantities):
        error = solution.backward_error()
        if np.isfinite(error).any():
            output().print(f"largest backward error {np.nanmax(error):.1e}")
