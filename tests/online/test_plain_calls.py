"""Calls of one state by the C extension: the same bits and the same errors as the general way.

Subclasses of arrays go the general way; arrays, lists and tuples of numbers do not.
"""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import solvers
from solvers import aligning_states, in_threads

import sysdyn as sd

ARM = sd.chain(3, seed=2)
FLOATING = sd.random_tree(4, 5, ("free", "revolute", "spherical", "prismatic"))


def called(call: Callable[[], Any]) -> list[str]:
    """Names of the functions of the package that a call runs."""
    package, seen = str(Path(sd.__file__).parent), []

    def watch(frame, event, _) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def is_native(call: Callable[[], Any]) -> bool:
    """Whether a call runs no Python code of the package but the native call, and the attribute of an output."""
    return set(called(call)) <= {"call", "value"}


class General(np.ndarray):
    """An array that the C extension leaves to the general way."""


def convert(x: Any, to: Callable[[np.ndarray], Any]) -> Any:
    """The values of arguments as other arrays; of dicts each."""
    if isinstance(x, dict):
        return {name: convert(value, to) for name, value in x.items()}
    return to(x) if isinstance(x, np.ndarray) else np.float64(x) if type(x) is float else x


def general(solver, *arguments, **named):
    """The same call by the way with all checks."""
    as_general = partial(convert, to=lambda x: x.view(General))
    return solver(*map(as_general, arguments), **as_general(named))


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


def switchable() -> sd.Problem:
    measured = [sd.Switchable(sd.JointAcceleration("all", noise=0.2 + k, name=f"motion{k}")) for k in range(2)]
    return sd.Problem(ARM, [*measured, sd.JointTorque("all", noise=0.5, name="torques"), sd.ExternalWrench("all")])


