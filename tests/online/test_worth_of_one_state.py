"""Standard deviations and tests of one state, which prepared calls give: the same bits as by the general way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from solvers import in_threads

import sysdyn as sd
from sysdyn.online import posterior
from sysdyn.online.posterior import Statistic
from sysdyn.online.states import SolvedStates

ARM = sd.chain(3, seed=2)
FLOATING = sd.random_tree(4, 5, ("free", "revolute", "spherical", "prismatic"))
COVARIANCE = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]])


def exact() -> sd.Problem:
    return sd.Problem(ARM, [
        sd.JointAcceleration("joint0", name="first"), sd.Accelerometer("body2", noise=0.1, name="imu"),
        sd.JointAcceleration(["joint1", "joint2"], noise=0.3, name="others"),
        sd.JointTorque("all", noise=0.5, name="torques"), sd.ExternalWrench("all"),
    ])  # fmt: skip


def full() -> sd.Problem:
    return sd.Problem(ARM, [
        sd.JointAcceleration("all", noise=0.2, name="encoders"),
        sd.JointTorque("all", noise=COVARIANCE, name="torques"),
        sd.Switchable(sd.Accelerometer("body2", noise=0.1 * COVARIANCE, name="imu")),
        sd.Prior(sd.ExternalWrench("all", noise=3.0), name="wrenches"),
    ])  # fmt: skip


def switchable() -> sd.Problem:
    motion = [sd.Switchable(sd.JointAcceleration("all", noise=0.2 + k, name=f"motion{k}")) for k in range(2)]
    return sd.Problem(ARM, [*motion, sd.JointTorque("all", noise=0.5, name="torques"), sd.ExternalWrench("all")])


def contact() -> sd.Problem:
    return sd.Problem(FLOATING, [
        sd.JointAcceleration("all", noise=2.0, name="encoders"), sd.JointTorque("all", noise=0.5, name="torques"),
        sd.Contact(FLOATING.body_names[-1], "fixed", name="foot"),
        sd.Prior(sd.ExternalWrench("all", noise=1.0), name="wrenches"),
    ])  # fmt: skip


def model() -> sd.Problem:
    priors = [sd.BodyAcceleration, sd.JointWrench, sd.ExternalWrench]
    return sd.Problem(ARM, [
        sd.ModelNoise("all", noise=0.1, name="model"), sd.JointAcceleration("all", noise=0.2, name="encoders"),
        sd.JointTorque("all", noise=0.3, name="torques"),
        *(sd.Prior(of("all", noise=30.0), name=of.__name__) for of in priors),
    ])  # fmt: skip


PROBLEMS = (exact, full, switchable, contact, model)


def calls(problem: sd.Problem, n: int | None = None) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Arguments of calls: as declared, with other noise, near and far, and with components off."""
    q, qd, qdd = problem.model.random_state(seed=1, batch=n) if n else problem.model.random_state(seed=1)
    y = {name: np.array(x) for name, x in sd.predict(problem, q, qd, qdd, seed=3).items() if name in problem.values}
    y = {name: x for name, x in y.items() if name not in ("ExternalWrench", "foot")}  # zero by default
    yield (q, qd), {"y": y}
    torques = next(m for m in problem.noisy if m.name == "torques").noise
    for factor in (1.5, 3e3):
        yield (q, qd), {"y": y, "noise": {"torques": factor * torques}}
    for m in problem.switchable:
        yield (q, qd), {"y": y, "active": {m.name: False}}
        some = np.arange(len(m.components(problem.model))) != 1
        yield (q, qd), {"y": y, "active": {m.name: some}}


def worth(solution: sd.Estimate, problem: sd.Problem) -> dict[str, np.ndarray]:
    """Everything that can be asked of an estimate."""
    found = {f"std {x}": solution.std(x) for x in problem.quantities}
    found |= {"covariance": solution.covariance("tau", "qdd"), "chi2": solution.chi2()}
    found["likelihood"] = solution.log_likelihood()
    for ask in (solution.residuals, solution.normalised_residuals, solution.leverage):
        found |= {f"{ask.__name__} {name}": x for name, x in ask().items()}
    expected = solution.expected_noise([m.name for m in problem.noisy])
    return found | {f"expected {name}": x for name, x in expected.items()}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert np.shape(found[name]) == np.shape(x) and np.array_equal(found[name], x, equal_nan=True), name


