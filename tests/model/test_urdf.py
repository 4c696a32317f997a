"""URDF: what is read, every way a file can be wrong, and agreement with Pinocchio on iCub."""

import math
import re

import icub_models
import numpy as np
import pinocchio as pin
import pytest

import sysdyn as sd
from sysdyn.errors import FormatWarning, IgnoredWarning, InvalidInput, ModelError, PlausibilityWarning, UnknownName
from sysdyn.measurements.declared import declared_sensors, sensor
from sysdyn.model import (
    Fixed,
    Free,
    Planar,
    Prismatic,
    Revolute,
    auto_tree,
    chain,
    forward_kinematics,
    frame_transform,
    joint_transforms,
    load,
    load_urdf,
    random_tree,
    read_urdf,
    velocities,
)
from sysdyn.model.closures import Coupling
from sysdyn.model.inertia import inertia, transform_inertia
from sysdyn.model.se3 import X_motion, rotation, rotx, roty, rotz, translation

INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'


def robot(*elements, name="r"):
    """URDF text with each element on its own line: the first in line 2."""
    return "\n".join([f'<robot name="{name}">', *elements, "</robot>"])


def link(name, content=""):
    return f'<link name="{name}">{content}</link>'


def joint(name, parent, child, content="", type="revolute"):
    return f'<joint name="{name}" type="{type}"><parent link="{parent}"/><child link="{child}"/>{content}</joint>'


PAIR = (link("a"), link("b", INERTIAL))

# ---- what is read -------------------------------------------------------------------------------------------------

TREE = robot(
    link("root", INERTIAL),
    link("arm", INERTIAL),
    link("tool", INERTIAL),
    link("tip"),
    link("leg", INERTIAL),
    link("plate", INERTIAL),
    link("ball", INERTIAL),
    link("camera"),
    joint("shoulder", "root", "arm", '<origin xyz="0 0 0.5" rpy="0 0 1.5707963267948966"/><axis xyz="0 0 2"/>'
          '<limit lower="-1" upper="2" effort="30" velocity="4"/><dynamics damping="0.7" friction="0.2"/>'),
    joint("hip", "root", "leg", '<axis xyz="0 -1 0"/>', "prismatic"),
    joint("weld", "arm", "tool", '<origin xyz="0.1 0 0" rpy="1.5707963 0 0.3"/>', "fixed"),
    joint("wheel", "tool", "plate", '<limit effort="2" velocity="3" lower="-9" upper="9"/>', "continuous"),
    joint("weld2", "tool", "tip", '<origin xyz="0 0 1"/>', "fixed"),
    joint("slide", "leg", "ball", '<axis xyz="0 0 1"/>', "planar"),
    joint("eye", "root", "camera", '<origin xyz="0 2 0"/>', "fixed"),
)  # fmt: skip


def test_bodies_are_the_child_links_depth_first():
    m = load_urdf(TREE)
    assert m.name == "r" and m.body_names == ("arm", "plate", "leg", "ball")
    assert m.joint_names == ("shoulder", "wheel", "hip", "slide") and m.parent == (-1, 0, -1, 2)
    assert m.joints == (Revolute(), Revolute((1, 0, 0)), Prismatic((0, -1, 0)), Planar())
    inf = math.inf
    np.testing.assert_array_equal(m.lower, [-1, -inf, -inf, -inf, -inf, -inf])
    np.testing.assert_array_equal(m.upper, [2, inf, inf, inf, inf, inf])
    np.testing.assert_array_equal(m.effort_limit, [30, 2, inf, inf, inf, inf])
    np.testing.assert_array_equal(m.velocity_limit, [4, 3, inf, inf, inf, inf])
    np.testing.assert_array_equal(m.gravity, [0, 0, -9.81])
    assert tuple(m.frames) == ("root", "arm", "tool", "plate", "tip", "leg", "ball", "camera")
    assert [m.frames[n].body for n in ("root", "camera", "arm", "tool", "tip")] == [-1, -1, 0, 0, 0]
    np.testing.assert_allclose(translation(m.frames["camera"].X), [0, 2, 0])


def test_placements_and_lumped_inertias():
    m = load_urdf(TREE)
    np.testing.assert_array_equal(rotation(m.X_tree[0]), [[0, 1, 0], [-1, 0, 0], [0, 0, 1]])
    to_tool = X_motion((rotx(1.5707963) @ rotz(0.3)), np.array([0.1, 0, 0]))
    np.testing.assert_allclose(m.frames["tool"].X, to_tool, atol=1e-15)
    np.testing.assert_allclose(m.X_tree[1], to_tool, atol=1e-15)
    np.testing.assert_allclose(m.frames["tip"].X, X_motion(np.eye(3), np.array([0, 0, 1.0])) @ to_tool, atol=1e-15)
    own = inertia(1.0, np.zeros(3), np.eye(3))
    np.testing.assert_allclose(m.inertias[0], own + transform_inertia(own, to_tool), atol=1e-15)
    np.testing.assert_allclose(m.mass, 5.0)


def test_kept_fixed_joints():
    m = load_urdf(TREE, fixed_joints="keep")
    assert m.body_names == ("arm", "tool", "plate", "tip", "leg", "ball", "camera")
    assert m.joint_names == ("shoulder", "weld", "wheel", "weld2", "hip", "slide", "eye")
    assert [isinstance(j, Fixed) for j in m.joints] == [False, True, False, True, False, False, True]
    some = load_urdf(TREE, fixed_joints=["weld"])
    assert some.body_names == ("arm", "tool", "plate", "leg", "ball")
    assert m.nv == some.nv == load_urdf(TREE).nv
    with pytest.raises(UnknownName, match="fixed joint 'wield'. Did you mean 'weld'"):
        load_urdf(TREE, fixed_joints=["wield"])
    with pytest.raises(UnknownName, match="'drop'"):
        load_urdf(TREE, fixed_joints="drop")


@pytest.mark.parametrize("again", [lambda m: m, lambda m: sd.Model.from_dict(m.to_dict())], ids=["read", "stored"])
def test_names_of_what_was_lumped_are_told(again):
    m = again(load_urdf(robot(*PAIR, joint("j", "a", "b"), link("c", INERTIAL), joint("w", "b", "c", type="fixed"))))
    for call in (m.joint_index, lambda x: sd.ForceTorqueSensor(x).check(m), lambda x: sd.JointTorque(x).pairs(m)):
        with pytest.raises(UnknownName, match=r"lumped with link 'c' into body 'b': .* fixed_joints=\['w'\]"):
            call("w")
    for call in (m.body_index, lambda x: sd.ExternalWrench(x).pairs(m)):
        with pytest.raises(UnknownName, match=r"fixed joint 'w' lumps into body 'b', .* fixed_joints=\['w'\]"):
            call("c")
    assert repr(m.frame("c")) == "Frame('c' on body 0 at (0, 0, 0) m)" and m.frame("b").joint == ""


