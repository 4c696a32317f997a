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


# Entries beyond 1e100, deviations that cannot be squared, accelerations that nothing determines, and wrenches of a mass
# whose equations vanish beside rounding errors of the others.
REFUSED = (
    {(case, 1e200) for case in ("masses", "last mass", "first mass", "length", "mass of an estimate")}
    | {("noise", scale) for scale in SCALES}
    | {("length", 1e99), ("first mass", 1e-200), ("mass of an estimate", 1e-99), ("mass of an estimate", 1e-200)}
)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("case", CASES)
def test_extremes_are_solved_or_refused_in_one_message(case, scale):
    """Solved: the accelerations come back from the torques of the recursive Newton-Euler algorithm."""
    q, qd, qdd = ARM.random_state(seed=1)

    def compiled() -> sd.Solver:
        return sd.compile(CASES[case](scale), outputs=["tau", "qdd"], level="fast", backend="python")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        warnings.simplefilter("ignore", sd.PlausibilityWarning)
        if (case, scale) in REFUSED:
            with pytest.raises(sd.SysdynError) as error:
                compiled()
            assert str(error.value).count("\n") < MOST_LINES
            return
        solver = compiled()
    expected = {"qdd": qdd, "tau": sd.rnea(solver.model, q, qd, qdd)}
    known = {x: expected[x] for x in solver.problem.known_quantities if x in expected}
    found = solver(q, qd, **known, y=None if known else expected)
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0.0, atol=1e-12 * np.abs(x).max(), err_msg=name)


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
