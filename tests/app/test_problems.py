"""The problems of problems/: all of them run, the table says what they say, and their answers are right."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from commands import run
from oracles import Pinocchio, constrained, icub_urdf

import sysdyn as sd
from sysdyn.app.jobs import Job
from sysdyn.app.problem_files import load_job
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Log
from sysdyn.errors import SingularState

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "problems"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
FILES = sorted(path.stem for path in FOLDER.glob("*.toml"))
ILL_POSED = ["icub_feet_load_cells"]
SMALL = ["four_bar", "hopping_leg", "slippery_feet"]

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))
    import hop
    import squat


@functools.cache
def task(name: str) -> Job:
    return load_job(FOLDER / f"{name}.toml")


@functools.cache
def solver(name: str, level: str = "best", outputs: tuple[str, ...] | None = None) -> sd.Solver:
    t = task(name)
    return sd.compile(t.problem, t.ordering, outputs or t.requested, level=level, on_singular=t.on_singular)


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


# ---- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_the_examples_are_well_posed_but_for_one(name):
    assert task(name).title and f"`{name}.toml`" in README
    result = run("diagnose", f"problems/{name}.toml", code=int(name in ILL_POSED))
    assert ("ill posed" in result.stdout) == (name in ILL_POSED)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", [SMALL[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL[1:])])
def test_small_problems_are_solved_and_counted(name, tmp_path):
    out = tmp_path / "out.csv"
    text = run("solve", f"problems/{name}.toml", "--random", 5, "--out", out).stdout
    assert task(name).title in text and len(out.read_text().splitlines()) == 6
    text = run("flops", f"problems/{name}.toml").stdout
    assert f"{solver(name).flops.end_to_end.total:,}" in text


# ---- their answers -------------------------------------------------------------------------------------------------


def test_a_four_bar_stays_closed_and_turns_power_into_motion():
    """The second derivative of the gap is zero, and the wrench of the loop does no work."""
    model = task("four_bar").problem.model
    q = np.array([-1.2, 0.9, 1.1])
    for _ in range(50):  # to a closed linkage, by Newton's method on the last two angles
        gap = (sd.frame_pose(model, q, "end") - sd.frame_pose(model, q, "pivot"))[[0, 2], 3]
        q[1:] -= np.linalg.solve(sd.frame_jacobian(model, q, "end", "world")[[3, 5], 1:], gap)
    J = sd.frame_jacobian(model, q, "end", "world")[[3, 5]]
    assert np.abs(gap).max() < 1e-12
    qd = 2.0 * np.array([1.0, *np.linalg.solve(J[:, 1:], -J[:, 0])])
    tau = np.array([1.5, 0.2, -0.3])
    solution = solver("four_bar")(q, qd, tau)

    def end(t: float) -> np.ndarray:
        return sd.frame_pose(model, q + t * qd + t * t / 2 * solution.qdd, "end")[[0, 2], 3]

    h = 1e-4
    np.testing.assert_allclose((end(h) - 2 * end(0.0) + end(-h)) / h**2, 0.0, atol=1e-5)
    assert qd @ sd.rnea(model, q, qd, solution.qdd) == pytest.approx(qd @ tau, rel=1e-10)
    assert np.abs(solution.w).max() > 1.0


def closed_delta(model: sd.Model, plate: np.ndarray) -> np.ndarray:
    """q of a delta robot whose plate is there, by Newton's method on the three gaps."""
    q = np.concatenate([plate, 3 * [0.3, 0.0, 0.0]])
    for _ in range(50):
        ends = [
            sd.frame_pose(model, q, f"ball{k}")[:3, 3] - sd.frame_pose(model, q, f"end{k}")[:3, 3] for k in range(3)
        ]
        J = delta_loops(model, q)
        q[3:] -= np.linalg.solve(J[:, 3:], np.concatenate(ends))
    assert np.abs(ends).max() < 1e-12
    return q


def delta_loops(model: sd.Model, q: np.ndarray) -> np.ndarray:
    """(9, 12): rates of the three gaps by q̇."""
    return np.vstack([
        (sd.frame_jacobian(model, q, f"ball{k}", "world") - sd.frame_jacobian(model, q, f"end{k}", "world"))[3:]
        for k in range(3)
    ])  # fmt: skip


