"""Contacts that open and slide: the law itself, dense solutions, Pinocchio's and MuJoCo's solvers, differences."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import mujoco
import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pinocchio_models import Twin
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import InvalidInput, ProblemError, UnknownName

LEGS = (-1, 0, 1, 2, 0, 4, 5)
FEET = ("body3", "body6")
STEP = 1e-3


def _contact_problem(seed: int, rows: list[int], redundant: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Ω, b, μ): the motion of the points without forces is one that the robot can make, as b always is."""
    rng, m = np.random.default_rng(seed), sum(rows)
    J = rng.standard_normal((m, max(1, m - 3) if redundant else m + 2))
    H = np.exp(rng.uniform(-1.0, 1.0, J.shape[1]))
    return J / H @ J.T, J @ rng.standard_normal(J.shape[1]), rng.uniform(0.0, 1.2, len(rows))


def _violation(forces: np.ndarray, motion: np.ndarray, mu: np.ndarray, rows: list[int]) -> float:
    """The greatest violation of the law as it is written, by its own words and no projection."""
    worst, end = 0.0, np.cumsum(rows)
    for k, size in enumerate(rows):
        own, sigma = forces[end[k] - size : end[k]], motion[end[k] - size : end[k]]
        slip, pull = np.linalg.norm(sigma[:-1]), np.linalg.norm(own[:-1])
        dissipated = own[:-1] @ sigma[:-1] + mu[k] * own[-1] * slip  # zero if friction is against the motion, and whole
        worst = max(worst, -own[-1], -sigma[-1], abs(own[-1] * sigma[-1]), pull - mu[k] * own[-1], dissipated)
    return worst


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans())
def test_the_law_holds_where_residuals_are_small(seed, rows, redundant):
    omega, free, mu = _contact_problem(seed, rows, redundant)
    for method, steps in (("admm", 300), ("pgs", 600)):
        found = sd.Coulomb(rows, method, steps)(omega, free, mu)
        np.testing.assert_allclose(found.motion, omega @ found.forces + free, atol=1e-9)
        residual = max(found.signorini, found.friction)
        size = max(1.0, np.abs(found.forces).max()) ** 2
        assert _violation(found.forces, found.motion, mu, rows) < 30.0 * size * max(residual, 1e-9)
        if method == "admm":
            assert residual < 1e-6 or redundant


def test_most_random_problems_are_solved_to_the_last_digits():
    solved = []
    for seed, redundant in itertools.product(range(60), (False, True)):
        omega, free, mu = _contact_problem(seed, [3] * 4, redundant)
        found = sd.Coulomb([3] * 4)(omega, free, mu)
        solved.append(max(found.signorini, found.friction) < 1e-8)
    assert np.mean(solved) > 0.98


@pytest.mark.parametrize("method", ["admm", "pgs"])
def test_without_friction_it_is_the_linear_complementarity_problem(method):
    """Against all sets of closed points, of which one fits if Ω is regular."""
    law = sd.Coulomb([1] * 4, method, 400)
    for seed in range(10):
        omega, free, _ = _contact_problem(seed, [1] * 4, False)
        fitting = []
        for closed in itertools.chain.from_iterable(itertools.combinations(range(4), k) for k in range(5)):
            own, forces = list(closed), np.zeros(4)
            forces[own] = np.linalg.solve(omega[np.ix_(own, own)], -free[own])
            if np.all(forces >= 0.0) and np.all(omega @ forces + free >= -1e-12):
                fitting.append(forces)
        assert len(fitting) == 1
        np.testing.assert_allclose(law(omega, free, 0.0).forces, fitting[0], atol=1e-9)


def test_a_batch_is_its_states_and_warm_starts_need_few_steps():
    rows = [3, 3, 1, 2]
    problems = [_contact_problem(seed, rows, False) for seed in range(300)]
    omega, free, mu = (np.array(x) for x in zip(*problems, strict=True))
    law = sd.Coulomb(rows, newton_steps=0)
    many = law(omega.reshape(3, 100, 9, 9), free.reshape(3, 100, 9), mu.reshape(3, 100, 4))
    assert many.forces.shape == (3, 100, 9) and many.friction.shape == (3, 100)
    one = law(omega[207], free[207], mu[207])
    np.testing.assert_allclose(many.forces[2, 7], one.forces, atol=1e-9)
    solved = sd.Coulomb(rows, iterations=400)(omega, free, mu)
    for method in ("admm", "pgs"):
        cold, warm = (
            sd.Coulomb(rows, method, 3, 0)(omega, free, mu, forces) for forces in (None, solved.forces)
        )  # fmt: skip
        fine = np.maximum(solved.signorini, solved.friction) < 1e-9
        assert fine.mean() > 0.9 and np.median(cold.friction) > 1e-3
        assert np.maximum(warm.signorini, warm.friction)[fine].max() < 1e-6


