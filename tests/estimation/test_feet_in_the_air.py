"""A foot that does not stand, which nothing touches: it tells biases, and shows contacts that are told late."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.contact_schedule import Standing

N, DT, DOWN, LATE = 240, 4e-3, 120, 2
NOISE, BIAS = {"encoders": 1e-4, "torques": 0.1}, np.array([0.6, -0.8, 0.4])
MODEL = sd.chain(3, seed=1)


def problem(unless: str | None = "foot", when: str | None = None, **of_stance) -> sd.Problem:
    *others, last = MODEL.body_names
    return sd.Problem(MODEL, [
        sd.JointPosition("all", noise=NOISE["encoders"], name="encoders"),
        sd.JointTorque("all", noise=NOISE["torques"], bias=sd.Constant(1.0), name="torques"),
        sd.ExternalWrench(others, name="none"), sd.Prior(sd.ExternalWrench(last, noise=50.0), name="floor"),
        sd.Stance(last, noise=1e-2, name="foot", when=when, **of_stance),
        *([] if unless is None else [sd.Switchable(sd.ExternalWrench(last, noise=0.1), "air", unless=unless)]),
    ])  # fmt: skip


@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")
def test_what_holds_a_measurement_keeps_its_own_options():
    """Without biases, and with what was learnt."""
    last = MODEL.body_names[-1]
    bias = sd.RandomWalk(0.1)
    whole = problem() + sd.Switchable(sd.Accelerometer(last, noise=0.1, bias=bias), "free", unless="foot")
    assert [m.unless for m in whole.instant.measurements if m.switchable] == ["foot", "foot"]
    log, _ = landing()
    log["free: a_x"], log["free: a_y"], log["free: a_z"] = np.random.default_rng(0).standard_normal((3, N))
    learnt = sd.learn_noise(whole, log, ["free"], iterations=1, density=100.0, order=3).problem
    (found,) = [m for m in learnt.measurements if m.name == "free"]
    assert found.unless == "foot" and found.noise.shape == (3,)


def landing():
    """(log, torques (N, nv)) of an arm that comes to rest and touches something at row DOWN, told LATE rows later."""
    rng, t = np.random.default_rng(0), DT * np.arange(N)
    s = np.clip(t / t[DOWN - 10], 0.0, 1.0)[:, None]
    length, size = t[DOWN - 10], np.array([0.8, -0.5, 1.1])
    q = size * s**3 * (10.0 - 15.0 * s + 6.0 * s * s)
    qd = size * 30.0 * s**2 * (1.0 - s) ** 2 / length
    qdd = size * 60.0 * s * (1.0 - s) * (1.0 - 2.0 * s) / length**2
    fx = np.zeros((N, MODEL.nb, 6))
    fx[DOWN:, -1] = [0.5, -1.0, 2.0, 20.0, -10.0, 15.0]
    tau = sd.rnea(MODEL, q, qd, qdd, fx)
    log = {
        "t": t, "encoders": q + NOISE["encoders"] * rng.standard_normal(q.shape),
        "torques": tau + BIAS + NOISE["torques"] * rng.standard_normal(q.shape),
        "active: foot": (np.arange(N) >= DOWN + LATE).astype(float),
    }  # fmt: skip
    return log, tau


@pytest.mark.parametrize("coupled", [False, True])
def test_a_foot_in_the_air_tells_biases_and_a_contact_that_is_late_is_found(coupled):
    log, tau = landing()
    run = sd.smooth(problem(), log, coupled=coupled)
    error = run.bias("torques").mean(axis=0) - BIAS
    assert np.all(run.bias_std("torques") < 0.05) and np.all(np.abs(error) < 3.0 * run.bias_std("torques").max(axis=0))
    air = [e for e in run.events if e.measurement == "air"]
    assert {e.instant for e in air} >= set(range(DOWN, DOWN + LATE)) and len({e.instant for e in air}) <= LATE + 2
    assert len(air) == 6 * len({e.instant for e in air})  # it is in the air or not, as a whole
    assert np.sqrt(np.mean((run["tau"] - tau) ** 2)) < NOISE["torques"]
    assert "air" not in run.missing
    without = sd.smooth(problem(unless=None), log, coupled=coupled)
    assert np.all(without.bias_std("torques") > 0.5)


def switched(y: dict, active: dict, others=(), **of_problem) -> np.ndarray:
    n = len(next(iter((*y.values(), *active.values()))))
    Standing(problem(**of_problem)).switch(y, active, others, DT * np.arange(n))
    return active["air"].any(axis=1)


def test_where_it_is_on():
    stands = np.array([0, 0, 1, 1, 1, 0], dtype=bool)
    foot = np.repeat(stands[:, None], 3, axis=1)
    assert switched({}, {"foot": foot}).tolist() == (~stands).tolist()
    # a foot that settles stands on the floor meanwhile
    assert switched({}, {"foot": foot}, settle=2.0 * DT).tolist() == (~stands).tolist()
    # by a condition, as far as its values are there
    torques = np.array([np.nan, 0.0, 9.0, np.nan, 0.0])[:, None] * np.ones(3)
    on = switched({"torques": torques}, {}, when="torques: tau(joint1) > 5")
    assert on.tolist() == [False, True, False, False, True]
    # nobody says where the foot stands; something else says where it is in the air
    assert not switched({"torques": torques}, {}).any()
    given = {"foot": foot, "air": np.repeat(stands[:, None], 6, axis=1)}
    assert switched({}, given, others=("air",)).tolist() == stands.tolist()


@pytest.mark.slow
def test_a_filter_and_a_log_of_known_states():
    log, _ = landing()
    live = sd.filter(problem(), ["tau", "fx"], motion=30.0)
    for k in range(30):
        now = live(log["t"][k], {x: log[x][k] for x in NOISE}, active={"foot": False})
    assert np.abs(now["fx", MODEL.body_names[-1]]).max() < 0.5 and not now.contacts["foot"]
    # of known states there are no stances: it is switched by hand
    solver = sd.compile(problem().instant + sd.JointAcceleration("all", name="still"), outputs=["fx"], level="fast")
    y = {"torques": np.full(3, 5.0), "still": np.zeros(3)}
    free, touched = (solver(np.zeros(3), np.zeros(3), y=y, active={"air": on}) for on in (True, False))
    assert free.std("fx")[-1].max() < 0.2 and touched.std("fx")[-1].max() > 10.0


def test_stored_and_restored():
    told = problem()
    again = sd.Problem.from_dict(told.to_dict())
    assert again.swing_measurements == {"air": "foot"} and again.digest == told.digest != problem(unless=None).digest


def test_what_is_refused():
    with pytest.raises(UnknownName, match="stance in unless= of 'air': 'feet'"):
        problem(unless="feet")
    with pytest.raises(ProblemError, match="'air' is on unless 'foot' stands, but that follows from its motion"):
        problem(when="kinematics")
    with pytest.raises(InvalidInput, match="unless"):
        problem(unless=3)
    with pytest.raises(InvalidInput, match="no sensor of the state"):
        sd.Switchable(sd.Stance("body2", noise=1.0), "air", unless="foot")
