"""Encoders that report angles within one turn: estimates as of unwrapped readings, and reports where there are none."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from typer.testing import CliRunner

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.errors import LogWarning
from sysdyn.estimation.measurement_data import read_log

NOISE, STEP = 1e-3, 2e-3
TURN = 2.0 * np.pi
WRAPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "(−π, π]": lambda q: np.pi - (np.pi - q) % TURN,
    "[0, 2π)": lambda q: q % TURN,
}
SEAM = {"(−π, π]": np.pi, "[0, 2π)": 0.0}
VARIANTS = [*itertools.product(("wheel", "swing"), WRAPS, ("complete", "gaps"))]


def problem_of(model: sd.Model, noise: float = NOISE) -> sd.Problem:
    return sd.Problem(
        model, [sd.JointPosition("all", noise=noise, name="enc"), sd.ExternalWrench("all", name="nothing")]
    )


def motion(kind: str, seam: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, q̇ and q̈ of a wheel that turns, or of a swing of 0.2 rad across the seam."""
    if kind == "wheel":
        return 0.3 + 7.0 * t + 0.2 * np.sin(3.0 * t), 7.0 + 0.6 * np.cos(3.0 * t), -1.8 * np.sin(3.0 * t)
    return seam + 0.2 * np.sin(5.0 * t + 1.0), np.cos(5.0 * t + 1.0), -5.0 * np.sin(5.0 * t + 1.0)