def state(model: sd.Model, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return model.random_state(seed=seed)


def same(found: sd.Solution, expected: sd.Solution) -> None:
    assert type(found) is type(expected)
    for name, x in dict(expected).items():
        assert np.array_equal(found[name], x, equal_nan=True), name
        assert np.array_equal(getattr(found, name), x, equal_nan=True) and found[name].shape == x.shape
    # everything that is asked for later follows from the inputs
    assert found.inputs.keys() == expected.inputs.keys()
    for name, x in expected.inputs.items():
        assert np.array_equal(found.inputs[name], x.reshape(-1)), name
    assert found.ok == expected.ok and found.ok.shape == ()


# ---- the same bits ---------------------------------------------------------------------------------------------------


def hybrid() -> tuple[sd.Solver, tuple, dict]:
    solver = sd.compile(sd.hybrid_dynamics(ARM, ["joint1"]), level="fast")
    q, qd, qdd = state(ARM)
    return solver, (q, qd), {"tau": qd - qdd, "qdd": qdd}


def standing() -> tuple[sd.Solver, tuple, dict]:
    model = sd.chain(6, seed=0)
    return sd.compile(sd.forward_dynamics(model) + sd.Contact("body5", "point"), level="fast"), state(model), {}


def measured(packed: bool) -> tuple[sd.Solver, tuple, dict]:
    solver = sd.compile(sensors(), level="fast", formulation="elimination")
    q, qd, qdd = state(ARM)
    y = sd.predict(solver.problem, q, qd, qdd, seed=1)
    return solver, (q, qd), {"y": np.concatenate([y[m.name] for m in solver.problem.valued]) if packed else y}


def switched(active: dict[str, bool]) -> tuple[sd.Solver, tuple, dict]:
    solver = sd.compile(switchable(), level="fast", formulation="elimination")
    q, qd, qdd = state(ARM)
    y = sd.predict(solver.problem, q, qd, qdd, seed=1)
    return solver, (q, qd), {"y": y | {name: np.full(3, np.nan) for name, on in active.items() if not on},
                             "active": active}  # fmt: skip


def noisy(noise: dict[str, Any]) -> tuple[sd.Solver, tuple, dict]:
    solver, arguments, named = measured(False)
    return solver, arguments, named | {"noise": noise}


def parametric() -> tuple[sd.Solver, tuple, dict]:
    solver = sd.compile(sd.inverse_dynamics(ARM), level="fast", inputs=["gravity"])
    return solver, state(ARM), {"parameters": {"gravity": np.array([0.1, -0.2, -1.6])}}


def flat_wrenches() -> tuple[sd.Solver, tuple, dict]:
    solver = sd.compile(sd.inverse_dynamics(ARM), level="fast")
    return solver, state(ARM), {"fx": np.random.default_rng(1).normal(size=6 * ARM.nb)}


CALLS: dict[str, Callable[[], tuple[Any, tuple, dict]]] = {
    "inverse": lambda: (sd.compile(sd.inverse_dynamics(ARM), level="fast"), state(ARM), {}),
    "forward, floating": lambda: (sd.compile(sd.forward_dynamics(FLOATING), level="fast"), state(FLOATING), {}),
    "wrenches": lambda: (sd.compile(sd.inverse_dynamics(ARM), level="fast"), state(ARM), {"fx": np.ones((3, 6))}),
    "flat wrenches": flat_wrenches,
    "hybrid": hybrid,
    "contact": standing,
    "estimate, by name": partial(measured, False),
    "estimate, packed": partial(measured, True),
    "noise, by component": partial(noisy, {"imu": np.array([0.2, 0.1, 0.3])}),
    "noise, one for all": partial(noisy, {"imu": 0.3}),
    "all on": partial(switched, {"motion0": True, "motion1": True}),
    "one off": partial(switched, {"motion1": False}),
    "parameters": parametric,
    "threads": lambda: (sd.compile(sd.inverse_dynamics(ARM), level="fast"), state(ARM), {"threads": 1}),
    "policy": lambda: (sd.compile(sd.inverse_dynamics(ARM), level="fast"), state(ARM), {"on_singular": "nan"}),
    "by default": lambda: (sd.compile(sd.inverse_dynamics(ARM), level="fast"), state(ARM), {"y": None, "noise": None}),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", CALLS)
def test_solvers_give_the_bits_of_the_general_way(name):
    solver, arguments, named = CALLS[name]()
    expected = general(solver, *arguments, **named)
    same(solver(*arguments, **named), expected)
    for _ in range(2):
        same(solver(*arguments, **named), expected)
        same(solver(*arguments, **dict(reversed(named.items()))), expected)
    assert is_native(partial(solver, *arguments, **named))
    as_lists = partial(convert, to=np.ndarray.tolist)
    same(solver(*map(as_lists, arguments), **as_lists(named)), expected)
    if isinstance(expected, sd.Estimate):
        found = solver(*arguments, **named)
        assert np.array_equal(found.std("tau"), expected.std("tau")) and found.chi2() == expected.chi2()


def kinematics(model: sd.Model, names: Any, *arguments: np.ndarray, **named: np.ndarray) -> tuple:
    return sd.kinematics(model, names), arguments, named


q, qd, tau = state(FLOATING)
RESULTS: dict[str, Callable[[], tuple[Any, tuple, dict]]] = {
    "derivatives": lambda: (CALLS["forward, floating"]()[0].derivatives(), (q, qd, tau), {}),
    "derivatives, nan": lambda: (CALLS["inverse"]()[0].derivatives(wrt="q"), state(ARM), {"on_singular": "nan"}),
    "of an estimate": lambda: (measured(False)[0].derivatives(wrt=("qd", "imu")), *measured(False)[1:]),
    "function of two": lambda: (
        sd.compile_function(lambda x, y: (x @ y, np.array([x[0], 0.0])), {"x": (2,), "y": (2,)}), (q[:2], qd[:2]), {},
    ),
    "many arguments": lambda: (
        sd.compile_function(lambda *x: sum(x), {f"x{k}": (2,) for k in range(20)}),
        tuple(np.random.default_rng(0).normal(size=(20, 2))), {},
    ),
    "one result": lambda: (sd.compile_function(lambda x: 2.0 * x, {"x": (2, 3)}), (np.ones((2, 3)),), {}),
    "a number": lambda: (sd.compile_function(lambda x: x @ x, {"x": (3,)}), (q[:3],), {}),
    "kinematics": partial(kinematics, FLOATING, ["mass_matrix", "bias", "energy"], q, qd),
    "one of them": partial(kinematics, FLOATING, "com", q),
    "wrenches alone": partial(kinematics, FLOATING, "external", q, fx=np.ones((FLOATING.nb, 6))),
}  # fmt: skip


def parts(found: Any) -> list[np.ndarray]:
    """The arrays of a result."""
    return list(
        found
        if isinstance(found, tuple)
        else dict(found).values()
        if isinstance(found, (dict, sd.Solution))
        else [found]
    )


@pytest.mark.parametrize("name", RESULTS)
def test_other_results_have_the_bits_of_the_general_way(name):
    function, arguments, named = RESULTS[name]()
    expected = general(function, *arguments, **named)
    for _ in range(2):
        found = function(*arguments, **named)
        assert type(found) is type(expected) and (not isinstance(found, dict) or [*found] == [*expected])
        for x, y in zip(parts(found), parts(expected), strict=True):
            assert type(x) is np.ndarray and x.shape == y.shape and np.array_equal(x, y) and x.flags.writeable
            x[...] = np.nan  # nobody else's, nor seen by the next call
    assert is_native(partial(function, *arguments, **named))


@pytest.mark.parametrize("on_singular", ["nan", "raise"])
def test_frameworks_hand_over_numbers_to_native_calls(on_singular):
    """Such as PyTorch, for tensors that nothing differentiates."""
    solver, state = sd.compile(sd.forward_dynamics(ARM), outputs=["qdd"], level="fast"), ARM.random_state(seed=0)
    direct = solver.framework_function(on_singular).eager_call
    direct(*state)
    expected = {"eager_call", "<dictcomp>", "call", "__getitem__", "_value", "value"}
    assert set(called(lambda: direct(*state))) <= expected


# ---- names -----------------------------------------------------------------------------------------------------------


def test_arguments_go_by_position_and_by_name(forward):
    fx = np.random.default_rng(1).normal(size=(FLOATING.nb, 6))
    expected = general(forward, q, qd, tau, fx=fx)
    for arguments, named in (((q, qd, tau), {"fx": fx}), ((q, qd), {"fx": fx, "tau": tau})):
        same(forward(*arguments, **named), expected)
        same(forward(*arguments, **named), expected)
    same(forward(q=q, qd=qd, tau=tau, fx=fx), expected)
    same(forward.__call__(q, qd, tau, fx=fx), expected)
    same(type(forward).__call__(forward, q, qd, tau, fx=fx), expected)
    for _ in range(2):
        with pytest.raises(sd.InvalidInput, match="4 values were given by position"):
            forward(q, qd, tau, fx)


def test_measured_values_go_by_their_names():
    """Of other objects, in other orders, with names that are missing, foreign or too many."""
    solver, (q, qd), named = measured(False)
    y = named["y"]
    expected = general(solver, q, qd, y=y)
    same(solver(q, qd, y=y), expected)
    renamed = {f"{name[:1]}{name[1:]}": x for name, x in y.items()}
    assert is_native(lambda: solver(q, qd, y=renamed))
    for other in (dict(reversed(y.items())), renamed, y | {"first": y["first"].tolist()}):
        same(solver(q, qd, y=other), expected)
        same(solver(q, qd, y=other), expected)
    for _ in range(2):
        with pytest.raises(sd.InvalidInput, match="no value for measurement 'first'"):
            solver(q, qd, y={name: x for name, x in y.items() if name != "first"})
        with pytest.raises(sd.UnknownName, match="'imo'"):
            solver(q, qd, y={"imo": y["imu"]} | y)
        with pytest.raises(sd.InvalidInput, match="'first'"):
            solver(q, qd, y=y | {"first": np.zeros(2)})


def test_measured_outputs_hide_no_attributes():
    """A measurement may be called as a method of solutions; quantities alone are attributes."""
    solver = sd.compile(sd.forward_dynamics(ARM), outputs=[sd.JointTorque("all", name="keys"), "qdd"])
    q, qd, tau = state(ARM)
    solver(q, qd, tau)
    assert is_native(lambda: solver(q, qd, tau))
    solution = solver(q, qd, tau)
    assert np.array_equal(solution["keys"], tau) and list(solution.keys()) == list(solver.outputs)
    assert np.array_equal(solution.qdd, solution["qdd"])


def test_switches_are_those_of_the_call():
    """A call with a sensor on after one without; values that count are not hidden, what lacks is said."""
    solver, (q, qd), named = switched({"motion0": True, "motion1": False})
    y = named["y"]
    whole = y | {"motion1": np.array([1.0, 2.0, 3.0])}
    for _ in range(3):
        for given in ({}, {"motion1": False}, {"motion1": True}, {"motion0": False}, {"motion0": np.True_}):
            same(solver(q, qd, y=whole, active=given), general(solver, q, qd, y=whole, active=given))
        assert np.array_equal(
            solver(q, qd, **named).tau, solver(q, qd, y=convert(whole, np.ndarray.tolist), active=named["active"]).tau
        )
        with pytest.raises(sd.InvalidInput, match="motion1 is nan"):
            solver(q, qd, y=y, active={"motion0": True, "motion1": True})
        with pytest.raises(sd.InvalidInput, match="true and false"):
            solver(q, qd, y=whole, active={"motion1": 2})
        with pytest.raises(sd.UnknownName):
            solver(q, qd, y=whole, active={"motion2": False})


@pytest.mark.parametrize("size", [1e-3, 0.99e-2, 1.0, 0.99e2, 1e3])
def test_noise_near_and_far_from_the_declared_one(size):
    """The general way checks digits beyond 1e4 times a variance, and below its inverse."""
    solver, (q, qd), named = measured(False)
    declared = next(m.noise for m in solver.problem.noisy if m.name == "imu")
    solver(q, qd, **named, noise={"imu": 1.1 * declared})
    for noise in ({"imu": np.full(3, size * declared)}, {"imu": float(size * declared)}, {"imu": size * declared}):
        for _ in range(2):
            same(solver(q, qd, **named, noise=noise), general(solver, q, qd, **named, noise=noise))
        near = 1e-2 <= size <= 1e2
        assert is_native(partial(solver, q, qd, **named, noise=noise)) == near


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_noise_that_is_none_is_refused(bad):
    solver, (q, qd), named = measured(False)
    solver(q, qd, **named, noise={"imu": 0.1})
    for noise in ({"imu": bad}, {"imu": np.array([0.1, bad, 0.1])}):
        with pytest.raises(sd.InvalidInput, match="imu"):
            solver(q, qd, **named, noise=noise)


def test_batches_and_covariances_go_the_general_way():
    solver, (q, qd), named = measured(False)
    sigma = np.random.default_rng(0).uniform(0.1, 0.3, (5, 3))
    many = solver(np.tile(q, (5, 1)), np.tile(qd, (5, 1)), **named, noise={"imu": sigma})
    for k in range(5):
        one = solver(q, qd, **named, noise={"imu": sigma[k]})
        np.testing.assert_allclose(one.tau, many.tau[k], rtol=1e-12)
        np.testing.assert_allclose(one.std("tau"), many.std("tau")[k], rtol=1e-12)
    with pytest.raises(sd.InvalidInput, match="declared without correlations"):
        solver(q, qd, **named, noise={"imu": np.ones((4, 4))})


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1.0 + 4e-16, 1.0 + 1e-15, 1.0 - 3e-9, 1.0 + 9e-7])
@pytest.mark.parametrize("first", [True, False])
def test_quaternions_are_normalised(forward, scale, first):
    """To the bits of the general way, whichever of them are off; those of batches, too."""
    quaternions = [part for _, part in FLOATING.quaternions]
    (name, _), *_ = FLOATING.quaternions
    part = quaternions[0 if first else -1]
    kin = sd.kinematics(FLOATING, "bias")
    forward(q, qd, tau)
    for seed in range(5):
        q1, qd1, tau1 = state(FLOATING, seed)
        q1[part] *= scale
        given = q1.copy()
        found = forward(q1, qd1, tau1)
        assert np.array_equal(q1, given)
        same(found, general(forward, q1, qd1, tau1))
        assert found.backward_error() < 1e-12  # at the normalised ones
        np.testing.assert_array_equal(kin(q1, qd1), kin(q1.tolist(), qd1))
        both = np.stack([state(FLOATING, 9)[0], q1])
        np.testing.assert_array_equal(forward(both, qd1, tau1).qdd, general(forward, both, qd1, tau1).qdd)
        np.testing.assert_array_equal(FLOATING.normalise(both)[1], FLOATING.normalise(q1))
    off = q.copy()
    off[quaternions[0]] *= 1.0 + 4e-6
    with pytest.raises(sd.InvalidInput, match=f"quaternion of joint {name!r}"):
        forward(off, qd, tau)
    off[quaternions[0]] = np.nan
    with pytest.raises(sd.InvalidInput):
        forward(off, qd, tau)


