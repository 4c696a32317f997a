"""Estimation from noisy sensors against dense algebra: null space of the exact equations, whitened least squares."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy  # which loads scipy.stats where it is first used
from estimates import FAST

import sysdyn as sd
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.noise import noise_of

QUANTITIES = ("tau", "qdd", "fx", "a", "f")


def dense(problem: sd.Problem, q, qd, y: dict, noise: dict | None = None) -> dict:
    """Mean, covariance and what the residuals are, by other means than the library's."""
    system = sd.assemble(problem).plain
    inputs = {"q": q, "qd": qd, **{f"y:{name}": x for name, x in y.items() if name != "known"}}
    if "known" in y:
        inputs |= y["known"]
    entries, b = system.values(inputs)
    A, b = system.matrix(entries[0]).toarray(), b[0]
    places: dict[str, dict[int, int]] = {}
    for r, (n, k) in system.noise_by_row.items():
        places.setdefault(n.name, {})[k] = r
    names = [m.name for m in problem.noisy]
    rows = [places[name][k] for name in names for k in sorted(places[name])]
    blocks = []
    for m in problem.noisy:
        found = noise_of(m, problem.model)
        blocks.append(found.matrix(found.numbers((noise or {}).get(m.name, m.noise))))
    S = scipy.linalg.block_diag(*blocks)
    exact = [r for r in range(len(A)) if r not in system.noise_by_row]
    E, e, Y, y0 = A[exact], b[exact], A[rows], b[rows]
    N = scipy.linalg.null_space(E)
    d0 = np.linalg.lstsq(E, -e, rcond=None)[0]
    W = np.linalg.inv(np.linalg.cholesky(S))
    u = np.linalg.lstsq(W @ Y @ N, -W @ (Y @ d0 + y0), rcond=None)[0]
    d = d0 + N @ u
    C = N @ np.linalg.inv(N.T @ Y.T @ W.T @ W @ Y @ N) @ N.T
    eps = Y @ d + y0
    K = np.block([
        [np.zeros((len(d), len(d))), E.T, Y.T],
        [E, np.zeros((len(e), len(e) + len(eps)))],
        [Y, np.zeros((len(eps), len(e))), -S],
    ])  # fmt: skip
    nu = len(rows) - N.shape[1]
    chi2 = float(eps @ np.linalg.solve(S, eps))
    M = np.linalg.inv(S) - np.linalg.solve(S, Y @ C @ Y.T) @ np.linalg.inv(S)
    return {
        "d": d, "C": C, "eps": eps, "S": S, "M": M, "chi2": chi2, "nu": nu, "names": names,
        "log_likelihood": -0.5 * (chi2 + np.linalg.slogdet(K)[1] + nu * np.log(2 * np.pi)), "layout": system.layout,
        "E": E, "e": e, "free": N.shape[1],
    }  # fmt: skip


def joined(parts: dict, names) -> np.ndarray:
    return np.concatenate([parts[name] for name in names])


def random_problem(seed: int) -> sd.Problem:
    """A random robot with random sensors, always with enough of them."""
    rng = np.random.default_rng(seed)
    model = sd.random_tree(int(rng.integers(1, 5)), seed=seed)  # joints of all types
    bodies = list(model.body_names)

    def sd_of(n: int):
        """A standard deviation, one for each component, or a covariance."""
        kind = rng.integers(3)
        if kind == 0:
            return float(10.0 ** rng.uniform(-2, 1))
        if kind == 1:
            return 10.0 ** rng.uniform(-2, 1, n)
        L = np.tril(rng.standard_normal((n, n))) * 0.2 + np.diag(10.0 ** rng.uniform(-1, 0.5, n))
        return L @ L.T

    known = [
        sd.JointAcceleration("all", noise=sd_of(model.nv), name="acceleration"),
        sd.JointTorque("all", noise=sd_of(model.nv), name="torque"),
    ]
    loaded = [body for body in bodies if rng.random() < 0.4]
    if rest := [body for body in bodies if body not in loaded]:
        known.append(sd.ExternalWrench(rest, name="fx"))
    if loaded:
        known.append(sd.Prior(sd.ExternalWrench(loaded, noise=float(10.0 ** rng.uniform(-1, 1))), name="fx prior"))
    for k in range(rng.integers(0, 4)):
        body = bodies[rng.integers(len(bodies))]
        sensor = rng.integers(3)
        if sensor == 0:
            known.append(sd.ForceTorqueSensor(body, noise=sd_of(6), name=f"ft{k}"))
        elif sensor == 1:
            reference = "world" if rng.random() < 0.5 else "local"
            known.append(sd.Accelerometer(body, reference=reference, noise=sd_of(3), name=f"imu{k}"))
        else:
            known.append(sd.LoadCells(body, ["nx", "fz"], noise=sd_of(2), name=f"cells{k}"))
    if rng.random() < 0.3:
        known.append(sd.ModelNoise("f", noise=float(10.0 ** rng.uniform(-2, 0)), name="model"))
    return sd.Problem(model, known)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", [1, 8, 17, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 5))])
