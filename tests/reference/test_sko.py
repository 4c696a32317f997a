"""SKO models: each numbered result of Jain's part II against dense algebra, on random trees (see `sko_models`)."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sko_models import (
    TOLERANCE,
    Dense,
    abstract,
    check,
    dense,
    dense_kernel,
    dense_phi,
    diagonal,
    freedoms,
    random_parents,
    random_tasks,
    random_weights,
    related,
    robot,
)

from sysdyn.model import random_tree
from sysdyn.reference.operators import (
    SPO,
    BackwardLyapunov,
    BlockDiagonal,
    ForwardLyapunov,
    Operator,
    SKOModel,
    segment_pattern,
    segment_tree,
    slices,
)

counts, seeds = st.integers(1, 8), st.integers(0, 10**6)
models = st.one_of(st.builds(abstract, counts, seeds), st.builds(robot, counts, seeds))


def identity(test):
    """A test of one numbered result on random SKO models."""
    return settings(max_examples=60)(given(models, seeds)(test))


# ---- operators: Lemmas 1 to 6 --------------------------------------------------------------------------------------


@identity
def test_lemmas_1_and_2_products_are_recursions(sko, seed):
    phi, matrix = sko.phi, dense_phi(sko.phi)
    N = len(matrix)
    one = np.eye(N)
    x = np.random.default_rng(seed).standard_normal(N)
    check(phi @ x, matrix @ x)
    check(phi.T @ x, matrix.T @ x)
    columns = np.random.default_rng(seed).standard_normal((N, 3))
    check(phi @ columns, matrix @ columns)
    # Corollary 3.1, and what else is made of φ.
    check(phi.strict @ x, (matrix - one) @ x)
    check(phi.strict.T @ x, (matrix - one).T @ x)
    check(phi.to_dense(), matrix)
    check(phi.T.to_dense(), matrix.T)
    check(phi.kernel.to_dense(), dense_kernel(phi))
    check(phi.kernel.T @ x, dense_kernel(phi).T @ x)
    check(phi.inv @ (phi @ x), x)
    part = slices(phi.sizes)
    for j in range(len(part)):
        for k in range(len(part)):
            check(phi[j, k], matrix[part[j], part[k]])


@identity
def test_equations_1_to_3_newton_euler_factorisation(sko, seed):
    m = dense(sko)
    qdd = np.random.default_rng(seed).standard_normal(len(m.H))
    alpha = m.phi.T @ (m.H.T @ qdd + sko.a)
    f = m.phi @ (m.M @ alpha + sko.b)
    C = m.H @ m.phi @ (m.M @ m.phi.T @ sko.a + sko.b)
    check(sko.inverse_dynamics(qdd), m.H @ f)
    check(sko.C, C)
    check(sko.mass.to_dense(), m.mass)
    check(sko.mass @ qdd + sko.C, m.H @ f)


def two_operators(n: int, seed: int) -> tuple[SPO, BlockDiagonal, SPO]:
    """A, X, B of one tree, with blocks of different sizes."""
    rng = np.random.default_rng(seed)
    parent = random_parents(rng, n)
    A, B = (SPO(parent, sizes, random_weights(rng, parent, sizes)) for sizes in rng.integers(1, 8, (2, n)))
    return A, BlockDiagonal([rng.standard_normal(shape) for shape in zip(A.sizes, B.sizes, strict=True)]), B


@settings(max_examples=60)
@given(counts, seeds)
def test_lemma_3_forward_lyapunov(n, seed):
    A, X, B = two_operators(n, seed)
    a, b, x = dense_phi(A), dense_phi(B), diagonal(X)
    operator = ForwardLyapunov(A, X, B)
    Y, Z, one_A, one_B = diagonal(operator.Y), a @ x @ b.T, np.eye(len(a)), np.eye(len(b))
    check(Y - dense_kernel(A) @ Y @ dense_kernel(B).T, x)  # (12)
    check(Y + (a - one_A) @ Y + Y @ (b - one_B).T, Z)  # (11)
    check(operator.to_dense(), Z)
    check(operator.T.to_dense(), Z.T)
    rows, cols, kin = slices(A.sizes), slices(B.sizes), related(A.parent)
    for j in range(n):
        for k in range(n):
            check(operator[j, k], Z[rows[j], cols[k]])  # (15)
            assert kin[j, k] or kin[k, j] or not np.any(operator[j, k])


@identity
def test_lemma_4_mass_matrix_of_composite_inertias(sko, seed):
    m, R, one = dense(sko), diagonal(sko.R), np.eye(sum(sko.phi.sizes))
    check(R - m.E @ R @ m.E.T, m.M)  # (18)
    upper = m.H @ (m.phi - one) @ R @ m.H.T
    check(m.H @ R @ m.H.T + upper + upper.T, m.mass)  # (17)
    check(sko.mass_matrix(), m.mass)  # Algorithm 4.2
    part, kin = slices(sko.H.rows), related(sko.parent)
    for j, k in zip(*np.nonzero(~(kin | kin.T)), strict=True):
        assert not np.any(sko.mass_matrix()[part[j], part[k]])


@settings(max_examples=60)
@given(counts, seeds)
def test_lemma_5_backward_lyapunov(n, seed):
    A, X, B = two_operators(n, seed)
    a, b, x = dense_phi(A), dense_phi(B), diagonal(X)
    operator = BackwardLyapunov(A, X, B)
    Y, Z, one_A, one_B = diagonal(operator.Y), a.T @ x @ b, np.eye(len(a)), np.eye(len(b))
    rows, cols, kin = slices(A.sizes), slices(B.sizes), related(A.parent)
    inner = dense_kernel(A).T @ Y @ dense_kernel(B)
    R = Z - Y - (a - one_A).T @ Y - Y @ (b - one_B)  # (21)
    check(operator.to_dense(), Z)
    check(operator.T.to_dense(), Z.T)
    for j in range(n):
        check(Y[rows[j], cols[j]] - inner[rows[j], cols[j]], X[j])  # (22)
        for k in range(n):
            check(operator[j, k], Z[rows[j], cols[k]])  # (25)
            if kin[j, k] or kin[k, j]:
                check(R[rows[j], cols[k]], np.zeros((A.sizes[j], B.sizes[k])), floor=1.0)
            elif not np.any(kin[:, j] & kin[:, k]):  # no common ancestor
                assert not np.any(operator[j, k])


@settings(max_examples=30)
@given(counts, seeds)
def test_lemma_6_serial_chains_leave_no_remainder(n, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, n)
    phi = SPO(range(-1, n - 1), sizes, random_weights(rng, list(range(-1, n - 1)), sizes))
    X = BlockDiagonal([rng.standard_normal((m, m)) for m in sizes])
    Y, Z, matrix = BackwardLyapunov(phi, X).Y, dense_phi(phi).T @ diagonal(X) @ dense_phi(phi), dense_phi(phi)
    strict, y = matrix - np.eye(len(matrix)), diagonal(Y)
    check(y + strict.T @ y + y @ strict, Z)  # (27)
    check(y - dense_kernel(phi).T @ y @ dense_kernel(phi), diagonal(X))  # (28)


# ---- Riccati: Lemmas 7 to 12 ---------------------------------------------------------------------------------------


class Solution(NamedTuple):
    """The Riccati solution in matrices, from the model's P alone."""

    P: np.ndarray
    D: np.ndarray
    D_inv: np.ndarray
    K: np.ndarray
    E_psi: np.ndarray
    psi: np.ndarray


