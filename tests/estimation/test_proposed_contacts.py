"""Contacts by forces, by the motion of feet, and after settling; impacts where stances begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import InvalidInput
from sysdyn.estimation.outliers import MOTION

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "trajectories"))
    import logs

ROWS, HIT, STEP = 300, 150, 2e-3
SLIDER = (
    '<mujoco><worldbody><body name="mass"><joint name="slide" type="slide" axis="0 0 1"/>'
    '<geom size="0.05" mass="2" contype="0" conaffinity="0"/></body></worldbody></mujoco>'
)


def fallen(settle: float = 0.0, when: str | None = None) -> tuple[sd.Problem, dict[str, np.ndarray], np.ndarray]:
    """(problem, log, true velocity) of a mass that falls for 0.3 s and stays where it hits the floor."""
    model, rng, t = sd.load(SLIDER), np.random.default_rng(0), STEP * np.arange(ROWS)
    falls = np.arange(ROWS) < HIT
    q = np.where(falls, 0.5 * 9.81 * (t[HIT] ** 2 - t**2), 0.0)
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="enc"),
        sd.Stance("mass", components=["v_z"], noise=5e-3, settle=settle, when=when, name="foot"),
        sd.JointTorque("all", noise=0.1, name="force"),
        sd.Prior(sd.ExternalWrench("mass", noise=100.0), name="floor"),
    ])  # fmt: skip
    force = np.where(falls, 0.0, 20.0) + rng.normal(0.0, 0.1, ROWS)
    log = {"t": t, "enc": (q + 1e-3 * rng.standard_normal(ROWS))[:, None], "force": force[:, None]}
    if when is None:
        log["active: foot"] = (~falls).astype(float)
    return problem, log, np.where(falls, -9.81 * t, 0.0)


# ---- impacts ---------------------------------------------------------------------------------------------------------


def test_an_impact_raises_the_density_of_the_motion():
    problem, log, truth = fallen()
    run = sd.smooth(problem, log, ["tau"], density=30.0, order=3)
    (impact,) = (e for e in run.events if e.measurement == MOTION)
    assert (impact.instant, impact.why) == (HIT, "impact") and "impacts   1" in repr(run)
    assert run.contacts["foot"].sum() == ROWS - HIT and len(run.events) <= 6  # 0.1 % of the readings are beyond belief
    error, std = run.qd[:, 0] - truth, run.std("qd")[:, 0]
    assert np.mean(np.abs(error) < 2.0 * std) > 0.97 and np.abs(error[HIT + 2 :]).max() < 0.05  # 0.5 without


def test_a_stance_that_begins_softly_is_no_impact():
    problem, log, _ = fallen()
    still = {**log, "enc": 1e-3 * np.random.default_rng(1).standard_normal((ROWS, 1))}
    run = sd.smooth(problem, still, ["tau"], density=30.0, order=3)
    assert not [e for e in run.events if e.measurement == MOTION] and "impacts" not in repr(run)


# ---- forces ----------------------------------------------------------------------------------------------------------


def test_a_stance_stands_where_a_force_is_above_its_threshold():
    problem, log, _ = fallen(when="force: tau(slide) > 10")
    stands = np.concatenate([x.active["foot"][:, 0] for x in sd.Log(log, problem, states="unknown", rows=64)])
    np.testing.assert_array_equal(stands, np.arange(ROWS) >= HIT)
    run = sd.smooth(problem, log, ["tau"], density=30.0, order=3)
    np.testing.assert_array_equal(run.contacts["foot"], stands)


def test_a_condition_needs_a_threshold():
    with pytest.raises(InvalidInput, match="> NUMBER.*active: NAME"):
        fallen(when="force: tau(slide)")


def test_a_filter_cannot_propose_contacts_by_motion():
    problem, log, _ = fallen(when="kinematics")
    run = sd.smooth(problem, log, ["tau"], density=30.0, order=3)
    stands = run.contacts["foot"]
    assert stands[HIT + 40 :].mean() > 0.95 and stands[20 : HIT - 5].mean() < 0.1
    with pytest.raises(InvalidInput, match="contacts of 'foot' follow from what is before and after an instant"):
        sd.filter(problem, motion=run)


# ---- settling --------------------------------------------------------------------------------------------------------


def test_feet_settle_before_they_count():
    problem, log, _ = fallen(settle=0.02)
    late = round(0.02 / STEP)
    for rows in (7, ROWS):
        chunks = sd.Log(log, problem, states="unknown", rows=rows)
        on = np.concatenate([x.active["foot"][:, 0] for x in chunks])
        np.testing.assert_array_equal(on, np.arange(ROWS) >= HIT + late)
    live = sd.filter(problem, ["tau"], motion=sd.smooth(problem, log, ["tau"], density=30.0, order=3))
    on = [
        live(t, {"enc": z, "force": f}, {"foot": x}).contacts["foot"] for t, z, f, x in zip(*log.values(), strict=True)
    ]
    np.testing.assert_array_equal(np.reshape(on, -1), np.arange(ROWS) >= HIT + late)
    stands = {**log, "active: foot": np.ones(ROWS)}  # from the begin: it has settled
    assert all(x.active["foot"].all() for x in sd.Log(stands, problem, states="unknown"))
    with pytest.raises(InvalidInput, match="settle of 'foot' is -1"):
        sd.Stance("mass", noise=1.0, settle=-1, name="foot")


# ---- motion ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kinematics", "force"])
def test_a_trot_without_contacts_in_its_log(way):
    """Feet that stand are found by their motion, or by the torques of knees, and velocities are as with contacts."""
    log = logs.quadruped(250)
    when = "kinematics".format if way == "kinematics" else "torques: tau({}_calf) > 4.5".format
    problem = logs.quadruped_problem(log, when=when)
    truth = log.truth
    run = sd.smooth(problem, {**log.log, "no motor": np.zeros((len(truth.t), 6))}, ["tau"])
    for k, leg in enumerate(logs.LEGS):
        assert np.mean(run.contacts[leg] & ~truth.contacts[:, k]) < 0.02, leg
        assert np.mean(run.contacts[leg]) > 0.5 * np.mean(truth.contacts[:, k]), leg
    error = run.qd[:, 3:6] - truth.qd[:, 3:6]
    assert np.sqrt(np.mean(error**2)) < 0.006
    assert np.mean(np.abs(error) < 2.0 * run.std("qd")[:, 3:6]) > 0.9
