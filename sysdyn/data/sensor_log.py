"""Sensor logs: states and measurements over time, read, checked and solved in chunks."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.data.columns import STATES, TIME, Column, LogColumns
from sysdyn.data.differentiation import FLAT, HALF, WINDOW, velocities
from sysdyn.errors import FileError, InvalidInput, LogWarning, SingularState, check_among, checked_path, few, warn
from sysdyn.files.tables import ROWS, Table, read_table
from sysdyn.measurements.contact_schedule import Standing
from sysdyn.measurements.input_names import SWITCH, VALUE, group_of, label_of, switch_group, value_group
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import Stance
from sysdyn.online.solver import Solver

# Treatments of a missing value of a log: an error, its state left out, or its component switched off.
MISSING = ("raise", "skip", "sensor")
# Sources of velocities: columns, or the positions.
VELOCITIES = ("logged", "difference")
# Greatest time [s] accepted: seconds since 1970 come to it in 5138, milliseconds did in 1973.
LATEST = 1e11


@dataclass(frozen=True, eq=False)
class Chunk:
    """Successive states of a log: rows (n,) of the file `where`, from 1; t (n,) [s], q (n, nq), qd (n, nv).

    y {measurement: (n, m)}: values, 0 where missing. active {measurement: (n, m) bool}: where they are measured, and
    where a stance is in contact by its condition or its column. Unknown states have q and qd of shape (n, 0).
    """

    where: str
    rows: np.ndarray
    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    y: dict[str, np.ndarray]
    active: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates of a chunk: rows (n,) of the file `where`, from 1; t (n,) [s], q (n, nq), values {quantity: (n, m)}.

    std {quantity: (n, m)}: standard deviations, empty if the problem has no noise. ok (n,): the state was solved.
    """

    where: str
    rows: np.ndarray
    t: np.ndarray
    q: np.ndarray
    values: dict[str, np.ndarray]
    std: dict[str, np.ndarray]
    ok: np.ndarray


@dataclass
class Summary:
    """Counts of a log: states estimated, those unsolved, states skipped for missing values, and missing components."""

    states: int = 0
    unsolved: int = 0
    skipped: int = 0
    missing: int = 0


@dataclass(frozen=True)
class _File:
    """An open file of a log, `where` in messages.

    used {number of the table's column: column of the problem}; lacking: columns of q̇ that follow from q. unread:
    switchable measurements without columns of values, and without a value that holds for all states.
    """

    where: str
    table: Table
    used: dict[int, Column]
    lacking: list[Column]
    unread: list[str]

    @property
    def groups(self) -> list[str]:
        """Arrays of the used columns."""
        return [column.group for column in self.used.values()]

    def name(self, k: int) -> str:
        """The name of the k-th used column."""
        return self.table.header[[*self.used][k]]


