"""Logs: written and read in every format, with gaps, streamed, and estimated as one call does."""

from __future__ import annotations

import csv
import functools
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from estimates import FAST
from robots import floating_tree
from typer.testing import CliRunner

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.app.jobs import Job
from sysdyn.app.problem_files import load_job
from sysdyn.data.columns import LogColumns
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Log
from sysdyn.data.states import read_states
from sysdyn.errors import BackendUnavailable, FileError, InvalidInput, LogWarning, SingularState, UnknownName

N = 23
FORMATS = [".csv", ".npz", ".parquet"]
TASK = """title = "A chain with sensors"
robot = "chain:3"
outputs = ["tau", "qdd"]

[[measurement]]
type = "ExternalWrench"
name = "no contact"
value = 0

[[measurement]]
type = "JointAcceleration"
noise = 0.3
name = "encoders"

[[measurement]]
type = "JointTorque"
noise = 20
prior = true
mean = [1.0, 2.0, 3.0]
name = "expected"

[[measurement]]
type = "Accelerometer"
frame = "body2"
noise = [0.1, 0.2, 0.3]
switchable = true
name = "imu"

[[measurement]]
type = "ForceTorqueSensor"
joint = "joint0"
components = ["nz"]
noise = 0.05
switchable = true
name = "base"
"""


@functools.cache
def task() -> Job:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.toml"
        path.write_text(TASK, encoding="utf-8")
        return load_job(path)


@functools.cache
def solver() -> sd.Solver:
    return sd.compile(task().problem, task().ordering, task().requested)


@functools.cache
def recorded() -> dict[str, np.ndarray]:
    """{column group: (N, m)} of a random motion, times with equal ones."""
    model = task().problem.model
    q, qd, qdd = model.random_state(seed=3, batch=N)
    y = sd.predict(task().problem, q, qd, qdd, seed=5)
    measured = {name: y[name] for name in ("encoders", "imu", "base")}
    t = np.repeat(np.arange((N + 1) // 2), 2)[:N, None] * 0.01
    return {"t": t, "q": q, "qd": qd, **measured}


def expected(keep=slice(None), active=None) -> sd.Solution:
    x = {name: part[keep] for name, part in recorded().items()}
    y = {**task().values, **{name: x[name] for name in ("encoders", "imu", "base")}}
    return solver()(x["q"], x["qd"], y=y, active=active)


def header(group: str) -> list[str]:
    columns = LogColumns(task().problem, task().values).columns
    return [c.name for c in columns if c.group in (group, f"y:{group}")]


def write_log(path: Path, arrays=None) -> Path:
    """The log in the format of the suffix, with columns in another order than the problem's."""
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
    arrays = recorded() if arrays is None else arrays
    if path.suffix == ".npz":
        np.savez(path, **{name: x[:, 0] if x.shape[1] == 1 else x for name, x in reversed(arrays.items())})
        return path
    names = [c for name in reversed(arrays) for c in header(name)]
    x = np.hstack([part for _, part in reversed(arrays.items())])
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, x.T, strict=True))), path)
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(["" if np.isnan(value) else repr(value) for value in row] for row in x.tolist())
    return path


