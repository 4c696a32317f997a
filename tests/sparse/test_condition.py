"""Scaling and condition numbers of sparse matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

from sysdyn.sparse import umfpack
from sysdyn.sparse.condition import balance, bauer_condition, equilibration, rank_condition, skeel_condition
from sysdyn.sparse.superlu import factors


@pytest.mark.parametrize("shape", [(9, 9), (12, 7), (7, 12)])
def test_balanced_rows_and_columns(shape):
    """For any pattern, also structurally singular ones, and whatever the units are."""
    rng = np.random.default_rng(sum(shape))
    sizes = rng.uniform(0.1, 1.0, shape) * (rng.random(shape) < 0.5)
    sizes[:4, 2:] = 0.0  # four rows of two columns
    rows, columns = (10.0 ** rng.uniform(-3, 3, n) for n in shape)
    for given in (sizes, scipy.sparse.csr_matrix(rows[:, None] * sizes * columns)):
        R, C = balance(given)
        balanced = scipy.sparse.diags(R) @ scipy.sparse.csr_matrix(given) @ scipy.sparse.diags(C)
        squares = balanced.power(2).toarray()
        np.testing.assert_allclose(squares.sum(axis=0), (sizes > 0.0).sum(axis=0), rtol=1e-9)
        np.testing.assert_allclose(squares.sum(axis=1), (sizes > 0.0).sum(axis=1), rtol=1e-4)


def test_rounding_errors_do_not_lead():
    """Entries of 1e-30 among those of a regular matrix: equilibrated they make it near singular, balanced not."""
    rng = np.random.default_rng(1)
    A = rng.standard_normal((20, 20)) * np.where(rng.random((20, 20)) < 0.3, 1.0, 1e-30) + 3.0 * np.eye(20)
    row, col = np.nonzero(A)
    R, C = equilibration(row, col, np.abs(A[row, col]), A.shape)
    B = R[:, None] * A * C
    r, c = balance(np.abs(B))
    after = np.linalg.cond(r[:, None] * B * c)
    assert after < 1e-3 * np.linalg.cond(B) and after < 1e3


# ---- estimates of condition numbers ----------------------------------------------------------------------------------


def random_matrix(seed: int) -> scipy.sparse.csr_matrix:
    """Sparse and regular, of a size and a conditioning by chance."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    A = scipy.sparse.random(n, n, 0.1, random_state=rng, data_rvs=rng.standard_normal).toarray()
    return scipy.sparse.csr_matrix((A + np.eye(n)) * np.exp(rng.uniform(-3.0, 3.0, n)))


@pytest.mark.parametrize("seed", range(40))
def test_estimates_are_within_a_factor_of_three_from_below(seed):
    A = random_matrix(seed)
    inverse = np.abs(np.linalg.inv(A.toarray()))
    expected = (inverse @ np.abs(A.toarray())).sum(axis=1).max()
    assert expected / 3.0 <= skeel_condition(A) <= expected * (1.0 + 1e-9)


def test_the_estimate_is_the_same_each_time_and_whatever_the_units_of_rows():
    A = random_matrix(3)
    assert len({skeel_condition(A) for _ in range(5)}) == 1
    units = scipy.sparse.diags(10.0 ** np.random.default_rng(0).uniform(-9, 9, A.shape[0]))
    assert skeel_condition(units @ A) == pytest.approx(skeel_condition(A), rel=1e-6)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_the_matrix_of_the_caller_stays_as_it_is(kind):
    A = random_matrix(5)
    given = getattr(A, f"to{kind}")()
    before = [x.copy() for x in (given.data, given.toarray())]
    for function in (skeel_condition, bauer_condition, lambda A: balance(abs(A)), factors):
        function(given)
    if umfpack.available():
        umfpack.permutations(given)
    assert np.array_equal(given.data, before[0]) and np.array_equal(given.toarray(), before[1])


def test_singular_matrices_have_none():
    zero_row = random_matrix(1).tolil()
    zero_row[0] = 0.0
    for A in (zero_row.tocsr(), scipy.sparse.csr_matrix(np.ones((3, 3))), scipy.sparse.csr_matrix((2, 2))):
        assert skeel_condition(A) > 1e14 and bauer_condition(A)[0] > 1e14
    assert skeel_condition(zero_row.tocsr()) == math.inf


@pytest.mark.parametrize("seed", range(10))
def test_bauer_condition_number_over_all_scalings(seed):
    """Of a triangle about 1; of others ρ(|A⁻¹| |A|), whatever the units, attained by the scaling with it."""
    A, rng = random_matrix(seed), np.random.default_rng(seed)
    triangle = scipy.sparse.tril(A + scipy.sparse.eye(A.shape[0]) * 3.0).tocsr()
    dense = A.toarray()
    radius = np.abs(np.linalg.eigvals(np.abs(np.linalg.inv(dense)) @ np.abs(dense))).max()
    for _ in range(2):
        left, right = (scipy.sparse.diags(10.0 ** rng.uniform(-9.0, 9.0, A.shape[0])) for _ in range(2))
        found, rows, columns = bauer_condition((left @ A @ right).tocsr())
        assert radius * (1.0 - 1e-6) <= found <= 10.0 * radius and found <= 1.01 * skeel_condition(A) * 3.0
        scaled = scipy.sparse.diags(rows) @ left @ A @ right @ scipy.sparse.diags(columns)
        inverse = np.abs(np.linalg.inv(scaled.toarray()))
        assert (inverse @ np.abs(scaled.toarray()).sum(axis=1)).max() == pytest.approx(found, rel=1e-6)
        assert bauer_condition((left @ triangle @ right).tocsr())[0] < 100.0
    singular = scipy.sparse.csr_matrix(np.ones((3, 3)))
    assert bauer_condition(singular)[0] > 1e14


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (6, 6), (0, 4)])
def test_the_rank_of_rows_and_columns_in_any_units(shape):
    rng = np.random.default_rng(3)
    A = rng.standard_normal(shape)
    units = 10.0 ** rng.uniform(-9, 9, shape[0])[:, None] * 10.0 ** rng.uniform(-9, 9, shape[1])
    assert rank_condition(units * A) < 1e3
    if A.size:
        A[:, -1], A[-1] = A[:, 0], A[0]
        assert rank_condition(units * A) > 1e13
