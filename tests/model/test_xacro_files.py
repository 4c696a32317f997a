"""Xacro files: expanded with the values of their arguments, or refused."""

import sys

import pytest

import sysdyn as sd

XACRO = """<?xml version="1.0"?>
<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro">
<xacro:arg name="mass" default="1"/>
<xacro:include filename="ball.xacro"/>
<link name="a"/>
<xacro:ball name="b" mass="${2 * %s}"/>
</robot>
"""
BALL = """<robot xmlns:xacro="http://www.ros.org/wiki/xacro">
<xacro:macro name="ball" params="name mass">
<link name="${name}"><inertial><mass value="${mass}"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/>
</inertial></link>
<joint name="j_${name}" type="revolute"><parent link="a"/><child link="${name}"/></joint>
</xacro:macro>
</robot>
"""


@pytest.fixture
def ball(tmp_path):
    pytest.importorskip("xacro")
    (tmp_path / "ball.xacro").write_text(BALL)
    path = tmp_path / "robot.urdf.xacro"
    path.write_text(XACRO % "float(xacro.arg('mass'))")
    return path


def test_arguments_and_files_beside_it(ball):
    assert sd.load(ball).mass == 2.0 and sd.load(str(ball), mappings={"mass": 3}).mass == 6.0
    assert sd.load(ball, mappings={"mass": 3}, fixed_joints="keep").nb == 1


def test_texts():
    pytest.importorskip("xacro")
    text = BALL.replace("<robot", '<robot name="r"').replace("</robot>", "")
    text += '<xacro:arg name="m" default="1"/><link name="a"/><xacro:ball name="b" mass="$(arg m)"/></robot>'
    assert sd.load(text).mass == 1.0 and sd.load(text, mappings={"m": 4}).mass == 4.0


@pytest.mark.parametrize("mass, said", [("1 / 0", "zero"), ("what", "what"), ("__import__('os')", "__import__")])
def test_what_cannot_be_expanded(ball, mass, said):
    ball.write_text(XACRO % mass)
    with pytest.raises(sd.ModelError, match=f"robot.urdf.xacro: xacro cannot expand it: .*{said}"):
        sd.load(ball)
    with pytest.raises(sd.ModelError, match="gone.xacro: xacro cannot expand it: .*No such file"):
        sd.load(ball.with_name("gone.xacro"))


def test_find_without_ros_names_remedies(ball):
    """One of which is a path relative to the file."""
    text = ball.read_text()
    ball.write_text(text.replace('"ball.xacro"', '"$(find balls)/ball.xacro"'))
    with pytest.raises(sd.ModelError, match=r"\$\(find package\).*robot.urdf.*relative to the file"):
        sd.load(ball)
    ball.write_text(text.replace('"ball.xacro"', f'"../{ball.parent.name}/ball.xacro"'))
    assert sd.load(ball).mass == 2.0


def test_without_the_package(ball, monkeypatch):
    monkeypatch.setitem(sys.modules, "xacro", None)
    with pytest.raises(sd.BackendUnavailable, match=r"pip install 'sysdyn-robotics\[xacro\]'"):
        sd.load(ball)


def test_faults_of_what_was_expanded_name_the_file(tmp_path):
    """Here macros alone, and a joint without a parent."""
    pytest.importorskip("xacro")
    path = tmp_path / "part.xacro"
    joint = '<joint name="j" type="fixed"><parent link="none"/><child link="a"/></joint>'
    for text, said in (BALL, "no <link>"), (f'<robot name="r"><link name="a"/>{joint}</robot>', "unknown parent link"):
        path.write_text(text)
        with pytest.raises(sd.ModelError, match=rf"part\.xacro, expanded:\d+: .*{said}"):
            sd.load(path)
    with pytest.raises(sd.ModelError, match=r"<string>, expanded:\d+: .*no <link>"):
        sd.load(BALL)
