"""Robots by name, and what `load` takes: paths, texts, names."""

import icub_models
import pytest

import sysdyn as sd

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


def test_names_of_several_packages(installed):
    installed("gymnasium", "gymnasium/envs/mujoco/assets/panda.xml", MJCF.replace('"m"', '"of gymnasium"'))
    assert sd.load("panda").name == "of gymnasium"
    share = "cmeel.prefix/share/example-robot-data/robots/"
    installed("example-robot-data", share + "panda_description/urdf/panda.urdf", URDF)
    installed("example-robot-data", share + "talos_data/robots/talos_reduced.urdf", URDF.replace('"r"', '"talos"'))
    installed("example-robot-data", share + "talos_data/srdf/talos.srdf", "no robot")
    own = {"biped", "delta", "four_bar", "leg", "quadruped"}
    assert set(sd.robots()) == {"talos", "talos_reduced", "panda", "gymnasium:panda"} | own
    assert sd.load("panda").name == sd.load("example-robot-data:panda").name == "r" and sd.load("talos").name == "talos"
    assert sd.load("gymnasium:panda").name == "of gymnasium"


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
    with pytest.raises(sd.InvalidInput, match="is an MJCF file; fixed_joints are options of URDF files"):
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
    with pytest.raises(sd.InvalidInput, match="no xacro file: only these take mappings"):
        sd.load(tmp_path / "arm.urdf", mappings={"length": 1})


def test_long_texts_take_linear_time():
    """4,000 lines that are no robot, and comments that do not end."""
    for text in ("no path\n" * 4000, "<!--" * 40_000, "<?x?> <!-- -->\n" * 4000 + "<robot"):
        with pytest.raises(sd.SysdynError) as caught:
            sd.load(text)
        assert len(str(caught.value)) < 2000
