"""Shapes of robots: where files have them, in metres and in their colours, and inertias where they have none."""

from __future__ import annotations

import pickle
import sys

import mujoco
import mujoco_models
import numpy as np
import pytest

import sysdyn as sd
from sysdyn.model import forward_kinematics
from sysdyn.model.inertia import first_moment, inertia, transform_inertia
from sysdyn.model.se3 import X_motion, pose, rotation, rotx, translation
from sysdyn.views.shapes import (
    DEFAULT_COLOUR,
    INERTIA_COLOUR,
    LINK_LINE,
    Box,
    Cylinder,
    Ellipsoid,
    Mesh,
    find_mesh,
    shapes_of,
)

trimesh = pytest.importorskip("trimesh")
pytest.importorskip("collada")

URDF = """<robot name="arm"><material name="blue"><color rgba="0 0 1 0.5"/></material>
<link name="stand"><visual><geometry><box size="1 2 3"/></geometry><material name="blue"/></visual></link>
<link name="upper"><inertial><mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
  <visual><origin xyz="0.1 0 0" rpy="1.5707963267948966 0 0"/>
    <geometry><mesh filename="package://arm_description/meshes/part.stl" scale="0.001 0.001 0.002"/></geometry>
    <material name=""><color rgba="1 0 0 1"/></material></visual></link>
<link name="tip"><visual><geometry><!-- round --><cylinder radius="0.1" length="0.4"/></geometry></visual>
  <visual><geometry><sphere radius="0.2"/></geometry></visual></link>
<link name="hand"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
  HAND</link>
<joint name="j" type="revolute"><parent link="stand"/><child link="upper"/><axis xyz="0 1 0"/></joint>
<joint name="k" type="fixed"><parent link="upper"/><child link="tip"/><origin xyz="0 0 5"/></joint>
<joint name="l" type="revolute"><parent link="tip"/><child link="hand"/></joint></robot>"""


def mesh_visual(file: str) -> str:
    return f'<visual><geometry><mesh filename="{file}"/></geometry></visual>'


@pytest.fixture
def robot(tmp_path):
    """A package of ROS as it lies on a disk; called with the visual of the hand it gives the path of its URDF."""
    folder = tmp_path / "share" / "arm_description"
    (folder / "urdf").mkdir(parents=True)
    (folder / "meshes").mkdir()
    trimesh.creation.box((100.0, 200.0, 300.0)).export(folder / "meshes" / "part.stl")

    def write(hand: str = "") -> str:
        path = folder / "urdf" / "arm.urdf"
        path.write_text(URDF.replace("HAND", hand), encoding="utf-8")
        return str(path)

    return write


def test_a_urdf_file_gives_shapes_on_the_bodies_that_carry_its_links(robot):
    model = sd.load(robot())
    stand, part, cylinder, sphere, *hand = shapes_of(model)
    assert (stand.body, stand.shape, stand.colour) == (-1, Box((1.0, 2.0, 3.0)), (0.0, 0.0, 1.0, 0.5))
    assert part.body == 0 and part.colour == (1.0, 0.0, 0.0, 1.0)
    np.testing.assert_allclose(part.T, pose(rotx(np.pi / 2), np.array([0.1, 0.0, 0.0])), atol=1e-15)
    np.testing.assert_allclose(part.shape.half, [0.05, 0.1, 0.3])
    assert len(part.shape.vertices) == 8 and len(part.shape.faces) == 12  # corners are shared
    for x, shape in ((cylinder, Cylinder(0.1, 0.4)), (sphere, Ellipsoid([0.2, 0.2, 0.2]))):
        assert (x.body, x.shape, x.colour) == (0, shape, DEFAULT_COLOUR)
        np.testing.assert_array_equal(x.T, pose(np.eye(3), np.array([0.0, 0.0, 5.0])))  # the fixed link's frame
    assert {x.body for x in hand} == {1} and {x.colour for x in hand} <= {INERTIA_COLOUR, LINK_LINE}


