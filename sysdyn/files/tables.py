"""Tables of numbers in .csv, .npz, .parquet and .h5 files, in memory, and in ROS bags, read in chunks.

Memory does not grow with the rows. A .csv file has a header and a row a state, between commas, semicolons or tabs. A
.npz or HDF5 file has arrays (N,) or (N, m), each of which is one or several columns. Parquet needs pyarrow (the extra
`parquet`), HDF5 h5py (`hdf5`), bags rosbags (`ros`).
"""

from __future__ import annotations

import csv
import importlib
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from sysdyn.errors import FileError, InvalidInput, SysdynError, checked_path, optional
from sysdyn.files.bags import read_bag
from sysdyn.program.arrays import NUMBERS, SWITCHES, TIMES, refused

# Packages that files of these endings need: {ending: (module, package)}.
_PACKAGES = {
    ".parquet": ("pyarrow.parquet", "pyarrow"), ".h5": ("h5py", "h5py"), ".hdf5": ("h5py", "h5py"),
    ".mcap": ("rosbags.highlevel", "rosbags"), ".db3": ("rosbags.highlevel", "rosbags"),
    ".bag": ("rosbags.highlevel", "rosbags"),
}  # fmt: skip
ROWS = 4096  # Rows that are read or written at a time (chosen).
WIDEST = 4096  # Columns beyond which arrays are not taken apart that nobody knows (chosen).
MOST_WHOLE = 2**30  # Greatest size in bytes of an array that cannot be read row by row (chosen).
# Words, in any case, of fields that hold no number.
_EMPTY = ("", "nan", "na", "n/a", "null", "none", "nat", "<na>")
# Date and time of ISO 8601, with an optional offset from UTC in hours and minutes.
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T]?([\d:.]+))?(?: ?(?:Z|([+-])([01]\d|2[0-3]):?([0-5]\d)?))?")

Rows = Iterator[np.ndarray]  # Chunks (n, columns) of float64, NaN for missing numbers.
# Columns that are read, by number, and the kinds of types allowed for each, see `sysdyn.program.arrays`.
Used = Mapping[int, str]
# {array: columns} as a function; several lists if an array may have different lengths, none if it is unknown.
Arrays = Callable[[str], Sequence[list[str]]]


@dataclass(frozen=True)
class Table:
    """An open table: names of its columns, and chunks(used), the rows of some, {number of a column: kinds of types}.

    Dates are in seconds since 1970, spans of time in seconds.
    Reading raises FileError, with the row where there is one (from 1, without header).
    others: a second name of each column, or "".
    """

    header: list[str]
    chunks: Callable[[Used], Rows]
    others: Sequence[str] = ()


def table_suffix(path: str | Path, what: str, suffixes: Sequence[str]) -> str:
    """The suffix of a file that is to be read or written. Raises InvalidInput, BackendUnavailable."""
    suffix = checked_path(what, path).suffix.lower()
    if not suffix and ".db3" in suffixes and (Path(path) / "metadata.yaml").is_file():
        suffix = ".db3"  # a ROS 2 bag is a folder
    if suffix not in suffixes:
        raise InvalidInput(f"{what} {str(path)!r} must end in {', '.join(suffixes)}, not in {suffix or 'nothing'!r}")
    if suffix in _PACKAGES:
        package(path, suffix)
    return suffix


def package(path: str | Path, suffix: str) -> Any:
    """The module that reads and writes files of this kind."""
    module, name = _PACKAGES[suffix]
    return optional(module, f"{path} needs {name}, which is not installed: pip install {name}")


@contextmanager
def _reading(path: str | Path, kind: str) -> Iterator[None]:
    """Turns errors raised within into a FileError that names the file."""
    try:
        yield
    except SysdynError:
        raise
    except MemoryError as error:
        raise FileError(f"{path} cannot be read: it needs more memory than there is") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
    except Exception as error:  # zipfile, zlib, numpy, Arrow, HDF5 and rosbags each raise kinds of their own
        if isinstance(error, OSError) and error.strerror:
            raise FileError(f"{path} cannot be read: {error.strerror}") from error
        raise FileError(f"{path} is not a readable {kind} file: {error or type(error).__name__}") from error


def read_table(source: Any, arrays: Arrays, rows: int = ROWS, apart: bool = False) -> Table:
    """The table in a file, a DataFrame of pandas, or a dict of arrays.

    arrays: columns of an array of a dict, a .npz or HDF5 file. apart: each message of a bag in a row of its own time.
    Raises FileError for what cannot be read.
    """
    if isinstance(source, Mapping):
        return _read_mapping(source, arrays, rows)
    if hasattr(source, "columns"):
        return _read_frame(source, rows)
    suffix, path = table_suffix(source, "file", tuple(READERS)), Path(source)
    with _reading(path, suffix):
        if apart and READERS[suffix] is _read_bag:
            return _read_bag(path, arrays, rows, apart)
        return READERS[suffix](path, arrays, rows)