def test_a_point_that_cannot_move_is_told_by_its_residual():
    omega = np.diag([1.0, 1.0, 2.0, 0.0, 0.0, 0.0])
    for method, pull in itertools.product(("admm", "pgs"), (1.0, -1.0)):
        found = sd.Coulomb([3, 3], method)(omega, [0.1, 0.0, -1.0, 0.0, 0.0, pull], 0.5)
        np.testing.assert_allclose(found.forces[:3], [-0.1, 0.0, 0.5], atol=1e-9)
        np.testing.assert_allclose(found.signorini, max(0.0, -pull), atol=1e-9)


@pytest.mark.slow
def test_laws_are_copied_and_called_from_threads():
    rows = [3, 3, 1, 2]
    problems = [_contact_problem(seed, rows, False) for seed in range(40)]
    law = sd.Coulomb(rows, "pgs", 57, 0)
    expected = [law(*x) for x in problems]
    with ThreadPoolExecutor(4) as pool:
        for found, alike in zip(pool.map(lambda x: law(*x), problems * 5), expected * 5, strict=True):
            np.testing.assert_array_equal(found.forces, alike.forces)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(law))(*problems[0]).forces, expected[0].forces)
    ground = _walker()
    q, qd, _ = ground.model.random_state(seed=0)
    ground.derivatives(ground(q, qd, step=STEP))
    copied = pickle.loads(pickle.dumps(ground))
    np.testing.assert_array_equal(copied(q, qd, step=STEP).qdd, ground(q, qd, step=STEP).qdd)


# ---- the same problems elsewhere -----------------------------------------------------------------------------------


def _pinocchio(twin: Twin, points: list[tuple[int, np.ndarray]], mu: float, free: np.ndarray) -> tuple:
    """(Ω, forces) of the points (body, place) by Pinocchio's ADMM, in world axes."""
    model, data = twin.pin, twin.data
    models, datas = pin.StdVec_ConstraintModel(), pin.StdVec_ConstraintData()
    for body, place in points:
        joint = twin.joint[body]
        at = pin.SE3(np.eye(3), (data.oMi[joint] * pin.SE3(np.eye(3), place)).translation)
        point = pin.PointContactConstraintModel(model, 0, at, joint, pin.SE3(np.eye(3), place))
        point.setFriction(mu)
        models.append(pin.ConstraintModel(point))
        datas.append(models[len(models) - 1].createData())
    for k in range(len(models)):
        models[k].calc(model, data, datas[k])
    factor = pin.ConstraintCholeskyDecomposition(model, data, models, datas)
    factor.compute(model, data, models, datas, 1e-10)
    omega = factor.getDelassusOperatorCholeskyExpression()
    dense = np.array(omega.matrix(False, False))
    solver, settings, result = pin.ADMMConstraintSolver(len(free)), pin.ADMMSolverSettings(), pin.ADMMSolverResult()
    settings.max_iterations = 5000
    for kind, what in itertools.product(("absolute", "relative"), ("feasibility", "complementarity")):
        setattr(settings, f"{kind}_{what}_tol", 1e-12)
    solver.solve(omega, free, models, datas, settings, result)
    return dense, result.retrieveConstraintImpulses()


