"""The action model of the page on control loops, in Crocoddyl: derivatives and motions of Crocoddyl's own models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

crocoddyl = pytest.importorskip("crocoddyl")
pin = pytest.importorskip("pinocchio")
PAGE = Path(__file__).parents[2] / "docs" / "control.md"
H, STEPS = 1e-2, 40


def action_model() -> type:
    """The class that the page shows."""
    block = next(x for x in re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.S | re.M) if "crocoddyl" in x)
    names = {"np": np, "sd": sd}
    exec(block, names)
    return names["Step"]


def own(state, goal, weight, share):
    """Crocoddyl's model of the same step. share: 1 / H if costs are multiplied by the time of the step, else 1."""
    n, costs = state.nv, crocoddyl.CostModelSum(state)
    residual = crocoddyl.ResidualModelState(state, goal, n)
    activation = crocoddyl.ActivationModelWeightedQuad(weight)
    costs.addCost("state", crocoddyl.CostModelResidual(state, activation, residual), share)
    torques = crocoddyl.CostModelResidual(state, crocoddyl.ResidualModelControl(state, n))
    costs.addCost("torques", torques, 1e-4 * share)
    dynamics = crocoddyl.DifferentialActionModelFreeFwdDynamics(state, crocoddyl.ActuationModelFull(state), costs)
    return crocoddyl.IntegratedActionModelEuler(dynamics, H)


def test_differential_dynamic_programming_finds_the_same_motion():
    theirs = pin.buildSampleModelManipulator()
    state = crocoddyl.StateMultibody(theirs)
    n, rng = theirs.nv, np.random.default_rng(0)
    goal, weight = np.repeat([0.3, 0.0], n), np.repeat([10.0, 0.1], n)
    model = action_model()(sd.load(theirs), goal, weight, H)
    running = own(state, goal, weight, 1.0 / H)
    x, u = rng.standard_normal(2 * n), rng.standard_normal(n)
    at, there = model.createData(), running.createData()
    running.calc(there, x, u)
    acceleration = pin.aba(theirs, theirs.createData(), x[:n], x[n:], u)
    if not np.allclose(there.differential.xout, acceleration):
        pytest.skip("Crocoddyl was built for another Pinocchio, and computes with other models than it is given")
    running.calcDiff(there, x, u)
    model.calc(at, x, u)
    model.calcDiff(at, x, u)
    assert at.cost == pytest.approx(there.cost, rel=1e-12)
    for what in ("xnext", "Fx", "Fu", "Lx", "Lu", "Lxx", "Luu"):
        np.testing.assert_allclose(getattr(at, what), getattr(there, what), atol=1e-12, err_msg=what)
    motions = []
    for nodes, last in ((model, model), (running, own(state, goal, weight, 1.0))):
        solver = crocoddyl.SolverFDDP(crocoddyl.ShootingProblem(np.zeros(2 * n), [nodes] * STEPS, last))
        assert solver.solve([], [], 100)
        motions.append((np.array(solver.xs), np.array(solver.us), solver.iter))
    (xs, us, iterations), (expected, torques, others) = motions
    assert iterations == others
    np.testing.assert_allclose(xs, expected, atol=1e-9)
    np.testing.assert_allclose(us, torques, atol=1e-7)
