"""Tables of numbers written in chunks to .csv, .npz, .parquet and .h5 files, which are whole or as they were.

Memory does not grow with the rows. The files are those that `tables` reads.
"""

from __future__ import annotations

import csv
import importlib
import io
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.errors import FileError
from sysdyn.files.atomic import Replacement
from sysdyn.files.tables import ROWS, package, table_suffix


def write_table(path: str | Path, columns: Mapping[str, Sequence[str]]) -> Writer:
    """A writer of arrays with columns of these names. Raises InvalidInput, FileError if it cannot be written."""
    return WRITERS[table_suffix(path, "output file", tuple(WRITERS))](Path(path), columns)


class Writer(ABC):
    """Takes chunks {array: (n, m)}; the file is there, whole, after `close`, and as it was after `drop` or an error.

    Kinds of files say how to begin, append a chunk, end, and give up without an end. Raises FileError.
    """

    def __init__(self, path: Path, columns: Mapping[str, Sequence[str]]):
        self.path, self.columns = path, columns
        self.new, self.over = Replacement(path), False
        with self._writing():
            self.begin()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.drop()
            if isinstance(error, (OSError, RuntimeError)):
                raise FileError(f"{self.path} cannot be written: {getattr(error, 'strerror', '') or error}") from error
            raise

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def append(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        with self._writing():
            self.append({name: arrays[name].reshape(-1, len(self.columns[name])) for name in self.columns})

    def close(self) -> None:
        """Put the file into its place."""
        with self._writing():
            self.end()
            self.new.put()
        self.over = True

    def discard(self) -> None:
        self.end()

    def drop(self) -> None:
        """Give up everything that was written."""
        if not self.over:
            with suppress(Exception):  # a file that cannot be ended was not begun, or does not fit on the disk
                self.discard()
            self.new.drop()
        self.over = True


class _CsvWriter(Writer):
    def begin(self) -> None:
        self.file = self.new.temporary.open("w", encoding="utf-8", newline="")
        csv.writer(self.file, lineterminator="\n").writerow([c for names in self.columns.values() for c in names])

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.file.writelines(",".join(map(repr, row)) + "\n" for row in np.hstack(list(arrays.values())).tolist())

    def end(self) -> None:
        self.file.close()


class _NpzWriter(Writer):
    """Arrays are gathered in files of their own, since an archive takes one after the other."""

    def begin(self) -> None:
        self.parts = {name: tempfile.TemporaryFile(dir=self.path.parent) for name in self.columns}
        self.rows = 0

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, file in self.parts.items():
            file.write(np.ascontiguousarray(arrays[name], dtype=float).tobytes())
        self.rows += len(arrays[next(iter(self.parts))])

    def end(self) -> None:
        with zipfile.ZipFile(self.new.temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, file in self.parts.items():
                with file, archive.open(f"{name}.npy", "w", force_zip64=True) as target:
                    head = {"descr": "<f8", "fortran_order": False, "shape": _shape(self.rows, self.columns[name])}
                    np.lib.format.write_array_header_1_0(target, head)
                    file.seek(0)
                    shutil.copyfileobj(file, target)

    def discard(self) -> None:
        for file in self.parts.values():
            file.close()


def _shape(rows: int, columns: Sequence[str]) -> tuple[int, ...]:
    return (rows,) if len(columns) == 1 else (rows, len(columns))


class _Disk(io.FileIO):
    """A file that keeps its first error, since HDF5 ends the process if writing fails."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = self.error or error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return 0


class _Hdf5Writer(Writer):
    def begin(self) -> None:
        self.disk = _Disk(self.new.temporary, "w+")
        self.file = package(self.path, ".h5").File(self.disk, "w")
        for name, columns in self.columns.items():
            shape = _shape(0, columns)
            self.file.create_dataset(name, shape, "<f8", maxshape=(None, *shape[1:]), chunks=(ROWS, *shape[1:]))

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, x in arrays.items():
            target = self.file[name]
            n = len(target)
            target.resize(n + len(x), axis=0)
            target[n:] = x.reshape(-1, *target.shape[1:])
        self.check()

    def end(self) -> None:
        self.file.close()
        self.check()
        self.disk.close()

    def check(self) -> None:
        if self.disk.error is not None:
            raise self.disk.error


class _ParquetWriter(Writer):
    def begin(self) -> None:
        self.arrow = importlib.import_module("pyarrow")
        names = [c for names in self.columns.values() for c in names]
        self.schema = self.arrow.schema([(name, self.arrow.float64()) for name in names])
        self.file = package(self.path, ".parquet").ParquetWriter(self.new.temporary, self.schema)

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        x = np.hstack(list(arrays.values()))
        self.file.write_table(self.arrow.Table.from_arrays([self.arrow.array(c) for c in x.T], schema=self.schema))

    def end(self) -> None:
        self.file.close()


# Writers of tables, by kind of file.
WRITERS: dict[str, type[Writer]] = {
    ".csv": _CsvWriter, ".npz": _NpzWriter, ".parquet": _ParquetWriter, ".h5": _Hdf5Writer, ".hdf5": _Hdf5Writer,
}  # fmt: skip
