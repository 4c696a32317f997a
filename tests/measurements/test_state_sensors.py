"""Sensors of the state: values against Pinocchio and MuJoCo, residuals and their derivatives, statements, storage."""

from __future__ import annotations

import json
import math
import pickle

import mujoco
import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import MuJoCo, icub, icub_urdf
from pinocchio_models import Twin
from systems import kinds

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.errors import IgnoredWarning, InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.conditions import Condition
from sysdyn.measurements.measurement import Context
from sysdyn.measurements.predict import predict
from sysdyn.measurements.state_sensors import rotation_matrix, rotation_vector
from sysdyn.program.autodiff import derivative, evaluate
from sysdyn.program.graph import Graph

KINDS = ("revolute", "prismatic", "spherical", "free")


def tree(seed: int, n: int = 5) -> sd.Model:
    """A random tree; of the joints of the first four one is spherical, and another has one degree of freedom."""
    return sd.random_tree(n, seed=(0, 2, 3, 5)[seed % 4], joints=("revolute", *KINDS))


def placed(seed: int) -> np.ndarray:
    """A pose (4, 4) at random."""
    rng = np.random.default_rng(seed)
    return pin.SE3(pin.exp3(rng.uniform(-2.0, 2.0, 3)), rng.uniform(-1.0, 1.0, 3)).homogeneous


def every_sensor(model: sd.Model, seed: int = 0) -> list[sd.Measurement]:
    """One of each class, and of each reference, on the first and the last body of a model."""
    first, last = model.body_names[0], (model.body_names[-1], placed(seed))
    one = [i for i, joint in enumerate(model.joints) if joint.nq == joint.nv == 1]
    found: list[sd.Measurement] = [
        sd.JointVelocity(model.joint_names, noise=0.1, name="velocities"),
        *(sd.Gyroscope(last, reference=x, noise=0.1, name=f"gyro {x}") for x in ("local", "world")),
        *(sd.Velocimeter(last, reference=x, noise=0.1, name=f"flow {x}") for x in ("local", "world")),
        sd.FramePosition(last, ["z", "x"], noise=0.1, name="position"),
        sd.FrameAttitude(last, noise=0.1, name="attitude"),
        sd.FramePose(last, noise=0.1, name="pose"),
        sd.Direction(last, noise=0.1, name="tilt"),
        sd.Direction(last, (0.2, -0.3, 0.5), noise=0.1, name="magnetometer"),
        *(sd.Stance(last, "fixed", reference=x, noise=0.1, name=f"stance {x}") for x in ("local", "world")),
        sd.Stance(last, radius=0.3, noise=0.1, name="ball"),
        sd.FrameDistance(first, last, noise=0.1, name="cable"),
        sd.StateFunction("energy", lambda ctx: [ctx.qd @ ctx.qd, ctx.p(last)[2]], ["speed", "height"], noise=0.1),
    ]
    return found + ([sd.JointPosition("all", noise=0.1, name="encoders")] if one else [])


def at(model: sd.Model, q: np.ndarray, qd: np.ndarray) -> Context:
    return Context.at(model, q.astype(object), qd.astype(object))


def floats(x) -> np.ndarray:
    return np.array([float(y) for y in x])


