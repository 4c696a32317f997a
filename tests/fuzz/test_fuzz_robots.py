"""Mutants of robot files: each is loaded or refused with a SysdynError, in seconds."""

from __future__ import annotations

import re
import warnings
from functools import partial

import numpy as np
import pytest
from fuzz.mutants import COUNT, bytes_changed, refused

import sysdyn as sd

LINK = """<link name="{}"><inertial><origin xyz="0.1 0 0.2" rpy="0 1.57079632679 0"/><mass value="2"/>
<inertia ixx="0.1" ixy="0" ixz="0.01" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>"""
JOINT = """<joint name="{0}" type="{1}"><parent link="{2}"/><child link="{3}"/><origin xyz="0 0.2 0" rpy="0 0 3"/>
<axis xyz="0 {4} 1"/><limit lower="-1" upper="1" effort="5" velocity="3"/><dynamics damping="0.1" friction="0.2"/>{5}
</joint>"""
URDF = f"""<?xml version="1.0" encoding="utf-8"?>
<robot name="r">{"".join(map(LINK.format, "abcdef"))}
{JOINT.format("j0", "revolute", "a", "b", 0, "")}{JOINT.format("j1", "prismatic", "b", "c", 1, "")}
{JOINT.format("j2", "continuous", "b", "d", -1, '<mimic joint="j1" multiplier="2" offset="0.1"/>')}
{JOINT.format("j3", "fixed", "d", "e", 0, "")}{JOINT.format("j4", "floating", "e", "f", 0, "")}
<sensor name="s" type="force_torque"><parent joint="j3"/><origin xyz="0 0 1"/></sensor>
<gazebo reference="c"><sensor name="imu" type="imu"><pose>0 0 1 0 0 0</pose></sensor></gazebo></robot>"""
MJCF = """<mujoco model="m"><compiler angle="radian" autolimits="true"/><option gravity="0 0 -9.81" timestep="0.01"/>
<default><geom size="0.1 0.2 0.3" density="900"/></default><worldbody><geom type="plane" size="1 1 .1"/>
<body name="a" pos="0 0 1" euler="0.1 0 0"><freejoint name="root"/><geom type="box"/>
<body name="b" pos="0.2 0 0"><joint name="jb" axis="0 1 0" range="-1 1" damping="1" armature="0.1"/>
<geom type="capsule"/><body name="c" quat="1 0 0 1"><joint name="jc" type="slide" axis="0 1 1" frictionloss="1"/>
<geom/><site name="s"/></body>
</body><body name="d"><joint name="jd" type="ball"/><inertial pos="0 0 1" mass="1" diaginertia="1 1 1.5"/></body></body>
<replicate count="2" offset="1 0 0"><body pos="0 3 0"><joint/><geom/></body></replicate></worldbody>
<equality><connect body1="c" body2="d" anchor="0 0 0.1"/><weld name="w" body1="b" body2="d" active="false"/>
<joint joint1="jb" joint2="jc" polycoef="0 2 0 0.1 0"/></equality>
<actuator><motor joint="jb" gear="3"/></actuator></mujoco>"""
# Values of attributes are changed to those of others, and to these.
VALUES = (
    "",
    "0",
    "-1",
    "1e9",
    "1e29",
    "1e308",
    "-1e60",
    "1e-300",
    "nan",
    "inf",
    "0 0 0",
    "1 0",
    "x",
    "é",
    "${x}",
    "1e8",
)
# Reader and number of mutants of each kind; MuJoCo hangs at one MJCF mutant in thousands.
READERS = {"urdf": (URDF, sd.load_urdf, COUNT), "mjcf": (MJCF, sd.load_mjcf, min(COUNT, 500))}


def changed(text: str, rng: np.random.Generator) -> bytes:
    """A mutant: bytes changed, or values of attributes."""
    if rng.random() < 0.3:
        return bytes_changed(text.encode(), rng)
    for _ in range(rng.integers(1, 4)):
        values = list(re.finditer('"([^"]*)"', text))
        at = values[rng.integers(len(values))]
        others = [*VALUES, *(other[1] for other in values)]
        text = text[: at.start(1)] + others[rng.integers(len(others))] + text[at.end(1) :]
    return text.encode()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", READERS)
def test_mutants_are_loaded_or_refused(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log into the working folder
    text, load, count = READERS[kind]
    taken, path = 0, tmp_path / "robot.xml"
    for seed in range(count):
        mutant = changed(text, np.random.default_rng(seed))
        path.write_bytes(mutant)
        source = path if seed % 2 else mutant.decode(errors="replace")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)
            taken += refused(partial(load, source), seed) is None
    assert count // 20 < count - taken < count
