"""Joints that move no inertia at any state: named when a file is read, when a problem is compiled or diagnosed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from oracles import icub_urdf

import sysdyn as sd
from sysdyn.errors import ModelError, PlausibilityWarning, SingularState, StructurallySingular
from sysdyn.model.inertia import inertia
from sysdyn.model.massless import inertialess_joints

# Robots of icub-models whose necks and wrists have links without inertia that are regular at almost every state.
MASSLESS_LINKS = ("iCubNancy01", "iCubGenova03", "iCubLisboa01")


def without(model: sd.model.Model, *bodies: int, about_x: float = 0.0) -> sd.model.Model:
    """The model without the inertias of these bodies, the last of which keeps a moment about its x."""
    inertias = model.inertias.copy()
    inertias[list(bodies)] = 0.0
    inertias[bodies[-1], 0, 0] = about_x
    return model.replace(inertias=inertias, strict=None)


def names(model: sd.model.Model) -> list[str]:
    return [x.joint for x in inertialess_joints(model)]


def two_about_one_axis() -> sd.model.Model:
    """Joints 0 and 1 rotate about one axis: only their sum moves anything."""
    model = sd.chain(3, seed=2)
    X = model.X_tree.copy()
    X[1] = np.eye(6)
    return without(model.replace(X_tree=X), 0)


CHAIN = sd.chain(4, seed=1)
# name: (model, joints, words of the first reason)
CASES = {
    "all have inertia": (CHAIN, [], ()),
    "last": (without(CHAIN, 3), ["joint3"], ("'body3' has no inertia", "'joint3' moves nothing else")),
    "last two": (without(CHAIN, 2, 3), ["joint2", "joint3"], ("'body2', 'body3' have no inertia",)),
    "none about the axis": (without(CHAIN, 3, about_x=0.1), ["joint3"], ("'body3'", "about its axis")),
    "armature": (without(CHAIN, 3).replace(armature=[0.0, 0.0, 0.0, 0.1]), [], ()),
    "undone by the next joint": (two_about_one_axis(), ["joint0"], ("'body0' has no inertia", "beyond joint 'joint0'")),
    "harmless links": (without(CHAIN, 0, 1), [], ()),
}


@pytest.mark.parametrize("case", CASES)
def test_joints_without_inertia_are_named_with_the_reason(case):
    model, joints, words = CASES[case]
    assert names(model) == joints
    assert all(x in str(inertialess_joints(model)[0]) for x in words)
    if joints:
        with pytest.raises(SingularState, match="moves no inertia"):
            sd.aba(model, *model.random_state(seed=0))


@pytest.mark.parametrize("seed", range(12))
def test_as_the_articulated_body_algorithm_finds(seed):
    """Random trees with links without inertia: `aba` fails at a random state exactly where a joint is idle."""
    rng = np.random.default_rng(seed)
    model = sd.random_tree(8, seed=seed, joints=("revolute", "prismatic", "spherical", "cylindrical"))
    model = model.replace(armature=np.where(rng.random(model.nv) < 0.2, 0.1, 0.0))
    chosen = [i for i in range(8) if rng.random() < 0.4]
    model = without(model, *chosen) if chosen else model
    q, qd, tau = model.random_state(seed=seed + 100)
    found = inertialess_joints(model)
    if found:
        with pytest.raises(SingularState, match="moves no inertia") as error:
            sd.aba(model, q, qd, tau)
        assert any(f"joint '{x.joint}" in str(error.value) for x in found)
    else:
        assert np.isfinite(sd.aba(model, q, qd, tau)).all()


GRIPPER = """<robot name="arm">
<link name="base"/>
<link name="arm"><inertial><mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="l_gripper"/><link name="tip"/>
<joint name="shoulder" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="0 0 1"/></joint>
<joint name="k" type="continuous"><parent link="arm"/><child link="l_gripper"/><axis xyz="0 1 0"/></joint>
<joint name="weld" type="fixed"><parent link="l_gripper"/><child link="tip"/></joint>
</robot>"""


def test_named_when_a_file_is_read():
    named = "model 'arm': body 'l_gripper' has no inertia, joint 'k' moves nothing else"
    with pytest.warns(PlausibilityWarning, match=named) as caught:
        model = sd.load_urdf(GRIPPER)
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.raises(ModelError, match=f"{named}.*strict=False"):
        sd.load_urdf(GRIPPER, strict=True)
    problem = sd.forward_dynamics(model)
    with pytest.raises(StructurallySingular, match="'l_gripper' has no inertia, joint 'k' moves nothing else"):
        sd.compile(problem)
    advice = "body 'l_gripper' has no inertia, joint 'k' moves nothing else; give the body an inertia or the joint an"
    assert any(x.startswith(advice) for x in sd.diagnose(problem).suggestions)
    assert not any(
        "inertia" in x
        for x in sd.diagnose(problem - sd.JointTorque("shoulder") + sd.JointAcceleration("k")).suggestions
    )
    sd.compile(sd.inverse_dynamics(model), level="fast")
    assert names(sd.load_urdf(GRIPPER.replace('<link name="tip"/>', TIP))) == []  # a welded tip is inertia enough


TIP = """<link name="tip"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>"""


@pytest.mark.parametrize("base", ["fixed", "floating"])
@pytest.mark.parametrize("name", MASSLESS_LINKS)
def test_links_that_are_harmless_are_not_named(name, base):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = sd.load(icub_urdf(name), base=base)
    assert not any("moves nothing" in str(w.message) or "joints beyond" in str(w.message) for w in caught)
    assert sum(not I.any() for I in model.inertias) == 4 and inertialess_joints(model) == ()


def test_a_point_on_an_axis():
    model = sd.chain(2, seed=3)
    inertias = model.inertias.copy()
    inertias[1] = inertia(1.0, np.array([0.0, 0.0, 0.4]), np.zeros((3, 3)))
    assert names(model.replace(inertias=inertias)) == ["joint1"]
    inertias[1] = inertia(1.0, np.array([0.1, 0.0, 0.4]), np.zeros((3, 3)))
    assert names(model.replace(inertias=inertias)) == []
