"""Matrices without a factorisation do not reach SuperLU: nothing is printed, and no process ends."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

from sysdyn.sparse.condition import bauer_condition, skeel_condition
from sysdyn.sparse.superlu import factors

FAMILY = """
import warnings
import numpy as np, scipy.sparse
from sysdyn.sparse.condition import bauer_condition, skeel_condition
rng, infinite = np.random.default_rng(0), 0
for trial in range(600):
    n = int(rng.integers(2, 60))
    A = np.where(rng.random((n, n)) < rng.choice([0.05, 0.1, 0.3, 0.8]), rng.standard_normal((n, n)), 0.0)
    kind = trial % 7
    if kind == 0: A[:, rng.integers(0, n, n // 2)] = A[:, [0]]
    if kind == 1: A[rng.integers(0, n, n // 2)] = A[0]
    if kind == 2: A = np.outer(rng.standard_normal(n), rng.standard_normal(n))
    if kind == 3: A = 1e300 * A * 10.0 ** rng.uniform(0, 7, (n, n))
    if kind == 4: A = A + np.eye(n); A[np.ix_(rng.random(n) < 0.5, rng.random(n) < 0.5)] = 0.0
    if kind == 5: A[rng.random((n, n)) < 0.02] = np.nan
    if kind == 6: A[rng.random((n, n)) < 0.02] = np.inf
    with np.errstate(all="ignore"):
        stored = scipy.sparse.csr_matrix(np.where(A == 0.0, 1.0, A) if trial % 2 else A)
        stored.data[stored.data == 1.0] = 0.0  # entries that are stored, and zero
        conditions = [skeel_condition(stored), bauer_condition(stored)[0]]
    infinite += conditions[0] == np.inf
assert infinite > 200, infinite
"""


@pytest.mark.slow
def test_matrices_without_factors_are_infinite_and_print_nothing():
    found = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize("empty", ["column", "row", "pattern", "stored zeros", "nan", "infinite"])
def test_what_superlu_cannot_take_has_no_factors(empty):
    A = np.eye(6) + np.diag(np.ones(5), 1)
    if empty == "column":
        A[:, 2] = 0.0
    elif empty == "row":
        A[2] = 0.0
    elif empty == "pattern":
        A[1:4, :] = 0.0
        A[1:4, 2] = 1.0
    elif empty in ("nan", "infinite"):
        A[1, 2] = {"nan": np.nan, "infinite": np.inf}[empty]
    M = scipy.sparse.csr_matrix(A)
    if empty == "stored zeros":
        M.data[M.indices == 2] = 0.0
    assert factors(M) is None
    with np.errstate(all="ignore"):
        assert skeel_condition(M) == bauer_condition(M)[0] == np.inf


def test_regular_matrices_have_factors():
    A = scipy.sparse.csr_matrix(np.array([[0.0, 2.0], [4.0, 0.0]]))
    lu = factors(A)
    assert lu is not None and np.array_equal(lu.solve(np.array([2.0, 4.0])), [1.0, 1.0])