def riccati(sko: SKOModel) -> tuple[Dense, Solution]:
    m = dense(sko)
    P = diagonal(sko.riccati.P)
    D = m.H @ P @ m.H.T
    D_inv = np.linalg.inv(D)
    G = P @ m.H.T @ D_inv
    E_psi = m.E @ (np.eye(len(P)) - G @ m.H)
    psi = np.linalg.inv(np.eye(len(P)) - E_psi)
    return m, Solution(P, D, D_inv, m.E @ G, E_psi, psi)


@identity
def test_lemma_7_riccati(sko, seed):
    m, s = riccati(sko)
    ours, one = sko.riccati, np.eye(len(s.P))
    middle = s.P - s.P @ m.H.T @ s.D_inv @ m.H @ s.P
    check(s.P - m.E @ middle @ m.E.T, m.M)  # (31)
    check(s.P, s.P.T)
    assert np.all(np.linalg.eigvalsh(s.P) > 0.0)
    G = s.P @ m.H.T @ s.D_inv
    check(diagonal(ours.D), s.D)  # (32)
    check(diagonal(ours.D_inv), s.D_inv)
    check(diagonal(ours.G), G)
    check(diagonal(ours.tau), G @ m.H)
    check(diagonal(ours.tau_bar), one - G @ m.H, floor=1.0)
    check(diagonal(ours.P_plus), middle, floor=1.0)
    check(ours.K.to_dense(), s.K)


