"""Sensors that a robot description declares: against what MuJoCo's sensors show, and the estimate of a squat."""

from __future__ import annotations

import functools
from pathlib import Path

import mujoco
import numpy as np
import pytest
from lxml import etree
from oracles import MuJoCo, icub, icub_urdf
from scipy.spatial.transform import Rotation

import sysdyn as sd
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.model.joints import Fixed

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import squat

FORCE_TORQUE = tuple(f"{side}_{limb}_ft" for side in "lr" for limb in ("arm", "leg", "foot"))


@functools.cache
def model() -> sd.Model:
    return icub("floating", "sensors")


def shown(q, qd, qdd, fx) -> dict[str, np.ndarray]:
    """{name: value} of every sensor that MuJoCo has of the URDF's <sensor> elements."""
    mj, elements, _ = squat.robot(icub_urdf())
    oracle = MuJoCo(model(), icub_urdf())
    oracle.mj, oracle.data = mj, mujoco.MjData(mj)
    oracle.put(q, qd)
    oracle.data.qacc[:] = oracle.acceleration_to(qd, qdd)
    for i, body in enumerate(oracle.body):
        R, com = oracle.data.xmat[body].reshape(3, 3), mj.body_ipos[body]
        n, f = fx[i][:3], fx[i][3:]
        oracle.data.xfrc_applied[body] = np.concatenate([R @ f, R @ (n - np.cross(com, f))])
    mujoco.mj_inverse(mj, oracle.data)
    names = {mj.sensor(k).name.rpartition(".")[0] for k in range(mj.nsensor)}
    assert names == {e.get("name") for e in elements if e.get("type") in ("force_torque", "accelerometer")}
    return {name: squat.shown_values(mj, name, oracle.data.sensordata[None])[0] for name in names}


@pytest.mark.parametrize("seed", range(3))
def test_icub_s_sensors_show_what_mujoco_s_do(seed):
    """Every force/torque sensor and accelerometer of the iCub by its name, at random motions and external wrenches."""
    declared = sd.declared_sensors(model())
    problem = sd.Problem(model(), [sd.sensor(model(), name, noise=0.1) for name in declared])
    q, qd, qdd = model().random_state(seed=seed)
    fx = np.random.default_rng(seed).uniform(-20.0, 20.0, (model().nb, 6))
    found, expected = sd.predict(problem, q, qd, qdd, fx), shown(q, qd, qdd, fx)
    assert set(FORCE_TORQUE) < set(expected) <= set(found) and len(expected) >= 30
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-8 * np.abs(value).max(), err_msg=name)


def test_a_model_keeps_the_fixed_joints_of_its_force_torque_sensors():
    kept = {name for name, j in zip(model().joint_names, model().joints, strict=True) if isinstance(j, Fixed)}
    assert kept == {f"{name}_sensor" for name in FORCE_TORQUE}
    assert model().nv == icub("floating").nv
    m = sd.sensor(model(), "l_foot_ft", ["fz"], noise=0.5)
    assert (m.name, m.joint, m.side, m.chosen, m.units, m.noise) == (
        "l_foot_ft", "l_foot_ft_sensor", "parent", ("fz",), ("N",), 0.5
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=r"'l_foot_ft' is on the fixed joint 'l_foot_ft_sensor'.*has lumped"):
        sd.sensor(icub("floating"), "l_foot_ft")


ARM = """<robot name="arm">
<link name="root"/>
<link name="upper"><inertial><origin xyz="0.1 0.2 0.3"/><mass value="2"/>
<inertia ixx="1" iyy="1.2" izz="0.9" ixy="0.1" ixz="0" iyz="0"/></inertial></link>
<link name="lower"><inertial><origin xyz="0 0.1 -0.3"/><mass value="1"/>
<inertia ixx="0.5" iyy="0.4" izz="0.3" ixy="0" ixz="0.05" iyz="0"/></inertial></link>
<joint name="shoulder" type="continuous"><parent link="root"/><child link="upper"/><axis xyz="0 1 0"/>
<origin xyz="0 0.3 0.2" rpy="-0.5 0 0.8"/></joint>
<joint name="elbow" type="continuous"><parent link="upper"/><child link="lower"/><axis xyz="1 0 0"/>
<origin xyz="0.4 0.1 0" rpy="0.3 0.2 0.1"/></joint>
{}</robot>"""


