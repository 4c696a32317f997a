"""Kinds of solutions: what only estimates have."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.online.solution import OF_ESTIMATES

FAST = {"backend": "python", "level": "fast"}
CHAIN = sd.chain(2, seed=0)


def exact() -> sd.Solution:
    q, qd, tau = CHAIN.random_state(seed=0)
    return sd.compile(sd.forward_dynamics(CHAIN), **FAST)(q, qd, tau)


def estimated() -> sd.Solution:
    problem = sd.Problem(
        CHAIN,
        [sd.JointAcceleration("all"), sd.JointTorque("all", noise=0.1, name="torque"), sd.ExternalWrench("all")],
    )
    q, qd, qdd = CHAIN.random_state(seed=0)
    return sd.compile(problem, **FAST)(q, qd, qdd, y={"torque": np.zeros(2)})


def undetermined() -> sd.Solution:
    q, qd, _ = CHAIN.random_state(seed=0)
    return sd.least_norm(sd.forward_dynamics(CHAIN) - sd.JointTorque("joint1"), q, qd, np.zeros(2))


def test_estimates_have_more_than_solutions():
    public = {name for name in vars(sd.Estimate) if not name.startswith("_")}
    assert public == set(OF_ESTIMATES)
    assert not public & set(dir(exact()))
    found = estimated()
    assert type(found) is sd.Estimate and all(hasattr(found, name) for name in public)
    assert found.std("qdd").shape == (2,) and found.redundancy == 2


@pytest.mark.parametrize("solution", [exact, undetermined])
def test_solutions_without_noise_say_that_they_are_no_estimates(solution):
    found = solution()
    assert type(found) is sd.Solution
    for name in OF_ESTIMATES:
        with pytest.raises(sd.ProblemError, match=f"no measurement of this problem is noisy.* no {name}"):
            getattr(found, name)
        assert not hasattr(found, name)
    with pytest.raises(AttributeError, match="Solution has no attribute 'stt'"):
        found.stt  # noqa: B018


def test_solutions_are_copied():
    for found in (exact(), estimated()):
        assert np.array_equal(copy.copy(found).qdd, found.qdd)
