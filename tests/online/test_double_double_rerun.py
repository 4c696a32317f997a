"""Flagged states, rerun by the same program in double-double arithmetic."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.system import SINGULAR
from sysdyn.errors import SingularState
from sysdyn.measurements.input_names import value_group
from sysdyn.online.double_double import DoubleDoubleFallback, perturbed_constants
from sysdyn.program.opcodes import WEAK_PIVOT
from sysdyn.reference import newton_euler

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import singular
    from digits import Digits, relative

END = np.eye(4)
END[0, 3] = 0.4
# A way to stretch the arm: near it the contact holds what hardly moves.
STRETCHED = np.array([0.7, 1.0, -0.6])


@functools.cache
def arm() -> sd.Model:
    """Three links in a plane."""
    rng = np.random.default_rng(4)
    return sd.from_dh(
        alpha=[0.3, 0.0, 0.0], a=[0.0, 0.41, 0.37], d=np.zeros(3), mass=rng.uniform(0.5, 2.0, 3),
        com=np.array([[0.21, 0.02, 0.0]] * 3), inertia=np.array([np.diag([0.01, 0.02, 0.03])] * 3),
    )  # fmt: skip


@functools.cache
def pinned(backend: str = "llvm") -> sd.Solver:
    """Its forward dynamics with the tip held in the plane."""
    tip = sd.Contact((arm().body_names[-1], END), ["a_x", "a_y"], name="tip")
    return sd.compile(sd.forward_dynamics(arm()) + [tip], outputs=["qdd", "w"], backend=backend, level="fast")


def states(n: int, distances: dict[int, float], seed: int = 0) -> dict[str, np.ndarray]:
    """n states, those of some numbers so far from the stretched arm."""
    rng = np.random.default_rng(seed)
    q = rng.uniform(0.5, 1.5, (n, 3))
    for k, x in distances.items():
        q[k] = x * STRETCHED
    return {"q": q, "qd": rng.standard_normal((n, 3)), "tau": rng.standard_normal((n, 3))}


def by_group(problem: sd.Problem, given: dict[str, np.ndarray], y: dict[str, np.ndarray] | None = None) -> dict:
    """All inputs (n, size) by group."""
    n = len(given["q"])
    defaults = {x: np.tile(np.ravel(g.default), (n, 1)) for x, g in problem.inputs.items() if g.default is not None}
    values = {x: v for x, v in given.items() if x in problem.inputs.sizes}
    return defaults | values | {value_group(name): v for name, v in (y or {}).items()}


def accepted(
    solver: sd.Solver, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray], status: np.ndarray,
    states: np.ndarray, **options: float,
) -> bool:  # fmt: skip
    """True if the rerun accepts all these states."""
    some = {name: x[states] for name, x in inputs.items()}
    DoubleDoubleFallback(solver.program, **options).solve(some, outputs, status, states)
    return not status[states].any()


def rerun(solver: sd.Solver, given: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], set[int]]:
    """(results of the program, flagged states), all of them accepted by the rerun."""
    inputs, n = by_group(solver.problem, given), len(given["q"])
    outputs, status = solver.executable.results(inputs, n)
    bad = np.flatnonzero(status)
    assert accepted(solver, inputs, outputs, status, bad)
    return outputs, {*bad.tolist()}


def off(solver: sd.Solver, given: dict[str, np.ndarray], found: sd.Solution, k: int) -> float:
    exact = Digits(sd.assemble(solver.problem), {x: np.ravel(v[k]) for x, v in by_group(solver.problem, given).items()})
    return max(relative(found[x][k].ravel(), exact.quantity(x)) for x in ("qdd", "w"))


@pytest.mark.parametrize("backend", ("llvm", "python"))
def test_flagged_states_have_the_digits_of_50(backend):
    """In a batch, by themselves, and among states that are handed in with axes."""
    solver, near = pinned(backend), {3: 1e-2, 7: 3e-3, 11: 1e-3, 18: 2e-4}
    given = states(20, near)
    expected, flagged = rerun(solver, given)
    assert flagged == set(near)
    for found in (solver(**given), solver(**{x: v.reshape(4, 5, 3) for x, v in given.items()})):
        assert found.ok.all()
        flat = {x: found[x].reshape(20, -1) for x in ("qdd", "w")}
        for k in near:
            alone = solver(**{x: v[k] for x, v in given.items()})
            assert alone.ok and all((alone[x] == flat[x][k]).all() for x in flat)
            assert off(solver, given, flat, k) < 1e-11
        assert all((x == expected[name]).all() for name, x in flat.items())


def test_results_in_single_precision_are_rounded_once():
    solver = sd.compile(pinned().problem, outputs=["qdd", "w"], real="float32")
    given = {x: v.astype(np.float32) for x, v in states(12, {2: 1e-2, 5: 3e-3}).items()}
    found, exact = solver(**given), pinned()(**{x: v.astype(float) for x, v in given.items()})
    assert rerun(pinned(), {x: v.astype(float) for x, v in given.items()})[1] == {2, 5}
    for name in ("qdd", "w"):
        assert found[name].dtype == np.float32
        assert (found[name][[2, 5]] == exact[name][[2, 5]].astype(np.float32)).all()


def test_more_flagged_states_than_run_at_a_time():
    """Each is accepted by itself, with the result that it has alone."""
    solver, given = pinned(), states(30, {k: 1e-2 / (k + 1) for k in range(0, 30, 2)})
    found = solver(**given)
    expected, flagged = rerun(solver, given)
    assert found.ok.all() and flagged == {*range(0, 30, 2)}
    assert all((found[x] == expected[x]).all() for x in ("qdd", "w"))
    for k in range(0, 30, 2):
        alone = solver(**{x: v[k] for x, v in given.items()})
        assert all((alone[x] == found[x][k]).all() for x in ("qdd", "w")) and off(solver, given, found, k) < 1e-11
    inputs = by_group(solver.problem, given | {"q": np.where(np.arange(30)[:, None] == 18, 0.0, given["q"])})
    outputs, status = solver.executable.results(inputs, 30)
    bad = np.flatnonzero(status)
    assert not accepted(solver, inputs, outputs, status, bad)
    assert np.flatnonzero(status).tolist() == [18]


def test_flagged_states_among_others_of_another_mode():
    """They have the bits of their mode by itself."""
    tip = sd.Contact((arm().body_names[-1], END), ["a_x", "a_y"], name="tip")
    both = sd.compile(sd.forward_dynamics(arm()) + [sd.Switchable(tip)], outputs=["qdd", "w"], level="fast")
    given, on = states(50, {4: 1e-2, 20: 3e-3, 41: 1e-3}), np.arange(50) % 3 > 0
    alone = {x: both.mode({"tip": x})(**given) for x in (True, False)}
    assert rerun(both.mode({"tip": True}), given)[1] == {4, 20, 41} and on[[4, 20, 41]].all()
    found = both(**given, active={"tip": on})
    np.testing.assert_array_equal(found.qdd, np.where(on[:, None], alone[True].qdd, alone[False].qdd))
    np.testing.assert_array_equal(found.w, np.where(on[:, None], alone[True].w, 0.0))


def test_inputs_are_of_any_kind_that_batches_take():
    """Values that all states share, and numbers that have to be converted."""
    given = states(40, {5: 1e-3, 6: 2e-3})
    given["tau"] = given["tau"].astype(np.float32)
    shared = {**given, "tau": given["tau"][0], "fx": np.zeros((3, 6))}
    for case in (given, shared):
        whole = {x: np.broadcast_to(v, (40, 3)).astype(float, order="C") for x, v in case.items() if x != "fx"}
        found, expected = pinned()(**case), rerun(pinned(), whole)[0]
        assert found.ok.all() and all((found[x] == expected[x]).all() for x in ("qdd", "w"))
        assert off(pinned(), whole, found, 5) < 1e-11


def test_nearer_states_are_solved_with_pivoting():
    """Rejected and singular states leave the other flagged states of the batch accepted."""
    solver, given = pinned(), states(12, {2: 1e-3, 5: 1e-7, 9: 0.0})
    inputs = by_group(solver.problem, given)
    outputs, status = solver.executable.results(inputs, 12)
    bad = np.flatnonzero(status)
    assert not accepted(solver, inputs, outputs, status, bad)
    assert np.flatnonzero(status).tolist() == [5, 9]
    found = solver(**given, on_singular="nan")
    assert found.ok[[2, 5]].all() and off(solver, given, found, 5) < 1e-8


def test_several_limbs_that_are_nearly_stretched_are_accepted():
    """Their pivots are small together; a singular state is not accepted."""
    link = """<link name="{k}{i}"><inertial><origin xyz="0.21 0.02 0"/><mass value="1.{k}{i}"/>
        <inertia ixx="0.01" iyy="0.02" izz="0.03" ixy="0" ixz="0" iyz="0"/></inertial></link>
        <joint name="j{k}{i}" type="continuous"><parent link="{parent}"/><child link="{k}{i}"/>
        <origin xyz="{x} 0 0"/><axis xyz="0 0 1"/></joint>"""
    limbs = "".join(
        link.format(k=k, i=i, parent=f"{k}{i - 1}" if i else "trunk", x=(0.3, 0.41, 0.37)[i])
        for k in range(3) for i in range(3)
    )  # fmt: skip
    model = sd.load(f'<robot name="limbs"><link name="trunk"/>{limbs}</robot>')
    tips = [sd.Contact((f"{k}2", END), ["a_x", "a_y"], name=f"tip{k}") for k in range(3)]
    problem = sd.forward_dynamics(model) + tips
    solver = sd.compile(problem, outputs=["qdd", "w"], level="fast", backend="python")
    rng, distances = np.random.default_rng(0), np.array([1e-2, 1e-3, 0.0])
    q = distances[:, None] * np.tile(STRETCHED, 3)
    given = {"q": q, "qd": rng.standard_normal(q.shape), "tau": rng.standard_normal(q.shape)}
    inputs = by_group(problem, given)
    outputs, status = solver.executable.results(inputs, len(q))
    assert status.all()
    accepted(solver, inputs, outputs, status, np.arange(len(q)))
    assert np.flatnonzero(status).tolist() == [2]
    found = solver(**given, on_singular="nan")
    assert all(off(solver, given, found, k) < 1e-11 for k in (0, 1)) and not found.ok[2]


def test_perturbed_constants():
    """Whole numbers stay, and rounding errors of others become zero; small inertias are no rounding errors."""

    def up(x: float) -> float:
        return float(np.nextafter(x, np.inf))

    def down(x: float) -> float:
        return float(np.nextafter(x, -np.inf))

    for constants, expected in (
        ([1.0, -2.0], [1.0, -2.0]), ([1.0, 0.3, 0.7, -2.0, 5e-15, 0.1], [1.0, up(0.3), down(0.7), -2.0, 0.0, up(0.1)]),
        ([2e13, 0.3, 1e-9], [2e13, up(0.3), down(1e-9)]), ([3e-17, 0.3e-3, 1e-19], [down(3e-17), up(0.3e-3), 0.0]),
    ):  # fmt: skip
        assert perturbed_constants(np.array(constants)).tolist() == expected


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("heavier", (1.0, 1e12, 1e-12))
def test_wrenches_that_are_zero_and_uneven_bodies_are_accepted(heavier):
    """At regular states where nothing pushes, or where inertias differ by many decades."""
    inertias = arm().inertias.copy()
    inertias[-1] *= heavier
    model = arm().replace(inertias=inertias)
    tip = sd.Contact((model.body_names[-1], END), ["a_x", "a_y"], name="tip")
    solver = sd.compile(sd.forward_dynamics(model) + [tip], level="fast", backend="python")
    given = states(20, {})
    moved = solver(**given)["qdd"]
    given["tau"] = newton_euler(model, given["q"], given["qd"], moved).tau  # as if nothing held the tip
    inputs = by_group(solver.problem, given)
    outputs, status = solver.executable.results(inputs, 20)
    every, share = np.arange(20), {x: np.abs(outputs[x]).max(axis=1) for x in ("w", "f")}
    assert not status.any() and (share["w"] < 1e-9 * share["f"]).all()
    status[:] = WEAK_PIVOT
    assert accepted(solver, inputs, outputs, status, every)
    assert np.allclose(outputs["qdd"], moved, rtol=1e-9)


def test_singular_states_are_named():
    given = states(12, {2: 1e-3, 9: 0.0})
    given["qd"][9] = [1.0, -2.0, 3.0]  # which a stretched arm that is held cannot do
    with pytest.raises(SingularState) as caught:
        pinned()(**given)
    assert caught.value.states == (9,)


def test_rejected_states_keep_their_outputs():
    solver, given = pinned(), states(3, {1: 1e-3})
    inputs = by_group(solver.problem, given)
    outputs, status = solver.executable.results(inputs, 3)
    one = np.array([1])
    before = {x: v.copy() for x, v in outputs.items()}
    assert not accepted(solver, inputs, outputs, status, one, tolerance=0.0)
    assert status[1] != 0 and all((outputs[x] == v).all() for x, v in before.items())
    assert accepted(solver, inputs, outputs, status, one) and not status.any()


@pytest.mark.parametrize("seed", (1, 6))
def test_singular_states_are_not_accepted(seed):
    """Necks and gimbals without inertia, at and near the states at which nothing determines q̈."""
    problem = sd.forward_dynamics(singular.robot(seed))
    solver = sd.compile(problem, "markowitz", level="fast", backend="python")
    q = singular.positions(1500, np.random.default_rng(1))
    inputs = by_group(problem, {"q": q, "qd": np.zeros_like(q), "tau": np.ones_like(q)})
    outputs, status = solver.executable.results(inputs, len(q))
    flagged = np.flatnonzero(status)
    accepted(solver, inputs, outputs, status, flagged)
    system = sd.assemble(problem)
    margins = np.array([system.solvability(x) for x in system.values({x: v[flagged] for x, v in inputs.items()})[0]])
    solved = status[flagged] == 0
    assert solved.any() and (margins < SINGULAR).sum() > 10 and margins[solved].min() >= SINGULAR
