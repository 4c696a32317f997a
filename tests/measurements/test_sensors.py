"""Sensors and contacts: their values against Pinocchio and finite differences, and problems solved back from them."""

from __future__ import annotations

import functools
import json

import numpy as np
import pinocchio as pin
import pytest
from oracles import Pinocchio, icub, icub_urdf
from systems import kinds

import sysdyn as sd
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.acceleration_sensors import Accelerometer, AngularAccelerometer, FrameAcceleration
from sysdyn.measurements.classical import forward_dynamics, inverse_dynamics
from sysdyn.measurements.known_quantities import (
    BodyAcceleration,
    ExternalWrench,
    JointAcceleration,
    JointTorque,
    JointWrench,
    RawMeasurement,
)
from sysdyn.measurements.linear import Linear, MotorTorque
from sysdyn.measurements.measurement import Constraint
from sysdyn.measurements.momentum_sensors import CentreOfMassAcceleration, MomentumRate
from sysdyn.measurements.predict import predict
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.wrench_sensors import ForceDirection, ForceTorqueSensor, LoadCells, NetWrench, PointContact
from sysdyn.model import Free, Model, chain, forward_kinematics, random_tree
from sysdyn.model.se3 import X_motion, rotx, roty, translation
from sysdyn.reference import newton_euler

R = rotx(0.7) @ roty(-0.4)
POSE = np.block([[R, np.array([[0.1], [-0.2], [0.3]])], [np.zeros((1, 3)), np.ones((1, 1))]])
FRAMES = ("l_sole", "l_hand", ("head", POSE))  # of iCub: a named frame, a body, a pose
PIN = {"local": pin.LOCAL, "world": pin.LOCAL_WORLD_ALIGNED, "space": pin.WORLD}


@functools.cache
def flying() -> Model:
    """A free body that carries a small tree of revolute joints."""
    model = random_tree(4, seed=9, joints=("revolute",))
    limits = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))
    model = model.replace(joints=(Free(), *model.joints[1:]), parent=(-1, 0, 0, 1), **limits)
    tool = sd.Frame("tool", 2, X_motion(R, np.array([0.2, 0.1, -0.3])))
    wall = sd.Frame("wall", -1)
    return model.replace(frames={**model.frames, "tool": tool, "wall": wall})


def state(model: Model, seed: int, batch: int | None = None):
    """(q, q̇, q̈, fx) at random."""
    q, qd, qdd = model.random_state(seed=seed, batch=batch)
    fx = np.random.default_rng(seed).uniform(-10.0, 10.0, (*qd.shape[:-1], model.nb, 6))
    return q, qd, qdd, fx


def values(model: Model, sensors: list, q, qd, qdd, fx=None) -> dict[str, np.ndarray]:
    return predict(Problem(model, sensors), q, qd, qdd, fx)


def close(found, expected, tolerance=1e-11) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


# ---- against Pinocchio ---------------------------------------------------------------------------------------------


class Robot:
    """iCub at a random state, in Pinocchio's words; wrenches and accelerations are turned angular first."""

    def __init__(self, seed: int):
        self.model = icub("floating")
        self.oracle = Pinocchio(self.model, icub_urdf())
        self.pin, self.data = self.oracle.pin, self.oracle.data
        self.q, self.qd, self.qdd, self.fx = state(self.model, seed)
        self.state = (self.oracle.position(self.q), self.oracle.theirs(self.qd), self.oracle.theirs(self.qdd))
        pin.rnea(self.pin, self.data, *self.state, self.oracle.wrenches(self.fx))
        self.f = [pin.Force(x.vector) for x in self.data.f]
        pin.forwardKinematics(self.pin, self.data, *self.state)
        pin.updateFramePlacements(self.pin, self.data)

    def frame(self, frame) -> int:
        """Number of the frame in Pinocchio; a pose is added there."""
        if isinstance(frame, str):
            return self.pin.getFrameId(frame, pin.BODY)
        body, T = frame
        carrier = self.pin.frames[self.pin.getFrameId(body, pin.BODY)]
        added = pin.Frame("added", carrier.parentJoint, carrier.placement * pin.SE3(T[:3, :3], T[:3, 3]), pin.OP_FRAME)
        number = self.pin.addFrame(added)
        self.data = self.pin.createData()
        pin.forwardKinematics(self.pin, self.data, *self.state)
        pin.updateFramePlacements(self.pin, self.data)
        return number

    def values(self, *sensors):
        return values(self.model, list(sensors), self.q, self.qd, self.qdd, self.fx)


def angular_first(x) -> np.ndarray:
    return np.concatenate([x.angular, x.linear])


