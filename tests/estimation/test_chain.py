"""Chains of instants against one dense system in 80 digits."""

from __future__ import annotations

import numpy as np
import pytest
from estimates import dense_inverse

from sysdyn.errors import SingularState
from sysdyn.estimation import kalman_smoother
from sysdyn.estimation.process_model import covariance, transition


def dense(x: kalman_smoother.DenseChain):
    """(δ (N, k), covariances (N k, N k) of δ and of λ): all instants at once.

    With e = A δ − b ~ N(0, C) of the start and of the steps, and λ = C⁻¹ e: −C λ + A δ = b, A^T λ + H δ = −h.
    """
    n, k = x.h.shape
    A, b, C, H = np.eye(n * k), np.zeros(n * k), np.zeros((n * k, n * k)), np.zeros((n * k, n * k))
    for t in range(n):
        own, before = slice(t * k, (t + 1) * k), slice((t - 1) * k, t * k)
        H[own, own] = x.H[t]
        if t:
            A[own, before] = -x.Phi[t - 1]
        b[own], C[own, own] = (x.c[t - 1], x.Q[t - 1]) if t else (x.m, x.P)
    K = np.block([[-C, A], [A.T, H]])
    inverse, _, solution = dense_inverse(K, np.concatenate([-b, x.h.reshape(-1)]))
    return solution[n * k :].reshape(n, k), inverse[n * k :, n * k :], -inverse[: n * k, : n * k]


def compared(x: kalman_smoother.DenseChain, tolerance: float = 1e-10, of_later: float = 1e-10) -> None:
    """Means and P in units of the standard deviations of the dense system, and Λ in those of Q."""
    n, k = x.h.shape
    solved = kalman_smoother.solve(x, covariances=True)
    mean, whole, later = dense(x)
    std = np.sqrt(np.diagonal(whole)).reshape(n, k)
    assert np.abs((solved.step - mean) / np.maximum(std, np.abs(mean))).max() < tolerance
    for t in range(n):
        own = slice(t * k, (t + 1) * k)
        assert np.abs((solved.P[t] - whole[own, own]) / np.outer(std[t], std[t])).max() < tolerance
        if t:
            size = np.sqrt(np.diagonal(x.Q[t - 1]))
            off = np.where(x.Q[t - 1] != 0.0, solved.later[t - 1] - later[own, own], 0.0)
            assert np.abs(off * np.outer(size, size)).max() < of_later
    alone = kalman_smoother.solve(x)
    np.testing.assert_allclose(alone.step, solved.step, rtol=0, atol=tolerance * np.abs(std).max())
    assert alone.least == pytest.approx(solved.least, rel=1e-6, abs=1e-6)


@pytest.fixture(params=[10**9, 0], ids=["routines", "programs"])
def worth(request, monkeypatch):
    """Chains of few unknowns by routines of BLAS, and by programs."""
    monkeypatch.setattr(kalman_smoother, "WORTH_A_PROGRAM", request.param)


def random(n: int, k: int, rows: int, seed: int) -> kalman_smoother.DenseChain:
    """A chain of k coupled unknowns, of which each instant has some rows."""
    rng = np.random.default_rng(seed)
    J, r = rng.standard_normal((n, rows, k)), rng.standard_normal((n, rows))
    root = rng.standard_normal((n, k, k)) + 2.0 * np.eye(k)
    Q = root @ root.swapaxes(1, 2)
    return kalman_smoother.DenseChain(
        J.swapaxes(1, 2) @ J, np.einsum("nij,ni->nj", J, r), rng.standard_normal((n - 1, k, k)) / np.sqrt(k),
        rng.standard_normal((n - 1, k)), Q[1:], rng.standard_normal(k), Q[0],
    )  # fmt: skip


def of_motion(
    n: int, dofs: int, order: int, dt: float, density: float, std: float, seed: int
) -> kalman_smoother.DenseChain:
    """Encoders of joints that move by themselves; a start of which hardly anything is known."""
    rng = np.random.default_rng(seed)
    k = order * dofs
    one = np.eye(dofs)
    H = np.zeros((n, k, k))
    H[:, np.arange(dofs), np.arange(dofs)] = std**-2
    H[1::3] = 0.0  # two of three instants are measured
    h = np.zeros((n, k))
    h[:, :dofs] = np.where(H[:, :1, 0] > 0.0, rng.standard_normal((n, dofs)) / std, 0.0)
    F, Q = np.kron(transition(dt, order), one), np.kron(density**2 * covariance(dt, order), one)
    first = np.kron(np.diag(np.array([10.0, 10.0, 1e3, 1e5])[:order] ** 2), one)
    return kalman_smoother.DenseChain(
        H, h, np.repeat(F[None], n - 1, 0), 1e-6 * rng.standard_normal((n - 1, k)), np.repeat(Q[None], n - 1, 0),
        np.zeros(k), first,
    )  # fmt: skip


@pytest.mark.parametrize("n, k, rows", [(1, 3, 2), (2, 1, 1), (5, 3, 2), (4, 2, 0)])
def test_random_chains(n, k, rows, worth):
    compared(random(n, k, rows, seed=n + k))


