"""Hybrid dynamics, bases that are measured or held, and sensors far from what is unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Pinocchio, icub, icub_urdf
from robots import floating_tree

import sysdyn as sd
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.measurements.acceleration_sensors import Accelerometer, AngularAccelerometer, FrameAcceleration
from sysdyn.measurements.classical import hybrid_dynamics, inverse_dynamics
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.known_quantities import ExternalWrench, JointAcceleration, JointTorque, JointWrench
from sysdyn.measurements.wrench_sensors import ForceTorqueSensor
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.elimination import Elimination
from sysdyn.sparse.lu import eliminate

ROOT = "root_joint"
FOOT = "l_ankle_2"


def close(found, expected, tolerance) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max(initial=1.0))


# ---- hybrid dynamics -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(n=st.integers(1, 6), seed=st.integers(0, 1000), chosen=st.sets(st.integers(0, 5)), floating=st.booleans())
def test_any_partition_of_any_tree(n, seed, chosen, floating):
    """The rows of H q̈ + C = τ of the joints whose torque is known, solved densely for their q̈; then τ of the others."""
    model = floating_tree(n, seed) if floating else sd.random_tree(n, seed=seed)
    torque = [model.joint_names[i] for i in sorted(chosen) if i < n]
    t = [k for i in range(n) if model.joint_names[i] in torque for k in range(*model.v_slice(i).indices(model.nv))]
    rest = [k for k in range(model.nv) if k not in t]
    q, qd, qdd = model.random_state(seed=seed)
    rng = np.random.default_rng(seed)
    tau, fx = rng.uniform(-5.0, 5.0, model.nv), rng.uniform(-5.0, 5.0, (model.nb, 6))
    H, C = sd.crba(model, q), sd.rnea(model, q, qd, np.zeros(model.nv), fx)
    expected = qdd.copy()
    expected[t] = np.linalg.solve(H[np.ix_(t, t)], (tau - C)[t] - H[np.ix_(t, rest)] @ qdd[rest])
    torques = np.where(np.isin(np.arange(model.nv), t), tau, H @ expected + C)
    found = eliminated(hybrid_dynamics(model, torque), "aba", q, qd, tau=tau, qdd=qdd, fx=fx.ravel())
    accuracy = 1e-12 * (np.linalg.cond(H[np.ix_(t, t)]) if t else 1.0) + 1e-10
    close(found["qdd"], expected, accuracy)
    close(found["tau"], torques, accuracy)


def eliminated(problem: sd.Problem, order: str, q, qd, **known) -> dict[str, np.ndarray]:
    """q̈ and τ by the order applied to the numbers of one state, without pivoting."""
    system = sd.assemble(problem)
    known = {name: x for name, x in known.items() if name in problem.known_quantities}
    entries, b = system.values({"q": q, "qd": qd, **known})
    rows: list[dict[int, float]] = [{} for _ in range(system.shape[0])]
    for r, c, x in zip(*(k.tolist() for k in system.coordinates), entries[0].tolist(), strict=True):
        if x != 0.0:
            rows[r][c] = x
    d = np.array(eliminate(rows, b[0].tolist(), *RECURSIVE[order](system)).solution)
    return {name: d[system.layout.quantity_columns(name)] for name in ("qdd", "tau")}


def operations(problem: sd.Problem, order: str, outputs) -> int:
    """What the order costs from q, q̇ on."""
    system = sd.assemble(problem)
    return Elimination(system, *RECURSIVE[order](system)).choice(order, outputs).end_to_end.total


@pytest.mark.slow
def test_hybrid_dynamics_of_icub():
    """Against Pinocchio's inverse dynamics; the system in one sweep, between RNEA and ABA in cost; a recursion."""
    model = icub("floating")
    oracle = Pinocchio(model, icub_urdf())
    torque = [name for k, name in enumerate(model.joint_names) if k % 2 == 0]
    assert ROOT in torque
    problem = hybrid_dynamics(model, torque)
    solver = sd.compile(problem, outputs=["tau", "qdd"], level="fast", formulation="paper")
    recursion = sd.compile(problem, outputs=["tau", "qdd"], level="fast")
    q, qd, qdd = model.random_state(seed=4)
    fx = np.random.default_rng(4).uniform(-10.0, 10.0, (model.nb, 6))
    tau = oracle.rnea(q, qd, qdd, fx)
    for solution in (solver(q, qd, tau=tau, qdd=qdd, fx=fx), recursion(q, qd, tau=tau, qdd=qdd, fx=fx)):
        close(solution.qdd, qdd, 1e-9)
        close(solution.tau, tau, 1e-11)
    assert recursion.flops.end_to_end.total < 0.5 * solver.flops.end_to_end.total
    least = operations(inverse_dynamics(model), "rnea", ["tau"])
    most = operations(sd.forward_dynamics(model), "aba", ["qdd"])
    assert solver.ordering in ("aba", "crba")
    assert least < solver.flops.end_to_end.total < most
    assert solver.stability.good