@pytest.mark.slow
@pytest.mark.parametrize("redundant", [False, True])
def test_forces_are_those_of_pinocchio(redundant):
    """Its ADMM on its own Ω and our b; of two, or of four points of a body the motion alone is unique."""
    model = floating_tree(len(LEGS), seed=4, parent=LEGS)
    corners = [np.array([x, y, 0.0]) for x, y in ((0.1, 0.05), (-0.1, 0.05), (0.1, -0.05), (-0.1, -0.05))]
    points = [(model.body_index(b), p) for b in FEET for p in (corners if redundant else corners[:1])]
    contacts = []
    for k, (body, place) in enumerate(points):
        T = np.eye(4)
        T[:3, 3] = place
        contacts.append(sd.Contact((model.body_names[body], T), "point", reference="world", name=f"p{k}"))
    ground = sd.unilateral(sd.forward_dynamics(model) + contacts, 0.6, tolerance=1e-9, iterations=300)
    q, qd, _ = model.random_state(seed=2, batch=12)
    qd = 0.1 * qd
    found = ground(q, qd, step=STEP)
    twin, modes = Twin(model), set()
    space = sd.operational_space(model, contacts, ["jacobian", "delassus"])(q)
    for k in range(12):
        at = twin.position(q[k])
        pin.forwardKinematics(twin.pin, twin.data, at)
        pin.crba(twin.pin, twin.data, at, pin.Convention.WORLD)
        free = space["jacobian"][k] @ (qd[k] / STEP + sd.aba(model, q[k], qd[k], np.zeros(model.nv)))
        omega, theirs = _pinocchio(twin, points, 0.6, free)
        np.testing.assert_allclose(space["delassus"][k], omega, atol=1e-7 * np.abs(omega).max())
        judged = ground.law.residuals(omega, free, 0.6, theirs)
        if not found.ok[k] or max(judged.signorini, judged.friction) > 1e-6:
            continue
        modes |= {x[k] for x in found.mode.values()}
        ours = np.concatenate([x[k] for x in found.forces.values()])
        size = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(omega @ ours, omega @ theirs, atol=1e-6 * size)
        if not redundant:
            np.testing.assert_allclose(ours, theirs, atol=1e-5 * size)
    assert modes == {"open", "slides", "sticks"}


def test_the_relaxed_law_is_that_of_mujoco():
    """Elliptic cones of MuJoCo: its Ω with its regularisation, its b, forces by its Newton solver; no Γ in its law."""
    spheres = "".join(
        f'<body pos="{0.3 * k} 0 0.099"><freejoint/><geom type="sphere" size="0.1" density="{300 * k + 500}"/></body>'
        for k in range(2)
    )
    plank = (
        '<body pos="0 1 0.099"><freejoint/><geom type="box" size="0.4 0.2 0.1" mass="3"/><body pos="0 0 0.12">'
        '<joint axis="0 1 0"/><geom type="capsule" size="0.02" fromto="0 0 0 0.9 0 0"/></body></body>'
    )
    mj = mujoco.MjModel.from_xml_string(
        '<mujoco><option cone="elliptic" solver="Newton" jacobian="dense" tolerance="0" iterations="200" impratio="3"/>'
        f'<worldbody><geom type="plane" size="9 9 1" friction="0.5"/>{spheres}{plank}</worldbody></mujoco>'
    )
    data, rng, sliding = mujoco.MjData(mj), np.random.default_rng(0), 0
    for _ in range(6):
        mujoco.mj_resetData(mj, data)
        data.qvel[:] = 0.5 * rng.standard_normal(mj.nv)
        data.qfrc_applied[:] = rng.standard_normal(mj.nv)
        mujoco.mj_forward(mj, data)
        m, points = data.nefc, data.ncon
        assert m == 3 * points and points >= 4
        order = (3 * np.arange(points)[:, None] + [1, 2, 0]).ravel()  # theirs begin with the normal
        J, inverse = data.efc_J.reshape(m, mj.nv)[order], np.zeros((m, mj.nv))
        mujoco.mj_solveM(mj, data, inverse, J)
        omega = J @ inverse.T + np.diag(data.efc_R[order])
        free = J @ data.qacc_smooth - data.efc_aref[order]
        mu = np.array([data.contact[k].friction[0] for k in range(points)])
        law = sd.Coulomb([3] * points, iterations=3000, relaxed=True)
        found = law(omega, free, mu)
        force = data.efc_force[order]
        assert max(found.signorini, found.friction) < 1e-9
        np.testing.assert_allclose(found.forces, force, atol=1e-5 * np.abs(force).max())
        sliding += np.sum(np.linalg.norm(force.reshape(-1, 3)[:, :2], axis=1) > 0.999 * mu * force[2::3])
        pgs = sd.Coulomb([3] * points, "pgs", 20000, relaxed=True)(omega, free, mu)
        np.testing.assert_allclose(pgs.forces, force, atol=1e-5 * np.abs(force).max())
    assert sliding


