"""Runs that are written while a log is read: the same numbers as in memory, and what an interruption leaves."""

from __future__ import annotations

import csv
import functools
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy
from sources import changed_copy

import sysdyn as sd
from sysdyn.data.sensor_log import Log
from sysdyn.errors import FileError, InvalidInput, LogWarning
from sysdyn.estimation import process_noise
from sysdyn.estimation.measurement_data import Rolling, Survey, read, surveyed
from sysdyn.files.sources import PACKAGE, sources_digest
from sysdyn.files.table_writers import WRITERS
from sysdyn.offline import cache_key as key

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


def read_back(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


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
    found, arrays = read_back(stored.path), run.arrays()
    assert set(found) == set(arrays)
    for name, x in arrays.items():
        np.testing.assert_array_equal(found[name].reshape(x.shape), x, err_msg=name)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["run.events.csv", "run.npz"]
    assert len(told) > 5 and told == sorted(told) and told[-1] < 1.0
    assert (len(stored), stored.resumed, stored.order, stored.motion) == (ROWS, 0, run.order, run.motion)
    assert stored.chi2() == run.chi2() and stored.redundancy == run.redundancy
    assert stored.chi2_band() == run.chi2_band() and stored.untold == run.untold and stored.missing == run.missing
    for mine, theirs in zip(stored.tables(), run.tables(), strict=True):  # but for medians of σ
        assert mine.title == theirs.title
        assert [(*x[:3], *x[4:]) for x in mine.rows] == [(*x[:3], *x[4:]) for x in theirs.rows]
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
    assert stored.path.stat().st_size > 0 and not stored.path.with_name(f"run{suffix}.parts").exists()


def test_a_survey_in_turn_is_that_of_all_rows():
    """Chunks of a few rows, and stretches shorter than the log."""
    problem, log = arm(5 * process_noise.STRETCH)
    readings = read(problem, log)
    mine = surveyed(problem, Log(log, problem, states="unknown", rows=37))
    other = Survey.of(readings)
    assert (mine.rows, mine.begin, mine.end, mine.gap) == (other.rows, other.begin, other.end, other.gap)
    for a, b in ((mine.first, other.first), (mine.sample, other.sample)):
        np.testing.assert_array_equal(a.t, b.t)
        for x, y in ((a.y, b.y), (a.active, b.active), (a.known, b.known)):
            assert x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x)
    assert len(mine.sample.t) == 4 * process_noise.STRETCH
    assert all(np.array_equal(x, other.measured[name]) for name, x in mine.measured.items())
    rolling = Rolling(problem, Log(log, problem, states="unknown", rows=37))
    for at, end in ((0, 50), (30, 80), (200, 201), (239, ROWS)):
        part = rolling.part(at, end)
        np.testing.assert_array_equal(part.t, readings.t[at:end])
        for name, x in part.active.items():
            np.testing.assert_array_equal(x, readings.active[name][at:end])


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
    with pytest.raises(Interrupted):
        sd.smooth(arm()[0], log, ["tau"], out=tmp_path / "run.npz", progress=interrupted("121"), **OPTIONS)
    stored = sd.smooth(arm()[0], log, ["tau"], out=tmp_path / "run.npz", **OPTIONS)
    assert stored.resumed == 120 and most <= 3
    found, arrays = read_back(stored.path), whole().arrays()
    for name, x in arrays.items():
        np.testing.assert_array_equal(found[name].reshape(x.shape), x, err_msg=name)


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
    sd.smooth(*arm(), ["tau"], out=tmp_path / "run.npz", **options)
    found = read_back(tmp_path / "run.npz")
    for name, x in whole().arrays().items():
        np.testing.assert_array_equal(found[name].reshape(x.shape), x, err_msg=name)


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_a_second_call_goes_on_where_the_first_ended(tmp_path):
    out = tmp_path / "run.npz"
    out.write_bytes(b"mine")
    with pytest.raises(Interrupted):
        sd.smooth(*arm(), ["tau"], out=out, progress=interrupted("121"), **OPTIONS)
    assert out.read_bytes() == b"mine" and len(list((tmp_path / "run.npz.parts").glob("rows_*"))) == 2
    seen = []
    stored = sd.smooth(*arm(), ["tau"], out=out, progress=lambda what, share: seen.append(what), **OPTIONS)
    assert stored.resumed == 120 and [x for x in seen if "smoothing" in x] == [
        "smoothing rows 121 to 180 of 240", "smoothing rows 181 to 240 of 240",
    ]  # fmt: skip
    found, arrays = read_back(out), whole().arrays()
    for name, x in arrays.items():
        np.testing.assert_array_equal(found[name].reshape(x.shape), x, err_msg=name)
    assert stored.chi2() == whole().chi2() and stored.redundancy == whole().redundancy
    assert not (tmp_path / "run.npz.parts").exists()


