"""Results in single precision, each with a residual in double precision and, where that is too large, a correction."""

from __future__ import annotations

import numpy as np

from sysdyn.backends.backend import Arrays, Backend, Results
from sysdyn.program.status import BEYOND_TOLERANCE

# States that are computed, looked at and corrected together: their values stay in the cache (chosen).
BETWEEN_CHECKS = 1024
# Corrections of a state, at most: each leaves as small a share of the error as the first result had of itself, so that
# another one is for results that nearly cancel (chosen).
CORRECTIONS = 3
# Rounding units of double precision that an error may have beside ∂x/∂u u, the terms of results that nearly cancel
# (chosen: results in double precision have some tens).
AS_EXACT = 100.0


class Certified(Backend):
    """A program in single precision with its residual in double precision. Results are float64.

    first: the back end of the program. residual: of a program of the first one's inputs and then its outputs, in double
    precision, which gives the residual and u. correction: of one of its inputs and then the residual, which gives what
    the outputs x are off by, ∂x/∂u times it. tolerance: greatest error of an output over its greatest entry. States
    beyond it after the corrections have the status BEYOND_TOLERANCE, unless results nearly cancel and are as exact as
    in double precision.
    """

    name = "certified"
    shares = True

    def __init__(self, first: Backend, residual: Backend, correction: Backend, tolerance: float):
        super().__init__(first.program, first.level, real=residual.real)
        self.first, self.residual, self.correction, self.tolerance = first, residual, correction, tolerance
        self.width = first.width

    def __reduce__(self):
        return type(self), (self.first, self.residual, self.correction, self.tolerance)

    @property
    def kernels(self) -> bool:
        """True if prepared calls can be made."""
        return self.first.kernels

    def guarded(self, inputs: Arrays) -> np.ndarray:
        return self.first.guarded(inputs)

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        for begin in range(start, start + size, BETWEEN_CHECKS):
            part = slice(begin, min(begin + BETWEEN_CHECKS, start + size))
            given = {name: x if x.ndim == 1 else x[part] for name, x in inputs.items()}
            self._block(given, {name: x[part] for name, x in outputs.items()}, status[part])

    def _block(self, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
        rounded = self.first.rounded(inputs)
        found, bits = self._computed(self.first, rounded, len(status))
        status[:] = bits
        for name, x in outputs.items():
            x[:] = found[name]
        states = np.flatnonzero(bits == 0)
        for left in reversed(range(CORRECTIONS + 1)):
            if not len(states):
                return
            every = len(states) == len(status)
            given, short, results = (part if every else _at(part, states) for part in (inputs, rounded, outputs))
            off, beyond = self._off(given, short, results, len(states), last=not left)
            states = states[beyond]
            for name, y in outputs.items() if left else ():
                y[states] += off[name][beyond]
        status[states] |= BEYOND_TOLERANCE

    def _off(self, inputs: Arrays, rounded: Arrays, x: Arrays, n: int, last: bool) -> tuple[Arrays, np.ndarray]:
        """(what the outputs x are off by (n, size), (n,) bool: that is beyond the tolerance)."""
        taken = (name for name, _ in self.residual.program.input_groups)
        own = dict(zip(taken, (*(inputs[x] for x, _ in self.program.input_groups), *x.values()), strict=True))
        residual, given = self._computed(self.residual, own, n)[0].values()
        off = self._corrections(rounded, residual, n)
        terms = self._corrections(rounded, given, n) if last else {}
        within = np.ones(n, dtype=bool)
        for name, y in x.items():
            most = self.tolerance * _sizes(y)
            if last:
                most = np.maximum(most, AS_EXACT * self.real.rounding * _sizes(terms[name]))
            within &= _sizes(off[name]) <= most  # False where it is not a number
        return off, ~within

    def _corrections(self, rounded: Arrays, residual: np.ndarray, n: int) -> Arrays:
        """∂x/∂u times the residual."""
        *_, (name, _) = self.correction.program.input_groups
        return self._computed(self.correction, {**rounded, **self.correction.rounded({name: residual})}, n)[0]

    @staticmethod
    def _computed(backend: Backend, inputs: Arrays, n: int) -> Results:
        outputs, status = backend.new(n)
        backend.run(inputs, outputs, status, 0, n)
        return outputs, status


def _at(arrays: Arrays, states: np.ndarray) -> Arrays:
    """Arrays (N, size) at some of the states, and those (size,) that all share."""
    return {name: x if x.ndim == 1 else x[states] for name, x in arrays.items()}


def _sizes(x: np.ndarray) -> np.ndarray:
    """Greatest absolute value of each row."""
    return np.abs(x).max(axis=1, initial=0.0)
