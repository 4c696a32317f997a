"""The command line of sysdyn."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sysdyn.app.arguments import (
    LOG_STATES,
    PAGES,
    AnyLog,
    Base,
    ColumnNames,
    Coupled,
    Missing,
    MotionOrder,
    OnSingular,
    Ordering,
    Outputs,
    Overwrite,
    Picture,
    ProblemKind,
    Random,
    ResultsFile,
    RobotArgument,
    Scheduler,
    Seed,
    StatesFile,
    Subject,
    Torque,
    UnknownLog,
    Velocities,
    changed_job,
    check_output,
    option,
    refuse_options,
    refuse_other_modes,
    stated_job,
)
from sysdyn.app.console import Commands
from sysdyn.app.console import run as run_program
from sysdyn.app.jobs import smooth_log, solve_log, solve_states
from sysdyn.app.problem_files import load_renames
from sysdyn.app.robots import load_robot
from sysdyn.app.terminal import NOT_SOLVED, new_table, output, print_model
from sysdyn.data.sensor_log import Log, files_of
from sysdyn.data.states import random_states, read_states
from sysdyn.diagnosis.diagnose import diagnose as diagnose_problem
from sysdyn.errors import VERSION, BackendUnavailable, FileError, InvalidInput
from sysdyn.files import cache
from sysdyn.files.atomic import write_file, write_folder
from sysdyn.files.shipped import shipped
from sysdyn.files.table_writers import WRITERS
from sysdyn.files.tables import table_suffix
from sysdyn.measurements.measurement import output_name
from sysdyn.model import robots
from sysdyn.views.show import show

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, option("Show the version and exit.", "--version")] = False) -> None:
    """Dynamics of articulated robots as one sparse linear system, compiled to machine code.

    Each command shows examples with --help; `sysdyn problems` writes the files of the examples. Exit codes: 0 success,
    1 unsolved states or ill-posed problem, 2 invalid input or an output that cannot be written.
    """
    if version:
        output().print(f"sysdyn {VERSION}")
        raise typer.Exit()


@app.command()
def info(robot: RobotArgument, base: Base = None) -> None:
    """Show a robot: its bodies, joints and sensors.

    Also its degrees of freedom, mass and frames. Warns about physically inconsistent inertias.

    Example: sysdyn info biped --base floating
    """
    model = load_robot(robot, base or "fixed")
    print_model(model)


@app.command("robots")
def list_robots() -> None:
    """List the robots of installed packages.

    Other commands and sysdyn.load accept these names.

    Example: sysdyn robots
    """
    table = new_table("name", "format", "file")
    for name, path in sorted(robots().items()):
        table.add_row(name, {".urdf": "URDF", ".xml": "MJCF"}[path.suffix], str(path))
    output().print(table)


@app.command()
def solve(
    subject: Subject, base: Base = None, kind: ProblemKind = None, torque: Torque = None, states: StatesFile = None,
    random: Random = None, seed: Seed = 0, out: ResultsFile = None, outputs: Outputs = None, ordering: Ordering = None,
    on_singular: OnSingular = None, log: AnyLog = None, missing: Missing = "raise", columns: ColumnNames = None,
    velocities: Velocities = "logged", scheduler: Scheduler = None, coupled: Coupled = False, order: MotionOrder = None,
    picture: Picture = None, force: Overwrite = False,
) -> None:  # fmt: skip
    """Solve a problem at states, or for each sample of a log.

    A CSV file has a header with the columns q:JOINT, qd:JOINT, tau:JOINT, qdd:JOINT, fx:BODY.nx (ny nz fx fy fz) and
    'MEASUREMENT: COMPONENT'. A joint with several variables has the columns q:JOINT[0], q:JOINT[1] and so on. Missing
    fx are zero; unknown columns are ignored with a warning. The results have the same columns (and w:CONTACT.fz for
    contacts and loop joints), so they can be the states of another problem.

    A log also has a column for the time t. It may have any length. Its results are estimates, such as tau:JOINT, with
    their standard deviations, such as std:tau:JOINT.

    If sensors of the problem determine the states (JointPosition, Gyroscope, Stance …), a log needs no columns for q
    and q̇, and any sensor may be missing in any sample. q, q̇, q̈, biases and the results are estimated from all
    measurements.

    Example: sysdyn solve biped --base floating --problem forward --random 5 --out result.csv

    Example: sysdyn solve biped --base floating --problem inverse --states result.csv

    Example: sysdyn solve problems/arm_from_encoders.toml --log problems/arm.csv --out torques.csv --plot torques.png
    """
    file = states if log is None else None
    if log is not None and states not in (None, *LOG_STATES):
        raise InvalidInput(f"--states is {states!r}: with --log it is {', '.join(LOG_STATES)}, not a file")
    sources = [x for x in (file, random, log) if x is not None]
    if len(sources) != 1:
        raise InvalidInput("give either --states FILE or --random N, or --log FILE" + (", not both" if sources else ""))
    inputs = [Path(subject), *([columns] if columns else []), *(files_of(file or log) if random is None else [])]
    if out is not None:
        table_suffix(out, "output file", tuple(WRITERS))
        check_output(out, force, inputs)
    if picture is not None:
        from sysdyn.app.matrix_plot import SUFFIXES  # matplotlib takes half a second to import

        check_output(picture, force, inputs, SUFFIXES)
    job = changed_job(stated_job(subject, base, kind, torque), ordering, outputs, on_singular)
    if log is None:
        mode = "--states FILE" if file else "--random N"
    elif states == "exact" or (states in (None, "auto") and not job.problem.state_sensors):
        mode = "--log of exact states"
    else:
        mode = "--log of unknown states"
    refuse_other_modes(mode, {
        "--missing": missing != "raise", "--columns": columns, "--velocities": velocities != "logged",
        "--scheduler": scheduler, "--plot": picture, "--coupled": coupled, "--order": order, "--ordering": ordering,
        "--on-singular": on_singular,
    })  # fmt: skip
    if columns is not None:
        job = replace(job, columns={**job.columns, **load_renames(columns, job.problem)})
    if random is not None:
        solve_states(job, random_states(job.problem, random, seed, job.values), out, random=True)
    elif file is not None:
        arrays = read_states(Path(file), job.problem, job.values, missing=missing, columns=job.columns)
        solve_states(job, arrays, out)
    elif log is not None and mode == "--log of exact states":
        rows = Log(log, job.problem, job.values, missing, columns=job.columns, velocities=velocities)
        solve_log(job, rows, log, out, picture, scheduler)
    elif log is not None:
        if out is not None:
            from sysdyn.estimation.streamed_result import events_file

            check_output(events_file(out), force, inputs)
        smooth_log(job, job.unknown_log(log), log, out, picture, coupled, order)


@app.command()
def diagnose(
    subject: Subject, base: Base = None, kind: ProblemKind = None, torque: Torque = None, log: UnknownLog = None,
    coupled: Coupled = False, order: MotionOrder = None,
) -> None:  # fmt: skip
    """Check whether a problem is well posed.

    Lists undetermined unknowns and redundant equations; for a log, unobservable positions and biases. The exit code is
    1 if there are any.

    Example: sysdyn diagnose problems/load_cells.toml

    Example: sysdyn diagnose problems/arm_from_encoders.toml --log problems/arm.csv
    """
    job = stated_job(subject, base, kind, torque)
    if log is None:
        refuse_options({"--coupled": coupled, "--order": order}, "it is for a log: give --log FILE")
        diagnosis = diagnose_problem(job.problem)
        text, good = str(diagnosis), diagnosis.well_posed
    else:
        from sysdyn.estimation.observability import observability  # lazy import, see `Job.smooth`

        result = observability(job.problem, job.unknown_log(log), coupled=coupled, order=order)
        text, good = str(result), result.observable
    output().print(f"{job.problem!r}\n{text}", soft_wrap=True)
    if not good:
        raise typer.Exit(NOT_SOLVED)


@app.command()
def flops(
    subject: Subject, base: Base = None, kind: ProblemKind = None, torque: Torque = None, outputs: Outputs = None,
    orders: Annotated[
        str | None,
        option("Orders to count, separated by commas. Default: all; for estimation problems: symmetric.", "--ordering"),
    ] = None,
) -> None:  # fmt: skip
    """Count the operations of every elimination order exactly.

    Also counts the alternatives of `sysdyn.compile` (the system after its passes and, if only τ and q̈ are requested,
    a recursion), and textbook RNEA and ABA.

    The counts "end to end" start from q and q̇. The counts "solve" start from the transforms X, velocities and bias
    terms.

    Example: sysdyn flops auto_tree:7,1,1.5,0.9 --problem forward
    """
    from sysdyn.app.report import count_orders

    job = changed_job(stated_job(subject, base, kind, torque), None, outputs)
    counts, refused = count_orders(job, orders)
    table = new_table("order", "mul", "add", "div", "total", "sin/cos", "fill-in", "")
    for scope, rows in counts.items():
        table.add_row(Text(scope, style="bold"))
        for name, *cells in rows:
            table.add_row(f"  {name}", *cells)
    console, names = output(), ", ".join(map(output_name, job.requested))
    console.print(f"{job.problem.model.name}, {job.kind}: operations for {names}")
    console.print(table)
    for name, why in refused.items():
        console.print(f"{name}: not applicable: {why}", style="dim", soft_wrap=True)


@app.command()
def plot(
    subject: Subject, out: Annotated[Path, option("The picture: .png, .pdf or .svg.")], base: Base = None,
    kind: ProblemKind = None, torque: Torque = None, outputs: Outputs = None, ordering: Ordering = None,
    force: Overwrite = False,
) -> None:  # fmt: skip
    """Draw the matrix before and after permutation.

    The colour of an entry shows the kind of its block; fill-in has a separate colour.

    Example: sysdyn plot biped --problem forward --ordering aba --out matrix.png
    """
    from sysdyn.app.matrix_plot import SUFFIXES, plot_matrix, save_figure  # matplotlib takes half a second to import

    check_output(out, force, suffixes=SUFFIXES)
    job = changed_job(stated_job(subject, base, kind, torque), ordering, outputs)
    solver = job.compile(backend="python", formulation="paper")
    path = save_figure(plot_matrix(solver), out)
    output().print(f"wrote {path}: {solver!r}", soft_wrap=True)


@app.command()
def report(
    subject: Subject, base: Base = None, kind: ProblemKind = None, torque: Torque = None, outputs: Outputs = None,
    ordering: Ordering = None,
    out: Annotated[Path | None, option("Write a self-contained page (.html) instead.")] = None,
    log: UnknownLog = None, coupled: Coupled = False, order: MotionOrder = None, force: Overwrite = False,
) -> None:  # fmt: skip
    """Show the decisions of the offline phase with their reasons.

    Operation counts, fill-in, stability, and the orders that were compared. The page of --out also shows the robot,
    the known and requested quantities, the matrix before and after permutation, a comparison with textbook algorithms,
    times on this machine and, for estimation, standard deviations, leverage and the contribution of each sensor. The
    page of a log shows trajectories and outputs with ±2 σ, contacts, biases and outliers.

    Example: sysdyn report biped --problem inverse

    Example: sysdyn report problems/arm_from_encoders.toml --log problems/arm.csv --out page.html
    """
    if out is not None:
        check_output(out, force, [Path(subject), *(files_of(log) if log is not None else ())], PAGES)
    job = changed_job(stated_job(subject, base, kind, torque), ordering, outputs)
    if log is not None:
        refuse_options({"--ordering": ordering}, "the page of a log has no program to choose")
        if out is None:
            raise InvalidInput("the report about a log is a page: give --out PAGE.html")
        run = job.smooth(job.unknown_log(log), coupled, order)
        output().print(f"wrote {run.report(out, job.title)}: {len(run):,} states of {log}", soft_wrap=True)
        return
    refuse_options({"--coupled": coupled, "--order": order}, "it is for a log: give --log FILE")
    solver = job.compile()
    if out is None:
        output().print(solver.report(), soft_wrap=True)
        return
    from sysdyn.app.report import report_page

    write_file(out, report_page(job, solver).encode())
    output().print(f"wrote {out}", soft_wrap=True)


@app.command("show")
def show_robot(
    subject: Subject, base: Base = None,
    log: Annotated[
        list[Path] | None,
        option("States to show: a file with q:JOINT and, if known, t, tau:JOINT, fx:BODY.nz …"),
    ] = None,
    visuals: Annotated[Path | None, option("URDF or MJCF file with the shapes. Default: that of the robot.")] = None,
    html: Annotated[Path | None, option("Write the page to this file instead of opening a browser.")] = None,
    force: Overwrite = False,
) -> None:  # fmt: skip
    """Show a robot in three dimensions, in the browser or as a file.

    The file is a self-contained HTML page. The colour of a link shows the torque of its joint, arrows show external
    wrenches. A slider selects the state; the motion can be played. Several files, --log LOG --log OTHER, are merged by
    time. Needs the extra "show".

    Example: sysdyn show biped --base floating --html biped.html --force
    """
    from sysdyn.app.motion_files import read_motion

    if html is not None:
        check_output(html, force, log or [], PAGES)
    model = stated_job(subject, base, None, None).problem.model
    motion: dict[str, Any] = read_motion(model, log) if log else {}
    view = show(model, visuals=visuals, **motion)
    path = view.open() if html is None else view.save(html)
    output().print(f"{'opened' if html is None else 'wrote'} {path}", soft_wrap=True)


@app.command()
def export(
    subject: Subject, out: Annotated[Path, option("Folder of the C project; created if it does not exist.")],
    name: Annotated[str | None, option("Name of files and functions. Default: from robot and problem.")] = None,
    base: Base = None, kind: ProblemKind = None, torque: Torque = None, outputs: Outputs = None,
    ordering: Ordering = None,
    real: Annotated[str, option("Floating-point type: float64 (default) or float32.")] = "float64",
    force: Overwrite = False,
) -> None:  # fmt: skip
    """Write a solver as C99 code that depends only on math.h.

    The folder has NAME.h and NAME.c with one function, main.c with an example and test vectors, and CMakeLists.txt.
    Build and test:
    cmake -S FOLDER -B FOLDER/build && cmake --build FOLDER/build && ctest --test-dir FOLDER/build

    Example: sysdyn export auto_tree:7,1,1.5,0.9 --problem inverse --out arm_inverse --name arm_inverse
    """
    check_output(out, force)
    job = changed_job(stated_job(subject, base, kind, torque), ordering, outputs)
    solver = job.compile()
    path = solver.export_c(out, name, real)
    files = ", ".join(sorted(x.name for x in path.iterdir() if x.is_file()))
    output().print(f"wrote {path}: {files}", soft_wrap=True)


@app.command("problems")
def write_problems(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")] = Path("problems"),
    force: Overwrite = False,
) -> None:  # fmt: skip
    """Write example problems with their robots and a log.

    Example: sysdyn problems
    """
    folder = shipped("problems")
    if folder is None:
        raise FileError("this installation has no example problems: get them from the source tree")
    check_output(out, force)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    write_folder(out, files)
    output().print(f"wrote {out}: {len(files)} files; {out / 'README.md'} describes them", soft_wrap=True)


@app.command()
def reproduce(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Names of experiments, or all (default).", show_default=False)
    ] = None,
    bodies: Annotated[
        str | None,
        option("Lengths of the chains in fig1 and fig2, such as 5 7 9 or 5,7,9."),
    ] = None,
    out: Annotated[
        Path | None,
        option("Output folder. Default: experiments/results."),
    ] = None,
    quick: Annotated[bool, option("Reduced sizes; takes less than a minute.", "--quick")] = False,
    force: Overwrite = False,
) -> None:  # fmt: skip
    """Reproduce the claims and figures of the paper.

    Runs in a clone of the source tree. Writes a CSV file and a picture for each, and a page of findings. Files in the
    default folder are replaced.

    Example: sysdyn reproduce fig1 --quick

    Example: sysdyn reproduce fig2 --bodies 5 7 9 --out chains
    """
    harness = experiment_harness()
    console, chosen, sizes = output(), list(experiments or []), []
    if bodies is not None:  # the parser assigns only the first number to the option; the others are in `experiments`
        lengths = [*bodies.split(","), *(name for name in chosen if name.isdecimal())]
        chosen = [name for name in chosen if not name.isdecimal()]
        if wrong := [x for x in lengths if not x.strip().isdecimal()]:
            raise InvalidInput(f"--bodies has {wrong[0]!r}, which is no number of bodies: write --bodies 5 7 9")
        sizes = [int(x) for x in lengths]
    for name in chosen or harness.names():
        for path in out.glob(f"{name}*") if out is not None else ():
            check_output(path, force)
    page = harness.reproduce(chosen, out or harness.RESULTS, quick, lambda x: console.print(x, soft_wrap=True), sizes)
    console.print(f"findings written to {page}", soft_wrap=True)


def experiment_harness() -> Any:
    """Import `nori.harness` from the folder experiments/. Raises FileError if the folder is missing."""
    folder = shipped("experiments")
    if folder is None or not (folder / "nori").is_dir():
        raise FileError(
            "the experiments of the paper are in the source tree alone: clone the repository, run `./run setup` in it, "
            "and there `.venv/bin/sysdyn reproduce`"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module("nori.harness")


@app.command()
def demo(
    out: Annotated[Path | None, option("Folder of the pictures. Default: demo, which is overwritten.")] = None,
    force: Overwrite = False,
) -> None:  # fmt: skip
    """Demonstrate inverse and forward dynamics of the iCub humanoid.

    Uses a generated tree if icub-models is not installed. Counts operations, checks results, measures times and draws
    the matrices.

    Example: sysdyn demo --out pictures
    """
    from sysdyn.app.demo import pictures, run

    try:
        model, urdf = load_robot("icub"), str(robots()["icub"])
    except BackendUnavailable as error:
        output().print(f"{error}. A tree of 30 bodies is used instead.", soft_wrap=True)
        model, urdf = load_robot("auto_tree:30,1.5,1.5,0.9").replace(name="tree"), ""
    for path in pictures(model, out).values() if out is not None else ():
        if path.exists():
            check_output(path, force)
    run(output(), model, urdf, out or Path("demo"))


@app.command("cache")
def show_cache(
    clear: Annotated[bool, option("Delete all entries. Solvers are then recompiled when needed.", "--clear")] = False,
) -> None:  # fmt: skip
    """Show the cache of compiled solvers and its size.

    The variable SYSDYN_CACHE sets another folder; an empty value or off disables the cache. SYSDYN_CACHE_LIMIT is the
    size limit in MiB (default 1024). Beyond it, the least recently used entries are deleted.

    Example: sysdyn cache
    """
    folder = cache.folder()
    if folder is None:
        output().print("there is no cache: SYSDYN_CACHE is empty or off")
        return
    if clear:
        cache.clear()
    entries = cache.entries()
    size, most = sum(entry.size for entry in entries) / cache.MEBIBYTE, cache.limit() / cache.MEBIBYTE
    output().print(f"{folder}: {len(entries)} entries, {size:.1f} of at most {most:.0f} MiB", soft_wrap=True)


def main() -> None:
    """Run the console script `sysdyn`."""
    run_program(partial(app, prog_name="sysdyn"))
