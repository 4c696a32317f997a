"""Runs of logs whose states are unknown: on the terminal, in files and in pictures."""

from __future__ import annotations

import time
from pathlib import Path

from sysdyn.app.solving import check_picture
from sysdyn.app.tasks import Task
from sysdyn.app.terminal import output
from sysdyn.app.views import print_tables
from sysdyn.data.log_columns import STATES
from sysdyn.data.sensor_log import Log
from sysdyn.errors import ProblemError
from sysdyn.measurements.measurement import Output
from sysdyn.online.progress import Bar
from sysdyn.trajectories.run import Run
from sysdyn.trajectories.smooth import Request, checked_outputs, smooth, smooth_into
from sysdyn.trajectories.stored import StoredRun


def smooth_log(
    task: Task, log: Log, path: Path, out: Path | None, picture: Path | None, coupled: bool, order: int | None
) -> None:
    """Find the states, biases and outputs of a log; write and draw them."""
    bands = None
    if picture is not None:
        check_picture(picture)
        from sysdyn.app.time_plot import Bands  # matplotlib takes half a second to import

        quantities = outputs_of_run(task)
        bands = Bands(task.problem.model, "tau" if "tau" in quantities else "qdd")
    begin = time.perf_counter()
    run: Run | StoredRun
    if out is None:
        run = smoothed(task, log, coupled, order)
        if bands is not None:
            bands.told(run)
    else:
        asked = Request(checked_outputs(task.problem, outputs_of_run(task)), coupled, order)
        with Bar("log") as bar:
            run = smooth_into(task.problem, log, out, asked, bar, None if bands is None else bands.told_arrays)
    seconds = time.perf_counter() - begin
    console = output()
    if task.title:
        console.print(task.title, style="bold", soft_wrap=True)
    level = "coupled" if coupled else "kinematic"
    console.print(
        f"{task.problem.model.name}, {level} level: {len(run):,} rows over {run.seconds:.4g} s in {seconds:.3g} s",
        soft_wrap=True,
    )
    if run.untold:
        console.print(f"told by nothing in the log, and as before: {', '.join(run.untold)}", soft_wrap=True)
    print_tables(run.tables())
    notes = [f"{len(run):,} states of {path}"]
    notes += [f"{log.summary.missing:,} values of sensors were missing"] if log.summary.missing else []
    if isinstance(run, StoredRun):
        notes.append(f"written to {run.path}, dropped readings to {run.events}")
        notes += [f"the first {run.resumed:,} by an earlier call"] if run.resumed else []
    if bands is not None and picture is not None:
        from sysdyn.app.matrix_plot import save_figure

        notes.append(f"drawn in {save_figure(bands.figure(title=task.title), picture)}")
    console.print()
    console.print("; ".join(notes), soft_wrap=True)


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
    with Bar("log") as bar:
        return smooth(task.problem, log, outputs_of_run(task), coupled=coupled, order=order, progress=bar)


def outputs_of_run(task: Task) -> tuple[Output, ...]:
    """The requested outputs, by default torques, and wrenches from outside if any are unknown."""
    if task.outputs is not None:
        return task.outputs
    known, model = task.problem.knows("fx"), task.problem.model
    return ("tau",) if len(known) == 6 * model.nb else ("tau", "fx")