@pytest.mark.slow
def test_motors_of_a_delta_robot_do_the_work_of_its_motion():
    """q̈ along the loops by differences; τ of the motors by virtual work over the tree, without sysdyn's solver."""
    problem = task("delta").problem
    model = problem.model
    q = closed_delta(model, np.array([0.05, -0.02, -0.45]))
    motors = [model.q_slice(model.joint_index(f"motor{k}")).start for k in range(3)]

    def motion(J):  # (12, 3): q̇ by the plate's velocity
        return np.vstack([np.eye(3), -np.linalg.solve(J[:, 3:], J[:, :3])])

    velocity, acceleration, h = np.array([0.4, 0.2, -0.3]), np.array([1.0, -2.0, 3.0]), 1e-5
    B = motion(delta_loops(model, q))
    rate = (motion(delta_loops(model, q + h * B @ velocity)) - motion(delta_loops(model, q - h * B @ velocity))) / (
        2 * h
    )
    qd, qdd = B @ velocity, B @ acceleration + rate @ velocity
    expected = np.linalg.solve(B[motors].T, B.T @ sd.rnea(model, q, qd, qdd))
    solve = solver("delta", "fast")
    found = solve(q, qd, y={"plate": acceleration, "no motors": np.zeros(9)})
    np.testing.assert_allclose(found.tau[motors], expected, rtol=1e-6)


@pytest.mark.slow
def test_icub_on_both_feet_as_pinocchio_has_it():
    problem = task("icub_standing").problem
    model = problem.model
    oracle = Pinocchio(model, icub_urdf())
    q, qd, _ = model.random_state(seed=4)
    J = np.concatenate([sd.frame_jacobian(model, q, f) for f in ("l_sole", "r_sole")])
    qd = qd - np.linalg.pinv(J) @ (J @ qd)
    tau = np.random.default_rng(4).uniform(-20.0, 20.0, model.nv)
    tau[:6] = 0.0
    values = {**task("icub_standing").values, "motors": tau[6:]}
    solution = solver("icub_standing", "fast")(q, qd, y=values)
    pin = pytest.importorskip("pinocchio")
    places = []
    for frame in ("l_sole", "r_sole"):
        found = oracle.pin.frames[oracle.pin.getFrameId(frame, pin.BODY)]
        places.append((pin.ContactType.CONTACT_6D, found.parentJoint, found.placement))
    qdd, wrenches = constrained(oracle, places, q, qd, tau)
    np.testing.assert_allclose(solution.qdd, qdd, atol=1e-9 * np.abs(qdd).max())
    for name, expected in zip(("left foot", "right foot"), wrenches, strict=True):
        np.testing.assert_allclose(solution.wrench(name), expected, atol=1e-9 * np.abs(expected).max())


def standing(model: sd.Model, roll: float) -> np.ndarray:
    """q of bent knees and level soles, but for the right one, rolled by so much."""
    bent = {"hip_pitch": -0.4, "knee": 0.8, "ankle_pitch": -0.4}
    q = model.neutral()
    for name, x in [(f"{side}_{joint}", x) for side in "lr" for joint, x in bent.items()] + [("r_ankle_roll", roll)]:
        q[model.q_slice(model.joint_index(name))] = x
    return q


@pytest.mark.slow
def test_slippery_feet_tell_their_couples_while_their_soles_are_not_parallel():
    """Contacts planted with a motion that needs no force at the base come back; on a flat floor they are refused."""
    problem = task("slippery_feet").problem
    model, solve = problem.model, solver("slippery_feet")
    _, qd, qdd = model.random_state(seed=2)
    spread = []
    for roll in (0.05, 0.3, 0.9):
        q, fx = standing(model, roll), np.zeros((model.nb, 6))
        for side, wrench in (("l", (2.0, -1.0, 3.0, 0.0, 0.0, 90.0)), ("r", (-1.0, 2.0, -2.0, 0.0, 0.0, 110.0))):
            fx[model.body_index(f"{side}_foot")] = model.frame(f"{side}_sole").X.T @ wrench
        free = sd.crba(model, q)[:6, :6]
        qdd[:6] -= np.linalg.solve(free, sd.rnea(model, q, qd, qdd, fx)[:6])
        y = sd.predict(problem, q, qd, qdd, fx)
        for name, x in task("slippery_feet").values.items():
            np.testing.assert_allclose(y[name], x, atol=1e-10)
        solution = solve(q, qd, y=y)
        np.testing.assert_allclose(solution.fx, fx, atol=1e-7)
        np.testing.assert_allclose(solution.tau, sd.rnea(model, q, qd, qdd, fx), atol=1e-7)
        spread.append(solution.std("fx", "l_foot")[2])
    assert spread[0] > 4 * spread[1] > 8 * spread[2] / 2 > 0  # about cot(θ/2)
    with pytest.raises(SingularState, match=r"nothing determines fx\(l_foot\).nz, fx\(r_foot\).nz"):
        solve(standing(model, 0.0), qd, y=y)


