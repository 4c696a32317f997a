"""Simulations against MuJoCo, Pinocchio and SciPy, and against what physics keeps."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pinocchio as pin
import pytest
from pinocchio_models import Twin
from robots import floating_tree
from scipy.integrate import solve_ivp

import sysdyn as sd
from sysdyn.errors import InvalidInput, PlausibilityWarning, ProblemError, SingularState, SysdynError, UnknownName
from sysdyn.model.se3 import X_motion
from sysdyn.simulation.events import EventFunctions, JointLimit
from sysdyn.simulation.steps import INTEGRATORS, StepProgram

FIXED = [name for name in INTEGRATORS if name != "adaptive"]
MECHANISM = """<mujoco><option timestep="0.002"/><worldbody><body><joint axis="0 1 0" armature="0.1"/>
<geom type="capsule" fromto="0 0 0 .4 0 0" size=".05"/><body pos=".4 0 0"><joint axis="1 0 1"/>
<geom type="capsule" fromto="0 0 0 0 .4 0" size=".05"/><body pos="0 .4 0"><joint type="slide" axis="0 0 1"/>
<geom size=".06"/></body></body></body></worldbody></mujoco>"""


def mixed() -> sd.Model:
    """A floating base with hinges, slides and balls."""
    model = sd.random_tree(5, seed=4, joints=("revolute", "prismatic", "spherical"))
    base = floating_tree(5, 4)
    return model.replace(joints=(base.joints[0], *model.joints[1:]), parent=base.parent, base="floating",
                         armature=None, lower=None, upper=None, velocity_limit=None, effort_limit=None)  # fmt: skip


def start(model: sd.Model, batch: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    q, qd, _ = model.random_state(seed=0, batch=batch)
    return q, 0.5 * qd


def forward(model: sd.Model, *constraints: sd.Measurement) -> sd.Solver:
    """Its forward dynamics, without a search for fewer operations: what is tested are the steps."""
    outputs = ["qdd", "tau", *(["w"] if constraints else [])]
    return sd.compile(sd.forward_dynamics(model) + list(constraints), outputs=outputs, level="fast")


# ---- against others --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integrator", FIXED)
def test_steps_of_a_fixed_base_are_those_of_mujoco(integrator):
    mj = mujoco.MjModel.from_xml_string(MECHANISM)
    mj.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    mj.opt.integrator = {"euler": mujoco.mjtIntegrator.mjINT_EULER, "rk4": mujoco.mjtIntegrator.mjINT_RK4}[integrator]
    model, data = sd.from_mujoco(mj), mujoco.MjData(mj)
    q, qd = start(model)
    tau = np.array([0.3, -0.2, 0.5])
    data.qpos, data.qvel, data.qfrc_applied = q, qd, tau
    found = sd.simulate(sd.forward_dynamics(model), q, qd, tau, 0.2, 0.002, integrator=integrator)
    for k in range(1, len(found.t)):
        mujoco.mj_step(mj, data)
        np.testing.assert_allclose(found.q[k], data.qpos, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(found.qd[k], data.qvel, rtol=1e-9, atol=1e-9)


def test_steps_of_a_floating_base_are_those_of_pinocchio():
    """q ⊕ h q̇ of SE(3) as pin.integrate, with other torques at each step, and wrenches on a body."""
    model = mixed()
    twin, (q, qd), h = Twin(model), start(model), 1e-3
    tau = np.random.default_rng(0).standard_normal((50, model.nv))
    fx = np.zeros((model.nb, 6))
    fx[2] = [1.0, 0.0, -0.5, 2.0, 3.0, 1.0]
    found = sd.simulate(forward(model), q, qd, tau, 0.05, h, fx=fx, outputs=["qdd", "tau"])
    x, v = twin.position(q), twin.T @ qd
    for k in range(50):
        a = pin.aba(twin.pin, twin.data, x, v, twin.T @ tau[k], twin.wrenches(fx))
        np.testing.assert_allclose(twin.T @ found["qdd"][k], a, rtol=1e-7, atol=1e-8)
        v = v + h * a
        x = pin.integrate(twin.pin, x, h * v)
        np.testing.assert_allclose(twin.position(found.q[k + 1]), x, atol=1e-10)
    assert np.array_equal(found["tau"], [*tau, tau[-1]])


@pytest.mark.parametrize("integrator", ["rk4", "adaptive"])
def test_ends_are_those_of_scipy(integrator):
    model = sd.chain(3, seed=1)
    (q, qd), solver = start(model), forward(model)
    end = solve_ivp(
        lambda t, x: np.r_[x[3:], solver(x[:3], x[3:], np.zeros(3)).qdd], (0.0, 0.5), np.r_[q, qd], "Radau",
        rtol=1e-10, atol=1e-10,
    ).y[:, -1]  # fmt: skip
    found = sd.simulate(solver, q, qd, None, 0.5, 1e-3, integrator=integrator)
    np.testing.assert_allclose(np.r_[found.q[-1], found.qd[-1]], end, rtol=1e-6, atol=1e-6)


# ---- what physics keeps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("integrator", "order"), [("euler", 1), ("rk4", 4)])
def test_orders_of_integrators(integrator, order):
    """Halves of the step divide the error by 2^order, for quaternions too."""
    model = mixed()
    (q, qd), solver = start(model), forward(model)
    exact = sd.simulate(solver, q, qd, None, 0.064, 1e-3, integrator="adaptive", tolerance=1e-12, every=64)
    errors = []
    for steps in (8, 16, 32):
        found = sd.simulate(solver, q, qd, None, 0.064, 0.064 / steps, integrator=integrator, every=steps)
        errors.append(np.abs(found.qd[-1] - exact.qd[-1]).max() + np.abs(found.q[-1] - exact.q[-1]).max())
        assert all(abs(np.linalg.norm(found.q[-1][part]) - 1.0) < 1e-14 for _, part in model.quaternions)
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 2.0**order, rtol=0.25)


@pytest.mark.parametrize(("integrator", "bound"), [("euler", 0.05), ("rk4", 1e-7), ("adaptive", 1e-7)])
def test_energy_of_a_passive_robot_is_kept(integrator, bound):
    model = sd.chain(2, seed=1)
    (q, qd), problem = start(model), sd.forward_dynamics(model)
    energy = sd.simulate(problem, q, qd, None, 1.0, 2e-3, integrator=integrator).energy()
    assert energy.shape == (501,) and np.ptp(energy) < bound * np.abs(energy).max()


def test_momentum_of_a_free_robot_is_kept():
    model = mixed().replace(gravity=np.zeros(3))
    q, qd = start(model)
    tau = np.random.default_rng(0).standard_normal((50, model.nv))
    tau[:, :6] = 0.0  # what joints do moves no momentum
    found = sd.simulate(forward(model), q, qd, tau, 0.05, 1e-3, integrator="rk4")
    h = sd.kinematics(model, "momentum")(found.q, found.qd)
    np.testing.assert_allclose(h, np.broadcast_to(h[0], h.shape), atol=1e-8 * np.abs(h).max())


# ---- torques ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_ways_to_give_torques_agree(integrator):
    """Arrays, a function, and feedback, which Euler's method samples at the same times as a function."""
    model = mixed()
    (q, qd), solver = start(model), forward(model)
    hinges = [model.v_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1]
    at = [model.q_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1]
    wanted, tau = q + 0.1, np.linspace(-1.0, 1.0, model.nv)

    def run(tau):
        return sd.simulate(solver, q, qd, tau, 0.02, 2e-3, integrator=integrator, outputs=["tau"])

    one, each, called = run(tau), run(np.tile(tau, (10, 1))), run(lambda t, q, qd: tau)
    for other in (each, called):
        np.testing.assert_allclose(other.q, one.q, rtol=1e-7, atol=1e-9)

    def pd(t, q, qd):
        found = tau.copy()
        found[hinges] += 3.0 * (wanted - q)[at] - 0.2 * qd[hinges]
        return found

    held, fed = run(pd), run(sd.Feedback(3.0, 0.2, wanted, tau=tau))
    close = {"euler": 1e-9}.get(integrator, 1e-3)  # within steps feedback goes on, and a function is held
    np.testing.assert_allclose(fed.q, held.q, atol=close)
    for k in (0, 4, 10):
        np.testing.assert_allclose(fed["tau"][k], pd(0.0, fed.q[k], fed.qd[k]), rtol=1e-9, atol=1e-12)