def test_every_class_has_a_case():
    used = {type(m).__name__ for m in every_sensor(tree(0))}
    assert used == {*kinds(sd.StateMeasurement), "StateFunction"}


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_pinocchio(seed):
    model = tree(seed)
    twin, T = Twin(model), placed(seed)
    q, qd, _ = model.random_state(seed=seed)
    pin.forwardKinematics(twin.pin, twin.data, twin.position(q), twin.T @ qd)
    joint, place = twin.joint[model.nb - 1], pin.SE3(T)
    pose, twist = twin.data.oMi[joint] * place, place.actInv(twin.data.v[joint])
    first = twin.data.oMi[twin.joint[0]].translation
    R, p = pose.rotation, pose.translation
    expected = {
        "velocities": qd, "gyro local": twist.angular, "gyro world": R @ twist.angular, "flow local": twist.linear,
        "flow world": R @ twist.linear, "position": p[[2, 0]], "attitude": pin.log3(R), "pose": [*p, *pin.log3(R)],
        "tilt": R.T @ -model.gravity / np.linalg.norm(model.gravity), "magnetometer": R.T @ [0.2, -0.3, 0.5],
        "stance local": [*twist.angular, *twist.linear], "stance world": [*R @ twist.angular, *R @ twist.linear],
        "ball": twist.linear + np.cross(twist.angular, 0.3 * R.T @ model.gravity / np.linalg.norm(model.gravity)),
        "cable": [np.linalg.norm(p - first)], "energy": [qd @ qd, p[2]],
        "encoders": [q[model.q_slice(i).start] for i, x in enumerate(model.joints) if x.nq == x.nv == 1],
    }  # fmt: skip
    for m in every_sensor(model, seed):
        value = floats(m.value(at(model, q, qd)))
        np.testing.assert_allclose(value, expected[m.name], rtol=0, atol=1e-12, err_msg=m.name)
        assert len(value) == len(m.components(model)) == len(m.component_units(model))
        assert m.of_state and not m.drift


def test_values_on_the_icub_are_those_of_mujoco():
    model = icub("floating")
    oracle, rng = MuJoCo(model, icub_urdf()), np.random.default_rng(3)
    q, qd, _ = model.random_state(seed=3)
    oracle.put(q, qd)
    mujoco.mj_forward(oracle.mj, oracle.data)
    field = rng.uniform(-1.0, 1.0, 3)
    for name in ("head", "l_hand", "r_foot", "root_link", "chest"):
        body, twist, there = oracle.mj.body(name).id, np.empty(6), np.empty(6)
        mujoco.mj_objectVelocity(oracle.mj, oracle.data, mujoco.mjtObj.mjOBJ_XBODY, body, twist, 1)
        mujoco.mj_objectVelocity(oracle.mj, oracle.data, mujoco.mjtObj.mjOBJ_XBODY, body, there, 0)
        R, p = oracle.data.xmat[body].reshape(3, 3), oracle.data.xpos[body]
        for m, expected in (
            (sd.Gyroscope(name, noise=1.0), twist[:3]), (sd.Velocimeter(name, noise=1.0), twist[3:]),
            (sd.Gyroscope(name, reference="world", noise=1.0), there[:3]),
            (sd.Stance(name, reference="world", noise=1.0), there[3:]),
            (sd.FramePosition(name, noise=1.0), p), (sd.FrameAttitude(name, noise=1.0), pin.log3(R)),
            (sd.Direction(name, field, noise=1.0), R.T @ field),
            (sd.Direction(name, noise=1.0), R.T @ [0.0, 0.0, 1.0]),
            (sd.FrameDistance(name, "l_foot", noise=1.0),
             [np.linalg.norm(p - oracle.data.xpos[oracle.mj.body("l_foot").id])]),
        ):  # fmt: skip
            value = floats(m.value(at(model, q, qd)))
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12, err_msg=f"{m.name} of {name}")


def test_joints_and_degrees_of_freedom_that_are_named():
    model = tree(1)
    kinds = {joint.kind: i for i, joint in enumerate(model.joints)}
    ball = model.joint_names[kinds["spherical"]]
    m = sd.JointVelocity(ball, noise=1.0)
    assert m.components(model) == tuple(f"{ball}[{k}]" for k in range(3)) and m.component_units(model) == ("rad/s",) * 3
    some = m.select([2, 0])
    assert some.components(model) == (f"{ball}[2]", f"{ball}[0]")
    assert some.select([1]).components(model) == (f"{ball}[0]",)
    alone = sd.JointPosition("all", noise=1.0)
    singles = tuple(name for name, x in zip(model.joint_names, model.joints, strict=True) if x.nq == 1)
    assert alone.components(model) == singles
    rest = sd.Problem(model, [alone]) - sd.JointPosition(singles[0], noise=1.0)
    assert rest.state_sensors[0].components(model) == singles[1:]
    assert set(alone.component_units(sd.random_tree(2, seed=0, joints=("prismatic",)))) == {"m"}