@pytest.mark.parametrize("frame", FRAMES, ids=("named", "body", "pose"))
def test_accelerations_are_those_of_pinocchio(frame):
    robot = Robot(3)
    number = robot.frame(frame)
    E = robot.data.oMf[number].rotation.T
    sensors, expected = [], {}
    for reference, other in PIN.items():
        gravity = robot.model.gravity if reference != "local" else E @ robot.model.gravity
        for classical in (False, True):
            if classical and reference == "space":
                continue
            read = pin.getFrameClassicalAcceleration if classical else pin.getFrameAcceleration
            a = angular_first(read(robot.pin, robot.data, number, other))
            for proper in (False, True):
                name = f"{reference} {classical} {proper}"
                sensors.append(FrameAcceleration(frame, "all", classical, proper, reference, name=name))
                expected[name] = a - np.concatenate([np.zeros(3), gravity * proper])
        if reference != "space":
            sensors.append(Accelerometer(frame, reference=reference, name=f"a {reference}"))
            expected[f"a {reference}"] = expected[f"{reference} True True"][3:]
            sensors.append(AngularAccelerometer(frame, ["alpha_z", "alpha_x"], reference, name=f"w {reference}"))
            expected[f"w {reference}"] = expected[f"{reference} True True"][[2, 0]]
    found = robot.values(*sensors)
    assert len(found) == len(sensors) == 14
    for name, x in expected.items():
        close(found[name], x)


@pytest.mark.parametrize(
    ("joint", "frame"),
    [("l_knee", None), ("l_knee", "l_upper_leg"), ("l_knee", ("l_lower_leg", POSE)), ("l_ankle_roll", "l_sole")],
    ids=("default", "parent", "pose", "named"),
)
def test_force_torque_sensors_are_those_of_pinocchio(joint, frame):
    """At frames of the child and of the parent of the joint, seen from both sides."""
    robot = Robot(4)
    j = robot.pin.getJointId(joint)
    world = robot.data.oMi[j].act(robot.f[j])
    child = robot.model.body_names[robot.model.joint_index(joint)]
    number = robot.frame(frame or child)
    placement = robot.data.oMf[number]
    local = placement.actInv(world)
    turned = pin.SE3(placement.rotation, np.zeros(3)).act(local)
    found = robot.values(
        ForceTorqueSensor(joint, frame, name="local"), ForceTorqueSensor(joint, frame, "parent", name="parent"),
        ForceTorqueSensor(joint, frame, reference="world", name="world"),
        ForceTorqueSensor(child, frame, reference="space", components=["fz", "nx"], name="space"),
    )  # fmt: skip
    close(found["local"], angular_first(local))
    close(found["parent"], -angular_first(local))
    close(found["world"], angular_first(turned))
    close(found["space"], angular_first(world)[[5, 0]])


@pytest.mark.parametrize("frame", FRAMES, ids=("named", "body", "pose"))
def test_wrenches_on_bodies_are_those_of_pinocchio(frame):
    """Load cells, point contacts, directions, and the net wrench I a + v × I v."""
    robot = Robot(5)
    number = robot.frame(frame)
    j, placement = robot.pin.frames[number].parentJoint, robot.data.oMf[number]
    body = robot.model.body_names.index(
        frame[0] if isinstance(frame, tuple) else {"l_sole": "l_ankle_2"}.get(frame, frame)
    )
    fx = robot.fx[body]
    world = robot.data.oMi[j].act(pin.Force(np.concatenate([fx[3:], fx[:3]])))
    local = placement.actInv(world)
    I, v, a = robot.pin.inertias[j], robot.data.v[j], robot.data.a[j]
    a_proper = a - pin.Motion(robot.data.oMi[j].rotation.T @ robot.model.gravity, np.zeros(3))
    net = {
        proper: placement.actInv(robot.data.oMi[j].act(I * x + v.cross(I * v)))
        for proper, x in ((True, a_proper), (False, a))
    }
    force = placement.rotation @ local.linear
    found = robot.values(
        LoadCells(frame, name="cells"), LoadCells(frame, ["fz", "nx"], "world", name="world"),
        LoadCells(frame, reference="space", name="space"), PointContact(frame, name="moment"),
        PointContact(frame, reference="world", name="moment in world"),
        ForceDirection(frame, 3.0 * local.linear, name="along"),
        ForceDirection(frame, -force, "world", name="along too"),
        ForceDirection(frame, [0.0, 0.0, 2.0], name="across"),
        NetWrench(frame, name="net"), NetWrench(frame, gravity=False, name="with weight"),
        NetWrench(frame, reference="space", gravity=False, name="net in world"),
    )  # fmt: skip
    close(found["cells"], angular_first(local))
    close(found["world"], [force[2], (placement.rotation @ local.angular)[0]])
    close(found["space"], angular_first(world))
    close(found["moment"], local.angular)
    close(found["moment in world"], placement.rotation @ local.angular)
    close(found["along"], np.zeros(2))
    close(found["along too"], np.zeros(2))
    close(np.linalg.norm(found["across"]), np.linalg.norm(local.linear[:2]))
    close(found["net"], angular_first(net[True]))
    close(found["with weight"], angular_first(net[False]))
    close(found["net in world"], angular_first(placement.act(net[False])))


