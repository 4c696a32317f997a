"""Robots by name, and what `load` takes: paths, texts, names."""

import icub_models
import pytest

import sysdyn as sd
from sysdyn.app.robots import load_robot

INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'
URDF = f'<robot name="r"><link name="a">{INERTIAL}</link></robot>'
MJCF = '<mujoco model="m"><worldbody><body name="b"><freejoint/><geom size="1"/></body></worldbody></mujoco>'


def test_installed_robots_are_loaded_by_name():
    named = sd.robots()
    assert str(named["icub"]) == str(named["iCubGazeboV2_5"]) and named["icub"].samefile(
        icub_models.get_model_file("iCubGazeboV2_5")
    )
    assert sd.load("icub", base="floating", fixed_joints="keep").nb == 213
    assert sd.load("icub").digest == sd.load("icub-models:iCubGazeboV2_5").digest


SHARE = "cmeel.prefix/share/example-robot-data/robots/"
OWN = {"biped", "delta", "four_bar", "leg", "quadruped"}


def named(name):
    return URDF.replace('"r"', f'"{name}"')


def test_names_of_several_packages(installed):
    installed("gymnasium", "gymnasium/envs/mujoco/assets/panda.xml", MJCF.replace('"m"', '"of gymnasium"'))
    installed("gymnasium", "gymnasium/envs/mujoco/assets/hopper.xml", MJCF.replace('"m"', '"of gymnasium"'))
    assert sd.load("hopper").name == sd.load("gymnasium:panda").name == "of gymnasium"
    with pytest.raises(sd.BackendUnavailable, match="package example-robot-data, .*'gymnasium:panda' is"):
        sd.load("panda")
    installed("example-robot-data", SHARE + "panda_description/urdf/panda.urdf", URDF)
    installed("example-robot-data", SHARE + "talos_data/robots/talos_reduced.urdf", named("talos"))
    installed("example-robot-data", SHARE + "talos_data/srdf/talos.srdf", "no robot")
    installed("dm_control", "dm_control/suite/hopper.xml", MJCF.replace('"m"', '"of dm_control"'))
    hoppers = {"gymnasium:hopper", "dm_control:hopper"}
    assert set(sd.robots()) == {"talos", "talos_reduced", "panda", "gymnasium:panda"} | hoppers | OWN
    assert sd.load("panda").name == sd.load("example-robot-data:panda").name == "r" and sd.load("talos").name == "talos"
    assert sd.load("gymnasium:panda").name == "of gymnasium" and sd.load("dm_control:hopper").name == "of dm_control"
    with pytest.raises(sd.InvalidInput, match="'hopper': write '(gymnasium|dm_control):hopper' or '.*:hopper'"):
        sd.load("hopper")
    with pytest.raises(sd.InvalidInput, match="'hopper': write "):
        load_robot("hopper")


def test_robots_of_this_package_keep_their_names(installed):
    before = {name: sd.load(name).digest for name in OWN}
    for name in OWN:
        installed("example-robot-data", f"{SHARE}{name}_description/urdf/{name}.urdf", named("other"))
        installed("pybullet", f"pybullet_data/{name}/{name}.urdf", named("other"))
    assert {name: sd.load(name).digest for name in OWN} == before
    for package in ("example-robot-data", "pybullet"):
        assert {f"{package}:{name}" for name in OWN} < set(sd.robots())
        assert sd.load(f"{package}:quadruped").name == load_robot(f"{package}:quadruped").name == "other"
    assert sd.load("sysdyn:leg").digest == before["leg"]


def test_files_of_one_name_in_a_package(installed):
    for letter in "bc":
        installed("example-robot-data", f"{SHARE}anymal_{letter}_data/urdf/anymal.urdf", named(letter))
    installed("pybullet", "pybullet_data/random_urdfs/001/001.urdf", URDF)
    full = [f"example-robot-data:anymal_{letter}_data/urdf/anymal" for letter in "bc"]
    assert set(sd.robots()) == {*full, *OWN} and [sd.load(name).name for name in full] == ["b", "c"]
    for name in ("anymal", "example-robot-data:anymal"):
        with pytest.raises(sd.InvalidInput, match="anymal_b_data/urdf/anymal.*anymal_c_data/urdf/anymal"):
            sd.load(name)


def test_robots_that_are_not_there(installed):
    for name in ("talos", "example-robot-data:anything"):
        with pytest.raises(sd.BackendUnavailable, match="in the package example-robot-data, which is not installed"):
            sd.load(name)
    installed("icub-models", "share/iCub/robots/iCubGenova01/model.urdf", URDF)
    with pytest.raises(sd.UnknownName, match="unknown robot 'iCubGenova02'. Did you mean 'iCubGenova01'"):
        sd.load("iCubGenova02")


def test_load_takes_texts_and_tells_them_apart(tmp_path):
    assert sd.load(URDF).name == "r" and sd.load(f"\n<!-- a -->{URDF}", base="floating").nb == 1
    assert sd.load(MJCF).name == sd.load(MJCF, base="floating").name == "m"
    with pytest.raises(sd.InvalidInput, match="load_mjcf.*fixed_joints"):
        sd.load(MJCF, fixed_joints="keep", snap=False)
    for nothing in (None, 5, b"robot.urdf"):
        for read in (sd.load, sd.load_urdf, sd.load_mjcf):
            with pytest.raises(sd.InvalidInput, match="path .*, not (NoneType|int|bytes)"):
                read(nothing)
    (tmp_path / "arm").write_text(URDF)
    with pytest.raises(sd.ModelError, match="has the suffix ''; readable: .urdf, .xacro, .xml"):
        sd.load(tmp_path / "arm")
    with pytest.raises(sd.ModelError, match="<string>:1: <sdf>: .*an SDF file"):
        sd.load("<sdf/>")
    with pytest.raises(sd.InvalidInput, match="load_urdf.*mappings"):
        sd.load(tmp_path / "arm.urdf", mappings={"length": 1})


def test_long_texts_take_linear_time():
    """4,000 lines that are no robot, and comments that do not end."""
    for text in ("no path\n" * 4000, "<!--" * 40_000, "<?x?> <!-- -->\n" * 4000 + "<robot"):
        with pytest.raises(sd.SysdynError) as caught:
            sd.load(text)
        assert len(str(caught.value)) < 2000