# ---- attitudes -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 1e-200, 1e-12, 1e-5, 0.3, 1.5, 3.0, math.pi - 1e-9]))
def test_rotation_vectors_go_there_and_back(seed, angle):
    axis = np.random.default_rng(seed).standard_normal(3)
    y = angle * axis / np.linalg.norm(axis)
    R = rotation_matrix(y)
    np.testing.assert_allclose(R.astype(float), pin.exp3(y), rtol=0, atol=1e-14)
    np.testing.assert_allclose(floats(rotation_vector(R)), y, rtol=1e-14, atol=1e-15 if angle < 3.0 else 1e-6)
    if angle > 3.0:
        return  # no smooth function is the rotation vector there
    graph = Graph()
    symbols = graph.inputs("R", 9)
    values = dict(zip([graph.input_names[x.id] for x in symbols], R.astype(float).flat, strict=True))
    smooth = floats(evaluate(rotation_vector(symbols.reshape(3, 3)), values))
    np.testing.assert_allclose(smooth, y, rtol=0, atol=4e-15 / (math.pi - angle) ** 2)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 0.5, 3.1])
def test_the_residual_of_an_attitude_is_the_sine_of_the_error_about_the_frame_s_axes(angle):
    model = tree(2)
    m = sd.FrameAttitude(model.body_names[-1], noise=0.1)
    q, qd, _ = model.random_state(seed=2)
    ctx = at(model, q, qd)
    axis = np.array([2.0, -1.0, 0.5]) / np.linalg.norm([2.0, -1.0, 0.5])
    R = ctx.R(model.body_names[-1]).astype(float)
    y = pin.log3(R @ pin.exp3(-angle * axis))
    np.testing.assert_allclose(floats(m.residual(ctx, y)), math.sin(angle) * axis, rtol=0, atol=1e-14)


@pytest.mark.parametrize("m", every_sensor(tree(3), 3), ids=lambda m: m.name)
def test_the_residual_of_the_value_is_zero(m):
    model = tree(3)
    q, qd, _ = model.random_state(seed=3)
    ctx = at(model, q, qd)
    assert np.abs(floats(m.residual(ctx, m.value(ctx)))).max() < 1e-14


# ---- derivatives ---------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_derivatives_of_residuals_are_finite_differences(seed):
    """Along tangents of q, on its manifold, and q̇; y is somewhere near the value, its numbers inputs of the graph."""
    model = sd.random_tree(4, seed=seed % 1000, joints=("revolute", *KINDS))
    rng = np.random.default_rng(seed)
    q, qd, _ = model.random_state(seed=seed % 10_007)
    dq, dqd = rng.standard_normal(model.nv), rng.standard_normal(model.nv)
    graph = Graph()
    symbols = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
    ctx = Context.at(model, symbols["q"], symbols["qd"])
    names = {x: [graph.input_names[s.id] for s in symbols[x]] for x in symbols}
    rates = np.zeros(model.nq)
    for i, joint in enumerate(model.joints):
        if joint.nv:
            rates[model.q_slice(i)] = joint.rates(q[model.q_slice(i)]) @ dq[model.v_slice(i)]
    direction = dict(zip(names["q"], rates, strict=True)) | dict(zip(names["qd"], dqd, strict=True))
    values = dict(zip(names["q"], q, strict=True)) | dict(zip(names["qd"], qd, strict=True))
    step = 1e-5
    sensors = every_sensor(model, seed % 97)
    for m in sensors:
        y = floats(m.value(at(model, q, qd))) + 0.3 * rng.standard_normal(len(m.components(model)))
        found = floats(np.atleast_1d(evaluate(derivative(list(m.residual(ctx, y)), direction), values)))
        there, back = (
            floats(m.residual(at(model, model.integrate(q, s * dq), qd + s * dqd), y)) for s in (step, -step)
        )
        expected = (there - back) / (2.0 * step)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=f"{m.name}, seed {seed}")


# ---- statements ----------------------------------------------------------------------------------------------------


def leg() -> sd.Model:
    return sd.chain(3, seed=1)


