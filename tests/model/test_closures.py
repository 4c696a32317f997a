"""Coupled joints, loops and passive torques: as files say them, and as Pinocchio and MuJoCo have them."""

import pickle

import mujoco
import numpy as np
import pinocchio as pin
import pytest
from scipy.spatial.transform import Rotation

import sysdyn as sd
from sysdyn.model.closures import Coupling, Loop

INERTIAL = (
    '<inertial><origin xyz="0.1 0.05 0.2"/><mass value="1.3"/>'
    '<inertia ixx="0.1" ixy="0.01" ixz="0" iyy="0.12" iyz="0.02" izz="0.15"/></inertial>'
)


def joint(name, parent, child, axis, mimic="", type="revolute"):
    return (
        f'<joint name="{name}" type="{type}"><origin xyz="0.2 0.1 0.3" rpy="0.3 0.2 0.5"/><parent link="{parent}"/>'
        f'<child link="{child}"/><axis xyz="{axis}"/><limit lower="-1" upper="1" effort="1" velocity="1"/>'
        f"{mimic}</joint>"
    )


# A gripper whose first finger has two links, one that leads and one that follows; the other slides on another branch.
GRIPPER = f"""<robot name="gripper">{"".join(f'<link name="{x}">{INERTIAL}</link>' for x in "abcdef")}
{joint("wrist", "a", "b", "0 0 1")}{joint("lead", "b", "c", "0 1 0")}
{joint("tip", "c", "d", "1 0 0", '<mimic joint="lead" multiplier="-0.7" offset="0.2"/>')}
{joint("slide", "b", "e", "0 1 1", '<mimic joint="lead" multiplier="2"/>', "prismatic")}
{joint("last", "e", "f", "1 1 0")}</robot>"""


def options():
    return {"backend": "python", "level": "fast"}


def independent(model):
    return np.setdiff1d(np.arange(model.nv), [link.v for link in model.couplings])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_mimic_joints_agree_with_pinocchio(base):
    """Its coordinates are ours without the followers; angular and linear parts of its free joint change places."""
    model = sd.load(GRIPPER, base=base)
    free = (pin.JointModelFreeFlyer(),) if base == "floating" else ()
    theirs = pin.buildModelFromXML(GRIPPER, *free, mimic=True)
    data = theirs.createData()
    own = independent(model)
    assert theirs.nv == len(own) == model.nv - 2
    q, qd, qdd = model.random_state(3)
    at = np.zeros(theirs.nv, dtype=int)
    position = pin.neutral(theirs)
    for i, name in enumerate(model.joint_names):
        j, part = theirs.joints[theirs.getJointId(name)], range(model.nv)[model.v_slice(i)]
        if name not in model.followers:
            position[j.idx_q : j.idx_q + j.nq] = q[model.q_slice(i)]
            at[j.idx_v : j.idx_v + j.nv] = np.roll(part, 3) if j.nv == 6 else part
    tau = pin.rnea(theirs, data, position, qd[at], qdd[at]).copy()
    G, order = model.coupling_matrix(q), np.searchsorted(own, at)
    np.testing.assert_allclose((G.T @ sd.rnea(model, q, qd, qdd))[order], tau, rtol=0, atol=1e-12)
    M = np.triu(pin.crba(theirs, data, position))
    H = (G.T @ sd.crba(model, q) @ G)[np.ix_(order, order)]
    np.testing.assert_allclose(H, M + np.triu(M, 1).T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(G @ qd[own], qd, atol=1e-15)

    inverse = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], **options())
    found = inverse(q, qd, qdd=np.where(np.isin(np.arange(model.nv), own), qdd, 0.0)).tau  # theirs is not read
    np.testing.assert_allclose(found[at], tau, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.delete(found, own), 0.0, atol=1e-12)
    forward = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], **options())
    for applied in (found, sd.rnea(model, q, qd, qdd)):  # at the leaders, or at each joint
        np.testing.assert_allclose(forward(q, qd, applied).qdd, qdd, rtol=0, atol=1e-11)
        np.testing.assert_allclose(sd.forward_dynamics_crba(model, q, qd, applied), qdd, rtol=0, atol=1e-11)


CURVED = (Coupling("joint2", "joint0", (0.1, -0.5, 0.3, 0.2)), Coupling("joint3", None, (0.4,)))


