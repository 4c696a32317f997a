"""Residuals and backward errors against their definitions, written out row by row."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from robots import floating_tree

import sysdyn as sd
from sysdyn.equations.backward_error import RESIDUAL_ENTRIES, Residual, residual_at, residual_of
from sysdyn.equations.system import System
from sysdyn.model import Prismatic
from sysdyn.model.quantities import QUANTITY, is_spatial

# What the errors of rows are relative to: their own terms if these are not below this share of natural ones.
SHARE = 1e-11


def problem(noisy: bool) -> sd.Problem:
    """A floating tree on a foot, with spherical and sliding joints; noisy: and more sensors than it needs."""
    model = floating_tree(4, seed=2)
    joints = (*model.joints[:2], Prismatic((0.0, 0.6, 0.8)), model.joints[3])
    found = sd.forward_dynamics(model.replace(joints=joints)) + sd.Contact(model.body_names[-1], "point", name="foot")
    if not noisy:
        return found
    root = np.random.default_rng(1).standard_normal((3, 3))
    sensors = [
        sd.Switchable(sd.Accelerometer(model.body_names[0], noise=1e-4 * (root @ root.T + np.eye(3))), name="imu"),
        sd.Prior(sd.JointAcceleration("all", noise=3.0), name="qdd"),
        sd.JointTorque("all", noise=0.5, name="torques"),
        sd.ModelNoise("a", model.body_names[0], noise=0.2),
    ]
    return found - sd.JointTorque("all") + sensors


SYSTEMS = {
    "plain": lambda: sd.assemble(problem(False)),
    "passes": lambda: sd.assemble(problem(False), passes="all", outputs=("qdd",)),
    "substituted": lambda: sd.assemble(problem(False), known="substituted"),
    "redundant": lambda: sd.assemble(problem(False) + sd.JointAcceleration("all")),
    "augmented": lambda: sd.assemble(problem(True)),
}


def sizes(system: System, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the unknowns x for the terms of rows: (of their vectors of three, of their kinds in natural units)."""
    units, vectors, kinds = system.scaling[1], [], []
    for c, (quantity, body) in zip(system.columns, system.col_blocks, strict=True):
        part = (c - system.layout.columns(quantity, body).start) // 3 if is_spatial(quantity) else c
        vectors.append((quantity, body, part))
        kinds.append((QUANTITY[quantity].component_units if quantity in QUANTITY else quantity, body))
    size = np.abs(x)
    own = [max(size[k] for k, other in enumerate(vectors) if other == vector) for vector in vectors]
    natural = [max(size[k] / units[k] for k, other in enumerate(kinds) if other == kind) for kind in kinds]
    return np.array(own), units * natural


