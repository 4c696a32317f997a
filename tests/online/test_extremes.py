"""Masses, lengths, noise and gravity far beyond all robots: a result, or one message that can be read."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import AccuracyWarning

ARM = sd.chain(3)
SCALES = (1e200, 1e99, 1e-99, 1e-200)
# Longer than this no message is read.
MOST_LINES = 12


def one_mass(k: int, scale: float) -> sd.Model:
    I = ARM.inertias.copy()
    I[k] *= scale
    return ARM.replace(inertias=I)


def one_length(scale: float) -> sd.Model:
    X = ARM.X_tree.copy()
    X[1][3:, :3] *= scale
    return ARM.replace(X_tree=X)


def estimation(model: sd.Model, noise: float) -> sd.Problem:
    sensors = sd.JointAcceleration("all", noise=noise, name="qdd"), sd.JointTorque("all", noise=1.0, name="tau")
    return sd.Problem(model, [sd.ExternalWrench("all"), *sensors])


CASES = {
    "masses": lambda x: sd.forward_dynamics(ARM.replace(inertias=x * ARM.inertias)),
    "last mass": lambda x: sd.forward_dynamics(one_mass(2, x)),
    "first mass": lambda x: sd.forward_dynamics(one_mass(0, x)),
    "length": lambda x: sd.forward_dynamics(one_length(x)),
    "armature": lambda x: sd.forward_dynamics(ARM.replace(armature=[x, 0.0, 0.0])),
    "gravity": lambda x: sd.inverse_dynamics(ARM.replace(gravity=(0.0, 0.0, -x))),
    "noise": lambda x: estimation(ARM, x),
    "mass of an estimate": lambda x: estimation(one_mass(2, x), 1.0),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("case", CASES)
def test_extremes_are_solved_or_refused_in_one_message(case, scale):
    q, qd, qdd = ARM.random_state(seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", AccuracyWarning)
        warnings.simplefilter("ignore", sd.PlausibilityWarning)
        try:
            problem = CASES[case](scale)
            solver = sd.compile(problem, outputs=["tau", "qdd"], level="fast", backend="python")
        except sd.SysdynError as error:
            assert str(error).count("\n") < MOST_LINES, str(error)
            return
    assert np.shape(solver.outputs) == (2,)


def test_deviations_that_cannot_be_squared_are_refused():
    solver = sd.compile(estimation(ARM, 0.1), outputs="qdd", level="fast", backend="python")
    q, qd, _ = ARM.random_state(seed=1)
    y = {"qdd": np.zeros(3), "tau": np.zeros(3)}
    for bad in (1e-200, 1e-61, 1e61, 1e200):
        with pytest.raises(sd.InvalidInput, match="standard deviation of .* are computed with"):
            estimation(ARM, bad)
        with pytest.raises(sd.InvalidInput, match="standard deviation of .* are computed with"):
            solver(q, qd, y=y, noise={"qdd": [0.1, bad, 0.1]})
    for bad in (1e-140, 1e140):
        with pytest.raises(sd.InvalidInput, match="standard deviation of .* are computed with"):
            sd.Problem(ARM, [sd.JointTorque("all", noise=np.diag([1.0, bad, 1.0]))])
