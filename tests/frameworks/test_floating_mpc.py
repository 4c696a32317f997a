"""The plan for a floating base on the page of control loops is the one that IPOPT finds by CasADi."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Page

import sysdyn as sd

pytest.importorskip("jax")
ca = pytest.importorskip("casadi")

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "control.md"


@pytest.fixture(scope="module")
def page() -> dict:
    """What the block of the page defines, without its flight."""
    (block,) = (x for x in Page(PAGE.read_text(encoding="utf-8")).blocks if "def improved" in x.code)
    names = {"np": np, "sd": sd, "__name__": "__main__"}
    block.code = block.code.partition("for _ in range(60):")[0]
    block.run(names, "control.md")
    return names


@pytest.fixture(scope="module")
def plan(page) -> np.ndarray:
    """A plan that is improved until nothing changes, from a start that is less far off."""
    robot = page["quadrotor"]
    page["start"] = robot.integrate(robot.neutral(), [0.3, -0.2, 0.3, 0.5, -0.4, 0.3, 0.2]), np.zeros(7)
    plan = page["plan"]
    for _ in range(300):
        plan, before = page["improved"](plan, page["start"]), plan
        if abs(plan - before).max() < 1e-9:
            break
    return np.asarray(plan)


def cost(page: dict, plan: np.ndarray) -> float:
    """By calls of the solvers, one step after the other, and a quaternion of the pose."""
    robot, h = page["quadrotor"], page["h"]
    solver, places = sd.compile(sd.forward_dynamics(robot), outputs=["qdd"], level="fast"), ["pose:frame", "pose:load"]
    place = sd.kinematics(robot, places)
    (q, qd), total = page["start"], 0.0
    for k, u in enumerate(plan):
        qd = qd + h * solver(q, qd, page["mix"] @ (2.0 + 2.0 * np.tanh(u))).qdd
        q = robot.integrate(q, h * qd)
        at = place(q)
        turned = robot.difference(robot.neutral(), np.concatenate([np.zeros(3), q[3:7], [0.0]]))[:3]
        np.testing.assert_allclose(at["pose:frame"][:3, :3] @ turned, turned, atol=1e-12)  # the axis of the frame
        angle = np.linalg.norm(turned)
        off = [2.0 * np.sin(angle / 2), *at["pose:load"][:3, 3], *(0.3 * qd), *(0.2 * u)]
        total += (10.0 if k == len(plan) - 1 else 1.0) * np.sum(np.square(off))
    return total


def test_ipopt_finds_the_same_plan(page, plan):
    """By direct multiple shooting, with the dynamics, steps, quaternion and pose under CasADi's symbols."""
    robot, h, N = (page[x] for x in ("quadrotor", "h", "N"))
    fd = sd.compile(sd.forward_dynamics(robot), outputs=["qdd"], level="fast").to_casadi()
    move, attitude, pose = (sd.kinematics(robot, x).to_casadi() for x in ("integrate", "quaternion:frame", "pose:load"))
    ocp = ca.Opti()
    q, qd, u = ocp.variable(robot.nq, N + 1), ocp.variable(robot.nv, N + 1), ocp.variable(4, N)
    ocp.subject_to(q[:, 0] == page["start"][0])
    ocp.subject_to(qd[:, 0] == page["start"][1])
    total = 0
    for k in range(N):
        thrusts = page["mix"] @ (2 + 2 * ca.tanh(u[:, k]))
        ocp.subject_to(qd[:, k + 1] == qd[:, k] + h * fd(q[:, k], qd[:, k], thrusts, ca.DM.zeros(6 * robot.nb)))
        ocp.subject_to(q[:, k + 1] == move(q[:, k], h * qd[:, k + 1]))
        place = ca.reshape(pose(q[:, k + 1]), 4, 4)[3, :3]  # entries come row by row
        off = ca.vertcat(2 * attitude(q[:, k + 1])[:3], place.T, 0.3 * qd[:, k + 1], 0.2 * u[:, k])
        total += (10 if k == N - 1 else 1) * ca.sumsqr(off)
    ocp.minimize(total)
    ocp.set_initial(q, np.tile(page["start"][0][:, None], N + 1))
    ocp.solver("ipopt", {"print_time": False, "expand": True}, {"print_level": 0, "sb": "yes", "tol": 1e-10})
    found = ocp.solve()
    assert found.value(total) == pytest.approx(cost(page, plan), rel=1e-9)
    np.testing.assert_allclose(found.value(u).T, plan, atol=1e-5)