@pytest.mark.parametrize("seed", [1, 2])
def test_centre_of_mass_and_momentum_are_those_of_pinocchio(seed):
    robot = Robot(seed)
    pin.computeCentroidalMomentumTimeVariation(robot.pin, robot.data, *robot.state)
    rate = angular_first(robot.data.dhg)
    pin.centerOfMass(robot.pin, robot.data, *robot.state)
    com = robot.data.acom[0].copy()
    g, base = robot.model.gravity, robot.data.oMi[1].rotation
    found = robot.values(
        CentreOfMassAcceleration(name="com"), CentreOfMassAcceleration(gravity=True, reference="local", name="proper"),
        MomentumRate(name="rate"), MomentumRate(reference="local", components=["ny", "fx"], name="local"),
        MomentumRate(gravity=True, name="no weight"),
    )  # fmt: skip
    close(found["com"], com)
    close(found["proper"], base.T @ (com - g))
    close(found["rate"], rate)
    close(found["local"], [(base.T @ rate[:3])[1], (base.T @ rate[3:])[0]])
    close(found["no weight"], rate - robot.model.mass * np.concatenate([np.zeros(3), g]))


# ---- against finite differences, on every type of joint ------------------------------------------------------------

STEP = 1e-4


def motion(model: Model, q, qd, qdd):
    """((X0, v) of all bodies) at −STEP, 0 and STEP of a motion with these velocities and accelerations."""
    result = []
    for t in (-STEP, 0.0, STEP):
        qt = model.integrate(q, qd * t + qdd * (t * t / 2))
        v = newton_euler(model, qt, qd + qdd * t, qdd)[3]
        result.append((forward_kinematics(model, qt), v))
    return result


