"""Calls of one state, which take the shortest way: the same answers and the same errors as the others."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.backends.llvm import entry

ARM = sd.chain(3, seed=2)
FLOATING = sd.random_tree(4, 5, ("free", "revolute", "spherical", "prismatic"))


def direct_calls(solver) -> int:
    """How many layouts of arguments go the shortest way."""
    return sum(x is not None and x.direct is not None for x in solver._calls._layouts.values())


def general(solver, *arguments, **named):
    """The same call by the way with all checks: lists are converted."""
    listed = {name: np.asarray(x).tolist() if isinstance(x, np.ndarray) else x for name, x in named.items()}
    return solver(*(np.asarray(x).tolist() for x in arguments), **listed)


@pytest.fixture(scope="module")
def forward() -> sd.Solver:
    return sd.compile(sd.forward_dynamics(FLOATING), level="fast", on_singular="nan")


@pytest.fixture(scope="module")
def inverse() -> sd.Solver:
    return sd.compile(sd.inverse_dynamics(ARM), level="fast")


def sensors() -> sd.Problem:
    known = [
        sd.JointAcceleration("joint0", name="first"),
        sd.JointAcceleration(["joint2", "joint1"], name="others"),
        sd.ExternalWrench("body1", components=["fx", "nz"], name="push"),
        sd.Accelerometer("body2", noise=0.1, name="imu"),
        sd.JointTorque("all", noise=0.5, name="torques"),
    ]
    return sd.Problem(ARM, [*known, sd.ExternalWrench(["body0", "body2"], name="free"),
                            sd.ExternalWrench("body1", components=["nx", "ny", "fy", "fz"], name="rest")])  # fmt: skip


def state(model: sd.Model, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return model.random_state(seed=seed)


def same(found: sd.Solution, expected: sd.Solution) -> None:
    for name, x in expected._values.items():
        assert np.array_equal(found[name], x), name
        assert np.array_equal(getattr(found, name), x)
    assert found._inputs.keys() == expected._inputs.keys()
    for name, x in expected._inputs.items():
        np.testing.assert_allclose(found._inputs[name], x.reshape(-1), rtol=1e-15)
    assert found.ok is np.True_ and np.all(expected.ok)


def test_arrays_of_one_state_give_what_lists_give(forward):
    q, qd, tau = state(FLOATING)
    fx = np.random.default_rng(1).normal(size=(FLOATING.nb, 6))
    before = direct_calls(forward)
    same(forward(q, qd, tau), general(forward, q, qd, tau))
    same(forward(q, qd, tau, fx=fx), general(forward, q, qd, tau, fx=fx))
    same(forward(q, qd, fx=fx, tau=tau), general(forward, q, qd, tau, fx=fx))
    assert direct_calls(forward) == before + 3


def test_measured_values_go_to_their_places():
    """By name, some of them parts of a quantity out of order, and packed."""
    solver = sd.compile(sensors(), level="fast")
    q, qd, qdd = state(ARM)
    y = sd.predict(solver.problem, q, qd, qdd, seed=1)
    packed = np.concatenate([y[m.name] for m in solver.problem.valued])
    expected = solver(q.tolist(), qd, y=y)
    assert not direct_calls(solver)
    same(solver(q, qd, y=y), expected)
    same(solver(q, qd, y=dict(reversed(y.items()))), expected)
    same(solver(q, qd, y=packed), expected)
    assert direct_calls(solver) == 3
    estimate = solver(q, qd, y=y)
    assert np.array_equal(estimate.std("tau"), expected.std("tau")) and estimate.chi2() == expected.chi2()
    with pytest.raises(sd.InvalidInput, match="no value for measurement 'first'"):
        solver(q, qd, y={name: x for name, x in y.items() if name != "first"})
    with pytest.raises(sd.UnknownName, match="'imo'"):
        solver(q, qd, y={"imo": y["imu"]} | y)


def test_measured_values_go_straight_out_of_their_dict():
    """Where names are those of the first such call, in its order; others are looked up."""
    solver = sd.compile(sensors(), level="fast")
    q, qd, qdd = state(ARM)
    y = sd.predict(solver.problem, q, qd, qdd, seed=1)
    expected = general(solver, q, qd, y=y)
    same(solver(q, qd, y=y), expected)
    call, length, _ = solver._calls.plain[0, len(y)]
    row = np.full(length, np.nan)
    assert call(row, (q, qd), y) and call(row, (q, qd, *y.values()), None)
    first, *others = y
    renamed = {f"{name[:1]}{name[1:]}": x for name, x in y.items()}
    moved = dict(reversed(y.items()))
    for other in (renamed, moved):
        assert [*other] != [*y] or all(name is not own for name, own in zip(other, y, strict=True))
        assert call(row, (q, qd), other) is None
        same(solver(q, qd, y=other), expected)
    fewer, more = {name: y[name] for name in others}, y | {"imo": y[first]}
    longer, listed = y | {first: np.zeros(2)}, y | {first: y[first].tolist()}
    for other in (fewer, more, longer, listed, {}):
        assert call(row, (q, qd), other) is None
    assert call(row, (q, qd, y[first]), fewer) and call(row, (q,), {"qd": qd} | y) is None
    same(solver(q, qd, y=listed), expected)
    with pytest.raises(sd.InvalidInput, match="'first'"):
        solver(q, qd, y=longer)


def test_results_are_of_the_call_that_made_them(inverse):
    """A loop that changes its arrays in place changes no earlier result, and no check of it."""
    q, qd, qdd = state(ARM)
    first = inverse(q, qd, qdd)
    kept = first.tau.copy(), inverse(q, qd, qdd)
    q += 1.0
    second = inverse(q, qd, qdd)
    assert np.array_equal(first.tau, kept[0]) and not np.array_equal(second.tau, kept[0])
    assert np.array_equal(kept[1].tau, kept[0]) and kept[1].reciprocal_condition() == first.reciprocal_condition()
    again = pickle.loads(pickle.dumps(first))
    assert np.array_equal(again.tau, first.tau) and again.backward_error() == first.backward_error()
    first.tau[:] = 0.0
    assert np.array_equal(kept[1].tau, kept[0])


@pytest.mark.parametrize("scale", [1.0 + 1e-15, 1.0 - 3e-9, 1.0 + 9e-7])
def test_quaternions_are_normalised(forward, scale):
    q, qd, tau = state(FLOATING)
    exact = forward(q, qd, tau).qdd
    (name, part), *_ = FLOATING.quaternions
    off = q.copy()
    off[part] *= scale
    given = off.copy()
    found = forward(off, qd, tau)
    np.testing.assert_allclose(found.qdd, exact, rtol=1e-12, atol=1e-12 * np.abs(exact).max())
    assert np.array_equal(off, given)
    np.testing.assert_allclose(found._inputs["q"], FLOATING.normalise(off), rtol=1e-15)
    off[part] *= 1.0 + 4e-6
    with pytest.raises(sd.InvalidInput, match=f"quaternion of joint {name!r}"):
        forward(off, qd, tau)
    off[part] = np.nan
    with pytest.raises(sd.InvalidInput):
        forward(off, qd, tau)


def test_other_arrays_take_the_other_way(inverse):
    """Views, other types, subclasses, batches and flat wrenches; each gives the same torques."""
    q, qd, qdd = state(ARM)
    fx = np.ones((ARM.nb, 6))
    expected = inverse(q, qd, qdd, fx=fx).tau
    read_only = q.copy()
    read_only.flags.writeable = False
    spread = np.repeat(q, 2)[::2]
    swapped = q.astype(q.dtype.newbyteorder())
    unaligned = np.frombuffer(b"\0" + q.tobytes(), dtype=np.uint8)[1:].view(float)
    for x in (read_only, spread, swapped, unaligned, q.view(np.ndarray), np.ma.masked_array(q), q.tolist(), [*q]):
        assert np.array_equal(inverse(x, qd, qdd, fx=fx).tau, expected)
    assert np.array_equal(inverse(q, qd, qdd, fx=fx.reshape(-1)).tau, expected)
    assert np.array_equal(inverse(q, qd, qdd, fx=np.asfortranarray(fx)).tau, expected)
    assert np.array_equal(inverse(q[None], qd, qdd, fx=fx).tau, expected[None])
    np.testing.assert_allclose(
        inverse(np.stack([q, q]), qd, qdd, fx=fx).tau, np.stack([expected, expected]), rtol=1e-12
    )
    np.testing.assert_allclose(inverse(q.astype(np.float32), qd, qdd, fx=fx).tau, expected, rtol=1e-5)


def test_errors_are_those_of_the_other_way(inverse):
    q, qd, qdd = state(ARM)
    bad = {
        "q has shape": (q[:2], qd, qdd), "qd has shape": (q, np.zeros(4), qdd), "qd has type": (q, qd > 0, qdd),
        "qdd is nan at entry 1": (q, qd, np.array([0.0, np.nan, 0.0])), "q is inf": (q * np.inf, qd, qdd),
        "the angle of joint 'joint1' is 1e[+]10": (np.array([0.0, 1e10, 0.0]), qd, qdd),
        "no value was given for 'qdd'": (q, qd), "5 values were given by position": (q, qd, qdd, qdd, qdd),
        "do not fit together": (np.stack([q, q]), np.stack([qd] * 3), qdd),
    }  # fmt: skip
    for message, arguments in bad.items():
        for _ in range(2):
            with pytest.raises(sd.InvalidInput, match=message):
                inverse(*arguments)
        assert inverse(q, qd, qdd).ok
    with pytest.raises(sd.UnknownName):
        inverse(q, qd, qdd, tau=qdd)
    with pytest.raises(sd.InvalidInput, match="given twice"):
        inverse(q, qd, qdd, qdd=qdd)


def test_derivatives_take_it_too(inverse):
    q, qd, qdd = state(ARM)
    J = inverse.derivatives(wrt=("q", "qd"))
    found, expected = J(q, qd, qdd), general(J, q, qd, qdd)
    assert found.keys() == expected.keys() and direct_calls(J) == 1
    assert all(np.array_equal(found[key], x) and found[key].shape == x.shape for key, x in expected.items())


def test_many_threads_share_a_solver(forward):
    states = [state(FLOATING, seed) for seed in range(8)]
    expected = [general(forward, *x).qdd for x in states]
    wrong: list[int] = []

    def calls(k: int) -> None:
        for _ in range(300):
            if not np.array_equal(forward(*states[k]).qdd, expected[k]):
                wrong.append(k)

    workers = [threading.Thread(target=calls, args=(k,)) for k in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_another_layout_of_numpy_is_noticed(inverse, monkeypatch):
    """Where NumPy's objects are not as expected, calls take the way with all checks."""
    assert entry.reads_arrays()
    monkeypatch.setattr(entry, "ND", 28)
    assert not entry.reads_arrays.__wrapped__()
    monkeypatch.setattr(entry, "reads_arrays", lambda: False)
    solver = sd.compile(sd.inverse_dynamics(ARM), level="fast")
    q, qd, qdd = state(ARM)
    assert np.array_equal(solver(q, qd, qdd).tau, inverse(q, qd, qdd).tau) and not direct_calls(solver)