# ---- robots --------------------------------------------------------------------------------------------------------


@cache
def _walker(reference: str = "world", loop: bool = False, friction: float = 0.6) -> sd.Unilateral:
    model = floating_tree(len(LEGS), seed=3, parent=LEGS)
    feet = [sd.Contact(x, "point", reference=reference, name=x) for x in FEET]
    bar = [sd.LoopJoint("body2", "body5", ("a_x",), name="bar", stabilise=0.1)] if loop else []
    return sd.unilateral(sd.forward_dynamics(model) + feet + bar, friction, tolerance=1e-10, iterations=200)


def _box(kind: str = "point") -> sd.Unilateral:
    """A box of 1 m · 1 m · 0.4 m and 2 kg on its corners."""
    box = sd.load(
        """<robot name="box"><link name="box"><inertial><mass value="2"/>
        <inertia ixx="0.193" iyy="0.193" izz="0.333" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>""",
        base="floating",
    )
    corners = []
    for x, y in itertools.product((-0.5, 0.5), repeat=2):
        T = np.eye(4)
        T[:3, 3] = x, y, -0.2
        corners.append(sd.Contact((box.body_names[0], T), kind, reference="world", name=f"{x:+}{y:+}"))
    return sd.unilateral(sd.forward_dynamics(box) + corners, 0.5)


def test_a_box_stands_slides_tips_and_lands():
    """Four corners: Ω has rank six of twelve."""
    ground = _box()
    q, weight = np.array([0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 1.0]), 2.0 * 9.81
    assert np.linalg.norm(sd.frame_pose(ground.model, q, ground.model.body_names[0])[:3, :3] - np.eye(3)) < 1e-12

    def at(force, velocity=(0.0,) * 6, **given):
        """Angular components first, as everywhere."""
        return ground(q, np.array(velocity), np.array(force), step=STEP, **given)

    still = at([0, 0, 0, 0.4 * weight, 0, 0])
    assert still.ok and set(map(str, still.mode.values())) == {"sticks"}
    np.testing.assert_allclose(still.qdd, 0.0, atol=1e-9)
    np.testing.assert_allclose(sum(still.forces.values()), [-0.4 * weight, 0, weight], atol=1e-8)
    pushed = at([0, 0, 0, 0.8 * weight, 0, 0])
    assert set(map(str, pushed.mode.values())) == {"slides"}
    np.testing.assert_allclose(pushed.qdd[3], 0.3 * 9.81, atol=1e-8)  # (0.8 − μ) g
    slid = at([0] * 6, (0, 0, 0, 0.6, -0.8, 0))  # against the velocity, not the acceleration
    np.testing.assert_allclose(slid.qdd[3:5], 0.5 * 9.81 * np.array([-0.6, 0.8]), atol=1e-8)
    stopped = at([0] * 6, (0, 0, 0, 0.5 * 9.81 * STEP * 0.5, 0, 0))  # friction could stop it in half a step
    np.testing.assert_allclose(stopped.qd, 0.0, atol=1e-10)
    tipped = at([0, 0.75 * weight, 0, 0, 0, 0])  # half its width is 0.5 m
    assert [str(tipped.mode[x]) for x in tipped.mode] == ["open", "open", "sticks", "sticks"]
    np.testing.assert_allclose(tipped.qdd[1], 0.25 * weight / (0.193 + 2.0 * (0.5**2 + 0.2**2)), atol=1e-8)
    lifted = at([0, 0, 0, 0, 0, 1.5 * weight])
    assert set(map(str, lifted.mode.values())) == {"open"}
    np.testing.assert_allclose(lifted.qdd[5], 0.5 * 9.81, atol=1e-9)
    for restitution, after in ((0.0, 0.0), (0.4, 0.4 * 3.0)):
        hit = at([0] * 6, (0, 0, 0, 0, 0, -3.0), restitution=restitution)
        np.testing.assert_allclose(hit.qd[5], after, atol=1e-9)
    falling = at([0] * 6, (0, 0, 0, 0, 0, -3.0), gap=1e-3)
    np.testing.assert_allclose(falling.qd[5], -1.0, atol=1e-9)  # a millimetre in this step
    above = at([0] * 6, (0, 0, 0, 0, 0, -3.0), gap=0.1)
    assert set(map(str, above.mode.values())) == {"open"}
    deep = at([0] * 6, gap=-1e-4)
    np.testing.assert_allclose(deep.velocities["-0.5-0.5"], [0, 0, 0.1], atol=1e-9)


