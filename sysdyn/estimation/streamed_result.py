"""Streamed results: a run is written to a file window by window, so that memory does not grow with the log."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from sysdyn.errors import FileError
from sysdyn.estimation.outliers import Event
from sysdyn.estimation.run import Run
from sysdyn.estimation.summary import RunStatistics, RunSummary
from sysdyn.files.atomic import AtomicFile
from sysdyn.files.table_writers import WRITERS, Writer, write_table
from sysdyn.files.tables import table_suffix


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StoredRun(RunSummary):
    """A run in a file: a `Run` without its arrays, which are in `path`.

    events: the .csv file of components that were dropped, with their times. gauge_fixed, motion, order, missing,
    jitter: as of a `Run`.
    """

    path: Path
    events: Path
    _statistics: RunStatistics

    def __len__(self) -> int:
        return self._statistics.rows

    @property
    def statistics(self) -> RunStatistics:
        return self._statistics

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._statistics.outputs

    @property
    def seconds(self) -> float:
        """Length of the log [s]."""
        return float(self._statistics.end - self._statistics.begin)

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n  file      {self.path}"


class Observer(Protocol):
    """Receives the arrays of successive windows; `clear` discards them."""

    def add(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def clear(self) -> None: ...


class RunWriter:
    """Writes a run and its outliers window by window. Both files are replaced by `close`, or stay as they were.

    Raises InvalidInput for other kinds of files, and FileError if there is no folder for them.
    """

    def __init__(self, path: str | Path, observer: Observer | None = None):
        table_suffix(path, "output file", tuple(WRITERS))
        self.path, self.events, self._observer = Path(path), events_file(Path(path)), observer
        if not self.path.parent.is_dir():
            raise FileError(f"{self.path} cannot be written: there is no folder {self.path.parent}")
        self._table: Writer | None = None
        self._last: Run | None = None
        self._rejected = AtomicFile(self.events)
        self.clear()

    def clear(self) -> None:
        """Discard all windows."""
        self.abort()
        self.statistics = RunStatistics()
        if self._observer is not None:
            self._observer.clear()

    def add(self, run: Run) -> None:
        """Write the next window."""
        arrays, columns = run.arrays(), run.columns
        if self._table is None:
            self._table = write_table(self.path, {name: columns[name].labels for name in columns if name in arrays})
            self._write_events([("row", *Event._fields[1:])])
        self._table.write(arrays)
        self._write_events([(e.instant + 1, *e[1:]) for e in run.events])
        self.statistics.add(run)
        self._last = run
        if self._observer is not None:
            self._observer.add(arrays)

    def _write_events(self, rows: list[tuple]) -> None:
        try:
            with self._rejected.temporary.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise FileError(f"{self.events} cannot be written: {error.strerror or error}") from error

    def close(self) -> StoredRun:
        """Complete both files."""
        run = self._last
        assert self._table is not None and run is not None
        self._table.close()
        self._rejected.commit()
        return StoredRun(
            problem=run.problem, path=self.path, events=self.events, gauge_fixed=run.gauge_fixed, motion=run.motion,
            order=run.order, coupled=run.coupled, missing=dict(self.statistics.missing), jitter=run.jitter,
            _statistics=self.statistics,
        )  # fmt: skip

    def abort(self) -> None:
        """Discard what was written since the last `close`."""
        if self._table is not None:
            self._table.abort()
            self._table = None
        self._rejected.abort()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()


def events_file(path: Path) -> Path:
    """Path of the CSV file of outliers and impacts that belongs to the run file `path`."""
    return path.with_suffix(".events.csv")