@identity
def test_lemma_8_psi_is_an_spo_operator(sko, seed):
    m, s = riccati(sko)
    psi = sko.riccati.psi
    check(dense_kernel(psi), s.E_psi, floor=1.0)  # (34)
    check(psi.to_dense(), s.psi)  # (35)
    x = np.random.default_rng(seed).standard_normal(len(s.psi))
    check(psi @ x, s.psi @ x)
    check(psi.T @ x, s.psi.T @ x)
    check(s.P - s.E_psi @ s.P @ s.E_psi.T, m.M)  # (36)
    check(s.P - m.E @ s.P @ s.E_psi.T, m.M)
    for k, weight in enumerate(psi.weights):  # singular wherever the joint moves
        if weight.size:
            assert np.linalg.matrix_rank(weight, tol=1e-9) <= sko.phi.sizes[k] - len(sko.H[k])


@identity
def test_lemma_9_psi_and_phi(sko, seed):
    m, s = riccati(sko)
    ours, one = sko.riccati, np.eye(len(s.P))
    check(ours.psi.inv.to_dense(), (sko.phi.inv + ours.K @ sko.H).to_dense())  # ψ⁻¹ = φ⁻¹ + K H
    check(ours.psi.kernel.to_dense(), (sko.phi.kernel - ours.K @ sko.H).to_dense(), floor=1.0)
    check(diagonal(ours.tau_bar @ ours.P @ ours.tau_bar.T), diagonal(ours.P_plus), floor=1.0)
    # The decompositions of Lemma 3: ψ M ψ* = P + ψ̃ P + P ψ̃*, φ M ψ* = P + φ̃ P + P ψ̃*.
    for A, matrix in ((ours.psi, s.psi), (sko.phi, m.phi)):
        Z = matrix @ m.M @ s.psi.T
        check(s.P + (matrix - one) @ s.P + s.P @ (s.psi - one).T, Z)
        check(diagonal(ForwardLyapunov(A, sko.M, ours.psi).Y), s.P)
        check((ours.P + A.strict @ ours.P + ours.P @ ours.psi.strict.T).to_dense(), Z)


@identity
def test_lemma_10_identities(sko, seed):
    m, s = riccati(sko)
    H, phi, psi, K = sko.H, sko.phi, sko.riccati.psi, sko.riccati.K
    plus, minus = sko.innovations, sko.innovations_inv
    node = BlockDiagonal.identity(phi.sizes)

    def same(left: Operator, right: Operator, reference: np.ndarray) -> None:
        check(left.to_dense(), reference)
        check(right.to_dense(), reference)

    same(psi.inv @ phi, node + K @ H @ phi, np.linalg.solve(s.psi, m.phi))
    same(phi @ psi.inv, node + phi @ K @ H, m.phi @ np.linalg.inv(s.psi))
    same(phi.inv @ psi, node - K @ H @ psi, np.linalg.solve(m.phi, s.psi))
    same(psi @ phi.inv, node - psi @ K @ H, s.psi @ np.linalg.inv(m.phi))
    same(minus @ H @ phi, H @ psi, m.H @ s.psi)
    same(phi @ K @ minus, psi @ K, s.psi @ s.K)
    same(plus @ H @ psi, H @ phi, m.H @ m.phi)
    same(psi @ K @ plus, phi @ K, m.phi @ s.K)
    D = sko.riccati.D
    same(H @ psi @ sko.M @ psi.T @ H.T, D, s.D)
    same(H @ phi @ sko.M @ psi.T @ H.T, plus @ D, m.H @ m.phi @ m.M @ s.psi.T @ m.H.T)
    same(H @ psi @ sko.M @ phi.T, H @ psi @ sko.riccati.P + D @ K.T @ phi.T, m.H @ s.psi @ m.M @ m.phi.T)


