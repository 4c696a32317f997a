"""States that contradict closures: gaps of loops and couplings, and followers whose entries are not read."""

from __future__ import annotations

import ctypes
import pickle
import shutil
import subprocess

import numpy as np
import pinocchio as pin
import pytest
from typer.testing import CliRunner

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.errors import IgnoredWarning, PlausibilityWarning, SingularState
from sysdyn.model.closures import Coupling

LINK = """<link name="{0}"><inertial><origin xyz="0.5 0 0"/><mass value="1"/>
<inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
JOINT = """<joint name="{0}" type="revolute"><origin xyz="{3} 0 0"/><parent link="{1}"/><child link="{2}"/>
<axis xyz="0 1 0"/><limit lower="-3" upper="3" effort="9" velocity="9"/>{4}</joint>"""
MIMIC = f"""<robot name="mimic"><link name="base"/>{LINK.format("a")}{LINK.format("b")}
{JOINT.format("lead", "base", "a", 0, "")}
{JOINT.format("follow", "a", "b", 1, '<mimic joint="lead" multiplier="-2" offset="0.1"/>')}</robot>"""

# Crank of 0.2 m, ground of 0.6 m, rocker of 0.2 m: a parallelogram with a coupler of 0.6 m, too short with 0.1 m.
FOUR_BAR = """<mujoco model="four"><compiler inertiafromgeom="false"/><worldbody>
<body name="crank"><joint name="crank" axis="0 1 0"/><inertial pos="0.1 0 0" mass="1" diaginertia="0.01 0.01 0.01"/>
<body name="coupler" pos="0.2 0 0"><joint name="coupler" axis="0 1 0"/>
<inertial pos="0.3 0 0" mass="2" diaginertia="0.02 0.02 0.02"/><site name="end" pos="{} 0 0"/></body></body>
<body name="rocker" pos="0.6 0 0"><joint name="rocker" axis="0 1 0"/>
<inertial pos="0.2 0 0" mass="1" diaginertia="0.01 0.01 0.01"/><site name="tip" pos="0.2 0 0"/></body>
</worldbody><equality><connect name="pin" site1="end" site2="tip"/></equality></mujoco>"""
CLOSED = np.array([0.5, -0.5, 0.5])
CROSSED = np.array([0.5, -0.94431621, -0.94431621])


def four_bar(coupler: float = 0.6) -> sd.Model:
    return sd.load_mjcf(FOUR_BAR.format(coupler))


def opening(q, coupler: float = 0.6) -> np.ndarray:
    """From the end of the coupler to the tip of the rocker (x, z), in the world."""
    crank, both, rocker = (np.array([np.cos(x), -np.sin(x)]) for x in (q[0], q[0] + q[1], q[2]))
    return np.array([0.6, 0.0]) + 0.2 * rocker - 0.2 * crank - coupler * both


# ---- followers ------------------------------------------------------------------------------------------------------

LEADING = {"q": 0.4, "qd": 0.7, "tau": np.array([0.3, 0.1])}
STATES = {"left at zero": (0.0, 0.0), "imposed": (-0.7, -1.4)}
CONTRADICTING = {"position": (0.9, 0.0), "velocity": (0.0, 0.5), "both": (0.9, 0.5)}


def reduced(q: float, qd: float, tau: np.ndarray) -> np.ndarray:
    """(q̈ of the leader, q̈ of the follower) by Pinocchio, where coupled joints are one coordinate."""
    theirs = pin.buildModelFromXML(MIMIC, mimic=True)
    data = theirs.createData()
    x, v = np.array([q]), np.array([qd])
    bias, M = pin.rnea(theirs, data, x, v, np.zeros(1)), pin.crba(theirs, data, x)[0, 0]
    lead = (np.array([1.0, -2.0]) @ tau - bias[0]) / M
    return np.array([lead, -2.0 * lead])


def called(solver, q, qd, tau):
    return solver(q, qd, tau).qdd


def batch(solver, q, qd, tau):
    found = solver(np.tile(q, (3, 1)), np.tile(qd, (3, 1)), np.tile(tau, (3, 1))).qdd
    np.testing.assert_array_equal(found[1:], found[:-1])
    return found[0]


def bound(solver, q, qd, tau):
    step = solver.bind(q, qd, tau)
    step()
    return step.out["qdd"]


def stored(solver, q, qd, tau):
    return pickle.loads(pickle.dumps(solver))(q, qd, tau).qdd


def simulated(solver, q, qd, tau):
    return sd.simulate(solver, q, qd, tau, 1e-3, 1e-3, outputs="qdd")["qdd"][0]


def exported(solver, q, qd, tau, folder=None):
    """The C function, by its structs of doubles in the order of the groups."""
    path = solver.export_c(folder, "mimic")
    library = folder / "mimic.so"
    subprocess.run([shutil.which("cc"), "-shared", "-fPIC", "-o", library, path / "mimic.c", "-lm"], check=True)
    given = {"q": q, "qd": qd, "tau": tau}
    values = np.concatenate([np.ravel(given.get(x, np.zeros(n))) for x, n in solver.program.inputs.sizes.items()])
    out, work, run = np.zeros(solver.program.n_outputs), np.zeros(100_000), ctypes.CDLL(str(library)).mimic_run
    run(*(x.ctypes.data_as(ctypes.c_void_p) for x in (values, out, work)))
    return out[solver.program.outputs.slices["qdd"]]


WAYS = (called, batch, bound, stored, simulated, exported)


@pytest.fixture(scope="module")
def mimic() -> sd.Model:
    return sd.load(MIMIC)


@pytest.mark.slow(after=12)
@pytest.mark.parametrize("way", WAYS, ids=lambda x: x.__name__)
@pytest.mark.parametrize("state", [*STATES, *CONTRADICTING])
def test_followers_are_where_their_leaders_put_them(mimic, state, way, tmp_path):
    """Whatever the entries of followers are; those that contradict are said, with joint and values."""
    solver = sd.compile(sd.forward_dynamics(mimic), outputs="qdd")
    follower = (STATES | CONTRADICTING)[state]
    q, qd = np.array([LEADING["q"], follower[0]]), np.array([LEADING["qd"], follower[1]])
    further = {"folder": tmp_path} if way is exported else {}
    if state in CONTRADICTING and way is not exported:
        with pytest.warns(PlausibilityWarning, match="'follow'"):
            found = way(solver, q, qd, LEADING["tau"])
    else:
        found = way(solver, q, qd, LEADING["tau"], **further)
    np.testing.assert_allclose(found, reduced(*LEADING.values()), rtol=1e-12)


@pytest.mark.parametrize("options", [
    {"formulation": "elimination"}, {"formulation": "paper"}, {"backend": "python"}, {"real": "float32"},
], ids=str)  # fmt: skip
def test_followers_of_every_formulation(mimic, options):
    solver = sd.compile(sd.forward_dynamics(mimic), **{"outputs": "qdd", "level": "fast", **options})
    expected = reduced(*LEADING.values())
    accuracy = 1e-5 if options.get("real") else 1e-9
    found = solver(np.array([LEADING["q"], 0.0]), np.array([LEADING["qd"], 0.0]), LEADING["tau"])
    np.testing.assert_allclose(found.qdd, expected, rtol=accuracy)


def test_what_follows_from_a_solution_has_followers_in_place(mimic):
    """The acceleration of the second link's origin, which the first one carries, in axes that turn with both."""
    q, qd = LEADING["q"], LEADING["qd"]
    found = sd.compile(sd.forward_dynamics(mimic))([q, 0.0], [qd, 0.0], LEADING["tau"])
    qdd, turn = reduced(*LEADING.values())[0], q - 0.7
    x, z = qdd * np.array([-np.sin(q), -np.cos(q)]) - qd**2 * np.array([np.cos(q), -np.sin(q)])
    local = [np.cos(turn) * x - np.sin(turn) * z, 0.0, np.sin(turn) * x + np.cos(turn) * z]
    np.testing.assert_allclose(found.acceleration("b", classical=True)[3:], local, atol=1e-12)
    assert found.backward_error() < 1e-14 and max(map(np.max, found.forward_error().values())) < 1e-12