def point(X: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Where the point c of a body is in the world."""
    return translation(X) + X[:3, :3].T @ c


def centre(model: Model, bodies: list[int], X0) -> np.ndarray:
    m = [model.inertias[i][5, 5] for i in bodies]
    p = [point(X0[i], np.array([I[2, 4], I[0, 5], I[1, 3]]) / I[5, 5]) for i in bodies for I in [model.inertias[i]]]
    return np.average(p, axis=0, weights=m)


def momentum(model: Model, bodies: list[int], X0, v) -> np.ndarray:
    """Σ X^T I v of the bodies, about their centre of mass, in world axes."""
    shift = X_motion(np.eye(3), centre(model, bodies, X0))
    total = sum(X0[i].T @ model.inertias[i] @ v[i] for i in bodies)
    return np.linalg.inv(shift).T @ total


@pytest.mark.parametrize("seed", range(6))
def test_values_are_derivatives_of_the_motion(seed):
    model = random_tree(6, seed=seed)
    q, qd, qdd, _ = state(model, seed)
    body = model.nb - 1
    name, root = model.body_names[body], model.body_names[seed % 3]
    carried = [i for i in range(model.nb) if i == seed % 3 or ancestors(model, i) & {seed % 3}]
    (before, now, after) = motion(model, q, qd, qdd)
    p = [point(X0[body], POSE[:3, 3]) for X0, _ in (before, now, after)]
    com = [[centre(model, bodies, X0) for X0, _ in (before, now, after)] for bodies in (range(model.nb), carried)]
    h = [[momentum(model, bodies, *x) for x in (before, after)] for bodies in (range(model.nb), carried)]
    omega = [X0[body][:3, :3].T @ v[body][:3] for X0, v in (before, after)]
    found = values(
        model,
        [
            FrameAcceleration((name, POSE), reference="world", name="frame"),
            Accelerometer((name, POSE), name="proper"),
            CentreOfMassAcceleration(name="com"), CentreOfMassAcceleration(root, name="com of a subtree"),
            MomentumRate(name="rate"), MomentumRate(root, name="rate of a subtree"),
        ],
        q, qd, qdd,
    )  # fmt: skip
    second = [(x[0] - 2.0 * x[1] + x[2]) / STEP**2 for x in (p, *com)]
    close(found["frame"][3:], second[0], 1e-6)
    close(found["frame"][:3], (omega[1] - omega[0]) / (2.0 * STEP), 1e-6)
    axes = POSE[:3, :3].T @ now[0][body][:3, :3]
    close(found["proper"], axes @ (second[0] - model.gravity), 1e-6)
    close(found["com"], second[1], 1e-6)
    close(found["com of a subtree"], second[2], 1e-6)
    close(found["rate"], (h[0][1] - h[0][0]) / (2.0 * STEP), 1e-6)
    close(found["rate of a subtree"], (h[1][1] - h[1][0]) / (2.0 * STEP), 1e-6)


def ancestors(model: Model, i: int) -> set[int]:
    p = model.parent[i]
    return set() if p < 0 else {p} | ancestors(model, p)


def test_values_at_rest_are_what_everybody_knows():
    """An accelerometer shows g upwards, the momentum does not change, and the weight rests on the base."""
    model = chain(3, seed=1)
    q = model.random_state(seed=2)[0]
    still = np.zeros(3)
    found = values(
        model,
        [
            Accelerometer("body2", reference="world", name="up"), MomentumRate(name="rate"),
            CentreOfMassAcceleration(name="com"), FrameAcceleration("body2", name="frame"),
            ForceTorqueSensor("joint0", ("body0", np.eye(4)), reference="world", components=["fz"], name="weight"),
        ],
        q, still, still,
    )  # fmt: skip
    close(found["up"], [0.0, 0.0, 9.81], 1e-14)
    for name in ("rate", "com", "frame"):
        close(found[name], np.zeros(found[name].shape), 1e-13)
    close(found["weight"], [9.81 * model.mass], 1e-13)
    turning = np.array([2.0, 0.0, 0.0])  # about a vertical axis, at r: −ω² r in the plane
    found = values(model, [FrameAcceleration("body1", reference="world")], np.zeros(3), turning, still)
    r = point(forward_kinematics(model, np.zeros(3))[1], np.zeros(3))
    (a,) = found.values()
    close(a, np.concatenate([np.zeros(3), -4.0 * r[:2], [0.0]]), 1e-13)


# ---- problems solved back ------------------------------------------------------------------------------------------

TOOL = ("body2", POSE)
SOLE = ExternalWrench("body2")
BASE = JointAcceleration("joint0")


def coupled(q, qd):
    """A coupling of two joints that depends on the state."""
    return [[2.0 + np.cos(q[8]), 0.0], [0.5 * qd[7], 1]]


# What a raw quantity is replaced by: (kind of problem, what is removed, the measurements in its place)
REPLACED = {
    "f/t sensor": ("inverse", SOLE, [ForceTorqueSensor("joint2")]),
    "f/t sensor at a pose, from the parent's side": ("inverse", SOLE, [ForceTorqueSensor("joint2", TOOL, "parent")]),
    "f/t sensor on the parent": ("inverse", SOLE, [ForceTorqueSensor("joint2", ("body0", POSE))]),
    "f/t sensor in world axes": ("inverse", SOLE, [ForceTorqueSensor("joint2", "tool", reference="world")]),
    "load cells": ("inverse", SOLE, [LoadCells("tool")]),
    "load cells in the world": ("forward", SOLE, [LoadCells(TOOL, reference="space")]),
    "point contact": (
        "inverse", SOLE,
        [PointContact(TOOL), ForceDirection(TOOL, [0.3, -1.0, 2.0]), LoadCells(TOOL, "fz")],
    ),
    "force at a point": (
        "inverse", SOLE,
        [PointContact(TOOL, reference="world"), LoadCells(TOOL, ["fz", "fx", "fy"], reference="world")],
    ),
    "accelerometer": ("inverse", BASE, [Accelerometer("body0"), AngularAccelerometer("body0", reference="world")]),
    "one axis": ("inverse", JointAcceleration("joint3"), [AngularAccelerometer(("body3", POSE), "alpha_x")]),
    "frame": ("inverse", BASE, [FrameAcceleration(("body0", POSE))]),
    "frame in world axes": ("inverse", BASE, [FrameAcceleration(("body0", POSE), reference="world")]),
    "spatial acceleration": ("inverse", BASE, [FrameAcceleration("body0", classical=False, reference="space")]),
    "body in contact": ("forward", SOLE, [FrameAcceleration(TOOL, gravity=True)]),
    "net wrench": ("inverse", BASE, [NetWrench("body0")]),
    "net wrench with weight": ("inverse", BASE, [NetWrench(("body0", POSE), gravity=False, reference="world")]),
    "centre of mass": ("inverse", BASE, [CentreOfMassAcceleration(), AngularAccelerometer("body0")]),
    "momentum": ("inverse", BASE, [MomentumRate()]),
    "momentum in axes of the base": ("inverse", BASE, [MomentumRate(gravity=True, reference="local")]),
    "motors": (
        "forward", JointTorque(["joint1", "joint3"]),
        [MotorTorque(["joint1", "joint3"], [[0.5, 0.5], [1.0, -1.0]])],
    ),
    "motors with friction": (
        "forward", JointTorque(["joint1", "joint3"]),
        [MotorTorque(["joint3", "joint1"], bias=lambda q, qd: [0.1 * qd[8], np.sin(q[7]) + 2])],
    ),
    "constants": (
        "forward", JointTorque("joint3"),
        [Linear({("tau", "joint3"): [[2.0]], ("f", "joint2"): [[0.1, 0, 0, 0.2, 0, 0]]}, bias=[3.0])],
    ),
    "functions": (
        "forward", JointTorque(["joint1", "joint3"]),
        [
            Linear(
                {
                    ("tau", "joint1"): lambda q, qd: [[row[0]] for row in coupled(q, qd)],
                    ("tau", "joint3"): lambda q, qd: [[row[1]] for row in coupled(q, qd)],
                },
                bias=lambda q, qd: [q[8] * qd[8], 1.0], components=["first", "second"],
            )
        ],
    ),
}  # fmt: skip


def replaced(case: str) -> Problem:
    kind, removed, sensors = REPLACED[case]
    return {"inverse": inverse_dynamics, "forward": forward_dynamics}[kind](flying()) - removed + sensors


@functools.cache
def moving(batch: int = 12):
    """States of `flying` whose external wrench on body2 is a force along (0.3, −1, 2) at TOOL, by all quantities."""
    model = flying()
    q, qd, qdd, fx = state(model, 6, batch)
    force = POSE[:3, :3] @ np.array([0.3, -1.0, 2.0]) * 4.0
    fx[:, 2] = np.concatenate([np.cross(POSE[:3, 3], force), force])
    tau, a, f, _ = newton_euler(model, q, qd, qdd, fx)
    return q, qd, {"tau": tau, "qdd": qdd, "fx": fx, "a": a, "f": f}


def solved(problem: Problem, optional: bool = True):
    q, qd, expected = moving()
    y = predict(problem, q, qd, expected["qdd"], expected["fx"])
    if not optional:
        y = {m.name: y[m.name] for m in problem.measurements if not isinstance(m, (PointContact, ForceDirection))}
    return sd.compile(problem, level="fast", backend="python")(q, qd, y=y)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", REPLACED)
def test_a_sensor_in_place_of_a_raw_quantity_gives_the_same_answer(case):
    problem = replaced(case)
    solution = solved(problem)
    for quantity, expected in moving()[2].items():
        close(solution[quantity], expected, 1e-9)
    assert solution.backward_error().max() <= 1e-12


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("removed", "sensors"),
    [
        (ExternalWrench("l_ankle_2"), [ForceTorqueSensor("l_ankle_roll", "l_sole", reference="world")]),
        (JointAcceleration(icub("floating").joint_names[0]), [MomentumRate()]),
        (
            JointAcceleration(icub("floating").joint_names[0]),
            [CentreOfMassAcceleration(), AngularAccelerometer("root_link", reference="world")],
        ),
    ],
    ids=["f/t sensor", "momentum", "centre of mass"],
)
def test_world_axes_on_icub(removed, sensors):
    """Values are turned into the axes where coefficients are constant, so that no pivot depends on the attitude."""
    model = icub("floating")
    problem = inverse_dynamics(model) - removed + sensors
    q, qd, qdd, fx = state(model, 8, 5)
    solver = sd.compile(problem, "markowitz", level="fast", backend="python")
    solution = solver(q, qd, y=predict(problem, q, qd, qdd, fx))
    close(solution.qdd, qdd, 1e-9)
    close(solution.fx, fx, 1e-9)
    assert solver.stability.backward_error <= 1e-12


def test_every_class_is_solved_back():
    used = {type(m).__name__ for _, _, sensors in REPLACED.values() for m in sensors}
    others = {*kinds(Constraint), *kinds(RawMeasurement), "ModelNoise"}
    missing = {name for name, cls in kinds().items() if not cls.of_state and name not in others} - used
    assert not missing, f"add to REPLACED, in this file, a case with each of {', '.join(sorted(missing))}"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["point contact", "centre of mass", "f/t sensor on the parent"])
def test_order_does_not_matter(case):
    problem = replaced(case)
    first = solved(problem)
    second = solved(Problem(problem.model, problem.measurements[::-1]))
    for quantity in moving()[2]:
        close(second[quantity], first[quantity], 1e-9)


def test_values_that_are_zero_may_be_left_out():
    close(solved(replaced("point contact"), optional=False).fx, moving()[2]["fx"], 1e-9)
    problem = replaced("load cells")
    with pytest.raises(InvalidInput, match=r"no value was given for 'LoadCells\(tool\)'"):
        q, qd, expected = moving()
        sd.compile(problem, "markowitz", level="fast", backend="python")(q, qd, expected["qdd"], fx=expected["fx"])


@pytest.mark.slow
def test_a_foot_at_rest_on_the_ground():
    """Forward dynamics in contact: the acceleration of the foot is zero, its wrench unknown. Against the KKT system."""
    model = flying()
    problem = forward_dynamics(model) - SOLE + FrameAcceleration("tool")
    q, qd, known = moving()
    q, qd, tau = q[0], qd[0], known["tau"][0]
    solution = sd.compile(problem, level="fast", backend="python")(q, qd, tau)
    J = sd.frame_jacobian(model, q, "tool")
    a = values(model, [FrameAcceleration("tool", name="a")], q, qd, np.zeros(model.nv))["a"]
    kkt = np.block([[sd.crba(model, q), -J.T], [J, np.zeros((6, 6))]])
    expected = np.linalg.solve(kkt, np.concatenate([tau - sd.rnea(model, q, qd, np.zeros(model.nv)), -a]))
    close(solution.qdd, expected[: model.nv], 1e-9)
    close(solution.fx[2], model.frames["tool"].X.T @ expected[model.nv :], 1e-9)
    close(solution.acceleration("tool", classical=True), np.zeros(6), 1e-9)


def test_diagnosis_names_sensors():
    model = flying()
    diagnosis = sd.diagnose(inverse_dynamics(model) + LoadCells("tool", "fz"))
    assert not diagnosis.well_posed
    assert any(name.startswith("y:LoadCells(tool.fz)") for name in diagnosis.redundant)
    flat = inverse_dynamics(model) - SOLE + [LoadCells("tool", ["nx", "ny", "fz"]), PointContact("tool", ["nx", "ny"])]
    undetermined = sd.diagnose(flat + ForceDirection("tool", [0.0, 0.0, 1.0], components="across_1")).undetermined
    assert undetermined and all(name.startswith(("fx(body2)", "f(", "tau(")) for name in undetermined)


# ---- prediction ----------------------------------------------------------------------------------------------------


def test_predictions_of_raw_measurements_and_batches():
    model = flying()
    raw = [
        JointTorque("all"),
        JointAcceleration("joint3"),
        SOLE,
        BodyAcceleration("body1", ["a_z"]),
        JointWrench("all"),
    ]
    problem = Problem(model, [raw[0], Accelerometer("tool"), *raw[1:]])
    q, qd, expected = moving()
    found = predict(
        problem,
        q.reshape(3, 4, -1),
        qd.reshape(3, 4, -1),
        expected["qdd"].reshape(3, 4, -1),
        expected["fx"].reshape(3, 4, -1, 6),
    )
    assert list(found) == [m.name for m in problem.measurements]
    close(found["JointTorque"].reshape(12, -1), expected["tau"], 1e-13)
    close(found["JointAcceleration(joint3)"].reshape(12, -1), expected["qdd"][:, -1:], 1e-13)
    close(found["ExternalWrench(body2)"].reshape(12, -1), expected["fx"][:, 2], 1e-13)
    close(found["BodyAcceleration(body1.a_z)"].reshape(12, -1), expected["a"][:, 1, 5:], 1e-13)
    close(found["JointWrench"].reshape(12, -1), expected["f"].reshape(12, -1), 1e-13)
    one = predict(problem, q[5], qd[5], expected["qdd"][5], expected["fx"][5])
    for name, value in one.items():
        assert value.shape == found[name].shape[2:]
        close(value, found[name][1, 1], 1e-13)
    without = predict(problem, q[0], qd, expected["qdd"])  # one position for all
    assert without["JointTorque"].shape == (12, model.nv)
    close(without["ExternalWrench(body2)"], np.zeros((12, 6)))


def test_predictions_refuse_what_does_not_fit():
    problem = inverse_dynamics(flying())
    q, qd, qdd, fx = state(problem.model, 1)
    for wrong, text in (
        ((q[1:], qd, qdd), "q has shape"),
        ((q, qd, qdd, fx[:2]), "fx has shape"),
        ((q * 2, qd, qdd), "norm"),
    ):
        with pytest.raises(InvalidInput, match=text):
            predict(problem, *wrong)


# ---- what they are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REPLACED)
def test_names_and_units(case):
    problem = replaced(case)
    for m in problem.custom:
        names = m.components(problem.model)
        assert len(m.units) == len(names)
        assert all(f"{m.name}: {c}" in problem.y_names for c in names)
        assert m.name.split("(")[0].strip() in repr(m)
        assert getattr(m, "reference", "local") in ("local", "world", "space")


def test_a_sensor_under_the_base_is_fixed_to_the_world():
    """The wrench that carries the robot, at a frame of the base: Σ X^T of what every body needs."""
    model = flying()
    q, qd, known = moving()
    found = predict(
        Problem(
            model, [ForceTorqueSensor("joint0", "wall", name="wall"), ForceTorqueSensor("joint0", reference="space")]
        ),
        q, qd, known["qdd"], known["fx"],
    )  # fmt: skip
    expected = [forward_kinematics(model, x)[0].T @ f for x, f in zip(q, known["f"][:, 0], strict=True)]
    close(found["wall"], np.array(expected))
    close(found["ForceTorqueSensor(joint0)"], np.array(expected))


def test_units_follow_the_components():
    assert LoadCells("tool", ["fz", "nx"]).units == ("N", "N m")
    assert FrameAcceleration("tool", ["a_x", "alpha_x"]).units == ("m/s²", "rad/s²")
    assert ForceDirection("tool", [0.0, 0.0, 1.0]).units == ("N", "N")
    assert Linear({("tau", "joint1"): [[1.0]]}, units="V").units == ("V",)


@pytest.mark.parametrize("case", [c for c in REPLACED if c not in ("motors with friction", "functions")])
def test_stored_problems_are_the_same(case):
    original = replaced(case)
    assert original.digest is not None
    again = Problem.from_dict(json.loads(json.dumps(original.to_dict())))
    assert again.digest == original.digest
    assert again.y_names == original.y_names
    q, qd, known = (x[0] if not isinstance(x, dict) else {k: v[0] for k, v in x.items()} for x in moving())
    for name, value in predict(original, q, qd, known["qdd"], known["fx"]).items():
        close(predict(again, q, qd, known["qdd"], known["fx"])[name], value, 1e-15)
    assert replaced("one axis" if case != "one axis" else "frame").digest != original.digest


def test_digests_see_where_a_frame_is_and_functions_have_none():
    model = flying()
    moved = sd.Frame("tool", 2, X_motion(R, np.array([0.2, 0.1, 0.3])))
    other = model.replace(frames={**model.frames, "tool": moved})
    assert other.digest == model.digest  # the equations of motion do not
    digests = {
        Problem(m, [sensor]).digest
        for m in (model, other)
        for sensor in (
            LoadCells("tool"), LoadCells("tool", reference="world"), LoadCells("tool", "fz"), PointContact("tool"),
        )
    }  # fmt: skip
    assert len(digests) == 8 and None not in digests
    for case in ("motors with friction", "functions"):
        assert replaced(case).digest is None
        with pytest.raises(ProblemError, match="cannot be stored in a file"):
            replaced(case).to_dict()


def test_a_saved_solver_with_sensors(tmp_path):
    problem = replaced("point contact")
    solver = sd.compile(problem, "markowitz", level="fast", backend="python")
    again = sd.load_solver(solver.save(tmp_path / "contact.solver"))
    q, qd, known = moving()
    y = predict(again.problem, q, qd, known["qdd"], known["fx"])
    np.testing.assert_array_equal(again(q, qd, y=y).fx, solver(q, qd, y=y).fx)


# ---- what is wrong -------------------------------------------------------------------------------------------------

BAD = [
    (lambda: LoadCells("tol"), UnknownName, "frame 'tol'.*Did you mean 'tool'"),
    (lambda: Accelerometer(("bodi2", POSE)), UnknownName, "body 'bodi2'.*Did you mean 'body2'"),
    (lambda: ForceTorqueSensor("joynt2"), UnknownName, "joint 'joynt2'.*Did you mean 'joint2'"),
    (lambda: MomentumRate("bodi"), UnknownName, "body 'bodi'"),
    (lambda: LoadCells("wall"), InvalidInput, "frame 'wall' is fixed to the base"),
    (lambda: FrameAcceleration("wall"), InvalidInput, "frame 'wall' is fixed to the base"),
    (lambda: ForceTorqueSensor("joint3", "tool"), InvalidInput, "frame 'tool' must be fixed to the child or"),
    (lambda: LoadCells("tool", ["fz", "mz"]), UnknownName, "component of 'LoadCells.*'mz'.*'nz'"),
    (lambda: LoadCells("tool", ["fz", "fz"]), ProblemError, "states fz twice"),
    (lambda: LoadCells("tool", []), InvalidInput, "has no components"),
    (lambda: Accelerometer("tool", "x"), UnknownName, "component of 'Accelerometer.*'x'"),
    (lambda: Accelerometer("tool", reference="space"), UnknownName, "reference of .*'space'.*local, world"),
    (lambda: LoadCells("tool", reference="body"), UnknownName, "reference of .*'body'"),
    (lambda: FrameAcceleration("tool", reference="space"), InvalidInput, "use reference='world', or classical=False"),
    (lambda: ForceTorqueSensor("joint2", side="left"), UnknownName, "side of a ForceTorqueSensor: 'left'"),
    (lambda: LoadCells(3), InvalidInput, r"a frame is a name, or \(body, T\)"),
    (lambda: LoadCells(("body2", np.eye(3))), InvalidInput, r"has shape \(3, 3\)"),
    (lambda: LoadCells(("body2", 2 * np.eye(4))), InvalidInput, "last row"),
    (lambda: ForceDirection("tool", [0, 0, 0]), InvalidInput, "direction of a ForceDirection is zero"),
    (lambda: ForceDirection("tool", [0, 1]), InvalidInput, r"has shape \(2,\), but \(3,\)"),
    (lambda: MotorTorque(["joint1", "joint3"], np.eye(3)), InvalidInput, r"shape \(3, 3\), but \(3, 2\) is needed"),
    (lambda: MotorTorque("joint0"), InvalidInput, r"shape \(1, 1\), but \(1, 6\) is needed"),
    (lambda: MotorTorque(["joint1", "joint1"]), InvalidInput, "each once"),
    (lambda: MotorTorque("joint1", bias=[1.0, 2.0]), InvalidInput, r"bias .* has shape \(2,\), but \(1,\)"),
    (lambda: MotorTorque("join1"), UnknownName, "joint 'join1'.*Did you mean 'joint1'"),
    (lambda: Linear({}), InvalidInput, "needs blocks"),
    (lambda: Linear({"tau": [[1.0]]}), InvalidInput, "a block is of"),
    (lambda: Linear({("torque", "joint1"): [[1.0]]}), UnknownName, "quantity in 'Linear': 'torque'"),
    (lambda: Linear({("f", "body1"): np.ones((2, 5))}), InvalidInput, r"shape \(2, 5\), but \(2, 6\) is needed"),
    (lambda: Linear({("tau", "joint1"): [1.0]}), InvalidInput, r"has shape \(1,\), but \(n, m\) is needed"),
    (lambda: Linear({("tau", "joint1"): [[np.nan]]}), InvalidInput, "must be finite"),
    (lambda: Linear({("tau", "joint1"): lambda q, qd: [[1.0]]}), InvalidInput, "components="),
    (lambda: Linear({("tau", "joint1"): [[1.0]]}, units=["V", "A"]), InvalidInput, "1 equations, but 2 units"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_when_the_problem_is_made(make, kind, text):
    with pytest.raises(kind, match=text):
        Problem(flying(), [make()])


def test_functions_of_a_wrong_shape():
    for wrong in (
        Linear({("tau", "joint1"): lambda q, qd: [[q[0], 1.0]]}, components=["a"]),
        Linear({("tau", "joint1"): [[1.0]]}, bias=lambda q, qd: [q[0], 1.0]),
    ):
        with pytest.raises(InvalidInput, match=r"has shape \((1, 2|2,)\), but"):
            sd.assemble(Problem(flying(), [wrong])).D(flying().neutral())


def test_robots_without_one_root_or_without_mass():
    forest = random_tree(3, seed=1).replace(parent=(-1, -1, 0))
    with pytest.raises(InvalidInput, match="2 root bodies; use reference='world'"):
        Problem(forest, [MomentumRate(reference="local")])
    empty = forest.replace(inertias=np.zeros((3, 6, 6)), strict=None)
    with pytest.raises(InvalidInput, match="no mass"):
        Problem(empty, [CentreOfMassAcceleration()])


def test_descriptions_of_unknown_types():
    data = Problem(flying(), [LoadCells("tool")]).to_dict()
    data["measurements"][0]["type"] = "LoadCell"
    with pytest.raises(UnknownName, match="type of measurement 'LoadCell'.*Did you mean 'LoadCells'"):
        Problem.from_dict(data)
    del data["measurements"][0]["frame"]
    data["measurements"][0]["type"] = "LoadCells"
    with pytest.raises(ProblemError, match="does not describe a problem"):
        Problem.from_dict(data)
