"""Every kind of call with every kind of bad argument: the same messages in all of them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.model import Revolute, forward_kinematics

ARM = sd.chain(3, seed=2)
IMU = sd.Accelerometer("body2", noise=0.1, name="imu")


@cache
def solver(problem: str, **options) -> sd.Solver:
    problems = {
        "forward": lambda: sd.forward_dynamics(ARM),
        "hybrid": lambda: sd.hybrid_dynamics(ARM, ["joint1"]),
        "estimate": lambda: sd.forward_dynamics(ARM) + IMU,
        "redundant": lambda: sd.inverse_dynamics(ARM) + sd.JointAcceleration("joint0", name="again"),
    }
    return sd.compile(problems[problem](), level="fast", backend="llvm" if options else "python", **options)


class Call(NamedTuple):
    """A call by name, whose arguments are arrays of one state. full: it takes known quantities by name."""

    make: Callable[[], Callable]
    arguments: tuple[str, ...]
    full: bool = True


def with_y(make: Callable[[], Callable], **y: int) -> Callable[[], Callable]:
    return lambda: partial(make(), y={name: np.zeros(size) for name, size in y.items()})


def identified() -> Callable:
    return partial(sd.identify, ARM, parameters="armature:joint0", noise=1.0)


CALLS = {
    "solver": Call(lambda: solver("forward"), ("q", "qd", "tau", "fx")),
    "hybrid": Call(lambda: solver("hybrid"), ("q", "qd", "tau", "qdd", "fx")),
    "estimate": Call(with_y(lambda: solver("estimate"), imu=3), ("q", "qd", "tau", "fx")),
    "checked": Call(with_y(lambda: solver("redundant"), again=1), ("q", "qd", "qdd", "fx")),
    "machine code": Call(lambda: solver("forward", outputs="qdd"), ("q", "qd", "tau", "fx")),
    "derivatives": Call(lambda: derivatives(), ("q", "qd", "tau", "fx")),
    "least norm": Call(lambda: partial(sd.least_norm, sd.forward_dynamics(ARM)), ("q", "qd", "tau", "fx")),
    "function": Call(lambda: function(), ("q", "qd", "tau")),
    "kinematics": Call(lambda: kinematics(), ("q", "qd", "fx"), False),
    "identify": Call(identified, ("q", "qd", "qdd", "tau", "fx"), False),
    "predict": Call(lambda: partial(sd.predict, sd.forward_dynamics(ARM) + IMU), ("q", "qd", "qdd", "fx"), False),
    "rnea": Call(lambda: partial(sd.rnea, ARM), ("q", "qd", "qdd", "fx"), False),
    "aba": Call(lambda: partial(sd.aba, ARM), ("q", "qd", "tau", "fx"), False),
}
BOUND = {
    "bind": Call(lambda: solver("forward", outputs="qdd").bind, ("q", "qd", "tau", "fx")),
    "bind of derivatives": Call(lambda: derivatives().bind, ("q", "qd", "tau", "fx")),
    "bind of a function": Call(lambda: function().bind, ("q", "qd", "tau")),
    "bind of kinematics": Call(lambda: kinematics().bind, ("q", "qd", "fx"), False),
}


@cache
def function() -> sd.Function:
    return sd.compile_function(lambda q, qd, tau: q * qd + tau, {"q": (3,), "qd": (3,), "tau": (3,)})


@cache
def derivatives() -> sd.Derivatives:
    return solver("forward", outputs="qdd").derivatives(wrt="q")


@cache
def kinematics() -> sd.Kinematics:
    return sd.kinematics(ARM, ["bias", "external"], level=0)


def shape(name: str) -> tuple[int, ...]:
    return (3, 6) if name == "fx" else (3,)


def state(call: Call) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: rng.uniform(-0.5, 0.5, shape(name)) for name in call.arguments}


def of(calls: dict[str, Call]) -> pytest.MarkDecorator:
    cases = [(name, x) for name, call in calls.items() for x in call.arguments]
    return pytest.mark.parametrize(("kind", "name"), cases)


def fails(call: Callable, given: dict[str, Any], message: str, error: type[Exception] = sd.InvalidInput) -> None:
    with pytest.raises(error) as caught:
        call(**given)
    assert str(caught.value).startswith(message), str(caught.value)


@of(CALLS | BOUND)
def test_shapes_that_do_not_fit(kind, name):
    call = (CALLS | BOUND)[kind]
    needed = "(…, 3, 6)" if name == "fx" else "(…, 3)"
    for wrong in ((2,), (4, 5)):
        fails(call.make(), state(call) | {name: np.zeros(wrong)}, f"{name} has shape {wrong}, but {needed} is needed")


@pytest.mark.slow(after=1)
@of(CALLS)
def test_types_that_are_no_real_numbers(kind, name):
    call, size = CALLS[kind], shape(name)
    for wrong, said in (
        (np.zeros(size, dtype=complex), "has type complex128, but real numbers are needed"),
        (np.zeros(size, dtype=bool), "has type bool, but real numbers are needed"),
        (np.full(size, "a"), "has type <U1, but real numbers are needed"),
        ([[0.0, 1.0], [2.0]], "is not a regular array of numbers"),
        (np.ma.masked_less(np.zeros(size), 1.0), "has masked entries, which are missing"),
    ):
        fails(call.make(), state(call) | {name: wrong}, f"{name} {said}")


@of(CALLS)
def test_values_that_are_not_finite(kind, name):
    call = CALLS[kind]
    wrong = np.full(shape(name), np.nan)  # entries that no result depends on are not checked
    fails(call.make(), state(call) | {name: wrong}, f"{name} is nan at entry ")
    several = np.stack([np.zeros(shape(name)), wrong, wrong])
    fails(call.make(), state(call) | {name: several}, f"{name} is nan at state 1, entry ")


@of(CALLS)
def test_numbers_of_states_that_do_not_fit(kind, name):
    call = CALLS[kind]
    other = next(x for x in call.arguments if x != name)
    given = state(call) | {x: np.zeros((n, *shape(x))) for n, x in ((2, name), (4, other))}
    with pytest.raises(sd.InvalidInput) as caught:
        call.make()(**given)
    assert str(caught.value).startswith("the leading (batch) axes do not fit together: ")
    assert f"{name} (2,)" in str(caught.value) and f"{other} (4,)" in str(caught.value)


@pytest.mark.parametrize("kind", [x for x in CALLS | BOUND if x not in ("identify", "predict", "rnea", "aba")])
def test_missing_values(kind):
    """Of calls that do not leave it to Python's signatures."""
    call = (CALLS | BOUND)[kind]
    for name in call.arguments[2:] if call.full else call.arguments[1:]:
        if name == "fx" and call.full:
            continue  # there are none
        given = state(call)
        del given[name]
        fails(call.make(), given, f"no value was given for {name!r}: pass {name}=")