def test_feedback_follows_what_is_wanted():
    model = sd.chain(2, seed=1)
    t = np.linspace(0.0, 1.0, 1000, endpoint=False)[:, None]
    wanted, rate = np.sin(2.0 * t) * [0.5, 1.0], 2.0 * np.cos(2.0 * t) * [0.5, 1.0]
    found = sd.simulate(
        sd.forward_dynamics(model), wanted[0], rate[0], sd.Feedback(900.0, 60.0, wanted, rate), 1.0, 1e-3
    )
    assert np.abs(found.q[:-1] - wanted).max() < 0.1


# ---- many robots -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_batch_is_its_robots(integrator):
    model = mixed()
    q, qd = start(model, batch=19)
    solver, rng = forward(model), np.random.default_rng(1)
    tau, kp = rng.standard_normal((6, 19, model.nv)), np.zeros((19, model.nv))
    kp[:, [model.v_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1]] = rng.uniform(0.0, 5.0)
    law = sd.Feedback(kp, 0.1, q, tau=tau)
    whole = sd.simulate(solver, q, qd, law, 0.03, 5e-3, every=2, integrator=integrator, outputs="qdd")
    assert whole.q.shape == (4, 19, model.nq) and whole["qdd"].shape == (4, 19, model.nv) and whole.ok.all()
    for k in (0, 7, 18):
        own = sd.Feedback(kp[k], 0.1, q[k], tau=tau[:, k])
        one = sd.simulate(solver, q[k], qd[k], own, 0.03, 5e-3, every=2, integrator=integrator, outputs="qdd")
        for a, b in ((whole.q[:, k], one.q), (whole[k].qd, one.qd), (whole[k]["qdd"], one["qdd"])):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(whole.energy()[:, k], one.energy(), rtol=1e-8)