def test_other_arrays_take_the_other_way(inverse):
    """Views, other types, subclasses, batches and flat wrenches; each gives the same torques."""
    q, qd, qdd = state(ARM)
    fx = np.ones((ARM.nb, 6))
    expected = inverse(q, qd, qdd, fx=fx).tau

    class Own(np.ndarray):
        pass

    read_only = q.copy()
    read_only.flags.writeable = False
    spread = np.repeat(q, 2)[::2]
    swapped = q.astype(q.dtype.newbyteorder())
    unaligned = np.frombuffer(b"\0" + q.tobytes(), dtype=np.uint8)[1:].view(float)
    kinds = (read_only, spread, swapped, unaligned, q.view(np.ndarray), q.view(Own), np.ma.masked_array(q), q.tolist(),
             [*q], q.astype(np.longdouble))  # fmt: skip
    for _ in range(2):
        for x in kinds:
            found = inverse(x, qd, qdd, fx=fx).tau
            assert np.array_equal(found, expected) and type(found) is np.ndarray
        assert np.array_equal(inverse(q, qd, qdd, fx=fx.reshape(-1)).tau, expected)
        assert np.array_equal(inverse(q, qd, qdd, fx=np.asfortranarray(fx)).tau, expected)
        assert np.array_equal(inverse(q[None], qd, qdd, fx=fx).tau, expected[None])
        stacked = inverse(np.stack([q, q]), qd, qdd, fx=fx).tau
        np.testing.assert_allclose(stacked, np.stack([expected, expected]), rtol=1e-12)
        np.testing.assert_allclose(inverse(q.astype(np.float32), qd, qdd, fx=fx).tau, expected, rtol=1e-5)
        with pytest.raises(sd.InvalidInput, match="masked"):
            inverse(np.ma.masked_less(q, 9.0), qd, qdd, fx=fx)