def test_floating_base():
    m = load_urdf(TREE, base="floating", gravity=(0, 0, -1.6))
    assert m.base == "floating" and m.body_names[0] == "root" and m.joint_names[0] == "root_joint"
    assert m.joints[0] == Free() and m.parent == (-1, 0, 1, 0, 3) and m.nv == 12
    assert m.frames["root"].body == m.frames["camera"].body == 0 and m.mass == pytest.approx(6.0)
    np.testing.assert_array_equal(m.gravity, [0, 0, -1.6])
    with pytest.raises(ModelError, match="base is 'free'"):
        load_urdf(TREE, base="free")


def test_dummy_root_is_lumped():
    text = robot(
        link("dummy"), link("body", INERTIAL), joint("weld", "dummy", "body", '<origin xyz="0 0 1"/>', "fixed")
    )
    m = load_urdf(text, base="floating")
    assert m.body_names == ("dummy",) and m.mass == 1.0 and m.frames["body"].body == 0
    np.testing.assert_allclose(m.inertias[0], inertia(1.0, np.array([0, 0, 1.0]), np.eye(3)))
    fixed = load_urdf(text)
    assert fixed.nb == 0 and fixed.frames["body"].body == -1


def test_floating_joint_type():
    m = load_urdf(robot(*PAIR, joint("j", "a", "b", '<origin xyz="1 0 0"/>', "floating")))
    assert m.base == "fixed" and m.joints == (Free(),) and m.dof_names[5] == "j[5]"


def test_rotated_inertial_origin():
    inertial = (
        '<inertial><origin xyz="0.1 0.2 0.3" rpy="0.4 -0.5 0.6"/><mass value="2"/>'
        '<inertia ixx="0.3" ixy="0.01" ixz="0.02" iyy="0.4" iyz="-0.03" izz="0.5"/></inertial>'
    )
    m = load_urdf(robot(link("a"), link("b", inertial), joint("j", "a", "b")))
    R = rotz(0.6).T @ roty(-0.5).T @ rotx(0.4).T
    I_com = R @ np.array([[0.3, 0.01, 0.02], [0.01, 0.4, -0.03], [0.02, -0.03, 0.5]]) @ R.T
    np.testing.assert_allclose(m.inertias[0], inertia(2.0, np.array([0.1, 0.2, 0.3]), I_com), atol=1e-15)


def test_digits_as_they_stand():
    """As the UR10's are written, whose torques then are Pinocchio's."""
    text = robot(*PAIR, joint("j", "a", "b", '<origin rpy="1.57079632679 0 0"/>'))
    E = rotation(load_urdf(text, snap=False).X_tree[0])
    np.testing.assert_array_equal(E, rotx(1.57079632679))
    assert E[1, 1] == pytest.approx(4.9e-12, rel=1e-2)
    assert rotation(load_urdf(text).X_tree[0])[1, 1] == 0.0


@pytest.mark.parametrize("right", ["1.5707963267948966", "1.57079632679", "1.5707963267948961"])
def test_right_angles_are_exact(right):
    text = robot(*PAIR, joint("j", "a", "b", f'<origin rpy="{right} -{right} 3.141592653589793" xyz="1e-17 0.25 1"/>'))
    E = rotation(load_urdf(text).X_tree[0])
    assert set(np.abs(E).ravel()) == {0.0, 1.0} and np.linalg.det(E) == 1.0
    assert set(np.abs(load_urdf(text).X_tree[0]).ravel()) <= {0.0, 0.25, 1.0}


def test_quaternion_origin():
    half = math.sqrt(0.5)
    m = load_urdf(robot(*PAIR, joint("j", "a", "b", f'<origin quat_xyzw="0 0 {half!r} {half!r}"/>')))
    np.testing.assert_array_equal(rotation(m.X_tree[0]), [[0, 1, 0], [-1, 0, 0], [0, 0, 1]])


def test_defaults_and_ignored_elements():
    text = "<?xml version='1.0' encoding='utf-8'?>\n<!-- é -->" + robot(
        '<material name="grey"/>', "<!-- a comment -->", "<transmission/>", '<gazebo><plugin name="x"/></gazebo>',
        link("a", "<visual/><collision/>"), link("b", "<!-- c -->"), joint("j", "a", "b"),
    )  # fmt: skip
    m = load_urdf(text)
    assert m.joints == (Revolute((1, 0, 0)),) and m.mass == 0.0
    np.testing.assert_array_equal(m.X_tree[0], np.eye(6))


def test_description_keeps_lines_and_dynamics(tmp_path):
    path = tmp_path / "tree.urdf"
    path.write_text(TREE)
    description = read_urdf(path)
    assert description.source == str(path) and description.root == "root"
    shoulder = description.joints["shoulder"]
    assert (shoulder.damping, shoulder.friction, shoulder.line) == (0.7, 0.2, 10)
    assert description.links["leg"].line == 6
    assert load(path).digest == load_urdf(str(path)).digest == load_urdf(TREE).digest


def test_mimic_and_dynamics_are_kept():
    text = robot(link("a"), link("b"), link("c"), link("d"), joint("lead", "a", "b", '<dynamics damping="0.7"/>'),
                 joint("m1", "b", "c", '<mimic joint="lead" multiplier="2"/>', "prismatic"),
                 joint("m2", "c", "d", '<mimic joint="m1" offset="-1"/><dynamics friction="0.2"/>'))  # fmt: skip
    m = load_urdf(text)
    assert m.nv == 3 and m.followers == ("m1", "m2")
    assert m.closures == (Coupling("m1", "lead", (0.0, 2.0)), Coupling("m2", "m1", (-1.0, 1.0)))
    np.testing.assert_array_equal([m.damping, m.friction], [[0.7, 0, 0], [0, 0, 0.2]])