def test_parts_threads_and_axes_make_no_difference():
    """More robots than fit into a part, in two axes, by threads."""
    model = sd.chain(2, seed=1)
    q, qd = (x.reshape(3, 2000, 2) for x in start(model, batch=6000))
    problem = sd.forward_dynamics(model)
    one, two = (sd.simulate(problem, q, qd, None, 0.01, 1e-3, threads=n) for n in (1, 2))
    assert one.q.shape == (11, 3, 2000, 2) and np.array_equal(one.q, two.q) and np.array_equal(one.qd, two.qd)
    single = sd.simulate(problem, q[2, 1999], qd[2, 1999], None, 0.01, 1e-3)
    np.testing.assert_allclose(one[2, 1999].q, single.q, rtol=1e-10, atol=1e-12)


# ---- constraints -----------------------------------------------------------------------------------------------------


def four_bar() -> tuple[sd.Problem, np.ndarray]:
    """Three links in a plane whose end is held by a pin; gravity along −y."""
    arm = sd.from_dh([0] * 3, [1] * 3, [0] * 3, [1] * 3, np.zeros((3, 3)), [0.1 * np.eye(3)] * 3)
    model, q = arm.replace(gravity=np.array([0.0, -9.81, 0.0])), np.array([0.4, 0.5, -1.3])
    end = np.eye(4)
    end[0, 3] = 1.0
    ground = sd.Frame("ground", -1, X_motion(np.eye(3), (sd.frame_pose(model, q, "body2") @ end)[:3, 3]))
    model = model.replace(frames={**model.frames, "ground": ground})
    return sd.forward_dynamics(model) + sd.LoopJoint("ground", ("body2", end), ["a_x", "a_y"], name="pin"), q


def test_loops_are_kept_closed():
    problem, q = four_bar()
    drift = {}
    for stabilise in (None, 0.05):
        found = sd.simulate(problem, q, np.zeros(3), None, 5.0, 1e-2, integrator="rk4", stabilise=stabilise)
        drift[stabilise] = np.abs(found.drift()["pin"]).max()
        assert found.drift()["pin"].shape == (501, 2)
    assert drift[0.05] < 1e-4 < drift[None]


