"""MuJoCo's layout of the inertia matrix and of its factor: packed as MuJoCo stores it, and back."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mujoco_models import MODELS, Oracle, imported, relative_error

from sysdyn.errors import InvalidInput
from sysdyn.model import random_tree
from sysdyn.program.graph import Graph
from sysdyn.reference.crba import crba
from sysdyn.reference.ltdl import expanded_parent, ltdl
from sysdyn.reference.mujoco_layout import MujocoLayout, csr_layout

STATES = 20


def csr(mj: mujoco.MjModel) -> MujocoLayout:
    return csr_layout(mj.dof_parentid, mj.dof_simplenum)


# ---- against MuJoCo --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_places_are_those_of_mujoco(name):
    mj, model, _ = imported(name)
    assert expanded_parent(model) == tuple(mj.dof_parentid)
    layout = csr(mj)
    assert np.array_equal(layout.col, mj.M_colind) and np.array_equal(np.bincount(layout.row), mj.M_rownnz)


def test_some_freedoms_are_simple():
    mj = imported("scene")[0]
    assert len(csr(mj).row) == mj.nC < mj.nM and np.any(mj.dof_simplenum) and not np.all(mj.dof_simplenum)


@pytest.mark.parametrize("name", MODELS)
def test_inertia_factor_and_solve_are_those_of_mujoco(name):
    mj, model, state = imported(name)
    oracle, layout = Oracle(mj, state), csr(mj)
    b = np.random.default_rng(1).uniform(-1.0, 1.0, mj.nv)
    for q in model.random_state(seed=3, batch=STATES)[0]:
        dense, data = oracle.inertia(q), oracle.data
        M = state.inertia_to_mujoco(q, crba(model, q))
        factor = ltdl(M, mj.dof_parentid)
        qLD, qLDiagInv = layout.pack_factor(factor)
        x = np.zeros((1, mj.nv))
        mujoco.mj_solveM(mj, data, x, b[None])
        for found, expected in (
            (M, dense), (layout.pack(M), data.M), (qLD, data.qLD), (qLDiagInv, data.qLDiagInv), (factor.solve(b), x[0]),
        ):  # fmt: skip
            assert relative_error(found, expected) < 1e-10
        # and theirs, read by us
        assert np.array_equal(layout.unpack(data.M), dense)
        theirs = layout.unpack_factor(data.qLD)
        assert relative_error(theirs.L.T @ np.diag(theirs.D) @ theirs.L, dense) < 1e-12
        assert relative_error(theirs.solve(b), x[0]) < 1e-12


# ---- on their own ----------------------------------------------------------------------------------------------------


def test_order_of_the_entries():
    """The tree 0 ← 1 ← 2, 1 ← 3, and 4 alone."""
    parent = (-1, 0, 1, 1, -1)
    assert csr_layout(parent).row.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert csr_layout(parent).col.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 3, 4]
    assert csr_layout(parent, [0, 3, 0, 0, 0]).row.tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 4]


@given(st.integers(1, 8), st.integers(0, 10**6))
def test_there_and_back(bodies, seed):
    model = random_tree(bodies, seed)
    H = crba(model.replace(armature=np.full(model.nv, 0.1)), model.random_state(seed, batch=3)[0])
    parent = expanded_parent(model)
    layout, factor = csr_layout(parent), ltdl(H, parent)
    packed = layout.pack(H)
    assert packed.shape == (3, len(layout.row)) and np.array_equal(layout.unpack(packed), H)
    qLD, qLDiagInv = layout.pack_factor(factor)
    again = layout.unpack_factor(qLD)
    assert np.array_equal(again.L, factor.L) and np.array_equal(again.D, factor.D) and again.parent == parent
    assert np.array_equal(qLDiagInv, 1.0 / factor.D)


def test_symbols_are_packed_as_they_are():
    model = random_tree(3, 1)
    parent = expanded_parent(model)
    layout, H = csr_layout(parent), np.full((model.nv, model.nv), 0.0, dtype=object)
    graph = Graph()
    for i, j in zip(layout.row, layout.col, strict=True):
        H[i, j] = H[j, i] = graph.input(f"H{i},{j}")
    assert np.array_equal(layout.unpack(layout.pack(H)), H)
    factor = ltdl(H, parent)
    qLD, _ = layout.pack_factor(factor)
    assert layout.unpack_factor(qLD).D[0] is factor.D[0]


def test_wrong_input():
    mj, model, state = imported("scene")
    layout = csr(mj)
    M = state.inertia_to_mujoco(q := model.neutral(), crba(model, q))
    coupled = M.copy()
    coupled[4, 3] = coupled[3, 4] = 1e-3 * M[3, 3]
    for call, words in (
        (lambda: layout.pack(M[0]), r"M has shape \(22,\), but \(…, 22, 22\) is needed"),
        (lambda: layout.unpack(np.zeros(5)), r"data has shape \(5,\), but \(…, 38\) is needed"),
        (lambda: layout.unpack_factor(np.zeros(69)), r"qLD has shape \(69,\)"),
        (lambda: layout.pack([M, coupled]), r"M\[4, 3\].*4 is declared simple"),
        (lambda: layout.pack_factor(ltdl(coupled, mj.dof_parentid)), r"L\[4, 3\].*4 is declared simple"),
        (lambda: layout.pack_factor(ltdl(np.eye(2), (-1, 0))), r"the factor has parent \(-1, 0\)"),
        (lambda: csr_layout(mj.dof_parentid, [0, 1]), "simplenum has shape"),
        (lambda: csr_layout([-1, 1]), r"parent\[1\] = 1"),
    ):
        with pytest.raises(InvalidInput, match=words):
            call()
