"""Logs and states as people have them: what other tools write is read, and what is no state is named and left out."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.sensor_log import Log, files_of
from sysdyn.data.states import read_states
from sysdyn.errors import BackendUnavailable, FileError, InvalidInput, LogWarning, SysdynError, UnknownName
from sysdyn.files import bags

N = 12
PROBLEM = sd.forward_dynamics(sd.chain(2)) + sd.Switchable(sd.Accelerometer("body1", ["a_x"], name="imu", noise=0.1))
COLUMNS = ["t", "q.joint0", "q.joint1", "qd.joint0", "qd.joint1", "tau:joint0", "tau:joint1", "imu: a_x"]
X = np.random.default_rng(0).standard_normal((N, len(COLUMNS)))
X[:, 0] = 0.01 * np.arange(N)


def columns(**more) -> dict[str, object]:
    """{column: values} of the log, and of more columns."""
    return {**dict(zip(COLUMNS, X.T, strict=True)), **more}


def write_csv(path: Path, table: dict, separator: str = ",", encoding: str = "utf-8") -> Path:
    lines = [separator.join(table)]
    for row in zip(*table.values(), strict=True):
        lines.append(separator.join(x if isinstance(x, str) else repr(float(x)) for x in row))
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def assert_log(source, problem: sd.Problem = PROBLEM, x: np.ndarray = X, **options) -> Log:
    """It holds x, whether it is read as a log or as states."""
    log = Log(source, problem, rows=5, **options)
    chunks = list(log)
    found = {name: np.vstack([getattr(c, name) for c in chunks]) for name in ("q", "qd")}
    np.testing.assert_array_equal(np.concatenate([c.t for c in chunks]), x[:, 0])
    np.testing.assert_array_equal(found["q"], x[:, 1:3])
    np.testing.assert_array_equal(found["qd"], x[:, 3:5])
    np.testing.assert_array_equal(np.vstack([c.y["tau"] for c in chunks]), x[:, 5:7])
    np.testing.assert_array_equal(np.vstack([c.y["imu"] for c in chunks]), x[:, 7:8])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogWarning)  # the log has told
        states = read_states(source, problem, **options)
    for name, part in (("q", x[:, 1:3]), ("qd", x[:, 3:5]), ("tau", x[:, 5:7])):
        np.testing.assert_array_equal(states.arrays[name], part)
    np.testing.assert_array_equal(states.arrays["y"]["imu"], x[:, 7:8])
    return log


# ---- text ----------------------------------------------------------------------------------------------------------

STRINGS = ["a", "b, with a comma"] * (N // 2)
TEXTS = {
    "semicolons": {"separator": ";"},
    "tabs": {"separator": "\t"},
    "a byte order mark": {"encoding": "utf-8-sig"},
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_of_other_tools(tmp_path, case):
    assert_log(write_csv(tmp_path / "log.csv", columns(), **TEXTS[case]))


def test_unknown_columns_are_left_out_with_one_warning(tmp_path):
    """Strings and empty fields among them; the index that pandas writes is left out in silence."""
    frame = {"": np.arange(N), **columns(comment=[f'"{x}"' for x in STRINGS], temperature=[""] * N)}
    path = write_csv(tmp_path / "log.csv", frame)
    with pytest.warns(LogWarning) as told:
        assert_log(path)
    assert [str(x.message) for x in told] == [
        f"{path}: ignored columns that this problem does not have: comment, temperature"
    ]


def test_results_of_other_problems_are_named_by_quantity(tmp_path):
    path = write_csv(tmp_path / "log.csv", columns(**{f"qdd:joint{k}": X[:, 1] for k in (0, 1)}))
    with pytest.warns(LogWarning, match="does not have: qdd$"):
        assert_log(path)


def test_times_in_words(tmp_path):
    """ISO 8601 as pandas writes it, to the nanosecond; seconds since 1970."""
    ns = 1_700_000_000_000_000_000 + np.arange(N) * 10_000_001
    words = [str(np.datetime64(int(x), "ns")).replace("T", " ") + "+00:00" for x in ns]
    x = X.copy()
    x[:, 0] = ns / 1e9
    assert_log(write_csv(tmp_path / "log.csv", columns(t=words)), x=x)


ZONES = {
    "UTC": ["Z"], "none": [""], "an hour": ["+01:00"], "two hours": ["+0200"], "hours alone": ["+02"],
    "west": ["-03:30"], "behind a space": [" +02:00"], "of summer, then of winter": ["+02:00"] * 6 + ["+01:00"] * 6,
    "mixed": ["+02:00", "Z", "-11:45"],
}  # fmt: skip


@pytest.mark.parametrize("case", ZONES)
@pytest.mark.parametrize("source", ["csv", "parquet", "frame"])
def test_times_of_other_zones(tmp_path, case, source):
    """Python's own datetimes write them; all are seconds since 1970 in UTC."""
    x, words = X.copy(), []
    begin = datetime(2023, 10, 29, 0, 59, 59, 950000, tzinfo=UTC)  # clocks go back an hour meanwhile
    for k in range(N):
        zone, at = ZONES[case][k % len(ZONES[case])], begin + k * timedelta(milliseconds=10)
        hours = re.fullmatch(r" ?([+-])(\d\d):?(\d\d)?", zone)
        offset = timedelta(hours=int(hours[2]), minutes=int(hours[3] or 0)) if hours else timedelta()
        local = at.replace(tzinfo=None) + (-offset if hours and hours[1] == "-" else offset)
        words.append(local.isoformat(sep=" T"[k % 2]) + zone)
        x[k, 0] = np.int64((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000) / 1e9
    table = columns(t=words)
    if source == "csv":
        assert_log(write_csv(tmp_path / "log.csv", table), x=x)
        return
    frame = pytest.importorskip("pandas").DataFrame(table)
    if source == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / "log.parquet")
    assert_log(frame if source == "frame" else tmp_path / "log.parquet", x=x)


