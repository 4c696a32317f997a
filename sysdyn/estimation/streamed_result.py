"""Runs that are written while a log is read: parts in a folder beside the file, from which a later call goes on.

A part is there, whole, or not. The file is put together from all parts and takes its place in one step; then the
folder goes. Memory does not grow with the log.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File
from typing import Any, NamedTuple

import numpy as np

from sysdyn.errors import FileError
from sysdyn.estimation.ekf import GaussianState
from sysdyn.estimation.log_checks import dropped_shares
from sysdyn.estimation.outliers import MOTION, Event
from sysdyn.estimation.run import Run
from sysdyn.estimation.sliding_window import Stage
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.estimation.summary import BAND, Fit, Overview
from sysdyn.files import html
from sysdyn.files.atomic import AtomicFile, write_file, write_folder
from sysdyn.files.html import TextTable
from sysdyn.files.table_writers import WRITERS, write_table
from sysdyn.files.tables import table_suffix
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.offline.cache_key import version_digest
from sysdyn.online.storage import packed
from sysdyn.program.groups import Group

# Files of a folder of parts that say what they are parts of, and where smoothing begins.
HEAD, FIRST = "run.json", "begin.npz"
# Prefix of the arrays of a part by which smoothing goes on.
_STAGE = "stage/"


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run in a file: as a `Run` what it found, without its arrays, which are in `path`.

    events: the .csv file of components that were dropped, with their times. chosen, motion, order, missing, jitter: as
    of a `Run`. rows: all; resumed: those that an earlier call had done.
    """

    problem: Problem
    path: File
    events: File
    rows: int
    resumed: int
    chosen: tuple[str, ...]
    motion: Mapping[str, float]
    order: int
    coupled: bool
    missing: Mapping[str, int]
    _overview: Overview
    _fit: Fit
    jitter: float = 0.0

    def __len__(self) -> int:
        return self.rows

    @property
    def model(self) -> Model:
        return self.problem.model

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._overview.outputs

    @property
    def seconds(self) -> float:
        """Length of the log [s]."""
        return float(self._overview.end - self._overview.begin)

    def chi2(self) -> float:
        """χ² of the readings; see `Run.chi2`."""
        return self._fit.squares

    @property
    def redundancy(self) -> int:
        """Degrees of freedom of χ²; see `Run.redundancy`."""
        return self._fit.freedoms

    def chi2_band(self, share: float = BAND) -> tuple[float, float]:
        """Band that holds χ² with this probability; see `Run.chi2_band`."""
        return self._fit.band(share)

    @cached_property
    def untold(self) -> tuple[str, ...]:
        """Names of unknowns that the log does not tell; see `Run.untold`."""
        return self._overview.untold(self.problem, self.chosen)

    def tables(self) -> list[TextTable]:
        """Ranges of quantities, χ², biases, contacts, and dropped readings; empty ones left out."""
        return self._overview.tables(self._fit)

    def _repr_html_(self) -> str:
        return html.fragment(html.text(repr(self)), *map(html.table, self.tables()))

    def __repr__(self) -> str:
        level = "coupled" if self.coupled else "kinematic"
        head = f"Run of {self.model.name!r}: {self.rows} instants over {self.seconds:.4g} s, {level} level"
        lines = self._overview.lines(self._fit, self.chosen, self.missing)
        return "\n".join([head, *lines, f"  file      {self.path}"])


class Begin(NamedTuple):
    """Begin of a run: order and densities (nv,) of its motion, rows of a window, coordinates that are chosen.

    noise: raised standard deviations by sensor, see `sysdyn.estimation.log_checks`.
    """

    order: int
    density: np.ndarray
    window: int
    chosen: tuple[str, ...]
    noise: Mapping[str, np.ndarray]