@pytest.mark.parametrize("direction", [None, "child_to_parent", "parent_to_child"])
@pytest.mark.parametrize("frame", [None, "child", "parent", "sensor"])
def test_frames_and_directions_of_force_torque_sensors(frame, direction):
    """Against the wrench across the joint, turned by hand: y = X^{−T} f, X from the child to where it is measured."""
    settings = "".join(f"<{k}>{x}</{k}>" for k, x in (("frame", frame), ("measure_direction", direction)) if x)
    sensor = f"""<sensor name="ft" type="force_torque"><parent joint="elbow"/>
<origin xyz="0.05 -0.02 0.1" rpy="0.4 -0.7 1.1"/><force_torque>{settings}</force_torque></sensor>"""
    arm = sd.load_urdf(ARM.format(sensor))
    q, qd, qdd = arm.random_state(seed=1)
    problem = sd.Problem(arm, [sd.sensor(arm, "ft"), sd.JointWrench("lower", name="f")])
    found = sd.predict(problem, q, qd, qdd)
    f = found["f"] if direction == "parent_to_child" else -found["f"]
    child, parent = sd.frame_pose(arm, q, "lower"), sd.frame_pose(arm, q, "upper")
    target = {"parent": parent, "sensor": child @ _pose(XYZ, RPY)}.get(frame or "child", child)
    T = np.linalg.inv(target) @ child
    force = T[:3, :3] @ f[3:]
    np.testing.assert_allclose(found["ft"][3:], force, atol=1e-12)
    np.testing.assert_allclose(found["ft"][:3], T[:3, :3] @ f[:3] + np.cross(T[:3, 3], force), atol=1e-12)


XYZ, RPY = (0.05, -0.02, 0.1), (0.4, -0.7, 1.1)
POSE = " ".join(map(str, (*XYZ, *RPY)))
DEGREES = " ".join(map(repr, (*XYZ, *np.degrees(RPY).tolist())))
# Ways to place a sensor on link "lower", and the frame in which its pose is given.
PLACES = {
    "origin": ('<origin xyz="0.05 -0.02 0.1" rpy="0.4 -0.7 1.1"/>', "lower"),
    "pose": (f"<pose>{POSE}</pose>", "lower"),
    "degrees": (f'<pose degrees="true">{DEGREES}</pose>', "lower"),
    "quaternion": ('<pose rotation_format="quat_xyzw">0.05 -0.02 0.1 {} {} {} {}</pose>', "lower"),
    "own link": (f'<pose relative_to="lower">{POSE}</pose>', "lower"),
    "joint": (f'<pose relative_to="elbow">{POSE}</pose>', "lower"),
    "parent": (f'<pose relative_to="upper">{POSE}</pose>', "upper"),
    "parent's joint": (f'<pose relative_to="shoulder">{POSE}</pose>', "upper"),
    "root": (f'<pose relative_to="root">{POSE}</pose>', "root"),
    "model": (f'<pose relative_to="__model__">{POSE}</pose>', "root"),
    "SDFormat 1.6": (f'<pose frame="upper">{POSE}</pose>', "upper"),
}