def test_sensors_are_kept():
    text = robot(
        *PAIR,
        joint("j", "a", "b"),
        '<sensor name="imu" type="accelerometer" update_rate="100"><parent link="b"/><origin xyz="0 0 1"/></sensor>',
        '<sensor name="ft" type="force_torque"><parent joint="j"/><force_torque><frame>child</frame></force_torque>'
        "</sensor>",
    )
    imu, ft = load_urdf(text).sensors
    assert (imu.name, imu.type, imu.parent_kind, imu.parent, imu.line) == ("imu", "accelerometer", "link", "b", 5)
    assert imu.attributes["update_rate"] == "100"
    np.testing.assert_array_equal(translation(imu.X), [0, 0, 1])
    assert (ft.parent_kind, ft.parent, ft.line) == ("joint", "j", 6) and "<frame>child</frame>" in ft.xml


def test_implausible_inertia_warns_or_raises():
    bad = INERTIAL.replace('izz="1"', 'izz="9"')
    text = robot(link("a"), link("b", bad), joint("j", "a", "b"))
    with pytest.warns(PlausibilityWarning, match="'b'.*triangle"):
        load_urdf(text)
    with pytest.raises(ModelError, match="'b'.*triangle"):
        load_urdf(text, strict=True)


# ---- what is wrong ------------------------------------------------------------------------------------------------

