"""Loops and contacts with known accelerations of some joints, against MuJoCo, closed forms and dense KKT systems."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import Inconsistent, StructurallySingular
from sysdyn.measurements.constraints import CONTACTS, LOOPS
from sysdyn.model.quantities import ACCELERATION

FAST = {"level": "fast", "effort": 0.0, "backend": "python"}

# ---- four-bar linkage ------------------------------------------------------------------------------------------------

FILE = """
<mujoco><worldbody>
  <body name="crank"><joint name="crank" axis="0 1 0"/>
    <inertial pos="0.1 0 0" mass="1" diaginertia="0.01 0.02 0.03"/>
    <body name="coupler" pos="0.2 0 0"><joint name="coupler" axis="0 1 0"/>
      <inertial pos="0.3 0 0" mass="2" diaginertia="0.01 0.02 0.03"/></body></body>
  <body name="rocker" pos="0.6 0 0"><joint name="rocker" axis="0 1 0"/>
    <inertial pos="0.2 0 0" mass="1" diaginertia="0.01 0.02 0.03"/></body>
</worldbody><equality><connect name="pin" body1="coupler" body2="rocker" anchor="0.6 0 0"/></equality></mujoco>
"""
JOINTS = ("crank", "coupler", "rocker")
# Absolute angles of the links, and the lengths that close the loop with the ground of 0.6 m along x.
ANGLES, LENGTHS = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([0.2, 0.6, -0.2])
KINDS = {
    "connect": None,  # of the file
    "revolute": ("revolute", "y"),
    "in the plane": (("a_x", "a_z"), "y"),
    "with two moments": (("alpha_x", "alpha_z", "a_x", "a_z"), "y"),
}


def four_bar(kind: str) -> tuple[sd.Model, list[sd.Measurement]]:
    """The model without its loop, and the loop."""
    model = sd.load(FILE)
    if KINDS[kind] is None:
        return model.replace(closures=()), sd.closures(model)
    (loop,) = model.closures
    return model.replace(closures=()), [sd.LoopJoint(loop.frame_a, loop.frame_b, *KINDS[kind], name="pin")]


def loop_rows(q, qd) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(gap, J, J̇ q̇) of the loop in x and z."""
    angle, rate = ANGLES @ q, ANGLES @ qd
    along, across = np.array([np.cos(angle), -np.sin(angle)]), np.array([-np.sin(angle), -np.cos(angle)])
    return along @ LENGTHS - [0.6, 0.0], (across * LENGTHS) @ ANGLES, -along @ (LENGTHS * rate**2)


def closed(crank: float, speed: float) -> tuple[np.ndarray, np.ndarray]:
    """(q, q̇) of a closed loop, by Newton's method."""
    q, qd = np.array([crank, -0.944, -0.944]), np.array([speed, 0.0, 0.0])
    for _ in range(50):
        gap, J, _ = loop_rows(q, qd)
        q[1:] -= np.linalg.solve(J[:, 1:], gap)
    qd[1:] = np.linalg.solve(J[:, 1:], -J[:, 0] * speed)
    assert np.abs(loop_rows(q, qd)[0]).max() < 1e-14
    return q, qd


def in_mujoco(q, qd) -> tuple[np.ndarray, np.ndarray]:
    """(M, bias forces) of the tree."""
    model = mujoco.MjModel.from_xml_string(FILE)
    data, M = mujoco.MjData(model), np.zeros((3, 3))
    data.qpos[:], data.qvel[:] = q, qd
    mujoco.mj_forward(model, data)
    for column, unit in zip(M, np.eye(3), strict=True):
        mujoco.mj_mulM(model, data, column, unit)
    return M, data.qfrc_bias.copy()


def hybrid(model: sd.Model, constraints, known) -> sd.Problem:
    """Known q̈ of these joints, and τ of the others."""
    rest = [name for name in model.joint_names if name not in known]
    stated = [sd.JointAcceleration(list(known), name="qdd")] if known else []
    stated += [sd.JointTorque(rest, name="tau")] if rest else []
    return sd.Problem(model, [*stated, sd.ExternalWrench("all", name="fx"), *constraints])


