"""States and logs solved: results on the terminal, in files and in pictures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import typer

from sysdyn.app.console import NOT_SOLVED
from sysdyn.app.tasks import Task, compile_task
from sysdyn.app.terminal import errors, output, print_labelled
from sysdyn.app.views import print_solution, print_tables
from sysdyn.data.estimates import estimate_log
from sysdyn.data.log_columns import STATES
from sysdyn.data.sensor_log import Log, Summary
from sysdyn.data.states import States, write_states
from sysdyn.errors import InvalidInput, ProblemError
from sysdyn.measurements.measurement import Output
from sysdyn.online.progress import Bar
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver
from sysdyn.trajectories.run import Run
from sysdyn.trajectories.smooth import smooth

# Ways of `sysdyn solve --log` with the state: "auto" is unknown if sensors of the problem tell it.
RUN_STATES = ("auto", *STATES)


def solve_states(task: Task, given: States, out: Path | None, seconds: float | None) -> None:
    """Solve at the given states; print and write the results."""
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

        _check_picture(picture)
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


def smooth_log(
    task: Task, log: Log, path: Path, out: Path | None, picture: Path | None, coupled: bool, order: int | None
) -> None:
    """Find the states, biases and outputs of a log; write and draw them."""
    if picture is not None:
        _check_picture(picture)
    begin = time.perf_counter()
    run = smoothed(task, log, coupled, order)
    seconds = time.perf_counter() - begin
    console = output()
    if task.title:
        console.print(task.title, style="bold", soft_wrap=True)
    level = "coupled" if coupled else "kinematic"
    span = run.t[-1] - run.t[0]
    console.print(
        f"{task.problem.model.name}, {level} level: {len(run):,} rows over {span:.4g} s in {seconds:.3g} s",
        soft_wrap=True,
    )
    if run.chosen:
        console.print(f"told by nothing, and as at the start: {', '.join(run.chosen)}", soft_wrap=True)
    print_tables(run.tables())
    notes = [f"{len(run):,} states of {path}"]
    notes += [f"{log.summary.missing:,} values of sensors were missing"] if log.summary.missing else []
    if out is not None:
        notes.append(f"written to {run.save(out)}")
    if picture is not None:
        from sysdyn.app.matrix_plot import save_figure  # matplotlib takes half a second to import
        from sysdyn.app.time_plot import Bands

        bands = Bands(run.model, "tau" if "tau" in run.outputs else "qdd").told(run)
        notes.append(f"drawn in {save_figure(bands.figure(title=task.title), picture)}")
    console.print()
    console.print("; ".join(notes), soft_wrap=True)


def is_run(task: Task, states: str) -> bool:
    """True if the states of a log are unknown, by one of RUN_STATES."""
    return bool(task.problem.state_sensors) if states == RUN_STATES[0] else states == STATES[1]


def unknown_log(task: Task, path: Path) -> Log:
    """The log of a task whose states are unknown. Raises ProblemError if no sensor tells them."""
    if not task.problem.state_sensors:
        raise ProblemError(
            "no sensor of the problem tells the states of a log: add encoders (JointPosition) or other sensors of the "
            "state; if q and q̇ are columns of the log, they are exact"
        )
    return Log(path, task.problem, task.values, columns=task.columns, states=STATES[1])


def smoothed(task: Task, log: Log, coupled: bool, order: int | None) -> Run:
    """The run of a log of unknown states, with its progress on the terminal."""
    with Bar("smoothing"):
        return smooth(task.problem, log, _outputs_of_run(task), coupled=coupled, order=order)


def _outputs_of_run(task: Task) -> tuple[Output, ...]:
    """The requested outputs, by default torques, and wrenches from outside if any are unknown."""
    if task.outputs is not None:
        return task.outputs
    known, model = task.problem.knows("fx"), task.problem.model
    return ("tau",) if len(known) == 6 * model.nb else ("tau", "fx")


def _check_picture(picture: Path) -> None:
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