CHAINED = (Coupling("joint1", "joint0", (0.1, -0.5, 0.3)), Coupling("joint3", "joint1", (0.2, 0.7, 0.4, -0.1)))


@pytest.mark.parametrize("formulation", ["auto", "elimination"])
def test_derivatives_are_those_of_the_call(formulation):
    """Columns of followers are zero, and those of leaders have what their followers add, and the followers of these."""
    model = sd.chain(5, seed=2).replace(closures=CHAINED)
    solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", level="fast", formulation=formulation)
    q, qd, _ = model.replace(closures=()).random_state(seed=4)
    q[[1, 3]] = qd[[1, 3]] = 0.0
    state, w, h = {"q": q, "qd": qd, "tau": np.linspace(-1.0, 1.0, 5)}, np.array([0.3, -0.8, 0.2, 0.5, -0.4]), 1e-6
    gradient = solver.vjp(wrt=("q", "qd"))(*state.values(), cotangents=w)
    along = {x: np.linspace(0.5, -1.0, 5) for x in ("q", "qd")}
    change = solver.jvp(wrt=("q", "qd"))(*state.values(), tangents=along)["qdd"]
    curvature = solver.hvp(wrt=("q", "qd"))(*state.values(), cotangents=w, tangents=along)
    expected, free = 0.0, np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    for name in ("q", "qd"):
        J = solver.derivatives(wrt=name)(*state.values())["qdd", name]
        slopes = np.empty((5, 5))
        for j, e in enumerate(h * np.eye(5)):
            ahead, behind = (solver(*(state | {name: state[name] + s * e}).values()).qdd for s in (1.0, -1.0))
            slopes[:, j] = (ahead - behind) / (2 * h)
        scale = np.abs(slopes).max()
        np.testing.assert_allclose(J, slopes, atol=1e-7 * scale)
        np.testing.assert_array_equal(J[:, [1, 3]], 0.0)
        np.testing.assert_allclose(gradient[name], w @ slopes, atol=1e-7 * scale)
        expected = expected + slopes @ along[name]
        moved = [[x + s * h * along[n] * free if n in along else x for n, x in state.items()] for s in (1.0, -1.0)]
        ahead, behind = (solver.vjp(wrt=name)(*x, cotangents=w)[name] for x in moved)
        np.testing.assert_allclose(curvature[name], (ahead - behind) / (2 * h), atol=1e-6 * np.abs(ahead).max())
    np.testing.assert_allclose(change, expected, atol=1e-6 * np.abs(expected).max())