def values(model: sd.Model, known, qdd, tau) -> dict[str, np.ndarray]:
    places = {name: model.v_slice(i) for i, name in enumerate(model.joint_names)}
    K = np.concatenate([np.arange(model.nv)[places[x]] for x in known]) if known else np.arange(0)
    rest = np.setdiff1d(np.arange(model.nv), K)
    found = {"qdd": qdd[..., K], "tau": tau[..., rest]}
    return {name: x for name, x in found.items() if x.shape[-1]}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("known", JOINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_four_bar_with_the_acceleration_of_one_joint(kind, known):
    model, loop = four_bar(kind)
    solver = sd.compile(hybrid(model, loop, [known]), outputs=["tau", "qdd", "w"], level="fast")
    k, rng = JOINTS.index(known), np.random.default_rng(1)
    for crank, speed in ((0.5, 0.0), (0.3, 1.5), (0.9, -2.0)):
        q, qd = closed(crank, speed)
        M, bias = in_mujoco(q, qd)
        _, J, drift = loop_rows(q, qd)
        qdd, tau = rng.standard_normal(3), rng.standard_normal(3)
        others = [i for i in range(3) if i != k]
        qdd[others] = np.linalg.solve(J[:, others], -drift - J[:, k] * qdd[k])
        w = np.linalg.solve(J[:, others].T, (M @ qdd + bias - tau)[others])
        tau[k] = (M @ qdd + bias - J.T @ w)[k]
        found = solver(q, qd, y=values(model, [known], qdd, tau))
        np.testing.assert_allclose(found.qdd, qdd, rtol=0, atol=1e-10 * np.abs(qdd).max())
        np.testing.assert_allclose(found.tau, tau, rtol=0, atol=1e-10 * np.abs(tau).max())
        exerted = found.wrench("pin")  # on the rocker
        turn = np.array([[np.cos(q[0] + q[1]), np.sin(q[0] + q[1])], [-np.sin(q[0] + q[1]), np.cos(q[0] + q[1])]])
        np.testing.assert_allclose(turn @ exerted[[3, 5]], -w, rtol=0, atol=1e-10 * np.abs(w).max())
        np.testing.assert_array_equal(exerted[[0, 1, 2, 4]], 0.0)  # what the joints of the tree take


def test_torque_of_a_four_bar_at_rest():
    """Hybrid dynamics of the file: the torque of the crank that carries the weights."""
    model = sd.load(FILE)
    q, _ = closed(0.5, 0.0)
    np.testing.assert_allclose(q, [0.5, -0.94431621, -0.94431621], rtol=0, atol=1e-8)
    solver = sd.compile(sd.hybrid_dynamics(model, torque=["coupler", "rocker"]), outputs=["tau", "qdd"], level="fast")
    found = solver(q, np.zeros(3), tau=np.zeros(3), qdd=np.zeros(3))
    np.testing.assert_allclose(found.tau, [1.30470, 0.0, 0.0], rtol=0, atol=5e-6)
    np.testing.assert_allclose(found.qdd, 0.0, rtol=0, atol=1e-10)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("motor", JOINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_inverse_dynamics_of_a_four_bar_with_one_motor(kind, motor):
    """All q̈ are known and two torques are zero: accelerations that the loop determines are checked."""
    model, loop = four_bar(kind)
    passive = [name for name in JOINTS if name != motor]
    stated = [sd.JointAcceleration("all", name="qdd"), sd.JointTorque(passive, name="tau"), sd.ExternalWrench("all")]
    solver = sd.compile(sd.Problem(model, [*stated, *loop]), outputs=["tau", "qdd"], **FAST)
    q, qd = closed(0.3, 1.5)
    M, bias = in_mujoco(q, qd)
    _, J, drift = loop_rows(q, qd)
    qdd = np.array([0.7, 0.0, 0.0])
    qdd[1:] = np.linalg.solve(J[:, 1:], -drift - J[:, 0] * qdd[0])
    k, others = JOINTS.index(motor), [i for i in range(3) if JOINTS[i] != motor]
    w = np.linalg.solve(J[:, others].T, (M @ qdd + bias)[others])
    tau = np.where(np.arange(3) == k, M @ qdd + bias - J.T @ w, 0.0)
    y = {"qdd": qdd, "tau": np.zeros(2)}
    found = solver(q, qd, y=y)
    np.testing.assert_allclose(found.tau, tau, rtol=0, atol=1e-10 * np.abs(tau).max())
    np.testing.assert_allclose(found.qdd, qdd, rtol=0, atol=1e-10 * np.abs(qdd).max())
    with pytest.raises(Inconsistent, match="qdd"):
        solver(q, qd, y=y | {"qdd": qdd + [0.0, 0.01, 0.0]})


# ---- all kinds of constraints ----------------------------------------------------------------------------------------


def planar(n: int) -> sd.Model:
    """n links of 1 m in a plane."""
    com, inertia = np.tile([0.5, 0.1, 0.0], (n, 1)), np.tile(np.diag([0.01, 0.02, 0.03]), (n, 1, 1))
    a = [0.0, *[1.0] * (n - 1)]
    return sd.from_dh(alpha=[0.3, *[0.0] * (n - 1)], a=a, d=np.zeros(n), mass=1.0 + np.arange(n), com=com,
                      inertia=inertia)  # fmt: skip


def tip(tilt: float = 0.0) -> np.ndarray:
    c, s = np.cos(tilt), np.sin(tilt)
    return np.array([[1.0, 0.0, 0.0, 1.0], [0.0, c, -s, 0.0], [0.0, s, c, 0.0], [0.0, 0.0, 0.0, 1.0]])


END = ("body3", tip())
TABLE = {
    **{f"loop {kind} {axis}": [sd.LoopJoint(END, ("body0", tip()), kind, axis, name="c")]
       for kind in LOOPS for axis in (("z", "x") if LOOPS[kind] and kind != "spherical" else ("z",))},
    **{f"contact {kind}": [sd.Contact(END, kind, name="c")] for kind in CONTACTS},
    **{f"tilted contact {kind}": [sd.Contact(("body3", tip(0.6)), kind, "world", name="c")] for kind in CONTACTS},
    "coupling": [sd.JointCoupling("joint2", "joint0", (0.1, -2.0), name="c")],
    "the same coupling twice": [sd.JointCoupling("joint2", "joint0", (0.1, -2.0), name=x) for x in "cd"],
    "two pins": [sd.Contact(("body1", tip()), "line", name="c"), sd.Contact(END, "normal", "world", name="d")],
    "coupling and pin": [sd.JointCoupling("joint1", "joint0", name="d"), sd.Contact(END, "point", name="c")],
}  # fmt: skip
KNOWN = (["joint0"], ["joint1"], ["joint3"], ["joint1", "joint2"])
# Of a chain in space, whose six rows have rank 5, and of a tree with an entry of 6e-17 that rounding left in it.
IN_SPACE = {
    "two points of one body": (sd.chain(6, seed=2), [sd.Contact("body5", "point", name="c"),
                                                     sd.Contact(("body5", tip()), "point", name="d")]),
    "a hinge that a joint repeats": (sd.random_tree(5, seed=806, joints=("revolute",)),
                                     [sd.LoopJoint("body3", ("body2", tip(0.6)), "revolute", "x", name="c")]),
}  # fmt: skip


def exerted(found: sd.Solution, m: sd.Measurement) -> np.ndarray:
    """(N, components) the wrench of a constraint, in its own axes."""
    if isinstance(m, sd.JointCoupling):
        return found["w", m.name]
    return found.wrench(m.name, m.reference)[:, [ACCELERATION.index(x) for x in m.chosen]]


class Dense:
    """Motion, torques and wrenches of one state by least squares: H q̈ + h = τ + Jᵀ w, J q̈ + b = 0."""

    def __init__(self, model, constraints, q, qd):
        nv, moved = model.nv, sd.Problem(model, constraints)
        self.H, self.h = sd.crba(model, q), sd.rnea(model, q, qd, np.zeros(nv))

        def rates(qdd) -> np.ndarray:
            found = sd.predict(moved, q, qd, qdd)
            return np.concatenate([np.atleast_1d(found[m.name]) for m in constraints])

        self.b = rates(np.zeros(nv))
        self.J = np.array([rates(e) - self.b for e in np.eye(nv)]).T

    def motion(self, rng) -> np.ndarray:
        """An acceleration that the constraints allow."""
        _, sizes, Vt = np.linalg.svd(self.J)
        free = Vt[int(np.sum(sizes > 1e-9)) :].T
        qdd = np.linalg.lstsq(self.J, -self.b, rcond=1e-9)[0] + free @ rng.standard_normal(free.shape[1])
        assert np.abs(self.J @ qdd + self.b).max() < 1e-9
        return qdd

    def solve(self, known, qdd, tau) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(q̈, τ, bool of all these that are determined); known (nv,) bool: of q̈, τ of the others."""
        nv, m = len(self.h), len(self.b)
        given, zero = (
            np.eye(2 * nv + m)[np.concatenate([known, ~known, np.zeros(m, dtype=bool)])],
            np.zeros((m, nv + m)),
        )
        A = np.vstack([np.hstack([self.H, -np.eye(nv), -self.J.T]), np.hstack([self.J, zero]), given])
        x, _, rank, _ = np.linalg.lstsq(A, np.concatenate([-self.h, -self.b, qdd[known], tau[~known]]), rcond=1e-10)
        free = np.linalg.svd(A)[2][rank:]
        return x[:nv], x[nv : 2 * nv], np.abs(free[:, : 2 * nv]).max(axis=0, initial=0.0) < 1e-9


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", [*TABLE, *IN_SPACE])
def test_known_accelerations_with_every_kind_of_constraint(case):
    """Solved where the motion and the torques are determined; refused with remedies that work where they are not."""
    model, constraints = IN_SPACE.get(case) or (planar(4), TABLE[case])
    rng = np.random.default_rng(4)
    q, qd, _ = model.random_state(seed=4, batch=3)
    if case in IN_SPACE:  # velocities would part the frames
        qd *= 0.0
    dense = [Dense(model, constraints, *state) for state in zip(q, qd, strict=True)]
    qdd, tau = np.stack([x.motion(rng) for x in dense]), rng.standard_normal((3, model.nv))

    def check(known, found) -> None:
        mask = np.isin(model.joint_names, known)
        for k, state in enumerate(dense):
            a, torque, determined = state.solve(mask, qdd[k], tau[k])
            assert determined.all()
            np.testing.assert_allclose(found.qdd[k], a, rtol=0, atol=1e-9 * np.abs(a).max())
            np.testing.assert_allclose(found.tau[k], torque, rtol=0, atol=1e-9 * np.abs(torque).max())
            w = [exerted(found, m)[k] for m in constraints]
            left = state.H @ a + state.h - torque - state.J.T @ np.concatenate(w)
            np.testing.assert_allclose(left, 0.0, rtol=0, atol=1e-9 * max(1.0, np.abs(torque).max()))

    for known in KNOWN:
        problem, y = hybrid(model, constraints, known), values(model, known, qdd, tau)
        a, _, determined = dense[0].solve(np.isin(model.joint_names, known), qdd[0], tau[0])
        if determined.all():
            check(known, sd.compile(problem, outputs=["qdd", "tau", "w"], **FAST)(q, qd, y=y))
            continue
        with pytest.raises(StructurallySingular, match="least_norm") as error:
            sd.compile(problem, outputs=["qdd", "tau", "w"], **FAST)
        smallest = sd.least_norm(problem, q[0], qd[0], y={name: x[0] for name, x in y.items()})
        np.testing.assert_array_equal(np.concatenate([smallest.determined[x] for x in ("qdd", "tau")]), determined)
        np.testing.assert_allclose(smallest.qdd, a, rtol=0, atol=1e-8 * np.abs(a).max())
        swapped = [x for x in known if f"tau({x})" not in error.value.undetermined]
        assert len(swapped) < len(known) and all(x in str(error.value) for x in known if x not in swapped)
        solver = sd.compile(hybrid(model, constraints, swapped), outputs=["qdd", "tau", "w"], **FAST)
        check(swapped, solver(q, qd, y=values(model, swapped, qdd, tau)))


@pytest.mark.parametrize("known", KNOWN)
def test_a_stretched_arm_with_known_accelerations(known):
    """One more row repeats another there: the wrench is open, the motion and the torques are not."""
    model, held = planar(4), [sd.Contact(END, "point", name="c")]
    q, rng = np.array([[0.4, 0.0, 0.0, 0.0], [0.4, 0.2, -0.5, 0.3]]), np.random.default_rng(2)
    dense = [Dense(model, held, x, np.zeros(4)) for x in q]
    qdd, tau = np.stack([x.motion(rng) for x in dense]), rng.standard_normal((2, 4))
    solver = sd.compile(hybrid(model, held, known), outputs=["qdd", "tau", "w"], **FAST)
    found = solver(q, np.zeros((2, 4)), y=values(model, known, qdd, tau))
    assert "w(c).fx" in found.undetermined
    for k, state in enumerate(dense):
        a, torque, determined = state.solve(np.isin(model.joint_names, known), qdd[k], tau[k])
        assert determined.all()
        np.testing.assert_allclose(found.qdd[k], a, rtol=0, atol=1e-9 * np.abs(a).max())
        np.testing.assert_allclose(found.tau[k], torque, rtol=0, atol=1e-9 * np.abs(torque).max())


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_contacts_of_a_motion_that_is_known_whole(names):
    """Of a floating robot neither wrenches nor torques are determined, however many contacts repeat each other."""
    model = sd.load(str(Path(__file__).parents[2] / "problems" / "leg.urdf"), base="floating")
    contacts = [sd.Contact("sole", name=name) for name in names]
    with pytest.raises(StructurallySingular, match="inverse_dynamics.*contacts"):
        sd.compile(sd.inverse_dynamics(model) + contacts, level="fast")
    q, qd, qdd = model.random_state(seed=1)
    found = sd.compile(sd.inverse_dynamics(model, contacts), outputs=["tau", "w"], **FAST)(q, qd, qdd=qdd)
    load = sd.frame_jacobian(model, q, "sole").T @ sum(found.wrench(name) for name in names)
    expected = sd.rnea(model, q, qd, qdd) - load
    np.testing.assert_allclose(found.tau, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(found.tau[:6], 0.0, rtol=0, atol=1e-9 * np.abs(load).max())