@pytest.mark.parametrize("text", ["2023-10-29 00:00:00+25:00", "2023-10-29 00:00:00+02:75", "2023-10-29 25:00:00Z"])
def test_times_that_are_none(tmp_path, text):
    times = [repr(x) for x in X[:, 0].tolist()]
    times[3] = text
    with pytest.raises(FileError, match="row 4, column 't'"):
        list(Log(write_csv(tmp_path / "log.csv", columns(t=times)), PROBLEM))


@pytest.mark.parametrize("text", ["", "NaN", "NA", "null", " none "])
def test_words_for_missing_values(tmp_path, text):
    values = [repr(x) for x in X[:, 7].tolist()]
    values[3] = text
    (chunk,) = Log(write_csv(tmp_path / "log.csv", columns(**{"imu: a_x": values})), PROBLEM, missing="sensor")
    assert np.flatnonzero(~chunk.active["imu"][:, 0]).tolist() == [3]


def test_blank_lines_are_no_states(tmp_path):
    path = write_csv(tmp_path / "log.csv", columns())
    path.write_text("\n" + path.read_text().replace("\n", "\n\n"))
    assert_log(path)


# ---- arrays --------------------------------------------------------------------------------------------------------

ARRAYS = {"t": X[:, 0], "q": X[:, 1:3], "qd": X[:, 3:5], "tau": X[:, 5:7], "imu": X[:, 7:8]}


def write_arrays(path: Path, arrays: dict) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, x in arrays.items():
            file[name] = x
    return path


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_arrays(tmp_path, suffix):
    """Stored by columns, of other types, constant, and of other things than states."""
    arrays = {**ARRAYS, "q": np.asfortranarray(ARRAYS["q"]), "tau": np.ones(2, dtype=np.int32), "serial": 7}
    arrays["names"] = np.array([b"joint0", b"joint1"])
    x = X.copy()
    x[:, 5:7] = 1.0
    with pytest.warns(LogWarning, match="does not have: names, serial$|does not have: serial, names$"):
        assert_log(write_arrays(tmp_path / f"log{suffix}", arrays), x=x)


def test_arrays_in_folders_of_a_file_are_renamed(tmp_path):
    arrays = {f"robot/{name}": x for name, x in ARRAYS.items() if name != "q"}
    arrays["robot/positions"] = ARRAYS["q"][:, ::-1]
    path = write_arrays(tmp_path / "log.h5", arrays)
    names = {f"/robot/{name}": name for name in ARRAYS if name != "q"}
    names |= {"/robot/positions[0]": "q.joint1", "/robot/positions[1]": "q.joint0"}
    assert_log(path, columns=names)


def test_times_of_numpy(tmp_path):
    ns = 1_700_000_000_000_000_000 + np.arange(N) * 10_000_001
    x = X.copy()
    x[:, 0] = ns / 1e9
    assert_log(write_arrays(tmp_path / "log.npz", {**ARRAYS, "t": ns.astype("datetime64[ns]")}), x=x)


