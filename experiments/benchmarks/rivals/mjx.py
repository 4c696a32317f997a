"""MuJoCo's pipeline on JAX (MJX), of the bodies that its C pipeline has in `rivals.mujoco`."""

from __future__ import annotations

import contextlib
import importlib
import io

import mujoco
import numpy as np

from rivals.build import CannotBuild
from rivals.mujoco import without_geometry
from rivals.robots import Robot


class Mjx:
    """`forward(q, v, tau)` gives q̈ of one state in JAX, in sysdyn's order of joints."""

    def __init__(self, robot: Robot):
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # that a back end for GPUs is not installed
                self._mjx = importlib.import_module("mujoco.mjx")
        except ImportError as why:
            raise CannotBuild(f"it is not installed: pip install mujoco-mjx ({why})") from why
        bodies = without_geometry(robot.peer)
        bodies.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        self._model, self._data = self._mjx.put_model(bodies), self._mjx.make_data(bodies)
        self._order, self._back = np.array(robot.order), np.argsort(robot.order)

    def forward(self, q, v, tau):
        q, v, tau = (x[self._order] for x in (q, v, tau))
        given = self._data.replace(qpos=q, qvel=v, qfrc_applied=tau)
        return self._mjx.forward(self._model, given).qacc[self._back]
