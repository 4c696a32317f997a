"""Runs of raw logs as a user sees them: on the terminal, in files, on pages, in the viewer."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import commands
import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.files.table_writers import WRITERS
from sysdyn.views import curves

ROOT = Path(__file__).parents[2]
ROWS, GAP, DRAGGED = 80, 30, (40, 44)
PROBLEM = """
title = "two links"
robot = "chain:2"

[[measurement]]
type = "JointPosition"
name = "encoders"
noise = 1e-4

[[measurement]]
type = "Stance"
frame = "body1"
name = "tip"
noise = 1e-3

[[measurement]]
type = "JointTorque"
name = "currents"
noise = 0.5
bias = {constant = 2.0}

[[measurement]]
type = "ExternalWrench"
targets = "body0"

[[measurement]]
type = "ExternalWrench"
targets = "body1"
name = "touch"
noise = 20.0
prior = true
"""
DYNAMICS = 'robot = "chain:2"\nproblem = "inverse"\n'
BALL = (
    '<mujoco><worldbody><body name="ball"><freejoint/><geom size="0.1" contype="0" conaffinity="0"/>'
    '<body name="arm"><joint axis="0 1 0"/><geom size="0.1" pos="0 0 0.3" contype="0" conaffinity="0"/></body>'
    "</body></worldbody></mujoco>"
)


def raw_log() -> dict[str, np.ndarray]:
    """Encoders and currents of two links that move; a reading is missing, and the tip is said to stand for a while."""
    t, noise = 0.01 * np.arange(ROWS), np.random.default_rng(0)
    phase = t[:, None] * [3.0, 2.0]
    encoders = 0.5 * np.sin(phase) + noise.normal(0.0, 1e-4, phase.shape)
    encoders[GAP, 0] = np.nan
    stands = np.zeros(ROWS)
    stands[slice(*DRAGGED)] = 1.0
    return {"t": t, "encoders": encoders, "currents": noise.normal(0.0, 0.5, phase.shape), "active:tip": stands}


def rolled() -> sd.Run:
    """A ball with an arm, whose pose and joint are measured."""
    model = sd.load(BALL)
    problem = sd.Problem(
        model,
        [
            sd.FramePose("ball", noise=1e-3, name="pose"),
            sd.JointPosition("all", noise=1e-3, name="encoder"),
            sd.Gyroscope("ball", noise=1e-2, bias=sd.Constant(0.1), name="gyro"),
            sd.ExternalWrench("all"),
        ],
    )
    t, noise = 0.01 * np.arange(60), np.random.default_rng(1)
    pose = np.zeros((60, 6))
    pose[:, 0], pose[:, 5] = np.sin(2 * t), 0.5 * np.sin(3 * t)
    gyro = np.zeros((60, 3))
    gyro[:, 2] = 1.5 * np.cos(3 * t) + 0.05
    log = {"t": t, "pose": pose, "encoder": 0.3 * np.sin(t)[:, None], "gyro": gyro}
    return sd.smooth(problem, {k: x if k == "t" else x + noise.normal(0.0, 1e-3, x.shape) for k, x in log.items()})


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "problem.toml").write_text(PROBLEM)
    (folder / "dynamics.toml").write_text(DYNAMICS)
    np.savez(folder / "raw.npz", **raw_log())
    np.savez(folder / "exact.npz", q=np.zeros((3, 2)), qd=np.zeros((3, 2)), currents=np.zeros((3, 2)), t=np.arange(3.0))
    return folder


@pytest.fixture(scope="module")
def run(files) -> sd.Run:
    return sd.smooth(load_job(files / "problem.toml").problem, files / "raw.npz", ["tau", "fx"])


@pytest.fixture(scope="module")
def ball() -> sd.Run:
    return rolled()


def read(path: Path) -> dict[str, np.ndarray]:
    """{column or array: (N, …)} of a file, by the libraries of its kind."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    if path.suffix == ".csv":
        names = path.read_text().partition("\n")[0].split(",")
        return dict(zip(names, np.loadtxt(path, delimiter=",", skiprows=1).T, strict=True))
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    with pytest.importorskip("h5py").File(path) as file:
        return {name: x[:] for name, x in file.items()}


