"""Problem files: what they can state, and errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles import icub_urdf
from systems import kinds

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.errors import FileError, InvalidInput, ProblemError, SysdynError, UnknownName
from sysdyn.measurements.known_quantities import RawMeasurement

HEAD = """robot = "chain:3"
problem = "forward"
"""
MOTORS = """robot = "chain:3"

[[measurement]]
type = "JointTorque"
name = "motors"
"""
ICUB = 'robot = "icub"\nbase = "floating"\n'


def write(path, text: str):
    path.write_text(text, encoding="utf-8")
    return path


# ---- errors --------------------------------------------------------------------------------------------------------

# text, line of the mistake, kind of error, what the message says
WRONG = {
    "unknown key": (HEAD + 'orderng = "aba"\n', 3, UnknownName, r"unknown key 'orderng'\. Did you mean 'ordering'"),
    "noise of what has none": (
        MOTORS + '[[measurement]]\ntype = "Contact"\nframe = "body2"\nnoise = 0.1\n', 9, UnknownName, "key 'noise'"
    ),
    "unknown key of a frame": (
        MOTORS + '[[measurement]]\ntype = "LoadCells"\nframe = {body = "body2", xy = [0, 0]}\n', 8, UnknownName, "'xyz'"
    ),
    "wrong type": ('robot = "chain:3"\n\nproblem = 3\n', 3, FileError, "problem is 3, but a string is needed"),
    "wrong type of a value": (MOTORS + 'value = "none"\n', 6, FileError, "a number or a list"),
    "wrong type in lines above": (MOTORS + 'value = [\n 1,\n 2,\n]\nnoise = "low"\n', 10, FileError, "noise is 'low'"),
    "a truth value is no number": (MOTORS + "noise = true\n", 6, FileError, "noise is True"),
    "wrong type of a unit": (MOTORS + "[units]\nmotors = 3\n", 7, FileError, "a string or a list is needed"),
    "a measurement is no table": ('robot = "chain:3"\nmeasurement = [3]\n', 2, FileError, r"\[\[measurement\]\]"),
    "missing argument": (MOTORS + '\n[[measurement]]\ntype = "LoadCells"\n', 7, FileError, "LoadCells needs frame"),
    "wrong shape": (
        MOTORS + '[[measurement]]\ntype = "LoadCells"\nframe = {body = "body2", xyz = [0, 0]}\n', 8, InvalidInput,
        r"xyz has shape \(2,\), but \(3,\)",
    ),
    "gravity": ('robot = "chain:3"\ngravity = [0, 1]\nproblem = "forward"\n', 2, InvalidInput, "gravity has shape"),
    "unknown robot": ('# a comment\nrobot = "chian:3"\nproblem = "forward"\n', 2, InvalidInput, "mean 'chain:N'"),
    "unknown base": ('robot = "icub"\nbase = "floting"\nproblem = "forward"\n', 2, UnknownName, "'floating'"),
    "unknown frame": (
        ICUB + '[[measurement]]\ntype = "Accelerometer"\nnoise = 0.1\nframe = "l_sol"\n', 6, UnknownName,
        "unknown frame 'l_sol'. Did you mean 'l_sole'",
    ),
    "unknown sensor": (
        ICUB + '[[measurement]]\ntype = "declared"\nsensor = "l_foot_fz"\nnoise = 1\n', 5, UnknownName,
        "unknown declared sensor 'l_foot_fz'. Did you mean 'l_foot_ft'",
    ),
    "unknown joint in a list": (
        'robot = "chain:3"\n[[measurement]]\ntype = "JointTorque"\ntargets = [\n  "joint0",\n  "jiont1",\n]\n', 6,
        UnknownName, "Did you mean 'joint1'",
    ),
    "unknown exception": (
        'robot = "chain:3"\n[[measurement]]\ntype = "ExternalWrench"\nexcept = ["body0", "bodi1"]\n', 4, UnknownName,
        "unknown body 'bodi1'. Did you mean 'body1'",
    ),
    "an exception of some": (
        MOTORS + 'targets = "joint1"\nexcept = "joint0"\n', 7, FileError, "except is from all"
    ),
    "an exception of a sensor": (
        MOTORS + '[[measurement]]\ntype = "LoadCells"\nframe = "body2"\nexcept = "body1"\n', 9, UnknownName, "'except'"
    ),
    "unknown component": (MOTORS + 'components = ["x"]\n', 6, UnknownName, "unknown component in 'motors': 'x'"),
    "unknown type": ('robot = "chain:3"\n\n[[measurement]]\ntype = "LoadCell"\n', 4, UnknownName, "'LoadCells'"),
    "unknown kind of contact": (
        MOTORS + '[[measurement]]\ntype = "Contact"\nframe = "body2"\nkind = "sole"\n', 9, UnknownName, "plane"
    ),
    "unknown ordering": (HEAD + 'ordering = "umpfack"\n', 3, UnknownName, "'umfpack'"),
    "unknown output": (HEAD + 'outputs = ["taw"]\n', 3, UnknownName, "'tau'"),
    "measured output of an unknown body": (
        HEAD + 'outputs = ["qdd",\n  {type = "Accelerometer", frame = "bodi2"}]\n', 4, UnknownName, "'body2'"
    ),
    "measured output with a value": (
        HEAD + 'outputs = [{type = "Accelerometer", frame = "body2", value = 1.0}]\n', 3, FileError,
        "an output has no value: it is computed",
    ),
    "output that is a prior": (
        HEAD + 'outputs = [{type = "JointTorque", noise = 1.0, prior = true}]\n', 3, ProblemError, "is a Prior"
    ),
    "unknown fixed joint": (ICUB + 'problem = "forward"\nfixed_joints = ["l_foot_ft_senser"]\n', 4, UnknownName,
                            "unknown fixed joint"),
    "fixed joints of a generated robot": (HEAD + 'fixed_joints = "keep"\n', 3, FileError, "has no fixed joints"),
    "negative deviation": (
        MOTORS + "noise = -0.1\n", 6, InvalidInput, "standard deviation of component 0 of 'motors' is -0.1"
    ),
    "asymmetric covariance": (
        MOTORS + "noise = [\n  [1, 2, 0],\n  [0, 1, 0],\n  [0, 0, 1],\n]\n", 6, InvalidInput,
        r"covariance of 'motors' is not symmetric: entry \(0, 1\) is 2, entry \(1, 0\) is 0",
    ),
    "wrong unit": (
        MOTORS + '[units]\nmotors = "N cm"\n', 7, InvalidInput, "'motors' is in N cm, but N m is needed"
    ),
    "wrong unit of one component": (
        MOTORS + '[[measurement]]\ntype = "LoadCells"\nframe = "body2"\nname = "cells"\n[units]\nq = "rad"\n'
        'cells = ["N m", "N m", "N m", "N", "kgf", "N"]\n', 12, InvalidInput, "'cells' is in kgf, but N is needed",
    ),
    "a column that there is not": (
        MOTORS + '[columns]\n"x" = "q.joint0"\n"y" = "q.jiont1"\n', 8, UnknownName, "Did you mean 'q.joint1'"
    ),
    "a column that is no name": (MOTORS + '[columns]\n"x" = 1\n', 7, FileError, "a string is needed"),
    "unit of what is not there": (MOTORS + '[units]\nmotor = "N m"\n', 7, UnknownName, "Did you mean 'motors'"),
    "stated twice": (
        MOTORS + '[[measurement]]\ntype = "JointTorque"\ntargets = ["joint0", "joint0"]\nname = "more"\n', 6,
        ProblemError, r"tau\(joint0\)",
    ),
    "named twice": (
        MOTORS + '[[measurement]]\ntype = "JointAcceleration"\nname = "motors"\n', 6, ProblemError, "'motors'"
    ),
    "value of a prior": (
        MOTORS + "noise = 1\nprior = true\nvalue = 3\n", 8, FileError, "a prior has a mean"
    ),
    "mean of no prior": (MOTORS + "mean = 3\n", 6, FileError, "everything else a value"),
    "too few values": (MOTORS + "value = [1, 2]\n", 6, InvalidInput, r"has shape \(2,\), but \(3,\)"),
    "prior without noise": (MOTORS + "prior = true\n", 3, ProblemError, "Prior needs noise"),
    "prior and switchable": (MOTORS + "noise = 1\nprior = true\nswitchable = true\n", 3, FileError, "either"),
    "unless of nothing switchable": (MOTORS + 'noise = 1\nunless = "foot"\n', 7, FileError, "add switchable = true"),
    "hybrid without torque": ('robot = "chain:2"\nproblem = "hybrid"\n', 2, InvalidInput, "torque"),
    "joint of a hybrid problem": (
        'robot = "chain:2"\nproblem = "hybrid"\ntorque = ["jiont0"]\n', 3, UnknownName, "'joint0'"
    ),
}  # fmt: skip


# text, kind of error, what the message says: of files as a whole
WRONG_FILES = {
    "not TOML": ("robot = \n", FileError, "TOML"),
    "not UTF-8": ('title = "\udce9"\n', FileError, "UTF-8"),
    "no robot": ('problem = "forward"\n', FileError, "robot = "),
    "no problem": ('robot = "chain:2"\n', FileError, "problem = "),
    "unknown problem": ('robot = "chain:2"\nproblem = "froward"\n', UnknownName, "'forward'"),
    "torque without hybrid": (HEAD + 'torque = ["joint0"]\n', FileError, "hybrid"),
    "measurement without type": ('robot = "chain:2"\n[[measurement]]\nname = "x"\n', FileError, "type = "),
    "missing robot file": ('robot = "gone.urdf"\nproblem = "forward"\n', sd.ModelError, "gone.urdf"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_wrong_files_are_named(tmp_path, case):
    text, kind, message = WRONG_FILES[case]
    path = tmp_path / "problem.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(kind, match=message) as caught:
        load_job(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_file_and_line(tmp_path, case):
    text, line, kind, message = WRONG[case]
    path = write(tmp_path / "problem.toml", text)
    with pytest.raises(kind, match=message) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path} line {line}: ")
    assert str(caught.value).count(str(path)) == 1


def test_lines_are_found_whatever_stands_around_them(tmp_path):
    """Values of several lines, headers in strings, quoted keys, comments, Windows line ends."""
    text = (
        'title = """\n[[measurement]]\nproblem = 3\n"""\r\nrobot = "chain:3" # [units]\r\n\r\n'
        '[[measurement]]\r\n"type" = "JointTorque"\r\nnoise = [\r\n  1, # ]\r\n  2,\r\n  3,\r\n]\r\n'
        '[[measurement]]\r\ntype = "JointAcceleration"\r\nnoise = [1, 2]\r\n'
    )
    path = tmp_path / "problem.toml"
    path.write_bytes(text.encode())
    with pytest.raises(InvalidInput) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path} line 16: ")


# ---- what is stated ------------------------------------------------------------------------------------------------


def test_a_file_states_what_the_classes_do(tmp_path):
    """Frames by name, by xyz and rpy, by matrix; full covariances; priors with a mean; blocks; contacts and loops."""
    path = write(
        tmp_path / "problem.toml",
        HEAD.replace("forward", "inverse")
        + """gravity = [0.0, -1.62, 0.0]