def test_one_freedom_of_a_joint_by_its_torque():
    """A free base that is pushed along z and moved otherwise."""
    model = floating_tree(4, 2)
    root = model.joint_names[0]
    problem = inverse_dynamics(model) - JointAcceleration(root, components=[5]) + JointTorque(root, components=[5])
    q, qd, qdd = model.random_state(seed=1)
    tau = sd.rnea(model, q, qd, qdd)
    solution = sd.compile(problem, "aba", level="fast")(q, qd, tau=tau, qdd=qdd)
    close(solution.qdd, qdd, 1e-11)
    close(solution.tau, tau, 1e-11)


# ---- floating bases ------------------------------------------------------------------------------------------------


def imu(frame: str) -> list:
    return [Accelerometer(frame), AngularAccelerometer(frame)]


def moving(foot: bool):
    """(q, q̇, q̈, fx, τ) of iCub in flight; foot: the wrench on the left foot is what leaves none on the base."""
    model = icub("floating")
    oracle = Pinocchio(model, icub_urdf())
    q, qd, qdd = model.random_state(seed=3)
    fx = np.random.default_rng(3).uniform(-10.0, 10.0, (model.nb, 6))
    if foot:
        X, k = sd.model.forward_kinematics(model, q), model.body_index(FOOT)
        fx[k] += np.linalg.solve(X[k].T, X[0].T @ oracle.rnea(q, qd, qdd, fx)[:6])
    return model, q, qd, qdd, fx, oracle.rnea(q, qd, qdd, fx)


BASES = {
    "imu on the base": (False, lambda p: p - JointAcceleration(ROOT) + imu("root_link")),
    "imu on the head": (False, lambda p: p - JointAcceleration(ROOT) + imu("head")),
    "frame in the world": (
        False, lambda p: p - JointAcceleration(ROOT) + FrameAcceleration("r_sole", reference="world")
    ),
    "wrench on a foot": (True, lambda p: p - ExternalWrench(FOOT) + JointTorque(ROOT)),
    "both": (
        True, lambda p: p - JointAcceleration(ROOT) + imu("head") - ExternalWrench(FOOT) + JointTorque(ROOT)
    ),
    "sensor at the knee": (False, lambda p: p - ExternalWrench(FOOT) + ForceTorqueSensor("l_knee")),
    "sensor in world axes": (
        False, lambda p: p - ExternalWrench(FOOT) + ForceTorqueSensor("l_hip_pitch", reference="world")
    ),
    "wrench at the hip": (False, lambda p: p - ExternalWrench(FOOT) + JointWrench("l_hip_pitch")),
}  # fmt: skip


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", BASES)
def test_triangular_whatever_the_distance(case):
    """Pivots are ±1 and the cost is that of inverse dynamics, however far what is measured is from what is unknown."""
    foot, change = BASES[case]
    model, q, qd, qdd, fx, tau = moving(foot)
    problem = change(inverse_dynamics(model))
    solver = sd.compile(problem, "umfpack", level="fast", backend="python")
    solution = solver(q, qd, y=sd.predict(problem, q, qd, qdd, fx))
    close(solution.qdd, qdd, 1e-11)
    close(solution.tau, tau, 1e-11)
    close(solution.fx, fx, 1e-11)
    assert solver.triangular and solver.stability.least_pivot == 1.0
    assert solution.backward_error() <= 1e-14
    plain = operations(inverse_dynamics(model), "rnea", QUANTITIES)
    attitude = 200 if "world" in case else 0
    assert solver.flops.end_to_end.total <= plain + 40 + attitude
    # as it stands the system has the paper's unknowns, and no others
    assert sd.assemble(problem).shape == sd.assemble(inverse_dynamics(model)).shape


