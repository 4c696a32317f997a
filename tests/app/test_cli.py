"""The command line: every command, and one clear line for everything that can be wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import error, run

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.app.jobs import ALL_ORDERINGS
from sysdyn.app.terminal import NOT_SOLVED
from sysdyn.data.states import random_states, read_states, write_states

pytestmark = pytest.mark.usefixtures("fast_commands")
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]
ROBOT = "chain:3"
UNPLAUSIBLE = """<robot name="odd"><link name="root"/>
<link name="arm"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="5" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="hinge" type="revolute"><parent link="root"/><child link="arm"/><axis xyz="0 0 1"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""


def states_file(path: Path, problem: sd.Problem, n: int = 4) -> Path:
    return write_states(path, problem.inputs, random_states(problem, n).arrays)


# ---- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command):
    text = run(command, "--help").stdout
    assert f"Example: sysdyn {command}" in text


def test_no_command_shows_help_and_the_version_is_the_package_s():
    assert "Usage" in run(code=2).output
    assert run("--version").stdout.strip() == f"sysdyn {sd.__version__}"
    done = subprocess.run([sys.executable, "-m", "sysdyn", "info", ROBOT], capture_output=True, text=True, check=True)
    assert "body2" in done.stdout and done.stderr == ""


def test_info_lists_bodies_joints_frames_and_sensors():
    text = run("info", "icub", "--base", "floating").stdout
    for word in ("nv = 38", "root_joint", "l_knee", "l_lower_leg", "r_sole", "l_foot_ft"):
        assert word in text


def test_info_warns_of_implausible_inertias(tmp_path):
    path = tmp_path / "odd.urdf"
    path.write_text(UNPLAUSIBLE)
    result = run("info", path)
    assert result.stderr.startswith("warning: ") and "arm" in result.stderr


@pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")  # a result holds what was known, too
@pytest.mark.parametrize("suffix", [".npz", ".csv"])
@pytest.mark.parametrize("kind", ["inverse", "forward"])
def test_solve_reads_and_writes_states(tmp_path, kind, suffix):
    model = sd.chain(3)
    problem = {"inverse": sd.inverse_dynamics, "forward": sd.forward_dynamics}[kind](model)
    given, result = states_file(tmp_path / f"in{suffix}", problem), tmp_path / f"out{suffix}"
    run("solve", ROBOT, "--problem", kind, "--states", given, "--out", result, "--outputs", "all")
    other = {"inverse": sd.forward_dynamics, "forward": sd.inverse_dynamics}[kind](model)
    x, found = random_states(problem, 4).arrays, read_states(result, other).arrays
    expected = (sd.rnea if kind == "inverse" else sd.aba)(model, *list(x.values())[:3], fx=x["fx"])
    np.testing.assert_allclose(found["tau" if kind == "inverse" else "qdd"], expected, rtol=1e-9, atol=1e-9)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([given.name, result.name])


@pytest.mark.slow
def test_solve_writes_measured_outputs(tmp_path):
    task, out = tmp_path / "task.toml", tmp_path / "out.csv"
    task.write_text(
        'robot = "chain:3"\nproblem = "forward"\n'
        'outputs = ["qdd", {type = "Accelerometer", frame = "body2", name = "imu", components = ["a_x", "a_z"]}]\n'
    )
    assert "imu" in run("solve", task, "--random", 1).output and "a_z" in run("solve", task, "--random", 1).output
    run("solve", task, "--random", 4, "--out", out)
    header = out.read_text().splitlines()[0].split(",")
    assert header[-2:] == ["imu: a_x", "imu: a_z"] and "qdd:joint2" in header
    values = np.genfromtxt(out, delimiter=",", skip_header=1)[:, -2:]
    model = sd.chain(3)
    problem = sd.Problem(model, [sd.Accelerometer("body2", ["a_x", "a_z"], name="imu")])
    x = random_states(sd.forward_dynamics(model), 4).arrays
    qdd = sd.aba(model, x["q"], x["qd"], x["tau"], fx=x["fx"])
    np.testing.assert_allclose(values, sd.predict(problem, x["q"], x["qd"], qdd, x["fx"])["imu"], rtol=1e-8, atol=1e-8)
    run("solve", task, "--random", 4, "--outputs", "imu", "--out", tmp_path / "out.npz")
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["imu"], values, rtol=1e-8, atol=1e-8)
    assert "imu" in run("flops", task).output


@pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")
def test_a_result_is_the_states_of_the_opposite_problem(tmp_path):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    run("solve", ROBOT, "--random", 3, "--seed", 5, "--out", first)
    result = run("solve", ROBOT, "--problem", "inverse", "--states", first, "--out", second)
    assert "ignored columns that this problem does not have: tau\n" in result.stderr
    problem = sd.forward_dynamics(sd.chain(3))
    tau = [read_states(path, problem).arrays["tau"] for path in (first, second)]
    np.testing.assert_allclose(tau[0], tau[1], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_hybrid_needs_only_the_columns_of_what_is_known(tmp_path):
    names = [f"{x}:joint{i}" for x in ("q", "qd") for i in range(3)] + ["tau:joint1", "qdd:joint0", "qdd:joint2"]
    given, out = tmp_path / "states.csv", tmp_path / "out.npz"
    given.write_text(",".join(names) + "\n" + ",".join("0.1" for _ in names) + "\n\n")
    run("solve", ROBOT, "--torque", "joint1", "--states", given, "--out", out)
    q = np.full(3, 0.1)
    known = sd.compile(sd.hybrid_dynamics(sd.chain(3), ["joint1"]))(q, q, tau=q, qdd=q)
    with np.load(out) as found:
        assert found["tau"][0, 0] == pytest.approx(known["tau", "joint0"])
        assert found["qdd"][0, 1] == pytest.approx(known["qdd", "joint1"])


def test_one_state_without_the_axis_of_states(tmp_path):
    path, out = tmp_path / "one.npz", tmp_path / "out.csv"
    np.savez(path, q=np.zeros(3), qd=np.zeros(3), tau=np.ones(3))
    run("solve", ROBOT, "--states", path, "--out", out)
    assert len(out.read_text().splitlines()) == 2


def test_a_foot_that_moves_in_a_file_is_named_with_its_speed(tmp_path):
    file, states = tmp_path / "held.toml", tmp_path / "x.npz"
    file.write_text(
        'robot = "chain:3"\nproblem = "forward"\noutputs = ["qdd"]\n'
        '[[measurement]]\ntype = "Contact"\nname = "grip"\nframe = "body2"\nkind = ["a_x"]\n'
    )
    model = sd.chain(3)
    q, qd, _ = model.random_state(seed=2)
    speed = (sd.frame_jacobian(model, q, "body2") @ qd)[3]
    for rate, said in ((qd, f"'grip' by {abs(speed):.3g} m/s"), (0.0 * qd, "")):
        np.savez(states, q=q, qd=rate, tau=np.zeros(3))
        words = " ".join(run("solve", file, "--states", states).stderr.split())
        assert (said in words) if said else "hold the robot" not in words
    file.write_text(file.read_text() + "switchable = true\n")  # it may be off
    np.savez(states, q=q, qd=qd, tau=np.zeros(3))
    assert "hold the robot" not in " ".join(run("solve", file, "--states", states).stderr.split())


def test_packed_values_of_measurements(tmp_path):
    problem = sd.forward_dynamics(sd.chain(3))
    q, qd, _ = problem.model.random_state(batch=2)
    path = tmp_path / "packed.npz"
    np.savez(path, q=q, qd=qd, y=np.ones((2, problem.ny)))
    out = tmp_path / "out.npz"
    run("solve", ROBOT, "--states", path, "--out", out)
    fx = np.ones((2, 3, 6))
    with np.load(out) as found:
        np.testing.assert_allclose(found["qdd"], sd.aba(problem.model, q, qd, np.ones((2, 3)), fx), rtol=1e-9)


@pytest.mark.parametrize("policy, code", [("nan", NOT_SOLVED), ("raise", NOT_SOLVED)])
def test_singular_states_have_their_own_exit_code(tmp_path, policy, code):
    path, out = tmp_path / "problem.toml", tmp_path / "out.npz"
    path.write_text(
        'robot = "auto_tree:2,1,0,1"\non_singular = "nan"\n[[measurement]]\ntype = "ExternalWrench"\n'
        '[[measurement]]\ntype = "JointAcceleration"\ntargets = "joint0"\n'
        '[[measurement]]\ntype = "JointWrench"\ntargets = "body0"\ncomponents = ["fx"]\n'
    )
    states = tmp_path / "states.npz"
    # f_x of the first link depends on q̈ of the second through sin q_2
    np.savez(states, q=np.zeros((2, 2)), qd=np.zeros((2, 2)), qdd=np.zeros((2, 2)), f=np.zeros((2, 2, 6)))
    line = error("solve", path, "--states", states, "--on-singular", policy, "--out", out, code=code)
    if policy != "raise":
        assert "2 of 2 states were not solved: 0, 1" in line
        with np.load(out) as found:
            assert not found["ok"].any() and np.isnan(found["qdd"]).any()
    else:
        assert not out.exists()


def test_diagnose_says_what_is_missing(tmp_path):
    assert "well posed" in run("diagnose", ROBOT).stdout
    path = tmp_path / "ill.toml"
    path.write_text(f'robot = "{ROBOT}"\n[[measurement]]\ntype = "ExternalWrench"\n')
    text = run("diagnose", path, code=NOT_SOLVED).stdout
    assert "ill posed" in text and "qdd(joint0)" in text
    assert "too few equations" in error("solve", path, "--random", 1)


@pytest.mark.slow
def test_flops_lists_every_order_in_both_scopes():
    result = run("flops", ROBOT, "--problem", "inverse")
    solver = sd.compile(sd.inverse_dynamics(sd.chain(3)), "rnea", ["tau"])
    rows = [line.split() for line in result.stdout.splitlines()]
    found = [row for row in rows if row and row[0] == "rnea"]
    totals = [int(row[4].replace(",", "")) for row in found]
    assert totals == [solver.flops.solve.total, solver.flops.end_to_end.total]
    refused = {row[0].removesuffix(":") for row in rows if row[1:3] == ["not", "applicable:"]}
    assert refused == {"symmetric"} and {row[0] for row in rows if row} | refused >= set(ALL_ORDERINGS)
    assert "RNEA, reference" in result.stdout and "triangular" in result.stdout
    assert "rnea: not applicable: ordering 'rnea' is for inverse dynamics" in run("flops", ROBOT).stdout


def test_plot_and_report(tmp_path):
    out = tmp_path / "matrix.png"
    text = run("plot", ROBOT, "--problem", "inverse", "--ordering", "rnea", "--out", out).stdout
    assert out.read_bytes().startswith(b"\x89PNG") and str(out) in text
    assert "'aba'" in run("report", ROBOT, "--ordering", "aba").stdout


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["", "pin", "icub-models"])
def test_the_demo_runs_and_leaves_two_pictures(missing, tmp_path, monkeypatch, request):
    if missing == "pin":
        monkeypatch.setitem(sys.modules, "pinocchio", None)
    elif missing:
        request.getfixturevalue("installed")
    text = run("demo", "--out", tmp_path / "pictures").stdout
    robot = "tree" if missing == "icub-models" else "icub"
    for word in (robot, "RNEA", "ABA", "1,000 random states", f"pip install {missing}" if missing else "pin "):
        assert word.lower() in text.lower()
    expected = [f"{robot}_forward.png", f"{robot}_inverse.png"]
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == expected