outputs = ["w", "tau"]

[[measurement]]
type = "Accelerometer"
frame = {body = "body1", xyz = [0.1, 0.2, 0.3], rpy = [0.0, 0.0, 1.5707963267948966]}
components = ["a_x", "a_z"]
noise = [[0.04, 0.01], [0.01, 0.09]]
name = "imu"

[[measurement]]
type = "LoadCells"
frame = {body = "body2", matrix = [[0, -1, 0, 0.1], [1, 0, 0, 0.2], [0, 0, 1, 0.3], [0, 0, 0, 1]]}
noise = 2
switchable = true
name = "cells"

[[measurement]]
type = "JointTorque"
noise = 30
prior = true
mean = [1, 2, 3]
name = "expected"

[[measurement]]
type = "Linear"
blocks = [
    {quantity = "tau", on = "joint0", matrix = [[1.0]]},
    {quantity = "f", on = "body2", matrix = [[0, 0, 1, 0, 0, 0]]},
]
bias = [0.5]
units = "N m"
noise = 0.1
name = "sum"
value = 4

[[measurement]]
type = "Contact"
frame = "body2"
kind = ["a_x", "a_y"]
name = "tip"
value = [0.0, 1.0]

[[measurement]]
type = "LoopJoint"
frame_a = "body2"
frame_b = {body = "body0", xyz = [0, 0, 1]}
kind = "cylindrical"
axis = "x"
name = "loop"