def test_polynomials_and_held_joints():
    model = sd.chain(5, seed=2).replace(closures=CURVED)
    q, qd, _ = model.random_state(1, batch=3)
    h = 1e-6
    ahead = model.imposed(model.integrate(q, qd, h), qd)[0]
    behind = model.imposed(model.integrate(q, qd, -h), qd)[0]
    np.testing.assert_allclose((ahead - behind) / (2 * h), qd, atol=1e-8)
    np.testing.assert_array_equal(q[:, 3], 0.4)
    tau = np.random.default_rng(0).normal(size=(3, 5))
    expected = sd.forward_dynamics_crba(model, q, qd, tau)
    np.testing.assert_allclose(model.imposed(q, qd, expected)[2], expected, atol=1e-12)
    solver = sd.compile(sd.forward_dynamics(model), **options())
    solution = solver(q, qd, tau)
    np.testing.assert_allclose(solution.qdd, expected, rtol=0, atol=1e-10)
    left = sd.rnea(model, q, qd, expected) - tau  # what the transmissions exert
    for k in range(3):
        np.testing.assert_allclose(model.coupling_matrix(q[k]).T @ left[k], 0.0, atol=1e-10)
    np.testing.assert_allclose(solution["w", "JointCoupling(joint2)"][:, 0], left[:, 2], atol=1e-10)
    assert sd.assemble(solver.problem).col_names[-2:] == (
        "w(JointCoupling(joint2)).torque",
        "w(JointCoupling(joint3)).torque",
    )
    at = {"q": q[0], "qd": qd[0], "tau": tau[0]}
    J = solver.derivatives(of="qdd", wrt=list(at))(*at.values())
    step = np.array([0.3, -0.2, 0.1, 0.5, -0.4])
    for name in at:
        ahead, behind = (solver(*(at | {name: at[name] + s * h * step}).values()).qdd for s in (1.0, -1.0))
        np.testing.assert_allclose(J["qdd", name] @ step, (ahead - behind) / (2 * h), atol=1e-6)


def test_hybrid_dynamics_lead():
    model = sd.load(GRIPPER)
    assert "coupled  tip, slide; loops 0" in repr(model)
    q, qd, qdd = model.random_state(5)
    tau = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], **options())(q, qd, qdd=qdd).tau
    hybrid = sd.compile(sd.hybrid_dynamics(model, ["lead"]), outputs=["tau", "qdd"], **options())(
        q, qd, tau=tau, qdd=qdd
    )
    np.testing.assert_allclose(hybrid.qdd, qdd, atol=1e-11)
    np.testing.assert_allclose(hybrid.tau, tau, atol=1e-11)


def test_inverse_kinematics_leads():
    model = sd.load(GRIPPER)
    q, _, _ = model.imposed([0.5, -0.4, 0.0, 0.0, 0.2])
    start = model.imposed([0.4, -0.3, 0.0, 0.0, 0.15])[0]
    found = sd.inverse_kinematics(model, "c", sd.frame_pose(model, q, "c"), start)
    assert found.converged
    np.testing.assert_allclose(model.imposed(found.q)[0], found.q, atol=1e-15)
    np.testing.assert_allclose(sd.frame_pose(model, found.q, "d"), sd.frame_pose(model, q, "d"), atol=1e-6)
    with pytest.raises(sd.InvalidInput, match="frame 'd' is carried by 'tip', which follow other joints"):
        sd.inverse_kinematics(model, "d", np.eye(4), q)


def test_trees_alone():
    model = sd.load(GRIPPER)
    with pytest.raises(sd.InvalidInput, match="aba is for trees, .* 'tip', 'slide'; use forward_dynamics_crba"):
        sd.aba(model, *model.random_state())
    free = model.replace(closures=())
    assert free.digest == model.digest and sd.forward_dynamics(free).digest != sd.forward_dynamics(model).digest
    assert len(sd.aba(free, *free.random_state())) == 5


def test_models_and_problems_with_closures_are_stored():
    loops = (Loop("hold", "body1", "base", "fixed"),)
    model = sd.chain(5, seed=2).replace(closures=CURVED + loops, damping=np.arange(5.0), friction=np.ones(5))
    for again in (sd.Model.from_dict(model.to_dict()), pickle.loads(pickle.dumps(model))):
        assert again.closures == CURVED + loops and again.friction.tolist() == [1.0] * 5 and again.damping[4] == 4.0
    problem = sd.forward_dynamics(model)
    assert [m.name for m in problem.constraints] == ["JointCoupling(joint2)", "JointCoupling(joint3)", "hold"]
    assert sd.Problem.from_dict(problem.to_dict()).digest == problem.digest


