"""Passes: any set of them leaves the outputs as they are, each saves operations somewhere, and unknown names raise."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from formulations import agree, parallel_chain, solvable
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from robots import load_robot

import sysdyn as sd
from sysdyn.model.normal_form import canonical_frames
from sysdyn.passes import ALL, ELIMINATION
from sysdyn.recursions.generate import METHODS, generate
from sysdyn.reference.rnea import newton_euler

sets = st.sets(st.sampled_from(ALL)).map(lambda chosen: [x for x in ALL if x in chosen])


models = st.one_of(
    st.builds(sd.random_tree, st.integers(1, 6), st.integers(0, 10**6)),
    st.builds(parallel_chain, st.integers(2, 5), st.integers(0, 10**6)),
)
moving = st.one_of(
    st.builds(sd.random_tree, st.integers(3, 6), st.integers(0, 10**6), st.just(("revolute", "prismatic"))),
    st.builds(parallel_chain, st.integers(2, 5), st.integers(0, 10**6)),
)


@settings(max_examples=40)
@given(models, sets, st.booleans(), st.sampled_from([("tau",), ("tau", "a", "f")]))
def test_any_passes_leave_inverse_dynamics_unchanged(model, passes, wrenches, outputs):
    agree(model, generate(model, "qdd", outputs, wrenches, budget=2_000, passes=passes), "qdd", wrenches)


@pytest.mark.slow
@settings(max_examples=40)
@given(models, sets, st.booleans(), st.sampled_from([("qdd",), ("qdd", "a", "f")]), st.sampled_from(METHODS["tau"]))
def test_any_passes_leave_forward_dynamics_unchanged(model, passes, wrenches, outputs, method):
    assume(solvable(model))
    agree(model, generate(model, "tau", outputs, wrenches, method, budget=2_000, passes=passes), "tau", wrenches)


def problems(model: sd.Model):
    """(problem, outputs, sizes of the values of its sensors)."""
    last, middle = model.body_names[-1], model.body_names[model.nb // 2]
    joint = model.joint_names[-1]
    yield sd.hybrid_dynamics(model, torque=list(model.joint_names[::2])), ("tau", "qdd"), {}
    yield sd.hybrid_dynamics(model, torque=list(model.joint_names[::2])), ("a", "qdd"), {}
    sensed = sd.inverse_dynamics(model) - sd.ExternalWrench(last) + sd.ForceTorqueSensor(joint, name="ft")
    yield sensed, ("tau", "fx"), {"ft": 6}
    gripped = sd.forward_dynamics(model) + sd.Contact(last, "point", name="grip")
    yield gripped, ("qdd",), {"grip": 3}
    accelerated = sd.inverse_dynamics(model) - sd.JointAcceleration(joint)
    yield accelerated + sd.Accelerometer(last, name="imu", components=["a_x"]), ("tau", "qdd"), {"imu": 1}
    known = sd.hybrid_dynamics(model, torque=[joint]) - sd.ExternalWrench(middle, components=["fx"])
    yield known + sd.BodyAcceleration(last, components=["a_x"], name="seen"), ("tau", "fx", "qdd"), {}


@pytest.mark.slow
@settings(max_examples=10)
@given(moving, st.integers(0, 5), st.sets(st.sampled_from(ELIMINATION)), st.integers(0, 10**6))
def test_any_passes_leave_eliminations_unchanged(model, number, passes, seed):
    problem, outputs, values = list(problems(model))[number]
    assume(sd.diagnose(problem).well_posed)
    options = {"outputs": outputs, "level": "fast", "on_singular": "nan", "backend": "python"}
    try:
        solver = sd.compile(problem, formulation="elimination", passes=list(passes), **options)
        paper = sd.compile(problem, formulation="paper", **options)
    except sd.NoSafeOrdering:
        reject()
    assert set(solver.passes) <= passes
    q, qd, qdd = model.random_state(seed=seed, batch=6)
    rng = np.random.default_rng(seed)
    fx = rng.standard_normal((6, model.nb, 6))
    motion = newton_euler(model, q, qd, qdd, fx)
    full = {"tau": motion.tau, "qdd": qdd, "fx": fx, "a": motion.a}
    known = {x: value for x, value in full.items() if x in problem.known_quantities}
    y = {name: rng.standard_normal((6, n)) for name, n in values.items()}
    found, expected = (s(q, qd, y=y, **known) for s in (solver, paper))
    ok = found.ok & expected.ok
    assume(ok.any())
    size = max(np.abs(getattr(expected, x)[ok]).max(initial=1e-3) for x in outputs)
    for x in outputs:
        error = np.abs(getattr(found, x)[ok] - getattr(expected, x)[ok]).max(initial=0.0)
        assert error <= 1e-8 * size, x


@functools.cache
def total(robot: str, known: str, passes: tuple[str, ...]) -> int:
    output = "tau" if known == "qdd" else "qdd"
    return generate(load_robot(robot)[0], known, (output,), False, passes=passes).total


@pytest.mark.parametrize("name", ALL)
def test_each_pass_saves_operations_on_a_robot(name):
    """Without it, all others there, forward and inverse dynamics of some robot need more."""
    without = tuple(x for x in ALL if x != name)
    cases = [(robot, known) for robot in ("puma560", "gen6R") for known in ("qdd", "tau")]
    assert any(total(*case, without) > total(*case, tuple(ALL)) for case in cases)


@pytest.mark.slow
def test_a_sum_of_angles_takes_the_place_of_an_angle():
    model = load_robot("puma560")[0]
    solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", external_wrenches=False)
    assert solver.flops.end_to_end.trig <= model.nv - 1  # the first axis is vertical
    assert solver.flops.end_to_end.total < total("puma560", "tau", tuple(x for x in ALL if x != "parallel_axes"))


@pytest.mark.slow
def test_eliminations_save_by_every_pass():
    model = sd.random_tree(8, seed=3)
    problem = sd.hybrid_dynamics(model, torque=list(model.joint_names[::2]))

    def count(passes) -> int:
        solver = sd.compile(problem, outputs=["tau", "qdd"], formulation="elimination", passes=passes, level="fast")
        assert solver.passes == tuple(passes)
        return solver.flops.end_to_end.total

    every = count(list(ELIMINATION))
    for name in ELIMINATION:
        assert count([x for x in ELIMINATION if x != name]) > every, name
    # what is asked for decides what may be changed
    asked = sd.compile(problem, outputs="all", formulation="elimination", level="fast")
    assert asked.passes == ("canonical_frames", "symmetric_elimination")


def test_a_body_whose_wrench_is_measured_keeps_its_parameters():
    model = canonical_frames(sd.random_tree(5, seed=1, joints=("revolute",)))[0]
    last = model.joint_names[-1]
    problem = (
        sd.inverse_dynamics(model) - sd.ExternalWrench(model.body_names[-1]) + sd.ForceTorqueSensor(last, name="ft")
    )
    passes = ["base_parameters", "symmetric_elimination"]
    solver = sd.compile(problem, outputs=["tau", "fx"], formulation="elimination", passes=passes)
    assert solver.passes == tuple(passes)
    q, qd, qdd = model.random_state(seed=2)
    fx = np.random.default_rng(0).standard_normal((model.nb, 6))
    y = sd.predict(problem, q, qd, qdd=qdd, fx=fx)
    found = solver(q, qd, y=y)
    assert found.fx == pytest.approx(fx, abs=1e-9)
    assert found.tau == pytest.approx(sd.rnea(model, q, qd, qdd, fx), rel=1e-9)


def test_names_that_are_no_pass_raise():
    problem = sd.forward_dynamics(sd.chain(2))
    with pytest.raises(sd.UnknownName, match="classical_acceleration'.*classical_accelerations"):
        sd.compile(problem, passes=["classical_acceleration"])
    with pytest.raises(sd.InvalidInput, match="passes is None"):
        sd.compile(problem, passes=None)


def test_none_of_them_may_be_applied():
    model = sd.chain(3, seed=1)
    quick = {"outputs": "qdd", "level": "fast", "backend": "python"}
    solver = sd.compile(sd.forward_dynamics(model), passes=[], **quick)
    assert solver.passes == ()
    assert "passes       none" in solver.report()
    assert solver.flops.end_to_end.total > sd.compile(sd.forward_dynamics(model), **quick).flops.end_to_end.total
    q, qd, tau = model.random_state(seed=0)
    assert solver(q, qd, tau).qdd == pytest.approx(sd.aba(model, q, qd, tau), rel=1e-9)