def legend(view: sd.View) -> str:
    return view.page[view.page.index('<div id="legend">') : view.page.index("<script>")]


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("which", ["run", "ball"])
def test_files_hold_the_arrays_of_a_run(suffix, which, request, tmp_path):
    run = request.getfixturevalue(which)
    found, arrays = read(run.save(tmp_path / f"out{suffix}")), run.arrays()
    assert list(run.columns) == list(arrays) or set(run.columns) == set(arrays)
    if suffix in (".csv", ".parquet"):
        assert len(found) == sum(x.size for x in run.columns.values())
        for name, x in arrays.items():
            flat = x.reshape(len(run), -1)
            for label, column in zip(run.columns[name].labels, flat.T, strict=True):
                np.testing.assert_array_equal(found[label], column)
    else:
        assert set(found) == set(arrays)
        for name, x in arrays.items():
            np.testing.assert_array_equal(found[name].reshape(x.shape), x)


def test_columns_have_the_names_of_states_biases_and_contacts(run, ball):
    labels = [label for group in run.columns.values() for label in group.labels]
    assert labels[:5] == ["t", "q:joint0", "q:joint1", "qd:joint0", "qd:joint1"]
    for name in ("tau:joint1", "fx:body1.fz", "std:q:joint1", "std:fx:body1.fz", "bias:currents: tau(joint0)",
                 "std:bias:currents: tau(joint0)", "active: tip"):  # fmt: skip
        assert labels.count(name) == 1, name
    assert len(set(labels)) == len(labels)
    joint = ball.model.joint_names[0]
    assert ball.columns["q"].labels[6] == f"q:{joint}[6]" and ball.columns["q"].size == 8
    assert ball.columns["std:q"].labels[5] == f"std:q:{joint}[5]" and ball.columns["std:q"].size == 7
    assert ball.columns["std:q"].units == ("rad",) * 3 + ("m",) * 3 + ("rad",)
    assert ball.columns["bias:gyro"].labels[2] == "bias:gyro: omega_z"


def test_states_are_picked_by_joint(run, ball):
    np.testing.assert_array_equal(run["q", "joint1"], run.q[:, 1])
    np.testing.assert_array_equal(run["qdd"], run.qdd)
    base, arm = ball.model.joint_names
    np.testing.assert_array_equal(ball["q", arm], ball.q[:, 7])
    np.testing.assert_array_equal(ball["q", base], ball.q[:, :7])
    np.testing.assert_array_equal(ball["qd", arm], ball.qd[:, 6])
    assert ball.std("q", base).shape == (60, 6)
    with pytest.raises(UnknownName, match="output of this run"):
        run["a"]


# ---- the command line ------------------------------------------------------------------------------------------------


def test_a_raw_log_is_solved_on_the_command_line(files, run, tmp_path):
    out, picture = tmp_path / "estimates.csv", tmp_path / "tau.png"
    result = commands.run("solve", files / "problem.toml", "--log", files / "raw.npz", "--out", out, "--plot", picture)
    text = result.stdout
    assert re.search(rf"two links\nchain\(2, seed=0\), kinematic level: {ROWS} rows over 0.79 s in [\d.e-]+ s", text)
    found = read(out)
    np.testing.assert_array_equal(found["tau:joint1"], run["tau", "joint1"])
    np.testing.assert_array_equal(found["active: tip"], run.contacts["tip"])
    assert np.isfinite(np.array(list(found.values()))).all()
    for table in run.tables():
        assert table.title in text
        for row in table.rows:
            assert re.search(r"\s+".join(map(re.escape, row)), text), row
    assert "1 values of sensors were missing" in text and f"written to {out}" in text
    dropped = (tmp_path / "estimates.events.csv").read_text().splitlines()
    assert len(dropped) == 1 + len(run.events) and f"dropped readings to {tmp_path / 'estimates.events.csv'}" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_readings_that_contradict_are_listed(run):
    """The tip moves while it is said to stand."""
    (table,) = (x for x in run.tables() if x.title == "dropped readings")
    tip = next(row for row in table.rows if row[0] == "tip")
    instants = {e.instant for e in run.events if e.measurement == "tip"}
    assert instants and instants <= set(range(*DRAGGED)) and tip[2] == str(len(instants))
    assert int(tip[1]) == sum(e.measurement == "tip" for e in run.events)


