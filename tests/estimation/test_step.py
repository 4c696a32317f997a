"""Compiled steps of the filter against dense matrices: prediction on manifolds, updates, limits of belief."""

from __future__ import annotations

import numpy as np
import pytest
from estimation.test_motion import KINDS, ORDERS, dense_transition
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sysdyn as sd
from sysdyn.estimation.ekf_step import FilterStep
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.residuals import CHI2_THRESHOLD, EXACT_SHARE, MeasurementData
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.model.closures import Coupling


def estimation(model: sd.Model, order: int, *further: sd.Measurement) -> EstimationProblem:
    """Encoders, poses of the last body, a gyroscope with a bias that fades and an accelerometer with a constant one."""
    first, last = (model.body_names[0], np.eye(4)), (model.body_names[-1], np.eye(4))
    encoders = [sd.JointPosition("all", noise=1e-2, name="encoders")] if any(x.nv == 1 for x in model.joints) else []
    problem = sd.Problem(model, [
        *encoders, sd.FramePose(last, noise=0.03, name="pose"),
        sd.Gyroscope(first, noise=0.1, bias=sd.GaussMarkov(0.5, 0.1), name="gyro"),
        sd.Accelerometer(last, noise=0.3, bias=sd.Constant(1.0), name="acc"), sd.ExternalWrench("all", name="none"),
        *further,
    ])  # fmt: skip
    return EstimationProblem(problem, (), 1.0, order, False)


def readings(own: EstimationProblem, rng: np.random.Generator, missing: float) -> MeasurementData:
    """Random readings of an instant, of which a share is missing."""
    y, active = {}, {}
    for m in (*own.problem.state_sensors, *own.problem.custom):
        size = len(m.components(own.model))
        y[m.name], active[m.name] = 0.3 * rng.standard_normal((1, size)), rng.random((1, size)) >= missing
    known = {x: np.zeros((1, own.problem.inputs[x].size)) for x in own.problem.known_quantities}
    return MeasurementData(np.zeros(1), y, active, known)


def begun(own: EstimationProblem, rng: np.random.Generator) -> tuple[StateTrajectory, np.ndarray]:
    """(random path of an instant, random covariance)."""
    layout, model = own.layout, own.model
    q, rates = model.random_state(seed=int(rng.integers(1000)), batch=1)[0], (1, own.motion.order - 1, model.nv)
    root = rng.standard_normal((layout.size, layout.size)) / layout.size**0.5
    path = StateTrajectory(
        layout, np.zeros(1), q, rng.standard_normal(rates), rng.standard_normal((1, layout.n_biases))
    )
    return path, 0.1 * (root @ root.T) + 1e-4 * np.eye(layout.size)


def updated(own: EstimationProblem, path: StateTrajectory, P: np.ndarray, read: MeasurementData, gate: bool):
    """(path, P, squared innovations) by the textbook: gain and covariance by dense matrices, source by source."""
    squares = 0.0
    for source in own.kinematic:
        lines = source.linearize(path, read)
        J, r = lines.J[0], lines.r[0]
        keep = (J != 0.0).any(axis=1) | (r != 0.0)  # readings that depend on no unknown count in χ², too
        J, r, exact = J[keep], r[keep], lines.exact[keep]
        known = np.diagonal(J @ P @ J.T)
        far = r * r / (known + 1.0) if gate and source is own.states else np.zeros(len(r))
        noise = np.where(exact, EXACT_SHARE**2 * known, np.maximum(far / CHI2_THRESHOLD, 1.0))
        S = J @ P @ J.T + np.diag(noise)
        K = np.linalg.solve(S, J @ P).T
        step, P = -K @ r, P - K @ S @ K.T
        squares += r @ np.linalg.solve(S, r)
        path, P = path.retract(step[None]), own.layout.transport(P, step)
    return path, P, squares


def agree(step: FilterStep, path: StateTrajectory, P: np.ndarray, tolerance: float) -> None:
    found = step.path(0.0)
    np.testing.assert_allclose(found.local_coordinates(path), 0.0, rtol=0, atol=tolerance)
    np.testing.assert_allclose(step.P, P, rtol=0, atol=tolerance * np.abs(P).max())