WRONG = {
    "cycle": ((Coupling("joint0", "joint1", (0, 1)), Coupling("joint1", "joint0", (0, 1))), "cycle: joint0 → joint1"),
    "twice": ((Coupling("joint0", "joint1", (0, 1)), Coupling("joint0", None, (0,))), "'joint0' is coupled twice"),
    "unknown": ((Coupling("joint0", "jiont1", (0, 1)),), "Did you mean 'joint1'"),
    "not finite": ((Coupling("joint0", "joint1", (0, np.inf)),), "not finite numbers"),
    "frame": ((Loop("l", "body0", "bdy1", "fixed"),), "Did you mean 'body1'"),
    "kind": ((Loop("l", "body0", "body1", "welded"),), "kind of loop 'l' 'welded'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_closures(case):
    closures, said = WRONG[case]
    with pytest.raises(sd.SysdynError, match=said):
        sd.chain(3).replace(closures=closures)


def test_couplings_are_of_joints_with_one_freedom():
    ball = sd.random_tree(3, seed=1, joints=("spherical",))
    with pytest.raises(sd.ModelError, match="has 3 degrees of freedom"):
        ball.replace(closures=[Coupling("joint0", "joint1", (0, 1))])
    with pytest.raises(sd.InvalidInput, match="has not one degree of freedom"):
        sd.forward_dynamics(ball) + sd.JointCoupling("joint0", "joint1")


def test_a_massless_follower_is_carried():
    light = GRIPPER.replace(f'<link name="f">{INERTIAL}</link>', '<link name="f"/>')
    with pytest.warns(sd.PlausibilityWarning, match="'last'"):
        sd.load(light)
    sd.load(light.replace('<axis xyz="1 1 0"/>', '<axis xyz="1 1 0"/><mimic joint="wrist"/>'))


# ---- MJCF -----------------------------------------------------------------------------------------------------------

FOUR = """<mujoco model="four"><option gravity="0 0 -9.81" density="0"><flag contact='disable'/></option>
<worldbody><body name="a" pos="0 0 1" euler="10 0 20"><joint name="ja" axis="0 1 0" ref="0.3"/>
<geom type="box" size=".1 .2 .1" pos=".1 0 0"/><site name="sa" pos="0 .3 1" euler="30 0 0"/>
<body name="b" pos="1 0 0" euler="0 40 0"><joint name="jb" axis="0 1 1" pos=".1 0 0"/><geom size=".1" pos="0 .2 0"/>
<body name="d" pos=".1 .2 0"><geom size=".1"/></body></body></body>
<body name="c" pos="2 0 0" euler="0 0 30"><freejoint/><geom type="box" size=".1 .2 .3"/>
<site name="sc" pos=".1 0 0"/></body></worldbody><equality>%s</equality></mujoco>"""
EQUALITIES = {
    "connect": ('<connect name="k" body1="b" body2="c" anchor=".5 .2 0"/>', Loop("k", "k:a", "k:b", "spherical")),
    "connect the world": (
        '<connect body1="c" anchor=".5 .2 0"/>', Loop("connect0", "connect0:a", "connect0:b", "spherical"),
    ),
    "connect sites": ('<connect name="k" site1="sa" site2="sc"/>', Loop("k", "k:a", "k:b", "spherical")),
    "weld": ('<weld name="w" body1="d" body2="c" anchor="0 0 .3"/>', Loop("w", "w:a", "w:b", "fixed")),
    "weld to a pose": (
        '<weld name="w" body1="b" body2="c" relpose="1 .2 .3 .5 .5 -.5 .5"/>', Loop("w", "w:a", "w:b", "fixed"),
    ),
    "weld sites": ('<weld name="w" site1="sa" site2="sc"/>', Loop("w", "w:a", "w:b", "fixed")),
    "joint": (
        '<joint joint1="ja" joint2="jb" polycoef=".1 2 .3 0 0"/>', Coupling("ja", "jb", (0.1, 2.0, 0.3, 0.0, 0.0)),
    ),
    "locked": ('<joint joint1="ja" polycoef=".1 2 .3 0 0"/>', Coupling("ja", None, (0.1,))),
}  # fmt: skip


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", EQUALITIES)
def test_equalities_are_those_of_mujoco(case):
    """They hold there where our loops are closed, or as much of them as of our couplings does.

    Its Jacobian J and inertia M give the accelerations at rest: M q̈ + C = τ + J^T w, J q̈ = 0.
    """
    element, closure = EQUALITIES[case]
    mj = mujoco.MjModel.from_xml_string(FOUR % element)
    model, state = sd.from_mujoco(mj), sd.MujocoState(mj)
    assert model.closures == (closure,)
    q, qd, _ = model.replace(closures=()).random_state(7)
    if isinstance(closure, Loop):
        q = closed(model, q, closure)
    data = mujoco.MjData(mj)
    data.qpos, data.qvel = state.to_mujoco(q, 0.0 * qd)
    mujoco.mj_forward(mj, data)
    expected = q[0] - model.imposed(q)[0][0] if isinstance(closure, Coupling) else 0.0
    np.testing.assert_allclose(data.efc_pos, expected, atol=1e-12)
    q = model.imposed(q)[0]
    data.qpos, data.qvel = state.to_mujoco(q, 0.0 * qd)
    mujoco.mj_forward(mj, data)
    J = sparse(data, mj.nv) if mujoco.mj_isSparse(mj) else data.efc_J.reshape(data.nefc, mj.nv)
    M = np.zeros((mj.nv, mj.nv))
    mujoco.mj_fullM(mj, M, data.qM) if hasattr(data, "qM") else mujoco.mj_fullM(mj, data, M)
    tau = np.random.default_rng(1).normal(size=mj.nv)
    rows = len(J)
    KKT = np.block([[M, J.T], [J, np.zeros((rows, rows))]])
    rest = np.concatenate([state.force_to_mujoco(q, tau) - data.qfrc_bias, np.zeros(rows)])
    expected = np.linalg.lstsq(KKT, rest, rcond=1e-12)[0][: mj.nv]
    solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], **options())
    found = state.acceleration_to_mujoco(q, 0.0 * qd, solver(q, 0.0 * qd, tau).qdd)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


