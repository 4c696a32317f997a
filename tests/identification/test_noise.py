"""Learnt covariances: within their own statistical errors of the true ones, at a likelihood that never fell."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import estimates
import numpy as np
import pytest

import sysdyn as sd

ARM = sd.chain(4, seed=1)
MATRIX = np.array([[0.05, 0.01, 0.0], [0.01, 0.08, 0.02], [0.0, 0.02, 0.06]])
STATES = 1500


def problem(*more: sd.Measurement, torque: float = 0.5, wrenches: sd.Measurement | None = None) -> sd.Problem:
    return sd.Problem(ARM, [
        sd.JointAcceleration("all", noise=0.2, name="encoders"), sd.JointTorque("all", noise=torque, name="torques"),
        wrenches or sd.ExternalWrench("all"), *more,
    ])  # fmt: skip


def imu(noise: object = 0.05) -> sd.Measurement:
    return sd.Accelerometer("body3", noise=noise, name="imu")


# problems whose declared noise is the true one; covariances to begin with; what is learnt
CASES = {
    "too large a guess": (problem(imu()), {"imu": 1.0}, ["imu"]),
    "too small a guess": (problem(imu(), torque=5.0), {"torques": 0.05}, ["torques"]),
    "much too large a guess": (problem(imu(), torque=0.05), {"torques": 1.0}, ["torques"]),
    "a matrix": (problem(imu(MATRIX)), {"imu": 0.3 * np.eye(3), "torques": 2.0}, ["imu", "torques"]),
    "a prior": (
        problem(sd.ForceTorqueSensor("joint3", noise=0.1, name="cell"),
                sd.Prior(sd.ExternalWrench("body3", noise=3.0), name="push"),
                torque=0.1, wrenches=sd.ExternalWrench(["body0", "body1", "body2"], name="none")),
        {"push": 1.0}, ["push"],
    ),
    "all, in part undetermined": (problem(imu()), {"torques": 5.0, "encoders": 2.0, "imu": 0.5}, None),
}  # fmt: skip


def learnt(problem: sd.Problem, begin: dict, learn: Sequence[str] | None, **given) -> sd.Learned:
    solver = sd.compile(problem, outputs=["tau"], level="fast", formulation="elimination")
    q, qd, qdd = ARM.random_state(seed=0, batch=STATES)
    fx = np.zeros((STATES, ARM.nb, 6))
    if any(m.name == "push" for m in problem.noisy):
        fx[:, 3] = 3.0 * np.random.default_rng(2).standard_normal((STATES, 6))
    y = sd.predict(problem, q, qd, qdd, fx, seed=1)
    y = {name: x for name, x in y.items() if name not in ("ExternalWrench", "push", "none")}
    return sd.learn_noise(solver, q, qd, y=y, noise=begin, learn=learn, **given)


def deviations(noise: np.ndarray) -> np.ndarray:
    return np.sqrt(np.diagonal(noise)) if np.ndim(noise) == 2 else np.asarray(noise)


@pytest.mark.slow(after=1)
@pytest.mark.filterwarnings("ignore::sysdyn.AccuracyWarning")
@pytest.mark.parametrize("name", CASES)
def test_true_noise_is_found_within_its_statistical_error(name):
    true, begin, learn = CASES[name]
    found = learnt(true, begin, learn)
    assert found.converged and len(found.log_likelihood) <= 60 and (np.diff(found.log_likelihood) >= 0.0).all()
    off = []
    for m in true.noisy:
        if m.name in found.error:
            wrong = np.log(deviations(found.noise[m.name]) / deviations(m.noise)) / found.error[m.name]
            off += wrong[found.error[m.name] < 1.0].tolist()
    # of normally distributed errors the greatest of some tens, and their size
    assert np.abs(off).max() < 4.0 and np.sqrt(np.mean(np.square(off))) < 2.0


def information(problem: sd.Problem, name: str, states: int) -> np.ndarray:
    """Fisher information of a state about the logarithms of the standard deviations of a measurement, mean of many.

    2 S_ij² with S = 1 − U U^T of whitened residuals, U an orthonormal basis of what unknowns can explain of them.
    """
    q, qd, qdd = ARM.random_state(seed=99, batch=states)
    y = sd.predict(problem, q, qd, qdd, seed=1)
    total: np.ndarray = np.zeros(())
    for k in range(states):
        found = estimates.dense(problem, q[k], qd[k], {x: v[k] for x, v in y.items() if x != "ExternalWrench"})
        rows, deviation = (np.concatenate(x) for x in zip(*(
            (rows, np.sqrt(np.diagonal(S))) for rows, S in found["parts"].values()
        ), strict=True))  # fmt: skip
        U = np.linalg.qr((found["A"][rows] / deviation[:, None]) @ found["N"])[0]
        own = np.isin(rows, found["parts"][name][0])
        total = total + 2.0 * (np.eye(len(rows)) - U @ U.T)[np.ix_(own, own)] ** 2
    return total / states


@pytest.mark.slow
@pytest.mark.parametrize("name", ["much too large a guess", "too large a guess"])
def test_errors_are_as_small_as_any_unbiased_estimate_has_them(name):
    """By the bound of Cramér and Rao: no number of iterations gets more out of so many states."""
    true, begin, [learn] = CASES[name]
    bound = np.sqrt(np.diag(np.linalg.inv(STATES * information(true, learn, 100))))
    solver, off = sd.compile(true, outputs=["tau"], level="fast", formulation="elimination"), []
    (m,) = (m for m in true.noisy if m.name == learn)
    for seed in range(8):
        q, qd, qdd = ARM.random_state(seed=seed, batch=STATES)
        y = {x: v for x, v in sd.predict(true, q, qd, qdd, seed=100 + seed).items() if x != "ExternalWrench"}
        found = sd.learn_noise(solver, q, qd, y=y, noise=begin, learn=[learn])
        assert found.converged and len(found.log_likelihood) <= 12
        np.testing.assert_allclose(found.error[learn], bound, rtol=0.25)
        off.append(np.log(found.noise[learn] / m.noise) / bound)
    assert 0.6 < np.sqrt(np.mean(np.square(off))) < 1.4  # of 24 or 32 normal numbers


@pytest.mark.slow
def test_no_change_raises_the_likelihood_of_what_was_learnt():
    true, begin, learn = CASES["a matrix"]
    found = learnt(true, begin, learn)
    solver = sd.compile(true, outputs=["tau"], level="fast", formulation="elimination")
    q, qd, qdd = ARM.random_state(seed=0, batch=STATES)
    y = {name: x for name, x in sd.predict(true, q, qd, qdd, seed=1).items() if name != "ExternalWrench"}
    rng = np.random.default_rng(0)
    best = found.log_likelihood[-1]
    for _ in range(20):
        B = np.eye(3) + 0.03 * rng.standard_normal((3, 3))
        other = {
            "imu": B @ found.noise["imu"] @ B.T,
            "torques": found.noise["torques"] * np.exp(0.03 * rng.standard_normal(4)),
        }
        assert np.sum(solver(q, qd, y=y, noise=other).log_likelihood()) < best + 1e-3


@pytest.mark.slow
def test_the_derivative_of_the_likelihood_is_that_of_the_moments():
    true = problem(imu(MATRIX), sd.Switchable(sd.JointAcceleration("joint1", noise=0.4, name="gyro")))
    solver = sd.compile(true, outputs=["tau"], level="fast", formulation="elimination")
    q, qd, qdd = ARM.random_state(seed=0, batch=30)
    y = {name: x for name, x in sd.predict(true, q, qd, qdd, seed=1).items() if name != "ExternalWrench"}
    on = np.arange(30) % 3 > 0

    def likelihood(noise):
        return solver(q, qd, y=y, noise=noise, active={"gyro": on}).log_likelihood()

    begin = {"torques": np.full(4, 0.4), "gyro": np.full(1, 0.3), "imu": 1.3 * MATRIX}
    moments = solver(q, qd, y=y, noise=begin, active={"gyro": on}).noise_moments([*begin])
    step, L = 1e-5, np.linalg.cholesky(begin["imu"])
    for name in ("torques", "gyro"):
        for k in range(len(begin[name])):
            both = [
                begin | {name: begin[name] * np.exp(sign * step * (np.arange(len(begin[name])) == k))}
                for sign in (1, -1)
            ]
            slope = (likelihood(both[0]) - likelihood(both[1])) / (2.0 * step)
            np.testing.assert_allclose(np.subtract(*moments[name])[:, k], slope, atol=1e-5)
    for k, (i, j) in enumerate(zip(*np.tril_indices(3), strict=True)):
        X = np.zeros((3, 3))
        X[i, j] = step
        factors = [L @ (np.eye(3) + sign * X) for sign in (1, -1)]
        slope = likelihood(begin | {"imu": factors[0] @ factors[0].T}) - likelihood(
            begin | {"imu": factors[1] @ factors[1].T}
        )
        np.testing.assert_allclose(np.subtract(*moments["imu"])[:, k], slope / (2.0 * step), atol=1e-5)


@pytest.mark.slow
def test_what_the_log_does_not_determine_is_said():
    """Only the sum of the variances of two sensors that always agree; and nothing of what nobody checks."""
    sum_alone = problem(
        imu(),
        sd.JointTorque("joint3", noise=0.5, name="again"),
        sd.ModelNoise("tau", ["body3"], noise=0.5, name="friction"),
    )
    with pytest.warns(sd.AccuracyWarning, match=r"does not determine .*'encoders': qdd\(joint3\)"):
        found = learnt(problem(imu()), {}, ["encoders"])
    assert found.converged and found.error["encoders"][3] > 1.0 and (found.error["encoders"][:3] < 0.1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learnt(sum_alone, {"imu": 1.0}, "imu").converged
    unchecked = (
        sd.inverse_dynamics(ARM) - sd.JointAcceleration("all") + sd.JointAcceleration("all", noise=0.3, name="alone")
    )
    with pytest.warns(sd.AccuracyWarning, match=r"'alone': .*\(inf\)"):
        found = learnt(unchecked, {"alone": 0.7}, None)
    assert np.allclose(found.noise["alone"], 0.7, rtol=1e-6) and np.isinf(found.error["alone"]).all()


@pytest.mark.slow
def test_states_that_were_not_solved_do_not_count():
    true = sd.Problem(ARM, [
        sd.Switchable(sd.JointAcceleration("all", noise=0.2, name="encoders")),
        sd.JointTorque("all", noise=0.5, name="torques"), sd.Accelerometer("body3", noise=0.05, name="imu"),
        sd.ExternalWrench("all"),
    ])  # fmt: skip
    whole = learnt(true, {"imu": 0.5}, "imu")
    on = np.ones((STATES, 4), dtype=bool)
    some = learnt(true, {"imu": 0.5}, "imu", active={"encoders": on}, on_singular="nan")
    np.testing.assert_allclose(some.noise["imu"], whole.noise["imu"], rtol=1e-9)
    with pytest.raises(sd.InvalidInput, match="iterations is 0"):
        learnt(true, {}, "imu", iterations=0)
    assert not learnt(true, {"imu": 0.5}, "imu", iterations=1).converged


@pytest.mark.parametrize("on_singular", ["raise", "nan"])
@pytest.mark.parametrize("learn", [None, ["encoders", "imu"]])
def test_steps_that_are_refused_are_no_convergence(learn, on_singular):
    """Readings without noise: the likelihood grows without end as σ goes to zero, until digits are lost."""
    solver = sd.compile(problem(imu()), outputs=["tau"], level="fast", formulation="elimination")
    q, qd, qdd = ARM.random_state(seed=0, batch=60)
    y = sd.predict(solver.problem, q, qd, qdd, np.zeros((60, ARM.nb, 6)))
    y["torques"] = y["torques"] + (0.3 * np.random.default_rng(0).standard_normal((60, 4)) if learn else 0.0)
    y = {name: y[name] for name in ("encoders", "torques", "imu")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = sd.learn_noise(solver, q, qd, y=y, learn=learn, on_singular=on_singular)
    assert any(x.category is sd.AccuracyWarning and "not converged" in str(x.message) for x in caught)
    assert not found.converged and 2 < len(found.log_likelihood) < 100
    assert (np.diff(found.log_likelihood) > 0.0).all() and all(np.isfinite(x).all() for x in found.noise.values())


@pytest.mark.filterwarnings("ignore::sysdyn.AccuracyWarning")
def test_noise_that_is_not_learnt_is_that_of_the_call():
    begin = {"imu": np.full(3, 0.5), "torques": np.full(4, 0.4)}
    found = learnt(problem(imu()), begin, "imu", iterations=1)
    begin["torques"] *= 2.0
    assert (found.noise["torques"] == 0.4).all()
