"""Tables of numbers in .csv, .npz and .parquet files, read and written in chunks: memory does not grow with the rows.

A .csv file has a header and a row a state. A .npz file has arrays (N,) or (N, m), each of which is one or several
columns. A .parquet file needs pyarrow (the extra `parquet`).
"""

from __future__ import annotations

import csv
import math
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO

import numpy as np

from sysdyn.errors import BackendUnavailable, FileError, InvalidInput
from sysdyn.files.atomic import Replacement

# The endings of the names of files that can be read and written.
SUFFIXES = (".csv", ".npz", ".parquet")
ROWS = 4096  # The number of rows that are read or written at a time.


def table_suffix(path: str | Path, what: str) -> str:
    """The suffix of a file that is to be read or written. Raises InvalidInput, BackendUnavailable."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"{what} {str(path)!r} must end in {', '.join(SUFFIXES)}, not in {suffix or 'nothing'!r}")
    if suffix == ".parquet":
        _pyarrow(path)
    return suffix


def _pyarrow(path: str | Path) -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BackendUnavailable(
            f"{path} is a Parquet file, for which pyarrow is needed: pip install pyarrow"
        ) from error
    return pyarrow


# ---- reading -------------------------------------------------------------------------------------------------------

Rows = Iterator[np.ndarray]  # Chunks (n, columns) of float64, NaN where there is no number.


def read_table(
    path: str | Path, columns_of: Callable[[str], list[str] | None], rows: int = ROWS
) -> tuple[list[str], Rows]:
    """(names of the columns, chunks of rows).

    columns_of: names of the columns of an array of a .npz file, None where it is unknown. Raises FileError for what
    cannot be read, with the row where there is one (counted from 1; the line of a .csv file is one more).
    """
    suffix = table_suffix(path, "log")
    return {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}[suffix](Path(path), columns_of, rows)


def _read_csv(path: Path, columns_of, rows: int) -> tuple[list[str], Rows]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
    header = [name.strip() for name in next(csv.reader([first], skipinitialspace=True), [])]
    if not any(header):
        raise FileError(f"{path} is empty: its first line must name the columns")

    def chunks() -> Rows:
        with path.open(encoding="utf-8-sig", newline="") as file:
            file.readline()
            done = 0
            while lines := list(islice(file, rows)):
                while lines and not lines[-1].strip():
                    lines.pop()
                if not lines:
                    continue
                yield _csv_numbers(path, lines, header, done)
                done += len(lines)

    return header, chunks()


def _csv_numbers(path: Path, lines: list[str], header: list[str], done: int) -> np.ndarray:
    """(n, columns) of lines; NaN where a field is empty."""
    try:
        x = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
        if x.shape == (len(lines), len(header)):
            return x
    except ValueError:
        pass  # read one by one, to say which
    x = np.full((len(lines), len(header)), math.nan)
    for k, fields in enumerate(csv.reader(lines, skipinitialspace=True)):
        if len(fields) != len(header):
            raise FileError(f"{path} row {done + k + 1}: {len(fields)} fields, but the header has {len(header)}")
        for j, text in enumerate(fields):
            try:
                x[k, j] = float(text) if text.strip() else math.nan
            except ValueError:
                raise FileError(f"{path} row {done + k + 1}, column {header[j]!r}: {text!r} is no number") from None
    return x


def _read_npz(path: Path, columns_of, rows: int) -> tuple[list[str], Rows]:
    try:
        with zipfile.ZipFile(path) as archive:
            heads = {name.removesuffix(".npy"): _npy_head(archive, name) for name in archive.namelist()}
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError) as error:
        raise FileError(f"{path} is not a readable .npz file: {error}") from error
    header: list[str] = []
    n = {shape[0] if shape else 1 for shape, _ in heads.values()}
    if len(n) != 1:
        shown = ", ".join(f"{name} {shape}" for name, (shape, _) in heads.items())
        raise FileError(f"{path}: the arrays must have one row for each state: {shown or 'there are none'}")
    for name, (shape, _) in heads.items():
        width, names = math.prod(shape[1:]), columns_of(name) or [name]
        if width != len(names):
            raise FileError(f"{path}: array {name!r} has shape {shape}, but (N, {len(names)}) is needed")
        header += names

    def chunks() -> Rows:
        with zipfile.ZipFile(path) as archive, ExitStack() as stack:
            files = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in heads}
            for file in files.values():
                _npy_head_of(file)
            for at in range(0, min(n), rows):
                count = min(rows, min(n) - at)
                yield np.hstack([_npy_rows(path, name, files[name], heads[name], count) for name in files])

    return header, chunks()


def _npy_head(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    with archive.open(name) as file:
        return _npy_head_of(file)


def _npy_head_of(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, type) of an array; what follows in the file are its numbers. Raises ValueError."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.kind not in "fiub":
        raise ValueError(f"an array has type {dtype}, but real numbers are needed")
    if fortran and len(shape) > 1:
        raise ValueError("an array is stored by columns, so that it cannot be read row by row: save it in C order")
    return shape, dtype


def _npy_rows(path: Path, name: str, file: IO[bytes], head: tuple[tuple[int, ...], np.dtype], n: int) -> np.ndarray:
    shape, dtype = head
    width = math.prod(shape[1:])
    payload = file.read(n * width * dtype.itemsize)
    if len(payload) < n * width * dtype.itemsize:
        raise FileError(f"{path}: array {name!r} ends before its last row")
    return np.frombuffer(payload, dtype).reshape(n, width).astype(float)


def _read_parquet(path: Path, columns_of, rows: int) -> tuple[list[str], Rows]:
    arrow = _pyarrow(path)
    try:
        with arrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
    except (OSError, arrow.ArrowInvalid) as error:
        raise FileError(f"{path} is not a readable Parquet file: {error}") from error
    for field in schema:
        if not (arrow.types.is_floating(field.type) or arrow.types.is_integer(field.type)):
            raise FileError(f"{path}: column {field.name!r} has type {field.type}, but numbers are needed")

    def chunks() -> Rows:
        with arrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows):
                columns = (c.cast(arrow.float64()).to_numpy(zero_copy_only=False) for c in batch.columns)
                yield np.column_stack([np.asarray(c, dtype=float) for c in columns])

    return list(schema.names), chunks()


# ---- writing -------------------------------------------------------------------------------------------------------


def write_table(path: str | Path, columns: Mapping[str, Sequence[str]]) -> Writer:
    """A writer of arrays whose columns have these names. Raises InvalidInput, FileError where it cannot be written."""
    suffix = table_suffix(path, "output file")
    writers: dict[str, Callable[..., Writer]] = {".csv": _CsvWriter, ".npz": _NpzWriter, ".parquet": _ParquetWriter}
    try:
        return writers[suffix](Path(path), columns)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error


class Writer(ABC):
    """Takes chunks {array: (n, m)}; the file is there, whole, after `close`, and as it was after `drop`.

    Kinds of files say how to begin, write a chunk, end, and how to give up without an end.
    """

    def __init__(self, path: Path, columns: Mapping[str, Sequence[str]]):
        self.path, self.columns = path, columns
        self.new = Replacement(path)
        self.begin()

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def write(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    def discard(self) -> None:
        self.end()

    def close(self) -> None:
        """The file is put into its place. Raises FileError."""
        try:
            self.end()
            self.new.put()
        except OSError as error:
            self.new.drop()
            raise FileError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def drop(self) -> None:
        """What was written is given up."""
        self.discard()
        self.new.drop()


class _CsvWriter(Writer):
    def begin(self) -> None:
        self.file = self.new.temporary.open("w", encoding="utf-8", newline="")
        csv.writer(self.file, lineterminator="\n").writerow([c for names in self.columns.values() for c in names])

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        x = np.hstack([arrays[name].reshape(-1, len(self.columns[name])) for name in self.columns])
        self.file.writelines(",".join(map(repr, row)) + "\n" for row in x.tolist())

    def end(self) -> None:
        self.file.close()


class _NpzWriter(Writer):
    """Arrays are gathered in files of their own, since an archive takes one after the other."""

    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=self.path.parent)
        self.parts = {name: (Path(self.folder.name) / str(k)).open("w+b") for k, name in enumerate(self.columns)}
        self.rows = 0

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, file in self.parts.items():
            file.write(np.ascontiguousarray(arrays[name], dtype=float).tobytes())
        self.rows += len(arrays[next(iter(self.parts))])

    def end(self) -> None:
        with self.folder, zipfile.ZipFile(self.new.temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, file in self.parts.items():
                with file, archive.open(f"{name}.npy", "w", force_zip64=True) as target:
                    width = len(self.columns[name])
                    shape = (self.rows,) if width == 1 else (self.rows, width)
                    head = {"descr": "<f8", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(target, head)
                    file.seek(0)
                    shutil.copyfileobj(file, target)

    def discard(self) -> None:
        with self.folder:
            for file in self.parts.values():
                file.close()


class _ParquetWriter(Writer):
    def begin(self) -> None:
        self.arrow = _pyarrow(self.path)
        names = [c for names in self.columns.values() for c in names]
        self.schema = self.arrow.schema([(name, self.arrow.float64()) for name in names])
        self.file = self.arrow.parquet.ParquetWriter(self.new.temporary, self.schema)

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        x = np.hstack([arrays[name].reshape(-1, len(self.columns[name])) for name in self.columns])
        self.file.write_table(self.arrow.Table.from_arrays([self.arrow.array(c) for c in x.T], schema=self.schema))

    def end(self) -> None:
        self.file.close()
