"""Eliminations in canonical frames: other unknowns, the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

import sysdyn as sd


def problems(model):
    last, middle = model.body_names[-1], model.body_names[model.nb // 2]
    free = sd.forward_dynamics(model) - sd.ExternalWrench(last, components=["nx", "fz"])
    yield "forward", sd.forward_dynamics(model), {}
    yield "inverse", sd.inverse_dynamics(model), {}
    yield (
        "sensor",
        sd.inverse_dynamics(model) - sd.ExternalWrench(last)
        + sd.ForceTorqueSensor(model.joint_names[-1], reference="world", name="ft"), {"ft": 6},
    )  # fmt: skip
    yield "contact", sd.forward_dynamics(model) + sd.Contact(last, "point", name="grip"), {"grip": 3}
    yield (
        "components",
        free + sd.BodyAcceleration(last, components=["alpha_x", "a_z"], name="seen"), {},
    )  # fmt: skip
    yield (
        "joint wrench",
        sd.inverse_dynamics(model) - sd.ExternalWrench(middle) + sd.JointWrench(model.joint_names[model.nb // 2]), {},
    )  # fmt: skip


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from(range(6)))
@settings(max_examples=9)
def test_answers_and_residuals_are_those_of_the_paper_s_frames(seed, number):
    model = sd.random_tree(6, seed=seed, joints=("revolute", "prismatic"))
    name, problem, values = list(problems(model))[number]
    assume(sd.diagnose(problem).well_posed)
    try:
        solver = sd.compile(problem, level="fast", formulation="elimination", on_singular="nan")
    except sd.NoSafeOrdering:
        reject()
    assert "canonical_frames" in solver.passes
    q, qd, x = model.random_state(seed=seed, batch=8)
    rng = np.random.default_rng(seed)
    given = {k: rng.standard_normal((8, model.nv)) for k in ("tau", "qdd") if k in problem.known_quantities}
    given |= {k: rng.standard_normal((8, model.nb, 6)) for k in ("fx", "a", "f") if k in problem.known_quantities}
    found = solver(q, qd, y={k: rng.standard_normal((8, n)) for k, n in values.items()}, **given)
    assert found.ok.any()
    # the solution, in the frames of bodies, satisfies the system as the paper has it
    assert found.backward_error()[found.ok].max() < 1e-9


@pytest.mark.slow
def test_it_is_taken_where_it_saves_operations_and_says_how_many():
    model = sd.random_tree(8, seed=3)
    problem = sd.hybrid_dynamics(model, torque=list(model.joint_names[::2]))
    solver = sd.compile(problem, level="fast")
    assert "canonical_frames" in solver.passes
    (before,) = [what for name, what in solver.compiled.considered if "without passes" in name]
    assert solver.flops.end_to_end.total < int(before.split()[0])
    assert "without passes" in solver.report()
    plain = sd.compile(problem, solver.ordering, level="fast")
    assert plain.passes == ("symmetric_elimination",)
    assert plain.flops.end_to_end.total > solver.flops.end_to_end.total


def test_generated_trees_have_canonical_frames_already():
    assert sd.compile(sd.forward_dynamics(sd.auto_tree(5, 1, 1.5, 0.9)), level="fast").passes == (
        "symmetric_elimination",
    )


@pytest.mark.slow
def test_derivatives_of_quantities_in_frames_of_bodies():
    model = sd.random_tree(5, seed=11, joints=("revolute",))
    problem = sd.hybrid_dynamics(model, torque=list(model.joint_names[::2]))
    solver = sd.compile(problem, "aba", level="fast", formulation="elimination")
    plain = sd.compile(problem, "aba", level="fast", formulation="paper")
    q, qd, x = model.random_state(seed=1)
    known = {"tau": x, "qdd": x}
    for of, wrt in ((("a", "f"), ("q", "tau")), ("f", ("q", "qd", "tau", "fx"))):  # rows or columns of the inverse
        J, K = (s.derivatives(of=of, wrt=wrt)(q, qd, **known) for s in (solver, plain))
        for key, value in K.items():
            assert J[key] == pytest.approx(value, rel=1e-8, abs=1e-8 * np.abs(value).max())


def test_files_and_pictures_know_the_frames(tmp_path):
    model = sd.random_tree(5, seed=2)
    problem = sd.hybrid_dynamics(model, torque=list(model.joint_names[:2]))
    solver = sd.compile(problem, level="fast")
    again = sd.load_solver(solver.save(tmp_path / "s.npz"))
    q, qd, x = model.random_state(seed=1)
    assert np.array_equal(again(q, qd, tau=x, qdd=x).f, solver(q, qd, tau=x, qdd=x).f)
    assert again.passes == solver.passes


def test_wrenches_stated_in_two_parts():
    model = sd.random_tree(4, seed=5, joints=("revolute",))
    last = model.body_names[-1]
    chosen = {"one": ["nx", "ny", "nz", "fx"], "rest": ["fy", "fz"]}
    parts = [sd.ExternalWrench(last, components=c, name=name) for name, c in chosen.items()]
    problem = sd.forward_dynamics(model) - sd.ExternalWrench(last) + parts
    with pytest.raises(sd.ProblemError, match="stated whole"):
        sd.compile(problem, "aba", level="fast", formulation="elimination")
    q, qd, tau = model.random_state(seed=1)
    fx = np.random.default_rng(0).standard_normal((model.nb, 6))
    found = sd.compile(problem, level="fast", formulation="elimination")(q, qd, tau, fx=fx)
    assert found.qdd == pytest.approx(sd.aba(model, q, qd, tau, fx), rel=1e-9)
    assert found.fx == pytest.approx(fx, abs=1e-12)


def test_the_pass_is_skipped_without_canonical_frames():
    model = sd.random_tree(4, seed=2, joints=("revolute",))
    forward = sd.forward_dynamics(model)
    noisy = sd.inverse_dynamics(model) + sd.ModelNoise("a", noise=0.1)
    for problem, options in ((forward, {"known": "substituted"}), (forward, {"inputs": ["gravity"]}), (noisy, {})):
        solver = sd.compile(problem, formulation="elimination", level="fast", **options)
        assert "canonical_frames" not in solver.passes
    with pytest.raises(sd.UnknownName, match="world_frames"):
        sd.assemble(forward, passes=["world_frames"])