def test_random_problems_against_dense_algebra(seed):
    problem = random_problem(seed)
    model = problem.model
    solver = sd.compile(problem, **FAST)
    q, qd, qdd = model.random_state(seed=seed)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=seed).items() if name != "fx"}
    solution, expected = solver(q, qd, y=y), dense(problem, q, qd, y)
    d, C, layout = expected["d"], expected["C"], expected["layout"]
    scale = np.abs(d).max()
    for quantity in QUANTITIES:
        columns = layout.quantity_columns(quantity)
        assert np.abs(getattr(solution, quantity).ravel() - d[columns]).max() <= 1e-8 * scale, quantity
        variance = np.diag(C)[columns]
        found = solution.std(quantity).ravel()
        assert np.abs(found**2 - variance).max() <= 1e-8 * max(variance.max(), 1e-12), quantity
    columns = layout.quantity_columns("tau"), layout.quantity_columns("qdd")
    assert np.abs(solution.covariance("tau", "qdd") - C[np.ix_(*columns)]).max() <= 1e-8 * np.abs(C).max()
    names = expected["names"]
    assert np.abs(joined(solution.residuals(), names) + expected["eps"]).max() <= 1e-7 * scale
    assert abs(solution.chi2() - expected["chi2"]) <= 1e-6 * max(1.0, expected["chi2"])
    assert solution.redundancy == expected["nu"]
    assert abs(sum(h.sum() for h in solution.leverage().values()) - expected["free"]) <= 1e-6 * expected["free"]
    assert abs(solution.log_likelihood() - expected["log_likelihood"]) <= 1e-6 * max(1, abs(solution.log_likelihood()))
    full = np.zeros(layout.n)
    for quantity in QUANTITIES:
        full[layout.quantity_columns(quantity)] = getattr(solution, quantity).ravel()
    assert np.abs(expected["E"] @ full + expected["e"]).max() <= 1e-10 * max(scale, 1.0)  # exact stays exact


@pytest.fixture(scope="module")
def arm() -> sd.Solver:
    model = sd.chain(4, seed=1)
    cells = np.array([[0.05, 0.01], [0.01, 0.08]])
    return sd.compile(
        sd.Problem(
            model,
            [
                sd.ExternalWrench("all", name="fx"),
                sd.JointTorque("all", noise=0.3, name="torque"),
                sd.JointAcceleration("all", noise=0.2, name="acceleration"),
                sd.Switchable(sd.ForceTorqueSensor(model.joint_names[0], noise=0.1, name="ft")),
                sd.Accelerometer(model.body_names[-1], ["a_x", "a_y"], noise=cells, name="imu"),
            ],
        ),
        level="fast", formulation="elimination",
    )  # fmt: skip


def measured(solver: sd.Solver, n: int | None, seed: int):
    model = solver.model
    q, qd, qdd = model.random_state(seed=seed, batch=n)
    y = sd.predict(solver.problem, q, qd, qdd, seed=seed)
    return q, qd, {name: x for name, x in y.items() if name != "fx"}


@pytest.mark.slow
def test_covariances_of_a_call_replace_those_declared(arm):
    q, qd, y = measured(arm, None, 0)
    for noise in (
        {"torque": 1e-2, "acceleration": 1e2}, {"torque": 1e2, "acceleration": 1e-2},
        {"imu": np.array([[2.0, -1.0], [-1.0, 3.0]]), "ft": [0.1, 0.2, 0.3, 1e-3, 10.0, 0.5]},
    ):  # fmt: skip
        solution, expected = arm(q, qd, y=y, noise=noise), dense(arm.problem, q, qd, y, noise)
        columns = expected["layout"].quantity_columns("tau")
        assert np.abs(solution.tau - expected["d"][columns]).max() <= 1e-8 * np.abs(expected["d"]).max()
        np.testing.assert_allclose(solution.std("tau"), np.sqrt(np.diag(expected["C"])[columns]), rtol=1e-8)


