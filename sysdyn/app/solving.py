"""States and logs solved: results on the terminal, in files and in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import typer

from sysdyn.app.console import NOT_SOLVED
from sysdyn.app.tasks import Task, compile_task
from sysdyn.app.terminal import errors, output, print_labelled
from sysdyn.app.views import print_solution
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Log, Summary
from sysdyn.data.states import States, write_states
from sysdyn.errors import InvalidInput
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver
from sysdyn.online.speeds import warn_if_moving, warn_of_gaps


def solve_states(
    task: Task, given: States, out: Path | None, seconds: float | None, drawn: bool = False
) -> None:  # fmt: skip
    """Solve at the given states; print and write the results. drawn: they are random, and feet move all the same."""
    q, qd = (np.broadcast_to(given.arrays[x], (given.n, np.shape(given.arrays[x])[-1])) for x in ("q", "qd"))
    warn_of_gaps(task.problem, q)
    if not drawn:
        free = {*(given.arrays.get("y") or ()), *(m.name for m in task.problem.switchable_constraints)}
        warn_if_moving(task.problem, q, qd, free)
    solver = compile_task(task, seconds=seconds)
    arrays: dict[str, Any] = dict(given.arrays)
    solution = solver(arrays.pop("q"), arrays.pop("qd"), **arrays)
    if task.title:
        output().print(task.title, style="bold", soft_wrap=True)
    print_solution(solver, solution)
    if out is not None:
        _write(out, given, solver, solution)
    if not np.all(solution.ok):
        failed = np.flatnonzero(~np.atleast_1d(solution.ok))
        numbers = ", ".join(map(str, failed[:8])) + (", …" if len(failed) > 8 else "")
        message = f"{len(failed)} of {solution.ok.size} states were not solved: {numbers}"
        print_labelled(errors(), "error:", "red", message)
        raise typer.Exit(NOT_SOLVED)


def solve_log(
    task: Task, log: Log, path: Path, out: Path | None, picture: Path | None, scheduler: str | None,
    seconds: float | None,
) -> None:  # fmt: skip
    """Estimate the states of a log; write and draw them."""
    if picture is not None:
        from sysdyn.app.matrix_plot import save_figure
        from sysdyn.app.time_plot import Bands  # matplotlib takes half a second to import

        check_picture(picture)
    solver = compile_task(task, seconds=seconds)
    bands = None if picture is None else Bands(solver.model, "tau" if "tau" in solver.outputs else "qdd")
    console = output()
    if task.title:
        console.print(task.title, style="bold", soft_wrap=True)
    console.print(repr(solver), soft_wrap=True)
    found = estimate_log(log, solver, out, bands, scheduler)
    notes = [f"written to {out}"] if out is not None else []
    if bands is not None and picture is not None:
        notes.append(f"drawn in {save_figure(bands.figure(title=task.title), picture)}")
    console.print("; ".join([*_tally(path, found), *notes]), soft_wrap=True)
    if found.unsolved:
        message = f"{found.unsolved} of {found.states} states were not solved"
        print_labelled(errors(), "error:", "red", message)
        raise typer.Exit(NOT_SOLVED)


def check_picture(picture: Path) -> None:
    """Raise InvalidInput unless it can be a picture."""
    from sysdyn.app.matrix_plot import SUFFIXES  # matplotlib takes half a second to import

    if picture.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"picture {str(picture)!r} must end in {', '.join(SUFFIXES)}")


def _tally(path: Path, found: Summary) -> list[str]:
    """The numbers of states and values of a log, in words."""
    notes = [f"{found.states:,} states of {path}"]
    notes += [f"{found.skipped:,} left out for missing values"] if found.skipped else []
    notes += [f"{found.missing:,} values of sensors were missing"] if found.missing else []
    return notes


def _write(path: Path, given: States, solver: Solver, solution: Solution) -> None:
    arrays = {name: x for name, x in given.arrays.items() if name not in ("y", "active")}
    arrays |= {name: solution[name] for name in solver.outputs}
    groups = {**solver.problem.inputs, **solver.problem.outputs(solver.options.outputs)}
    n = int(solution.ok.size)
    shaped = {}
    for name, x in arrays.items():
        tail = groups[name].shape
        x = np.reshape(x, (-1, *tail))
        shaped[name] = np.broadcast_to(x, (n, *tail))
    ok = np.atleast_1d(solution.ok) if solver.on_singular != "raise" else None
    write_states(path, groups, shaped, ok)
    output().print(f"wrote {path}: {', '.join(shaped)} of {n} states", soft_wrap=True)
