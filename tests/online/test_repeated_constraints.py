"""Constraints that repeat each other at a state, or at every state, against dense least-norm solutions."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("bent", [[0.4, 1e-12, 0.0], [0.4, 1e-9, 1e-9], [0.4, 1e-6, 0.0]])
def test_hardly_bent_limbs_are_held_by_what_is_left(bent):
    """sin(1e-12) has all its digits: the row holds a direction, which it does not if it is zero."""
    model, tip = _planar(3, 0.3), sd.Contact(("body2", _tip()), ("a_x", "a_y"), name="tip")
    solver = sd.compile(_forward(model, tip), outputs=["qdd", "w"], level="fast", effort=0.0)
    tau = np.array([0.3, -0.2, 0.1])
    found = solver(np.array(bent), np.zeros(3), tau=tau)
    assert found.undetermined == ()
    np.testing.assert_allclose(found.qdd, _dense(model, [tip], np.array(bent), tau)[0], atol=1e-9)


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


def test_a_limb_that_is_hardly_bent_is_solved_with_more_digits():
    """Bent by 6.5e-14 rad: accelerations that met no equation were given as those of a singular state."""
    rng = np.random.default_rng(1)
    n = int(rng.integers(2, 6))
    com = np.array([[0.5, 0.0, 0.0]] * n) * rng.uniform(0.6, 1.4, (n, 1))
    inertia = np.array([np.diag(rng.uniform(0.01, 0.05) * np.array([0.4, 1.0, 1.0])) for _ in range(n)])
    alpha, mass = [rng.uniform(-1.0, 1.0), *[0.0] * (n - 1)], rng.uniform(0.5, 2.0, n)
    model = sd.from_dh(alpha=alpha, a=[0.0, 1.0, 1.0], d=np.zeros(n), mass=mass, com=com, inertia=inertia)
    clamped = sd.Contact(("body2", _tip()), ("alpha_z", "a_x", "a_y"), name="tip")
    solver = sd.compile(_forward(model, clamped), outputs=["qdd", "w"], on_singular="nan")
    q = np.array([-2.9598896351542545, 3.1415926535898584, -3.141592653589728])
    qd = np.array([1.5649399807977908, 1.8941852642668422, 0.18239693640792465])
    tau = np.array([-0.43125270639173874, -0.5257394879149687, 0.20360386336799058])
    H, C = (sd.kinematics(model, x, level=0) for x in ("mass_matrix", "bias"))
    J = sd.operational_space(model, [clamped], "jacobian", level=0)(q)
    for rate in (0.0 * qd, qd):
        found = solver(q, rate, tau)
        assert found.ok and not found.undetermined
        left = H(q) @ found.qdd + C(q, rate) - tau - J.T @ found.w
        assert np.abs(left).max() < 1e-9 * (1.0 + np.abs(found.w).max())
        # the two links that are folded hold the tip where it is: the limb cannot move, but for rounding at rest
        assert np.abs(found.qdd).max() < 1e-9 if not rate.any() else np.abs(found.qdd).max() > 1e12


def test_a_linkage_next_to_its_dead_centre_that_one_more_crank_holds_already():
    """Hardly more than rounding, 4e-14, is left of one row, and another repeats others: half of its digits were lost.

    The equations in 50 digits have σ = 1, 0.65, 4e-14 and 0; without the third direction q̈ is as below.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
        import repeated
    rng = np.random.default_rng(33)
    made = repeated.MECHANISMS[(33 - repeated.LIMBS) % len(repeated.MECHANISMS)](rng)
    given = {name: x[1629] for name, x in repeated.states(made, 2800, rng).items()}
    solver = sd.compile(made.problem, outputs=["qdd", "w"], level="fast", backend="python")
    found = solver(**given)
    expected = [-25.88726877, 31.20745208, -39.18772704, -31.20745208]
    np.testing.assert_allclose(found.qdd, expected, atol=1e-8)
    assert np.abs(found.w).max() < 2.0 and {"w(pin0).fx", "w(pin1).fx"} <= set(found.undetermined)
    many = solver(**{name: np.stack([x, x]) for name, x in given.items()})
    np.testing.assert_array_equal(many.qdd, [found.qdd] * 2)
