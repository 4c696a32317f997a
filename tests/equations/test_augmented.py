"""Augmented equations of estimates: multipliers, and what a misfit of them counts."""

from __future__ import annotations

import numpy as np
import pytest
from systems import TorqueSum

import sysdyn as sd
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.backward_error import residual_of
from sysdyn.measurements.input_names import value_group
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
    system = sd.assemble(problem)
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
    assert residual_of(system, entries, b, all_of_it).backward_error.max() < 1e-11
    wrong = all_of_it.copy()
    wrong[:, system.columns[0]] += 1e-3 * np.abs(wrong).max()
    assert residual_of(system, entries, b, wrong).backward_error.min() > 1e-9


# A tree of hinges: 1 on 0, 2 and 3 on 1; and 4 beside it.
PARENT = (-1, 0, 1, 1, -1)
# The body that each measurement or constraint belongs to: the far end of the path of its bodies, where their branches
# meet, or none of them.
OWNERS = {
    "one": (sd.Accelerometer("body2", name="one"), 2),
    "path": (TorqueSum("joint0", "joint2"), 2),
    "to the root": (TorqueSum("joint0", "joint1"), 1),
    "parts of a path": (TorqueSum("joint3", "joint0"), 3),
    "branches": (TorqueSum("joint2", "joint3"), 1),
    "trees": (TorqueSum("joint3", "joint4"), -1),
    "pushed": (sd.ContactWrench("body2", "point", noise=1.0, name="pushed"), 2),
    "held": (sd.Contact("body3", "point", name="held"), 3),
    "loop": (sd.LoopJoint("body2", "body3", ["a_z"], name="loop"), 1),
    "geared": (sd.JointCoupling("joint2", "joint0", (0.0, 2.0), name="geared"), 2),
    "tied": (sd.JointCoupling("joint0", "joint3", (0.0, 2.0), name="tied"), 3),
}


@pytest.mark.parametrize("case", OWNERS)
def test_columns_belong_to_bodies(case):
    """Unknowns and equations of motion to theirs, all others to where their bodies meet."""
    measurement, owner = OWNERS[case]
    model = sd.random_tree(5, seed=1, joints=("revolute",)).replace(parent=PARENT)
    known = (
        sd.JointAcceleration("all", noise=1.0, name="qdd"),
        sd.JointTorque("all", name="tau"),
        sd.ExternalWrench("all"),
    )
    system = sd.assemble(sd.Problem(model, [*known, measurement]))
    found = dict(zip(system.col_names, system.tree_node, strict=True))
    own = [found[f"multiplier of y:{measurement.name}: {x}"] for x in measurement.components(model)]
    wrench = [body for (quantity, _), body in zip(system.col_blocks, system.tree_node, strict=False) if quantity == "w"]
    assert set(own + wrench) == {owner} and bool(wrench) == isinstance(measurement, sd.Constraint)
    for k in range(5):
        for name in (f"a(body{k}).a_x", f"tau(joint{k})", f"multiplier of c:f(body{k}).nz"):
            assert found[name] == found[f"multiplier of y:qdd: qdd(joint{k})"] == k


def test_equations_about_nothing_unknown_belong_to_no_body():
    torque = sd.JointTorque("all", name="tau"), sd.JointTorque("joint1", noise=1.0, name="again")
    problem = sd.Problem(sd.chain(2), [*torque, sd.ExternalWrench("all")])
    system = sd.assemble(problem, known="substituted")
    assert system.tree_node[system.col_names.index("multiplier of y:again: tau(joint1)")] == -1
