"""Loops of mechanisms hold along trajectories: they tell joints without an encoder, and share the noise of others."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import sysdyn as sd
from sysdyn.estimation.estimation_problem import FIRST
from sysdyn.estimation.process_model import covariance, transition
from sysdyn.model.se3 import X_motion

# Lengths of the bars in the plane and the place of the joint that closes the loop [m].
LENGTHS, GROUND = (0.5, 1.1, 0.8), 1.2
# Noise of encoders [rad], density of jerk, and step [s].
NOISE, DENSITY, STEP = 1e-2, 30.0, 0.05
# Standard deviation of a loop that is closed [m, m/s], as dense least squares hold it.
HELD = 1e-7
# Difference of a robot's states from those of dense least squares, in standard deviations.
MEAN, STD = 1e-2, 1e-2


def four_bar() -> sd.Model:
    """Three bars in the plane from the origin, whose tip is at the joint of the base if the loop is closed."""
    com = np.array([[x / 2, 0.02, 0.0] for x in LENGTHS])
    inertia = [np.diag([0.01, 0.1, 0.1])] * 3
    return sd.from_dh([0.0] * 3, [0.0, *LENGTHS[:-1]], [0.0] * 3, [1.0, 2.0, 1.5], com, inertia, gravity=(0, -9.81, 0))


def open_by(q: np.ndarray) -> np.ndarray:
    """(N, 2) place of the tip beside the joint that closes the loop."""
    angle = np.cumsum(q, axis=1)
    return np.stack([np.cos(angle) @ LENGTHS - GROUND, np.sin(angle) @ LENGTHS], axis=1)


def assembled(crank: np.ndarray) -> np.ndarray:
    """Positions (N, 3) of the closed loop with these angles (N,) of the crank."""
    found, q = [], np.array([1.2, -0.9, -1.1])
    for x in crank:
        q[0] = x
        q[1:] = scipy.optimize.fsolve(lambda y, q=q: open_by(np.array([[q[0], *y]]))[0], q[1:], xtol=1e-12)
        found.append(q.copy())
    return np.array(found)


def problem(encoders: list[str]) -> sd.Problem:
    model = four_bar()
    tip, ground = np.eye(4), np.eye(4)
    tip[0, 3], ground[0, 3] = LENGTHS[-1], GROUND
    frames = {
        name: sd.Frame(name, body, X_motion(T[:3, :3].T, T[:3, 3]))
        for name, body, T in (("tip", 2, tip), ("ground", -1, ground))
    }
    return sd.Problem(model.replace(frames={**model.frames, **frames}), [
        sd.JointPosition(encoders, noise=NOISE, name="encoders"),
        sd.LoopJoint("tip", "ground", ("a_x", "a_y"), name="pin"),
        sd.JointTorque(model.joint_names[1:], name="passive"), sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip


def log(encoders: list[str], n: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(true positions (n, 3), log)."""
    model, t = four_bar(), STEP * np.arange(n)
    q = assembled(1.2 + 0.5 * np.sin(2.0 * t))
    places = [model.joint_names.index(x) for x in encoders]
    z = q[:, places] + NOISE * np.random.default_rng(0).standard_normal((n, len(places)))
    return q, {"t": t, "encoders": z}


