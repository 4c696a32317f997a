"""Rows of the state that an instant leaves, and its results, against solvers compiled for states that are known."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from estimates import dense
from robots import floating_tree

import sysdyn as sd
from sysdyn.codegen.registry import backend_named
from sysdyn.errors import NoSafeOrdering, ProblemError
from sysdyn.estimation import program_cache
from sysdyn.estimation.program_cache import CachedElimination
from sysdyn.offline import time_step
from sysdyn.offline.time_step import ERRORS, JACOBIAN, RESIDUAL, TimeStepElimination
from sysdyn.runtime.runner import Runner

# Step of central differences.
H = 1e-5


def fixed() -> sd.Problem:
    """All torques measured, and a force at the last body: rows of motion, sensors and a prior."""
    model = sd.random_tree(4, seed=5, joints=("revolute", "spherical", "prismatic"))
    *others, last = model.body_names
    return sd.Problem(model, [
        sd.JointTorque("all", noise=0.3, name="tq"),
        sd.ExternalWrench(others, name="none"),
        sd.Prior(sd.ExternalWrench(last, noise=50.0), name="w"),
        sd.Accelerometer((last, np.eye(4)), noise=0.05, name="acc"),
    ])  # fmt: skip


def walking() -> sd.Problem:
    """A free base without a motor, and two feet: exact rows between the noisy ones."""
    model = floating_tree(4, seed=2)
    feet = model.body_names[-2:]
    return sd.Problem(model, [
        sd.JointTorque(model.joint_names[0], name="base"),
        sd.JointTorque(model.joint_names[1:], noise=0.3, name="tq"),
        sd.ExternalWrench([x for x in model.body_names if x not in feet], name="none"),
        sd.Prior(sd.ExternalWrench(feet, noise=100.0), name="w"),
        sd.Accelerometer((model.body_names[0], np.eye(4)), noise=0.05, name="acc"),
    ])  # fmt: skip


def correlated() -> sd.Problem:
    """A full covariance, and a force/torque sensor."""
    model = sd.random_tree(3, seed=4, joints=("revolute",))
    root = np.random.default_rng(0).standard_normal((3, 3))
    hand = model.body_names[-1]
    return sd.Problem(model, [
        sd.JointTorque("all", noise=0.2, name="tq"),
        sd.Accelerometer((hand, np.eye(4)), noise=0.01 * (root @ root.T + np.eye(3)), name="acc"),
        sd.ExternalWrench([x for x in model.body_names if x != hand], name="none"),
        sd.ExternalWrench(hand, noise=2.0, name="w"),
    ])  # fmt: skip


PROBLEMS = {"fixed": fixed, "walking": walking, "correlated": correlated}
OUTPUTS = ("tau", "fx", "a")
FAST = {"backend": "python", "level": "fast"}
At = dict[str, np.ndarray]  # {input: value} at a state


@functools.cache
def built(kind: str):
    """(problem, rows, program of the rows, program of the results, the problem of known accelerations)."""
    problem = PROBLEMS[kind]()
    instant = TimeStepElimination(problem, OUTPUTS, ["tq"])
    rows = instant.rows()
    programs = [Runner(backend_named("llvm")(x, 0)) for x in (rows.program, instant.results())]
    return problem, rows, *programs, problem + sd.JointAcceleration("all")


def drawn(problem: sd.Problem, seed: int, consistent: bool) -> At:
    """A state with readings: what it shows, or anything."""
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, qdd = model.random_state(seed=seed)
    at = {"q": q, "qd": qd, "qdd": qdd}
    if not consistent:
        names = [f"y:{m.name}" for m in problem.noisy]
        return at | {name: 3.0 * rng.standard_normal(problem.inputs[name].size) for name in names}
    fx = np.zeros((model.nb, 6))
    free = [i for i, joint in enumerate(model.joints) if joint.nv == 6]
    if free:  # no motor at the base: the wrench on the foot balances it
        foot = model.nb - 1
        push = np.zeros((6, 6))
        none = sd.rnea(model, q, qd, qdd)[:6]
        for k in range(6):
            one = fx.copy()
            one[foot, k] = 1.0
            push[:, k] = sd.rnea(model, q, qd, qdd, one)[:6] - none
        fx[foot] = np.linalg.solve(push, -none)
    shown = sd.predict(problem, q, qd, qdd, fx)
    bodies = [model.body_index(x) for x in model.body_names[-2 if free else -1 :]]
    return at | {f"y:{m.name}": shown[m.name] for m in problem.noisy} | {"y:w": fx[bodies].reshape(-1)}


def moved(problem: sd.Problem, columns, at: At, step: np.ndarray) -> At:
    """The state after a step along the columns."""
    nv, found = problem.model.nv, {name: x.copy() for name, x in at.items()}
    shift = np.zeros(nv)
    for (name, k), h in zip(columns, step, strict=True):
        if name == "q":
            shift[k] = h
        else:
            found[name][k] += h
    return {**found, "q": problem.model.integrate(at["q"], shift)}


def results(program: Runner, problem: sd.Problem, at: At) -> At:
    given = {
        name: at[name] if name in at else np.zeros(group.size) if group.default is None else group.default
        for name, group in problem.inputs.items()
    } | {"qdd": at["qdd"]}
    found, status = program.results(
        {name: np.reshape(np.asarray(x, dtype=float), (1, -1)) for name, x in given.items()}, 1
    )
    assert not np.any(status)
    return {name: x[0] for name, x in found.items()}


def readings(problem: sd.Problem, at: At) -> dict[str, np.ndarray]:
    """Values of the measurements, as solvers take them."""
    exact = {name: np.zeros(problem.inputs[name].size) for name in problem.known_quantities}
    return exact | {name.removeprefix("y:"): x for name, x in at.items() if name not in ("q", "qd")}


def chi2(known: sd.Problem, at: At) -> float:
    return dense(known, at["q"], at["qd"], readings(known, at))["chi2"]


def jacobian(rows, found: At) -> np.ndarray:
    J = np.zeros((len(rows.exact), len(rows.columns)))
    J[tuple(rows.places)] = found[JACOBIAN]
    return J


def directions(rows, seed: int, n: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, len(rows.columns)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROBLEMS)
def test_rows_hold_all_that_the_equations_say(kind):
    """|r|² is what no dynamic variables explain of the readings, and 2 R^T r its derivative."""
    problem, rows, program, _, known = built(kind)
    at = drawn(problem, 1, consistent=False)
    found = results(program, problem, at)
    assert not rows.exact.any()
    r, J = found[RESIDUAL], jacobian(rows, found)
    assert np.isclose(r @ r, chi2(known, at), rtol=1e-9)
    for along in directions(rows, 2):
        ends = [chi2(known, moved(problem, rows.columns, at, h * along)) for h in (H, -H)]
        slope = 2.0 * r @ J @ along
        assert abs(slope - (ends[0] - ends[1]) / (2 * H)) < 1e-6 * 2.0 * np.linalg.norm(J.T @ r) * np.linalg.norm(along)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_rows_have_the_curvature_of_what_is_left(kind):
    """At readings that the state explains, nothing is left, and |R δ|² of a state that is δ away."""
    problem, rows, program, _, known = built(kind)
    at = drawn(problem, 3, consistent=True)
    found = results(program, problem, at)
    J = jacobian(rows, found)
    assert np.abs(found[RESIDUAL]).max() < 1e-8 and np.abs(found[ERRORS]).max() < 1e-8 * max(
        1.0, np.abs(at["y:w"]).max()
    )
    h = 1e-4
    for along in directions(rows, 4, 3):
        ends = [chi2(known, moved(problem, rows.columns, at, s * along)) for s in (h, -h)]
        assert np.isclose(0.5 * sum(ends) / h**2, (J @ along) @ (J @ along), rtol=1e-4)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_results_are_those_of_a_known_state(kind):
    problem, rows, _, program, known = built(kind)
    at = drawn(problem, 5, consistent=False)
    solver = sd.compile(known, outputs=OUTPUTS, **FAST)

    def solved(at: At):
        given = readings(known, at)
        exact = {name: given.pop(name) for name in known.known_quantities}
        if "fx" in exact:
            exact["fx"] = exact["fx"].reshape(-1, 6)
        return solver(at["q"], at["qd"], y=given, **exact)

    found, solution = results(program, problem, at), solved(at)
    for name in OUTPUTS:
        value = np.reshape(solution[name], -1)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-8 * max(1.0, np.abs(value).max()))
        std = np.reshape(solution.std(name), -1)
        np.testing.assert_allclose(np.sqrt(found[f"var {name}"]), std, rtol=1e-6, atol=1e-7)
    at = drawn(problem, 5, consistent=True)  # derivatives are those of Gauss and Newton: exact if nothing is left
    found = results(program, problem, at)
    for name in OUTPUTS:
        slopes = found[f"d {name}"].reshape(len(found[name]), -1)
        for along in directions(rows, 6):
            ends = [np.reshape(solved(moved(problem, rows.columns, at, h * along))[name], -1) for h in (H, -H)]
            change = (ends[0] - ends[1]) / (2 * H)
            np.testing.assert_allclose(slopes @ along, change, rtol=0, atol=1e-6 * max(1.0, np.abs(change).max()))


def test_residuals_of_the_equations_are_normalised():
    problem, rows, program, _, known = built("walking")
    at = drawn(problem, 7, consistent=False)
    errors = results(program, problem, at)[ERRORS]
    expected = dense(known, at["q"], at["qd"], readings(known, at))
    assert np.isclose(errors @ errors, expected["chi2"], rtol=1e-9)
    assert {name for name, _ in rows.noisy} == {"tq", "w", "acc"}


# ---- exact rows ------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", range(3))
def test_exact_rows_are_the_equations_of_motion(seed):
    """Torques and wrenches known: what is left of q, q̇ and q̈ is that these are forward dynamics."""
    model = sd.random_tree(4, seed=seed, joints=("revolute", "spherical", "prismatic"))
    problem = sd.Problem(model, [sd.JointTorque("all", name="tq"), sd.ExternalWrench("all", name="none")])
    rows = TimeStepElimination(problem, ("tau",)).rows()
    assert rows.exact.all() and len(rows.exact) == model.nv and not rows.noisy
    program = Runner(backend_named("llvm")(rows.program, 0))
    q, qd, qdd = model.random_state(seed=seed)
    tau = sd.rnea(model, q, qd, qdd)

    def at(step: np.ndarray) -> At:
        """The state after a step of q and q̇, with the accelerations of these torques."""
        q1, qd1 = model.integrate(q, step[: model.nv]), qd + step[model.nv :]
        return {"q": q1, "qd": qd1, "qdd": sd.aba(model, q1, qd1, tau), "tau": tau}

    found = results(program, problem, at(np.zeros(2 * model.nv)))
    J = jacobian(rows, found)
    assert np.abs(found[RESIDUAL]).max() < 1e-9 * max(1.0, np.abs(tau).max())
    nv = model.nv
    assert np.linalg.matrix_rank(J[:, 2 * nv :]) == nv
    for along in np.random.default_rng(seed).standard_normal((3, 2 * nv)):
        change = (at(H * along)["qdd"] - at(-H * along)["qdd"]) / (2 * H)
        step = np.concatenate([along, change])
        np.testing.assert_allclose(J @ step, 0.0, atol=1e-6 * np.abs(J).max() * np.abs(step).max())


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_accelerations_must_not_be_known():
    model = sd.chain(2)
    problem = sd.Problem(model, [sd.JointAcceleration("all", name="still"), sd.ExternalWrench("all")])
    with pytest.raises(ProblemError, match="'still' states it"):
        TimeStepElimination(problem, ("tau",))


def test_dynamic_variables_must_be_determined():
    model = sd.chain(2)
    with pytest.raises(ProblemError, match="do not determine the dynamic variables"):
        TimeStepElimination(sd.Problem(model, [sd.ExternalWrench(model.body_names[0])]), ("tau",))


# ---- judged ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*PROBLEMS, "without noise"])
@pytest.mark.parametrize("spoilt", [1, 10])
def test_an_elimination_that_loses_digits_is_not_kept(monkeypatch, kind, spoilt):
    """The first ones have a wrong right-hand side: another order is taken, or none is left."""
    true, calls, model = (
        time_step.eliminate,
        [],
        sd.random_tree(4, seed=5, joints=("revolute", "spherical", "prismatic")),
    )
    problem = PROBLEMS[kind]() if kind in PROBLEMS else sd.Problem(model, [sd.ExternalWrench("all")])

    def eliminate(rows, b, *args, **options):
        calls.append(len(b))
        return true(rows, [x + 1e-3 for x in b] if len(calls) <= spoilt else b, *args, **options)

    monkeypatch.setattr(time_step, "eliminate", eliminate)
    if spoilt == 1:
        good = TimeStepElimination(problem, OUTPUTS)
        assert len(calls) == 2 and good.error() < 1e-9
    else:
        with pytest.raises(NoSafeOrdering, match="no order"):
            TimeStepElimination(problem, OUTPUTS)


# ---- stored programs -------------------------------------------------------------------------------------------------


def test_stored_programs_are_those_that_were_made(monkeypatch, tmp_path):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    problem = PROBLEMS["correlated"]()
    made, first = TimeStepElimination(problem, OUTPUTS, ["tq"]), CachedElimination(problem, OUTPUTS, ["tq"])
    (first.rows(), first.free(), first.results())
    monkeypatch.setattr(program_cache, "TimeStepElimination", None)  # nothing is made anew
    found = CachedElimination(PROBLEMS["correlated"](), OUTPUTS, ["tq"])
    rows, own = found.rows(), made.rows()
    assert rows.program.digest == own.program.digest and found.results().digest == made.results().digest
    assert (rows.columns, rows.noisy) == (tuple(own.columns), own.noisy)
    np.testing.assert_array_equal(rows.places, own.places)
    np.testing.assert_array_equal(rows.exact, own.exact)
    program, places = found.free()
    assert program.digest == made.free()[0].digest
    np.testing.assert_array_equal(places, made.free()[1])
    with pytest.raises(TypeError):  # another list of outputs is another instant
        CachedElimination(problem, ("tau",), ["tq"]).rows()
