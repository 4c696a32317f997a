"""Filters row by row: the smoother's last row, fixed lags, conditions, readings that are not believed, bad input."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import InvalidInput, UnknownName

STEP, ROWS = 4e-3, 80
ENCODERS, TORQUES = 1e-3, 0.3
MOTION = {"motion": 300.0, "order": 3}


def arm(coupled: bool) -> tuple[sd.Problem, dict[str, np.ndarray], np.ndarray]:
    """(problem, its log, true torques) of a chain of three joints."""
    model, rng = sd.chain(3, seed=1), np.random.default_rng(0)
    t = STEP * np.arange(ROWS)
    omega = np.array([3.0, 5.0, 7.0])
    angle = t[:, None] * omega
    q, qd, qdd = 0.4 * np.sin(angle), 0.4 * omega * np.cos(angle), -0.4 * omega**2 * np.sin(angle)
    tau = sd.rnea(model, q, qd, qdd)
    sensors = [sd.JointPosition("all", noise=ENCODERS, name="encoders"), sd.ExternalWrench("all", name="none")]
    log = {"t": t, "encoders": q + ENCODERS * rng.standard_normal(q.shape)}
    if coupled:
        sensors.append(sd.JointTorque("all", noise=TORQUES, name="torques"))
        log["torques"] = tau + TORQUES * rng.standard_normal(q.shape)
    return sd.Problem(model, sensors), log, tau


def rows(log: dict[str, np.ndarray]):
    """(t, y) of each row."""
    for k, t in enumerate(log["t"]):
        yield t, {name: x[k] for name, x in log.items() if name != "t"}


@pytest.mark.parametrize("coupled", [False, True])
def test_the_last_row_is_the_smoothers(coupled):
    problem, log, _ = arm(coupled)
    live = sd.filter(problem, ["tau", "a"], coupled=coupled, robust=False, **MOTION)
    found = [live(*row) for row in rows(log)]
    now = found[-1]
    run = sd.smooth(problem, log, ["tau", "a"], coupled=coupled, robust=False, density=MOTION["motion"], order=3)
    assert now.t == run.t[-1] and now.q.shape == (3,) and now["tau", "joint1"] == now["tau"][1]
    for name in ("q", "qd", "qdd", "tau", "a"):
        std = run.std(name)[-1]
        off = np.abs(now[name] - run[name][-1])[std > 0.0] / std[std > 0.0]
        # torques make the coupled level bend: the filter linearises where it was, once
        assert off.max() < (0.05 if coupled else 1e-5), name
        np.testing.assert_allclose(now.std(name), std, rtol=0.02 if coupled else 1e-5, atol=1e-12)
    # χ² is the sum of the squared innovations
    assert sum(x.chi2() for x in found) == pytest.approx(run.chi2(), rel=0.05 if coupled else 1e-5)
    assert sum(x.redundancy for x in found) == run.redundancy + 9  # readings that find the first state


def test_a_lag_is_the_smoother_of_what_came():
    problem, log, tau = arm(False)
    lag = 5 * STEP
    live = sd.filter(problem, lag=lag, robust=False, **MOTION)
    found = [live(*row) for row in rows(log)]
    now = found[-1]
    assert now.t == pytest.approx(log["t"][-6])
    run = sd.smooth(problem, log, robust=False, density=MOTION["motion"], order=3)
    np.testing.assert_allclose(now["tau"], run["tau"][-6], rtol=1e-6)
    np.testing.assert_allclose(now.std("tau"), run.std("tau")[-6], rtol=1e-5)
    behind = np.array([x["tau"] for x in found[20:]]) - tau[15:-5]
    present = sd.filter(problem, robust=False, **MOTION)
    ahead = np.array([present(*row)["tau"] for row in rows(log)])[20:] - tau[20:]
    assert np.sqrt(np.mean(behind**2)) < 0.5 * np.sqrt(np.mean(ahead**2))


def test_motion_is_that_of_a_run():
    problem, log, _ = arm(False)
    run = sd.smooth(problem, log)
    live = sd.filter(problem, motion=run)
    now = [live(*row) for row in rows(log)][-1]
    assert now.motion == run.motion and now.order == run.order


def test_results_are_made_when_they_are_read():
    """Of the instant they belong to, in any order; copies are of whole ones."""
    problem, log, _ = arm(False)
    live, other = (sd.filter(problem, ["tau"], **MOTION) for _ in range(2))
    found = [live(*row) for row in rows(log)]
    at_once = [other(*row)["tau"] for row in rows(log)]
    for k in (70, 3, 79):
        for run in (pickle.loads(pickle.dumps(found[k])), copy.deepcopy(found[k]), found[k]):
            assert isinstance(run, sd.Run) and run.t == log["t"][k]
            np.testing.assert_array_equal(run["tau"], at_once[k])
    assert type(found[3]) is sd.Run and "kinematic level" in repr(found[4])
    with pytest.raises(AttributeError, match="torque"):
        found[5].torque  # noqa: B018


def test_results_do_not_follow_the_arrays_of_the_caller():
    problem, log, _ = arm(True)
    live, other = (sd.filter(problem, ["tau"], **MOTION) for _ in range(2))
    held = {name: np.empty(3) for name in ("encoders", "torques")}
    found = []
    for t, y in rows(log):
        for name, x in held.items():
            x[:] = y[name]
        found.append(live(t, held))
    expected = [other(*row)["tau"] for row in rows(log)]
    np.testing.assert_array_equal([x["tau"] for x in found], expected)


def base() -> sd.Problem:
    """A floating base with a gyroscope, a slow load cell, and a foot that stands while the cell is pressed."""
    model = floating_tree(2, seed=1)
    first, last = model.body_names[0], model.body_names[-1]
    return sd.Problem(model, [
        sd.JointPosition("all", noise=ENCODERS, name="encoders"),
        sd.Gyroscope((first, np.eye(4)), noise=1e-2, name="gyro"),
        sd.FramePosition((first, np.eye(4)), noise=1e-2, name="mocap"),
        sd.Prior(sd.ExternalWrench("all", noise=100.0), name="wrenches"),
        sd.JointTorque("all", noise=10.0, name="torques"),
        sd.StateFunction("cell", lambda ctx: [ctx.qd[0] * 0.0], ["f"], noise=1e6),
        sd.Stance((last, np.eye(4)), noise=1e-2, when="cell: f > 10", name="foot"),
    ])  # fmt: skip


def test_a_condition_holds_until_it_is_measured_again():
    live = sd.filter(base(), [], motion=100.0)
    readings = {"encoders": [0.0], "gyro": [0.0] * 3, "mocap": [0.0] * 3}
    cells = [None, 20.0, None, np.nan, 5.0, None, 11.0]
    stood = []
    for k, cell in enumerate(cells):
        now = live(STEP * k, {**readings, **({} if cell is None else {"cell": [cell]})})
        stood.append(bool(now.contacts["foot"]))
    assert stood == [False, True, True, True, False, False, True]
    assert not live(1.0, readings, active={"foot": False}).contacts["foot"]


@pytest.mark.parametrize("coupled", [False, True])
def test_a_torque_that_is_wrong_is_named_and_left_out(coupled):
    problem, log, tau = arm(True)
    wrong = {**log, "torques": log["torques"].copy()}
    wrong["torques"][60, 1] += 30.0
    with_, without = (
        [live(*row) for row in rows(given)][60]
        for live, given in (
            (sd.filter(problem, coupled=coupled, **MOTION), wrong),
            (sd.filter(problem, coupled=coupled, robust=False, **MOTION), wrong),
        )
    )
    assert [(e.measurement, e.component) for e in with_.events] == [("torques", "tau(joint1)")]
    assert np.abs(with_["tau"] - tau[60])[1] < 2.0 < np.abs(without["tau"] - tau[60])[1]


def test_an_encoder_that_jumps_hardly_moves_the_state():
    problem, log, _ = arm(False)
    live = sd.filter(problem, **MOTION)
    for k, (t, y) in enumerate(rows(log)):
        if k == 60:
            y = {"encoders": y["encoders"] + [0.0, 0.5, 0.0]}
        now = live(t, y)
        if k == 60:
            assert [(e.measurement, e.component, e.why) for e in now.events] == [("encoders", "joint1", "innovation")]
            assert abs(now.q[1] - log["encoders"][60, 1]) < 10 * ENCODERS


BAD = {
    "time backwards": (lambda live, y: live(-1.0, y), InvalidInput, "time goes from 0 s to -1 s"),
    "the same time": (lambda live, y: live(0.0, y), InvalidInput, "it must increase"),
    "an unknown sensor": (lambda live, y: live(1.0, {**y, "encoder": 0.0}), UnknownName, "Did you mean 'encoders'"),
    "an unknown switch": (lambda live, y: live(1.0, y, active={"foot": True}), UnknownName, "'foot'"),
    "too few values": (lambda live, y: live(1.0, {"encoders": [0.0]}), InvalidInput, "3 numbers are needed"),
    "an infinite value": (lambda live, y: live(1.0, {"encoders": [0.0, np.inf, 0.0]}), InvalidInput, "3 numbers"),
    "a text": (lambda live, y: live(1.0, {"encoders": ["a", "b", "c"]}), InvalidInput, "encoders"),
    "a gap of what is exact": (
        lambda live, y: live(1.0, {**y, "none": np.full(18, np.nan)}), InvalidInput, "'none' is exact",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_and_changes_nothing(case):
    problem, log, _ = arm(False)
    call, error, words = BAD[case]
    live, other = (sd.filter(problem, **MOTION) for _ in range(2))
    first, second = list(rows(log))[:2]
    live(*first)
    with pytest.raises(error, match=words):
        call(live, first[1])
    other(*first)
    np.testing.assert_array_equal(live(*second).q, other(*second).q)


@pytest.mark.parametrize("options, words", [
    ({"motion": 0.0}, "positive and finite"), ({"motion": {"joint0": 1.0}}, "each degree of freedom"),
    ({"motion": 1.0, "lag": -1.0}, "lag is -1.0"), ({"motion": 1.0, "start": [0.0, np.nan, 0.0]}, "finite"),
    ({"motion": 1.0, "order": 5}, "order of motion is 5"),
])  # fmt: skip
def test_options_that_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        sd.filter(arm(False)[0], **options)


def exact_deviations(noise: float, times: list[float], density: float) -> np.ndarray:
    """Standard deviations (rows, 3) of q, q̇ and q̈ of a joint with an encoder, by a rational Kalman filter."""
    P = [[Fraction(std) ** 2 * (i == j) for j in range(3)] for i, std in enumerate((10, 10, 1000))]
    rows, before = [], times[0]
    for t in times:
        d, before = Fraction(t) - Fraction(before), t
        A = [[1, d, d * d / 2], [0, 1, d], [0, 0, 1]]
        Q = [[d**5 / 20, d**4 / 8, d**3 / 6], [d**4 / 8, d**3 / 3, d * d / 2], [d**3 / 6, d * d / 2, d]]
        P = [[sum(x * P[a][b] * y for a, x in enumerate(A[i]) for b, y in enumerate(A[j]))
              + Fraction(density) ** 2 * Q[i][j] for j in range(3)] for i in range(3)]  # fmt: skip
        S = P[0][0] + Fraction(noise) ** 2
        P = [[P[i][j] - P[i][0] * P[0][j] / S for j in range(3)] for i in range(3)]
        rows.append([float(P[i][i]) ** 0.5 for i in range(3)])
    return np.array(rows)


@pytest.mark.parametrize("encoders", [1, 2])
@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-7, 1e-9])
def test_precise_encoders_have_deviations_from_the_first_row_on(noise, encoders):
    """Also where the motion is not known any more: after a gap of half a second."""
    sensors = [sd.JointPosition("all", noise=noise * encoders**0.5, name=f"encoder{k}") for k in range(encoders)]
    live = sd.filter(sd.Problem(sd.chain(1), [*sensors, sd.ExternalWrench("all", name="none")]), motion=5.0)
    times = [0.0, 0.002, 0.004, 0.5, 0.502]
    runs = [live(t, {m.name: [0.1] for m in sensors}) for t in times]
    found = [[run.std(x)[0] for x in ("q", "qd", "qdd")] for run in runs]
    np.testing.assert_allclose(found, exact_deviations(noise, times, 5.0), rtol=1e-6)


@pytest.mark.parametrize("t", [np.nan, np.inf])
def test_a_first_time_that_is_not_finite_is_refused(t):
    problem, log, _ = arm(False)
    live = sd.filter(problem, **MOTION)
    first, second = list(rows(log))[:2]
    with pytest.raises(InvalidInput, match="time"):
        live(t, first[1])
    live(*first)
    live(*second)
