"""The Dulmage-Mendelsohn decomposition against what defines it, by brute force over structural ranks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import structural_rank

from sysdyn.equations.problem_system import assemble
from sysdyn.measurements.classical import forward_dynamics, inverse_dynamics
from sysdyn.model import auto_tree, chain
from sysdyn.sparse.dulmage import DiagonalBlock, dulmage_mendelsohn


def rank(A: np.ndarray) -> int:
    return int(structural_rank(scipy.sparse.csr_matrix(A))) if A.size else 0


def brute(A: np.ndarray):
    """(rows, columns) that some maximum matching leaves out, and the classes of entries on maximum matchings.

    A column is left out by some maximum matching where the structural rank stays as it is without it.
    """
    r = rank(A)
    columns = {j for j in range(A.shape[1]) if rank(np.delete(A, j, 1)) == r}
    rows = {i for i in range(A.shape[0]) if rank(np.delete(A, i, 0)) == r}
    return rows, columns


@st.composite
def patterns(draw):
    m, n = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    density = draw(st.floats(0.05, 0.7))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).random((m, n)) < density


@settings(max_examples=300)
@given(patterns())
def test_parts_are_those_of_the_definition(A):
    found = dulmage_mendelsohn(scipy.sparse.csr_matrix(A))
    rows, columns = brute(A)
    assert set(found.under.columns) == columns
    assert set(found.over.rows) == rows
    # the rows of A11 are all that its columns have entries in, the columns of A33 all that its rows have
    assert set(found.under.rows) == {i for j in columns for i in np.flatnonzero(A[:, j])}
    assert set(found.over.columns) == {j for i in rows for j in np.flatnonzero(A[i])}
    assert found.rank == rank(A)
    assert (found.missing, found.excess) == (A.shape[1] - found.rank, A.shape[0] - found.rank)
    assert sorted(found.row_perm) == list(range(A.shape[0])) and sorted(found.col_perm) == list(range(A.shape[1]))


@settings(max_examples=300)
@given(patterns())
def test_the_form_is_block_upper_triangular_with_irreducible_blocks(A):
    found = dulmage_mendelsohn(scipy.sparse.csr_matrix(A))
    below = set(range(A.shape[0])) - set(found.under.rows)
    assert not A[np.ix_(sorted(below), found.under.columns)].any()
    block_of = {}
    for k, block in enumerate(found.square):
        assert len(block.rows) == len(block.columns) > 0
        assert A[list(block.rows), list(block.columns)].all()  # a full diagonal
        below -= set(block.rows)
        assert not A[np.ix_(sorted(below), block.columns)].any()
        block_of |= dict.fromkeys(block.columns, k)
    assert below == set(found.over.rows)
    # an entry of a square part is on some perfect matching exactly where it lies in a diagonal block
    rows, columns = ([x for b in found.square for x in getattr(b, side)] for side in ("rows", "columns"))
    inner = A[np.ix_(rows, columns)]
    for i, j in zip(*np.nonzero(inner), strict=True):
        matched = rank(np.delete(np.delete(inner, i, 0), j, 1)) == len(rows) - 1
        assert matched == (block_of[columns[i]] == block_of[columns[j]])


@settings(max_examples=60)
@given(patterns(), st.integers(0, 2**32 - 1))
def test_it_does_not_depend_on_the_order_of_rows_and_columns(A, seed):
    rng = np.random.default_rng(seed)
    P, Q = rng.permutation(A.shape[0]), rng.permutation(A.shape[1])

    def named(found, P, Q):
        def block(b):
            return frozenset(P[list(b.rows)].tolist()), frozenset(Q[list(b.columns)].tolist())

        return block(found.under), block(found.over), {block(b) for b in found.square}

    one = dulmage_mendelsohn(scipy.sparse.csr_matrix(A))
    other = dulmage_mendelsohn(scipy.sparse.csr_matrix(A[np.ix_(P, Q)]))
    assert named(one, np.arange(A.shape[0]), np.arange(A.shape[1])) == named(other, P, Q)


def test_an_example():
    A = np.array([
        [1, 1, 0, 1, 0, 0],  # two columns, one row
        [0, 0, 1, 1, 0, 0],  # a block of two
        [0, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 1, 0],  # and one of one
        [0, 0, 0, 0, 0, 1],  # two rows, one column
        [0, 0, 0, 0, 0, 1],
    ])  # fmt: skip
    found = dulmage_mendelsohn(scipy.sparse.csc_matrix(A))
    assert found.under == DiagonalBlock((0,), (0, 1)) and found.over == DiagonalBlock((4, 5), (5,))
    assert {frozenset(b.columns) for b in found.square} == {frozenset({2, 3}), frozenset({4})}
    assert repr(found) == "DulmageMendelsohn(6×6: under 1×2, 2 square blocks, the largest of 2, over 2×1)"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3)])
def test_empty_patterns(shape):
    found = dulmage_mendelsohn(scipy.sparse.csr_matrix(shape))
    assert found.under == DiagonalBlock((), tuple(range(shape[1]))) and found.over == DiagonalBlock(
        tuple(range(shape[0])), ()
    )
    assert found.square == () and found.rank == 0


def test_stored_zeros_belong_to_the_pattern():
    A = scipy.sparse.csr_matrix((np.zeros(2), ([0, 1], [1, 0])), shape=(2, 2))
    assert dulmage_mendelsohn(A).rank == 2


def test_inverse_dynamics_falls_into_scalars():
    """Nori, Property 1: the rows and columns of inverse dynamics can be ordered to be triangular."""
    triangular = dulmage_mendelsohn(assemble(inverse_dynamics(auto_tree(12, 1.5, 1.5, 0.9))).pattern())
    assert {len(b.rows) for b in triangular.square} == {1} and len(triangular.square) == triangular.rank
    coupled = dulmage_mendelsohn(assemble(forward_dynamics(chain(5))).pattern())
    assert max(len(b.rows) for b in coupled.square) > 5