@pytest.mark.parametrize("n, k, rows", [(4, 8, 3), (9, 9, 5), (3, 14, 20)])
def test_random_chains_of_more_unknowns(n, k, rows):
    compared(random(n, k, rows, seed=n + k))


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("density", [1e-6, 1e-3, 1.0, 1e4, 1e8])
def test_motion_of_a_millisecond(order, density, worth):
    compared(of_motion(7, 1, order, 1e-3, density, 1e-4, seed=order))


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("exact", [1e-5, 1e-7])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_rows_that_are_all_but_exact(order, exact, unit):
    """Two joints that a transmission holds together, far better than encoders tell; in any unit."""
    x = of_motion(5, 2, order, 1e-3, 10.0, 1e-4, seed=order)
    J = np.zeros(2 * order)
    J[:2] = 1.0, -0.5
    x.H[:] += np.outer(J, J) / exact**2
    x.h[:] += J * 1e-6 / exact**2
    powers = {"H": -2, "h": -1, "Phi": 0, "c": 1, "Q": 2, "m": 1, "P": 2}
    compared(
        kalman_smoother.DenseChain(**{name: y * unit ** powers[name] for name, y in x._asdict().items()}), 1e-7, 1e-5
    )


@pytest.mark.parametrize("k, rows, strong", [(9, 4, ()), (14, 9, (1, 11, 12, 29)), (6, 3, range(40)), (12, 0, ())])
def test_covariances_of_many_instants(k, rows, strong, monkeypatch):
    """By what comes after, where some readings take nearly all of a covariance, and through factors."""
    x = random(40, k, rows, seed=k)
    x.H[list(strong)] *= 1e5
    x.h[list(strong)] *= 1e5
    found = kalman_smoother.solve(x, covariances=True)
    monkeypatch.setattr(kalman_smoother, "START", 10**9)
    through = kalman_smoother.solve(x, covariances=True)
    std = np.sqrt(np.einsum("nii->ni", through.P))
    np.testing.assert_allclose(found.step / std, through.step / std, rtol=0, atol=1e-9)
    size = std[:, :, None] * std[:, None, :]
    np.testing.assert_allclose(found.P / size, through.P / size, rtol=0, atol=1e-9)
    size = np.sqrt(np.einsum("nii->ni", x.Q))
    size = size[:, :, None] * size[:, None, :]
    np.testing.assert_allclose(found.later * size, through.later * size, rtol=0, atol=1e-9)


@pytest.mark.parametrize("k, strong", [(3, ()), (14, ()), (14, (1, 11, 29))])
def test_variances_of_readings_after_all_of_them(k, strong):
    """And Λ without covariances."""
    x = random(40, k, 5, seed=k)
    x.H[list(strong)] *= 1e5
    J, r = kalman_smoother.rows_of(x.H, x.h)
    everywhere = np.argwhere(np.ones((k, k)))
    of_rows, of_steps, of_noise = (
        kalman_smoother.Sparse(y.reshape(len(y), 1, -1), everywhere) for y in (J, x.Phi, x.Q)
    )
    part = kalman_smoother.ParallelChains(
        np.arange(k)[None], of_rows, r[:, None], of_steps, x.c[:, None], of_noise, x.m[None], x.P[None]
    )  # fmt: skip
    expected = np.einsum("nij,njk,nik->ni", J, kalman_smoother.solve(x, covariances=True).P, J)
    np.testing.assert_allclose(
        kalman_smoother.told_after(part, kalman_smoother.Room())[:, 0], expected, rtol=0, atol=1e-8
    )
    both, alone = (
        kalman_smoother.sweep([part], 40, k, covariances=c, later=True).covariances.blocks[0] for c in (True, False)
    )
    assert len(both.P) == 40 and not len(alone.P)
    np.testing.assert_allclose(alone.later, both.later, rtol=0, atol=1e-9 * np.abs(both.later).max())


@pytest.mark.parametrize("order", [3, 4])
def test_motion_of_joints_that_a_reading_couples(order):
    """Three joints."""
    x = of_motion(4, 3, order, 1e-3, 100.0, 1e-4, seed=order)
    J = np.zeros(3 * order)
    J[3:6] = 1.0, -2.0, 0.5
    x.H[2] += np.outer(J, J) / 1e-2**2
    assert len(kalman_smoother.components(kalman_smoother.couplings(x))) == 1
    compared(x)


