"""The Dulmage-Mendelsohn decomposition against its definition, by brute force over structural ranks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import structural_rank

from sysdyn.sparse.dulmage import DiagonalBlock, dulmage_mendelsohn


def rank(A: np.ndarray) -> int:
    return int(structural_rank(scipy.sparse.csr_matrix(A))) if A.size else 0


@st.composite
def patterns(draw):
    m, n = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    density = draw(st.floats(0.05, 0.7))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).random((m, n)) < density


@settings(max_examples=300)
@given(patterns())
def test_parts_follow_their_definition(A):
    """A row or column belongs to A33 or A11 if the structural rank stays the same without it."""
    blocks, r = dulmage_mendelsohn(scipy.sparse.csr_matrix(A)), rank(A)
    assert set(blocks.under.columns) == {j for j in range(A.shape[1]) if rank(np.delete(A, j, 1)) == r}
    assert set(blocks.over.rows) == {i for i in range(A.shape[0]) if rank(np.delete(A, i, 0)) == r}
    # the rows of A11 are all that its columns have entries in, the columns of A33 all that its rows have
    assert set(blocks.under.rows) == {i for j in blocks.under.columns for i in np.flatnonzero(A[:, j])}
    assert set(blocks.over.columns) == {j for i in blocks.over.rows for j in np.flatnonzero(A[i])}
    assert (blocks.missing, blocks.excess) == (A.shape[1] - r, A.shape[0] - r)


def test_an_example_in_csc():
    A = np.array([
        [1, 1, 0, 1, 0, 0],  # two columns, one row
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],  # two rows, one column
        [0, 0, 0, 0, 0, 1],
    ])  # fmt: skip
    blocks = dulmage_mendelsohn(scipy.sparse.csc_matrix(A))
    assert blocks == (DiagonalBlock((0,), (0, 1)), DiagonalBlock((4, 5), (5,)))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3)])
def test_empty_patterns(shape):
    under, over = dulmage_mendelsohn(scipy.sparse.csr_matrix(shape))
    assert under == ((), tuple(range(shape[1]))) and over == (tuple(range(shape[0])), ())


def test_stored_zeros_belong_to_the_pattern():
    A = scipy.sparse.csr_matrix((np.zeros(2), ([0, 1], [1, 0])), shape=(2, 2))
    assert dulmage_mendelsohn(A).missing == 0
