"""Logs of unknown states: columns of sensors, gaps, conditions of stances, times; dicts of arrays as logs."""

from __future__ import annotations

import functools
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

import sysdyn as sd
from sysdyn.data.sensor_log import Chunk
from sysdyn.errors import FileError, InvalidInput, LogWarning, UnknownName

N = 12
T = np.cumsum(np.linspace(0.008, 0.012, N))


@functools.cache
def problem() -> sd.Problem:
    arm = sd.auto_tree(3, 1, 1.5, 0.9)
    return sd.Problem(arm, [
        sd.JointPosition("all", noise=1e-4, name="encoders", bias=sd.Constant(1e-3)),
        sd.JointVelocity("joint1", noise=1e-2, name="tacho"),
        sd.Gyroscope("body2", noise=1e-3, name="gyro"),
        sd.JointTorque("all", noise=0.1, name="tau"),
        sd.ExternalWrench(["body0", "body1"], name="fx"),
        sd.Prior(sd.ExternalWrench("body2", noise=50.0), name="push"),
        sd.LoadCells("body2", ["fy"], noise=0.1, name="cells"),
        sd.Stance("body2", noise=1e-3, name="foot", when="cells: fy > 40 and gyro: omega_z < 2"),
        sd.Switchable(sd.Stance("body1", noise=1e-3), name="heel"),
    ])  # fmt: skip


def arrays() -> dict[str, np.ndarray]:
    """A log with sensors at three rates; cells show 50 N from row 3 to row 7 and drop a value at row 5."""
    q = np.random.default_rng(0).standard_normal((N, 3))
    gyro = np.full((N, 3), np.nan)
    gyro[::2] = [0.1, 0.2, 1.0]
    cells = np.full(N, np.nan)
    cells[[2, 4, 7]] = [50.0, 60.0, 30.0]
    return {"t": T, "q": q, "qd.joint1": q[:, 0], "gyro": gyro, "tau": np.ones((N, 3)), "cells": cells}


def read(source, **options) -> Chunk:
    """The log in one piece."""
    (chunk,) = sd.Log(source, problem(), states="unknown", **options)
    return chunk


@pytest.mark.parametrize("unit", ["", " [rad]"])
@pytest.mark.parametrize("spelling", ["q.{}", "q:{}", "encoders: {}"])
@pytest.mark.parametrize("names", [("knee[rad]", "a[0]"), ("knee [rad]", "a [m]"), ("a[0]", "a[1]"), ("q.a", "q:b")])
def test_brackets_in_names_of_joints_are_no_units(names, spelling, unit):
    arm = sd.chain(2).replace(joint_names=names)
    encoders = sd.Problem(arm, [sd.JointPosition("all", noise=1e-3, name="encoders")])
    q = np.random.default_rng(0).standard_normal((N, 2))
    log = {"t": T} | {spelling.format(name) + unit: q[:, k] for k, name in enumerate(names)}
    (chunk,) = sd.Log(log, encoders, states="unknown")
    np.testing.assert_array_equal(chunk.y["encoders"], q)
    inverse = sd.inverse_dynamics(arm)
    rows = {
        f"{x}:{name}{unit if x == 'q' else ''}": q[:, k] for x in ("q", "qd", "qdd") for k, name in enumerate(names)
    }
    (chunk,) = sd.Log(rows, inverse, timed=False)
    np.testing.assert_array_equal(chunk.q, q)


def test_columns_gaps_and_rates():
    log = sd.Log(arrays(), problem(), states="unknown")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (chunk,) = log
    given = arrays()
    np.testing.assert_array_equal(chunk.t, T)
    np.testing.assert_array_equal(chunk.y["encoders"], given["q"])
    np.testing.assert_array_equal(chunk.y["tacho"][:, 0], given["qd.joint1"])
    np.testing.assert_array_equal(chunk.active["gyro"], ~np.isnan(given["gyro"]))
    np.testing.assert_array_equal(chunk.y["gyro"], np.nan_to_num(given["gyro"]))
    assert chunk.active["encoders"].all() and chunk.active["tau"].shape == (N, 3)
    assert log.summary.missing == np.isnan(given["gyro"]).sum() + np.isnan(given["cells"]).sum() == 18 + 9
    assert chunk.q.shape == chunk.qd.shape == (N, 0)
    assert "fx" not in chunk.y and "push" not in chunk.active and "heel" not in chunk.active  # left to a run
    assert all(x.shape == chunk.active[name].shape for name, x in chunk.y.items())