# ---- robots and options -------------------------------------------------------------------------------------------


def test_robots_are_listed():
    listed = run("robots").output.splitlines()
    assert listed[0].split() == ["name", "format", "file"]
    assert [line.split()[:2] for line in listed if line.startswith("icub ")] == [["icub", "URDF"]]


def test_a_robot_is_shown_in_a_file_or_the_browser(tmp_path, monkeypatch):
    pytest.importorskip("meshcat")
    page, states = tmp_path / "page.html", states_file(tmp_path / "states.csv", sd.forward_dynamics(sd.chain(3)))
    assert run("show", ROBOT, "--log", states, "--html", page).output == f"wrote {page}\n"
    assert "4 states: time is the number of the state" in page.read_text(encoding="utf-8")
    assert "exists: give another name, or --force" in error("show", ROBOT, "--html", page)
    assert "must end in .html" in error("show", ROBOT, "--html", tmp_path / "page.pdf")
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = Path(run("show", ROBOT).output.removeprefix("opened ").strip())
    assert opened.parent == tmp_path and "<!DOCTYPE html>" in opened.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments, needle",
    [
        (["info", "gone.urdf"], "gone.urdf"),
        (["info", "icbu"], "Did you mean 'icub'"),
        (["info", "auto_tree:six"], "auto_tree:N"),
        (["info", "auto_tree:2,1,1,1,1"], "auto_tree:N"),
        (["info", "auto_tree:0"], "≥ 1"),
        (["info", "chain:2", "--base", "floating"], "fixed base"),
        (["info", "chain:2", "--base", "flaoting"], "'floating'"),
        (["info", "robot.xml"], "No such file"),
        (["solve", ROBOT], "--states FILE or --random N"),
        (["solve", ROBOT, "--random", "1", "--states", "x.csv"], "not both"),
        (["solve", ROBOT, "--random", "1", "--problem", "froward"], "'forward'"),
        (["solve", ROBOT, "--random", "1", "--problem", "hybrid"], "--torque"),
        (["solve", ROBOT, "--random", "1", "--problem", "forward", "--torque", "joint0"], "hybrid"),
        (["solve", ROBOT, "--random", "1", "--torque", "joint7"], "'joint7'"),
        (["solve", ROBOT, "--random", "1", "--ordering", "umpfack"], "'umfpack'"),
        (["solve", ROBOT, "--random", "1", "--ordering", "rnea"], "'rnea' is for inverse dynamics"),
        (["solve", ROBOT, "--random", "1", "--outputs", "tua"], "'tau'"),
        (["solve", ROBOT, "--random", "1", "--outputs", ","], "no output"),
        (["solve", ROBOT, "--random", "1", "--on-singular", "pivot"], "raise, nan"),
        (["solve", ROBOT, "--random", "1", "--out", "result.txt"], ".csv, .npz, .parquet, .h5"),
        (["solve", ROBOT, "--random", "1", "--out", "gone/result.csv"], "folder gone does not exist"),
        (["solve", ROBOT, "--states", "gone.csv"], "cannot be read"),
        (["solve", ROBOT, "--states", "states.xls"], ".csv, .npz, .parquet"),
        (["solve", ROBOT, "--random", "1", "--velocities", "difference"], "--log"),
        (["solve", ROBOT, "--random", "1", "--missing", "skip"], "--states"),
        (["plot", ROBOT, "--out", "picture.bmp"], ".png"),
        (["plot", ROBOT, "--out", "gone/picture.png"], "does not exist"),
        (["solve", "problem.toml", "--random", "1", "--problem", "inverse"], "--problem cannot be given"),
        (["solve", "gone.toml", "--random", "1"], "cannot be read"),
    ],
)
def test_wrong_options(tmp_path, monkeypatch, arguments, needle):
    monkeypatch.chdir(tmp_path)
    assert needle in error(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_and_packages_that_are_missing(tmp_path, installed):
    (tmp_path / "file").write_text("")
    (tmp_path / "taken.csv").mkdir()
    assert "cannot be made" in error("demo", "--out", tmp_path / "file")
    assert "cannot be written" in error("solve", ROBOT, "--random", 1, "--out", tmp_path / "taken.csv", "--force")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken.csv"]
    assert "pip install icub-models" in error("info", "icub")


# ---- states files -------------------------------------------------------------------------------------------------


def test_columns_have_other_names_in_files(tmp_path):
    """Of the problem file, and of one more; for states and for logs; what is unknown is named once."""
    task, names, path, out = (tmp_path / x for x in ("task.toml", "names.toml", "log.csv", "out.csv"))
    task.write_text(
        f'robot = "{ROBOT}"\nproblem = "inverse"\n'
        '[columns]\n"/joint_states/position[0]" = "q.joint0"\nelbow = "q:joint1"\n'
    )
    names.write_text('wrist = "q.joint2"\n"ambient" = ""\n')
    header = ["t", "/joint_states/position[0]", "elbow", "wrist", *(f"qd.joint{k}" for k in range(3))]
    header += [*(f"qdd:joint{k}" for k in range(3)), "ambient", "comment"]
    x = np.random.default_rng(0).standard_normal((3, 10))
    x[:, 0] = [0.0, 0.1, 0.2]
    lines = [",".join(header), *(",".join([*map(repr, row), "21.5", "warm"]) for row in x.tolist())]
    path.write_text("\n".join(lines))
    expected = sd.rnea(sd.chain(3), x[:, 1:4], x[:, 4:7], x[:, 7:])
    for option in ("--states", "--log"):
        result = run("solve", task, option, path, "--columns", names, "--out", out, "--force")
        assert result.stderr == f"warning: {path}: ignored columns that this problem does not have: comment\n"
        rows = [line.split(",") for line in out.read_text().splitlines()]
        at = rows[0].index("tau:joint0")
        np.testing.assert_allclose(np.array([row[at : at + 3] for row in rows[1:]], dtype=float), expected, rtol=1e-9)
    assert "lacks the columns q.joint2" in error("solve", task, "--states", path)
    names.write_text('wrist = "q.joint7"\n')
    assert f"{names} line 1: unknown column" in error("solve", task, "--states", path, "--columns", names)


def test_velocities_that_are_not_logged(tmp_path):
    t, path = np.arange(20) * 0.01, tmp_path / "log.npz"
    np.savez(path, t=t, q=np.outer(t**2, [1, 2, 3]), qdd=np.tile([2.0, 4.0, 6.0], (20, 1)))
    command = ["solve", ROBOT, "--problem", "inverse", "--log", path]
    assert "lacks the columns qd.joint0" in error(*command)
    result = run(*command, "--velocities", "difference", "--out", tmp_path / "out.npz")
    assert "warning" in result.stderr and "group delay of 0 s" in result.stderr
    q, qd = np.outer(t**2, [1, 2, 3]), np.outer(2 * t, [1, 2, 3])
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["tau"], sd.rnea(sd.chain(3), q, qd, [2, 4, 6]), rtol=1e-7, atol=1e-9)