def test_parts_that_nothing_couples_are_solved_apart():
    """Two chains interleaved, of 3 and of 10 unknowns: the solution is theirs."""
    a, b = random(5, 3, 2, seed=1), random(5, 10, 4, seed=2)
    place = np.random.default_rng(0).permutation(13)
    matrices = {"H", "Phi", "Q", "P"}
    joined = kalman_smoother.DenseChain(**{
        name: np.zeros((*x.shape[:-2], 13, 13) if name in matrices else (*x.shape[:-1], 13))
        for name, x in a._asdict().items()
    })  # fmt: skip
    for part, own in ((a, place[:3]), (b, place[3:])):
        for name, x in joined._asdict().items():
            x[(..., own[:, None], own) if name in matrices else (..., own)] = getattr(part, name)
    assert {frozenset(x.tolist()) for x in kalman_smoother.components(kalman_smoother.couplings(joined))} == {
        frozenset(place[:3].tolist()), frozenset(place[3:].tolist())
    }  # fmt: skip
    solved = kalman_smoother.solve(joined, covariances=True)
    for part, own in ((a, place[:3]), (b, place[3:])):
        alone = kalman_smoother.solve(part, covariances=True)
        np.testing.assert_allclose(solved.step[:, own], alone.step, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(solved.P[:, own[:, None], own], alone.P, rtol=1e-10)
        np.testing.assert_allclose(solved.later[:, own[:, None], own], alone.later, rtol=1e-9, atol=1e-12)
    assert not solved.P[:, place[:3][:, None], place[3:]].any()


@pytest.mark.parametrize("k", [2, 12])
def test_a_covariance_without_digits_names_its_instant(k, worth):
    x = random(4, k, 2, seed=0)
    x.Q[1] = -x.Q[1]
    with pytest.raises(SingularState, match="instant 2"):
        kalman_smoother.solve(x)


@pytest.mark.parametrize("k", [3, 10])
def test_the_determinant_of_what_is_measured(k):
    """det(1 + J P J^T) is that of the covariance before all rows by that after them."""
    x = random(5, k, 2, seed=4)
    before = sum(np.linalg.slogdet(y)[1] for y in (x.P, *x.Q))
    expected = before - np.linalg.slogdet(dense(x)[1].astype(float))[1]
    assert kalman_smoother.solve(x).logdet == pytest.approx(expected, rel=1e-9)
    assert kalman_smoother.solve(x, covariances=True).logdet == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("k, rows", [(3, 2), (10, 4), (10, 0)])
def test_what_is_left_is_the_sum_of_squares_at_the_solution(k, rows):
    """Readings, steps and the start, in standard deviations."""
    x = random(20, k, rows, seed=7)
    J, r = kalman_smoother.rows_of(x.H, x.h)
    for covariances in (False, True):
        found = kalman_smoother.solve(x, covariances)
        d = found.step
        shown = np.einsum("nij,nj->ni", J, d) + r
        e, first = d[1:] - np.einsum("nij,nj->ni", x.Phi, d[:-1]) - x.c, d[0] - x.m
        total = (shown * shown).sum() + first @ np.linalg.solve(x.P, first)
        total += sum(a @ np.linalg.solve(Q, a) for a, Q in zip(e, x.Q, strict=True))
        assert found.least == pytest.approx(total, rel=1e-9, abs=1e-9)


def test_chains_side_by_side_are_those_that_routines_solve():
    """Nine chains with patterns of their own noise and steps: together worth a program, by themselves not."""
    n, k = kalman_smoother.WORTH_A_PROGRAM // 9 + 1, 3
    each = [random(n, k, 2, seed=s) for s in range(9)]

    def sparse(y) -> kalman_smoother.Sparse:
        places = np.ascontiguousarray(np.argwhere(np.ones((k, k))), dtype=np.int64)
        return kalman_smoother.Sparse(np.stack([z.reshape(len(z), -1) for z in y], axis=1), places)

    def part(*numbers: int) -> kalman_smoother.ParallelChains:
        chosen = [each[i] for i in numbers]
        J, r = zip(*(kalman_smoother.rows_of(x.H, x.h) for x in chosen), strict=True)
        return kalman_smoother.ParallelChains(
            np.arange(9 * k).reshape(9, k)[[*numbers]], sparse(J), np.stack(r, axis=1), sparse([x.Phi for x in chosen]),
            np.stack([x.c for x in chosen], axis=1), sparse([x.Q for x in chosen]), np.stack([x.m for x in chosen]),
            np.stack([x.P for x in chosen]),
        )  # fmt: skip

    found = []
    for parts in ([part(*range(9))], [part(i) for i in range(9)]):
        found.append(kalman_smoother.sweep(parts, n, 9 * k, True, True))
        steps = kalman_smoother.sweep(parts, n, 9 * k)
        np.testing.assert_allclose(steps.step, found[-1].step, rtol=0, atol=1e-10 * np.abs(steps.step).max())
        last, whole = (
            kalman_smoother.sweep(parts, n, 9 * k, last=True).covariances.dense(),
            found[-1].covariances.dense(),
        )
        np.testing.assert_allclose(last, whole[-1:], rtol=0, atol=1e-10 * np.abs(whole[-1]).max())
    one, two = found
    np.testing.assert_allclose(one.step, two.step, rtol=0, atol=1e-10 * np.abs(two.step).max())
    for name in ("P", "later"):
        a, b = (np.concatenate([getattr(y, name) for y in x.covariances.blocks], axis=1) for x in found)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * np.abs(b).max())
    assert one.least == pytest.approx(two.least, rel=1e-9) and one.logdet == pytest.approx(two.logdet, rel=1e-9)