@pytest.mark.slow
def test_drift_is_that_of_frames():
    """A contact from its first pose, with the rate that follows, of a batch."""
    model = sd.chain(6, seed=1)
    solver = forward(model, sd.Contact("body5", "point", name="tip"))
    q, qd = start(model, batch=2)
    with pytest.warns(PlausibilityWarning, match="'tip' by"):
        found = sd.simulate(solver, q, qd, None, 0.02, 1e-3, integrator="rk4", stabilise=None)
    for robot in (0, 1):
        moved = np.array([sd.frame_pose(model, x, "body5") for x in found.q[:, robot]])
        expected = np.einsum("kji,kj->ki", moved[:, :3, :3], moved[:, :3, 3] - moved[0, :3, 3])
        np.testing.assert_allclose(found.drift()["tip"][:, robot], expected, atol=1e-12)
    speed = sd.kinematics(model, "velocity:body5")(found.q, found.qd)[..., 3:]
    np.testing.assert_allclose(found.drift(rates=True)["tip"], speed, atol=1e-12)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_events_of_limits(integrator):
    """A pendulum that falls through both limits and comes back: times of a fine simulation."""
    model = sd.chain(1, seed=1).replace(lower=np.array([-0.4]), upper=np.array([0.5]))
    q, qd = np.zeros(1), np.array([3.0])
    fine = sd.simulate(sd.forward_dynamics(model), q, qd, None, 2.0, 1e-4, integrator="rk4")
    batch = sd.simulate(
        sd.forward_dynamics(model), np.zeros((3, 1)), np.array([[3.0], [0.0], [3.0]]), None, 2.0, 2e-3,
        integrator=integrator, every=100,
    )  # fmt: skip
    inside = (fine.q[:, 0] <= 0.5) & (fine.q[:, 0] >= -0.4)
    times = fine.t[1:][np.diff(inside)]
    assert len(times) and not batch[1].events == batch[0].events
    for robot in (0, 2):
        events = [x for x in batch.events if x.robot == robot]
        np.testing.assert_allclose([x.t for x in events], times, atol=1e-2 if integrator == "euler" else 2e-4)
        assert [x.inside for x in events] == inside[1:][np.diff(inside)].tolist()
        assert events[0].kind == "upper limit" and events[0].name == "joint0"
    assert "joint0 reaches its upper limit" in repr(batch[0])


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_contact_that_would_open_is_told(integrator):
    """A ball on the ground that is pulled upward: the normal force m g − u(t) changes its sign."""
    model = sd.load(
        """<robot name="ball"><link name="ball"><inertial><mass value="2"/>
        <inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link></robot>""",
        base="floating",
    )
    problem = sd.forward_dynamics(model) + sd.Contact("ball", "point", name="foot")
    tau = np.zeros((100, 6))
    tau[:, 5] = np.linspace(0.0, 40.0, 100)
    found = sd.simulate(problem, model.neutral(), np.zeros(6), tau, 0.1, 1e-3, integrator=integrator, outputs="w")
    assert [(x.kind, x.name, x.inside) for x in found.events] == [("normal force", "foot", False)]
    assert found.events[0].t == pytest.approx(np.argmax(tau[:, 5] > 2 * 9.81) * 1e-3, abs=1.1e-3)
    np.testing.assert_allclose(found["w"][:-1, 2], 2 * 9.81 - tau[:, 5], atol=1e-9)
    assert set(found.view_arguments()["fx"]) == {"ball"}


# ---- states at which the program fails -------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("integrator", ["rk4", *sorted(INTEGRATORS.keys() - {"rk4"})])
@pytest.mark.filterwarnings("ignore:closures are open")
def test_a_step_whose_guard_is_met_is_solved_the_general_way(integrator, monkeypatch):
    """With thresholds that are met at each step the motion is the same to rounding."""
    problem, q = four_bar()
    q, qd = np.stack([q, q + [0.1, -0.2, 0.3]]), np.zeros((2, 3))
    law = sd.Feedback(2.0, 0.1, q)
    expected = sd.simulate(problem, q, qd, law, 0.02, 2e-3, integrator=integrator, stabilise=None, outputs=["qdd", "w"])
    inner, settled = StepProgram._program, []

    def guarded(self):
        program = inner(self)
        guards = tuple(replace(g, weak=1e300) for g in program.guards)
        assert guards
        return replace(program, guards=guards)

    monkeypatch.setattr(StepProgram, "_program", guarded)
    whole = StepProgram.solve_fallback
    monkeypatch.setattr(StepProgram, "solve_fallback", lambda *args: settled.append(args) or whole(*args))
    again, _ = four_bar()
    found = sd.simulate(again, q, qd, law, 0.02, 2e-3, integrator=integrator, stabilise=None, outputs=["qdd", "w"])
    assert len(settled) >= 11
    for a, b in ((found.q, expected.q), (found.qd, expected.qd), (found["qdd"], expected["qdd"]),
                 (found["w"], expected["w"])):  # fmt: skip
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_robot_that_is_lost_does_not_stop_the_others(integrator):
    model = sd.chain(2, seed=1)
    q, qd = start(model, batch=3)
    qd[1] = 1e160  # whose square is beyond double precision
    problem = sd.forward_dynamics(model)
    with pytest.raises(SingularState, match=r"t = 0 s.*smaller step") as error:
        sd.simulate(problem, q, qd, None, 0.01, 1e-3, integrator=integrator)
    assert error.value.states == (1,)
    found = sd.simulate(problem, q, qd, None, 0.01, 1e-3, integrator=integrator, on_singular="nan")
    assert found.ok.tolist() == [True, False, True] and np.isnan(found.q[1:, 1]).all() and "1 diverged" in repr(found)
    assert not (np.abs(found.q[0, 1]) > 10.0).any()  # the start, or nothing
    assert np.isfinite(found.q[:, [0, 2]]).all() and np.isnan(found.energy()[-1, 1])
    alone = sd.simulate(problem, q[2], qd[2], None, 0.01, 1e-3, integrator=integrator)
    np.testing.assert_allclose(found[2].q, alone.q, rtol=1e-9, atol=1e-10)
    with pytest.raises(InvalidInput, match="diverged"):
        found[1].view_arguments()


