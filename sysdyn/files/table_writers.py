"""Writers of numeric tables: .csv, .npz, .parquet and .h5 files, written in chunks; `tables` reads them.

Memory does not grow with the number of rows. The file is replaced when it is complete.
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
    """Open a writer for the arrays `columns` {array: column names}. Raises InvalidInput, FileError."""
    return WRITERS[table_suffix(path, "output file", tuple(WRITERS))](Path(path), columns)


class Writer(ABC):
    """Base class of table writers. `write` appends a chunk; `close` replaces the file.

    After an error or `abort`, the old file stays. Subclasses implement `begin`, `append` and `end`, and register open
    resources in `resources`. Methods raise FileError.
    """

    def __init__(self, path: Path, columns: Mapping[str, Sequence[str]]):
        self.path, self.columns = path, columns
        self.file, self.resources = AtomicFile(path), ExitStack()
        with self._file_errors():
            self.begin()

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
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
        """Finish the file after the last chunk."""

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Append a chunk {array: (n, m)}."""
        with self._file_errors():
            self.append({name: arrays[name].reshape(-1, len(self.columns[name])) for name in self.columns})

    def close(self) -> None:
        """Complete the file and replace the old one."""
        with self._file_errors():
            self.end()
            self.resources.close()
            self.file.commit()

    def abort(self) -> None:
        """Discard the new file; no effect after `close`."""
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
    """Buffers each array in a temporary file, since a zip archive is written one member after another."""

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
    """A file that stores its first error instead of raising it, since HDF5 aborts the process on write errors."""

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


# {suffix: writer class}
WRITERS: dict[str, type[Writer]] = {
    ".csv": _CsvWriter, ".npz": _NpzWriter, ".parquet": _ParquetWriter, ".h5": _Hdf5Writer, ".hdf5": _Hdf5Writer,
}  # fmt: skip
