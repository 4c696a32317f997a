"""Loop joints: q̈ and wrenches against Pinocchio's loop constraints, finite differences and plane mechanisms."""

from __future__ import annotations

import json

import numpy as np
import pinocchio as pin
import pytest

import sysdyn as sd
from sysdyn.errors import InvalidInput, StructurallySingular, UnknownName
from sysdyn.measurements.classical import forward_dynamics
from sysdyn.measurements.constraints import LOOPS, Contact, LoopJoint
from sysdyn.measurements.problem import Problem
from sysdyn.model import Fixed, forward_kinematics
from sysdyn.model.quantities import ACCELERATION
from sysdyn.model.se3 import X_motion, pose, rotx, roty, rotz, translation

POSE = pose((rotx(0.3) @ roty(0.2)), np.array([0.1, 0.2, 0.3]))
FIXED, SPHERICAL = pin.ContactType.CONTACT_6D, pin.ContactType.CONTACT_3D


def close(found, expected, tolerance) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def branched(lengths: tuple[int, ...], seed: int) -> sd.Model:
    """A random tree of branches of these lengths on one root body, revolute joints about random axes."""
    n = 1 + sum(lengths)
    parent = [-1]
    for length in lengths:
        for k in range(length):
            parent.append(0 if k == 0 else len(parent) - 1)
    return sd.random_tree(n, seed=seed, joints=("revolute",)).replace(parent=tuple(parent))


def in_pinocchio(model: sd.Model) -> pin.Model:
    """The same tree of revolute joints, made joint by joint."""
    made = pin.Model()
    made.gravity = pin.Motion(np.concatenate([model.gravity, np.zeros(3)]))
    for i, joint in enumerate(model.joints):
        X, I = model.X_tree[i], model.inertias[i]
        place = pin.SE3(X[:3, :3].T, translation(X))
        parent = model.parent[i] + 1
        number = made.addJoint(parent, pin.JointModelRevoluteUnaligned(joint.S[:3, 0]), place, model.joint_names[i])
        mass = I[5, 5]
        c = np.array([I[2, 4], I[0, 5], I[1, 3]]) / mass
        about_centre = I[:3, :3] + mass * pin.skew(c) @ pin.skew(c)
        made.appendBodyToJoint(number, pin.Inertia(mass, c, about_centre), pin.SE3.Identity())
    return made


def body_pose(model: sd.Model, q, body: int) -> np.ndarray:
    return np.eye(4) if body < 0 else sd.frame_pose(model, q, model.body_names[body])


