"""Augmented equations of estimates: multipliers, and what a misfit of them counts."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.noise import noise_of


def drawn(seed: int) -> tuple[AugmentedSystem, dict[str, np.ndarray]]:
    """Equations with an exact contact, correlated and single noise; inputs at three states, with errors of sensors."""
    model, rng = sd.random_tree(4, seed=seed, joints=("revolute",)), np.random.default_rng(seed)
    root, hand = rng.standard_normal((3, 3)), (model.body_names[-1], np.eye(4))
    problem = sd.Problem(model, [
        sd.JointAcceleration("all", noise=2.0, name="accelerations"), sd.JointTorque("all", noise=0.5, name="torques"),
        sd.Accelerometer(hand, noise=0.1 * (root @ root.T + np.eye(3)), name="acc"),
        sd.Contact(hand, "normal", name="contact"),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    q, qd, qdd = model.random_state(seed=seed, batch=3)
    y = sd.predict(problem, q, qd, qdd, seed=seed)
    inputs = {"q": q, "qd": qd}
    inputs |= {value_group(m.name): np.broadcast_to(y[m.name], (3, y[m.name].shape[-1])) for m in problem.custom}
    inputs |= {x: np.zeros((3, 6 * model.nb)) for x in problem.known_quantities}
    system = problem.system()
    assert isinstance(system, AugmentedSystem)
    return system, inputs | {x.group: x.declared for x in (noise_of(m, model) for m in problem.noisy)}


@pytest.mark.parametrize("seed", [0, 1, 4, 6])  # a contact at the end of one joint alone may be singular
def test_multipliers_are_those_of_the_whole_equations(seed):
    system, inputs = drawn(seed)
    entries, b = (np.broadcast_to(x, (3, x.shape[1])) for x in system.values(inputs))
    d, whole = np.full((3, system.layout.n), 7.0), np.empty((3, len(system.columns)))
    for k in range(3):
        whole[k] = np.linalg.solve(system.matrix(entries[k]).toarray(), -b[k])
    d[:, system.plain.columns] = whole[:, : system.n_unknowns]
    found = system.completed(entries, b, d)[:, system.columns]
    size = np.abs(whole).max(axis=0)
    assert (size[system.n_unknowns :] > 1e-3).sum() > 10  # there are multipliers of exact and of noisy equations
    size = np.maximum(size, 1e-6 * size.max())  # what is zero but for rounding
    np.testing.assert_allclose(found / size, whole / size, atol=1e-6)
    # and so the residual counts neither
    all_of_it = np.zeros((3, system.layout.n))
    all_of_it[:, system.columns] = found
    assert system.misfit(entries, b, all_of_it).backward_error.max() < 1e-11
    wrong = all_of_it.copy()
    wrong[:, system.columns[0]] += 1e-3 * np.abs(wrong).max()
    assert system.misfit(entries, b, wrong).backward_error.min() > 1e-9
