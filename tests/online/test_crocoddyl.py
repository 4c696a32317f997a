"""The action model of the page on control loops, in Crocoddyl, compared with one of Pinocchio's derivatives."""

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


class OfPinocchio(crocoddyl.ActionModelAbstract):
    """The same step by Pinocchio's accelerations and their derivatives."""

    def __init__(self, model, goal, weight):
        n = model.nv
        crocoddyl.ActionModelAbstract.__init__(self, crocoddyl.StateVector(2 * n), n)
        self.robot, self.own, self.n, self.goal, self.weight = model, model.createData(), n, goal, weight

    def calc(self, data, x, u=None):
        q, qd = x[: self.n], x[self.n :]
        tau = np.zeros(self.n) if u is None else u
        qd = qd + H * pin.aba(self.robot, self.own, q, qd, tau)
        data.xnext = np.concatenate([q + H * qd, qd])
        data.cost = 0.5 * self.weight @ (x - self.goal) ** 2 + 0.5e-4 * tau @ tau

    def calcDiff(self, data, x, u=None):
        tau = np.zeros(self.n) if u is None else u
        slopes = pin.computeABADerivatives(self.robot, self.own, x[: self.n], x[self.n :], tau)
        by_q, by_qd, by_tau = (H * np.array(J) for J in slopes)
        one, zero = np.eye(self.n), np.zeros((self.n, self.n))
        below = np.block([by_q, one + by_qd])
        data.Fx = np.vstack([np.block([one, zero]) + H * below, below])
        data.Fu = np.vstack([H * by_tau, by_tau])
        data.Lx, data.Lxx = self.weight * (x - self.goal), np.diag(self.weight)
        data.Lu, data.Luu = 1e-4 * tau, 1e-4 * one


def test_differential_dynamic_programming_finds_the_same_motion():
    theirs = pin.buildSampleModelManipulator()
    n, rng = theirs.nv, np.random.default_rng(0)
    goal, weight = np.repeat([0.3, 0.0], n), np.repeat([10.0, 0.1], n)
    model = action_model()(sd.load(theirs), goal, weight, H)
    running = OfPinocchio(theirs, goal, weight)
    x, u = rng.standard_normal(2 * n), rng.standard_normal(n)
    at, there = model.createData(), running.createData()
    running.calc(there, x, u)
    running.calcDiff(there, x, u)
    model.calc(at, x, u)
    model.calcDiff(at, x, u)
    assert at.cost == pytest.approx(there.cost, rel=1e-12)
    for what in ("xnext", "Fx", "Fu", "Lx", "Lu", "Lxx", "Luu"):
        np.testing.assert_allclose(getattr(at, what), getattr(there, what), atol=1e-12, err_msg=what)
    motions = []
    for nodes in (model, running):
        solver = crocoddyl.SolverFDDP(crocoddyl.ShootingProblem(np.zeros(2 * n), [nodes] * STEPS, nodes))
        assert solver.solve([], [], 100)
        motions.append((np.array(solver.xs), np.array(solver.us), solver.iter))
    (xs, us, iterations), (expected, torques, others) = motions
    assert iterations == others
    np.testing.assert_allclose(xs, expected, atol=1e-9)
    np.testing.assert_allclose(us, torques, atol=1e-7)
