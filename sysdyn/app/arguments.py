"""Parts that the commands share: arguments, the task that they state, and the care for existing files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sysdyn.app.problem_files import load_task
from sysdyn.app.robots import load_robot
from sysdyn.app.tasks import ALL_ORDERINGS, KINDS, Task, make_problem
from sysdyn.data.log_columns import STATES
from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.measurements.measurement import Measurement
from sysdyn.offline.outputs import requested_outputs
from sysdyn.online.solver import ON_SINGULAR

# Help text on the robot, the same in every command.
_ROBOT = "A URDF, xacro or MJCF file, auto_tree:N[,branching,skew,taper], chain:N[,seed], or a name as icub"
Robot = Annotated[str, typer.Argument(metavar="ROBOT", help=_ROBOT + ".", show_default=False)]
Subject = Annotated[
    str, typer.Argument(metavar="ROBOT", help=_ROBOT + "; or a problem file (.toml).", show_default=False)
]
Base = Annotated[str | None, typer.Option(help="fixed (default) or floating.", show_default=False)]
Kind = Annotated[
    str | None, typer.Option("--problem", help="inverse, forward (default) or hybrid.", show_default=False)
]
Torque = Annotated[
    str | None, typer.Option(help="hybrid: joints whose torque is known, separated by commas.", show_default=False)
]
Ordering = Annotated[
    str | None, typer.Option(help=f"Elimination order: auto (default), {', '.join(ALL_ORDERINGS)}.", show_default=False)
]
Outputs = Annotated[
    str | None,
    typer.Option(
        help="Quantities to compute: all, or some of tau,qdd,fx,a,f,w. Default: the unknowns of the problem.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there under the names of outputs.")]
Seconds = Annotated[
    float | None,
    typer.Option(help="Search for a program of fewer operations until so many seconds are over.", show_default=False),
]
UnknownLog = Annotated[
    Path | None,
    typer.Option("--log", help="A log whose states are unknown, as of `sysdyn solve`.", show_default=False),
]
Coupled = Annotated[
    bool,
    typer.Option(
        "--coupled",
        help="Of unknown states: find states and forces at once, in more time, so that each tells of the others.",
    ),
]  # fmt: skip
Order = Annotated[
    int | None,
    typer.Option(
        min=3, max=4, show_default=False,
        help="Of unknown states: motions are white noise on jerk (3) or snap (4). Default: the likelier by encoders.",
    ),
]  # fmt: skip
# Ways of `sysdyn solve --log` with the state: "auto" is unknown if sensors of the problem tell it.
RUN_STATES = ("auto", *STATES)


def asked_task(
    subject: str,
    base: str | None = None,
    kind: str | None = None,
    torque: str | None = None,
    ordering: str | None = None,
    outputs: str | None = None,
    on_singular: str | None = None,
) -> Task:
    """The task of a problem file or of a robot, with the options of the command line in place of its own."""
    task = stated_task(subject, base, kind, torque)
    if ordering is not None and ordering not in ("auto", *ALL_ORDERINGS):
        raise UnknownName("ordering", ordering, ("auto", *ALL_ORDERINGS))
    if on_singular is not None and on_singular not in ON_SINGULAR:
        raise UnknownName("--on-singular", on_singular, ON_SINGULAR)
    changes: dict[str, Any] = {"ordering": ordering, "on_singular": on_singular}
    if outputs is not None:
        names = [name.strip() for name in outputs.split(",") if name.strip()]
        measured = {x.name: x for x in task.outputs or () if isinstance(x, Measurement)}
        chosen = "all" if names == ["all"] else [measured.get(name, name) for name in names]
        changes["outputs"] = requested_outputs(chosen, task.problem)
    return replace(task, **{name: x for name, x in changes.items() if x is not None})


def stated_task(subject: str, base: str | None, kind: str | None, torque: str | None) -> Task:
    """The task of a .toml file, which leaves no room for options, or of a robot and these options."""
    if subject.lower().endswith(".toml"):
        for name, value in (("--base", base), ("--problem", kind), ("--torque", torque)):
            if value is not None:
                raise InvalidInput(f"{name} cannot be given with a problem file: {subject} states it")
        return load_task(subject)
    kind = kind or ("hybrid" if torque else "forward")
    check_among("problem", kind, KINDS)
    names = [name.strip() for name in torque.split(",")] if torque else []
    return Task(make_problem(load_robot(subject, base or "fixed"), kind, names), kind)


def check_output(path: Path, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise before the work is done, not after, if the folder is missing or something would be lost."""
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"{path} cannot be written: the folder {path.parent} does not exist")
    for other in inputs:
        if path.exists() and other.exists() and path.samefile(other):
            raise InvalidInput(f"{path} cannot be written: it is an input, {other}")
    if path.exists() and not force and not (path.is_dir() and next(path.iterdir(), None) is None):
        raise InvalidInput(f"{path} exists: give another name, or --force to replace it")


def check_page(path: Path, force: bool, inputs: Sequence[Path]) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"page {str(path)!r} must end in .html")
    check_output(path, force, inputs)


def refuse_options(given: Mapping[str, object], why: str) -> None:
    """Raise InvalidInput for the first of these options that is set, and say why."""
    for option, value in given.items():
        if value:
            raise InvalidInput(f"{option} cannot be given: {why}")


def is_run(task: Task, states: str) -> bool:
    """True if the states of a log are unknown, by one of RUN_STATES."""
    return bool(task.problem.state_sensors) if states == RUN_STATES[0] else states == STATES[1]
