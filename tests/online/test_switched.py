"""Switchable measurements that a call does not hand in: off where it says so, an error elsewhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from estimates import FAST

import sysdyn as sd
from sysdyn.measurements.groups import value_group

ARM = sd.chain(3, seed=2)
# Without a value these are zero where they are on; the others have to be handed in.
ZERO = {
    "at rest": sd.FrameAcceleration("body2", noise=0.1),
    "no wrench": sd.ExternalWrench("body1", noise=0.1),
    "point": sd.PointContact("body1", noise=0.1),
    "direction": sd.ForceDirection("body1", (0, 0, 1), noise=0.1),
}
SENSORS = {
    "accelerometer": sd.Accelerometer("body2", noise=0.1),
    "angular": sd.AngularAccelerometer("body2", noise=0.1),
    "wrench": sd.ForceTorqueSensor("joint1", noise=0.1),
    "joint wrench": sd.JointWrench("body1", noise=0.1),
    "torque": sd.JointTorque("joint0", noise=0.1),
    "acceleration": sd.JointAcceleration("joint1", noise=0.1),
    "body": sd.BodyAcceleration("body1", noise=0.1),
    "com": sd.CentreOfMassAcceleration(noise=0.1),
    "net": sd.NetWrench("body1", noise=0.1),
}
BASE = [
    sd.ExternalWrench("body0"),
    sd.Prior(sd.ExternalWrench(["body1", "body2"], noise=10.0), name="touch"),
    sd.JointTorque("all", noise=0.5, name="currents"),
    sd.JointAcceleration("all", noise=0.2, name="encoders"),
]


@cache
def problem(name: str) -> sd.Problem:
    return sd.Problem(ARM, [*BASE, sd.Switchable({**ZERO, **SENSORS}[name], name="x")])


@cache
def solver(name: str) -> sd.Solver:
    return sd.compile(problem(name), outputs=["tau", "qdd"], **FAST)


def states(name: str, n: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    q, qd, qdd = ARM.random_state(seed=4, batch=n)
    return q, qd, sd.predict(problem(name), q, qd, qdd, seed=1)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", [*ZERO, *SENSORS])
def test_every_switchable_measurement_is_handed_in_or_switched(name):
    q, qd, y = states(name, 4)
    solve, rest = solver(name), {x: v for x, v in y.items() if x != "x"}
    for call in (solve, solve.derivatives(wrt="q"), lambda *a, **k: sd.learn_noise(solve, *a, learn="encoders", **k)):
        with pytest.raises(sd.InvalidInput, match=r"no value was given for 'x': pass .*active=\{'x': False\}"):
            call(q, qd, y=rest)
    with pytest.raises(sd.InvalidInput, match="no value was given for 'x'"):
        problem(name).pack(rest)
    off = solve(q, qd, y=rest, active={"x": False})
    for given in (np.full_like(y["x"], np.nan), y["x"]):
        again = solve(q, qd, y={**rest, "x": given}, active={"x": False})
        assert np.array_equal(off.tau, again.tau) and np.array_equal(off.std("tau"), again.std("tau"))
    for on in (True, np.arange(4) == 2):
        if name in ZERO:
            zero = solve(q, qd, y={**rest, "x": np.zeros_like(y["x"])}, active={"x": on})
            assert np.array_equal(solve(q, qd, y=rest, active={"x": on}).chi2(), zero.chi2())
        else:
            with pytest.raises(sd.InvalidInput, match="'x' is switched on, but no value was given for it"):
                solve(q, qd, y=rest, active={"x": on})


@pytest.mark.parametrize("name", ["at rest", "accelerometer"])
@pytest.mark.parametrize("n", [1, 4])
def test_prepared_and_plain_calls_say_the_same(name, n):
    solve = sd.compile(problem(name), outputs="tau", level="fast", formulation="elimination")
    q, qd, y = (x[0] if n == 1 and not isinstance(x, dict) else x for x in states(name, n))
    rest = {x: v[0] if n == 1 else v for x, v in y.items() if x in ("touch", "currents", "encoders")}
    for _ in range(2):  # the second of a kind takes the shortest way
        with pytest.raises(sd.InvalidInput, match="no value was given for 'x'"):
            solve(q, qd, y=rest)
        off = solve(q, qd, y=rest, active={"x": False}).tau
    with pytest.raises(sd.InvalidInput, match="no value was given for 'x'"):
        solve.bind(q, qd, y=rest)
    step = solve.bind(q, qd, y=rest, active={"x": False})
    step()
    assert np.allclose(step.out["tau"], off, rtol=0, atol=1e-13)
    assert value_group("x") in solve.problem.inputs


def test_switches_that_may_be_of_states_or_of_components_are_refused():
    q, qd, y = states("at rest", 6)
    with pytest.raises(sd.InvalidInput, match="may mean 6 states or 6 components"):
        solver("at rest")(q, qd, y=y, active={"x": np.arange(6) < 3})
    by_state = np.repeat((np.arange(6) < 3)[:, None], 6, axis=1)
    assert solver("at rest")(q, qd, y=y, active={"x": by_state}).ok.all()