def _floats(x: np.ndarray, allowed: str, where: str) -> np.ndarray:
    """Entries of the allowed kinds of types as float64, times in s. Raises FileError."""
    if why := refused(x.dtype, allowed):
        raise FileError(f"{where} has {why}")
    if x.dtype.kind not in "mM":
        return x.astype(float)
    ns = x.astype(f"{x.dtype.kind}8[ns]")
    return np.where(np.isnat(ns), math.nan, ns.astype(np.int64) / 1e9)


def _read_csv(path: Path, arrays: Arrays, rows: int) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")
    separator = max(",;\t", key=first.count)
    header = [name.strip() for name in next(csv.reader([first], delimiter=separator, skipinitialspace=True), [])]
    if not any(header):
        raise FileError(f"{path} is empty: its first line must name the columns")

    def chunks(used: Used) -> Rows:
        with _reading(path, ".csv"), path.open(encoding="utf-8-sig", newline="") as file:
            filled, done = (line for line in file if line.strip()), 0
            next(filled)
            while lines := list(islice(filled, rows)):
                yield _csv_numbers(path, lines, header, used, separator, done)
                done += len(lines)

    return Table(header, chunks)


def _csv_numbers(path: Path, lines: list[str], header: list[str], used: Used, separator: str, done: int) -> np.ndarray:
    """(n, used columns) of lines, after `done` rows."""
    if all(line.count(separator) == len(header) - 1 for line in lines):
        try:
            return np.loadtxt(lines, delimiter=separator, usecols=list(used), ndmin=2, comments=None)
        except ValueError:
            pass  # empty fields, times, quotes, or no numbers
    fields = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    for k, row in enumerate(fields):
        if len(row) != len(header):
            raise FileError(f"{path} row {done + k + 1}: {len(row)} fields, but the header has {len(header)}")
    x = np.empty((len(fields), len(used)))
    for n, (j, allowed) in enumerate(used.items()):
        texts = [row[j] for row in fields]
        try:
            x[:, n] = texts
        except ValueError:
            for k, text in enumerate(texts):
                x[k, n] = _number(text, separator, allowed, f"{path} row {done + k + 1}, column {header[j]!r}")
    return x


def _number(text: str, separator: str, allowed: str, where: str) -> float:
    text = text.strip()
    if text.lower() in _EMPTY:
        return math.nan
    try:
        if date := _DATE.fullmatch(text):
            day, clock, sign, hours, minutes = date.groups()
            offset = np.timedelta64(int(f"{sign or ''}{60 * int(hours or 0) + int(minutes or 0)}"), "m")
            time = np.datetime64("T".join(filter(None, (day, clock))), "ns") - offset
            return float(_floats(np.array(time), allowed, f"{where}: {text!r}"))
        return float(text.replace(",", ".") if separator == ";" else text)
    except ValueError:
        raise FileError(f"{where}: {text!r} is no number") from None


def _times(texts: Iterable[Any], where: str) -> np.ndarray:
    """Times [s] of a column of texts, NaN for missing values."""
    return np.array([_number(str(x), ",", TIMES, where) for x in texts])


# ---- arrays of .npz and HDF5 files, and in memory


class _Array:
    """An array of a file: its shape and type, and the columns that it holds.

    constant: it has no axis of states, and holds for all.
    """

    def __init__(self, path: Path | str, name: str, shape: tuple[int, ...], dtype: np.dtype, arrays: Arrays):
        self.name, self.numeric = name, not refused(dtype, NUMBERS + TIMES + SWITCHES)
        self.width = math.prod(shape[1:])
        known = arrays(name)
        row = [names for names in known if shape and len(names) == self.width]
        single = [names for names in known if len(names) == math.prod(shape)]
        self.constant = not shape or (not row and bool(single))
        if self.constant:
            self.width = math.prod(shape)
        self.rows = 1 if self.constant else shape[0]
        if row or single:
            self.names = (row or single)[0]
        elif known:
            needed = " or ".join(f"(N, {len(names)})" for names in known)
            raise FileError(f"{path}: array {name!r} has shape {shape}, but {needed} is needed")
        else:
            parts = self.numeric and len(shape) == 2 and self.width <= WIDEST
            self.names = [f"{name}[{k}]" for k in range(self.width)] if parts and self.width > 1 else [name]
        if known and not self.numeric:
            raise FileError(f"{path}: array {name!r} has type {dtype}, but real numbers are needed")