def test_readings_that_nothing_else_tells_have_no_residual():
    """The torques follow from the accelerations; a second reading of one of these has a residual, and it alone."""
    model = sd.chain(2, seed=1)
    noisy = [sd.JointAcceleration("all", noise=0.2, name="accelerations"), sd.ExternalWrench("all")]
    again = sd.Linear({("qdd", model.joint_names[0]): [[1.0]]}, name="again", noise=0.3)
    q, qd, qdd = model.random_state(seed=2)
    for stated, redundancy in ((noisy, 0), ([*noisy, again], 1)):
        solver = sd.compile(sd.Problem(model, stated), **FAST)
        y = {"accelerations": qdd} | ({"again": qdd[:1] + 0.5} if redundancy else {})
        estimate = solver(q, qd, y=y)
        residuals = estimate.residuals()
        assert estimate.redundancy == redundancy and residuals["accelerations"][1] == 0.0
        assert estimate.chi2() == pytest.approx(redundancy * 0.5**2 / (0.2**2 + 0.3**2))
        assert (residuals["accelerations"][0] == 0.0) == (redundancy == 0)


@pytest.mark.slow
def test_what_is_switched_off_is_as_if_it_were_not_there(arm):
    q, qd, y = measured(arm, 5, 1)
    without = sd.compile(sd.Problem(arm.model, [m for m in arm.problem.measurements if m.name != "ft"]), **FAST)
    off = arm(q, qd, y={**y, "ft": y["ft"] + 1e3}, active={"ft": False})
    rest = without(q, qd, y={name: x for name, x in y.items() if name != "ft"})
    assert np.abs(off.tau - rest.tau).max() <= 1e-10 and np.abs(off.std("fx") - rest.std("fx")).max() <= 1e-12
    assert np.allclose(off.log_likelihood(), rest.log_likelihood(), rtol=1e-10)
    assert (off.redundancy == rest.redundancy).all() and np.allclose(off.chi2(), rest.chi2())
    by_state = arm(q, qd, y=y, active={"ft": np.array([True, False, True, False, True])})
    on = arm(q, qd, y=y)
    assert np.allclose(by_state.tau[::2], on.tau[::2]) and np.abs(by_state.tau[1] - on.tau[1]).max() > 1e-3


@pytest.mark.slow
def test_batches_files_and_bound_calls_agree(arm, tmp_path):
    q, qd, y = measured(arm, 9, 2)
    batch = arm(q, qd, y=y)
    one = arm(q[3], qd[3], y={name: x[3] for name, x in y.items()})
    assert np.abs(batch.tau[3] - one.tau).max() <= 1e-12 and np.abs(batch.std("a")[3] - one.std("a")).max() <= 1e-12
    assert np.allclose(batch.std("tau", arm.model.joint_names[1]), batch.std("tau")[:, 1])
    arm.save(tmp_path / "arm.sysdyn")
    for other in (pickle.loads(pickle.dumps(arm)), sd.load_solver(tmp_path / "arm.sysdyn")):
        again = other(q, qd, y=y)
        assert np.array_equal(again.tau, batch.tau) and np.array_equal(again.chi2(), batch.chi2())
    values = {name: x[3].copy() for name, x in y.items()}
    step = arm.bind(q[3].copy(), qd[3].copy(), y=values)
    step()
    assert np.abs(step.out["tau"] - one.tau).max() <= 1e-12 and not step.status.any()
    values["torque"] += 1.0
    step()
    changed = {**{name: x[3] for name, x in y.items()}, "torque": y["torque"][3] + 1.0}
    assert np.abs(step.out["tau"] - arm(q[3], qd[3], y=changed).tau).max() <= 1e-12


@pytest.mark.slow
def test_results_of_a_batch_do_not_depend_on_its_parts(arm):
    """By machine code and by the interpreter."""
    q, qd, y = measured(arm, 26, 4)
    for solver in (arm, sd.compile(arm.problem, **FAST)):
        first = solver(q, qd, y=y)
        expected = first.std("tau"), first.chi2(), first.covariance("qdd", "tau")
        for size in (2, 9, 25):
            parts = [slice(k, k + size) for k in range(0, len(q), size)]
            some = [solver(q[own], qd[own], y={name: x[own] for name, x in y.items()}) for own in parts]
            found = [(x.std("tau"), x.chi2(), x.covariance("qdd", "tau")) for x in some]
            assert all(
                np.array_equal(np.concatenate(x), y) for x, y in zip(zip(*found, strict=True), expected, strict=True)
            )


