"""Files as version 0.1 wrote them, in tests/fixtures; made once, at commit 60993c2, by `python tests/version_0_1.py`.

solver_0.1.pickle and solver_0.1.npz are the compiled `solved()` by pickle and by Solver.save, answers_0.1.json what it
answered then, problems_0.1.pickle the pickled `problems()`.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np

import sysdyn as sd

FIXTURES = Path(__file__).parent / "fixtures"
ARM = sd.chain(3, seed=0)


def solved() -> sd.Problem:
    return sd.forward_dynamics(sd.chain(2))


def problems(arm: sd.Model = ARM) -> list[sd.Problem]:
    """Every kind of measurement, exact and noisy, removed by component, and parameters that are inputs.

    The arm's numbers depend on the machine's linear algebra in their last bits: pass the arm that was stored.
    """
    kinds = [
        sd.ForceTorqueSensor("joint2", components=["fx", "fy", "nz"], name="wrist"),
        sd.LoadCells("body1", components=["fz"], name="cells"),
        sd.PointContact("body2", components=["nx"], name="point"),
        sd.ForceDirection("body2", (0.0, 0.0, 1.0), name="direction"),
        sd.NetWrench("body0", name="net"),
        sd.FrameAcceleration("body1", name="frame"),
        sd.Accelerometer(("body2", np.eye(4)), name="imu"),
        sd.AngularAccelerometer("body2", name="angular"),
        sd.CentreOfMassAcceleration(name="com"),
        sd.MomentumRate("body1", name="rate"),
        sd.Linear({("tau", "joint1"): [[1.0]], ("a", "body0"): np.ones((1, 6))}, bias=[0.5], name="sum", units="N m"),
        sd.MotorTorque(["joint0", "joint1"], matrix=[[1.0, -1.0]], components=["motor"], name="motor"),
    ]
    noisy = [
        sd.JointAcceleration("joint0", name="known"),
        sd.JointAcceleration(["joint1", "joint2"], noise=0.2, name="encoders"),
        sd.JointTorque("all", noise=np.diag([0.5, 0.6, 0.7]), name="torques"),
        sd.Prior(sd.ExternalWrench("all", noise=5.0, name="wrenches")),
        sd.Switchable(sd.Accelerometer("body1", noise=0.05, name="imu")),
        sd.BodyAcceleration("body2", components=["alpha_x"], noise=0.1, name="alpha"),
        sd.JointWrench("body1", components=["fz"], noise=0.1, name="across"),
        sd.ModelNoise("f", noise=0.01),
    ]
    held = sd.forward_dynamics(arm) + sd.Contact("body2", "point", name="tip")
    looped = sd.inverse_dynamics(arm) + sd.LoopJoint("body0", "body2", "spherical", name="loop")
    without = sd.forward_dynamics(arm) - sd.ExternalWrench("body2", components=["nx", "fz"])
    varied = sd.inverse_dynamics(arm).varying("gravity", "inertia:body1")
    return [sd.forward_dynamics(arm) + kinds, sd.Problem(arm, noisy), held, looped, without, varied]


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    solver = sd.compile(solved(), outputs="qdd")
    q, qd, tau = solver.model.random_state(seed=0, batch=3)
    answers = {"q": q, "qd": qd, "tau": tau, "qdd": solver(q, qd, tau).qdd}
    solver.save(FIXTURES / "solver_0.1.npz")
    (FIXTURES / "solver_0.1.pickle").write_bytes(pickle.dumps(solver))
    (FIXTURES / "problems_0.1.pickle").write_bytes(pickle.dumps(problems()))
    text = json.dumps({name: x.tolist() for name, x in answers.items()}, indent=1)
    (FIXTURES / "answers_0.1.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
