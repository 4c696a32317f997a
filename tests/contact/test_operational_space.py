"""Delassus matrices, operational-space inertias, projections and impacts against dense algebra and Pinocchio."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
import pytest
from oracles import Pinocchio, _swap, icub, icub_urdf
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import InvalidInput, ProblemError, SingularState, UnknownName

EVERY = ("jacobian", "delassus", "inertia", "inverse", "projection", "velocity", "acceleration")
FEET = ("l_sole", "r_sole")
LEGS = (-1, 0, 1, 2, 0, 4, 5)


def _floating(seed: int = 0) -> sd.Model:
    return floating_tree(len(LEGS), seed=seed, parent=LEGS)


def _cases():
    floating, chain = _floating(), sd.chain(7, seed=0)
    points = [sd.Contact(body, "point", name=body) for body in ("body3", "body6")]
    wide = sd.random_tree(8, seed=2)
    mixed = [sd.Contact("body3", "normal", name="b"), sd.Contact("body7", "point", name="tip", reference="world")]
    loop = sd.LoopJoint("body2", "body6", ("a_x", "a_y"), name="loop")
    gear = sd.JointCoupling("joint3", "joint2", (0.1, 2.0, 0.3), name="gear")
    return {
        "a task of an arm": (chain, ["body6"]),
        "points of a floating robot": (floating, points),
        "a foot of a floating robot": (floating, [sd.Contact("body3", name="foot"), points[1]]),
        "joints of all kinds": (wide, mixed),
        "a loop and a coupling": (chain, [loop, gear]),
        "stabilised": (chain, [sd.Contact("body6", "point", name="held", stabilise=0.1)]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", _cases())
def test_results_are_those_of_dense_matrices(case):
    """By H of the composite bodies, and by the wrenches and accelerations of the compiled problem."""
    model, constraints = _cases()[case]
    contacts = [sd.Contact(x, name=x) if isinstance(x, str) else x for x in constraints]
    space = sd.operational_space(model, constraints, EVERY)
    problem = sd.Problem(model, [sd.JointTorque("all", name="tau"), sd.ExternalWrench("all", name="fx"), *contacts])
    solver = sd.compile(problem, outputs=["qdd", "w"], formulation="recursive", level="fast", effort=0.0)
    q, qd, _ = model.random_state(seed=3, batch=6)
    tau = np.random.default_rng(0).standard_normal((6, model.nv))
    given = solver(q, qd, tau=tau)
    found = space(q, qd, tau=tau)
    for k in range(6):
        now = {name: x[k] for name, x in found.items()}
        H, J = sd.crba(model, q[k]), now["jacobian"]
        omega = J @ np.linalg.solve(H, J.T)
        inverse = np.linalg.solve(H, J.T) @ np.linalg.inv(omega)
        expected = {
            "delassus": omega, "inertia": np.linalg.inv(omega), "inverse": inverse, "velocity": J @ qd[k],
            "projection": np.eye(model.nv) - inverse @ J, "acceleration": -omega @ given["w"][k],
        }  # fmt: skip
        for name, x in expected.items():
            np.testing.assert_allclose(now[name], x, rtol=0, atol=1e-9 * max(1.0, np.abs(x).max()), err_msg=name)
        free = np.linalg.solve(H, tau[k] - sd.kinematics(model, "bias")(q[k], qd[k]))
        np.testing.assert_allclose(given["qdd"][k], free + np.linalg.solve(H, J.T @ given["w"][k]), atol=1e-8)
    alone = sd.delassus(model, constraints)(q)  # by another plan
    np.testing.assert_allclose(alone, found["delassus"], rtol=0, atol=1e-9 * np.abs(alone).max())


@pytest.mark.slow
def test_the_two_names_of_the_field():
    model = sd.chain(7, seed=0)
    q = model.random_state(seed=1)[0]
    omega, inertia = sd.delassus(model, "body6")(q), sd.operational_space_inertia(model, ["body6"])(q)
    np.testing.assert_allclose(omega @ inertia, np.eye(6), atol=1e-10)
    assert sd.operational_space(model, "body6", ["inertia"])(q)["inertia"].tolist() == inertia.tolist()


def _rigid(oracle: Pinocchio):
    models, datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    for name in FEET:
        frame = oracle.pin.frames[oracle.pin.getFrameId(name)]
        models.append(
            pin.RigidConstraintModel(
                pin.ContactType.CONTACT_6D, oracle.pin, frame.parentJoint, frame.placement, pin.ReferenceFrame.LOCAL
            )
        )
        datas.append(models[len(models) - 1].createData())
    return models, datas


@pytest.mark.slow
def test_delassus_and_impacts_of_the_icub_are_those_of_pinocchio():
    model = icub("floating")
    oracle = Pinocchio(model, icub_urdf())
    models, datas = _rigid(oracle)
    omega = sd.delassus(model, FEET)
    assert omega.flops.total < 8_000
    q, qd, _ = model.random_state(seed=5)
    at = oracle.position(q)
    H = pin.crba(oracle.pin, oracle.data, at)
    H = np.triu(H) + np.triu(H, 1).T
    pin.computeJointJacobians(oracle.pin, oracle.data, at)
    pin.updateFramePlacements(oracle.pin, oracle.data)
    order = np.r_[3:6, 0:3]  # theirs are linear first
    J = np.vstack([
        pin.getFrameJacobian(oracle.pin, oracle.data, oracle.pin.getFrameId(x), pin.ReferenceFrame.LOCAL)[order]
        for x in FEET
    ])  # fmt: skip
    theirs = J @ np.linalg.solve(H, J.T)
    np.testing.assert_allclose(omega(q), theirs, rtol=0, atol=1e-9 * np.abs(theirs).max())

    pin.initConstraintDynamics(oracle.pin, oracle.data, models, datas)
    hit = sd.impact(sd.forward_dynamics(model) + [sd.Contact(x, name=x) for x in FEET])(q, qd, restitution=0.4)
    settings = pin.ProximalSettings(1e-15, 0.0, 1)
    after = pin.impulseDynamics(oracle.pin, oracle.data, at, oracle.theirs(qd), models, datas, 0.4, settings)
    np.testing.assert_allclose(hit.qd, oracle.ours(after), atol=1e-9)
    for name, data in zip(FEET, datas, strict=True):
        impulse = _swap(data.contact_force.vector)
        np.testing.assert_allclose(hit.impulses[name], impulse, rtol=0, atol=1e-8 * np.abs(impulse).max())


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("e", [0.0, 0.5, 1.0])
def test_impacts_obey_newton_and_bring_in_no_energy(e):
    model = floating_tree(5, seed=3, parent=(-1, 0, 1, 0, 3))
    foot = sd.Contact("body2", "point", name="foot", stabilise=0.1)
    loop = sd.LoopJoint("body2", "body4", ("a_z",), name="loop")
    impact = sd.impact(sd.forward_dynamics(model) + [foot, loop])
    q, qd, _ = model.random_state(seed=1, batch=5)
    push = np.random.default_rng(0).standard_normal((5, model.nb, 6))
    kinetic = sd.kinematics(model, "kinetic_energy", backend="python")
    hit = impact(q, qd, restitution=e)
    rows = sd.operational_space(model, [foot, loop], "velocity", backend="python")
    np.testing.assert_allclose(rows(q, hit.qd), -e * rows(q, qd), atol=1e-10)
    np.testing.assert_allclose(hit.energy, kinetic(q, hit.qd) - kinetic(q, qd), atol=1e-10)
    assert np.all(hit.energy < 0.0) if e < 1.0 else np.all(np.abs(hit.energy) < 1e-10)
    np.testing.assert_allclose(np.concatenate([*hit.after.values()], axis=-1), rows(q, hit.qd), atol=1e-10)
    hammered = impact(q, qd, {"foot": e}, fx=push)
    change = np.linalg.solve(sd.crba(model, q[0]), sd.kinematics(model, "external")(q[0], fx=push[0]))
    assert np.abs(hammered.qd[0] - hit.qd[0]).max() > 1e-3 and np.abs(change).max() > 1e-3
    np.testing.assert_allclose(rows(q, hammered.qd)[:, 3], 0.0, atol=1e-10)


def test_rows_that_repeat_each_other_are_named():
    arm = sd.chain(5, seed=0)
    with pytest.raises(ProblemError, match="6 rows of hand follow from each other"):
        sd.operational_space(arm, sd.Contact("body4", name="hand"), "inertia")
    omega = sd.delassus(arm, sd.Contact("body4", name="hand"))(arm.random_state(seed=0)[0])
    assert np.linalg.matrix_rank(omega, tol=1e-9) == 5
    twice = [sd.Contact("body4", "point", name=x) for x in ("one", "two")]
    with pytest.raises(ProblemError, match="one|two"):
        sd.operational_space_inertia(arm, twice)


def test_a_stretched_leg_is_refused_by_name_and_its_omega_is_not():
    """Three parallel axes: with straight links the foot cannot move along them; nearly straight ones are judged."""
    n = 3
    leg = sd.from_dh(
        alpha=np.zeros(n), a=[0.4, 0.4, 0.1], d=np.zeros(n), mass=np.ones(n), com=np.zeros((n, 3)),
        inertia=np.tile(0.01 * np.eye(3), (n, 1, 1)),
    )  # fmt: skip
    foot = sd.Contact(leg.body_names[-1], ("a_x", "a_y", "alpha_z"), name="foot")
    inertia, omega = sd.operational_space_inertia(leg, foot), sd.delassus(leg, foot)
    bent = np.array([0.3, 0.5, 0.2])
    np.testing.assert_allclose(inertia(bent) @ omega(bent), np.eye(3), atol=1e-9)
    for knee in (0.0, 1e-9, np.pi):
        straight = np.array([0.3, knee, 0.2])
        with pytest.raises(SingularState, match="'foot' follows from the other rows there"):
            inertia(np.stack([bent, straight]))
        assert np.isfinite(omega(straight)).all()


def test_bad_input_is_named():
    model = sd.chain(3, seed=0)
    with pytest.raises(InvalidInput, match="no constraint"):
        sd.delassus(model, [3])
    with pytest.raises(InvalidInput, match="there are no constraints"):
        sd.delassus(model, [])
    with pytest.raises(UnknownName, match="mass"):
        sd.operational_space(model, "body2", "mass")
    with pytest.raises(UnknownName, match="hand"):
        sd.delassus(model, "hand")
    coupled = model.replace(closures=(sd.model.closures.Coupling("joint2", "joint1", (0.0, 1.0)),))
    with pytest.raises(ProblemError, match="closures"):
        sd.delassus(coupled, sd.Contact("body2", ("a_x",), name="tip"))
    assert sd.delassus(coupled, [sd.Contact("body2", ("a_x",), name="tip"), *sd.closures(coupled)])(
        np.zeros(3)
    ).shape == (2, 2)
    tip = sd.Contact("body2", ("a_x",), name="tip")
    for problem, says in (
        (sd.inverse_dynamics(model) + tip, "forward dynamics"), (sd.forward_dynamics(model), "no constraint"),
    ):  # fmt: skip
        with pytest.raises(ProblemError, match=says):
            sd.impact(problem)
    with pytest.raises(InvalidInput, match="needs a Problem"):
        sd.impact(model)
    hit = sd.impact(sd.forward_dynamics(model) + tip)
    q, qd, _ = model.random_state(seed=0)
    with pytest.raises(UnknownName, match="foot"):
        hit(q, qd, {"foot": 0.1})
    for wrong in (1.5, -0.1, [0.1, 0.2], np.nan):
        with pytest.raises(InvalidInput, match="'tip'"):
            hit(q, qd, wrong)