@pytest.mark.parametrize("rows", [1, 2, 5, 4096])
def test_a_stance_follows_its_condition_between_values_and_across_chunks(rows):
    chunks = list(sd.Log(arrays(), problem(), states="unknown", rows=rows))
    stands = np.concatenate([chunk.active["foot"] for chunk in chunks])
    assert stands.shape == (N, 3) and (stands == stands[:, :1]).all()
    assert np.flatnonzero(stands[:, 0]).tolist() == [2, 3, 4, 5, 6]
    assert not np.concatenate([chunk.y["foot"] for chunk in chunks]).any()


def test_a_log_that_is_read_twice_is_the_same():
    log = sd.Log(arrays(), problem(), states="unknown", rows=5)
    first, again = ([chunk.active["foot"] for chunk in log] for _ in range(2))
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))


def test_columns_of_switches_have_precedence_over_conditions():
    stands = np.arange(N) % 2
    chunk = read({**arrays(), "active: foot": stands, "active: heel": stands == 0, "active: tau": stands})
    np.testing.assert_array_equal(chunk.active["foot"][:, 0], stands == 1)
    np.testing.assert_array_equal(chunk.active["heel"][:, 2], stands == 0)
    np.testing.assert_array_equal(chunk.active["tau"], np.repeat(stands[:, None] == 1, 3, axis=1))


def test_a_constant_value_holds_in_every_row_and_decides_conditions():
    given = {name: x for name, x in arrays().items() if name != "cells"}
    chunk = read(given, values={"cells": np.array([55.0]), "push": np.zeros(6)})
    assert (chunk.y["cells"] == 55.0).all() and chunk.active["foot"].all() and chunk.y["push"].shape == (N, 6)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_files_and_spellings(tmp_path, suffix):
    given = arrays()
    columns = {
        "t": T, "q.joint0": given["q"][:, 0], "q:joint1": given["q"][:, 1],
        "encoders: joint2 [rad]": given["q"][:, 2], "tacho: joint1 [rad/s]": given["qd.joint1"],
        **{f"gyro: omega_{x}": given["gyro"][:, k] for k, x in enumerate("xyz")},
        **{f"tau:joint{k}": np.ones(N) for k in range(3)}, "cells: fy": given["cells"],
    }  # fmt: skip
    path = tmp_path / f"log{suffix}"
    if suffix == ".npz":
        np.savez(path, **given)
    elif suffix == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
    else:
        pd.DataFrame(columns).to_parquet(path)
    expected = read(given)
    for found in (read(path), read(pd.DataFrame(columns))):
        for name, x in expected.y.items():
            np.testing.assert_allclose(found.y[name], x, rtol=1e-15)
            np.testing.assert_array_equal(found.active[name], expected.active[name])


def test_a_position_stated_by_two_sensors_is_not_called_q():
    arm = problem().model
    both = sd.Problem(
        arm, [sd.JointPosition("all", noise=1e-4, name="motor"), sd.JointPosition("all", noise=1e-3, name="link")]
    )
    with pytest.raises(InvalidInput, match="lacks the columns motor: joint0"):
        sd.Log({"t": T, "q": np.zeros((N, 3))}, both, states="unknown")
    (chunk,) = sd.Log({"t": T, "motor": np.zeros((N, 3)), "link": np.ones((N, 3))}, both, states="unknown")
    assert not chunk.y["motor"].any() and chunk.y["link"].all()


def test_a_sensor_s_own_columns_go_before_those_of_the_state():
    """A log of a simulation has both; whichever comes first."""
    given = without("q")
    own = {"encoders": arrays()["q"]}
    for columns in ({"q": np.ones((N, 3)), **own}, {**own, "q": np.ones((N, 3))}):
        with pytest.warns(LogWarning, match=r"does not have: q\.joint0, q\.joint1, q\.joint2"):
            chunk = read({**given, **columns})
        np.testing.assert_array_equal(chunk.y["encoders"], arrays()["q"])


def test_true_states_of_a_floating_base_are_left_out_and_named():
    robot = sd.random_tree(3, seed=0, joints=("free", "revolute"))
    single = [name for name, joint in zip(robot.joint_names, robot.joints, strict=True) if joint.nv == 1]
    assert 0 < len(single) < 3
    stated = sd.Problem(robot, [sd.JointPosition("all", noise=1e-4, name="encoders")])
    q = robot.random_state(seed=0, batch=N)[0]
    with pytest.warns(LogWarning, match="ignored columns that this problem does not have: q"):
        log = sd.Log({"t": T, "q": q}, stated, states="unknown")
    (chunk,) = log
    places = stated.state_sensors[0].places(robot)
    np.testing.assert_array_equal(chunk.y["encoders"], q[:, places])