def test_statistics_are_what_they_are_called(arm):
    """Standard normal, χ² and a coverage of 95 %, at one posture measured 2,000 times."""
    model = arm.model
    q, qd, qdd = model.random_state(seed=3)
    rows = [np.broadcast_to(x, (2000, x.size)) for x in (q, qd, qdd)]
    y = {name: x for name, x in sd.predict(arm.problem, *rows, seed=4).items() if name != "fx"}
    # the acceleration is what it is; its measurement, like all others, has its noise around the truth
    solution = arm(rows[0], rows[1], y=y)
    assert scipy.stats.kstest(solution.chi2(), "chi2", args=(int(solution.redundancy[0]),)).pvalue > 1e-3
    for w in solution.normalised_residuals().values():
        for component in w.T:
            assert np.isnan(component).all() or scipy.stats.kstest(component, "norm").pvalue > 1e-4
    truth = sd.rnea(model, q, qd, qdd)
    inside = np.abs(solution.tau - truth) <= 1.96 * solution.std("tau")
    assert 0.93 < inside.mean() < 0.97
    y["torque"][0, 2] += 8.0  # a fault
    w = arm(rows[0][0], rows[1][0], y={name: x[0] for name, x in y.items()}).normalised_residuals()
    worst = max(w, key=lambda name: np.nanmax(np.abs(w[name])))
    assert worst == "torque" and np.nanargmax(np.abs(w[worst])) == 2


def test_noise_is_learnt(arm):
    q, qd, y = measured(arm, 1500, 5)
    learned = sd.learn_noise(arm, q, qd, y=y, noise={"torque": 1.0}, learn=["torque"])
    assert learned.converged and (np.diff(learned.log_likelihood) >= 0.0).all()
    assert np.abs(learned.noise["torque"] - 0.3).max() < 0.04 and set(learned.noise) == {"torque"}
    with pytest.raises(UnknownName, match="'torque'"):
        sd.learn_noise(arm, q, qd, y=y, learn=["torqe"])


def test_bad_input(arm):
    model = arm.model
    q, qd, y = measured(arm, None, 6)
    with pytest.raises(UnknownName, match="torqe"):
        arm(q, qd, y=y, noise={"torqe": 1.0})
    with pytest.raises(InvalidInput, match="standard deviation of component 1 of 'torque' is -1.0"):
        arm(q, qd, y=y, noise={"torque": [1.0, -1.0, 1.0, 1.0]})
    with pytest.raises(InvalidInput, match="covariance of 'imu' is not symmetric"):
        arm(q, qd, y=y, noise={"imu": [[1.0, 0.5], [0.0, 1.0]]})
    with pytest.raises(InvalidInput, match="covariance of 'imu' is not positive definite"):
        arm(q, qd, y=y, noise={"imu": [[1.0, 2.0], [2.0, 1.0]]})
    with pytest.raises(InvalidInput, match="covariance of 'imu' has shape"):
        arm(q, qd, y=y, noise={"imu": 0.1})
    with pytest.raises(InvalidInput, match="torque is nan at entry 2"):
        arm(q, qd, y={**y, "torque": np.array([0.0, 0.0, np.nan, 0.0])})
    with pytest.raises(UnknownName, match="imu"):
        arm(q, qd, y=y, active={"imu": False})  # not switchable
    with pytest.raises(InvalidInput, match="true and false"):
        arm(q, qd, y=y, active={"ft": 0.5})
    with pytest.raises(ProblemError, match="no noise"):
        sd.ModelNoise("f")
    with pytest.raises(ProblemError, match="exact"):
        sd.Prior(sd.JointTorque("all"))
    with pytest.raises(ProblemError, match="inexact twice"):
        sd.Problem(model, [sd.ModelNoise("f", noise=1.0, name="x"), sd.ModelNoise("all", noise=1.0, name="y")])
    with pytest.raises(ProblemError, match="no measurement of this problem is noisy"):
        sd.compile(sd.forward_dynamics(model), level="fast")(q, qd, np.zeros(4)).std("tau")
