"""Eliminated equations of instants, out of the cache once they were made: most of the time before a log is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from sysdyn.files import cache
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.offline.cache_key import time_step_key
from sysdyn.offline.time_step import Rows, TimeStepElimination
from sysdyn.online import storage
from sysdyn.program.program import Program


class StoredInstant:
    """The programs of a `TimeStepElimination`, made where the cache does not have them. Raises as that does."""

    def __init__(self, problem: Problem, outputs: Sequence[Output], biased: Sequence[str]):
        self.problem, self._outputs, self._biased = problem, tuple(outputs), tuple(biased)

    @cached_property
    def _made(self) -> TimeStepElimination:
        return TimeStepElimination(self.problem, self._outputs, self._biased)

    def rows(self) -> Rows:
        """The rows of the state; see `TimeStepElimination.rows`."""

        def made() -> tuple[Program, dict[str, np.ndarray]]:
            x = self._made.rows()
            about = json.dumps([x.columns, x.noisy]).encode()
            return x.program, {"places": x.places, "exact": x.exact, "about": np.frombuffer(about, dtype=np.uint8)}

        program, found = self._stored("rows", made)
        columns, noisy = (tuple((str(n), int(k)) for n, k in x) for x in json.loads(found["about"].tobytes()))
        return Rows(program, found["places"], found["exact"], columns, noisy)

    def free(self) -> tuple[Program, np.ndarray]:
        """The free parts of residuals; see `TimeStepElimination.free`."""

        def made() -> tuple[Program, dict[str, np.ndarray]]:
            program, places = self._made.free()
            return program, {"places": places}

        program, found = self._stored("free", made)
        return program, found["places"]

    def results(self) -> Program:
        """The program of the outputs; see `TimeStepElimination.results`."""
        return self._stored("results", lambda: (self._made.results(), {}))[0]

    def _stored(
        self, name: str, made: Callable[[], tuple[Program, dict[str, np.ndarray]]]
    ) -> tuple[Program, dict[str, np.ndarray]]:  # fmt: skip
        """A program with arrays beside it, by the name of what it gives."""
        key = time_step_key(self.problem, self._outputs, self._biased, name)
        payload = cache.load(key) if key else None
        program = storage.program_of(payload)
        if program is not None and payload is not None:
            return program, storage.unpacked(payload)
        program, beside = made()
        if key:
            cache.store(key, storage.packed({**beside, **program.to_arrays()}))
        return program, beside
