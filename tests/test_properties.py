"""The properties that the paper proves, on robots of every kind, and the experiments that reproduce them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

import sysdyn as sd
from sysdyn.errors import ProblemError, SingularState
from sysdyn.model import Model, auto_tree, chain, random_tree
from sysdyn.system import forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.system.articulated import matrix_aba, transformations
from sysdyn.system.assemble import KNOWN
from sysdyn.system.variables import LAYOUTS

TREES = [chain(1), chain(6), auto_tree(9, 1.5, 1.5, 0.9), *(random_tree(9, seed=s) for s in range(4))]


def with_armature(model: Model) -> Model:
    data = model.to_dict()
    data["armature"] = np.linspace(0.1, 0.5, model.nv).tolist()
    return Model.from_dict(data)


# ---- Property 2: W^L and W^R ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", [*TREES, with_armature(random_tree(6, seed=9))], ids=repr)
def test_property_2_the_triangle_gives_what_the_aba_gives(model, layout, known):
    system = forward_dynamics(model).system(layout, known)
    q, qd, _ = model.random_state(seed=1)
    rng = np.random.default_rng(2)
    tau, fx = rng.standard_normal(model.nv), rng.standard_normal((model.nb, 6))
    D, b, W = system.D(q), system.b(q, qd, tau=tau, fx=fx), matrix_aba(system, q)
    triangle = W.triangle(D)
    terms = abs(W.left[3]) @ abs(W.left[2]) @ abs(W.left[1]) @ abs(W.left[0]) @ abs(D) @ abs(W.right)
    above = abs(scipy.sparse.triu(triangle, 1)).max(axis=1).toarray()
    assert (above <= 1e-14 * terms.max(axis=1).toarray()[W.row_perm]).all()  # rounding
    # 1 for q̈ and known quantities, −1 for p and a, in either order of the torque rows
    np.testing.assert_allclose(np.abs(triangle.diagonal()), 1.0, rtol=0, atol=1e-12)
    d = np.zeros(system.layout.n)
    d[system.columns] = W.solve(D, b)
    qdd = d[system.layout.quantity_columns("qdd")]
    np.testing.assert_allclose(qdd, sd.aba(model, q, qd, tau, fx), rtol=1e-11, atol=1e-12)
    assert np.abs(D @ d[system.columns] + b).max() <= 1e-11 * np.abs(d).max() * abs(D).max()


def test_property_2_is_exact():
    """In rational arithmetic nothing at all is left above the diagonal, whatever X is."""
    model = random_tree(5, seed=11)
    assert {joint.nv for joint in model.joints} >= {1, 2}
    exact = np.vectorize(Fraction, otypes=[object])
    rational = SimpleNamespace(
        nb=model.nb, parent=model.parent, joint_names=model.joint_names, v_slice=model.v_slice,
        inertias=exact(model.inertias), armature=exact(model.armature),
        joints=[SimpleNamespace(S=exact(joint.S)) for joint in model.joints],
    )  # fmt: skip
    system = forward_dynamics(model).system()
    q = model.random_state(seed=3)[0]
    W = matrix_aba(system, q)
    D = system.D(q)
    dense, columns = exact(D.toarray()), system.layout.columns
    rows = [[r for r, block in enumerate(system.row_blocks) if block == ("a", i)] for i in range(model.nb)]
    X = [exact(np.eye(6)) if p < 0 else dense[np.ix_(rows[i], columns("a", p))] for i, p in enumerate(model.parent)]
    right, left = transformations(rational, X)
    product = multiply(sparse(D), with_blocks(right, system.col_blocks))
    for blocks in left:
        product = multiply(with_blocks(blocks, system.row_blocks), product)
    row, col = np.argsort(W.row_perm), np.argsort(W.col_perm)
    above = {k: x for k, x in product.items() if col[k[1]] > row[k[0]]}
    assert len(product) > len(above) > 0 and not any(above.values())
    assert all(abs(product[k]) == 1 for k in zip(W.row_perm, W.col_perm, strict=True))


def test_matrix_aba_is_for_forward_dynamics():
    model = chain(3)
    for problem in (inverse_dynamics(model), hybrid_dynamics(model, model.joint_names[:1])):
        with pytest.raises(ProblemError, match="all joint torques known"):
            matrix_aba(problem.system(), np.zeros(3))
    loose = forward_dynamics(model) - sd.ExternalWrench(model.body_names[2])
    with pytest.raises(ProblemError, match="all external wrenches known"):
        matrix_aba(loose.system(), np.zeros(3))
    with pytest.raises(sd.InvalidInput, match=r"q has shape \(2,\)"):
        matrix_aba(forward_dynamics(model).system(), np.zeros(2))


def test_matrix_aba_names_a_joint_without_inertia():
    data = chain(3).to_dict()
    data["inertias"][2] = np.zeros((6, 6)).tolist()
    system = forward_dynamics(Model.from_dict(data)).system()
    with pytest.raises(SingularState, match=f"joint {data['joint_names'][2]!r} moves no inertia"):
        matrix_aba(system, np.zeros(3))


def sparse(matrix: scipy.sparse.spmatrix) -> dict:
    A = matrix.tocoo()
    return {(int(r), int(c)): Fraction(x) for r, c, x in zip(A.row, A.col, A.data, strict=True)}


def with_blocks(blocks: dict, labels: tuple) -> dict:
    """The identity with the blocks in it."""
    places: dict = {}
    for k, label in enumerate(labels):
        places.setdefault(label, []).append(k)
    A = {(k, k): Fraction(1) for k in range(len(labels))}
    for (row, column), block in blocks.items():
        A |= {(r, c): block[i, j] for i, r in enumerate(places[row]) for j, c in enumerate(places[column])}
    return A


def multiply(A: dict, B: dict) -> dict:
    rows: dict = {}
    for (k, c), x in B.items():
        rows.setdefault(k, []).append((c, x))
    product: dict = {}
    for (r, k), x in A.items():
        for c, y in rows.get(k, ()):
            product[r, c] = product.get((r, c), 0) + x * y
    return product