def closed(model, q, loop):
    """q with body c, which is free, where the loop is closed."""
    ends = [loop.frame_a, loop.frame_b]
    moved, held = ends if model.frame(loop.frame_a).body == model.body_index("c") else ends[::-1]
    T = sd.frame_pose(model, q, held) @ np.linalg.inv(sd.frame_pose(model, q, moved)) @ sd.frame_pose(model, q, "c")
    q = q.copy()
    q[2:5], q[5:] = T[:3, 3], Rotation.from_matrix(T[:3, :3]).as_quat()
    return q


def sparse(data, nv):
    """efc_J as a dense matrix."""
    J = np.zeros((data.nefc, nv))
    for r in range(data.nefc):
        start, n = data.efc_J_rowadr[r], data.efc_J_rownnz[r]
        J[r, data.efc_J_colind[start : start + n]] = data.efc_J.ravel()[start : start + n]
    return J


def test_equalities_that_are_off_or_hold_by_themselves():
    off = '<joint joint1="ja" joint2="jb" active="false"/><weld body1="b" body2="d"/>'
    assert sd.load_mjcf(FOUR % off).closures == ()
    assert sd.load_mjcf((FOUR % EQUALITIES["joint"][0]).replace("<flag", '<flag equality="disable"')).closures == ()


# ---- damping and friction ------------------------------------------------------------------------------------------


def test_passive_torques_are_those_of_mujoco_and_of_motors():
    text = FOUR.replace('ref="0.3"', 'damping="0.7"')
    text = text.replace('pos=".1 0 0"/><geom size', 'damping="3"/><geom size')
    mj = mujoco.MjModel.from_xml_string(text % "")
    with pytest.warns(sd.IgnoredWarning, match="joint damping"):
        model = sd.from_mujoco(mj)
    np.testing.assert_array_equal(model.damping, mj.dof_damping)
    q, qd, _ = model.random_state(2)
    data = mujoco.MjData(mj)
    data.qpos, data.qvel = sd.MujocoState(mj).to_mujoco(q, qd)
    mujoco.mj_forward(mj, data)
    np.testing.assert_allclose(model.passive_torque(qd), data.qfrc_passive, atol=1e-12)

    model = model.replace(friction=np.linspace(0.1, 0.8, model.nv))
    motors = sd.MotorTorque(["ja", "jb"], passive=True, name="motors")
    problem = sd.Problem(model, [motors, sd.JointTorque("c_joint0"), sd.ExternalWrench("all")])
    tau = np.arange(1.0, 1.0 + model.nv)
    found = sd.compile(problem, outputs=["qdd"], **options())(q, qd, tau, y={"motors": tau[:2]}).qdd
    tau[:2] += model.passive_torque(qd)[:2]
    np.testing.assert_allclose(found, sd.aba(model, q, qd, tau), rtol=1e-9)
    again = sd.Problem.from_dict(problem.to_dict())
    assert again.digest == problem.digest
    assert sd.Problem(model.replace(friction=None), problem.measurements).digest != problem.digest
    fast = 1e3 * np.sign(qd)
    np.testing.assert_allclose(
        -model.passive_torque(fast), model.damping * fast + model.friction * np.sign(qd), rtol=1e-9
    )
    with pytest.raises(sd.InvalidInput, match="slip of 'm' is 0"):
        sd.MotorTorque(["ja"], passive=True, slip=0.0, name="m")