@functools.cache
def case(kind: str, wrap: str, missing: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(t, unwrapped readings, wrapped ones, true torques), 3 s at 500 Hz; gaps: none within 0.1 rad of the seam."""
    t = STEP * np.arange(1500)
    q, qd, qdd = motion(kind, SEAM[wrap], t)
    y = q + NOISE * np.random.default_rng(0).standard_normal(len(t))
    if missing == "gaps":
        y = np.where(np.abs(WRAPS["(−π, π]"](q - SEAM[wrap])) < 0.1, np.nan, y)
    torque = sd.rnea(sd.chain(1), *(x[:, None] for x in (q, qd, qdd)))[:, 0]
    return t, y[:, None], WRAPS[wrap](y)[:, None], torque


def live(problem: sd.Problem, log: dict[str, np.ndarray], **options) -> np.ndarray:
    filter_ = sd.filter(problem, motion=20.0, **options)
    return np.array([filter_(t, {"enc": y})["tau", "joint0"] for t, y in zip(log["t"], log["enc"], strict=True)])


def command_line(problem: sd.Problem, log: dict[str, np.ndarray], folder) -> np.ndarray:
    text = 'robot = "chain:1"\n[[measurement]]\ntype = "JointPosition"\nname = "enc"\nnoise = 1e-3\n'
    (folder / "wheel.toml").write_text(text + '[[measurement]]\ntype = "ExternalWrench"\n', encoding="utf-8")
    np.savez(folder / "log.npz", **log)
    words = ["solve", "wheel.toml", "--log", "log.npz", "--out", "found.npz"]
    words = [*words[:1], *(str(folder / x) if "." in x else x for x in words[1:]), "--force"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return np.load(folder / "found.npz")["tau"].reshape(-1)


WAYS = {
    "smoother": lambda problem, log, _: sd.smooth(problem, log)["tau", "joint0"],
    "coupled": lambda problem, log, _: sd.smooth(
        problem + sd.JointTorque("all", noise=1.0, name="motor"),
        {**log, "motor": 0.0 * log["t"][:, None]},
        coupled=True,
    )["tau", "joint0"],
    "windows": lambda problem, log, _: sd.smooth(problem, log, window=400, rows=130)["tau", "joint0"],
    "filter": lambda problem, log, _: live(problem, log),
    "command line": command_line,
}


@pytest.mark.slow(after=10)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "wrap", "missing"), VARIANTS)
def test_wrapped_logs_are_as_good_as_others(kind, wrap, missing, way, tmp_path):
    t, plain, wrapped, torque = case(kind, wrap, missing)
    assert np.nanmax(np.abs(np.diff(wrapped[~np.isnan(wrapped[:, 0])], axis=0))) > 6.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogWarning)
        found = WAYS[way](problem_of(sd.chain(1)), {"t": t, "enc": wrapped}, tmp_path)
        expected = WAYS[way](problem_of(sd.chain(1)), {"t": t, "enc": plain}, tmp_path)
    # the filter begins without velocities
    error, usual = (np.sqrt(np.mean((x - torque)[100:] ** 2)) for x in (found, expected))
    assert error <= 3.0 * usual
    assert usual < 0.5 * np.sqrt(np.mean(torque**2)) or way == "filter"


def test_a_filter_that_stays_behind():
    t, plain, wrapped, _ = case("swing", "(−π, π]", "complete")
    found, expected = (
        live(problem_of(sd.chain(1)), {"t": t[:400], "enc": y[:400]}, lag=4 * STEP) for y in (wrapped, plain)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_noise_is_learnt_from_wrapped_logs():
    t, plain, wrapped, _ = case("wheel", "[0, 2π)", "gaps")
    found, expected = (sd.learn_noise(problem_of(sd.chain(1)), {"t": t, "enc": y}) for y in (wrapped, plain))
    assert found.converged
    assert found.density == pytest.approx(expected.density, rel=1e-3)


def rows(model: sd.Model, q: np.ndarray, step: float, wrapped: np.ndarray | None = None) -> sd.Run:
    """The run of positions (N, nq) without noise, read from `wrapped`; reports of jumps are errors."""
    log = {"t": step * np.arange(len(q)), "enc": q if wrapped is None else wrapped}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogWarning)  # of speeds far beyond the prior
        warnings.filterwarnings("error", ".*jump by", LogWarning)
        return sd.smooth(problem_of(model), log)


@pytest.mark.parametrize("wrap", WRAPS)
def test_joints_that_wrap_at_the_same_time(wrap):
    """One that turns back and forth, one at rest at the seam, and one that does not come near it; in chunks."""
    t = STEP * np.arange(900)
    rng = np.random.default_rng(0)
    q = np.column_stack([8.0 * np.sin(2.0 * t), np.full_like(t, SEAM[wrap]), 1.0 + 0.3 * np.sin(4.0 * t)])
    y = q + NOISE * rng.standard_normal(q.shape)
    y[::7, 1] = np.nan
    problem, model = problem_of(sd.chain(3, seed=1)), sd.chain(3, seed=1)
    found, plain = (sd.smooth(problem, {"t": t, "enc": x}, rows=77)["tau"] for x in (WRAPS[wrap](y), y))
    # at rest at the seam the first reading says on which side
    assert np.abs(found - plain).max() < 1e-6 * np.abs(plain).max()
    truth = np.column_stack([-32.0 * np.sin(2.0 * t), 0.0 * t, -4.8 * np.sin(4.0 * t)])
    qd = np.column_stack([16.0 * np.cos(2.0 * t), 0.0 * t, 1.2 * np.cos(4.0 * t)])
    assert np.sqrt(np.mean((found - sd.rnea(model, q, qd, truth)) ** 2)) < 0.1 * np.sqrt(np.mean(found**2))


def test_files_have_the_same_numbers(tmp_path):
    t, _, wrapped, _ = case("swing", "(−π, π]", "complete")
    problem, log = problem_of(sd.chain(1)), {"t": t, "enc": wrapped}
    run = sd.smooth(problem, log, window=300, rows=130)
    sd.smooth(problem, log, window=300, rows=130, out=tmp_path / "run.npz")
    np.testing.assert_allclose(np.load(tmp_path / "run.npz")["q"].reshape(-1), run.q[:, 0], atol=1e-9)


# ---- what is no wrap -------------------------------------------------------------------------------------------------

JOINTS = {
    # kind of joint, change of position by row, whether readings wrap
    "prismatic by 2π m": ("prismatic", TURN, False),
    "wheel by 4 rad that counts turns": ("revolute", 4.0, False),
    "wheel by 1.4 rad": ("revolute", 1.4, True),
    "screw": ("helical", 0.1, True),
}


@pytest.mark.parametrize("name", JOINTS)
def test_what_is_no_wrap_stays(name):
    kind, step, wraps = JOINTS[name]
    model = sd.random_tree(1, seed=1, joints=(kind,))
    q = 0.3 + step * np.arange(120.0)[:, None]
    run = rows(model, q, 0.01, WRAPS["(−π, π]"](q) if wraps else None)
    np.testing.assert_allclose(run.q, q, atol=1e-2)
    np.testing.assert_allclose(run.qd, step / 0.01, rtol=1e-3)


def test_outliers_change_no_turns():
    """Spikes of all sizes, of one row and of two, in readings that wrap and in others."""
    t = STEP * np.arange(900)
    rng = np.random.default_rng(1)
    q = np.column_stack([0.3 + 7.0 * t, np.sin(3.0 * t)])
    y = np.column_stack([WRAPS["(−π, π]"](q[:, 0]), q[:, 1]]) + NOISE * rng.standard_normal(q.shape)
    spikes = np.arange(20, 880, 20)
    for k, size in zip(spikes, np.linspace(-7.0, 7.0, len(spikes)), strict=True):
        y[k : k + 1 + k % 40 // 20] += size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogWarning)
        run = sd.smooth(problem_of(sd.chain(2)), {"t": t, "enc": y})
    assert np.abs(run.q - q).max() < 0.02


@pytest.mark.parametrize("wraps", [False, True])
def test_outliers_of_any_density_change_no_turns(wraps):
    """Up to one of twenty readings, of logs with other readings missing, however it is read in parts."""
    problem, rng = problem_of(sd.chain(1)), np.random.default_rng(2)
    for _ in range(30):
        n, step = int(rng.integers(200, 1500)), 10.0 ** rng.uniform(-3.0, -2.0)
        t = step * np.arange(n)
        q = rng.uniform(-4.0, 4.0) + rng.uniform(-0.1, 0.1) / step * t + rng.uniform(0.0, 0.5) * np.sin(6.0 * t)
        y = q + 10.0 ** rng.uniform(-5.0, -2.0) * rng.standard_normal(n)
        spikes, missing = rng.random(n) < 0.05, rng.random(n) < rng.uniform(0.0, 0.4)
        log = np.where(missing, np.nan, (WRAPS["[0, 2π)"](y) if wraps else y) + spikes * rng.uniform(-7.0, 7.0, n))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogWarning)
            found = read_log(problem, {"t": t, "enc": log[:, None]}, rows=int(rng.integers(50, n))).y["enc"][:, 0]
        turns = (found - y)[~spikes & ~missing] / TURN
        assert np.ptp(np.rint(turns)) == 0.0 and np.abs(turns - np.rint(turns)).max() < 1e-9
        assert wraps or not np.rint(turns[0])


# ---- several readings of one angle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("online", [False, True])
def test_encoders_of_one_joint_with_other_conventions(online):
    t = STEP * np.arange(700)
    q, qd, qdd = motion("wheel", 0.0, t)
    model, rng = sd.chain(1), np.random.default_rng(0)
    sensors = [sd.JointPosition("all", noise=NOISE, name=f"enc{k}") for k in range(3)]
    problem = sd.Problem(model, [*sensors, sd.ExternalWrench("all", name="nothing")])
    noise = NOISE * rng.standard_normal((3, len(t)))
    conventions = [WRAPS["(−π, π]"](q), WRAPS["[0, 2π)"](q), q + TURN]
    torque, errors = sd.rnea(model, *(x[:, None] for x in (q, qd, qdd))), []
    for y in (np.array(conventions) + noise, q + noise):
        if online:
            filter_ = sd.filter(problem, motion=20.0)
            found = np.array([filter_(x, {f"enc{k}": y[k, i] for k in range(3)})["tau"] for i, x in enumerate(t)])
        else:
            found = sd.smooth(problem, {"t": t, **{f"enc{k}": y[k][:, None] for k in range(3)}})["tau"]
        errors.append(np.sqrt(np.mean((found - torque)[100:] ** 2)))
    assert errors[0] <= 3.0 * errors[1]


MIMIC = """<robot name="gear"><link name="base"/>
<link name="a"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="b"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="wheel" type="continuous"><parent link="base"/><child link="a"/><axis xyz="0 1 0"/></joint>
<joint name="gear" type="continuous"><parent link="base"/><child link="b"/><axis xyz="0 1 0"/>
<mimic joint="wheel" multiplier="-2.5" offset="0.4"/></joint></robot>"""


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("online", [False, True])
def test_followers_have_the_turn_of_their_leader(wrap, online, tmp_path):
    (tmp_path / "gear.urdf").write_text(MIMIC, encoding="utf-8")
    model = sd.load(tmp_path / "gear.urdf")
    t = STEP * np.arange(700)
    leader, qd, qdd = motion("wheel", 0.0, t)
    q = np.column_stack([leader, 0.4 - 2.5 * leader])
    problem = sd.Problem(
        model, [*problem_of(model).measurements, *sd.closures(model), sd.JointTorque("gear", name="idle")]
    )
    log = {"t": t, "enc": WRAPS[wrap](q) + NOISE * np.random.default_rng(0).standard_normal(q.shape),
           "idle": np.zeros((len(t), 1))}  # fmt: skip
    if online:
        filter_ = sd.filter(problem, motion=20.0)
        found = np.array([filter_(x, {"enc": y, "idle": [0.0]}).q for x, y in zip(t, log["enc"], strict=True)])
    else:
        found = sd.smooth(problem, log).q
    assert np.abs(found - q)[100:].max() < 0.02


# ---- reports ---------------------------------------------------------------------------------------------------------


def limited(lower: float, upper: float) -> sd.Model:
    return sd.chain(1).replace(lower=[lower], upper=[upper])


REPORTED = {
    # limits, positions (N,), rows without readings, words; None: nothing is reported
    "beyond limits": (
        (-2.9, 2.9),
        lambda t: 3.0 + 0.3 * t,
        (),
        ["'joint0'", "rows 236 and 237", "6.28", "-2.9 to 2.9"],
    ),
    "beyond limits of half a turn": ((-np.pi, np.pi), lambda t: 3.0 + 0.3 * t, (), ["'joint0'", "rows 236 and 237"]),
    "beyond limits of two turns": ((-TURN, TURN), lambda t: 14.0 * t, (), ["'joint0'", "6.2"]),
    "within limits of two turns": ((-TURN, TURN), lambda t: 3.0 + 0.3 * t, (), None),
    "within narrow limits": ((-0.5, 0.5), lambda t: TURN + 0.3 * np.cos(5.0 * t), (), None),
    "a long gap": ((-np.inf, np.inf), lambda t: 7.0 * t, range(500, 900), ["'joint0'", "rows 500 and 901"]),
    "few samples": ((-np.inf, np.inf), lambda t: 1100.0 * t, (), ["'joint0'", "more steps"]),
}


# a filter does not find its first velocity from readings so far apart
@pytest.mark.parametrize(
    ("name", "online"), [(x, on) for x in REPORTED for on in (False, True) if not on or x != "few samples"]
)
def test_jumps_that_cannot_be_unwrapped_are_reported(name, online):
    limits, position, gap, words = REPORTED[name]
    t = STEP * np.arange(1000)
    wrap = WRAPS["[0, 2π)"] if "narrow" in name else WRAPS["(−π, π]"]
    y = wrap(position(t))[:, None]
    y[list(gap)] = np.nan
    problem = problem_of(limited(*limits))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if online:
            live(problem, {"t": t, "enc": y})
        else:
            sd.smooth(problem, {"t": t, "enc": y})
    found = [str(x.message) for x in caught if issubclass(x.category, LogWarning) and "joint0" in str(x.message)]
    if words is None:
        assert not found
    else:
        assert all(x in found[0] for x in (words[:1] if online else words))