@pytest.fixture(scope="module", params=PROBLEMS, ids=lambda make: make.__name__)
def solver(request: pytest.FixtureRequest) -> sd.Solver:
    problem = request.param()
    solver = sd.compile(problem, outputs="all", level="fast", formulation="elimination")
    arrays, given = next(calls(problem))
    worth(solver(*arrays, **given), problem)  # the program of variances is complete: no bits change any more
    return solver


@pytest.mark.slow(after=1)
def test_prepared_calls_give_the_bits_of_the_general_way(solver, monkeypatch):
    asked = [*calls(solver.problem)]
    found = [[worth(solver(*x, **given), solver.problem) for _ in range(2)] for x, given in asked]
    listed = [(np.array(x).tolist() for x in arrays) for arrays, _ in asked]
    others = [worth(solver(*x, **given), solver.problem) for x, (_, given) in zip(listed, asked, strict=True)]
    monkeypatch.setattr(Statistic, "at_one", lambda *_: None)
    for (x, given), both, other in zip(asked, found, others, strict=True):
        expected = worth(solver(*x, **given), solver.problem)
        for one in (*both, other):
            same(one, expected)


@pytest.mark.slow(after=1)
def test_blocks_of_a_batch_give_what_their_states_give(solver):
    last = 700  # blocks of 24 to 600 states
    for arrays, given in calls(solver.problem, last + 1):
        many = worth(solver(*arrays, **given), solver.problem)
        for k in (0, 8, last):
            own = {name: {x: v[k] if np.ndim(v) == 2 else v for x, v in values.items()} if name == "y" else values
                   for name, values in given.items()}  # fmt: skip
            one = worth(solver(*(x[k] for x in arrays), **own), solver.problem)
            for name in (x for x in one if not x.startswith("expected")):
                size = np.abs(one[name][np.isfinite(one[name])]).max(initial=1.0)
                assert np.allclose(many[name][k], one[name], rtol=0.0, atol=1e-7 * size, equal_nan=True), name


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("times", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_states_of_several_threads_do_not_meet(solver, times):
    (q, qd), given = next(calls(solver.problem, 8))
    states = [((q[k], qd[k]), {"y": {name: x[k] for name, x in given["y"].items()}}) for k in range(8)]
    expected = [solver(*x, **named).std("tau") for x, named in states]
    wrong: list[int] = []

    def ask(k: int) -> None:
        x, named = states[k]
        for _ in range(times):
            if not np.array_equal(solver(*x, **named).std("tau"), expected[k]):
                wrong.append(k)

    in_threads(ask)
    assert not wrong


@pytest.mark.slow(after=2)
def test_a_state_that_changes_its_arrays_keeps_its_worth(solver):
    (q, qd), given = next(calls(solver.problem))
    solver(q, qd, **given)
    solution = solver(q, qd, **given)
    expected = solver(q.copy(), qd.copy(), **given).std("tau")
    q += 0.3
    qd += 0.3
    assert np.array_equal(solution.std("tau"), expected)


@pytest.mark.slow(after=1)
def test_inputs_in_another_order_give_the_same(solver):
    (q, qd), given = next(calls(solver.problem))
    solution = solver(q, qd, **given)
    states, worth = solution._states, solution.posterior
    names = ["qd", "q", *(x for x in states.inputs if x not in ("q", "qd"))]
    other = SolvedStates({x: states.inputs[x] for x in names}, 1, refuse=True)
    assert np.array_equal(worth.variances("tau", other), worth.variances("tau", states))


def test_programs_of_results_come_from_the_cache(monkeypatch):
    """A second solver of the same problem does not eliminate again."""
    model = sd.chain(2, seed=41)
    problem = sd.Problem(model, [
        sd.JointAcceleration("all", noise=0.3, name="joints"), sd.JointTorque("all", noise=0.2, name="torques"),
        sd.ExternalWrench("all"),
    ])  # fmt: skip
    q, qd, qdd = model.random_state(seed=1)
    y = sd.predict(problem, q, qd, qdd, seed=1)
    y.pop("ExternalWrench", None)

    def std() -> np.ndarray:
        return sd.compile(problem, outputs=["tau"], level="fast", backend="python")(q, qd, y=y).std("tau")

    first = std()
    monkeypatch.setattr(posterior, "SymbolicCovariance", None)
    assert np.array_equal(std(), first)
