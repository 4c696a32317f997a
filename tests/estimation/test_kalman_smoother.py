"""The Kalman smoother against one dense system in 80 digits, and its compiled form against square roots."""

from __future__ import annotations

import numpy as np
import pytest
from estimates import dense_inverse

from sysdyn.errors import SingularState
from sysdyn.estimation import kalman_smoother
from sysdyn.estimation.kalman_smoother import ParallelChains, Sparse
from sysdyn.estimation.process_model import covariance, transition


def chains(J, r, Phi, c, Q, m, P) -> ParallelChains:
    """Chains of dense matrices with an axis of chains."""

    def sparse(x: np.ndarray) -> Sparse:
        places = np.argwhere((x != 0.0).any(axis=(0, 1)))
        return Sparse(x[..., places[:, 0], places[:, 1]], places)

    columns = np.arange(m.size).reshape(m.shape)
    return ParallelChains(columns, sparse(J), r, sparse(Phi), c, sparse(Q), m, P)


def random(n: int, k: int, rows: int, seed: int, copies: int = 1) -> ParallelChains:
    """Chains of k coupled unknowns, each time step of which has some rows."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((n, copies, k, k)) + 2.0 * np.eye(k)
    Q = root @ root.swapaxes(2, 3)
    return chains(
        rng.standard_normal((n, copies, rows, k)), rng.standard_normal((n, copies, rows)),
        rng.standard_normal((n - 1, copies, k, k)) / np.sqrt(k), rng.standard_normal((n - 1, copies, k)), Q[1:],
        rng.standard_normal((copies, k)), Q[0],
    )  # fmt: skip


def of_motion(
    n: int, dofs: int, order: int, density: float, std: float, row=None, exact: float = 1.0, unit: float = 1.0
) -> ParallelChains:
    """Joints at 1 kHz with encoders at every third step, a wide prior, and one row with this standard deviation."""
    rng, k, one = np.random.default_rng(order), order * dofs, np.eye(dofs)
    coupling = np.zeros((1, k)) if row is None else np.reshape(row, (1, k)) / exact
    J = np.repeat(np.concatenate([np.eye(dofs, k) / std, coupling])[None], n, 0)
    r = np.concatenate([rng.standard_normal((n, dofs)), np.full((n, 1), 1e-6 / exact)], axis=1)
    J[1::3, :dofs], r[1::3, :dofs] = 0.0, 0.0
    F, Q = np.kron(transition(1e-3, order), one), np.kron(density**2 * covariance(1e-3, order), one)
    c = 1e-6 * unit * rng.standard_normal((n - 1, 1, k))
    P = np.kron(np.diag(np.array([10.0, 10.0, 1e3, 1e5])[:order] ** 2), one)
    Phi, Q = np.repeat(F[None, None], n - 1, 0), unit**2 * np.repeat(Q[None, None], n - 1, 0)
    return chains(J[:, None] / unit, r[:, None], Phi, c, Q, np.zeros((1, k)), unit**2 * P[None])


def dense(x: ParallelChains):
    """(δ (N, k), covariances (N k, N k) of δ and of λ) of one chain: all time steps at once.

    With e = A δ − b ~ N(0, C) of the prior and the transitions, and λ = C⁻¹ e: −C λ + A δ = b, Aᵀ λ + H δ = −h.
    """
    x = x.one(0)
    n, k = len(x.r), len(x.columns)
    A, b, C, H = np.eye(n * k), np.zeros(n * k), np.zeros((n * k, n * k)), np.zeros((n * k, n * k))
    J, Phi, Q = x.J.dense(x.r.shape[1], k), x.Phi.dense(k, k), x.Q.dense(k, k)
    for t in range(n):
        now, before = slice(t * k, (t + 1) * k), slice((t - 1) * k, t * k)
        H[now, now] = J[t].T @ J[t]
        if t:
            A[now, before] = -Phi[t - 1]
        b[now], C[now, now] = (x.c[t - 1], Q[t - 1]) if t else (x.m, x.P)
    h = (J.swapaxes(1, 2) @ x.r[..., None]).reshape(-1)
    inverse, _, solution = dense_inverse(np.block([[-C, A], [A.T, H]]), np.concatenate([-b, h]))
    return solution[n * k :].reshape(n, k), inverse[n * k :, n * k :], -inverse[: n * k, : n * k]


def check(x: ParallelChains, tolerance: float) -> None:
    """Compare δ, P and Λ with the dense system, in units of its standard deviations and of those of Q."""
    n, k = len(x.r), x.columns.shape[1]
    result = kalman_smoother.smooth([x], n, k, covariances=True)
    (block,), Q = result.covariances.blocks, x.one(0).Q.dense(k, k)
    mean, P, adjoint = dense(x)
    std, (row, column) = np.sqrt(np.diagonal(P)).reshape(n, k), x.Q.places.T
    assert np.abs((result.step - mean) / np.maximum(std, np.abs(mean))).max() < tolerance
    for t in range(n):
        now = slice(t * k, (t + 1) * k)
        assert np.abs((block.P[t, 0] - P[now, now]) / np.outer(std[t], std[t])).max() < tolerance
        if t:
            size = np.sqrt(np.diagonal(Q[t - 1]))
            error = block.adjoint[t - 1, 0] - adjoint[now, now][row, column]
            assert np.abs(error * size[row] * size[column]).max(initial=0.0) < tolerance
    alone = kalman_smoother.smooth([x], n, k)
    np.testing.assert_allclose(alone.step, result.step, rtol=0, atol=tolerance * np.abs(std).max())
    assert alone.min_cost == pytest.approx(result.min_cost, rel=1e-6, abs=1e-6)


@pytest.fixture(params=[10**6, 1], ids=["square roots", "compiled"])
def form(request, monkeypatch):
    """All time steps by square roots, or all but the first compiled."""
    monkeypatch.setattr(kalman_smoother, "SQUARE_ROOT_STEPS", request.param)


@pytest.mark.parametrize("n, k, rows", [(1, 3, 2), (2, 1, 1), (5, 3, 2), (4, 2, 0), (4, 8, 3), (9, 9, 5), (3, 14, 20)])
def test_random_chains(n, k, rows, form):
    check(random(n, k, rows, seed=n + k), 1e-10)


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("density", [1e-6, 1e-3, 1.0, 1e4, 1e8])
def test_motion_at_one_kilohertz(order, density):
    check(of_motion(7, 1, order, density, 1e-4), 1e-10 if density <= 1e4 else 1e-4)


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("exact", [1e-5, 1e-7])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_almost_exact_rows(order, exact, unit):
    """A transmission couples two joints far more precisely than encoders measure them; in any unit."""
    check(of_motion(5, 2, order, 10.0, 1e-4, [1.0, -0.5, *[0.0] * (2 * order - 2)], exact, unit), 1e-5)


@pytest.mark.parametrize("order", [3, 4])
def test_a_measurement_couples_three_joints(order):
    row = [0.0] * 3 + [1.0, -2.0, 0.5] + [0.0] * (3 * order - 6)
    check(of_motion(4, 3, order, 100.0, 1e-4, row, 1e-2), 1e-10)


def assert_same(one: kalman_smoother.SmootherResult, other: kalman_smoother.SmootherResult, rtol: float) -> None:
    """The same δ, P and Λ in units of standard deviations, cost and determinant."""
    std = np.sqrt(other.covariances.diagonal())
    np.testing.assert_allclose(one.step / std, other.step / std, rtol=0, atol=rtol)
    for a, b in zip(one.covariances.blocks, other.covariances.blocks, strict=True):
        size = np.sqrt(np.einsum("ncii->nci", b.P))
        size = size[..., :, None] * size[..., None, :]
        np.testing.assert_allclose(a.P / size, b.P / size, rtol=0, atol=rtol)
        np.testing.assert_allclose(a.adjoint, b.adjoint, rtol=0, atol=rtol * np.abs(b.adjoint).max(initial=1.0))
    assert one.min_cost == pytest.approx(other.min_cost, rel=rtol)
    assert one.logdet == pytest.approx(other.logdet, rel=1e-9)


@pytest.mark.parametrize("k, rows, copies", [(3, 2, 5), (9, 4, 1), (14, 9, 2), (12, 0, 1)])
@pytest.mark.parametrize("strong, size, rtol", [((), 1.0, 1e-9), ((1, 11, 12, 29), 1e3, 1e-5), ((20,), 1e6, 1e-9)])
def test_compiled_chains_equal_square_roots(k, rows, copies, strong, size, rtol, monkeypatch):
    """Precise measurements of a few time steps, up to those that need square roots until then."""
    x = random(40, k, rows, k, copies)
    x.J.entries[list(strong)] *= size
    x.r[list(strong)] *= size
    result, last = (kalman_smoother.smooth([x], 40, copies * k, **{name: True}) for name in ("covariances", "last"))
    monkeypatch.setattr(kalman_smoother, "SQUARE_ROOT_STEPS", 40)
    reference = kalman_smoother.smooth([x], 40, copies * k, covariances=True)
    assert_same(result, reference, rtol)
    np.testing.assert_allclose(last.covariances.dense()[0], reference.covariances.dense()[-1], rtol=1e-5, atol=1e-9)


def test_several_parts_are_solved_apart():
    """Chains of 3 and of 10 unknowns, whose columns alternate."""
    parts, order = [random(20, 3, 2, seed=1), random(20, 10, 4, seed=2)], np.random.default_rng(0).permutation(13)
    columns = order[None, :3], order[None, 3:]
    both = kalman_smoother.smooth([x._replace(columns=y) for x, y in zip(parts, columns, strict=True)], 20, 13, True)
    alone = [kalman_smoother.smooth([x], 20, x.columns.size, True) for x in parts]
    for own, x in zip(columns, alone, strict=True):
        np.testing.assert_array_equal(both.step[:, own[0]], x.step)
        np.testing.assert_array_equal(both.covariances.dense()[:, own.T, own], x.covariances.dense())
    assert both.min_cost == pytest.approx(sum(x.min_cost for x in alone))


@pytest.mark.parametrize("k", [2, 12])
def test_an_indefinite_covariance_names_its_time_step(k):
    x = random(4, k, 2, seed=0)
    x.Q.entries[1] *= -1.0
    with pytest.raises(SingularState, match="step 2"):
        kalman_smoother.smooth([x], 4, k)


@pytest.mark.parametrize("k", [3, 10])
def test_log_det_of_the_measurements(k):
    """det(1 + J P Jᵀ) is the ratio of the determinants of the covariances of all states before and after them."""
    x = random(5, k, 2, seed=4)
    prior = sum(np.linalg.slogdet(y)[1] for y in (x.P[0], *x.one(0).Q.dense(k, k)))
    expected = prior - np.linalg.slogdet(dense(x)[1].astype(float))[1]
    assert kalman_smoother.smooth([x], 5, k).logdet == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("k, rows", [(3, 2), (10, 4), (10, 0)])
@pytest.mark.parametrize("covariances", [False, True])
def test_the_minimal_cost_is_that_at_the_solution(k, rows, covariances):
    part = random(20, k, rows, seed=7)
    result, x = kalman_smoother.smooth([part], 20, k, covariances), part.one(0)
    d, Q = result.step, x.Q.dense(k, k)
    e, first = d[1:] - np.einsum("nij,nj->ni", x.Phi.dense(k, k), d[:-1]) - x.c, d[0] - x.m
    total = np.square(np.einsum("nij,nj->ni", x.J.dense(rows, k), d) + x.r).sum() + first @ np.linalg.solve(x.P, first)
    total += sum(a @ np.linalg.solve(q, a) for a, q in zip(e, Q, strict=True))
    assert result.min_cost == pytest.approx(total, rel=1e-9, abs=1e-9)
