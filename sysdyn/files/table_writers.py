"""Tables of numbers written in chunks to .csv, .npz, .parquet and .h5 files, which `tables` reads.

Memory does not grow with the number of rows. A file is replaced once it is complete.
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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.errors import FileError
from sysdyn.files.atomic import AtomicFile
from sysdyn.files.tables import ROWS, package, table_suffix


def write_table(path: str | Path, columns: Mapping[str, Sequence[str]]) -> Writer:
    """A writer of arrays {name: columns}. Raises InvalidInput, FileError if the file cannot be written."""
    return WRITERS[table_suffix(path, "output file", tuple(WRITERS))](Path(path), columns)


class Writer(ABC):
    """Takes chunks {array: (n, m)}; `close` replaces the file, an error or `abort` leaves it as it was.

    Kinds of files implement `begin`, `append` and `end`, and register what has to be closed in `resources`. Raises
    FileError.
    """

    def __init__(self, path: Path, columns: Mapping[str, Sequence[str]]):
        self.path, self.columns = path, columns
        self.file, self.resources = AtomicFile(path), ExitStack()
        with self._writing():
            self.begin()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.abort()
            if isinstance(error, (OSError, RuntimeError)):
                raise FileError(f"{self.path} cannot be written: {getattr(error, 'strerror', '') or error}") from error
            raise

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def append(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def end(self) -> None:  # noqa: B027
        """Write what comes after the last chunk."""

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        with self._writing():
            self.append({name: arrays[name].reshape(-1, len(self.columns[name])) for name in self.columns})

    def close(self) -> None:
        with self._writing():
            self.end()
            self.resources.close()
            self.file.commit()

    def abort(self) -> None:
        """Give up everything that was written; no effect after `close`."""
        with suppress(Exception):  # a full disk
            self.resources.close()
        self.file.abort()


class _CsvWriter(Writer):
    def begin(self) -> None:
        self.text = self.resources.enter_context(self.file.temporary.open("w", encoding="utf-8", newline=""))
        csv.writer(self.text, lineterminator="\n").writerow([c for names in self.columns.values() for c in names])

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.text.writelines(",".join(map(repr, row)) + "\n" for row in np.hstack(list(arrays.values())).tolist())


class _NpzWriter(Writer):
    """Collects each array in a temporary file, since an archive takes one after the other."""

    def begin(self) -> None:
        self.rows, self.parts = 0, {}
        for name in self.columns:
            self.parts[name] = self.resources.enter_context(tempfile.TemporaryFile(dir=self.path.parent))

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, part in self.parts.items():
            part.write(np.ascontiguousarray(arrays[name], dtype=float).tobytes())
        self.rows += len(arrays[next(iter(self.parts))])

    def end(self) -> None:
        with zipfile.ZipFile(self.file.temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, part in self.parts.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as target:
                    head = {"descr": "<f8", "fortran_order": False, "shape": _shape(self.rows, self.columns[name])}
                    np.lib.format.write_array_header_1_0(target, head)
                    part.seek(0)
                    shutil.copyfileobj(part, target)


def _shape(rows: int, columns: Sequence[str]) -> tuple[int, ...]:
    return (rows,) if len(columns) == 1 else (rows, len(columns))


class _Disk(io.FileIO):
    """A file that records its first error instead of raising, since HDF5 ends the process if writing fails."""

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
        self.disk = self.resources.enter_context(_Disk(self.file.temporary, "w+"))
        self.groups = self.resources.enter_context(package(self.path, ".h5").File(self.disk, "w"))
        for name, columns in self.columns.items():
            shape = _shape(0, columns)
            self.groups.create_dataset(name, shape, "<f8", maxshape=(None, *shape[1:]), chunks=(ROWS, *shape[1:]))

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, x in arrays.items():
            target = self.groups[name]
            n = len(target)
            target.resize(n + len(x), axis=0)
            target[n:] = x.reshape(-1, *target.shape[1:])
        self._check()

    def end(self) -> None:
        self.groups.close()
        self._check()

    def _check(self) -> None:
        if self.disk.error is not None:
            raise self.disk.error


class _ParquetWriter(Writer):
    def begin(self) -> None:
        self.arrow = importlib.import_module("pyarrow")
        names = [c for columns in self.columns.values() for c in columns]
        self.schema = self.arrow.schema([(name, self.arrow.float64()) for name in names])
        writer = package(self.path, ".parquet").ParquetWriter(self.file.temporary, self.schema)
        self.parquet = self.resources.enter_context(writer)

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        x = np.hstack(list(arrays.values()))
        self.parquet.write_table(self.arrow.Table.from_arrays([self.arrow.array(c) for c in x.T], schema=self.schema))


# Writers of tables, by suffix.
WRITERS: dict[str, type[Writer]] = {
    ".csv": _CsvWriter, ".npz": _NpzWriter, ".parquet": _ParquetWriter, ".h5": _Hdf5Writer, ".hdf5": _Hdf5Writer,
}  # fmt: skip