def test_errors_are_those_of_the_other_way(inverse):
    q, qd, qdd = state(ARM)
    bad = {
        "q has shape": (q[:2], qd, qdd), "qd has shape": (q, np.zeros(4), qdd), "qd has type": (q, qd > 0, qdd),
        "qdd is nan at entry 1": (q, qd, np.array([0.0, np.nan, 0.0])), "q is inf": (q * np.inf, qd, qdd),
        "the angle of joint 'joint1' is 1e[+]10": (np.array([0.0, 1e10, 0.0]), qd, qdd),
        "no value was given for 'qdd'": (q, qd), "5 values were given by position": (q, qd, qdd, qdd, qdd),
        "do not fit together": (np.stack([q, q]), np.stack([qd] * 3), qdd), "q is None": (None, qd, qdd),
    }  # fmt: skip
    for message, arguments in bad.items():
        for _ in range(2):
            with pytest.raises(sd.InvalidInput, match=message):
                inverse(*arguments)
        assert inverse(q, qd, qdd).ok
    for _ in range(2):
        with pytest.raises(sd.UnknownName):
            inverse(q, qd, qdd, tau=qdd)
        with pytest.raises(sd.InvalidInput, match="given twice"):
            inverse(q, qd, qdd, qdd=qdd)
        with pytest.raises(sd.InvalidInput, match="threads is 0"):
            inverse(q, qd, qdd, threads=0)
        with pytest.raises(sd.UnknownName, match="on_singular"):
            inverse(q, qd, qdd, on_singular="go on")
        with pytest.raises(TypeError):
            inverse(q)
    with pytest.raises(sd.InvalidInput, match="fx is not zero"):
        solver = sd.compile(sd.inverse_dynamics(ARM), level="fast", external_wrenches=False)
        assert solver(q, qd, qdd, fx=np.zeros((3, 6))).ok
        solver(q, qd, qdd, fx=np.ones((3, 6)))


