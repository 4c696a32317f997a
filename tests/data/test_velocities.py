"""Velocities from positions: the filter of the literature, motions with known velocities, and any chunks of rows."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.differentiation import FLAT, WINDOW, velocities
from sysdyn.data.sensor_log import Log
from sysdyn.data.states import read_states
from sysdyn.errors import InvalidInput, LogWarning, UnknownName

N = 60
MODEL = sd.chain(3)


def test_even_times_give_the_filter_of_savitzky_and_golay():
    from scipy.signal import savgol_filter  # a second of CPU time, which other workers need not spend

    q = np.random.default_rng(0).standard_normal((N, 3)).cumsum(axis=0)
    step = 0.002
    q = np.clip(q, -1.5, 1.5)  # no jumps of half a turn
    expected = savgol_filter(q, WINDOW, 2, deriv=1, delta=step, axis=0)
    t = 1e9 + step * np.arange(N)  # seconds since 1970, to the last of their bits
    np.testing.assert_allclose(velocities(MODEL, t, q, range(N)), expected, rtol=1e-3, atol=1e-3 * abs(expected).max())
    np.testing.assert_allclose(velocities(MODEL, step * np.arange(N), q, range(N)), expected, rtol=1e-10, atol=1e-9)


def test_parabolas_are_exact_at_any_times():
    t = np.sort(np.random.default_rng(1).uniform(0.0, 1.0, N))
    t[10] = t[11]  # equal times
    q = np.outer(t**2, [1.0, -2.0, 0.5]) + t[:, None]
    np.testing.assert_allclose(velocities(MODEL, t, q, range(N)), np.outer(2 * t, [1.0, -2.0, 0.5]) + 1.0, atol=1e-9)


def test_how_much_fast_motions_lose():
    t = np.arange(400) * 0.001
    rate = 2 * np.pi * FLAT / 0.001
    q = np.sin(rate * t)[:, None] * [1.0, 0.5, 0.25]
    found = velocities(MODEL, t, q, range(50, 350)) / [1.0, 0.5, 0.25]
    size = np.linalg.lstsq(np.cos(rate * t[50:350])[:, None], found, rcond=None)[0]
    np.testing.assert_allclose(size / rate, 0.9, atol=0.005)
    phase = np.linalg.lstsq(np.sin(rate * t[50:350])[:, None], found, rcond=None)[0]
    assert np.all(np.abs(phase) < 0.01 * rate)  # no delay


@pytest.mark.parametrize("kind", ["revolute", "cylindrical", "planar"])
def test_whole_turns_are_no_motion(kind):
    model = sd.random_tree(2, seed=1, joints=(kind,))
    t, qd = np.arange(N) * 0.01, np.full(model.nv, 3.0)
    q = np.array([model.integrate(np.full(model.nq, 2.5), qd * s) for s in t])
    for i, joint in enumerate(model.joints):
        for k in joint.angles:
            angle = q[:, model.q_slice(i)][:, k]
            angle[:] = (angle + np.pi) % (2 * np.pi) - np.pi
            assert np.ptp(angle) > 5.0
    np.testing.assert_allclose(velocities(model, t, q, range(N)), np.tile(qd, (N, 1)), rtol=1e-9)


def test_joints_whose_velocities_are_no_rates():
    """A steady twist of a floating body, whose quaternion changes its sign on the way."""
    model = sd.random_tree(3, seed=1, joints=("free", "spherical", "planar"))
    rng = np.random.default_rng(0)
    q0, qd = model.random_state(seed=2)[0], 0.8 * rng.standard_normal(model.nv)
    t = np.arange(N) * 0.01
    q = np.array([model.integrate(q0, qd * s) for s in t])
    for i, joint in enumerate(model.joints):
        if joint.quaternion is not None:
            part = q[:, model.q_slice(i)][:, joint.quaternion]
            part *= np.sign(part[:, 3:])
    np.testing.assert_allclose(velocities(model, t, q, range(N)), np.tile(qd, (N, 1)), atol=1e-9)


def write_log(folder, t, q, **more):
    np.savez(folder / "log.npz", t=t, q=q, tau=np.zeros_like(q), **more)
    return folder / "log.npz"


@pytest.mark.parametrize("rows", [1, 4, 7, N])
def test_chunks_of_any_size_give_the_same_bits(tmp_path, rows):
    t = np.arange(N) * 0.01
    q = np.random.default_rng(0).uniform(-1.0, 1.0, (N, 3))
    path = write_log(tmp_path, t, q)
    with pytest.warns(LogWarning) as told:
        chunks = list(Log(path, sd.forward_dynamics(MODEL), rows=rows, velocities="difference"))
    (message,) = (str(x.message) for x in told)
    for words in ("lacks qd.joint0, qd.joint1, qd.joint2", "11 rows (0.1 s)", "delay of 0 s", "0.05 s", "than 3 Hz"):
        assert words in message
    np.testing.assert_array_equal(np.concatenate([c.t for c in chunks]), t)
    np.testing.assert_array_equal(np.vstack([c.q for c in chunks]), q)
    np.testing.assert_array_equal(np.vstack([c.qd for c in chunks]), velocities(MODEL, t, q, range(N)))


def test_what_is_logged_stays(tmp_path):
    t, q = np.arange(N) * 0.01, np.random.default_rng(0).uniform(-1.0, 1.0, (N, 3))
    path = write_log(tmp_path, t, q, qd=2.0 * q)
    (chunk,) = Log(path, sd.forward_dynamics(MODEL), velocities="difference")
    np.testing.assert_array_equal(chunk.qd, 2.0 * q)
    names = {"qd[0]": "qd.joint0", "qd[1]": "", "qd[2]": "qd.joint2"}
    np.savez(path, t=t, q=q, tau=q, velocity=2.0 * q)
    names = {name.replace("qd", "velocity"): new for name, new in names.items()}
    np.testing.assert_array_equal(
        next(iter(Log(path, sd.forward_dynamics(MODEL), columns={"velocity": "qd"}))).qd, 2.0 * q
    )
    with pytest.warns(LogWarning) as told:
        list(Log(path, sd.forward_dynamics(MODEL), velocities="difference", columns={"velocity": ""}))
    assert len(told) == 1  # of velocities, none of columns
    with pytest.warns(LogWarning, match="lacks qd.joint1:"):
        chunks = list(Log(path, sd.forward_dynamics(MODEL), velocities="difference", columns=names))
    qd = np.vstack([c.qd for c in chunks])
    np.testing.assert_array_equal(qd[:, [0, 2]], 2.0 * q[:, [0, 2]])
    np.testing.assert_array_equal(qd[:, 1], velocities(MODEL, t, q, range(N))[:, 1])


def test_too_few_times(tmp_path):
    for t in (np.arange(2) * 0.01, np.zeros(N)):
        path = write_log(tmp_path, t, np.zeros((len(t), 3)))
        with pytest.raises(InvalidInput, match="log.npz rows 1 to .*three different times"):
            list(Log(path, sd.forward_dynamics(MODEL), velocities="difference"))
    with pytest.raises(InvalidInput, match="lacks the columns qd.joint0"):
        Log(path, sd.forward_dynamics(MODEL))
    with pytest.raises(InvalidInput, match="as a log, not as states"):
        read_states(path, sd.forward_dynamics(MODEL), velocities="difference")
    with pytest.raises(UnknownName, match="'difference'"):
        Log(path, sd.forward_dynamics(MODEL), velocities="diff")