def tolerated(system: System, D: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """What the residual of each row may be."""
    noisy = system.plain.noisy_mask
    if len(D) == len(noisy):
        return terms
    n = D.shape[1] - len(noisy)
    off = np.array([not np.delete(D[i], i).any() for i in range(n, len(D))])
    mu = np.array([terms[i] / -D[i, i] if noisy[i - n] and not off[i - n] else 0.0 for i in range(n, len(D))])
    units = system.scaling[0][:n]
    greatest = max(units * np.maximum(terms[:n], np.abs(D[:n, n:]) @ mu))
    return np.concatenate([greatest / units, np.where(off, math.inf, terms[n:])])


def errors(system: System, entries: np.ndarray, b: np.ndarray, x: np.ndarray, share=SHARE) -> np.ndarray:
    """The error of each row at one state."""
    D = system.matrix(entries).toarray()
    own, natural = (np.abs(D) @ s + np.abs(b) for s in sizes(system, x))
    if len(D) == len(system.plain.noisy_mask) and system.plain.noisy_mask.any():
        share = np.where(system.plain.noisy_mask, 0.0, 1.0)
    terms = tolerated(system, D, np.where(own < share * natural, natural, own))
    return np.abs(D @ x + b) / np.where(terms > 0.0, terms, 1.0)


def inputs(system: System, n: int) -> dict[str, np.ndarray]:
    """Inputs at n states, one component of the switchable sensor off."""
    rng, groups = np.random.default_rng(5), system.program.inputs.sizes
    q, qd, _ = system.model.random_state(seed=3, batch=n)
    given = {x: rng.standard_normal((n, m)) for x, m in groups.items() if not x.startswith(("noise", "active"))}
    return given | {"q": q, "qd": qd} | {x: np.tile([1.0, 1.0, 0.0], (n, 1)) for x in groups if x.startswith("active")}


def solutions(system: System, given: dict[str, np.ndarray]) -> np.ndarray:
    """Least-squares solutions d (N, full layout)."""
    entries, b = system.values(given)
    d = np.zeros((len(entries), system.layout.n))
    for k, x in enumerate(entries):
        d[k, system.columns] = np.linalg.lstsq(system.matrix(x).toarray(), -b[k], rcond=None)[0]
    return d


def check(system: System, entries: np.ndarray, b: np.ndarray, d: np.ndarray, found: Residual) -> None:
    """Compare residuals at N states with their definition."""
    for k, x in enumerate(d[:, system.columns]):
        D = system.matrix(entries[k])
        np.testing.assert_allclose(found.rows[k], D @ x + b[k], rtol=1e-9, atol=1e-9 * np.abs(x).max())
        norms = abs(D).sum(axis=1).max() * np.abs(x).max() + np.abs(b[k]).max()
        assert found.normwise[k] == pytest.approx(np.abs(D @ x + b[k]).max() / norms, rel=1e-6, abs=1e-14)
        error = errors(system, entries[k], b[k], x).max()
        assert found.backward_error[k] == pytest.approx(error, rel=1e-6, abs=1e-13), k


@pytest.mark.parametrize("kind", SYSTEMS)
def test_residuals_are_those_of_their_definition(kind):
    """Near solutions, where what one body does is other by a factor, and at random."""
    system, factors = SYSTEMS[kind](), (0.0, 1e-14, 1e-6, 1.0 + 1e-6, 1e6)
    given = inputs(system, len(factors) * system.model.nb + 2)
    d = solutions(system, given)
    for k, (factor, body) in enumerate(itertools.product(factors, range(system.model.nb))):
        d[k, [c for c, block in zip(system.columns, system.col_blocks, strict=True) if block[1] == body]] *= factor
    d[-2] = np.random.default_rng(5).standard_normal(system.layout.n)
    found, (entries, b) = residual_at(system, given, d), system.values(given)
    check(system, entries, b, d, found)
    assert (found.backward_error[-1] < 1e-10) == (kind != "redundant")
    assert found.backward_error[:-1].min() > 1e-8
    if not system.problem.noisy:  # whatever the units
        less = residual_of(system, entries, 2.0**-60 * b, 2.0**-60 * d)
        np.testing.assert_array_equal(less[1:], found[1:])


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-3])
def test_multipliers_of_equations_that_agree_are_rounding_errors(size):
    """They are as wrong as they are large beside the terms of measurements over variances."""
    system = SYSTEMS["augmented"]()
    entries, _ = system.values(inputs(system, 3))
    rng, multipliers = np.random.default_rng(7), np.array(system.columns[system.n_unknowns :])
    d = rng.standard_normal((3, system.layout.n))
    d[:, multipliers] = 0.0
    b = np.array([-(system.matrix(x) @ d[k, system.columns]) for k, x in enumerate(entries)])
    exact = multipliers[~system.plain.noisy_mask]
    d[:, exact] = size * rng.standard_normal((3, len(exact)))
    d[:, system.columns[system.col_names.index("multiplier of y:imu: a_z")]] = 1.0  # which is switched off
    found = residual_of(system, entries, b, d)
    check(system, entries, b, d, found)
    assert (found.backward_error <= size).all()


def test_rows_without_terms_have_no_error():
    """A robot at rest without weight, of which nothing is known: 0 = 0."""
    system = sd.assemble(sd.forward_dynamics(floating_tree(2, seed=1).replace(gravity=np.zeros(3))))
    q = system.model.random_state(seed=1)[0]
    found = residual_at(system, {"q": q}, np.zeros((1, system.layout.n)))
    assert not found.rows.any() and found.backward_error == found.normwise == [0.0]


def test_residuals_of_many_states_are_taken_in_parts():
    """More than are computed at a time, with inputs of each state and of all; none of no state."""
    problem = sd.forward_dynamics(sd.chain(1, seed=1))
    system = sd.assemble(problem, known="substituted")
    n = RESIDUAL_ENTRIES // system.nnz + 2
    rng = np.random.default_rng(1)
    given = {"q": rng.standard_normal((n, 1)), "qd": np.array([0.7]), "tau": rng.standard_normal((n, 1))}
    d = rng.standard_normal((n, system.layout.n))
    found = residual_at(system, given, d)
    for part in ([0, n // 2, n - 1], []):
        one = residual_at(system, given | {x: given[x][part] for x in ("q", "tau")}, d[part])
        for of_all, of_part in zip(found, one, strict=True):
            assert len(of_all) == n and of_part.shape == of_all[part].shape
            np.testing.assert_allclose(of_all[part], of_part, rtol=1e-12)