def test_parts_of_another_run_are_named(tmp_path):
    problem, log = arm()
    out = tmp_path / "run.csv"
    with pytest.raises(Interrupted):
        sd.smooth(problem, log, ["tau"], out=out, progress=interrupted("61"), **OPTIONS)
    before = sorted((tmp_path / "run.csv.parts").iterdir())
    noisier = sd.Problem(problem.model, [
        sd.JointPosition("all", noise=2e-3, name="encoders"), *problem.measurements[1:]
    ])  # fmt: skip
    calls = {
        "another log": (problem, {**log, "t": 2.0 * log["t"]}, ["tau"], OPTIONS),
        "another problem": (noisier, log, ["tau"], OPTIONS),
        "another list of outputs": (problem, log, ["tau", "fx"], OPTIONS),
        "another choice of options": (problem, log, ["tau"], {**OPTIONS, "robust": False}),
    }
    for what, (p, x, outputs, options) in calls.items():
        with pytest.raises(FileError, match=f"run.csv.parts holds .* {what}. Delete the folder to begin anew"):
            sd.smooth(p, x, outputs, out=out, **options)
    assert sorted((tmp_path / "run.csv.parts").iterdir()) == before and not out.exists()
    (tmp_path / "run.csv.parts" / "run.json").write_text("[]")
    with pytest.raises(FileError, match="holds no parts of a run"):
        sd.smooth(problem, log, ["tau"], out=out, **OPTIONS)


@pytest.mark.parametrize("changed", [
    "program/graph.py", "sparse/lu.py", "codegen/llvm/compile.py", "recursions/generate.py", "reference/rnea.py",
    "problem.py", "passes.py", "online/solver.py", "files/tables.py", "estimation/kalman_smoother.py",
    "numpy", "scipy", None,
])  # fmt: skip
def test_parts_of_another_version_are_named(changed, tmp_path, monkeypatch):
    out = tmp_path / "run.csv"
    with pytest.raises(Interrupted):
        sd.smooth(*arm(), ["tau"], out=out, progress=interrupted("61"), **OPTIONS)
    if changed in ("numpy", "scipy"):
        monkeypatch.setattr({"numpy": np, "scipy": scipy}[changed], "__version__", "9.9.9")
    else:
        parts = [x.name for x in PACKAGE.iterdir() if x.is_dir() or x.suffix == ".py"]
        package = changed_copy(tmp_path / "sysdyn", parts, changed)
        monkeypatch.setattr(key, "sources_digest", partial(sources_digest, package=package))
    if changed is None:
        assert sd.smooth(*arm(), ["tau"], out=out, **OPTIONS).resumed == WINDOW
        return
    with pytest.raises(FileError, match="another version of sysdyn"):
        sd.smooth(*arm(), ["tau"], out=out, **OPTIONS)


def test_functions_without_a_description_leave_nothing(tmp_path):
    problem, log = arm()
    own = problem + sd.StateFunction("sum", lambda ctx: [ctx.q[0] + ctx.q[1]], noise=0.1)
    with pytest.raises(Interrupted):
        sd.smooth(own, {**log, "sum": np.zeros((ROWS, 1))}, out=tmp_path / "run.csv", progress=interrupted("61"),
                  **OPTIONS)  # fmt: skip
    assert not list(tmp_path.iterdir())


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