@pytest.mark.parametrize(("kind", "brakes"), [("point", (0.3, 0.4)), ("line", (0.0, 0.5)), ("normal", (0.0, 0.0))])
def test_friction_is_along_the_tangents_that_a_contact_has(kind, brakes):
    """Runners of a sledge, "line", let it go along x, and hold across it."""
    q = np.array([0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 1.0])
    found = _box(kind)(q, np.array([0.0, 0.0, 0.0, 0.6, 0.8, 0.0]), step=STEP)
    np.testing.assert_allclose(found.qdd[3:5], -9.81 * np.array(brakes), atol=1e-8)
    assert found.ok and {len(x) for x in found.forces.values()} == {{"point": 3, "line": 2, "normal": 1}[kind]}


@pytest.mark.slow
def test_feet_that_press_and_stick_are_bilateral_contacts():
    """At rest: by the elimination of contacts; impulses as a step becomes an instant: by `impact`."""
    ground = _walker(friction=50.0)
    model, problem = ground.model, ground.problem
    solver, impact = sd.compile(problem, outputs=["qdd", "w"]), sd.impact(problem)
    q, qd, _ = model.random_state(seed=1, batch=60)
    tau = np.random.default_rng(0).standard_normal((60, model.nv))
    still, expected = ground(q, 0.0 * qd, tau, step=STEP), solver(q, 0.0 * qd, tau)
    stuck = np.all([x == "sticks" for x in still.mode.values()], axis=0) & still.ok
    assert stuck.sum() > 3
    np.testing.assert_allclose(still.qdd[stuck], expected.qdd[stuck], atol=1e-7)
    w = np.concatenate([*still.forces.values()], axis=-1)
    np.testing.assert_allclose(w[stuck], expected.w[stuck], rtol=0, atol=1e-7 * np.abs(w[stuck]).max())
    h = 1e-9
    landed, hit = ground(q, qd, tau, step=h), impact(q, qd)
    stuck = np.all([x == "sticks" for x in landed.mode.values()], axis=0) & landed.ok
    assert stuck.sum() > 3
    np.testing.assert_allclose(landed.qd[stuck], hit.qd[stuck], atol=1e-5)
    for foot in FEET:
        np.testing.assert_allclose(h * landed.forces[foot][stuck], hit.impulses[foot][stuck], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("loop", [False, True])
def test_the_motion_is_that_of_the_forces_and_no_energy_comes_in(loop):
    ground = _walker(loop=loop)
    model, rng = ground.model, np.random.default_rng(0)
    q, qd, _ = model.random_state(seed=5, batch=40)
    tau, fx = rng.standard_normal((40, model.nv)), rng.standard_normal((40, model.nb, 6))
    found = ground(q, qd, tau, fx, step=STEP)
    held = [*ground.problem.constraints]
    rows = sd.operational_space(model, [sd.Contact(x, "point", reference="world", name=x) for x in FEET], "jacobian")(q)
    push = np.concatenate([found.forces[x] for x in FEET], axis=-1)
    if loop:  # the loop stays closed, and its force is no other than that
        bar = sd.operational_space(model, sd.LoopJoint("body2", "body5", ("a_x",), name="bar"), "jacobian")(q)
        np.testing.assert_allclose((bar @ found.qd[..., None])[..., 0], 0.0, atol=1e-9)
        assert len(held) == 3
    for k in range(40):
        H, bias = sd.crba(model, q[k]), sd.kinematics(model, "bias")(q[k], qd[k])
        loads = tau[k] + sd.kinematics(model, "external")(q[k], fx=fx[k]) + rows[k].T @ push[k]
        rest = H @ found.qdd[k] + bias - loads
        along = bar[k][0] if loop else np.zeros(model.nv)
        share = along @ rest / max(along @ along, 1e-300)
        np.testing.assert_allclose(rest, share * along, atol=1e-8 * max(1.0, np.abs(loads).max()))
        np.testing.assert_allclose(
            np.concatenate([found.velocities[x][k] for x in FEET]), rows[k] @ found.qd[k], atol=1e-9
        )
    assert found.ok.mean() > 0.9
    power = sum(np.sum(found.forces[x] * found.velocities[x], axis=-1) for x in FEET)
    assert power[found.ok].max() < 1e-6  # at the end of the step contacts take energy out, or none


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("reference", "loop", "wrenches"), [("world", False, True), ("local", False, False), ("world", True, False)]
)
def test_derivatives_are_those_of_differences(reference, loop, wrenches):
    """While modes stay; both forces and accelerations, by q in the tangent space."""
    ground = _walker(reference, loop)
    model, rng, n = ground.model, np.random.default_rng(1), 40
    q, qd, _ = model.random_state(seed=7, batch=n)
    qd, tau = 0.3 * qd, 0.3 * rng.standard_normal((n, model.nv))
    fx = rng.standard_normal((n, model.nb, 6)) if wrenches else None
    options = {"step": 0.01, "restitution": 0.2, "gap": {"body3": 1e-3}}
    found = ground(q, qd, tau, fx, **options)
    exact, seen, h = ground.derivatives(found), set(), 1e-6
    for name in ("q", "qd", "tau"):
        along = rng.standard_normal((n, model.nv))
        ends = []
        for sign in (1.0, -1.0):
            turned = np.array([model.integrate(x, sign * h * y) for x, y in zip(q, along, strict=True)])
            state = {"q": turned if name == "q" else q}
            state |= {x: y + (sign * h * along if name == x else 0.0) for x, y in (("qd", qd), ("tau", tau))}
            ends.append(ground(**state, fx=fx, forces=found.forces, **options))
        same = np.all([[x.mode[c] == found.mode[c] for c in FEET] for x in ends], axis=(0, 1))
        same &= found.ok & ends[0].ok & ends[1].ok
        assert same.mean() > 0.8
        seen |= {x for c in FEET for x in found.mode[c][same].tolist()}
        for what, of in (
            ("forces", lambda x: np.concatenate([x.forces[c] for c in FEET], -1)),
            ("qdd", lambda x: x.qdd),
        ):
            numeric = (of(ends[0]) - of(ends[1])) / (2.0 * h)
            given_ = np.einsum("nij,nj->ni", exact[what, name], along)
            size = np.maximum(1.0, np.abs(given_).max(axis=1))
            error = np.abs(numeric - given_).max(axis=1) / size
            assert np.quantile(error[same], 0.9) < 1e-4, (what, name)
            assert np.median(error[same]) < 1e-6, (what, name)
    assert seen == {"open", "slides", "sticks"}
    alone = ground(q[0], qd[0], tau[0], None if fx is None else fx[0], **options)
    one = ground.derivatives(alone, "q")
    np.testing.assert_allclose(one["qdd", "q"], exact["qdd", "q"][0], atol=1e-6 * np.abs(one["qdd", "q"]).max())