# ---- results and calls -----------------------------------------------------------------------------------------------


def test_records_of_some_steps_are_those_of_all():
    model = mixed()
    (q, qd), solver = start(model), forward(model)
    for integrator in INTEGRATORS:
        all_, some = (
            sd.simulate(solver, q, qd, None, 0.03, 1e-3, integrator=integrator, every=n, outputs="qdd") for n in (1, 5)
        )
        assert some.t.tolist() == all_.t[::5].tolist()
        np.testing.assert_allclose(some.q, all_.q[::5], rtol=1e-9)
        np.testing.assert_allclose(some["qdd"], all_["qdd"][::5], rtol=1e-7, atol=1e-7)


def test_a_motion_is_a_log_and_is_shown():
    model = sd.chain(2, seed=1)
    q, qd = start(model)
    found = sd.simulate(sd.forward_dynamics(model), q, qd, sd.Feedback(5.0, 1.0, q), 0.05, 1e-3, outputs=["tau"])
    (chunk,) = found.log()
    assert np.array_equal(chunk.q, found.q) and np.array_equal(chunk.y["tau"], found["tau"])
    page = sd.show(found).page
    assert "torque of a link" in page and "51 states" in page
    batch = sd.simulate(sd.forward_dynamics(model), [q, q], [qd, qd], None, 0.05, 1e-3)
    with pytest.raises(InvalidInput, match=r"simulation\[0\]"):
        sd.show(batch)
    with pytest.raises(UnknownName, match="Ask for outputs=\\['qdd'"):
        batch["qdd"]
    with pytest.raises(InvalidInput, match="no robot 2"):
        batch[2]


def test_a_solver_and_hybrid_dynamics_are_simulated():
    """A joint with a known acceleration moves as it says, and a solver is used as it is."""
    model = sd.chain(2, seed=1)
    solver = sd.compile(sd.hybrid_dynamics(model, ["joint0"]))
    qdd = np.array([0.0, 2.0])
    found = sd.simulate(solver, np.zeros(2), np.zeros(2), None, 0.1, 1e-3, integrator="rk4", qdd=qdd, outputs="tau")
    np.testing.assert_allclose(found.q[:, 1], found.t**2, atol=1e-12)
    np.testing.assert_allclose(found["tau"][:, 0], 0.0, atol=1e-12)


