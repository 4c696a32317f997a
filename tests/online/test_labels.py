"""DataFrames by label, masked arrays, NaN of sensors that are switched off, and solutions as DataFrames."""

from __future__ import annotations

import functools
import re
import sys

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.errors import BackendUnavailable, InvalidInput

MODEL = sd.random_tree(3, seed=4, joints=("spherical", "revolute", "prismatic"))
N = 5


@functools.cache
def forward() -> sd.Solver:
    return sd.compile(sd.forward_dynamics(MODEL), outputs=["qdd", "a"], level="fast")


@functools.cache
def estimator() -> sd.Solver:
    model = sd.chain(2)
    problem = sd.Problem(
        model,
        [
            sd.JointTorque(noise=1.0, name="motors"), sd.ExternalWrench(name="fx"),
            sd.Switchable(sd.Accelerometer("body1", name="imu", noise=0.1)),
        ],
    )  # fmt: skip
    return sd.compile(problem, outputs=["qdd", sd.Accelerometer("body0", ["a_x"], name="other")], level="fast")


@functools.cache
def readings() -> tuple:
    """q, q̇, values of the estimator's sensors."""
    q, qd, qdd = sd.chain(2).random_state(seed=1, batch=N)
    y = sd.predict(estimator().problem, q, qd, qdd, seed=2)
    return q, qd, {"motors": y["motors"], "imu": y["imu"]}


def states() -> dict[str, np.ndarray]:
    q, qd, tau = MODEL.random_state(seed=1, batch=N)
    return {"q": q, "qd": qd, "tau": tau, "fx": np.random.default_rng(0).standard_normal((N, MODEL.nb, 6))}


def labels() -> dict[str, list[str]]:
    q = [f"{name}[{k}]" if joint.nq > 1 else name for name, joint in zip(MODEL.joint_names, MODEL.joints, strict=True)
         for k in range(joint.nq)]  # fmt: skip
    bodies = [f"{body}.{c}" for body in MODEL.body_names for c in ("nx", "ny", "nz", "fx", "fy", "fz")]
    return {"q": q, "qd": list(MODEL.dof_names), "tau": list(MODEL.dof_names), "fx": bodies}


@pytest.mark.parametrize("prefix", ["", "{}:", "{}."])
def test_frames_are_matched_by_label(prefix):
    pandas = pytest.importorskip("pandas")
    x, rng = states(), np.random.default_rng(3)
    frames = {}
    for name, array in x.items():
        frame = pandas.DataFrame(array.reshape(N, -1), columns=[prefix.format(name) + c for c in labels()[name]])
        frames[name] = frame[rng.permutation(frame.columns)]
    found, expected = forward()(**frames), forward()(**x)
    np.testing.assert_array_equal(found.qdd, expected.qdd)
    arrow = {name: pytest.importorskip("pyarrow").Table.from_pandas(frame) for name, frame in frames.items()}
    np.testing.assert_array_equal(forward()(**arrow).qdd, expected.qdd)
    one = forward()(*(frames[name].iloc[2] for name in ("q", "qd", "tau")), fx=x["fx"][2])
    np.testing.assert_allclose(one.qdd, expected.qdd[2], rtol=1e-12)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: x.set_axis(range(x.shape[1]), axis=1), "tau has the label '0', but its labels are tau:"),
        (lambda x: x.iloc[:, 1:], "tau lacks the columns tau:"),
        (lambda x: x.rename(columns={x.columns[0]: "tau:elbow"}), "tau has the label 'tau:elbow'"),
        (lambda x: x.rename(columns={x.columns[0]: x.columns[1]}), "tau has two columns for 'tau:"),
        (lambda x: x.assign(more=1.0), "tau has the label 'more'"),
        (lambda x: x.astype(object).where(x < 0.0, "high"), "tau, column 'joint0', has type object"),
        (lambda x: x.iloc[:, 0], "tau has the label '0'"),
    ],
)
def test_frames_that_do_not_match_are_refused(change, message):
    pandas = pytest.importorskip("pandas")
    x = states()
    tau = pandas.DataFrame(x["tau"], columns=labels()["tau"])
    with pytest.raises(InvalidInput, match=re.escape(message)):
        forward()(x["q"], x["qd"], change(tau))