def test_arguments_by_point_and_by_state():
    ground = _walker()
    model = ground.model
    q, qd, _ = model.random_state(seed=2, batch=5)
    mu = np.linspace(0.0, 1.0, 5)
    many = ground(q, qd, step=STEP, friction={"body3": mu}, gap={"body6": np.full(5, 0.1)})
    for k in range(5):
        one = ground(q[k], qd[k], step=STEP, friction={"body3": mu[k], "body6": 0.6}, gap={"body6": 0.1})
        np.testing.assert_allclose(one.qdd, many.qdd[k], atol=1e-6 * max(1.0, np.abs(one.qdd).max()))
    spread = ground(q[0], qd[0], step=STEP, friction={"body3": mu})
    assert spread.qdd.shape == (5, model.nv) and spread.ok.shape == (5,)
    assert np.all(np.linalg.norm(spread.forces["body3"][0, :2]) < 1e-12)
    slopes = ground.derivatives(spread)["qdd", "q"]
    at = q[0].copy()
    alone = ground(at, qd[0], step=STEP, friction={"body3": mu[3]}, forces={x: y[3] for x, y in spread.forces.items()})
    at[:] = 0.0  # what a result follows from is its own
    one = ground.derivatives(alone)["qdd", "q"]
    np.testing.assert_allclose(slopes[3], one, atol=1e-6 * np.abs(one).max())
    none = ground(q[:0], qd[:0], step=STEP)
    assert none.qdd.shape == (0, model.nv) and none.mode["body3"].shape == (0,)
    assert ground.derivatives(none)["qdd", "q"].shape == (0, model.nv, model.nv)


