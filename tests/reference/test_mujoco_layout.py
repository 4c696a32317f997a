"""The sparse layouts of MuJoCo: what it stores itself is what ours, packed, is; and back.

fixtures/mujoco_legacy.json holds what MuJoCo 3.2.7, whose factor still has the legacy layout, says of files in
models/ at one state each, by mj_forward and mj_solveM; qLDiagSqrtInv, and "half" by mj_solveM2, are of 3.1.6, the
last release with that array.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mujoco_models import MODELS, Oracle, imported, relative_error

from sysdyn.errors import InvalidInput
from sysdyn.model import random_tree
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Graph
from sysdyn.reference.crba import crba
from sysdyn.reference.ltdl import Factor, expanded_parent, ltdl, ltl
from sysdyn.reference.mujoco_layout import MujocoLayout, csr_layout, legacy_layout

STATES = 20
LEGACY = Path(__file__).parents[1] / "fixtures" / "mujoco_legacy.json"


@functools.cache
def legacy() -> dict:
    return json.loads(LEGACY.read_text())["models"]


def csr(mj: mujoco.MjModel) -> MujocoLayout:
    return csr_layout(mj.dof_parentid, mj.dof_simplenum)


def layouts(parent) -> tuple[MujocoLayout, MujocoLayout]:
    return legacy_layout(parent), csr_layout(parent)


# ---- against MuJoCo --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_places_are_those_of_mujoco(name):
    mj, model, _ = imported(name)
    assert expanded_parent(model) == tuple(mj.dof_parentid)
    new, old = csr(mj), legacy_layout(mj.dof_parentid)
    assert new.n == mj.nC and old.n == mj.nM
    for found, expected in (
        (new.rownnz, mj.M_rownnz), (new.rowadr, mj.M_rowadr), (new.col, mj.M_colind), (old.rowadr, mj.dof_Madr),
    ):  # fmt: skip
        assert np.array_equal(found, expected)
    at = {(i, j): k for k, (i, j) in enumerate(zip(old.row, old.col, strict=True))}
    assert [at[pair] for pair in zip(new.row, new.col, strict=True)] == mj.mapM2M.tolist()


def test_some_freedoms_are_simple():
    mj = imported("scene")[0]
    assert csr(mj).n == mj.nC < mj.nM and np.any(mj.dof_simplenum) and not np.all(mj.dof_simplenum)


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


@pytest.mark.parametrize("name", ["balls", "gantry", "humanoid", "scene"])
def test_legacy_inertia_factor_and_solve_are_those_of_an_older_mujoco(name):
    mj, model, state = imported(name)
    stored = {key: np.array(value) for key, value in legacy()[name].items()}
    layout = legacy_layout(mj.dof_parentid)
    q, _ = state.to_sysdyn(stored["qpos"], np.zeros(mj.nv))
    # 3.2.7 finds the principal axes of <inertial fullinertia>, which `balls` has, to 1e-8 only
    assert relative_error(layout.pack(state.inertia_to_mujoco(q, crba(model, q))), stored["qM"]) < (
        1e-8 if name == "balls" else 1e-10
    )
    M = layout.unpack(stored["qM"])
    factor = ltdl(M, mj.dof_parentid)
    qLD, qLDiagInv = layout.pack_factor(factor)
    for found, key in (
        (layout.pack(M), "qM"),
        (qLD, "qLD"),
        (qLDiagInv, "qLDiagInv"),
        (layout.diagonal_sqrt_inverse(factor), "qLDiagSqrtInv"),
        (layout.diagonal_sqrt_inverse(factor) * factor.solve_Lt(stored["b"]), "half"),
        (factor.solve(stored["b"]), "x"),
    ):
        assert relative_error(found, stored[key]) < 1e-10, key
    assert relative_error(layout.unpack_factor(stored["qLD"]).solve(stored["b"]), stored["x"]) < 1e-10


# ---- on their own ----------------------------------------------------------------------------------------------------


def test_order_of_the_entries():
    """The tree 0 ← 1 ← 2, 1 ← 3, and 4 alone."""
    parent = (-1, 0, 1, 1, -1)
    old, new = layouts(parent)
    assert list(zip(old.row, old.col, strict=True)) == [
        (0, 0), (1, 1), (1, 0), (2, 2), (2, 1), (2, 0), (3, 3), (3, 1), (3, 0), (4, 4),
    ]  # fmt: skip
    assert new.col.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 3, 4]
    for layout in (old, new):
        assert (
            layout.nv == 5 and layout.rownnz.tolist() == [1, 2, 3, 3, 1] and layout.rowadr.tolist() == [0, 1, 3, 6, 9]
        )
    assert csr_layout(parent, [1, 0, 0, 0, 2]).rownnz.tolist() == [1, 2, 3, 3, 1]
    assert csr_layout(parent, [0, 3, 0, 0, 0]).rownnz.tolist() == [1, 1, 3, 3, 1]


@given(st.integers(1, 8), st.integers(0, 10**6))
def test_there_and_back(bodies, seed):
    model = random_tree(bodies, seed)
    H = crba(model.replace(armature=np.full(model.nv, 0.1)), model.random_state(seed, batch=3)[0])
    parent = expanded_parent(model)
    factor = ltdl(H, parent)
    for layout in layouts(parent):
        packed = layout.pack(H)
        assert packed.shape == (3, layout.n) and np.array_equal(layout.unpack(packed), H)
        qLD, qLDiagInv = layout.pack_factor(factor)
        again = layout.unpack_factor(qLD)
        assert np.array_equal(again.L, factor.L) and np.array_equal(again.D, factor.D) and again.parent == parent
        assert np.array_equal(qLDiagInv, 1.0 / factor.D)
        np.testing.assert_allclose(layout.diagonal_sqrt_inverse(factor) ** 2, qLDiagInv, rtol=1e-15)


def test_expr():
    """Symbols are packed without any operation but 1/D."""
    model = random_tree(3, 1)
    parent = expanded_parent(model)
    H = crba(model, model.random_state(1)[0])
    graph = Graph()
    inputs = graph.inputs("H", H.size).reshape(H.shape)
    symbols = np.full(H.shape, 0.0, dtype=object)
    old, new = layouts(parent)
    for i, j in zip(old.row, old.col, strict=True):
        symbols[i, j] = symbols[j, i] = inputs[i, j]
    values = {f"H[{k}]": x for k, x in enumerate(H.flat)}
    for layout in (old, new):
        packed = layout.pack(symbols)
        assert np.array_equal(evaluate(packed, values), layout.pack(H))
        assert all(
            a is b for a, b in zip(layout.unpack(packed).flat, symbols.flat, strict=True) if type(b) is not float
        )
        factor = ltdl(symbols, parent)
        before = len(graph)
        qLD, qLDiagInv = layout.pack_factor(factor)
        assert len(graph) - before <= layout.nv + 1  # and the constant 1
        expected = np.concatenate(layout.pack_factor(ltdl(H, parent)))
        assert np.allclose(evaluate([*qLD, *qLDiagInv], values), expected, rtol=1e-12)
        assert layout.unpack_factor(qLD).D[0] is factor.D[0]
        roots = evaluate(layout.diagonal_sqrt_inverse(factor), values)
        assert np.allclose(roots**2, layout.pack_factor(ltdl(H, parent))[1], rtol=1e-12)


def test_wrong_input():
    mj, model, state = imported("scene")
    layout = csr(mj)
    M = state.inertia_to_mujoco(q := model.neutral(), crba(model, q))
    with pytest.raises(InvalidInput, match=r"M has shape \(22,\), but \(…, 22, 22\) is needed"):
        layout.pack(M[0])
    with pytest.raises(InvalidInput, match=r"data has shape \(5,\), but \(…, 38\) is needed"):
        layout.unpack(np.zeros(5))
    with pytest.raises(InvalidInput, match=r"qLD has shape \(69,\)"):
        layout.unpack_factor(np.zeros(69))
    coupled = M.copy()
    coupled[4, 3] = coupled[3, 4] = 1e-3 * M[3, 3]
    for name, call in (
        ("M", lambda: layout.pack([M, coupled])),
        ("D L", lambda: layout.pack_factor(ltdl(coupled, mj.dof_parentid))),
    ):
        with pytest.raises(InvalidInput, match=rf"{name}\[4, 3\] is not zero.*or 4 is declared simple and is not"):
            call()
    legacy_layout(mj.dof_parentid).pack(coupled)
    with pytest.raises(InvalidInput, match=r"factor M with ltdl, not with ltl"):
        layout.pack_factor(ltl(M, mj.dof_parentid))
    with pytest.raises(InvalidInput, match=r"factor M with ltdl, not with ltl"):
        layout.diagonal_sqrt_inverse(ltl(M, mj.dof_parentid))
    with pytest.raises(InvalidInput, match=r"D\[1\] is -1.0: only the factor of a positive definite M"):
        layout.diagonal_sqrt_inverse(Factor(np.eye(22), np.where(np.arange(22) == 1, -1.0, 1.0), layout.parent))
    with pytest.raises(InvalidInput, match=r"the factor has parent \(-1, 0\), but the layout"):
        layout.pack_factor(ltdl(np.eye(2), (-1, 0)))
    with pytest.raises(InvalidInput, match="simplenum has shape"):
        csr_layout(mj.dof_parentid, [0, 1])
    with pytest.raises(InvalidInput, match=r"parent\[1\] = 1"):
        legacy_layout([-1, 1])