def test_singular_states_are_dealt_with_as_by_the_general_way():
    """Solved again with pivoting, left NaN, or raised, after a call that went well."""
    solver, q, qd, tau = aligning()
    for policy, other in (("raise", None), ("nan", "nan")):
        assert solver(q[0], qd[0], tau[0], on_singular=other).ok
        for k in range(len(q)):
            try:
                expected = general(solver, q[k], qd[k], tau[k], on_singular=policy)
            except sd.SingularState as error:
                with pytest.raises(sd.SingularState, match=re.escape(str(error))):
                    solver(q[k], qd[k], tau[k], on_singular=other)
            else:
                same(solver(q[k], qd[k], tau[k], on_singular=other), expected)


def aligning() -> tuple[sd.Solver, np.ndarray, np.ndarray, np.ndarray]:
    q, qd, tau, _ = aligning_states()
    return sd.compile(sd.forward_dynamics(solvers.aligning())), q, qd, tau


# ---- results ---------------------------------------------------------------------------------------------------------


def test_results_are_of_the_call_that_made_them(inverse):
    """A loop that changes its arrays in place changes no earlier result, and no check of it."""
    q, qd, qdd = state(ARM)
    inverse(q, qd, qdd)
    first = inverse(q, qd, qdd)
    kept = first.tau.copy(), inverse(q, qd, qdd)
    q += 1.0
    second = inverse(q, qd, qdd)
    assert np.array_equal(first.tau, kept[0]) and not np.array_equal(second.tau, kept[0])
    assert np.array_equal(kept[1].tau, kept[0]) and kept[1].reciprocal_condition() == first.reciprocal_condition()
    first.tau[:] = 0.0
    assert np.array_equal(kept[1].tau, kept[0]) and not first.tau.any() and not first["tau"].any()
    tau = inverse(q, qd, qdd).tau
    gc.collect()
    assert np.array_equal(tau, second.tau)  # it outlives its solution