def hinged(name, inside="", pos="0.3 0.1 0.2", axis="0 1 0"):
    return (
        f'<body name="{name}" pos="{pos}"><joint name="j{name}" axis="{axis}"/>'
        f'<geom size=".1" mass="1.2" pos=".1 .2 .05"/>{inside}</body>'
    )


SITES = '<site name="s" pos="0 0 .1"/>', '<site name="t" pos=".1 0 .1"/>'
ARM = hinged("a", SITES[0] + hinged("b", hinged("c", axis="0 0 1"), axis="1 0 0"))
BRANCHES = ARM + hinged("d", SITES[1] + hinged("e", hinged("f", axis="1 0 0")))
CLOSING = {
    "connect": '<connect body1="c" body2="f" anchor="0.1 0 0.2"/>',
    "connect to the world": '<connect name="k" body1="c" anchor="0.1 0 0.2"/>',
    "weld": '<weld name="w" body1="c" body2="f"/>',
    "weld to the world": '<weld body1="c"/>',
    "sites": '<connect site1="s" site2="t"/>',
    "several": '<connect body1="b" body2="e" anchor="0 0 0"/><connect body1="c" anchor="0.1 0 0.2"/>',
    "with a coupling": '<joint joint1="jf" joint2="je" polycoef="0 2 0 0 0"/><connect body1="b" body2="d" '
    'anchor="0 0 0"/>',
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the loops of")
@pytest.mark.parametrize("free", ["", "<freejoint/>"])
@pytest.mark.parametrize("case", CLOSING)
def test_robots_with_loops_have_solvers(case, free):
    """Whatever is wanted, in recursions and eliminations: loops are open in inverse dynamics, as the tree's rnea."""
    base = f'<body name="base">{free}<geom size=".2" mass="3"/>{BRANCHES}</body>' if free else BRANCHES
    text = (
        f"<mujoco><option><flag contact='disable'/></option><worldbody>{base}</worldbody>"
        f"<equality>{CLOSING[case]}</equality></mujoco>"
    )
    model = sd.load(text)
    assert any(isinstance(x, Loop) for x in model.closures)
    open_ = model.replace(closures=tuple(x for x in model.closures if isinstance(x, Coupling)))
    q, qd, qdd = model.random_state(seed=1)
    G = open_.coupling_matrix(q)
    expected = G.T @ sd.rnea(open_, q, qd, qdd)
    for outputs, formulation in ((["tau"], "auto"), (["tau"], "paper"), ("all", "auto")):
        solver = sd.compile(sd.inverse_dynamics(model), outputs=outputs, formulation=formulation, **options())
        assert np.allclose(solver(q, qd, qdd).tau[independent(model)], expected, rtol=1e-10, atol=1e-10)
    tau = np.zeros(model.nv)
    tau[independent(model)] = expected
    assert sd.compile(sd.forward_dynamics(open_), **options())(q, qd, tau).backward_error() < 1e-11
    closed = sd.forward_dynamics(model)
    if sd.diagnose(closed).well_posed:  # a loop may hold more than its joints leave free
        assert sd.compile(closed, **options())(q, qd, tau).backward_error() < 1e-11
    else:
        assert case not in ("connect", "connect to the world")


@pytest.mark.parametrize("still", ["", '<body><geom size=".1"/></body>'])
def test_robots_that_do_not_move_have_no_solvers(still):
    model = sd.load(f"<mujoco><worldbody>{still}</worldbody></mujoco>")
    for problem in (sd.inverse_dynamics(model), sd.forward_dynamics(model)):
        for outputs in ("all", "tau", ["qdd"]):
            with pytest.raises(sd.ProblemError, match="no body that moves"):
                sd.compile(problem, outputs=outputs, **options())
    rigid = sd.load(
        '<robot name="r"><link name="a"/><link name="b"/><joint name="j" type="fixed"><parent link="a"/>'
        '<child link="b"/></joint></robot>', fixed_joints="keep",
    )  # fmt: skip
    for outputs in ("tau", ["qdd"], ["tau", "qdd"]):
        with pytest.raises(sd.ProblemError, match="have no entry: no joint moves"):
            sd.compile(sd.inverse_dynamics(rigid), outputs=outputs, **options())
    assert sd.compile(sd.inverse_dynamics(rigid), outputs="f", **options())([], []).f.shape == (1, 6)