def test_inverse_dynamics_does_not_read_followers(mimic):
    solver = sd.compile(sd.inverse_dynamics(mimic), outputs="tau")
    expected = reduced(0.4, 0.7, LEADING["tau"])
    tau = solver([0.4, 0.0], [0.7, 0.0], qdd=[expected[0], 0.0]).tau
    np.testing.assert_allclose(tau, [np.array([1.0, -2.0]) @ LEADING["tau"], 0.0], atol=1e-12)


def test_followers_whose_acceleration_is_known_are_imposed(mimic):
    """The coupling makes q̈ of the follower redundant."""
    every = [sd.JointAcceleration("all", name="qdd"), sd.ExternalWrench("all"), *sd.closures(mimic)]
    problem = sd.Problem(mimic, [*every, sd.MotorTorque("follow", name="follow", optional=True)])
    expected = reduced(0.4, 0.7, LEADING["tau"])
    found = sd.compile(problem, outputs="tau")([0.4, 0.0], [0.7, 0.0], qdd=expected)
    np.testing.assert_allclose(found.tau, [np.array([1.0, -2.0]) @ LEADING["tau"], 0.0], atol=1e-12)


def test_couplings_that_are_not_stated_are_not_imposed(mimic):
    """A problem without the coupling is of the tree."""
    free = sd.Problem(mimic, [sd.JointTorque("all"), sd.ExternalWrench("all")])
    q, qd = np.array([0.4, 0.9]), np.array([0.7, 0.5])
    expected = sd.aba(mimic.replace(closures=()), q, qd, LEADING["tau"])
    np.testing.assert_allclose(sd.compile(free, outputs="qdd")(q, qd, LEADING["tau"]).qdd, expected, rtol=1e-12)


