"""Constraints that repeat each other at a state, or at every state, against dense least-norm solutions."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import Inconsistent, SingularState


def _planar(n: int, turn: float = 0.0) -> sd.Model:
    """n links of 1 m in a plane, turned about the first axis."""
    com = np.tile([0.5, 0.0, 0.0], (n, 1))
    inertia = np.tile(np.diag([0.01, 0.02, 0.03]), (n, 1, 1))
    a = [0.0, *[1.0] * (n - 1)]
    return sd.from_dh(alpha=[turn, *[0.0] * (n - 1)], a=a, d=np.zeros(n), mass=np.ones(n), com=com, inertia=inertia)


def _tip(tilt: float = 0.0) -> np.ndarray:
    c, s = np.cos(tilt), np.sin(tilt)
    return np.array([[1.0, 0.0, 0.0, 1.0], [0.0, c, -s, 0.0], [0.0, s, c, 0.0], [0.0, 0.0, 0.0, 1.0]])


def _forward(model: sd.Model, *constraints: sd.Measurement) -> sd.Problem:
    return sd.Problem(model, [sd.JointTorque("all", name="tau"), sd.ExternalWrench("all", name="fx"), *constraints])


def _dense(model: sd.Model, constraints, q, tau):
    """(q̈, w) at rest: the shortest of H q̈ + C = τ + J^T w, J q̈ = 0; a row of J that is small and exact counts."""
    H, C = sd.crba(model, q), sd.kinematics(model, "gravity", level=0)(q)
    J = sd.operational_space(model, list(constraints), "jacobian", level=0)(q)
    m, nv = J.shape
    sizes = np.linalg.norm(J, axis=1)
    S = J / np.where(sizes > 1e-15, sizes, 1.0)[:, None]  # less is rounding
    K = np.block([[H, -S.T], [S, np.zeros((m, m))]])
    qdd = np.linalg.lstsq(K, np.concatenate([tau - C, np.zeros(m)]), rcond=1e-10)[0][:nv]
    return qdd, np.linalg.lstsq(J.T, H @ qdd + C - tau, rcond=1e-10)[0]


FAR = np.eye(4)
FAR[0, 3] = 4.0  # as far as the tip of four straight links
STRAIGHT = {
    "pinned tip": (3, 0.3, [sd.Contact(("body2", _tip()), ("a_x", "a_y"), name="tip")], [0.4, 0.0, 0.0]),
    "clamped tip": (4, 0.3, [sd.Contact(("body3", _tip()), ("alpha_z", "a_x", "a_y"), name="tip")],
                    [0.4, 0.0, 0.0, 0.0]),
    "two pins": (4, 0.3, [sd.Contact(("body1", _tip()), ("a_x", "a_y"), name="knee", reference="world"),
                          sd.Contact(("body3", _tip()), ("a_x", "a_y"), name="tip")], [0.4, 0.0, 0.0, 0.0]),
    "loop in its dead centre": (4, 0.3, [sd.LoopJoint(("body3", _tip()), ("body0", FAR), ("a_x", "a_y"), name="pin")],
                                [0.4, 0.0, 0.0, 0.0]),
}  # fmt: skip


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", STRAIGHT)
def test_singular_states_are_solved_by_the_smallest_wrenches(case):
    n, turn, constraints, straight = STRAIGHT[case]
    model = _planar(n, turn)
    solver = sd.compile(_forward(model, *constraints), outputs=["qdd", "w", "f"], level="fast", effort=0.0)
    rng = np.random.default_rng(1)
    q = np.stack([rng.uniform(-1.0, 1.0, n), np.array(straight), rng.uniform(-1.0, 1.0, n)])
    tau = rng.standard_normal((3, n))
    found = solver(q, np.zeros((3, n)), tau=tau)
    assert found.ok.all()
    for k in range(3):
        qdd, w = _dense(model, constraints, q[k], tau[k])
        np.testing.assert_allclose(found.qdd[k], qdd, rtol=0, atol=1e-8 * max(1.0, np.abs(qdd).max()))
        np.testing.assert_allclose(found["w"][k], w, rtol=0, atol=1e-7 * max(1.0, np.abs(w).max()))
    assert any(name.startswith("w(") for name in found.undetermined)
    assert not solver(q[0], np.zeros(n), tau=tau[0]).undetermined
    alone = solver(q[1], np.zeros(n), tau=tau[1])
    np.testing.assert_allclose(alone["w"], found["w"][1], atol=1e-12)


@pytest.mark.parametrize(
    "bent, solved", [([0.4, 1e-6, 0.0], True), ([0.4, 1e-9, 1e-9], False), ([0.4, 1e-13, 0.0], False)]
)
def test_hardly_bent_limbs_are_solved_or_refused(bent, solved):
    """The row of the constraint still holds a direction: without it accelerations would be wrong."""
    model, tip = _planar(3, 0.3), sd.Contact(("body2", _tip()), ("a_x", "a_y"), name="tip")
    solver = sd.compile(_forward(model, tip), outputs=["qdd", "w"], level="fast", effort=0.0)
    tau = np.array([0.3, -0.2, 0.1])
    if solved:
        found = solver(np.array(bent), np.zeros(3), tau=tau)
        assert found.undetermined == ()
        np.testing.assert_allclose(found.qdd, _dense(model, [tip], np.array(bent), tau)[0], atol=1e-9)
        return
    with pytest.raises(SingularState, match=r"nothing determines w\(tip\)\.fx.*sd\.least_norm"):
        solver(np.array(bent), np.zeros(3), tau=tau)


@pytest.mark.parametrize("outputs", [["qdd", "w"], "all"])
def test_a_folded_limb_is_held_by_its_tip(outputs):
    """sin(π) is 1.2e-16 in floating point, which is rounding and holds nothing: wrenches of 1e16 N would."""
    model, tip = _planar(3, 0.3), sd.Contact(("body2", _tip()), ("a_x", "a_y"), name="tip")
    solver = sd.compile(_forward(model, tip), outputs=outputs, level="fast", effort=0.0)
    q, tau = np.array([0.4, np.pi, -np.pi]), np.array([0.3, -0.2, 0.1])
    found = solver(q, np.zeros(3), tau=tau)
    J = sd.operational_space(model, tip, "jacobian", level=0)(q)
    rest = sd.crba(model, q) @ found.qdd + sd.kinematics(model, "gravity", level=0)(q) - tau
    np.testing.assert_allclose(rest, J.T @ found["w"], atol=1e-9)
    np.testing.assert_allclose(J @ found.qdd, 0.0, atol=1e-9)
    assert np.abs(found["w"]).max() < 1e3 and "w(tip).fx" in found.undetermined


def test_a_stretched_limb_that_moves_contradicts_what_holds_it():
    model = _planar(3, 0.3)
    solver = sd.compile(
        _forward(model, sd.Contact(("body2", _tip()), ("a_x", "a_y"), name="tip")), outputs=["qdd", "w"]
    )
    moving = np.array([1.0, 0.0, 0.0])
    with pytest.raises(SingularState, match="y:tip: a_x cannot hold there"):
        solver(np.array([0.4, 0.0, 0.0]), moving, tau=np.zeros(3))
    left = solver(np.array([0.4, 0.0, 0.0]), moving, tau=np.zeros(3), on_singular="nan")
    assert not left.ok and np.isnan(left.qdd).all() and left.undetermined == ()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("turn", [0.0, 0.3])
@pytest.mark.parametrize(
    "held",
    [
        sd.LoopJoint(("body2", _tip()), ("body0", _tip()), "revolute", name="held"),
        sd.Contact(("body2", _tip()), ("alpha_x", "alpha_y", "a_x", "a_y", "a_z"), name="held"),
        sd.Contact(("body2", _tip(0.3)), "point", name="held"),
        sd.Contact(("body2", _tip(0.3)), "point", name="held", reference="world"),
    ],
    ids=["revolute loop", "hinge", "tilted point", "tilted point in axes of the world"],
)
def test_rows_that_the_joints_hold_already_exert_nothing(held, turn):
    """A planar mechanism that is closed by all that a joint in space holds."""
    model = _planar(3, turn)
    solver = sd.compile(_forward(model, held), outputs=["qdd", "w"], level="fast", effort=0.0)
    q, _, _ = model.random_state(seed=2, batch=4)
    tau = np.random.default_rng(0).standard_normal((4, 3))
    found = solver(q, np.zeros((4, 3)), tau=tau)
    for k in range(4):
        qdd, _ = _dense(model, [held], q[k], tau[k])
        np.testing.assert_allclose(found.qdd[k], qdd, rtol=0, atol=1e-8 * max(1.0, np.abs(qdd).max()))
    assert max(np.abs(x).max() for x in found.inconsistency().values()) < 1e-9
    y = np.ones(len(held.components(model)))
    with pytest.raises(Inconsistent, match="held"):
        solver(q[0], np.zeros(3), tau=tau[0], y={"held": y})