def test_meshes_are_found_as_ros_finds_them(robot, tmp_path, monkeypatch):
    urdf = tmp_path / "share" / "arm_description" / "urdf"
    robot()
    part = urdf.parent / "meshes" / "part.stl"
    for name in ("package://arm_description/meshes/part.stl", "model://arm_description/meshes/part.stl",
                 "../meshes/part.stl", str(part), part.as_uri()):  # fmt: skip
        assert find_mesh(name, urdf).samefile(part)
    elsewhere = tmp_path / "elsewhere"
    assert find_mesh("package://arm_description/meshes/part.stl", elsewhere) is not None  # a folder above has share/
    for place in (tmp_path / "share", urdf.parent):
        monkeypatch.setenv("ROS_PACKAGE_PATH", f"/nowhere:{place}")
        assert find_mesh("package://arm_description/meshes/part.stl", tmp_path.parent).samefile(part)
    assert find_mesh("package://arm_description/meshes/gone.stl", urdf) is None


def test_units_and_colours_of_collada_files_count(robot):
    """A file in millimetres is a thousandth as large."""
    path = robot(mesh_visual("part.dae"))
    box = trimesh.creation.box((100.0, 200.0, 300.0))
    box.visual = trimesh.visual.TextureVisuals()
    text = trimesh.exchange.dae.export_collada(box).decode()
    text = text.replace("</asset>", '<unit name="millimeter" meter="0.001"/></asset>')
    before, _, after = text.partition("<diffuse>")
    text = f"{before}<diffuse>{after.replace('0.0 0.0 0.0 1.0', '0.2 0.4 0.6 1.0', 1)}"
    with open(path.replace("arm.urdf", "part.dae"), "w", encoding="utf-8") as file:
        file.write(text)
    hand = [x for x in shapes_of(sd.load(path)) if x.body == 1]
    np.testing.assert_allclose(hand[0].shape.half, [0.05, 0.1, 0.15])
    np.testing.assert_allclose(hand[0].colour, (0.2, 0.4, 0.6, 1.0))


@pytest.mark.parametrize(
    ("hand", "said"),
    [
        (
            mesh_visual("package://other/hand.stl"),
            r"the mesh 'package://other/hand.stl' is not found: ROS_PACKAGE_PATH",
        ),
        (mesh_visual("file:///gone/hand.stl"), r"the mesh 'file:///gone/hand.stl' is not found$"),
        (
            mesh_visual("arm.urdf"),
            r"<mesh> in <geometry> in <visual> in <link name=\"hand\">: the mesh .*arm.urdf cannot be read",
        ),
        ("<visual><geometry><cone/></geometry></visual>", r"<cone> .* not shown"),
        ('<visual><geometry><box size="1 2"/></geometry></visual>', "2 numbers; 3 needed"),
    ],
)
def test_what_cannot_be_shown_is_told_with_its_line_and_the_inertia_stands_for_it(robot, hand, said):
    model = sd.load(robot(hand))
    with pytest.warns(sd.FormatWarning, match=said):
        found = shapes_of(model)
    assert INERTIA_COLOUR in {x.colour for x in found if x.body == 1}


def test_a_missing_reader_of_meshes_is_told_how_to_get(robot, monkeypatch):
    model = sd.load(robot())
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.warns(sd.FormatWarning, match=r"pip install 'sysdyn-robotics\[show\]'"):
        shapes_of(model)


# ---- where files are -------------------------------------------------------------------------------------------------


def test_models_remember_their_files_while_they_live(robot, tmp_path, monkeypatch):
    path = robot()
    model = sd.load(path)
    changed = model.replace(gravity=np.zeros(3))
    assert model.source.file == path and changed.source is None
    assert pickle.loads(pickle.dumps(model)).source is None
    assert {x.colour for x in shapes_of(changed)} <= {INERTIA_COLOUR, LINK_LINE}
    assert len(shapes_of(changed, path)) == len(shapes_of(model))
    assert {x.colour for x in shapes_of(model, False)} <= {INERTIA_COLOUR, LINK_LINE}
    monkeypatch.chdir(tmp_path / "share" / "arm_description" / "urdf")
    assert shapes_of(sd.load(URDF.replace("HAND", mesh_visual("../meshes/part.stl"))))[-1].body == 1
    with pytest.raises(sd.InvalidInput, match="the file of another robot"):
        shapes_of(sd.chain(2), path)


