"""Estimates in canonical frames: other unknowns, the same means, covariances and tests."""

from __future__ import annotations

import numpy as np
import pytest
from estimates import dense
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sysdyn as sd
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITIES, QUANTITY

TOLERANCE = 1e-8
FAST = {"backend": "python", "level": "fast", "formulation": "elimination"}
BODY = "symmetric_elimination"  # the only pass of an elimination in the frames of bodies


def covariance(rng: np.random.Generator, n: int) -> np.ndarray:
    """A full one, with standard deviations between 0.1 and 3."""
    B = rng.standard_normal((n, n))
    return (B @ B.T / n + 0.3 * np.eye(n)) * 10.0 ** rng.uniform(-1.5, 0.5)


def components(rng: np.random.Generator, quantity: str) -> list[str]:
    names = QUANTITY[quantity].names
    return sorted(rng.choice(names, rng.integers(1, 6), replace=False), key=names.index)


def noisy_problem(seed: int) -> tuple[sd.Problem, dict]:
    """(a problem of a tree of axial joints, switches): a, f and fx stated with noise, noisy equations, gates."""
    rng = np.random.default_rng(seed)
    model = sd.random_tree(int(rng.integers(2, 5)), seed=seed, joints=("revolute", "prismatic"))
    bodies = list(rng.permutation(model.body_names))
    loaded, free = bodies[0], bodies[1:]
    measurements: list = [
        sd.JointAcceleration("all", noise=covariance(rng, model.nv), name="acceleration"),
        sd.ExternalWrench(free, name="fx"),
        sd.Prior(sd.ExternalWrench(loaded, noise=covariance(rng, 6)), name="load"),
    ]
    choices = [
        lambda: sd.JointTorque("all", noise=0.3, name="torque"),
        lambda: sd.BodyAcceleration(bodies[0], components(rng, "a"), noise=0.2, name="seen"),
        lambda: sd.BodyAcceleration(bodies[-1], noise=covariance(rng, 6), name="seen whole"),
        lambda: sd.JointWrench(bodies[0], components(rng, "f"), noise=0.5, name="felt"),
        lambda: sd.Switchable(sd.JointWrench(bodies[-1], noise=covariance(rng, 6)), name="felt whole"),
        lambda: sd.Switchable(sd.ExternalWrench(loaded, components(rng, "fx"), noise=0.1), name="cells"),
        lambda: sd.Accelerometer(bodies[0], reference="world", noise=covariance(rng, 3), name="imu"),
        lambda: sd.ForceTorqueSensor(bodies[-1], noise=0.1, name="ft"),
        lambda: sd.ModelNoise(str(rng.choice(["a", "f"])), [bodies[-1]], noise=0.1, name="motion"),
    ]
    measurements += [make() for make in choices if rng.random() < 0.5]
    problem = sd.Problem(model, measurements)
    active = {m.name: rng.random(len(m.components(model))) < 0.5 for m in problem.switchable}
    return problem, active


def close(found, expected, scale: float, tolerance: float = TOLERANCE) -> None:
    assert np.abs(np.asarray(found) - np.asarray(expected)).max(initial=0.0) <= tolerance * max(scale, 1e-300)


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=4)
def test_estimates_are_those_in_frames_of_bodies_and_of_dense_least_squares(seed):
    problem, active = noisy_problem(seed)
    model, layout = problem.model, Layout(problem.model)
    assume("canonical_frames" in sd.assemble(problem, passes="all").passes)
    q, qd, qdd = model.random_state(seed=seed)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=seed).items() if name != "fx"}
    truth = dense(problem, q, qd, y, active=active)
    d, C = truth["d"], truth["C"]
    solutions = [sd.compile(problem, passes=passes, **FAST)(q, qd, y=y, active=active) for passes in ("all", BODY)]
    for solution in solutions:
        for quantity in QUANTITIES:
            columns = layout.quantity_columns(quantity)
            close(solution[quantity].ravel(), d[columns], max(np.abs(d[columns]).max(), 1e-6 * np.abs(d).max()))
            variance = np.diag(C)[columns]
            close(solution.std(quantity).ravel() ** 2, variance, variance.max(initial=1e-6), 1e-6)
        body = model.body_names[0]
        pairs = (("a", "f"), (("fx", body), "tau"), (("f", body), ("a", body)))
        for first, second in pairs:
            rows, columns = (
                layout.quantity_columns(x) if isinstance(x, str) else list(layout.columns(*layout.block(*x)))
                for x in (first, second)
            )
            close(solution.covariance(first, second), C[np.ix_(rows, columns)], np.abs(C).max())
        close(solution.chi2(), truth["chi2"], max(1.0, truth["chi2"]))
    here, there = solutions
    close(here.log_likelihood(), there.log_likelihood(), max(1.0, abs(float(there.log_likelihood()))))
    for name, x in there.residuals().items():
        on = np.isfinite(x)
        assert np.array_equal(on, np.isfinite(here.residuals()[name]))
        close(here.residuals()[name][on], x[on], max(1.0, np.abs(x[on]).max(initial=0.0)))


def arm() -> sd.Problem:
    model = sd.random_tree(6, seed=6, joints=("revolute",))
    return sd.Problem(model, [
        sd.JointAcceleration("all", noise=0.1, name="acceleration"),
        sd.JointTorque("all", noise=0.3, name="torque"),
        sd.ExternalWrench("all"),
        sd.Accelerometer(model.body_names[-1], noise=0.05, name="imu"),
        sd.Switchable(sd.ForceTorqueSensor(model.joint_names[1], noise=0.1), name="ft"),
    ])  # fmt: skip


