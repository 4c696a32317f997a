"""Pinocchio's C++ over many states: built here by clang -O3 -march=native, or else its Python wheel."""

from __future__ import annotations

import ctypes

import numpy as np
import pinocchio as pin

from peers.build import SOURCES, CannotBuild, clang, pinocchio_flags, plain_arrays, pointers, shared_library


class Native:
    """`run(problem, q, v, x, out)` for n states in C++, one after the other in one call."""

    name = "Pinocchio C++, clang -O3 -march=native"

    def __init__(self, model: pin.Model):
        flags = ["-O3", "-march=native", "-DNDEBUG", "-std=c++17", *pinocchio_flags()]
        self._library = shared_library(clang(), [SOURCES / "native.cpp"], flags)
        self._library.robot.restype = ctypes.c_void_p
        arrays = plain_arrays(model)
        self._robot = ctypes.c_void_p(self._library.robot(*pointers(arrays)))

    def run(self, problem: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """problem: inverse, forward_local or forward_world (the ABA's two conventions)."""
        getattr(self._library, problem)(self._robot, ctypes.c_long(len(q)), *pointers([q, v, x, out]))

    def variants(self, problem: str) -> tuple[str, ...]:
        return ("inverse",) if problem == "inverse" else ("forward_local", "forward_world")


class Wheel:
    """The same through the Python functions of the wheel, which adds about 0.5 µs a call."""

    name = "Pinocchio's Python wheel"

    def __init__(self, model: pin.Model):
        self._model, self._data = model, model.createData()

    def run(self, problem: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        algorithm = pin.rnea if problem == "inverse" else pin.aba
        for k in range(len(q)):
            out[k] = algorithm(self._model, self._data, q[k], v[k], x[k])

    def variants(self, problem: str) -> tuple[str, ...]:
        return (problem,)


def native_or_wheel(model: pin.Model) -> Native | Wheel:
    try:
        return Native(model)
    except CannotBuild as why:
        print(f"Pinocchio's C++ cannot be built ({why}): comparing with its Python wheel instead")
        return Wheel(model)
