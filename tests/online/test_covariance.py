"""Posterior covariances to full accuracy whatever the variances, against the dense inverse in 80 digits."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np
import pytest
from estimates import FAST, random_problem, small

import sysdyn as sd
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.variables import QUANTITIES, Layout
from sysdyn.online.inverse_programs import InversePrograms
from sysdyn.sparse.extended import Extended
from sysdyn.sparse.lu import eliminate
from sysdyn.sparse.selected_inverse import Inverse

TOLERANCE = 1e-8  # of standard deviations, each relative to itself
NOTHING = 1e-22  # variance relative to the greatest of its kind: zero but for the last digit of the matrix


def dense_inverse(K: np.ndarray) -> tuple[np.ndarray, float]:
    """(K⁻¹, log |det K|) by Gauss-Jordan elimination with row pivoting in 80 digits."""
    n = len(K)
    with decimal.localcontext(prec=80):
        A = np.array([[Decimal(x) for x in row] for row in np.hstack([K, np.eye(n)]).tolist()], dtype=object)
        log_det = Decimal(0)
        for k in range(n):
            p = k + int(np.argmax(np.abs(A[k:, k])))
            A[[k, p]] = A[[p, k]]
            log_det += abs(A[k, k]).ln()
            used = np.flatnonzero(A[k] != 0)
            A[k, used] = A[k, used] / A[k, k]
            rows = np.flatnonzero(A[:, k] != 0)
            rows = rows[rows != k]
            A[np.ix_(rows, used)] -= np.outer(A[rows, k], A[k, used])
    return A[:, n:].astype(float), float(log_det)


def matrix(problem: sd.Problem, q, qd, noise: dict, active: dict):
    """The augmented system and its matrix."""
    system = problem.system()
    inputs = {"q": q, "qd": qd, **{f"active:{name}": on.astype(float) for name, on in active.items()}}
    for m in problem.noisy:
        found = noise_of(m, problem.model)
        inputs[found.group] = found.numbers(noise[m.name])
    return system, system.matrix(system.values(inputs)[0][0]).toarray()


def multiplied(problem: sd.Problem, decades: float, rng) -> dict:
    """Declared noise with the variances of each measurement times a factor out of so many decades."""
    result = {}
    for m in problem.noisy:
        factor = 10.0 ** (0.5 * rng.uniform(-decades / 2, decades / 2))
        result[m.name] = np.asarray(m.noise) * factor ** (2 if np.ndim(m.noise) == 2 else 1)
    return result


@pytest.mark.parametrize(("seed", "decades"), [(4, 0), (0, 12), (7, 12), (1, 24), (45, 24), (89, 16), (99, 24)])
def test_standard_deviations_and_covariances_over_many_decades(seed, decades):
    """Each to 1e-8 of itself; covariances to 1e-8 of the standard deviations of the two."""
    problem, active = random_problem(seed)
    model = problem.model
    noise = multiplied(problem, decades, np.random.default_rng(100 * seed + decades))
    q, qd, qdd = model.random_state(seed=seed)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=seed).items() if name != "ExternalWrench"}
    solution = sd.compile(problem, **FAST)(q, qd, y=y, noise=noise, active=active)
    system, K = matrix(problem, q, qd, noise, active)
    Z, log_det = dense_inverse(K)
    layout, number = Layout(model), {c: k for k, c in enumerate(system.plain.columns)}
    places = {x: [number.get(c, -1) for c in layout.quantity_columns(x)] for x in QUANTITIES}
    C = np.zeros((len(K) + 1,) * 2)  # the last one stands for what is known
    C[:-1, :-1] = Z
    for quantity, place in places.items():
        variance = np.diag(C)[place]
        expected = np.sqrt(np.where(variance > NOTHING * variance.max(initial=0.0), variance, 0.0))
        np.testing.assert_allclose(solution.std(quantity).ravel(), expected, rtol=TOLERANCE, atol=0, err_msg=quantity)
    for first, second in (("tau", "a"), ("f", "qdd")):
        rows, columns = places[first], places[second]
        found = solution.covariance(first, second) - C[np.ix_(rows, columns)]
        size = np.sqrt(np.outer(np.diag(C)[rows], np.diag(C)[columns]))
        assert (np.abs(found) <= TOLERANCE * size).all()
    # what the residuals are worth
    for name, h in solution.leverage().items():
        members = {k: system.n_unknowns + r for r, (x, k) in system.plain.noise_by_row.items() if x.name == name}
        on = np.broadcast_to(active.get(name, True), h.shape)
        rows = [members[k] for k in range(len(members))]
        S = -K[np.ix_(rows, rows)]
        expected = 1.0 + np.diag(S @ Z[np.ix_(rows, rows)])
        np.testing.assert_allclose(h[on], expected[on], rtol=0, atol=TOLERANCE)
    likelihood = -0.5 * (solution.chi2() + log_det + solution.redundancy * np.log(2.0 * np.pi))
    np.testing.assert_allclose(solution.log_likelihood(), likelihood, rtol=TOLERANCE)


def test_declared_covariances_need_no_more_digits(monkeypatch):
    problem = small()
    q, qd, qdd = problem.model.random_state(seed=0, batch=50)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=1).items() if name != "ExternalWrench"}
    solver = sd.compile(problem, **FAST)
    extended = []
    run = InversePrograms._extended
    monkeypatch.setattr(InversePrograms, "_extended", lambda self, *x: extended.append(len(x[1]["q"])) or run(self, *x))
    solution = solver(q, qd, y=y)
    for quantity in QUANTITIES:
        solution.std(quantity)
    solution.chi2()
    assert not [n for n in extended if n != 4]  # those at which zeros are looked for
    count = len(extended)
    mixed = np.full((50, 3), 0.3)
    mixed[7] = 3e7
    mixed[31, 1] = 3e8
    both = solver(q, qd, y=y, noise={"torque": mixed})
    assert np.array_equal(np.delete(both.std("tau"), [7, 31], axis=0), np.delete(solution.std("tau"), [7, 31], axis=0))
    assert set(extended[count:]) <= {1, 2}  # and only the states that need them


def test_what_is_exactly_known_has_no_deviation():
    """The base of a chain turns about its first joint only: the other components of its acceleration are known."""
    problem = small()
    q, qd, qdd = problem.model.random_state(seed=3)
    y = {name: x for name, x in sd.predict(problem, q, qd, qdd, seed=1).items() if name != "ExternalWrench"}
    std = sd.compile(problem, **FAST)(q, qd, y=y).std("a")
    assert np.array_equal(std[0] == 0.0, problem.model.joints[0].S[:, 0] == 0.0)


def test_elimination_with_many_digits():
    """A Hilbert matrix, with a condition number of 1e16 beyond double precision, at two scales."""
    n = 12
    H = 1.0 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    scale = np.array([1.0, 3.0])
    rows = [{j: Extended.of(H[i, j] * scale) for j in range(n)} for i in range(n)]
    with decimal.localcontext(prec=60):
        factors = eliminate(rows, [Extended.of(-scale)] + [0.0] * (n - 1), range(n), range(n))
        inverse = Inverse(factors)
        Z = np.array([[inverse.entry(i, j).rounded() for j in range(n)] for i in range(n)])
    expected = dense_inverse(H)[0]
    np.testing.assert_allclose(Z[..., 0], expected, rtol=1e-14)
    np.testing.assert_allclose(3.0 * Z[..., 1], expected, rtol=1e-1)  # 3 H is rounded: its inverse differs by 1e16 ε
    np.testing.assert_allclose([x.rounded()[0] for x in factors.solution], expected[:, 0], rtol=1e-14)