def _array_table(path: Path | str, found: Sequence[_Array], rows: int, reader: Callable) -> Table:
    """The table of arrays. reader(stack) gives a function of (array, first row, rows) that reads the next rows."""
    columns = [(x, k) for x in found for k in range(len(x.names))]

    def chunks(used: Used) -> Rows:
        with _reading(path, Path(path).suffix or "table"), ExitStack() as stack:
            for x in {columns[j][0] for j in used}:
                if len(x.names) != x.width or not x.numeric:
                    raise FileError(f"{path}: {x.name!r} holds no columns of numbers")
            needed = {columns[j][0].name: columns[j][0] for j in used}
            # of the columns of one array some may be of time: numbers are what all of them may be
            allowed = {name: NUMBERS for name in needed}
            for name, x in needed.items():
                kinds = {kind for j, kind in used.items() if columns[j][0] is x}
                allowed[name] = kinds.pop() if len(kinds) == 1 else NUMBERS

            def numbers_of(x: _Array, at: int, n: int) -> np.ndarray:
                return _floats(read(x, at, n), allowed[x.name], f"{path}: array {x.name!r}")

            numbers = {x.rows for x in needed.values() if not x.constant} or {1}
            if len(numbers) > 1:
                shown = ", ".join(f"{x.name} {x.rows}" for x in needed.values())
                raise FileError(f"{path}: the arrays do not fit together, they have different numbers of rows: {shown}")
            read, total = reader(stack), min(numbers)
            constant = {name: numbers_of(x, 0, 1).reshape(1, -1) for name, x in needed.items() if x.constant}
            for at in range(0, total, rows):
                n = min(rows, total - at)
                parts = {
                    name: np.repeat(constant[name], n, axis=0) if x.constant
                    else numbers_of(x, at, n).reshape(n, x.width)
                    for name, x in needed.items()
                }  # fmt: skip
                yield np.column_stack([parts[columns[j][0].name][:, columns[j][1]] for j in used])

    return Table([name for x in found for name in x.names], chunks)


def _read_mapping(source: Mapping[str, Any], arrays: Arrays, rows: int) -> Table:
    """The table of a dict of arrays (N,) or (N, m); arrays without an axis of states hold for all."""
    where = "the log"
    given: dict[str, np.ndarray] = {}
    for name, x in source.items():
        try:
            given[str(name)] = np.asarray(x)
        except ValueError as error:
            raise FileError(f"{where}: {name!r} is no array: {error}") from error
    found = [_Array(where, name, x.shape, x.dtype, arrays) for name, x in given.items()]
    return _array_table(
        where, found, rows, lambda stack: lambda x, at, n: given[x.name] if x.constant else given[x.name][at : at + n]
    )


def _read_npz(path: Path, arrays: Arrays, rows: int) -> Table:
    with zipfile.ZipFile(path) as archive:
        heads = {name.removesuffix(".npy"): _npy_head(archive, name) for name in archive.namelist()}
    found = [_Array(path, name, shape, dtype, arrays) for name, (shape, dtype, _) in heads.items()]

    def reader(stack: ExitStack) -> Callable[[_Array, int, int], np.ndarray]:
        archive, files, whole = stack.enter_context(zipfile.ZipFile(path)), {}, {}

        def read(x: _Array, at: int, n: int) -> np.ndarray:
            shape, dtype, by_columns = heads[x.name]
            if x.name not in files:
                files[x.name] = stack.enter_context(archive.open(f"{x.name}.npy"))
                _npy_head_of(files[x.name])
                if by_columns:
                    whole[x.name] = _npy_numbers(path, x.name, files[x.name], dtype, math.prod(shape))
            if not by_columns:
                return _npy_numbers(path, x.name, files[x.name], dtype, n * x.width)
            array = whole[x.name].reshape(shape, order="F")
            return array if x.constant else array[at : at + n]

        return read

    return _array_table(path, found, rows, reader)


# Shape and type of an array; True if it is stored by columns.
_Head = tuple[tuple[int, ...], np.dtype, bool]


def _npy_head(archive: zipfile.ZipFile, name: str) -> _Head:
    with archive.open(name) as file:
        return _npy_head_of(file)