def test_xacro_files_have_their_own_folder(robot, tmp_path):
    pytest.importorskip("xacro")
    robot()
    path = tmp_path / "share" / "arm_description" / "urdf" / "arm.xacro"
    text = URDF.replace("HAND", mesh_visual("../meshes/${'part'}.stl"))
    path.write_text(text.replace("<robot ", '<robot xmlns:xacro="http://www.ros.org/wiki/xacro" '), encoding="utf-8")
    assert isinstance(shapes_of(sd.load(path))[-1].shape, Mesh)


# ---- MuJoCo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["humanoid", "stacked"])
def test_geoms_are_where_mujoco_has_them(name):
    mj, model, state = mujoco_models.imported(name)
    q, _, _ = model.random_state(seed=1)
    data = mujoco.MjData(mj)
    data.qpos[:] = state.to_mujoco(q, np.zeros(model.nv))[0]
    mujoco.mj_kinematics(mj, data)
    world = [*(pose(rotation(X), translation(X)) for X in forward_kinematics(model, q)), np.eye(4)]
    found = [x for x in shapes_of(model, mj) if x.colour not in (INERTIA_COLOUR, LINK_LINE)]
    kinds = mujoco.mjtGeom
    drawn = [g for g in range(mj.ngeom) if mj.geom_type[g] not in (kinds.mjGEOM_PLANE, kinds.mjGEOM_HFIELD)]
    rest = iter(found)
    for g in drawn:
        x = next(rest)
        T = world[x.body] @ x.T
        np.testing.assert_allclose(T[:3, 3], data.geom_xpos[g], atol=1e-12)
        np.testing.assert_allclose(T[:3, :3], data.geom_xmat[g].reshape(3, 3), atol=1e-12)
        np.testing.assert_allclose(x.colour, mj.geom_rgba[g], rtol=1e-6)
        if mj.geom_type[g] == kinds.mjGEOM_CAPSULE:
            assert x.shape == Cylinder(mj.geom_size[g][0], 2 * mj.geom_size[g][1])
            for end in (-1, 1):
                T_end = world[(y := next(rest)).body] @ y.T
                np.testing.assert_allclose(T_end[:3, 3], T[:3, 3] + end * mj.geom_size[g][1] * T[:3, 2], atol=1e-12)
    assert next(rest, None) is None and drawn


def test_mujoco_meshes_hidden_geoms_and_materials():
    corners = " ".join(str(x) for p in np.ndindex(2, 2, 2) for x in p)
    model = sd.load(
        '<mujoco><option><flag contact="disable"/></option>'
        f'<asset><mesh name="m" vertex="{corners}"/><material name="red" rgba="1 0 0 1"/></asset><worldbody>'
        '<body name="b"><joint/><geom type="mesh" mesh="m" material="red"/><geom size="1" group="3"/></body>'
        '<geom type="plane" size="1 1 1"/></worldbody></mujoco>'
    )
    (mesh,) = (x for x in shapes_of(model) if x.body == 0)
    assert mesh.colour == (1.0, 0.0, 0.0, 1.0)
    points = (mesh.T @ np.column_stack([mesh.shape.vertices, np.ones(8)]).T)[:3].T
    assert sorted(map(tuple, points.round(6) + 0.0)) == sorted(np.ndindex(2, 2, 2))


# ---- inertias --------------------------------------------------------------------------------------------------------


def test_ellipsoids_have_the_inertia_of_their_bodies():
    """m/5 (b² + c²) about each axis, at the centre of mass, turned into the body."""
    model = sd.chain(4, seed=2)
    for i in range(model.nb):
        (x,) = (x for x in shapes_of(model) if x.body == i and x.colour == INERTIA_COLOUR)
        m, (a, b, c) = model.inertias[i, 5, 5], np.square(x.shape.radii)
        own = inertia(m, np.zeros(3), m / 5 * np.diag([b + c, a + c, a + b]))
        X = X_motion(x.T[:3, :3].T, x.T[:3, 3])
        np.testing.assert_allclose(transform_inertia(own, X), model.inertias[i], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(x.T[:3, 3], first_moment(model.inertias[i]) / m)
