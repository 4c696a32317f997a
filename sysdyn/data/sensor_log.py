"""Sensor logs: joint positions, velocities and sensors over time, read and estimated in chunks of states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sysdyn.data.log_columns import TIME, Columns
from sysdyn.data.states import OK, column_names, measured_columns
from sysdyn.errors import FileError, InvalidInput, SingularState, UnknownName
from sysdyn.files.tables import ROWS, read_table, write_table
from sysdyn.measurements.groups import SWITCH, VALUE, group_of, label_of, value_group
from sysdyn.online.solver import Solver

# A missing value of a log is an error, leaves its state out, or switches its component off.
MISSING = ("raise", "skip", "sensor")


@dataclass(frozen=True)
class Chunk:
    """Successive states of a log: rows (n,) counted from 1, t (n,) [s], q, qd, values and switches by measurement."""

    rows: np.ndarray
    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    y: dict[str, np.ndarray]
    active: dict[str, np.ndarray]


@dataclass(frozen=True)
class Estimates:
    """Estimates of the states of a chunk: t (n,) [s], values {quantity: (n, m)}, std likewise, ok (n,): solved or not.

    std is empty where the problem has no noise.
    """

    t: np.ndarray
    values: dict[str, np.ndarray]
    std: dict[str, np.ndarray]
    ok: np.ndarray


@dataclass
class Summary:
    """Tally of a log: states estimated, of these unsolved; states skipped for missing values; components missing."""

    states: int = 0
    unsolved: int = 0
    skipped: int = 0
    missing: int = 0


class Log:
    """A log file (.csv, .npz, .parquet) of a problem: see `sysdyn.data.log_columns` for the names of its columns.

    values   {measurement: (m,)} of those that are the same in every state and need no column
    missing  treatment of NaN and empty fields: "raise", "skip" (leave the state out), or "sensor" (switch off these
             components of Switchable measurements)

    Iterating gives `Chunk`s of at most `rows` states. Raises FileError naming row and column for NaN, for infinite
    values and for time that goes backwards; UnknownName and InvalidInput for the header.
    """

    def __init__(
        self, path: str | Path, solver: Solver, values: Mapping[str, np.ndarray] | None = None, missing: str = "raise",
        rows: int = ROWS,
    ):  # fmt: skip
        if missing not in MISSING:
            raise UnknownName("choice for missing", missing, MISSING)
        self.path, self.missing, self.problem = Path(path), missing, solver.problem
        self.values = dict(values or {})
        self.columns = Columns(self.problem, self.values)
        self.header, self._chunks = read_table(path, self.columns.of_array, rows)
        self.numbers = self.columns.numbers(self.header, str(path))
        self._switchable = {m.name for m in self.problem.switchable}
        self.summary = Summary()

    def __iter__(self) -> Iterator[Chunk]:
        done, last = 0, -np.inf
        for x in self._chunks:
            rows = np.arange(done + 1, done + len(x) + 1)
            done += len(x)
            gaps = np.isnan(x)
            keep = self._kept(x, gaps, rows)
            t = x[keep, self.numbers.index(self.columns.group.index((TIME, 0)))]
            self._check_time(t, rows[keep], last)
            if len(t):
                last = t[-1]
                yield self._chunk(x[keep], gaps[keep], rows[keep], t)

    def _kept(self, x: np.ndarray, gaps: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: the states to solve."""
        infinite = np.argwhere(np.isinf(x))
        if len(infinite):
            k, j = infinite[0]
            raise FileError(f"{self.path} row {rows[k]}, column {self.header[j]!r}: {x[k, j]} is not finite")
        if self.missing == "skip":
            keep = np.asarray(~gaps.any(axis=1))
            self.summary.skipped += int(np.sum(~keep))
            return keep
        self._check_gaps(gaps, rows)
        self.summary.missing += int(np.sum(gaps))
        return np.ones(len(x), dtype=bool)

    def _check_gaps(self, gaps: np.ndarray, rows: np.ndarray) -> None:
        """Raise FileError for a missing value that no switch stands for."""
        groups = [group_of(self.columns.group[n][0]) for n in self.numbers]
        switched = np.array([g.role == VALUE and g.name in self._switchable for g in groups])
        allowed = switched if self.missing == "sensor" else np.zeros(len(groups), dtype=bool)
        wrong = np.argwhere(gaps & ~allowed)
        if len(wrong):
            k, j = wrong[0]
            where = f"{self.path} row {rows[k]}, column {self.header[j]!r}: the value is missing (NaN or empty)"
            if self.missing == "raise":
                raise FileError(f"{where}; --missing skip leaves such states out, --missing sensor goes on without it")
            what = label_of(str(groups[j]))
            raise FileError(
                f"{where}, and the problem cannot do without it: "
                + (f"make {what!r} switchable (switchable = true)" if groups[j].role == VALUE else f"{what} is needed")
            )

    def _check_time(self, t: np.ndarray, rows: np.ndarray, last: float) -> None:
        back = np.flatnonzero(np.diff(t, prepend=last) < 0.0)
        if len(back):
            k = back[0]
            before = t[k - 1] if k else last
            raise FileError(f"{self.path} row {rows[k]}: time goes backwards, from {before:.9g} s to {t[k]:.9g} s")

    def _chunk(self, x: np.ndarray, gaps: np.ndarray, rows: np.ndarray, t: np.ndarray) -> Chunk:
        parts: dict[str, list[tuple[int, int]]] = {}
        for j, n in enumerate(self.numbers):
            group, k = self.columns.group[n]
            parts.setdefault(group, []).append((k, j))
        arrays, active = {}, {}
        for group, places in parts.items():
            order = [j for _, j in sorted(places)]
            arrays[group] = np.where(gaps[:, order], 0.0, x[:, order])
            role, name = group_of(group)
            if role == VALUE and name in self._switchable and gaps[:, order].any():
                active[name] = ~gaps[:, order]
        for group, found in arrays.items():
            role, name = group_of(group)
            if role == SWITCH:
                active[name] = self._switched(group, found, rows) & active.get(name, True)
        y = {**self.values, **{label_of(group): x for group, x in arrays.items() if group_of(group).role == VALUE}}
        return Chunk(rows, t, arrays["q"], arrays["qd"], y, active)

    def _switched(self, group: str, switch: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(n, components) bool: a column active:NAME (n, 1) as it holds for each component of the measurement."""
        wrong = np.flatnonzero(~np.isin(switch, (0.0, 1.0)))
        if len(wrong):
            k = int(wrong[0])
            raise FileError(f"{self.path} row {rows[k]}: {group} is {switch[k, 0]:g}; it must be 0 or 1")
        values = value_group(group_of(group).name)
        return np.broadcast_to(switch != 0.0, (len(rows), sum(g == values for g, _ in self.columns.group)))

    # ---- solving ---------------------------------------------------------------------------------------------------

    def estimates(self, solver: Solver) -> Iterator[Estimates]:
        """Estimates of each chunk, of the outputs of the solver."""
        for chunk in self:
            try:
                solution = solver(chunk.q, chunk.qd, y=chunk.y, active=chunk.active or None)
            except SingularState as error:
                rows = [int(chunk.rows[k]) for k in error.states[:1]]
                raise SingularState(f"{self.path} row {rows[0] if rows else '?'}: {error}", error.equation,
                                    error.unknown, error.states) from error  # fmt: skip
            except InvalidInput as error:
                error.args = (f"{self.path} rows {chunk.rows[0]} to {chunk.rows[-1]}: {error}",)
                raise
            n = len(chunk.t)
            values = {x: solution[x].reshape(n, -1) for x in solver.outputs}
            std = {x: solution.std(x).reshape(n, -1) for x in solver.outputs} if self.problem.noisy else {}
            for x in std.values():
                x[~solution.ok] = np.nan
            self.summary.states += n
            self.summary.unsolved += int(np.sum(~solution.ok))
            yield Estimates(chunk.t, values, std, solution.ok)


def estimate_log(log: Log, solver: Solver, out: str | Path | None = None,
                 seen: Callable[[Estimates], None] | None = None) -> Summary:  # fmt: skip
    """Estimate every state of a log, and write the estimates to `out` (.csv, .npz, .parquet) chunk by chunk.

    Columns of the file: t, then tau:l_knee and so on, std:tau:l_knee and so on where something is noisy, and ok where
    states may stay unsolved; a .npz file has arrays t, tau (N, nv), std:tau …. seen: told of each chunk, as `Bands` is.
    Memory does not grow with the log. Raises as `Log` does.
    """
    model = solver.model
    measured = measured_columns(solver.options.measured, model)
    names = {x: measured.get(x) or column_names(model, x, log.problem.constraints) for x in solver.outputs}
    std = {f"std:{x}": [f"std:{c}" for c in columns] for x, columns in names.items()} if log.problem.noisy else {}
    status = {} if solver.on_singular == "raise" else {OK: [OK]}
    with _table(out, {TIME: [TIME], **names, **std, **status}) as write:
        for x in log.estimates(solver):
            more = {f"std:{name}": s for name, s in x.std.items()}
            write({TIME: x.t[:, None], **x.values, **more, OK: x.ok[:, None].astype(float)})
            if seen is not None:
                seen(x)
    return log.summary


@contextmanager
def _table(
    out: str | Path | None, columns: Mapping[str, Sequence[str]]
) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """A call that writes rows {array: (n, columns)}; the file is whole at the end and, after an error, not there."""
    if out is None:
        yield lambda arrays: None
        return
    writer = write_table(out, columns)
    try:
        yield writer.write
    except BaseException:
        writer.drop()
        raise
    writer.close()
