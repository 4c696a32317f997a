"""Joints beyond their limits, as angles in degrees are, and quaternions with the scalar first."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import sysdyn as sd

ARM = sd.chain(3, seed=2).replace(lower=[-1.0, -np.inf, -2.0], upper=[1.0, np.inf, 2.0])
PROBLEMS = {
    "forward": sd.forward_dynamics(ARM),
    "redundant": sd.forward_dynamics(ARM) + sd.JointTorque("joint0", name="again"),
    "estimate": sd.Problem(ARM, [sd.ExternalWrench("all"), sd.JointAcceleration("all", noise=0.1, name="tau")]),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_joints_are_within_their_limits_if_asked(problem, backend):
    made = {on: sd.compile(PROBLEMS[problem], outputs="qdd", level="fast", backend=backend, check_limits=on)
            for on in (False, True)}  # fmt: skip
    made["again"] = pickle.loads(pickle.dumps(made[True]))
    within, beyond = np.array([0.9, 50.0, -2.0]), {"joint0": [45.0, 0.0, 0.0], "joint2": [0.0, 0.0, -2.001]}
    y = {"again": np.zeros(1)} if problem == "redundant" else None

    def call(solver, q):
        known = {"y": {"tau": np.zeros(3)}} if problem == "estimate" else {"tau": np.zeros(3), "y": y}
        return solver(q, np.zeros(3), **known)

    for form in (lambda q: np.array(q), lambda q: np.array([[0.0, 0.0, 0.0], q]), list):
        for _ in range(2):  # the second of a kind takes the shortest way
            expected = call(made[False], form(within)).qdd
            assert all(np.array_equal(call(made[on], form(within)).qdd, expected) for on in (True, "again"))
            for joint, q in beyond.items():
                assert call(made[False], form(q)).ok.all()
                for on in (True, "again"):
                    with pytest.raises(sd.InvalidInput, match=f"'{joint}' is at .* beyond its limits .*rad"):
                        call(made[on], form(q))


def test_a_step_is_bound_within_the_limits():
    solver = sd.compile(sd.forward_dynamics(ARM), outputs="qdd", level="fast", check_limits=True)
    q = np.array([45.0, 0.0, 0.0])
    with pytest.raises(sd.InvalidInput, match="beyond its limits"):
        solver.bind(q, np.zeros(3), np.zeros(3))
    solver.bind(np.zeros(3), np.zeros(3), np.zeros(3))()


@pytest.mark.parametrize("n", [None, 3])
def test_quaternions_with_the_scalar_first_are_told_of_once(n):
    model = sd.Model(
        name="ball", body_names=["a"], joint_names=["j"], joints=[sd.model.Spherical()], parent=[-1],
        X_tree=np.eye(6)[None], inertias=np.eye(6)[None],
    )  # fmt: skip
    q = np.array([1.0, 0.0, 0.0, 0.0])
    zeros = np.zeros(3)
    if n:
        q, zeros = np.tile(q, (n, 1)), np.zeros((n, 3))
    solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", level="fast")
    with pytest.warns(sd.PlausibilityWarning, match="quaternion of joint 'j' is .1, 0, 0, 0. at rest"):
        solver(q, zeros, zeros)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver(q, zeros, zeros)  # once
        others = sd.compile(sd.forward_dynamics(model), outputs="qdd", level="fast", backend="python")
        others(q, zeros + 1.0, zeros)  # it turns
        others(np.roll(q, -1, axis=-1), zeros, zeros)