class Store:
    """The parts of a run that is written to a file.

    about: {what: identity} of all that the run depends on, None of what has none: parts are then not kept if a call
    ends. Raises InvalidInput for files of other kinds, FileError if there are parts of another run.
    """

    def __init__(self, path: str | File, about: Mapping[str, str | None]):
        self.path = File(path)
        table_suffix(path, "output file", tuple(WRITERS))
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        self.events = events_of(self.path)
        if not self.path.parent.is_dir():
            raise FileError(f"{self.path} cannot be written: there is no folder {self.path.parent}")
        self._about = {**about, "version of sysdyn": version_digest()}
        self.kept = None not in self._about.values()
        self._head = self._found()

    def _found(self) -> dict[str, Any]:
        if not self.folder.exists():
            return {}
        try:
            head: dict[str, Any] = json.loads((self.folder / HEAD).read_text(encoding="utf-8"))
            about = head["about"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self.folder} holds no parts of a run: move it away, or write to another file") from error
        other = [name for name, x in self._about.items() if x is None or about.get(name) != x]
        if other:
            raise FileError(
                f"{self.folder} holds what an earlier call did, which this one cannot go on with: another "
                f"{', another '.join(other)}. Delete the folder to begin anew, or write to another file"
            )
        return head

    @property
    def motion(self) -> Begin | None:
        """Begin of the run that an earlier call made, if there was one."""
        if not self._head:
            return None
        order, density, window, chosen, noise = self._head["begin"]
        raised = {name: np.array(x) for name, x in noise.items()}
        return Begin(order, np.array(density), window, tuple(chosen), raised)

    def begin(self, what: Begin, first: Stage) -> None:
        """Make the folder of a new run, with where smoothing begins."""
        noise = {name: x.tolist() for name, x in what.noise.items()}
        begin = [what.order, what.density.tolist(), what.window, list(what.chosen), noise]
        self._head = {"about": self._about, "begin": begin}
        # HEAD last: a folder with it is complete
        write_folder(self.folder, {FIRST: _packed(first, {}, {}), HEAD: json.dumps(self._head).encode()})

    def parts(self) -> list[File]:
        """The files of successive rows."""
        return sorted(self.folder.glob("rows_*.npz"))

    def add(self, run: Run, scales: Mapping[str, np.ndarray], after: Stage) -> None:
        """Write the rows of a window with its `scales`, and the state from which smoothing continues."""
        arrays = run.arrays()
        columns = {name: group for name, group in run.columns.items() if name in arrays}
        about = {
            "columns": [[x.name, list(x.shape), list(x.labels), list(x.units)] for x in columns.values()],
            "outputs": list(run.outputs), "events": [list(e) for e in run.events], "missing": dict(run.missing),
            "scales": {name: x.tolist() for name, x in scales.items()}, "forces": list(run._forces),
        }  # fmt: skip
        kept = {name: arrays[name] for name in columns}
        write_file(self.folder / f"rows_{after.row:012d}.npz", _packed(after, kept, about))

    def stage(self, layout: StateLayout) -> Stage:
        """Stage after the last part, from which smoothing goes on."""
        arrays, about = self._read((self.folder / FIRST, *self.parts())[-1])
        path = StateTrajectory(layout, *(arrays[f"{_STAGE}{name}"] for name in ("t", "q", "rates", "biases")))
        return Stage(about["row"], GaussianState(path, arrays[f"{_STAGE}P"]), *about["fit"])

    def _read(self, part: File) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        try:
            with np.load(part, allow_pickle=False) as file:
                arrays = dict(file)
            return arrays, json.loads(str(arrays.pop("about")))
        except (OSError, ValueError, KeyError) as error:
            raise FileError(f"{part} cannot be read: {error}; delete {self.folder} to begin anew") from error

    def checked(
        self, problem: Problem, coupled: bool
    ) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]], Fit, int, dict[str, np.ndarray]]:
        """(shares of readings that were dropped, scales of windows, χ² of the run, impacts, first biases)."""
        biases, fit = dict[str, np.ndarray](), Fit(0.0, 0, coupled)
        events, missing, scales, rows = list[Event](), Counter[str](), list[dict[str, np.ndarray]](), 0
        for part in self.parts():
            with np.load(part, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                if not biases:
                    biases = {m.name: file[f"bias:{m.name}"][0] for m in problem.biased}
            events += [Event(*e) for e in about["events"]]
            missing.update(about["missing"])
            scales.append({name: np.array(x) for name, x in about["scales"].items()})
            rows, (squares, freedoms), (more, further) = about["row"], about["fit"], about["forces"]
            fit = Fit(squares, freedoms, coupled, (fit.forces[0] + more, fit.forces[1] + further))
        shares = dropped_shares(problem, rows, events, missing)
        return shares, scales, fit, sum(e.measurement == MOTION for e in events), biases

    def _rows(self) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Any], list[Event]]]:
        for part in self.parts():
            arrays, about = self._read(part)
            yield arrays, about, [Event(*e) for e in about["events"]]

    def finish(
        self, problem: Problem, coupled: bool, resumed: int, seen: Callable[[Mapping[str, np.ndarray]], None] | None,
        jitter: float,
    ) -> StoredRun:  # fmt: skip
        """Put the file together from its parts, and remove these. seen: told of the arrays of each part."""
        missing: dict[str, int] = {}
        fit, overview = Fit(0.0, 0, coupled), Overview({}, ())
        dropped = AtomicFile(self.events)
        with ExitStack() as undo:
            undo.callback(dropped.abort)
            writer = None
            with dropped.temporary.open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow(("row", *Event._fields[1:]))
                for arrays, about, events in self._rows():
                    if writer is None:
                        groups = [Group(n, tuple(s), tuple(x), tuple(u)) for n, s, x, u in about["columns"]]
                        overview = Overview({x.name: x for x in groups}, about["outputs"], jitter)
                        writer = write_table(self.path, {x.name: x.labels for x in groups})
                        undo.callback(writer.abort)
                    writer.write(arrays)
                    overview.add(arrays, events)
                    table.writerows((e.instant + 1, *e[1:]) for e in events)
                    for name, n in about["missing"].items():
                        missing[name] = missing.get(name, 0) + n
                    squares, freedoms = about["fit"]
                    forces = fit.forces[0] + about["forces"][0], fit.forces[1] + about["forces"][1]
                    fit = Fit(squares, freedoms, coupled, forces)
                    if seen is not None:
                        seen(arrays)
            assert writer is not None
            dropped.commit()
            writer.close()
        begin = self.motion
        assert begin is not None
        self.remove()
        motion = dict(zip(problem.model.dof_names, begin.density.tolist(), strict=True))
        return StoredRun(
            problem, self.path, self.events, overview.rows, resumed, begin.chosen, motion, begin.order, coupled,
            missing, overview, fit, jitter,
        )  # fmt: skip

    def remove(self) -> None:
        """Remove the folder of parts."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._head = {}


def events_of(path: File) -> File:
    """The file of dropped readings beside a run."""
    return path.with_suffix(".events.csv")


def _packed(stage: Stage, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> bytes:
    """The content of a part: arrays of its rows, what else is said of them, and where smoothing goes on."""
    path = stage.belief.path
    state = {"t": path.t, "q": path.q, "rates": path.rates, "biases": path.biases, "P": stage.belief.P}
    about = {**about, "row": stage.row, "fit": [stage.squares, stage.freedoms]}
    whole = {**arrays, **{f"{_STAGE}{name}": x for name, x in state.items()}}
    return packed({"about": np.array(json.dumps(about)), **whole})
