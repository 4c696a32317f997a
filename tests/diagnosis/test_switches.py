"""Sensors that are switched off: what is undetermined without them, by diagnosis and when solving."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.diagnosis.switches import Switches
from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.measurements.input_names import switch_group

MODEL = sd.random_tree(4, seed=1, joints=("revolute", "prismatic"))
SENSORS = {
    "encoders": sd.JointAcceleration("all", noise=0.1, name="encoders"),
    "torques": sd.JointTorque(MODEL.joint_names[:2], noise=0.2, name="torques"),
    "imu": sd.Accelerometer(MODEL.body_names[3], noise=0.1, name="imu"),
}
PROBLEM = sd.Problem(MODEL, [sd.ExternalWrench("all"), *(sd.Switchable(m) for m in SENSORS.values())])
STATE = MODEL.random_state(seed=4)[:2]
VALUES = {"encoders": np.ones(4), "torques": np.ones(2), "imu": np.ones(3)}


@functools.cache
def solver() -> sd.Solver:
    return sd.compile(PROBLEM, level="fast")


@pytest.mark.parametrize("off", [x for n in range(4) for x in itertools.combinations(SENSORS, n)], ids="-".join)
def test_as_without_them(off):
    """Diagnosed and refused as if the measurements were not there."""
    active = dict.fromkeys(off, False)
    diagnosis = sd.diagnose(PROBLEM, active=active)
    without = sd.diagnose(
        sd.Problem(MODEL, [sd.ExternalWrench("all"), *(m for x, m in SENSORS.items() if x not in off)])
    )
    assert diagnosis.switched_off == off
    assert (diagnosis.equations, diagnosis.rank, diagnosis.missing) == (
        without.equations,
        without.rank,
        without.missing,
    )
    assert diagnosis.undetermined == without.undetermined and diagnosis.determined == without.determined
    assert ("switched off: " in str(diagnosis)) == bool(off)
    if diagnosis.well_posed:
        assert solver()(*STATE, y=VALUES, active=active).ok
        return
    assert diagnosis.suggestions[-1] == f"switch on some of: {', '.join(map(repr, off))}"
    named = f"nothing determines qdd\\(.* with {', '.join(map(repr, off))} switched off"
    with pytest.raises(SingularState, match=named):
        solver()(*STATE, y=VALUES, active=active)
    with pytest.raises(SingularState, match=f"{named}: switch some of them on"):
        solver().bind(*STATE, y=VALUES, active=active)


def test_some_components_and_some_states():
    off = {"encoders": [1, 0, 1, 1], "torques": False, "imu": False}
    diagnosis = sd.diagnose(PROBLEM, active=off)
    joint = MODEL.joint_names[1]
    assert not diagnosis.well_posed and diagnosis.switched_off == (f"encoders: qdd({joint})", "torques", "imu")
    assert sd.diagnose(PROBLEM, active={**off, "torques": [0, 1]}).well_posed
    active = {"encoders": np.array([off["encoders"], [1, 1, 1, 1]], dtype=bool), "torques": False, "imu": False}
    with pytest.raises(SingularState, match=f"state 0.*'encoders: qdd.{joint}.', 'torques'") as error:
        solver()(*STATE, y=VALUES, active=active)
    assert error.value.states == (0,)
    solution = solver()(*STATE, y=VALUES, active=active, on_singular="nan")
    assert solution.ok.tolist() == [False, True]
    assert np.isnan(solution.qdd[0]).all() and np.isfinite(solution.qdd[1]).all()
    derivatives = solver().derivatives(of="qdd", wrt="imu")(*STATE, y=VALUES, active=active, on_singular="nan")
    assert np.isnan(derivatives["qdd", "imu"][0]).all() and np.isfinite(derivatives["qdd", "imu"][1]).all()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", range(6))
def test_every_combination_against_dense_ranks(seed):
    """A past failure: five of six equations for five degrees of freedom gave numbers with ok, at random states."""
    rng = np.random.default_rng(seed)
    model = sd.random_tree(5, seed=seed, joints=("revolute", "prismatic"))
    chosen = [
        sd.JointAcceleration("all", noise=1.0, name="qdd"),
        sd.JointTorque("all", noise=1.0, name="tau"),
        sd.Accelerometer(model.body_names[int(rng.integers(5))], noise=1.0, name="imu"),
        sd.LoadCells(model.body_names[4], ["fx", "fz"], noise=1.0, name="cells"),
    ]
    kept = sd.JointTorque(model.joint_names[0], noise=1.0, name="kept")
    problem = sd.Problem(model, [sd.ExternalWrench("all"), kept, *map(sd.Switchable, chosen)])
    sizes = {switch_group(m.name): len(m.components(model)) for m in problem.switchable}
    on = {group: rng.random((200, m)) < rng.choice([0.0, 0.3, 0.6, 1.0], (200, 1)) for group, m in sizes.items()}
    lacking = Switches(sd.assemble(problem)).undetermined_mask({k: x.astype(float) for k, x in on.items()}, 200)
    plain = sd.assemble(problem).plain
    q, qd, _ = model.random_state(seed=seed + 50)
    A = plain.scaled(plain.values({"q": q, "qd": qd})[0][0]).toarray()
    for k in range(200):
        there = np.ones(len(A), dtype=bool)
        for r, (noise, component) in plain.noise_by_row.items():
            there[r] = on.get(f"active:{noise.name}", np.ones((200, 9)))[k, component]
        assert lacking[k] == (np.linalg.matrix_rank(A[there], tol=1e-9) < A.shape[1]), k
    assert 20 < lacking.sum() < 180


def test_wrong_switches():
    with pytest.raises(UnknownName, match="switchable measurement 'imi'.*Did you mean 'imu'"):
        sd.diagnose(PROBLEM, active={"imi": False})
    for wrong in ({"imu": 2}, {"imu": [1, 0]}, {"imu": "off"}, ["imu"]):
        with pytest.raises(InvalidInput, match="true"):
            sd.diagnose(PROBLEM, active=wrong)