def dense(readings: dict[str, np.ndarray], places: list[int], start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(states (N, 3, 3), standard deviations) by one least-squares problem, loops held by small weights."""
    t, z = readings["t"], readings["encoders"]
    n, (dt,) = len(t), set(np.diff(t).round(12))
    phi, root = transition(np.array(dt), 3), np.linalg.inv(np.linalg.cholesky(DENSITY**2 * covariance(np.array(dt), 3)))
    first = np.stack([start, np.zeros(3), np.zeros(3)])

    def residuals(x: np.ndarray) -> np.ndarray:
        x = x.reshape(n, 3, 3)
        q, qd = x[:, 0], x[:, 1]
        angle, rate = np.cumsum(q, axis=1), np.cumsum(qd, axis=1)
        moving = np.stack([-(np.sin(angle) * rate) @ LENGTHS, (np.cos(angle) * rate) @ LENGTHS])
        moved = root @ (x[1:] - phi @ x[:-1])
        before = (x[0] - first) / np.array(FIRST[:3])[:, None]
        parts = ((q[:, places] - z) / NOISE, moved, before, open_by(q) / HELD, moving / HELD)
        return np.concatenate([y.reshape(-1) for y in parts])

    x = np.zeros((n, 3, 3))
    x[:, 0] = assembled(1.2 + 0.5 * np.sin(2.0 * t))
    x, h = x.reshape(-1), 1e-5 * np.eye(9 * n)
    for _ in range(20):  # Gauss-Newton, by central differences
        J = np.stack([(residuals(x + d) - residuals(x - d)) / 2e-5 for d in h], axis=1)
        size = np.linalg.norm(J, axis=0)
        x = x - np.linalg.lstsq(J / size, residuals(x), rcond=None)[0] / size
    std = np.linalg.norm(np.linalg.inv(np.linalg.qr(J / size, mode="r")), axis=1) / size
    return x.reshape(n, 3, 3), std.reshape(n, 3, 3)


@pytest.mark.parametrize("encoders", [["joint0", "joint1", "joint2"], ["joint0"], ["joint2"]])
def test_loops_hold(encoders):
    """Against dense least squares, also where one joint alone has an encoder."""
    given, (q, readings) = problem(encoders), log(encoders, 8)
    run = sd.smooth(given, readings, [], order=3, density=DENSITY, start=q[0], robust=False,
                    values={"passive": np.zeros(2)})  # fmt: skip
    places = [given.model.joint_names.index(x) for x in encoders]
    states, std = dense(readings, places, q[0])
    for k, (value, own) in enumerate(((run.q, run.std("q")), (run.qd, run.std("qd")))):
        assert np.abs((value - states[:, k]) / std[:, k]).max() < MEAN
        assert np.abs(own / std[:, k] - 1.0).max() < STD
    # accelerations agree with the loop at single instants only
    assert (run.std("qdd") < (1.0 + STD) * std[:, 2]).all()
    assert (np.abs(run.qdd - states[:, 2]) < std[:, 2]).all()
    assert np.abs(open_by(run.q)).max() < 0.02 * np.abs(open_by(q + NOISE)).max()


@pytest.mark.parametrize("coupled", [False, True])
def test_a_loop_shares_the_noise_of_its_encoders(coupled):
    """Densities from the log, and the order of the kinematic level; steps so long that a filter would lose the loop."""
    encoders = ["joint0", "joint1", "joint2"]
    given, (q, readings) = problem(encoders), log(encoders, 100)
    passive = {"passive": np.zeros(2)}
    run = sd.smooth(given, readings, ["tau"], start=q[0], coupled=coupled, order=3 if coupled else None, values=passive)
    without = sd.Problem(given.model, [m for m in given.measurements if m.name not in ("pin", "passive")])
    apart = sd.smooth(without, readings, [], start=q[0])
    error, alone = (np.sqrt(np.mean((x.q - q) ** 2)) for x in (run, apart))
    assert error < 0.75 * alone and run.std("q").mean() < 0.75 * apart.std("q").mean()
    assert np.abs(open_by(run.q)).max() < 1e-5 and np.abs(run["tau"][:, 1:]).max() < 1e-9


def test_a_filter_holds_a_loop():
    given, (q, readings) = problem(["joint0"]), log(["joint0"], 40)
    live, found = sd.filter(given, [], motion=DENSITY, order=3, start=q[0]), []
    for t, z in zip(readings["t"], readings["encoders"], strict=True):
        found.append(live(float(t), {"encoders": z, "passive": np.zeros(2)}).q.copy())
    assert np.abs(open_by(np.array(found))).max() < 2e-3 and np.abs(np.array(found) - q).max() < 5.0 * NOISE
