"""MJCF: every kind of tree against MuJoCo itself, states there and back, names, and every way a file can be wrong."""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mujoco_models import MODELS, NO_CONTACT, Oracle, imported, passive, path, random_mjcf, relative_error
from oracles import icub, icub_urdf, mujoco_model

import sysdyn as sd
from sysdyn.errors import BackendUnavailable, IgnoredWarning, InvalidInput, ModelError, PlausibilityWarning
from sysdyn.model import (
    Free,
    Model,
    MujocoState,
    Prismatic,
    Revolute,
    Spherical,
    frame_transform,
    from_mujoco,
    load,
    load_mjcf,
)
from sysdyn.model.se3 import rotation, translation
from sysdyn.reference import aba, rnea
from sysdyn.reference.crba import crba

STATES = 100
GEOM = '<geom type="box" size=".1 .2 .3" pos=".1 .05 0"/>'


def mjcf(body: str, more: str = "", default: str = NO_CONTACT) -> str:
    return f'<mujoco model="m">{default}{more}<worldbody>{body}</worldbody></mujoco>'


def compiled(text: str) -> tuple[mujoco.MjModel, Model, MujocoState]:
    mj = passive(mujoco.MjModel.from_xml_string(text))
    return mj, from_mujoco(mj), MujocoState(mj)


def assert_dynamics_agree(mj: mujoco.MjModel, model: Model, state: MujocoState, states: int) -> None:
    """rnea, aba and crba against mj_inverse, mj_rne, mj_forward and mj_fullM."""
    oracle = Oracle(mj, state)
    q, qd, x = model.random_state(seed=model.nv, batch=states, scale=3.0)
    tau, qdd, H = rnea(model, q, qd, x), aba(model, q, qd, 10.0 * x), crba(model, q)
    for k in range(states):
        assert relative_error(tau[k], oracle.inverse(q[k], qd[k], x[k])) < 1e-9
        assert relative_error(qdd[k], oracle.forward(q[k], qd[k], 10.0 * x[k])) < 1e-9
        assert relative_error(state.inertia_to_mujoco(q[k], H[k]), oracle.inertia(q[k])) < 1e-10
        still = state.acceleration_to_sysdyn(*state.to_mujoco(q[k], qd[k]), np.zeros(mj.nv))
        assert relative_error(rnea(model, q[k], qd[k], still) - model.armature * still, oracle.bias(q[k], qd[k])) < 1e-9


def assert_frames_agree(mj: mujoco.MjModel, model: Model, state: MujocoState, q: np.ndarray) -> None:
    """Each named body and each site whose name is no body's lies where MuJoCo has it."""
    data = mujoco.MjData(mj)
    data.qpos[:], _ = state.to_mujoco(q, np.zeros(mj.nv))
    mujoco.mj_kinematics(mj, data)
    bodies = {mj.body(b).name: (data.xmat[b], data.xpos[b]) for b in range(mj.nbody) if mj.body(b).name}
    sites = {mj.site(s).name: (data.site_xmat[s], data.site_xpos[s]) for s in range(mj.nsite)}
    for name, (R, p) in {**sites, **bodies}.items():
        X = frame_transform(model, q, name)
        assert np.allclose(rotation(X).T, R.reshape(3, 3), atol=1e-12, rtol=0), name
        assert np.allclose(translation(X), p, atol=1e-12, rtol=0), name


# ---- dynamics and kinematics against MuJoCo --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_dynamics_agree_with_mujoco(name):
    assert_dynamics_agree(*imported(name), STATES)


@pytest.mark.parametrize("name", MODELS)
def test_bodies_and_sites_are_where_mujoco_has_them(name):
    mj, model, state = imported(name)
    for q in (model.neutral(), *model.random_state(seed=2, batch=5)[0]):
        assert_frames_agree(mj, model, state, q)


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_random_trees_agree_with_mujoco(bodies, seed):
    mj, model, state = compiled(random_mjcf(bodies, seed))
    if mj.nv:
        assert_dynamics_agree(mj, model, state, 3)
    assert_frames_agree(mj, model, state, model.random_state(seed)[0])