@identity
def test_lemma_11_innovations_factorisation_and_inverse(sko, seed):
    m, s = riccati(sko)
    factor, inverse = sko.innovations.to_dense(), sko.innovations_inv.to_dense()
    one = np.eye(len(m.mass))
    check(factor, one + m.H @ m.phi @ s.K)
    check(factor @ s.D @ factor.T, m.mass)  # (49)
    check((sko.innovations @ sko.riccati.D @ sko.innovations.T).to_dense(), m.mass)
    check(inverse, np.linalg.inv(factor))  # (50)
    check(sko.mass_inv.to_dense(), np.linalg.inv(m.mass))  # (51)


@identity
def test_corollary_6_1_determinant(sko, seed):
    m, _ = riccati(sko)
    for factor in (sko.innovations.to_dense(), sko.innovations_inv.to_dense()):
        part = slices(sko.H.rows)
        for j in range(len(part)):
            check(factor[part[j], part[j]], np.eye(sko.H.rows[j]))
            assert not np.any(factor[part[j], : part[j].start])  # upper triangular: children have higher numbers
    assert sko.determinant() == pytest.approx(np.linalg.det(m.mass), rel=TOLERANCE)
    assert np.linalg.det(sko.innovations.to_dense()) == pytest.approx(1.0, rel=TOLERANCE)  # (52)


@identity
def test_lemma_12_forward_dynamics(sko, seed):
    m, s = riccati(sko)
    T = np.random.default_rng(seed).standard_normal(len(m.H))
    C = m.H @ m.phi @ (m.M @ m.phi.T @ sko.a + sko.b)
    qdd = np.linalg.solve(m.mass, T - C)
    check(sko.forward_dynamics(T), qdd)
    check(sko.inverse_dynamics(sko.forward_dynamics(T)), T)
    # (54) in operators
    H, P, D_inv, K, psi = sko.H, sko.riccati.P, sko.riccati.D_inv, sko.riccati.K, sko.riccati.psi
    inverse = BlockDiagonal.identity(H.rows) - H @ psi @ K
    explicit = inverse.T @ D_inv @ (T - H @ psi @ (K @ T + P @ sko.a + sko.b)) - K.T @ psi.T @ sko.a
    check(explicit, qdd)
    # f = P (α − a) + z: what links it to f = I^A a + p^A.
    alpha = m.phi.T @ (m.H.T @ qdd + sko.a)
    f = m.phi @ (m.M @ alpha + sko.b)
    z = s.psi @ (s.K @ T + s.P @ sko.a + sko.b)
    check(s.P @ (alpha - sko.a) + z, f)


# ---- operational space, §6.2 ---------------------------------------------------------------------------------------


def picked(sko: SKOModel, tasks) -> np.ndarray:
    """ℬ (Σ m, Σ p)."""
    columns, part = [], slices(sko.phi.sizes)
    for k, B in tasks:
        column = np.zeros((sum(sko.phi.sizes), B.shape[1]))
        column[part[k]] = B
        columns.append(column)
    return np.hstack(columns)


@identity
def test_section_6_2_operational_space_through_omega(sko, seed):
    m, s = riccati(sko)
    Omega = s.psi.T @ m.H.T @ s.D_inv @ m.H @ s.psi
    check(m.phi.T @ m.H.T @ np.linalg.solve(m.mass, m.H @ m.phi), Omega)  # (59), (60)
    check(sko.Omega.to_dense(), Omega)
    nodes = range(len(sko.parent))
    check(np.block([[sko.Omega[j, k] for k in nodes] for j in nodes]), Omega)
    for k, part in enumerate(slices(sko.phi.sizes)):
        check(sko.Omega.Y[k], Omega[part, part], floor=np.max(np.abs(Omega)))
    tasks = random_tasks(sko, seed)
    B = picked(sko, tasks)
    J = B.T @ m.phi.T @ m.H.T
    compliance = sko.operational_space_compliance(tasks)
    check(compliance, J @ np.linalg.solve(m.mass, J.T))


