"""Jobs: a problem with options for compilation and solution, applied to states or a log; results go to files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import typer

from sysdyn.app.terminal import NOT_SOLVED, output, print_labelled, print_solution, print_table
from sysdyn.data.columns import STATES
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Estimates, Log
from sysdyn.data.states import States, write_states
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.measurements.classical import forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.online.compile import compile
from sysdyn.online.constraint_errors import warn_if_moving, warn_of_gaps
from sysdyn.online.progress import Bar
from sysdyn.online.solver import Solver
from sysdyn.reference import aba, rnea
from sysdyn.sparse.orderings import ORDERINGS

# Kinds of problems with a name. Other problems are lists of measurements.
KINDS = ("inverse", "forward", "hybrid")
# Valid elimination orders, without "auto".
ALL_ORDERINGS = (*RECURSIVE, *ORDERINGS)
# {kind of problem: outputs}, the quantity that RNEA or ABA returns.
DEFAULT_OUTPUTS = {"inverse": ("tau",), "forward": ("qdd",), "hybrid": ("tau", "qdd")}
# {kind of problem: textbook algorithm for comparison}
REFERENCES = {"inverse": rnea, "forward": aba}


@dataclass(frozen=True)
class Job:
    """A problem with options for compilation and solution.

    Attributes
    ----------
    problem : Problem
    kind : {"inverse", "forward", "hybrid", "measurements"}
    title : str
    ordering, on_singular : str
        See `sysdyn.compile`.
    outputs : tuple or None
        Requested outputs; None for the default of the kind.
    values : mapping
        {measurement: (m,)} with constant values, the same in every state.
    columns : mapping
        {column name in a log: name in the problem}, see `Log`.
    """

    problem: Problem
    kind: str
    title: str = ""
    ordering: str = "auto"
    outputs: tuple[Output, ...] | None = None
    on_singular: str = "raise"
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def requested(self) -> tuple[Output, ...]:
        """Requested outputs. Default: the outputs of the kind of problem."""
        return self.outputs or DEFAULT_OUTPUTS.get(self.kind) or self.problem.quantities

    @property
    def log_outputs(self) -> tuple[Output, ...]:
        """Outputs for a log without exact q and q̇. Default: torques, and external wrenches if any are unknown."""
        if self.outputs is not None:
            return self.outputs
        all_known = len(self.problem.knows("fx")) == 6 * self.problem.model.nb
        return ("tau",) if all_known else ("tau", "fx")

    def compile(self, **options: Any) -> Solver:
        """Compile the problem with a progress bar. Options and errors as in `sysdyn.compile`."""
        with Bar("compiling") as bar:
            return compile(
                self.problem, self.ordering, self.requested, on_singular=self.on_singular, progress=bar, **options
            )

    def unknown_log(self, path: Path) -> Log:
        """Open a log whose states q, q̇ are estimated. Raises ProblemError if no sensor measures the state."""
        if not self.problem.state_sensors:
            raise ProblemError(
                "no sensor of the problem determines the states of a log: add encoders (JointPosition) or other "
                "sensors of the state; if q and q̇ are columns of the log, they are exact"
            )
        return Log(path, self.problem, self.values, columns=self.columns, states=STATES[1])

    def smooth(self, log: Log, coupled: bool, order: int | None) -> Any:
        """Estimate states and outputs of a log by smoothing, with a progress bar. Returns a `Run`."""
        from sysdyn.estimation.smooth import smooth  # scipy.stats takes most of a second to import

        with Bar("log") as bar:
            return smooth(self.problem, log, self.log_outputs, coupled=coupled, order=order, progress=bar)


def make_problem(model: Model, kind: str, torque: Sequence[str] = ()) -> Problem:
    """Create an inverse, forward or hybrid dynamics problem. torque: joints with known torque (hybrid only)."""
    check_among("problem", kind, KINDS)
    if kind == "hybrid":
        if not torque:
            raise InvalidInput('hybrid dynamics needs the joints whose torque is known (torque = ["…"], --torque …)')
        return hybrid_dynamics(model, torque)
    if torque:
        raise InvalidInput(f"torque names joints of a hybrid problem; this one is {kind!r}, where they are not needed")
    return (inverse_dynamics if kind == "inverse" else forward_dynamics)(model)


def solve_states(job: Job, states: States, out: Path | None, random: bool = False) -> None:
    """Solve at states; print and write the results. random: the states are random; moving contacts cause no warning."""
    arrays: dict[str, Any] = dict(states.arrays)
    q, qd = arrays.pop("q"), arrays.pop("qd")
    warn_of_gaps(job.problem, q)
    if not random:
        warn_if_moving(
            job.problem, q, qd, {*arrays.get("y", ()), *(m.name for m in job.problem.switchable_constraints)}
        )
    solver = job.compile()
    solution = solver(q, qd, **arrays)
    _print_title(job)
    print_solution(solver, solution)
    if out is not None:
        groups = {**solver.problem.inputs, **solver.problem.outputs(solver.options.outputs)}
        results = {name: x for name, x in states.arrays.items() if name not in ("y", "active")}
        results |= {name: solution[name] for name in solver.outputs}
        write_states(out, groups, results, solution.ok if solver.on_singular != "raise" else None)
        output().print(f"wrote {out}: {', '.join(results)} of {states.n} states", soft_wrap=True)
    failed = np.flatnonzero(~solution.ok)
    _require_solved(len(failed), states.n, ": " + ", ".join(map(str, failed[:8])) + (", …" if len(failed) > 8 else ""))


def solve_log(
    job: Job, log: Log, path: Path, out: Path | None, picture: Path | None, scheduler: str | None,
) -> None:  # fmt: skip
    """Estimate the outputs of a log with exact q and q̇; write and draw the estimates."""
    solver = job.compile()
    bands = _bands(job.problem.model, solver.outputs, picture)
    _print_title(job)
    output().print(repr(solver), soft_wrap=True)

    def add(x: Estimates) -> None:
        bands.add({"t": x.t, **x.values, **{f"std:{name}": std for name, std in x.std.items()}})

    summary = estimate_log(log, solver, out, add if bands else None, scheduler)
    notes = [f"{summary.skipped:,} left out for missing values"] if summary.skipped else []
    _print_notes(job, log, path, summary.states, [*notes, *([f"written to {out}"] if out else [])], bands, picture)
    _require_solved(summary.unsolved, summary.states)


def smooth_log(
    job: Job, log: Log, path: Path, out: Path | None, picture: Path | None, coupled: bool, order: int | None
) -> None:
    """Estimate states, biases and outputs of a log without exact q and q̇; write and draw them."""
    from sysdyn.estimation import smooth, streamed_result  # lazy import, see `Job.smooth`

    bands, begin = _bands(job.problem.model, job.log_outputs, picture), time.perf_counter()
    notes = []
    if out is None:
        run = job.smooth(log, coupled, order)
        if bands is not None:
            bands.add(run.arrays())
    else:
        options = smooth.SmoothOptions(smooth.checked_outputs(job.problem, job.log_outputs), coupled, order)
        with Bar("log") as bar, streamed_result.RunWriter(out, bands) as writer:
            run = smooth.smooth_log(job.problem, log, options, bar, writer)
        notes = [f"written to {run.path}, dropped readings to {run.events}"]
    seconds, console = time.perf_counter() - begin, output()
    _print_title(job)
    level = "coupled" if coupled else "kinematic"
    console.print(
        f"{job.problem.model.name}, {level} level: {len(run):,} rows over {run.seconds:.4g} s in {seconds:.3g} s",
        soft_wrap=True,
    )
    if run.unobserved:
        console.print(f"not observable in the log, and as before: {', '.join(run.unobserved)}", soft_wrap=True)
    for table in run.tables():
        print_table(table)
    console.print()
    _print_notes(job, log, path, len(run), notes, bands, picture)


def _bands(model: Model, outputs: Sequence[Output], picture: Path | None) -> Any:
    """`Bands` of τ (or q̈ if τ is not an output) for a picture; None without a picture."""
    if picture is None:
        return None
    from sysdyn.app.time_plot import Bands  # matplotlib takes half a second to import

    return Bands(model, "tau" if "tau" in outputs else "qdd")


def _print_title(job: Job) -> None:
    if job.title:
        output().print(job.title, style="bold", soft_wrap=True)


def _print_notes(
    job: Job, log: Log, path: Path, n: int, notes: Sequence[str], bands: Any, picture: Path | None
) -> None:  # fmt: skip
    """Print a summary of inputs and outputs, and draw the bands."""
    words = [f"{n:,} states of {path}"]
    words += [f"{log.summary.missing:,} values of sensors were missing"] if log.summary.missing else []
    if picture is not None:
        from sysdyn.app.matrix_plot import save_figure

        notes = [*notes, f"drawn in {save_figure(bands.figure(title=job.title), picture)}"]
    output().print("; ".join([*words, *notes]), soft_wrap=True)


def _require_solved(failed: int, n: int, numbers: str = "") -> None:
    """Exit with an error if `failed` > 0 of n states were not solved. numbers: their indices, as text."""
    if failed:
        print_labelled("error:", "red", f"{failed} of {n} states were not solved{numbers}")
        raise typer.Exit(NOT_SOLVED)
