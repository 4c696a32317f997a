"""frax, on JAX: its functions traced once, mapped over a batch of states, and called from Python."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable

import numpy as np

from rivals.build import CannotBuild
from rivals.robots import Robot


class Frax:
    """`batch(problem, q, v, x)` makes a call without arguments that gives (n, nv), in sysdyn's order of joints.

    `forward(q, v, tau)` gives q̈ of one state in JAX, in the same order.
    """

    def __init__(self, robot: Robot):
        if robot.base != "fixed":
            raise CannotBuild("free joints have other velocities there")
        try:
            self._jax = importlib.import_module("jax")
            self._jax.config.update("jax_enable_x64", True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice about the processor
                self._robot = importlib.import_module("frax.core.robot").Robot(robot.urdf)
        except ImportError as why:
            raise CannotBuild(f"it is not installed: pip install frax ({why})") from why
        model = robot.model
        self._order = np.array([model.v_slice(model.joint_index(name)).start for name in self._robot.joint_names])
        self._back = np.argsort(self._order)

    def batch(self, problem: str, q: np.ndarray, v: np.ndarray, x: np.ndarray) -> Callable[[], np.ndarray]:
        one = self._forward if problem == "forward" else self._inverse
        function = self._jax.jit(self._jax.vmap(one))
        given = [self._jax.numpy.asarray(y[:, self._order]) for y in (q, v, x)]
        return lambda: np.asarray(function(*given))[:, self._back]

    def forward(self, q, v, tau):
        return self._forward(*(x[self._order] for x in (q, v, tau)))[self._back]

    def _forward(self, q, v, tau):
        return self._robot.forward_dynamics(q, v, tau, None)

    def _inverse(self, q, v, qdd):
        return self._robot.mass_matrix(q) @ qdd + self._robot.nonlinear_bias(q, v)