def test_values_of_sensors_by_label():
    pandas = pytest.importorskip("pandas")
    q, qd, y = readings()
    expected = estimator()(q, qd, y=y).qdd
    names = {"motors": ["tau(joint0)", "tau(joint1)"], "imu": ["a_x", "a_y", "a_z"]}
    frames = {name: pandas.DataFrame(x, columns=names[name]).iloc[:, ::-1] for name, x in y.items()}
    np.testing.assert_array_equal(estimator()(q, qd, y=frames).qdd, expected)
    whole = pandas.concat([frames[name].add_prefix(f"{name}: ") for name in ("imu", "motors")], axis=1)
    np.testing.assert_array_equal(estimator()(q, qd, y=whole).qdd, expected)
    with pytest.raises(InvalidInput, match="y lacks the columns imu: a_y$"):
        estimator()(q, qd, y=whole.drop(columns="imu: a_y"))
    with pytest.raises(InvalidInput, match="'motors'"):
        estimator()(q, qd, y=whole.filter(like="imu"))


# ---- missing values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain_first", [False, True])
def test_masked_values_are_switched_off(plain_first):
    q, qd, y = readings()
    on = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    expected = estimator()(q, qd, y=y, active={"imu": on})
    imu = np.ma.array(np.where(on, y["imu"], np.nan), mask=~on)
    if plain_first:  # calls by the same names are arranged once
        estimator()(q, qd, y=y)
        estimator()(q[1], qd[1], y={"motors": y["motors"][1], "imu": y["imu"][1]})
    found = estimator()(q, qd, y={**y, "imu": imu})
    np.testing.assert_array_equal(found.qdd, expected.qdd)
    np.testing.assert_array_equal(found.std("qdd"), expected.std("qdd"))
    one = estimator()(q[1], qd[1], y={"motors": y["motors"][1], "imu": imu[1]})
    np.testing.assert_allclose(one.qdd, expected.qdd[1], rtol=1e-12)
    packed = np.ma.concatenate([y["motors"], np.zeros((N, 12)), imu], axis=1)
    np.testing.assert_array_equal(estimator()(q, qd, y=packed).qdd, expected.qdd)
    both = np.array([True, True, False])
    found = estimator()(q, qd, y={**y, "imu": imu}, active={"imu": both})
    np.testing.assert_array_equal(found.qdd, estimator()(q, qd, y=y, active={"imu": on & both}).qdd)


def test_other_masked_values_are_refused():
    q, qd, y = readings()
    gone = np.zeros(y["motors"].shape, dtype=bool)
    gone[0, 0] = True
    for arguments, name in (
        ({"y": {**y, "motors": np.ma.array(y["motors"], mask=gone)}}, r"y\['motors'\]"),
        ({"y": y, "noise": {"motors": np.ma.array(np.ones((N, 2)), mask=gone)}}, r"noise\['motors'\]"),
        ({"y": y, "active": {"imu": np.ma.array(np.ones(N), mask=gone[:, 0])}}, r"active\['imu'\]"),
    ):
        with pytest.raises(InvalidInput, match=f"{name} has masked entries"):
            estimator()(q, qd, **arguments)
    with pytest.raises(InvalidInput, match="q has masked entries"):
        estimator()(np.ma.array(q, mask=gone), qd, y=y)
    with pytest.raises(InvalidInput, match="masked entries"):
        estimator().problem.pack({**y, "motors": np.ma.array(y["motors"], mask=gone)})
    whole = np.ma.array(q, mask=False)
    np.testing.assert_array_equal(estimator()(whole, qd, y=y).qdd, estimator()(q, qd, y=y).qdd)


