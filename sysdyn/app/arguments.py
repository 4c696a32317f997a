"""Common arguments and options of the commands, job creation from them, and checks of output files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sysdyn.app.jobs import ALL_ORDERINGS, KINDS, Job, make_problem
from sysdyn.app.problem_files import load_job
from sysdyn.app.robots import load_robot
from sysdyn.data.columns import STATES
from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.measurements.measurement import Measurement
from sysdyn.offline.options import requested_outputs
from sysdyn.online.solver import ON_SINGULAR


def option(text: str, *names: str, **settings: Any) -> Any:
    """A command-line option. text: help text, including the default value where relevant."""
    return typer.Option(*names, help=text, **{"show_default": False, **settings})


# Treatment of q and q̇ by `sysdyn solve --log`. "auto": unknown if sensors of the problem determine them.
LOG_STATES = ("auto", *STATES)
PAGES = (".html", ".htm")
_ROBOT = "A URDF, xacro or MJCF file, auto_tree:N[,branching,skew,taper], chain:N[,seed], or a name such as icub"

RobotArgument = Annotated[str, typer.Argument(metavar="ROBOT", help=_ROBOT + ".", show_default=False)]
Subject = Annotated[
    str, typer.Argument(metavar="ROBOT", help=_ROBOT + "; or a problem file (.toml).", show_default=False)
]
Base = Annotated[str | None, option("fixed (default) or floating.")]
ProblemKind = Annotated[str | None, option("inverse, forward (default) or hybrid.", "--problem")]
Torque = Annotated[str | None, option("hybrid: joints whose torque is known, separated by commas.")]
Ordering = Annotated[str | None, option(f"Elimination order: auto (default), {', '.join(ALL_ORDERINGS)}.")]
Outputs = Annotated[
    str | None,
    option("Quantities to compute: all, or some of tau,qdd,fx,a,f,w. Default: the unknowns of the problem."),
]
OnSingular = Annotated[str | None, option("At a singular state: raise (default) or nan.")]
Overwrite = Annotated[bool, option("Replace files that have the names of outputs.", "--force")]
# ---- options for states and logs
StatesFile = Annotated[
    str | None,
    option(
        "States: .csv, .parquet … with columns such as q:l_knee, qd:l_knee, tau:l_knee, fx:l_foot.nz, "
        "'MEASUREMENT: COMPONENT'; or .npz, .h5 with arrays q, qd and tau, qdd, fx …. With --log: exact, q and q̇ are "
        "columns; unknown, they are estimated; auto (default), unknown if sensors of the problem determine them."
    ),
]
Random = Annotated[int | None, option("Solve N random states instead.", min=1, metavar="N")]
Seed = Annotated[int, option("Seed of the random states.", min=0, show_default=True)]
ResultsFile = Annotated[Path | None, option("Write results to this .csv, .npz, .parquet or .h5 file.", "--out")]
AnyLog = Annotated[
    Path | None,
    option(
        "A log: a file of the same kinds and columns, and t; a ROS bag; or files, 'logs/*.parquet', in order.", "--log"
    ),
]
Missing = Annotated[str, option("Missing values: raise (default), skip the state, or go on without the sensor.")]
ColumnNames = Annotated[
    Path | None, option("A TOML file that renames columns: '/imu/x' = 'imu: a_x'; '' ignores a column.")
]
Velocities = Annotated[str, option("q̇ of a log: logged (default; error if missing), or difference (smoothed) of q.")]
Scheduler = Annotated[str | None, option("Address of a Dask scheduler, whose workers estimate the files of a log.")]
Picture = Annotated[
    Path | None, option("Draw the estimates of a log over time, with ±2 σ (.png, .pdf, .svg).", "--plot")
]
# ---- options for logs with unknown states
UnknownLog = Annotated[Path | None, option("A log with unknown states, as in `sysdyn solve`.", "--log")]
Coupled = Annotated[
    bool,
    option("For unknown states: estimate states and forces together, which takes longer.", "--coupled"),
]
MotionOrder = Annotated[
    int | None,
    option(
        "For unknown states: motion model, white noise on jerk (3) or snap (4). Default: the likelier one.",
        min=3,
        max=4,
    ),
]


def stated_job(subject: str, base: str | None, kind: str | None, torque: str | None) -> Job:
    """Create the job from `subject`: a problem file (.toml, without further options), or a robot with the options."""
    if subject.lower().endswith(".toml"):
        refuse_options({"--base": base, "--problem": kind, "--torque": torque}, f"the problem file {subject} states it")
        return load_job(subject)
    kind = kind or ("hybrid" if torque else "forward")
    check_among("problem", kind, KINDS)
    joints = [name.strip() for name in torque.split(",")] if torque else []
    return Job(make_problem(load_robot(subject, base or "fixed"), kind, joints), kind)


def changed_job(job: Job, ordering: str | None, outputs: str | None, on_singular: str | None = None) -> Job:
    """Copy of the job with options from the command line; None keeps the option of the job."""
    if ordering is not None and ordering not in ("auto", *ALL_ORDERINGS):
        raise UnknownName("ordering", ordering, ("auto", *ALL_ORDERINGS))
    if on_singular is not None and on_singular not in ON_SINGULAR:
        raise UnknownName("--on-singular", on_singular, ON_SINGULAR)
    changes: dict[str, Any] = {"ordering": ordering, "on_singular": on_singular}
    if outputs is not None:
        names = [name.strip() for name in outputs.split(",") if name.strip()]
        measured = {x.name: x for x in job.outputs or () if isinstance(x, Measurement)}
        selected = "all" if names == ["all"] else [measured.get(name, name) for name in names]
        changes["outputs"] = requested_outputs(selected, job.problem)
    return replace(job, **{name: x for name, x in changes.items() if x is not None})


def check_output(path: Path, force: bool, inputs: Sequence[Path] = (), suffixes: Sequence[str] = ()) -> None:
    """Check an output file before the computation. Raises InvalidInput if it cannot or must not be written."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise InvalidInput(f"{str(path)!r} must end in {', '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"{path} cannot be written: the folder {path.parent} does not exist")
    for other in inputs:
        if path.exists() and other.exists() and path.samefile(other):
            raise InvalidInput(f"{path} cannot be written: it is an input, {other}")
    if path.exists() and not force and not (path.is_dir() and next(path.iterdir(), None) is None):
        raise InvalidInput(f"{path} exists: give another name, or --force to replace it")


def refuse_options(options: Mapping[str, object], why: str) -> None:
    """Raise InvalidInput for the first option in `options` that is set. why: reason in the message."""
    for name, value in options.items():
        if value:
            raise InvalidInput(f"{name} cannot be given: {why}")


# {modes of `sysdyn solve`: options that only these modes accept}
_LOGS = ("--log of exact states", "--log of unknown states")
_SOLVERS = ("--random N", "--states FILE", _LOGS[0])
_MODES = {
    _SOLVERS: ("--ordering", "--on-singular"),
    _SOLVERS[1:]: ("--missing",),
    ("--states FILE", *_LOGS): ("--columns",),
    _LOGS: ("--plot",),
    _LOGS[:1]: ("--velocities", "--scheduler"),
    _LOGS[1:]: ("--coupled", "--order"),
}


def refuse_other_modes(mode: str, options: Mapping[str, object]) -> None:
    """Raise InvalidInput if an option of `sysdyn solve` is set that `mode` does not accept."""
    for modes, names in _MODES.items():
        if mode not in modes:
            refuse_options({name: options[name] for name in names}, f"it is for {', '.join(modes)}; this is {mode}")