def whole(model: sd.Model) -> list[sd.Measurement]:
    """Sensors of a state and others, with biases."""
    tip = model.body_names[-1]
    return [
        sd.JointPosition("all", noise=1e-4, name="encoders", bias=sd.Constant(1e-3)),
        sd.JointVelocity(model.joint_names[:2], [1], noise=1e-2, name="tacho"),
        sd.Gyroscope(tip, noise=2e-3, bias=sd.RandomWalk(1e-5), name="gyro"),
        sd.Velocimeter((tip, placed(1)), ["v_x"], reference="world", noise=0.1, name="flow"),
        sd.FramePosition(tip, noise=np.diag([1e-6, 1e-6, 4e-6]), name="marker"),
        sd.FrameAttitude(tip, noise=0.1, name="attitude"),
        sd.FramePose((tip, placed(2)), noise=[0.1] * 6, name="pose"),
        sd.Direction(tip, (1.0, 2.0, 3.0), noise=0.1, name="magnetometer"),
        sd.Direction(tip, noise=0.1, name="tilt", bias=sd.RandomWalk([1e-3, 2e-3, 3e-3], 0.1)),
        sd.Stance(tip, "plane", noise=1e-3, when="cells: fy > 40 and gyro: omega_x<=-1e-1", name="foot"),
        sd.Switchable(sd.Stance((tip, placed(3)), components=["v_z"], noise=1e-3), name="toe"),
        sd.Stance(tip, radius=0.02, noise=1e-3, name="round"),
        sd.FrameDistance(model.body_names[0], (tip, placed(4)), noise=0.1, name="cable"),
        sd.LoadCells(tip, ["nx", "fy"], noise=0.1, name="cells", bias=sd.Constant([1.0, 2.0])),
        sd.JointTorque("all", noise=0.3, name="currents", bias=sd.GaussMarkov(0.1, 0.5)),
        sd.Prior(sd.ExternalWrench(tip, noise=50.0, drift=3.0)),
        sd.Switchable(sd.Accelerometer(tip, noise=0.1, bias=sd.Constant(0.2)), name="imu"),
        sd.Prior(sd.FramePosition(model.body_names[0], noise=0.1), name="start", bias=sd.Constant(1.0)),
        sd.ExternalWrench(model.body_names[:-1]),
        sd.Linear({("tau", model.joint_names[0]): [[1.0]]}, bias=sd.Constant(0.1), noise=0.1, name="linear"),
        sd.MotorTorque([model.joint_names[0]], bias=[0.2], drift=sd.RandomWalk(0.3), noise=0.1, name="motor"),
    ]  # fmt: skip


def described(problem: sd.Problem) -> list:
    return [(type(m), m.name, repr(m.drift), m.of_state) for m in problem.measurements]


def test_stored_problems_come_back():
    problem = sd.Problem(leg(), whole(leg()))
    stored = json.loads(json.dumps(problem.to_dict()))
    for again in (sd.Problem.from_dict(stored), pickle.loads(pickle.dumps(problem))):
        assert again.digest == problem.digest and again.to_dict() == stored
        assert again.conditions == problem.conditions and set(again.conditions) == {"foot"}
        assert [m.name for m in again.biased] == [m.name for m in problem.biased]
        assert {m.name: m.drift for m in again.measurements} == {m.name: m.drift for m in problem.measurements}
        q, qd, _ = leg().random_state(seed=5)
        for m, n in zip(problem.state_sensors, again.state_sensors, strict=True):
            assert m.components(leg()) == n.components(leg()) and m.component_units(leg()) == n.component_units(leg())
            np.testing.assert_array_equal(floats(m.value(at(leg(), q, qd))), floats(n.value(at(leg(), q, qd))))


