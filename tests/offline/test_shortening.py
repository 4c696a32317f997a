"""Eliminations whose sums and products are rewritten: fewer operations, the same answers, and what follows."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.offline import shortening
from sysdyn.papers.nori.problems import load_cells
from sysdyn.program.autodiff import SymbolicProgram


def estimated() -> sd.Problem:
    model = sd.chain(3, seed=2)
    return sd.Problem(
        model,
        [
            sd.JointAcceleration("all", noise=0.1, name="encoders"),
            sd.JointTorque("all", noise=0.3, name="torques"),
            sd.Accelerometer(model.body_names[-1], noise=0.05, name="imu"),
            sd.ExternalWrench("all"),
        ],
    )


PROBLEMS = {"cells": lambda: load_cells(4), "estimate": estimated}


@functools.cache
def compiled(name: str, effort: float) -> sd.Solver:
    return sd.compile(PROBLEMS[name](), backend="python", effort=effort, progress=False)


def solved(solver: sd.Solver, n: int = 40) -> sd.Solution:
    problem = solver.problem
    q, qd, qdd = problem.model.random_state(seed=3, batch=n)
    q[::4] = np.random.default_rng(1).integers(0, 4, q[::4].shape) * (np.pi / 2)
    values = {"qdd": qdd, "tau": qd, "f": np.ones((n, problem.model.nb, 6)), "fx": np.zeros((n, problem.model.nb, 6))}
    y = sd.predict(problem, q, qd, qdd, seed=1)
    known = {x: values[x] for x in problem.known_quantities}
    return solver(q, qd, y={m.name: y[m.name] for m in problem.custom} or None, on_singular="nan", **known)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "share"), [("cells", 0.93), ("estimate", 0.995)])
def test_fewer_operations_give_the_same_answers(name, share):
    usual, short = compiled(name, 1.0), compiled(name, 2.0)
    assert "rewriting" in short.passes and "rewriting" not in usual.passes
    assert short.flops.end_to_end.total < share * usual.flops.end_to_end.total
    assert short.flops.end_to_end == short.program.flops == short.choice.end_to_end
    assert short.flops.solve.total < usual.flops.solve.total
    assert [x.label for x in short.program.guards] == [x.label for x in usual.program.guards]
    assert any("rewritten" in what for what, _ in short.considered)
    one, two = solved(usual), solved(short)
    assert (one.ok == two.ok).all() and two.ok.sum() > 20 and two.backward_error()[two.ok].max() < 1e-11
    for x in usual.outputs:
        np.testing.assert_allclose(two[x][two.ok], one[x][one.ok], rtol=1e-9, atol=1e-9 * np.nanmax(np.abs(one[x])))


def test_what_follows_from_the_order_goes_on(tmp_path):
    """Derivatives, products, files and pickles."""
    usual, short = compiled("cells", 1.0), compiled("cells", 2.0)
    path = short.save(tmp_path / "cells.sysdyn")
    for again in (sd.load_solver(path), pickle.loads(pickle.dumps(short))):
        assert again.passes == short.passes and again.flops == short.flops
        assert (again.program.kind == short.program.kind).all()
    q, qd, qdd = usual.model.random_state(seed=3)
    given = {"qdd": qdd, "f": np.ones((usual.model.nb, 6)), "fx": np.zeros((usual.model.nb, 6))}
    given = {x: given[x] for x in usual.problem.known_quantities}
    one, two = (x.derivatives(of="tau", wrt="q")(q, qd, **given)["tau", "q"] for x in (usual, short))
    np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9 * np.abs(one).max())
    one, two = (x.jvp(of="tau", wrt="q")(q, qd, tangents={"q": qd}, **given)["tau"] for x in (usual, short))
    np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9 * np.abs(one).max())


def test_a_program_that_is_less_exact_is_not_taken(monkeypatch):
    """One whose outputs are off by 1e-6, whatever it saves."""
    made = SymbolicProgram.to_program

    def inexact(self, further, results, ranges, simplified=True):
        return made(self, further, {x: [1.000001 * v for v in y] for x, y in results.items()}, ranges, simplified)

    usual = compiled("cells", 1.0)
    options = replace(usual.options, budget=replace(usual.options.budget, effort=2.0))
    assert shortening.shortened(usual.problem, usual.compiled, options).program is not usual.program
    monkeypatch.setattr(SymbolicProgram, "to_program", inexact)
    assert shortening.shortened(usual.problem, usual.compiled, options) is usual.compiled


@pytest.mark.slow
def test_programs_without_the_pass_and_recursions_are_left_alone():
    passes = [x for x in sd.PASSES if x != "rewriting"]
    plain = sd.compile(load_cells(4), backend="python", effort=2.0, passes=passes, progress=False)
    assert plain.flops == compiled("cells", 1.0).flops
    for effort in (1.0, 2.0):
        solver = sd.compile(sd.inverse_dynamics(sd.chain(3)), outputs="tau", backend="python", effort=effort)
        assert not any("rewritten" in what for what, _ in solver.considered)
