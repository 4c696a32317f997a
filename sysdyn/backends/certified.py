"""Results in single precision, each with a residual in double precision and, where that is too large, a correction."""

from __future__ import annotations

import numpy as np

from sysdyn.backends.backend import Arrays, Backend, Results
from sysdyn.program.status import BEYOND_TOLERANCE

# States that are computed, looked at and corrected together: their values stay in the cache (chosen).
BLOCK = 512
# Corrections of a state, at most: each leaves the share of the error that the first result had (chosen).
CORRECTIONS = 1


class Certified(Backend):
    """A program in single precision with its residual in double precision. Results are float64.

    first: the back end of the program. residual: of a program of the first one's inputs and then its outputs, in double
    precision. correction: of one of its inputs and then the residual, which gives what the outputs are off by.
    tolerance: greatest error of an output, as a fraction of its greatest entry; states that are beyond it after the
    correction have the status BEYOND_TOLERANCE.
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
        for begin in range(start, start + size, BLOCK):
            part = slice(begin, min(begin + BLOCK, start + size))
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
            own, short, x = (
                {name: y if every or y.ndim == 1 else y[states] for name, y in part.items()}
                for part in (inputs, rounded, outputs)
            )
            off, beyond = self._off(own, short, x, len(states))
            states = states[beyond]
            for name, y in outputs.items() if left else ():
                y[states] += off[name][beyond]
        status[states] |= BEYOND_TOLERANCE

    def _off(self, inputs: Arrays, rounded: Arrays, outputs: Arrays, n: int) -> tuple[Arrays, np.ndarray]:
        """(what the outputs are off by (n, size), (n,) bool: that is beyond the tolerance)."""
        taken = (name for name, _ in self.residual.program.input_groups)
        own = dict(zip(taken, (*(inputs[x] for x, _ in self.program.input_groups), *outputs.values()), strict=True))
        residual, _ = self._computed(self.residual, own, n)
        off, _ = self._computed(self.correction, dict(rounded) | self.correction.rounded(residual), n)
        within = np.ones(n, dtype=bool)
        for name, x in outputs.items():
            error, size = np.abs(off[name]).max(axis=1, initial=0.0), np.abs(x).max(axis=1, initial=0.0)
            within &= error <= self.tolerance * size  # False where it is not a number
        return off, ~within

    @staticmethod
    def _computed(backend: Backend, inputs: Arrays, n: int) -> Results:
        outputs, status = backend.new(n)
        backend.run(inputs, outputs, status, 0, n)
        return outputs, status