class Log:
    """A log of a problem: see `sysdyn.data.columns` for the names of its columns.

    source      a file (.csv, .npz, .parquet, .h5, a ROS bag), a pattern such as "logs/*.parquet" of files that follow
                each other, a DataFrame, a dict of arrays (N,) or (N, m) with "t", or a list of such parts; of a Dask
                DataFrame, and of delayed parts, one partition is computed and held at a time, whenever it is read
    solver      the Solver, or its Problem
    values      {measurement: (m,)} of those that are the same in every state and need no column
    missing     treatment of NaN and empty fields: "raise", "skip" (leave the state out), or "sensor" (switch off these
                components of Switchable measurements)
    columns     {name in the file: name here, or "" for what is to be left out}
    velocities  "logged", or "difference": q̇ that is not logged follows from q, see `sysdyn.data.differentiation`
    timed       whether there are times; False: t is NaN
    warned      warnings that were given before
    states      "exact", or "unknown": q and q̇ are measured by sensors of the state. Every measurement with noise may
                then have gaps, as of sensors at different rates: NaN is a component that was not measured (`missing`
                and `velocities` do not matter), and times increase from row to row

    Iterating gives `Chunk`s of at most `rows` states. Raises FileError naming row and column for NaN, for infinite
    values and for time that goes backwards; UnknownName and InvalidInput for the header. A LogWarning names columns
    that are left out and Switchable measurements without columns, which are off, and says how q̇ was found.
    """

    def __init__(
        self, source: Any, solver: Solver | Problem, values: Mapping[str, np.ndarray] | None = None,
        missing: str = "raise", *, rows: int = ROWS, columns: Mapping[str, str] | None = None,
        velocities: str = "logged", timed: bool = True, warned: set[str] | None = None, states: str = STATES[0],
    ):  # fmt: skip
        choices = (("missing", missing, MISSING), ("velocities", velocities, VELOCITIES), ("states", states, STATES))
        for what, given, valid in choices:
            check_among(f"choice for {what}", given, valid)
        if velocities != VELOCITIES[0] and not timed:
            raise InvalidInput("velocities follow from positions and times: read them as a log, not as states")
        self._exact = states == STATES[0]
        if not (self._exact or timed):
            raise InvalidInput("unknown states are found by their times: read them as a log, not as states")
        self.files = files_of(source)
        self.missing, self.rows = missing if self._exact else "sensor", rows
        self.options = {"values": values, "missing": missing, "rows": rows, "columns": columns,
                        "velocities": velocities, "timed": timed, "states": states}  # fmt: skip
        self.problem = solver.whole if isinstance(solver, Solver) else solver
        aside = self.problem.state_values if self._exact else {}
        model = self.problem.model
        undriven = {m.name: np.zeros(len(m.places(model))) for m in self.problem.raw if m.undriven(model)}
        self.values = undriven | {name: x for name, x in (values or {}).items() if name not in aside}
        free = ("qd",) if velocities == "difference" else ()
        # a solver with omitted measurements reads more than its program
        unused = _unused(solver) if type(solver) is Solver else ()
        self.columns = LogColumns(self.problem, self.values, columns, timed, free, states, unused)
        self.warned = warned if warned is not None else set()
        self._switchable = self.columns.optional
        self._first = self._opened(0)
        self.summary = Summary()

    def _opened(self, k: int) -> _File:
        """The k-th file of the log."""
        file = self.files[k]
        file = file.compute() if _lazy(file) else file
        where = str(file) if isinstance(file, Path) else "the log" if isinstance(file, Mapping) else "the DataFrame"
        if len(self.files) > 1 and not isinstance(file, Path):
            where = f"part {k + 1} of the log"
        table = read_table(file, self.columns.of_array, self.rows, unsynchronised=not self._exact)
        used = self.columns.matched(table, where, self.warned)
        lacking = [
            c for c in self.columns.columns
            if c.group == "qd" and c not in used.values() and ("qd", c.index) not in self.columns.unused
        ]  # fmt: skip
        groups = {column.group for column in used.values()}
        unread = [
            x for x, m in self._switchable.items()
            if x not in self.values and value_group(x) not in groups and m.switchable
            and not isinstance(m, Stance) and (self._exact or x not in self.problem.swing_measurements)
        ]  # fmt: skip
        self._tell_off(where, table, [x for x in unread if switch_group(x) not in groups])
        return _File(where, table, used, lacking, unread)

    def _tell_off(self, where: str, table: Table, names: list[str]) -> None:
        """Warn, once, of switchable measurements without columns, which are off."""
        off = [x for x in names if f"off:{x}" not in self.warned]
        if off:
            self.warned.update(f"off:{x}" for x in off)
            warn(
                f"{where} has no columns of {', '.join(map(repr, off))}: off in all its states; it has "
                f"{few(table.header, 12)}. A column 'active: {off[0]}' says where one is on without a value of its own",
                LogWarning,
            )  # fmt: skip

    def __iter__(self) -> Iterator[Chunk]:
        self._standing, last = Standing(self.problem), -np.inf
        for k in range(len(self.files)):
            file = self._opened(k) if k else self._first
            blocks = self._blocks(file)
            for x, rows in self._with_velocities(file, blocks) if file.lacking else blocks:
                chunk = self._chunk(file, x, rows)
                in_order(file.where, chunk.rows, chunk.t, last, not self._exact)
                last = chunk.t[-1]
                yield chunk

    def _blocks(self, file: _File) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(used columns (n, columns), rows (n,)) of the states to solve, n > 0."""
        done = 0
        for x in file.table.chunks({j: column.kinds for j, column in file.used.items()}):
            rows = np.arange(done + 1, done + len(x) + 1)
            done += len(x)
            keep = self._kept(file, x, rows)
            if keep.any():
                yield x[keep], rows[keep]

    def _with_velocities(self, file: _File, blocks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The blocks, with the missing columns of q̇ appended.

        A row is yielded when the rows after it that its derivative needs are there.
        """
        t_at = file.groups.index(TIME)
        q_at = {c.index: at for at, c in enumerate(file.used.values()) if c.group == "q"}  # of what matters
        freedoms = [c.index for c in file.lacking]
        x, rows, done, end = np.empty((0, len(file.used))), np.empty(0, dtype=int), 0, False
        while not end:
            block = next(blocks, None)
            end = block is None
            if block is not None:
                x, rows = np.vstack([x, block[0]]), np.concatenate([rows, block[1]])
            ready = len(x) if end else len(x) - HALF if len(x) >= WINDOW else 0
            if ready <= done:
                continue
            q = np.tile(self.problem.model.neutral(), (len(x), 1))
            q[:, [*q_at]] = x[:, [*q_at.values()]]
            with error_context(f"{file.where} rows {rows[done]} to {rows[ready - 1]}"):
                qd = velocities(self.problem.model, x[:, t_at], q, range(done, ready))[:, freedoms]
            self._tell(file, x[:, t_at])
            yield np.hstack([x[done:ready], qd]), rows[done:ready]
            gone = max(ready - WINDOW, 0)
            x, rows, done = x[gone:], rows[gone:], ready - gone

    def _tell(self, file: _File, t: np.ndarray) -> None:
        """Warn, once, of velocities that follow from positions."""
        if VELOCITIES[1] in self.warned:
            return
        self.warned.add(VELOCITIES[1])
        step = float(np.median(np.diff(t)))
        lacking = few([c.name for c in file.lacking], 12)
        warn(
            f"{file.where} lacks {lacking}: q̇ follows from q by parabolas over {WINDOW} rows "
            f"({2 * HALF * step:.3g} s), with a group delay of 0 s (of a causal filter: {HALF * step:.3g} s); motions "
            f"faster than {FLAT / step if step else 0:.3g} Hz are smoothed by more than 10 %",
            LogWarning,
        )  # fmt: skip

    def _kept(self, file: _File, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: the states to solve."""
        infinite = np.argwhere(np.isinf(x))
        if len(infinite):
            k, j = infinite[0]
            raise FileError(f"{file.where} row {rows[k]}, column {file.name(j)!r}: {x[k, j]} is not finite")
        gaps = self._gaps(file, x)
        if self.missing == "skip":
            keep = np.asarray(~gaps.any(axis=1))
            self.summary.skipped += int(np.sum(~keep))
            return keep
        self._check_gaps(file, gaps, rows)
        self.summary.missing += int(np.sum(gaps))
        return np.ones(len(x), dtype=bool)

    def _gaps(self, file: _File, x: np.ndarray) -> np.ndarray:
        """(n, columns) bool: values that are missing and not switched off by a column active:NAME."""
        gaps = np.isnan(x)
        groups = file.groups
        for name in self._switchable:
            if switch_group(name) in groups:
                on = x[:, groups.index(switch_group(name))] != 0.0
                for j in np.flatnonzero([group == value_group(name) for group in groups]):
                    gaps[:, j] &= on
        return gaps

    def _check_gaps(self, file: _File, gaps: np.ndarray, rows: np.ndarray) -> None:
        """Raise FileError for a missing value that may not be missing."""
        groups = [group_of(x) for x in file.groups]
        switched = np.array([g.role == VALUE and g.name in self._switchable for g in groups])
        allowed = switched if self.missing == "sensor" else np.zeros(len(groups), dtype=bool)
        wrong = np.argwhere(gaps & ~allowed)
        if len(wrong):
            k, j = wrong[0]
            where = f"{file.where} row {rows[k]}, column {file.name(j)!r}: the value is missing (NaN or empty)"
            if self.missing == "raise":
                raise FileError(f"{where}; --missing skip leaves such states out, --missing sensor goes on without it")
            what = label_of(str(groups[j]))
            remedy = "make {!r} switchable (switchable = true)" if self._exact else "{!r} is exact: give it noise"
            raise FileError(
                f"{where}, and the problem cannot do without it: "
                + (remedy.format(what) if groups[j].role == VALUE else f"{what} is needed")
            )

    def _chunk(self, file: _File, x: np.ndarray, rows: np.ndarray) -> Chunk:
        arrays: dict[str, np.ndarray] = {}
        for j, column in enumerate([*file.used.values(), *file.lacking]):
            if column.group not in arrays:
                arrays[column.group] = np.zeros((len(x), self.columns.sizes[column.group]))
            arrays[column.group][:, column.index] = x[:, j]
        active = {}
        for name in [x for x in self._switchable if value_group(x) in arrays]:
            gaps = np.isnan(arrays[value_group(name)])
            if gaps.any() or not self._exact:
                arrays[value_group(name)][gaps], active[name] = 0.0, ~gaps
        for group, found in arrays.items():
            role, name = group_of(group)
            if role == SWITCH:
                active[name] = self._switched(file, group, found, rows) & active.get(name, True)
        for name in file.unread:
            off = np.zeros((len(x), self.columns.sizes[value_group(name)]), dtype=bool)
            on = active.setdefault(name, off).any(axis=1)
            if on.any() and not self._switchable[name].zero_by_default:
                raise FileError(f"{file.where} row {rows[on][0]}: {name!r} is on, but no column has its value")
        y = {**self.values, **{label_of(group): x for group, x in arrays.items() if group_of(group).role == VALUE}}
        t = arrays[TIME][:, 0] if TIME in arrays else np.full(len(x), np.nan)
        if self._exact:
            return Chunk(file.where, rows, t, arrays["q"], arrays["qd"], y, active)
        y = {name: np.broadcast_to(value, (len(x), np.shape(value)[-1])) for name, value in y.items()}
        by_column = {group_of(group).name for group in arrays if group_of(group).role == SWITCH}
        self._standing.switch(y, active, by_column, t)
        y |= {name: np.zeros(on.shape) for name, on in active.items() if name not in y}
        return Chunk(file.where, rows, t, np.empty((len(x), 0)), np.empty((len(x), 0)), y, active)

    def _switched(self, file: _File, group: str, switch: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(n, components) bool: a column active:NAME (n, 1) for each component of the measurement."""
        wrong = np.flatnonzero(~np.isin(switch, (0.0, 1.0)))
        if len(wrong):
            k = int(wrong[0])
            raise FileError(f"{file.where} row {rows[k]}: {group} is {switch[k, 0]:g}; it must be 0 or 1")
        size = self.columns.sizes[value_group(group_of(group).name)]
        return np.broadcast_to(switch != 0.0, (len(rows), size))

    # ---- solving ---------------------------------------------------------------------------------------------------

    def estimates(self, solver: Solver) -> Iterator[Estimates]:
        """Estimates of each chunk, of the outputs of the solver; `summary` counts them from 0."""
        if not self._exact:
            raise InvalidInput("q and q̇ of this log are unknown, and a solver needs them: read it with states='exact'")
        self.summary = Summary()
        for chunk in self:
            rows = f"{chunk.where} rows {chunk.rows[0]} to {chunk.rows[-1]}"
            try:
                with error_context(rows):
                    solution = solver(chunk.q, chunk.qd, y=chunk.y, active=chunk.active or None)
            except SingularState as error:
                row = chunk.rows[error.states[0]] if error.states else "?"
                raise SingularState(
                    f"{chunk.where} row {row}: {error}", error.equation, error.unknown, error.states
                ) from error
            n = len(chunk.t)
            values = {x: solution[x].reshape(n, -1) for x in solver.outputs}
            std = {x: solution.std(x).reshape(n, -1) for x in solver.outputs} if self.problem.noisy else {}
            for x in std.values():
                x[~solution.ok] = np.nan
            self.summary.states += n
            self.summary.unsolved += int(np.sum(~solution.ok))
            yield Estimates(chunk.where, chunk.rows, chunk.t, chunk.q, values, std, solution.ok)


def _unused(solver: Solver) -> set[tuple[str, int]]:
    """Places ("q", k) and ("qd", k) that the program does not read, such as the position of a floating base.

    Quaternions are needed nevertheless, as zeros are no rotation.
    """
    program, model = solver.executable.program, solver.problem.model
    quaternions = {("q", k) for _, part in model.quaternions for k in range(*part.indices(model.nq))}
    used = {x: program.used_inputs[program.inputs.slices[x]] for x in ("q", "qd")}
    return {(x, k) for x in used for k in np.flatnonzero(~used[x]).tolist()} - quaternions


def in_order(where: str, rows: np.ndarray, t: np.ndarray, last: float, increasing: bool = False) -> None:
    """Raise FileError if time goes backwards or is not in seconds; with `increasing`, also if it is constant.

    last: the time before the first [s].
    """
    if t.max(initial=-np.inf) > LATEST:
        raise FileError(f"{where} row {rows[np.argmax(t)]}: the time is {t.max():.9g}, which is not in seconds")
    back = np.flatnonzero(np.diff(t, prepend=last) < 0.0)
    if len(back):
        k = back[0]
        before = t[k - 1] if k else last
        raise FileError(f"{where} row {rows[k]}: time goes backwards, from {before:.9g} s to {t[k]:.9g} s")
    same = np.flatnonzero(np.diff(t, prepend=last) == 0.0)
    if increasing and len(same):
        k = same[0]
        raise FileError(
            f"{where} row {rows[k]}: the time is that of the row before, {t[k]:.9g} s: join what was measured at one "
            "time in one row"
        )


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Context that puts the place before the message of an InvalidInput."""
    try:
        yield
    except InvalidInput as error:
        error.args = (f"{where}: {error}",)
        raise


def _lazy(source: Any) -> bool:
    """True for a DataFrame of Dask, and for delayed values."""
    return hasattr(type(source), "__dask_graph__")


def files_of(source: Any) -> list[Any]:
    """Parts of a log: files of a path or pattern in natural order, partitions of Dask, parts of a list, or the source.

    Raises FileError.
    """
    if isinstance(source, (list, tuple)):
        if not source:
            raise FileError("a log that is a list has no parts")
        return [file for part in source for file in files_of(part)]
    if _lazy(source):
        partitions = getattr(type(source), "partitions", None)
        return [source] if partitions is None else [source.partitions[k] for k in range(source.npartitions)]
    if hasattr(source, "columns") or isinstance(source, Mapping):
        return [source]
    path = checked_path("a log that is no dict of columns and no DataFrame", source)
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = glob.glob(str(source), recursive=True)
    if not found:
        raise FileError(f"{source} cannot be read: no file has a name like this")
    return [Path(x) for x in sorted(found, key=_counted)]


def _counted(name: str) -> list[tuple[int, str]]:
    """Natural sort key: numbers in a name count by their size, part.2 before part.10."""
    return [(int(x), "") if x.isdecimal() else (-1, x) for x in re.split(r"(\d+)", name)]