def read_back(path: Path) -> dict[str, np.ndarray]:
    """{column: (N,)} of a file of estimates."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        joints = task().problem.model.joint_names
        return {
            c: x for name, array in arrays.items()
            for c, x in (
                [(name, array)] if array.ndim == 1 else zip([f"{name}:{j}" for j in joints], array.T, strict=True)
            )
        }  # fmt: skip
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return {name: c.to_numpy() for name, c in zip(table.column_names, table.columns, strict=True)}
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return dict(zip(names, np.array(rows, dtype=float).T, strict=True))


def run(path: Path, out=None, missing="raise", rows=4096, seen=None):
    return estimate_log(Log(path, solver(), task().values, missing, rows=rows), solver(), out, seen)


def assert_estimates(found: dict[str, np.ndarray], solution: sd.Solution, t: np.ndarray) -> None:
    """Estimates and standard deviations are those of one call, to the last bit but those of another batch size."""
    np.testing.assert_array_equal(found["t"], t)
    model = task().problem.model
    names = ["t", *(f"q:{joint}" for joint in model.joint_names)]
    states = set(map(tuple, np.hstack([recorded()["t"], recorded()["q"]]).tolist()))
    assert states.issuperset(map(tuple, np.transpose([found[x] for x in names]).tolist()))
    for quantity in ("tau", "qdd"):
        for joint in model.joint_names:
            names += [f"{quantity}:{joint}", f"std:{quantity}:{joint}"]
            np.testing.assert_allclose(found[names[-2]], solution[quantity, joint], rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(found[names[-1]], solution.std(quantity, joint), rtol=1e-10)
    assert set(found) == set(names)


# ---- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize("read", FORMATS)
def test_every_format_is_read_and_written(tmp_path, read, written):
    out = tmp_path / f"out{written}"
    if written == ".parquet":
        pytest.importorskip("pyarrow")
    summary = run(write_log(tmp_path / f"log{read}"), out, rows=7)
    assert (summary.states, summary.unsolved, summary.skipped, summary.missing) == (N, 0, 0, 0)
    assert_estimates(read_back(out), expected(), recorded()["t"][:, 0])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"log{read}", out.name])


@pytest.mark.parametrize("rows", [1, 2, 5, N - 1, N, 4 * N])
def test_chunks_of_any_size_give_the_same(tmp_path, rows):
    found = list(Log(write_log(tmp_path / "log.csv"), solver(), task().values, rows=rows).estimates(solver()))
    assert [len(x.t) for x in found] == [min(rows, N - k) for k in range(0, N, rows)]
    whole = expected()
    for quantity in ("tau", "qdd"):
        # kernels of one state and of many fuse other products with sums
        values = np.vstack([x.values[quantity] for x in found])
        np.testing.assert_allclose(values, whole[quantity], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(np.vstack([x.std[quantity] for x in found]), whole.std(quantity), rtol=1e-14)


def test_parquet_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BackendUnavailable, match="pip install pyarrow"):
        Log(tmp_path / "log.parquet", solver())


def test_headers_may_say_it_otherwise(tmp_path):
    """Units in brackets, names as in results, a byte order mark, spaces."""
    path = write_log(tmp_path / "log.csv")
    text = path.read_text(encoding="utf-8")
    first, rest = text.split("\n", 1)
    for old, new in {
        "base: nz": "base: nz [Nm]", "imu: a_x": "imu: a_x [m/s^2]", "q.joint1": " q:joint1 [rad]",
        "encoders: qdd(joint2)": "qdd:joint2 [rad/s²]", "qd.joint0": "qd.joint0 [rad/s]",
    }.items():  # fmt: skip
        assert old in first.strip().split(",")
        first = ",".join(new if name == old else name for name in first.strip().split(","))
    path.write_text("\ufeff" + first + "\n" + rest + "\n\n", encoding="utf-8")
    run(path, tmp_path / "out.csv")
    assert_estimates(read_back(tmp_path / "out.csv"), expected(), recorded()["t"][:, 0])


# ---- gaps ----------------------------------------------------------------------------------------------------------


def with_gaps(*places: tuple[str, int, int]) -> dict[str, np.ndarray]:
    """The motion without the values at (group, row from 0, column)."""
    arrays = {name: x.copy() for name, x in recorded().items()}
    for name, row, column in places:
        arrays[name][row, column] = np.nan
    return arrays


GAPS = (("imu", 4, 1), ("imu", 17, 0), ("imu", 17, 1), ("imu", 17, 2), ("base", 17, 0), ("base", 22, 0))


@pytest.mark.parametrize("suffix", FORMATS)
def test_gaps_are_named(tmp_path, suffix):
    path = write_log(tmp_path / f"log{suffix}", with_gaps(*GAPS))
    with pytest.raises(FileError, match=r"row 5, column 'imu: a_y': the value is missing.*--missing skip"):
        run(path, rows=2)


@pytest.mark.parametrize("suffix", FORMATS)
def test_states_with_gaps_are_left_out(tmp_path, suffix):
    path = write_log(tmp_path / f"log{suffix}", with_gaps(*GAPS, ("q", 0, 1)))
    keep = np.setdiff1d(np.arange(N), [0, 4, 17, 22])
    summary = run(path, tmp_path / "out.csv", "skip", rows=4)
    assert (summary.states, summary.skipped, summary.missing) == (len(keep), 4, 0)
    assert_estimates(read_back(tmp_path / "out.csv"), expected(keep), recorded()["t"][keep, 0])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("suffix", FORMATS)
def test_without_a_sensor_is_a_problem_without_it(tmp_path, suffix):
    """State by state, against problems that never had the component that is missing."""
    path = write_log(tmp_path / f"log{suffix}", with_gaps(*GAPS))
    summary = run(path, tmp_path / "out.csv", "sensor", rows=6)
    assert (summary.states, summary.skipped, summary.missing) == (N, 0, len(GAPS))
    found = read_back(tmp_path / "out.csv")
    gone = {4: {"imu": [1]}, 17: {"imu": [0, 1, 2], "base": [0]}, 22: {"base": [0]}}
    whole = expected()
    noise = np.array([0.1, 0.2, 0.3])
    for row in range(N):
        without, y = whole, None
        if row in gone:
            kept = [k for k in range(3) if k not in gone[row].get("imu", [])]
            problem = task().problem - sd.Switchable(sd.Accelerometer("body2", name="imu", noise=1.0))
            if kept:
                chosen = [("a_x", "a_y", "a_z")[k] for k in kept]
                problem = problem + sd.Accelerometer("body2", chosen, name="imu", noise=noise[kept])
            if "base" in gone[row]:
                problem = problem - next(m for m in problem.measurements if m.name == "base")
            names = [m.name for m in problem.measurements]
            y = {**task().values, **{n: recorded()[n][row] for n in ("encoders", "imu", "base") if n in names}}
            y |= {"imu": recorded()["imu"][row, kept]} if kept else {}
            without = sd.compile(problem, **FAST)(recorded()["q"][row], recorded()["qd"][row], y=y)
        for joint in task().problem.model.joint_names:
            for quantity in ("tau", "qdd"):
                value, std = without[quantity, joint], without.std(quantity, joint)
                value, std = (value, std) if row in gone else (value[row], std[row])
                np.testing.assert_allclose(found[f"{quantity}:{joint}"][row], value, rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(found[f"std:{quantity}:{joint}"][row], std, rtol=1e-5)


def test_what_the_problem_cannot_do_without(tmp_path):
    path = write_log(tmp_path / "log.csv", with_gaps(("encoders", 2, 0)))
    with pytest.raises(FileError, match=r"row 3, column 'encoders: qdd\(joint0\)'.*make 'encoders' switchable"):
        run(path, missing="sensor")
    path = write_log(tmp_path / "log.csv", with_gaps(("qd", 2, 0)))
    with pytest.raises(FileError, match=r"row 3, column 'qd.joint0'.*qd is needed"):
        run(path, missing="sensor")


def test_switches_of_a_log(tmp_path):
    """LogColumns active: NAME, beside gaps of the same sensor."""
    arrays = with_gaps(("imu", 4, 1))
    on = (np.arange(N) % 3 != 0).astype(float)
    np.savez(
        tmp_path / "log.npz", **{name: x[:, 0] if x.shape[1] == 1 else x for name, x in arrays.items()},
        **{"active:imu": on},
    )  # fmt: skip
    run(tmp_path / "log.npz", tmp_path / "out.csv", "sensor")
    active = np.repeat(on[:, None], 3, axis=1) != 0
    active[4, 1] = False
    assert_estimates(read_back(tmp_path / "out.csv"), expected(active={"imu": active}), recorded()["t"][:, 0])
    arrays["t"][:] = 0.0
    np.savez(tmp_path / "log.npz", **arrays, **{"active:imu": 0.5 * on})
    with pytest.raises(FileError, match="row 2: active:imu is 0.5; it must be 0 or 1"):
        run(tmp_path / "log.npz", missing="sensor")


# ---- errors --------------------------------------------------------------------------------------------------------


def edited(path: Path, edit) -> Path:
    """The log as CSV with its table of texts changed by `edit(rows)`."""
    write_log(path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    edit(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def column(rows: list[list[str]], name: str) -> int:
    return rows[0].index(name)


def set_to(name: str, row: int, text: str):
    def edit(rows):
        rows[row][column(rows, name)] = text

    return edit


def rename(old: str, new: str):
    return set_to(old, 0, new)


def remove(name: str):
    def edit(rows):
        k = column(rows, name)
        for row in rows:
            del row[k]

    return edit


BAD = {
    "time goes backwards": (set_to("t", 13, "0.001"), FileError, "row 13: time goes backwards, from 0.05 s to 0.001 s"),
    "time goes backwards between chunks": (set_to("t", 11, "0.001"), FileError, "row 11: time goes backwards"),
    "nanoseconds": (set_to("t", 23, "1.7e18"), FileError, "row 23: the time is 1.7e\\+18, which is not in seconds"),
    "infinite": (set_to("imu: a_z", 9, "-inf"), FileError, "row 9, column 'imu: a_z': -inf is not finite"),
    "no number": (set_to("imu: a_z", 9, "high"), FileError, "row 9, column 'imu: a_z': 'high' is no number"),
    "too few fields": (lambda rows: rows[8].pop(), FileError, "row 8: 13 fields, but the header has 14"),
    "unknown column": (rename("imu: a_z", "imu: a_w"), InvalidInput, "'imu: a_w' is unknown: did you mean 'imu: a_z'"),
    "unknown joint": (rename("q.joint1", "q.jiont1"), InvalidInput, "did you mean 'q.joint1'"),
    "a column twice": (rename("q.joint1", "q.joint0"), InvalidInput, "'q.joint0' occurs twice"),
    "twice by another name": (rename("base: nz", "encoders: qdd(joint0)"), InvalidInput, "occurs twice"),
    "wrong unit": (rename("q.joint1", "q.joint1 [deg]"), InvalidInput, "is in deg, but rad is needed"),
    "no time": (remove("t"), InvalidInput, "lacks the columns t"),
    "a component is missing": (remove("imu: a_y"), InvalidInput, "lacks the columns imu: a_y"),
    "nothing": (lambda rows: rows.clear(), FileError, "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_errors_name_row_and_column_and_leave_nothing(tmp_path, case):
    edit, kind, message = BAD[case]
    path = edited(tmp_path / "log.csv", edit)
    for suffix in (".csv", ".npz"):
        out = tmp_path / f"out{suffix}"
        out.write_text("as it was")
        with pytest.raises(kind, match=message) as caught:
            run(path, out, rows=5)
        assert str(path) in str(caught.value)
        assert out.read_text() == "as it was"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.csv", "out.csv", "out.npz"]


SWITCHED = [("base",), ("imu",), ("imu", "base")]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("gone", SWITCHED)
def test_switchable_sensors_without_columns_are_off(tmp_path, gone, suffix):
    """As in a call that switches them off; said once, with the columns that are there. Encoders are needed."""
    x = recorded()
    kept = {name: part for name, part in x.items() if name not in gone}
    path = write_log(tmp_path / f"log{suffix}", kept)
    write_log(tmp_path / f"log.2{suffix}", {**kept, "t": x["t"] + 10.0})
    off = "', '".join(gone)
    with pytest.warns(LogWarning, match=rf"has no columns of '{off}': off in all its states; it has .*q") as told:
        run(path, tmp_path / "out.csv")
        Log(str(tmp_path / f"log*{suffix}"), task().problem, task().values)
    assert len(told) == 2  # one a log
    y = {**task().values, **{name: x[name] for name in ("encoders", "imu", "base") if name not in gone}}
    found = solver()(x["q"], x["qd"], y=y, active=dict.fromkeys(gone, False))
    assert_estimates(read_back(tmp_path / "out.csv"), found, x["t"][:, 0])
    with pytest.warns(LogWarning, match="off in all its states"):
        arrays = read_states(path, task().problem, task().values).arrays
    assert np.array_equal(solver()(**arrays).tau, found.tau)
    del kept["encoders"]
    with pytest.raises(InvalidInput, match=r"lacks the columns encoders: qdd\(joint0\)"):
        run(write_log(tmp_path / f"log{suffix}", kept))


@pytest.mark.parametrize("gone", SWITCHED)
def test_files_of_one_log_may_lack_a_switchable_sensor(tmp_path, gone):
    """It is off in the files without its columns, and on in the others."""
    x, half = recorded(), N // 2
    write_log(tmp_path / "log.1.csv", {name: part[:half] for name, part in x.items() if name not in gone})
    write_log(tmp_path / "log.2.csv", {name: part[half:] for name, part in x.items()})
    pattern, on = str(tmp_path / "log.*.csv"), np.arange(N) >= half
    with pytest.warns(LogWarning, match="off in all its states"):
        log = Log(pattern, task().problem, task().values)
    tau = np.concatenate([part.values["tau"] for part in log.estimates(solver())])
    assert np.array_equal(tau, expected(active=dict.fromkeys(gone, on)).tau)
    with pytest.warns(LogWarning, match="off in all its states"):
        arrays = read_states(pattern, task().problem, task().values).arrays
    assert np.array_equal(solver()(**arrays).tau, tau)


def test_what_a_column_switches_on_has_a_value(tmp_path):
    """A column of values, or zero by default: a wrench that is absent, a frame that is at rest."""
    base = sd.Problem(sd.chain(3), [sd.ExternalWrench("all"), sd.JointAcceleration("all", noise=0.3, name="encoders")])
    q, qd, qdd = base.model.random_state(seed=3, batch=6)
    on = np.arange(6) % 2.0
    for of in (sd.FrameAcceleration("body2", noise=0.1), sd.Accelerometer("body2", noise=0.1)):
        problem = base + sd.Switchable(of, name="x")
        arrays = {"t": np.arange(6.0), "q": q, "qd": qd, "encoders": qdd}
        np.savez(tmp_path / "log.npz", **arrays, **{"active: x": on})
        solve = sd.compile(problem, outputs="tau", **FAST)
        log = Log(tmp_path / "log.npz", problem)
        if not of.has_default:
            with pytest.raises(FileError, match="row 2: 'x' is on, but no column has its value"):
                list(log.estimates(solve))
            np.savez(tmp_path / "log.npz", **arrays, **{"active: x": 0.0 * on})
            log, on = Log(tmp_path / "log.npz", problem), 0.0 * on
        (found,) = log.estimates(solve)
        y = {"encoders": qdd, "x": np.zeros((6, len(of.components(problem.model))))}
        active = {"x": np.repeat(on[:, None], y["x"].shape[1], axis=1)}
        assert np.array_equal(found.values["tau"], solve(q, qd, y=y, active=active).tau)


def test_what_is_dropped_midway_leaves_nothing(tmp_path):
    """An interrupt while the third chunk is shown."""
    path, calls = write_log(tmp_path / "log.csv"), []

    def seen(x):
        calls.append(x)
        if len(calls) == 3:
            raise KeyboardInterrupt

    for suffix in (".csv", ".npz"):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            run(path, tmp_path / f"out{suffix}", rows=4, seen=seen)
    assert [p.name for p in tmp_path.iterdir()] == ["log.csv"]


def test_singular_states_name_their_row(tmp_path):
    problem = sd.Problem(
        sd.auto_tree(2, 1, 0, 1),
        [sd.ExternalWrench(), sd.JointAcceleration("joint0", name="q̈"), sd.JointWrench("body0", ["fx"], name="f")],
    )
    compiled = sd.compile(problem, outputs=["qdd"], level="fast")
    x = np.array([[0.0, 0.3, 1.0, 0, 0, 0, 0], [0.1, 0.3, 0.0, 0, 0, 0, 0]])  # sin q_2 = 0 in the second
    names = ["t", "q.joint0", "q.joint1", "qd.joint0", "qd.joint1", "qdd:joint0", "f:body0.fx"]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in x)]) + "\n", encoding="utf-8")
    with pytest.raises(SingularState, match="log.csv row 2: "):
        estimate_log(Log(path, compiled, rows=2), compiled)
    compiled = sd.compile(problem, outputs=["qdd"], level="fast", on_singular="nan")
    out = tmp_path / "out.csv"
    assert estimate_log(Log(path, compiled), compiled, out).unsolved == 1
    found = read_back(out)
    assert found["ok"].tolist() == [1, 0] and np.isnan(found["qdd:joint1"]).tolist() == [False, True]
    assert not any(name.startswith("std") for name in found)


# ---- command line --------------------------------------------------------------------------------------------------


def test_the_command_line(tmp_path):
    path = tmp_path / "task.toml"
    path.write_text(TASK, encoding="utf-8")
    log, out, picture = write_log(tmp_path / "log.csv", with_gaps(*GAPS)), tmp_path / "o.csv", tmp_path / "o.png"
    arguments = ["solve", str(path), "--log", str(log), "--out", str(out), "--plot", str(picture)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "row 5, column 'imu: a_y'" in result.output
    assert not out.exists() and not picture.exists()
    result = CliRunner().invoke(app, [*arguments, "--missing", "sensor"])
    assert result.exit_code == 0, result.output
    assert f"{N} states" in result.output and "6 values of sensors were missing" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG") and len(out.read_text().splitlines()) == N + 1
    result = CliRunner().invoke(app, ["solve", str(path), "--random", "2", "--missing", "skip"])
    assert result.exit_code == 2 and "--log" in result.output


# ---- wrenches of contacts ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wrenches_of_contacts_have_columns(tmp_path):
    """w:NAME.fx and std:w:NAME.fx, of a chain held at its tip, with noisy torques: Cov(w) = J Σ J^T, w = J τ + w₀."""
    model = sd.chain(3)
    tip = sd.Contact("body2", ("a_x", "a_y"), name="tip")
    problem = sd.Problem(model, [sd.JointTorque(noise=[1.0, 2.0, 3.0], name="motors"), sd.ExternalWrench(), tip])
    compiled = sd.compile(problem, outputs=["qdd", "w"], **FAST)
    q, qd, _ = model.random_state(seed=1, batch=5)
    tau = np.random.default_rng(1).standard_normal((5, 3))
    names = [c for c in LogColumns(problem).names if not c.startswith(("ExternalWrench", "tip"))]
    x = np.hstack([np.arange(5.0)[:, None], q, qd, tau])
    path, out = tmp_path / "log.csv", tmp_path / "out.csv"
    path.write_text("\n".join([",".join(names), *(",".join(map(repr, row)) for row in x.tolist())]), encoding="utf-8")
    estimate_log(Log(path, compiled), compiled, out)
    found = read_back(out)
    exact = sd.compile(sd.forward_dynamics(model) + tip, "crba", ["qdd", "w"], level="fast")
    at_rest, pushed = exact(q, qd, tau), [exact(q, qd, tau + e).w - exact(q, qd, tau).w for e in np.eye(3)]
    J = np.stack(pushed, axis=-1)
    std = np.sqrt(np.einsum("nij,j->ni", J**2, np.array([1.0, 2.0, 3.0]) ** 2))
    for k, c in enumerate(("fx", "fy")):
        np.testing.assert_allclose(found[f"w:tip.{c}"], at_rest.w[:, k], rtol=1e-9)
        np.testing.assert_allclose(found[f"std:w:tip.{c}"], std[:, k], rtol=1e-6)
    solution = compiled(q, qd, y={"motors": tau})
    np.testing.assert_allclose(solution.std("w", "tip"), std, rtol=1e-6)
    covariance = solution.covariance(("w", "tip"), "qdd")
    assert covariance.shape == (5, 2, 3)
    with pytest.raises(UnknownName, match="constraint"):
        solution.std("w", "tup")
    columns = [f"{s}{x}" for s in ("", "std:") for x in (*(f"qdd:joint{i}" for i in range(3)), "w:tip.fx", "w:tip.fy")]
    assert set(found) == {"t", *(f"q:joint{i}" for i in range(3)), *columns}


def test_measured_outputs_have_columns(tmp_path):
    """imu: a_x and std:imu: a_x, of a chain with noisy torques."""
    model = sd.chain(3)
    problem = sd.Problem(model, [sd.JointTorque(noise=[1.0, 2.0, 3.0], name="motors"), sd.ExternalWrench()])
    compiled = sd.compile(problem, outputs=["qdd", sd.Accelerometer("body2", ["a_x", "a_y"], name="imu")], **FAST)
    q, qd, _ = model.random_state(seed=1, batch=5)
    tau = np.random.default_rng(1).standard_normal((5, 3))
    names = [c for c in LogColumns(problem).names if not c.startswith("ExternalWrench")]
    x = np.hstack([np.arange(5.0)[:, None], q, qd, tau])
    path, out = tmp_path / "log.csv", tmp_path / "out.csv"
    path.write_text("\n".join([",".join(names), *(",".join(map(repr, row)) for row in x.tolist())]), encoding="utf-8")
    estimate_log(Log(path, compiled), compiled, out)
    found, solution = read_back(out), compiled(q, qd, y={"motors": tau})
    for k, c in enumerate(("a_x", "a_y")):
        np.testing.assert_allclose(found[f"imu: {c}"], solution["imu", c], rtol=1e-12)
        np.testing.assert_allclose(found[f"std:imu: {c}"], solution.std("imu")[:, k], rtol=1e-12)
    assert (solution.std("imu") > 0.0).any()


@pytest.mark.slow
def test_what_nothing_depends_on_needs_no_column():
    """The position of a floating base: torques and their deviations are the same wherever it is."""
    model = floating_tree(3, seed=1)
    torques = sd.JointTorque("all", noise=1.0, name="torques")
    accelerations = sd.JointAcceleration("all", noise=0.1, name="accelerations")
    problem = sd.Problem(model, [torques, accelerations, sd.ExternalWrench("all", name="fx")])
    solver = sd.compile(problem, outputs=["tau"], **FAST)
    q, qd, qdd = model.random_state(seed=0, batch=4)
    values = sd.predict(problem, q, qd, qdd, seed=1)
    columns = {"t": np.arange(4.0)}
    labels = problem.inputs["q"].labels, problem.inputs["qd"].labels
    columns |= {
        label: x for names, part in zip(labels, (q, qd), strict=True) for label, x in zip(names, part.T, strict=True)
    }
    columns |= {
        label: x
        for m in (torques, accelerations)
        for label, x in zip((f"{m.name}: {c}" for c in m.components(model)), values[m.name].T, strict=True)
    }
    base = [label for k, label in enumerate(labels[0]) if k < 3]
    whole, without = (
        next(iter(sd.Log({x: y for x, y in columns.items() if x not in gone}, solver).estimates(solver)))
        for gone in ((), base)
    )
    np.testing.assert_array_equal(whole.values["tau"], without.values["tau"])
    np.testing.assert_allclose(whole.std["tau"], without.std["tau"], rtol=1e-12)
    with pytest.raises(InvalidInput, match=re.escape(labels[0][3].replace(":", ".", 1))):  # an attitude is needed
        sd.Log({x: y for x, y in columns.items() if x not in labels[0][3:7]}, solver)


@pytest.mark.parametrize("outputs", [["tau"], ["tau", "qdd"]])
def test_the_linear_velocity_of_a_base_is_needed_by_its_accelerations_alone(outputs):
    """An accelerometer gives the acceleration of the base as a point, whatever its velocity; q̈ is that of the twist."""
    model = floating_tree(3, seed=1)
    place = (model.body_names[0], np.eye(4))
    problem = sd.Problem(model, [
        sd.JointTorque("joint0", name="no motor"), sd.JointAcceleration(model.joint_names[1:], name="accelerations"),
        sd.Accelerometer(place, noise=0.1, name="acc"), sd.ExternalWrench(model.body_names[1:], name="none"),
        sd.AngularAccelerometer(place, noise=0.1, name="alpha"),
    ])  # fmt: skip
    solver = sd.compile(problem, outputs=outputs, **FAST)
    q, qd, qdd = model.random_state(seed=0, batch=4)
    values = sd.predict(problem, q, qd, qdd, seed=1)
    table = {"t": np.arange(4.0)}
    for group, x in ((problem.inputs["q"], q), (problem.inputs["qd"], qd)):
        table |= dict(zip(group.labels, x.T, strict=True))
    for name, x in values.items():
        table |= dict(zip(problem.values[name].labels, x.T, strict=True))
    linear = problem.inputs["qd"].labels[3:6]
    fewer = {x: y for x, y in table.items() if x not in linear}
    if "qdd" in outputs:
        with pytest.raises(InvalidInput, match=re.escape(linear[0].replace(":", ".", 1))):
            sd.Log(fewer, solver)
        return
    whole, without = (next(iter(sd.Log(x, solver).estimates(solver))) for x in (table, fewer))
    np.testing.assert_allclose(whole.values["tau"], without.values["tau"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(whole.std["tau"], without.std["tau"], rtol=1e-12)
    with pytest.warns(LogWarning, match="follows from q"):  # the others are differences, without a position
        few = {
            x: y for x, y in table.items() if x not in (*problem.inputs["qd"].labels, *problem.inputs["q"].labels[:3])
        }
        next(iter(sd.Log({**few, "t": np.arange(4.0)}, solver, velocities="difference")))
    with pytest.raises(InvalidInput, match="lacks the columns"):  # angular velocities are needed
        sd.Log({x: y for x, y in table.items() if x not in problem.inputs["qd"].labels[:3]}, solver)