def without(name: str) -> dict[str, np.ndarray]:
    return {key: x for key, x in arrays().items() if key != name}


WRONG = {
    "times backwards": (lambda: {**arrays(), "t": T[::-1].copy()}, FileError, "row 2: time goes backwards"),
    "equal times": (lambda: {**arrays(), "t": np.repeat(T[:6], 2)}, FileError, "row 2: the time is that of the row"),
    "time missing": (lambda: {**arrays(), "t": np.where(np.arange(N) == 4, np.nan, T)}, FileError, "row 5, column 't'"),
    "no times": (lambda: without("t"), InvalidInput, "lacks the columns t"),
    "no encoders": (lambda: without("q"), InvalidInput, "lacks the columns encoders: joint0"),
    "no gyroscope": (lambda: without("gyro"), InvalidInput, "lacks the columns gyro: omega_x"),
    "part of a sensor": (lambda: {**without("gyro"), "gyro: omega_x": T}, InvalidInput, "the columns gyro: omega_y"),
    "infinite": (lambda: {**arrays(), "cells": np.full(N, np.inf)}, FileError, "row 1, column 'cells: fy': inf"),
    "exact and missing": (lambda: {**arrays(), "fx": np.full((N, 12), np.nan)}, FileError, "'fx' is exact: give it n"),
    "rows": (lambda: {**arrays(), "cells": np.zeros(3)}, FileError, "cells 3"),
    "shape": (lambda: {**arrays(), "gyro": np.zeros((N, 2))}, FileError, r"array 'gyro' has shape \(12, 2\)"),
    "texts": (lambda: {**arrays(), "cells": np.array(["a"] * N)}, FileError, "real numbers are needed"),
    "switch": (lambda: {**arrays(), "active: foot": np.full(N, 2)}, FileError, "active:foot is 2; it must be 0 or 1"),
    "unit": (lambda: {**without("cells"), "cells: fy [kN]": T}, InvalidInput, "is in kN, but N is needed"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_logs(case):
    make, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        list(sd.Log(make(), problem(), states="unknown"))


def test_bad_options():
    with pytest.raises(UnknownName, match="choice for states 'some'"):
        sd.Log(arrays(), problem(), states="some")
    with pytest.raises(InvalidInput, match="unknown states are found by their times"):
        sd.Log(arrays(), problem(), states="unknown", timed=False)


def test_what_is_switchable_and_has_no_columns_is_off():
    stated = problem() + sd.Switchable(sd.Accelerometer("body1", noise=0.1), name="acc")
    with pytest.warns(LogWarning, match="has no columns of 'acc': off in all its states"):
        log = sd.Log(arrays(), stated, states="unknown")
    (chunk,) = log
    assert not chunk.active["acc"].any() and chunk.y["acc"].shape == (N, 3) and "heel" not in chunk.active


def test_solvers_take_the_state_of_a_log_and_leave_its_sensors_aside(tmp_path):
    """A dict of arrays is a log of a given state, too; equal times pass there."""
    arm = problem().model
    stated = sd.Problem(arm, [m for m in problem().measurements if m.name not in ("foot", "heel")])
    solver = sd.compile(stated.instant, backend="python", level="fast")
    q, qd, qdd = arm.random_state(seed=2, batch=N)
    y = sd.predict(stated, q, qd, qdd, seed=1, state_sensors=True)
    given = {"t": np.repeat(T[:6], 2), "q": q, "qd": qd, **{x: y[x] for x in ("tau", "cells", "encoders", "tacho")}}
    given["imu/gyro"] = y["gyro"]
    own = pickle.loads(pickle.dumps(stated))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = sd.Log(given, own, columns={"imu/gyro": "gyro"})
        (found,) = log.estimates(solver)
    expected = solver(q, qd, y={x: y[x] for x in ("tau", "cells")})
    np.testing.assert_array_equal(found.values["tau"], expected["tau"])
    with pytest.warns(LogWarning, match="ignored columns"):
        log = sd.Log({**given, "t": T}, own, states="unknown", columns={"imu/gyro": "gyro"})
    with pytest.raises(InvalidInput, match="read it with states='exact'"):
        list(log.estimates(solver))