def test_packed_values(tmp_path):
    problem = sd.forward_dynamics(sd.chain(2))
    y = np.random.default_rng(1).standard_normal((N, problem.ny))
    states = read_states(write_arrays(tmp_path / "s.npz", {"q": X[:, 1:3], "qd": X[:, 3:5], "y": y}), problem)
    np.testing.assert_array_equal(states.arrays["tau"], y[:, :2])
    np.testing.assert_array_equal(states.arrays["fx"].reshape(N, -1), y[:, 2:])


def test_arrays_of_different_lengths(tmp_path):
    path = write_arrays(tmp_path / "log.npz", {**ARRAYS, "qd": X[:7, 3:5]})
    with pytest.raises(FileError, match="different numbers of rows: .*qd 7"):
        list(Log(path, PROBLEM))


# ---- tables --------------------------------------------------------------------------------------------------------


def test_parquet_of_pandas(tmp_path):
    """With its index, times in ns, strings, categories, numbers in strings, and fields without values."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    ns = 1_700_000_000_000_000_000 + np.arange(N) * 10_000_000
    frame = pandas.DataFrame(columns(t=pandas.to_datetime(ns), comment=STRINGS))
    frame["tau:joint1"] = frame["tau:joint1"].map(repr)
    frame.index = np.arange(N) + 0.5
    frame.to_parquet(tmp_path / "log.parquet")
    x = X.copy()
    x[:, 0] = ns / 1e9
    with pytest.warns(LogWarning, match="does not have: comment$"):
        assert_log(tmp_path / "log.parquet", x=x)


def test_frames_go_in_by_label():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns())[COLUMNS[::-1]]
    assert_log(frame)
    assert_log(frame.set_index("t"))
    x = X.copy()
    x[:, 0] = 1_700_000_000 + np.arange(N)
    assert_log(frame.drop(columns="t").set_index(pandas.to_datetime(x[:, 0], unit="s")), x=x)
    assert_log(pytest.importorskip("pyarrow").table(columns()))
    with pytest.raises(InvalidInput, match="the DataFrame lacks the columns q.joint1"):
        Log(frame.drop(columns="q.joint1"), PROBLEM)


def test_files_in_the_order_of_their_numbers(tmp_path):
    for k in range(N):
        write_csv(tmp_path / f"part.{k}.csv", {name: x[k : k + 1] for name, x in columns(noise=X[:, 1]).items()})
    with pytest.warns(LogWarning) as told:
        log = Log(str(tmp_path / "part.*.csv"), PROBLEM)
        np.testing.assert_array_equal(np.concatenate([c.t for c in log]), X[:, 0])
    assert len(told) == 1 and [p.name for p in log.files[9:]] == ["part.9.csv", "part.10.csv", "part.11.csv"]
    write_csv(tmp_path / "part.3.csv", {name: x[:1] for name, x in columns().items()})
    with pytest.raises(FileError, match=r"part.3.csv row 1: time goes backwards, from 0.02 s to 0 s"):
        list(Log(tmp_path / "part.*.csv", PROBLEM, columns={"noise": ""}))
    with pytest.raises(FileError, match="no file has a name like this"):
        files_of(tmp_path / "gone.*.csv")


# ---- names ---------------------------------------------------------------------------------------------------------


def test_renamed_columns(tmp_path):
    names = {"/joint_states/position[0]": "q.joint0", "accel": "imu: a_x", "qd_joint0": "qd:joint0", "qdd": ""}
    back = {new.replace("qd:", "qd."): old for old, new in names.items()}
    table = {back.get(name, name): x for name, x in columns(qdd=X[:, 1]).items()}
    assert_log(write_csv(tmp_path / "log.csv", table), columns=names)
    with pytest.raises(InvalidInput, match=r"lacks the columns q.joint0, qd.joint0"):
        Log(tmp_path / "log.csv", PROBLEM)
    with pytest.raises(UnknownName, match="Did you mean 'q.joint0'"):
        Log(tmp_path / "log.csv", PROBLEM, columns={"x": "q.jiont0"})


def test_measurements_of_ones_own_have_columns_without_units(tmp_path):
    class Gauge(sd.Measurement):
        def __init__(self):
            self.name, self.noise = "gauge", 1.0

        def components(self, model):
            return ("left", "right")

        def rows(self, ctx):
            return {("tau", "joint0"): np.eye(2)[:, :1], ("tau", "joint1"): np.eye(2)[:, 1:]}

    problem = sd.Problem(sd.chain(2), [Gauge(), sd.ExternalWrench()])
    table = {name: x for name, x in columns().items() if "q" in name}
    path = write_csv(tmp_path / "s.csv", {**table, "gauge: left": X[:, 5], "gauge: right [V]": X[:, 6]})
    np.testing.assert_array_equal(read_states(path, problem).arrays["y"]["gauge"], X[:, 5:7])


# ---- switched off --------------------------------------------------------------------------------------------------


def test_what_is_switched_off_may_be_missing(tmp_path):
    off = np.arange(N) % 3 == 0
    x = X.copy()
    x[off, 7] = np.nan
    table = {**dict(zip(COLUMNS, x.T, strict=True)), "active: imu": 1.0 - off}
    (chunk,) = Log(write_csv(tmp_path / "log.csv", table), PROBLEM)
    np.testing.assert_array_equal(chunk.active["imu"][:, 0], ~off)
    table["active: imu"][3] = 1.0
    with pytest.raises(FileError, match="row 4, column 'imu: a_x': the value is missing"):
        list(Log(write_csv(tmp_path / "log.csv", table), PROBLEM))


# ---- bags ----------------------------------------------------------------------------------------------------------


def write_bag(path: Path, mcap: bool = False, delay: float = 0.0) -> dict[str, np.ndarray]:
    """Joint states, a wrench and an inertial unit that is silent for a while; what rows should hold.

    delay: seconds from the time in the inertial unit's header to that of its recording.
    """
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    typesys = pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    types = {name.split("/")[-1]: x for name, x in store.types.items()}
    kind = rosbag2.StoragePlugin.MCAP if mcap else rosbag2.StoragePlugin.SQLITE3

    def header(t):
        stamp = types["Time"](sec=int(t), nanosec=round(t % 1 * 1e9))
        return types["Header"](stamp=stamp, frame_id="")

    vector, rng = types["Vector3"], np.random.default_rng(0)
    with rosbag2.Writer(path, version=9, storage_plugin=kind) as bag:
        topics = {}
        for topic, name in (("/joint_states", "sensor_msgs/msg/JointState"), ("/imu", "sensor_msgs/msg/Imu"),
                            ("/foot", "geometry_msgs/msg/WrenchStamped")):  # fmt: skip
            topics[topic] = (bag.add_connection(topic, name, typestore=store), name)
        rows: dict[str, list] = {"t": [], "q": [], "qd": [], "tau": [], "a": [], "foot": []}
        a, force, heard = np.full(3, np.nan), np.full(6, np.nan), -1.0
        for k in range(40):
            t = 1000.0 + 0.01 * k

            def write(topic, message, t=t):
                connection, name = topics[topic]
                bag.write(connection, round(t * 1e9), store.serialize_cdr(message, name))

            if k > 0 and not 20 <= k < 35:
                a, heard = rng.standard_normal(3), k
                attitude = types["Quaternion"](0.0, 0.0, 0.0, 1.0)
                none = np.zeros(9)
                turn = vector(*(0.5 * a))
                write("/imu", types["Imu"](header(t - delay), attitude, none, turn, none, vector(*a), none))
            force = rng.standard_normal(6)
            write("/foot", types["WrenchStamped"](header(t), types["Wrench"](vector(*force[3:]), vector(*force[:3]))))
            x = rng.standard_normal((3, 2))
            write("/joint_states", types["JointState"](header(t), ["joint1", "joint0"], *x))
            fresh = heard >= 0 and 0.01 * (k - heard) <= bags.MAX_AGE + 1e-9
            for name, value in zip(rows, (t, *x[:, ::-1], a if fresh else a * np.nan, force), strict=True):
                rows[name].append(value)
    return {name: np.array(x) for name, x in rows.items()}


@pytest.mark.parametrize("mcap", [False, True])
def test_bags(tmp_path, mcap):
    expected = write_bag(tmp_path / "bag", mcap)
    foot = sd.ForceTorqueSensor("joint1", noise=1.0, name="foot")
    problem = sd.forward_dynamics(sd.chain(2)) + sd.Switchable(sd.Accelerometer("body1", name="imu", noise=0.1)) + foot
    source = tmp_path / "bag"
    if mcap:
        (source,) = source.glob("*.mcap")
    with pytest.warns(LogWarning, match=r"/imu/angular_velocity/x, .*/imu/orientation/w$"):
        chunks = list(Log(source, problem, missing="sensor", rows=16))
    assert [len(c.t) for c in chunks] == [16, 16, 8]
    np.testing.assert_allclose(np.concatenate([c.t for c in chunks]), expected["t"], rtol=1e-15)
    for name in ("q", "qd"):
        np.testing.assert_array_equal(np.vstack([getattr(c, name) for c in chunks]), expected[name])
    np.testing.assert_array_equal(np.vstack([c.y["tau"] for c in chunks]), expected["tau"])
    np.testing.assert_array_equal(np.vstack([c.y["foot"] for c in chunks]), expected["foot"])
    there = np.vstack([c.active.get("imu", np.ones((len(c.t), 3), dtype=bool)) for c in chunks])
    np.testing.assert_array_equal(there, ~np.isnan(expected["a"]))
    np.testing.assert_array_equal(np.vstack([c.y["imu"] for c in chunks])[there], expected["a"][there])
    assert 0 < np.count_nonzero(~there[:, 0]) < 15  # silent longer than messages count
    with pytest.warns(LogWarning):
        renamed = Log(source, problem, columns={"/joint_states/effort[0]": "tau:joint1"}, missing="sensor")
    np.testing.assert_array_equal(np.vstack([c.y["tau"] for c in renamed]), expected["tau"])


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.013])
def test_messages_of_unknown_states_are_in_rows_of_their_own_times(tmp_path, delay):
    """Each is there once; those of one time are in one row, and those that were recorded late in their place."""
    expected = write_bag(tmp_path / "bag", delay=delay)
    model = sd.chain(2)
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-4, name="encoders"), sd.JointVelocity("all", noise=1e-2, name="speeds"),
        sd.JointTorque("all", noise=0.1, name="tau"), sd.ExternalWrench("all", name="fx"),
        sd.Accelerometer("body1", noise=0.1, name="imu"), sd.Gyroscope("body1", noise=0.1, name="gyro"),
    ])  # fmt: skip
    columns = {f"/imu/angular_velocity/{c}": f"gyro: omega_{c}" for c in "xyz"}
    with pytest.warns(LogWarning, match="ignored columns that this problem does not have: /foot"):
        log = Log(tmp_path / "bag", problem, states="unknown", rows=16, columns=columns)
    chunks = list(log)
    t = np.concatenate([c.t for c in chunks])
    found = {x: np.vstack([c.y[x] for c in chunks]) for x in ("encoders", "speeds", "tau", "imu", "gyro")}
    there = {x: np.vstack([c.active[x] for c in chunks])[:, 0] for x in found}
    k = np.array([k for k in range(1, 40) if not 20 <= k < 35])
    assert np.all(np.diff(t) > 0.0) and len(t) == (40 if delay == 0.0 else 40 + len(k))
    np.testing.assert_allclose(t[there["imu"]], 1000.0 + 0.01 * k - delay, rtol=1e-14)
    for name, x in (("imu", expected["a"][k]), ("gyro", 0.5 * expected["a"][k])):
        np.testing.assert_array_equal(found[name][there[name]], x)
    for name, x in (("encoders", "q"), ("speeds", "qd"), ("tau", "tau")):
        np.testing.assert_allclose(t[there[name]], expected["t"], rtol=1e-14)
        np.testing.assert_array_equal(found[name][there[name]], expected[x])


BOTH, NONE = ("joint0", "joint1"), ()
# Messages of joint states by turns: (milliseconds, names, names with a velocity).
JOINT_STATES = {
    "without velocities at first": lambda k: (10 * k, BOTH, BOTH if k > 4 else NONE),
    "without velocities at last": lambda k: (10 * k, BOTH, BOTH if k < 4 else NONE),
    "in another order": lambda k: (10 * k, BOTH[:: (-1) ** (k // 3)], BOTH),
    "arm and gripper by turns": lambda k: (10 * k, (*BOTH, "finger")[k % 2 :: 2], BOTH),
    "one joint a message": lambda k: (10 * k, BOTH[k % 2 :][:1], BOTH),
    "one joint a message, in pairs of one time": lambda k: (10 * (k // 2), BOTH[k % 2 :][:1], BOTH),
    "another joint later": lambda k: (10 * k, BOTH[:1] if k < 9 else BOTH, BOTH),
}


def write_joint_states(path: Path, messages) -> None:
    """A bag of messages (seconds, names, positions, velocities) of one topic."""
    rosbag2, typesys = pytest.importorskip("rosbags.rosbag2"), pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    types = {name.split("/")[-1]: x for name, x in store.types.items()}
    with rosbag2.Writer(path, version=9) as bag:
        topic = bag.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=store)
        for t, names, q, qd in messages:
            stamp = types["Time"](sec=int(t), nanosec=round(t % 1 * 1e9))
            message = types["JointState"](
                types["Header"](stamp=stamp, frame_id=""), list(names), np.array(q), np.array(qd), np.zeros(0)
            )
            bag.write(topic, round(t * 1e9), store.serialize_cdr(message, "sensor_msgs/msg/JointState"))


@pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")
@pytest.mark.parametrize("case", JOINT_STATES)
def test_joint_states_are_read_by_name_over_all_messages(tmp_path, case):
    rng, messages, expected = np.random.default_rng(0), [], {}
    for k in range(24):
        ms, names, moving = JOINT_STATES[case](k)
        q, qd = rng.standard_normal((2, len(names)))
        if not moving:
            qd = qd[:0]
        messages.append((1000.0 + ms / 1e3, names, q, qd))
        row = expected.setdefault(ms, np.full((2, 2), np.nan))
        for quantity, x in zip(row, (q, qd), strict=True):
            for name, value in zip(names, x, strict=False):
                if name in BOTH:
                    quantity[BOTH.index(name)] = value
    write_joint_states(tmp_path / "bag", messages)
    rows = np.array(list(expected.values()))
    problem = sd.Problem(sd.chain(2), [
        sd.JointPosition("all", noise=1e-4, name="encoders"), sd.JointVelocity("all", noise=1e-2, name="speeds"),
        sd.ExternalWrench("all", name="fx"),
    ])  # fmt: skip
    (chunk,) = Log(tmp_path / "bag", problem, states="unknown")
    np.testing.assert_allclose(chunk.t, 1000.0 + np.array(list(expected)) / 1e3, rtol=1e-15)
    for name, x in (("encoders", rows[:, 0]), ("speeds", rows[:, 1])):
        np.testing.assert_array_equal(np.where(chunk.active[name], chunk.y[name], np.nan), x)
    whole = np.isfinite(rows).all(axis=(1, 2))
    states = list(Log(tmp_path / "bag", sd.inverse_dynamics(sd.chain(2)), {"qdd": np.zeros(2)}, missing="skip"))
    found = np.concatenate([[x.q, x.qd] for x in states], axis=1) if states else np.empty((2, 0, 2))
    np.testing.assert_array_equal(found, rows[whole].swapaxes(0, 1))


@pytest.mark.parametrize("names, q", [(["joint0", "joint1"], [0.1]), (["joint0", "joint0"], [0.1, 0.2])])
def test_joint_states_that_contradict_themselves(tmp_path, names, q):
    write_joint_states(tmp_path / "bag", [(1000.0, names, q, [])])
    with pytest.raises(FileError, match="/joint_states.*joint0"):
        Log(tmp_path / "bag", PROBLEM)


def test_bags_that_are_none(tmp_path):
    pytest.importorskip("rosbags")
    (tmp_path / "bag.db3").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "bag.mcap").write_bytes(b"\x89MCAP0\r\n")
    for name in ("bag.db3", "bag.mcap"):
        with pytest.raises(FileError, match=name):
            Log(tmp_path / name, PROBLEM)


# ---- malformed files -----------------------------------------------------------------------------------------------


def npy(shape: str, payload: bytes = b"", descr: str = "<f8", order: str = "False") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + payload


# Arrays q of .npz files that are none.
MALFORMED = {
    "unbalanced brackets": npy("((("),  # TokenError of the tokenizer
    "names": npy("(a, b)"),
    "negative": npy("(-1, 2)"),
    "endless": npy("(10000000000, 2)"),
    "endless by columns": npy("(10000000000, 2)", order="True"),
    "no type": npy("(1, 2)", descr="<f7"),
    "another version": b"\x93NUMPY\x09\x00" + bytes(200),
    "short": b"\x93NUM",
    "objects": npy("(1, 2)", descr="|O"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_malformed_arrays(tmp_path, case, compression):
    path = tmp_path / "log.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, x in ARRAYS.items():
            buffer = io.BytesIO()
            np.save(buffer, x)
            archive.writestr(f"{name}.npy", MALFORMED[case] if name == "q" else buffer.getvalue())
    with pytest.raises(FileError, match="log.npz"):
        list(Log(path, PROBLEM))


def refused(path: Path, length: int, tries: int) -> int:
    """How many of the files in which bytes are changed are refused, with errors that name the file."""
    whole, rng, errors = path.read_bytes(), np.random.default_rng(0), 0
    for at in rng.integers(0, path.stat().st_size, tries):
        path.write_bytes(whole[:at] + rng.bytes(length) + whole[at + length :])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                list(Log(path, PROBLEM))
        except SysdynError as error:
            errors += 1
            assert str(path) in str(error)
    return errors


def test_damaged_archives(tmp_path):
    """Bytes changed one by one: zlib, zipfile and numpy each have errors of their own."""
    path = tmp_path / "log.npz"
    np.savez_compressed(path, **ARRAYS)
    assert refused(path, 1, 300) > 100


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
def test_damaged_tables(tmp_path, suffix):
    path = tmp_path / f"log{suffix}"
    if suffix == ".parquet":
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(arrow.table(columns()), path)
    else:
        write_arrays(path, ARRAYS)
    assert refused(path, 4, 150) > 10
    path.write_bytes(b"")
    with pytest.raises(FileError, match=f"log{suffix}"):
        Log(path, PROBLEM)


def test_memory_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    def none(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("sysdyn.files.tables.np.loadtxt", none)
    with pytest.raises(FileError, match="more memory than there is"):
        list(Log(write_csv(tmp_path / "log.csv", columns()), PROBLEM))


def test_so_many_states_are_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr("sysdyn.data.states.MOST_NUMBERS", 100)
    with pytest.raises(FileError, match="too many at once: estimate it as a log"):
        read_states(write_csv(tmp_path / "log.csv", columns()), PROBLEM)


@pytest.mark.parametrize("suffix, package", [(".h5", "h5py"), (".db3", "rosbags.highlevel")])
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, suffix, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(BackendUnavailable, match=f"pip install {package.split('.')[0]}"):
        Log(tmp_path / f"log{suffix}", PROBLEM)


@pytest.mark.parametrize("kind", ["external", "virtual", "external link", "external in a group", "virtual in a group"])
@pytest.mark.parametrize("known", [True, False])
def test_hdf5_reads_no_other_files(kind, known, tmp_path):
    """Datasets whose content is elsewhere, known or not: any file of the user could be meant."""
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    np.arange(2.0 * N).tofile(secret)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["tau"] = np.arange(2.0 * N).reshape(N, 2)
    path = tmp_path / "log.h5"
    q, qd, _ = PROBLEM.model.random_state(seed=1, batch=N)
    name = ("a/" if "group" in kind else "") + ("tau" if known else "other")
    with h5py.File(path, "w") as file:
        file["t"], file["q"], file["qd"] = np.arange(float(N)), q, qd
        if "group" in kind:
            file.create_group("a")
        if kind.startswith("external link"):
            file[name] = h5py.ExternalLink("other.h5", "/tau")
        elif kind.startswith("external"):
            file.create_dataset(name, (N, 2), "f8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        else:
            layout = h5py.VirtualLayout((N, 2), "f8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "tau", (N, 2))
            file.create_virtual_dataset(name, layout)
    if kind == "external link":  # it is not followed
        if known:
            with pytest.raises(InvalidInput, match="lacks the columns tau"):
                Log(path, PROBLEM)
        return
    with pytest.raises(FileError, match="other file"):
        Log(path, PROBLEM, {} if known else {"tau": np.zeros(2)})


def test_hdf5_may_link_within_itself(tmp_path):
    h5py = pytest.importorskip("h5py")
    q, qd, tau = PROBLEM.model.random_state(seed=1, batch=N)
    with h5py.File(tmp_path / "log.h5", "w") as file:
        file["t"], file["q"], file["qd"], file["kept"] = np.arange(float(N)), q, qd, tau
        file["tau"], file["soft"], file["again"] = file["kept"], h5py.SoftLink("/tau"), h5py.SoftLink("/gone")
    with pytest.warns(LogWarning):
        (chunk,) = Log(tmp_path / "log.h5", PROBLEM, columns={"kept": "tau"})
    assert np.array_equal(chunk.y["tau"], tau)
