"""Runs that are written while a log is read: the numbers of a run in memory, and interruptions."""

from __future__ import annotations

import csv
import functools
import weakref
from collections.abc import Mapping

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.sensor_log import Log
from sysdyn.errors import FileError, InvalidInput, LogWarning
from sysdyn.estimation import process_noise
from sysdyn.estimation.measurement_data import LogStatistics, SlidingReader, log_parts, read_log
from sysdyn.files.table_writers import WRITERS

ROWS, WINDOW = 240, 60
OUTLIER = 150


@functools.cache
def arm(rows: int = ROWS) -> tuple[sd.Problem, Mapping[str, np.ndarray]]:
    """Two links with encoders and currents that have an offset; one outlier, and a gap."""
    model, rng = sd.chain(2, seed=1), np.random.default_rng(0)
    t = 5e-3 * np.arange(rows)
    q = np.column_stack([np.sin(2.0 * t), np.cos(3.0 * t)])
    encoders = q + rng.normal(0.0, 1e-3, q.shape)
    encoders[OUTLIER, 1] += 0.1
    encoders[7, 0] = np.nan
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="encoders"),
        sd.JointTorque("all", noise=1.0, bias=sd.Constant(2.0), name="currents"),
        sd.Stance("body1", noise=1.0, when="encoders: joint0 > 0.5", name="tip"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    return problem, {"t": t, "encoders": encoders, "currents": rng.normal(0.0, 1.0, q.shape)}


OPTIONS = {"window": WINDOW, "order": 3}


@functools.cache
def whole() -> sd.Run:
    return sd.smooth(*arm(), ["tau"], **OPTIONS)


def assert_same(stored: sd.StoredRun, run: sd.Run) -> None:
    """The file has the arrays of a run in memory."""
    with np.load(stored.path) as file:
        found, arrays = dict(file), run.arrays()
    assert set(found) == set(arrays)
    for name, x in arrays.items():
        np.testing.assert_array_equal(found[name].reshape(x.shape), x, err_msg=name)


class Interrupted(Exception):
    pass


def interrupted(at: str):
    """A progress that ends the call where it begins the rows from `at` on."""

    def progress(what: str, share: float) -> None:
        if what.startswith(f"smoothing rows {at} "):
            raise Interrupted

    return progress


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_a_run_in_memory(tmp_path):
    run, told = whole(), []
    stored = sd.smooth(
        *arm(), ["tau"], out=tmp_path / "run.npz", progress=lambda what, share: told.append(share), **OPTIONS
    )
    assert_same(stored, run)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["run.events.csv", "run.npz"]
    assert len(told) > 5 and told == sorted(told) and told[-1] < 1.0
    assert (len(stored), stored.order, stored.motion) == (ROWS, run.order, run.motion)
    assert stored.chi2() == run.chi2() and stored.redundancy == run.redundancy
    assert (
        stored.chi2_band() == run.chi2_band() and stored.unobserved == run.unobserved and stored.missing == run.missing
    )
    assert stored.tables() == run.tables()
    assert repr(stored).splitlines()[:-1] == repr(run).splitlines() and str(stored.path) in repr(stored)


def test_dropped_readings_are_in_a_file_beside(tmp_path):
    stored = sd.smooth(*arm(), ["tau"], out=tmp_path / "run.csv", **OPTIONS)
    with stored.events.open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(x["row"]) - 1, x["measurement"], x["component"], float(x["size"])) for x in rows] == [
        (e.instant, e.measurement, e.component, e.size) for e in whole().events
    ]
    assert any(x["measurement"] == "encoders" and int(x["row"]) == OUTLIER + 1 for x in rows)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", WRITERS)
def test_kinds_of_files(suffix, tmp_path):
    pytest.importorskip({".parquet": "pyarrow"}.get(suffix, "h5py" if suffix.startswith(".h") else "numpy"))
    stored = sd.smooth(*arm(), ["tau"], out=tmp_path / f"run{suffix}", **OPTIONS)
    assert stored.path.stat().st_size > 0


def test_statistics_of_chunks_are_those_of_all_rows():
    """Chunks of a few rows, and stretches shorter than the log."""
    problem, log = arm(5 * process_noise.SEGMENT_ROWS)
    readings = read_log(problem, log)
    mine = LogStatistics.of(lambda: log_parts(problem, Log(log, problem, states="unknown", rows=37)))
    other = LogStatistics.of(lambda: [readings])
    assert (mine.rows, mine.begin, mine.end, mine.gap) == (other.rows, other.begin, other.end, other.gap)
    for a, b in ((mine.first, other.first), (mine.sample, other.sample)):
        np.testing.assert_array_equal(a.t, b.t)
        for x, y in ((a.y, b.y), (a.active, b.active), (a.known, b.known)):
            assert x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x)
    assert len(mine.sample.t) == 4 * process_noise.SEGMENT_ROWS
    assert all(np.array_equal(x, other.measured[name]) for name, x in mine.measured.items())
    reader = SlidingReader(log_parts(problem, Log(log, problem, states="unknown", rows=37)))
    for at, end in ((0, 50), (30, 80), (200, 201), (239, ROWS)):
        part = reader.rows(at, end)
        np.testing.assert_array_equal(part.t, readings.t[at:end])
        for name, x in part.active.items():
            np.testing.assert_array_equal(x, readings.active[name][at:end])
    with pytest.raises(FileError, match="when it was first read"):
        reader.rows(ROWS, len(readings.t) + 1)


