"""Estimation from noisy sensors against dense least squares over the null space of the exact equations."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from estimates import FAST, dense, random_problem, small
from scipy import stats

import sysdyn as sd
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITIES


def close(found, expected, scale, tolerance):
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.abs(found - expected).max(initial=0.0) <= tolerance * max(scale, 1e-300)


def check(seed: int, tolerance: float = 1e-8) -> float:
    """Compare one random problem; returns the condition number of the whitened least squares."""
    problem, active = random_problem(seed)
    model = problem.model
    solver = sd.compile(problem, **FAST)
    q, qd, qdd = model.random_state(seed=seed)
    y = sd.predict(problem, q, qd, qdd, seed=seed)
    y.pop("ExternalWrench", None)
    solution = solver(q, qd, y=y, active=active)
    truth = dense(problem, q, qd, y, active=active)
    layout, d, C = Layout(model), truth["d"], truth["C"]
    for quantity in QUANTITIES:
        columns = layout.quantity_columns(quantity)
        scale = max(np.abs(d[columns]).max(), 1e-6 * np.abs(d).max())  # what vanishes is known to rounding
        close(solution[quantity].ravel(), d[columns], scale, tolerance)
    columns, others = layout.quantity_columns("tau"), layout.quantity_columns("a")
    sigma = np.sqrt(np.maximum(np.diag(C), 0.0))
    for quantity in ("tau", "qdd"):  # squared: the root of rounding is no small number
        places = layout.quantity_columns(quantity)
        close(solution.std(quantity).ravel() ** 2, sigma[places] ** 2, sigma.max() ** 2, tolerance)
    close(solution.covariance("tau", "a"), C[np.ix_(columns, others)], np.abs(C).max(), tolerance)
    close(solution.chi2(), truth["chi2"], max(1.0, truth["chi2"]), tolerance)
    assert solution.redundancy == truth["redundancy"]
    residuals, w, leverage = solution.residuals(), solution.normalised_residuals(), solution.leverage()
    total = 0.0
    for name, (rows, S) in truth["parts"].items():
        on = np.broadcast_to(active.get(name, True), residuals[name].shape)
        r = -(truth["A"][rows] @ d + truth["b"][rows])
        close(residuals[name][on], r, max(np.abs(r).max(), np.sqrt(S.max())), tolerance)
        H = truth["A"][rows] @ C @ truth["A"][rows].T
        P = np.linalg.inv(S)
        close(leverage[name][on], np.diag(H @ P), 1.0, tolerance)
        total += leverage[name][on].sum()
        M = np.diag(P - P @ H @ P)
        checked = M > 1e-6 * np.diag(P)
        close(w[name][on][checked], (P @ r)[checked] / np.sqrt(M[checked]), 1.0, 1e-6)
    equations = sum(len(rows) for rows, _ in truth["parts"].values())
    close(total, equations - truth["redundancy"], 1.0, 1e-6)
    K = sd.assemble(problem)
    inputs = {"q": q, "qd": qd, **{f"active:{k}": v.astype(float) for k, v in active.items()}}
    _, log_det = np.linalg.slogdet(K.matrix(K.values(inputs)[0][0]).toarray())
    expected = -0.5 * (truth["chi2"] + log_det + truth["redundancy"] * np.log(2 * np.pi))
    close(solution.log_likelihood(), expected, max(1.0, abs(expected)), tolerance)
    return truth["condition"]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 7, 9, 11])
def test_random_problems_agree_with_dense_least_squares(seed):
    check(seed)


def test_a_measurement_without_components():
    """A tree of fixed joints has no accelerations of joints to measure."""
    model = sd.random_tree(1, seed=0, joints=("fixed",))
    measurements = [sd.JointAcceleration("all", noise=1.0), sd.ExternalWrench("all", name="fx", noise=0.5)]
    solver = sd.compile(sd.Problem(model, measurements), **FAST)
    y = {"JointAcceleration": np.zeros(0), "fx": np.ones(6)}
    np.testing.assert_allclose(solver(np.zeros(0), np.zeros(0), y=y).fx[0], 1.0)


@pytest.fixture(scope="module")
def solver():
    return sd.compile(small(), **FAST)


def simulated(problem, n, seed=0, noise_seed=1):
    q, qd, qdd = problem.model.random_state(seed=seed, batch=n)
    y = sd.predict(problem, q, qd, qdd, seed=noise_seed)
    y.pop("ExternalWrench", None)
    return q, qd, qdd, y


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("ratio", [1e-8, 1e8, 1e-4, 1e4])
def test_covariances_replaced_at_call_time(solver, ratio):
    """Ratios of variances up to 1e8, both ways; exact equations stay exact."""
    q, qd, _, y = simulated(solver.problem, 1)
    S = np.diag([0.05, 0.08, 0.06])
    noise = {"torque": 0.3 * np.sqrt(ratio), "imu": S}
    solution = solver(q[0], qd[0], y={k: v[0] for k, v in y.items()}, noise=noise)
    covariances = {"torque": 0.09 * ratio * np.eye(3), "imu": S}
    truth = dense(solver.problem, q[0], qd[0], {k: v[0] for k, v in y.items()}, covariances)
    layout = Layout(solver.model)
    for quantity in QUANTITIES:
        columns = layout.quantity_columns(quantity)
        close(solution[quantity].ravel(), truth["d"][columns], np.abs(truth["d"]).max(), 1e-8)
    for quantity in QUANTITIES:
        sigma = np.sqrt(np.diag(truth["C"]))
        expected = sigma[layout.quantity_columns(quantity)]
        np.testing.assert_allclose(solution.std(quantity).ravel(), expected, rtol=1e-8, atol=1e-14 * sigma.max())
    exact = [r for r in range(len(truth["A"])) if r not in sd.assemble(solver.problem).plain.noise_by_row]
    assert np.abs(solution.residual()[exact]).max() <= 1e-11 * np.abs(truth["d"]).max()


def test_tests_are_distributed_as_said(solver):
    """χ² and w of 4,000 simulated states; fixed seeds."""
    q, qd, _, y = simulated(solver.problem, 4000)
    solution = solver(q, qd, y=y)
    assert stats.kstest(solution.chi2(), stats.chi2(solution.redundancy[0]).cdf).pvalue > 1e-3
    for w in solution.normalised_residuals().values():
        for k in range(w.shape[1]):
            if np.isfinite(w[:, k]).all():
                assert stats.kstest(w[:, k], stats.norm.cdf).pvalue > 1e-4


def test_a_fault_is_the_largest_normalised_residual(solver):
    q, qd, _, y = simulated(solver.problem, 200)
    y["torque"][:, 1] += 12.0
    w = {name: np.abs(x) for name, x in solver(q, qd, y=y).normalised_residuals().items()}
    largest = np.max([np.nanmax(x, axis=1) for x in w.values()], axis=0)
    assert np.mean(w["torque"][:, 1] == largest) > 0.95


def test_expectation_maximisation_finds_the_declared_noise(solver):
    q, qd, _, y = simulated(solver.problem, 1500)
    begin = {"torque": 1.0, "acc": 0.1, "imu": 0.2 * np.eye(3)}
    learned = sd.learn_noise(solver, q, qd, y=y, learn=("torque", "acc", "imu"), noise=begin, iterations=150)
    assert np.diff(learned.log_likelihood).min() > -1e-6 * abs(learned.log_likelihood[0])
    np.testing.assert_allclose(learned.noise["acc"], 0.2, rtol=0.15)
    np.testing.assert_allclose(learned.noise["imu"], [[0.05, 0.01, 0], [0.01, 0.08, 0.02], [0, 0.02, 0.06]], atol=0.015)


def test_expectation_maximisation_with_components_missing(solver):
    """The likelihood never falls and the matrix is found though components are switched off at random."""
    q, qd, _, y = simulated(solver.problem, 1500)
    on = np.random.default_rng(0).random((1500, 3)) < 0.7
    learned = sd.learn_noise(
        solver, q, qd, y=y, learn="imu", noise={"imu": 0.3 * np.eye(3)}, active={"imu": on}, iterations=60
    )
    assert np.diff(learned.log_likelihood).min() > -1e-6 * abs(learned.log_likelihood[0])
    np.testing.assert_allclose(learned.noise["imu"], [[0.05, 0.01, 0], [0.01, 0.08, 0.02], [0, 0.02, 0.06]], atol=0.015)


def test_what_is_switched_off_has_no_residual(solver):
    q, qd, _, y = simulated(solver.problem, 1)
    y = {k: v[0] for k, v in y.items()}
    off = solver(q[0], qd[0], y={**y, "imu": y["imu"] + [100.0, 0, 0]}, active={"imu": [False, True, True]})
    assert np.isnan(off.residuals()["imu"][0]) and np.isnan(off.normalised_residuals()["imu"][0])
    assert off.leverage()["imu"][0] == 0.0
    assert np.isfinite(off.residuals()["imu"][1:]).all()
    again = solver(q[0], qd[0], y=y, active={"imu": [False, True, True]})
    np.testing.assert_allclose(off.tau, again.tau, rtol=1e-14)


@pytest.mark.slow
def test_batch_single_machine_code_and_stored_forms_agree(solver, tmp_path):
    q, qd, _, y = simulated(solver.problem, 20)
    batch = solver(q, qd, y=y)
    one = solver(q[3], qd[3], y={k: v[3] for k, v in y.items()})
    np.testing.assert_allclose(one.tau, batch.tau[3], rtol=1e-13)
    compiled = sd.compile(small())
    solvers = [compiled, pickle.loads(pickle.dumps(compiled)), sd.load_solver(compiled.save(tmp_path / "x.sysdyn"))]
    for other in solvers:
        found = other(q, qd, y=y)
        np.testing.assert_allclose(found.tau, batch.tau, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.std("tau"), batch.std("tau"), rtol=1e-9)
        np.testing.assert_allclose(found.log_likelihood(), batch.log_likelihood(), rtol=1e-9)
    step = compiled.bind(q[0].copy(), qd[0].copy(), y={k: v[0].copy() for k, v in y.items()})
    step()
    np.testing.assert_allclose(step.out["tau"], batch.tau[0], rtol=1e-10, atol=1e-10)


def test_noisy_quantities_can_be_removed():
    """problem − quantity leaves the noise of the components that stay."""
    model = sd.chain(3, seed=1)
    for noise in (0.3, [0.1, 0.2, 0.3], np.diag([1.0, 2.0, 3.0]) + 0.1):
        problem = sd.Problem(model, [sd.ExternalWrench("all"), sd.JointAcceleration("all", noise=1.0, name="acc"),
                                     sd.JointTorque("all", noise=noise, name="torque")])  # fmt: skip
        rest = problem - sd.JointTorque(model.joint_names[1])
        kept = next(m for m in rest.measurements if m.name == "torque")
        assert len(kept.components(model)) == 2
        whole = noise_of(problem.measurements[2], model)
        left = noise_of(kept, model)
        np.testing.assert_allclose(
            left.matrix(left.declared), whole.matrix(whole.declared)[np.ix_([0, 2], [0, 2])], rtol=1e-15
        )


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"torque": -0.1}, "torque"),
        ({"torque": np.nan}, "torque"),
        ({"imu": np.array([[1.0, 0.5, 0], [0.2, 1.0, 0], [0, 0, 1.0]])}, r"imu.*not symmetric"),
        ({"imu": np.diag([1.0, -1.0, 1.0])}, r"imu.*not positive definite"),
        ({"imu": 0.1}, r"imu.*shape"),
        ({"torqe": 0.1}, "torque"),
    ],
)
def test_bad_noise_is_named(solver, noise, message):
    q, qd, _, y = simulated(solver.problem, 1)
    with pytest.raises((sd.InvalidInput, sd.UnknownName), match=message):
        solver(q, qd, y=y, noise=noise)


def test_bad_switches_and_values_are_named(solver):
    q, qd, _, y = simulated(solver.problem, 1)
    with pytest.raises(sd.UnknownName, match="imu"):
        solver(q, qd, y=y, active={"imuu": False})
    with pytest.raises(sd.InvalidInput, match="imu"):
        solver(q, qd, y=y, active={"imu": 0.5})
    with pytest.raises(sd.InvalidInput, match="ft"):
        solver(q, qd, y={**y, "ft": np.full((1, 6), np.nan)})
    with pytest.raises(sd.ProblemError, match="exact"):
        sd.Prior(sd.JointTorque("all"))
    with pytest.raises(sd.ProblemError, match="no measurement"):
        sd.compile(sd.inverse_dynamics(solver.model), **FAST)(q, qd, np.zeros((1, 3))).std("tau")
