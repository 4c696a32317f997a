"""The cache of a problem: each layout and system of equations is made once, and none is copied or pickled."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.assembly import Assembly
from sysdyn.measurements.problem import CACHE_SIZE
from sysdyn.passes import PAPER
from sysdyn.program.graph import Graph


def noisy(model: sd.Model) -> sd.Problem:
    known = [sd.JointTorque("all", name="tau", noise=1.0), sd.ExternalWrench("all", name="fx"),
             sd.JointAcceleration("all", name="qdd", noise=0.1)]  # fmt: skip
    return sd.Problem(model, known)


@pytest.mark.parametrize("make", [sd.forward_dynamics, noisy])
def test_a_system_is_assembled_once_for_the_same_arguments(make):
    problem = make(sd.chain(3))
    system = sd.assemble(problem)
    assert sd.assemble(problem, "paper", known="rows", passes=["symmetric_elimination"]) is system
    assert sd.assemble(problem).plain is system.plain
    assert sd.assemble(problem).assembly is system.assembly
    assert sd.assemble(problem).plain.assembly is system.plain.assembly
    assert problem.layout() is problem.layout("paper")
    assert sd.assemble(problem, outputs=["qdd"]) is sd.assemble(problem, outputs=("".join("qdd"),))
    options = ({"layout": "net_force"}, {"known": "substituted"}, {"passes": "all"}, {"outputs": ("qdd",)})
    others = [sd.assemble(problem, **x) for x in options]
    assert all(other is not system for other in others)


@pytest.mark.parametrize("make", [sd.forward_dynamics, noisy])
def test_eliminations_have_copies_of_one_assembly(make, monkeypatch):
    """In graphs of their own, cut into pieces; equal results are shared as the passes say."""
    made: list[Assembly] = []
    for passes, sharing in (((), "structural"), (PAPER, "algebraic")):
        system = sd.assemble(make(sd.chain(2)), passes=passes)
        names = system.row_names

        def build(graph: Graph, segmented: bool = False, of=system.build) -> Assembly:
            made.append(of(graph, segmented))
            return made[-1]

        monkeypatch.setattr(system, "build", build)
        first, second = system.build_copy(), system.build_copy()
        assert len({id(x.graph) for x in (first, second, made.pop())}) == 3 and not made
        assert first.graph.cuts == second.graph.cuts and len(first.graph.cuts) > system.model.nb
        assert first.graph.sharing == system.sharing == sharing
        assert [[*row] for row in first.rows] == [[*row] for row in second.rows] and first.names == names


def test_an_augmented_system_is_symmetric_around_the_plain_one():
    problem = noisy(sd.chain(2))
    system, q = sd.assemble(problem), problem.model.random_state(seed=1)[0]
    assert not isinstance(system, sd.BlockSystem) and isinstance(system.plain, sd.BlockSystem)
    rows, n = system.plain.shape
    K, D = system.D(q).toarray(), system.plain.D(q).toarray()
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(K[n:, :n], D)
    noise = {r: x.matrix(x.declared)[k, k] for r, (x, k) in system.plain.noise_by_row.items()}
    np.testing.assert_array_equal(K[n:, n:], -np.diag([noise.get(r, 0.0) for r in range(rows)]))
    assert system.row_names[n:] == system.plain.row_names and system.col_names[:n] == system.plain.col_names
    assert system.layout.n == system.plain.layout.n + rows


def test_changed_problems_have_systems_of_their_own():
    problem = sd.forward_dynamics(sd.chain(2))
    system = sd.assemble(problem)
    less = problem - sd.ExternalWrench(("body1",))
    assert len(sd.assemble(less).row_names) == len(system.row_names) - 6
    assert sd.assemble(problem.varying("gravity")) is not system
    assert less.knows("fx") == {(0, k) for k in range(6)} and problem.knows("a") == frozenset()


def test_the_least_recently_used_results_are_dropped():
    problem = sd.forward_dynamics(sd.chain(1))
    for k in range(CACHE_SIZE):
        assert problem.cached(k, lambda k=k: [k]) == [k]
    assert problem.cached(0, lambda: "computed again") == [0]  # a hit counts as a use
    problem.cached("more", lambda: "one more")
    assert [problem.cached(k, lambda: "computed again") for k in (0, 2, 1)] == [[0], [2], "computed again"]


@pytest.mark.parametrize("make", [sd.forward_dynamics, noisy])
def test_copies_and_pickles_omit_cached_systems(make):
    problem = make(sd.chain(6))
    before = len(pickle.dumps(problem))
    system = sd.assemble(problem)
    q, qd, _ = problem.model.random_state(seed=0)
    expected = system.values({"q": q, "qd": qd})
    assert len(pickle.dumps(problem)) == before
    for other in (copy.copy(problem), pickle.loads(pickle.dumps(problem))):
        assert type(other) is sd.Problem and other.y_names == problem.y_names
        assert sd.assemble(other) is not system
        for x, y in zip(sd.assemble(other).values({"q": q, "qd": qd}), expected, strict=True):
            np.testing.assert_array_equal(x, y)
