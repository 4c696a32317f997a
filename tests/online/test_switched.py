"""Switchable measurements that a call does not hand in: off where it says so, an error elsewhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from estimates import FAST

import sysdyn as sd
from sysdyn.measurements.input_names import value_group

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
    with pytest.raises(sd.InvalidInput, match="6 states or 6 components"):
        solver("at rest")(q, qd, y=y, active={"x": np.arange(6) < 3})
    by_state = np.repeat((np.arange(6) < 3)[:, None], 6, axis=1)
    assert solver("at rest")(q, qd, y=y, active={"x": by_state}).ok.all()


# Shapes of the arguments of a call with a sensor of three components, and of its switches that are read by state.
BY_STATE = {
    "two batch axes": ({"q": (3, 3), "qd": (3, 3)}, (3, 3)),
    "an axis of q, one of y": ({"q": (3, 1), "y": (3,)}, (3, 3)),
    "an axis of q, one of noise": ({"q": (2, 1), "noise": (3,)}, (2, 3)),
    "an axis of noise, one of a covariance": ({"noise": (2, 1), "currents": (3,)}, (2, 3)),
    "an axis of q, one of a parameter": ({"q": (2, 1), "gravity": (3,)}, (2, 3)),
    "other switches": ({"q": (2, 1), "other": (2, 3)}, (2, 3)),
    "not the number of components": ({"y": (4,)}, (4,)),
    "more states than q": ({}, (5,)),
    "a row of states": ({"q": (4, 3)}, (4, 1)),
}
# The same for switches that may be of states or of components, which are refused.
EITHER = {
    "q": ({"q": (3,)}, (3,)),
    "y alone": ({"y": (3,)}, (3,)),
    "noise alone": ({"noise": (3,)}, (3,)),
    "a covariance alone": ({"currents": (3,)}, (3,)),
    "a parameter alone": ({"gravity": (3,)}, (3,)),
    "other switches alone": ({"other": (3,)}, (3,)),
    "the last of two axes": ({"q": (2, 3)}, (3,)),
    "a row": ({"q": (2, 3)}, (1, 3)),
}
# The same for switches that are read by component.
BY_COMPONENT = {
    "one state": ({}, (3,)),
    "a batch": ({"q": (4,)}, (3,)),
    "states by components": ({"q": (3,)}, (3, 3)),
    "two batch axes and one of components": ({"q": (3, 3)}, (3, 3, 3)),
    "more states than q, by components": ({}, (3, 3)),
}


@cache
def three_components() -> sd.Solver:
    """Estimator with switchable sensors of three and of one component, a full covariance and a parameter."""
    currents = sd.JointTorque("all", noise=np.diag([0.2, 0.3, 0.4]) + 0.01, name="currents")
    switchable = [sd.Switchable(SENSORS["accelerometer"], name="x"), sd.Switchable(SENSORS["torque"], name="other")]
    rest = [m for m in BASE if m.name != "currents"]
    stated = sd.Problem(ARM, [*rest, currents, *switchable])
    return sd.compile(stated, outputs=["qdd"], level="fast", inputs=["gravity"])


def arguments(shapes: dict[str, tuple[int, ...]], on: tuple[int, ...]) -> dict:
    """Arguments of a call of `three_components` with these batch axes, and switches of the accelerometer."""
    rng = np.random.default_rng(3)
    q, qd = (rng.standard_normal((*shapes.get(name, ()), 3)) for name in ("q", "qd"))
    sizes = three_components().problem.values
    y = {name: rng.standard_normal((*shapes.get("y", ()), group.size)) for name, group in sizes.items()}
    noise = {"encoders": rng.uniform(0.1, 0.3, (*shapes.get("noise", ()), 3))}
    factor = rng.uniform(0.1, 0.2, (*shapes.get("currents", ()), 3, 3))
    noise["currents"] = factor @ np.swapaxes(factor, -1, -2) + 0.1 * np.eye(3)
    active = {"x": rng.random(on) < 0.5}
    if "other" in shapes:
        active["other"] = rng.random(shapes["other"]) < 0.5
    parameters = {"gravity": rng.standard_normal((*shapes.get("gravity", ()), 3))}
    return {"q": q, "qd": qd, "y": y, "noise": noise, "active": active, "parameters": parameters}


def one_by_one(given: dict, on: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
    """q̈ of calls of one state each. on (…, 3): switches by component."""

    def whole(x: np.ndarray, axes: int = 1) -> np.ndarray:
        return np.broadcast_to(x, (*lead, *x.shape[x.ndim - axes :]))

    active = {name: on if name == "x" else x[..., None] for name, x in given["active"].items()}
    active = {name: whole(x) for name, x in active.items()}
    noise = {name: whole(x, 2 if name == "currents" else 1) for name, x in given["noise"].items()}
    named = {"active": active, "noise": noise}
    named |= {kind: {name: whole(x) for name, x in given[kind].items()} for kind in ("y", "parameters")}
    q, qd, result = whole(given["q"]), whole(given["qd"]), np.empty((*lead, 3))
    for state in np.ndindex(lead):
        own = {kind: {name: x[state] for name, x in values.items()} for kind, values in named.items()}
        result[state] = three_components()(q[state], qd[state], **own).qdd
    return result


@pytest.mark.parametrize("case", [*BY_STATE, *BY_COMPONENT])
def test_the_batch_axes_of_all_arguments_say_what_an_axis_of_switches_means(case):
    shapes, on = {**BY_STATE, **BY_COMPONENT}[case]
    given = arguments(shapes, on)
    switches = given["active"]["x"]
    if case in BY_STATE:
        switches = np.repeat(switches[..., None], 3, axis=-1)
    lead = np.broadcast_shapes(*shapes.values(), switches.shape[:-1])
    found = three_components()(**given).qdd
    assert found.shape == (*lead, 3)
    np.testing.assert_allclose(found, one_by_one(given, switches, lead), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", EITHER)
def test_switches_that_fit_as_states_and_as_components_are_refused(case):
    given = arguments(*EITHER[case])
    with pytest.raises(sd.InvalidInput, match=r"active\['x'\].*3 states or 3 components"):
        three_components()(**given)
    lead = np.broadcast_shapes(*EITHER[case][0].values())
    by_state = np.repeat(np.broadcast_to(given["active"]["x"], lead)[..., None], 3, axis=-1)
    found = three_components()(**given | {"active": {**given["active"], "x": by_state}}).qdd
    np.testing.assert_allclose(found, one_by_one(given, by_state, lead), rtol=1e-9, atol=1e-9)


def test_masks_and_switches_combine():
    given = arguments({"q": (4,)}, (4, 3))
    mask = np.random.default_rng(5).random((4, 3)) < 0.3
    on = given["active"]["x"] & ~mask
    masked = {**given["y"], "x": np.ma.array(np.broadcast_to(given["y"]["x"], (4, 3)), mask=mask)}
    found = three_components()(**given | {"y": masked}).qdd
    np.testing.assert_allclose(found, one_by_one(given, on, (4,)), rtol=1e-9, atol=1e-9)


WRONG = {
    "active": ({"active": {"x": np.ones((4, 3), dtype=bool)}}, ["active['x'] (4,)", "q (5,)"]),
    "active by state": ({"active": {"x": np.ones(4, dtype=bool)}}, ["active['x'] (4,)", "q (5,)"]),
    "deviations": ({"noise": {"encoders": np.ones((4, 3))}}, ["noise['encoders'] (4,)", "q (5,)"]),
    "too many deviations": ({"noise": {"encoders": np.ones((5, 4))}}, ["'encoders'", "(5, 4)", "3 components"]),
    "a covariance": ({"noise": {"currents": np.ones((4, 3))}}, ["'currents'", "(4, 3)", "(…, 3, 3)"]),
    "a parameter": ({"parameters": {"gravity": np.ones((5, 4))}}, ["gravity", "(5, 4)", "(…, 3)"]),
    "y": ({"y": {"x": np.ones((5, 4))}}, ["y['x']", "(5, 4)", "(…, 3)"]),
    "y packed": ({"y": np.ones((5, 4))}, ["y has shape (5, 4)", "(…, 28)"]),
    "a mask": (
        {"y": {"x": np.ma.array(np.ones((4, 3)), mask=np.eye(4, 3))}},
        ["active['x']", "(5,)", "y['x']", "(4, 3)"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_wrong_shape_are_named_with_both_shapes(case):
    given, parts = arguments({"q": (5,)}, (5,)), WRONG[case][1]
    wrong = WRONG[case][0]
    if isinstance(wrong.get("y"), dict):
        wrong = {"y": {**given["y"], **wrong["y"]}}
    with pytest.raises(sd.InvalidInput) as caught:
        three_components()(**{**given, **wrong})
    assert all(part in str(caught.value) for part in parts), caught.value