@functools.cache
def solver(name: str, kind: str) -> sd.Solver:
    model, quick = imported(name)[1], {"level": "fast", "backend": "python"}
    if kind == "inverse":
        return sd.compile(sd.inverse_dynamics(model), "rnea", outputs=["tau"], **quick)
    return sd.compile(sd.forward_dynamics(model), "aba", outputs=["qdd"], **quick)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("kind", ["inverse", "forward"])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_solvers_agree_with_mujoco(name, kind):
    """Bodies without mass between the joints of one body included."""
    mj, model, state = imported(name)
    oracle = Oracle(mj, state)
    q, qd, x = model.random_state(seed=7, batch=STATES, scale=3.0)
    if kind == "inverse":
        found = solver(name, kind)(q, qd, qdd=x).tau
        errors = [relative_error(found[k], oracle.inverse(q[k], qd[k], x[k])) for k in range(STATES)]
    else:
        found = solver(name, kind)(q, qd, 10.0 * x).qdd
        errors = [relative_error(found[k], oracle.forward(q[k], qd[k], 10.0 * x[k])) for k in range(STATES)]
    assert max(errors) < 1e-9


@pytest.mark.parametrize("name", ["gantry", "stacked"])
def test_the_search_for_an_order_accepts_bodies_without_mass(name):
    mj, model, state = imported(name)
    assert any(not I.any() for I in model.inertias)
    q, qd, tau = model.random_state(seed=8, scale=3.0)
    found = sd.compile(sd.forward_dynamics(model), level="fast")(q, qd, tau)
    assert relative_error(found.qdd, Oracle(mj, state).forward(q, qd, tau)) < 1e-9
    assert relative_error(found.tau, tau) < 1e-12


def test_a_model_that_comes_with_mujoco():
    mj = mujoco.MjModel.from_xml_path(str(Path(mujoco.__file__).parent / "testdata" / "model.xml"))
    with pytest.warns(IgnoredWarning) as caught:
        from_mujoco(mj)
    (warning,) = caught
    for word in ("contacts", "joint springs", "joint damping", "fluid forces", "gravity compensation", "tendons"):
        assert word in str(warning.message)
    assert Path(warning.filename) == Path(__file__)
    passive(mj)
    off = mujoco.mjtDisableBit
    mj.opt.disableflags |= off.mjDSBL_SPRING | off.mjDSBL_DAMPER | off.mjDSBL_ACTUATION
    mj.opt.density = mj.opt.viscosity = 0.0
    mj.body_gravcomp[:] = 0.0
    with pytest.warns(IgnoredWarning, match="ignored: tendons"):
        model = from_mujoco(mj)
    assert_dynamics_agree(mj, model, MujocoState(mj), 10)
    assert_frames_agree(mj, model, MujocoState(mj), model.random_state(1)[0])


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_the_icub_is_the_same_by_urdf_and_by_mujoco(base):
    """Two readers of one file; the joints are matched by name."""
    by_urdf, by_mujoco = icub(base), from_mujoco(mujoco_model(icub_urdf(), base))
    assert by_mujoco.base == base and by_mujoco.nb == by_urdf.nb
    assert relative_error(by_mujoco.mass, by_urdf.mass) < 1e-12
    at = [by_urdf.joint_index(name) for name in by_mujoco.joint_names]
    q, qd, qdd = by_urdf.random_state(seed=1, scale=3.0)
    of_q = np.concatenate([np.arange(by_urdf.nq)[by_urdf.q_slice(i)] for i in at])
    of_v = np.concatenate([np.arange(by_urdf.nv)[by_urdf.v_slice(i)] for i in at])
    tau = rnea(by_urdf, q, qd, qdd)
    assert relative_error(rnea(by_mujoco, q[of_q], qd[of_v], qdd[of_v]), tau[of_v]) < 1e-9