@settings(max_examples=30)
@given(st.integers(3, 8), seeds)
def test_operational_space_inertia_is_the_inverse_of_the_compliance(n, seed):
    model = random_tree(n, seed, joints=("free", "spherical", "cylindrical"))
    q, _, _ = model.random_state(seed)
    sko = SKOModel.from_model(model, q)
    rng = np.random.default_rng(seed)
    tasks = [(int(k), rng.standard_normal((6, 2))) for k in rng.choice(n, 3, replace=False)]
    m = dense(sko)
    J = picked(sko, tasks).T @ m.phi.T @ m.H.T
    compliance = J @ np.linalg.solve(m.mass, J.T)
    assume(np.linalg.cond(compliance) < 1e5)
    check(sko.operational_space_inertia(tasks), np.linalg.inv(compliance))


# ---- sparsity and other nodes: §7, §8 ------------------------------------------------------------------------------


def nonzero_blocks(matrix: np.ndarray, sizes) -> np.ndarray:
    part = slices(sizes)
    return np.array([[np.any(matrix[rows, cols]) for cols in part] for rows in part])


@settings(max_examples=40)
@given(st.integers(1, 12), seeds)
def test_section_7_sparsity_by_segments(n, seed):
    rng = np.random.default_rng(seed)
    parent = random_parents(rng, n) if seed % 2 else [int(rng.integers(max(-1, k - 2), k)) for k in range(n)]
    sizes = [3] * n  # regular weights, so that nothing but the tree makes zeros
    weights = [rng.standard_normal((3, 3)) for _ in range(n)]
    sko = SKOModel(parent, weights, [rng.standard_normal((2, 3)) for _ in range(n)], [np.eye(3)] * n)
    tree = segment_tree(parent)
    assert nx.is_forest(tree.to_undirected()) and sorted(k for segment in tree for k in segment) == list(range(n))
    for segment in tree:  # a chain, and no longer one can be had
        assert all(
            parent[k] == before and parent.count(before) == 1 for before, k in zip(segment, segment[1:], strict=False)
        )
        assert parent.count(segment[-1]) != 1 and (parent[segment[0]] < 0 or parent.count(parent[segment[0]]) > 1)
    assert {(a[-1], b[0]) for a, b in tree.edges} == {(parent[s[0]], s[0]) for s in tree if parent[s[0]] >= 0}
    pattern, m = segment_pattern(tree), dense(sko)
    np.testing.assert_array_equal(pattern.kernel, nonzero_blocks(m.E, sizes))
    np.testing.assert_array_equal(pattern.phi, nonzero_blocks(m.phi, sizes))
    np.testing.assert_array_equal(pattern.mass, nonzero_blocks(m.mass, [2] * n))
    # (63): the block between segments J and K is φ_J times the weights φ_i of the tree of branches along the path.
    branches, place = sko.aggregated().phi, slices(sizes)
    segments = sorted(tree)
    for J, upper in enumerate(segments):
        rows = np.concatenate([np.r_[place[k]] for k in upper])
        phi_J = m.phi[np.ix_(rows, rows)]
        for K, lower in enumerate(segments):
            cols = np.concatenate([np.r_[place[k]] for k in lower])
            if J != K:
                check(phi_J @ branches[J, K], m.phi[np.ix_(rows, cols)])


@identity
def test_section_8_several_bodies_in_a_node_are_the_same_dynamics(sko, seed):
    rng = np.random.default_rng(seed)
    group = list(range(len(sko.parent)))  # its first node
    for k, p in enumerate(sko.parent):
        if p >= 0 and rng.random() < 0.5:
            group[k] = group[p]
    partition = [[k for k, first in enumerate(group) if first == root] for root in sorted(set(group))]
    T = rng.standard_normal(sum(sko.H.rows))
    for groups in (None, partition):
        other = sko.aggregated(groups)
        order = freedoms(sko, sorted(segment_tree(sko.parent)) if groups is None else groups)
        assert max(other.phi.sizes) <= sum(sko.phi.sizes) and len(other.parent) <= len(sko.parent)
        check(other.mass_matrix(), sko.mass_matrix()[np.ix_(order, order)])
        check(other.forward_dynamics(T[order]), sko.forward_dynamics(T)[order])
        check(other.inverse_dynamics(T[order]), sko.inverse_dynamics(T)[order])
        assert other.determinant() == pytest.approx(sko.determinant(), rel=TOLERANCE)