def test_feet_on_load_cells_can_push_each_other_unnoticed():
    path = "problems/icub_feet_load_cells.toml"
    text = run("diagnose", path, code=1).stdout
    assert re.search(r"together 1 N m of fx\(r_ankle_2\).nx, .* of fx\(l_ankle_2\).n", text)
    assert "fx(r_ankle_2).nz [N m] and fx(l_ankle_2).nz [N m] in opposite sense" in text
    result = run("solve", path, "--random", 1, code=2)
    assert "singular at every sampled state" in result.stderr


# ---- a contact that opens and closes ---------------------------------------------------------------------------------


@functools.cache
def hopped() -> hop.Hop:
    return hop.simulate(task("hopping_leg").problem.model, end=0.6, every=8)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_hop_without_noise_is_found(tmp_path, suffix):
    """One compiled problem through stance, flight and landing, switched by columns of the log."""
    t, motion, solve = task("hopping_leg"), hopped(), solver("hopping_leg")
    assert list(np.flatnonzero(np.diff(motion.stance.astype(int)))) and motion.stance[0] and motion.stance[-1]
    path = squat.write_log(tmp_path / f"hop{suffix}", t, hop.log_of(t, motion, seed=None))
    parts = []
    estimate_log(Log(path, solve, t.values), solve, tmp_path / "out.csv", parts.append)
    tau, fx = (np.vstack([x.values[name] for x in parts]) for name in ("tau", "fx"))
    foot = fx.reshape(len(tau), -1, 6)[:, t.problem.model.body_index("foot")]
    np.testing.assert_allclose(tau, motion.tau, atol=1e-6)
    np.testing.assert_allclose(foot, motion.foot, atol=1e-6)
    header = (tmp_path / "out.csv").read_text().split("\n", 1)[0].split(",")
    assert {"t", "tau:knee", "std:tau:knee", "fx:foot.fz", "std:fx:foot.fz"} < set(header)


@pytest.mark.slow
def test_error_bars_of_a_hop_tell_the_truth(tmp_path):
    t, motion, solve = task("hopping_leg"), hopped(), solver("hopping_leg")
    path = squat.write_log(tmp_path / "hop.npz", t, hop.log_of(t, motion, seed=3))
    parts = []
    estimate_log(Log(path, solve, t.values), solve, seen=parts.append)
    found, std = (np.vstack([getattr(x, name)["tau"] for x in parts])[:, 6:] for name in ("values", "std"))
    assert 0.91 < squat.coverage(found, std, motion.tau[:, 6:]).within_95 < 0.99
    # with the switches the other way round the foot is thought to rest in the air, and to hang from nothing
    wrong = hop.log_of(t, motion, seed=3)
    wrong["active:stance"], wrong["active:flight"] = wrong["active:flight"], wrong["active:stance"]
    parts.clear()
    estimate_log(Log(squat.write_log(path, t, wrong), solve, t.values), solve, seen=parts.append)
    found = np.vstack([x.values["tau"] for x in parts])[:, 6:]
    assert squat.coverage(found, std, motion.tau[:, 6:]).within_95 < 0.5


@pytest.mark.slow
def test_the_hop_obeys_the_laws_of_flight():
    """The whole robot's centre of mass falls freely in flight; the angular momentum about it stays."""
    motion, model = hopped(), task("hopping_leg").problem.model
    problem = sd.Problem(model, [sd.CentreOfMassAcceleration(name="com"), sd.MomentumRate(name="h")])
    y = sd.predict(problem, motion.q, motion.qd, motion.qdd)
    flying = ~motion.stance
    np.testing.assert_allclose(y["com"][flying], np.tile([0.0, 0.0, -9.81], (flying.sum(), 1)), atol=1e-9)
    np.testing.assert_allclose(y["h"][flying][:, :3], 0.0, atol=1e-9)
    J = np.array([sd.frame_jacobian(model, q, "sole") for q in motion.q])
    slip = np.einsum("nij,nj->ni", J, motion.qd)[motion.stance]
    assert np.abs(slip).max() < 0.05 and np.abs(motion.foot[~motion.stance]).max() == 0.0
