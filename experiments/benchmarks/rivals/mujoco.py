"""MuJoCo's C pipeline over many states, of the library in its wheel, for a model of Pinocchio's."""

from __future__ import annotations

import shutil
from pathlib import Path

import mujoco
import numpy as np
import pinocchio as pin

from rivals.build import SOURCES, CannotBuild, plain_arrays, shared_library
from rivals.turns import Call, words


class Mujoco:
    """`call(problem, q, v, x, out)` for n states of a robot on a fixed base, in one call of C."""

    name = f"MuJoCo {mujoco.__version__}, C"

    def __init__(self, model: pin.Model):
        gcc = shutil.which("gcc")
        if gcc is None:
            raise CannotBuild("gcc is not installed")
        wheel = Path(mujoco.__file__).parent
        (shared,) = wheel.glob("libmujoco.so.*")
        flags = ["-O3", "-march=native", f"-I{wheel / 'include'}", str(shared), f"-Wl,-rpath,{wheel}"]
        self._library = shared_library(gcc, [SOURCES / "mujoco.c"], flags)
        self._model = without_geometry(model)
        self._data = mujoco.MjData(self._model)
        self._robot = np.array([self._model._address, self._data._address], dtype=np.int64)

    def variants(self, problem: str) -> tuple[str, ...]:
        return (problem,)

    def call(self, problem: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray) -> Call:
        name = f"{self.name}, {problem}"
        made = words(name, getattr(self._library, problem), self._robot.ctypes.data, [q, v, x, out])
        return Call(name, made.function, made.first, made.second, made.states, out, (made.keep, self))


def without_geometry(model: pin.Model) -> mujoco.MjModel:
    """The same bodies in the same order, without geometry, contacts, limits and passive forces."""
    _, parent, kind, axis, placement, inertia = plain_arrays(model)
    if (kind > 1).any():
        raise CannotBuild("free joints have other velocities in MuJoCo")
    spec = mujoco.MjSpec()
    spec.option.gravity = model.gravity.linear
    bodies: list = [spec.worldbody]
    for k, (x, b) in enumerate(zip(placement, inertia, strict=True)):
        R = x[:9].reshape(3, 3)
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, np.ascontiguousarray(R.ravel()))
        full = [b[4], b[6], b[9], b[5], b[7], b[8]]
        body = bodies[parent[k] + 1].add_body(name=f"b{k}", pos=x[9:], quat=quat, mass=b[0], ipos=b[1:4],
                                              fullinertia=full, explicitinertial=True)  # fmt: skip
        joint = mujoco.mjtJoint.mjJNT_HINGE if kind[k] else mujoco.mjtJoint.mjJNT_SLIDE
        body.add_joint(type=joint, axis=axis[k])
        bodies.append(body)
    try:
        made = spec.compile()
    except ValueError as why:
        raise CannotBuild(f"MuJoCo refuses the robot: {why}") from why
    if [made.body(f"b{k}").id for k in range(len(parent))] != list(range(1, len(parent) + 1)):
        raise CannotBuild("MuJoCo numbers the bodies differently")
    return made