# ---- partitions ------------------------------------------------------------------------------------------------------


def frame():
    """The log as a DataFrame of pandas."""
    pandas = pytest.importorskip("pandas")
    problem, log = arm()
    columns = {
        f"{m.name}: {x}": log[m.name][:, k]
        for m in problem.measurements if m.name in log for k, x in enumerate(m.components(problem.model))
    }  # fmt: skip
    return pandas.DataFrame({"t": log["t"], **columns})


@pytest.mark.slow
def test_partitions_of_dask_are_computed_in_turn_and_give_the_same_run(tmp_path, dask_frames):
    """Each is gone before the next but one comes, also as windows do not end where partitions do."""
    delayed = pytest.importorskip("dask").delayed
    rows, alive, most, size = frame(), list[weakref.ref](), 0, 17

    def partition(at: int):
        nonlocal most, alive
        found = rows.iloc[at : at + size].copy()
        alive = [*(x for x in alive if x() is not None), weakref.ref(found)]
        most = max(most, len(alive))
        return found

    parts = [delayed(partition, pure=False)(at) for at in range(0, ROWS, size)]
    log = dask_frames.from_delayed(parts, meta=rows.iloc[:0], verify_meta=False)
    stored = sd.smooth(arm()[0], log, ["tau"], out=tmp_path / "run.npz", **OPTIONS)
    assert most <= 3
    assert_same(stored, whole())


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of dask, by pandas
def test_a_stored_run_is_a_dataframe_of_dask(tmp_path, dask_frames):
    pytest.importorskip("pyarrow")
    log = dask_frames.from_pandas(frame(), npartitions=5)
    stored = sd.smooth(arm()[0], log, ["tau"], out=tmp_path / "run.parquet", **OPTIONS)
    found = dask_frames.read_parquet(stored.path, split_row_groups=True)
    assert found.npartitions == ROWS // WINDOW and len(found) == ROWS
    np.testing.assert_array_equal(found["tau:joint1"].compute(), whole()["tau"][:, 1])


def test_a_list_is_a_log_of_its_parts():
    rows, (problem, log) = frame(), arm()
    parts = [rows.iloc[:100], {name: x[100:] for name, x in log.items()}]
    np.testing.assert_array_equal(sd.smooth(problem, parts, ["tau"], **OPTIONS).q, whole().q)
    with pytest.raises(FileError, match="part 2 of the log row 1: time goes backwards"):
        list(Log([rows.iloc[:100], rows.iloc[50:]], problem, states="unknown"))
    with pytest.raises(FileError, match="has no parts"):
        Log([], problem, states="unknown")


def test_options_may_be_scalars_of_numpy(tmp_path):
    options = {"window": np.int64(WINDOW), "order": np.int64(3), "robust": np.True_, "coupled": np.False_}
    assert_same(sd.smooth(*arm(), ["tau"], out=tmp_path / "run.npz", **options), whole())


# ---- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, b"mine"])
def test_an_interrupted_call_leaves_the_files_as_they_were(before, tmp_path):
    out = tmp_path / "run.npz"
    if before is not None:
        out.write_bytes(before)
        out.with_suffix(".events.csv").write_bytes(before)
    files = {x: x.read_bytes() for x in tmp_path.iterdir()}
    with pytest.raises(Interrupted):
        sd.smooth(*arm(), ["tau"], out=out, progress=interrupted("121"), **OPTIONS)
    assert {x: x.read_bytes() for x in tmp_path.iterdir()} == files


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [("run.txt", InvalidInput, "output file"), ("nowhere/run.csv", FileError, "there is no folder")],
)
def test_files_that_cannot_be_written(out, error, words, tmp_path):
    with pytest.raises(error, match=words):
        sd.smooth(*arm(), out=tmp_path / out)
    assert not list(tmp_path.iterdir())


def test_a_row_that_is_wrong_ends_the_call_before_anything_is_written(tmp_path):
    problem, log = arm()
    with pytest.raises(FileError, match="row 201: time goes backwards"):
        sd.smooth(problem, {**log, "t": np.where(np.arange(ROWS) == 200, 0.0, log["t"])}, out=tmp_path / "run.csv")
    assert not list(tmp_path.iterdir())


def test_a_pause_is_told_in_turn_as_well(tmp_path):
    problem, log = arm()
    with pytest.warns(LogWarning, match="no readings from 0.495 to 100.5 s"):
        sd.smooth(problem, {**log, "t": log["t"] + 100.0 * (np.arange(ROWS) >= 100)}, out=tmp_path / "run.csv",
                  **OPTIONS)  # fmt: skip