CHAIN = sd.chain(2, seed=1)
ZERO = np.zeros(2)
BAD = [
    ({"duration": 0.0105}, InvalidInput, "no whole number of steps of 0.001 s: take 0.01 s"),
    ({"duration": -1.0}, InvalidInput, "duration is -1.0, but a positive number"),
    ({"step": np.nan}, InvalidInput, "step is nan"),
    ({"tolerance": 0.0}, InvalidInput, "tolerance is 0.0, but a positive number is"),
    ({"stabilise": (10.0, 1.0)}, InvalidInput, "stabilise is"),
    ({"every": 3}, InvalidInput, "take a duration of 0.012 s"),
    ({"every": 0}, InvalidInput, "every is 0"),
    ({"integrator": "rk5"}, UnknownName, "rk4"),
    ({"outputs": "force"}, UnknownName, "force"),
    ({"q": np.zeros(3)}, InvalidInput, r"q has shape \(3,\)"),
    ({"q": [np.nan, 0.0]}, InvalidInput, "q"),
    ({"tau": np.zeros(3)}, InvalidInput, r"tau has shape \(3,\), but \(2,\) is needed, \(10, 2\) for each step"),
    ({"tau": [np.nan, 0.0]}, InvalidInput, "tau"),
    ({"tau": 1.0}, InvalidInput, r"tau has shape \(\)"),
    ({"tau": np.zeros((10, 2)), "q": np.zeros((10, 2))}, InvalidInput, r"10 steps or 10 robots: hand it in as \(10, 1"),
    ({"tau": lambda t, q, qd: np.full(2, np.nan)}, InvalidInput, "not finite at t = 0 s"),
    ({"tau": lambda t, q, qd: None}, InvalidInput, "gave None"),
    ({"tau": lambda t, q, qd: np.zeros(3)}, InvalidInput, "tau"),
    ({"tau": sd.Feedback([1.0], 0.0, ZERO)}, InvalidInput, "kp has shape"),
    ({"tau": sd.Feedback(1.0, 0.0, np.zeros(5))}, InvalidInput, "q of the feedback"),
    ({"problem": sd.inverse_dynamics(CHAIN)}, ProblemError, "does not know tau.*forward_dynamics"),
    ({"problem": CHAIN}, InvalidInput, "sysdyn.forward_dynamics"),
    ({"problem": sd.forward_dynamics(CHAIN) + sd.Contact("body1", "normal"), "stabilise": 1e-3}, InvalidInput, "0.01"),
    ({"qdd": ZERO}, SysdynError, "qdd"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said(changed, kind, text):
    given = {"problem": sd.forward_dynamics(CHAIN), "q": ZERO, "qd": ZERO, "tau": None, "duration": 0.01, "step": 1e-3}
    with pytest.raises(kind, match=text):
        sd.simulate(**given | changed)


def test_problems_that_cannot_be_simulated():
    given = ZERO, ZERO, None, 0.01, 1e-3
    noisy = sd.forward_dynamics(CHAIN) + sd.JointAcceleration("joint0", noise=0.1)
    with pytest.raises(ProblemError, match="has noise"):
        sd.simulate(noisy, *given)
    with pytest.raises(ProblemError, match="does not give qdd: compile it with outputs="):
        sd.simulate(sd.compile(sd.forward_dynamics(CHAIN), outputs="f", level="fast"), *given)
    with pytest.raises(ProblemError, match="machine code"):
        sd.simulate(sd.compile(sd.forward_dynamics(CHAIN), outputs="qdd", backend="python"), *given)
    floating = mixed()
    with pytest.raises(InvalidInput, match="no single position"):
        q, qd = start(floating)
        sd.simulate(sd.forward_dynamics(floating), q, qd, sd.Feedback(np.ones(floating.nv), 0.0, q), 0.01, 1e-3)


def test_a_foot_that_moves_at_the_start_is_told_with_its_speed():
    arm = sd.auto_tree(4, 1, 1.5, 0.9)
    solver = forward(arm, sd.Contact("body3", "point", name="tip"))
    q, qd, _ = arm.random_state(seed=0, batch=2)
    qd[0] = 0.0
    speed = np.linalg.norm((sd.frame_jacobian(arm, q[1], "body3") @ qd[1])[3:])
    with pytest.warns(PlausibilityWarning, match=rf"'tip' by {speed:.3g} m/s \(robot 1\)"):
        sd.simulate(solver, q, qd, None, 2e-3, 1e-3)
    sd.simulate(solver, q, qd, None, 2e-3, 1e-3, y={"tip": np.zeros(3)})  # its motion is prescribed
    closed = sd.impact(solver.problem)(q[1], qd[1])
    sd.simulate(solver, q[1], closed.qd, None, 2e-3, 1e-3)


def test_signs_of_many_event_functions():
    limits = tuple(JointLimit(f"joint{k}", k, k, -1.0, 1.0) for k in range(113))
    functions = EventFunctions(limits, ())
    q = np.random.default_rng(0).uniform(-2.0, 2.0, (2, 7, 113))
    old, new = (np.array(functions.signs(x.T, None)).T for x in q)
    events = functions.changes(old, new, q[1], q[1] - q[0], np.zeros((7, 0)), np.zeros((7, 0)), 1.0, 0.1)
    inside = np.abs(q) < 1.0
    changed = np.argwhere(inside[0] != inside[1])
    assert [(x.robot, x.name) for x in events] == [(robot, f"joint{k}") for robot, k in changed.tolist()]
    assert [x.inside for x in events] == inside[1][tuple(changed.T)].tolist()
