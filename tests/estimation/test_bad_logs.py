"""Bad input of whole trajectories, and logs that do not tell everything: each has its words."""

from __future__ import annotations

import functools
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import FileError, InvalidInput, LogWarning, ProblemError, UnknownName

N = 40


@functools.cache
def arm() -> tuple[sd.Problem, dict[str, np.ndarray]]:
    model = sd.chain(3, seed=1)
    t = 2e-3 * np.arange(N)
    q = 0.3 * np.sin(2.0 * np.pi * t[:, None] * [1.0, 1.5, 2.0])
    problem = sd.Problem(
        model, [sd.JointPosition("all", noise=1e-4, name="enc"), sd.ExternalWrench("all", name="none")]
    )
    return problem, {"t": t, "enc": q + 1e-4 * np.random.default_rng(0).standard_normal(q.shape)}


def floating(*sensors: str, turned: bool = False) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """A base at rest with some of its sensors; turned: its joint has a placement of its own in the world."""
    model, rng = floating_tree(3, seed=2), np.random.default_rng(0)
    if not turned:
        model = model.replace(X_tree=(np.eye(6), *model.X_tree[1:]))
    trunk = (model.body_names[0], np.eye(4))
    every = {
        "enc": sd.JointPosition("all", noise=1e-3, name="enc"), "gyro": sd.Gyroscope(trunk, noise=1e-2, name="gyro"),
        "acc": sd.Accelerometer(trunk, noise=0.1, name="acc"), "foot": sd.Stance(trunk, noise=1e-2, name="foot"),
        "mocap": sd.FramePosition(trunk, noise=1e-3, name="mocap"),
        "attitude": sd.FrameAttitude(trunk, noise=1e-2, name="attitude"),
    }  # fmt: skip
    problem = sd.Problem(model, [*(every[x] for x in sensors), sd.ExternalWrench("all", name="none")])
    still = np.zeros((N, model.nv))
    shown = sd.predict(problem, np.repeat(model.neutral()[None], N, axis=0), still, still, state_sensors=True)
    log = {x: shown[x] + every[x].noise * rng.standard_normal(shown[x].shape) for x in sensors if x != "foot"}
    return problem, {"t": 2e-3 * np.arange(N), **log}


def changed(name: str, row, value) -> dict[str, np.ndarray]:
    log = {key: x.copy() for key, x in arm()[1].items()}
    log[name][row] = value
    return log


# ---- logs ------------------------------------------------------------------------------------------------------------

LOGS = {
    "backwards": (lambda: changed("t", 5, 0.001), FileError, "row 6: time goes backwards, from 0.008 s to 0.001 s"),
    "equal": (lambda: changed("t", 5, 0.008), FileError, "row 6: the time is that of the row before, 0.008 s"),
    "no time": (lambda: changed("t", 5, np.nan), FileError, "row 6, column 't': the value is missing"),
    "infinite": (lambda: changed("enc", 7, np.inf), FileError, "row 8, column 'enc: joint0': inf is not finite"),
    "one row": (lambda: {k: x[:1] for k, x in arm()[1].items()}, InvalidInput, "1 row.*two or more"),
    "no rows": (lambda: {k: x[:0] for k, x in arm()[1].items()}, InvalidInput, "0 rows.*two or more"),
    "no t": (lambda: {"enc": arm()[1]["enc"]}, InvalidInput, "lacks the columns t"),
    "no readings": (lambda: {"t": arm()[1]["t"]}, InvalidInput, "lacks the columns enc: joint0"),
    "a joint too few": (
        lambda: {**arm()[1], "enc": arm()[1]["enc"][:, :2]},
        FileError,
        r"'enc' has shape \(40, 2\), but \(N, 3\)",
    ),
}


@pytest.mark.parametrize("case", LOGS)
def test_logs_that_are_refused(case):
    log, error, words = LOGS[case]
    with pytest.raises(error, match=words):
        sd.smooth(arm()[0], log())


