"""Eliminated equations of a time step from the cache: they take most of the time before a log is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.offline.cache_key import time_step_key
from sysdyn.offline.time_step import Rows, TimeStepElimination
from sysdyn.online.storage import StoredProgram, cached_program
from sysdyn.program.program import Program


class CachedElimination:
    """Programs of a `TimeStepElimination` from the cache.

    If a program is missing, the elimination is built, which may raise its errors, and the program is stored.
    """

    def __init__(self, problem: Problem, outputs: Sequence[Output], biased: Sequence[str]):
        self.problem, self._outputs, self._biased = problem, tuple(outputs), tuple(biased)

    @cached_property
    def _elimination(self) -> TimeStepElimination:
        return TimeStepElimination(self.problem, self._outputs, self._biased)

    def rows(self) -> Rows:
        """See `TimeStepElimination.rows`."""

        def make() -> StoredProgram:
            x = self._elimination.rows()
            names = json.dumps([x.columns, x.noisy]).encode()
            return x.program, {"places": x.places, "exact": x.exact, "names": np.frombuffer(names, dtype=np.uint8)}

        program, arrays = self._cached("rows", make)
        columns, noisy = (tuple((str(n), int(k)) for n, k in x) for x in json.loads(arrays["names"].tobytes()))
        return Rows(program, arrays["places"], arrays["exact"], columns, noisy)

    def free(self) -> tuple[Program, np.ndarray]:
        """See `TimeStepElimination.free`."""

        def make() -> StoredProgram:
            program, places = self._elimination.free()
            return program, {"places": places}

        program, arrays = self._cached("free", make)
        return program, arrays["places"]

    def results(self) -> Program:
        """See `TimeStepElimination.results`."""
        return self._cached("results", lambda: (self._elimination.results(), {}))[0]

    def _cached(self, name: str, make: Callable[[], StoredProgram]) -> StoredProgram:
        return cached_program(time_step_key(self.problem, self._outputs, self._biased, name), make)