@pytest.mark.parametrize("kind", [x for x, call in (CALLS | BOUND).items() if call.full])
def test_unknown_and_double_names(kind):
    call = (CALLS | BOUND)[kind]
    known = call.arguments[2]
    fails(call.make(), state(call) | {known + known[-1]: np.zeros(3)}, "unknown argument of ", sd.UnknownName)
    with pytest.raises(sd.UnknownName, match=rf"'{known + known[-1]}'. Did you mean .*'{known}'"):
        call.make()(**state(call) | {known + known[-1]: np.zeros(3)})
    if kind == "hybrid":
        return
    values = state(call)
    with pytest.raises(sd.InvalidInput, match=f"^{known} is given twice: by position and by keyword"):
        call.make()(values["q"], values["qd"], values[known], **{known: values[known]})


def test_known_quantities_that_are_several_go_by_keyword():
    """Positions would swap τ and q̈ in silence."""
    values = state(CALLS["hybrid"])
    q, qd, tau, qdd = (values[x] for x in ("q", "qd", "tau", "qdd"))
    hybrid = solver("hybrid")
    expected = sd.rnea(ARM, q, qd, hybrid(q, qd, tau=tau, qdd=qdd).qdd)
    assert hybrid(q, qd, qdd=qdd, tau=tau).tau == pytest.approx(expected, abs=1e-9)
    binding, derivatives = (solver("hybrid", outputs="qdd").bind, solver("hybrid", outputs="qdd").derivatives(wrt="q"))
    for call in (hybrid, binding, derivatives, derivatives.bind, partial(sd.least_norm, hybrid.problem)):
        for given in ((tau,), (tau, qdd), (qdd, tau)):
            with pytest.raises(sd.InvalidInput, match=r"takes \(q, qd, tau=…, qdd=…, fx=…\)$"):
                call(q, qd, *given)


def test_the_only_quantity_that_is_needed_may_go_by_position():
    values = state(CALLS["solver"])
    q, qd, tau, fx = (values[x] for x in ("q", "qd", "tau", "fx"))
    forward = solver("forward")
    np.testing.assert_array_equal(forward(q, qd, tau, fx=fx).qdd, forward(q, qd, tau=tau, fx=fx).qdd)
    for call in (forward, solver("forward", outputs="qdd").bind):
        with pytest.raises(sd.InvalidInput, match=r"^4 values .* the problem takes \(q, qd, tau, fx=…\)$"):
            call(q, qd, tau, fx)
    pushed = sd.Problem(ARM, [sd.ExternalWrench("all", name="fx"), sd.JointTorque("all", noise=1.0, name="tau")])
    estimate = sd.compile(pushed, level="fast", backend="python")
    expected = estimate(q, qd, y={"tau": tau}, fx=fx).qdd
    np.testing.assert_array_equal(estimate(q, qd, fx, y={"tau": tau}).qdd, expected)


# ---- types -----------------------------------------------------------------------------------------------------------