[[measurement]]
type = "JointCoupling"
joint = "joint2"
leader = "joint1"
coefficients = [0.1, 2]

[units]
q = "rad"
imu = "m/s^2"
expected = "Nm"
cells = ["N m", "N m", "N m", "N", "N", "N"]
tip = "m/s²"
""",
    )
    task = load_job(path)
    turn = np.array([[0.0, -1.0, 0.0, 0.1], [1.0, 0.0, 0.0, 0.2], [0.0, 0.0, 1.0, 0.3], [0.0, 0.0, 0.0, 1.0]])
    model = sd.chain(3).replace(gravity=(0.0, -1.62, 0.0))
    imu = sd.Accelerometer(("body1", turn), ("a_x", "a_z"), name="imu", noise=[[0.04, 0.01], [0.01, 0.09]])
    ahead = np.eye(4)
    ahead[2, 3] = 1.0
    blocks = {("tau", "joint0"): [[1.0]], ("f", "body2"): [[0, 0, 1, 0, 0, 0]]}
    expected = sd.inverse_dynamics(model) + [
        imu, sd.Switchable(sd.LoadCells(("body2", turn), name="cells", noise=2.0)),
        sd.Prior(sd.JointTorque(noise=30.0, name="expected"), "expected"),
        sd.Linear(blocks, [0.5], name="sum", units="N m", noise=0.1), sd.Contact("body2", ("a_x", "a_y"), name="tip"),
        sd.LoopJoint("body2", ("body0", ahead), "cylindrical", "x", name="loop"),
        sd.JointCoupling("joint2", "joint1", (0.1, 2.0)),
    ]  # fmt: skip
    found = task.problem.to_dict()
    place = found["measurements"][2]["frame"][1]
    np.testing.assert_allclose(place, turn, atol=1e-15)  # cos(π/2) is not quite zero
    found["measurements"][2]["frame"][1] = turn.tolist()
    assert found == expected.to_dict()
    assert task.outputs == ("tau", "w") and task.kind == "measurements"
    assert {name: x.tolist() for name, x in task.values.items()} == {
        "expected": [1, 2, 3], "sum": [4], "tip": [0, 1]
    }  # fmt: skip


def test_outputs_that_are_measurements(tmp_path):
    text = HEAD + 'outputs = [{type = "MomentumRate", name = "h"}, "qdd", {type = "Accelerometer", frame = "body2"}]\n'
    path = write(tmp_path / "problem.toml", text)
    qdd, momentum, imu = load_job(path).requested
    assert isinstance(momentum, sd.MomentumRate) and momentum.name == "h" and qdd == "qdd"
    assert isinstance(imu, sd.Accelerometer) and imu.frame == "body2"


def test_all_targets_but_some(tmp_path):
    text = MOTORS + 'except = "joint1"\n[[measurement]]\ntype = "ExternalWrench"\nexcept = ["body0", "body2"]\n'
    motors, wrenches = load_job(write(tmp_path / "problem.toml", text)).problem.measurements
    assert motors.targets == ("joint0", "joint2") and wrenches.targets == ("body1",)


def test_a_foot_in_the_air(tmp_path):
    text = (
        MOTORS
        + """