# ---- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_velocities_are_those_of_moving_positions(name):
    """mj_integratePos and Model.integrate move the same way, to first order."""
    mj, model, state = imported(name)
    h = 1e-6
    for q, qd in zip(*model.random_state(seed=4, batch=5)[:2], strict=True):
        qpos, qvel = state.to_mujoco(q, qd)
        moved = qpos.copy()
        mujoco.mj_integratePos(mj, moved, qvel, h)
        there, _ = state.to_sysdyn(moved, qvel)
        assert np.allclose(model.difference(q, there) / h, qd, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_states_there_and_back(name):
    mj, model, state = imported(name)
    q, qd, x = model.random_state(seed=5, batch=4)
    qpos, qvel = state.to_mujoco(q, qd)
    assert qpos.shape == (4, mj.nq) and qvel.shape == (4, mj.nv)
    for found, expected in zip(state.to_sysdyn(qpos, qvel), (q, qd), strict=True):
        assert np.allclose(found, expected, atol=1e-14, rtol=0)
    assert np.allclose(state.acceleration_to_sysdyn(qpos, qvel, state.acceleration_to_mujoco(q, qd, x)), x, atol=1e-14)
    assert np.allclose(state.force_to_sysdyn(qpos, state.force_to_mujoco(q, x)), x, atol=1e-14)
    H = crba(model, q)
    assert np.allclose(state.inertia_to_sysdyn(qpos, state.inertia_to_mujoco(q, H)), H, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_power_and_energy_have_no_coordinates(name):
    mj, model, state = imported(name)
    q, qd, tau = model.random_state(seed=6, batch=4)
    qvel = state.to_mujoco(q, qd)[1]
    assert np.allclose(np.sum(qvel * state.force_to_mujoco(q, tau), -1), np.sum(qd * tau, -1))
    M, H = state.inertia_to_mujoco(q, crba(model, q)), crba(model, q)
    assert np.allclose(np.einsum("ni,nij,nj->n", qvel, M, qvel), np.einsum("ni,nij,nj->n", qd, H, qd))


def test_neutral_is_where_the_file_places_joints():
    mj, model, state = imported("gantry")
    qpos, _ = state.to_mujoco(model.neutral(), np.zeros(4))
    assert np.array_equal(qpos, mj.qpos0) and np.allclose(qpos, [0.3, 0.0, np.pi / 6, 0.0])
    q, _ = state.to_sysdyn(np.ones(4), np.zeros(4))
    assert np.allclose(q, 1.0 - mj.qpos0)


def test_states_broadcast():
    _, model, state = imported("balls")
    q, qd, x = model.random_state(seed=1, batch=3)
    one = state.to_mujoco(q[0], qd)[1]
    assert np.allclose(one[2], state.to_mujoco(q[0], qd[2])[1])
    forces = state.force_to_mujoco(q[:, None], x[None])
    assert forces.shape == (3, 3, model.nv)
    assert np.allclose(forces[1, 2], state.force_to_mujoco(q[1], x[2]))
    H = crba(model, q)
    assert np.allclose(state.inertia_to_mujoco(q, H)[1], state.inertia_to_mujoco(q[1], H[1]))


def test_quaternions_are_normalised_as_mujoco_does():
    mj, model, state = imported("balls")
    q, qd, _ = model.random_state(seed=3)
    qpos, qvel = state.to_mujoco(q, qd)
    longer = qpos.copy()
    longer[3:7] *= 3.0
    kept = longer.copy()
    assert np.allclose(state.to_sysdyn(longer, qvel)[0], q, atol=1e-14) and np.array_equal(longer, kept)
    assert np.allclose(state.to_sysdyn(longer, qvel)[1], qd, atol=1e-14)


def test_bad_states():
    mj, model, state = imported("balls")
    q, qd, _ = model.random_state(seed=3)
    qpos, qvel = state.to_mujoco(q, qd)
    with pytest.raises(InvalidInput, match=r"qpos has shape \(3,\), but \(…, 25\) is needed"):
        state.to_sysdyn(np.zeros(3), qvel)
    with pytest.raises(InvalidInput, match=r"qvel has shape \(25,\)"):
        state.to_sysdyn(qpos, qpos)
    with pytest.raises(InvalidInput, match=r"H has shape \(20,\)"):
        state.inertia_to_mujoco(q, qd)
    with pytest.raises(InvalidInput, match="tau is nan at entry 0"):
        state.force_to_mujoco(q, qd * np.nan)
    with pytest.raises(InvalidInput, match="qfrc has type <U1"):
        state.force_to_sysdyn(qpos, ["a"] * model.nv)
    with pytest.raises(InvalidInput, match=r"the quaternion qpos\[3:7\] is zero"):
        state.to_sysdyn(np.zeros(mj.nq), qvel)
    for wrong in (path("balls"), mujoco.MjSpec.from_file(path("balls"))):
        for convert in (MujocoState, from_mujoco):
            with pytest.raises(InvalidInput, match="a mujoco.MjModel is needed, not (str|MjSpec)"):
                convert(wrong)


# ---- what is made of the file ----------------------------------------------------------------------------------------


def test_names_lumps_and_limits():
    _, model, _ = imported("gantry")
    assert model.name == "gantry" and model.base == "fixed" and model.parent == (-1, 0, 1, 2)
    assert model.joint_names == ("x", "body3__joint1", "tilt", "arm_joint1")
    assert model.body_names == ("body3_@x", "body3_", "arm@tilt", "arm@arm_joint1")  # a lumped body is called body3
    assert [type(joint) for joint in model.joints] == [Prismatic, Prismatic, Revolute, Revolute]
    for frame, body in {
        "world": -1, "post": -1, "bracket": -1, "bracket@bracket": -1, "floor": -1, "body3_": 1, "body4": 1,
        "arm": 3, "body3": 3, "tip": 3,
    }.items():  # fmt: skip
        assert model.frame(frame).body == body, frame
    assert np.allclose(model.lower, [-0.8, -np.inf, -np.pi / 2, -np.inf])
    assert np.allclose(model.upper, [0.6, np.inf, np.pi / 3, np.inf])
    assert np.allclose(model.effort_limit, [40.0, np.inf, np.inf, np.inf])
    assert np.allclose(model.armature, [0, 0, 0, 0.2])
    assert not model.inertias[[0, 2]].any() and model.inertias[[1, 3]].any(axis=(1, 2)).all()


def test_frames_stay_at_the_origin_of_the_body_where_they_can():
    """Hinges whose axes pass through it and slides leave it there; hinges that meet elsewhere share a frame."""
    body = f"""<body name="a" pos="0 0 1">
      <joint name="x" axis="1 0 0" pos=".3 0 0"/><joint name="s" type="slide" axis="0 1 0" pos="1 2 3"/>
      <joint name="y" axis="0 1 0" pos="0 -.2 0"/>{GEOM}
      <body name="b"><joint name="u" axis="1 0 0" pos="0 0 .1"/><joint name="v" axis="0 1 0" pos="0 0 .1"/>{GEOM}</body>
    </body>"""
    _, model, _ = compiled(mjcf(body))
    assert model.body_names == ("a@x", "a@s", "a", "b@u", "b@v")
    placed = [translation(X) for X in model.X_tree]
    assert np.allclose(placed, [(0, 0, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0.1), (0, 0, 0)], atol=1e-15)


def test_floating_base_is_one_free_body_that_carries_all():
    assert imported("humanoid")[1].base == "floating" and imported("balls")[1].base == "floating"
    _, model, _ = imported("scene")
    assert model.base == "fixed" and [type(joint) for joint in model.joints].count(Free) == 3
    _, model, _ = compiled(mjcf(f"<body>{GEOM}<freejoint/></body><body>{GEOM}</body>"))
    assert model.base == "floating" and model.body_names == ("body1",) and model.joint_names == ("body1_joint0",)


def test_a_file_without_joints():
    model = load_mjcf(mjcf(f'<body name="a" pos="1 0 0">{GEOM}</body>'))
    assert model.nb == model.nv == 0 and model.base == "fixed"
    assert np.array_equal(translation(model.frame("a").X), [1, 0, 0])


def test_actuators_add_their_armature():
    mj, model, _ = imported("stacked")
    extra = dict(zip(model.joint_names, model.armature - mj.dof_armature, strict=True))
    assert np.allclose(extra.pop("lift"), 20**2 * 0.01) and np.allclose(extra.pop("wrist2"), 3**2 * 0.02 + 0.005)
    assert not any(extra.values())


def test_actuators_of_tendons_add_no_armature_to_joints():
    more = """<tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon>
      <actuator><motor tendon="t" armature=".3"/></actuator>"""
    mj = passive(mujoco.MjModel.from_xml_string(mjcf(f'<body>{GEOM}<joint name="j" armature=".1"/></body>', more)))
    with pytest.warns(IgnoredWarning, match="ignored: tendons$"):
        model = from_mujoco(mj)
    assert model.armature.tolist() == [0.1]


def test_an_armature_of_a_free_joint_keeps_the_equations_of_mujoco():
    body = f"""<body name="a"><joint name="root" type="free" armature=".5"/>{GEOM}
      <body name="b" pos=".2 0 0"><joint name="j" axis="0 1 1"/>{GEOM}</body></body>"""
    mj = passive(mujoco.MjModel.from_xml_string(mjcf(body)))
    with pytest.warns(PlausibilityWarning, match="three slides and a ball: root"):
        model = from_mujoco(mj)
    assert model.joint_names == ("root[x]", "root[y]", "root[z]", "root[ball]", "j") and model.base == "fixed"
    assert model.body_names == ("a@root[x]", "a@root[y]", "a@root[z]", "a", "b")
    assert_dynamics_agree(mj, model, MujocoState(mj), 20)
    assert_frames_agree(mj, model, MujocoState(mj), model.random_state(1)[0])


def test_an_armature_of_the_angular_part_alone_keeps_the_free_joint():
    mj = passive(mujoco.MjModel.from_xml_string(mjcf(f"<body>{GEOM}<freejoint/></body>")))
    mj.dof_armature[3:] = 0.1, 0.2, 0.3
    model = from_mujoco(mj)
    assert isinstance(model.joints[0], Free) and np.array_equal(model.armature, [0.1, 0.2, 0.3, 0, 0, 0])
    assert_dynamics_agree(mj, model, MujocoState(mj), 20)


def test_balls_and_slides_share_a_body():
    _, model, _ = imported("balls")
    joint = dict(zip(model.joint_names, model.joints, strict=True))
    assert isinstance(joint["shoulder"], Spherical) and isinstance(joint["forearm"], Spherical)
    assert model.body_names[1:5] == ("upper@shoulder", "lower@elbow", "lower@forearm", "lower")
    assert np.array_equal(model.armature[6:9], [0.02] * 3)


def test_entries_of_inertias_that_are_zero_are_exactly_zero():
    """Nothing of the rounding of principal axes is left to multiply with."""
    geoms = '<geom type="box" size=".1 .2 .3" pos=".1 0 0" euler="0 90 0"/><geom size=".1" pos="-.3 0 0"/>'
    _, model, _ = compiled(mjcf(f'<body euler="90 0 90"><joint axis="0 0 1"/>{geoms}</body>'))
    I, X = model.inertias[0], model.X_tree[0]
    assert not I[:3, :3][~np.eye(3, dtype=bool)].any()
    assert set(np.abs(X).flat) == {0.0, 1.0}
    slanted = '<geom type="capsule" fromto="0 0 0 .2 .2 0" size=".05"/>'
    _, model, _ = compiled(mjcf(f"<body><joint/>{slanted}</body>"))
    J = model.inertias[0][:3, :3]
    assert J[0, 1] < 0.0 and not J[2, :2].any() and not J[:2, 2].any()


def test_gravity_of_the_file_and_its_flag():
    assert np.array_equal(imported("balls")[1].gravity, [1, -2, -9])
    body = f"<body>{GEOM}<joint/></body>"
    assert np.array_equal(load_mjcf(mjcf(body)).gravity, [0, 0, -9.81])
    off = load_mjcf(mjcf(body, '<option><flag gravity="disable"/></option>'))
    assert np.array_equal(off.gravity, [0, 0, 0])


def test_implausible_inertias_warn_or_raise():
    """MuJoCo refuses them in files, but not in a compiled model."""
    mj = mujoco.MjModel.from_xml_string(mjcf(f'<body name="odd">{GEOM}<joint/></body>'))
    mj.body_inertia[1] = 1.0, 1.0, 3.0
    with pytest.warns(PlausibilityWarning, match="'odd': the principal moments"):
        from_mujoco(mj)
    with pytest.raises(ModelError, match="'odd': the principal moments"):
        from_mujoco(mj, strict=True)


# ---- what is left out ------------------------------------------------------------------------------------------------

BALL = '<geom name="gb" size=".1" pos=".1 0 0"/>'


def pair(joint: str = "", second: str = "") -> str:
    """Two bodies on a hinge each; more of the first joint, more in the second body."""
    inner = f'<body name="b"><joint name="k"/>{BALL}{second}</body>'
    return f'<body name="a"><joint name="j" {joint}/><geom name="ga" size=".1"/>{inner}</body>'


TWICE = '<joint joint1="j" joint2="k"/><joint joint1="j" joint2="k" polycoef="0 2 0 0 0"/>'
IGNORED = {
    "contacts": (pair(), "", ""),
    "contacts ": (pair(), '<contact><pair geom1="ga" geom2="gb"/></contact>', NO_CONTACT),
    "equality constraints": (pair(), f"<equality>{TWICE}</equality>", NO_CONTACT),
    "joint friction": (pair('frictionloss=".1"'), "", NO_CONTACT),
    "limits of ball joints": (
        pair(second=f'<body><joint type="ball" range="0 20" limited="true"/>{GEOM}</body>'), "", NO_CONTACT,
    ),
    "joint springs": (pair('stiffness="3"'), "", NO_CONTACT),
    "joint damping": (pair('damping="3"'), "", NO_CONTACT),
    "fluid forces": (pair(), '<option density="1.2"/>', NO_CONTACT),
    "gravity compensation": (pair(second=f'<body gravcomp="1"><joint/>{GEOM}</body>'), "", NO_CONTACT),
    "tendons": (pair(), '<tendon><fixed><joint joint="j" coef="1"/></fixed></tendon>', NO_CONTACT),
    "actuators": (pair(), '<actuator><motor joint="j"/></actuator>', NO_CONTACT),
    "motion of mocap bodies": (pair() + '<body mocap="true"/>', "", NO_CONTACT),
}  # fmt: skip
FLAGS = {
    "contacts": "contact", "contacts ": "constraint", "equality constraints": "equality",
    "joint friction": "frictionloss", "limits of ball joints": "limit", "joint springs": "spring",
    "joint damping": "damper", "gravity compensation": "gravity", "actuators": "actuation",
}  # fmt: skip


@pytest.mark.parametrize("what", IGNORED)
def test_what_is_ignored_is_said_once(what):
    body, more, default = IGNORED[what]
    with pytest.warns(IgnoredWarning) as caught:
        load_mjcf(mjcf(body, more, default))
    (warning,) = caught
    assert str(warning.message) == f"'m': not part of the model, and ignored: {what.strip()}"
    assert Path(warning.filename) == Path(__file__)


@pytest.mark.parametrize("what", FLAGS)
def test_what_is_disabled_is_not_said(what):
    body, more, default = IGNORED[what]
    load_mjcf(mjcf(body, f'<option><flag {FLAGS[what]}="disable"/></option>' + more, default))


def test_nothing_is_said_of_geoms_that_cannot_touch():
    """One body alone, and geoms of bodies that are welded to each other."""
    load_mjcf(mjcf(f"<body>{GEOM}{GEOM}<freejoint/><body>{GEOM}</body></body>", default=""))


def test_flexes_raise():
    flex = '<flexcomp name="f" type="grid" count="3 3 1" spacing=".1 .1 .1" radius=".01" dim="2">{}</flexcomp>'
    with pytest.raises(ModelError, match="'m' has 1 flexes, but bodies have to be rigid"):
        load_mjcf(mjcf(flex.format('<edge equality="true"/>')))


# ---- files -----------------------------------------------------------------------------------------------------------


def test_load_dispatches_on_the_suffix(tmp_path):
    model = load(path("gantry"))
    assert model.digest == imported("gantry")[1].digest == load_mjcf(Path(path("gantry"))).digest
    assert load(path("humanoid")).base == load(path("humanoid"), base="floating").base == "floating"
    with pytest.raises(ModelError, match="has a fixed base, not 'floating'.*freejoint"):
        load(path("gantry"), base="floating")
    upper = tmp_path / "ROBOT.XML"
    upper.write_text(mjcf(f"<body>{GEOM}<joint/></body>"))
    assert load(upper, strict=True).nb == 1


def test_text_and_what_may_stand_before_the_root():
    text = mjcf(f"<body>{GEOM}<joint/></body>")
    head = '\ufeff <?xml version="1.0"?>\n<!-- <robot> > -->\n<!-- - --><!DOCTYPE mujoco>\n'
    assert load_mjcf(head + text).digest == load_mjcf(text).digest


def test_a_file_may_include_others(tmp_path):
    (tmp_path / "part.xml").write_text(f"<mujocoinclude><body>{GEOM}<joint/></body></mujocoinclude>")
    (tmp_path / "all.xml").write_text(mjcf('<include file="part.xml"/>'))
    assert load(tmp_path / "all.xml").nb == 1


@pytest.mark.parametrize(
    "text, needle",
    [
        (
            '<robot name="r"><link name="a"/></robot>',
            "root element of an MJCF file is <mujoco>, but it is <robot>: read",
        ),
        ("<sdf/>", "it is <sdf>"),
        ("<!-- <mujoco/> -->", "there is none"),
        ("<mujoco>", "MuJoCo cannot compile it"),
        ("<mujoco>\n<worldbody><bdy/></worldbody></mujoco>", "unrecognized element Element 'bdy', line 2"),
        ('<mujoco><worldbody><body name="light"><joint/></body></worldbody></mujoco>', "'light'"),
    ],
)
def test_texts_that_are_wrong(text, needle, tmp_path):
    file = tmp_path / "wrong.xml"
    file.write_text(text)
    for source in (text, file):
        with pytest.raises(ModelError) as caught:
            load_mjcf(source)
        assert needle in str(caught.value) and "\n" not in str(caught.value)
        assert str(caught.value).startswith("<string>" if source is text else str(file))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match="cannot read 'gone.xml': No such file"):
        load_mjcf("gone.xml")
    with pytest.raises(ModelError, match="cannot read .*directory"):
        load_mjcf(tmp_path)
    with pytest.raises(ModelError, match="cannot read"):
        load_mjcf("a\0b")


def test_without_mujoco(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'sysdyn-robotics\[mujoco\]'"):
        load_mjcf(path("gantry"))
    with warnings.catch_warnings(), pytest.raises(BackendUnavailable):
        MujocoState(object())


# ---- files that would not fit, and names that are none -----------------------------------------------------------


def test_replicated_bodies_are_loaded():
    replicated = f'<worldbody><replicate count="7" offset="1 0 0"><body><joint/>{GEOM}</body></replicate></worldbody>'
    assert load_mjcf(f"<mujoco>{NO_CONTACT}{replicated}</mujoco>").nb == 7


def test_names_that_are_no_utf_8(tmp_path):
    (tmp_path / "robot.xml").write_bytes(
        b'<mujoco><worldbody><body name="\xff"><geom size="1"/></body></worldbody></mujoco>'
    )
    with pytest.raises(ModelError, match="not UTF-8"):
        load_mjcf(tmp_path / "robot.xml")


@pytest.mark.parametrize("euler", ["1.57079632679 0 0", "0 -1.57079632679 0", "0 0 3.141592653595", "0 1.5707963 0"])
def test_angles_that_stand_for_right_ones_are_exact_unless_they_are_meant(euler):
    """As of URDF files: within 1e-11 rad; snap=False leaves the digits, as MuJoCo takes them."""
    text = (
        f'<mujoco><compiler angle="radian"/><worldbody><body euler="{euler}"><joint/><geom size=".1"/>'
        f'<site name="s" euler="{euler}"/></body></worldbody></mujoco>'
    )
    written = sd.load(text, snap=False)
    read = sd.load(text)
    compiled = sd.from_mujoco(mujoco.MjModel.from_xml_string(text), snap=False)
    assert np.array_equal(compiled.X_tree, written.X_tree)
    exact = np.isin(np.round(read.X_tree[0, :3, :3], 15), (0.0, 1.0, -1.0)).all() and np.array_equal(
        read.X_tree, np.round(read.X_tree)
    )
    assert exact == ("1.5707963 " not in euler) and not np.array_equal(written.X_tree, np.round(written.X_tree))
    assert np.abs(read.X_tree - written.X_tree).max() <= 1e-11
    assert np.abs(read.frame("s").X - written.frame("s").X).max() <= 1e-11
    with pytest.raises(sd.InvalidInput, match="load_mjcf.*fixed_joints"):
        sd.load(text, fixed_joints="keep")
