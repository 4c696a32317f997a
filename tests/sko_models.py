"""Random SKO models, and the same operators as matrices.

Abstract trees have weights that are non-uniform, non-square and at times singular; the others are robots at a state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.model import Model, random_tree
from sysdyn.reference.operators import SPO, BlockDiagonal, SKOModel, slices

TOLERANCE = 1e-9


def check(x: np.ndarray, reference: np.ndarray, floor: float = 0.0) -> None:
    """Relative error in the ∞-norm; `floor`: that of a reference that may vanish."""
    assert x.shape == reference.shape
    size = max(floor, np.max(np.abs(reference), initial=0.0))
    assert np.max(np.abs(x - reference), initial=0.0) <= TOLERANCE * size


def random_parents(rng: np.random.Generator, n: int) -> list[int]:
    return [int(rng.integers(-1, k)) for k in range(n)]


def random_weights(rng: np.random.Generator, parent: list[int], sizes: np.ndarray) -> list:
    """Some of rank one, some zero in places, as no rigid body's are."""
    weights = []
    for k, p in enumerate(parent):
        weight = rng.standard_normal((sizes[p], sizes[k])) / sizes[k] ** 0.5
        if rng.random() < 0.3:
            weight = np.outer(weight[:, 0], weight[0])
        weights.append(None if p < 0 else weight * (rng.random(weight.shape) < 0.9))
    return weights


def abstract(n: int, seed: int) -> SKOModel:
    """Nodes of 1 to 7 components with 0 to 3 degrees of freedom."""
    rng = np.random.default_rng(seed)
    parent = random_parents(rng, n)
    sizes = rng.integers(1, 8, n)
    free = [rng.integers(0, min(3, m) + 1) for m in sizes]
    H = [
        np.linalg.qr(rng.standard_normal((m, r)))[0].T * rng.uniform(0.5, 2.0) for r, m in zip(free, sizes, strict=True)
    ]
    roots = [rng.standard_normal((m, m)) for m in sizes]
    M = [0.1 * np.eye(len(root)) + root @ root.T for root in roots]
    a, b = rng.standard_normal((2, sizes.sum()))
    return SKOModel(parent, random_weights(rng, parent, sizes), H, M, a, b)


def geared(n: int, seed: int) -> Model:
    """A random tree in which some degrees of freedom have an armature."""
    model, rng = random_tree(n, seed), np.random.default_rng(seed)
    return model.replace(armature=rng.uniform(0.1, 0.5, model.nv) * (rng.random(model.nv) < 0.4))


def robot(n: int, seed: int) -> SKOModel:
    model = geared(n, seed)
    q, qd, _ = model.random_state(seed)
    return SKOModel.from_model(model, q, qd, np.random.default_rng(seed).standard_normal((model.nb, 6)))


# ---- the same as matrices -------------------------------------------------------------------------------------------


class Dense(NamedTuple):
    """The operators as matrices, put together from the blocks by their definitions."""

    E: np.ndarray
    phi: np.ndarray
    H: np.ndarray
    M: np.ndarray
    mass: np.ndarray


def dense_kernel(phi: SPO) -> np.ndarray:
    part = slices(phi.sizes)
    E = np.zeros((sum(phi.sizes), sum(phi.sizes)))
    for k, p in enumerate(phi.parent):
        if p >= 0:
            E[part[p], part[k]] = phi.weights[k]
    return E


def dense_phi(phi: SPO) -> np.ndarray:
    return np.linalg.inv(np.eye(sum(phi.sizes)) - dense_kernel(phi))


def diagonal(X: BlockDiagonal) -> np.ndarray:
    """Also of blocks without rows or columns."""
    dense = np.zeros((sum(X.rows), sum(X.cols)))
    for block, rows, cols in zip(X.blocks, slices(X.rows), slices(X.cols), strict=True):
        dense[rows, cols] = block
    return dense


def dense(sko: SKOModel) -> Dense:
    phi, H, M = dense_phi(sko.phi), diagonal(sko.H), diagonal(sko.M)
    return Dense(dense_kernel(sko.phi), phi, H, M, H @ phi @ M @ phi.T @ H.T)


def related(parent) -> np.ndarray:
    """(n, n): whether j is k or an ancestor of k, by powers of the adjacency matrix."""
    n = len(parent)
    adjacency = np.zeros((n, n))
    for k, p in enumerate(parent):
        if p >= 0:
            adjacency[p, k] = 1.0
    return np.linalg.inv(np.eye(n) - adjacency) > 0.5


def freedoms(sko: SKOModel, groups) -> np.ndarray:
    """Where the degrees of freedom of the aggregated model are in the original one."""
    part = slices(sko.H.rows)
    return np.concatenate([np.r_[part[k]] for group in groups for k in group])


def random_tasks(sko: SKOModel, seed: int) -> list[tuple[int, np.ndarray]]:
    rng = np.random.default_rng(seed)
    nodes = rng.integers(0, len(sko.parent), 3)
    return [(int(k), rng.standard_normal((sko.phi.sizes[k], rng.integers(1, 4)))) for k in nodes]