def test_limits_are_those_of_followers_in_place(mimic):
    """At 1.6 rad of its leader the follower is at −3.1 rad, beyond −3."""
    solver = sd.compile(sd.forward_dynamics(mimic), outputs="qdd", check_limits=True)
    solver([1.5, 0.0], np.zeros(2), np.zeros(2))
    with pytest.raises(sd.InvalidInput, match="'follow' is at -3.1"):
        solver([1.6, 0.0], np.zeros(2), np.zeros(2))


def test_impacts_and_contacts_that_open_have_followers_in_place(mimic):
    """A follower that is left at zero counts as one that is where its leader puts it."""
    end, forward, right = (
        ("b", np.eye(4) + np.eye(4, k=3)),
        sd.forward_dynamics(mimic),
        mimic.imposed([0.4, 0], [-0.7, 0]),
    )
    ground = sd.unilateral(forward + sd.Contact(end, "point", "world", name="end"), 0.5)
    land = sd.impact(forward + sd.Contact(end, ["a_z"], "world", name="end"))
    pushed, expected = (ground(q, qd, [0.3, 0.1], step=1e-3) for q, qd in (([0.4, 0.0], [-0.7, 0.0]), right[:2]))
    np.testing.assert_allclose(pushed.qdd, expected.qdd, rtol=1e-9)
    np.testing.assert_allclose(pushed.qd[1], -2.0 * pushed.qd[0], atol=1e-12)
    hit = land([0.4, 0.0], right[1])
    np.testing.assert_allclose(hit.qd, land(right[0], right[1]).qd, atol=1e-12)


def test_a_simulation_moves_followers_with_their_leaders():
    """By a polynomial, of which the integrators' steps are no steps."""
    model = sd.chain(3, seed=2).replace(closures=(Coupling("joint2", "joint0", (0.1, -0.5, 0.3, 0.2)),))
    q, qd = np.array([0.3, -0.2, 0.0]), np.array([1.0, 0.5, 0.0])
    for integrator in ("euler", "rk4", "adaptive"):
        motion = sd.simulate(sd.forward_dynamics(model), q, qd, None, 0.2, 1e-3, integrator=integrator)
        demanded = model.imposed(motion.q, motion.qd)
        np.testing.assert_allclose(motion.q, demanded[0], atol=1e-12)
        np.testing.assert_allclose(motion.qd, demanded[1], atol=1e-12)
    energy = motion.energy()  # of the last one, which is the most accurate
    np.testing.assert_allclose(energy, energy[0], atol=1e-6)


# ---- gaps -----------------------------------------------------------------------------------------------------------


def test_gaps_of_couplings_and_loops(mimic):
    forward = sd.compile(sd.forward_dynamics(mimic), outputs="qdd")
    q = np.array([[0.4, 0.0], [0.4, -0.7], [0.1, 0.2]])
    with pytest.warns(PlausibilityWarning, match="'follow' is 0.2 .state 2"):
        found = forward(q, np.zeros(2), np.zeros(2)).gaps()
    np.testing.assert_allclose(found["JointCoupling(follow)"], [[0.7], [0.0], [0.3]], atol=1e-15)
    one = forward(q[0], np.zeros(2), np.zeros(2)).gaps()
    np.testing.assert_allclose(one["JointCoupling(follow)"], [0.7], atol=1e-15)

    loop = sd.compile(sd.forward_dynamics(four_bar()), outputs="qdd")
    assert np.abs(loop(CLOSED, np.zeros(3), np.zeros(3)).gaps()["pin"]).max() < 1e-15
    q = CLOSED + np.array([[0.3, 0.0, 0.0], [0.0, -0.4, 0.5]])
    found = loop(q, np.zeros(3), np.zeros(3)).gaps()["pin"]
    expected = [np.linalg.norm(opening(x)) for x in q]
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), expected, rtol=1e-12)
    assert sd.compile(sd.forward_dynamics(sd.chain(2)))([0, 0], [0, 0], [0, 0]).gaps() == {}


