"""Readers of numeric tables in chunks of rows: .csv, .npz, .parquet and .h5 files, ROS bags, arrays in memory.

Memory does not grow with the number of rows, except for .npz arrays in Fortran order. A .csv file has a header and is
separated by commas, semicolons or tabs. A .npz or HDF5 file contains arrays (N,) or (N, m); an array is one or several
columns. Parquet needs pyarrow (extra `parquet`), HDF5 needs h5py (`hdf5`), bags need rosbags (`ros`).
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from sysdyn.errors import FileError, InvalidInput, SysdynError, checked_path, optional
from sysdyn.program.arrays import BOOLEANS, NUMBERS, TIMES, dtype_problem

# Name of the time column in bags and in all output files.
TIME = "t"
# Rows per chunk: tuned.
ROWS = 4096
# An array of unknown name with more columns is one opaque column.
MAX_UNKNOWN_COLUMNS = 4096
# Optional packages: {suffix: (module, package)}.
_PACKAGES = {
    ".parquet": ("pyarrow.parquet", "pyarrow"), ".h5": ("h5py", "h5py"), ".hdf5": ("h5py", "h5py"),
    ".mcap": ("rosbags.highlevel", "rosbags"), ".db3": ("rosbags.highlevel", "rosbags"),
    ".bag": ("rosbags.highlevel", "rosbags"),
}  # fmt: skip
# Lower-case texts that mean a missing value.
_MISSING = ("", "nan", "na", "n/a", "null", "none", "nat", "<na>")
# ISO 8601 date and time, with an optional UTC offset.
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T]?([\d:.]+))?(?: ?(?:Z|([+-])([01]\d|2[0-3]):?([0-5]\d)?))?")

Chunks = Iterator[np.ndarray]  # (n, columns) float64, NaN for missing values
# {column number: allowed dtype kinds} of the columns to read; see `sysdyn.program.arrays`.
ColumnKinds = Mapping[int, str]
# Array name → column names of each accepted layout; empty if the array is unknown.
ArrayColumns = Callable[[str], Sequence[list[str]]]


@dataclass(frozen=True)
class Table:
    """An open table: column names, and an iterator over chunks of rows.

    `chunks(kinds)` reads the columns in `kinds`. Dates are converted to seconds since 1970, durations to seconds.
    Reading raises FileError; row numbers in messages start at 1 after the header. `aliases` has a second name for each
    column, or "".
    """

    header: list[str]
    chunks: Callable[[ColumnKinds], Chunks]
    aliases: Sequence[str] = ()


def table_suffix(path: str | Path, what: str, suffixes: Sequence[str]) -> str:
    """File suffix, checked against `suffixes`. Raises InvalidInput, BackendUnavailable for a missing package."""
    suffix = checked_path(what, path).suffix.lower()
    if not suffix and ".db3" in suffixes and (Path(path) / "metadata.yaml").is_file():
        suffix = ".db3"  # a ROS 2 bag is a folder
    if suffix not in suffixes:
        raise InvalidInput(f"{what} {str(path)!r} must end in {', '.join(suffixes)}, not in {suffix or 'nothing'!r}")
    if suffix in _PACKAGES:
        package(path, suffix)
    return suffix


def package(path: str | Path, suffix: str) -> Any:
    """Import the optional module that reads files with `suffix`."""
    module, name = _PACKAGES[suffix]
    return optional(module, f"{path} needs {name}, which is not installed: pip install {name}")


def read_table(source: Any, columns_of: ArrayColumns, rows: int = ROWS, unsynchronised: bool = False) -> Table:
    """Open a table.

    Parameters
    ----------
    source : path, DataFrame or mapping
        A file, a DataFrame of pandas, Arrow or Polars, or a dict of arrays.
    columns_of : callable
        Array name → accepted column names, for arrays of a dict, a .npz or an HDF5 file.
    rows : int
        Rows per chunk.
    unsynchronised : bool
        Read a ROS bag with one row per message, see `sysdyn.files.bags`.

    Returns
    -------
    Table

    Raises
    ------
    FileError
    """
    if isinstance(source, Mapping):
        return _read_mapping(source, columns_of, rows)
    if hasattr(source, "columns"):
        return _read_frame(source, rows)
    suffix, path = table_suffix(source, "file", tuple(READERS)), Path(source)
    with _file_errors(path, suffix):
        if READERS[suffix] is _read_bag:
            return _read_bag(path, columns_of, rows, unsynchronised)
        return READERS[suffix](path, columns_of, rows)


@contextmanager
def _file_errors(where: str | Path, kind: str) -> Iterator[None]:
    """Context that converts errors to a FileError with the file name."""
    try:
        yield
    except SysdynError:
        raise
    except MemoryError as error:
        raise FileError(f"{where} cannot be read: it needs more memory than there is") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{where} is not a text file in UTF-8: {error}") from error
    except Exception as error:  # zipfile, zlib, numpy, Arrow, HDF5 and rosbags raise different classes
        if isinstance(error, OSError) and error.strerror:
            raise FileError(f"{where} cannot be read: {error.strerror}") from error
        raise FileError(f"{where} is not a readable {kind} file: {error or type(error).__name__}") from error


def _floats(x: np.ndarray, allowed: str, where: str) -> np.ndarray:
    """Convert a column to float64: times to seconds, objects through str(). Raises FileError for other dtype kinds."""
    if x.dtype.kind == "O":
        return np.array([_number(str(entry), allowed, where) for entry in x])
    if why := dtype_problem(x.dtype, allowed):
        raise FileError(f"{where} has {why}")
    if x.dtype.kind not in "mM":
        return x.astype(float)
    ns = x.astype(f"{x.dtype.kind}8[ns]")
    return np.where(np.isnat(ns), math.nan, ns.astype(np.int64) / 1e9)


def _number(text: str, allowed: str, where: str) -> float:
    """Parse a number or a time [s]; NaN for a missing value. Raises FileError."""
    text = text.strip()
    if text.lower() in _MISSING:
        return math.nan
    try:
        if date := _DATE.fullmatch(text):
            day, clock, sign, hours, minutes = date.groups()
            offset = np.timedelta64(int(f"{sign or ''}{60 * int(hours or 0) + int(minutes or 0)}"), "m")
            time = np.datetime64("T".join(filter(None, (day, clock))), "ns") - offset
            return float(_floats(np.array(time), allowed, f"{where}: {text!r}"))
        return float(text)
    except ValueError:
        raise FileError(f"{where}: {text!r} is no number") from None


# ---- .csv


def _read_csv(path: Path, columns_of: ArrayColumns, rows: int) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")
    separator = max(",;\t", key=first.count)
    header = [name.strip() for name in next(csv.reader([first], delimiter=separator, skipinitialspace=True), [])]
    if not any(header):
        raise FileError(f"{path} is empty: its first line must name the columns")

    def chunks(kinds: ColumnKinds) -> Chunks:
        with _file_errors(path, ".csv"), path.open(encoding="utf-8-sig", newline="") as file:
            filled, row = (line for line in file if line.strip()), 1
            next(filled)
            while lines := list(islice(filled, rows)):
                yield _csv_numbers(path, lines, header, kinds, separator, row)
                row += len(lines)

    return Table(header, chunks)


def _csv_numbers(
    path: Path, lines: list[str], header: list[str], kinds: ColumnKinds, separator: str, row: int
) -> np.ndarray:
    """Parse n lines into an (n, columns) array. row: row number of the first line, for messages."""
    if all(line.count(separator) == len(header) - 1 for line in lines):
        try:
            return np.loadtxt(lines, delimiter=separator, usecols=list(kinds), ndmin=2, comments=None)
        except ValueError:
            pass  # empty fields, times, quotes or text: parsed below
    fields = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    for k, line in enumerate(fields, start=row):
        if len(line) != len(header):
            raise FileError(f"{path} row {k}: {len(line)} fields, but the header has {len(header)}")
    x = np.empty((len(fields), len(kinds)))
    for n, (j, allowed) in enumerate(kinds.items()):
        texts = [line[j] for line in fields]
        try:
            x[:, n] = texts
        except ValueError:
            x[:, n] = [_number(s, allowed, f"{path} row {row + k}, column {header[j]!r}") for k, s in enumerate(texts)]
    return x


# ---- arrays of .npz and HDF5 files, and in memory


def _array_columns(
    where: str | Path, name: str, shape: tuple[int, ...], dtype: np.dtype, forms: Sequence[list[str]]
) -> tuple[list[str], int | None]:
    """(column names of an array, number of rows). The number is None if the array is the same for all states."""
    numeric, width = not dtype_problem(dtype, NUMBERS + TIMES + BOOLEANS), math.prod(shape[1:])
    if not forms:
        split = numeric and len(shape) == 2 and 1 < width <= MAX_UNKNOWN_COLUMNS
        return [f"{name}[{k}]" for k in range(width)] if split else [name], shape[0] if shape else None
    if not numeric:
        raise FileError(f"{where}: array {name!r} has type {dtype}, but real numbers are needed")
    for columns in forms if shape else ():
        if len(columns) == width:
            return columns, shape[0]
    for columns in forms:
        if len(columns) == math.prod(shape):
            return columns, None
    needed = " or ".join(f"(N, {len(columns)})" for columns in forms)
    raise FileError(f"{where}: array {name!r} has shape {shape}, but {needed} is needed")


def _array_table(
    where: str | Path, open_arrays: Callable[[], AbstractContextManager[Mapping[str, Any]]], columns_of: ArrayColumns,
    rows: int,
) -> Table:  # fmt: skip
    """Table of named arrays. open_arrays: context that yields {name: array-like with shape, dtype and row slices}."""
    with open_arrays() as arrays:
        layout = {name: _array_columns(where, name, x.shape, x.dtype, columns_of(name)) for name, x in arrays.items()}
    places = [(name, k) for name, (columns, _) in layout.items() for k in range(len(columns))]

    def block(name: str, x: Any, part: slice) -> np.ndarray:
        columns, length = layout[name]
        entries = np.asarray(x[()] if length is None else x[part])
        size = part.stop - part.start
        entries = entries.reshape(1 if length is None else size, -1)
        if entries.shape[1] != len(columns):
            raise FileError(f"{where}: {name!r} has no numeric columns")
        return np.broadcast_to(entries, (size, len(columns)))

    def chunks(kinds: ColumnKinds) -> Chunks:
        needed = {places[j][0] for j in kinds}
        lengths = {name: length for name, (_, length) in layout.items() if name in needed and length is not None}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise FileError(f"{where}: the arrays have different numbers of rows: {listed}")
        total = max(lengths.values(), default=1)
        with _file_errors(where, "table"), open_arrays() as arrays:
            for begin in range(0, total, rows):
                part = slice(begin, min(begin + rows, total))
                blocks = {name: block(name, arrays[name], part) for name in needed}
                columns = [(blocks[places[j][0]][:, places[j][1]], x, places[j][0]) for j, x in kinds.items()]
                yield np.column_stack([_floats(c, x, f"{where}: array {name!r}") for c, x, name in columns])

    return Table([column for columns, _ in layout.values() for column in columns], chunks)


def _read_mapping(source: Mapping[str, Any], columns_of: ArrayColumns, rows: int) -> Table:
    """Table of a dict of arrays (N,) or (N, m). Arrays without a state axis are the same for all states."""
    arrays: dict[str, np.ndarray] = {}
    for name, x in source.items():
        try:
            arrays[str(name)] = np.asarray(x)
        except ValueError as error:
            raise FileError(f"the log: {name!r} is not an array: {error}") from error
    return _array_table("the log", lambda: nullcontext(arrays), columns_of, rows)


class _NpyArray:
    """A lazy array in a .npz file. Row slices are read from the file; an array in Fortran order is read at once."""

    def __init__(self, file: IO[bytes]):
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = read(file)
        self._file, self._begin, self._streamed = file, file.tell(), not fortran or len(self.shape) < 2
        self._entries: np.ndarray | None = None

    def __getitem__(self, part: slice | tuple[()]) -> np.ndarray:
        if isinstance(part, slice) and self._streamed:
            size = math.prod(self.shape[1:]) * self.dtype.itemsize
            self._file.seek(self._begin + part.start * size)
            return np.frombuffer(self._file.read((part.stop - part.start) * size), self.dtype)
        if self._entries is None:
            self._file.seek(0)
            self._entries = np.lib.format.read_array(self._file, allow_pickle=False)
        return self._entries[part]


def _read_npz(path: Path, columns_of: ArrayColumns, rows: int) -> Table:
    @contextmanager
    def open_arrays() -> Iterator[dict[str, _NpyArray]]:
        with zipfile.ZipFile(path) as archive, ExitStack() as files:
            names = archive.namelist()
            yield {x.removesuffix(".npy"): _NpyArray(files.enter_context(archive.open(x))) for x in names}

    return _array_table(path, open_arrays, columns_of, rows)


def _read_hdf5(path: Path, columns_of: ArrayColumns, rows: int) -> Table:
    h5py = package(path, ".h5")

    @contextmanager
    def open_arrays() -> Iterator[dict[str, Any]]:
        arrays: dict[str, Any] = {}
        with h5py.File(path, "r") as file:  # external links are not followed
            file.visititems(lambda name, x: arrays.update({name: x} if isinstance(x, h5py.Dataset) else {}))
            for name, x in arrays.items():
                if x.external or x.is_virtual:
                    raise FileError(f"{path}: the content of {name!r} is in other files: copy it into this one")
            yield {name: x for name, x in arrays.items() if x.shape is not None}

    return _array_table(path, open_arrays, columns_of, rows)


# ---- Parquet, bags, DataFrames


def _read_parquet(path: Path, columns_of: ArrayColumns, rows: int) -> Table:
    parquet = package(path, ".parquet")
    with parquet.ParquetFile(path) as file:
        names = list(file.schema_arrow.names)

    def chunks(kinds: ColumnKinds) -> Chunks:
        with _file_errors(path, "Parquet"), parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=[names[j] for j in kinds]):
                columns = [(batch.column(names[j]), x, names[j]) for j, x in kinds.items()]
                yield np.column_stack([
                    _floats(c.to_numpy(zero_copy_only=False), x, f"{path}: column {name!r}") for c, x, name in columns
                ])  # fmt: skip

    return Table(names, chunks)


def _read_bag(path: Path, columns_of: ArrayColumns, rows: int, unsynchronised: bool = False) -> Table:
    from sysdyn.files.bags import read_bag

    header, aliases, rows_of = read_bag(path, unsynchronised)

    def chunks(kinds: ColumnKinds) -> Chunks:
        with _file_errors(path, "bag"):
            lines = rows_of(list(kinds))
            while part := list(islice(lines, rows)):
                yield np.array(part).reshape(len(part), len(kinds))

    return Table(header, chunks, aliases)


def _read_frame(frame: Any, rows: int) -> Table:
    """Table of a DataFrame. A named index is a column; an unnamed index of times is the column t."""
    if not hasattr(frame, "iloc"):  # Arrow and Polars
        frame = frame.to_pandas()
    if frame.index.name is not None or frame.index.dtype.kind in "mM":
        frame = frame.rename_axis(frame.index.name or TIME).reset_index()

    def numbers(column: Any, allowed: str) -> np.ndarray:
        kind, where = column.dtype.kind, f"the DataFrame: column {str(column.name)!r}"
        if kind in "fiub" and kind in allowed:
            return column.to_numpy(dtype=float, na_value=math.nan)
        return _floats(column.to_numpy(dtype=f"{kind}8[ns]" if kind in "mM" else None), allowed, where)

    def chunks(kinds: ColumnKinds) -> Chunks:
        with _file_errors("the DataFrame", "table"):
            for begin in range(0, len(frame), rows):
                part = frame.iloc[begin : begin + rows]
                yield np.column_stack([numbers(part.iloc[:, j], x) for j, x in kinds.items()])

    return Table([str(name) for name in frame.columns], chunks)


# {suffix: reader}
READERS: dict[str, Callable[[Path, ArrayColumns, int], Table]] = {
    ".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet, ".h5": _read_hdf5, ".hdf5": _read_hdf5,
    ".db3": _read_bag, ".mcap": _read_bag, ".bag": _read_bag,
}  # fmt: skip