OTHERS = {
    "dates": lambda x: np.full(x.shape, np.datetime64("2026-01-31")),
    "spans of time": lambda x: np.full(x.shape, np.timedelta64(1, "s")),
    "booleans": lambda x: np.ones(x.shape, dtype=bool),
    "booleans in lists": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 1, True, x.astype(object)).tolist(),
    "objects": lambda x: np.full(x.shape, object()),
    "objects that are numbers": lambda x: np.full(x.shape, Decimal(1)),
    "texts": lambda x: np.full(x.shape, "1.0"),
    "bytes": lambda x: np.full(x.shape, b"1"),
    "complex numbers": lambda x: x.astype(complex),
}


@of({**CALLS, **BOUND})
def test_nothing_but_real_numbers_is_a_quantity(kind, name):
    call = {**CALLS, **BOUND}[kind]
    given = state(call)
    for other, made in OTHERS.items():
        try:
            call.make()(**{**given, name: made(given[name])})
        except (sd.InvalidInput, sd.ModelError) as error:
            assert name in str(error), other
        else:
            raise AssertionError(f"{other} were taken")


FRAMES = {
    "dates": lambda frame: frame.astype("datetime64[ns]"),
    "spans of time": lambda frame: frame.astype("timedelta64[ns]"),
    "booleans": lambda frame: frame > 0.0,
    "nullable booleans": lambda frame: (frame > 0.0).astype("boolean"),
    "objects": lambda frame: frame.astype(object),
    "texts": lambda frame: frame.astype(str),
    "categories": lambda frame: frame.astype("category"),
}


@pytest.mark.parametrize("other", FRAMES)
def test_nothing_but_real_numbers_is_in_frames(other):
    pandas = pytest.importorskip("pandas")
    q, qd, tau = ARM.random_state(seed=1, batch=4)
    solve = solver("estimate")
    labels = {name: list(solve.problem.inputs[name].labels) for name in ("q", "qd", "tau")}
    frames = {name: pandas.DataFrame(x, columns=labels[name]) for name, x in (("q", q), ("qd", qd), ("tau", tau))}
    y = pandas.DataFrame(np.zeros((4, 3)), columns=list(solve.problem.values["imu"].labels))
    expected = solve(q, qd, tau=tau, y={"imu": y.to_numpy()}).qdd
    for form in (lambda x: x, lambda x: x.astype("Float64"), lambda x: x.iloc[1]):
        given = {name: form(x) for name, x in frames.items()}
        found = solve(given["q"], given["qd"], tau=given["tau"], y={"imu": form(y)}).qdd
        assert np.array_equal(found, expected if found.ndim == 2 else expected[1])
    for name, frame in frames.items():
        given = {**frames, name: FRAMES[other](frame)}
        with pytest.raises(sd.InvalidInput, match=f"{name}, column .*type .*real numbers are needed"):
            solve(given["q"], given["qd"], tau=given["tau"], y={"imu": y})
    for wrong in (FRAMES[other](y), pandas.concat([frames["q"].iloc[:, :0], FRAMES[other](y)], axis=1)):
        with pytest.raises(sd.InvalidInput, match="real numbers are needed"):
            solve(q, qd, tau=tau, y={"imu": wrong})
        with pytest.raises(sd.InvalidInput, match="real numbers are needed"):
            solve(q, qd, tau=tau, y=wrong)


STATED = {
    "noise": lambda x: sd.JointTorque("all", noise=x),
    "noise of a call": lambda x: solver("estimate")(
        *np.zeros((2, 3)), tau=np.zeros(3), y={"imu": np.zeros(3)}, noise={"imu": x}
    ),
    "axis": lambda x: Revolute(x),
    "gravity": lambda x: ARM.replace(gravity=x),
    "direction": lambda x: sd.ForceDirection("body1", x),
    "armature": lambda x: ARM.replace(armature=x),
    "position": lambda x: forward_kinematics(ARM, x),
    "position of a frame": lambda x: sd.frame_pose(ARM, x, "body2"),
    "table": lambda x: sd.from_dh(x, [0.0] * 3, [0.0] * 3, [1.0] * 3, np.zeros((3, 3)), np.zeros((3, 3, 3))),
    "start": lambda x: sd.inverse_kinematics(ARM, np.eye(4), "body2", q0=x),
    "deviation": lambda x: identified()(*np.zeros((3, 4, 3)), tau=np.zeros((4, 3)), noise=x),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("what", STATED)
def test_nothing_but_real_numbers_is_stated(what, other):
    def stated(x):
        made = STATED[what](x)
        return sd.forward_dynamics(ARM) + made if isinstance(made, sd.Measurement) else made

    with pytest.raises(sd.SysdynError):
        stated(OTHERS[other](np.array([0.5, 0.25, 1.0])))


def test_integers_of_any_size_are_numbers():
    whole, expected = (sd.rnea(ARM, [0, 0, 0], [0, 0, 0], [x, 0, 0]) for x in (10**30, 1e30))
    assert np.array_equal(whole, expected)