[[measurement]]
type = "Stance"
frame = "body2"
noise = 1e-3
name = "foot"
[[measurement]]
type = "ExternalWrench"
targets = "body2"
noise = 1.0
name = "air"
switchable = true
unless = "foot"
"""
    )
    assert load_job(write(tmp_path / "problem.toml", text)).problem.swing_measurements == {"air": "foot"}


def test_every_kind_of_measurement_can_be_stated():
    public = {name for name in sd.__all__ if isinstance(getattr(sd, name), type)}
    public = {name for name in public if issubclass(getattr(sd, name), sd.Measurement)}
    assert set(kinds()) == public - {"Measurement", "Constraint", "StateFunction", "StateMeasurement"}


@pytest.mark.parametrize("kind", sorted(set(kinds(RawMeasurement)) - {"Known"}))
def test_every_raw_measurement_can_be_stated(kind, tmp_path):
    path = write(tmp_path / "m.toml", f'robot = "chain:3"\n[[measurement]]\ntype = "{kind}"\nname = "m"\n')
    (m,) = load_job(path).problem.measurements
    assert type(m) is getattr(sd, kind) and m.name == "m"


def test_robots_are_relative_to_the_file_and_keep_the_joints_of_their_sensors(tmp_path):
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "icub.urdf").write_bytes(Path(icub_urdf()).read_bytes())
    text = 'robot = "robots/icub.urdf"\nbase = "floating"\n'
    sensor = '[[measurement]]\ntype = "declared"\nsensor = "l_foot_ft"\nnoise = 0.1\n'
    path = write(tmp_path / "problem.toml", text + sensor)
    (m,) = load_job(path).problem.measurements
    assert m.name == "l_foot_ft" and isinstance(m, sd.ForceTorqueSensor)
    lumped = sd.load(icub_urdf(), base="floating")
    names = load_job(path).problem.model.joint_names
    assert set(names) - set(lumped.joint_names) == {"l_foot_ft_sensor"}
    with pytest.raises(SysdynError, match="line 4: .*has lumped"):
        load_job(write(path, text + 'fixed_joints = "lump"\n' + sensor))
    with pytest.raises(sd.ModelError, match="line 1: .*gone.urdf"):
        load_job(write(path, 'robot = "robots/gone.urdf"\nproblem = "forward"\n'))