@pytest.mark.parametrize("name", ["solver", "derivatives", "function of two", "one result", "kinematics"])
def test_results_stay_as_they_are(name):
    """Whatever later calls compute, and whatever callers do to the arrays of earlier ones."""
    function, arguments, named = inverse_torques() if name == "solver" else RESULTS[name]()
    expected = parts(general(function, *arguments, **named))
    kept = []
    for k in range(20):
        found = parts(function(*arguments, **named))
        assert all(map(np.array_equal, found, expected))
        kept += [(x, x.copy()) for x in parts(function(*arguments[:-1], arguments[-1] + k, **named))]
        for x in found:
            x[...], x.shape = np.nan, (x.size,)
            x.setflags(write=False)
    assert all(np.array_equal(x, y) for x, y in kept)


def inverse_torques() -> tuple[Callable[..., np.ndarray], tuple, dict]:
    solver, arguments, named = CALLS["inverse"]()
    return lambda *arguments: solver(*arguments).tau, arguments, named


def test_solutions_that_are_changed_go_when_they_are_no_longer_needed(inverse):
    q, qd, qdd = state(ARM)
    first, second = inverse(q, qd, qdd), inverse(q, qd, qdd)
    second.tau *= 2.0
    assert np.array_equal(second.tau, 2.0 * first.tau) and np.array_equal(second["tau"], second.tau)
    gone = weakref.ref(second)
    del second
    assert gone() is None


def test_stored_solvers_make_native_calls(inverse, tmp_path):
    solver = sd.load_solver(inverse.save(tmp_path / "solver"))
    q, qd, qdd = state(ARM)
    solver(q, qd, qdd)
    assert is_native(lambda: solver(q, qd, qdd).tau)


def test_solutions_are_copied_and_take_attributes(inverse):
    q, qd, qdd = state(ARM)
    inverse(q, qd, qdd)
    for first in (inverse(q, qd, qdd), inverse(np.stack([q, q]), qd, qdd), inverse(q.tolist(), qd, qdd)):
        first.note = "mine"
        for again in (pickle.loads(pickle.dumps(first)), copy.copy(first), copy.deepcopy(first)):
            assert type(again) is sd.Solution and again.note == "mine"
            assert np.array_equal(again.tau, first.tau) and np.all(again.backward_error() == first.backward_error())
        first.tau = qdd
        assert (first.tau == qdd).all()
        assert weakref.ref(first)() is first
        with pytest.raises(AttributeError, match="was not asked for|no attribute"):
            first.w  # noqa: B018


def test_solvers_and_functions_are_pickled_after_plain_calls(forward):
    kin = sd.kinematics(FLOATING, ["pose:body2", "bias"])
    J = forward.derivatives(wrt="tau")
    for call, arguments in ((forward, (q, qd, tau)), (kin, (q, qd)), (kin.function, (q, qd)), (J, (q, qd, tau))):
        found = [call(*arguments) for _ in range(2)]
        again = pickle.loads(pickle.dumps(call))(*arguments)
        if call is forward:
            same(again, found[1])
        else:
            assert all(np.array_equal(again[name], x) for name, x in found[1].items())