def test_what_is_switched_off_may_be_nan():
    q, qd, y = readings()
    on = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    expected = estimator()(q, qd, y=y, active={"imu": on})
    for bad in (np.nan, np.inf):
        found = estimator()(q, qd, y={**y, "imu": np.where(on, y["imu"], bad)}, active={"imu": on})
        np.testing.assert_array_equal(found.qdd, expected.qdd)
        np.testing.assert_array_equal(found.residuals()["imu"], expected.residuals()["imu"])
    one = {"motors": y["motors"][0], "imu": np.full(3, np.nan)}
    off = estimator()(q[0], qd[0], y=one, active={"imu": False})
    assert np.isfinite(off.qdd).all()
    with pytest.raises(InvalidInput, match="imu is nan"):
        estimator()(q[0], qd[0], y=one)
    with pytest.raises(InvalidInput, match="imu is nan"):
        estimator()(q, qd, y={**y, "imu": np.where(on, y["imu"], np.nan)}, active={"imu": on | (np.arange(3) == 0)})


def test_what_is_bound_and_off_is_not_read():
    q, qd, y = readings()
    silent = np.full((N, 3), np.nan)
    step = estimator().bind(q, qd, y={"motors": y["motors"], "imu": silent}, active={"imu": False})
    step()
    np.testing.assert_array_equal(step.out["qdd"], estimator()(q, qd, y=y, active={"imu": False}).qdd)
    assert not step.status.any()


# ---- out -----------------------------------------------------------------------------------------------------------


def test_solutions_become_frames():
    pytest.importorskip("pandas")
    x = states()
    solution = forward()(x["q"], x["qd"], x["tau"], fx=x["fx"])
    frame = solution.to_pandas()
    assert list(frame.columns) == [*(f"qdd:{c}" for c in MODEL.dof_names), *(
        f"a:{body}.{c}" for body in MODEL.body_names for c in ("alpha_x", "alpha_y", "alpha_z", "a_x", "a_y", "a_z")
    ), "ok"]  # fmt: skip
    np.testing.assert_array_equal(frame.filter(like="qdd:").to_numpy(), solution.qdd)
    np.testing.assert_array_equal(frame.filter(like="a:").to_numpy(), solution.a.reshape(N, -1))
    units = frame.attrs["units"]
    assert set(units) == {*frame.columns} - {"ok"} and frame["ok"].all()
    prismatic = MODEL.joint_names[[joint.kind for joint in MODEL.joints].index("prismatic")]
    assert units[f"qdd:{prismatic}"] == "m/s²" and units[f"a:{MODEL.body_names[0]}.alpha_y"] == "rad/s²"
    one = forward()(**{name: x[name][0] for name in ("q", "qd", "tau", "fx")}).to_pandas()
    assert one.shape == (1, frame.shape[1])
    grid = {name: x[name][:4].reshape(2, 2, *x[name].shape[1:]) for name in ("q", "qd", "tau", "fx")}
    many = forward()(**grid).to_pandas()
    np.testing.assert_array_equal(many.loc[(1, 0)].filter(like="qdd:").to_numpy(), solution.qdd[2])


def test_estimates_become_frames():
    pytest.importorskip("pandas")
    q, qd, y = readings()
    solution = estimator()(q, qd, y=y)
    solution.std("qdd"), solution.std("other")
    frame = solution.to_pandas()
    names = ["qdd:joint0", "qdd:joint1", "other: a_x"]
    assert list(frame.columns) == [*names, *(f"std:{name}" for name in names), "ok"]
    np.testing.assert_array_equal(frame["std:qdd:joint1"], solution.std("qdd", "joint1"))
    np.testing.assert_array_equal(frame["other: a_x"], solution["other", "a_x"])
    assert frame.attrs["units"]["std:other: a_x"] == "m/s²"


def test_wrenches_of_contacts_become_columns():
    pytest.importorskip("pandas")
    tip = sd.Contact("body2", ("a_x", "a_y"), name="tip")
    solver = sd.compile(sd.forward_dynamics(sd.chain(3)) + tip, outputs=["qdd", "w"], level="fast")
    frame = solver(*sd.chain(3).random_state(seed=0)).to_pandas()
    assert {c: frame.attrs["units"][c] for c in frame if c.startswith("w")} == {"w:tip.fx": "N", "w:tip.fy": "N"}


def test_frames_need_pandas(monkeypatch):
    x = states()
    solution = forward()(x["q"], x["qd"], x["tau"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BackendUnavailable, match="pip install pandas"):
        solution.to_pandas()
