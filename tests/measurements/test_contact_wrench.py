"""Inverse dynamics with contacts: the torques and the smallest wrenches against Pinocchio and dense solutions."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from estimates import FAST
from oracles import Pinocchio, icub, icub_urdf
from robots import floating_tree

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.errors import InvalidInput, ProblemError, StructurallySingular, UnknownName
from sysdyn.measurements.constraints import CONTACTS
from sysdyn.model.quantities import ACCELERATION
from sysdyn.model.se3 import X_motion, rotx, roty
from sysdyn.sparse import umfpack

SIGMA = np.array([1.0, 2.0, 0.5, 20.0, 30.0, 50.0])


@functools.cache
def tree() -> sd.Model:
    """A free body with an arm of two joints and one of one; the frame "tool" is at the end of one, "heel" beside it."""
    model = floating_tree(4, seed=3, parent=(-1, 0, 1, 0))
    tool = sd.Frame("tool", 2, X_motion(rotx(0.7) @ roty(-0.4), np.array([0.2, 0.1, -0.3])))
    heel = sd.Frame("heel", 2, X_motion(np.eye(3), np.array([-0.2, 0.1, -0.3])))
    return model.replace(frames={**model.frames, "tool": tool, "heel": heel})


def moving(seed: int, batch: int | None = None):
    """(q, q̇, q̈, fx) at random."""
    q, qd, qdd = tree().random_state(seed=seed, batch=batch)
    return q, qd, qdd, np.random.default_rng(seed).uniform(-10.0, 10.0, (*qd.shape[:-1], tree().nb, 6))


def smallest(contacts, q, qd, qdd, fx, given=0.0):
    """(τ, w) by dense algebra: w of the least Σ ((w − given)/σ)² that leaves no torque at the base.

    contacts: (frame, components by their numbers, σ of each, axes "local" or "world").
    """
    model, tau, rows, sigma = tree(), sd.rnea(tree(), q, qd, qdd, fx), [], []
    for frame, numbers, own, reference in contacts:
        J = sd.frame_jacobian(model, q, frame)
        if reference == "world":
            R = sd.frame_pose(model, q, frame)[:3, :3]
            J = np.concatenate([R @ J[:3], R @ J[3:]])
        rows.append(J[numbers])
        sigma.extend(own)
    J, S = np.concatenate(rows), np.diag(sigma)
    base = J[:, :6].T
    w = given + S @ np.linalg.pinv(base @ S) @ (tau[:6] - base @ np.broadcast_to(given, len(sigma)))
    return tau - J.T @ w, w


QUICK = {("point", "world")}
CASES = [(kind, reference) for kind in (*CONTACTS, "fz") for reference in ("local", "world")]


@pytest.mark.parametrize(
    "kind, reference", [pytest.param(*x, marks=() if x in QUICK else pytest.mark.slow) for x in CASES]
)
def test_the_smallest_wrenches_of_a_motion(kind, reference):
    contacts = [
        sd.ContactWrench("tool", kind, reference, noise=30.0, name="tool"),
        sd.ContactWrench("body3", noise=SIGMA, name="hand"),
    ]
    solver = sd.compile(sd.inverse_dynamics(tree(), contacts), outputs=["tau", "w"], **FAST)
    numbers = [5] if kind == "fz" else [ACCELERATION.index(c) for c in CONTACTS[kind]]
    stated = [("tool", numbers, [30.0] * len(numbers), reference), ("body3", list(range(6)), SIGMA, "local")]
    for seed in (1, 2):
        q, qd, qdd, fx = moving(seed)
        found = solver(q, qd, qdd=qdd, fx=fx)
        tau, w = smallest(stated, q, qd, qdd, fx)
        np.testing.assert_allclose(found.w, w, rtol=1e-9, atol=1e-9 * abs(w).max())
        np.testing.assert_allclose(found.tau, tau, rtol=1e-9, atol=1e-9 * abs(tau).max())
        assert abs(found.tau[:6]).max() < 1e-10 * abs(tau).max()
        np.testing.assert_array_equal(found.wrench("hand"), found.w[-6:])
        assert np.all(np.delete(found.wrench("tool", reference), numbers) == 0.0)


@pytest.mark.slow
def test_two_points_of_one_body_and_a_wrench_that_is_preferred():
    contacts = [sd.ContactWrench(x, "point", noise=10.0, name=x) for x in ("tool", "heel", "body3")]
    solver = sd.compile(sd.inverse_dynamics(tree(), contacts), outputs=["tau", "w"], **FAST)
    q, qd, qdd, fx = moving(3)
    stated = [(x, [3, 4, 5], [10.0] * 3, "local") for x in ("tool", "heel", "body3")]
    wish = np.arange(9.0)
    found = solver(
        q, qd, qdd=qdd, fx=fx, y={x: wish[3 * k : 3 * k + 3] for k, x in enumerate(("tool", "heel", "body3"))}
    )
    tau, w = smallest(stated, q, qd, qdd, fx, wish)
    np.testing.assert_allclose(found.w, w, rtol=1e-9, atol=1e-9 * abs(w).max())
    np.testing.assert_allclose(found.tau, tau, rtol=1e-9, atol=1e-9 * abs(tau).max())


def test_contacts_that_hold_are_taken_as_wrenches_of_one_size():
    contacts = [sd.Contact("tool", "edge", name="tool"), sd.Contact("body3", "plane", reference="world", name="hand")]
    problem = sd.inverse_dynamics(tree(), contacts)
    q, qd, qdd, fx = moving(8)
    found = sd.compile(problem, outputs=["tau", "w"], **FAST)(q, qd, qdd=qdd, fx=fx)
    numbers = {x: [ACCELERATION.index(c) for c in CONTACTS[x]] for x in ("edge", "plane")}
    stated = [("tool", numbers["edge"], [1.0] * 5, "local"), ("body3", numbers["plane"], [1.0] * 3, "world")]
    tau, w = smallest(stated, q, qd, qdd, fx)
    np.testing.assert_allclose(found.w, w, rtol=1e-9, atol=1e-9 * abs(w).max())


def test_a_small_noise_switches_a_contact_off_state_by_state():
    contacts = [sd.ContactWrench(x, noise=10.0, name=x) for x in ("tool", "body3")]
    solver = sd.compile(sd.inverse_dynamics(tree(), contacts), outputs=["tau", "w"], **FAST)
    q, qd, qdd, fx = moving(4, batch=2)
    found = solver(q, qd, qdd=qdd, fx=fx, noise={"tool": np.array([[1e-7] * 6, [10.0] * 6])})
    alone = [("body3", list(range(6)), [1.0] * 6, "local")]
    tau, w = smallest(alone, q[0], qd[0], qdd[0], fx[0])
    np.testing.assert_allclose(found.w[0], [0.0] * 6 + list(w), rtol=1e-7, atol=1e-7 * abs(w).max())
    np.testing.assert_allclose(found.tau[0], tau, rtol=1e-7, atol=1e-7 * abs(tau).max())
    assert abs(found.w[1, :6]).max() > 1e-3


@pytest.mark.slow
def test_operations_of_the_icub_on_two_feet():
    """At most 3 % above those of docs/contacts.md, by UMFPACK or by tearing. The symmetric orders find 13,377."""
    contacts = [sd.Contact(x, name=x) for x in ("l_sole", "r_sole")]
    problem = sd.inverse_dynamics(icub("floating"), contacts)
    total = sd.compile(problem, outputs=["tau", "w"], backend="python").flops.end_to_end.total
    assert total <= 1.03 * (8607 if umfpack.available() else 8960)


@pytest.mark.slow
def test_the_icub_stands_as_pinocchio_says():
    model = icub("floating")
    contacts = [sd.ContactWrench(x, noise=[10.0] * 3 + [100.0] * 3, name=x) for x in ("l_sole", "r_sole")]
    solver = sd.compile(sd.inverse_dynamics(model, contacts), outputs=["tau", "w"], **FAST)
    q, qd, qdd = model.random_state(seed=5)
    found = solver(q, qd, qdd=qdd)
    J = {x: sd.frame_jacobian(model, q, x) for x in ("l_sole", "r_sole")}
    tau = Pinocchio(model, icub_urdf()).rnea(q, qd, qdd)
    held = tau - sum(J[x].T @ found.wrench(x) for x in J)
    assert abs(held[:6]).max() < 1e-9 * abs(tau).max()
    np.testing.assert_allclose(found.tau, held, rtol=1e-9, atol=1e-9 * abs(held).max())


def test_predicted_values_are_the_mean():
    problem = sd.inverse_dynamics(tree(), [sd.ContactWrench("tool", "point", noise=10.0, name="tool")])
    q, qd, qdd, fx = moving(7)
    found = sd.predict(problem + sd.Accelerometer("body3", noise=0.1, name="imu"), q, qd, qdd, fx, seed=1)
    assert found["tool"].shape == (3,) and not found["tool"].any() and found["imu"].any()


def test_stored_and_read(tmp_path):
    problem = sd.inverse_dynamics(tree(), [sd.ContactWrench("tool", "point", "world", noise=30.0, name="tool")] + [
        sd.ContactWrench("body3", noise=SIGMA, name="hand")])  # fmt: skip
    solver = sd.compile(problem, outputs=["tau", "w"], **FAST)
    solver.save(tmp_path / "held.sysdyn")
    q, qd, qdd, fx = moving(6)
    expected = solver(q, qd, qdd=qdd, fx=fx).w
    for other in (sd.load_solver(tmp_path / "held.sysdyn"), pickle.loads(pickle.dumps(solver))):
        np.testing.assert_array_equal(other(q, qd, qdd=qdd, fx=fx).w, expected)


def test_a_problem_file_states_it(tmp_path):
    (tmp_path / "stance.toml").write_text(
        f'''robot = "{icub_urdf()}"
base = "floating"
problem = "inverse"
outputs = ["tau", "w"]

[[measurement]]
name = "base"
type = "JointTorque"
targets = "root_joint"
value = 0

[[measurement]]
type = "ContactWrench"
frame = "l_sole"
kind = "point"
noise = 100.0
'''
    )
    problem = load_job(tmp_path / "stance.toml").problem
    assert problem.measurements[-1].wrench(problem.model) == ("fx", "fy", "fz")


def test_bad_input():
    with pytest.raises(ProblemError, match="needs noise="):
        sd.ContactWrench("tool")
    with pytest.raises(InvalidInput, match="floating base"):
        sd.inverse_dynamics(sd.chain(3), [sd.ContactWrench("body2", noise=1.0)])
    with pytest.raises(UnknownName, match="kind of a ContactWrench"):
        sd.ContactWrench("tool", "glued", noise=1.0)
    with pytest.raises(UnknownName, match="tol"):
        sd.inverse_dynamics(tree(), [sd.ContactWrench("tol", noise=1.0)])
    with pytest.raises(InvalidInput, match="ContactWrench"):
        sd.inverse_dynamics(tree(), [sd.JointTorque("all")])
    with pytest.raises(StructurallySingular, match="'grip'.*inverse_dynamics"):
        sd.compile(sd.inverse_dynamics(tree()) + sd.Contact("tool", name="grip"))
    joints = tree().joint_names
    lacking = (
        sd.hybrid_dynamics(tree(), joints[:3]) - sd.JointTorque(joints[1]) + sd.Contact("tool", ["a_x"], name="grip")
    )
    with pytest.raises(StructurallySingular) as error:  # q̈ is known of another arm, and nothing of a torque
        sd.compile(lacking)
    assert "w(grip)" in str(error.value) and "known accelerations" not in str(error.value)
    for wrapper in (sd.Prior, sd.Switchable):
        with pytest.raises(ProblemError, match="its own noise"):
            wrapper(sd.ContactWrench("tool", noise=1.0))


def test_one_body_bears_on_two_places():
    model = floating_tree(1, seed=1)
    places = {
        name: sd.Frame(name, 0, X_motion(np.eye(3), np.array([x, 0.0, -0.1]))) for name, x in (("l", -0.2), ("r", 0.1))
    }
    model = model.replace(frames={**model.frames, **places})
    problem = sd.inverse_dynamics(model, [sd.ContactWrench(x, noise=1.0, name=x) for x in places])
    q, qd, qdd = model.random_state(seed=2)
    found = sd.compile(problem, outputs=["tau", "w"], **FAST)(q, qd, qdd=qdd)
    J = np.concatenate([sd.frame_jacobian(model, q, x) for x in places])
    expected = np.linalg.pinv(J.T) @ sd.rnea(model, q, qd, qdd)
    np.testing.assert_allclose(found.w, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())
