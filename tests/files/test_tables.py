"""Tables: streams of columns, in every format."""

from __future__ import annotations

import numpy as np
import pytest

from sysdyn.files.table_writers import write_table
from sysdyn.files.tables import read_table
from sysdyn.program.arrays import NUMBERS

FORMATS = {".csv": "", ".npz": "", ".parquet": "pyarrow", ".h5": "h5py"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_tables_keep_every_bit(tmp_path, suffix):
    if FORMATS[suffix]:
        pytest.importorskip(FORMATS[suffix])
    columns = {"t": ["t"], "x": ["x 0", "x,1", 'x"2']}
    rng = np.random.default_rng(0)
    parts = [{"t": rng.standard_normal((n, 1)), "x": rng.standard_normal((n, 3)) * 1e-200} for n in (3, 1, 0, 8)]
    parts[1]["x"][0, 1] = np.nan
    path = tmp_path / f"table{suffix}"
    writer = write_table(path, columns)
    for part in parts:
        writer.write(part)
    assert not path.exists()  # whole or not at all
    writer.close()
    table = read_table(path, lambda name: [columns[name]], rows=5)
    found = np.vstack(list(table.chunks(dict.fromkeys(range(4), NUMBERS))))
    np.testing.assert_array_equal(found, np.vstack([np.hstack([p["t"], p["x"]]) for p in parts]))
    some = np.vstack(list(table.chunks(dict.fromkeys([2, 0], NUMBERS))))
    np.testing.assert_array_equal(some, found[:, [2, 0]])
    assert table.header == ["t", "x 0", "x,1", 'x"2']