def test_biases_are_part_of_the_digest_and_others_keep_theirs():
    model = leg()
    plain = [sd.JointTorque("all", noise=0.3, name="tau"), sd.ExternalWrench("all", name="fx")]
    problem = sd.Problem(model, plain)
    biased = sd.Problem(model, [sd.JointTorque("all", noise=0.3, name="tau", bias=sd.Constant(1.0)), plain[1]])
    slower = sd.Problem(model, [sd.JointTorque("all", noise=0.3, name="tau", bias=sd.RandomWalk(1.0)), plain[1]])
    measured = problem + sd.Gyroscope(model.body_names[-1], noise=0.1)
    assert len({problem.digest, biased.digest, slower.digest, measured.digest}) == 4
    assert "drift" not in json.dumps(problem.to_dict())
    assert {x.instant.digest for x in (problem, biased, slower, measured)} == {problem.digest}
    assert problem.instant is problem


@pytest.mark.slow
def test_solvers_leave_sensors_of_the_state_aside_and_name_biases():
    model = leg()
    problem = sd.Problem(model, whole(model))
    with pytest.warns(IgnoredWarning, match="bias of 'encoders', 'gyro', 'tilt', 'cells', 'currents'.* is ignored"):
        solver = sd.compile(problem, backend="python", level="fast")
    plain = sd.compile(problem.instant, backend="python", level="fast")
    assert solver.problem.state_sensors and solver.program.flops == plain.program.flops
    q, qd, qdd = model.random_state(seed=7)
    y = predict(problem, q, qd, qdd)
    assert set(y) == {m.name for m in problem.valued} == set(problem.values)
    estimate, expected = solver(q, qd, y=y), plain(q, qd, y=y)
    np.testing.assert_array_equal(estimate["tau"], expected["tau"])
    np.testing.assert_array_equal(estimate.std("tau"), expected.std("tau"))
    assert problem.inputs.sizes == problem.instant.inputs.sizes and problem.ny == problem.instant.ny
    assert sd.diagnose(problem).well_posed == sd.diagnose(problem.instant).well_posed
    for group in (problem.raw, problem.custom, problem.valued, problem.noisy, problem.switchable):
        assert not any(m.of_state for m in group)
    with pytest.raises(InvalidInput, match="'gyro' is a sensor of the state"):
        sd.compile(problem.instant, outputs=[sd.Gyroscope(model.body_names[-1], noise=0.1, name="gyro")])


def test_state_values_of_a_problem():
    model = leg()
    problem = sd.Problem(model, whole(model))
    assert list(problem.state_values) == [m.name for m in problem.state_sensors]
    assert problem.state_values["gyro"].labels == ("gyro: omega_x", "gyro: omega_y", "gyro: omega_z")
    assert problem.state_values["encoders"].labels == tuple(f"encoders: {x}" for x in model.joint_names)
    assert problem.state_values["foot"].default is not None and problem.state_values["gyro"].default is None