# ---- options ---------------------------------------------------------------------------------------------------------

OPTIONS = {
    "output": ({"outputs": ["torque"]}, UnknownName, "output 'torque'"),
    "order": ({"order": 2}, InvalidInput, "order of motion is 2"),
    "density": ({"density": -1.0}, InvalidInput, "a density of motion is .*: it must be positive"),
    "density of a joint": (
        {"density": {"joint0": 0.0}},
        InvalidInput,
        "a density of motion is .*: it must be positive",
    ),
    "density of nobody": ({"density": {"elbow": 1.0}}, UnknownName, "elbow"),
    "start": ({"start": [0.0, 0.0]}, InvalidInput, r"q has shape \(2,\)"),
    "start of states": ({"start": np.zeros((4, 3))}, InvalidInput, r"start has shape \(4, 3\).*\(3,\)"),
    "window of none": ({"window": 0}, InvalidInput, "window is 0"),
    "window of one": ({"window": 1}, InvalidInput, "window is 1"),
    "window of parts": ({"window": 2.5}, InvalidInput, "window is 2.5"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_are_refused(case):
    options, error, words = OPTIONS[case]
    with pytest.raises(error, match=words):
        sd.smooth(*arm(), **options)


@pytest.mark.parametrize("options", [{"density": np.nan}, {"density": [1.0, 2.0]}, {"density": {"joint0": np.nan}},
                                     {"start": [0.0, np.nan, 0.0]}], ids=repr)  # fmt: skip
def test_numbers_that_are_none(options):
    with pytest.raises(InvalidInput):
        sd.smooth(*arm(), **options)


# ---- problems --------------------------------------------------------------------------------------------------------


def test_encoders_need_noise():
    model = sd.chain(2)
    with pytest.raises(ProblemError, match="'enc' has no noise.*give it a standard deviation"):
        problem = sd.Problem(model, [sd.JointPosition("all", name="enc"), sd.ExternalWrench("all")])
        sd.smooth(problem, {"t": np.arange(3.0), "enc": np.zeros((3, 2))})


@pytest.mark.parametrize("coupled", [False, True])
def test_a_problem_without_sensors_of_the_state(coupled):
    problem = sd.Problem(sd.chain(2), [sd.JointTorque("all", noise=1.0, name="tq"), sd.ExternalWrench("all")])
    with pytest.raises(ProblemError, match="no sensor of the problem observes the states: add encoders"):
        sd.smooth(problem, {"t": np.arange(3.0), "tq": np.zeros((3, 2))}, coupled=coupled)


@pytest.mark.parametrize("coupled", [False, True])
def test_accelerations_that_are_stated(coupled):
    problem = arm()[0] + sd.JointAcceleration("all", name="still")
    with pytest.raises(ProblemError, match="'still' states it: give it noise=, or leave it out"):
        sd.smooth(problem, {**arm()[1], "still": np.zeros((N, 3))}, coupled=coupled)


def test_wrenches_that_nothing_tells():
    problem = sd.Problem(arm()[0].model, [m for m in arm()[0].measurements if m.name == "enc"])
    with pytest.raises(ProblemError, match="do not determine the dynamic variables"):
        sd.smooth(problem, arm()[1])


def test_names_that_nothing_has():
    model = floating_tree(3, seed=2)
    for kind in (sd.Gyroscope, sd.Velocimeter, sd.FramePosition, sd.Stance):
        with pytest.raises(UnknownName, match="unknown frame 'imu'"):
            sd.Problem(model, [kind("imu", noise=1.0)])
    foot = (model.body_names[-1], np.eye(4))
    for when in ("l_foot_ft: fz > 40", "enc: fz > 40"):
        with pytest.raises(UnknownName, match="column in when= of 'foot'"):
            sd.Problem(
                model,
                [sd.JointPosition("all", noise=1e-3, name="enc"), sd.Stance(foot, noise=1e-2, when=when, name="foot")],
            )


# ---- what a log does not tell ----------------------------------------------------------------------------------------

UNTOLD = {
    # sensors: coordinates that are chosen
    ("enc", "gyro"): ("position x", "position y", "position z", "yaw"),
    ("enc", "gyro", "acc"): ("position x", "position y", "position z", "yaw"),
    ("enc", "gyro", "acc", "foot"): ("position x", "position y", "position z", "yaw"),
    ("enc", "gyro", "mocap"): (),
    ("enc", "attitude"): ("position x", "position y", "position z"),
    ("enc", "attitude", "mocap"): (),
}


@pytest.mark.slow(after=len(UNTOLD) // 2)
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("sensors", UNTOLD, ids=" ".join)
def test_coordinates_that_nothing_tells_are_named(sensors, coupled):
    problem, log = floating(*sensors)
    run = sd.smooth(problem, log, coupled=coupled)
    assert sorted(run.gauge_fixed) == sorted(f"joint0 {x}" for x in UNTOLD[sensors])
    assert ("not observable in the log" in repr(run)) == bool(UNTOLD[sensors])
    assert all(np.isfinite(x).all() for x in run.arrays().values())
    if run.gauge_fixed and "foot" not in sensors:  # they are chosen at the start, and drift from there
        assert run.std("q")[0, 3:6].max() < 1e-5 and run.std("q")[-1, 3:6].min() > 0.1


def test_a_base_whose_joint_is_turned():
    problem, log = floating("enc", "gyro", "acc", "foot", turned=True)
    run = sd.smooth(problem, log)
    assert len(run.gauge_fixed) == 4 and any("yaw" in x for x in run.gauge_fixed)


def test_readings_that_are_missing():
    """Rows of NaN are gaps, and say nothing; the others are as good as before."""
    problem, log = arm()
    log = {name: x.copy() for name, x in log.items()}
    whole = sd.smooth(problem, log, order=3, density=100.0)
    log["enc"][[0, 7, 8, 9]], log["enc"][20, 1] = np.nan, np.nan
    run = sd.smooth(problem, log, order=3, density=100.0)
    assert len(run) == N and np.all(np.isfinite(run["tau"])) and not run.events
    assert run.missing == {"enc": 13} and "missing" in repr(run) and not any(whole.missing.values())
    assert np.all(run.std("q")[8] > whole.std("q")[8]) and np.all(run.std("q")[0] > 1.2 * whole.std("q")[0])
    assert run.std("q")[20, 1] > whole.std("q")[20, 1] and np.allclose(run.std("q")[30], whole.std("q")[30], rtol=0.05)


def test_a_joint_that_is_never_measured_is_not_known():
    problem, log = arm()
    run = sd.smooth(problem, {**log, "enc": np.where([True, False, True], log["enc"], np.nan)}, order=3, density=100.0)
    assert run.std("q")[:, 1].min() > 1.0 and run.std("q")[:, [0, 2]].max() < 1e-3
    assert np.all(np.isfinite(run.std("tau")))


def test_a_pause_of_a_hundred_seconds():
    problem, log = arm()
    with pytest.warns(LogWarning, match="no readings from 0.038 to 100.04 s"):
        run = sd.smooth(problem, {**log, "t": log["t"] + np.where(np.arange(N) < 20, 0.0, 100.0)})
    assert all(np.isfinite(x).all() for x in run.arrays().values())


@pytest.mark.parametrize("start", [2, 3])
def test_the_shortest_logs(start):
    problem, log = arm()
    run = sd.smooth(problem, {name: x[:start] for name, x in log.items()})
    assert len(run) == start and all(np.isfinite(x).all() for x in run.arrays().values())
    assert np.abs(run.q - log["enc"][:start]).max() < 5e-4


@pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")
@pytest.mark.parametrize("way", ["smooth", "coupled", "file", "filter", "exact states"])
def test_torques_of_free_joints_need_no_column(way, tmp_path):
    """They are zero, as nothing drives these; a column says so, too."""
    problem, log = floating("enc", "mocap", "attitude")
    model, joints = problem.model, problem.model.joint_names
    torques = sd.JointTorque(joints[1:], noise=0.3, name="torques")
    free = sd.JointTorque(joints[0], name="nothing drives the base")
    if way == "exact states":
        exact = sd.Problem(model, [free, torques, sd.Prior(sd.ExternalWrench("all", noise=1.0), name="wrench")])
        solver, t = sd.compile(exact, outputs=["qdd"]), log["t"]
        states = {"t": t, "q": np.tile(model.neutral(), (N, 1)), "qd": np.zeros((N, model.nv)),
                  "torques": np.ones((N, len(joints) - 1))}  # fmt: skip
        zeros = {**states, free.name: np.zeros((N, 6))}
        found, expected = (
            np.concatenate([x.values["qdd"] for x in sd.Log(y, solver).estimates(solver)]) for y in (states, zeros)
        )
        np.testing.assert_array_equal(found, expected)
        return
    problem = problem + torques + free
    log["torques"] = np.zeros((N, len(joints) - 1))
    zeros = {**log, free.name: np.zeros((N, 6))}
    found = []
    for y in (log, zeros):
        if way == "filter":
            live = sd.filter(problem, motion=10.0)
            runs = [live(t, {x: z[k] for x, z in y.items() if x != "t"}) for k, t in enumerate(y["t"])]
            found.append(runs[-1]["tau"])
        elif way == "file":
            np.savez(tmp_path / "log.npz", **y)
            sd.smooth(problem, tmp_path / "log.npz", out=tmp_path / f"{len(y)}.npz")
            found.append(np.load(tmp_path / f"{len(y)}.npz")["tau"])
        else:
            found.append(sd.smooth(problem, y, coupled=way == "coupled")["tau"])
    np.testing.assert_array_equal(*found)
    assert not np.any(found[0][..., :6])


WALKER = """<mujoco><worldbody><body name="trunk"><freejoint name="root"/><geom size="0.1" mass="5" contype="0"
conaffinity="0"/><site name="imu"/><body name="l_leg"><joint name="l_hip" axis="0 1 0"/><geom size="0.05" mass="1"
pos="0 0 -0.2" contype="0" conaffinity="0"/><body name="l_foot" pos="0 0 -0.4"><joint name="l_ankle" axis="0 1 0"/>
<geom size="0.05" mass="0.5" contype="0" conaffinity="0"/><site name="l_sole" pos="0 0 -0.05"/></body></body></body>
</worldbody></mujoco>"""


@pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")
def test_the_walking_robot_of_the_page_runs_as_it_is_written(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    page = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text(encoding="utf-8")
    block = re.search(r"^    problem = sd\.Problem\(robot(?:.*\n)+?(?=\n)", page, re.MULTILINE)
    assert block is not None
    (tmp_path / "walker.xml").write_text(WALKER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    columns = {"t": 2e-3 * np.arange(N), "accelerometer: a_z": 9.81, "l_foot_ft: fz": 60.0}
    columns |= {f"gyro: omega_{x}": 0.0 for x in "xyz"} | {f"accelerometer: a_{x}": 0.0 for x in "xy"}
    columns |= {f"l_foot_ft: {x}": 0.0 for x in ("nx", "ny", "nz", "fx", "fy")}
    columns |= {f"{x}": 0.0 for j in ("l_hip", "l_ankle") for x in (f"encoders: {j}", f"torques: tau({j})")}
    pandas.DataFrame(columns).to_parquet("walk.parquet")
    names = {"sd": sd, "robot": sd.load("walker.xml"), "legs": ["l_hip", "l_ankle"]}
    exec(textwrap.dedent(block[0]), names)
    assert names["run"]["tau"].shape == (N, 8) and not np.any(names["run"]["tau"][:, :6])