@settings(max_examples=8)
@example(seed=598, kinds=["prismatic"], order=3, dt=0.00097, missing=0.0)  # whose gyroscope nothing turns
@given(
    seed=st.integers(0, 1000), kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    order=st.sampled_from(ORDERS), dt=st.floats(1e-4, 0.3), missing=st.sampled_from((0.0, 0.3, 1.0)),
)  # fmt: skip
def test_steps_are_those_of_dense_matrices(seed, kinds, order, dt, missing):
    own, rng = estimation(sd.random_tree(3, seed=seed, joints=kinds), order), np.random.default_rng(seed)
    density = rng.uniform(1.0, 30.0, own.model.nv)
    (path, P), layout, span = begun(own, rng), own.layout, np.array([dt])
    step = FilterStep(layout, own.kinematic, density, gate=True)
    step.load(path, P)
    step.predict(dt)
    q, rates = own.motion.predict(path.q, path.rates, span)
    after = StateTrajectory(layout, span, q, rates, layout.bias_transition(span)[0] * path.biases)
    F, Q = dense_transition(path, after, density)
    path, P = after, F @ P @ F.T + Q
    agree(step, path, P, 1e-11)
    read, total = readings(own, rng, missing), 0.0
    for update in step.updates:
        update.linearize(read, 0.0)
        update()
        total += update.chi2
    path, P, squares = updated(own, path, P, read, gate=True)
    agree(step, path, P, 1e-9)
    assert total == pytest.approx(squares, rel=1e-9, abs=1e-12)
    if missing == 1.0:
        assert not squares and not any(update.degrees_of_freedom for update in step.updates)


def test_couplings_of_joints_hold():
    model = sd.chain(4, seed=2).replace(closures=(Coupling("joint2", "joint0", (0.1, -0.5, 0.3)),))
    own, rng = estimation(model, 3), np.random.default_rng(0)
    path, P = begun(own, rng)
    read, step = readings(own, rng, 0.0), FilterStep(own.layout, own.kinematic, np.ones(4), gate=True)
    step.load(path, P)
    for update in step.updates:
        update.linearize(read, 0.0)
        update()
    assert own.states.exact.any()
    agree(step, *updated(own, path, P, read, gate=True)[:2], 1e-9)


def test_a_reading_beyond_belief_counts_as_if_it_were_at_the_limit():
    own, rng = estimation(sd.chain(3, seed=1), 3), np.random.default_rng(0)
    path, P = begun(own, rng)
    read = readings(own, rng, 0.0)
    read.y["encoders"][0] = path.q[0]
    read.y["encoders"][0, 1] += 10.0
    for gate in (True, False):
        step = FilterStep(own.layout, own.kinematic, np.ones(3), gate)
        step.load(path, P)
        update = step.updates[0]
        update.linearize(read, 0.0)
        update()
        said = dict(update.outliers())
        assert (("encoders", 1) in said) is gate and ("encoders", 0) not in said
        if gate:
            expected = 10.0 / np.sqrt(P[1, 1] + 1e-2**2)
            assert said["encoders", 1] == pytest.approx(expected, rel=1e-9)


def test_rows_that_cannot_be_computed_say_nothing():
    inverse = sd.StateFunction("inverse", lambda ctx: [1.0 / ctx.q[0]], ["x"], noise=0.1)
    own, rng = estimation(sd.chain(3, seed=1), 3, inverse), np.random.default_rng(0)
    path, P = begun(own, rng)
    path.q[0, 0] = 0.0
    read, step = readings(own, rng, 0.0), FilterStep(own.layout, own.kinematic, np.ones(3), gate=False)
    step.load(path, P)
    for update in step.updates:
        update.linearize(read, 0.0)
        update()
    agree(step, *updated(own, path, P, read, gate=False)[:2], 1e-9)
    assert np.isfinite(step.P).all()


def test_rows_of_which_no_variance_is_positive_are_told():
    own, rng = estimation(sd.chain(3, seed=1), 3), np.random.default_rng(0)
    path, P = begun(own, rng)
    step = FilterStep(own.layout, own.kinematic, np.ones(3), gate=False)
    step.load(path, -1e3 * P)
    step.updates[0].linearize(readings(own, rng, 0.0), 0.0)
    with pytest.raises(np.linalg.LinAlgError, match="row 0 of the readings"):
        step.updates[0]()
