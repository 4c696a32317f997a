"""Pinocchio's C++ over many states, built here with -O3 -march=native, or else its Python wheel."""

from __future__ import annotations

import ctypes

import numpy as np
import pinocchio as pin

from rivals.build import SOURCES, CannotBuild, compilers, pinocchio_flags, plain_arrays, pointers, shared_library
from rivals.turns import Call, words

# Of the compiler, for the code of all peers.
FLAGS = ("-O3", "-march=native", "-DNDEBUG", "-std=c++17")
# Functions that compute the same, by what they compute: the ABA has two conventions.
VARIANTS = {"forward": ("forward_local", "forward_world")}


class Native:
    """`call(variant, q, v, x, out)` for n states, one after the other in one call of C."""

    def __init__(self, model: pin.Model, compiler: str = ""):
        """compiler: a name out of `compilers`; the first of them where none is given."""
        found = compilers()
        compiler = compiler or next(iter(found))
        self.name = f"Pinocchio C++, {compiler}"
        flags = [*FLAGS, *pinocchio_flags()]
        self._library = shared_library(found[compiler], [SOURCES / "native.cpp"], flags)
        self._library.robot.restype = ctypes.c_void_p
        self._robot = self._library.robot(*pointers(plain_arrays(model)))

    def variants(self, problem: str) -> tuple[str, ...]:
        return VARIANTS.get(problem, (problem,))

    def call(self, variant: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray) -> Call:
        """variant: of inverse, forward, inverse_derivatives or forward_derivatives; out (n, nv) or (n, 3, nv, nv)."""
        return words(f"{self.name}, {variant}", getattr(self._library, variant), self._robot, [q, v, x, out])

    def run(self, variant: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        self.call(variant, q, v, x, out)()


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