@pytest.mark.slow
def test_ways_with_the_state(files, tmp_path):
    problem, raw = files / "problem.toml", files / "raw.npz"
    text = commands.run("solve", problem, "--log", raw, "--states", "unknown", "--order", 3, "--outputs", "tau").stdout
    assert "kinematic level" in text and "\nfx " not in text
    assert "lacks the columns" in commands.run("solve", problem, "--log", raw, "--states", "exact", code=2).stderr
    text = commands.run("solve", problem, "--log", files / "exact.npz", "--states", "exact").stdout
    assert "3 states of" in text and "level" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dynamics.toml", "--log", "raw.npz", "--states", "unknown"), "no sensor of the problem"),
        (("problem.toml", "--log", "raw.npz", "--states", "known"), "'known': with --log it is auto, exact, unknown"),
        (("problem.toml", "--states", "exact.npz", "--coupled"), "--coupled cannot be given"),
        (("problem.toml", "--log", "exact.npz", "--states", "exact", "--order", "3"), "--order cannot be given"),
        (("problem.toml", "--log", "raw.npz", "--missing", "skip"), "--missing cannot be given"),
        (("problem.toml", "--log", "raw.npz", "--velocities", "difference"), "--velocities cannot be given"),
        (("problem.toml", "--log", "raw.npz", "--ordering", "symmetric"), "--ordering cannot be given"),
        (("problem.toml", "--log", "raw.npz", "--plot", "picture.gif"), "must end in .png"),
        (("problem.toml", "--log", "raw.npz", "--out", "raw.npz"), "it is an input"),
        (("problem.toml", "--log", "raw.npz", "--out", "there.csv"), "--force"),
        (("problem.toml", "--log", "raw.npz", "--out", "old.csv"), "old.events.csv exists"),
        (("problem.toml", "--log", "back.csv", "--out", "there.csv", "--force"), "row 3: time goes backwards"),
        (("problem.toml", "--log", "short.csv"), "a trajectory needs two or more"),
    ],
)
def test_wrong_commands_are_told_and_leave_what_is_there(files, monkeypatch, arguments, said):
    monkeypatch.chdir(files)
    head, rows = "t,q.joint0,q.joint1,tau:joint0,tau:joint1\n", [f"{t},0,0,0,0\n" for t in (0, 0.1, 0.05)]
    Path("back.csv").write_text(head + "".join(rows))
    Path("short.csv").write_text(head + rows[0])
    Path("there.csv").write_text("mine")
    Path("old.events.csv").write_text("mine")
    before = sorted(files.iterdir())
    text = " ".join(commands.run("solve", *arguments, code=2).stderr.split())
    assert said in text and "Traceback" not in text
    assert Path("there.csv").read_text() == "mine" and sorted(files.iterdir()) == before


# ---- pages and views -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("which", ["run", "ball"])
def test_the_page_of_a_run(which, request, tmp_path):
    run = request.getfixturevalue(which)
    page = run.report(tmp_path / "run.html", "as it was").read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    parts = {"Contacts": bool(run.contacts), "Biases": "biases" in [table.title for table in run.tables()]}
    expected = ["The robot", "The run", "Motion", *(f"Output {x}" for x in run.outputs)]
    assert titles == [*expected, *(x for x, there in parts.items() if there), "Residuals", "Dropped readings"]
    drawn = 3 + len(run.outputs) + bool(run.contacts) + 1 + 1 + bool(run.events)
    assert page.count("<figure") == page.count("</svg>") == drawn
    assert "<h1>as it was</h1>" in page
    assert not re.search(r'(?:src|href)="[^#]|url\((?!#)|https?://(?!www.w3.org)', page)  # it loads nothing
    for event in run.events:
        assert f"<td>{event.size:.1f} σ</td>" in page


def test_residuals_are_those_of_the_path(run):
    """In standard deviations; what was dropped has none."""
    log = raw_log()
    expected = (run.q - log["encoders"]) / 1e-4
    dropped = [(e.instant, e.component) for e in run.events if e.measurement == "encoders"]
    found = run.residuals("encoders")
    assert np.isnan(found[GAP, 0]) and np.isnan(found).sum() == 1 + len(dropped)
    there = np.isfinite(found)
    np.testing.assert_allclose(found[there], expected[there], atol=5e-3)  # forces tell a little of the state
    assert set(run.fitted) == {"encoders", "tip"} and np.isnan(run.residuals("tip")[0]).all()
    with pytest.raises(UnknownName, match="sensor of the state in this run: 'currents'"):
        run.residuals("currents")