def test_the_signature_and_the_text_are_those_of_the_method():
    for kind in (sd.Solver, sd.Derivatives, sd.Function, sd.Kinematics):
        signature = inspect.signature(kind.__call__)
        assert next(iter(signature.parameters)) == "self" and "threads" in signature.parameters
        assert "axes" in kind.__call__.__doc__ and kind.__call__.__name__ == "__call__"
        assert inspect.isroutine(kind.__call__)
    assert next(iter(inspect.signature(sd.kinematics(ARM, "com")).parameters)) == "q"


# ---- threads, memory, other builds -----------------------------------------------------------------------------------


def test_many_threads_share_a_solver(forward):
    states = [state(FLOATING, seed) for seed in range(8)]
    expected = [general(forward, *x).qdd for x in states]
    wrong: list[int] = []

    def calls(k: int) -> None:
        for _ in range(300):
            if not np.array_equal(forward(*states[k]).qdd, expected[k]):
                wrong.append(k)

    in_threads(calls)
    assert not wrong


@pytest.mark.parametrize("name", ["solver", "derivatives", "function of two", "kinematics"])
def test_calls_within_calls_do_not_disturb_them(name):
    """Collecting garbage, and the conversion of arguments, run code of others that may call the same function."""
    function, arguments, named = inverse_torques() if name == "solver" else RESULTS[name]()
    states = [(*arguments[:-1], arguments[-1] + k) for k in range(2)]
    expected = [parts(general(function, *x, **named)) for x in states]
    found = []

    def right(k: int) -> bool:
        return all(map(np.array_equal, parts(function(*states[k], **named)), expected[k]))

    class Odd:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            found.append(right(1))

    class Lazy:
        def __array__(self, dtype=None, copy=None) -> np.ndarray:
            found.append(right(1))
            return states[0][-1]

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Odd()
            assert right(0)
            assert all(map(np.array_equal, parts(function(*states[0][:-1], Lazy(), **named)), expected[0]))
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(found) > 200 and all(found)


def test_interrupted_calls_leave_the_solver_as_it_is(forward):
    """Signals arrive between calls, and in the general way and in batches within them."""

    class Interrupted(KeyboardInterrupt):
        pass

    def interrupt(*_) -> None:
        raise Interrupted

    states = FLOATING.random_state(seed=0, batch=50)
    first = [x[0] for x in states]
    ways = (lambda: forward(*first), lambda: general(forward, *first), lambda: forward(*states, threads=2))
    expected = [way().qdd for way in ways]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(60):
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + k))
                while True:
                    ways[k % 3]()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert all(np.array_equal(way().qdd, x) for way, x in zip(ways, expected, strict=True))


@pytest.mark.slow
def test_a_million_calls_leave_nothing_behind():
    solver, (q1, qd1), named = measured(False)
    inverse, x, y = CALLS["inverse"]()[0], state(ARM), named["y"]
    J, kin = inverse.derivatives(wrt="q"), sd.kinematics(ARM, ["com", "pose:body1"])

    def calls(n: int) -> None:
        for _ in range(n):
            inverse(*x).tau  # noqa: B018
            solver(q1, qd1, y=y).tau  # noqa: B018
            J(*x)
            kin(q1)

    def refused(n: int) -> None:
        off = np.full(3, np.nan)
        for _ in range(n):
            with pytest.raises(sd.InvalidInput):
                inverse(x[0], x[1], off)

    calls(100)
    refused(2)
    arrays = [*x, *y.values(), q1]
    counts = [sys.getrefcount(a) for a in arrays]
    tracemalloc.start()
    try:
        calls(1000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        calls(5000)
        refused(100)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(250_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 4_000  # KiB
    assert counts == [sys.getrefcount(a) for a in arrays]


def test_an_extension_of_another_source_is_refused(tmp_path):
    """It would be called wrongly; the message says how to build it again."""
    shutil.copytree(Path(sd.__file__).parent, tmp_path / "sysdyn", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "sysdyn" / "runtime" / "native" / "module.c", "a") as file:
        file.write("/* changed */")
    absent = "sys.modules['sysdyn.runtime.native.extension'] = None;"
    for module, reason in (("", "another version"), (absent, "loaded")):
        command = f"import sys; {module} from sysdyn.runtime import native_calls"
        run = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True,
                             env=os.environ | {"PYTHONPATH": str(tmp_path)})  # fmt: skip
        assert run.returncode and "BackendUnavailable" in run.stderr and reason in run.stderr
        assert "pip install ." in run.stderr