@pytest.mark.parametrize("angle", [0.3, 2.0, 3.0])
@pytest.mark.parametrize("kind", ["fixed", "revolute"])
def test_gaps_of_attitudes_are_angles(kind, angle):
    """Not their sines."""
    model = sd.chain(6, seed=3)
    q, qd, tau = model.random_state(seed=1)
    turn = np.eye(4)
    turn[1:3, 1:3] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    spin = np.eye(4)  # free of a revolute joint about z
    if kind == "revolute":
        spin[:2, :2] = [[0.0, -1.0], [1.0, 0.0]]
    here = np.linalg.inv(sd.frame_pose(model, q, "body5")) @ turn @ spin
    loop = sd.LoopJoint("base", ("body5", here), kind, name="loop")
    gap = sd.compile(sd.forward_dynamics(model) + loop, outputs="qdd", level="fast")(q, qd, tau).gaps()["loop"]
    expected = np.zeros(len(gap))
    expected[0] = angle
    np.testing.assert_allclose(np.abs(gap), expected, atol=1e-12)


def test_gaps_of_contacts_that_state_a_position():
    model = sd.chain(6, seed=3)
    q, qd, tau = model.random_state(seed=1)
    at = sd.frame_pose(model, q, "body5")
    at[:3, 3] -= [0.1, 0.0, 0.2]
    grip = sd.Contact("body5", "point", "world", name="grip", stabilise=0.1, at=at)
    foot = sd.Contact("body2", "normal", name="foot")
    found = sd.compile(sd.forward_dynamics(model) + [grip, foot], outputs="qdd", level="fast")(q, qd, tau).gaps()
    assert list(found) == ["grip"]
    np.testing.assert_allclose(found["grip"], [0.1, 0, 0.2], atol=1e-12)


def test_loops_are_taken_with_their_followers():
    """A loop over a follower that is left at zero is closed if it is where the follower belongs."""
    model = four_bar().replace(closures=(*four_bar().closures, Coupling("coupler", "crank", (0.0, -1.0))))
    solver = sd.compile(sd.forward_dynamics(model), outputs="qdd")
    found = solver([0.5, 0.0, 0.5], np.zeros(3), np.zeros(3)).gaps()
    np.testing.assert_allclose(np.concatenate(list(found.values()))[-1], 0.5, atol=1e-12)
    assert np.abs(found["pin"]).max() < 1e-15


# ---- warnings -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_simulations_say_that_a_loop_is_open():
    problem = sd.forward_dynamics(four_bar())
    q = np.stack([CLOSED, CLOSED + [0.3, 0.0, 0.0]])
    gap = f"{np.linalg.norm(opening(q[1])):.3g} m"
    with pytest.warns(PlausibilityWarning, match=f"'pin' by {gap} .robot 1") as caught:
        sd.simulate(problem, q, np.zeros((2, 3)), None, 0.01, 1e-3)
    assert not any("cannot close" in str(x.message) for x in caught)
    sd.simulate(problem, q[0], np.zeros(3), None, 0.01, 1e-3)


@pytest.mark.slow
def test_simulations_say_that_a_loop_opens():
    """Euler's method drifts, and nothing takes it out."""
    problem = sd.forward_dynamics(four_bar())
    with pytest.warns(PlausibilityWarning, match="'pin'.* at t = ") as caught:
        motion = sd.simulate(problem, CROSSED, np.zeros(3), None, 2.0, 1e-3, stabilise=None)
    gap = max(np.linalg.norm(opening(x)) for x in motion.q)
    assert f"{gap:.3g} m" in str(caught[0].message)


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_a_loop_that_cannot_close_is_said(integrator):
    """Crank, coupler and rocker reach 0.5 m of 0.6 m: the least gap is 0.1 m."""
    problem = sd.forward_dynamics(four_bar(0.1))
    with pytest.warns(PlausibilityWarning, match="'pin' by .* cannot close.* 0.1 "):
        with pytest.raises(SingularState, match="'pin'.* cannot close") as error:
            sd.simulate(problem, CROSSED, np.zeros(3), None, 2.0, 1e-3, integrator=integrator)
    assert "smaller step" not in str(error.value)