def test_parts_keep_their_biases():
    model, tip = leg(), leg().body_names[-1]
    walk = sd.RandomWalk([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert sd.Gyroscope(tip, noise=1.0, bias=walk).select([2, 0]).drift == sd.RandomWalk([3.0, 1.0], [6.0, 4.0])
    assert sd.JointPosition("all", noise=1.0, bias=walk).select([1]).drift == sd.RandomWalk([2.0], [5.0])
    problem = sd.Problem(model, [sd.JointTorque("all", noise=1.0, name="tau", bias=walk)])
    left = problem - sd.JointTorque(model.joint_names[1])
    assert left.measurements[0].drift == sd.RandomWalk([1.0, 3.0], [4.0, 6.0])
    assert sd.Constant(2.0).select([1]) == sd.Constant(2.0)
    switched = sd.Switchable(sd.Accelerometer(tip, noise=1.0, bias=walk))
    assert switched.drift == walk and sd.Prior(switched, bias=None).drift == walk
    assert sd.ExternalWrench(tip, drift=2.0).drift == sd.JointTorque("all", drift=2.0).drift == sd.RandomWalk(2.0)
    np.testing.assert_array_equal(walk.densities(3), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(sd.RandomWalk(0.5).deviations(2), [np.inf, np.inf])
    np.testing.assert_array_equal(sd.Constant(0.5).deviations(2), [0.5, 0.5])
    lasting = sd.GaussMarkov([0.1, 0.2, 0.3], 0.5)
    assert lasting.select([2, 1]) == sd.GaussMarkov([0.3, 0.2], 0.5)
    np.testing.assert_array_equal(lasting.deviations(3), [0.1, 0.2, 0.3])
    np.testing.assert_allclose(lasting.densities(3), [0.2, 0.4, 0.6])
    np.testing.assert_array_equal(lasting.times(2), [0.5, 0.5])
    assert np.isinf(walk.times(3)).all() and np.isinf(sd.Constant(1.0).times(1)).all()
    assert not sd.Constant(0.5).densities(2).any()


def test_problem_files_state_sensors_of_the_state_and_biases(tmp_path):
    text = """robot = "auto_tree:3"
[[measurement]]
type = "JointPosition"
name = "encoders"
noise = 1e-4
bias = {constant = 1e-3}
[[measurement]]
type = "Gyroscope"
frame = {body = "body2", xyz = [0.1, 0, 0]}
name = "gyro"
noise = 2e-3
bias = {random_walk = 1e-5, std = [0.1, 0.1, 0.2]}
[[measurement]]
type = "Stance"
frame = "body2"
name = "foot"
noise = 2e-3
when = "cells: fy > 40"
switchable = true
[[measurement]]
type = "LoadCells"
frame = "body2"
components = ["fy"]
name = "cells"
[[measurement]]
type = "ExternalWrench"
noise = 50.0
drift = 2.0
prior = true
[units]
encoders = "rad"
gyro = "rad/s"
[columns]
"/imu/angular_velocity/x" = "gyro: omega_x"
"""
    (tmp_path / "problem.toml").write_text(text)
    task = load_job(tmp_path / "problem.toml")
    problem = task.problem
    assert [m.name for m in problem.state_sensors] == ["encoders", "gyro", "foot"]
    assert problem.measurements[0].drift == sd.Constant(1e-3)
    assert problem.measurements[1].drift == sd.RandomWalk(1e-5, [0.1, 0.1, 0.2])
    assert problem.measurements[-1].drift == sd.RandomWalk(2.0)
    assert problem.conditions == {"foot": Condition("cells: fy > 40")}
    (tmp_path / "bad.toml").write_text(text.replace('when = "cells: fy', 'when = "cels: fy'))
    with pytest.raises(UnknownName, match="column in when= of 'foot': 'cels: fy'. Did you mean 'cells: fy'"):
        load_job(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text(text.replace("constant = 1e-3", "constant = -1e-3"))
    with pytest.raises(InvalidInput, match=r"bad.toml line 2: .*is -0.001: it must be positive and finite"):
        load_job(tmp_path / "bad.toml")


# ---- conditions ----------------------------------------------------------------------------------------------------


def test_conditions_hold_where_all_comparisons_do():
    condition = Condition("a: x > 1 and  b: y: z <= -2e0 and a: w<3")
    labels = {"a": ("a: x", "a: w"), "b: y": ("b: y: z",)}
    y = {"a": np.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [np.nan, 0.0], [2.0, 3.0]]),
         "b: y": np.array([[-2.0], [-3.0], [0.0], [-3.0], [-3.0]])}  # fmt: skip
    assert condition.holds(y, labels).tolist() == [True, False, False, False, False]
    assert condition.measurements == ("a", "b: y")


@pytest.mark.parametrize("when", ["", "cells fy", "cells: fy > x", "cells: fy > nan", "cells: fy = 3", "fy > ", 40.0])
def test_conditions_that_cannot_be_read(when):
    with pytest.raises(InvalidInput, match="when= of 'foot' is 40.0|cannot be read at"):
        sd.Stance("body2", noise=1.0, when=when, name="foot")


# ---- bad input -----------------------------------------------------------------------------------------------------

TREE = tree(1)
BALL = next(name for name, x in zip(TREE.joint_names, TREE.joints, strict=True) if x.kind == "spherical")
BODY = TREE.body_names[-1]
WRONG = {
    "no noise": (lambda: sd.Problem(TREE, [sd.Gyroscope(BODY)]), ProblemError, "has no noise"),
    "encoders without noise": (lambda: sd.Problem(TREE, [sd.JointPosition("all", name="encoders")]), ProblemError,
                               "'encoders' has no noise"),
    "unknown frame": (lambda: sd.Problem(TREE, [sd.Gyroscope("imu", noise=1.0)]), UnknownName, "'imu'"),
    "ball": (lambda: sd.Problem(TREE, [sd.JointPosition(BALL, noise=1.0)]), InvalidInput,
             rf"joint '{BALL}' \(spherical\) has 3 degrees of freedom"),
    "unknown joint": (lambda: sd.Problem(TREE, [sd.JointVelocity("elbow", noise=1.0)]), UnknownName, "'elbow'"),
    "joint twice": (lambda: sd.JointPosition(["a", "a"], noise=1.0), InvalidInput, "each once"),
    "no joints": (lambda: sd.JointPosition([], noise=1.0), InvalidInput, "must name joints"),
    "number of a joint": (lambda: sd.JointPosition(3, noise=1.0), InvalidInput, "not 3"),
    "number beyond": (lambda: sd.Problem(TREE, [sd.JointVelocity(BALL, [3], noise=1.0)]), InvalidInput, "3 scalars"),
    "no single joint": (lambda: sd.Problem(sd.random_tree(2, seed=0, joints=("spherical",)),
                                           [sd.JointPosition(noise=1.0)]), InvalidInput, "no joint of one degree"),
    "component": (lambda: sd.Gyroscope(BODY, ["omega"], noise=1.0), UnknownName, "omega_x"),
    "reference": (lambda: sd.Velocimeter(BODY, reference="space", noise=1.0), UnknownName, "'space'"),
    "half an attitude": (lambda: sd.Problem(TREE, [sd.FramePose(BODY, ["x", "r_x"], noise=1.0)]), InvalidInput,
                         "an attitude is measured as a whole"),
    "zero vector": (lambda: sd.Direction(BODY, (0, 0, 0), noise=1.0), InvalidInput, "is zero"),
    "unknown vector": (lambda: sd.Direction(BODY, "north", noise=1.0), UnknownName, "'north'"),
    "no gravity": (lambda: sd.Problem(TREE.replace(gravity=(0, 0, 0)), [sd.Direction(BODY, noise=1.0)]), InvalidInput,
                   "no gravity"),
    "kind of stance": (lambda: sd.Stance(BODY, "sphere", noise=1.0), UnknownName, "'sphere'"),
    "radius": (lambda: sd.Stance(BODY, noise=1.0, radius=-0.1), InvalidInput, r"radius of 'Stance.*' is -0.1"),
    "endless radius": (lambda: sd.Stance(BODY, noise=1.0, radius=np.inf), InvalidInput, "is inf: a length"),
    "round without gravity": (lambda: sd.Problem(TREE.replace(gravity=(0, 0, 0)),
                                                 [sd.Stance(BODY, noise=1.0, radius=0.1)]), InvalidInput, "no gravity"),
    "same body": (lambda: sd.Problem(TREE, [sd.FrameDistance(BODY, (BODY, placed(0)), noise=1.0)]), InvalidInput,
                  "never changes"),
    "covariance": (lambda: sd.Problem(TREE, [sd.Gyroscope(BODY, noise=-np.eye(3))]), InvalidInput,
                   "not positive definite"),
    "number of noises": (lambda: sd.Problem(TREE, [sd.Gyroscope(BODY, noise=[1.0, 2.0])]), InvalidInput, "components"),
    "bias of one number": (lambda: sd.Gyroscope(BODY, noise=1.0, bias=0.1), InvalidInput, "say how it is unknown"),
    "negative bias": (lambda: sd.Constant(-1.0), InvalidInput, "is -1: it must be positive"),
    "infinite bias": (lambda: sd.RandomWalk(1.0, np.inf), InvalidInput, "start of a RandomWalk is inf"),
    "bias of NaN": (lambda: sd.RandomWalk(np.nan), InvalidInput, "density of a RandomWalk is nan"),
    "lasting bias without a time": (lambda: sd.GaussMarkov(1.0, 0.0), InvalidInput, "time of a GaussMarkov bias is 0"),
    "numbers of a lasting bias": (lambda: sd.Problem(TREE, [sd.Gyroscope(BODY, noise=1.0,
                                                                         bias=sd.GaussMarkov(1.0, [1.0, 2.0]))]),
                                  InvalidInput, "2 numbers for time, but .* has 3 components"),
    "stored without a time": (lambda: sd.Gyroscope(BODY, noise=1.0, bias={"gauss_markov": 1.0}), InvalidInput,
                              "gauss_markov = std, time = time"),
    "bias of text": (lambda: sd.Constant("big"), InvalidInput, "'big'"),
    "bias of a matrix": (lambda: sd.Constant(np.eye(2)), InvalidInput, r"shape \(2, 2\)"),
    "numbers of a bias": (lambda: sd.Problem(TREE, [sd.Gyroscope(BODY, noise=1.0, bias=sd.Constant([1.0, 2.0]))]),
                          InvalidInput, "2 numbers for constant, but .* has 3 components"),
    "unknown bias": (lambda: sd.Gyroscope(BODY, noise=1.0, bias={"walk": 1.0}), InvalidInput, "random_walk = density"),
    "two biases": (lambda: sd.JointTorque("all", bias=sd.Constant(1.0), drift=1.0), InvalidInput, "given twice"),
    "two biases of a prior": (lambda: sd.Prior(sd.JointTorque("all", noise=1.0, drift=1.0), bias=sd.Constant(1.0)),
                              ProblemError, "given twice"),
    "unknown column": (lambda: sd.Problem(TREE, [sd.Stance(BODY, noise=1.0, when="ft: fz > 40")]), UnknownName,
                       "column in when= of .* 'ft: fz'"),
    "no function": (lambda: sd.StateFunction("h", 3.0, noise=1.0), InvalidInput, "needs a function"),
    "no values": (lambda: sd.StateFunction("h", lambda ctx: [], 0, noise=1.0), InvalidInput, "components of 'h'"),
    "other values": (lambda: sd.StateFunction("h", lambda ctx: [1.0], 2, noise=1.0).value(
        at(TREE, *TREE.random_state(seed=0)[:2])), InvalidInput, r"gives shape \(1,\), but \(2,\)"),
    "rows": (lambda: sd.Gyroscope(BODY, noise=1.0).rows(None), InvalidInput, "is a sensor of the state"),
    "value of others": (lambda: sd.LoadCells(BODY).value(None), InvalidInput, "does not follow from q and q̇"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(case):
    make, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        make()


def test_a_frame_of_the_base_does_not_move():
    model = icub("fixed")
    base = next(name for name, frame in model.frames.items() if frame.body < 0)
    with pytest.raises(InvalidInput, match="is fixed to the base"):
        sd.Problem(model, [sd.Gyroscope(base, noise=1.0)])
    assert sd.Problem(model, [sd.FrameDistance(base, "l_hand", noise=1.0)]).state_sensors


# ---- predictions ---------------------------------------------------------------------------------------------------


def test_predicted_values_have_the_declared_noise():
    """In 4,000 draws, the errors of each component by its residual; stances have no value of their own."""
    model = tree(4, 3)
    problem = sd.inverse_dynamics(model) + [m for m in every_sensor(model) if m.name != "cable"]
    q, qd, qdd = model.random_state(seed=4)
    exact = predict(problem, q, qd, qdd, state_sensors=True)
    assert set(exact) - set(problem.values) == {m.name for m in problem.state_sensors if not isinstance(m, sd.Stance)}
    drawn = predict(problem, *(np.tile(x, (4000, 1)) for x in (q, qd, qdd)), seed=1, state_sensors=True)
    ctx = at(model, q, qd)
    for m in problem.state_sensors:
        if isinstance(m, sd.Stance):
            continue
        np.testing.assert_allclose(exact[m.name], floats(m.value(ctx)), rtol=0, atol=1e-10, err_msg=m.name)
        errors = np.array([floats(m.residual(ctx, y)) for y in drawn[m.name][:400]])
        assert 0.08 < errors.std() < 0.12, m.name
        assert np.abs(errors.mean(axis=0)).max() < 0.03, m.name