@pytest.mark.parametrize("gazebo", [False, True])
@pytest.mark.parametrize("case", PLACES)
def test_poses_of_sensors(case, gazebo):
    """Of the wrench of a joint and the acceleration of a link, with poses that SDFormat resolves at q = 0."""
    place, base = PLACES[case]
    local = _pose(XYZ, RPY)
    place = place.format(*Rotation.from_matrix(local[:3, :3]).as_quat())
    text = ""
    for name, type, carrier, kind in (
        ("ft", "force_torque", "elbow", "joint"),
        ("acc", "accelerometer", "lower", "link"),
    ):
        content = f"{place}<force_torque><frame>sensor</frame></force_torque>" if type == "force_torque" else place
        parent = "" if gazebo else f'<parent {kind}="{carrier}"/>'
        sensor = f'<sensor name="{name}" type="{type}">{parent}{content}</sensor>'
        text += f'<gazebo reference="{carrier}">{sensor}</gazebo>' if gazebo else sensor
    arm = sd.load_urdf(ARM.format(text), strict=True)
    shoulder, elbow = _pose((0.0, 0.3, 0.2), (-0.5, 0.0, 0.8)), _pose((0.4, 0.1, 0.0), (0.3, 0.2, 0.1))
    to_lower = {"lower": np.eye(4), "upper": elbow, "root": shoulder @ elbow}[base]
    T = np.linalg.inv(to_lower) @ local  # the sensor in link "lower"
    q, qd, qdd = arm.random_state(seed=1)
    problem = sd.Problem(arm, [sd.sensor(arm, "ft"), sd.sensor(arm, "acc"), sd.Accelerometer(("lower", T), name="a"),
                               sd.JointWrench("lower", name="f")])  # fmt: skip
    found = sd.predict(problem, q, qd, qdd)
    R, f = T[:3, :3].T, -found["f"]
    np.testing.assert_allclose(found["ft"][3:], R @ f[3:], atol=1e-12)
    np.testing.assert_allclose(found["ft"][:3], R @ (f[:3] - np.cross(T[:3, 3], f[3:])), atol=1e-12)
    np.testing.assert_allclose(found["acc"], found["a"], atol=1e-12)


def _pose(xyz, rpy) -> np.ndarray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = _rpy(*rpy), xyz
    return T


