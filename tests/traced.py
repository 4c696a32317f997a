"""Programs of every kind, and their calls, for the frameworks that trace functions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

import numpy as np

import sysdyn as sd

STATES = 5


def fast(problem: sd.Problem, **options) -> sd.Solver:
    """A solver that is compiled in little time: nothing here depends on its order."""
    return sd.compile(problem, **({"level": "fast"} | options))


def arm():
    model = sd.chain(3, seed=2)
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    return fast(sd.forward_dynamics(model), outputs="qdd"), (q, qd), {"tau": tau}


def quaternions():
    model = sd.random_tree(3, seed=4, joints=("free", "spherical", "planar"))
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    return fast(sd.forward_dynamics(model), outputs="qdd"), (q, qd), {"tau": tau}


def contact():
    model = sd.random_tree(3, seed=4, joints=("free", "revolute", "revolute"))
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    problem = sd.forward_dynamics(model) + sd.Contact("body2", ["a_z", "a_x"], name="tip")
    return fast(problem, outputs=("qdd", "w")), (q, qd), {"tau": tau}


def estimate():
    model = sd.chain(3, seed=2)
    torques = sd.JointTorque("all", noise=0.1, name="torques")
    accelerations = sd.JointAcceleration("all", noise=0.5, name="accelerations")
    q, qd, x = model.random_state(seed=0, batch=STATES)
    problem = sd.Problem(model, [sd.ExternalWrench("all", name="fx"), torques, accelerations])
    return fast(problem, outputs=("qdd", "tau")), (q, qd), {"y": {"torques": x, "accelerations": x[::-1].copy()}}


def product():
    solver, state, known = arm()
    return solver.vjp(wrt=("q", "tau")), state, known | {"cotangents": {"qdd": np.cos(state[0])}}


def kinematics(outputs=("energy", "mass_matrix")):
    model = sd.random_tree(3, seed=4, joints=("free", "spherical", "planar"))
    q, qd, _ = model.random_state(seed=0, batch=STATES)
    return sd.kinematics(model, outputs), (q, qd), {}


def kinematics_product():
    compiled, state, _ = kinematics("com_velocity")
    return compiled.vjp(), state, {"cotangents": {"com_velocity": np.cos(state[1][:, :3])}}


def own():
    function = sd.compile_function(lambda x, y: {"z": x * y[0] + x / y[1]}, {"x": (3,), "y": (2,)})
    rng = np.random.default_rng(0)
    return function, (rng.standard_normal((STATES, 3)), 1.0 + rng.random((STATES, 2))), {}


# Kinds of programs by name; that of ALWAYS has all that the arm's has, and compiles as quickly.
ALWAYS = ("quaternions",)
CASES = {x.__name__: x for x in (arm, quaternions, contact, estimate, product,
                                   kinematics, kinematics_product, own)}  # fmt: skip


def singular() -> tuple[sd.Solver, dict]:
    """Joints at multiples of π/2, where an accelerometer may not feel the joint that it is to tell of."""
    model = sd.auto_tree(5, 2, 0.7, 0.9)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[1]])
    problem += sd.Accelerometer(model.body_names[4], components=["a_x"], name="imu")
    rng = np.random.default_rng(0)
    q = rng.integers(-2, 3, (800, 5)) * (np.pi / 2) + (np.arange(800)[:, None] % 4 == 0) * 1e-9
    given = {"q": q, "qd": rng.standard_normal((800, 5)), "qdd": rng.standard_normal((800, 5))}
    return fast(problem, outputs="qdd"), given | {"y": {"imu": rng.standard_normal((800, 1))}}


@contextlib.contextmanager
def missing(bridge: ModuleType, framework: str) -> Iterator[None]:
    """As if the framework of a bridge to it were not installed."""
    bridge.library.cache_clear()
    try:
        with mock.patch.dict(sys.modules, {framework: None}):
            yield
    finally:
        bridge.library.cache_clear()
