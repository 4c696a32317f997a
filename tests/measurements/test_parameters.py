"""Parameters of the model as inputs of compiled programs, against models that have them as constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sysdyn as sd
from sysdyn.equations.backward_error import residual_at
from sysdyn.measurements.parameters import sampled
from sysdyn.model.inertia import with_parameters

QUICK = {"level": "fast", "backend": "python"}


def changed(model, values):
    """The model with these parameters as constants."""
    inertias, armature, gravity = model.inertias.copy(), model.armature.copy(), values.get("gravity", model.gravity)
    for name, x in values.items():
        kind, _, owner = name.partition(":")
        if kind == "inertia":
            inertias[model.body_index(owner)] = with_parameters(x).astype(float)
        elif kind == "armature":
            armature[model.v_slice(model.joint_index(owner))] = x
    return model.replace(inertias=inertias, armature=armature, gravity=gravity)


@given(st.integers(0, 10_000))
@settings(max_examples=10)
def test_inertial_parameters_make_the_inertia(seed):
    model = sd.random_tree(3, seed=seed)
    pi = sd.inertial_parameters(model).reshape(-1, 10)
    for i in range(model.nb):
        assert with_parameters(pi[i]).astype(float) == pytest.approx(model.inertias[i], abs=1e-14)
    for x in sampled(model, f"inertia:{model.body_names[1]}", 5, np.random.default_rng(seed)):
        assert np.linalg.eigvalsh(with_parameters(x).astype(float)).min() > 0.0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["forward", "inverse"])
@pytest.mark.parametrize("seed", range(3))
def test_inputs_do_what_constants_do(kind, seed):
    model = sd.random_tree(5, seed=seed).replace(armature=np.full(sd.random_tree(5, seed=seed).nv, 0.1))
    names = ["gravity", f"inertia:{model.body_names[2]}", f"inertia:{model.body_names[4]}",
             f"armature:{model.joint_names[3]}"]  # fmt: skip
    rng = np.random.default_rng(seed)
    values = {name: sampled(model, name, 4, rng) for name in names}
    make = sd.forward_dynamics if kind == "forward" else sd.inverse_dynamics
    solver = sd.compile(make(model), **QUICK, inputs=names)
    q, qd, x = model.random_state(seed=seed, batch=4)
    found = solver(q, qd, x, parameters=values)
    for k in range(4):
        other = changed(model, {name: value[k] for name, value in values.items()})
        expected = sd.aba(other, q[k], qd[k], x[k]) if kind == "forward" else sd.rnea(other, q[k], qd[k], x[k])
        result = found.qdd[k] if kind == "forward" else found.tau[k]
        assert result == pytest.approx(expected, rel=1e-9, abs=1e-9)
    frame = model.body_names[-1]
    there = sd.compile(make(other), "aba" if kind == "forward" else "rnea", **QUICK)(q[3], qd[3], x[3])
    assert found.acceleration(frame)[3] == pytest.approx(there.acceleration(frame), rel=1e-8, abs=1e-8)
    assert np.abs(found.residual()).max() < 1e-8 * np.abs(found.f).max()
    # what is not handed in is the model's
    assert solver(q, qd, x).tau == pytest.approx(sd.compile(make(model), **QUICK)(q, qd, x).tau, abs=1e-9)
    one = solver(q, qd, x, parameters={"gravity": np.zeros(3)})
    assert one.a == pytest.approx(sd.compile(make(changed(model, {"gravity": np.zeros(3)})), **QUICK)(q, qd, x).a)


def test_torques_are_differentiated_by_inertial_parameters():
    """They are linear in them: the derivative is the regressor."""
    model = sd.random_tree(4, seed=5)
    names = [f"inertia:{name}" for name in model.body_names]
    solver = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], level="fast", inputs=names)
    q, qd, qdd = model.random_state(seed=1, batch=3)
    J = solver.derivatives(wrt=names)(q, qd, qdd)
    Y = np.concatenate([J["tau", name] for name in names], axis=-1)
    assert pytest.approx(sd.joint_torque_regressor(model, q, qd, qdd).astype(float), abs=1e-9) == Y


@pytest.mark.slow
def test_accelerations_are_differentiated_by_gravity_and_inertia():
    model = sd.random_tree(4, seed=6)
    body = f"inertia:{model.body_names[2]}"
    solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], level="fast", inputs=["gravity", body])
    q, qd, tau = model.random_state(seed=2)
    J = solver.derivatives()(q, qd, tau)
    assert {wrt for _, wrt in J} == {"q", "qd", "tau", "gravity", body}
    for name in ("gravity", body):
        at = model.gravity if name == "gravity" else sd.inertial_parameters(model).reshape(-1, 10)[2]
        h = 1e-5
        for k in range(len(at)):
            step = np.eye(len(at))[k] * h
            ends = [solver(q, qd, tau, parameters={name: at + s * step}).qdd for s in (1.0, -1.0)]
            assert J["qdd", name][:, k] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-5)


def test_sensors_feel_the_gravity_that_is_handed_in():
    """An accelerometer, the rate of momentum and the acceleration of the centre of mass, all exact."""
    model = sd.random_tree(4, seed=8)
    body = f"inertia:{model.body_names[1]}"
    sensors = [
        sd.Accelerometer(model.body_names[3], noise=0.1, name="imu"),
        sd.CentreOfMassAcceleration(noise=0.1, name="com", reference="world"),
        sd.MomentumRate(noise=0.1, name="momentum", reference="world"),
    ]
    problem = sd.forward_dynamics(model) + sensors
    rng = np.random.default_rng(3)
    values = {"gravity": np.array([1.0, -2.0, 3.0]), body: sampled(model, body, 1, rng)[0]}
    other = changed(model, values)
    system, same = sd.assemble(problem.varying("gravity", body)), sd.assemble(sd.forward_dynamics(other) + sensors)
    q, qd, tau = model.random_state(seed=4)
    given = {"q": q[None], "qd": qd[None], "tau": tau[None]}
    varied = {name: x[None] for name, x in values.items()}
    x = np.random.default_rng(0).standard_normal((1, system.layout.n))
    rows = residual_at(system, {**given, **varied}, x).rows
    assert rows == pytest.approx(residual_at(same, given, x).rows, rel=1e-9, abs=1e-9)


def test_a_bound_call_reads_parameters_in_place():
    model = sd.chain(3, seed=0)
    solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], level="fast", inputs="gravity")
    q, qd, tau = model.random_state(seed=0)
    gravity = np.array([0.0, 0.0, -9.81])
    step = solver.bind(q, qd, tau, parameters={"gravity": gravity})
    for g in (-9.81, -1.62, 0.0):
        gravity[2] = g
        step()
        expected = sd.aba(model.replace(gravity=np.array([0.0, 0.0, g])), q, qd, tau)
        assert step.out["qdd"] == pytest.approx(expected, rel=1e-10)


def test_they_are_kept_in_files_and_in_sums(tmp_path):
    model = sd.chain(3, seed=0)
    name = f"inertia:{model.body_names[-1]}"
    problem = (sd.inverse_dynamics(model).varying(name) + sd.BodyAcceleration(model.body_names[0], noise=1.0)) - (
        sd.BodyAcceleration(model.body_names[0], noise=1.0)
    )
    assert [p.name for p in problem.parameters] == [name]
    assert problem.digest != sd.inverse_dynamics(model).digest
    solver = sd.compile(problem, outputs=["tau"], level="fast")
    assert solver.ordering not in ("newton-euler",)
    again = sd.load_solver(solver.save(tmp_path / "s.npz"))
    q, qd, qdd = model.random_state(seed=0)
    heavier = {name: 2.0 * sd.inertial_parameters(model)[-10:]}
    assert np.array_equal(again(q, qd, qdd, parameters=heavier).tau, solver(q, qd, qdd, parameters=heavier).tau)


def test_what_is_wrong_is_named():
    model = sd.chain(2, seed=0)
    problem = sd.inverse_dynamics(model)
    with pytest.raises(sd.UnknownName, match="gravity"):
        sd.compile(problem, inputs=["gravitation"])
    with pytest.raises(sd.UnknownName, match=model.body_names[0]):
        sd.compile(problem, inputs=["inertia:nobody"])
    with pytest.raises(sd.InvalidInput, match="parameters are named"):
        sd.compile(problem, inputs=[3])
    solver = sd.compile(problem, outputs=["tau"], level="fast", inputs=["gravity"])
    q, qd, qdd = model.random_state(seed=0)
    with pytest.raises(sd.UnknownName, match="gravity"):
        solver(q, qd, qdd, parameters={"inertia:x": np.zeros(10)})
    with pytest.raises(sd.InvalidInput, match="shape"):
        solver(q, qd, qdd, parameters={"gravity": np.zeros(4)})
    with pytest.raises(sd.InvalidInput, match="finite"):
        solver(q, qd, qdd, parameters={"gravity": np.array([0.0, 0.0, np.nan])})
    with pytest.raises(sd.ProblemError, match="recursive"):
        sd.compile(problem, formulation="recursive", inputs=["gravity"])