def _rpy(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """Rz(yaw) Ry(pitch) Rx(roll)."""
    (cr, cp, cy), (sr, sp, sy) = np.cos([roll, pitch, yaw]), np.sin([roll, pitch, yaw])
    x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return z @ y @ x


ROBOT = """<robot name="arm"><link name="root"/><link name="arm"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="hinge" type="continuous"><parent link="root"/><child link="arm"/><axis xyz="0 0 1"/></joint>{}</robot>"""
WRONG = {
    "misspelt": ('<sensor name="imu" type="accelerometer"><parent link="arm"/></sensor>', "inu", UnknownName, "'imu'"),
    "gyroscope on the base": ('<sensor name="imu" type="gyroscope"><parent link="root"/></sensor>', "imu",
                              InvalidInput, "fixed to the base"),
    "magnetometer": ('<sensor name="north" type="magnetometer"><parent link="arm"/></sensor>', "north", InvalidInput,
                     "in a field that the file does not tell"),
    "camera": ('<sensor name="eye" type="camera"><parent link="arm"/></sensor>', "eye", InvalidInput, "type 'camera'"),
    "on the base": ('<sensor name="imu" type="accelerometer"><parent link="root"/></sensor>', "imu", InvalidInput,
                    "fixed to the base"),
    "on a joint": ('<sensor name="imu" type="accelerometer"><parent joint="hinge"/></sensor>', "imu", InvalidInput,
                   "declared on the joint"),
    "unknown frame": ('<sensor name="ft" type="force_torque"><parent joint="hinge"/><force_torque><frame>world</frame>'
                      "</force_torque></sensor>", "ft", UnknownName, "frame of sensor 'ft': 'world'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_measured_is_said(case):
    text, name, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        sd.sensor(sd.load_urdf(ROBOT.format(text)), name)


@pytest.mark.parametrize(
    ("measures", "kind"),
    [
        (None, sd.Accelerometer),
        ("Accelerometer", sd.Accelerometer),
        ("Gyroscope", sd.Gyroscope),
        ("FrameAttitude", sd.FrameAttitude),
    ],
)
def test_an_imu_measures_several_things(measures, kind):
    robot = sd.load_urdf(ROBOT.format('<sensor name="imu" type="imu"><parent link="arm"/></sensor>'))
    m = sd.sensor(robot, "imu", noise=0.1, bias=sd.RandomWalk(1e-4), measures=measures)
    assert type(m) is kind and m.drift == sd.RandomWalk(1e-4)
    assert m.name == ("imu" if kind is sd.Accelerometer else f"imu {measures}")
    with pytest.raises(UnknownName, match="measures= of 'imu': 'Odometer'"):
        sd.sensor(robot, "imu", measures="Odometer")


# ---- MJCF files ----------------------------------------------------------------------------------------------------

MJCF = """<mujoco><compiler angle="degree"/>
<option magnetic="0.2 -0.3 0.4"><flag contact="disable"/></option><worldbody>
<body name="trunk" pos="0 0 1"><freejoint name="root"/>
<geom name="box" size="0.1 0.2 0.3" type="box" pos="0.1 0.2 0.3" euler="10 20 30"/>
<site name="imu" pos="0.1 0 0.2" euler="20 30 40"/>
<body name="leg" pos="0 0.3 0"><joint name="hip" axis="0 1 1" pos="0.1 0 0.2"/><joint name="slide" type="slide"/>
<geom size="0.1 0.2 0.3" type="box" pos="0.3 0 0"/><camera name="eye" pos="0 0 1" euler="40 0 0"/>
<body name="foot" pos="0.1 0 -0.4" euler="0 30 0"><site name="sole" pos="0 0 -0.1"/>
<geom size="0.1" pos="0 0.1 0"/></body></body></body></worldbody>
<sensor><gyro name="gyro" site="imu"/><velocimeter site="sole" name="speed"/><accelerometer name="acc" site="sole"/>
<magnetometer name="north" site="imu"/><jointpos name="angle" joint="hip"/><jointpos name="stroke" joint="slide"/>
<jointvel joint="hip"/><framepos name="centre" objtype="body" objname="leg"/>
<framepos name="origin" objtype="xbody" objname="foot"/><framequat name="attitude" objtype="site" objname="imu"/>
<framequat name="tilt" objtype="camera" objname="eye"/><framelinvel name="flow" objtype="geom" objname="box"/>
<frameangvel name="turn" objtype="site" objname="imu"/>
<framepos name="relative" objtype="body" objname="leg" reftype="body" refname="trunk"/>
<touch name="touch" site="sole"/></sensor></mujoco>"""


@pytest.mark.parametrize("seed", range(3))
def test_sensors_of_mjcf_files_show_what_mujoco_s_do(seed):
    mj = mujoco.MjModel.from_xml_string(MJCF)
    robot, data = sd.from_mujoco(mj), mujoco.MjData(mj)
    state = sd.MujocoState(mj)
    rng = np.random.default_rng(seed)
    data.qpos[:] = rng.uniform(-0.5, 0.5, mj.nq)
    data.qpos[3:7] = (x := rng.standard_normal(4)) / np.linalg.norm(x)
    data.qvel[:], data.qacc[:] = rng.standard_normal(mj.nv), rng.standard_normal(mj.nv)
    qvel, qacc = data.qvel.copy(), data.qacc.copy()
    mujoco.mj_inverse(mj, data)
    mujoco.mj_sensorPos(mj, data), mujoco.mj_sensorVel(mj, data)
    data.qacc[:] = qacc
    mujoco.mj_rnePostConstraint(mj, data)
    mujoco.mj_sensorAcc(mj, data)
    q, qd = state.to_sysdyn(data.qpos, qvel)
    qdd = state.acceleration_to_sysdyn(data.qpos, qvel, qacc)
    declared = sd.declared_sensors(robot)
    assert set(declared) == {mj.sensor(k).name or "jointvel6" for k in range(mj.nsensor)} - {"relative", "touch"}
    problem = sd.Problem(robot, [sd.sensor(robot, name, noise=0.1) for name in declared])
    found = sd.predict(problem, q, qd, qdd, state_sensors=True)
    for k in range(mj.nsensor):
        name = mj.sensor(k).name or "jointvel6"
        if name not in declared:
            continue
        expected = data.sensordata[mj.sensor_adr[k] :][: mj.sensor_dim[k]]
        if mj.sensor_dim[k] == 4:
            turn = np.empty(3)
            mujoco.mju_quat2Vel(turn, expected, 1.0)
            expected = turn
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-9, err_msg=name)


def test_mjcf_sensors_that_are_no_measurements_say_why():
    robot = sd.from_mujoco(mujoco.MjModel.from_xml_string(MJCF))
    with pytest.raises(InvalidInput, match="'relative' cannot be used: it is relative to another frame"):
        sd.sensor(robot, "relative", noise=1.0)
    with pytest.raises(InvalidInput, match="'touch' is a sensor of type 'touch'; there are measurements for"):
        sd.sensor(robot, "touch", noise=1.0)
    with pytest.raises(InvalidInput, match="'centre' is a FramePosition, which has no reference"):
        sd.sensor(robot, "centre", noise=1.0, reference="world")
    again = sd.Model.from_dict(robot.to_dict())
    assert [(s.name, s.type, s.parent, s.fault) for s in again.sensors] == [
        (s.name, s.type, s.parent, s.fault) for s in robot.sensors
    ]
    assert dict(again.sensors[3].attributes) == {"magnetic": "0.2 -0.3 0.4"}


# ---- the squat of experiments/benchmarks/squat.py, of the legs alone ------------------------------------------------

UPPER_BODY = ("torso_pitch",)


@functools.cache
def legs() -> tuple[sd.Problem, squat.Squat]:
    mj, _, text = squat.robot(icub_urdf(), UPPER_BODY)
    robot = sd.load_urdf(text, base="floating", fixed_joints="sensors")
    names = [f"{side}_{limb}_ft" for side in "lr" for limb in ("leg", "foot")]
    accelerometer = next(n for n, s in sd.declared_sensors(robot).items() if s.type == "accelerometer")
    hinges = [n for n, j in zip(robot.joint_names, robot.joints, strict=True) if j.nv == 1]
    free = [name for name in robot.body_names if name not in squat.FEET]
    wrench = [0.05, 0.05, 0.05, 0.5, 0.5, 0.5]
    problem = sd.Problem(robot, [
        sd.ExternalWrench(free, name="no contact"), sd.JointTorque("root_joint", name="no motor"),
        sd.Prior(sd.ExternalWrench(squat.FEET, noise=1e3)), sd.Prior(sd.JointAcceleration("root_joint", noise=1e2)),
        sd.JointAcceleration(hinges, name="encoders", noise=0.2), sd.sensor(robot, accelerometer, noise=0.05),
        *(sd.sensor(robot, name, noise=wrench) for name in names),
    ])  # fmt: skip
    return problem, squat.simulate(mj, 300, (accelerometer, *names))


@pytest.mark.slow
def test_error_bars_of_a_squat_tell_the_truth():
    """Torques of MuJoCo lie in the 95 % band about 95 % of the time; without noise they are found."""
    problem, motion = legs()
    assert np.abs(motion.tau[:, :6]).max() < 1e-8  # no motor at the base, in MuJoCo
    q, qd, truth = squat.in_order_of(problem.model, motion)
    solver = sd.compile(problem, outputs=["tau"], level="fast")
    constant = {"no motor": np.zeros(6)}
    solution = solver(q, qd, y={**constant, **squat.noisy_log(problem, motion, seed=1)})
    found = squat.coverage(solution.tau[:, 6:], solution.std("tau")[:, 6:], truth[:, 6:])
    assert found.z.shape == (300, 12)
    assert 0.93 < found.within_95 < 0.97 and 0.99 < found.within_3 < 0.9999
    assert np.all((found.z.std(axis=0) > 0.85) & (found.z.std(axis=0) < 1.15))
    wrong = squat.coverage(solution.tau[:, 6:], 0.5 * solution.std("tau")[:, 6:], truth[:, 6:])
    assert wrong.within_95 < 0.75
    order = [motion.joints.index(name) for name in problem.model.joint_names if name in motion.joints]
    exact = solver(q, qd, y={**constant, **motion.sensors, "encoders": motion.qdd[:, 6:][:, order]})
    assert np.abs(exact.tau - truth).max() < 0.01  # but for what the priors pull


def test_cut_robots_lose_what_the_joints_carry():
    _, elements, text = squat.robot(icub_urdf(), UPPER_BODY)
    links = {link.get("name") for link in etree.fromstring(text).findall("link")}
    assert "l_foot" in links and not {"chest", "head", "l_hand"} & links
    assert {"l_foot_ft", "r_leg_ft"} <= {e.get("name") for e in elements} and "l_arm_ft" not in text