def _npy_head_of(file: IO[bytes]) -> _Head:
    """The head of an array's file, after which the numbers follow. Raises ValueError."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if any(n < 0 for n in shape):
        raise ValueError(f"an array has shape {shape}")
    return shape, dtype, fortran and len(shape) > 1


def _npy_numbers(path: Path, name: str, file: IO[bytes], dtype: np.dtype, count: int) -> np.ndarray:
    """The next numbers of an array."""
    size = count * dtype.itemsize
    if size > MOST_WHOLE:
        raise FileError(f"{path}: array {name!r} must be read whole, for which it is too large: save it in C order")
    payload = file.read(size)
    if len(payload) < size:
        raise FileError(f"{path}: array {name!r} ends before its last row")
    return np.frombuffer(payload, dtype)


def _read_hdf5(path: Path, arrays: Arrays, rows: int) -> Table:
    h5py = package(path, path.suffix.lower())
    found: list[_Array] = []
    with h5py.File(path, "r") as file:
        sets: list[Any] = []
        file.visititems(lambda name, x: sets.append((name, x)) if isinstance(x, h5py.Dataset) else None)
        _require_own(path, file)
        found = [_Array(path, name, x.shape, x.dtype, arrays) for name, x in sets if x.shape is not None]

    def reader(stack: ExitStack) -> Callable[[_Array, int, int], np.ndarray]:
        file = stack.enter_context(h5py.File(path, "r"))
        return lambda x, at, n: np.asarray(file[x.name][()] if x.constant else file[x.name][at : at + n])

    return _array_table(path, found, rows, reader)


def _require_own(path: Path, file: Any) -> None:
    """Raise FileError for datasets and links whose content is in other files, which nobody named."""
    h5py = importlib.import_module("h5py")

    links: list[tuple[str, Any]] = []
    file.visititems_links(lambda name, link: links.append((name, link)))
    for name, link in links:
        if isinstance(link, h5py.ExternalLink):
            raise FileError(f"{path}: {name!r} is a link to another file, {link.filename!r}: copy what it holds here")
        x = file[name] if isinstance(link, h5py.HardLink) else None
        if isinstance(x, h5py.Dataset) and (x.external or x.is_virtual):
            where = "external" if x.external else "virtual"
            raise FileError(f"{path}: {name!r} has {where} storage, in other files: copy what it holds here")


# ---- Parquet, bags, DataFrames


def _read_parquet(path: Path, arrays: Arrays, rows: int) -> Table:
    parquet = package(path, ".parquet")
    arrow = importlib.import_module("pyarrow")
    with parquet.ParquetFile(path) as file:
        names = list(file.schema_arrow.names)

    def numbers(column: Any, allowed: str, name: str) -> np.ndarray:
        kind, where = column.type, f"{path}: column {name!r}"
        try:
            if arrow.types.is_date(kind) or arrow.types.is_timestamp(kind) or arrow.types.is_duration(kind):
                return _floats(column.to_numpy(zero_copy_only=False), allowed, where)
            text = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
            if text and allowed == TIMES:
                return _times(column.to_pylist(), where)
            numeric = arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_decimal(kind)
            numeric |= text or arrow.types.is_null(kind)
            if not numeric and not (arrow.types.is_boolean(kind) and "b" in allowed):
                raise FileError(f"{where} has type {kind}, but real numbers are needed")
            return column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        except (arrow.ArrowException, ValueError, TypeError) as error:
            raise FileError(f"{where} has type {kind}, but numbers are needed: {error}") from error

    def chunks(used: Used) -> Rows:
        with _reading(path, "Parquet"), parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=[names[j] for j in used]):
                yield np.column_stack([numbers(batch.column(names[j]), x, names[j]) for j, x in used.items()])

    return Table(names, chunks)


def _read_bag(path: Path, arrays: Arrays, rows: int, apart: bool = False) -> Table:
    package(path, ".db3")
    header, others, states = read_bag(path, apart)

    def chunks(used: Used) -> Rows:
        with _reading(path, "bag"):
            found = states(list(used))
            while part := list(islice(found, rows)):
                yield np.array(part).reshape(len(part), len(used))

    return Table(header, chunks, others)


def _read_frame(frame: Any, rows: int) -> Table:
    """The table of a DataFrame; an index is a column if it has a name or holds times, called t if it has no name."""
    if not hasattr(frame, "iloc"):  # of Arrow and Polars
        frame = frame.to_pandas()
    if frame.index.name is not None or frame.index.dtype.kind in "mM":
        frame = frame.rename_axis(frame.index.name or "t").reset_index()

    def numbers(column: Any, allowed: str) -> np.ndarray:
        where = f"the DataFrame: column {str(column.name)!r}"
        if column.dtype.kind in "mM":
            return _floats(column.to_numpy(dtype=f"{column.dtype.kind}8[ns]"), allowed, where)
        if column.dtype.kind == "O" and allowed == TIMES:
            return _times(column, where)
        if why := refused(column.dtype, allowed):
            raise FileError(f"{where} has {why}")
        return column.to_numpy(dtype=float, na_value=math.nan)

    def chunks(used: Used) -> Rows:
        with _reading("the DataFrame", "table"):
            for at in range(0, len(frame), rows):
                yield np.column_stack([numbers(frame.iloc[at : at + rows, j], x) for j, x in used.items()])

    return Table([str(name) for name in frame.columns], chunks)


# Readers of tables, by kind of file.
READERS: dict[str, Callable[[Path, Arrays, int], Table]] = {
    ".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet, ".h5": _read_hdf5, ".hdf5": _read_hdf5,
    ".db3": _read_bag, ".mcap": _read_bag, ".bag": _read_bag,
}  # fmt: skip
