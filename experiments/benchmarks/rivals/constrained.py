"""Pinocchio's forward dynamics in contact and with loops, in C++ over many states, built here as `native` is."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pinocchio as pin

from rivals.build import SOURCES, compilers, pinocchio_flags, plain_arrays, pointers, shared_library
from rivals.native import FLAGS
from rivals.turns import Call, words

# Regularisation and steps of the algorithms that need them: one step is all that it takes to be within 1e-5, and no
# number of steps takes them to 1e-10 (measured).
REGULARISED = (1e-8, 1)


@dataclass(frozen=True)
class Hold:
    """A constraint between a frame of the peer and another one, or the world: fixed, or of their points."""

    frame: str
    fixed: bool
    other: str = ""
    offset: pin.SE3 = pin.SE3.Identity()  # of the other end from the frame `other`


class Constrained:
    """`call(variant, q, v, tau, out)` for n states, one after the other in one call of C: q̈ under the constraints."""

    def __init__(self, model: pin.Model, holds: Sequence[Hold], compiler: str):
        """compiler: a name out of `compilers`."""
        self.name, self._holds = f"Pinocchio C++, {compiler}", holds
        flags = [*FLAGS, *pinocchio_flags()]
        self._library = shared_library(compilers()[compiler], [SOURCES / "constrained.cpp"], flags)
        self._library.constrained.restype = ctypes.c_void_p
        ends = [_end(model, hold.frame, pin.SE3.Identity()) for hold in holds]
        others = [_end(model, hold.other, hold.offset) for hold in holds]
        numbers = [np.array(x, dtype=np.int32) for x in ([j for j, _ in ends], [j for j, _ in others])]
        places = [np.array([p for _, p in x]) for x in (ends, others)]
        fixed = np.array([hold.fixed for hold in holds], dtype=np.int32)
        arrays = [*plain_arrays(model), len(holds), *numbers, *places, fixed]
        mu, steps = REGULARISED
        self._robot = self._library.constrained(*pointers(arrays), ctypes.c_double(mu), steps)

    def variants(self) -> tuple[str, ...]:
        """Functions that compute q̈ without regularisation; the solver of Popov and Vereshchagin knows no loops."""
        return ("constraint_dynamics", *(f"pv_{kind}" for kind in self._kind))

    def regularised(self) -> tuple[str, ...]:
        """Those that regularise, within 1e-5; the ABA of loops is off by more for fixed contacts with the world."""
        loops = all(hold.other or not hold.fixed for hold in self._holds)
        return (*(f"aba_{kind}" for kind in self._kind), *(("loop_aba",) if loops else ()))

    @property
    def _kind(self) -> tuple[str, ...]:
        """The one kind of constraints that some algorithms take; empty for others."""
        kinds = {hold.fixed for hold in self._holds}
        several = len(kinds) > 1 or any(hold.other for hold in self._holds)
        return () if several else ("frames" if kinds == {True} else "points",)

    def call(self, variant: str, q: np.ndarray, v: np.ndarray, tau: np.ndarray, out: np.ndarray) -> Call:
        return words(f"{self.name}, {variant}", getattr(self._library, variant), self._robot, [q, v, tau, out])


def _end(model: pin.Model, frame: str, offset: pin.SE3) -> tuple[int, list[float]]:
    """(joint, placement by rows of its rotation and translation) of an end of a constraint."""
    joint, place = 0, offset
    if frame:
        found = model.frames[model.getFrameId(frame)]
        joint, place = found.parentJoint, found.placement * offset
    return joint, [*place.rotation.reshape(9), *place.translation]