@pytest.mark.slow
def test_standing_on_one_foot():
    """Inverse dynamics whose base follows from a foot at rest: q̈ of the base, wrench on the foot, all torques."""
    model, q, qd, qdd, fx, _ = moving(False)
    problem = inverse_dynamics(model) - JointAcceleration(ROOT) + JointTorque(ROOT) + Contact("l_sole", name="foot")
    solver = sd.compile(problem, "umfpack", level="fast", backend="python")
    solution = solver(q, qd, qdd=qdd, tau=np.zeros(model.nv), fx=fx)
    loads = fx.copy()
    loads[model.body_index(FOOT)] += model.frame("l_sole").X.T @ solution.wrench("foot")
    tau = Pinocchio(model, icub_urdf()).rnea(q, qd, solution.qdd, loads)
    close(solution.tau, tau, 1e-11)
    close(tau[:6], np.zeros(6), 1e-9)
    close(solution.acceleration("l_sole", classical=True), np.zeros(6), 1e-11)
    assert solver.triangular
    swept = sd.compile(problem, "aba", level="fast", backend="python")
    close(swept(q, qd, qdd=qdd, tau=np.zeros(model.nv), fx=fx).tau, tau, 1e-9)
    assert solver.flops.end_to_end.total < swept.flops.end_to_end.total


@pytest.mark.slow
@pytest.mark.parametrize("moves", [False, True], ids=["free arms", "a base that is pulled"])
def test_contacts_with_some_joints_driven(moves):
    """Hybrid dynamics in contact: torques of some joints known, accelerations of others."""
    model = icub("floating")
    arms = [name for name in model.joint_names if "shoulder" in name or "elbow" in name]
    torque = arms if moves else [ROOT, *arms]
    problem = hybrid_dynamics(model, torque)
    problem = problem if moves else problem + Contact("l_sole", name="foot")
    solver = sd.compile(problem, level="fast", backend="python")
    q, qd, qdd = model.random_state(seed=2)
    solution = solver(q, qd, tau=np.zeros(model.nv), qdd=qdd)
    fx = np.zeros((model.nb, 6))
    if not moves:
        fx[model.body_index(FOOT)] = model.frame("l_sole").X.T @ solution.wrench("foot")
        close(solution.acceleration("l_sole", classical=True), np.zeros(6), 1e-10)
    close(Pinocchio(model, icub_urdf()).rnea(q, qd, solution.qdd, fx), solution.tau, 1e-11)
    assert solver.ordering in ("aba", "crba")


@pytest.mark.slow
def test_derivatives_with_propagated_unknowns():
    """Those of the wrench on a foot by what a sensor at the knee shows, against the linear solution's differences."""
    model = icub("fixed")
    problem = inverse_dynamics(model) - ExternalWrench(FOOT) + ForceTorqueSensor("l_knee", name="knee")
    solver = sd.compile(problem, outputs=["fx"], level="fast")
    q, qd, qdd = model.random_state(seed=6)
    y = np.zeros(6)
    found = solver.derivatives(wrt=("knee",))(q, qd, qdd=qdd, y={"knee": y})["fx", "knee"]
    base = solver(q, qd, qdd=qdd, y={"knee": y}).fx
    for k, e in enumerate(np.eye(6)):
        close(found[..., k], solver(q, qd, qdd=qdd, y={"knee": e}).fx - base, 1e-10)
    force = found[model.body_index(FOOT), 3:, 3:]  # −R: what comes through the knee goes to the ground
    close(force @ force.T, np.eye(3), 1e-12)
