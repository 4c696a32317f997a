"""Covariances of a call that are far from the declared ones: digits are kept, or what is lost is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from estimates import FAST, dense_inverse, matrix, multiplied, random_problem, small

import sysdyn as sd
from sysdyn.measurements.noise import Noise
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITIES
from sysdyn.online.digits import Distance
from sysdyn.online.states import States

PROMISED = 1e-8


def call(seed: int, decades: int) -> tuple[sd.Problem, sd.Solver, dict]:
    """(problem, solver, arguments of a call with noise far from the declared one)."""
    problem, active = random_problem(seed)
    noise = multiplied(problem, decades, np.random.default_rng(100 * seed + decades))
    q, qd, qdd = problem.model.random_state(seed=seed)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=seed).items() if name != "ExternalWrench"}
    return problem, sd.compile(problem, **FAST), {"q": q, "qd": qd, "y": y, "noise": noise, "active": active}


def errors(problem: sd.Problem, given: dict, solution: sd.Estimate) -> tuple[float, float]:
    """Errors of an estimate and of its standard deviations against 80 digits, of those that are numbers."""
    system, K, b = matrix(problem, **given)
    Z, _, d = dense_inverse(K, b)
    number = {c: k for k, c in enumerate(system.plain.columns)}
    mean, deviation = [0.0], [0.0]
    for x in QUANTITIES:
        columns = Layout(problem.model).quantity_columns(x)
        chosen = [k for k, c in enumerate(columns) if c in number]
        rows = [number[columns[k]] for k in chosen]
        if rows:
            size = max(np.abs(d[rows]).max(), 1e-6 * np.abs(d[: system.n_unknowns]).max())
            mean.append(np.nanmax(np.abs(solution[x].ravel()[chosen] - d[rows]), initial=0.0) / size)
            expected = np.sqrt(np.maximum(np.diag(Z)[rows], 0.0))
            expected = np.where(expected > 1e-11 * expected.max(), expected, 0.0)
            found = solution.std(x).ravel()[chosen]
            size = np.where(expected > 0.0, expected, max(expected.max(), 1e-300))
            deviation.append(np.nanmax(np.abs(found - expected) / size, initial=0.0))
    return max(mean), max(deviation)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "decades"), [(3, 16), (8, 24), (10, 20)])
def test_digits_are_kept(seed, decades):
    """The program alone leaves 3e-5, 3e-2 and 3e-5: the square-root form takes its place."""
    problem, solver, given = call(seed, decades)
    solution = solver(**given)
    assert max(errors(problem, given, solution)) < PROMISED
    assert np.isfinite(solution.f).all() and np.isfinite(solution.std("f")).all()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("seed", "decades"), [(15, 32), (62, 36)])
def test_lost_digits_are_refused(seed, decades):
    """Neither form keeps them, and standard deviations would be wrong by 3e-4 (seed 15); some of seed 62 are kept."""
    problem, solver, given = call(seed, decades)
    names = "|".join(given["noise"])
    with pytest.raises(sd.LostDigits, match=rf"the estimate would keep fewer than 8 digits .*'({names})' \d") as error:
        solver(**given)
    assert error.value.states == (0,)
    solution = solver(**given, on_singular="repivot")
    assert not solution.ok and np.isnan(solution.qdd).all() and np.isnan(solution.std("f")).all()
    assert errors(problem, given, solution)[1] < PROMISED
    # others of a batch are solved as they are alone
    both = {}
    for m in problem.noisy:
        x = np.stack([m.noise, given["noise"][m.name]])
        both[m.name] = x if x.ndim > 1 else np.repeat(x[:, None], len(m.components(problem.model)), axis=1)
    batch = solver(**{**given, "noise": both}, on_singular="nan")
    assert batch.ok.tolist() == [True, False]
    alone = solver(**{**given, "noise": {}})
    np.testing.assert_allclose(batch.tau[0], alone.tau, rtol=1e-12)
    np.testing.assert_allclose(batch.std("tau")[0], alone.std("tau"), rtol=1e-12)
    with pytest.raises(sd.LostDigits, match="at this state 1: ") as error:
        solver(**{**given, "noise": both})
    assert error.value.states == (1,)


def test_each_result_is_checked():
    """With a mean that keeps its digits what an estimate is asked for keeps or loses them by itself."""
    _, solver, given = call(8, 24)
    solution = solver(**given)
    asked = {
        "the variance tau": lambda: solution.std("tau"),
        "the covariance tau a": lambda: solution.covariance("tau", "a"),
        "the residuals": solution.chi2, "the redundancy": solution.leverage, "the .*": solution.log_likelihood,
    }  # fmt: skip
    for ask in asked.values():
        ask()
    solver.posterior.distance.kept = 0.0
    for what, ask in asked.items():
        with pytest.raises(sd.LostDigits, match=f"{what} would keep fewer"):
            ask()
    assert np.isnan(solver(**given, on_singular="nan").std("tau")).all()
    assert np.isfinite(solver(**{**given, "noise": {}}).std("tau")).all()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("seed", "decades", "lossy"), [(10, 20, 1), (15, 32, 4)])
def test_errors_of_each_result_are_told(seed, decades, lossy):
    """Refused if ten times as many digits are to be kept, given if a thousandth of them; or the covariances alone."""
    problem, solver, given = call(seed, decades)
    solver.posterior.distance.kept = np.inf
    solution = solver(**given)
    system, K, b = matrix(problem, **given)
    Z, _, d = dense_inverse(K, b)
    n, C, number = system.n_unknowns, np.pad(Z, (0, 1)), {c: k for k, c in enumerate(system.plain.columns)}
    f, tau = ([number.get(c, -1) for c in problem.layout().quantity_columns(x)] for x in ("f", "tau"))  # -1: known
    std = np.sqrt(np.where(np.diag(C) > 1e-22 * np.diag(C)[f].max(), np.diag(C), 0.0))
    whitened, shares = [], []
    for name, noise in solution.posterior.noisy.noises.items():
        rows = {k: n + r for r, (x, k) in system.plain.noise_by_row.items() if x.name == name}
        own = [rows[k] for k in range(noise.size)]
        L = np.linalg.cholesky(-K[np.ix_(own, own)])
        whitened.append(L.T @ d[own])
        S = -L.T @ Z[np.ix_(own, own)] @ L
        shares.append(S[np.tril_indices(noise.size)] if noise.full else np.diag(S))
    results = {
        "variances": (("f",), std[f] ** 2, std[f] ** 2),
        "covariance": (("tau", "f"), C[np.ix_(tau, f)], np.outer(std[tau], std[f])),
        "residuals": ((), np.concatenate(whitened), np.abs(np.concatenate(whitened)).max()),
        "redundancy": ((), np.concatenate(shares), 1.0),
    }
    seen = 0
    for name, (of, expected, sizes) in results.items():
        ask = functools.partial(getattr(solution.posterior, name), *of, States(solution.inputs, 1, refuse=True))
        solver.posterior.distance.kept = np.inf
        error = float((np.abs(ask()[0] - expected) / np.where(sizes > 0.0, sizes, np.inf)).max())
        if error > 1e-11:
            seen += 1
            solver.posterior.distance.kept = 0.1 * error
            with pytest.raises(sd.LostDigits):
                ask()
            solver.posterior.distance.kept = 1e3 * error
            assert np.isfinite(ask()).all(), name
    assert seen == lossy


def test_far_is_relative_to_what_is_declared():
    """A full covariance by its principal axes: the declared one's, not those of components."""
    S = np.array([[2.0, 1.0], [1.0, 2.0]])  # variances 3 along (1, 1), 1 along (1, −1)
    distance = Distance(
        [Noise("full", 2, True, S[np.tril_indices(2)]), Noise("single", 2, False, np.array([1.0, 4.0]))]
    )
    singles = {"declared": [1.0, 4.0], "near": [9e3, 4.0], "small": [1.0, 3e-4], "great": [1.0, 5e4]}
    for name, x in singles.items():
        inputs = {"noise:full": S[np.tril_indices(2)], "noise:single": np.array(x)}
        assert distance.far(inputs, 3).tolist() == ([0, 1, 2] if name in ("small", "great") else [])
    narrow = np.array([[1.0, 1.0 - 1e-5], [1.0 - 1e-5, 1.0]])  # a variance of 1e-5 along (1, −1)
    both = np.stack([S, narrow])[:, *np.tril_indices(2)]
    assert distance.far({"noise:full": both, "noise:single": np.array([1.0, 4.0])}, 2).tolist() == [1]


def test_prepared_calls_refuse_what_they_cannot_check():
    problem = small()
    q, qd, qdd = problem.model.random_state(seed=1)
    y = {m.name: np.zeros(len(m.components(problem.model))) for m in problem.custom}
    solver = sd.compile(problem, level="fast", outputs="tau")
    solver.bind(q, qd, y=y, noise={"torque": 30.0})()
    with pytest.raises(sd.LostDigits, match="a prepared call .*'torque' 1.1e-09"):
        solver.bind(q, qd, y=y, noise={"torque": 1e-5})