def closed(model: sd.Model, q, a: int, b: int, turn: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(T_a, T_b): a pose on body a, and the one on b that coincides with it at q, turned about its z by 0.4."""
    T_a = POSE
    R = rotz(0.4) if turn is None else turn
    T_b = np.linalg.inv(body_pose(model, q, b)) @ body_pose(model, q, a) @ T_a @ pose(R, np.zeros(3))
    T_b[3] = (0.0, 0.0, 0.0, 1.0)
    return T_a, T_b


def framed(model: sd.Model, a: int, b: int, T_a, T_b) -> sd.Model:
    """The model with frames A and B at these poses on bodies a and b (−1: the base)."""
    frames = {name: sd.Frame(name, i, X_motion(T[:3, :3].T, T[:3, 3])) for name, i, T in (("A", a, T_a), ("B", b, T_b))}
    return model.replace(frames={**model.frames, **frames})


def relative_jacobian(model: sd.Model, q) -> np.ndarray:
    """(6, nv) velocity of B relative to A, in the axes of A, where their origins coincide."""
    E = (sd.frame_pose(model, q, "A")[:3, :3].T) @ sd.frame_pose(model, q, "B")[:3, :3]
    turn = np.kron(np.eye(2), E)
    return turn @ sd.frame_jacobian(model, q, "B") - sd.frame_jacobian(model, q, "A")


def consistent(model: sd.Model, q, qd, held) -> np.ndarray:
    """The nearest q̇ that the loop allows."""
    J = relative_jacobian(model, q)[held]
    return qd - np.linalg.pinv(J) @ (J @ qd)


# ---- against Pinocchio ---------------------------------------------------------------------------------------------

AXIAL = ("revolute", "prismatic", "cylindrical")
CLOSED = [("spherical", SPHERICAL, (3, 3), s) for s in range(3)] + [("fixed", FIXED, (5, 4), s) for s in range(2)]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "contact", "branches", "seed"), CLOSED)
def test_spatial_loops(kind, contact, branches, seed):
    """Two branches of a random tree joined at their ends, at a state that satisfies the loop."""
    model = branched(branches, seed)
    q, qd, _ = model.random_state(seed=seed)
    a, b = branches[0], sum(branches)
    T_a, T_b = closed(model, q, a, b)
    model = framed(model, a, b, T_a, T_b)
    held = [3, 4, 5] if kind == "spherical" else range(6)
    qd = consistent(model, q, qd, list(held))
    tau = np.random.default_rng(seed).uniform(-5.0, 5.0, model.nv)
    solver = sd.compile(
        forward_dynamics(model) + LoopJoint("A", "B", kind, name="loop"), level="fast", backend="python"
    )
    solution = solver(q, qd, tau)
    made = in_pinocchio(model)
    data = made.createData()
    models, datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    places = (a + 1, pin.SE3(T_a), b + 1, pin.SE3(T_b))
    models.append(pin.RigidConstraintModel(contact, made, *places, pin.ReferenceFrame.LOCAL))
    datas.append(models[0].createData())
    pin.initConstraintDynamics(made, data, models, datas)
    expected = pin.constraintDynamics(made, data, q, qd, tau, models, datas, pin.ProximalSettings(1e-15, 0.0, 1))
    close(solution.qdd, expected, 1e-9)
    force = datas[0].contact_force  # on body a
    close(solution.wrench("loop"), -np.concatenate([force.angular, force.linear]), 1e-9)
    assert solver.ordering in ("aba", "crba") and solver.stability.sign_changes == 0


# ---- the definition ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(3, 6), (6, 3), (2, 3), (3, -1), (-1, 6)])
def test_values_are_second_derivatives(a, b):
    """At any state, closed or not: the origin of B in the axes of A, and their relative angular velocity."""
    model = branched((3, 3), 11)
    rng = np.random.default_rng(5)
    T_a, T_b = POSE, pose(rotx(-0.5) @ rotz(1.1), np.array([-0.2, 0.1, 0.4]))
    model = framed(model, a, b, T_a, T_b)
    q, qd, qdd = model.random_state(seed=2)
    y = sd.predict(Problem(model, [LoopJoint("A", "B", "fixed", name="y")]), q, qd, qdd)["y"]

    def seen(t: float) -> tuple[np.ndarray, np.ndarray]:
        """(p_b − p_a in the axes of A, ω_b − ω_a in the axes of A)."""
        at, rate = q + t * qd + t * t / 2 * qdd, qd + t * qdd
        A, B = (sd.frame_pose(model, at, x) for x in "AB")
        w_a, w_b = (sd.frame_jacobian(model, at, x, "world")[:3] @ rate for x in "AB")
        R = A[:3, :3].T
        return R @ (B[:3, 3] - A[:3, 3]), R @ (w_b - w_a)

    h = 1e-4
    minus, centre, plus = (seen(t) for t in (-h, 0.0, h))
    close(y[3:], (plus[0] - 2 * centre[0] + minus[0]) / h**2, 1e-5)
    close(y[:3], (plus[1] - minus[1]) / (2 * h), 1e-6)
    assert rng is not None


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("kind", AXIAL)
def test_kinds_of_joints(kind, axis):
    """[H −A^T; A 0] (q̈, w) = (τ − C, −Ȧ q̇), at a state that is not closed, with wrenches balanced on both bodies."""
    model = branched((4, 4), 3)
    a, b = 4, 8
    model = framed(model, a, b, POSE, pose(rotx(0.4), np.array([0.3, 0.0, 0.1])))
    loop = LoopJoint("A", "B", kind, axis, name="loop")
    free = {"revolute": ["alpha"], "prismatic": ["a"], "cylindrical": ["alpha", "a"]}[kind]
    assert set(ACCELERATION) - set(loop.chosen) == {f"{x}_{axis}" for x in free}
    q, qd, _ = model.random_state(seed=1)
    tau = np.random.default_rng(1).uniform(-5.0, 5.0, model.nv)
    solution = sd.compile(forward_dynamics(model) + loop, "aba", level="fast", backend="python")(q, qd, tau)
    moved = Problem(model, [LoopJoint("A", "B", loop.chosen, name="loop")])
    bias = sd.predict(moved, q, qd, np.zeros(model.nv))["loop"]
    A = np.array([sd.predict(moved, q, qd, e)["loop"] - bias for e in np.eye(model.nv)]).T
    kkt = np.block([[sd.crba(model, q), -A.T], [A, np.zeros((len(A), len(A)))]])
    expected = np.linalg.solve(kkt, [*(tau - sd.rnea(model, q, qd, np.zeros(model.nv))), *-bias])
    close(solution.qdd, expected[: model.nv], 1e-8)
    close(solution["w", "loop"], expected[model.nv :], 1e-8)
    # the same wrench on B, opposite on A, both at the origin of B
    on_b = solution.wrench("loop", "world")
    X0 = forward_kinematics(model, q)
    B = sd.frame_pose(model, q, "B")
    to_world = X_motion(np.eye(3), B[:3, 3])  # axes of the world, at the origin of B
    fx = np.zeros((model.nb, 6))
    for body, wrench in ((b, on_b), (a, -on_b)):
        X = to_world @ np.linalg.inv(X0[body])
        fx[body] = X.T @ wrench
    close(sd.rnea(model, q, qd, solution.qdd, fx), tau, 1e-8)


@pytest.mark.slow
def test_a_loop_to_the_base_is_a_contact():
    """At rest both state the same, whichever frame is on the base."""
    model = branched((3, 3), 7)
    q, _, _ = model.random_state(seed=4)
    T_a, T_b = closed(model, q, 6, -1)
    model = framed(model, 6, -1, T_a, T_b)
    tau = np.random.default_rng(2).uniform(-5.0, 5.0, model.nv)
    still = np.zeros(model.nv)
    contact = sd.compile(forward_dynamics(model) + Contact("A", "point", name="c"), level="fast", backend="python")(
        q, still, tau
    )
    for order, sign in ((("A", "B"), -1.0), (("B", "A"), 1.0)):
        loop = sd.compile(forward_dynamics(model) + LoopJoint(*order, name="c"), level="fast", backend="python")(
            q, still, tau
        )
        close(loop.qdd, contact.qdd, 1e-9)
        close(sign * loop.wrench("c", "world"), contact.wrench("c", "world"), 1e-9)


# ---- plane mechanisms ----------------------------------------------------------------------------------------------


def bar(n: int) -> sd.Model:
    """n bars of different lengths in the plane, from the origin; the base joint of the loop is at (1.2, 0)."""
    lengths = np.array([0.5, 1.1, 0.8, 0.6])[:n]
    com = np.array([[x / 2, 0.02, 0.0] for x in lengths])
    inertia = [np.diag([0.01, 0.1, 0.1]) * (k + 1) for k in range(n)]
    model = sd.from_dh(
        [0.0] * n, [0.0, *lengths[:-1]], [0.0] * n, [1.0, 2.0, 1.5, 0.7][:n], com, inertia, gravity=(0, -9.81, 0)
    )
    tip, ground = np.eye(4), np.eye(4)
    tip[0, 3], ground[0, 3] = lengths[-1], 1.2
    return framed(model, n - 1, -1, tip, ground)


def assembled(model: sd.Model, q: np.ndarray) -> np.ndarray:
    """q with its last two angles such that the tip is at the joint of the base, by Newton's method."""
    q = q.copy()
    for _ in range(50):
        e = (sd.frame_pose(model, q, "A") - sd.frame_pose(model, q, "B"))[:2, 3]
        if np.abs(e).max() < 1e-15:
            break
        q[-2:] -= np.linalg.solve(sd.frame_jacobian(model, q, "A", "world")[3:5, -2:], e)
    assert np.abs(e).max() < 1e-13
    return q


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("n", [3, 4], ids=["four-bar", "five-bar"])
def test_plane_mechanisms(n):
    """Against Pinocchio, whose redundant row across the plane needs its proximal solver."""
    model = bar(n)
    loop = LoopJoint("A", "B", ("a_x", "a_y"), name="pin")
    solver = sd.compile(forward_dynamics(model) + loop, level="fast", backend="python")
    made = in_pinocchio(model)
    data = made.createData()
    models, datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    start = np.zeros(n)
    tip = pin.SE3(np.linalg.inv(body_pose(model, start, n - 1)) @ sd.frame_pose(model, start, "A"))
    ground = pin.SE3(sd.frame_pose(model, start, "B"))
    models.append(pin.RigidConstraintModel(SPHERICAL, made, n, tip, 0, ground, pin.ReferenceFrame.LOCAL))
    datas.append(models[0].createData())
    pin.initConstraintDynamics(made, data, models, datas)
    rng = np.random.default_rng(n)
    for _ in range(5):
        q = assembled(model, np.array([1.2, -0.9, -1.1, -0.8][:n]) + 0.1 * rng.standard_normal(n))
        qd = consistent(model, q, rng.standard_normal(n), [3, 4])
        tau = rng.uniform(-5.0, 5.0, n)
        solution = solver(q, qd, tau)
        expected = pin.constraintDynamics(made, data, q, qd, tau, models, datas, pin.ProximalSettings(1e-14, 1e-8, 20))
        close(solution.qdd, expected, 1e-8)
        force = datas[0].contact_force.linear
        close(solution.wrench("pin")[3:5], -force[:2], 1e-8)


@pytest.mark.parametrize(("base", "expected"), [("fixed", 0.25), ("floating", 1.0)])
def test_four_bar_with_published_accelerations(base, expected):
    """A square of four equal bars of length 2, torques 1, 0 and 1, no gravity.

    GTDynamics, tests/testDynamicsGraph.cpp (0190b8d), models/sdfs/test/four_bar_linkage_pure.sdf (1785e8a).
    """
    bar = (
        "<link name='l{0}'><inertial><origin xyz='0 0 1'/><mass value='1'/>"
        "<inertia ixx='1' ixy='0' ixz='0' iyy='0' iyz='0' izz='1'/></inertial></link>"
    )
    joint = (
        "<joint name='j{0}' type='continuous'><parent link='l{0}'/><child link='l{1}'/><axis xyz='1 0 0'/>"
        "<origin xyz='0 0 2' rpy='1.5707963267948966 0 0'/></joint>"
    )
    end = "<joint name='tip' type='fixed'><parent link='l4'/><child link='end'/><origin xyz='0 0 2'/></joint>"
    links = "".join(bar.format(k) for k in range(1, 5)) + "<link name='end'/>" + end
    text = f"<robot name='square'>{links}{''.join(joint.format(k, k + 1) for k in range(1, 4))}</robot>"
    model = sd.load(text, base=base, gravity=(0, 0, 0))
    problem = forward_dynamics(model) + LoopJoint("end", "l1", ("a_y", "a_z"))
    solver = sd.compile(problem, outputs=["qdd"], level="fast", backend="python")
    tau = np.zeros(model.nv)
    tau[[-3, -1]] = 1.0
    qdd = solver(model.neutral(), np.zeros(model.nv), tau).qdd
    np.testing.assert_allclose(qdd[-3:], [expected, -expected, expected], rtol=0, atol=1e-12)


def test_energy_of_a_four_bar():
    """Without torques the mechanism keeps its energy: power of the loop's wrench is zero."""
    model = bar(3)
    solver = sd.compile(
        forward_dynamics(model) + LoopJoint("A", "B", ("a_x", "a_y")), outputs=["qdd"], level="fast", backend="python"
    )
    q = assembled(model, np.array([1.2, -0.9, -1.1]))
    qd = consistent(model, q, np.array([1.0, 0.0, 0.0]), [3, 4])

    def power(q, qd) -> float:
        """d/dt of the kinetic energy less the power of gravity."""
        qdd = solver(q, qd, np.zeros(3)).qdd
        return float(qd @ sd.rnea(model, q, qd, qdd))

    assert abs(power(q, qd)) <= 1e-12
    assert np.abs(sd.rnea(model, q, qd, solver(q, qd, np.zeros(3)).qdd)).max() > 0.1


# ---- diagnosis and errors ------------------------------------------------------------------------------------------


def test_a_redundant_row_is_named_and_exerts_nothing():
    problem = forward_dynamics(bar(3)) + LoopJoint("A", "B", "spherical", name="pin")
    found = sd.diagnose(problem)
    assert "y:pin: a_z" in found.redundant and "w(pin).fz" in found.undetermined
    solver = sd.compile(problem, level="fast")
    assert [(m.name, k) for m, k in solver.left_out] == [("pin", (2,))]
    with pytest.raises(StructurallySingular, match="'pin'"):  # torques are undetermined, too
        sd.compile(sd.inverse_dynamics(bar(3)) + LoopJoint("A", "B", "spherical", name="pin"))


def test_stored_loops_are_the_same(tmp_path):
    model = bar(4)
    for loop in (LoopJoint("A", "B", ("a_x", "a_y")), LoopJoint("A", (model.body_names[0], POSE), "revolute", "y")):
        problem = forward_dynamics(model) + loop
        again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
        assert again.digest == problem.digest is not None
        assert again.constraints[0].chosen == loop.chosen
    moved = framed(model, 3, -1, POSE, np.eye(4))
    assert Problem(moved, problem.measurements).digest != problem.digest
    problem = forward_dynamics(model) + LoopJoint("A", "B", ("a_x", "a_y"))
    solver = sd.compile(problem, level="fast", backend="python")
    loaded = sd.load_solver(solver.save(tmp_path / "loop.solver"))
    q, qd, _ = model.random_state(seed=1)
    tau = np.ones(4)
    np.testing.assert_array_equal(loaded(q, qd, tau).w, solver(q, qd, tau).w)


BAD = [
    (lambda: LoopJoint("A", "A"), InvalidInput, "frames 'A' and 'A' cannot move relative to each other"),
    (lambda: LoopJoint("B", ("B", np.eye(4))), UnknownName, "body 'B'"),
    (lambda: LoopJoint("A", "C"), UnknownName, "frame 'C'"),
    (lambda: LoopJoint("A", "B", "ball"), UnknownName, "kind of a LoopJoint: 'ball'.*spherical"),
    (lambda: LoopJoint("A", "B", "revolute", "w"), UnknownName, "axis of a LoopJoint: 'w'"),
    (lambda: LoopJoint("A", "B", ("a_x", "b")), UnknownName, "component of 'LoopJoint.*'b'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_when_the_problem_is_made(make, kind, text):
    with pytest.raises(kind, match=text):
        Problem(bar(3), [make()])


def test_welded_frames():
    model = bar(3)
    none = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))
    welded = model.replace(joints=(Fixed(), *model.joints[1:]), **none)
    with pytest.raises(InvalidInput, match="cannot move relative to each other"):
        Problem(welded, [LoopJoint(welded.body_names[0], "B")])


def test_every_kind_of_loop_is_closed_here():
    assert {*AXIAL, *(row[0] for row in CLOSED)} == set(LOOPS)
