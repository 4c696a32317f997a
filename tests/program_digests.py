"""Digests of a dozen compiled programs, as JSON, of a process of its own, whose BLAS and NumPy are told what to use.

OPENBLAS_CORETYPE=Haswell python tests/program_digests.py [NAME …]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import sysdyn as sd
from sysdyn.estimation.ekf_step import retraction
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.offline.time_step import TimeStepElimination
from sysdyn.program.program import Program

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
from nori.arms import load_arm
from nori.problems import load_cells

FILES = Path(__file__).parent
# Problems whose products of derivatives are compared, too: one for each way that these go.
WITH_PRODUCTS = ("inverse, general arm", "forward, Puma", "contact, random tree", "estimate")
# Problems of which what constraints make of the robot is compared, too.
WITH_SPACE = ("contact, random tree",)
# The programs of a problem over time.
OVER_TIME = "over time"


def walker() -> sd.Problem:
    """A floating humanoid on one foot."""
    return sd.forward_dynamics(sd.load("icub", base="floating")) + sd.Contact("l_foot", "fixed")


def held() -> sd.Problem:
    """A random tree with two bodies held."""
    return sd.forward_dynamics(sd.random_tree(8, seed=1)) + [sd.Contact("body7", "point"), sd.Contact("body4", "point")]


def sensed() -> sd.Problem:
    """A chain with unknown wrenches and as many sensors, none with noise."""
    problem = sd.inverse_dynamics(sd.chain(4, seed=3)) - sd.ExternalWrench("body3")
    force = sd.ForceDirection("body3", (0.3, -0.2, 0.7), name="force")
    return problem + [force, sd.ForceTorqueSensor("joint2", components=["fx", "nx", "ny", "nz"], name="wrist")]


def estimated() -> sd.Problem:
    """A chain with redundant noisy sensors."""
    return sd.Problem(
        sd.chain(5, seed=2),
        [
            sd.JointAcceleration("all", noise=0.1, name="encoders"),
            sd.JointTorque("all", noise=0.3, name="torques"),
            sd.Accelerometer("body3", noise=0.05, name="imu"),
            sd.ExternalWrench([f"body{k}" for k in range(4)]),
            sd.Prior(sd.ExternalWrench("body4", noise=5.0, name="push")),
        ],
    )


def stood() -> sd.Problem:
    """The wrenches of a quadruped's feet in a motion that is known."""
    feet = [sd.Contact(f"{x}_foot", "point", reference="world", name=x) for x in ("lf", "rf", "lh", "rh")]
    return sd.inverse_dynamics(sd.load("sysdyn:quadruped", base="floating"), feet)


def hybrid(model: sd.Model) -> sd.Problem:
    return sd.hybrid_dynamics(model, torque=model.joint_names[::2])


def icub() -> sd.Model:
    return sd.load("icub")


# What is compiled, by name: arms, humanoids and random trees, from files of both kinds and from tables.
PROBLEMS: dict[str, Callable[[], tuple[sd.Problem, dict]]] = {
    "inverse, iCub": lambda: (
        sd.inverse_dynamics(icub()),
        {"outputs": ["tau"], "external_wrenches": False, "level": "best"},
    ),
    "forward, iCub": lambda: (sd.forward_dynamics(icub()), {"outputs": ["qdd"], "external_wrenches": False}),
    "contact, iCub": lambda: (walker(), {"outputs": ["qdd"]}),
    "hybrid, iCub": lambda: (hybrid(icub()), {"outputs": ["tau", "qdd"]}),
    "forward, Puma": lambda: (sd.forward_dynamics(load_arm("puma560")[0]), {"outputs": ["qdd"], "level": "best"}),
    "inverse, general arm": lambda: (sd.inverse_dynamics(load_arm("gen6R")[0]), {"outputs": ["tau"]}),
    "every unknown, tree": lambda: (sd.forward_dynamics(sd.auto_tree(12, 1, 1.5, 0.9)), {}),
    "hybrid, random tree": lambda: (hybrid(sd.random_tree(12, seed=3)), {"outputs": ["tau", "qdd"]}),
    "contact, random tree": lambda: (held(), {"outputs": ["qdd"]}),
    "forward, MJCF": lambda: (sd.forward_dynamics(sd.load(FILES / "models" / "humanoid.xml")), {"outputs": ["qdd"]}),
    "forward, URDF": lambda: (sd.forward_dynamics(sd.load(FILES / "models" / "branched.urdf")), {"outputs": ["qdd"]}),
    "elimination, URDF": lambda: (sd.inverse_dynamics(sd.load(FILES / "models" / "branched.urdf")), {}),
    "load cells": lambda: (load_cells(4), {"level": "best"}),
    "load cells, rewritten": lambda: (load_cells(4), {"level": "best", "effort": 2.0}),
    "wrenches of a motion": lambda: (stood(), {"outputs": ["tau", "w"]}),
    "sensors": lambda: (sensed(), {}),
    "estimate": lambda: (estimated(), {}),
    "single precision, contact": lambda: (held(), {"outputs": ["qdd"], "real": "float32"}),
    "single precision, URDF": lambda: (
        sd.forward_dynamics(sd.load(FILES / "models" / "branched.urdf")),
        {"outputs": ["qdd"], "real": "float32"},
    ),
}


def moving() -> sd.Problem:
    """A tree whose states are estimated: a full covariance of a sensor of the state, motors, an accelerometer."""
    model = sd.random_tree(4, seed=2, joints=("free", "revolute", "spherical"))
    last = model.body_names[-1]
    return sd.Problem(
        model,
        [
            sd.JointVelocity(model.joint_names, noise=0.1, name="rates"),
            sd.FramePosition(last, noise=np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 3.0]]), name="marker"),
            sd.Accelerometer(last, noise=0.05, name="acc"),
            sd.JointTorque("all", noise=0.3, name="torques"),
            sd.ExternalWrench(model.body_names[:-1], name="none"),
            sd.Prior(sd.ExternalWrench(last, noise=50.0), name="push"),
        ],
    )


def programs(name: str) -> dict[str, Program]:
    """{name: program}: that of a problem, with products of its derivatives, or those of an instant over time."""
    if name != OVER_TIME:
        problem, options = PROBLEMS[name]()
        solver = sd.compile(problem, backend="python", **{"level": "fast", **options})
        kinds = ("jvp", "vjp") if name in WITH_PRODUCTS else ()
        found = {name: solver.program} | {f"{name}, {kind}": getattr(solver, kind)().program for kind in kinds}
        if name in WITH_SPACE:
            rows = [sd.Contact("body7", "point"), sd.Contact("body4", "normal")]
            found[f"{name}, space"] = sd.operational_space(problem.model, rows, ["inertia"], backend="python").program
        return found
    problem, outputs = moving(), ("tau", "fx")
    instant = TimeStepElimination(problem.instant, outputs)
    found = {"rows": instant.rows().program, "free": instant.free()[0], "results": instant.results()}
    estimation = EstimationProblem(problem, outputs, 1.0, 3, coupled=True)
    found |= {"between": estimation.layout.transition.program, "retraction": retraction(estimation.layout)[0]}
    return found | {"states": estimation.states.program}


def digests(names: list[str]) -> dict[str, list]:
    """{name: [digest of the program, its operations]}"""
    found: dict[str, Program] = {}
    for name in names or [*PROBLEMS, OVER_TIME]:
        found |= programs(name)
    return {name: [program.digest, program.flops.total] for name, program in found.items()}


if __name__ == "__main__":
    print(json.dumps(digests(sys.argv[1:])))
