"""Types of columns: numbers alone are quantities, times are those of the column of time, booleans those of switches."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.sensor_log import Log
from sysdyn.data.states import read_states
from sysdyn.errors import SysdynError

PROBLEM = sd.forward_dynamics(sd.chain(2)) + sd.Switchable(sd.Accelerometer("body1", ["a_x"], name="imu", noise=0.1))
COLUMNS = {
    "t": "t", "q": "q.joint1", "qd": "qd.joint0", "tau": "tau:joint1", "imu": "imu: a_x", "switch": "active: imu",
}  # fmt: skip
N = 4
KINDS = {
    "dates": np.arange(N).astype("datetime64[D]").astype("datetime64[ns]"),
    "spans of time": np.arange(N).astype("timedelta64[s]").astype("timedelta64[ns]"),
    "booleans": np.arange(N) % 2 == 0,
    "complex numbers": np.arange(N) * 1j,
    "texts": np.array(["one", "two", "three", "four"]),
}
FORMATS = ("frame", ".csv", ".npz", ".parquet", ".h5")
ALLOWED = {("t", "dates"), ("t", "spans of time"), ("switch", "booleans")}
# A .csv file has texts alone, and HDF5 no times.
TEXTS, STORED = ("dates", "texts"), ("booleans", "complex numbers", "texts")


def columns() -> dict[str, np.ndarray]:
    q, qd, tau = PROBLEM.model.random_state(seed=1, batch=N)
    found = {"t": np.arange(N) * 0.1}
    for name, x in (("q.", q), ("qd.", qd), ("tau:", tau)):
        found |= {f"{name}joint{k}": x[:, k] for k in range(2)}
    return {**found, "imu: a_x": np.ones(N), "active: imu": np.arange(N) % 2.0}


def source(kind: str, found: dict[str, np.ndarray], folder):
    if kind in ("frame", ".parquet"):
        frame = pytest.importorskip("pandas").DataFrame(found)
        if kind == "frame":
            return frame
        pytest.importorskip("pyarrow")
        frame.to_parquet(folder / "log.parquet")
    elif kind == ".csv":
        with open(folder / "log.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(found)
            writer.writerows(zip(*(x.astype(str) for x in found.values()), strict=True))
    elif kind == ".npz":
        np.savez(folder / "log.npz", **found)
    else:
        with pytest.importorskip("h5py").File(folder / "log.h5", "w") as file:
            for name, x in found.items():
                file[name] = x.astype("S") if x.dtype.kind == "U" else x
    return folder / f"log{kind}"


# Types that a format can hold.
STORABLE = [
    (kind, form) for form in FORMATS for kind in {".csv": TEXTS, ".h5": STORED}.get(form, KINDS)
    if (form, kind) != (".parquet", "complex numbers")
]  # fmt: skip


@pytest.mark.parametrize(("kind", "form"), STORABLE)
@pytest.mark.parametrize("role", COLUMNS)
def test_columns_of_other_types_are_refused(role, kind, form, tmp_path):
    found = columns()
    assert len(list(Log(source(form, found, tmp_path), PROBLEM))) == 1
    changed = source(form, {**found, COLUMNS[role]: KINDS[kind]}, tmp_path)
    if (role, kind) in ALLOWED:
        (chunk,) = Log(changed, PROBLEM)
        on = chunk.active["imu"][:, 0].tolist()
        assert np.isfinite(chunk.t).all() and on == ([True, False] if role == "switch" else [False, True]) * 2
        return
    with pytest.raises(SysdynError) as caught:
        list(Log(changed, PROBLEM))
    assert COLUMNS[role] in str(caught.value) or f"array {COLUMNS[role]!r}" in str(caught.value)
    if role != "t":  # which states do without
        with pytest.raises(SysdynError):
            read_states(changed, PROBLEM)