@pytest.mark.slow
def test_they_are_taken_where_they_save_operations_and_say_how_many():
    solver = sd.compile(arm(), level="fast")
    assert "canonical_frames" in solver.passes
    (before,) = [what for name, what in solver.compiled.considered if "without passes" in name]
    plain = sd.compile(arm(), level="fast", passes=BODY)
    assert solver.flops.end_to_end.total < int(before.split()[0])  # of the same order
    assert solver.flops.end_to_end.total < plain.flops.end_to_end.total


@pytest.mark.slow
def test_files_bound_calls_and_covariances_of_a_call(tmp_path):
    problem = arm()
    solver = sd.compile(problem, level="fast")
    again = sd.load_solver(solver.save(tmp_path / "s.npz"))
    q, qd, qdd = problem.model.random_state(seed=1, batch=4)
    y = {k: x for k, x in sd.predict(problem, q, qd, qdd, seed=1).items() if k != "ExternalWrench"}
    noise, active = {"imu": [0.5, 0.01, 0.1]}, {"ft": np.array([True, False, True, False])}
    here, there = (s(q, qd, y=y, noise=noise, active=active) for s in (solver, again))
    plain = sd.compile(problem, level="fast", passes=BODY)(q, qd, y=y, noise=noise, active=active)
    for quantity in ("tau", "a", "f"):
        assert np.array_equal(here[quantity], there[quantity])
        assert np.array_equal(here.std(quantity), there.std(quantity))
        close(here[quantity], plain[quantity], np.abs(plain[quantity]).max())
        close(here.std(quantity), plain.std(quantity), plain.std(quantity).max())
    J, K = (
        s.derivatives(of=("tau", "f"), wrt=("q", "imu"))(q, qd, y=y)
        for s in (solver, sd.compile(problem, level="fast", passes=BODY))
    )
    for key, value in K.items():
        close(J[key], value, np.abs(value).max())
    learned = [
        sd.learn_noise(s, q, qd, y=y, learn=["imu"], iterations=2).noise["imu"]
        for s in (solver, sd.compile(problem, level="fast", passes=BODY))
    ]
    assert learned[0] == pytest.approx(learned[1], rel=1e-7)


def test_bodies_with_noisy_equations_keep_their_frames():
    """Their noise is declared in these."""
    model = sd.random_tree(4, seed=2, joints=("revolute",))
    first, *rest = model.body_names
    base = sd.inverse_dynamics(model) + sd.Accelerometer(first, noise=0.1)
    system = sd.assemble(base + sd.ModelNoise("f", [first], noise=0.1), passes="all")
    assert "canonical_frames" in system.passes
    assert all(len(terms) == 1 for terms in system.output_terms("a")[:6])
    assert any(len(terms) > 1 for terms in system.output_terms("a")[6:])
    assert "canonical_frames" not in sd.assemble(base + sd.ModelNoise("a", noise=0.1), passes="all").passes
    assert "canonical_frames" in sd.assemble(base + sd.ModelNoise("tau", noise=0.1), passes="all").passes


def test_wrenches_stated_with_noise_stay_in_their_frames():
    model = sd.random_tree(4, seed=2, joints=("revolute",))
    last = model.body_names[-1]
    problem = sd.inverse_dynamics(model) - sd.ExternalWrench(last) + sd.ExternalWrench(last, noise=0.1, name="cells")
    system = sd.assemble(problem, passes="all")
    rows = dict(zip(system.plain.row_names, system.plain.assembly.rows, strict=True))
    assert all(len(rows[f"y:cells: fx({last}).{c}"]) == 1 for c in QUANTITY["fx"].names)
    assert system.plain.row_names == sd.assemble(problem).plain.row_names  # as residuals and diagnoses know them


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", [1, 4])
def test_classical_accelerations_have_the_covariance_of_spatial_ones(seed):
    model = sd.random_tree(4, seed=seed, joints=("revolute", "prismatic"))
    first, *_, last = model.body_names
    problem = sd.Problem(model, [
        sd.JointAcceleration("all", noise=0.1, name="acceleration"),
        sd.JointTorque("all", noise=0.3, name="torque"),
        sd.ExternalWrench("all"),
        sd.BodyAcceleration(last, noise=covariance(np.random.default_rng(seed), 6), name="seen"),
        sd.ModelNoise("a", [first], noise=0.1, name="motion"),
    ])  # fmt: skip
    q, qd, qdd = model.random_state(seed=seed, batch=3)
    y = {k: x for k, x in sd.predict(problem, q, qd, qdd, seed=1).items() if k != "ExternalWrench"}
    options = {"backend": "python", "outputs": ["tau", "qdd"], "formulation": "elimination", "level": "fast"}
    solver = sd.compile(problem, **options)
    assert "classical_accelerations" in solver.passes and "base_parameters" not in solver.passes
    here, there = (s(q, qd, y=y) for s in (solver, sd.compile(problem, passes=BODY, **options)))
    for quantity in ("tau", "qdd"):
        close(here[quantity], there[quantity], np.abs(there[quantity]).max())
    for quantity in QUANTITIES:
        close(here.std(quantity), there.std(quantity), there.std(quantity).max(), 1e-7)
    close(here.residuals()["motion"], there.residuals()["motion"], 1.0)
