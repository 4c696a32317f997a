"""The exact level against one dense least-squares problem over all instants: means and standard deviations."""

from __future__ import annotations

import numpy as np
import pytest
from estimation.dense import Dense
from robots import floating_tree

import sysdyn as sd

# Differences in units of the standard deviation, and of that relative: what is left of differences and wide priors.
MEAN, STD = 1e-3, 2e-4
NOISE = {"encoders": 1e-2, "torques": 0.5, "wrench": 5.0, "position": 1e-2, "attitude": 2e-2, "gyro": 3e-2}
DENSITY = 60.0
# Of each sensor (std, density of a walk), or (std, None, time) of an error that lasts for a while.
BIASES = {"torques": (1.0, None, 0.15), "gyro": (0.2, 0.1)}


def times(kind: str, rng: np.random.Generator, n: int = 9) -> np.ndarray:
    """Regular, irregular, or with a gap, from a time that is not 0."""
    dt = {
        "regular": np.full(n - 1, 0.05), "irregular": rng.uniform(0.01, 0.1, n - 1),
        "gap": np.where(np.arange(n - 1) == n // 2, 0.4, 0.05),
    }[kind]  # fmt: skip
    return 12.5 + np.concatenate([[0.0], np.cumsum(dt)])


def arm(kind: str, rates: bool, biased: bool) -> tuple[Dense, sd.Problem]:
    """Three joints with encoders and torques, and an unknown wrench on the hand."""
    rng = np.random.default_rng(3)
    model = sd.random_tree(3, seed=1, joints=("revolute", "prismatic"))
    t = times(kind, rng)
    q = 0.5 * np.sin(3.0 * t[:, None] + np.arange(model.nv))
    log = {"encoders": q + NOISE["encoders"] * rng.standard_normal(q.shape)}
    log["torques"] = sd.rnea(model, q, 0 * q, 0 * q) + 2.0 * rng.standard_normal(q.shape)
    thinned(log, rates)
    biases = {"torques": BIASES["torques"]} if biased else {}
    *others, hand = model.body_names
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=NOISE["encoders"], name="encoders"),
        sd.JointTorque("all", noise=NOISE["torques"], name="torques", bias=walk(biases, "torques")),
        sd.ExternalWrench(others, name="none"),
        sd.Prior(sd.ExternalWrench(hand, noise=NOISE["wrench"]), name="wrench"),
    ])  # fmt: skip
    return Dense(model, t, log, {k: NOISE[k] for k in ("encoders", "torques", "wrench")}, DENSITY, biases), problem


def floating(kind: str, rates: bool, biased: bool) -> tuple[Dense, sd.Problem]:
    """A free base with position, attitude and angular velocity, two hinges, and an unknown wrench on the base."""
    rng = np.random.default_rng(5)
    model = floating_tree(3, seed=2)
    model = model.replace(X_tree=(np.eye(6), *model.X_tree[1:]))  # the base moves in axes of the world
    t = times(kind, rng)
    n, I = len(t), (model.body_names[0], np.eye(4))
    turn = 0.4 * np.sin(2.0 * t[:, None] + np.arange(3))
    log = {
        "encoders": 0.5 * np.sin(3.0 * t[:, None] + np.arange(model.nv - 6)),
        "position": 0.3 * np.cos(2.0 * t[:, None] + np.arange(3)), "attitude": turn,
        "gyro": 0.8 * np.cos(2.0 * t[:, None] + np.arange(3)), "torques": 3.0 * rng.standard_normal((n, model.nv - 6)),
    }  # fmt: skip
    log = {name: x + NOISE[name] * rng.standard_normal(x.shape) for name, x in log.items()}
    thinned(log, rates)
    biases = dict(BIASES) if biased else {}
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=NOISE["encoders"], name="encoders"),
        sd.FramePosition(I, noise=NOISE["position"], name="position"),
        sd.FrameAttitude(I, noise=NOISE["attitude"], name="attitude"),
        sd.Gyroscope(I, noise=NOISE["gyro"], name="gyro", bias=walk(biases, "gyro")),
        sd.JointTorque(model.joint_names[0], name="base"),
        sd.JointTorque(model.joint_names[1:], noise=NOISE["torques"], name="torques", bias=walk(biases, "torques")),
        sd.ExternalWrench(model.body_names[1:], name="none"),
        sd.Prior(sd.ExternalWrench(model.body_names[0], noise=NOISE["wrench"]), name="wrench"),
    ])  # fmt: skip
    return Dense(model, t, log, NOISE, DENSITY, biases), problem


def walk(biases: dict, name: str) -> sd.RandomWalk | sd.GaussMarkov | None:
    if name not in biases:
        return None
    std, density, *time = biases[name]
    return sd.GaussMarkov(std, *time) if time else sd.RandomWalk(density, std=std)


def thinned(log: dict[str, np.ndarray], rates: bool) -> None:
    """Readings of each sensor at a rate of its own, with some components missing, too."""
    if rates:
        for k, x in enumerate(log.values()):
            x[np.arange(len(x)) % (k + 1) != 0] = np.nan
        next(iter(log.values()))[3, 0] = np.nan


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "robot, kind, rates, biased",
    [
        (arm, "irregular", True, True), (floating, "irregular", True, True), (floating, "regular", False, False),
        (arm, "regular", False, False), (arm, "gap", True, False), (floating, "gap", False, True),
        (floating, "gap", True, False), (arm, "regular", True, True),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::sysdyn.errors.LogWarning")  # of χ²: the readings are not those of a process
def test_exact_level(robot, kind, rates, biased):
    dense, problem = robot(kind, rates, biased)
    answer = dense.solved()
    given = {"t": dense.t, **dense.log}
    if dense.free:
        given["base"] = np.zeros((len(dense.t), 6))
    run = sd.smooth(problem, given, ["tau", "fx"], coupled=True, order=3, density=DENSITY, robust=False)
    assert run.coupled and not run.events and run.order == 3
    pairs = [(run.qd, run.std("qd"), *answer.part(1)), (run.qdd, run.std("qdd"), *answer.part(2))]
    q, std = answer.part(0)
    off = problem.model.difference(q, run.q)
    pairs.append((off, run.std("q"), 0.0 * off, std))
    tau, std = answer.torques()
    if dense.free:
        pairs.append((run["tau"][:, 6:], run.std("tau")[:, 6:], tau[:, 6:], std[:, 6:]))
        pairs.append((run["fx"][:, 0], run.std("fx")[:, 0], tau[:, :6], std[:, :6]))
        assert not run["tau"][:, :6].any() or np.abs(run["tau"][:, :6]).max() < 1e-9
    else:
        pairs.append((run["tau"], run.std("tau"), tau, std))
        pairs.append((run["fx"][:, -1], run.std("fx")[:, -1], *answer.part(3)))
    for k, name in enumerate(dense.biases):
        pairs.append((run.bias(name), run.bias_std(name), *answer.part(4 + k)))
    for value, own, expected, std in pairs:
        assert np.abs((value - expected) / std).max() < MEAN
        assert np.abs(own / std - 1.0).max() < STD