MALFORMED = {
    "not xml": ("<robot name='r'><link>", 1, "not well-formed XML"),
    "empty root": ('<robot name="r"></robot>', 1, "no <link>"),
    "wrong root": ("<model/>", 1, "root element of a URDF is <robot>, not <model>"),
    "sdf": ("<sdf version='1.6'/>", 1, "an SDF file"),
    "mjcf": ("<mujoco/>", 1, "an MJCF file"),
    "no robot name": ("<robot><link name='a'/></robot>", 1, "<robot>: missing attribute 'name'"),
    "no link name": (robot("<link/>"), 2, "<link>: missing attribute 'name'"),
    "no joint name": (robot(*PAIR, "<joint type='fixed'/>"), 4, "<joint>: missing attribute 'name'"),
    "no joint type": (robot(*PAIR, "<joint name='j'/>"), 4, '<joint name="j">: missing attribute \'type\''),
    "no parent": (robot(*PAIR, "<joint name='j' type='fixed'/>"), 4, '<joint name="j">: missing element <parent>'),
    "no child": (
        robot(*PAIR, "<joint name='j' type='fixed'><parent link='a'/></joint>"), 4, "missing element <child>",
    ),
    "no parent link": (
        robot(*PAIR, "<joint name='j' type='fixed'><parent/><child link='b'/></joint>"), 4,
        '<parent> in <joint name="j">: missing attribute \'link\'',
    ),
    "no mass value": (robot(link("a", "<inertial><mass/></inertial>")), 2,
                      '<mass> in <inertial> in <link name="a">: missing attribute \'value\''),
    "no moment": (robot(link("a", INERTIAL.replace('iyz="0"', ""))), 2, "missing attribute 'iyz'"),
    "no number": (
        robot(link("a", INERTIAL.replace('value="1"', 'value="1kg"'))), 2, "value='1kg': '1kg' is not a number",
    ),
    "nan": (robot(link("a", INERTIAL.replace('ixx="1"', 'ixx="nan"'))), 2, "ixx='nan': 'nan' is not finite"),
    "infinite": (robot(*PAIR, joint("j", "a", "b", '<origin xyz="0 0 1e999"/>')), 4, "'1e999' is not finite"),
    "beyond": (robot(*PAIR, joint("j", "a", "b", '<origin xyz="0 0 1e200"/>')), 4, "'1e200' is beyond 1e+30"),
    "underscore": (robot(*PAIR, joint("j", "a", "b", '<origin xyz="0 0 1_0"/>')), 4, "'1_0' is not a number"),
    "two numbers": (
        robot(*PAIR, joint("j", "a", "b", '<origin xyz="0 1"/>')), 4,
        '<origin> in <joint name="j">: xyz=\'0 1\' has 2 numbers; 3 needed',
    ),
    "four numbers": (robot(*PAIR, joint("j", "a", "b", '<origin rpy="0 0 0 1"/>')), 4, "4 numbers; 3 needed"),
    "limit": (robot(*PAIR, joint("j", "a", "b", '<limit lower="low"/>')), 4, "lower='low': 'low' is not a number"),
    "damping": (robot(*PAIR, joint("j", "a", "b", '<dynamics damping=""/>')), 4, "missing attribute 'damping'"),
    "zero axis": (
        robot(*PAIR, joint("j", "a", "b", '<axis xyz="0 0 0"/>')), 4,
        '<axis> in <joint name="j">: a joint axis is zero',
    ),
    "axis": (robot(*PAIR, joint("j", "a", "b", '<axis xyz="0 0 z"/>')), 4, "'z' is not a number"),
    "axis missing": (robot(*PAIR, joint("j", "a", "b", "<axis/>")), 4, "missing attribute 'xyz'"),
    "negative mass": (
        robot(link("a", INERTIAL.replace('mass value="1"', 'mass value="-2"'))), 2,
        '<mass> in <inertial> in <link name="a">: negative mass -2 kg',
    ),
    "joint type": (
        robot(*PAIR, joint("j", "a", "b", type="revolut")), 4,
        '<joint name="j">: unknown joint type \'revolut\'. Did you mean \'revolute\'',
    ),
    "unknown parent": (
        robot(link("base"), link("b"), joint("j", "bass", "b")), 4,
        '<parent> in <joint name="j">: unknown parent link \'bass\'. Did you mean \'base\'',
    ),
    "unknown child": (robot(*PAIR, joint("j", "a", "c")), 4, "unknown child link 'c'"),
    "two parents": (
        robot(*PAIR, link("c"), joint("j", "a", "b"), joint("k", "a", "c"), joint("l", "c", "b")), 7,
        '<joint name="l">: link \'b\' already has a parent, by joint \'j\' in line 5',
    ),
    "self cycle": (robot(*PAIR, joint("j", "b", "b")), 4, "the links form a cycle: b → b"),
    "whole cycle": (robot(*PAIR, joint("j", "a", "b"), joint("k", "b", "a")), 5, "the links form a cycle: a → b → a"),
    "cycle beside the tree": (
        robot(*PAIR, link("c"), joint("j", "b", "c"), joint("k", "c", "b")), 6, "the links form a cycle: b → c → b",
    ),
    "two roots": (
        robot(*PAIR, link("c"), joint("j", "a", "b")), 4,
        '<link name="c">: the robot has 2 root links (links that are the child of no joint): \'a\', \'c\'',
    ),
    "duplicate link": (robot(*PAIR, link("a")), 4, '<link name="a">: duplicate name, first used in line 2'),
    "duplicate joint": (
        robot(*PAIR, link("c"), joint("j", "a", "b"), joint("j", "a", "c")), 6,
        '<joint name="j">: duplicate name, first used in line 5',
    ),
    "xacro element": (
        '<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro">\n<xacro:include filename="f"/></robot>', 2,
        "this is a xacro file, which sysdyn.load expands",
    ),
    "xacro undeclared": ('<robot name="r">\n<xacro:include filename="f"/></robot>', 2, "this is a xacro file"),
    "xacro expression": (
        robot(*PAIR, joint("j", "a", "b", '<origin xyz="0 0 ${h}"/>')), 4, "this is a xacro file",
    ),
    "entities": ('<!DOCTYPE robot [<!ENTITY n "1">]>\n' + robot(link("a")), 1, "entity declarations are not allowed"),
    "quaternion norm": (robot(*PAIR, joint("j", "a", "b", '<origin quat_xyzw="0 0 0 2"/>')), 4, "norm 2, not 1"),
    "two attitudes": (
        robot(*PAIR, joint("j", "a", "b", '<origin quat_xyzw="0 0 0 1" rpy="0 0 0"/>')), 4, "both rpy and quat_xyzw",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_raise_with_file_line_and_element(case, tmp_path):
    text, line, message = MALFORMED[case]
    path = tmp_path / "robot.urdf"
    path.write_text(text)
    for source, shown in ((path, str(path)), (text, "<string>")):
        with pytest.raises(ModelError) as caught:
            load_urdf(source)
        assert str(caught.value).startswith(f"{shown}:{line}: <" if case != "not xml" else f"{shown}:{line}: ")
        assert message in str(caught.value)


SENSOR = '<sensor name="s" type="imu">%s</sensor>'
ON_A = SENSOR % '<parent link="a"/>'
GAZEBO = f'<gazebo reference="b">{SENSOR}</gazebo>'
# What other tools read, too: text, line, what is said of it.
DEVIATIONS = {
    "version": ('<?xml version="0.0"?>\n' + robot(*PAIR, joint("j", "a", "b")), 1, 'not a version of XML'),
    "blank line": (
        '\n\n<?xml version="1.0" encoding="iso-8859-1"?>\n' + robot(*PAIR, joint("j", "a", "b")), 3,
        "<?xml>: blanks before the XML declaration; omitted",
    ),
    "prefix": (
        robot(*PAIR, joint("j", "a", "b"), "<drake:collision_filter/>"), 5,
        "Namespace prefix drake on collision_filter is not defined; read verbatim",
    ),
    "prefix beside a relative namespace": (
        robot(*PAIR, joint("j", "a", "b"), '<m xmlns:n="n"/><sensor:camera/>', "<drake:x/>"), 5,
        "Namespace prefix sensor on camera is not defined; read verbatim\n",
    ),
    "attribute prefix": (
        robot(*PAIR, joint("j", "a", "b"), '<m drake:x="1"/>'), 5, "Namespace prefix drake for x on m is not defined",
    ),
    "no inertia": (
        robot(PAIR[0], link("b", '<inertial><origin xyz="0 1 0"/><mass value="1"/></inertial>'), joint("j", "a", "b")),
        3,
        '<inertial> in <link name="b">: missing element <inertia>; read as a point mass',
    ),
    "second axis": (
        robot(*PAIR, joint("j", "a", "b", '<axis xyz="0 0 1"/>\n<axis xyz="0 1 0"/>')), 5,
        '<axis> in <joint name="j">: a second <axis>; only one is allowed; the first is taken',
    ),
    "mimic of none": (
        robot(*PAIR, joint("j", "a", "b", '<mimic joint="i"/>')), 4,
        """<mimic> in <joint name="j">: unknown joint 'i'. Valid names: j""",
    ),
    "mimic of itself": (
        robot(*PAIR, joint("j", "a", "b", '<mimic joint="j"/>')), 4,
        '<mimic> in <joint name="j">: it follows itself: j → j; omitted',
    ),
    "negative damping": (
        robot(*PAIR, joint("j", "a", "b", '<dynamics damping="-1"/>')), 4,
        '<dynamics> in <joint name="j">: negative damping -1; read as 0',
    ),
    "limits crossed": (
        robot(*PAIR, joint("j", "a", "b", '<limit lower="1" upper="-1"/>')), 4,
        '<limit> in <joint name="j">: lower limit 1 is above the upper limit -1; read as no limits',
    ),
    "duplicate sensor": (
        robot(*PAIR, joint("j", "a", "b"), ON_A, ON_A), 6, '<sensor name="s">: duplicate name, first used in line 5',
    ),
    "duplicate Gazebo sensor": (
        robot(*PAIR, joint("j", "a", "b"), GAZEBO % "", GAZEBO % ""), 6,
        '<sensor name="s">: duplicate name, first used in line 5; an error where it is asked for',
    ),
    "sensor on nothing": (
        robot(*PAIR, joint("j", "a", "b"), SENSOR % ""), 5, "missing element <parent>; an error where",
    ),
    "sensor link": (
        robot(*PAIR, joint("j", "a", "b"), SENSOR % '<parent link="x"/>'), 5, "unknown parent link 'x'",
    ),
    "sensor joint": (
        robot(*PAIR, joint("j", "a", "b"), SENSOR % '<parent joint="x"/>'), 5, "unknown parent joint 'x'",
    ),
    "sensor without a name": (robot(*PAIR, joint("j", "a", "b"), "<sensor/>"), 5, "missing attribute 'name'; omitted"),
    "sensor pose": (
        robot(*PAIR, joint("j", "a", "b"), SENSOR % '<parent link="a"/><pose>0 0 1</pose>'), 5,
        "'0 0 1' is not six numbers: x y z roll pitch yaw; an error where",
    ),
    "sensor pose relative to nothing": (
        robot(*PAIR, joint("j", "a", "b"),
              SENSOR % '<parent link="a"/><pose relative_to="jay">0 0 1 0 0 0</pose>'), 5,
        "unknown relative_to 'jay'. Did you mean 'j' or 'a'? Valid names: __model__, a, b, j.; an error where",
    ),
    "Gazebo pose relative to nothing": (
        robot(*PAIR, joint("j", "a", "b"), GAZEBO % '<pose frame="world">0 0 1 0 0 0</pose>'), 5,
        "unknown relative_to 'world'",
    ),
    "sensor pose and origin": (
        robot(*PAIR, joint("j", "a", "b"), SENSOR % '<parent link="a"/><origin/><pose>0 0 1 0 0 0</pose>'), 5,
        "both <origin> and <pose> are given; remove one; an error where",
    ),
    "sensor pose with another format": (
        robot(*PAIR, joint("j", "a", "b"), GAZEBO % '<pose rotation_format="euler">0 0 1 0 0 0</pose>'), 5,
        "unknown rotation_format 'euler'. Did you mean 'euler_rpy'",
    ),
    "sensor pose of no attitude": (
        robot(*PAIR, joint("j", "a", "b"), GAZEBO % '<pose rotation_format="quat_xyzw">0 0 1 0 0 0 0</pose>'), 5,
        "quat_xyzw has norm 0, not 1",
    ),
    "Gazebo pose": (
        robot(*PAIR, joint("j", "a", "b"), GAZEBO % "<pose>0 0 x</pose>"), 5, "'0 0 x' is not six numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEVIATIONS)
def test_deviations_are_read_with_one_warning_and_are_errors_where_that_is_strict(case, tmp_path):
    text, line, message = DEVIATIONS[case]
    path = tmp_path / "robot.urdf"
    path.write_bytes(text.encode("latin-1"))
    with pytest.warns(FormatWarning) as caught:
        model = load_urdf(path)
    assert len(caught) == 1 and str(caught[0].message).startswith(f"{path}:{line}: ")
    assert message in str(caught[0].message) and caught[0].filename == __file__
    assert (
        model.nv == 1
        and model.mass == 1.0
        and not model.closures
        and not model.damping.any()
        and model.lower[0] == -math.inf
    )
    assert model.joints[0].axis == ((0, 0, 1) if case == "second axis" else (1, 0, 0))
    assert np.trace(model.inertias[0]) == (5.0 if case == "no inertia" else 6.0)
    with pytest.raises(ModelError) as caught:
        load_urdf(path, strict=True)
    assert str(caught.value).startswith(f"{path}:{line}: ") and message.split("; ")[0] in str(caught.value)
    if "sensor" in case or "Gazebo" in case:
        assert case == "sensor without a name" or [s.name for s in model.sensors] == ["s"]
        assert not declared_sensors(model)
        error, said = (UnknownName, "'s'") if "without" in case else (InvalidInput, "'s' cannot be used: .*sensor")
        with pytest.raises(error, match=said):
            sensor(model, "s")


def test_many_deviations_are_counted():
    text = robot(link("a"), *(link(f"b{i}", INERTIAL) for i in range(32)),
                 *(joint(f"j{i}", "a", f"b{i}", '<limit lower="1" upper="0"/>') for i in range(32)))  # fmt: skip
    with pytest.warns(FormatWarning, match=r"(?s)j19.*… \(32 in all\)$") as caught:
        load_urdf(text)
    assert len(caught) == 1 and "j20" not in str(caught[0].message)


BODY = link("b", INERTIAL)


def hinge(content):
    return robot(*PAIR, joint("j", "a", "b", content))


def with_inertial(old, new):
    return robot(PAIR[0], link("b", INERTIAL.replace(old, new)), joint("j", "a", "b"))


# Misspelt and misplaced names: text, line, the wrong name, the right one or its place.
NAMES = {
    "mimic ratio": (hinge('<mimic joint="j" ratio="2"/>'), 4, "ratio", "multiplier"),
    "intertial": (robot(PAIR[0], BODY.replace("inertial", "intertial"), joint("j", "a", "b")), 3, "intertial",
                  "'inertial'"),
    "Inertial": (robot(PAIR[0], BODY.replace("inertial", "Inertial"), joint("j", "a", "b")), 3, "Inertial",
                 "'inertial'"),
    "joint axis": (robot(*PAIR, joint("j", "a", "b").replace('name="j"', 'name="j" axis="0 0 1"')), 4, "axis",
                   "<axis>"),
    "joint damping": (robot(*PAIR, joint("j", "a", "b").replace('name="j"', 'name="j" damping="1"')), 4, "damping",
                      "<dynamics>"),
    "origin pry": (hinge('<origin pry="0 0 1"/>'), 4, "pry", "'rpy'"),
    "origin pos": (hinge('<origin pos="0 0 1"/>'), 4, "pos", "xyz"),
    "orgin": (hinge('<orgin xyz="0 0 1"/>'), 4, "orgin", "'origin'"),
    "pose of a joint": (hinge("<pose>0 0 1 0 0 0</pose>"), 4, "pose", "<sensor>"),
    "dynamics viscous": (hinge('<dynamics viscous="1"/>'), 4, "viscous", "damping"),
    "dynamic": (hinge('<dynamic damping="1"/>'), 4, "dynamic", "'dynamics'"),
    "damping of a joint": (hinge('<damping value="1"/>'), 4, "damping", "<dynamics>"),
    "limit min": (hinge('<limit min="-1" max="1"/>'), 4, "min", "lower"),
    "limits": (hinge('<limits lower="-1"/>'), 4, "limits", "'limit'"),
    "limit lower as an element": (hinge("<limit><lower>-1</lower></limit>"), 4, "lower", "lower="),
    "limit in dynamics": (hinge('<dynamics><limit lower="-1"/></dynamics>'), 4, "limit", "<joint>"),
    "axes": (hinge('<axes xyz="0 0 1"/>'), 4, "axes", "'axis'"),
    "axis rpy": (hinge('<axis xyz="1 0 0" rpy="0 0 1"/>'), 4, "rpy", "xyz"),
    "mimics": (hinge('<mimics joint="j"/>'), 4, "mimics", "'mimic'"),
    "mass of a link": (robot(PAIR[0], BODY.replace(">", '><mass value="1"/>', 1), joint("j", "a", "b")), 3, "mass",
                       "<inertial>"),
    "origin of a link": (robot(PAIR[0], BODY.replace(">", '><origin xyz="1 0 0"/>', 1), joint("j", "a", "b")), 3,
                         "origin", "<inertial>"),
    "com": (with_inertial("<mass", '<com xyz="0 0 1"/><mass'), 3, "com", "origin"),
    "com of a mass": (with_inertial('value="1"', 'value="1" com="0 0 1"'), 3, "com", "value"),
    "moments of a mass": (with_inertial('value="1"', 'value="1" ixx="1"'), 3, "ixx", "value"),
    "text of an origin": (hinge("<origin>0 0 1</origin>"), 4, "'0 0 1'", "xyz"),
    "joint in a link": (robot(PAIR[0], BODY.replace(">", "><joint/>", 1), joint("j", "a", "b")), 3, "joint", "<robot>"),
    "sensor in a link": (robot(PAIR[0], BODY.replace(">", "><sensor/>", 1), joint("j", "a", "b")), 3, "sensor",
                         "<gazebo>"),
    "frame of a sensor": (robot(*PAIR, joint("j", "a", "b"), SENSOR % '<parent link="a"/><frame>child</frame>'), 5,
                          "frame", "<force_torque>"),
    "measure direction": (
        robot(*PAIR, joint("j", "a", "b"),
              SENSOR % '<parent link="a"/><force_torque><measure_direccion>x</measure_direccion></force_torque>'),
        5, "measure_direccion", "'measure_direction'",
    ),
    "pose relative-to": (robot(*PAIR, joint("j", "a", "b"), GAZEBO % '<pose relative-to="a"/>'), 5, "relative-to",
                         "'relative_to'"),
    "Gazebo's reference": (robot(*PAIR, joint("j", "a", "b"), '<gazebo reference="jj"/>'), 5,
                           "jj", "a, b, j"),
    "Gazebo's sensor without a reference": (robot(*PAIR, joint("j", "a", "b"), f"<gazebo>{SENSOR % ''}</gazebo>"), 5,
                                            "<sensor", "reference="),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::sysdyn.errors.PlausibilityWarning")
@pytest.mark.parametrize("case", NAMES)
def test_names_that_the_format_does_not_have_warn_and_are_errors_where_that_is_strict(case, tmp_path):
    text, line, name, right = NAMES[case]
    path = tmp_path / "robot.urdf"
    path.write_text(text)
    with pytest.warns(FormatWarning) as caught:
        load_urdf(path)
    said = str(caught[0].message).splitlines()[0]
    assert len(caught) == 1 and said.startswith(f"{path}:{line}: ")
    assert name in said.removeprefix(str(path)) and right in said.removeprefix(str(path))
    with pytest.raises(ModelError) as strict:
        load_urdf(path, strict=True)
    assert str(strict.value).startswith(f"{path}:{line}: ") and name in str(strict.value) and right in str(strict.value)


def test_one_line_of_the_warning_has_all_places_of_a_name():
    text = robot(*PAIR, link("c", INERTIAL), joint("j", "a", "b", '<dynamics mu="1"/>'),
                 joint("k", "b", "c", '<dynamics mu="1"/>'))  # fmt: skip
    with pytest.warns(FormatWarning) as caught:
        load_urdf(text)
    (said,) = str(caught[0].message).splitlines()
    assert said.startswith("<string>:5: ") and "line 6" in said


EXTENSIONS = (
    '<drake:joint name="x"/>',
    '<ros2_control name="x"><joint name="j"><param name="min">1</param></joint></ros2_control>',
    '<link name="c"><contact><damping value="1"/></contact><self_filter/></link><joint name="k" type="fixed" '
    'drake:x="1"><parent link="a"/><child link="c"/><safety_controller k_position="1" k_velocity="2" '
    'soft_lower_limit="0" soft_upper_limit="1"/><calibration rising="0"/></joint>',
    '<transmission name="t" type="x"><joint name="j"><hardwareInterface>e</hardwareInterface></joint>'
    '<actuator name="m"><mechanicalReduction>1</mechanicalReduction><motorInertia>0.0</motorInertia></actuator>'
    "</transmission>",
    '<gazebo reference="b"><mu1>1</mu1><selfCollide>true</selfCollide><turnGravityOff>false</turnGravityOff>'
    '<gravity>1</gravity><material>x</material><sensor name="s" type="ray"><pose>0 0 1 0 0 0</pose>'
    "<update_rate>5</update_rate><always_on>1</always_on><camera><pose/></camera><plugin/></sensor></gazebo>",
    '<gazebo reference="j"><implicitSpringDamper>1</implicitSpringDamper><springStiffness>0</springStiffness>'
    "<provideFeedback>true</provideFeedback></gazebo>",
    '<mujoco><compiler strippath="false"/></mujoco>',
)


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_extensions_of_other_tools_pass(extension):
    text = robot(*PAIR, joint("j", "a", "b"), extension).replace("<robot", '<robot xmlns:drake="drake"')
    assert load_urdf(text, strict=True).nv == 1


MOTOR = '<transmission name="t">\n<joint name="j"/><actuator name="m">{}</actuator></transmission>'
# What acts on the robot in other tools: the elements, their line and their name.
ACTING = {
    "loop": ('<gazebo>\n<joint name="l" type="ball"><parent>a</parent><child>b</child></joint></gazebo>', 6, "<joint>"),
    "link": ('<gazebo><link name="c"/></gazebo>', 5, "<link>"),
    "rotor": (MOTOR.format("<motorInertia>1e-4</motorInertia>"), 6, "motorInertia"),
    "gear": (MOTOR.format("<mechanicalReduction>50</mechanicalReduction>"), 6, "mechanicalReduction"),
    "reversed": (MOTOR.format("<mechanicalReduction>-1</mechanicalReduction>"), 6, "mechanicalReduction"),
    "gear of ros2_control": (
        "<ros2_control><transmission><mechanical_reduction>5</mechanical_reduction></transmission></ros2_control>", 5,
        "mechanical_reduction",
    ),
    "gear as an attribute": ('<transmission><rightActuator mechanicalReduction="9"/></transmission>', 5,
                             "mechanicalReduction"),
    "spring": ('<gazebo reference="j">\n\n<springReference>0</springReference><springStiffness>8</springStiffness>'
               "</gazebo>", 7, "springStiffness"),
    "no gravity": ('<gazebo reference="b"><turnGravityOff>true</turnGravityOff></gazebo>', 5, "turnGravityOff"),
    "no gravity in SDFormat": ('<gazebo reference="b"><gravity>0</gravity></gazebo>', 5, "gravity"),
    "kinematic": ('<gazebo reference="b"><kinematic>1</kinematic></gazebo>', 5, "kinematic"),
    "drag": ('<gazebo reference="b"><dampingFactor>0.01</dampingFactor></gazebo>', 5, "dampingFactor"),
    "static": ("<gazebo><static>true</static></gazebo>", 5, "static"),
    "plugin of a mimic": ("<gazebo><plugin><joint>j</joint><mimicJoint>k</mimicJoint></plugin></gazebo>", 5,
                          "mimicJoint"),
    "rotor of Drake": ('<transmission><actuator><drake:rotor_inertia value="2"/></actuator></transmission>', 5,
                       "rotor_inertia"),
    "bushing of Drake": ("<drake:linear_bushing_rpy/>", 5, "linear_bushing_rpy"),
    "old loop of Drake": ('<loop_joint name="l"/>', 5, "loop_joint"),
    "inertia of Bullet": ('<link name="c"><contact><inertia_scaling value="3"/></contact></link><joint name="k" '
                          'type="fixed"><parent link="a"/><child link="c"/></joint>', 5, "inertia_scaling"),
}  # fmt: skip


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("case", ACTING)
def test_what_acts_on_the_robot_in_other_tools_is_named(case, strict):
    extension, line, name = ACTING[case]
    text = robot(*PAIR, joint("j", "a", "b"), extension).replace("<robot", '<robot xmlns:drake="drake"')
    with pytest.warns(IgnoredWarning) as caught:
        load_urdf(text, strict=strict)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert re.search(rf"{name}.*\(line {line}\)", str(caught[0].message))


def test_limits_are_said_before_memory_is_gone(tmp_path):
    with pytest.raises(ModelError, match="100,001 links; a robot may have 100,000"):
        load_urdf("<robot name='many'>" + "<link name='l'/>" * 100_001 + "</robot>")
    with (tmp_path / "long.urdf").open("w") as file:
        file.write("<robot>")
        file.truncate(2**26 + 1)
    for read in (load_urdf, sd.load_mjcf):
        with pytest.raises(ModelError, match="is longer than 64 MiB"):
            read(tmp_path / "long.urdf")
    for many in (auto_tree, chain, random_tree):
        with pytest.raises(ModelError, match="1,000,000 bodies; a robot may have 100,000"):
            many(10**6)


def test_unreadable_files(tmp_path):
    with pytest.raises(ModelError, match="cannot read .*nowhere.urdf.*No such file"):
        load_urdf(tmp_path / "nowhere.urdf")
    with pytest.raises(ModelError, match="cannot read .*directory"):
        load_urdf(tmp_path)
    with pytest.raises(ModelError, match="cannot read"):
        load_urdf("a\0b.urdf")
    (tmp_path / "empty.urdf").write_text("")
    with pytest.raises(ModelError, match="not well-formed"):
        load_urdf(tmp_path / "empty.urdf")
    (tmp_path / "binary.urdf").write_bytes(bytes(range(256)))
    with pytest.raises(ModelError, match="not well-formed"):
        load_urdf(tmp_path / "binary.urdf")


def test_external_entities_are_not_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("1.0")
    text = (
        f'<!DOCTYPE robot [<!ENTITY x SYSTEM "{secret.as_uri()}">]>\n<robot name="r"><link name="a">&x;</link></robot>'
    )
    with pytest.raises(ModelError, match="entity declarations"):
        load_urdf(text)


def test_root_joint_name_is_reserved_on_a_floating_base():
    text = robot(*PAIR, joint("root_joint", "a", "b"))
    assert load_urdf(text).nv == 1
    with pytest.raises(ModelError, match='^<string>:4: <joint name="root_joint">: .*rename the joint'):
        load_urdf(text, base="floating")


def test_long_chains_need_no_recursion():
    n = 3000
    text = robot(*(link(f"l{i}") for i in range(n)), *(joint(f"j{i}", f"l{i + 1}", f"l{i}") for i in range(n - 1)))
    assert load_urdf(text).parent == tuple(range(-1, n - 2))


# ---- iCub against Pinocchio ---------------------------------------------------------------------------------------

ICUB = icub_models.get_model_file("iCubGazeboV2_5")


@pytest.fixture(scope="module", params=["fixed", "floating"])
def icub(request):
    """(sysdyn models with fixed joints lumped and kept, Pinocchio's model) of the same robot."""
    free = (pin.JointModelFreeFlyer(),) if request.param == "floating" else ()
    models = {choice: load_urdf(ICUB, base=request.param, fixed_joints=choice) for choice in ("lump", "keep")}
    return request.param, models, pin.buildModelFromUrdf(ICUB, *free)


def pin_state(m, pm, q, v):
    """q and v in Pinocchio's order; its free joint has v = [v; ω]."""
    pq, pv = pin.neutral(pm), np.zeros(pm.nv)
    for i, name in enumerate(m.joint_names):
        if m.joints[i].nv:
            j = pm.joints[pm.getJointId(name)]
            vi = v[m.v_slice(i)]
            pq[j.idx_q : j.idx_q + j.nq] = q[m.q_slice(i)]
            pv[j.idx_v : j.idx_v + j.nv] = np.roll(vi, 3) if j.nv == 6 else vi
    return pq, pv


def test_icub_sizes(icub):
    base, models, pm = icub
    floating = base == "floating"
    m = models["lump"]
    assert m.nb == 32 + floating and m.nv == pm.nv == 32 + 6 * floating and m.nq == pm.nq
    assert models["keep"].nb == 212 + floating and models["keep"].nv == m.nv
    assert len(m.frames) == 213 and len(m.sensors) == 83
    for name, k in zip(m.dof_names[6 * floating :], range(6 * floating, m.nv), strict=True):
        j = pm.joints[pm.getJointId(name)]
        assert (m.lower[k], m.upper[k]) == (pm.lowerPositionLimit[j.idx_q], pm.upperPositionLimit[j.idx_q])
        assert (m.velocity_limit[k], m.effort_limit[k]) == (pm.velocityLimit[j.idx_v], pm.effortLimit[j.idx_v])


@pytest.mark.parametrize("choice", ["lump", "keep"])
def test_icub_frames_agree_with_pinocchio(icub, choice):
    _, models, pm = icub
    m, data = models[choice], pm.createData()
    for seed in range(2):
        q, v, _ = m.random_state(seed)
        pin.forwardKinematics(pm, data, *pin_state(m, pm, q, v))
        pin.updateFramePlacements(pm, data)
        velocity, _ = velocities(m, joint_transforms(m, q), v)
        for name, frame in m.frames.items():
            k = pm.getFrameId(name)
            M = data.oMf[k]
            np.testing.assert_allclose(frame_transform(m, q, name), X_motion(M.rotation.T, M.translation), atol=3e-12)
            own = frame.X @ velocity[frame.body] if frame.body >= 0 else np.zeros(6)
            twist = pin.getFrameVelocity(pm, data, k, pin.ReferenceFrame.LOCAL)
            np.testing.assert_allclose(own, np.concatenate([twist.angular, twist.linear]), atol=1e-11)


def test_icub_inertias_agree_with_pinocchio(icub):
    _, models, pm = icub
    m = models["lump"]
    for name, I in zip(m.joint_names, m.inertias, strict=True):
        theirs = np.roll(pm.inertias[pm.getJointId(name)].matrix(), (3, 3), (0, 1))
        np.testing.assert_allclose(I, theirs, atol=1e-12)


@pytest.mark.parametrize("choice", ["lump", "keep"])
def test_icub_composite_inertia_agrees_with_pinocchio(icub, choice):
    """Mass, com and rotational inertia of the whole robot about the world's origin, and its kinetic energy."""
    base, models, pm = icub
    m, data = models[choice], pm.createData()
    q, v, _ = m.random_state(4)
    pq, pv = pin_state(m, pm, q, v)
    whole = sum(transform_inertia(I, X) for I, X in zip(m.inertias, forward_kinematics(m, q), strict=True))
    com = np.array([whole[2, 4], whole[0, 5], whole[1, 3]]) / whole[5, 5]
    assert m.mass == pytest.approx(pin.computeTotalMass(pm), rel=1e-14)
    assert whole[5, 5] == pytest.approx(m.mass, rel=1e-14)
    np.testing.assert_allclose(com, pin.centerOfMass(pm, data, pq), atol=1e-12)
    pin.crba(pm, data, pq)
    pin.ccrba(pm, data, pq, pv)
    if base == "floating":
        about_com = data.Ig.inertia
        shifted = whole[:3, :3] - m.mass * ((com @ com) * np.eye(3) - np.outer(com, com))
        np.testing.assert_allclose(shifted, about_com, atol=1e-11)
    velocity, _ = velocities(m, joint_transforms(m, q), v)
    energy = 0.5 * sum(w @ I @ w for w, I in zip(velocity, m.inertias, strict=True))
    assert energy == pytest.approx(pin.computeKineticEnergy(pm, data, pq, pv), rel=1e-11)


def test_lumping_and_keeping_fixed_joints_give_the_same_robot(icub):
    _, models, _ = icub
    lump, keep = models["lump"], models["keep"]
    assert tuple(lump.frames) == tuple(keep.frames) and lump.dof_names == keep.dof_names
    q, v, _ = lump.random_state(5)
    for name in lump.frames:
        np.testing.assert_allclose(frame_transform(lump, q, name), frame_transform(keep, q, name), atol=1e-13)
    momentum = []
    for m in (lump, keep):
        velocity, _ = velocities(m, joint_transforms(m, q), v)
        bodies = zip(forward_kinematics(m, q), m.inertias, velocity, strict=True)
        momentum.append(sum(X.T @ I @ w for X, I, w in bodies))
    np.testing.assert_allclose(*momentum, rtol=1e-11)


def test_icub_placements_fold(icub):
    """CAD noise of 1e-16 is gone: no entry of any placement is near 0 or ±1 without being exactly that."""
    _, models, _ = icub
    for X in models["lump"].X_tree:
        E, r = rotation(X), translation(X)
        for entries in (E, r):
            for target in (0.0, 1.0):
                near = np.abs(np.abs(entries) - target)
                assert not np.any((near > 1e-15) & (near < 1e-12))


MASS, SECOND = '<mass value="2"/>', '<mass value="3"/>'
MOMENTS, OTHERS = (f'<inertia ixx="{x}" ixy="0" ixz="0" iyy="{x}" iyz="0" izz="{x}"/>' for x in (1, 2))
AT = '<origin xyz="0.1 0.2 0.3" rpy="0.1 0.2 0.3"/>'
INERTIALS = {
    "a second <inertial>": f"<inertial>{AT}{MASS}{MOMENTS}</inertial><inertial>{SECOND}{OTHERS}</inertial>",
    "a second <inertial>, broken": f"<inertial>{AT}{MASS}{MOMENTS}</inertial><inertial><mass/></inertial>",
    "missing element <mass>": f"<inertial>{AT}{MOMENTS}</inertial>",
    "missing element <mass>, alone": "<inertial/>",
    "missing element <mass>, in the first": f"<inertial>{MOMENTS}</inertial><inertial>{SECOND}{OTHERS}</inertial>",
    "missing element <inertia>": f"<inertial>{AT}{MASS}</inertial>",
    "a second <mass>": f"<inertial>{AT}{MASS}{SECOND}{MOMENTS}</inertial>",
    "a second <inertia>": f"<inertial>{AT}{MASS}{MOMENTS}{OTHERS}</inertial>",
    "a second <origin>": f'<inertial>{AT}<origin xyz="1 1 1"/>{MASS}{MOMENTS}</inertial>',
}


@pytest.mark.filterwarnings("ignore::sysdyn.errors.PlausibilityWarning")
@pytest.mark.parametrize("where", ["root", "child"])
@pytest.mark.parametrize("case", INERTIALS)
def test_inertials_are_those_of_pinocchio(case, where, capfd):
    """Departures from the format, each read with a warning that names it; strict: an error."""
    root, child = (INERTIALS[case] if place == where else "" for place in ("root", "child"))
    text = (
        f'<robot name="r"><link name="a">{root}</link><link name="b">{child}</link><joint name="j" type="continuous">'
        '<parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint></robot>'
    )
    expected = pin.buildModelFromXML(text, pin.JointModelFreeFlyer()).inertias[1 if where == "root" else 2]
    capfd.readouterr()  # what urdfdom prints
    with pytest.warns(FormatWarning, match=re.escape(case.partition(",")[0])) as told:
        model = load_urdf(text, base="floating")
    assert len([x for x in told if x.category is FormatWarning]) == 1
    order = [3, 4, 5, 0, 1, 2]  # of linear and angular parts
    I = model.inertias[0 if where == "root" else 1]
    assert np.allclose(I, expected.matrix()[np.ix_(order, order)], rtol=0, atol=1e-12)
    with pytest.raises(ModelError, match="only one is allowed|missing element"):
        load_urdf(text, strict=True)