@pytest.mark.slow
def test_report_writes_the_page_of_a_log(files, tmp_path):
    out = tmp_path / "page.html"
    text = commands.run("report", files / "problem.toml", "--log", files / "raw.npz", "--out", out).stdout
    assert f"wrote {out}: {ROWS} states" in text and "<h2>Contacts</h2>" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--log", "raw.npz"), "--out PAGE.html"),
        (("--coupled",), "--coupled cannot be given"),
        (("--log", "raw.npz", "--ordering", "symmetric", "--out", "other.html"), "--ordering cannot be given"),
        (("--log", "raw.npz", "--out", "page.html"), "--force"),
    ],
)
def test_reports_of_logs_that_are_refused(arguments, said, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("page.html").write_text("mine")
    paths = (files / x if x == "raw.npz" else x for x in arguments)
    assert said in " ".join(commands.run("report", files / "problem.toml", *paths, code=2).stderr.split())


def test_a_run_is_played(files, run, tmp_path):
    pytest.importorskip("meshcat")
    view = sd.show(run)
    same = sd.show(run.model, run.q, tau=run["tau"], fx=run["fx"], t=run.t)
    assert legend(view) == legend(same) and len(view.page) == len(same.page)  # objects have numbers of their own
    assert "force: 10 cm is" in view.page and "torque of a link" in view.page
    still = sd.show(run, run.q[0], t=[0.0], tau=run["tau"][0], fx=run["fx"][0], title="begin")
    assert "begin" in still.page and "one state" in repr(still)
    with pytest.raises(InvalidInput, match="a Model is shown, the Run of a log or a Simulation, not int"):
        sd.show(5)
    out = run.save(tmp_path / "estimates.csv")
    commands.run("show", files / "problem.toml", "--log", out, "--html", tmp_path / "run.html")
    assert "force: 10 cm is" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_an_instant_of_a_run_is_shown_as_well(run, tmp_path):
    """As of a filter, without the axis N."""
    now = run.first()
    found = read(now.save(tmp_path / "now.csv"))
    assert "<h2>Motion</h2>" in now.report(tmp_path / "now.html").read_text(encoding="utf-8")
    assert found["tau:joint1"] == run["tau", "joint1"][0] and found["active: tip"] == run.contacts["tip"][0]
    dropped = any(e.instant == 0 for e in run.events)
    expected = [x.title for x in run.tables() if dropped or x.title != "dropped readings"]
    assert [x.title for x in now.tables()] == expected
    assert now.tables()[0].title in now._repr_html_()
    if importlib.util.find_spec("meshcat"):
        assert "one state" in repr(sd.show(now))


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_intervals_are_the_runs_of_true(seed):
    on = np.random.default_rng(seed).random(30) < 0.5
    found = np.zeros(30, dtype=bool)
    parts = curves.intervals(on)
    for a, b in parts:
        assert on[a:b].all() and not (a > 0 and on[a - 1]) and not (b < 30 and on[b])
        found[a:b] = True
    np.testing.assert_array_equal(found, on)


def test_bars_last_as_long_as_contacts_do():
    t = np.array([0.0, 1.0, 3.0, 4.0])
    axis = curves.bars(t, {"left": np.array([True, False, True, True]), "none": np.zeros(4, dtype=bool)}).axes[0]
    left, none = (x.get_paths() for x in axis.collections)
    spans = [(p.vertices[:, 0].min(), p.vertices[:, 0].max()) for p in left]
    assert spans == [(0.0, 1.0), (3.0, 4.0)] and list(none) == []


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_offsets_of_currents_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "trajectories"))
    arm = importlib.import_module("arm")
    log, tau = arm.log(200)
    problem = load_job(arm.FILE).problem
    run = sd.smooth(problem, log, coupled=True)
    assert (np.abs(run.bias("currents")[-1] - arm.OFFSETS) < 4.0 * run.bias_std("currents")[-1]).all()
    within = np.abs(run["tau"] - tau) < 2.0 * run.std("tau")
    assert within.mean() > 0.9 and run.std("tau").max() < 1.0


def test_a_log_is_diagnosed_on_the_command_line(files):
    text = commands.run("diagnose", files / "problem.toml", "--log", files / "raw.npz", code=1).stdout
    assert f"not observable from {ROWS} samples" in text
    assert "bias of currents: tau(joint0)" in text  # the tip is touched
    assert "--log FILE" in commands.run("diagnose", files / "problem.toml", "--coupled", code=2).stderr