def test_outputs_that_exist_are_kept(tmp_path):
    """`test_losses.py` has what happens to those of solve."""
    taken = tmp_path / "matrix.png"
    taken.write_text("mine")
    assert "--force" in error("plot", ROBOT, "--out", taken) and taken.read_text() == "mine"
    assert "--force" in error("export", ROBOT, "--out", tmp_path) and [*tmp_path.iterdir()] == [taken]
    results = tmp_path / "results"
    results.mkdir()
    (results / "fig1.csv").write_text("mine")
    assert "--force" in error("reproduce", "fig1", "--quick", "--out", results)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "icub_forward.png").write_text("mine")
    assert "--force" in error("demo", "--out", pictures)


SHAPES = {
    "q": ({"q": np.zeros((1, 3)), "qd": np.zeros((1, 2)), "tau": np.zeros((1, 2))}, "array 'q' has shape (1, 3)"),
    "states": ({"q": np.zeros((4, 2)), "qd": np.zeros((3, 2)), "tau": np.zeros((4, 2))}, "qd 3"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_states_of_another_shape(tmp_path, case):
    arrays, needle = SHAPES[case]
    path = tmp_path / "states.npz"
    np.savez(path, **arrays)
    assert needle in error("solve", "chain:2", "--states", path)


@pytest.mark.parametrize("name, payload", [("states.csv", b"q:joint0\n"), ("states.npz", b"PK\x03\x04 damaged")])
def test_malformed_states_are_one_line(tmp_path, name, payload):
    """`tests/data/test_states.py` has everything that can be wrong with them."""
    path = tmp_path / name
    path.write_bytes(payload)
    assert str(path) in error("solve", "chain:2", "--states", path)


def test_the_cache_is_shown_and_cleared(monkeypatch, tmp_path):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SYSDYN_CACHE_LIMIT", "7")
    assert f"{tmp_path / 'cache'}: 0 entries, 0.0 of at most 7 MiB" in run("cache").stdout
    run("solve", ROBOT, "--problem", "inverse", "--random", 1)
    kept = len(list((tmp_path / "cache").iterdir()))
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    assert kept >= 2 and f": {kept} entries, 0." in run("cache").stdout
    assert ": 0 entries" in run("cache", "--clear").stdout
    assert [x.name for x in (tmp_path / "cache").iterdir()] == ["notes.txt"]
    monkeypatch.setenv("SYSDYN_CACHE", "")
    assert "no cache" in run("cache", "--clear").stdout