def test_bad_input_is_named():
    model = floating_tree(len(LEGS), seed=3, parent=LEGS)
    dynamics, foot = sd.forward_dynamics(model), sd.Contact("body3", "point", name="foot")
    for problem, friction, error, says in (
        (dynamics + foot, -0.1, InvalidInput, "friction of 'foot' is -0.1, but numbers ≥ 0"),
        (dynamics + foot, {"hand": 0.1}, UnknownName, "hand"),
        (dynamics + sd.Contact("body3", name="sole"), 0.5, ProblemError, "'sole' holds alpha_x.*several points"),
        (dynamics + sd.Contact("body3", ["a_x", "a_y"], name="pin"), 0.5, ProblemError, "'pin' holds a_x, a_y"),
        (dynamics + sd.LoopJoint("body2", "body5", ("a_x",)), 0.5, ProblemError, "no contact that may open"),
        (dynamics, 0.5, ProblemError, "no constraint"),
        (sd.inverse_dynamics(model) + foot, 0.5, ProblemError, "unilateral needs forward dynamics"),
        (dynamics + sd.Switchable(foot), 0.5, ProblemError, "Switchable"),
        (model, 0.5, InvalidInput, "needs a Problem"),
    ):  # fmt: skip
        with pytest.raises(error, match=says):
            sd.unilateral(problem, friction)
    with pytest.raises(UnknownName, match="toe"):
        sd.unilateral(dynamics + sd.Contact("toe", "point"), 0.5)
    with pytest.raises(UnknownName, match="newton"):
        sd.unilateral(dynamics + foot, 0.5, method="newton")
    with pytest.raises(InvalidInput, match="tolerance"):
        sd.unilateral(dynamics + foot, 0.5, tolerance=0.0)
    ground = _walker()
    q, qd, _ = model.random_state(seed=0)
    for given_, says in (
        ({"step": 0.0}, "step is 0.0"), ({"step": 1e-300}, "step is 1e-300"), ({"step": 1e300}, "from 1e-12 to"),
        ({"step": STEP, "gap": True}, "gap of 'body3' has type bool"),
        ({"step": STEP, "restitution": 2.0}, "restitution of 'body3' is 2.0"),
        ({"step": STEP, "gap": {"body9": 1.0}}, "body9"), ({"step": STEP, "friction": -1.0}, "friction of 'body3'"),
        ({"step": STEP, "forces": np.zeros(6)}, "forces are {contact"),
        ({"step": STEP, "forces": {"body3": np.zeros(3)}}, "body6"),
        ({"step": STEP, "gap": np.nan}, "gap of 'body3' is nan"), ({"step": STEP, "tau": np.zeros(3)}, "tau has shape"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=says):
            ground(q, qd, **given_)
    with pytest.raises(UnknownName, match="fx"):
        ground.derivatives(ground(q, qd, step=STEP), "fx")
    law, omega = sd.Coulomb([3]), np.eye(3)
    for arguments, says in (
        ((omega, np.zeros(4), 0.5), "free has shape"), ((omega, np.zeros(3), -1.0), "friction is -1"),
        ((-omega, np.zeros(3), 0.5), "negative diagonal"), ((0.0 * omega, np.zeros(3), 0.5), "no positive one"),
        ((omega, np.full(3, np.inf), 0.5), "free is inf"), ((np.tri(3), np.zeros(3), 0.5), "not symmetric"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=says):
            law(*arguments)
    for rows in ([], [4], [0]):
        with pytest.raises(InvalidInput, match="normal and up to two tangents"):
            sd.Coulomb(rows)
    with pytest.raises(InvalidInput, match="iterations is 0"):
        sd.Coulomb([3], iterations=0)