STATE = "q:crank,q:coupler,q:rocker,qd:crank,qd:coupler,qd:rocker,tau:crank,tau:coupler,tau:rocker"


def commanded(folder, file: str, text: str, option: str, rows: str) -> str:
    """Standard error of `sysdyn solve`."""
    (folder / file).write_text(text)
    (folder / "x.csv").write_text(rows)
    given = "3" if option == "--random" else str(folder / "x.csv")
    found = CliRunner().invoke(app, ["solve", str(folder / file), "--problem", "forward", option, given])
    assert found.exit_code == 0
    return " ".join(found.stderr.split())


@pytest.mark.usefixtures("fast_commands")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("option", "where"), [("--states", "state 1"), ("--log", "row 2"), ("--random", "state")])
def test_the_command_line_says_that_a_loop_is_open(option, where, tmp_path):
    rows = [CLOSED, CLOSED + [0.3, 0.0, 0.0]]
    names = [f"{x}:{joint}" for x in ("q", "qd", "tau") for joint in ("crank", "coupler", "rocker")]
    lines = [",".join(["t", *names]), *(",".join(map(str, [k, *x, *[0.0] * 6])) for k, x in enumerate(rows))]
    if option == "--states":
        lines = [x.split(",", 1)[1] for x in lines]
    said = commanded(tmp_path, "four.xml", FOUR_BAR.format(0.6), option, "\n".join(lines) + "\n")
    assert "'pin' by" in said and where in said
    if option != "--random":
        assert f"{np.linalg.norm(opening(rows[1])):.3g} m" in said


@pytest.mark.usefixtures("fast_commands")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("option", ["--states", "--log"])
def test_the_command_line_says_that_a_follower_contradicts(option, tmp_path):
    names = "t,q:lead,q:follow,qd:lead,qd:follow,tau:lead,tau:follow\n"
    rows = names + "0,0.4,0.9,0,0,0,0\n" + "1,0.4,-0.7,0,0,0,0\n"
    if option == "--states":
        rows = "\n".join(x.partition(",")[2] for x in rows.split())
    said = commanded(tmp_path, "mimic.urdf", MIMIC, option, rows)
    assert "'follow' is 0.9" in said and "-0.7" in said


def test_inverse_dynamics_says_that_loops_are_open(mimic):
    with pytest.warns(IgnoredWarning, match="'pin'.*hybrid_dynamics"):
        problem = sd.inverse_dynamics(four_bar())
    found = sd.compile(problem, outputs="tau")(CLOSED, np.zeros(3), qdd=np.zeros(3)).tau
    np.testing.assert_allclose(found, sd.rnea(four_bar(), CLOSED, np.zeros(3), np.zeros(3)), atol=1e-12)
    sd.inverse_dynamics(mimic)  # whose couplings are part of it


def test_torques_of_motors_are_those_that_the_warning_names():
    """One motor at the crank: by the potential energy along the motion that the loop leaves, as nothing accelerates."""
    model = four_bar()
    solver = sd.compile(sd.hybrid_dynamics(model, torque=["coupler", "rocker"]), outputs=["tau", "qdd"])
    found = solver(CROSSED, np.zeros(3), tau=np.zeros(3), qdd=np.zeros(3))

    def height(q):  # Σ m z
        return -(1.0 * 0.1 + 2.0 * 0.2) * np.sin(q[0]) - 2.0 * 0.3 * np.sin(q[0] + q[1]) - 0.2 * np.sin(q[2])

    h, e = 1e-6, np.eye(3)
    J = np.array([(opening(CROSSED + h * x) - opening(CROSSED - h * x)) / (2 * h) for x in e]).T
    along = np.array([1.0, *np.linalg.solve(J[:, 1:], -J[:, 0])])
    slope = np.array([(height(CROSSED + h * x) - height(CROSSED - h * x)) / (2 * h) for x in e])
    np.testing.assert_allclose(found.tau, [9.81 * slope @ along, 0.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(found.tau[0], 1.30470, atol=1e-5)
