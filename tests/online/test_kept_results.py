"""Results answer for the arguments of their call, or refuse if these arrays have been overwritten since."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from solvers import aligning, aligning_states

import sysdyn as sd

ARM = sd.chain(4, seed=2)
N = 6
Solution = sd.Solution
# What is asked of a solution after its call: {kind of solver: requests}.
CHECKS = {
    "inputs": lambda s: s.inputs,
    "backward_error": Solution.backward_error,
    "residual": Solution.residual,
    "acceleration": lambda s: s.acceleration(ARM.body_names[-1], classical=True, reference="world"),
    "reciprocal_condition": Solution.reciprocal_condition,
    "forward_error": Solution.forward_error,
    "speeds": Solution.speeds,
    "undetermined": lambda s: s.undetermined,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)).backward_error(),
    "deepcopy": lambda s: copy.deepcopy(s).inputs,
}
STATISTICS = {
    "std": lambda s: s.std("tau"),
    "covariance": lambda s: s.covariance("tau"),
    "residuals": lambda s: s.residuals(),
    "normalised_residuals": lambda s: s.normalised_residuals(),
    "leverage": lambda s: s.leverage(),
    "chi2": lambda s: s.chi2(),
    "log_likelihood": lambda s: s.log_likelihood(),
    "inputs": lambda s: s.inputs,
    "deepcopy": lambda s: copy.deepcopy(s).chi2(),
}


def state(n: int | None) -> dict[str, np.ndarray]:
    q, qd, tau = ARM.random_state(seed=1, batch=n or 1)
    return {name: x if n else x[0] for name, x in {"q": q, "qd": qd, "tau": tau}.items()}


def measured(problem: sd.Problem, n: int | None) -> dict[str, Any]:
    given = state(n)
    y = sd.predict(problem, given["q"], given["qd"], given.pop("tau"), seed=1)
    return {**given, "y": {m.name: np.array(y[m.name]) for m in problem.valued if m.name in y and m.name != "none"}}


@cache
def forward(outputs: str | tuple[str, ...] = "all") -> sd.Solver:
    return sd.compile(sd.forward_dynamics(ARM), outputs=outputs, level="fast")


@cache
def pinned() -> sd.Solver:
    tip = sd.Contact(ARM.body_names[-1], ["a_z"], name="tip")
    return sd.compile(sd.forward_dynamics(ARM) + tip, outputs=["qdd", "w"], level="fast")


@cache
def estimator() -> sd.Solver:
    return sd.compile(sd.Problem(ARM, [
        sd.JointAcceleration("all", noise=0.2, name="encoders"), sd.JointTorque("all", noise=0.5, name="torques"),
        sd.ExternalWrench("all", name="none"), sd.Switchable(sd.Accelerometer("body3", noise=0.1), name="imu"),
    ]), outputs=["tau", "a"], level="fast")  # fmt: skip


@cache
def checked() -> sd.Solver:
    return sd.compile(sd.forward_dynamics(ARM) + sd.MotorTorque(["joint1"], [[1.0]], name="motor"), level="fast")


@cache
def switching() -> sd.Solver:
    contacts = [sd.Switchable(sd.Contact(x, ["a_z"], name=x)) for x in ARM.body_names[2:]]
    return sd.compile(sd.forward_dynamics(ARM) + contacts, outputs="all", level="fast")


def noisy(n: int | None, **more: Any) -> dict[str, Any]:
    given = measured(estimator().problem, n)
    return {**given, **more}


def in_modes(n: int | None) -> dict[str, Any]:
    on = np.arange(n) % 2 == 0 if n else np.True_
    return {**state(n), "active": {ARM.body_names[2]: on, ARM.body_names[3]: ~on}}


def of_parts(solution: sd.Solution) -> list:
    return [(part.states, part.solution.qdd, part.solution.residual()) for part in solution.parts.values()]


SWITCHED = {x: CHECKS[x] for x in ("inputs", "reciprocal_condition", "forward_error", "speeds")}
# Solver, arguments for a number of states, requests.
CASES: dict[str, tuple[Callable[[], Any], Callable[[int | None], dict[str, Any]], dict[str, Callable]]] = {
    "forward": (forward, state, CHECKS),
    "contact": (pinned, state, {**SWITCHED, "wrench": lambda s: s.wrench("tip", reference="world")}),
    "estimate": (estimator, noisy, STATISTICS),
    "noise": (estimator, lambda n: noisy(n, noise={"torques": np.full(4, 0.4)}), STATISTICS),
    "switches": (estimator, lambda n: noisy(n, active={"imu": np.arange(n) > 1 if n else np.True_}), STATISTICS),
    "switched off": (estimator, lambda n: noisy(n, active={"imu": False}), STATISTICS),
    "redundant": (checked, lambda n: measured(checked().whole, n), {**CHECKS, "off": Solution.inconsistency}),
    "least norm": (
        lambda: lambda **given: sd.least_norm(sd.forward_dynamics(ARM), **given), state, CHECKS,
    ),
    "modes": (switching, in_modes, {**SWITCHED, "parts": of_parts, "error": Solution.backward_error}),
}  # fmt: skip


def spoil(given: Any) -> None:
    """Write other numbers into every array, and take the dictionaries apart."""
    for x in given.values():
        if isinstance(x, dict):
            spoil(x)
            del x[next(iter(x))]
        elif isinstance(x, np.ndarray) and x.dtype == bool:
            x[...] = ~x
        elif isinstance(x, np.ndarray):
            x *= -1.5
            x += 0.5


def require_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            require_equal(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            require_equal(x, y)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow(after=20)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [None, N])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_results_answer_for_the_arguments_of_their_call(case, n, layout):
    """A batch that reads its arrays in place may refuse requests after a change; it never answers for other numbers."""
    made, arguments, requests = CASES[case]
    solve = made()

    def call() -> tuple[dict[str, Any], Any]:
        given = arguments(n)
        given = {name: np.array(x, order=layout) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        return given, solve(**given)

    call()  # the second call of a kind is a plain one
    for name, request in requests.items():
        given, solution = call()
        expected = request(solution)
        spoil(given)
        require_equal(request(solution), expected)
        given, solution = call()
        spoil(given)
        try:
            found = request(solution)
        except sd.InvalidInput as error:
            assert n and layout == "C" and "changed" in str(error), name
        else:
            require_equal(found, expected)


@pytest.mark.parametrize("outputs", [("qdd",), ("tau",), ("qdd", "f")])
def test_batches_refuse_requests_that_need_overwritten_arrays(outputs):
    solver = forward(outputs)
    requests = {name: CHECKS[name] for name in ("inputs", "reciprocal_condition", "forward_error", "deepcopy")}
    for request in requests.values():
        given = state(N)
        solution = solver(**given)
        before = request(solution)
        spoil(given)
        require_equal(request(solution), before)  # copies were made for the first request
        solution = solver(**given)
        values = solution[outputs[0]].copy()
        given["q" if outputs != ("tau",) else "tau"][-1, 2] += 1e-9
        with pytest.raises(sd.InvalidInput, match="changed"):
            request(solution)
        np.testing.assert_array_equal(solution[outputs[0]], values)
    one = {name: x[0] for name, x in given.items()}
    solution = solver(**one)
    one["q"] += 0.5
    assert not np.array_equal(solution.inputs["q"], one["q"])


def test_one_state_for_all_and_states_of_any_distance_are_repeated_exactly():
    given = state(2 * N)
    given = {**given, "q": np.broadcast_to(given["q"][0], given["q"].shape), "qd": given["qd"][::-1]}
    given["tau"] = given["tau"].repeat(2, axis=0)[::2]
    solution = forward(("qdd",))(**given)
    require_equal(solution.inputs["q"], given["q"])
    assert (solution.forward_error()["qdd"] < 1e-9).all()


def test_a_state_that_is_solved_with_more_digits_is_that_of_the_call():
    """Where axes nearly coincide a pivot is small, and the state is not solved by the program alone."""
    q, qd, tau, _ = aligning_states()
    q[4, 1] += 1e-4
    solver = sd.compile(sd.forward_dynamics(aligning()), outputs="qdd")
    solution, expected = solver(q, qd, tau), solver(q.copy(), qd, tau).forward_error()
    before = q.copy()
    q += 0.5
    np.testing.assert_array_equal(solution.inputs["q"], before)
    require_equal(solution.forward_error(), expected)


@pytest.mark.parametrize("threads", [1, 2, None])
@pytest.mark.parametrize("robot", ["quaternions", "long"])
def test_large_batches_on_threads_are_the_same_again(threads, robot):
    model = (
        sd.random_tree(6, seed=3, joints=("free", "revolute", "spherical")) if robot == "quaternions" else sd.chain(9)
    )
    solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", level="fast")
    for n in (2, 7, 1001, 20_003):
        q, qd, tau = model.random_state(seed=0, batch=n)
        solution = solver(q, qd, tau, threads=threads)
        np.testing.assert_array_equal(solution.inputs["tau"], tau)


def test_impulses_forces_and_simulations_keep_nothing_of_their_caller():
    contact = sd.Contact(ARM.body_names[-1], ["a_x", "a_y", "a_z"], name="tip")
    problem = sd.forward_dynamics(ARM) + contact
    calls = {
        "impact": (sd.impact(problem), ("q", "qd"), lambda x: (x.qd, x.energy, x.impulses, x.before)),
        "simulation": (
            lambda q, qd: sd.simulate(sd.forward_dynamics(ARM), q, qd, np.zeros(4), 5, 1e-3),
            ("q", "qd"), lambda x: (x.t, x.q, x.qd, x.energy()),
        ),
    }  # fmt: skip
    for call, names, request in calls.values():
        for n in (None, 3):
            given = {name: state(n)[name] for name in names}
            result = call(**given)
            expected = copy.deepcopy(request(result))
            spoil(given)
            require_equal(request(result), expected)
